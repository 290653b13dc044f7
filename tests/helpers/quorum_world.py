"""Copies of the controller's log, their voters and the calls between them, without any shell.

Each step of a ``QuorumWorld`` is one thing that can happen, as in ``replication_world``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from cluster_worlds import TOPIC_ID
from msgspec.structs import replace
from replica_model import Replica, batch_at
from replication_world import BrokenPromiseError

from oncelog.actors.protocol.cluster.quorum import (
    VOTERS_MAX,
    Candidacy,
    LogPosition,
    Vote,
    VoterState,
    decide_vote,
    may_be_candidate,
    with_epoch,
)
from oncelog.actors.protocol.messages.replication import ReplicateRequest, VoteReply, VoteRequest
from oncelog.actors.protocol.partition.followers import Push
from oncelog.actors.protocol.partition.following import ReplicateVerdict
from oncelog.actors.protocol.partition.quorum_replication import QuorumReplication
from oncelog.actors.protocol.partition.replication import ReplicationSettings
from oncelog.actors.protocol.tickets import NO_KEYS
from oncelog.storage.errors import ErrorCode
from oncelog.storage.segments.leader_epochs import epoch_span

CLUSTER = "c" * 32
NODE_COUNT = 4
RECENT_CALLS = 8


class Node(Replica):
    """A copy with its voter, and at times a candidate or the controller."""

    replicating = QuorumReplication

    def __init__(self, broker_id: int) -> None:
        super().__init__(broker_id)
        self.state = VoterState(is_copied=broker_id > 1)
        self.candidacy: Candidacy | None = None
        self.quorum: QuorumReplication | None = None
        self.leader = None
        self.reads: dict[int, tuple[int, int]] = {}
        self.is_blank = False
        """It has lost its disk, and no controller has taken it off the voters yet."""

    @property
    def position(self) -> LogPosition:
        last = epoch_span(self.machine.leader_epochs.entries, self.end_offset - 1)[0]
        return LogPosition(-1 if last is None else last, self.end_offset)

    def vote(self, request: VoteRequest) -> VoteReply:
        if self.is_blank:
            return request.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        vote = self.decide(request)
        self.remember(vote.state)
        return vote.reply

    def decide(self, request: VoteRequest) -> Vote:
        return decide_vote(self.state, self.position, request, cluster_id=CLUSTER)

    def remember(self, state: VoterState) -> None:
        """Durably. Whoever knows a newer epoch leads, and stands, in no older one."""
        if state.epoch > self.state.epoch:
            self.resign()
            if state.voted_for != self.broker_id:
                self.machine.become_follower(state.epoch)
        self.state = state

    def resign(self) -> None:
        if self.quorum is not None:
            self.quorum.step_down()
        self.quorum = self.candidacy = None
        self.reads = {}

    def give_up(self) -> None:
        """Stand no longer, but know the epoch in which it stood."""
        if self.candidacy is not None:
            self.candidacy = None
            self.machine.become_follower(self.state.epoch)

    def crash(self) -> None:
        self.quorum = self.candidacy = None
        self.reads = {}
        super().crash()
        self.machine.become_follower(self.remembered_epoch())

    def remembered_epoch(self) -> int:
        return self.state.epoch

    def lose_disk(self) -> None:
        self.batches = []
        self.state = VoterState(is_copied=True)
        self.synced_end_offset = self.durable_start_offset = 0
        self.crash()
        self.is_blank = True

    def take(self, request: ReplicateRequest) -> ReplicateVerdict:
        if self.candidacy is not None and request.leader_epoch >= self.state.epoch:
            self.give_up()
        if self.candidacy is not None or self.is_blank:
            return ReplicateVerdict(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if request.leader_epoch > self.state.epoch:
            self.remember(with_epoch(self.state, request.leader_epoch))
        return super().take(request)

    def begin(self, voters: tuple[int, ...], content: int, now_ms: int) -> None:
        """Elected: lead, with a first batch of the epoch."""
        epoch = self.state.epoch
        self.candidacy = None
        self.machine.become_leader(epoch, TOPIC_ID, NO_KEYS)
        self.quorum = self.replicating(
            self.machine,
            voters=voters,
            leader_epoch=epoch,
            broker_id=self.broker_id,
            synced_end_offset=self.synced_end_offset,
            settings=ReplicationSettings(push_max_bytes=200),
            now_ms=now_ms,
        )
        self.append(batch_at(self.end_offset, epoch, content=content))


@dataclass
class Pushed:
    """A push on its way, or (with ``verdict``) its answer."""

    leader: QuorumReplication
    push: Push
    request: ReplicateRequest
    receiver: int
    verdict: ReplicateVerdict | None = None


@dataclass
class Ballot:
    """A vote asked for on its way, or (with ``reply``) its answer."""

    candidacy: Candidacy
    request: VoteRequest
    receiver: int
    reply: VoteReply | None = None


@dataclass
class QuorumWorld:
    """Everything, and what is promised: one controller per epoch, nothing committed is lost."""

    random: random.Random
    node_type: type[Node] = Node
    asks_may_change: bool = True
    now_ms: int = 0
    calls: list[Pushed | Ballot] = field(default_factory=list)
    committed: dict[int, bytes] = field(default_factory=dict)
    committed_in: dict[int, int] = field(default_factory=dict)
    """By offset, the epoch of the controller that committed it."""
    committed_end: int = 0
    controllers: dict[int, int] = field(default_factory=dict)
    voters_at: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By content, the voters that a batch names."""
    content: int = 0
    confirmed_count: int = 0
    isolated: int = -1
    """A node that nobody reaches, and that reaches nobody."""

    def __post_init__(self) -> None:
        self.nodes = {n: self.node_type(n) for n in range(1, NODE_COUNT + 1)}

    def voters_of(self, node: Node) -> tuple[int, ...]:
        """As the node's log has them."""
        named = [header.base_sequence for header, _ in node.batches]
        return next((self.voters_at[n] for n in reversed(named) if n in self.voters_at), (1,))

    # --- steps -------------------------------------------------------------------------------

    def new_content(self) -> int:
        self.content += 1
        return self.content

    def stand(self, node: Node) -> None:
        if node.is_up and node.quorum is not None and not node.quorum.is_leading:
            self.crash(node)  # One that has lost begins again.
            node.is_up = True
        voters = self.voters_of(node)
        if not node.is_up or node.quorum is not None or node.is_blank:
            return
        if not self.may_be_candidate(node, voters):
            return
        node.sync()
        newest = max(node.state.epoch, node.machine.leader_epoch, node.position.epoch)
        told = node.candidacy.newest_epoch if node.candidacy is not None else -1
        epoch = max(newest, told) + 1
        node.remember(replace(node.state, epoch=epoch, voted_for=node.broker_id))
        node.candidacy = Candidacy(voters, node.broker_id, epoch)
        request = VoteRequest(
            cluster_id=CLUSTER,
            candidate=node.broker_id,
            leader_epoch=epoch,
            log_epoch=node.position.epoch,
            log_end_offset=node.end_offset,
        )
        self.calls += [
            Ballot(node.candidacy, request, other) for other in voters if other != node.broker_id
        ]
        self.elect(node)

    def may_be_candidate(self, node: Node, voters: tuple[int, ...]) -> bool:
        return may_be_candidate(node.state, voters, node.broker_id)

    def elect(self, node: Node) -> None:
        candidacy = node.candidacy
        if candidacy is None or not candidacy.is_won or not node.is_up:
            return
        other = self.controllers.setdefault(candidacy.epoch, node.broker_id)
        if other != node.broker_id:
            raise BrokenPromiseError(f"{other} and {node.broker_id} lead in {candidacy.epoch}")
        held = {header.base_offset: batch for header, batch in node.batches}
        for base_offset, batch in self.committed.items():
            # One whose last vote comes late, when a newer one has committed, is refused.
            is_owed = self.committed_in[base_offset] <= candidacy.epoch
            if is_owed and held.get(base_offset) != batch:
                raise BrokenPromiseError(f"{node.broker_id} leads without {base_offset}")
        node.begin(self.voters_of(node), self.new_content(), self.now_ms)
        self.assign(node)

    def leaders(self) -> list[Node]:
        return [n for n in self.nodes.values() if n.is_up and n.quorum and n.quorum.is_leading]

    def assign(self, node: Node) -> None:
        """Push to the voters, and to as many others as are wanted."""
        assert node.quorum is not None
        voters = self.voters_of(node)
        others = [n for n in self.nodes if n not in voters]
        learners = others[: VOTERS_MAX - len(voters)] if self.asks_may_change else others
        node.quorum.set_voters(voters, learners, self.now_ms)

    def change_voters(self, node: Node) -> None:
        """One voter less if it has lost its disk, or one more."""
        quorum = node.quorum
        assert quorum is not None
        voters = self.voters_of(node)
        if self.asks_may_change and not quorum.may_change_voters:
            return
        blank = [n for n in voters if self.nodes[n].is_blank]
        ready = [n for n in self.nodes if n not in voters and n in quorum.caught_up()]
        changed = voters
        if blank:
            changed = tuple(n for n in voters if n != blank[0])
        elif len(voters) < VOTERS_MAX and ready:
            changed = (*voters, self.random.choice(ready))
        if changed != voters:
            content = self.new_content()
            self.voters_at[content] = changed
            epoch = node.machine.leader_epoch
            node.append(batch_at(node.end_offset, epoch, content=content))
            self.assign(node)

    def register(self, leader: Node) -> None:
        """Whoever lost its disk takes part again once it is committed that it has no vote."""
        assert leader.quorum is not None
        for node in self.nodes.values():
            if leader.quorum.may_change_voters and node.broker_id not in leader.quorum.voters:
                node.is_blank = False

    def lose_disk(self, leader: Node) -> None:
        """A disk is lost while all three voters are there; more would be lost for good."""
        assert leader.quorum is not None
        voters = leader.quorum.voters
        is_newest = leader.state.epoch == max(n.state.epoch for n in self.nodes.values())
        is_sound = not any(node.is_blank for node in self.nodes.values())
        if is_newest and is_sound and len(voters) == VOTERS_MAX and leader.quorum.may_change_voters:
            lost = self.random.choice(sorted(voters - {leader.broker_id}))
            self.nodes[lost].is_up = True
            self.crash(self.nodes[lost])
            self.nodes[lost].lose_disk()

    def append(self, node: Node) -> None:
        content = self.new_content()
        node.append(batch_at(node.end_offset, node.machine.leader_epoch, content=content))

    def sync(self, node: Node) -> None:
        node.sync()
        if node.quorum is not None:
            node.quorum.synced(node.synced_end_offset)

    def read(self, node: Node) -> None:
        """Read what is committed, and have it confirmed later."""
        quorum = node.quorum
        assert quorum is not None
        if node.machine.high_watermark > node.machine.leader_epochs.latest_start_offset:
            number = quorum.ask_to_confirm()
            node.reads[number] = (node.machine.high_watermark, self.committed_end)

    def push(self, node: Node) -> None:
        quorum = node.quorum
        assert quorum is not None
        for push in quorum.pushes(self.now_ms):
            request = node.request_of(push)
            self.calls.append(Pushed(quorum, push, request, push.broker_id))

    def deliver(self, call: Pushed | Ballot) -> None:
        """A call arrives, or its answer does."""
        receiver = self.nodes[call.receiver]
        sender = call.request.candidate if isinstance(call, Ballot) else call.request.leader
        is_request = isinstance(call, Ballot) or call.verdict is None
        is_cut = self.isolated in (sender, call.receiver) and is_request
        if is_cut or (not receiver.is_up and not (isinstance(call, Ballot) and call.reply)):
            self.lose(call)
        elif isinstance(call, Ballot):
            if call.reply is not None:
                call.candidacy.answered(call.receiver, call.reply)
                for node in self.nodes.values():
                    if node.candidacy is call.candidacy:
                        self.elect(node)
            else:
                reply = receiver.vote(call.request)
                self.calls.append(Ballot(call.candidacy, call.request, call.receiver, reply))
        elif call.verdict is None:
            verdict = receiver.take(call.request)
            self.calls.append(Pushed(call.leader, call.push, call.request, call.receiver, verdict))
        else:
            receiver.sync_for_answer()
            reply = receiver.follower.acknowledge(
                call.request, call.verdict, receiver.synced_end_offset
            )
            call.leader.answered(call.push, reply, self.now_ms)

    def lose(self, call: Pushed | Ballot) -> None:
        if isinstance(call, Pushed):
            reply = call.request.failed(ErrorCode.REQUEST_TIMED_OUT)
            call.leader.answered(call.push, reply, self.now_ms)

    def crash(self, node: Node) -> None:
        """Down; the answers it owed are lost with its process, those to votes have left."""
        node.is_up = False
        node.crash()
        for call in list(self.calls):
            if isinstance(call, Pushed) and call.verdict and call.receiver == node.broker_id:
                self.calls.remove(call)
                self.lose(call)

    # --- a walk ------------------------------------------------------------------------------

    def step(self) -> None:
        draw, chance = self.random, self.random.random()
        node = draw.choice(list(self.nodes.values()))
        leaders = self.leaders()
        leader = draw.choice(leaders) if leaders else None
        self.now_ms += draw.choice((0, 1, 10, 300))
        if chance < 0.03 or (leader is None and chance < 0.2):
            self.stand(node)
        elif 0.2 < chance < 0.207:
            self.crash(node if leader is None or draw.random() < 0.5 else leader)
        elif 0.21 < chance < 0.22 and leader is not None and len(leader.quorum.voters) == 3:
            self.isolated = leader.broker_id
        elif 0.22 < chance < 0.235:
            self.isolated = -1
        elif 0.235 < chance < 0.30:
            node.is_up = True
        elif chance > 0.5 and self.calls:
            self._deliver_some()
        elif leader is not None:
            act = draw.choice(
                (self.append, self.sync, self.sync, self.push, self.push, self.push, self.read)
            )
            act(leader)
            self.register(leader)
            if draw.random() < 0.6:
                self.change_voters(leader)
            elif draw.random() < 0.06:
                self.lose_disk(leader)
        self.check()

    def _deliver_some(self) -> None:
        # Mostly a recent one: a late one is late by a whole election at times, not always.
        first = 0 if self.random.random() < 0.1 else max(0, len(self.calls) - RECENT_CALLS)
        call = self.calls.pop(self.random.randrange(first, len(self.calls)))
        fate = self.random.random()
        if fate < 0.12:
            self.lose(call)
        if fate < 0.06:
            return
        is_request = isinstance(call, Ballot) or call.verdict is None
        if 0.12 <= fate < 0.3 and is_request:
            self.calls.append(call)  # A copy that arrives later.
        self.deliver(call)

    def heal(self) -> None:
        """Everybody is up and every call arrives: a controller is found, and all is committed."""
        self.isolated = -1
        for node in self.nodes.values():
            node.is_up = True
        for call in self.calls:
            self.lose(call)
        self.calls = []
        for turn in range(200):
            self.now_ms += 1_000
            leaders = self.leaders()
            if turn % 10 == 0:
                for node in self.nodes.values():
                    node.give_up()
            if not leaders and turn % 10 == 0:
                self.stand(self.nodes[turn // 10 % NODE_COUNT + 1])
            for leader in leaders:
                self.sync(leader)
                self.push(leader)
            calls, self.calls = self.calls, []
            for call in calls:
                self.deliver(call)
            self.check()

    def check_healed(self) -> None:
        leaders = self.leaders()
        newest = max(leaders, key=lambda node: node.state.epoch, default=None)
        if newest is None:
            raise BrokenPromiseError("nobody leads")
        if newest.machine.high_watermark != newest.end_offset:
            raise BrokenPromiseError(f"not all is committed: {newest.machine}")
        for voter in self.voters_of(newest):
            if self.nodes[voter].is_blank:
                continue
            node = self.nodes[voter]
            if node.content(0, node.end_offset) != newest.content(0, newest.end_offset):
                raise BrokenPromiseError(f"{voter} differs from {newest.broker_id}")

    # --- promises ----------------------------------------------------------------------------

    def check(self) -> None:
        for node in self.leaders():
            watermark = node.machine.high_watermark
            for base_offset, batch in node.content(0, watermark):
                if self.committed.setdefault(base_offset, batch) != batch:
                    raise BrokenPromiseError(f"two batches are committed at {base_offset}")
                self.committed_in.setdefault(base_offset, node.machine.leader_epoch)
            self.committed_end = max(self.committed_end, watermark)
        for node in self.leaders():
            self._check_reads(node)

    def _check_reads(self, node: Node) -> None:
        assert node.quorum is not None
        confirmed = node.quorum.confirmed
        for number in [number for number in node.reads if number <= confirmed]:
            read, committed_end = node.reads.pop(number)
            self.confirmed_count += 1
            if read < committed_end:
                raise BrokenPromiseError(f"{node.broker_id} answered {read} of {committed_end}")


def walk(
    seed: int, steps: int = 700, world_type: type[QuorumWorld] = QuorumWorld, **fields: object
) -> QuorumWorld:
    """One random history, healed at its end; raises if a promise is broken."""
    world = world_type(random.Random(seed), **fields)  # type: ignore[arg-type]
    for _ in range(steps):
        world.step()
    world.heal()
    world.check_healed()
    return world
