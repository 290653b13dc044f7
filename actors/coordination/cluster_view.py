"""A coordinator's cache of topic ids and leaders, as answered by the controller.

An answer is reused while it is recent enough for the question. If the controller does not answer,
an old answer still tells where to try, but never that a topic is gone. Ages and ``as_of_ms`` are in
``loop_ms``: a wall clock that is set back would make old answers new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from oncelog.actors.interfaces import CONTROLLER_ACTOR, Transport, leader_address
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.cluster import MetadataRequest, TopicMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition

ANY_AGE_MS: Final = -1
"""``as_of_ms`` if an answer of any age will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The leader of a partition. ``actor`` is ``None`` if there is none, or it is unknown.

    ``is_gone``: the controller says that there is no such partition (any more).
    """

    actor: str | None = None
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    asked_ms: int
    topic: TopicMetadata


class ClusterView:
    """A cache of topic metadata, bounded by the topics that exist."""

    def __init__(self, *, transport: Transport, call_timeout_ms: int) -> None:
        self._transport = transport
        self._call_timeout_ms = call_timeout_ms
        self._topics: dict[str, _Known] = {}
        self.cluster_key_version = 0
        self._asking = asyncio.Lock()

    async def topics(
        self, names: Collection[str], *, as_of_ms: int
    ) -> tuple[ErrorCode, Mapping[str, TopicMetadata]]:
        """Those of ``names`` that exist, as the controller said at ``as_of_ms`` or later.

        With an error the controller did not answer, and what comes with it may be older.
        """
        error = ErrorCode.NONE
        if self._unknown(names, as_of_ms):
            async with self._asking:
                unknown = self._unknown(names, as_of_ms)
                if unknown:
                    error = await self._ask(unknown)
        return error, {name: self._topics[name].topic for name in names if name in self._topics}

    def cached(
        self, names: Collection[str], *, as_of_ms: int = ANY_AGE_MS
    ) -> Mapping[str, TopicMetadata]:
        """Those of ``names`` that are known without asking, as of ``as_of_ms`` or later."""
        unknown = self._unknown(names, as_of_ms)
        return {name: self._topics[name].topic for name in names if name not in unknown}

    async def locate(self, topic_partition: TopicPartition, *, as_of_ms: int) -> Location:
        """The leader of a partition, as the controller said at ``as_of_ms`` or later."""
        topic = topic_partition.topic
        error, topics = await self.topics((topic,), as_of_ms=as_of_ms)
        found = topics.get(topic)
        partition = None if found is None else found.find(topic_partition.partition)
        if found is not None and partition is not None:
            return Location(actor=leader_address(found, partition))
        return Location(is_gone=error is ErrorCode.NONE and topic not in INTERNAL_TOPICS)

    async def leader_epoch(self, topic_partition: TopicPartition, *, as_of_ms: int) -> int | None:
        """The newest leader epoch of a partition, as the controller said at ``as_of_ms`` or later.

        ``None`` when the controller does not answer, or knows no such partition.
        """
        error, topics = await self.topics((topic_partition.topic,), as_of_ms=as_of_ms)
        found = topics.get(topic_partition.topic)
        if error is not ErrorCode.NONE or found is None:
            return None
        epochs = {partition.partition: partition.leader_epoch for partition in found.partitions}
        return epochs.get(topic_partition.partition)

    def _unknown(self, names: Collection[str], as_of_ms: int) -> tuple[str, ...]:
        return tuple(
            name
            for name in names
            if name not in self._topics or self._topics[name].asked_ms < as_of_ms
        )

    async def _ask(self, names: tuple[str, ...]) -> ErrorCode:
        asked_ms = loop_ms()
        reply = await self._transport.call(
            CONTROLLER_ACTOR, MetadataRequest(topics=names), timeout_ms=self._call_timeout_ms
        )
        if reply.error is ErrorCode.NONE:
            self.cluster_key_version = max(self.cluster_key_version, reply.cluster_key_version)
            for name in names:
                self._topics.pop(name, None)
            for topic in reply.topics:
                self._topics[topic.name] = _Known(asked_ms=asked_ms, topic=topic)
        return reply.error
