"""A partition on three brokers and its controller: starts, ISR changes, elections, one move.

The machines are those of production: the controller's ``ClusterMachine`` with its rules, and on
each broker a ``PartitionMachine`` with ``LeaderReplication`` or ``FollowerReplication``. A call and
its answer are one step, unless it is *disturbed*: then its request or its answer is on its way
until it is delivered, or never is, or comes twice. ``Scope`` bounds how often; so every schedule is
looked at in which at most so many calls overlap anything else.

Time: any time may pass between two steps. So a leader that asks what to propose is patient (nobody
has lagged for long) or not (whoever lacks anything lags), and back-offs are always over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import cache, partial
from typing import Any

import msgspec
from cluster_worlds import TOPIC_ID
from explorer import OMITTED, BrokenPromiseError, ExploredWorld, Step, share
from msgspec.structs import replace
from one_partition import OnePartition
from replica_model import PARTITION, Replica

from oncelog.actors.protocol.cluster.cluster_records import ClusterRecord, encode_cluster_record
from oncelog.actors.protocol.cluster.elections import balance
from oncelog.actors.protocol.messages.cluster import (
    AlterIsrReply,
    BecomeLeaderReply,
    BecomeLeaderRequest,
)
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.followers import IsrProposal, Push, PushedBounds
from oncelog.actors.protocol.partition.producers import ProducerStates
from oncelog.actors.protocol.partition.replication import (
    LeaderReplication,
    PartitionAssignment,
    ReplicationSettings,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.records.batch import seal

EVENT_MS, ASK_MS, LAGGING_MS = 0, 2_000, 100_000
"""When things happen; when a leader is asked what is due; and when it is, and others lag."""

SETTINGS = ReplicationSettings(min_insync_replicas=2, bounds_push_ms=0)
CONTROLLER = "controller"

OMITTED.update(
    {
        # Which push was the last (answers name theirs), and times, which are always over.
        "FollowerProgress": frozenset(
            {
                *("_number", "_sent_ms", "_sent_bounds", "_failure_count", "_retry_ms"),
                *("_caught_up_ms", "_goal_ms", "_goal_offset", "_had_all"),
            }
        ),
        "LeaderReplication": frozenset({"_retry_proposal_ms"}),
        "PartitionMachine": frozenset({"producers", "_verified", "_keys", "_latest_ms"}),
        # Only compared with one another: ``PartitionModel.key`` has the differences.
        "InSyncReplicas": frozenset({"_version"}),
        # Compared within one step only, or only told.
        "PartitionState": frozenset({"incarnation", "version"}),
        "BrokerState": frozenset({"broker_epoch", "disk_epoch"}),
        "ClusterMachine": frozenset({"_unannounced", "election_count", "founded", "keys"}),
        "ModelledPartition": frozenset({"start_count"}),
    }
)
share(ProducerStates)  # There are no producers: all batches are plain.


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """How often what may happen. All but the first are used up."""

    leader_epoch_max: int = 2
    records: int = 3
    crashes: int = 1
    lost_disks: int = 1
    wrong_fences: int = 1
    disturbed: int = 1
    moves: int = 0
    late: tuple[str, ...] = ("push", "answer", "proposal")
    """What may be disturbed."""


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """A call on its way, or its answer: what is not ``None`` tells which."""

    sender: int
    epoch: int
    receiver: int = 0
    request: ReplicateRequest | None = None
    push: Push | None = None
    reply: ReplicateReply | None = None
    proposal: IsrProposal | None = None
    decided: AlterIsrReply | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the scope, what is on its way, and what was promised."""

    left: Scope
    late: tuple[Late, ...] = ()
    committed: tuple[tuple[int, int], ...] = ()
    """(epoch, content) of what some leader has acknowledged, by offset."""
    committers: tuple[tuple[int, int], ...] = ()
    """Leader epochs with the broker that committed something in each."""
    lost: int = 0

    def used(self, **changes: Any) -> Facts:
        """With one less of what is named, and with ``changes``."""
        return replace(self, **changes)


@cache
def batch(base_offset: int, leader_epoch: int, content: int) -> bytes:
    """One record of no producer."""
    return bytes(
        seal(
            content.to_bytes(8, "big"),
            record_count=1,
            base_timestamp_ms=content,
            max_timestamp_ms=content,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
        )
    )


