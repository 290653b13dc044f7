"""The record accumulator: one open batch per partition, and closed batches waiting to be sent.

Pure: no clock, no event loop, no call. Application threads append; the producer's event loop takes
batches out. A lock makes each step atomic. ``Wake`` says whether the appending thread must wake the
loop; most records wake none.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.api.batching.delivery import BatchDelivery, RecordFuture
from oncelog.api.batching.open_batches import (
    RECORD_OVERHEAD_BYTES,
    OpenBatch,
    OpenBatches,
    TopicBatches,
)
from oncelog.api.batching.partitioner import Partitioner, StickyPartitions
from oncelog.api.batching.rows import BatchRows
from oncelog.storage.exceptions import UnknownTopicOrPartitionError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import RecordInput

HEADER_OVERHEAD_BYTES: Final = 10
"""Upper bound of the two varint lengths of one header."""

Headers = Sequence[tuple[str, bytes | None]]


def record_size_bytes(value: bytes | None, key: bytes | None, headers: Headers) -> int:
    """Upper bound of a record's encoded size in a batch."""
    size_bytes = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
    for name, content in headers:
        size_bytes += HEADER_OVERHEAD_BYTES + len(name.encode()) + len(content or b"")
    return size_bytes


class Wake(enum.Enum):
    """Why an append must wake the event loop."""

    NOTHING = 0
    LINGER = 1
    """A batch was begun and no timer runs: start ``linger_ms``."""
    FULL = 2
    """A batch is full: send it now."""


class PendingBatch:
    """One batch, from its first record until its outcome is known."""

    __slots__ = ("created_s", "delivery", "rows")

    def __init__(self, rows: BatchRows, delivery: BatchDelivery, created_s: float) -> None:
        self.rows = rows
        self.delivery = delivery
        self.created_s = created_s

    def split(self) -> tuple[PendingBatch, PendingBatch]:
        """Split it in two; the outcome of the whole is that of both halves."""
        first, second = self.rows.split()
        deliveries = self.delivery.split((first.record_count, second.record_count))
        return (
            PendingBatch(first, deliveries[0], self.created_s),
            PendingBatch(second, deliveries[1], self.created_s),
        )


@dataclass(slots=True)
class _Queue:
    """The closed batches of one partition, in order.

    ``is_due`` means that the open batch has lingered long enough to be sent.
    """

    topic_partition: TopicPartition
    closed: deque[PendingBatch]
    is_due: bool = False


