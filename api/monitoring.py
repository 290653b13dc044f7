"""The Grafana dashboard and the Prometheus alert rules, generated from the metrics.

Every metric is used through a *query*, so only existing metrics are named. The gauges of a
restarted process remain for some seconds, so a query takes the highest or lowest of several.
Counters remain too, and are summed as rates.

The *dashboard* has the format of Ray's own, so that Grafana loads both alike: Ray's variables
``datasource`` and ``SessionName``, and one for topics. Its panels are one table, in the order in
which an operator looks at them, two per row; their ids follow that order. The *alerts* are what an
operator must be told without looking.

One file: two tables about the same metrics, by the same queries, and how each is written.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from oncelog.actors.process import metrics as m
from oncelog.actors.process.metrics import DIRECTORY_TAGS, REPLICA_OFFLINE, TAGS, Kind, Metric
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

# --- queries ----------------------------------------------------------------------------------

REPLICA: Final = TAGS
DIRECTORY: Final = DIRECTORY_TAGS
PARTITION: Final = TAGS[:2]
"""The tags of a partition: the replica with the highest value speaks for it."""

RATE_WINDOW: Final = "2m"
"""The window of a rate: long enough for many exports, 10 s apart, and scrapes."""


def highest(metric: Metric, *by: str, where: str = "") -> str:
    """A gauge's highest value for each combination of the tags ``by``."""
    return f"max by ({', '.join(by)}) ({_series(metric, where)})"


def lowest(metric: Metric, *by: str, where: str = "") -> str:
    """A gauge's lowest value for each combination of the tags ``by``."""
    return f"min by ({', '.join(by)}) ({_series(metric, where)})"


def rate(metric: Metric, *by: str, where: str = "", window: str = RATE_WINDOW) -> str:
    """Increase of a counter per second; for a histogram, the number of values per second."""
    return f"sum by ({', '.join(by)}) (rate({_series(metric, where)}[{window}]))"


def quantile(share: float, metric: Metric, *by: str, where: str = "") -> str:
    """The value below which the fraction ``share`` of a histogram's values lies."""
    bucket = f"{metric.exported_names[0]}{_selector(where)}"
    buckets = f"sum by ({', '.join((*by, 'le'))}) (rate({bucket}[{RATE_WINDOW}]))"
    return f"histogram_quantile({share}, {buckets})"


def highest_lately(metric: Metric, *by: str, where: str = "", window: str) -> str:
    """A gauge's highest value in the last ``window``, even if the gauge is gone now."""
    return f"max by ({', '.join(by)}) (max_over_time({_series(metric, where)}[{window}]))"


def _series(metric: Metric, where: str) -> str:
    """The series of a gauge or counter, or of a histogram's count."""
    is_histogram = metric.kind is Kind.HISTOGRAM
    return metric.exported_names[2 if is_histogram else 0] + _selector(where)


def _selector(where: str) -> str:
    return f"{{{where}}}" if where else ""


# --- panels -----------------------------------------------------------------------------------

SESSION: Final = 'SessionName=~"$SessionName"'
TOPIC: Final = f'{SESSION}, topic=~"$Topic"'
CALLEE: Final = f'{SESSION}, side="callee"'
CALLER: Final = f'{SESSION}, side="caller"'
OF_KAFKA: Final = f'{SESSION}, side="kafka"'

REPLICA_LEGEND: Final = "{{topic}}-{{partition}} at broker {{broker}}"
PARTITION_LEGEND: Final = "{{topic}}-{{partition}}"
BROKER_LEGEND: Final = "broker {{broker}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its queries with a legend each. ``unit`` is one of Grafana's."""

    title: str
    description: str
    unit: str
    targets: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def _per_partition(title: str, metric: Metric, unit: str = "short") -> Panel:
    query = highest(metric, *PARTITION, where=TOPIC)
    return Panel(title, metric.description, unit, ((query, PARTITION_LEGEND),))


def _by_topic(title: str, metric: Metric, unit: str) -> Panel:
    query = rate(metric, "topic", where=TOPIC)
    return Panel(title, metric.description, unit, ((query, "{{topic}}"),))


def _by_broker(title: str, metric: Metric, unit: str = "short") -> Panel:
    """A gauge of the controller."""
    query = highest(metric, "broker", where=SESSION)
    return Panel(title, metric.description, unit, ((query, BROKER_LEGEND),))


