"""``oncelog status``: asks every actor of the log, and shows what they report."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from oncelog.actors.interfaces import BROKER_ACTORS, CONTROLLER_ACTOR, NAMESPACE, Transport
from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    MetadataRequest,
    VoterMetadata,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.actors.protocol.messages.quorum import DescribeVoterReply, DescribeVoterRequest
from oncelog.api.cli.conditions import ActorStatus, ClusterStatus, Finding
from oncelog.api.cli.connect import find, quiet_libraries
from oncelog.api.cli.terminal import (
    STATUS_ERROR,
    STATUS_NOT_SERVED,
    CliError,
    report,
    say,
    size_text,
    table,
)
from oncelog.api.session import connection
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, TopicPartition

CALL_TIMEOUT_MS: Final = 5_000

_HEADINGS: Final = (
    "topic",
    "partition",
    "epoch",
    "log start",
    "last stable",
    "high watermark",
    "log end",
    "size",
    "producers",
    "open txns",
    "late txns",
)


class StatusError(CliError):
    """The cluster is not all well; its exit status tells whether everything is served."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding), finding.condition.advice)
        self.status = STATUS_ERROR if finding.condition.is_served else STATUS_NOT_SERVED


class NoClusterError(CliError):
    """There is nothing to ask: nothing is served."""

    status = STATUS_NOT_SERVED


# --- asking -----------------------------------------------------------------------------------


async def collect(
    transport: Transport,
    *,
    address: str,
    dashboard_url: str,
    codec: str,
    broker_names: Callable[[], Iterable[str]] = tuple,
) -> ClusterStatus:
    """Ask the controller which actors there are, then all of them at once for their status.

    Without its answer ``broker_names``, Ray's names of the brokers' actors, are asked who votes.
    """
    from oncelog.actors.interfaces import actor_of, address_of, holder_of, placements_of
    from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR

    metadata = await transport.call(CONTROLLER_ACTOR, MetadataRequest(), timeout_ms=CALL_TIMEOUT_MS)
    own_place = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
    places: list[tuple[str, str, TopicPartition, int | None]] = [
        (CONTROLLER_ACTOR, CONTROLLER_ACTOR, own_place, None)
    ]
    for topic in metadata.topics:
        for partition in topic.partitions:
            for placement in placements_of(topic, partition):
                tp, _, broker_id, host = placement
                held = f" in {holder_of(placement)}" if host != OWN_ACTOR else ""
                name = actor_of(tp, broker_id) + held
                places.append((address_of(placement), name, tp, broker_id))
    is_lost = metadata.error is not ErrorCode.NONE
    replies, voters = await asyncio.gather(
        asyncio.gather(
            *(
                transport.call(address, DescribeReplicaRequest(), timeout_ms=CALL_TIMEOUT_MS)
                for address, _, _, _ in places
            )
        ),
        _ask_voters(transport, broker_names() if is_lost else ()),
    )
    return ClusterStatus(
        address=address,
        dashboard_url=dashboard_url,
        codec=codec,
        metadata=metadata,
        actors=tuple(
            ActorStatus(name=name, topic_partition=tp, broker_id=broker_id, reply=reply)
            for (_, name, tp, broker_id), reply in zip(places, replies, strict=True)
        ),
        voters=voters,
    )


async def _ask_voters(
    transport: Transport, names: Iterable[str]
) -> dict[int, DescribeVoterReply | None]:
    asked = {int(name.removeprefix(BROKER_ACTORS)): name for name in names}
    replies = await asyncio.gather(
        *(
            transport.call(name, DescribeVoterRequest(), timeout_ms=CALL_TIMEOUT_MS)
            for name in asked.values()
        )
    )
    return {
        number: reply if reply.error is ErrorCode.NONE else None
        for number, reply in sorted(zip(asked, replies, strict=True))
    }