class Accumulator:
    """Open and closed batches per partition. ``gate`` raises while no record may be accepted.

    ``on_done`` is called on the event loop whenever a batch's outcome is known. ``now`` returns
    monotonic seconds, and ``is_staying`` whether the next batch may go where the last one went; any
    thread may call them.
    """

    def __init__(
        self,
        *,
        open_batches: OpenBatches,
        batch_bytes: int,
        partitioner: Partitioner,
        random: Random,
        gate: Callable[[], None],
        on_done: Callable[[], None],
        now: Callable[[], float],
        is_staying: Callable[[], bool] = lambda: False,
    ) -> None:
        self._open = open_batches
        self._lock = open_batches.lock
        self._batch_bytes = batch_bytes
        self._partitioner = partitioner
        self._gate = gate
        self._on_done = on_done
        self._now = now
        self._is_staying = is_staying
        self._sticky = StickyPartitions(random)
        self._queues: dict[str, list[_Queue]] = {}
        # Those with records, and some that have had them: few of a topic with many partitions.
        self._used: dict[TopicPartition, _Queue] = {}
        # With the time each batch was begun, and so in that order.
        self._undelivered: dict[BatchDelivery, float] = {}
        self._is_lingering = False
        self._is_full_reported = False

    @property
    def buffered_bytes(self) -> int:
        """Estimated bytes of all batches whose outcome is not yet known."""
        return self._open.buffered_bytes

    # --- application threads ------------------------------------------------------------------

    def append(
        self,
        topic: str,
        metadata: TopicMetadata,
        partition: int | None,
        record: RecordInput,
        size_bytes: int,
    ) -> tuple[RecordFuture, Wake]:
        """Add one record. If ``partition`` is ``None``, its key chooses, or the sticky partition.

        The slow path, for every record that ``OpenBatches.add`` does not take.
        """
        with self._lock:
            self._gate()
            batches = self._topic(topic, metadata)
            count = len(batches.batches)
            is_sticky = False
            if partition is None:
                partition = self._partitioner.of_key(record[0], count)
            if partition is None:
                is_sticky = True
                partition = self._stick(topic, batches)
            elif not 0 <= partition < count:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}"
                )
            is_full = False
            batch = batches.batches[partition]
            if batch is not None and (
                batch.size_bytes + size_bytes > self._batch_bytes or not batch.takes_time(record[2])
            ):
                self._close(topic, partition)
                is_full = True
                batch = None
                if is_sticky:
                    partition = self._sticky.advance(topic, count)
                    batch = batches.batches[partition]
            is_new = batch is None
            if batch is None:
                batch = self._new_batch(self._queues[topic][partition])
            future = self._open.put(batch, record, size_bytes)
            if is_new:
                # Published only now, so that no other record can precede its first.
                batches.batches[partition] = batch
            if is_sticky:
                batches.sticky = batch
            if batch.size_bytes >= self._batch_bytes:
                self._close(topic, partition)
                is_full = True
            return future, self._wake(is_full)

    def append_rows(
        self, topic_partition: TopicPartition, rows: BatchRows, size_bytes: int
    ) -> tuple[BatchDelivery, Wake]:
        """Add a whole batch after everything already queued for the partition."""
        with self._lock:
            self._gate()
            topic, partition = topic_partition.topic, topic_partition.partition
            queue = self._grow(topic, partition + 1)[partition]
            self._close(topic, partition)
            delivery = BatchDelivery(topic_partition, rows.record_count)
            created_s = self._undelivered[delivery] = self._now()
            self._enqueue(queue, PendingBatch(rows, delivery, created_s))
            self._sticky.filled(topic, partition, size_bytes)
            self._open.hold(size_bytes)
            self._release_later(delivery, size_bytes)
            return delivery, self._wake(True)

    def sticky_partition(self, topic: str, partition_count: int) -> int:
        """Choose another sticky partition, for a block of records without keys."""
        with self._lock:
            return self._sticky.following(topic, partition_count, is_staying=self._is_staying())

    # --- event loop ---------------------------------------------------------------------------

    def end_linger(self) -> None:
        """``linger_ms`` has passed: open batches may be sent as they are."""
        with self._lock:
            self._is_lingering = False
            for queue in self._with_records():
                queue.is_due = self._has_open(queue)

    def take_full_batches(self) -> bool:
        """The loop is about to handle full batches; the next full one wakes it again.

        Returns whether to start ``linger_ms``: the record that filled a batch may begin the next.
        """
        with self._lock:
            self._is_full_reported = False
            begins = not self._is_lingering and any(map(self._has_open, self._with_records()))
            self._is_lingering = self._is_lingering or begins
            return begins

    def close_open(self) -> frozenset[BatchDelivery]:
        """Close every open batch, for a flush; return all batches whose outcome is unknown."""
        with self._lock:
            self._close_all()
            return frozenset(self._undelivered)

    def is_delivered(self, deliveries: frozenset[BatchDelivery]) -> bool:
        """Whether the outcomes of all ``deliveries`` are known."""
        with self._lock:
            return deliveries.isdisjoint(self._undelivered)

    def waiting(self) -> list[TopicPartition]:
        """The partitions that have unsent records, due or not."""
        with self._lock:
            return [queue.topic_partition for queue in self._with_records()]

    def has_due(self) -> bool:
        """Whether any partition has a batch that may be sent now."""
        with self._lock:
            return any(
                queue.closed or (queue.is_due and self._has_open(queue))
                for queue in self._with_records()
            )

    def take(self, topic_partition: TopicPartition) -> PendingBatch | None:
        """The next batch of a partition that is full or due, or ``None``."""
        with self._lock:
            queues = self._queues.get(topic_partition.topic, [])
            if topic_partition.partition >= len(queues):
                return None
            queue = queues[topic_partition.partition]
            if not queue.closed and queue.is_due:
                self._close(topic_partition.topic, topic_partition.partition)
            if not queue.closed:
                return None
            return queue.closed.popleft()

    def oldest_s(self) -> float | None:
        """When the oldest batch with unknown outcome was begun; ``None`` if there is none."""
        with self._lock:
            return next(iter(self._undelivered.values()), None)

    def take_old(self, begun_before_s: float) -> list[PendingBatch]:
        """Take every batch that was begun at or before ``begun_before_s``."""
        with self._lock:
            old: list[PendingBatch] = []
            for queue in self._with_records():
                topic, partition = queue.topic_partition.topic, queue.topic_partition.partition
                if self._has_open(queue):
                    batch = self._open.topics[topic].batches[partition]
                    if batch is not None and batch.created_s <= begun_before_s:
                        self._close(topic, partition)
                while queue.closed and queue.closed[0].created_s <= begun_before_s:
                    old.append(queue.closed.popleft())
            return old

    def drop(self) -> list[PendingBatch]:
        """Take every batch, for the caller to fail."""
        with self._lock:
            dropped: list[PendingBatch] = []
            self._close_all()
            for queue in self._with_records():
                dropped.extend(queue.closed)
                queue.closed.clear()
            return dropped

    # --- internals, under the lock ------------------------------------------------------------

    def _with_records(self) -> list[_Queue]:
        """The partitions that have unsent records."""
        found = [q for q in self._used.values() if q.closed or self._has_open(q)]
        if len(found) < len(self._used):
            self._used = {queue.topic_partition: queue for queue in found}
        return found

    def _grow(self, topic: str, partition_count: int) -> list[_Queue]:
        queues = self._queues.setdefault(topic, [])
        for partition in range(len(queues), partition_count):
            queues.append(_Queue(TopicPartition(topic, partition), deque()))
        return queues

    def _topic(self, topic: str, metadata: TopicMetadata) -> TopicBatches:
        """The open batches of a topic, extended to its current partition count."""
        batches = self._open.topics.get(topic)
        if batches is not None and batches.metadata is metadata:
            return batches
        count = len(metadata.partitions)
        self._grow(topic, count)
        if batches is not None and len(batches.batches) == count:
            batches.metadata = metadata
            return batches
        if batches is not None:
            # Keys now map to other partitions: the records gathered so far are sent first.
            for partition in range(len(batches.batches)):
                self._close(topic, partition)
        batches = self._open.topics[topic] = self._open.new_topic(metadata, count)
        return batches

    def _stick(self, topic: str, batches: TopicBatches) -> int:
        count = len(batches.batches)
        partition = self._sticky.current(topic, count)
        if batches.batches[partition] is None:
            # Its batch was sent: the next one may as well go to another partition.
            partition = self._sticky.following(topic, count, is_staying=self._is_staying())
        return partition

    def _has_open(self, queue: _Queue) -> bool:
        partition = queue.topic_partition.partition
        batches = self._open.topics.get(queue.topic_partition.topic)
        return (
            batches is not None
            and partition < len(batches.batches)
            and batches.batches[partition] is not None
        )

    def _new_batch(self, queue: _Queue) -> OpenBatch:
        batch = self._open.new_batch(BatchDelivery(queue.topic_partition), self._now())
        self._undelivered[batch.delivery] = batch.created_s
        self._used[queue.topic_partition] = queue
        return batch

    def _close_all(self) -> None:
        for queue in self._with_records():
            self._close(queue.topic_partition.topic, queue.topic_partition.partition)

    def _close(self, topic: str, partition: int) -> None:
        queue = self._queues[topic][partition]
        queue.is_due = False
        batches = self._open.topics.get(topic)
        if batches is None or partition >= len(batches.batches):
            return
        batch = batches.batches[partition]
        if batch is None:
            return
        # Unpublish it first, so that ``OpenBatches.add`` cannot reach it; then look at it.
        batches.batches[partition] = None
        if batches.sticky is batch:
            batches.sticky = None
        rows = batch.rows()
        batch.delivery.record_count = rows.record_count
        self._enqueue(queue, PendingBatch(rows, batch.delivery, batch.created_s))
        self._sticky.filled(topic, partition, batch.size_bytes)
        self._release_later(batch.delivery, batch.size_bytes)

    def _enqueue(self, queue: _Queue, batch: PendingBatch) -> None:
        queue.closed.append(batch)
        self._used[queue.topic_partition] = queue

    def _release_later(self, delivery: BatchDelivery, size_bytes: int) -> None:
        def release() -> None:
            with self._lock:
                self._undelivered.pop(delivery, None)
                self._open.hold(-size_bytes)
                if delivery.error is not None:
                    # Its partition may have no leader, and whoever tries again would fail there.
                    failed = delivery.topic_partition
                    self._sticky.leave(failed.topic, failed.partition)
            self._on_done()

        delivery.add_done_callback(release)

    def _wake(self, is_full: bool) -> Wake:
        if is_full:
            if not self._is_full_reported:
                self._is_full_reported = True
                return Wake.FULL
        elif not self._is_lingering:
            self._is_lingering = True
            return Wake.LINGER
        return Wake.NOTHING
