"""The metrics: names, kinds, units and meanings, and where they are sent.

``METRICS`` is the only table. ``oncelog metrics list`` prints it, docs/OPERATIONS.md repeats it,
and dashboards and alerts use only these names. ``MetricSink`` receives the values: Ray's metrics in
production (``process/ray_metrics.py``), nothing elsewhere.

* A *gauge* is set every ``metrics_interval_ms``. Ray forgets one that is not set again within
  twenty seconds; so one that has not changed is set again, and one of a deleted partition is gone.
  A restart sets it anew: after restarts, query the highest value per topic and partition.
  One that *rests at zero* is exported while it is above 0, and once more when it is 0 again.
* A *counter* only grows while its process lives; query its ``rate``, summed over processes. What
  happens is added up in whole numbers, and what was added since the last report is reported.
* A *histogram* is exported as counters: cumulative counts per upper bound, sum and count. Ray's
  own takes one value at a time, replays each at every export and knows their sum only by the
  middles of the buckets. So ``Histogram`` counts itself: an observation costs a search among
  fifteen bounds and two additions.

Tags bound the number of series: by partitions and other actors, brokers and their data directories,
requests, error codes, outcomes and two kinds of principals. Names of groups and of clients are
chosen by users; of the latter only the first hundred of a process are told apart.

A transaction is *late* once it has been open for the longest allowed time plus five minutes: its
coordinator should have ended it. The time is this process's own, counted from when it first saw
the transaction: records may carry timestamps of years ago. Source: KIP-98, "Metrics"; KIP-664.

One file: mostly the one table; the rest counts a metric of each kind.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Final, Protocol

LATE_GRACE_MS: Final = 300_000
"""Time beyond the longest transaction timeout after which a transaction is late."""

PREFIX: Final = "oncelog_"
RAY_PREFIX: Final = "ray_"
"""Ray's prefix of every metric name."""

TAGS: Final = ("topic", "partition", "broker")
BROKER_TAGS: Final = ("broker",)
DIRECTORY_TAGS: Final = ("broker", "directory")
CALL_TAGS: Final = ("method", "side")
ACTOR_TAGS: Final = ("actor",)
GROUP_TAGS: Final = ("group", "topic", "partition")
QUEUE_TAGS: Final = ("group",)
PRINCIPAL_TAGS: Final = ("principal",)
STEP_TAGS: Final = ("step", "broker")
PRODUCER_TAGS: Final = ("client",)
CONSUMER_TAGS: Final = ("client", "group")
JOB_TAGS: Final = ("group",)

DURATION_BOUNDS_MS: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 30_000),
)
"""Inclusive upper bounds of duration buckets; a last bucket has what took longer."""


