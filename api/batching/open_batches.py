"""The open batches, and the fast path of a record into one of them.

``OpenBatches.add`` is the whole cost of a ``send`` whose partition has a batch with room: no
coroutine, no wake-up. In any other case (unknown topic, new batch, full buffer, invalid record) it
returns ``None``, and the accumulator takes the slow path.

``_open_batches.pyx`` is the same in C, where the interpreter's own lock makes ``add`` atomic; here
``lock`` does. The accumulator holds ``lock`` for every change. It takes a batch out of
``TopicBatches`` before it looks inside: from then on no record can be added to it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, Final

from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.api.batching.delivery import BatchDelivery, RecordFuture
from oncelog.api.batching.partitioner import partition_for_key
from oncelog.api.batching.rows import RecordRows, Rows
from oncelog.storage.records.codec import RecordInput

RECORD_OVERHEAD_BYTES: Final = 21
"""Upper bound of a record's fixed fields in a batch, header count included."""

_INTERFACE: Final = 5
"""Must equal the constant in the compiled module; change both together."""

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1

_logger = logging.getLogger("oncelog.producer")
_new_future = RecordFuture.__new__


class OpenBatch:
    """The batch that the next record goes to; ``size_bytes`` is an upper bound."""

    __slots__ = ("_records", "created_s", "delivery", "size_bytes")

    def __init__(self, delivery: BatchDelivery, created_s: float) -> None:
        self.size_bytes = 0
        self.created_s = created_s
        self.delivery = delivery
        self._records: list[RecordInput] = []

    def takes_time(self, timestamp_ms: int) -> bool:
        """Whether the record's timestamp fits, as a 64-bit delta from the first record's."""
        if not self._records:
            return True
        return _INT64_MIN <= timestamp_ms - self._records[0][2] <= _INT64_MAX

    def put(self, record: RecordInput, size_bytes: int) -> int:
        """Add one record; return its index in the batch."""
        self._records.append(record)
        self.size_bytes += size_bytes
        return len(self._records) - 1

    def rows(self) -> Rows:
        """All its records; add nothing afterwards."""
        return RecordRows(self._records)


class TopicBatches:
    """The open batch, or ``None``, of each partition of one topic.

    ``sticky`` is the open batch for records without a key, one of ``batches``, or ``None``.
    """

    __slots__ = ("batches", "metadata", "sticky")

    def __init__(self, metadata: TopicMetadata | None, partition_count: int) -> None:
        self.metadata = metadata
        self.batches: list[OpenBatch | None] = [None] * partition_count
        self.sticky: OpenBatch | None = None


