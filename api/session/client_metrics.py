"""What clients count, and how it gets to Prometheus.

A client adds up whole numbers and durations per batch, request or call, never per record. Its
``ClientReport`` reads these totals every ``metrics_interval_ms``, and once more when the client
or its cluster closes, and passes on what was added since. ``metrics()`` of a client reads the same
totals.

Ray keeps one value of a gauge for a process, and a process may have many clients of one name. So
their gauges are put together here: bytes and batches are summed, of times the longest counts.

Without metrics nothing is reported and no timer runs.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from oncelog.actors.process.metrics import (
    DURATION_BOUNDS_MS,
    NO_METRICS,
    Kind,
    Metric,
    report_buckets,
)
from oncelog.actors.rpc.call_meter import CallReports

CLIENT_NAMES_MAX: Final = 100
"""Values of the tag ``client`` in one process; clients of further names share ``OTHER_CLIENTS``."""

OTHER_CLIENTS: Final = "other"
DEFAULT_CLIENT: Final = "oncelog"
"""The tag of a client whose ``client_id`` is ``None``."""


@dataclass(slots=True)
class Durations:
    """How often something took place and how long it took, in seconds of the event loop."""

    count: int = 0
    sum_s: float = 0.0
    max_s: float = 0.0
    last_s: float | None = None
    """When the last one ended."""
    buckets: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BOUNDS_MS) + 1))

    def add(self, began_s: float, ended_s: float) -> None:
        """One more."""
        took_s = ended_s - began_s
        self.count += 1
        self.sum_s += took_s
        self.max_s = max(self.max_s, took_s)
        self.last_s = ended_s
        self.buckets[bisect_left(DURATION_BOUNDS_MS, 1_000 * took_s)] += 1

    @property
    def mean_ms(self) -> float:
        """The mean in ms; 0 before the first."""
        return self.sum_s / self.count * 1_000 if self.count else 0.0

    def quantile_ms(self, share: float) -> float:
        """About how long the fraction ``share`` took at most, in ms; 0 before the first.

        Interpolated within a bucket, as Prometheus does, and never above the longest.
        """
        wanted, passed, low_ms = share * self.count, 0, 0.0
        longest_ms = 1_000 * self.max_s
        for count, high_ms in zip(self.buckets, (*DURATION_BOUNDS_MS, longest_ms), strict=True):
            if count and passed + count >= wanted:
                return min(low_ms + (high_ms - low_ms) * (wanted - passed) / count, longest_ms)
            passed, low_ms = passed + count, high_ms
        return longest_ms

    def age_s(self, now_s: float) -> float:
        """Seconds since the last one; -1 before the first."""
        return -1.0 if self.last_s is None else now_s - self.last_s


Reading: TypeAlias = "tuple[Metric, float | Durations, Mapping[str, str]]"
"""A total or a current value of a client, with its tags; of a histogram the durations."""

_Series: TypeAlias = "tuple[str, tuple[str, ...]]"


class ProcessClients:
    """What the clients of one process have in common: their names, and their gauges put together.

    From any thread. Bounded by ``CLIENT_NAMES_MAX`` and by the series of the clients that live.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: this is a forked process, which has no clients yet."""
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._gauges: dict[_Series, dict[int, float]] = {}

    def name_of(self, client_id: str | None) -> str:
        """The value of the tag ``client`` for a client with this ``client_id``."""
        name = client_id or DEFAULT_CLIENT
        with self._lock:
            if name not in self._names and len(self._names) >= CLIENT_NAMES_MAX:
                return OTHER_CLIENTS
            self._names.add(name)
            return name

    def combined(self, series: _Series, metric: Metric, client: int, value: float | None) -> float:
        """The gauge of all clients once ``client`` has ``value``, or none any more."""
        with self._lock:
            values = self._gauges.setdefault(series, {})
            if value is None:
                values.pop(client, None)
            else:
                values[client] = value
            if not values:
                del self._gauges[series]
                return 0.0
            is_summed = metric.unit in ("bytes", "batches")
            return sum(values.values()) if is_summed else max(values.values())


PROCESS: Final = ProcessClients()
"""The clients of this process."""

_numbers: Final = itertools.count(1)


class ClientReport:
    """Reports what one client counts. ``read`` gives its totals and current values.

    Belongs to one event loop, or to the one thread that calls ``report_if_due``.
    """

    def __init__(
        self,
        reports: CallReports,
        read: Callable[[], Iterable[Reading]],
        process: ProcessClients = PROCESS,
    ) -> None:
        self._reports = reports
        self._read = read
        self._process = process
        self._number = next(_numbers)
        self._totals: dict[_Series, float] = {}
        self._buckets: dict[_Series, tuple[int, ...]] = {}
        self._gauges: dict[_Series, tuple[Metric, Mapping[str, str], float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last_s: float | None = None
        self._is_over = False

    def begin(self) -> None:
        """Report at an interval from now on, on a cluster with metrics; call it on the loop."""
        if self._timer is None and self._reports.metrics is not NO_METRICS and not self._is_over:
            self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._reports.interval_ms / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        self.report()
        self._wait()

    def report_if_due(self, now_s: float) -> None:
        """Report if the interval has passed, for a client without an event loop."""
        if self._reports.metrics is NO_METRICS:
            return
        if self._last_s is None:
            self._last_s = now_s
        elif (now_s - self._last_s) * 1_000 >= self._reports.interval_ms:
            self._last_s = now_s
            self.report()

    def stop(self) -> None:
        """Report for the last time; current values no longer count. Safe to repeat."""
        has_begun = self._timer is not None or self._last_s is not None
        was_over, self._is_over = self._is_over, True
        if was_over or not has_begun:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.report()
        for series in tuple(self._gauges):
            self._drop(series)

    def report(self) -> None:
        """Report what was added since the last report, and the current values."""
        seen: set[_Series] = set()
        for metric, value, tags in self._read():
            series = (metric.name, tuple(tags.values()))
            if isinstance(value, Durations):
                self._add_durations(series, metric, value, tags)
            elif metric.kind is Kind.COUNTER:
                added = value - self._totals.get(series, 0)
                self._totals[series] = value
                self._reports.metrics.add(metric, added, tags)
            else:
                seen.add(series)
                self._set(series, metric, value, tags)
        for series in self._gauges.keys() - seen:
            self._drop(series)

    def _add_durations(
        self, series: _Series, metric: Metric, durations: Durations, tags: Mapping[str, str]
    ) -> None:
        former = self._buckets.get(series) or (0,) * len(durations.buckets)
        self._buckets[series] = buckets = tuple(durations.buckets)
        added = [now - then for now, then in zip(buckets, former, strict=True)]
        total_ms = 1_000 * durations.sum_s
        added_ms = total_ms - self._totals.get(series, 0.0)
        self._totals[series] = total_ms
        report_buckets(metric, added, added_ms, self._reports.metrics, tags)

    def _set(self, series: _Series, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        combined = self._process.combined(series, metric, self._number, value)
        former = self._gauges.get(series)
        self._gauges[series] = (metric, tags, combined)
        if combined or not metric.rests_at_zero or (former is not None and former[2]):
            self._reports.metrics.set(metric, combined, tags)

    def _drop(self, series: _Series) -> None:
        metric, tags, former = self._gauges.pop(series)
        combined = self._process.combined(series, metric, self._number, None)
        if former or not metric.rests_at_zero:
            self._reports.metrics.set(metric, combined, tags)
