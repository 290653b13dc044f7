"""``oncelog status``: call every actor of the log, judge the replies, and print the result.

Each condition is a row of the table "What `status` says" in OPERATIONS.

One file: one snapshot of the cluster, what can be wrong with it, and how both are printed.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click

from oncelog.actors.config import data_directories
from oncelog.actors.interfaces import (
    BROKER_ACTORS,
    CONTROLLER_ACTOR,
    NAMESPACE,
    Transport,
    gateway_actor,
)
from oncelog.actors.protocol.cluster.quorum import majority_of
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.brokers import (
    FindKafkaListenerReply,
    FindKafkaListenerRequest,
)
from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    VoterMetadata,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.actors.protocol.messages.replication import DescribeVoterReply, DescribeVoterRequest
from oncelog.api.cli.arguments import Arguments, Command, output_options
from oncelog.api.cli.connect import (
    cluster_options,
    data_dir_of,
    find,
    login_arguments,
    quiet_libraries,
)
from oncelog.api.cli.terminal import (
    STATUS_ERROR,
    STATUS_NOT_SERVED,
    CliError,
    fields,
    report,
    show,
    size_text,
    table,
)
from oncelog.api.session import cluster_connection
from oncelog.api.session.links import DirectLink, NotReachedError, direct_link
from oncelog.api.session.login import login_of
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import exception_for
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, TopicPartition

# --- one look ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStatus:
    """One actor, the partition it holds, and its reply."""

    name: str
    topic_partition: TopicPartition
    reply: DescribeReplicaReply
    broker_id: int | None = None
    """``None`` for the controller."""

    @property
    def is_serving(self) -> bool:
        """Whether it replies, and leads its partition or follows the leader."""
        has_role = self.reply.is_leader or self.reply.is_following
        return self.reply.error is ErrorCode.NONE and has_role

    @property
    def is_damaged(self) -> bool:
        """Whether some of its records are known to be unreadable."""
        return self.reply.damaged_place_count > 0

    @property
    def state(self) -> str:
        """``serving`` or ``following``, and what recovery truncated; else why it does not serve."""
        if self.is_serving and self.is_damaged:
            more = self.reply.damaged_place_count - 1
            places = f" and {more} more" if more else ""
            return f"serving, but damaged at offset {self.reply.damaged_offset}{places}"
        if self.is_serving:
            state = "serving" if self.reply.is_leader else "following"
            if self.reply.cut_offset < 0:
                return state
            return f"{state}; cut {self.reply.cut_bytes} bytes at offset {self.reply.cut_offset}"
        return _failure(self.reply)


def _failure(reply: Reply) -> str:
    """What is wrong with an actor that does not serve, by its reply."""
    if reply.error is ErrorCode.NETWORK_EXCEPTION:
        return "gone or restarting"
    if reply.error is ErrorCode.REQUEST_TIMED_OUT:
        return "does not answer"
    return (
        "starting"
        if reply.error is ErrorCode.NONE
        else f"offline: {reply.detail or reply.error.name}"
    )


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """The whole cluster at one moment; ``metadata`` carries the controller's own error.

    What is made of all partitions is made once, as each actor and condition asks for it: judging
    takes time in proportion to the partitions.

    ``voters`` is what each broker reports about the controller's voters, by broker id; ``None`` if
    it does not reply. It is filled only if no controller replies. ``gateways`` is what the gateway
    of each live broker replies; empty if clients of Kafka are not served.
    """

    address: str
    dashboard_url: str
    metadata: MetadataReply
    actors: tuple[ActorStatus, ...]
    voters: Mapping[int, DescribeVoterReply | None] = field(default_factory=dict)
    gateways: Mapping[int, FindKafkaListenerReply] = field(default_factory=dict)

    @functools.cached_property
    def findings(self) -> list[FoundCondition]:
        """All that is not as it should be, the worst first."""
        found = (
            FoundCondition(condition, tuple(condition.where(self))) for condition in CONDITIONS
        )
        return [finding for finding in found if finding.places]

    @property
    def state(self) -> str:
        """``serving``, ``not serving``, or ``degraded``: all is served, but something is wrong."""
        findings = self.findings
        if not findings:
            return "serving"
        return "degraded" if all(one.condition.is_served for one in findings) else "not serving"

    @property
    def kafka(self) -> list[str]:
        """Where clients of Kafka connect to."""
        return [
            f"{one.host}:{one.port}"
            for one in self.gateways.values()
            if one.error is ErrorCode.NONE
        ]

    @property
    def has_controller(self) -> bool:
        """Whether a controller replies with current metadata."""
        return self.metadata.error is ErrorCode.NONE

    @functools.cached_property
    def brokers_away(self) -> set[int]:
        """Brokers that are fenced or gone, without drained ones."""
        return {
            broker.broker_id
            for broker in self.metadata.brokers
            if broker.data_dir and is_away(broker) and not self.is_drained(broker)
        }

    def is_drained(self, broker: BrokerMetadata) -> bool:
        """Whether a broker was drained: its absence is no problem."""
        return broker.is_draining and not self.replica_count(broker.broker_id)

    @functools.cached_property
    def partitions(self) -> Sequence[tuple[TopicPartition, PartitionMetadata]]:
        """Every partition with its metadata."""
        return [
            (TopicPartition(topic.name, partition.partition), partition)
            for topic in self.metadata.topics
            for partition in topic.partitions
        ]

    @property
    def leaderless(self) -> list[TopicPartition]:
        """The partitions without a leader."""
        return [tp for tp, partition in self.partitions if partition.leader < 0]

    @property
    def under_replicated(self) -> list[TopicPartition]:
        """The partitions with a replica that is not in sync."""
        return [tp for tp, partition in self.partitions if partition.is_under_replicated]

    def is_leading(self, actor: ActorStatus) -> bool:
        """Whether ``actor`` is the leader of its partition, or the controller."""
        if actor.broker_id is None:
            return True
        return self._leaders.get(actor.topic_partition) == actor.broker_id

    @functools.cached_property
    def _leaders(self) -> Mapping[TopicPartition, int]:
        """Who leads each partition."""
        return {tp: partition.leader for tp, partition in self.partitions}

    @property
    def shown_actors(self) -> list[ActorStatus]:
        """One actor per partition: the leader's or, without a leader, one of the replicas'."""
        shown: dict[TopicPartition, ActorStatus] = {}
        for actor in self.actors:
            if actor.reply.is_leader or actor.topic_partition not in shown:
                shown[actor.topic_partition] = actor
        return list(shown.values())

    def replica_count(self, broker_id: int) -> int:
        """The number of replicas on a broker, including those being removed."""
        return self._replica_counts[broker_id]

    @functools.cached_property
    def _replica_counts(self) -> Counter[int]:
        return Counter(number for _, partition in self.partitions for number in partition.replicas)

    @property
    def active_transactional_id_count(self) -> int:
        """The number of ids with an open transaction, as far as coordinators reply."""
        return sum(actor.reply.active_transactional_id_count or 0 for actor in self.actors)

    @property
    def data_dirs(self) -> list[str]:
        """The brokers' data directories, each path once."""
        named = (broker.data_dir for broker in self.metadata.brokers if broker.data_dir)
        return sorted({str(path) for data_dir in named for path in data_directories(data_dir)})