class Node(Replica):
    """A replica on a broker, and whether its process runs and has a log that it knows of."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(broker_id)
        self.crash()  # It has not asked for its role yet.
        self.has_log = True
        self.directory = "first"
        self.led_from = 0
        """The high watermark with which it began to lead."""

    def records(self, end_offset: int | None = None) -> tuple[tuple[int, int], ...]:
        """(epoch, content) by offset."""
        held = self.batches if end_offset is None else self.batches[:end_offset]
        return tuple((header.leader_epoch, header.base_timestamp_ms) for header, _ in held)

    def begin(self, assignment: PartitionAssignment) -> None:
        self.lead(assignment, SETTINGS, EVENT_MS)
        self.led_from = self.machine.high_watermark

    def lose_log(self) -> None:
        self.batches, self.synced_end_offset, self.durable_start_offset = [], 0, 0
        self.machine.leader_epochs.truncate_end(0)
        self.crash()
        self.has_log = self.is_up = False


class ModelledPartition(OnePartition):
    """The controller: its machine, one topic of one partition."""

    def __init__(self, replicas: tuple[int, ...], brokers: int) -> None:
        super().__init__()
        self.log, self.leaders = [], {}
        self.register(*range(1, brokers + 1))
        self.create(replicas, name=PARTITION.topic)

    def apply(self, records: Iterator[ClusterRecord] | Any) -> None:
        for record in records:
            self.machine.apply(encode_cluster_record(record))
        self.machine.take_unannounced()

    def ask(self, node: Node) -> BecomeLeaderReply:
        """A started replica asks for its role, or whether it may begin a log."""
        self.start_count += 1
        request = BecomeLeaderRequest(
            topic_partition=PARTITION,
            topic_id=TOPIC_ID,
            broker_id=node.broker_id,
            incarnation=f"start {self.start_count}",
            expected_epoch=self.partition.leader_epoch,
            has_log=node.has_log,
        )
        return self.run(self.machine.decide_become_leader(request))

    @property
    def is_unbalanced(self) -> bool:
        return bool(balance(self.machine.topics.values(), self.machine.broker_states))

    def balance(self) -> None:
        self.apply(balance(self.machine.topics.values(), self.machine.broker_states))


def is_due(
    node: Replica, leader: LeaderReplication, receiver: int, *, bounds_push_ms: int = 0
) -> bool:
    """Whether a push to one follower is due."""
    machine, progress = node.machine, leader.progress(receiver)
    assert progress is not None
    return progress.is_due(
        ASK_MS,
        log_end_offset=machine.log_end_offset,
        bounds=PushedBounds(machine.high_watermark, machine.log_start_offset),
        bounds_push_ms=bounds_push_ms,
    )


def pushes_to(leader: LeaderReplication, receiver: int) -> list[Push]:
    """What a leader would push to one follower alone."""
    followers, leader._followers = leader._followers, {receiver: leader._followers[receiver]}
    try:
        return leader.pushes(ASK_MS)
    finally:
        leader._followers = followers


class PartitionModel:
    """See the module. ``replicas`` at first, of three brokers; all of them start at once, or one
    after the other (``starts``) as at the creation of the topic. ``story``: steps taken before.
    """

    node_type = Node

    def __init__(
        self,
        name: str,
        scope: Scope,
        *,
        replicas: tuple[int, ...] = (1, 2, 3),
        target: tuple[int, ...] = (),
        starts: bool = False,
        story: tuple[str, ...] = (),
    ) -> None:
        self.story = story
        self.name = name
        self.scope = scope
        self.replicas = replicas
        self.target = target
        self.starts = starts

    def start(self) -> ExploredWorld:
        parts: dict[Hashable, Any] = {n: self.node_type(n) for n in (1, 2, 3)}
        parts[CONTROLLER] = ModelledPartition(self.replicas, 3)
        world = ExploredWorld(parts, Facts(left=self.scope))
        if not self.starts:
            settle(self.replicas, world)
        for line in self.story:
            dict(self.steps(world))[line](world)
        return world

    def key(self, world: ExploredWorld, frozen_part: Callable[[Any], Hashable]) -> Hashable:
        """Versions count from the controller's."""
        version, facts = world.see(CONTROLLER).partition.version, world.facts
        known = [
            None if leader is None else leader.in_sync.version - version
            for leader in (world.see(n).leader for n in (1, 2, 3))
        ]
        late = tuple(since(version, one) for one in facts.late)
        return (*world.keys(frozen_part), *known, replace(facts, late=late))

    def is_in_scope(self, world: ExploredWorld) -> bool:
        return world.see(CONTROLLER).partition.leader_epoch <= world.facts.left.leader_epoch_max

    # --- what can happen -------------------------------------------------------------------------

    def steps(self, world: ExploredWorld) -> Iterator[Step]:
        for n in (1, 2, 3):
            node = world.see(n)
            yield from self._of_broker(world, node)
            if node.is_up and node.leader is not None and node.leader.is_leading:
                yield from self._of_leader(world, node)
        for late in world.facts.late:
            yield f"late: {_told(late)}", partial(arrive, late)
            if late.reply is not None or late.decided is not None:
                yield f"lost: {_told(late)}", partial(lose, late)
        if world.see(CONTROLLER).is_unbalanced:
            yield "the preferred leader is elected", lambda w: w.own(CONTROLLER).balance()
        if self.target and world.facts.left.moves:
            yield f"a move to {self.target} begins", partial(begin_move, self.target)

    def _of_broker(self, world: ExploredWorld, node: Node) -> Iterator[Step]:
        n, left, controller = node.broker_id, world.facts.left, world.see(CONTROLLER)
        is_fenced, partition = controller.is_fenced(n), controller.partition
        if not is_fenced and not node.is_up:
            yield f"{n} is fenced", partial(fence_broker, n)
        if not is_fenced and node.is_up and left.wrong_fences:
            yield f"{n} is taken for dead, and lives", partial(fence_broker, n)
        if node.is_up and is_fenced:
            yield f"{n} is heard again", lambda w: w.own(CONTROLLER).beat(n)
        if not node.is_up:
            yield f"{n} starts, and registers", partial(restart, n)
        elif n in partition.replicas and not node.has_asked:
            what = "asks for its role" if node.has_log else "asks whether to begin a log"
            yield f"{n} {what}", partial(ask, n)
        elif partition.leader == n and node.machine.leader_epoch < partition.leader_epoch:
            yield f"{n} begins to lead in {partition.leader_epoch}", partial(begin_to_lead, n)
        if left.crashes and node.is_up:
            yield f"{n} crashes", partial(crash, n)
        if left.lost_disks:
            yield f"{n} loses its disk", partial(lose_disk, n, "second")
            yield f"{n} loses its log", partial(lose_disk, n, "first")

    def _of_leader(self, world: ExploredWorld, node: Node) -> Iterator[Step]:
        n, left, controller = node.broker_id, world.facts.left, world.see(CONTROLLER)
        if left.records and node.leader.check_append() is ErrorCode.NONE:
            yield f"{n} appends record {self.scope.records - left.records + 1}", partial(append, n)
        if node.synced_end_offset < node.end_offset:
            yield f"{n} syncs", partial(sync, n)
        if node.leader.in_sync.version < controller.partition.version:
            yield f"{n} is told the ISR {controller.partition.isr}", partial(tell, n)
        for to in (1, 2, 3):
            if node.leader.progress(to) is None or not is_due(node, node.leader, to):
                continue
            if world.see(to).is_up:
                yield f"{n} pushes to {to}, which answers", partial(exchange, n, to)
            if left.disturbed and "push" in left.late:
                yield f"{n} pushes to {to}: late", partial(push_late, n, to)
                if world.see(to).is_up:
                    yield f"{n} pushes to {to}: twice", partial(push_twice, n, to)
            if left.disturbed and "answer" in left.late and world.see(to).is_up:
                yield f"{n} pushes to {to}: the answer is late", partial(answer_late, n, to)
        wanted = node.leader.in_sync.isr
        for patience, now_ms in (("", ASK_MS), (", as others lag", LAGGING_MS)):
            before, wanted = wanted, node.leader._wanted_isr(now_ms)
            if node.leader.in_sync.proposal is None and wanted == before:
                continue
            yield f"{n} proposes its ISR{patience}", partial(propose, n, now_ms)
            if left.disturbed and "proposal" in left.late:
                late = f"{n} proposes its ISR{patience}"
                yield f"{late}: late", partial(propose_late, n, now_ms)
                yield f"{late}: the answer is late", partial(decide_late, n, now_ms)

    # --- what must be true -----------------------------------------------------------------------

    def check(self, world: ExploredWorld) -> None:
        for n in (1, 2, 3):
            if world.owns(n):
                self._check_committed(world, world.see(n))
        committed, partition = world.facts.committed, world.see(CONTROLLER).partition
        for n in (*partition.isr, *partition.elr):
            node = world.see(n)
            # Without its log it does not lead: the controller refuses to let it begin one.
            if node.has_log and not is_durable(node, committed):
                raise BrokenPromiseError(
                    f"{n} may be elected, has {node.records()} synced to {node.synced_end_offset}, "
                    f"and {committed} is acknowledged"
                )

    def _check_committed(self, world: ExploredWorld, node: Node) -> None:
        """What a leader has made of the high watermark in this step, beside what was promised."""
        n, machine, facts = node.broker_id, node.machine, world.facts
        is_leading = node.is_up and node.leader is not None and node.leader.is_leading
        if not is_leading or machine.high_watermark <= node.led_from:
            return
        found = node.records(machine.high_watermark)
        shorter = min(len(found), len(facts.committed))
        if found[:shorter] != facts.committed[:shorter]:
            raise BrokenPromiseError(f"{n} has committed {found}, before it was {facts.committed}")
        epoch, committers = machine.leader_epoch, dict(facts.committers)
        if committers.setdefault(epoch, n) != n:
            raise BrokenPromiseError(f"{committers[epoch]} and {n} have committed in {epoch}")
        if len(found) > len(facts.committed):
            copies = sum(is_durable(world.see(one), found) for one in (1, 2, 3))
            if copies + facts.lost < SETTINGS.min_insync_replicas:
                raise BrokenPromiseError(f"{n} has acknowledged {found} with {copies} synced")
            facts = replace(facts, committed=found)
        world.facts = replace(facts, committers=tuple(committers.items()))