def status(args: argparse.Namespace) -> int:
    """Show the cluster; the exit status: 0 all is well, 1 degraded, 3 something is not served."""
    try:
        found = find(args)
    except CliError as error:
        raise NoClusterError(error.what, error.advice) from None
    quiet_libraries()
    connection.join_ray(found.address)
    if not connection.has_log():
        raise NoClusterError(
            f"the Ray cluster at {connection.ray_address()} runs no oncelog",
            f"start it there with `oncelog start --address {connection.ray_address()}`",
        )
    from oncelog.actors.launch.launch import running_actors
    from oncelog.actors.rpc.actor_transport import ActorTransport
    from oncelog.actors.rpc.ray_transport import RayTransport
    from oncelog.storage.records.codec import CODEC_BACKEND

    seen = asyncio.run(
        collect(
            ActorTransport(RayTransport()),
            address=connection.ray_address(),
            dashboard_url=connection.dashboard_url(),
            codec=CODEC_BACKEND,
            broker_names=lambda: (
                name for name in running_actors() if name.startswith(BROKER_ACTORS)
            ),
        )
    )
    if seen.metadata.error is ErrorCode.UNKNOWN_SERVER_ERROR:
        raise NoClusterError(
            f"the actor {CONTROLLER_ACTOR!r} in Ray namespace {NAMESPACE!r} is not oncelog's "
            f"({seen.metadata.detail})",
            "stop it, or use another Ray cluster",
        )
    say(json.dumps(as_json(seen), indent=2) if args.json else as_text(seen))
    findings = seen.findings
    return report(StatusError(findings[0])) if findings else 0


# --- showing ----------------------------------------------------------------------------------


def as_text(seen: ClusterStatus) -> str:
    """The status for people: the cluster, its partitions, its actors."""
    metadata = seen.metadata
    facts = (
        ("cluster", metadata.cluster_id or "unknown"),
        ("state", seen.state),
        ("data dir", ", ".join(seen.data_dirs) or "unknown"),
        ("address", seen.address),
        ("dashboard", seen.dashboard_url or "none"),
        ("version", metadata.version or "unknown"),
        ("codec", seen.codec),
        ("open ids", f"{seen.active_transactional_id_count:,}"),
        *_replication(seen),
        *_voters(seen),
    )
    actors = table(
        ("actor", "process", "state"),
        ((actor.name, str(_process(actor) or "-"), actor.state) for actor in seen.actors),
    )
    head = "\n".join(f"{name:<10} {value}" for name, value in facts)
    brokers = table(
        ("broker", "rack", "data dir", "state"),
        (
            (
                broker.broker_id,
                broker.rack or "-",
                broker.data_dir or "-",
                _broker_state(seen, broker),
            )
            for broker in metadata.brokers
        ),
    )
    findings = table(
        ("what is wrong", "what to do"),
        ((str(finding), finding.condition.advice) for finding in seen.findings),
    )
    parts = [head, table(_HEADINGS, map(_row, seen.shown_actors)), actors]
    parts += [brokers] if metadata.brokers else []
    parts += [findings] if seen.findings else []
    return "\n\n".join(parts)


def _replication(seen: ClusterStatus) -> list[tuple[str, str]]:
    """A line about replicas, unless there is one broker and nothing to tell."""
    under, leaderless = len(seen.under_replicated), len(seen.leaderless)
    if len(seen.metadata.brokers) <= 1 and not under and not leaderless:
        return []
    return [("replicas", f"{under:,} partitions under-replicated, {leaderless:,} without a leader")]


def _voters(seen: ClusterStatus) -> list[tuple[str, str]]:
    """Who has the controller's log, where several brokers have; see ADR 22."""
    voters = seen.metadata.voters
    if len(voters) <= 1:
        return []
    told = (f"{voter.broker_id} ({_voter_state(voter)})" for voter in voters)
    return [("voters", f"brokers {', '.join(told)}")]


