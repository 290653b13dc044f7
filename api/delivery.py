"""Where a record came to stand, and the futures that say so.

All futures of a batch share one ``BatchDelivery``. A producer makes one future per record, and
``concurrent.futures.Future`` would make a lock for each; ``RecordFuture`` makes none until someone
uses it in a way that needs one. Those of asyncio are settled batch by batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any

from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import NO_OFFSET, NO_TIMESTAMP, TopicPartition

_logger = logging.getLogger("oncelog.producer")


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record stands. ``timestamp_ms`` is the record's, or the log's append time.

    ``offset`` is -1 if the log knew the batch as a duplicate too old to say where it stands.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """Where a batch stands: ``record_count`` records from ``base_offset`` (inclusive) on."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


class BatchDelivery:
    """The outcome of one batch, set once; what its futures wait for."""

    __slots__ = (
        "_awaited",
        "_base_offset",
        "_callbacks",
        "_error",
        "_event",
        "_lock",
        "_log_append_time_ms",
        "_parts",
        "is_done",
        "record_count",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, record_count: int = 0) -> None:
        self.topic_partition = topic_partition
        self.record_count = record_count
        self.is_done = False
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._base_offset = NO_OFFSET
        self._log_append_time_ms = NO_TIMESTAMP
        self._error: OncelogError | None = None
        self._parts: tuple[BatchDelivery, ...] = ()
        self._awaited: list[tuple[RecordFuture, asyncio.Future[RecordMetadata]]] | None = None

    @property
    def error(self) -> OncelogError | None:
        """Why the batch, or the first failed part of it, was not delivered."""
        for part in self._parts:
            if part.error is not None:
                return part.error
        return self._error

    def succeed(self, base_offset: int, log_append_time_ms: int) -> None:
        """The batch stands at ``base_offset``; append time -1 if the log keeps the client's."""
        if not self.is_done:
            self._base_offset = base_offset
            self._log_append_time_ms = log_append_time_ms
            self._finish()

    def fail(self, error: OncelogError) -> None:
        """The batch will not be delivered, or nobody knows whether it was."""
        if not self.is_done:
            self._error = error
            self._finish()

    def split(self, counts: tuple[int, ...]) -> tuple[BatchDelivery, ...]:
        """Deliver the batch in parts of ``counts`` records; it is done when each part is."""
        self._parts = tuple(BatchDelivery(self.topic_partition, count) for count in counts)
        for part in self._parts:
            part.add_done_callback(self._part_done)
        return self._parts

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when the outcome is known, at once if it is."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, timeout: float | None) -> bool:
        """Wait up to ``timeout`` seconds for the outcome; whether it is known."""
        if self.is_done:
            return True
        with self._lock:
            if self.is_done:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(timeout)

    def outcome(self, index: int) -> tuple[int, int, OncelogError | None]:
        """(offset, append time, error) of record ``index`` of the batch, once it is done."""
        for part in self._parts:
            if index < part.record_count:
                return part.outcome(index)
            index -= part.record_count
        offset = self._base_offset + index if self._base_offset >= 0 else NO_OFFSET
        return offset, self._log_append_time_ms, self._error

    def metadata(self) -> Iterator[BatchMetadata]:
        """Where the batch, or each part of it, stands."""
        if self._parts:
            for part in self._parts:
                yield from part.metadata()
            return
        topic_partition = self.topic_partition
        yield BatchMetadata(
            topic_partition.topic, topic_partition.partition, self._base_offset, self.record_count
        )

    def await_record(
        self, record: RecordFuture, loop: asyncio.AbstractEventLoop, *, is_failure_told: bool
    ) -> asyncio.Future[RecordMetadata]:
        """A future of ``loop`` for a record of the batch, whose outcome is set on ``loop`` too.

        With ``is_failure_told`` asyncio does not complain if nobody looks at a failure.
        """
        awaitable: asyncio.Future[RecordMetadata] = loop.create_future()
        if self._awaited is not None and not self.is_done:
            self._awaited.append((record, awaitable))
            return awaitable
        awaited = self._awaited = [(record, awaitable)]
        self.add_done_callback(lambda: _settle(awaited, is_failure_told=is_failure_told))
        return awaitable

    def _part_done(self) -> None:
        if all(part.is_done for part in self._parts) and not self.is_done:
            self._finish()

    def _finish(self) -> None:
        with self._lock:
            self.is_done = True
            callbacks, self._callbacks = self._callbacks, []
        if self._event is not None:
            self._event.set()
        for callback in callbacks:
            callback()