class Kind(enum.Enum):
    """The kind of a metric, which decides how to query it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. ``unit`` ends the name, unless it is a plain count or an offset."""

    name: str
    kind: Kind = Kind.GAUGE
    unit: str
    description: str
    tags: tuple[str, ...] = TAGS
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets, inclusive."""
    rests_at_zero: bool = False
    """Not exported while it is 0, as it nearly always is."""

    @property
    def exported_names(self) -> tuple[str, ...]:
        """Its names in Prometheus: one, or three for a histogram."""
        name = RAY_PREFIX + PREFIX + self.name
        if self.kind is Kind.GAUGE:
            return (name,)
        if self.kind is Kind.COUNTER:
            return (f"{name}_total",)
        return (f"{name}_bucket_total", f"{name}_sum_total", f"{name}_count_total")


REPLICA_OFFLINE: Final = Metric(
    name="replica_offline",
    unit="replicas",
    description="1 while a replica is offline, else 0; `oncelog status` says why.",
)
DISK_REFUSING: Final = Metric(
    name="disk_refusing",
    unit="replicas",
    description="1 while the disk refuses a replica's appends, such as a full disk, else 0.",
    rests_at_zero=True,
)
LEADER_EPOCH: Final = Metric(
    name="leader_epoch",
    unit="epoch",
    description="The epoch in which a replica leads; it rises with every election.",
)
APPENDED_BYTES: Final = Metric(
    name="appended_bytes",
    kind=Kind.COUNTER,
    unit="bytes",
    description="Size of the batches that a leader appended.",
)
APPENDED_RECORDS: Final = Metric(
    name="appended_records",
    kind=Kind.COUNTER,
    unit="records",
    description="Records in these batches, transaction markers included.",
)
FETCHED_BYTES: Final = Metric(
    name="fetched_bytes",
    kind=Kind.COUNTER,
    unit="bytes",
    description="Size of the batches that a replica gave to readers.",
)
FETCHED_RECORDS: Final = Metric(
    name="fetched_records",
    kind=Kind.COUNTER,
    unit="records",
    description="Offsets that these batches cover; after compaction some have no record.",
)
LOG_SIZE_BYTES: Final = Metric(
    name="log_size_bytes",
    unit="bytes",
    description="Size of the batches in a log.",
)
SEGMENT_COUNT: Final = Metric(
    name="segment_count",
    unit="segments",
    description="Segments of a log.",
)
HIGH_WATERMARK_LAG: Final = Metric(
    name="high_watermark_lag",
    unit="records",
    description="Log end minus high watermark: appended and not committed yet.",
    rests_at_zero=True,
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
    rests_at_zero=True,
)
OPEN_TRANSACTION_COUNT: Final = Metric(
    name="open_transaction_count",
    unit="transactions",
    description="Transactions on a partition that wait for their marker.",
    rests_at_zero=True,
)
OLDEST_OPEN_TRANSACTION_AGE_MS: Final = Metric(
    name="oldest_open_transaction_age_ms",
    unit="ms",
    description="For how long the leader has seen the oldest transaction open; 0 without any.",
    rests_at_zero=True,
)
LATE_TRANSACTION_COUNT: Final = Metric(
    name="partition_late_transaction_count",
    unit="transactions",
    description="Transactions open for longer than any may be; see `transactions find-hanging`.",
    rests_at_zero=True,
)
PRODUCER_ID_COUNT: Final = Metric(
    name="producer_id_count",
    unit="producers",
    description="Producers that the leader of a partition remembers.",
    rests_at_zero=True,
)
DAMAGED_PLACE_COUNT: Final = Metric(
    name="damaged_place_count",
    unit="places",
    description="Unreadable places found in the log; see `oncelog status`.",
    rests_at_zero=True,
)
CUT_BYTES: Final = Metric(
    name="cut_bytes",
    unit="bytes",
    description="Bytes that the last start cut from the end of the log; see `oncelog status`.",
    rests_at_zero=True,
)
UNDER_REPLICATED: Final = Metric(
    name="under_replicated",
    unit="partitions",
    description="1 while not all replicas of a partition are in sync with its leader, else 0.",
    rests_at_zero=True,
)
UNDER_MIN_ISR: Final = Metric(
    name="under_min_isr",
    unit="partitions",
    description="1 while fewer replicas than `min_insync_replicas` are in sync, else 0.",
    rests_at_zero=True,
)
REPLICATION_LAG: Final = Metric(
    name="replication_lag",
    unit="records",
    description="Records that the slowest follower lacks, as far as its leader knows.",
    rests_at_zero=True,
)
REPLICATION_LAG_MS: Final = Metric(
    name="replication_lag_ms",
    unit="ms",
    description="Time since the slowest follower had its leader's whole log.",
    rests_at_zero=True,
)
ISR_SHRINKS: Final = Metric(
    name="isr_shrinks",
    kind=Kind.COUNTER,
    unit="changes",
    description="Changes of the ISR that removed a member, as the leader learned.",
)
ISR_EXPANDS: Final = Metric(
    name="isr_expands",
    kind=Kind.COUNTER,
    unit="changes",
    description="Changes of the ISR that added a member, as the leader learned.",
)
PUSHED_BYTES: Final = Metric(
    name="pushed_bytes",
    kind=Kind.COUNTER,
    unit="bytes",
    description="Size of the batches that a leader sent to followers, also those sent again.",
)
REPLICATED_BYTES: Final = Metric(
    name="replicated_bytes",
    kind=Kind.COUNTER,
    unit="bytes",
    description="Size of the batches that a follower took from its leader.",
)
FOLLOWER_CUTS: Final = Metric(
    name="follower_cuts",
    kind=Kind.COUNTER,
    unit="cuts",
    description="Times that a follower cut or dropped its log, as it differed from the leader's.",
)
FOLLOWER_FETCHES: Final = Metric(
    name="follower_fetches",
    kind=Kind.COUNTER,
    unit="fetches",
    description="Fetches of consumers that a follower answered, for those with a `client_rack`.",
)
OFFLINE_PARTITION_COUNT: Final = Metric(
    name="offline_partition_count",
    unit="partitions",
    description="Partitions without a leader, as the controller knows.",
    tags=BROKER_TAGS,
)
REASSIGNMENT_COUNT: Final = Metric(
    name="reassignment_count",
    unit="partitions",
    description="Partitions that are being moved to other brokers.",
    tags=BROKER_TAGS,
)
LEADER_ELECTIONS: Final = Metric(
    name="leader_elections",
    kind=Kind.COUNTER,
    unit="elections",
    description="Leaders that the controller has elected, a leader that starts again included.",
    tags=BROKER_TAGS,
)
BROKER_FENCED: Final = Metric(
    name="broker_fenced",
    unit="brokers",
    description="1 while the controller has a broker fenced, else 0.",
    tags=BROKER_TAGS,
)
VOTER_COUNT: Final = Metric(
    name="voter_count",
    unit="brokers",
    description="Brokers with a vote and a copy of the controller's log, its own included.",
    tags=BROKER_TAGS,
)
LAGGING_VOTER_COUNT: Final = Metric(
    name="lagging_voter_count",
    unit="brokers",
    description="Brokers with a vote whose copy lacks committed records.",
    tags=BROKER_TAGS,
)
VOTER_LAG: Final = Metric(
    name="voter_lag",
    unit="records",
    description="Records of the controller's log that a voter lacks, as far as known.",
    tags=BROKER_TAGS,
)
VOTER_LAG_MS: Final = Metric(
    name="voter_lag_ms",
    unit="ms",
    description="Time since a voter had the controller's whole log; 0 if it has.",
    tags=BROKER_TAGS,
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
OLDEST_PREPARED_TRANSACTION_AGE_MS: Final = Metric(
    name="oldest_prepared_transaction_age_ms",
    unit="ms",
    description="How long the oldest prepared transaction has waited for its end; 0: none.",
)
TRANSACTION_END_DURATION_MS: Final = Metric(
    name="transaction_end_duration_ms",
    kind=Kind.HISTOGRAM,
    unit="ms",
    description="How long a step of an end took: `decision`, `markers` or `completion`.",
    tags=STEP_TAGS,
    bounds=DURATION_BOUNDS_MS,
)
SYNC_DURATION_MS: Final = Metric(
    name="sync_duration_ms",
    kind=Kind.HISTOGRAM,
    unit="ms",
    description="How long syncs of logs took, waiting for a thread included.",
    tags=BROKER_TAGS,
    bounds=DURATION_BOUNDS_MS,
)
DISK_FREE_BYTES: Final = Metric(
    name="disk_free_bytes",
    unit="bytes",
    description="Free space on the disk of a data directory.",
    tags=DIRECTORY_TAGS,
)
DISK_SIZE_BYTES: Final = Metric(
    name="disk_size_bytes",
    unit="bytes",
    description="Size of the disk of a data directory.",
    tags=DIRECTORY_TAGS,
)
OFFLINE_DIRECTORY: Final = Metric(
    name="offline_directory",
    unit="directories",
    description="1 while a data directory of a broker that has several cannot be used, else 0.",
    tags=DIRECTORY_TAGS,
)
CERTIFICATE_EXPIRES_SECONDS: Final = Metric(
    name="certificate_expires_seconds",
    unit="s",
    description="Time until the TLS certificate in use expires, below 0 after that.",
    tags=BROKER_TAGS,
)
GATEWAY_NOT_SERVING: Final = Metric(
    name="gateway_not_serving",
    unit="gateways",
    description="1 while a gateway has no port open for clients of Kafka, else 0; "
    "`oncelog status` says why.",
    tags=BROKER_TAGS,
)
GATEWAY_CONNECTION_COUNT: Final = Metric(
    name="gateway_connection_count",
    unit="connections",
    description="Connections of clients of Kafka to a broker's gateway.",
    tags=BROKER_TAGS,
)
CALLS: Final = Metric(
    name="calls",
    kind=Kind.COUNTER,
    unit="calls",
    description="Calls that ended.",
    tags=CALL_TAGS,
)
CALL_ERRORS: Final = Metric(
    name="call_errors",
    kind=Kind.COUNTER,
    unit="calls",
    description="Calls that ended with an error, by its code.",
    tags=(*CALL_TAGS, "error"),
)
CALL_REQUEST_BYTES: Final = Metric(
    name="call_request_bytes",
    kind=Kind.COUNTER,
    unit="bytes",
    description="Size of the requests.",
    tags=CALL_TAGS,
)
CALL_REPLY_BYTES: Final = Metric(
    name="call_reply_bytes",
    kind=Kind.COUNTER,
    unit="bytes",
    description="Size of the replies.",
    tags=CALL_TAGS,
)
CALL_DURATION_MS: Final = Metric(
    name="call_duration_ms",
    kind=Kind.HISTOGRAM,
    unit="ms",
    description="How long calls took; that of `fetch` includes waiting for records.",
    tags=CALL_TAGS,
    bounds=DURATION_BOUNDS_MS,
)
CONSUMER_LAG: Final = Metric(
    name="consumer_lag",
    unit="records",
    description="Records that the reader of a partition has left to read, as of its last fetch.",
    tags=GROUP_TAGS,
)
QUEUE_BACKLOG: Final = Metric(
    name="queue_backlog",
    unit="records",
    description="Records of a queue that are not finished: waiting, with a worker, or pending.",
    tags=QUEUE_TAGS,
)
QUEUE_OLDEST_UNFINISHED_MS: Final = Metric(
    name="queue_oldest_unfinished_ms",
    unit="ms",
    description="For how long the coordinator has seen the same record of a partition first among "
    "those that a queue has not finished.",
    tags=QUEUE_TAGS,
)
PRODUCER_RECORDS: Final = Metric(
    name="producer_records",
    kind=Kind.COUNTER,
    unit="records",
    description="Records of producers by their outcome: `acknowledged` or `failed`.",
    tags=(*PRODUCER_TAGS, "outcome"),
)
PRODUCER_BATCHES: Final = Metric(
    name="producer_batches",
    kind=Kind.COUNTER,
    unit="batches",
    description="Batches that producers began to send.",
    tags=PRODUCER_TAGS,
)
PRODUCER_BYTES: Final = Metric(
    name="producer_bytes",
    kind=Kind.COUNTER,
    unit="bytes",
    description="Size of these batches, without retries.",
    tags=PRODUCER_TAGS,
)
PRODUCER_RETRIES: Final = Metric(
    name="producer_retries",
    kind=Kind.COUNTER,
    unit="batches",
    description="Times that a batch was sent again.",
    tags=PRODUCER_TAGS,
)
PRODUCER_ERRORS: Final = Metric(
    name="producer_errors",
    kind=Kind.COUNTER,
    unit="calls",
    description="Calls with a batch that ended with an error, by its code; most are retried.",
    tags=(*PRODUCER_TAGS, "error"),
)
PRODUCER_ACK_DURATION_MS: Final = Metric(
    name="producer_ack_duration_ms",
    kind=Kind.HISTOGRAM,
    unit="ms",
    description="Time from a batch's first record to its acknowledgement, `linger_ms` included.",
    tags=PRODUCER_TAGS,
    bounds=DURATION_BOUNDS_MS,
)
PRODUCER_BUFFERED_BYTES: Final = Metric(
    name="producer_buffered_bytes",
    unit="bytes",
    description="Bytes of records that producers hold until they are acknowledged.",
    tags=PRODUCER_TAGS,
    rests_at_zero=True,
)
PRODUCER_BUFFER_LIMIT_BYTES: Final = Metric(
    name="producer_buffer_limit_bytes",
    unit="bytes",
    description="How many they may hold: `buffer_memory`; beyond it `send` waits.",
    tags=PRODUCER_TAGS,
)
PRODUCER_BATCHES_IN_FLIGHT: Final = Metric(
    name="producer_batches_in_flight",
    unit="batches",
    description="Batches on their way to their leaders.",
    tags=PRODUCER_TAGS,
    rests_at_zero=True,
)
PRODUCER_TRANSACTIONS: Final = Metric(
    name="producer_transactions",
    kind=Kind.COUNTER,
    unit="transactions",
    description="Transactions of producers by their outcome: `committed` or `aborted`.",
    tags=(*PRODUCER_TAGS, "outcome"),
)
PRODUCER_COMMIT_DURATION_MS: Final = Metric(
    name="producer_commit_duration_ms",
    kind=Kind.HISTOGRAM,
    unit="ms",
    description="How long commits of producers took, the records that they waited for included.",
    tags=PRODUCER_TAGS,
    bounds=DURATION_BOUNDS_MS,
)
CONSUMER_RECORDS: Final = Metric(
    name="consumer_records",
    kind=Kind.COUNTER,
    unit="records",
    description="Records that polls of consumers took.",
    tags=CONSUMER_TAGS,
)
CONSUMER_BYTES: Final = Metric(
    name="consumer_bytes",
    kind=Kind.COUNTER,
    unit="bytes",
    description="Size of the batches that consumers fetched.",
    tags=CONSUMER_TAGS,
)
CONSUMER_FETCH_DURATION_MS: Final = Metric(
    name="consumer_fetch_duration_ms",
    kind=Kind.HISTOGRAM,
    unit="ms",
    description="How long fetches of consumers took, with the leader's wait for records.",
    tags=CONSUMER_TAGS,
    bounds=DURATION_BOUNDS_MS,
)
CONSUMER_FAILED_FETCHES: Final = Metric(
    name="consumer_failed_fetches",
    kind=Kind.COUNTER,
    unit="fetches",
    description="Fetches of consumers that were answered with an error.",
    tags=CONSUMER_TAGS,
)
CONSUMER_BUFFERED_BYTES: Final = Metric(
    name="consumer_buffered_bytes",
    unit="bytes",
    description="Bytes that consumers have fetched and polls have not taken.",
    tags=CONSUMER_TAGS,
    rests_at_zero=True,
)
CONSUMER_COMMITS: Final = Metric(
    name="consumer_commits",
    kind=Kind.COUNTER,
    unit="commits",
    description="Commits of consumers by their outcome: `committed` or `failed`.",
    tags=(*CONSUMER_TAGS, "outcome"),
)
CONSUMER_REBALANCES: Final = Metric(
    name="consumer_rebalances",
    kind=Kind.COUNTER,
    unit="rebalances",
    description="Generations of their groups that consumers joined.",
    tags=CONSUMER_TAGS,
)
CONSUMER_POLL_GAP_RATIO: Final = Metric(
    name="consumer_poll_gap_ratio",
    unit="ratio",
    description="Time without a poll of the group member that has not polled for longest, as a "
    "fraction of its `max_poll_interval_ms`; 0 in a poll and in `processing`.",
    tags=CONSUMER_TAGS,
)
QUEUE_RECORDS: Final = Metric(
    name="queue_records",
    kind=Kind.COUNTER,
    unit="records",
    description="What workers did with a queue's records: `taken`, `redelivered` of these, "
    "`accepted`, `released`, `rejected`, and `renewed` for locks.",
    tags=(*QUEUE_TAGS, "outcome"),
)
JOB_RECORDS: Final = Metric(
    name="job_records",
    kind=Kind.COUNTER,
    unit="records",
    description="Records of committed transactions of a job: `in`, `out`, and `left_out`.",
    tags=(*JOB_TAGS, "outcome"),
)
JOB_TRANSACTIONS: Final = Metric(
    name="job_transactions",
    kind=Kind.COUNTER,
    unit="transactions",
    description="Transactions of a job by their outcome: `committed` or `aborted`.",
    tags=(*JOB_TAGS, "outcome"),
)
JOB_FAILURES: Final = Metric(
    name="job_failures",
    kind=Kind.COUNTER,
    unit="failures",
    description="Failures of a job's function, or of its output.",
    tags=JOB_TAGS,
)
REFUSED_CALLS: Final = Metric(
    name="refused_calls",
    kind=Kind.COUNTER,
    unit="calls",
    description="Calls that were refused, all or in part, for what their caller may not do.",
    tags=(*ACTOR_TAGS, "method", "error"),
)
AUDIT_LINES_LEFT_OUT: Final = Metric(
    name="audit_lines_left_out",
    kind=Kind.COUNTER,
    unit="lines",
    description="Lines that the audit log lacks: too many at once, or its disk failed.",
    tags=ACTOR_TAGS,
)
CLIENT_OUTAGES: Final = Metric(
    name="client_outages",
    kind=Kind.COUNTER,
    unit="outages",
    description="Times that a client reported no answer for 5 s.",
    tags=("what",),
)
THROTTLED_CALLS: Final = Metric(
    name="throttled_calls",
    kind=Kind.COUNTER,
    unit="calls",
    description="Calls of principals over a rate limit: `ray`, programs of Ray's, or `user`.",
    tags=PRINCIPAL_TAGS,
)
THROTTLE_MS: Final = Metric(
    name="throttle_ms",
    kind=Kind.COUNTER,
    unit="ms",
    description="How long these calls made their callers wait before the next.",
    tags=PRINCIPAL_TAGS,
)
METRICS: Final = (
    REPLICA_OFFLINE,
    DISK_REFUSING,
    LEADER_EPOCH,
    APPENDED_BYTES,
    APPENDED_RECORDS,
    FETCHED_BYTES,
    FETCHED_RECORDS,
    LOG_SIZE_BYTES,
    SEGMENT_COUNT,
    HIGH_WATERMARK_LAG,
    LAST_STABLE_OFFSET,
    LAST_STABLE_OFFSET_LAG,
    OPEN_TRANSACTION_COUNT,
    OLDEST_OPEN_TRANSACTION_AGE_MS,
    LATE_TRANSACTION_COUNT,
    PRODUCER_ID_COUNT,
    DAMAGED_PLACE_COUNT,
    CUT_BYTES,
    UNDER_REPLICATED,
    UNDER_MIN_ISR,
    REPLICATION_LAG,
    REPLICATION_LAG_MS,
    ISR_SHRINKS,
    ISR_EXPANDS,
    PUSHED_BYTES,
    REPLICATED_BYTES,
    FOLLOWER_CUTS,
    FOLLOWER_FETCHES,
    OFFLINE_PARTITION_COUNT,
    REASSIGNMENT_COUNT,
    LEADER_ELECTIONS,
    BROKER_FENCED,
    VOTER_COUNT,
    LAGGING_VOTER_COUNT,
    VOTER_LAG,
    VOTER_LAG_MS,
    TRANSACTIONAL_ID_COUNT,
    ACTIVE_TRANSACTIONAL_ID_COUNT,
    OLDEST_PREPARED_TRANSACTION_AGE_MS,
    TRANSACTION_END_DURATION_MS,
    SYNC_DURATION_MS,
    DISK_FREE_BYTES,
    DISK_SIZE_BYTES,
    OFFLINE_DIRECTORY,
    CERTIFICATE_EXPIRES_SECONDS,
    GATEWAY_NOT_SERVING,
    GATEWAY_CONNECTION_COUNT,
    CALLS,
    CALL_ERRORS,
    CALL_REQUEST_BYTES,
    CALL_REPLY_BYTES,
    CALL_DURATION_MS,
    REFUSED_CALLS,
    AUDIT_LINES_LEFT_OUT,
    CONSUMER_LAG,
    QUEUE_BACKLOG,
    QUEUE_OLDEST_UNFINISHED_MS,
    PRODUCER_RECORDS,
    PRODUCER_BATCHES,
    PRODUCER_BYTES,
    PRODUCER_RETRIES,
    PRODUCER_ERRORS,
    PRODUCER_ACK_DURATION_MS,
    PRODUCER_BUFFERED_BYTES,
    PRODUCER_BUFFER_LIMIT_BYTES,
    PRODUCER_BATCHES_IN_FLIGHT,
    PRODUCER_TRANSACTIONS,
    PRODUCER_COMMIT_DURATION_MS,
    CONSUMER_RECORDS,
    CONSUMER_BYTES,
    CONSUMER_FETCH_DURATION_MS,
    CONSUMER_FAILED_FETCHES,
    CONSUMER_BUFFERED_BYTES,
    CONSUMER_COMMITS,
    CONSUMER_REBALANCES,
    CONSUMER_POLL_GAP_RATIO,
    QUEUE_RECORDS,
    JOB_RECORDS,
    JOB_TRANSACTIONS,
    JOB_FAILURES,
    CLIENT_OUTAGES,
    THROTTLED_CALLS,
    THROTTLE_MS,
)


class MetricSink(Protocol):
    """Receives metric values; never raises and never waits."""

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Set a gauge; ``tags`` has a value for each tag of ``metric``."""
        ...

    def add(self, metric: Metric, amount: float, tags: Mapping[str, str]) -> None:
        """Add to a counter; nothing if ``amount`` is 0. From any thread."""
        ...


