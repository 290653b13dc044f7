"""A sink that keeps what meters of calls report."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from oncelog.actors.process.metrics import METRICS, Kind, Metric, parts

COUNTERS = {metric for metric in METRICS if metric.kind is Kind.COUNTER} | {
    part for metric in METRICS if metric.kind is Kind.HISTOGRAM for part in parts(metric)
}


class Counted:
    """What was added, by the name of the metric and the values of its tags."""

    def __init__(self) -> None:
        self.amounts: dict[tuple[str, ...], float] = defaultdict(float)
        self.reported = asyncio.Event()

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        raise AssertionError(f"{metric.name}={value} {tags}: calls are counted, not set")

    def add(self, metric: Metric, amount: float, tags: Mapping[str, str]) -> None:
        assert metric in COUNTERS
        assert tuple(tags) == metric.tags
        self.amounts[(metric.name, *tags.values())] += amount
        self.reported.set()

    def of(self, name: str, *tags: str) -> float:
        return self.amounts.get((name, *tags), 0)

    def buckets(self, method: str, side: str) -> dict[str, float]:
        """Upper bound → calls that took no longer."""
        found = ("call_duration_ms_bucket", method, side)
        return {tags[3]: count for tags, count in self.amounts.items() if tags[:3] == found}
