"""What a producer has accepted: ``buffer_memory`` of records, open for more or waiting for room.

Belongs to one event loop. Only the methods under "from any thread" may be called from other
threads; they take the accumulator's lock and wake the loop if needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from oncelog.actors.process.clock import SystemClock
from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.api.batching.accumulator import Accumulator, Headers, Wake, record_size_bytes
from oncelog.api.batching.arrow_rows import ColumnBatch
from oncelog.api.batching.delivery import BatchDelivery, RecordFuture, TableDelivery
from oncelog.api.batching.interceptors import InterceptorChain
from oncelog.api.batching.open_batches import OpenBatches
from oncelog.api.batching.partitioner import Partitioner
from oncelog.api.config import ProducerSettings
from oncelog.api.serializing import Serializers
from oncelog.api.session.event_loop import AFTER_FORK
from oncelog.api.session.retry import Backoff, BackoffPolicy
from oncelog.api.session.routing import Router
from oncelog.api.transacting.producer_transaction import ProducerTransaction
from oncelog.api.transacting.requests import UNKNOWN_TOPIC_WAIT_MS
from oncelog.storage.exceptions import (
    ClientClosedError,
    IllegalStateError,
    InvalidTopicError,
    MessageTooLargeError,
    OncelogError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    exception_for,
)
from oncelog.storage.model import INTERNAL_TOPICS, TOPIC_NAME_RULE, is_valid_topic_name


class RecordBuffer:
    """Accepts the records of one producer while its transaction, if any, is open.

    ``on_wake`` is called on ``loop`` when the sender has something new to do, and ``on_full`` when
    records wait for memory, so that lingering batches leave. ``is_staying``: see ``Accumulator``.
    """

    def __init__(
        self,
        *,
        router: Router,
        settings: ProducerSettings,
        random: Random,
        loop: asyncio.AbstractEventLoop,
        state: ProducerTransaction | None,
        on_wake: Callable[[Wake], None],
        on_full: Callable[[], None],
        is_staying: Callable[[], bool],
    ) -> None:
        self.settings = settings
        self.is_closed = False
        self.interceptors = InterceptorChain(settings.interceptors)
        self.serializers = Serializers(settings.key_serializer, settings.value_serializer)
        self.topics = TopicFinder(router=router, settings=settings, random=random)
        self.partitioner = Partitioner(settings.partitioner)
        self.open_batches = open_batches_for(settings, router, self.partitioner)
        self._loop = loop
        self._clock = router.clock
        self._state = state
        self._on_wake = on_wake
        self._on_full = on_full
        self._is_forked = False
        self._crash: OncelogError | None = None
        self._progress = asyncio.Event()
        self.accumulator = Accumulator(
            open_batches=self.open_batches,
            batch_bytes=settings.batch_size,
            partitioner=self.partitioner,
            random=random,
            gate=self._check_send,
            on_done=self._progress.set,
            now=loop.time,
            is_staying=is_staying,
        )
        if state is None:
            self.open_batches.is_accepting = True
        else:
            state.on_accepting = self._accept

    @property
    def buffered_bytes(self) -> int:
        """Estimated bytes of records whose outcome is not yet known."""
        return self.accumulator.buffered_bytes

    # --- from any thread ----------------------------------------------------------------------

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int | None,
        partition: int | None,
    ) -> RecordFuture | None:
        """Accept one type-checked record; ``None`` if ``make_room`` must be awaited first."""
        metadata = self.topics.known(topic, partition)
        if metadata is None or self.accumulator.buffered_bytes >= self.settings.buffer_memory:
            return None
        size = record_size_bytes(value, key, headers)
        if size > self.settings.max_request_size:
            raise MessageTooLargeError(
                f"the record takes {size} bytes, more than "
                f"max_request_size={self.settings.max_request_size}",
                advice="split it",
            )
        if timestamp_ms is None:
            timestamp_ms = self._clock.now_ms()
        if partition is None:
            # Here, because application code must not run under the accumulator's lock.
            partition = self.partitioner.by_function(topic, key, len(metadata.partitions))
        future, wake = self.accumulator.append(
            topic,
            metadata,
            partition,
            (key, value, timestamp_ms, headers),
            size,
        )
        if wake is not Wake.NOTHING:
            self._loop.call_soon_threadsafe(self._on_wake, wake)
        return future

    def append_batch(self, batch: ColumnBatch, table: TableDelivery) -> BatchDelivery:
        """Accept one batch of a table; without ``has_room``, await ``make_room`` first."""
        delivery, wake = self.accumulator.append_rows(
            batch.topic_partition, batch.rows, batch.size_bytes
        )
        table.add(delivery)
        if wake is not Wake.NOTHING:
            self._loop.call_soon_threadsafe(self._on_wake, wake)
        return delivery

    def record_refused(self, error: BaseException) -> None:
        """Note that ``send`` raised ``error``: an open transaction lacks a record."""
        if self._state is not None:
            self._state.send_refused(error)

    def has_room(self, topic: str, partition: int | None = None) -> bool:
        """Whether ``topic`` and ``partition`` are known and ``buffer_memory`` is not full."""
        return (
            self.topics.known(topic, partition) is not None
            and self.accumulator.buffered_bytes < self.settings.buffer_memory
        )

    def partition_count(self, topic: str) -> int:
        """The partition count of a topic for which ``has_room`` was true."""
        return len(metadata.partitions) if (metadata := self.topics.known(topic)) else 0

    def sticky_partition(self, topic: str, partition_count: int) -> int:
        """Choose another partition, for a block of records without keys."""
        return self.accumulator.sticky_partition(topic, partition_count)

    def now_ms(self) -> int:
        """The timestamp of records that are sent without one."""
        return self._clock.now_ms()

    def forbid(self) -> None:
        """Accept nothing: this is the copy of a buffer in a forked process."""
        self.is_closed = self._is_forked = True
        self._accept(False)

    def check_process(self) -> None:
        """``IllegalStateError`` in a forked process, where the event loop's copy never runs."""
        if self._is_forked:
            raise IllegalStateError(AFTER_FORK)

    # --- on the event loop ----------------------------------------------------------------------

    async def make_room(self, topic: str, partition: int | None = None) -> None:
        """Wait until ``topic`` and ``partition`` are known and there is memory.

        This may take ``max_block_ms``; see ``TopicFinder`` for topics that do not exist.
        """
        self._check_send()
        check_topic_name(topic)
        if topic in INTERNAL_TOPICS:
            raise InvalidTopicError(f"topic {topic!r} is internal; records cannot be sent to it")
        await self.topics.find(topic, partition)
        try:
            await asyncio.wait_for(
                self.wait_until(self._has_memory), self.settings.max_block_ms / 1_000
            )
        except asyncio.TimeoutError:
            raise RequestTimedOutError(
                f"buffer_memory={self.settings.buffer_memory} stayed full of pending records "
                f"for max_block_ms={self.settings.max_block_ms}; is the topic's leader alive?"
            ) from None

    def _has_memory(self) -> bool:
        if self.accumulator.buffered_bytes < self.settings.buffer_memory:
            return True
        # Send lingering batches: no record can be accepted while memory is full.
        self._on_full()
        return False

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for ``condition``, which changes only when the outcome of a batch is known."""
        while not condition():
            self._progress.clear()
            await self._progress.wait()

    def wake_waiters(self) -> None:
        """Have those who wait look again: batches have failed without an answer."""
        self._progress.set()

    def crashed(self, crash: OncelogError) -> None:
        """Accept nothing any more: the producer has met a bug."""
        self._crash = crash
        self._accept(False)

    def close(self) -> None:
        """Accept nothing any more."""
        self.is_closed = True
        self._accept(False)

    def _accept(self, is_accepting: bool) -> None:
        self.open_batches.is_accepting = is_accepting and not self.is_closed and self._crash is None

    def _check_send(self) -> None:
        self.check_process()
        if self.is_closed:
            raise ClientClosedError("the producer is closed", advice="make a new one")
        if self._crash is not None:
            raise exception_for(self._crash.code, str(self._crash)) from self._crash
        if self._state is not None:
            self._state.check_send()


def check_topic_name(topic: object) -> None:
    """``InvalidTopicError`` unless a topic may have this name."""
    if not isinstance(topic, str) or not is_valid_topic_name(topic):
        raise InvalidTopicError(f"{topic!r:.80} is not a topic name: {TOPIC_NAME_RULE}")


def open_batches_for(
    settings: ProducerSettings, router: Router, partitioner: Partitioner
) -> OpenBatches:
    """The open batches of a producer with these settings."""
    return OpenBatches(
        known_topics=router.known_topics,
        now_ms=router.clock.now_ms,
        is_system_time=isinstance(router.clock, SystemClock),
        batch_bytes=settings.batch_size,
        record_bytes_max=settings.max_request_size,
        buffer_bytes_max=settings.buffer_memory,
        is_crc32=partitioner.is_crc32,
        is_by_function=partitioner.is_function,
    )


# --- topics that are not known yet ----------------------------------------------------------------


class TopicFinder:
    """Looks up topics and partitions that a producer does not know yet, with retries.

    ``known`` may be called from any thread.
    """

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

        A topic unknown to the controller is an error after a few seconds. A ``partition`` beyond
        the known ones may just have been added, so the controller is asked again. Raises
        ``UnknownTopicOrPartitionError``, or the reason why the controller does not reply.
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

    async def metadata(self, topic: str) -> TopicMetadata:
        """The metadata of a topic, of internal ones too; raises as ``find`` does."""
        check_topic_name(topic)
        await self.find(topic)
        return self._router.known_topics[topic]

    async def _until_answered(self, ask: Callable[[], Awaitable[object]]) -> None:
        backoff = Backoff(BackoffPolicy.of(self._settings), self._random)
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
