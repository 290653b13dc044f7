"""What the controller last said of topics and leaders, for coordinators and clients.

An answer is reused while it is recent enough for the question. If the controller does not answer,
an old answer still tells where to try, but never that a topic is gone. Ages and ``as_of_ms`` are in
``loop_ms``: a wall clock that is set back would make old answers new.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from oncelog.actors.interfaces import leader_address
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    MetadataRequest,
    TopicMetadata,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition

ANY_AGE_MS: Final = -1
"""``as_of_ms`` if an answer of any age will do."""

_NEVER_MS: Final = -math.inf
"""When an unknown topic was asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The leader of a partition. ``actor`` is ``None`` if there is none, or it is unknown.

    ``is_gone``: the controller says that there is no such partition (any more).
    """

    actor: str | None = None
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lookup:
    """The topics of one metadata request, and the task that awaits the reply."""

    topics: frozenset[str]
    asked_ms: int
    task: asyncio.Task[MetadataReply]


class ClusterView:
    """A cache of topic metadata, bounded by the topics that exist. Belongs to one event loop."""

    def __init__(
        self,
        ask_controller: Callable[[MetadataRequest], Coroutine[Any, Any, MetadataReply]],
        spawn: Callable[[Coroutine[Any, Any, MetadataReply]], asyncio.Task[MetadataReply]],
    ) -> None:
        """``ask_controller`` makes one call, in a task of ``spawn``; a lost one is an error."""
        self.known: Final[dict[str, TopicMetadata]] = {}
        """Answers of any age; may be read from any thread."""
        self.newest: MetadataReply | None = None
        self.cluster_key_version = 0
        self.changed_ms = ANY_AGE_MS
        """For the owner: when somebody was last told that topics have changed."""
        self._ask_controller = ask_controller
        self._spawn = spawn
        self._asked_ms: dict[str, int] = {}
        """When a known topic was asked about; without this it was invalidated."""
        self._lookup: _Lookup | None = None

    async def topics(
        self, names: Collection[str], *, as_of_ms: int
    ) -> tuple[ErrorCode, Mapping[str, TopicMetadata]]:
        """Those of ``names`` that exist, as the controller said at ``as_of_ms`` or later.

        With an error the controller did not answer, and what comes with it may be older.
        """
        error = ErrorCode.NONE
        if unknown := self.unknown(names, as_of_ms=as_of_ms):
            error = (await self.ask(unknown, as_of_ms=as_of_ms)).error
        return error, {name: self.known[name] for name in names if name in self.known}

    def find(self, name: str, *, as_of_ms: int) -> TopicMetadata | None:
        """A topic if it is known without asking, as of ``as_of_ms`` or later."""
        return self.known[name] if self._asked_ms.get(name, _NEVER_MS) >= as_of_ms else None

    def cached(
        self, names: Collection[str], *, as_of_ms: int = ANY_AGE_MS
    ) -> Mapping[str, TopicMetadata]:
        """Those of ``names`` that are known without asking, as of ``as_of_ms`` or later."""
        unknown = self.unknown(names, as_of_ms=as_of_ms)
        return {name: self.known[name] for name in names if name not in unknown}

    def unknown(self, names: Collection[str], *, as_of_ms: int) -> frozenset[str]:
        """Those of ``names`` about which the controller must be asked."""
        known = self._asked_ms
        return frozenset([name for name in names if known.get(name, _NEVER_MS) < as_of_ms])

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
        partition = None if found is None else found.find(topic_partition.partition)
        if error is not ErrorCode.NONE or partition is None:
            return None
        return partition.leader_epoch

    def invalidate(self, *names: str) -> None:
        """Ask about ``names`` again when they are next looked up."""
        for name in names:
            self._asked_ms.pop(name, None)

    def prolong(self, names: Collection[str]) -> None:
        """Use old answers as if they were new: the controller may be away for long."""
        self._asked_ms |= dict.fromkeys(self._asked_ms.keys() & names, loop_ms())

    async def ask(self, names: frozenset[str], *, as_of_ms: int = ANY_AGE_MS) -> MetadataReply:
        """Ask about ``names``; callers share a request that began at ``as_of_ms`` or later."""
        while True:
            lookup, is_ours = self._lookup, False
            if lookup is None or lookup.task.done():
                is_ours, task = True, self._spawn(self._question(names))
                lookup = self._lookup = _Lookup(topics=names, asked_ms=loop_ms(), task=task)
            # The request continues without this caller: another may wait for the same reply.
            await asyncio.wait((lookup.task,))
            is_recent = is_ours or lookup.asked_ms >= as_of_ms
            # A shutdown may have cancelled it; other waiting callers ask again.
            if is_recent and names <= lookup.topics and not lookup.task.cancelled():
                return lookup.task.result()

    async def _question(self, names: frozenset[str]) -> MetadataReply:
        asked_ms = loop_ms()
        reply = await self._ask_controller(MetadataRequest(topics=tuple(sorted(names))))
        if reply.error is ErrorCode.NONE:
            self.remember(reply, names, asked_ms=asked_ms)
        return reply

    def remember(self, reply: MetadataReply, asked: Collection[str], *, asked_ms: int) -> None:
        """Take an answer about the topics ``asked``: those that it lacks are not there.

        Or they may not be seen, if ``refused``; no server is told so.
        """
        self.newest = reply
        self.cluster_key_version = max(self.cluster_key_version, reply.cluster_key_version)
        found = {topic.name: topic for topic in reply.topics}
        for name in frozenset(asked) - found.keys():
            self.known.pop(name, None)
            self._asked_ms.pop(name, None)
        self.known.update(found)
        self._asked_ms |= dict.fromkeys(found, asked_ms)