def _per_broker(title: str, unit: str, *metrics: tuple[Metric, str]) -> Panel:
    """Counters, summed over the partitions of each broker."""
    targets = tuple(
        (rate(metric, "broker", where=SESSION), f"{name}{BROKER_LEGEND}")
        for metric, name in metrics
    )
    return Panel(title, " ".join(metric.description for metric, _ in metrics), unit, targets)


def _by_tags(title: str, unit: str, by: tuple[str, ...], *metrics: Metric) -> Panel:
    """Counters as rates, or the highest values of gauges, for each combination of tags."""
    tags = " ".join(f"{{{{{tag}}}}}" for tag in by)
    targets = tuple(
        (
            (highest if metric.kind is Kind.GAUGE else rate)(metric, *by, where=SESSION),
            f"{tags} {metric.name}" if len(metrics) > 1 else tags,
        )
        for metric in metrics
    )
    return Panel(title, " ".join(metric.description for metric in metrics), unit, targets)


def _duration(title: str, metric: Metric, *by: str, where: str = SESSION) -> Panel:
    legend = " ".join(f"{{{{{tag}}}}}" for tag in by)
    targets = tuple(
        (quantile(share, metric, *by, where=where), f"{name} {legend}")
        for share, name in ((0.5, "median"), (0.99, "99 %"))
    )
    return Panel(title, metric.description, "ms", targets)


_EPOCH: Final = highest(m.LEADER_EPOCH, *PARTITION, where=TOPIC)

HEALTH: Final = Row(
    "Health",
    (
        Panel(
            "Offline replicas",
            m.REPLICA_OFFLINE.description,
            "short",
            ((f"{highest(m.REPLICA_OFFLINE, *REPLICA, where=TOPIC)} > 0", REPLICA_LEGEND),),
        ),
        Panel(
            "Replicas whose disk refuses",
            m.DISK_REFUSING.description,
            "short",
            ((highest(m.DISK_REFUSING, *REPLICA, where=TOPIC), REPLICA_LEGEND),),
        ),
        Panel(
            "Damaged places",
            m.DAMAGED_PLACE_COUNT.description,
            "short",
            ((f"{highest(m.DAMAGED_PLACE_COUNT, *REPLICA, where=TOPIC)} > 0", REPLICA_LEGEND),),
        ),
        Panel(
            "Disk left",
            m.DISK_FREE_BYTES.description,
            "bytes",
            (
                (
                    lowest(m.DISK_FREE_BYTES, *DIRECTORY, where=SESSION),
                    "broker {{broker}}, {{directory}}",
                ),
                (
                    highest(m.DISK_SIZE_BYTES, *DIRECTORY, where=SESSION),
                    "size, broker {{broker}}, {{directory}}",
                ),
            ),
        ),
        Panel(
            "Offline data directories",
            m.OFFLINE_DIRECTORY.description,
            "short",
            (
                (
                    highest(m.OFFLINE_DIRECTORY, *DIRECTORY, where=SESSION),
                    "broker {{broker}}, {{directory}}",
                ),
            ),
        ),
        Panel(
            "Until the certificate expires",
            m.CERTIFICATE_EXPIRES_SECONDS.description,
            "s",
            ((lowest(m.CERTIFICATE_EXPIRES_SECONDS, "broker", where=SESSION), BROKER_LEGEND),),
        ),
        Panel(
            "Errors of calls per second",
            m.CALL_ERRORS.description,
            "ops",
            ((rate(m.CALL_ERRORS, "method", "error", where=CALLER), "{{method}}: {{error}}"),),
        ),
        Panel(
            "Refused calls per second",
            f"{m.REFUSED_CALLS.description} {m.AUDIT_LINES_LEFT_OUT.description}",
            "ops",
            (
                (
                    rate(m.REFUSED_CALLS, "method", "error", where=SESSION),
                    "{{method}}: {{error}}",
                ),
                (
                    rate(m.AUDIT_LINES_LEFT_OUT, "actor", where=SESSION),
                    "not in the audit log of {{actor}}",
                ),
            ),
        ),
        _by_broker("Gateways without a port for clients of Kafka", m.GATEWAY_NOT_SERVING),
        _by_tags("Outages told by clients", "ops", ("what",), m.CLIENT_OUTAGES),
        _by_tags("Throttled calls per second", "ops", m.PRINCIPAL_TAGS, m.THROTTLED_CALLS),
        _by_tags("Throttling: ms of waiting per second", "ms", m.PRINCIPAL_TAGS, m.THROTTLE_MS),
        Panel(
            "Cut by the last start",
            m.CUT_BYTES.description,
            "bytes",
            ((f"{highest(m.CUT_BYTES, *REPLICA, where=TOPIC)} > 0", REPLICA_LEGEND),),
        ),
        Panel(
            "Elections",
            "By how much the leader epoch rose in ten minutes.",
            "short",
            ((f"{_EPOCH} - min_over_time(({_EPOCH})[10m:30s]) > 0", PARTITION_LEGEND),),
        ),
    ),
)