def is_durable(node: Node, records: tuple[tuple[int, int], ...]) -> bool:
    """Whether it has these, synced."""
    return node.synced_end_offset >= len(records) and node.records(len(records)) == records


def _told(late: Late) -> str:
    if late.proposal is not None:
        what = "answer to" if late.decided is not None else "reaches the controller:"
        return f"{what} the proposal of {late.sender} in {late.epoch}, {late.proposal.isr}"
    if late.reply is not None:
        return f"answer of {late.receiver} to the push of {late.sender} in {late.epoch}"
    return f"push of {late.sender} in {late.epoch} reaches {late.receiver}"


def since(version: int, late: Late) -> Late:
    """With the versions that it names as differences to this one."""
    proposal, decided = late.proposal, late.decided
    if proposal is not None:
        told = proposal.partition_version - version
        late = replace(late, proposal=replace(proposal, partition_version=told))
    if decided is not None:
        told = decided.partition_version - version
        late = replace(late, decided=replace(decided, partition_version=told))
    return late


def settle(replicas: tuple[int, ...], world: ExploredWorld) -> None:
    """All have started, and the first, which leads, has heard of each that its log is its own."""
    for n in replicas:
        ask(n, world)
    tell(replicas[0], world)
    for n in replicas[1:]:
        exchange(replicas[0], n, world)


