"""Figures as Ray's own metrics: on its dashboard, and for Prometheus at each node's endpoint.

Ray prefixes names with ``ray_``, exports every ten seconds, and keeps the gauges of a process that
ended for some seconds more.
"""

from __future__ import annotations

from collections.abc import Mapping

from ray.util.metrics import Gauge

from oncelog.actors.process.metrics import PREFIX, TAGS, Metric


class RayMetrics:
    """``MetricSink`` of production."""

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Set the gauge, made on first use."""
        gauge = self._gauges.get(metric.name)
        if gauge is None:
            description = f"{metric.description} ({metric.unit})"
            gauge = Gauge(PREFIX + metric.name, description=description, tag_keys=TAGS)
            self._gauges[metric.name] = gauge
        gauge.set(value, tags=dict(tags))