REPLICATION: Final = Row(
    "Replication",
    (
        _per_partition("Under-replicated partitions", m.UNDER_REPLICATED),
        _per_partition("Partitions under min_insync_replicas", m.UNDER_MIN_ISR),
        _by_broker("Partitions without a leader", m.OFFLINE_PARTITION_COUNT),
        _by_broker("Fenced brokers", m.BROKER_FENCED),
        _per_partition("Records that a follower lacks", m.REPLICATION_LAG),
        _per_partition("A follower is behind by", m.REPLICATION_LAG_MS, "ms"),
        _per_broker("Bytes copied in per second", "Bps", (m.REPLICATED_BYTES, "")),
        _per_broker("Bytes copied out per second", "Bps", (m.PUSHED_BYTES, "")),
        _per_broker(
            "Changes of the ISR per second",
            "ops",
            (m.ISR_SHRINKS, "lost, "),
            (m.ISR_EXPANDS, "gained, "),
        ),
        _per_broker("Logs cut by followers per second", "ops", (m.FOLLOWER_CUTS, "")),
        _per_broker("Fetches from followers per second", "ops", (m.FOLLOWER_FETCHES, "")),
        _per_broker(
            "Leaders elected per second", "ops", (m.LEADER_ELECTIONS, "by the controller at ")
        ),
        _by_broker("Partitions being moved", m.REASSIGNMENT_COUNT),
    ),
)

_METADATA: Final = f'{SESSION}, topic="{CLUSTER_METADATA_TOPIC}"'

CONTROLLER: Final = Row(
    "Controller",
    (
        Panel(
            "Voters of its log",
            f"{m.VOTER_COUNT.description} {m.LAGGING_VOTER_COUNT.description}",
            "short",
            (
                (highest(m.VOTER_COUNT, "broker", where=SESSION), "all, as {{broker}} says"),
                (highest(m.LAGGING_VOTER_COUNT, "broker", where=SESSION), "behind"),
            ),
        ),
        Panel(
            "Epoch",
            "The epoch in which the controller leads its log, and the broker it runs on.",
            "short",
            ((highest(m.LEADER_EPOCH, "broker", where=_METADATA), BROKER_LEGEND),),
        ),
        _by_broker("Records that a voter lacks", m.VOTER_LAG),
        _by_broker("A voter is behind by", m.VOTER_LAG_MS, "ms"),
    ),
)

TRAFFIC: Final = Row(
    "Traffic",
    (
        _by_topic("Bytes in per second", m.APPENDED_BYTES, "Bps"),
        _by_topic("Records in per second", m.APPENDED_RECORDS, "ops"),
        _by_topic("Bytes out per second", m.FETCHED_BYTES, "Bps"),
        _by_topic("Records out per second", m.FETCHED_RECORDS, "ops"),
    ),
)

LATENCY: Final = Row(
    "Latency",
    (
        _duration("Produce", m.CALL_DURATION_MS, "side", where=f'{SESSION}, method="produce"'),
        _duration("Fetch", m.CALL_DURATION_MS, "side", where=f'{SESSION}, method="fetch"'),
        _duration("Commit and abort, by step", m.TRANSACTION_END_DURATION_MS, "step"),
        _duration(
            "Commit and abort, whole",
            m.CALL_DURATION_MS,
            "side",
            where=f'{SESSION}, method="end_txn"',
        ),
        _duration("Sync", m.SYNC_DURATION_MS, "broker"),
        Panel(
            "Syncs per second",
            m.SYNC_DURATION_MS.description,
            "ops",
            ((rate(m.SYNC_DURATION_MS, "broker", where=SESSION), "broker {{broker}}"),),
        ),
    ),
)