class OpenBatches:
    """The open batches of one producer, by topic.

    ``is_accepting`` is false while every record must take the slow path. ``known_topics`` and
    ``now_ms`` are used from any thread. ``is_system_time`` means that ``now_ms`` is the system
    clock, which compiled code reads directly.
    """

    __slots__ = (
        "_batch_bytes",
        "_buffer_bytes_max",
        "_known_topics",
        "_now_ms",
        "_record_bytes_max",
        "buffered_bytes",
        "is_accepting",
        "lock",
        "topics",
    )

    def __init__(
        self,
        *,
        known_topics: dict[str, TopicMetadata],
        now_ms: Callable[[], int],
        batch_bytes: int,
        record_bytes_max: int,
        buffer_bytes_max: int,
        is_system_time: bool = False,  # noqa: ARG002 - in Python ``now_ms`` is asked in any case
    ) -> None:
        self.topics: dict[str, TopicBatches] = {}
        self.buffered_bytes = 0
        self.is_accepting = False
        self.lock = threading.Lock()
        self._known_topics = known_topics
        self._now_ms = now_ms
        self._batch_bytes = batch_bytes
        self._record_bytes_max = record_bytes_max
        self._buffer_bytes_max = buffer_bytes_max

    def sender(self, otherwise: Callable[..., RecordFuture]) -> Callable[..., RecordFuture]:
        """Make the ``send`` function: ``add``, else ``otherwise`` with the same six arguments."""

        def send(
            topic: object,
            value: object = None,
            key: object = None,
            *,
            headers: object = (),
            timestamp_ms: object = None,
            partition: object = None,
        ) -> RecordFuture:
            future = self.add(topic, value, key, headers, timestamp_ms, partition)
            if future is not None:
                return future
            return otherwise(topic, value, key, headers, timestamp_ms, partition)

        return send

    def add(
        self,
        topic: object,
        value: object,
        key: object,
        headers: object,
        timestamp_ms: object,
        partition: object,
    ) -> RecordFuture | None:
        """Add one record if its partition has a batch with room, else return ``None``."""
        size_bytes = RECORD_OVERHEAD_BYTES
        if type(value) is bytes:
            size_bytes += len(value)
        elif value is not None:
            return None
        if type(key) is bytes:
            size_bytes += len(key)
        elif key is not None:
            return None
        if (
            headers
            or timestamp_ms is not None
            or type(topic) is not str
            or size_bytes > self._record_bytes_max
        ):
            return None
        now_ms = self._now_ms()
        with self.lock:
            batches = self.topics.get(topic)
            if (
                batches is None
                or not self.is_accepting
                or self.buffered_bytes >= self._buffer_bytes_max
                or batches.metadata is not self._known_topics.get(topic)
            ):
                return None
            batch = _batch_for(batches, key, partition)
            # A record that would fill the batch takes the slow path, which closes it.
            if batch is None or batch.size_bytes + size_bytes >= self._batch_bytes:
                return None
            records = batch._records
            if records and not _INT64_MIN <= now_ms - records[0][2] <= _INT64_MAX:
                return None
            # ``put`` and ``takes_time`` inlined: the calls would cost a seventh.
            future = _new_future(RecordFuture)
            future._delivery = batch.delivery
            future._index = len(records)
            future._timestamp_ms = now_ms
            records.append((key, value, now_ms, ()))
            batch.size_bytes += size_bytes
            self.buffered_bytes += size_bytes
            return future

    def put(self, batch: OpenBatch, record: RecordInput, size_bytes: int) -> RecordFuture:
        """Add one record to ``batch``, under ``lock``."""
        future = _new_future(RecordFuture)
        future._delivery = batch.delivery
        future._index = batch.put(record, size_bytes)
        future._timestamp_ms = record[2]
        self.buffered_bytes += size_bytes
        return future

    def new_batch(self, delivery: BatchDelivery, created_s: float) -> OpenBatch:
        """Make an empty batch, not yet part of ``topics``."""
        return OpenBatch(delivery, created_s)

    def new_topic(self, metadata: TopicMetadata, partition_count: int) -> TopicBatches:
        """Make a topic without open batches, not yet part of ``topics``."""
        return TopicBatches(metadata, partition_count)

    def hold(self, size_bytes: int) -> None:
        """Add ``size_bytes``, which may be negative, to the bytes buffered; under ``lock``."""
        self.buffered_bytes += size_bytes


def _batch_for(batches: TopicBatches, key: bytes | None, partition: object) -> OpenBatch | None:
    if partition is None:
        if key is None:
            return batches.sticky
        return batches.batches[partition_for_key(key, len(batches.batches))]
    if type(partition) is int and 0 <= partition < len(batches.batches):
        return batches.batches[partition]
    return None


def fastest() -> type[OpenBatches]:
    """The compiled ``OpenBatches``, or the Python one if that was not built or is disabled."""
    try:
        from oncelog.api.batching import _open_batches
    except ImportError:
        return OpenBatches
    return matching(_open_batches)


def matching(compiled: ModuleType | Any) -> type[OpenBatches]:
    """The compiled module's class, or the Python one if its interface version differs.

    A stale module may return records in a form that callers do not expect, and a flush would hang.
    A warning says once that it is not used.
    """
    interface = getattr(compiled, "INTERFACE", 0)
    if interface != _INTERFACE:
        _warn_of_stale(compiled.__name__, interface)
        return OpenBatches
    kind: type[OpenBatches] = compiled.OpenBatches
    return kind


@cache
def _warn_of_stale(name: str, interface: int) -> None:
    _logger.warning(
        "%s was built from other source (interface %s, not %s) and is not used; sending works, "
        "slower: build it again with `python setup.py build_ext --inplace`",
        name,
        interface,
        _INTERFACE,
    )
