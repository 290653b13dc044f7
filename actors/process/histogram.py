"""How values are distributed, counted in buckets and reported as counters.

Ray's own histogram takes one value at a time, replays each at every export and knows their sum only
by the middles of the buckets. So the counting is done here: an observation costs a search among
fifteen bounds and two additions. What Prometheus expects of a histogram is exported as counters:
cumulative counts per upper bound, sum and count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import cache
from itertools import accumulate

from oncelog.actors.process.metrics import Kind, Metric, MetricSink


class Histogram:
    """What was observed of one series of ``metric`` since the last report."""

    __slots__ = ("_bounds", "_buckets", "_metric", "_total")

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._bounds = metric.bounds
        self._begin()

    def _begin(self) -> None:
        self._buckets = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self._buckets)

    def observe(self, value: float) -> None:
        """Count ``value``, in the unit of the metric."""
        self._buckets[bisect_left(self._bounds, value)] += 1
        self._total += value

    def report(self, metrics: MetricSink, tags: Mapping[str, str]) -> None:
        """Report what was observed, and begin again; nothing if there was nothing."""
        counts = list(accumulate(self._buckets))
        if not counts[-1]:
            return
        bucket, total, count = parts(self._metric)
        metrics.add(count, counts[-1], tags)
        metrics.add(total, self._total, tags)
        for le, amount in zip(_le(self._bounds), counts, strict=True):
            metrics.add(bucket, amount, {**tags, "le": le})
        self._begin()


@cache
def parts(metric: Metric) -> tuple[Metric, Metric, Metric]:
    """The counters that a histogram is exported as: per bucket, sum, count."""
    bucket = Metric(
        name=f"{metric.name}_bucket",
        kind=Kind.COUNTER,
        unit="count",
        description=f"{metric.description} At most `le` {metric.unit}.",
        tags=(*metric.tags, "le"),
    )
    total = Metric(
        name=f"{metric.name}_sum",
        kind=Kind.COUNTER,
        unit=metric.unit,
        description=f"{metric.description} All together.",
        tags=metric.tags,
    )
    count = Metric(
        name=f"{metric.name}_count",
        kind=Kind.COUNTER,
        unit="count",
        description=f"{metric.description} How many.",
        tags=metric.tags,
    )
    return bucket, total, count


@cache
def _le(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(str, bounds), "+Inf")
