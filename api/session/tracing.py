"""Traces: the spans of clients, and how a trace goes on in the next process.

With ``opentelemetry-api`` (``oncelog[traces]``) clients make spans, and a record carries in its
headers the context that it was sent in: by default W3C's ``traceparent`` and ``tracestate``. So
what one process sends and another polls is one trace.

===================  ========  =================================================================
span                 kind      what
===================  ========  =================================================================
``send TOPIC``       PRODUCER  a batch, from its first record to its outcome; links to the
                               contexts of its records, the first of which is its parent
``transaction``      INTERNAL  a transaction of a producer, from begin to end
``commit, abort``    CLIENT    its end
``poll TOPIC``       CONSUMER  a poll that returned records, or a queue's ``take``; links as above
``process TOPIC``    CONSUMER  a transaction of a job, its function included; links to its input
===================  ========  =================================================================

There is no span per record. A record carries the context of the span that is current when it is
sent, else that of its transaction, else none. Links are bounded by ``LINKS_MAX``.

*Off* means: no header, no span, nothing imported, and the compiled send path as it is. It is off
without the package, and while the program has set no tracer provider when it makes the client.

What the program's own tracing raises, such as a span processor, costs spans and nothing else.

Source: OpenTelemetry, semantic conventions for messaging; W3C Trace Context.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oncelog.actors.process.clock import epoch_ns
from oncelog.api.batching.accumulator import Headers, PendingBatch
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.settings import refused

if TYPE_CHECKING:
    import pyarrow as pa
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span

_logger = logging.getLogger(__name__)

LINKS_MAX: Final = 128
"""Links of one span: OpenTelemetry's own default limit. Further contexts are not linked."""

SYSTEM: Final = "oncelog"
"""The attribute ``messaging.system``."""


@dataclass(frozen=True, slots=True, eq=False)
class SendContext:
    """A context, and the headers that carry it."""

    context: Context
    headers: tuple[tuple[str, bytes], ...]

    def added_to(self, headers: Headers) -> Headers:
        """``headers`` with those of this context, which replace others of the same names.

        What is no sequence of pairs is left for ``send`` to refuse.
        """
        if not headers:
            return self.headers
        if not isinstance(headers, Sequence) or not all(
            isinstance(one, tuple) and len(one) == 2 for one in headers
        ):
            return headers
        own = {name for name, _ in self.headers}
        return [*(one for one in headers if one[0] not in own), *self.headers]


def tracing_for(wanted: bool | None, client_id: str | None) -> Tracing | None:
    """The tracing of a client with this setting ``tracing``; ``None`` if it is off.

    ``InvalidSettingError`` if it is wanted and the package is missing.
    """
    if wanted is False or (wanted is None and not _has_provider()):
        return None
    try:
        return Tracing(client_id)
    except ImportError as error:
        allowed = "None or False without opentelemetry-api; install oncelog[traces]"
        raise refused("tracing", wanted, allowed) from error