# --- steps ---------------------------------------------------------------------------------------


def use(world: ExploredWorld, **counts: int) -> None:
    """So many less are left of what is named."""
    left = world.facts.left
    fewer = {name: getattr(left, name) - count for name, count in counts.items()}
    world.facts = replace(world.facts, left=replace(left, **fewer))


def put(world: ExploredWorld, late: Late) -> None:
    """A call or an answer is on its way."""
    use(world, disturbed=1)
    world.facts = replace(world.facts, late=(*world.facts.late, late))


def take_out(world: ExploredWorld, late: Late) -> None:
    """It is so no longer."""
    rest = list(world.facts.late)
    rest.remove(late)
    world.facts = replace(world.facts, late=tuple(rest))


def fence_broker(n: int, world: ExploredWorld) -> None:
    if world.see(n).is_up:
        use(world, wrong_fences=1)
    world.own(CONTROLLER).fence(n)


def restart(n: int, world: ExploredWorld) -> None:
    node = world.own(n)
    directory_id = "" if node.directory == "first" else node.directory
    node.is_up = (
        world.own(CONTROLLER).register_again(node.broker_id, directory_id) is ErrorCode.NONE
    )


def ask(n: int, world: ExploredWorld) -> None:
    node, controller = world.own(n), world.own(CONTROLLER)
    told = controller.ask(node)
    if told.error is not ErrorCode.NONE:
        return
    if not node.has_log:
        node.has_log = True
    elif told.leader == n:
        node.begin(controller.assignment())
    else:
        node.follow(told.leader_epoch)


