"""What an operator watches: names, units and meaning of the figures, and where they go.

Each actor sets its figures every ``metrics_interval_ms``. ``MetricSink`` is where they go:
Ray's metrics in production (``process/ray_metrics.py``), nothing elsewhere. These figures are
gauges that a restart sets anew; after restarts, query the highest value per topic and
partition.

Calls are counted as well, by both caller, which may be a program, and callee
(``rpc/call_meter.py``): those are counters, to be summed.

A transaction is *late* once it has been open for the longest allowed time plus five minutes: its
coordinator should have ended it. The time is this process's own, counted from when it first saw
the transaction: records may carry timestamps of years ago. Source: KIP-98, "Metrics"; KIP-664.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

LATE_GRACE_MS: Final = 300_000
"""How far beyond the longest transaction timeout an open transaction is late."""

PREFIX: Final = "oncelog_"
TAGS: Final = ("topic", "partition", "broker")
CALL_TAGS: Final = ("method", "side")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One figure. ``unit`` ends the name where it is not a plain count or an offset."""

    name: str
    unit: str
    description: str
    tags: tuple[str, ...] = TAGS


PRODUCER_ID_COUNT: Final = Metric(
    name="producer_id_count",
    unit="producers",
    description="Producers that the leader of a partition remembers.",
)
OPEN_TRANSACTION_COUNT: Final = Metric(
    name="open_transaction_count",
    unit="transactions",
    description="Transactions on a partition that wait for their marker.",
)
LAST_STABLE_OFFSET: Final = Metric(
    name="last_stable_offset",
    unit="offset",
    description="Where readers of committed records end (exclusive).",
)
LAST_STABLE_OFFSET_LAG: Final = Metric(
    name="last_stable_offset_lag",
    unit="records",
    description="High watermark minus last stable offset: held back by open transactions.",
)
OLDEST_OPEN_TRANSACTION_AGE_MS: Final = Metric(
    name="oldest_open_transaction_age_ms",
    unit="ms",
    description="For how long the leader has seen the oldest transaction open; 0 without any.",
)
LATE_TRANSACTION_COUNT: Final = Metric(
    name="partition_late_transaction_count",
    unit="transactions",
    description="Transactions open for longer than any may be; see `transactions find-hanging`.",
)
TRANSACTIONAL_ID_COUNT: Final = Metric(
    name="transactional_id_count",
    unit="ids",
    description="Transactional ids that a coordinator remembers.",
)
ACTIVE_TRANSACTIONAL_ID_COUNT: Final = Metric(
    name="active_transactional_id_count",
    unit="ids",
    description="Transactional ids with a transaction that is open or not complete.",
)
DAMAGED_PLACE_COUNT: Final = Metric(
    name="damaged_place_count",
    unit="places",
    description="Places of the log found to be unreadable; see `oncelog status`.",
)
CUT_BYTES: Final = Metric(
    name="cut_bytes",
    unit="bytes",
    description="What the last start cut from the end of the log; see `oncelog status`.",
)
CALLS: Final = Metric(
    name="calls",
    unit="calls",
    description="Calls that ended.",
    tags=CALL_TAGS,
)
CALL_ERRORS: Final = Metric(
    name="call_errors",
    unit="calls",
    description="Calls that ended with an error, by its code.",
    tags=(*CALL_TAGS, "error"),
)
CALL_REQUEST_BYTES: Final = Metric(
    name="call_request_bytes",
    unit="bytes",
    description="Size of the requests.",
    tags=CALL_TAGS,
)
CALL_REPLY_BYTES: Final = Metric(
    name="call_reply_bytes",
    unit="bytes",
    description="Size of the replies.",
    tags=CALL_TAGS,
)
CALL_DURATION_MS_SUM: Final = Metric(
    name="call_duration_ms_sum",
    unit="ms",
    description="How long calls took, all together; that of `fetch` includes waiting for records.",
    tags=CALL_TAGS,
)
CALL_DURATION_MS_BUCKET: Final = Metric(
    name="call_duration_ms_bucket",
    unit="calls",
    description="Calls that took at most `le` ms: for `histogram_quantile`.",
    tags=(*CALL_TAGS, "le"),
)
METRICS: Final = (
    PRODUCER_ID_COUNT,
    OPEN_TRANSACTION_COUNT,
    LAST_STABLE_OFFSET,
    LAST_STABLE_OFFSET_LAG,
    OLDEST_OPEN_TRANSACTION_AGE_MS,
    LATE_TRANSACTION_COUNT,
    DAMAGED_PLACE_COUNT,
    CUT_BYTES,
    TRANSACTIONAL_ID_COUNT,
    ACTIVE_TRANSACTIONAL_ID_COUNT,
    CALLS,
    CALL_ERRORS,
    CALL_REQUEST_BYTES,
    CALL_REPLY_BYTES,
    CALL_DURATION_MS_SUM,
    CALL_DURATION_MS_BUCKET,
)


class MetricSink(Protocol):
    """Takes figures; never raises and never waits."""

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Set a gauge; ``tags`` has a text for each of those of ``metric``."""
        ...

    def add(self, metric: Metric, amount: float, tags: Mapping[str, str]) -> None:
        """Add to a counter; nothing if ``amount`` is 0. From any thread."""
        ...


class NoMetrics:
    """A sink for processes without monitoring."""

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Forget the figure."""

    def add(self, metric: Metric, amount: float, tags: Mapping[str, str]) -> None:
        """Forget the figure."""


NO_METRICS: Final = NoMetrics()


class TransactionAges:
    """For how long transactions of one partition have been seen open, by this process's clock.

    Bounded by what is open. A clock that steps back makes a transaction young again.
    """

    def __init__(self, *, late_after_ms: int) -> None:
        self._late_after_ms = late_after_ms
        self._since_ms: dict[tuple[int, int], int] = {}
        self.oldest_ms = 0
        self.late_count = 0

    def observe(self, open_transactions: Mapping[int, int], now_ms: int) -> None:
        """Note what is open: first offset → producer id."""
        since_ms: dict[tuple[int, int], int] = {}
        for transaction in open_transactions.items():
            since_ms[transaction] = min(self._since_ms.get(transaction, now_ms), now_ms)
        self._since_ms = since_ms
        ages_ms = [now_ms - begun_ms for begun_ms in since_ms.values()]
        self.oldest_ms = max(ages_ms, default=0)
        self.late_count = sum(age_ms > self._late_after_ms for age_ms in ages_ms)
