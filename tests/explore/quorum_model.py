"""The controller's log on three voters: votes, pushes, crashes, a disk replaced, an old disk back.

The machines are those of production: ``decide_vote``, ``Candidacy``, ``QuorumReplication`` and
``FollowerReplication``. As in ``partition_model`` a call and its answer are one step, unless
disturbed. Each voter's disk has the epoch 1 of its last registration, which every log knows; a copy
that was taken before has the epoch 0, unless ``is_registered`` says that there was no registration
since: then nothing tells it from the newest. Voters are alike, so 1 leads first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import msgspec
from cluster_worlds import TOPIC_ID
from explorer import OMITTED, BrokenPromiseError, ExploredWorld, Step, cloned
from msgspec.structs import replace
from partition_model import EVENT_MS, batch, is_due, is_durable, pushes_to
from quorum_world import CLUSTER, Node

from oncelog.actors.protocol.cluster.quorum import Candidacy, Vote, decide_vote
from oncelog.actors.protocol.messages.brokers import NO_DISK, Disk
from oncelog.actors.protocol.messages.replication import (
    ReplicateReply,
    ReplicateRequest,
    VoteReply,
    VoteRequest,
)
from oncelog.actors.protocol.partition.replication import ReplicationSettings
from oncelog.actors.protocol.tickets import NO_KEYS
from oncelog.storage.errors import ErrorCode

VOTERS = (1, 2, 3)
COPY = "copy"
SETTINGS = ReplicationSettings(bounds_push_ms=0)
DISKS = {n: Disk(directory_id=f"disk {n}", broker_epoch=1) for n in VOTERS}

OMITTED["QuorumReplication"] = frozenset({"_retry_proposal_ms", "_sent", "_disks"})
OMITTED["Candidacy"] = frozenset({"_disks", "_voters"})


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """How often what may happen. All but the first are used up."""

    epoch_max: int = 2
    records: int = 2
    crashes: int = 1
    replaced_disks: int = 0
    copies: int = 0
    disturbed: int = 1


class LateVote(msgspec.Struct, frozen=True, kw_only=True):
    """A vote asked for on its way, or (with ``reply``) its answer."""

    receiver: int
    request: VoteRequest
    reply: VoteReply | None = None


class LatePush(msgspec.Struct, frozen=True, kw_only=True):
    """A push that its leader has given up."""

    receiver: int
    request: ReplicateRequest


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the scope, what is on its way, and what was promised."""

    left: Scope
    late: tuple[LateVote | LatePush, ...] = ()
    controllers: tuple[tuple[int, int], ...] = ()
    """By epoch, who was elected."""
    committed: tuple[tuple[int, int], ...] = ()
    """(epoch, content) by offset."""
    committed_in: int = -1
    """The newest epoch of a controller that has committed something."""


