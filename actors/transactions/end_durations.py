"""How long the steps of ending transactions take at one coordinator, whether commit or abort.

| step | from | to |
|---|---|---|
| decision | the request is queued | PREPARE is durable |
| markers | they are sent | every partition has its marker, durably |
| completion | that | COMPLETE is in the log, not yet durable |
"""

from __future__ import annotations

import enum

from oncelog.actors.process.clock import monotonic_s
from oncelog.actors.process.metrics import TRANSACTION_END_DURATION_MS, Histogram, MetricSink


class EndStep(enum.Enum):
    """A step; the value is its tag."""

    DECISION = "decision"
    MARKERS = "markers"
    COMPLETION = "completion"


class EndDurations:
    """A histogram for each step."""

    def __init__(self) -> None:
        self._of = {step: Histogram(TRANSACTION_END_DURATION_MS) for step in EndStep}

    def observe(self, step: EndStep, began_s: float) -> float:
        """A step that began at ``began_s`` has ended now, which is returned."""
        now_s = monotonic_s()
        self._of[step].observe(1_000 * (now_s - began_s))
        return now_s

    def count(self, step: EndStep) -> int:
        """How many of these steps have ended since the last report."""
        return self._of[step].count

    def report(self, metrics: MetricSink, broker_id: int) -> None:
        """Report what ended since the last report."""
        for step, durations in self._of.items():
            durations.report(metrics, {"step": step.value, "broker": str(broker_id)})
