"""Alert rules for Prometheus: what an operator should be told without looking."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from oncelog.actors.process import metrics as m
from oncelog.api.monitoring.queries import (
    DIRECTORY,
    PARTITION,
    REPLICA,
    highest,
    highest_lately,
    lowest,
    rate,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

ALERTS_FILE: Final = "oncelog_alerts.yml"

DISK_FREE_MIN: Final = 0.1
"""The part of a disk that should be free."""

FAILED_CALLS_MAX: Final = 0.05
"""The part of the calls of a method that may fail."""

VOTER_LAG_MAX_MS: Final = 10_000
"""For how long a voter may lack a part of the controller's log."""

FAILURES: Final = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Codes that are no part of normal operation if they last."""

PARTITION_NAME: Final = "{{ $labels.topic }}-{{ $labels.partition }}"
REPLICA_NAME: Final = f"{PARTITION_NAME} at broker {{{{ $labels.broker }}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule: tell ``summary`` once ``expression`` has had an answer for so long."""

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    advice: str


def _stable_lag() -> str:
    return highest(m.LAST_STABLE_OFFSET_LAG, *PARTITION)


def _failed_calls() -> str:
    codes = "|".join(code.name for code in FAILURES)
    failed = rate(m.CALL_ERRORS, "method", where=f'side="caller", error=~"{codes}"', window="5m")
    made = rate(m.CALLS, "method", where='side="caller"', window="5m")
    return f"{failed} / {made} > {FAILED_CALLS_MAX}"


def _silent(*by: str, where: str) -> str:
    before = highest_lately(m.REPLICA_OFFLINE, *by, where=where, window="1h")
    return f"{before} unless {highest(m.REPLICA_OFFLINE, *by, where=where)}"


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
        advice="Make room on it: others in sync lead meanwhile; see OPERATIONS, A full disk.",
    ),
    Alert(
        name="OncelogReplicaSilent",
        expression=_silent(*REPLICA, where=f'topic!="{CLUSTER_METADATA_TOPIC}"'),
        lasts="2m",
        severity="warning",
        summary=f"{REPLICA_NAME} reports no more",
        advice="Its process is gone or hangs, or its topic was deleted: see `oncelog status`.",
    ),
    Alert(
        name="OncelogControllerSilent",
        # On whichever broker it is: it moves when a node dies.
        expression=_silent(*PARTITION, where=f'topic="{CLUSTER_METADATA_TOPIC}"'),
        lasts="1m",
        severity="critical",
        summary="No controller reports",
        advice="Nobody is elected meanwhile: bring two voters' nodes up; OPERATIONS, Replication.",
    ),
    Alert(
        name="OncelogVoterBehind",
        expression=f"{highest(m.VOTER_LAG_MS, 'broker')} > {VOTER_LAG_MAX_MS}",
        lasts="1m",
        severity="warning",
        summary="Broker {{ $labels.broker }} lacks a part of the controller's log",
        advice="Were another voter lost, nothing could be decided: bring this broker back.",
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
        advice="Its node is down, hangs or is cut off: it leads nothing until it is heard again.",
    ),
    Alert(
        name="OncelogLateTransaction",
        expression=f"{highest(m.LATE_TRANSACTION_COUNT, *PARTITION)} > 0",
        lasts="1m",
        severity="critical",
        summary=f"{PARTITION_NAME} has a transaction that does not end",
        advice="Readers of committed records stop there: `oncelog transactions find-hanging`.",
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
        name="OncelogCallErrors",
        expression=_failed_calls(),
        lasts="10m",
        severity="warning",
        summary="Calls of {{ $labels.method }} fail",
        advice="See the codes on the dashboard, and `oncelog status`.",
    ),
)


def alerts_yaml() -> str:
    """The rules, as a file that the ``rule_files`` of Prometheus name."""
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
