"""Records waiting to be sent, gathered into one batch per partition at a time.

Pure: no clock, no loop, no call. Threads of the application append; the producer's event loop
takes batches out. A lock makes each step whole, and ``Wake`` tells the appending thread whether
the loop has to be woken, so that most records cross no thread at all.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from oncelog.api.delivery import BatchDelivery, RecordFuture
from oncelog.api.partitioner import StickyPartitions, partition_for_key
from oncelog.storage.compression import Codec
from oncelog.storage.exceptions import OncelogError, UnknownTopicOrPartitionError
from oncelog.storage.model import TopicPartition
from oncelog.storage.record_codec import RecordInput, encode_records

RECORD_OVERHEAD_BYTES: Final = 21
"""The most that a record's fixed fields take in a batch, header count included."""

HEADER_OVERHEAD_BYTES: Final = 10
"""The most that the two lengths of one header take."""

Headers = Sequence[tuple[str, bytes | None]]


class Wake(enum.Enum):
    """What the event loop has to be told after an append."""

    NOTHING = 0
    LINGER = 1
    """A batch was begun and nobody is waiting to send it: start the linger time."""
    FULL = 2
    """A batch is full: send it now."""


class Rows(Protocol):
    """The records of a batch, encoded when it is sent and not before."""

    @property
    def record_count(self) -> int:
        """How many records there are, at least one."""
        ...

    def encode(
        self,
        *,
        codec: Codec,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        is_transactional: bool,
    ) -> bytearray:
        """The whole batch, sealed."""
        ...

    def split(self) -> tuple[Rows, Rows]:
        """Two halves, in order, of at least two records."""
        ...


class RecordRows:
    """Records that were sent one by one."""

    __slots__ = ("records",)

    def __init__(self, records: list[RecordInput]) -> None:
        self.records = records

    @property
    def record_count(self) -> int:
        """How many records there are."""
        return len(self.records)

    def encode(
        self,
        *,
        codec: Codec,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        is_transactional: bool,
    ) -> bytearray:
        """The whole batch, sealed."""
        return encode_records(
            self.records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )

    def split(self) -> tuple[Rows, Rows]:
        """Two halves, in order."""
        middle = len(self.records) // 2
        return RecordRows(self.records[:middle]), RecordRows(self.records[middle:])


class PendingBatch:
    """One batch from its first record until its outcome is known."""

    __slots__ = ("created_s", "delivery", "rows")

    def __init__(self, rows: Rows, delivery: BatchDelivery, created_s: float) -> None:
        self.rows = rows
        self.delivery = delivery
        self.created_s = created_s

    def split(self) -> tuple[PendingBatch, PendingBatch]:
        """Two halves, whose deliveries together make up that of the whole."""
        first, second = self.rows.split()
        deliveries = self.delivery.split((first.record_count, second.record_count))
        return (
            PendingBatch(first, deliveries[0], self.created_s),
            PendingBatch(second, deliveries[1], self.created_s),
        )


class _OpenBatch:
    """The batch that a partition's next record goes to."""

    __slots__ = ("created_s", "delivery", "records", "size_bytes")

    def __init__(self, topic_partition: TopicPartition, created_s: float) -> None:
        self.records: list[RecordInput] = []
        self.size_bytes = 0
        self.created_s = created_s
        self.delivery = BatchDelivery(topic_partition)


@dataclass(slots=True)
class _Queue:
    """The batches of one partition: closed ones in order, then the open one.

    ``is_due`` means that the open batch has lingered long enough to be sent as it is.
    """

    topic_partition: TopicPartition
    closed: deque[PendingBatch]
    open: _OpenBatch | None = None
    is_due: bool = False