TRANSACTIONS: Final = Row(
    "Transactions",
    (
        _per_partition("Open transactions", m.OPEN_TRANSACTION_COUNT),
        _per_partition("Oldest open transaction", m.OLDEST_OPEN_TRANSACTION_AGE_MS, "ms"),
        _per_partition("Late transactions", m.LATE_TRANSACTION_COUNT),
        _per_partition("Oldest prepared transaction", m.OLDEST_PREPARED_TRANSACTION_AGE_MS, "ms"),
        _per_partition("Records held back", m.LAST_STABLE_OFFSET_LAG),
        Panel(
            "Transactional ids",
            m.TRANSACTIONAL_ID_COUNT.description,
            "short",
            (
                (f"sum({highest(m.TRANSACTIONAL_ID_COUNT, *PARTITION, where=SESSION)})", "known"),
                (
                    f"sum({highest(m.ACTIVE_TRANSACTIONAL_ID_COUNT, *PARTITION, where=SESSION)})",
                    "active",
                ),
            ),
        ),
        _per_partition("Producers", m.PRODUCER_ID_COUNT),
    ),
)

LOGS: Final = Row(
    "Logs",
    (
        _per_partition("Size", m.LOG_SIZE_BYTES, "bytes"),
        _per_partition("Segments", m.SEGMENT_COUNT),
        _per_partition("Last stable offset", m.LAST_STABLE_OFFSET),
        _per_partition("Records not committed", m.HIGH_WATERMARK_LAG),
        _per_partition("Leader epoch", m.LEADER_EPOCH),
        Panel(
            "Consumer lag",
            m.CONSUMER_LAG.description,
            "short",
            (
                (
                    highest(m.CONSUMER_LAG, *m.GROUP_TAGS, where=TOPIC),
                    "{{group}}: {{topic}}-{{partition}}",
                ),
            ),
        ),
        _by_tags("Backlog of queues", "short", m.QUEUE_TAGS, m.QUEUE_BACKLOG),
        _by_tags(
            "Oldest unfinished record of queues", "ms", m.QUEUE_TAGS, m.QUEUE_OLDEST_UNFINISHED_MS
        ),
    ),
)


_SENT: Final = (m.PRODUCER_BATCHES, m.PRODUCER_RETRIES)
_HELD: Final = (m.PRODUCER_BUFFERED_BYTES, m.PRODUCER_BUFFER_LIMIT_BYTES)
_PRODUCER: Final = m.PRODUCER_TAGS
_READER: Final = m.CONSUMER_TAGS

CLIENTS: Final = Row(
    "Clients",
    (
        _by_tags("Records sent per second", "ops", ("client", "outcome"), m.PRODUCER_RECORDS),
        _by_tags("Bytes sent per second", "Bps", _PRODUCER, m.PRODUCER_BYTES),
        _by_tags("Batches sent per second", "ops", _PRODUCER, *_SENT),
        _by_tags("Errors of producers per second", "ops", ("client", "error"), m.PRODUCER_ERRORS),
        _duration("Acknowledgement of a batch", m.PRODUCER_ACK_DURATION_MS, *_PRODUCER),
        _by_tags("Memory of producers", "bytes", _PRODUCER, *_HELD),
        _by_tags("Batches in flight", "short", _PRODUCER, m.PRODUCER_BATCHES_IN_FLIGHT),
        _by_tags("Transactions per second", "ops", ("client", "outcome"), m.PRODUCER_TRANSACTIONS),
        _duration("Commit, as producers see it", m.PRODUCER_COMMIT_DURATION_MS, *_PRODUCER),
        _by_tags("Records polled per second", "ops", _READER, m.CONSUMER_RECORDS),
        _by_tags("Bytes fetched per second", "Bps", _READER, m.CONSUMER_BYTES),
        _duration("Fetch, as consumers see it", m.CONSUMER_FETCH_DURATION_MS, *_READER),
        _by_tags("Failed fetches per second", "ops", _READER, m.CONSUMER_FAILED_FETCHES),
        _by_tags("Memory of consumers", "bytes", _READER, m.CONSUMER_BUFFERED_BYTES),
        _by_tags("Time without a poll", "percentunit", _READER, m.CONSUMER_POLL_GAP_RATIO),
        _by_tags("Commits per second", "ops", ("group", "outcome"), m.CONSUMER_COMMITS),
        _by_tags("Rebalances per second", "ops", ("group",), m.CONSUMER_REBALANCES),
        _by_tags("Records of queues per second", "ops", ("group", "outcome"), m.QUEUE_RECORDS),
        _by_tags("Records of jobs per second", "ops", ("group", "outcome"), m.JOB_RECORDS),
        _by_tags(
            "Transactions of jobs per second", "ops", ("group", "outcome"), m.JOB_TRANSACTIONS
        ),
        _by_tags("Failures of jobs per second", "ops", m.JOB_TAGS, m.JOB_FAILURES),
        _by_broker("Connections of clients of Kafka", m.GATEWAY_CONNECTION_COUNT),
    ),
)