def begin_to_lead(n: int, world: ExploredWorld) -> None:
    world.own(n).begin(world.see(CONTROLLER).assignment())


def crash(n: int, world: ExploredWorld) -> None:
    use(world, crashes=1)
    node = world.own(n)
    node.crash()
    node.is_up = False


def lose_disk(n: int, directory: str, world: ExploredWorld) -> None:
    use(world, lost_disks=1)
    world.facts = replace(world.facts, lost=world.facts.lost + 1)
    node = world.own(n)
    node.lose_log()
    node.directory = directory


def append(n: int, world: ExploredWorld) -> None:
    node = world.own(n)
    content = world.facts.left.records
    use(world, records=1)
    node.append(batch(node.end_offset, node.machine.leader_epoch, content))
    if not world.facts.left.crashes:
        sync(n, world)  # Nobody could see a difference.


def sync(n: int, world: ExploredWorld) -> None:
    node = world.own(n)
    node.sync()
    node.leader.synced(node.synced_end_offset)


def tell(n: int, world: ExploredWorld) -> None:
    world.own(n).leader.learn(world.see(CONTROLLER).assignment(), EVENT_MS)


def begin_move(target: tuple[int, ...], world: ExploredWorld) -> None:
    use(world, moves=1)
    world.own(CONTROLLER).reassign(target)


def received(to: int, request: ReplicateRequest, world: ExploredWorld) -> ReplicateReply:
    """A follower takes a push, syncs and answers."""
    node = world.own(to)
    verdict = node.take(request)
    if verdict.error is ErrorCode.KAFKA_STORAGE_ERROR:
        raise BrokenPromiseError(f"{to} cannot follow: {verdict.detail}")
    node.sync_for_answer()
    return node.follower.acknowledge(request, verdict, node.synced_end_offset)


def exchange(n: int, to: int, world: ExploredWorld) -> None:
    node = world.own(n)
    for push in pushes_to(node.leader, to):
        reply = received(to, node.request_of(push), world)
        node.leader.answered(push, reply, EVENT_MS)


def push_late(n: int, to: int, world: ExploredWorld) -> None:
    """Its leader gives it up, and pushes again."""
    node = world.own(n)
    for push in pushes_to(node.leader, to):
        request = node.request_of(push)
        put(world, Late(sender=n, epoch=push.leader_epoch, receiver=to, request=request))
        node.leader.answered(push, request.failed(ErrorCode.REQUEST_TIMED_OUT), EVENT_MS)


def push_twice(n: int, to: int, world: ExploredWorld) -> None:
    node = world.own(n)
    for push in pushes_to(node.leader, to):
        request = node.request_of(push)
        put(world, Late(sender=n, epoch=push.leader_epoch, receiver=to, request=request))
        node.leader.answered(push, received(to, request, world), EVENT_MS)


def answer_late(n: int, to: int, world: ExploredWorld) -> None:
    node = world.own(n)
    for push in pushes_to(node.leader, to):
        reply = received(to, node.request_of(push), world)
        late = Late(sender=n, epoch=push.leader_epoch, receiver=to, push=push, reply=reply)
        put(world, late)


def _proposal(n: int, now_ms: int, world: ExploredWorld) -> IsrProposal | None:
    return world.own(n).leader.proposal(now_ms)  # type: ignore[no-any-return]


