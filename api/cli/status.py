"""``oncelog status``: what every actor of the log reports."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from oncelog.actors.config import data_directories
from oncelog.actors.interfaces import CONTROLLER_ACTOR, NAMESPACE, Transport
from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    VoterMetadata,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.api.cli.connect import find, quiet_libraries
from oncelog.api.cli.output import STATUS_ERROR, CliError, report, say, size_text, table
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStatus:
    """One actor, the partition it holds, and its answer."""

    name: str
    topic_partition: TopicPartition
    reply: DescribeReplicaReply

    @property
    def is_serving(self) -> bool:
        """Whether it answers, and leads its partition or follows whoever does."""
        has_role = self.reply.is_leader or self.reply.is_following
        return self.reply.error is ErrorCode.NONE and has_role

    @property
    def is_damaged(self) -> bool:
        """Whether some of its records are known to be unreadable."""
        return self.reply.damaged_place_count > 0

    @property
    def state(self) -> str:
        """``serving``, with what is damaged or its start has cut, or why it does not serve."""
        if self.is_serving and self.is_damaged:
            more = self.reply.damaged_place_count - 1
            places = f" and {more} more" if more else ""
            return f"serving, but damaged at offset {self.reply.damaged_offset}{places}"
        if self.is_serving and self.reply.cut_offset >= 0:
            return f"serving; cut {self.reply.cut_bytes} bytes at offset {self.reply.cut_offset}"
        if self.is_serving:
            return "serving" if self.reply.is_leader else "following"
        if self.reply.error is ErrorCode.NETWORK_EXCEPTION:
            return "gone or restarting"
        if self.reply.error is ErrorCode.REQUEST_TIMED_OUT:
            return "does not answer"
        reason = self.reply.detail or self.reply.error.name
        return "starting" if self.reply.error is ErrorCode.NONE else f"offline: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """The whole cluster at one moment; ``metadata`` carries the controller's own error."""

    address: str
    dashboard_url: str
    codec: str
    metadata: MetadataReply
    actors: tuple[ActorStatus, ...]

    @property
    def is_serving(self) -> bool:
        """Whether the controller and every other actor serve, and each partition has a leader."""
        is_answering = self.metadata.error is ErrorCode.NONE
        return is_answering and not self.leaderless and all(one.is_serving for one in self.actors)

    @property
    def leaderless(self) -> list[TopicPartition]:
        """The partitions that nobody leads."""
        return [tp for tp, partition in self._partitions() if partition.leader < 0]

    @property
    def under_replicated(self) -> list[TopicPartition]:
        """The partitions with a replica that is not in sync."""
        return [tp for tp, partition in self._partitions() if partition.is_under_replicated]

    @property
    def shown_actors(self) -> list[ActorStatus]:
        """One actor for each partition: its leader's or, without, one of its replicas'."""
        shown: dict[TopicPartition, ActorStatus] = {}
        for actor in self.actors:
            if actor.reply.is_leader or actor.topic_partition not in shown:
                shown[actor.topic_partition] = actor
        return list(shown.values())

    def replica_count(self, broker_id: int) -> int:
        """How many replicas are on a broker, those that are being removed from it included."""
        return sum(broker_id in partition.replicas for _, partition in self._partitions())

    def _partitions(self) -> Iterator[tuple[TopicPartition, PartitionMetadata]]:
        for topic in self.metadata.topics:
            for partition in topic.partitions:
                yield TopicPartition(topic.name, partition.partition), partition

    @property
    def active_transactional_id_count(self) -> int:
        """How many transactional ids have a transaction, as far as coordinators answer."""
        return sum(actor.reply.active_transactional_id_count or 0 for actor in self.actors)

    @property
    def data_dirs(self) -> list[str]:
        """Every data directory of a broker; mostly all have theirs at the same paths."""
        named = (broker.data_dir for broker in self.metadata.brokers if broker.data_dir)
        return sorted({str(path) for data_dir in named for path in data_directories(data_dir)})


# --- asking -----------------------------------------------------------------------------------


