"""What ``oncelog status`` judges: one look at the cluster, and all that can be wrong with it.

Each condition is a row of the table "What `status` says" in OPERATIONS.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from oncelog.actors.config import data_directories
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.protocol.cluster.quorum import majority_of
from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    MetadataReply,
    PartitionMetadata,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply
from oncelog.actors.protocol.messages.replication import DescribeVoterReply
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStatus:
    """One actor, the partition it holds, and its answer."""

    name: str
    topic_partition: TopicPartition
    reply: DescribeReplicaReply
    broker_id: int | None = None
    """``None`` for the controller."""

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
        """``serving`` or ``following``, with what its start has cut, or why it does not serve."""
        if self.is_serving and self.is_damaged:
            more = self.reply.damaged_place_count - 1
            places = f" and {more} more" if more else ""
            return f"serving, but damaged at offset {self.reply.damaged_offset}{places}"
        if self.is_serving:
            state = "serving" if self.reply.is_leader else "following"
            if self.reply.cut_offset < 0:
                return state
            return f"{state}; cut {self.reply.cut_bytes} bytes at offset {self.reply.cut_offset}"
        if self.reply.error is ErrorCode.NETWORK_EXCEPTION:
            return "gone or restarting"
        if self.reply.error is ErrorCode.REQUEST_TIMED_OUT:
            return "does not answer"
        reason = self.reply.detail or self.reply.error.name
        return "starting" if self.reply.error is ErrorCode.NONE else f"offline: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """The whole cluster at one moment; ``metadata`` carries the controller's own error.

    ``voters`` is what brokers know of the controller's voters, by number, asked only if no
    controller answers: ``None`` for a broker that does not answer either.
    """

    address: str
    dashboard_url: str
    codec: str
    metadata: MetadataReply
    actors: tuple[ActorStatus, ...]
    voters: Mapping[int, DescribeVoterReply | None] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """All that is not as it should be, the worst first."""
        found = (Finding(condition, tuple(condition.where(self))) for condition in CONDITIONS)
        return [finding for finding in found if finding.places]

    @property
    def state(self) -> str:
        """``serving``, ``degraded``: all is served, but something is wrong, or ``not serving``."""
        findings = self.findings
        if not findings:
            return "serving"
        return "degraded" if all(one.condition.is_served for one in findings) else "not serving"

    @property
    def has_controller(self) -> bool:
        """Whether a controller answers with what is current."""
        return self.metadata.error is ErrorCode.NONE

    @property
    def brokers_away(self) -> set[int]:
        """Brokers that took part and are not heard now, but for those that were emptied before."""
        return {
            broker.broker_id
            for broker in self.metadata.brokers
            if broker.data_dir and is_away(broker) and not self.is_drained(broker)
        }

    def is_drained(self, broker: BrokerMetadata) -> bool:
        """Whether a broker was emptied: nobody misses it."""
        return broker.is_draining and not self.replica_count(broker.broker_id)

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionMetadata]]:
        """Every partition, with where it is led."""
        for topic in self.metadata.topics:
            for partition in topic.partitions:
                yield TopicPartition(topic.name, partition.partition), partition

    @property
    def leaderless(self) -> list[TopicPartition]:
        """The partitions that nobody leads."""
        return [tp for tp, partition in self.partitions() if partition.leader < 0]

    @property
    def under_replicated(self) -> list[TopicPartition]:
        """The partitions with a replica that is not in sync."""
        return [tp for tp, partition in self.partitions() if partition.is_under_replicated]

    def is_leading(self, actor: ActorStatus) -> bool:
        """Whether ``actor`` is what its partition is served by: its leader or the controller."""
        if actor.broker_id is None:
            return True
        leaders = self._leaders()
        return leaders.get(actor.topic_partition) == actor.broker_id

    def _leaders(self) -> dict[TopicPartition, int]:
        return {tp: partition.leader for tp, partition in self.partitions()}

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
        return sum(broker_id in partition.replicas for _, partition in self.partitions())

    @property
    def active_transactional_id_count(self) -> int:
        """How many transactional ids have a transaction, as far as coordinators answer."""
        return sum(actor.reply.active_transactional_id_count or 0 for actor in self.actors)

    @property
    def data_dirs(self) -> list[str]:
        """Every data directory of a broker; mostly all have theirs at the same paths."""
        named = (broker.data_dir for broker in self.metadata.brokers if broker.data_dir)
        return sorted({str(path) for data_dir in named for path in data_directories(data_dir)})


def is_away(broker: BrokerMetadata) -> bool:
    """Whether a broker is fenced, or its node is not in the cluster."""
    return broker.is_fenced or not broker.is_live


# --- what is wrong ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One thing that can be wrong: a row of the table in OPERATIONS.

    ``where`` names the places, none if all is well. ``is_served``: every partition and the
    controller serve all the same.
    """

    name: str
    is_served: bool
    where: Callable[[ClusterStatus], Iterable[str]]
    advice: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition, and all places where it was found."""

    condition: Condition
    places: tuple[str, ...]

    def __str__(self) -> str:
        more = len(self.places) - PLACES_MAX
        shown = ", ".join(self.places[:PLACES_MAX]) + (f" and {more:,} more" if more > 0 else "")
        return f"{self.condition.name}: {shown}"


PLACES_MAX: Final = 3
"""How many places of a finding people are shown."""


def _voters_away(seen: ClusterStatus) -> list[str]:
    """The voters that do not answer, if those that do are no majority."""
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
    for tp, partition in seen.partitions():
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


def _voters_behind(seen: ClusterStatus) -> Iterator[str]:
    for voter in seen.metadata.voters:
        if voter.is_behind and voter.broker_id not in seen.brokers_away:
            yield f"broker {voter.broker_id}"


def _damaged(seen: ClusterStatus) -> Iterator[str]:
    for actor in seen.actors:
        if actor.is_damaged:
            yield f"{actor.name} at offset {actor.reply.damaged_offset}"


def _brokers(numbers: Iterable[int]) -> str:
    return ", ".join(f"broker {number}" for number in numbers)


CONDITIONS: Final = (
    Condition(
        name="no majority of the voters",
        is_served=False,
        where=_voters_away,
        advice="nothing is decided until a majority of the voters is up: start their nodes again",
    ),
    Condition(
        name="no controller",
        is_served=False,
        where=_controller,
        advice="look again in ten seconds: another voter takes over; if it stays, see the "
        "controller's log in the Ray dashboard",
    ),
    Condition(
        name="without a leader",
        is_served=False,
        where=_leaderless,
        advice="look again in a few seconds; if it stays, one of the brokers in sync has to be "
        "back: start its node, or bring its disk back",
    ),
    Condition(
        name="not serving",
        is_served=False,
        where=_leaders_not_serving,
        advice="look again in a few seconds, actors restart by themselves and others are elected; "
        "if it stays, see the state above and the actor's log in the Ray dashboard",
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
        advice="make room on its disk: no replica in sync, whose disk takes more, leads instead",
    ),
    Condition(
        name="voter cannot vote",
        is_served=False,
        where=_voters_refusing,
        advice="mend what it names; it looks again by itself",
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
        advice="mend what it names; it tries again by itself",
    ),
    Condition(
        name="replica not following",
        is_served=True,
        where=_followers_not_serving,
        advice="look again in a few seconds, actors restart by themselves; if it stays, its disk "
        "or its log is the reason: see the state above",
    ),
    Condition(
        name="disk refuses",
        is_served=True,
        where=functools.partial(_refused_by_disks, is_leading=False),
        advice="make room on its disk; until then others hold and lead what it should",
    ),
    Condition(
        name="under-replicated",
        is_served=True,
        where=lambda seen: map(str, seen.under_replicated),
        advice="its replicas copy what they lack once their brokers are up; "
        "`ray_oncelog_replication_lag` shows how far they are",
    ),
    Condition(
        name="voter behind",
        is_served=True,
        where=_voters_behind,
        advice="it copies what it lacks; if it stays, see the log of its broker's actor",
    ),
    Condition(
        name="damaged",
        is_served=True,
        where=_damaged,
        advice="readers get an error there and can go on behind it: `oncelog consume "
        "--skip-damaged`; `oncelog dump PATH --verify` shows what is damaged",
    ),
)
"""All that can be wrong, the worst first."""
