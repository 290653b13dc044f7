"""The batches that records are being added to, and the fast path of a record into one of them.

``OpenBatches.add`` is what a ``send`` costs when its partition has a batch with room: no
coroutine, no wake-up, no encoding. Anything else (an unknown topic, a new batch, a full buffer, a
refusal) makes it return ``None``, and the accumulator takes the slow path.

``_open_batches.pyx`` is the same in C, where the interpreter's own lock makes ``add`` atomic; here
``lock`` does. The accumulator holds ``lock`` whenever it changes anything, and takes a batch out
of ``TopicBatches`` before it looks at what is in it: from then on nothing is added to it.
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
from oncelog.api.batching.rows import BatchRows, RecordRows
from oncelog.storage.records.codec import RecordInput

RECORD_OVERHEAD_BYTES: Final = 21
"""The most that a record's fixed fields take in a batch, header count included."""

_INTERFACE: Final = 5
"""Must equal the compiled module's; change both together."""

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1

_logger = logging.getLogger("oncelog.producer")
_new_future = RecordFuture.__new__


class OpenBatch:
    """The batch that a partition's next record goes to; ``size_bytes`` is an upper estimate."""

    __slots__ = ("_records", "created_s", "delivery", "size_bytes")

    def __init__(self, delivery: BatchDelivery, created_s: float) -> None:
        self.size_bytes = 0
        self.created_s = created_s
        self.delivery = delivery
        self._records: list[RecordInput] = []

    def takes_time(self, timestamp_ms: int) -> bool:
        """Whether a record of that time fits: 64 bits count from the time of the first."""
        if not self._records:
            return True
        return _INT64_MIN <= timestamp_ms - self._records[0][2] <= _INT64_MAX

    def put(self, record: RecordInput, size_bytes: int) -> int:
        """Add one record; its place in the batch."""
        self._records.append(record)
        self.size_bytes += size_bytes
        return len(self._records) - 1

    def rows(self) -> BatchRows:
        """All records; nothing may be added afterwards."""
        return RecordRows(self._records)


class TopicBatches:
    """The open batch of each partition of one topic, as ``metadata`` counts them.

    ``sticky`` is the one that records without a key go to; it is one of ``batches``, or ``None``.
    """

    __slots__ = ("batches", "metadata", "sticky")

    def __init__(self, metadata: TopicMetadata | None, partition_count: int) -> None:
        self.metadata = metadata
        self.batches: list[OpenBatch | None] = [None] * partition_count
        self.sticky: OpenBatch | None = None


class OpenBatches:
    """The open batches of one producer, by topic.

    ``is_accepting`` is false while every record must take the slow path. ``known_topics`` is read
    and ``now_ms`` gives the time, both from any thread. With ``is_system_time`` that is the
    machine's clock, which compiled code reads itself.
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
        """``send`` with its keywords: ``add``, or ``otherwise`` with the same six arguments."""

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
        """Add one record, if that needs nothing but a batch with room; else ``None``."""
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
            # The record that fills a batch takes the slow path, which closes it.
            if batch is None or batch.size_bytes + size_bytes >= self._batch_bytes:
                return None
            records = batch._records
            if records and not _INT64_MIN <= now_ms - records[0][2] <= _INT64_MAX:
                return None
            # As ``put`` and ``takes_time``, without the calls, which cost a seventh.
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
        """An empty batch, not among ``topics`` yet."""
        return OpenBatch(delivery, created_s)

    def new_topic(self, metadata: TopicMetadata, partition_count: int) -> TopicBatches:
        """A topic without open batches, not among ``topics`` yet."""
        return TopicBatches(metadata, partition_count)

    def hold(self, size_bytes: int) -> None:
        """Add to the byte count (a negative number subtracts), under ``lock``."""
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
    """``OpenBatches`` in C, or in Python where that was not built or is not wanted."""
    try:
        from oncelog.api.batching import _open_batches
    except ImportError:
        return OpenBatches
    return matching(_open_batches)


def matching(compiled: ModuleType | Any) -> type[OpenBatches]:
    """The class of a compiled module, or ours if it was built from different source.

    A stale module might not return records as its callers expect, and a flush would hang: it is
    not used, and a warning says so once.
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