def _voter_state(voter: VoterMetadata) -> str:
    if voter.is_controller:
        return "controller"
    return "behind" if voter.is_behind else "in sync"


def _broker_state(seen: ClusterStatus, broker: BrokerMetadata) -> str:
    if broker.problem:
        return f"takes no part: {broker.problem}"
    state = "alive" if broker.is_live else "gone: its node is not in the cluster"
    if broker.is_fenced:
        state = "fenced: it is not heard, or its node is gone"
    if not broker.is_draining:
        return state
    left = seen.replica_count(broker.broker_id)
    return f"{state}; draining, replicas left: {left:,}" if left else f"{state}; drained"


def _row(actor: ActorStatus) -> list[object]:
    reply = actor.reply
    values: list[object] = [
        reply.leader_epoch,
        reply.log_start_offset,
        reply.last_stable_offset,
        reply.high_watermark,
        reply.log_end_offset,
        size_text(reply.size_bytes),
        reply.producer_count,
        reply.open_transaction_count,
        reply.late_transaction_count,
    ]
    if reply.topic_partition is None:
        values = [None] * len(values)
    return [actor.topic_partition.topic, actor.topic_partition.partition, *values]


def as_json(seen: ClusterStatus) -> dict[str, Any]:
    """The status for programs; what an actor did not report is null."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for actor in seen.shown_actors:
        held = topics.setdefault(actor.topic_partition.topic, [])
        held.append({"partition": actor.topic_partition.partition, **_bounds(actor.reply)})
    return {
        "cluster_id": seen.metadata.cluster_id or None,
        "state": seen.state,
        "serving": seen.state != "not serving",
        "findings": [
            {
                "condition": finding.condition.name,
                "served": finding.condition.is_served,
                "places": list(finding.places),
                "advice": finding.condition.advice,
            }
            for finding in seen.findings
        ],
        "data_dirs": seen.data_dirs,
        "address": seen.address,
        "dashboard": seen.dashboard_url or None,
        "version": seen.metadata.version or None,
        "codec": seen.codec,
        "voters": [
            {"broker_id": voter.broker_id, "state": _voter_state(voter)}
            for voter in seen.metadata.voters
        ],
        "brokers": [
            {
                "broker_id": broker.broker_id,
                "data_dir": broker.data_dir or None,
                "rack": broker.rack or None,
                "state": _broker_state(seen, broker),
                "fenced": broker.is_fenced,
                "draining": broker.is_draining,
                "replica_count": seen.replica_count(broker.broker_id),
            }
            for broker in seen.metadata.brokers
        ],
        "under_replicated_partition_count": len(seen.under_replicated),
        "leaderless_partition_count": len(seen.leaderless),
        "topics": [{"name": name, "partitions": held} for name, held in topics.items()],
        "actors": [
            {"name": actor.name, "process_id": _process(actor), "state": actor.state}
            for actor in seen.actors
        ],
    }


def _bounds(reply: DescribeReplicaReply) -> dict[str, int | None]:
    names = (
        "leader_epoch",
        "log_start_offset",
        "last_stable_offset",
        "high_watermark",
        "log_end_offset",
        "size_bytes",
        "producer_count",
        "open_transaction_count",
        "late_transaction_count",
        "oldest_open_transaction_age_ms",
        "damaged_place_count",
        "cut_bytes",
    )
    has_answered = reply.topic_partition is not None
    shown: dict[str, int | None] = {
        name: getattr(reply, name) if has_answered else None for name in names
    }
    if reply.damaged_place_count:
        shown["damaged_offset"] = reply.damaged_offset
    if reply.cut_bytes:
        shown["cut_offset"] = reply.cut_offset
    if reply.active_transactional_id_count is not None:
        shown["active_transactional_id_count"] = reply.active_transactional_id_count
    return shown


def _process(actor: ActorStatus) -> int | None:
    return actor.reply.process_id if actor.reply.process_id > 0 else None
