"""Looks up topics and partitions that a producer does not know yet, with retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.api.config import ProducerSettings
from oncelog.api.session.retry import Backoff, BackoffPolicy
from oncelog.api.session.routing import Router
from oncelog.api.transacting.requests import UNKNOWN_TOPIC_WAIT_MS
from oncelog.storage.exceptions import OncelogError, UnknownTopicOrPartitionError
from oncelog.storage.model import INTERNAL_TOPICS


class TopicFinder:
    """Looks topics up for one producer. ``known`` may be called from any thread."""

    def __init__(self, *, router: Router, settings: ProducerSettings, random: Random) -> None:
        self._router = router
        self._settings = settings
        self._random = random

    def known(self, topic: str, partition: int | None = None) -> TopicMetadata | None:
        """Cached metadata of a topic that may be written to, if it has ``partition``."""
        metadata = self._router.known_topics.get(topic)
        if metadata is None or topic in INTERNAL_TOPICS:
            return None
        if partition is not None and partition >= len(metadata.partitions):
            return None
        return metadata

    async def find(self, topic: str, partition: int | None = None) -> None:
        """Wait until ``topic`` is known, up to ``max_block_ms``.

        A topic that the controller does not know is reported after a few seconds. A ``partition``
        beyond the known ones may just have been added, so the controller is asked again. Raises
        ``UnknownTopicOrPartitionError``, or the reason why the controller does not answer.
        """
        await self._until_answered(lambda: self._router.partition_count(topic))
        if partition is None or self.known(topic, partition) is not None:
            return
        await self._until_answered(lambda: self._router.ask_for(topic))
        count = await self._router.partition_count(topic)
        if partition >= count:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}"
            )

    async def _until_answered(self, ask: Callable[[], Awaitable[object]]) -> None:
        backoff = Backoff(
            BackoffPolicy(
                initial_ms=self._settings.retry_backoff_ms,
                max_ms=self._settings.retry_backoff_max_ms,
            ),
            self._random,
        )
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while True:
            try:
                await ask()
                return
            except OncelogError as error:
                is_missing = isinstance(error, UnknownTopicOrPartitionError)
                limit_ms = (
                    min(UNKNOWN_TOPIC_WAIT_MS, self._settings.max_block_ms)
                    if is_missing
                    else self._settings.max_block_ms
                )
                delay_s = backoff.delay_ms(error.code) / 1_000
                waited_s = loop.time() - started_s
                if not error.retriable or (waited_s + delay_s) * 1_000 > limit_ms:
                    raise
                await asyncio.sleep(delay_s)