class Voter(Node):
    """A voter that says which disk it has."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(broker_id)
        self.disk = DISKS[broker_id]

    def decide(self, request: VoteRequest) -> Vote:
        disk = DISKS.get(request.candidate, NO_DISK)
        vote = decide_vote(self.state, self.position, request, cluster_id=CLUSTER, disk=disk)
        return Vote(vote.state, replace(vote.reply, disk=self.disk))

    def records(self, end_offset: int | None = None) -> tuple[tuple[int, int], ...]:
        held = self.batches if end_offset is None else self.batches[:end_offset]
        return tuple((header.leader_epoch, header.base_timestamp_ms) for header, _ in held)

    def begin(self, voters: tuple[int, ...], content: int, now_ms: int) -> None:
        epoch = self.state.epoch
        self.candidacy = None
        self.machine.become_leader(epoch, TOPIC_ID, NO_KEYS)
        self.quorum = self.replicating(
            self.machine,
            voters=voters,
            leader_epoch=epoch,
            broker_id=self.broker_id,
            synced_end_offset=self.synced_end_offset,
            settings=SETTINGS,
            now_ms=now_ms,
            disks=DISKS,
        )
        self.append(batch(self.end_offset, epoch, content))

    @property
    def is_leading(self) -> bool:
        return self.quorum is not None and self.quorum.is_leading


class QuorumModel:
    """See the module. ``story``: steps taken before."""

    voter_type = Voter

    def __init__(
        self, name: str, scope: Scope, *, is_registered: bool = True, story: tuple[str, ...] = ()
    ) -> None:
        self.story = story
        self.name = name
        self.scope = scope
        self.is_registered = is_registered

    def start(self) -> ExploredWorld:
        parts: dict[Hashable, Any] = {n: self.voter_type(n) for n in VOTERS}
        world = ExploredWorld({**parts, COPY: None}, Facts(left=self.scope))
        stand(1, world)
        ask_vote(1, 2, world)
        for to in (2, 3):
            exchange(1, to, world)
        for line in self.story:
            dict(self.steps(world))[line](world)
        return world

    def key(self, world: ExploredWorld, frozen_part: Callable[[Any], Hashable]) -> Hashable:
        return (*world.keys(frozen_part), world.facts)

    def is_in_scope(self, world: ExploredWorld) -> bool:
        return all(world.see(n).state.epoch <= self.scope.epoch_max for n in VOTERS)

    def steps(self, world: ExploredWorld) -> Iterator[Step]:
        for n in VOTERS:
            voter = world.see(n)
            yield from self._of_disk(world, n)
            if voter.is_leading:
                yield from self._of_leader(world, voter)
            elif voter.quorum is None:
                yield f"{n} stands, and votes for itself", partial(stand, n)
            if voter.candidacy is not None:
                yield from self._of_candidate(world, voter)
        for late in world.facts.late:
            yield f"late: {_told(late)}", partial(arrive, late)

    def _of_disk(self, world: ExploredWorld, n: int) -> Iterator[Step]:
        left = world.facts.left
        if left.crashes:
            yield f"{n} crashes, and starts", partial(crash, n)
        if left.replaced_disks:
            yield f"{n} gets an empty disk", partial(replace_disk, n)
        copied = world.see(COPY)
        if left.copies and copied is None:
            yield f"the disk of {n} is copied", partial(copy_disk, n, self.is_registered)
        if copied is not None and copied.broker_id == n and left.copies:
            yield f"{n} starts with its old disk", partial(put_back, n)

    def _of_candidate(self, world: ExploredWorld, voter: Voter) -> Iterator[Step]:
        n, left = voter.broker_id, world.facts.left
        for to in VOTERS:
            if to == n:
                continue
            yield f"{n} asks {to} for its vote, which answers", partial(ask_vote, n, to)
            if left.disturbed:
                yield f"{n} asks {to} for its vote: late", partial(ask_late, n, to)
                yield f"{n} asks {to} for its vote: the answer is late", partial(vote_late, n, to)

    def _of_leader(self, world: ExploredWorld, voter: Voter) -> Iterator[Step]:
        n, left, leader = voter.broker_id, world.facts.left, voter.quorum
        assert leader is not None
        if left.records:
            yield f"{n} appends record {self.scope.records - left.records + 1}", partial(append, n)
        if voter.synced_end_offset < voter.end_offset:
            yield f"{n} syncs", partial(sync, n)
        for to in VOTERS:
            if to != n and is_due(voter, leader, to):
                yield f"{n} pushes to {to}, which answers", partial(exchange, n, to)
                if left.disturbed:
                    yield f"{n} pushes to {to}: late", partial(push_late, n, to)

    def check(self, world: ExploredWorld) -> None:
        for n in VOTERS:
            if world.owns(n):
                self._check_committed(world, world.see(n))

    def _check_committed(self, world: ExploredWorld, voter: Voter) -> None:
        """What a controller has committed in this step, beside what was."""
        facts, machine = world.facts, voter.machine
        if not voter.is_leading or machine.high_watermark == 0:
            return
        found = voter.records(machine.high_watermark)
        shorter = min(len(found), len(facts.committed))
        if found[:shorter] != facts.committed[:shorter]:
            raise BrokenPromiseError(
                f"{voter.broker_id} has committed {found}, before it was {facts.committed}"
            )
        if len(found) > len(facts.committed):
            newest = max(facts.committed_in, machine.leader_epoch)
            world.facts = replace(facts, committed=found, committed_in=newest)


def _told(late: LateVote | LatePush) -> str:
    if isinstance(late, LatePush):
        leader, epoch = late.request.leader, late.request.leader_epoch
        return f"push of {leader} in {epoch} reaches {late.receiver}"
    who = f"{late.request.candidate} in {late.request.leader_epoch}"
    if late.reply is not None:
        return f"{late.receiver} answers the candidate {who}"
    return f"the candidate {who} asks {late.receiver}"


# --- steps ---------------------------------------------------------------------------------------


def use(world: ExploredWorld, **counts: int) -> None:
    """So many less are left of what is named."""
    left = world.facts.left
    fewer = {name: getattr(left, name) - count for name, count in counts.items()}
    world.facts = replace(world.facts, left=replace(left, **fewer))


def put(world: ExploredWorld, late: LateVote | LatePush) -> None:
    """A call or an answer is on its way."""
    use(world, disturbed=1)
    world.facts = replace(world.facts, late=(*world.facts.late, late))


def stand(n: int, world: ExploredWorld) -> None:
    voter = world.own(n)
    voter.sync()
    told = -1 if voter.candidacy is None else voter.candidacy.newest_epoch
    known = (voter.state.epoch, voter.machine.leader_epoch, voter.position.epoch, told)
    epoch = max(known) + 1
    voter.remember(replace(voter.state, epoch=epoch, voted_for=n))
    voter.candidacy = Candidacy(VOTERS, n, epoch, DISKS)


def vote_request(voter: Voter) -> VoteRequest:
    return VoteRequest(
        cluster_id=CLUSTER,
        candidate=voter.broker_id,
        leader_epoch=voter.candidacy.epoch,  # type: ignore[union-attr]
        log_epoch=voter.position.epoch,
        log_end_offset=voter.end_offset,
        disk=voter.disk,
    )


def answered(n: int, to: int, reply: VoteReply, world: ExploredWorld) -> None:
    """A candidate hears an answer; it may lead with that."""
    voter = world.own(n)
    voter.candidacy.answered(to, reply)
    if not voter.candidacy.is_won:
        return
    facts, epoch = world.facts, voter.candidacy.epoch
    controllers = dict(facts.controllers)
    if controllers.setdefault(epoch, n) != n:
        raise BrokenPromiseError(f"{controllers[epoch]} and {n} are elected in {epoch}")
    if facts.committed_in < epoch and not is_durable(voter, facts.committed):
        raise BrokenPromiseError(
            f"{n} is elected in {epoch} with {voter.records()}, and {facts.committed} is committed"
        )
    world.facts = replace(facts, controllers=tuple(controllers.items()))
    voter.begin(VOTERS, 10 * epoch, EVENT_MS)
    if not world.facts.left.crashes:
        sync(n, world)  # Nobody could see a difference.


def ask_vote(n: int, to: int, world: ExploredWorld) -> None:
    answered(n, to, world.own(to).vote(vote_request(world.see(n))), world)


def ask_late(n: int, to: int, world: ExploredWorld) -> None:
    put(world, LateVote(receiver=to, request=vote_request(world.see(n))))


def vote_late(n: int, to: int, world: ExploredWorld) -> None:
    request = vote_request(world.see(n))
    put(world, LateVote(receiver=to, request=request, reply=world.own(to).vote(request)))


def arrive(late: LateVote | LatePush, world: ExploredWorld) -> None:
    rest = list(world.facts.late)
    rest.remove(late)
    world.facts = replace(world.facts, late=tuple(rest))
    if isinstance(late, LatePush):
        received(late.receiver, late.request, world)
        return
    candidate = late.request.candidate
    reply = late.reply or world.own(late.receiver).vote(late.request)
    candidacy = world.see(candidate).candidacy
    if candidacy is not None and candidacy.epoch == late.request.leader_epoch:
        answered(candidate, late.receiver, reply, world)


def append(n: int, world: ExploredWorld) -> None:
    voter = world.own(n)
    content = world.facts.left.records
    use(world, records=1)
    voter.append(batch(voter.end_offset, voter.machine.leader_epoch, content))
    if not world.facts.left.crashes:
        sync(n, world)


def sync(n: int, world: ExploredWorld) -> None:
    voter = world.own(n)
    voter.sync()
    voter.quorum.synced(voter.synced_end_offset)


def received(to: int, request: ReplicateRequest, world: ExploredWorld) -> ReplicateReply:
    """A voter takes a push, syncs and answers."""
    voter = world.own(to)
    verdict = voter.take(request)
    if verdict.error is ErrorCode.KAFKA_STORAGE_ERROR:
        raise BrokenPromiseError(f"{to} cannot follow: {verdict.detail}")
    voter.sync()
    reply = voter.follower.acknowledge(request, verdict, voter.synced_end_offset)
    return replace(reply, disk=voter.disk)


def exchange(n: int, to: int, world: ExploredWorld) -> None:
    voter = world.own(n)
    for push in pushes_to(voter.quorum, to):
        reply = received(to, voter.request_of(push), world)
        voter.quorum.answered(push, reply, EVENT_MS)


def push_late(n: int, to: int, world: ExploredWorld) -> None:
    voter = world.own(n)
    for push in pushes_to(voter.quorum, to):
        request = voter.request_of(push)
        put(world, LatePush(receiver=to, request=request))
        voter.quorum.answered(push, request.failed(ErrorCode.REQUEST_TIMED_OUT), EVENT_MS)


def crash(n: int, world: ExploredWorld) -> None:
    use(world, crashes=1)
    world.own(n).crash()


def replace_disk(n: int, world: ExploredWorld) -> None:
    use(world, replaced_disks=1)
    voter = world.own(n)
    voter.lose_disk()
    voter.is_blank = False
    voter.disk = Disk(directory_id="empty", broker_epoch=1)


def copy_disk(n: int, is_registered: bool, world: ExploredWorld) -> None:
    """What is durable now; the broker registers again after it, if so."""
    copied = cloned(world.see(n))
    copied.crash()
    copied.disk = replace(copied.disk, broker_epoch=0 if is_registered else 1)
    world.put(COPY, copied)


def put_back(n: int, world: ExploredWorld) -> None:
    use(world, copies=1)
    world.put(n, cloned(world.see(COPY)))


QUIET = Scope(epoch_max=1, records=1, crashes=0, disturbed=0)
MODELS = (
    QuorumModel("quorum-votes", replace(QUIET, epoch_max=2, disturbed=1)),
    QuorumModel("quorum-crash", replace(QUIET, epoch_max=2, crashes=1)),
    QuorumModel("quorum-new-disk", replace(QUIET, epoch_max=2, replaced_disks=1)),
    QuorumModel("quorum-old-disk", replace(QUIET, epoch_max=2, copies=1)),
    QuorumModel("quorum", Scope(replaced_disks=1, copies=1)),
)
