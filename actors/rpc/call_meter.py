"""Counts the calls of one event loop: how many, their outcomes, sizes and durations.

Calls over our own connections are not in Ray's timeline. Counting must cost far less than a call:
integers are summed up here, and the sums go to Ray's counters every ``metrics_interval_ms``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from oncelog.actors.process.clock import monotonic_s
from oncelog.actors.process.metrics import (
    CALL_DURATION_MS,
    CALL_ERRORS,
    CALL_REPLY_BYTES,
    CALL_REQUEST_BYTES,
    CALLS,
    NO_METRICS,
    Histogram,
    MetricSink,
)
from oncelog.actors.rpc.message_codec import REQUESTS
from oncelog.storage.errors import ErrorCode

CALLER: Final = "caller"
CALLEE: Final = "callee"

OTHER: Final = "other"
"""Name under which calls of unknown methods are counted: such names are unbounded."""


@dataclass(slots=True)
class CallReports:
    """Where, and how often, the meters of a process report; may be changed later."""

    metrics: MetricSink
    interval_ms: int


NO_REPORTS: Final = CallReports(NO_METRICS, 0)
"""Reports of meters that report nowhere."""


class MeteredCall:
    """One open call; the code that encodes and decodes its messages sets the sizes."""

    __slots__ = ("began_s", "method", "reply_bytes", "request_bytes")

    def __init__(self, method: str, began_s: float, request_bytes: int = 0) -> None:
        self.method = method
        self.began_s = began_s
        self.request_bytes = request_bytes
        self.reply_bytes = 0


class _MethodCalls:
    """The totals of the calls of one method."""

    __slots__ = ("durations", "errors", "reply_bytes", "request_bytes")

    def __init__(self) -> None:
        self.durations = Histogram(CALL_DURATION_MS)
        self.errors: dict[ErrorCode, int] = {}
        self.request_bytes = 0
        self.reply_bytes = 0


class CallMeter:
    """Counts calls on one side, ``CALLER`` or ``CALLEE``, and reports them from its event loop.

    Bounded by the number of methods. It sets a timer only once there is something to report, so a
    process without calls does nothing, and a loop that ends has nothing to stop.
    """

    def __init__(
        self,
        side: str,
        reports: CallReports = NO_REPORTS,
        now_s: Callable[[], float] = monotonic_s,
    ) -> None:
        self._side = side
        self._reports = reports
        self._now_s = now_s
        self._by_method: dict[str, _MethodCalls] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, method: str, request_bytes: int = 0) -> MeteredCall:
        """Begin a call; pass it to ``end``. A call that never ends is not counted."""
        return MeteredCall(method, self._now_s(), request_bytes)

    def end(self, call: MeteredCall, error: ErrorCode) -> None:
        """A call has ended with the code of its reply."""
        took_ms = 1_000 * (self._now_s() - call.began_s)
        calls = self._by_method.get(call.method) or self._begin_method(call.method)
        calls.durations.observe(took_ms)
        calls.request_bytes += call.request_bytes
        calls.reply_bytes += call.reply_bytes
        if error is not ErrorCode.NONE:
            calls.errors[error] = calls.errors.get(error, 0) + 1

    def _begin_method(self, method: str) -> _MethodCalls:
        if self._timer is None and self._reports.metrics is not NO_METRICS:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._reports.interval_ms / 1_000, self.report)
        return self._by_method.setdefault(method if method in REQUESTS else OTHER, _MethodCalls())

    def report(self) -> None:
        """Report what was counted since the last report; also called before a loop ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        by_method, self._by_method = self._by_method, {}
        add = self._reports.metrics.add
        for method, calls in by_method.items():
            tags = {"method": method, "side": self._side}
            add(CALLS, calls.durations.count, tags)
            add(CALL_REQUEST_BYTES, calls.request_bytes, tags)
            add(CALL_REPLY_BYTES, calls.reply_bytes, tags)
            for error, count in calls.errors.items():
                add(CALL_ERRORS, count, {**tags, "error": error.name})
            calls.durations.report(self._reports.metrics, tags)


UNMETERED: Final = MeteredCall(OTHER, 0.0)
"""Used for calls that are not counted; its sizes are ignored."""
