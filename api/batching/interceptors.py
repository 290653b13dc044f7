"""Interceptors: application code that observes a client and may change its records.

An interceptor cannot break its client. An exception is logged once per interceptor and hook,
counted as ``interceptor_failures`` in the client's metrics and otherwise ignored.
Source: KIP-42; the transaction hooks are those that KIP-98 leaves to future work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.api.batching.delivery import RecordFuture, RecordMetadata
from oncelog.api.records import ConsumerRecord
from oncelog.storage.model import TopicPartition

InterceptorT = TypeVar("InterceptorT")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRecord:
    """The arguments of one ``send``, from the application or the previous interceptor."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


class ProducerInterceptor:
    """Base class of interceptors; override the hooks you need. Source: KIP-42.

    ``on_send`` and ``on_transaction_begin`` run in the caller's thread. The others run on the
    producer's event loop, so they must be short and must not block. Tables sent with ``send_arrow``
    bypass ``on_send`` and ``on_acknowledgement``.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Called before a record is accepted; the returned record is sent instead."""
        return record

    def on_acknowledgement(
        self, metadata: RecordMetadata | None, error: BaseException | None
    ) -> None:
        """Called when one record's outcome is known: its position, or why it was not delivered.

        ``error`` is what its future raises or, if the record was not accepted, ``send`` raises:
        an ``OncelogError``, ``TypeError``, ``ValueError`` or cancellation. Errors of ``send`` are
        reported in the caller's thread.
        """

    def on_transaction_begin(self, transactional_id: str) -> None:
        """Called once ``begin_transaction`` is accepted."""

    def on_transaction_commit(self, transactional_id: str) -> None:
        """Called once the transaction's commit is decided."""

    def on_transaction_abort(self, transactional_id: str) -> None:
        """Called once the transaction's abort is decided."""


class ConsumerInterceptor:
    """Base class of a consumer's interceptors; override the hooks you need. Source: KIP-42.

    They run in the thread or task that calls the consumer. Tables of ``poll_arrow`` bypass
    ``on_consume``.
    """

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Called before ``poll`` returns ``records``, at least one; it returns these instead.

        Records left out count as delivered. Records of an interrupted poll are seen again.
        """
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Called once ``offsets`` are committed, by the next call of ``poll``, a commit or close.

        Not for positions that a producer commits in a transaction.
        """


class _Chain(Generic[InterceptorT]):
    """The interceptors of one client, in order; one that raises does not stop the others."""

    def __init__(self, interceptors: Sequence[InterceptorT]) -> None:
        self.failure_count = 0
        self._interceptors = tuple(interceptors)
        self._reported: set[tuple[int, str]] = set()

    def __bool__(self) -> bool:
        """Whether there is any interceptor."""
        return bool(self._interceptors)

    def _call_hook(self, hook: str, call: Callable[[InterceptorT], None]) -> None:
        for interceptor in self._interceptors:
            try:
                call(interceptor)
            except Exception as error:
                self._failed(interceptor, hook, error)

    def _failed(self, interceptor: InterceptorT, hook: str, error: Exception) -> None:
        self.failure_count += 1
        place = (id(interceptor), hook)
        if place not in self._reported:
            self._reported.add(place)
            _logger.error(
                "%s.%s raised; it is ignored, and further failures of it are only counted — "
                "correct the interceptor",
                type(interceptor).__name__,
                hook,
                exc_info=error,
            )


class ConsumerInterceptorChain(_Chain[ConsumerInterceptor]):
    """The interceptors of one consumer."""

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Pass ``records`` through all interceptors."""
        for interceptor in self._interceptors:
            try:
                changed = interceptor.on_consume(records)
            except Exception as error:
                self._failed(interceptor, "on_consume", error)
                continue
            if isinstance(changed, list):
                records = changed
            else:
                wrong = TypeError(f"on_consume must return a list of records, not {changed!r}")
                self._failed(interceptor, "on_consume", wrong)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Report committed offsets."""
        self._call_hook("on_commit", lambda one: one.on_commit(offsets))


class InterceptorChain(_Chain[ProducerInterceptor]):
    """The interceptors of one producer."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Pass ``record`` through all interceptors."""
        for interceptor in self._interceptors:
            try:
                changed = interceptor.on_send(record)
            except Exception as error:
                self._failed(interceptor, "on_send", error)
                continue
            if isinstance(changed, ProducerRecord):
                record = changed
            else:
                wrong = TypeError(f"on_send must return a ProducerRecord, not {changed!r}")
                self._failed(interceptor, "on_send", wrong)
        return record

    def watch(self, future: RecordFuture) -> None:
        """Report the record's outcome to the interceptors once it is known."""

        def tell(_: object) -> None:
            error = future.exception(0)
            self.on_acknowledgement(None if error else future.result(0), error)

        future.add_done_callback(tell)

    def on_acknowledgement(
        self, metadata: RecordMetadata | None, error: BaseException | None
    ) -> None:
        """Report one record's outcome."""
        self._call_hook("on_acknowledgement", lambda one: one.on_acknowledgement(metadata, error))

    def on_transaction_begin(self, transactional_id: str) -> None:
        """Report that a transaction was begun."""
        self._call_hook(
            "on_transaction_begin", lambda one: one.on_transaction_begin(transactional_id)
        )

    def on_transaction_commit(self, transactional_id: str) -> None:
        """Report that a transaction was committed."""
        self._call_hook(
            "on_transaction_commit", lambda one: one.on_transaction_commit(transactional_id)
        )

    def on_transaction_abort(self, transactional_id: str) -> None:
        """Report that a transaction was aborted."""
        self._call_hook(
            "on_transaction_abort", lambda one: one.on_transaction_abort(transactional_id)
        )