def is_away(broker: BrokerMetadata) -> bool:
    """Whether a broker is fenced, or its node is not in the cluster."""
    return broker.is_fenced or not broker.is_live


# --- what is wrong ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something that can be wrong: a row of the table in OPERATIONS.

    ``where`` lists the places where it is, or nothing. ``is_served`` means that the controller and
    every partition serve even so.
    """

    name: str
    is_served: bool
    where: Callable[[ClusterStatus], Iterable[str]]
    advice: str


@dataclass(frozen=True, slots=True)
class FoundCondition:
    """A condition, and all places where it was found."""

    condition: Condition
    places: tuple[str, ...]

    def __str__(self) -> str:
        more = len(self.places) - PLACES_MAX
        shown = ", ".join(self.places[:PLACES_MAX]) + (f" and {more:,} more" if more > 0 else "")
        return f"{self.condition.name}: {shown}"


PLACES_MAX: Final = 3
"""People are shown at most this many places of a finding."""


def _voters_away(seen: ClusterStatus) -> list[str]:
    """The voters that do not reply, if those that do are no majority."""
    if seen.has_controller:
        return []
    told = [reply for reply in seen.voters.values() if reply is not None and reply.voters]
    if not told:
        return [f"broker {number}" for number, reply in seen.voters.items() if reply is None]
    voters = max(told, key=lambda reply: (reply.leader_epoch, reply.log_end_offset)).voters
    away = [number for number in voters if seen.voters.get(number) is None]
    is_lost = len(voters) - len(away) < majority_of(len(voters))
    return [f"broker {number} of voters {list(voters)}" for number in away] if is_lost else []


def _voters_refusing(seen: ClusterStatus) -> Iterator[str]:
    for number, reply in seen.voters.items():
        if reply is not None and reply.problem:
            yield f"broker {number} ({reply.problem})"


def _controller(seen: ClusterStatus) -> list[str]:
    if seen.has_controller or _voters_away(seen):
        return []
    return [f"{CONTROLLER_ACTOR} ({actor.state})" for actor in seen.actors if not actor.broker_id]


def _leaderless(seen: ClusterStatus) -> Iterator[str]:
    for tp, partition in seen.partitions:
        if partition.leader < 0:
            eligible = f", eligible: {_brokers(partition.elr)}" if partition.elr else ""
            yield f"{tp} (in sync: {_brokers(partition.isr) or 'nobody'}{eligible})"


def _leaders_not_serving(seen: ClusterStatus) -> Iterator[str]:
    for actor in seen.actors:
        is_told = actor.broker_id is None and not seen.has_controller
        if not actor.is_serving and seen.is_leading(actor) and not is_told:
            yield f"{actor.name} ({actor.state})"


def _refusing_writes(seen: ClusterStatus) -> Iterator[str]:
    for actor in seen.actors:
        reply = actor.reply
        if actor.broker_id is not None and reply.is_leader and not reply.takes_writes:
            in_sync = f"{len(reply.isr)} of {reply.min_insync_replicas} in sync"
            yield f"{actor.topic_partition} ({in_sync})"


def _refused_by_disks(seen: ClusterStatus, *, is_leading: bool) -> Iterator[str]:
    for actor in seen.actors:
        if actor.reply.refusal and seen.is_leading(actor) is is_leading:
            yield f"{actor.name} ({actor.reply.refusal})"


def _away(seen: ClusterStatus) -> Iterator[str]:
    return (f"broker {number}" for number in sorted(seen.brokers_away))


def _excluded(seen: ClusterStatus) -> Iterator[str]:
    for broker in seen.metadata.brokers:
        if broker.problem:
            yield f"broker {broker.broker_id} ({broker.problem})"


def _followers_not_serving(seen: ClusterStatus) -> Iterator[str]:
    for actor in seen.actors:
        is_explained = actor.broker_id in seen.brokers_away or seen.is_leading(actor)
        if not actor.is_serving and not is_explained:
            yield f"{actor.name} ({actor.state})"


def _gateways_not_serving(seen: ClusterStatus) -> Iterator[str]:
    excluded = {broker.broker_id for broker in seen.metadata.brokers if broker.problem}
    for number, reply in seen.gateways.items():
        is_explained = number in seen.brokers_away or number in excluded
        if reply.error is not ErrorCode.NONE and not is_explained:
            yield f"{gateway_actor(0, number)} ({_failure(reply)})"


def _voters_behind(seen: ClusterStatus) -> Iterator[str]:
    for voter in seen.metadata.voters:
        if voter.is_behind and voter.broker_id not in seen.brokers_away:
            yield f"broker {voter.broker_id}"


def _damaged(seen: ClusterStatus) -> Iterator[str]:
    for actor in seen.actors:
        if actor.is_damaged:
            yield f"{actor.name} at offset {actor.reply.damaged_offset}"


def _late_transactions(seen: ClusterStatus) -> Iterator[str]:
    for actor in seen.actors:
        count = actor.reply.late_transaction_count
        if count and seen.is_leading(actor):
            yield f"{actor.topic_partition} ({count})"


def _brokers(numbers: Iterable[int]) -> str:
    return ", ".join(f"broker {number}" for number in numbers)


_HANGS: Final = (
    "who does not answer for long hangs: end the process that `ray list actors` names, and Ray "
    "starts another"
)

CONDITIONS: Final = (
    Condition(
        name="no majority of the voters",
        is_served=False,
        where=_voters_away,
        advice="the controller cannot decide anything: start the nodes of a majority of the voters",
    ),
    Condition(
        name="no controller",
        is_served=False,
        where=_controller,
        advice="wait ten seconds: another voter takes over; if it persists, see "
        "`oncelog logs controller`",
    ),
    Condition(
        name="without a leader",
        is_served=False,
        where=_leaderless,
        advice="wait a few seconds; if it persists, bring back one of the brokers in sync: start "
        "its node, or repair its disk",
    ),
    Condition(
        name="not serving",
        is_served=False,
        where=_leaders_not_serving,
        advice="wait a few seconds: actors restart and other leaders are elected automatically; "
        f"if it persists, see the state above and `oncelog logs ACTOR`; {_HANGS}",
    ),
    Condition(
        name="refuses acks=all",
        is_served=False,
        where=_refusing_writes,
        advice="fewer replicas are in sync than min_insync_replicas: bring back the brokers that "
        "`oncelog topics describe TOPIC` does not show in sync",
    ),
    Condition(
        name="takes no writes",
        is_served=False,
        where=functools.partial(_refused_by_disks, is_leading=True),
        advice="make room on its disk: no replica in sync with room on its own can lead instead",
    ),
    Condition(
        name="voter cannot vote",
        is_served=False,
        where=_voters_refusing,
        advice="repair what it names; the voter retries automatically",
    ),
    Condition(
        name="broker away",
        is_served=True,
        where=_away,
        advice="start its node again; if it is gone for good, `oncelog brokers drain N`",
    ),
    Condition(
        name="broker takes no part",
        is_served=True,
        where=_excluded,
        advice="repair what it names; the broker retries automatically",
    ),
    Condition(
        name="replica not following",
        is_served=True,
        where=_followers_not_serving,
        advice="wait a few seconds: actors restart automatically; if it persists, its disk or its "
        f"log is the cause: see the state above; {_HANGS}",
    ),
    Condition(
        name="disk refuses",
        is_served=True,
        where=functools.partial(_refused_by_disks, is_leading=False),
        advice="make room on its disk; until then other brokers hold and lead its replicas",
    ),
    Condition(
        name="gateway not serving",
        is_served=True,
        where=_gateways_not_serving,
        advice="clients of Kafka can use the other brokers; wait a few seconds: it restarts "
        f"automatically; if it persists, see the state above and `oncelog logs ACTOR`; {_HANGS}",
    ),
    Condition(
        name="under-replicated",
        is_served=True,
        where=lambda seen: map(str, seen.under_replicated),
        advice="its replicas catch up once their brokers are up; "
        "`ray_oncelog_replication_lag` shows how far they are",
    ),
    Condition(
        name="voter behind",
        is_served=True,
        where=_voters_behind,
        advice="it is catching up; if it persists, see the log of its broker's actor",
    ),
    Condition(
        name="late transaction",
        is_served=True,
        where=_late_transactions,
        advice="it is open for longer than any may be, and read_committed consumers wait at it: "
        "`oncelog transactions find-hanging` names it, and `abort` ends it",
    ),
    Condition(
        name="damaged",
        is_served=True,
        where=_damaged,
        advice="consumers get an error there and can skip it: `oncelog consume "
        "--skip-damaged`; `oncelog dump PATH --verify` shows what is damaged",
    ),
)
"""All that can be wrong, the worst first."""


# --- the command ------------------------------------------------------------------------------

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
    """Something is wrong with the cluster; the exit status says whether all is still served."""

    def __init__(self, finding: FoundCondition) -> None:
        super().__init__(str(finding), finding.condition.advice)
        self.status = STATUS_ERROR if finding.condition.is_served else STATUS_NOT_SERVED


class NoClusterError(CliError):
    """There is no cluster to call: nothing is served."""

    status = STATUS_NOT_SERVED


# --- asking -----------------------------------------------------------------------------------


async def collect(
    transport: Transport,
    *,
    address: str,
    dashboard_url: str,
    broker_names: Callable[[], Iterable[str]] = tuple,
) -> ClusterStatus:
    """Ask the controller for all actors, then call them all at once for their status.

    If the controller does not reply, the brokers' actors, named by ``broker_names``, are asked
    about the voters instead.
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
    replies, voters, gateways = await asyncio.gather(
        asyncio.gather(
            *(
                transport.call(address, DescribeReplicaRequest(), timeout_ms=CALL_TIMEOUT_MS)
                for address, _, _, _ in places
            )
        ),
        _ask_voters(transport, broker_names() if is_lost else ()),
        _ask_gateways(transport, metadata),
    )
    return ClusterStatus(
        address=address,
        dashboard_url=dashboard_url,
        metadata=metadata,
        actors=tuple(
            ActorStatus(name=name, topic_partition=tp, broker_id=broker_id, reply=reply)
            for (_, name, tp, broker_id), reply in zip(places, replies, strict=True)
        ),
        voters=voters,
        gateways=gateways,
    )