CALLS: Final = Row(
    "Calls",
    (
        Panel(
            "Calls per second",
            m.CALLS.description,
            "ops",
            (
                (rate(m.CALLS, "method", where=CALLEE), "{{method}}"),
                (rate(m.CALLS, "method", where=OF_KAFKA), "clients of Kafka: {{method}}"),
            ),
        ),
        Panel(
            "99 % of calls took at most",
            m.CALL_DURATION_MS.description,
            "ms",
            ((quantile(0.99, m.CALL_DURATION_MS, "method", where=CALLEE), "{{method}}"),),
        ),
        Panel(
            "Requests",
            m.CALL_REQUEST_BYTES.description,
            "Bps",
            ((rate(m.CALL_REQUEST_BYTES, "method", where=CALLEE), "{{method}}"),),
        ),
        Panel(
            "Replies",
            m.CALL_REPLY_BYTES.description,
            "Bps",
            ((rate(m.CALL_REPLY_BYTES, "method", where=CALLEE), "{{method}}"),),
        ),
    ),
)

ROWS: Final = (
    *(HEALTH, REPLICATION, CONTROLLER, TRAFFIC, LATENCY, TRANSACTIONS, LOGS, CLIENTS, CALLS),
)


# --- dashboard --------------------------------------------------------------------------------

DASHBOARD_FILE: Final = "oncelog_grafana_dashboard.json"
DASHBOARD_UID: Final = "oncelogDashboard"
"""Part of the dashboard's URL in Grafana."""

COLUMNS: Final = 24
"""The width of Grafana's grid."""

PANEL_WIDTH: Final = 12
PANEL_HEIGHT: Final = 8
HEADING_HEIGHT: Final = 1

DATA_SOURCE: Final = "${datasource}"


def dashboard_json() -> str:
    """The whole dashboard, as a file for Grafana to load."""
    return json.dumps(_dashboard(), indent=2) + "\n"


def _dashboard() -> dict[str, Any]:
    series = REPLICA_OFFLINE.exported_names[0]
    return {
        "annotations": {"list": []},
        "editable": True,
        "graphTooltip": 1,
        "links": [],
        "panels": list(_panels()),
        "rayMeta": ["supportsFullGrafanaView"],
        "refresh": "10s",
        "schemaVersion": 27,
        "style": "dark",
        "tags": ["oncelog"],
        "templating": {
            "list": [
                {
                    "description": "The Prometheus data source.",
                    "hide": 2,
                    "name": "datasource",
                    "query": "prometheus",
                    "refresh": 1,
                    "type": "datasource",
                },
                _variable("SessionName", f"label_values({series}, SessionName)", is_multi=False),
                _variable("Topic", f"label_values({series}{{{SESSION}}}, topic)", is_multi=True),
            ]
        },
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "title": "oncelog",
        "uid": DASHBOARD_UID,
        "version": 1,
    }


def _variable(name: str, query: str, *, is_multi: bool) -> dict[str, Any]:
    """A variable above the panels with the values of a label; all are selected at first."""
    return {
        "allValue": ".+",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": DATA_SOURCE,
        "definition": query,
        "hide": 0,
        "includeAll": True,
        "multi": is_multi,
        "name": name,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "refresh": 2,
        "sort": 1,
        "type": "query",
    }