def propose(n: int, now_ms: int, world: ExploredWorld) -> None:
    proposal = _proposal(n, now_ms, world)
    if proposal is not None:
        node = world.own(n)
        reply = world.own(CONTROLLER).alter_isr(n, node.machine.leader_epoch, proposal)
        node.leader.proposal_answered(reply, EVENT_MS)


def propose_late(n: int, now_ms: int, world: ExploredWorld) -> None:
    """Its leader gives it up, and proposes again."""
    proposal = _proposal(n, now_ms, world)
    if proposal is not None:
        node = world.own(n)
        put(world, Late(sender=n, epoch=node.machine.leader_epoch, proposal=proposal))
        failed = AlterIsrReply(error=ErrorCode.REQUEST_TIMED_OUT)
        node.leader.proposal_answered(failed, EVENT_MS)


def decide_late(n: int, now_ms: int, world: ExploredWorld) -> None:
    proposal = _proposal(n, now_ms, world)
    if proposal is not None:
        epoch = world.see(n).machine.leader_epoch
        reply = world.own(CONTROLLER).alter_isr(n, epoch, proposal)
        put(world, Late(sender=n, epoch=epoch, proposal=proposal, decided=reply))


def is_awaited(late: Late, world: ExploredWorld) -> bool:
    """Whether the leader that would hear an answer still leads in the epoch in which it asked."""
    node = world.see(late.sender)
    return node.is_up and node.leader is not None and node.machine.leader_epoch == late.epoch


def lose(late: Late, world: ExploredWorld) -> None:
    """An answer does not come: its leader gives it up."""
    take_out(world, late)
    if late.reply is not None:
        late = replace(late, reply=ReplicateReply(error=ErrorCode.REQUEST_TIMED_OUT))
    else:
        late = replace(late, decided=AlterIsrReply(error=ErrorCode.REQUEST_TIMED_OUT))
    deliver(late, world)


def arrive(late: Late, world: ExploredWorld) -> None:
    take_out(world, late)
    deliver(late, world)


def deliver(late: Late, world: ExploredWorld) -> None:
    is_same = is_awaited(late, world)
    if late.request is not None:
        if world.see(late.receiver).is_up:
            received(late.receiver, late.request, world)
    elif late.reply is not None and is_same:
        world.own(late.sender).leader.answered(late.push, late.reply, EVENT_MS)
    elif late.decided is not None and is_same:
        world.own(late.sender).leader.proposal_answered(late.decided, EVENT_MS)
    elif late.proposal is not None and late.decided is None:
        world.own(CONTROLLER).alter_isr(late.sender, late.epoch, late.proposal)


QUIET = Scope(crashes=0, lost_disks=0, wrong_fences=0, disturbed=0)
MODELS = (
    # One lost disk beside one late call, and a broker that is taken for dead.
    PartitionModel(
        "partition-disk",
        replace(QUIET, records=1, lost_disks=1, wrong_fences=1, disturbed=1),
    ),
    # A tail that was not synced, and two elections.
    PartitionModel("partition-crash", replace(QUIET, records=3, crashes=1, wrong_fences=1)),
    # Calls that are late or come twice, between two elections.
    PartitionModel("partition-late", replace(QUIET, records=2, wrong_fences=2, disturbed=2)),
    # All begin in sync, and start one after the other.
    PartitionModel(
        "partition-start",
        replace(QUIET, records=2, lost_disks=1, wrong_fences=1, crashes=1),
        starts=True,
    ),
    PartitionModel(
        "partition-move",
        replace(QUIET, records=2, wrong_fences=1, crashes=1, moves=1),
        replicas=(1, 2),
        target=(2, 3),
    ),
    # One is in sync, another eligible; then disks are lost, and who is taken for dead lives.
    PartitionModel(
        "partition-eligible",
        replace(QUIET, records=1, wrong_fences=4, lost_disks=1, leader_epoch_max=3),
        story=(
            "3 is taken for dead, and lives",
            "1 is told the ISR (1, 2)",
            "1 appends record 1",
            "2 is taken for dead, and lives",
        ),
    ),
    PartitionModel("partition", Scope()),
)