async def _ask_gateways(
    transport: Transport, metadata: MetadataReply
) -> dict[int, FindKafkaListenerReply]:
    """What the gateway of each live broker replies, if the cluster has any."""
    if dict(metadata.settings).get("kafka_port", "0") == "0":
        return {}
    request = FindKafkaListenerRequest()
    asked = [one.broker_id for one in metadata.brokers if one.is_live]
    replies = await asyncio.gather(
        *(
            transport.call(gateway_actor(0, number), request, timeout_ms=CALL_TIMEOUT_MS)
            for number in asked
        )
    )
    return dict(zip(asked, replies, strict=True))


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


def check_may_ask(seen: ClusterStatus) -> None:
    """Raise the refusal if it is one: it says nothing about what is served."""
    replies = (seen.metadata, *(actor.reply for actor in seen.actors))
    told = {reply.error: reply.detail for reply in replies}
    if ErrorCode.SASL_AUTHENTICATION_FAILED in told:
        refused = ErrorCode.SASL_AUTHENTICATION_FAILED
        raise exception_for(refused, told[refused])
    if ErrorCode.CLUSTER_AUTHORIZATION_FAILED in told:
        raise exception_for(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "the status is not shown to whoever asks",
            advice="connect with --user as one that may Describe the cluster",
        )