def _has_provider() -> bool:
    """Whether the program has set a tracer provider; imports nothing."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return False
    provider = trace.get_tracer_provider()
    return not isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))


class Tracing:
    """The spans of one client; from any thread. ``ImportError`` without ``opentelemetry-api``."""

    def __init__(self, client_id: str | None) -> None:
        from opentelemetry import context, propagate, trace

        self._trace = trace
        self._propagate = propagate
        self._current_context = context.get_current
        self._tracer = trace.get_tracer("oncelog")
        self._fields = frozenset(propagate.get_global_textmap().fields)
        self._attributes = {"messaging.system": SYSTEM}
        if client_id is not None:
            self._attributes["messaging.client.id"] = client_id
        self._known: tuple[Context, SendContext | None] | None = None
        """The context of the last record, and what it carries."""
        self._transaction: tuple[Span, SendContext | None] | None = None
        self._reported: set[str] = set()
        """What has failed, by the few names of ``_guarded``."""

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """A block of calls into the program's tracing; what they raise is logged once, and ends it.

        Samplers, propagators and span processors are the program's, and may raise anything. What is
        traced has mostly happened by then, and must not be taken for failed.
        """
        try:
            yield
        except Exception as error:
            if what not in self._reported:
                self._reported.add(what)
                _logger.error(
                    "tracing has raised for %s; it goes on without that span, and further "
                    "failures of it are not reported — correct the tracer provider or propagator",
                    what,
                    exc_info=error,
                )

    # --- sending ------------------------------------------------------------------------------

    def sending_context(self) -> SendContext | None:
        """What a record that is sent now carries: of the current span, or of its transaction."""
        context = self._current_context()
        known = self._known
        if known is None or known[0] is not context:
            known = self._known = (context, self._carried(context))
        if known[1] is None and self._transaction is not None:
            return self._transaction[1]
        return known[1]

    def _carried(self, context: Context) -> SendContext | None:
        headers: tuple[tuple[str, bytes], ...] = ()
        with self._guarded("headers"):
            if self._trace.get_current_span(context).get_span_context().is_valid:
                carrier: dict[str, str] = {}
                self._propagate.inject(carrier, context)
                headers = tuple((name, value.encode()) for name, value in carrier.items())
        return SendContext(context, headers) if headers else None

    def sending(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """``send`` of a producer, with the context in the headers of each record."""

        def traced_send(
            topic: str,
            value: Any = None,
            key: Any = None,
            *,
            headers: Headers = (),
            **options: Any,
        ) -> Any:
            context = self.sending_context()
            if context is None:
                return send(topic, value, key, headers=headers, **options)
            future = send(topic, value, key, headers=context.added_to(headers), **options)
            future.carries(context, LINKS_MAX)
            return future

        return traced_send

    def table(self, table: pa.Table) -> tuple[pa.Table, SendContext | None]:
        """A table to be sent, with the context in the headers of each row, and that context."""
        context = self.sending_context()
        if context is None:
            return table, None
        from oncelog.api.batching.arrow_rows import with_headers

        return with_headers(table, context.headers), context

    def batch_ended(
        self, batch: PendingBatch, now_s: float, error: OncelogError | None = None
    ) -> None:
        """The span of a batch whose outcome is known at ``now_s``, in seconds of the event loop."""
        with self._guarded("send"):
            self._batch_ended(batch, now_s, error)

    def _batch_ended(self, batch: PendingBatch, now_s: float, error: OncelogError | None) -> None:
        delivery = batch.delivery
        contexts: tuple[SendContext, ...] = tuple(delivery.contexts or ())
        ended_ns = epoch_ns()
        span = self._tracer.start_span(
            f"send {delivery.topic_partition.topic}",
            context=contexts[0].context if contexts else self._no_context(),
            kind=self._trace.SpanKind.PRODUCER,
            links=self._links(one.context for one in contexts),
            attributes={
                **self._attributes,
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": delivery.topic_partition.topic,
                "messaging.destination.partition.id": str(delivery.topic_partition.partition),
                "messaging.batch.message_count": batch.rows.record_count,
            },
            start_time=ended_ns - int(max(now_s - batch.created_s, 0) * 1e9),
        )
        if error is not None:
            self._failed(span, error)
        span.end(max(ended_ns, epoch_ns()))

    def _no_context(self) -> Context:
        return self._trace.set_span_in_context(self._trace.INVALID_SPAN)

    def _links(self, contexts: Iterable[Context]) -> list[Link]:
        spans = (self._trace.get_current_span(one).get_span_context() for one in contexts)
        return [self._trace.Link(span) for span in spans if span.is_valid]

    def _failed(self, span: Span, error: BaseException) -> None:
        code = error.code.name if isinstance(error, OncelogError) else type(error).__name__
        span.set_attribute("error.type", code)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))

    # --- transactions -------------------------------------------------------------------------

    def begin_transaction(self, transactional_id: str) -> None:
        """A transaction begins, in the current span."""
        self.end_transaction("unfinished")
        with self._guarded("transaction"):
            span = self._tracer.start_span(
                "transaction",
                attributes={**self._attributes, "oncelog.transactional_id": transactional_id},
            )
            carried = self._carried(self._trace.set_span_in_context(span))
            self._transaction = (span, carried)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A ``commit`` or ``abort`` of the open transaction; one that fails leaves it open."""
        transaction = self._transaction
        if transaction is None:
            yield
            return
        span: Span | None = None
        with self._guarded(name):
            span = self._tracer.start_span(
                name,
                context=self._trace.set_span_in_context(transaction[0]),
                kind=self._trace.SpanKind.CLIENT,
                attributes={**self._attributes, "messaging.operation.name": name},
            )
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._guarded(name):
                if span is not None and failure is not None:
                    self._failed(span, failure)
                if span is not None:
                    span.end()
        self.end_transaction(name)

    def end_transaction(self, outcome: str) -> None:
        """The open transaction, if there is one, has ended with ``outcome``."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            with self._guarded("transaction"):
                transaction[0].set_attribute("oncelog.outcome", outcome)
                transaction[0].end()

    # --- receiving ----------------------------------------------------------------------------

    def polled(self, taken: Any, began_ns: int, group_id: str | None) -> None:
        """The span of a poll that began at ``began_ns``, since the epoch, and returned ``taken``.

        That is a list of records, or of partitions with the batches that were read from them. The
        span belongs to the current one, else to the trace of the first record.
        """
        with self._guarded("poll"):
            self._receiving("poll", taken, group_id, began_ns).end()

    def begin_process(self, batch: Any, group_id: str) -> Span | None:
        """The span of a job's transaction, which begins with ``batch``, a list or a table.

        ``None`` if the program's tracing fails.
        """
        with self._guarded("process"):
            return self._receiving("process", batch, group_id, epoch_ns())
        return None

    def _receiving(self, name: str, taken: Any, group_id: str | None, began_ns: int) -> Span:
        contexts = self.contexts_of(taken)
        current = self._current_context()
        has_current = self._trace.get_current_span(current).get_span_context().is_valid
        topics = _topics_of(taken)
        attributes = {
            **self._attributes,
            "messaging.operation.name": name,
            "messaging.operation.type": "receive" if name == "poll" else "process",
            "messaging.batch.message_count": _count_of(taken),
        }
        if group_id is not None:
            attributes["messaging.consumer.group.name"] = group_id
        if len(topics) == 1:
            attributes["messaging.destination.name"] = topics[0]
        return self._tracer.start_span(
            f"{name} {topics[0]}" if len(topics) == 1 else name,
            context=current if has_current or not contexts else contexts[0],
            kind=self._trace.SpanKind.CONSUMER,
            links=self._links(contexts),
            attributes=attributes,
            start_time=began_ns,
        )

    def contexts_of(self, taken: Any) -> list[Context]:
        """The first different contexts that records carry, at most ``LINKS_MAX``."""
        found: dict[tuple[tuple[str, str], ...], Context] = {}
        for headers in _headers_of(taken, self._fields):
            carrier = {
                name: value.decode("utf-8", "replace")
                for name, value in headers
                if value is not None and name in self._fields
            }
            key = tuple(carrier.items())
            if carrier and key not in found:
                found[key] = self._propagate.extract(carrier)
                if len(found) >= LINKS_MAX:
                    break
        return list(found.values())

    def link(self, span: Span, batch: Any) -> None:
        """Link the contexts of further records of a job's transaction."""
        with self._guarded("link"):
            for link in self._links(self.contexts_of(batch)):
                span.add_link(link.context)

    def active(self, span: Span) -> AbstractContextManager[object]:
        """Make ``span`` the current one for a block; it goes on after it."""
        return self._trace.use_span(
            span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )

    def end_process(self, span: Span, outcome: str) -> None:
        """A job's transaction has ended with ``outcome``."""
        with self._guarded("process"):
            span.set_attribute("oncelog.outcome", outcome)
            if outcome != "commit":
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, outcome))
            span.end()