async def collect(
    transport: Transport, *, address: str, dashboard_url: str, codec: str
) -> ClusterStatus:
    """Ask the controller which actors there are, then all of them at once for their status."""
    from oncelog.actors.interfaces import actor_of, address_of, holder_of, placements_of
    from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR

    metadata = await transport.call(CONTROLLER_ACTOR, MetadataRequest(), timeout_ms=CALL_TIMEOUT_MS)
    places = [(CONTROLLER_ACTOR, CONTROLLER_ACTOR, TopicPartition(CLUSTER_METADATA_TOPIC, 0))]
    for topic in metadata.topics:
        for partition in topic.partitions:
            for placement in placements_of(topic, partition):
                tp, _, broker_id, host = placement
                held = f" in {holder_of(placement)}" if host != OWN_ACTOR else ""
                places.append((address_of(placement), actor_of(tp, broker_id) + held, tp))
    replies = await asyncio.gather(
        *(
            transport.call(address, DescribeReplicaRequest(), timeout_ms=CALL_TIMEOUT_MS)
            for address, _, _ in places
        )
    )
    return ClusterStatus(
        address=address,
        dashboard_url=dashboard_url,
        codec=codec,
        metadata=metadata,
        actors=tuple(
            ActorStatus(name=name, topic_partition=tp, reply=reply)
            for (_, name, tp), reply in zip(places, replies, strict=True)
        ),
    )


def status(args: argparse.Namespace) -> int:
    """Show the cluster; the exit status is 0 only if everything serves."""
    found = find(args)
    quiet_libraries()
    connection.join_ray(found.address)
    if not connection.has_log():
        raise CliError(
            f"the Ray cluster at {connection.ray_address()} runs no oncelog",
            f"start it there with `oncelog start --address {connection.ray_address()}`",
        )
    from oncelog.actors.rpc.actor_transport import ActorTransport
    from oncelog.actors.rpc.ray_transport import RayTransport
    from oncelog.storage.records.codec import CODEC_BACKEND

    seen = asyncio.run(
        collect(
            ActorTransport(RayTransport()),
            address=connection.ray_address(),
            dashboard_url=connection.dashboard_url(),
            codec=CODEC_BACKEND,
        )
    )
    if seen.metadata.error is ErrorCode.UNKNOWN_SERVER_ERROR:
        raise CliError(
            f"the actor {CONTROLLER_ACTOR!r} in Ray namespace {NAMESPACE!r} is not oncelog's "
            f"({seen.metadata.detail})",
            "stop it, or use another Ray cluster",
        )
    say(json.dumps(as_json(seen), indent=2) if args.json else as_text(seen))
    if seen.is_serving:
        damaged = [actor for actor in seen.actors if actor.is_damaged]
        return report(has_damage(damaged)) if damaged else 0
    idle = [actor.name for actor in seen.actors if not actor.is_serving]
    if seen.leaderless and not idle:
        return report(without_leader(seen.leaderless))
    return report(not_serving(idle)) if idle else STATUS_ERROR


def has_damage(actors: list[ActorStatus]) -> CliError:
    """The error of a cluster that serves, but not all of its records."""
    shown = ", ".join(
        f"{actor.name} at offset {actor.reply.damaged_offset}" for actor in actors[:3]
    )
    more = f" and {len(actors) - 3} more" if len(actors) > 3 else ""
    return CliError(
        f"damaged: {shown}{more}",
        "readers get an error there and can go on behind it: `oncelog consume --skip-damaged`; "
        "`oncelog dump PATH --verify` shows what is damaged",
    )


def not_serving(names: list[str]) -> CliError:
    """The error of a cluster in which some actors do not serve."""
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return CliError(
        f"not serving: {shown}",
        "look again in a few seconds, actors restart by themselves; if it stays, see the state "
        "above and the actor's log in the Ray dashboard",
    )


def without_leader(partitions: list[TopicPartition]) -> CliError:
    """The error of a cluster in which all actors run, and some partitions have no leader."""
    shown = ", ".join(map(str, partitions[:3]))
    more = f" and {len(partitions) - 3} more" if len(partitions) > 3 else ""
    return CliError(
        f"without a leader: {shown}{more}",
        "look again in a few seconds; if it stays, `oncelog topics describe TOPIC` shows which "
        "replicas are in sync: one of their brokers has to be back",
    )


# --- showing ----------------------------------------------------------------------------------


def as_text(seen: ClusterStatus) -> str:
    """The status for people: the cluster, its partitions, its actors."""
    metadata = seen.metadata
    facts = (
        ("cluster", metadata.cluster_id or "unknown"),
        ("state", _state(seen)),
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
    parts = (head, table(_HEADINGS, map(_row, seen.shown_actors)), actors, brokers)
    return "\n\n".join(parts if metadata.brokers else parts[:-1])


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


def _state(seen: ClusterStatus) -> str:
    if not seen.is_serving:
        return "not serving"
    is_damaged = any(actor.is_damaged for actor in seen.actors)
    return "serving, but damaged" if is_damaged else "serving"


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
        "serving": seen.is_serving,
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