def look(args: Arguments) -> ClusterStatus:
    """Ask the cluster that the arguments select for its status: directly, or else through Ray.

    ``NoClusterError`` if there is none.
    """
    quiet_libraries()
    seen = _seen_directly(args) or _seen_by_ray(args)
    check_may_ask(seen)
    return seen


def _seen_directly(args: Arguments) -> ClusterStatus | None:
    """What the cluster of the data directory tells without Ray; ``None`` if Ray must be asked.

    Without its controller Ray knows more: which brokers there are.
    """
    login = login_of(**login_arguments(args))
    link = direct_link(data_dir_of(args), login, ray_address=args.address)
    if link is None:
        return None
    try:
        seen = asyncio.run(_collected(link))
        link.check(seen.metadata)
    except NotReachedError:
        return None
    return seen


async def _collected(link: DirectLink) -> ClusterStatus:
    try:
        # A controller that hangs must not cost all the time that ``collect`` gives it.
        await link.probe(link.connections)
        return await collect(
            link.connections, address=link.address, dashboard_url=link.dashboard_url
        )
    finally:
        # `oncelog top` looks again and again.
        link.connections.close()


def _seen_by_ray(args: Arguments) -> ClusterStatus:
    """What the cluster tells whose actors Ray finds; ``NoClusterError`` if there is none."""
    try:
        found = find(args)
    except CliError as error:
        raise NoClusterError(error.what, error.advice) from None
    identity = login_of(**login_arguments(args)).identity()
    cluster_connection.join_ray(found.address, shows_output=False)
    if not cluster_connection.has_log():
        raise NoClusterError(
            f"the Ray cluster at {cluster_connection.ray_address()} runs no oncelog",
            f"start it there with `oncelog start --address {cluster_connection.ray_address()}`",
        )
    from oncelog.actors.launch.processes import running_actors
    from oncelog.actors.rpc.actor_transport import ActorTransport
    from oncelog.actors.rpc.ray_transport import RayTransport

    seen = asyncio.run(
        collect(
            ActorTransport(RayTransport(), identity=identity),
            address=cluster_connection.ray_address(),
            dashboard_url=cluster_connection.dashboard_url(),
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
    return seen


@click.command(cls=Command)
@output_options
@cluster_options
def status(args: Arguments) -> int:
    """Print the cluster's status; exit status 0 serving, 1 degraded, 3 not serving."""
    seen = look(args)
    show(args, as_json(seen), lambda: as_text(seen))
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
        *([("kafka", ", ".join(seen.kafka))] if seen.kafka else []),
        ("version", metadata.version or "unknown"),
        ("open ids", f"{seen.active_transactional_id_count:,}"),
        *_replication(seen),
        *_voters(seen),
    )
    actors = table(
        ("actor", "process", "state"),
        ((actor.name, str(_process(actor) or "-"), actor.state) for actor in seen.actors),
    )
    brokers = table(
        ("broker", "rack", "data dir", "state"),
        (
            (
                broker.broker_id,
                broker.rack or "-",
                broker.data_dir or "-",
                broker_state(seen, broker),
            )
            for broker in metadata.brokers
        ),
    )
    parts = [fields(facts), table(_HEADINGS, map(_row, seen.shown_actors)), actors]
    parts += [brokers] if metadata.brokers else []
    parts += [findings_table(seen)] if seen.findings else []
    return "\n\n".join(parts)


def findings_table(seen: ClusterStatus) -> str:
    """All that is wrong, and what to do about it."""
    rows = ((str(finding), finding.condition.advice) for finding in seen.findings)
    return table(("what is wrong", "what to do"), rows)


def _replication(seen: ClusterStatus) -> list[tuple[str, str]]:
    """A line about replicas, unless there is one broker and no problem."""
    under, leaderless = len(seen.under_replicated), len(seen.leaderless)
    if len(seen.metadata.brokers) <= 1 and not under and not leaderless:
        return []
    return [("replicas", f"{under:,} partitions under-replicated, {leaderless:,} without a leader")]


def _voters(seen: ClusterStatus) -> list[tuple[str, str]]:
    """Which brokers vote on the controller, if there are several; see ADR 22."""
    voters = seen.metadata.voters
    if len(voters) <= 1:
        return []
    told = (f"{voter.broker_id} ({voter_state(voter)})" for voter in voters)
    return [("voters", f"brokers {', '.join(told)}")]


def voter_state(voter: VoterMetadata) -> str:
    """What a voter is to the controller's log, in a word."""
    if voter.is_controller:
        return "controller"
    return "behind" if voter.is_behind else "in sync"


def broker_state(seen: ClusterStatus, broker: BrokerMetadata) -> str:
    """Whether a broker is there, and what of it is still to move."""
    if broker.problem:
        return f"takes no part: {broker.problem}"
    state = "alive" if broker.is_live else "gone: its node is not in the cluster"
    if broker.is_fenced:
        state = "fenced: no heartbeats, or its node is gone"
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
    """The status as JSON; what an actor did not report is null."""
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
        "kafka": seen.kafka,
        "version": seen.metadata.version or None,
        "voters": [
            {"broker_id": voter.broker_id, "state": voter_state(voter)}
            for voter in seen.metadata.voters
        ],
        "brokers": [
            {
                "broker_id": broker.broker_id,
                "data_dir": broker.data_dir or None,
                "rack": broker.rack or None,
                "state": broker_state(seen, broker),
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
