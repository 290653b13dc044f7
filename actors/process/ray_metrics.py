"""Metrics through Ray: on its dashboard, and for Prometheus at each node's endpoint.

Ray prefixes names with ``ray_``, ends those of counters with ``_total``, exports every ten seconds,
and keeps the gauges of an ended process for some seconds. Values added after a process has
disconnected from Ray are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ray.util import metrics
from ray.util.metrics import Counter, Gauge

from oncelog.actors.process.metrics import PREFIX, Metric

_InstrumentT = TypeVar("_InstrumentT", bound=metrics.Metric)


class RayMetrics:
    """``MetricSink`` of production."""

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Set the gauge, created on first use."""
        _instrument(Gauge, self._gauges, metric).set(value, tags=dict(tags))

    def add(self, metric: Metric, amount: float, tags: Mapping[str, str]) -> None:
        """Add to the counter, created on first use; two of one name, in two threads, add up."""
        if amount:
            _instrument(Counter, self._counters, metric).inc(amount, tags=dict(tags))


def _instrument(
    kind: type[_InstrumentT], known: dict[str, _InstrumentT], metric: Metric
) -> _InstrumentT:
    instrument = known.get(metric.name)
    if instrument is None:
        description = f"{metric.description} ({metric.unit})"
        instrument = kind(PREFIX + metric.name, description=description, tag_keys=metric.tags)
        known[metric.name] = instrument
    return instrument