class Accumulator:
    """Batches per partition. ``gate`` raises when no record may be accepted now.

    ``on_done`` is called, on the event loop, when the outcome of any batch is known. ``now`` gives
    the seconds since some point in time, from any thread.
    """

    def __init__(
        self,
        *,
        batch_bytes: int,
        random: Random,
        gate: Callable[[], None],
        on_done: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self.buffered_bytes = 0
        """Estimated bytes of all batches whose outcome is not known yet."""
        self._batch_bytes = batch_bytes
        self._gate = gate
        self._on_done = on_done
        self._now = now
        self._sticky = StickyPartitions(random)
        self._lock = threading.Lock()
        self._queues: dict[str, list[_Queue]] = {}
        self._undelivered: set[BatchDelivery] = set()
        self._is_linger_told = False
        self._is_full_told = False

    # --- application threads ------------------------------------------------------------------

    def append(
        self,
        topic: str,
        partition_count: int,
        partition: int | None,
        record: RecordInput,
        size_bytes: int,
    ) -> tuple[RecordFuture, Wake]:
        """Add one record; by key, or sticky without one, if ``partition`` is ``None``."""
        with self._lock:
            self._gate()
            queues = self._queues.get(topic)
            if queues is None or len(queues) < partition_count:
                queues = self._grow(topic, partition_count)
            if partition is None:
                key = record[0]
                if key is not None:
                    partition = partition_for_key(key, partition_count)
                else:
                    partition = self._sticky_partition(topic, queues, partition_count)
            elif not 0 <= partition < partition_count:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic!r} has partitions 0 to {partition_count - 1}, not {partition}"
                )
            queue = queues[partition]
            batch = queue.open
            is_full = False
            if batch is not None and batch.size_bytes + size_bytes > self._batch_bytes:
                self._close(queue)
                is_full = True
                batch = None
            if batch is None:
                batch = self._open(queue)
            records = batch.records
            future = RecordFuture(batch.delivery, len(records), record[2])
            records.append(record)
            batch.size_bytes += size_bytes
            self.buffered_bytes += size_bytes
            if batch.size_bytes >= self._batch_bytes:
                self._close(queue)
                is_full = True
            if self._is_linger_told and not is_full:
                return future, Wake.NOTHING
            return future, self._wake(is_full)

    def append_rows(
        self, topic_partition: TopicPartition, rows: Rows, size_bytes: int
    ) -> tuple[BatchDelivery, Wake]:
        """Add a whole batch, after everything that the partition has."""
        with self._lock:
            self._gate()
            queues = self._grow(topic_partition.topic, topic_partition.partition + 1)
            queue = queues[topic_partition.partition]
            self._close(queue)
            delivery = BatchDelivery(topic_partition, rows.record_count)
            self._track(delivery)
            queue.closed.append(PendingBatch(rows, delivery, self._now()))
            self.buffered_bytes += size_bytes
            self._release_later(delivery, size_bytes)
            return delivery, self._wake(True)

    def sticky_partition(self, topic: str, partition_count: int) -> int:
        """Another partition for a block of records without keys."""
        with self._lock:
            return self._sticky.advance(topic, partition_count)

    # --- event loop ---------------------------------------------------------------------------

    def linger_over(self) -> None:
        """The linger time has passed: what is open may be sent as it is."""
        with self._lock:
            self._is_linger_told = False
            for queue in self._all_queues():
                queue.is_due = queue.open is not None

    def fulls_seen(self) -> None:
        """The loop looks at full batches now; a later one is told of again."""
        with self._lock:
            self._is_full_told = False

    def close_open(self) -> frozenset[BatchDelivery]:
        """Close every open batch, as a flush does; all batches whose outcome is not known."""
        with self._lock:
            for queue in self._all_queues():
                self._close(queue)
            return frozenset(self._undelivered)

    def is_delivered(self, deliveries: frozenset[BatchDelivery]) -> bool:
        """Whether the outcome of all of ``deliveries`` is known."""
        with self._lock:
            return self._undelivered.isdisjoint(deliveries)

    def waiting(self) -> list[TopicPartition]:
        """The partitions that have records waiting, be they due or not."""
        with self._lock:
            return [
                queue.topic_partition
                for queue in self._all_queues()
                if queue.closed or queue.open is not None
            ]

    def has_due(self) -> bool:
        """Whether any partition has a batch that may be sent now."""
        with self._lock:
            return any(
                queue.closed or (queue.is_due and queue.open is not None)
                for queue in self._all_queues()
            )

    def take(self, topic_partition: TopicPartition) -> PendingBatch | None:
        """The next batch of a partition that is full or due, or ``None``."""
        with self._lock:
            queues = self._queues.get(topic_partition.topic, [])
            if topic_partition.partition >= len(queues):
                return None
            queue = queues[topic_partition.partition]
            if not queue.closed and queue.is_due:
                self._close(queue)
            return queue.closed.popleft() if queue.closed else None

    def drop(self, error: OncelogError) -> None:
        """Fail every batch that was not taken yet."""
        with self._lock:
            dropped: list[PendingBatch] = []
            for queue in self._all_queues():
                self._close(queue)
                dropped.extend(queue.closed)
                queue.closed.clear()
        for batch in dropped:
            batch.delivery.fail(error)

    # --- internals, under the lock ------------------------------------------------------------

    def _all_queues(self) -> list[_Queue]:
        return [queue for queues in self._queues.values() for queue in queues]

    def _grow(self, topic: str, partition_count: int) -> list[_Queue]:
        queues = self._queues.setdefault(topic, [])
        for partition in range(len(queues), partition_count):
            queues.append(_Queue(TopicPartition(topic, partition), deque()))
        return queues

    def _sticky_partition(self, topic: str, queues: list[_Queue], partition_count: int) -> int:
        partition = self._sticky.current(topic, partition_count)
        if queues[partition].open is None:
            # Its batch was sent: the next one may as well fill another partition's.
            partition = self._sticky.advance(topic, partition_count)
        return partition

    def _open(self, queue: _Queue) -> _OpenBatch:
        batch = queue.open = _OpenBatch(queue.topic_partition, self._now())
        self._track(batch.delivery)
        return batch

    def _close(self, queue: _Queue) -> None:
        batch = queue.open
        queue.is_due = False
        if batch is None:
            return
        queue.open = None
        batch.delivery.record_count = len(batch.records)
        queue.closed.append(
            PendingBatch(RecordRows(batch.records), batch.delivery, batch.created_s)
        )
        self._release_later(batch.delivery, batch.size_bytes)

    def _track(self, delivery: BatchDelivery) -> None:
        self._undelivered.add(delivery)

    def _release_later(self, delivery: BatchDelivery, size_bytes: int) -> None:
        def release() -> None:
            with self._lock:
                self._undelivered.discard(delivery)
                self.buffered_bytes -= size_bytes
            self._on_done()

        delivery.add_done_callback(release)

    def _wake(self, is_full: bool) -> Wake:
        if is_full:
            if not self._is_full_told:
                self._is_full_told = True
                return Wake.FULL
        elif not self._is_linger_told:
            self._is_linger_told = True
            return Wake.LINGER
        return Wake.NOTHING
