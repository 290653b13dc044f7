"""Where a record was written, and the futures that tell.

All futures of a batch share one ``BatchDelivery``. A producer makes one future per record. A
``concurrent.futures.Future`` creates a lock each time; ``RecordFuture`` creates none until it is
used in a way that needs one. asyncio futures are settled batch by batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import NO_OFFSET, NO_TIMESTAMP, TopicPartition

_logger = logging.getLogger("oncelog.producer")

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """A record's position in the log.

    ``offset`` is -1 if the batch was a duplicate too old for the log to know its offset.
    ``timestamp_ms`` (ms since the epoch) is the record's own, or the log append time.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """A batch's position in the log: ``record_count`` records from ``base_offset`` (inclusive)."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


OnDelivery: TypeAlias = Callable[[RecordMetadata | None, OncelogError | None], object]
"""Told of the outcome of one record: its position, or why it was not delivered."""


class BatchDelivery:
    """The outcome of one batch, set once; its futures wait for it."""

    __slots__ = (
        "_awaited",
        "_base_offset",
        "_callbacks",
        "_error",
        "_event",
        "_lock",
        "_log_append_time_ms",
        "_neighbours",
        "_parts",
        "_refused",
        "_whole",
        "contexts",
        "has_waiter",
        "is_done",
        "record_count",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, record_count: int = 0) -> None:
        self.topic_partition = topic_partition
        self.record_count = record_count
        self.is_done = False
        self.has_waiter = False
        """Whether the outcome of one of its records was read or awaited."""
        self.contexts: dict[Any, None] | None = None
        """The trace contexts that its records carry, in order; ``None`` without traces."""
        self._whole: BatchDelivery | TableDelivery | None = None
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._base_offset = NO_OFFSET
        self._log_append_time_ms = NO_TIMESTAMP
        self._error: OncelogError | None = None
        self._refused: frozenset[int] = frozenset()
        self._neighbours: OncelogError | None = None
        self._parts: tuple[BatchDelivery, ...] = ()
        self._awaited: list[tuple[RecordFuture, AwaitableOutcome[RecordMetadata]]] | None = None

    @property
    def is_observed(self) -> bool:
        """Whether the outcome of this batch, or of the whole it belongs to, was read or awaited."""
        return self.has_waiter or (self._whole is not None and self._whole.is_observed)

    def belong_to(self, whole: BatchDelivery | TableDelivery) -> None:
        """Make this batch part of ``whole``, whose outcome includes it."""
        self._whole = whole

    def carries(self, context: object, count_max: int) -> None:
        """Note the trace context of a record, up to ``count_max`` different ones."""
        with self._lock:
            if self.contexts is None:
                self.contexts = {}
            if len(self.contexts) < count_max:
                self.contexts[context] = None

    @property
    def error(self) -> OncelogError | None:
        """Why the batch, or its first failed part, was not delivered."""
        for part in self._parts:
            if part.error is not None:
                return part.error
        return self._error

    def finish(
        self,
        base_offset: int = NO_OFFSET,
        log_append_time_ms: int = NO_TIMESTAMP,
        *,
        error: OncelogError | None = None,
        refused: Iterable[int] = (),
        neighbours: OncelogError | None = None,
    ) -> None:
        """The batch is at ``base_offset`` (inclusive), or failed with ``error``; first call wins.

        ``log_append_time_ms`` is -1 if the log keeps the client's timestamps. ``error`` may also
        mean that the outcome is unknown. If only the records at the indices ``refused`` caused it,
        the others fail with ``neighbours`` instead. Source: KIP-467.
        """
        with self._lock:
            if self.is_done:
                return
            self._base_offset = base_offset
            self._log_append_time_ms = log_append_time_ms
            self._error = error
            self._refused, self._neighbours = frozenset(refused), neighbours
            self.is_done = True
            callbacks, self._callbacks = self._callbacks, []
        if self._event is not None:
            self._event.set()
        for callback in callbacks:
            callback()

    def split(self, counts: tuple[int, ...]) -> tuple[BatchDelivery, ...]:
        """Deliver it in parts of ``counts`` records each; it is done once all parts are."""
        self._parts = tuple(BatchDelivery(self.topic_partition, count) for count in counts)
        for part in self._parts:
            part.belong_to(self)
            part.contexts = self.contexts
            part.add_done_callback(self._part_done)
        return self._parts

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when the outcome is known, immediately if it already is."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, timeout: float | None) -> bool:
        """Wait up to ``timeout`` seconds for the outcome; return whether it is known."""
        if self.is_done:
            return True
        with self._lock:
            if self.is_done:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(timeout)

    def outcome(self, index: int) -> tuple[int, int, OncelogError | None]:
        """(offset, append time in ms, error) of the record at ``index``, once the batch is done."""
        for part in self._parts:
            if index < part.record_count:
                return part.outcome(index)
            index -= part.record_count
        offset = self._base_offset + index if self._base_offset >= 0 else NO_OFFSET
        is_neighbour = self._neighbours is not None and index not in self._refused
        error = self._neighbours if is_neighbour else self._error
        return offset, self._log_append_time_ms, error

    def metadata(self) -> Iterator[BatchMetadata]:
        """The position of the batch, or of each part of it."""
        if self._parts:
            for part in self._parts:
                yield from part.metadata()
            return
        topic_partition = self.topic_partition
        yield BatchMetadata(
            topic_partition.topic, topic_partition.partition, self._base_offset, self.record_count
        )

    def await_record(
        self, record: RecordFuture, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[RecordMetadata]:
        """An asyncio future of ``loop`` for one record; batch outcomes are set on that loop."""
        awaitable: AwaitableOutcome[RecordMetadata] = AwaitableOutcome(self, loop)
        if self._awaited is not None and not self.is_done:
            self._awaited.append((record, awaitable))
            return awaitable
        awaited = self._awaited = [(record, awaitable)]
        self.add_done_callback(lambda: _deliver_outcomes(awaited))
        return awaitable

    def _part_done(self) -> None:
        if all(part.is_done for part in self._parts):
            self.finish()


class RecordFuture(Future[RecordMetadata]):
    """A ``concurrent.futures.Future`` of one record; it cannot be cancelled.

    Callbacks run on the producer's event loop, so they must be short and must not block. For the
    records of one partition they run in the order of the log; failures are reported immediately.
    """

    # Without slots, so that the compiled send path can hold these fields in C.
    _delivery: BatchDelivery
    _index: int
    _timestamp_ms: int

    # Future's own __init__ is deliberately not called: it makes a lock per object. Its private
    # fields, which concurrent.futures.wait uses, are made on first access.
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
        """Whether the outcome is still unknown; a record counts as running from the start."""
        return not self._delivery.is_done

    def cancelled(self) -> bool:
        """Always false: to take a record back, abort the transaction."""
        return False

    def cancel(self) -> bool:
        """Always refuse: to take a record back, abort the transaction."""
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to ``timeout`` seconds for the record's position; raise why it failed."""
        self._delivery.has_waiter = True
        if not self._delivery.wait(timeout):
            raise FutureTimeoutError
        metadata = self.outcome()
        if isinstance(metadata, OncelogError):
            raise metadata
        return metadata

    def outcome(self) -> RecordMetadata | OncelogError:
        """What ``result`` returns or raises, once known; does not count as reading it."""
        offset, log_append_time_ms, error = self._delivery.outcome(self._index)
        if error is not None:
            return error
        topic_partition = self._delivery.topic_partition
        timestamp_ms = self._timestamp_ms if log_append_time_ms < 0 else log_append_time_ms
        return RecordMetadata(
            topic_partition.topic, topic_partition.partition, offset, timestamp_ms
        )

    def exception(self, timeout: float | None = None) -> OncelogError | None:
        """Wait up to ``timeout`` seconds; return why it failed, or ``None``."""
        self._delivery.has_waiter = True
        if not self._delivery.wait(timeout):
            raise FutureTimeoutError
        return self._delivery.outcome(self._index)[2]

    def add_done_callback(self, fn: Callable[[Future[RecordMetadata]], object]) -> None:
        """Call ``fn`` with this future once the outcome is known."""

        def run() -> None:
            try:
                fn(self)
            except Exception:
                # As in concurrent.futures: a callback that raises must not stop the producer.
                _logger.exception(
                    "a callback of a record's future raised — correct that function of the program"
                )

        self._delivery.has_waiter = True
        self._delivery.add_done_callback(run)

    def tell(self, on_delivery: OnDelivery, loop: asyncio.AbstractEventLoop) -> None:
        """Call ``on_delivery`` on ``loop``, the producer's, once the outcome is known."""

        def run() -> None:
            outcome = self.outcome()
            try:
                if isinstance(outcome, OncelogError):
                    on_delivery(None, outcome)
                else:
                    on_delivery(outcome, None)
            except Exception:
                _logger.exception(
                    "on_delivery of a record for %s raised — correct that function of the program",
                    self._delivery.topic_partition,
                )

        def on_done() -> None:
            # Batches are finished on the loop, but this one may have been finished before.
            if asyncio._get_running_loop() is loop:
                run()
            else:
                loop.call_soon_threadsafe(run)

        self._delivery.has_waiter = True
        self._delivery.add_done_callback(on_done)

    def carries(self, context: object, count_max: int) -> None:
        """See ``BatchDelivery.carries``."""
        self._delivery.carries(context, count_max)

    def awaitable(self) -> asyncio.Future[RecordMetadata]:
        """The same as an asyncio future; the running loop must be the producer's."""
        return self._delivery.await_record(self, asyncio.get_running_loop())

    def _copy_outcome(self) -> None:
        error = self.exception(0)
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(self.result(0))


class AwaitableOutcome(asyncio.Future[ResultT]):
    """An asyncio future that notes whether it was awaited or read.

    The producer reports failures that nobody read once, not once per record.
    """

    def __init__(
        self, delivery: BatchDelivery | TableDelivery, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(loop=loop)
        self._delivery = delivery

    def __await__(self) -> Generator[Any, None, ResultT]:
        """Wait for the outcome."""
        self._delivery.has_waiter = True
        return super().__await__()

    def result(self) -> ResultT:
        """See ``asyncio.Future.result``."""
        self._delivery.has_waiter = True
        return super().result()

    def exception(self) -> BaseException | None:
        """See ``asyncio.Future.exception``."""
        self._delivery.has_waiter = True
        return super().exception()

    def add_done_callback(self, *arguments: Any, **options: Any) -> None:
        """See ``asyncio.Future.add_done_callback``."""
        self._delivery.has_waiter = True
        super().add_done_callback(*arguments, **options)

    def fail(self, error: BaseException) -> None:
        """Set ``error``, without asyncio's warning if nobody retrieves it."""
        self.set_exception(error)
        super().exception()


def _deliver_outcomes(awaited: list[tuple[RecordFuture, AwaitableOutcome[RecordMetadata]]]) -> None:
    """Pass the outcomes of records to their waiters on this loop."""
    for record, awaitable in awaited:
        if awaitable.done():
            continue
        outcome = record.outcome()
        if isinstance(outcome, OncelogError):
            awaitable.fail(outcome)
        else:
            awaitable.set_result(outcome)
    # The batch need not keep them any longer.
    awaited.clear()


class _TableFuture(Future[tuple[BatchMetadata, ...]]):
    """The future of a table; notes whether its outcome was read or awaited."""

    def __init__(self, delivery: TableDelivery) -> None:
        super().__init__()
        self._delivery = delivery

    def result(self, timeout: float | None = None) -> tuple[BatchMetadata, ...]:
        """See ``concurrent.futures.Future.result``."""
        self._delivery.has_waiter = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See ``concurrent.futures.Future.exception``."""
        self._delivery.has_waiter = True
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[tuple[BatchMetadata, ...]]], object]) -> None:
        """See ``concurrent.futures.Future.add_done_callback``."""
        self._delivery.has_waiter = True
        super().add_done_callback(fn)


class TableDelivery:
    """The outcome of a whole table, known once each of its batches is done.

    It is the positions of all batches, or the error of the first batch that failed.
    """

    def __init__(self) -> None:
        self.has_waiter = False
        self.future: Future[tuple[BatchMetadata, ...]] = _TableFuture(self)
        self.future.set_running_or_notify_cancel()
        self._deliveries: list[BatchDelivery] = []
        self._lock = threading.Lock()
        # The batches plus one until ``seal``, so that it cannot complete early.
        self._missing = 1

    @property
    def is_observed(self) -> bool:
        """Whether the outcome of the table was read or awaited."""
        return self.has_waiter

    def awaitable(
        self, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[tuple[BatchMetadata, ...]]:
        """The same as an asyncio future of ``loop``; its outcome is set on that loop."""
        awaitable: AwaitableOutcome[tuple[BatchMetadata, ...]] = AwaitableOutcome(self, loop)

        def set_outcome(done: Future[tuple[BatchMetadata, ...]]) -> None:
            if awaitable.done():
                return
            error = Future.exception(done)
            if error is not None:
                awaitable.fail(error)
            else:
                awaitable.set_result(Future.result(done))

        Future.add_done_callback(self.future, set_outcome)
        return awaitable

    def add(self, delivery: BatchDelivery) -> None:
        """Add one more batch of the table."""
        with self._lock:
            self._deliveries.append(delivery)
            self._missing += 1
        delivery.belong_to(self)
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