def _panels() -> Iterator[dict[str, Any]]:
    ids = itertools.count(1)
    top = 0
    for row in ROWS:
        yield _heading(row, next(ids), top)
        top += HEADING_HEIGHT
        for number, panel in enumerate(row.panels):
            place = {
                "h": PANEL_HEIGHT,
                "w": PANEL_WIDTH,
                "x": number * PANEL_WIDTH % COLUMNS,
                "y": top + number * PANEL_WIDTH // COLUMNS * PANEL_HEIGHT,
            }
            yield _panel(panel, next(ids), place)
        top += -(-len(row.panels) * PANEL_WIDTH // COLUMNS) * PANEL_HEIGHT


def _heading(row: Row, panel_id: int, top: int) -> dict[str, Any]:
    return {
        "collapsed": False,
        "gridPos": {"h": HEADING_HEIGHT, "w": COLUMNS, "x": 0, "y": top},
        "id": panel_id,
        "panels": [],
        "title": row.title,
        "type": "row",
    }


def _panel(panel: Panel, panel_id: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "datasource": DATA_SOURCE,
        "description": panel.description,
        "fieldConfig": {
            "defaults": {
                "custom": {"fillOpacity": 10, "lineWidth": 1, "showPoints": "auto"},
                "min": 0,
                "unit": panel.unit,
            },
            "overrides": [],
        },
        "gridPos": place,
        "id": panel_id,
        "options": {
            "legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"expr": expression, "legendFormat": legend, "refId": letter}
            for letter, (expression, legend) in zip("ABCDEFGH", panel.targets, strict=False)
        ],
        "title": panel.title,
        "type": "timeseries",
    }


# --- alerts -----------------------------------------------------------------------------------

ALERTS_FILE: Final = "oncelog_alerts.yml"

DISK_FREE_MIN: Final = 0.1
"""The fraction of a disk that should be free."""

FAILED_CALLS_MAX: Final = 0.05
"""The fraction of a method's calls that may fail."""

REFUSED_CALLS_MAX: Final = 1
"""Refused calls of a method per second, over five minutes: a wrong ACL, or somebody who probes."""
PREPARED_MS_MAX: Final = 300_000
BUFFER_USE_MAX: Final = 0.9
"""The fraction of ``buffer_memory`` that may be full for minutes."""

CERTIFICATE_WARNING_S: Final = 30 * 86_400
CERTIFICATE_CRITICAL_S: Final = 7 * 86_400
"""How long a certificate should still be valid."""

VOTER_LAG_MAX_MS: Final = 10_000
"""How long a voter may lack a part of the controller's log."""

FAILURES: Final = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Error codes that are not normal if they persist."""

PARTITION_NAME: Final = "{{ $labels.topic }}-{{ $labels.partition }}"
REPLICA_NAME: Final = f"{PARTITION_NAME} at broker {{{{ $labels.broker }}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule: alert with ``summary`` once ``expression`` has held for ``lasts``."""

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    advice: str


_FAILED_RECORDS: Final = 'outcome="failed"'
_LEFT_OUT: Final = 'outcome="left_out"'


def _stable_lag() -> str:
    return highest(m.LAST_STABLE_OFFSET_LAG, *PARTITION)


def _expires_within(seconds: int) -> str:
    return f"{lowest(m.CERTIFICATE_EXPIRES_SECONDS, 'broker')} < {seconds}"


def _failed_calls() -> str:
    codes = "|".join(code.name for code in FAILURES)
    failed = rate(m.CALL_ERRORS, "method", where=f'side="caller", error=~"{codes}"', window="5m")
    made = rate(m.CALLS, "method", where='side="caller"', window="5m")
    return f"{failed} / {made} > {FAILED_CALLS_MAX}"


def _silent(metric: Metric, *by: str, where: str = "") -> str:
    before = highest_lately(metric, *by, where=where, window="1h")
    return f"{before} unless {highest(metric, *by, where=where)}"


ALERTS: Final = (
    Alert(
        name="OncelogReplicaOffline",
        expression=f"{highest(m.REPLICA_OFFLINE, *REPLICA)} > 0",
        lasts="1m",
        severity="critical",
        summary=f"{REPLICA_NAME} is offline",
        advice="`oncelog status` tells why; see OPERATIONS, A disk that failed.",
    ),
    Alert(
        name="OncelogDiskRefuses",
        expression=f"{highest(m.DISK_REFUSING, *REPLICA)} > 0",
        lasts="30s",
        severity="critical",
        summary=f"{REPLICA_NAME} cannot append: its disk refuses",
        advice="Make room on it: an in-sync replica leads meanwhile; see OPERATIONS, A full disk.",
    ),
    Alert(
        name="OncelogReplicaSilent",
        expression=_silent(m.REPLICA_OFFLINE, *REPLICA, where=f'topic!="{CLUSTER_METADATA_TOPIC}"'),
        lasts="2m",
        severity="warning",
        summary=f"{REPLICA_NAME} has stopped reporting",
        advice="Its process is gone or hangs, or its topic was deleted: see `oncelog status`.",
    ),
    Alert(
        name="OncelogControllerSilent",
        # On any broker: the controller moves when a node dies.
        expression=_silent(
            m.REPLICA_OFFLINE, *PARTITION, where=f'topic="{CLUSTER_METADATA_TOPIC}"'
        ),
        lasts="1m",
        severity="critical",
        summary="No controller reports",
        advice="No leader is elected until two voters' nodes are up; OPERATIONS, Replication.",
    ),
    Alert(
        name="OncelogVoterBehind",
        expression=f"{highest(m.VOTER_LAG_MS, 'broker')} > {VOTER_LAG_MAX_MS}",
        lasts="1m",
        severity="warning",
        summary="Broker {{ $labels.broker }} lacks a part of the controller's log",
        advice="If another voter were lost, nothing could be decided: bring this broker back.",
    ),
    Alert(
        name="OncelogOfflinePartition",
        expression=f"{highest(m.OFFLINE_PARTITION_COUNT, 'broker')} > 0",
        lasts="1m",
        severity="critical",
        summary="{{ $value }} partitions have no leader",
        advice="Their last in-sync replica is down: bring its broker back; `oncelog status`.",
    ),
    Alert(
        name="OncelogUnderMinIsr",
        expression=f"{highest(m.UNDER_MIN_ISR, *PARTITION)} > 0",
        lasts="1m",
        severity="critical",
        summary=f"{PARTITION_NAME} takes no writes with acks=all",
        advice="Too few replicas are in sync: see OPERATIONS, Replication.",
    ),
    Alert(
        name="OncelogUnderReplicated",
        expression=f"{highest(m.UNDER_REPLICATED, *PARTITION)} > 0",
        lasts="5m",
        severity="warning",
        summary=f"Not all replicas of {PARTITION_NAME} are in sync",
        advice="A broker is down or slow, or a new replica still copies: see `oncelog status`.",
    ),
    Alert(
        name="OncelogBrokerFenced",
        expression=f"{highest(m.BROKER_FENCED, 'broker')} > 0",
        lasts="5m",
        severity="warning",
        summary="Broker {{ $labels.broker }} is fenced",
        advice="Its node is down, hangs or is cut off: it leads nothing until heartbeats return.",
    ),
    Alert(
        name="OncelogGatewayNotServing",
        expression=f"{highest(m.GATEWAY_NOT_SERVING, 'broker')} > 0",
        lasts="1m",
        severity="warning",
        summary="Clients of Kafka cannot connect to broker {{ $labels.broker }}",
        advice="`oncelog status` tells why; they can use the other brokers.",
    ),
    Alert(
        name="OncelogGatewaySilent",
        expression=_silent(m.GATEWAY_NOT_SERVING, "broker"),
        lasts="2m",
        severity="warning",
        summary="The gateway of broker {{ $labels.broker }} has stopped reporting",
        advice="Its process is gone or hangs, or its node is: see `oncelog status`.",
    ),
    Alert(
        name="OncelogLateTransaction",
        expression=f"{highest(m.LATE_TRANSACTION_COUNT, *PARTITION)} > 0",
        lasts="1m",
        severity="critical",
        summary=f"{PARTITION_NAME} has a transaction that does not end",
        advice=(
            "read_committed consumers stop there. It is a prepared one (`oncelog transactions list "
            "--state Prepared`), or was left behind (`oncelog transactions find-hanging`)."
        ),
    ),
    Alert(
        name="OncelogPreparedTransaction",
        expression=(
            f"{highest(m.OLDEST_PREPARED_TRANSACTION_AGE_MS, *PARTITION)} > {PREPARED_MS_MAX}"
        ),
        lasts="1m",
        severity="warning",
        summary=f"A prepared transaction of {PARTITION_NAME} has not been ended",
        advice=(
            "It holds read_committed consumers back until its program, or `oncelog transactions "
            "complete`, ends it: `oncelog transactions list --state Prepared`."
        ),
    ),
    Alert(
        name="OncelogLastStableOffsetLagGrows",
        expression=f"{_stable_lag()} > 0 and deriv(({_stable_lag()})[10m:1m]) > 0",
        lasts="15m",
        severity="warning",
        summary=f"{PARTITION_NAME} holds back more and more records",
        advice="A transaction stays open: `oncelog transactions list --state Ongoing`.",
    ),
    Alert(
        name="OncelogDamagedPlace",
        expression=f"{highest(m.DAMAGED_PLACE_COUNT, *REPLICA)} > 0",
        lasts="0m",
        severity="critical",
        summary=f"Records of {PARTITION_NAME} cannot be read",
        advice="`oncelog status` tells the offset; see OPERATIONS, Records that cannot be read.",
    ),
    Alert(
        name="OncelogDiskNearlyFull",
        expression=(
            f"{lowest(m.DISK_FREE_BYTES, *DIRECTORY)} / {highest(m.DISK_SIZE_BYTES, *DIRECTORY)} "
            f"< {DISK_FREE_MIN}"
        ),
        lasts="5m",
        severity="warning",
        summary="The disk of {{ $labels.directory }} of broker {{ $labels.broker }} is nearly full",
        advice="Make room or shorten retention: a full disk refuses every write.",
    ),
    Alert(
        name="OncelogOfflineDirectory",
        expression=f"{highest(m.OFFLINE_DIRECTORY, *DIRECTORY)} > 0",
        lasts="1m",
        severity="critical",
        summary="Broker {{ $labels.broker }} cannot use {{ $labels.directory }}",
        advice="Its replicas there are offline; see OPERATIONS, Several disks.",
    ),
    Alert(
        name="OncelogCertificateExpires",
        expression=_expires_within(CERTIFICATE_WARNING_S),
        lasts="1h",
        severity="warning",
        summary="The certificate of broker {{ $labels.broker }} expires within 30 days",
        advice="Renew its files, no restart is needed; see OPERATIONS, Certificates.",
    ),
    Alert(
        name="OncelogCertificateExpiresSoon",
        expression=_expires_within(CERTIFICATE_CRITICAL_S),
        lasts="10m",
        severity="critical",
        summary="The certificate of broker {{ $labels.broker }} expires within 7 days",
        advice="Nobody can connect after that: renew its files; see OPERATIONS, Certificates.",
    ),
    Alert(
        name="OncelogCallErrors",
        expression=_failed_calls(),
        lasts="10m",
        severity="warning",
        summary="Calls of {{ $labels.method }} fail",
        advice="See the codes on the dashboard, and `oncelog status`.",
    ),
    Alert(
        name="OncelogRefusedCalls",
        expression=(
            f"{rate(m.REFUSED_CALLS, 'method', 'error', window='5m')} > {REFUSED_CALLS_MAX}"
        ),
        lasts="1m",
        severity="warning",
        summary="Many calls of {{ $labels.method }} are refused: {{ $labels.error }}",
        advice="The audit log says whose and to what; see OPERATIONS, The audit log.",
    ),
    Alert(
        name="OncelogRecordsNotDelivered",
        expression=(
            f"{rate(m.PRODUCER_RECORDS, 'client', where=_FAILED_RECORDS, window='5m')} > 0"
        ),
        lasts="1m",
        severity="warning",
        summary="Records of the producer {{ $labels.client }} fail",
        advice="Its futures, `flush` and its log say why; the dashboard has the codes of errors.",
    ),
    Alert(
        name="OncelogProducerMemoryFull",
        expression=(
            f"{highest(m.PRODUCER_BUFFERED_BYTES, 'client')} / "
            f"{highest(m.PRODUCER_BUFFER_LIMIT_BYTES, 'client')} > {BUFFER_USE_MAX}"
        ),
        lasts="5m",
        severity="warning",
        summary="The producer {{ $labels.client }} sends faster than it gets acknowledgements",
        advice="`send` waits. Look for a slow leader (Sync, Produce), or raise `buffer_memory`.",
    ),
    Alert(
        name="OncelogConsumerDoesNotPoll",
        # After its ``max_poll_interval_ms`` a member has lost its partitions.
        expression=f"{highest(m.CONSUMER_POLL_GAP_RATIO, *m.CONSUMER_TAGS)} > 1",
        lasts="1m",
        severity="warning",
        summary="A consumer {{ $labels.client }} of group {{ $labels.group }} has stopped polling",
        advice="Its program hangs, or works for longer than `max_poll_interval_ms` outside of "
        "`processing`; its partitions go to other members.",
    ),
    Alert(
        name="OncelogJobLeavesOut",
        expression=f"{rate(m.JOB_RECORDS, 'group', where=_LEFT_OUT, window='5m')} > 0",
        lasts="0m",
        severity="warning",
        summary="The job {{ $labels.group }} leaves out records",
        advice="`oncelog jobs describe` counts them; dead letters say which, and why.",
    ),
)


def alerts_yaml() -> str:
    """The rules, as a file for Prometheus's ``rule_files``."""
    lines = ["groups:", "  - name: oncelog", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.lasts}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.advice)}",
        ]
    return "\n".join(lines) + "\n"