class ProcessSpan:
    """The span of a worker's open transaction; does nothing with ``tracing=None``."""

    def __init__(self, tracing: Tracing | None, group_id: str) -> None:
        self._tracing = tracing
        self._group_id = group_id
        self._span: Span | None = None
        self._link_count = 0

    def active(self, batch: Any = None) -> AbstractContextManager[object]:
        """A block within the span; it begins with the first ``batch``, and links the others."""
        tracing = self._tracing
        if tracing is None:
            return nullcontext()
        if batch is not None and self._span is None:
            self._span = tracing.begin_process(batch, self._group_id)
        elif batch is not None and self._span is not None:
            tracing.link(self._span, batch)
        return nullcontext() if self._span is None else tracing.active(self._span)

    def end(self, outcome: str) -> None:
        """The transaction, if one is open, has ended with ``commit`` or ``abort``."""
        span, self._span = self._span, None
        if span is not None and self._tracing is not None:
            self._tracing.end_process(span, outcome)


def _is_by_partition(taken: Any) -> bool:
    """Whether ``taken`` is what a poll of tables took, and no list of records."""
    return isinstance(taken, list) and bool(taken) and not hasattr(taken[0], "headers")


def _topics_of(taken: Any) -> list[str]:
    if not isinstance(taken, list):
        topics: list[str] = taken["topic"].unique().to_pylist()
        return topics
    if _is_by_partition(taken):
        return list({partition.topic: None for partition, _ in taken})
    return list({record.topic: None for record in taken})


def _count_of(taken: Any) -> int:
    if _is_by_partition(taken):
        return sum(batch.num_rows for _, batches in taken for batch in batches)
    return len(taken)


def _headers_of(taken: Any, names: Iterable[str]) -> Iterable[Iterable[tuple[str, bytes | None]]]:
    """The headers of records that may carry a context; of tables the different values only."""
    if isinstance(taken, list) and not _is_by_partition(taken):
        return (record.headers for record in taken if record.headers)
    from oncelog.api.batching.arrow_rows import first_headers

    if not isinstance(taken, list):
        return first_headers(taken["headers"].chunks, names, LINKS_MAX)
    columns = [batch["headers"] for _, batches in taken for batch in batches]
    return first_headers(columns, names, LINKS_MAX)
