"""Code of the application that watches a producer at work, and may change what it sends.

An interceptor never harms the producer: what it raises is logged once per interceptor and hook,
counted in ``ProducerMetrics.interceptor_failures`` and otherwise ignored.
Source: KIP-42; the hooks of transactions are what KIP-98 leaves to future work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oncelog.api.batching.delivery import RecordFuture, RecordMetadata

_logger = logging.getLogger("oncelog.producer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRecord:
    """The arguments of one ``send``, as the application or the interceptor before gave them."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


class ProducerInterceptor:
    """Base class of interceptors; override the hooks you need.

    ``on_send`` and ``on_transaction_begin`` run in the thread of the caller, the others on the
    producer's event loop: they must be short and must not wait. Tables given to ``send_arrow``
    bypass interceptors; the transactions around them do not.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Before a record is accepted; what is returned is sent in its place."""
        return record

    def on_acknowledgement(
        self, metadata: RecordMetadata | None, error: BaseException | None
    ) -> None:
        """The outcome of one record is known: its place, or why it was not delivered.

        ``error`` is what its future or, if it was not accepted, ``send`` raises: besides an
        ``OncelogError`` a ``TypeError`` or ``ValueError``, or that ``send`` was cancelled. What
        ``send`` raises is reported in the caller's thread.
        """

    def on_transaction_begin(self, transactional_id: str) -> None:
        """``begin_transaction`` was called and accepted."""

    def on_transaction_commit(self, transactional_id: str) -> None:
        """The transaction is decided: committed."""

    def on_transaction_abort(self, transactional_id: str) -> None:
        """The transaction is decided: aborted."""


class InterceptorChain:
    """The interceptors of one producer, in order; one that raises stops none of them."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        self.failure_count = 0
        self._interceptors = tuple(interceptors)
        self._reported: set[tuple[int, str]] = set()

    def __bool__(self) -> bool:
        """Whether there is any interceptor."""
        return bool(self._interceptors)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """``record`` after all interceptors."""
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
        """Notify the interceptors of the outcome once it is known."""

        def tell(_: object) -> None:
            error = future.exception(0)
            self.on_acknowledgement(None if error else future.result(0), error)

        future.add_done_callback(tell)

    def on_acknowledgement(
        self, metadata: RecordMetadata | None, error: BaseException | None
    ) -> None:
        """The outcome of one record is known."""
        self._call_hook("on_acknowledgement", lambda one: one.on_acknowledgement(metadata, error))

    def on_transaction_begin(self, transactional_id: str) -> None:
        """A transaction was begun."""
        self._call_hook(
            "on_transaction_begin", lambda one: one.on_transaction_begin(transactional_id)
        )

    def on_transaction_commit(self, transactional_id: str) -> None:
        """A transaction was committed."""
        self._call_hook(
            "on_transaction_commit", lambda one: one.on_transaction_commit(transactional_id)
        )

    def on_transaction_abort(self, transactional_id: str) -> None:
        """A transaction was aborted."""
        self._call_hook(
            "on_transaction_abort", lambda one: one.on_transaction_abort(transactional_id)
        )

    def _call_hook(self, hook: str, call: Callable[[ProducerInterceptor], None]) -> None:
        for interceptor in self._interceptors:
            try:
                call(interceptor)
            except Exception as error:
                self._failed(interceptor, hook, error)

    def _failed(self, interceptor: ProducerInterceptor, hook: str, error: Exception) -> None:
        self.failure_count += 1
        place = (id(interceptor), hook)
        if place not in self._reported:
            self._reported.add(place)
            _logger.error(
                "%s.%s raised; it is ignored, and further failures of it are only counted",
                type(interceptor).__name__,
                hook,
                exc_info=error,
            )
