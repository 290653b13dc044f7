"""The spans that clients make, kept in memory, for tests of traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """What ended, in order."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        """The ended spans of this name."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only ended span of this name."""
        (span,) = self.named(name)
        return span

    @property
    def names(self) -> list[str]:
        """The names of all ended spans."""
        return [span.name for span in self._exporter.get_finished_spans()]


@contextmanager
def kept_spans() -> Iterator[Spans]:
    """A tracer provider for the block; OpenTelemetry itself sets one per process only."""
    exporter = InMemorySpanExporter()
    # Without limits of its own: those of clients count.
    provider = TracerProvider(span_limits=SpanLimits(max_links=1_000_000))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        yield Spans(exporter)


BROKEN = ("on_start", "on_end", "propagator")
"""What of a program's tracing can raise."""


class _Raising:
    """A part of tracing whose methods of these names raise."""

    def __init__(self, *broken: str) -> None:
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        def method(*_: Any, **__: Any) -> None:
            if name in self._broken:
                raise RuntimeError(f"{name} of the program's own tracing")

        return method


@contextmanager
def broken_tracing(what: str) -> Iterator[None]:
    """For the block, a tracer provider that raises at ``what``, one of ``BROKEN``."""
    provider: Any = TracerProvider()
    provider.add_span_processor(_Raising(what))
    propagator: Any = _Raising("inject", "extract")
    propagator.fields = {"traceparent"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        if what == "propagator":
            patch.setattr(propagate, "_HTTP_TEXT_FORMAT", propagator)
        yield


def id_of(span: Any) -> int:
    """The id of a span, of either kind."""
    return span.get_span_context().span_id


def traceparent(span: Any) -> bytes:
    """The header of a record that was sent in ``span``."""
    context = span.get_span_context()
    ids = f"{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    return f"00-{ids}".encode()