class RecordFuture(Future[RecordMetadata]):
    """A ``concurrent.futures.Future`` of one record; it cannot be cancelled.

    Callbacks run on the producer's event loop: they must be short and must not wait. Those of
    records that were appended to one partition run in its order; a failure is told at once.
    """

    # Without slots, so that the compiled send path may keep these in C.
    _delivery: BatchDelivery
    _index: int
    _timestamp_ms: int

    # Future's own __init__ is deliberately not called: it makes a lock per object. Whoever asks
    # for its private fields (concurrent.futures.wait does) gets them made on the spot.
    def __init__(self, delivery: BatchDelivery, index: int, timestamp_ms: int) -> None:
        self._delivery = delivery
        self._index = index
        self._timestamp_ms = timestamp_ms

    def __getattr__(self, name: str) -> Any:
        if name in ("_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"):
            with self._delivery._lock:
                is_first = "_condition" not in self.__dict__
                if is_first:
                    super().__init__()
            if is_first:
                self._delivery.add_done_callback(self._copy_outcome)
            return self.__dict__[name]
        raise AttributeError(name)

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._delivery.is_done

    def running(self) -> bool:
        """Whether the outcome is not known yet: a record is on its way from the start."""
        return not self._delivery.is_done

    def cancelled(self) -> bool:
        """Never: abort the transaction to take a record back."""
        return False

    def cancel(self) -> bool:
        """Refused: abort the transaction to take a record back."""
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record stands; waits up to ``timeout`` seconds. Raises what went wrong."""
        if not self._delivery.wait(timeout):
            raise FutureTimeoutError
        offset, log_append_time_ms, error = self._delivery.outcome(self._index)
        if error is not None:
            raise error
        topic_partition = self._delivery.topic_partition
        timestamp_ms = self._timestamp_ms if log_append_time_ms < 0 else log_append_time_ms
        return RecordMetadata(
            topic_partition.topic, topic_partition.partition, offset, timestamp_ms
        )

    def exception(self, timeout: float | None = None) -> OncelogError | None:
        """What went wrong, or ``None``; waits up to ``timeout`` seconds."""
        if not self._delivery.wait(timeout):
            raise FutureTimeoutError
        return self._delivery.outcome(self._index)[2]

    def add_done_callback(self, fn: Callable[[Future[RecordMetadata]], object]) -> None:
        """Call ``fn`` with this future when the outcome is known."""

        def run() -> None:
            try:
                fn(self)
            except Exception:
                # As in concurrent.futures: a callback's mistake must not stop the producer.
                _logger.exception("a callback of a record's future raised")

        self._delivery.add_done_callback(run)

    def awaitable(self, *, is_failure_told: bool) -> asyncio.Future[RecordMetadata]:
        """The same for coroutines of the running loop, which has to be the producer's."""
        return self._delivery.await_record(
            self, asyncio.get_running_loop(), is_failure_told=is_failure_told
        )

    def _copy_outcome(self) -> None:
        error = self.exception(0)
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(self.result(0))


def _settle(
    awaited: list[tuple[RecordFuture, asyncio.Future[RecordMetadata]]], *, is_failure_told: bool
) -> None:
    """Hand the outcome of records to those who wait for it on this loop."""
    for record, awaitable in awaited:
        if awaitable.done():
            continue
        error = record.exception(0)
        if error is None:
            awaitable.set_result(record.result(0))
            continue
        awaitable.set_exception(error)
        if is_failure_told:
            awaitable.exception()
    # Its batch need not keep it any longer.
    awaited.clear()


class TableDelivery:
    """The one future of a whole table, done when each of its batches is.

    It resolves to where the batches stand, or raises the error of the first that failed.
    """

    def __init__(self) -> None:
        self.future: Future[tuple[BatchMetadata, ...]] = Future()
        self.future.set_running_or_notify_cancel()
        self._deliveries: list[BatchDelivery] = []
        self._lock = threading.Lock()
        # One more than the batches until ``seal``, so that it cannot be done too early.
        self._missing = 1

    def add(self, delivery: BatchDelivery) -> None:
        """One more batch belongs to the table."""
        with self._lock:
            self._deliveries.append(delivery)
            self._missing += 1
        delivery.add_done_callback(self._one_done)

    def seal(self) -> None:
        """No more batches will come."""
        self._one_done()

    def _one_done(self) -> None:
        with self._lock:
            self._missing -= 1
            if self._missing:
                return
        for delivery in self._deliveries:
            if delivery.error is not None:
                self.future.set_exception(delivery.error)
                return
        self.future.set_result(
            tuple(part for delivery in self._deliveries for part in delivery.metadata())
        )