class NoMetrics:
    """A sink for processes without monitoring."""

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Do nothing."""

    def add(self, metric: Metric, amount: float, tags: Mapping[str, str]) -> None:
        """Do nothing."""


NO_METRICS: Final = NoMetrics()


class TransactionAges:
    """How long transactions of one partition have been seen open, by this process's clock.

    Bounded by the open transactions. If the clock steps back their age restarts.
    """

    def __init__(self, *, late_after_ms: int) -> None:
        self._late_after_ms = late_after_ms
        self._since_ms: dict[tuple[int, int], int] = {}
        self.oldest_ms = 0
        self.late_count = 0

    def observe(self, open_transactions: Mapping[int, int], now_ms: int) -> None:
        """Note the open transactions: first offset → producer id."""
        since_ms: dict[tuple[int, int], int] = {}
        for transaction in open_transactions.items():
            since_ms[transaction] = min(self._since_ms.get(transaction, now_ms), now_ms)
        self._since_ms = since_ms
        ages_ms = [now_ms - begun_ms for begun_ms in since_ms.values()]
        self.oldest_ms = max(ages_ms, default=0)
        self.late_count = sum(age_ms > self._late_after_ms for age_ms in ages_ms)


class Histogram:
    """The values of one series of ``metric`` observed since the last report."""

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
        """Number of observed values."""
        return sum(self._buckets)

    def observe(self, value: float) -> None:
        """Count ``value``, in the unit of the metric."""
        self._buckets[bisect_left(self._bounds, value)] += 1
        self._total += value

    def report(self, metrics: MetricSink, tags: Mapping[str, str]) -> None:
        """Report the observed values, if any, and reset."""
        report_buckets(self._metric, self._buckets, self._total, metrics, tags)
        self._begin()


def report_buckets(
    metric: Metric,
    buckets: Sequence[int],
    total: float,
    metrics: MetricSink,
    tags: Mapping[str, str],
) -> None:
    """Add values to a histogram: how many fell into each of its buckets, and their sum."""
    counts = list(accumulate(buckets))
    if not counts[-1]:
        return
    bucket_part, total_part, count_part = parts(metric)
    metrics.add(count_part, counts[-1], tags)
    metrics.add(total_part, total, tags)
    for le, amount in zip(_le(metric.bounds), counts, strict=True):
        metrics.add(bucket_part, amount, {**tags, "le": le})


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
