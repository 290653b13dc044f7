"""The panels of the dashboard: one table, in the order in which an operator looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oncelog.actors.process import metrics as m
from oncelog.actors.process.metrics import Metric
from oncelog.api.monitoring.queries import (
    DIRECTORY,
    PARTITION,
    REPLICA,
    highest,
    lowest,
    quantile,
    rate,
)
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

SESSION: Final = 'SessionName=~"$SessionName"'
TOPIC: Final = f'{SESSION}, topic=~"$Topic"'
CALLEE: Final = f'{SESSION}, side="callee"'
CALLER: Final = f'{SESSION}, side="caller"'

REPLICA_LEGEND: Final = "{{topic}}-{{partition}} at broker {{broker}}"
PARTITION_LEGEND: Final = "{{topic}}-{{partition}}"
BROKER_LEGEND: Final = "broker {{broker}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: what is asked, with the legend of each answer. ``unit`` is one of Grafana's."""

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
    """A gauge of the controller's."""
    query = highest(metric, "broker", where=SESSION)
    return Panel(title, metric.description, unit, ((query, BROKER_LEGEND),))


def _per_broker(title: str, unit: str, *metrics: tuple[Metric, str]) -> Panel:
    """Counters, in sum over the partitions of each broker."""
    targets = tuple(
        (rate(metric, "broker", where=SESSION), f"{name}{BROKER_LEGEND}")
        for metric, name in metrics
    )
    return Panel(title, " ".join(metric.description for metric, _ in metrics), unit, targets)


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
            "Errors of calls per second",
            m.CALL_ERRORS.description,
            "ops",
            ((rate(m.CALL_ERRORS, "method", "error", where=CALLER), "{{method}}: {{error}}"),),
        ),
        Panel(
            "Outages told by clients",
            m.CLIENT_OUTAGES.description,
            "ops",
            ((rate(m.CLIENT_OUTAGES, "what", where=SESSION), "{{what}}"),),
        ),
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
            "In which the controller leads its log, and on which broker it runs.",
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
    ),
)

CALLS: Final = Row(
    "Calls",
    (
        Panel(
            "Calls per second",
            m.CALLS.description,
            "ops",
            ((rate(m.CALLS, "method", where=CALLEE), "{{method}}"),),
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

ROWS: Final = (HEALTH, REPLICATION, CONTROLLER, TRAFFIC, LATENCY, TRANSACTIONS, LOGS, CALLS)
