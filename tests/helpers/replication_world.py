"""Replicas of one partition, their controller and the calls between them, without any shell.

Each step of a ``ReplicationWorld`` is one thing that can happen. It holds what is promised beside
what the replicas have, and says in ``BrokenPromiseError`` when the two part.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field, replace

from cluster_worlds import TOPIC_ID
from msgspec import structs
from one_partition import OnePartition
from replica_model import PARTITION, Replica, batch_at

from oncelog.actors.protocol.cluster.elections import elect
from oncelog.actors.protocol.messages.cluster import (
    AlterIsrReply,
    BecomeLeaderReply,
)
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.followers import IsrProposal, Push
from oncelog.actors.protocol.partition.following import ReplicateVerdict
from oncelog.actors.protocol.partition.replication import (
    LeaderReplication,
    ReplicationSettings,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.segments.leader_epochs import epoch_span

WAKE_CHECKS = 0.02
DISTURBANCES = (
    *("time",) * 3,
    *("election",) * 3,
    *("crash",) * 3,
    *("fence",) * 2,
    "restart",
    *("start",) * 5,
    *("ask",) * 8,
    *("move",) * 2,
    *("tell",) * 3,
    "deletion",
    *("read",) * 6,
)
"""What a step does that is no traffic; the more often the more likely."""


class BrokenPromiseError(AssertionError):
    """Something that replication promises did not hold."""


class Controller(OnePartition):
    """The controller's machine and rules, for a topic of one partition on brokers 1 to 3 of 4."""

    def __init__(self, broker_count: int, minimum: int) -> None:
        super().__init__()
        self.register(*range(1, broker_count + 1))
        settings = (("min_insync_replicas", str(minimum)),)
        self.create((1, 2, 3), topic_id=TOPIC_ID, name=PARTITION.topic, settings=settings)
        self.start_replica(1, PARTITION)
        proposal = IsrProposal(partition_version=self.partition.version, isr=(1, 2, 3))
        self.alter_isr(1, self.leader_epoch, proposal)

    @property
    def isr(self) -> tuple[int, ...]:
        return self.partition.isr

    @property
    def leader(self) -> int:
        return self.partition.leader

    @property
    def leader_epoch(self) -> int:
        return self.partition.leader_epoch

    def elect(self, leader: int) -> None:
        """Another leader for no reason, as balancing and draining choose one."""
        isr = self.isr if leader in self.isr else (leader,)
        self.apply([elect(self.topic, 0, leader, isr)])

    def fence(self, broker_id: int) -> None:
        if not self.is_fenced(broker_id):
            super().fence(broker_id)

    def ask(self, broker_id: int) -> BecomeLeaderReply:
        """A replica that has started asks for its role."""
        return self.start_replica(broker_id, PARTITION)


@dataclass
class Call:
    """A push and its request on the way; ``leader`` is the machine that waits for the answer."""

    push: Push
    leader: LeaderReplication
    request: ReplicateRequest
    receiver: int


@dataclass
class Answer:
    call: Call
    verdict: ReplicateVerdict
    reply: ReplicateReply | None = None


@dataclass
class Ballot:
    """A proposal on its way, or (with ``reply``) its answer."""

    leader: LeaderReplication
    broker_id: int
    leader_epoch: int
    proposal: IsrProposal
    reply: AlterIsrReply | None = None


@dataclass
class Read:
    """What a leader found committed before ``committed_end`` was all; it waits to be confirmed."""

    leader: LeaderReplication
    number: int
    high_watermark: int
    committed_end: int


@dataclass
class ReplicationWorld:
    """Everything, and what has been promised: ``committed`` by offset, ``told`` by epoch."""

    random: random.Random
    replica_type: type[Replica] = Replica
    broker_count: int = 4
    settings: ReplicationSettings = field(default_factory=ReplicationSettings)
    elects_outside: bool = False
    has_deletions: bool = True
    now_ms: int = 0

    def __post_init__(self) -> None:
        ids = tuple(range(1, self.broker_count + 1))
        self.replicas = {broker_id: self.replica_type(broker_id) for broker_id in ids}
        self.controller = Controller(self.broker_count, self.settings.min_insync_replicas)
        self.led_epoch = -1
        self.calls: list[Call] = []
        self.answers: list[Answer] = []
        self.ballots: list[Ballot] = []
        self.committed: dict[int, bytes] = {}
        self.committed_end = 0
        self.committers: dict[int, int] = {}
        self.watermarks: dict[int, int] = {}
        self.content = 0
        self.reads: list[Read] = []
        self.confirmed_count = 0
        self.begin_to_lead()

    # --- steps -------------------------------------------------------------------------------

    def begin_to_lead(self) -> None:
        """Whoever was elected begins, if it has a role; the old leader does not know yet."""
        controller = self.controller
        replica = self.replicas.get(controller.leader)
        is_new = controller.leader_epoch > self.led_epoch
        if is_new and replica is not None and replica.is_up and replica.has_asked:
            replica.lead(controller.assignment(), self.settings, self.now_ms)
        self.led_epoch = controller.leader_epoch

    def fail_over(self) -> None:
        """Elect another member of the ISR."""
        controller = self.controller
        eligible = [n for n in controller.isr if not controller.is_fenced(n)]
        if self.elects_outside:
            eligible = [n for n in controller.partition.replicas if not controller.is_fenced(n)]
        if eligible:
            controller.elect(self.random.choice(eligible))

    def start(self, replica: Replica) -> None:
        """A broker that was down starts, or one that was thought dead is heard again."""
        if not replica.is_up:
            replica.is_up = True
            self.controller.register_again(replica.broker_id)
        self.controller.beat(replica.broker_id)

    def ask(self, replica: Replica) -> None:
        """A replica that has started is told who leads; it may be that it is to lead itself."""
        broker_id, controller = replica.broker_id, self.controller
        if not replica.is_up or replica.has_asked:
            return
        if broker_id not in controller.partition.replicas:
            return
        told = controller.ask(broker_id)
        if told.leader == broker_id:
            replica.lead(controller.assignment(), self.settings, self.now_ms)
            self.led_epoch = told.leader_epoch
        else:
            replica.follow(told.leader_epoch)

    def tell(self, replica: Replica) -> None:
        """The controller tells a leader what it has recorded."""
        assert replica.leader is not None
        replica.leader.learn(self.controller.assignment(), self.now_ms)

    def leaders(self) -> list[Replica]:
        return [
            replica
            for replica in self.replicas.values()
            if replica.is_up and replica.leader is not None and replica.leader.is_leading
        ]

    def append(self, replica: Replica) -> None:
        self.content += 1
        epoch = replica.machine.leader_epoch
        count = self.random.choice((1, 1, 2, 3))
        replica.append(batch_at(replica.end_offset, epoch, count=count, content=self.content))

    def sync(self, replica: Replica) -> None:
        replica.sync()
        if replica.leader is not None:
            replica.leader.synced(replica.synced_end_offset)

    def push(self, replica: Replica) -> None:
        leader = replica.leader
        assert leader is not None
        for push in leader.pushes(self.now_ms):
            self.calls.append(Call(push, leader, replica.request_of(push), push.broker_id))

    def deliver(self, call: Call) -> None:
        receiver = self.replicas[call.receiver]
        if receiver.is_up:
            self.answers.append(Answer(call, receiver.take(call.request)))

    def answer(self, answer: Answer) -> None:
        """The follower syncs and answers, and the leader hears it."""
        receiver = self.replicas[answer.call.receiver]
        if not receiver.is_up:
            return
        receiver.sync_for_answer()
        reply = receiver.follower.acknowledge(
            answer.call.request, answer.verdict, receiver.synced_end_offset
        )
        # Consumers come and go there.
        has_readers = answer.call.push.number % 3 == 0
        reply = structs.replace(reply, has_readers=has_readers)
        answer.call.leader.answered(answer.call.push, reply, self.now_ms)

    def give_up(self, call: Call) -> None:
        reply = call.request.failed(ErrorCode.REQUEST_TIMED_OUT)
        call.leader.answered(call.push, reply, self.now_ms)

    def propose(self, replica: Replica) -> None:
        leader = replica.leader
        assert leader is not None
        proposal = leader.proposal(self.now_ms)
        if proposal is not None:
            epoch = replica.machine.leader_epoch
            self.ballots.append(Ballot(leader, replica.broker_id, epoch, proposal))

    def decide(self, ballot: Ballot) -> None:
        if ballot.reply is not None:
            ballot.leader.proposal_answered(ballot.reply, self.now_ms)
            return
        reply = self.controller.alter_isr(ballot.broker_id, ballot.leader_epoch, ballot.proposal)
        self.ballots.append(replace(ballot, reply=reply))

    def lose_ballot(self, ballot: Ballot) -> None:
        ballot.leader.proposal_answered(AlterIsrReply(error=ErrorCode.REQUEST_TIMED_OUT), 0)

    def read(self, replica: Replica) -> None:
        """Read what is committed, of this epoch's beginning at least, to have it confirmed."""
        machine, leader = replica.machine, replica.leader
        assert leader is not None
        if machine.high_watermark >= machine.leader_epochs.latest_start_offset:
            number = leader.ask_to_confirm()
            self.reads.append(Read(leader, number, machine.high_watermark, self.committed_end))

    def delete_records(self, replica: Replica) -> None:
        machine = replica.machine
        if machine.high_watermark > machine.log_start_offset:
            machine.advance_log_start(
                self.random.randint(machine.log_start_offset, machine.high_watermark)
            )
            start = replica.durable_start_offset = machine.log_start_offset
            replica.batches = [held for held in replica.batches if held[0].next_offset > start]

    def crash(self, replica: Replica) -> None:
        """Down; the answers it owed are lost with its process."""
        replica.is_up = False
        replica.crash()
        self.answers = [a for a in self.answers if a.call.receiver != replica.broker_id]

    def restart(self, replica: Replica) -> None:
        """Its process dies and begins again, unnoticed by its broker."""
        if replica.is_up:
            self.crash(replica)
            replica.is_up = True

    # --- a walk ------------------------------------------------------------------------------

    def step(self) -> None:
        self._step()
        self.begin_to_lead()
        self.check()
        if self.random.random() < WAKE_CHECKS:
            for replica in self.leaders():
                self._check_wake(replica)

    def _step(self) -> None:
        chance, draw = self.random.random(), self.random
        replica = draw.choice(list(self.replicas.values()))
        leaders = self.leaders()
        leader = draw.choice(leaders) if leaders else None
        self.now_ms += draw.choice((0, 1, 10, 100))
        if chance < 0.17 and leader is not None:
            self.append(leader)
        elif chance < 0.25 and leader is not None:
            self.sync(leader)
        elif chance < 0.43 and leader is not None:
            self.push(leader)
        elif chance < 0.60 and self.calls:
            self._deliver_some_call()
        elif chance < 0.75 and self.answers:
            self.answer(self.answers.pop(draw.randrange(len(self.answers))))
        elif chance < 0.81 and leader is not None:
            self.propose(leader)
        elif chance < 0.89 and self.ballots:
            self._deliver_some_ballot()
        else:
            self._disturb(draw.choice(DISTURBANCES), replica, leader)

    def _disturb(self, what: str, replica: Replica, leader: Replica | None) -> None:
        if what == "time":
            self.now_ms += 31_000
        elif what == "election":
            self.fail_over()
        elif what == "crash":
            self.crash(replica)
        elif what == "fence":
            self.controller.fence(replica.broker_id)
        elif what == "restart":
            self.restart(replica)
        elif what == "start":
            self.start(replica)
        elif what == "ask":
            for each in self.replicas.values():
                self.ask(each)
        elif what == "move":
            ids = self.random.sample(sorted(self.replicas), self.random.choice((0, 2, 3)))
            self.controller.reassign(tuple(ids))
        elif leader is not None and what == "tell":
            self.tell(leader)
        elif leader is not None and what == "read":
            self.read(leader)
        elif leader is not None and self.has_deletions and self._is_current(leader):
            self.delete_records(leader)

    def _is_current(self, leader: Replica) -> bool:
        return leader.machine.leader_epoch == self.controller.leader_epoch

    def _deliver_some_call(self) -> None:
        call = self.calls.pop(self.random.randrange(len(self.calls)))
        fate = self.random.random()
        if fate < 0.12:
            self.give_up(call)
        if fate < 0.06:
            return
        if 0.06 <= fate < 0.3:
            self.calls.append(call)  # A copy that arrives later.
        if fate >= 0.12 or self.random.random() < 0.5:
            self.deliver(call)

    def _deliver_some_ballot(self) -> None:
        ballot = self.ballots.pop(self.random.randrange(len(self.ballots)))
        fate = self.random.random()
        if fate < 0.3:
            self.lose_ballot(ballot)
            if ballot.reply is None and fate < 0.2:
                self.ballots.append(ballot)  # Arrives later all the same.
            return
        self.decide(ballot)

    def heal(self) -> None:
        """Everything comes up and every call arrives, until nothing is left to do."""
        for replica in self.replicas.values():
            self.start(replica)
            self.ask(replica)
        self.calls, self.ballots = [], []
        self.fail_over()
        for turn in range(60):
            self.begin_to_lead()
            leader = self.replicas[self.controller.leader]
            if turn == 0 or leader.end_offset == 0:
                self.append(leader)
            self.now_ms += 1_000
            self.sync(leader)
            self.tell(leader)
            self.push(leader)
            for call in self.calls:
                self.deliver(call)
            self.calls = []
            for answer in self.answers:
                self.answer(answer)
            self.answers = []
            self.check()
            self.propose(leader)
            for ballot in list(self.ballots):
                self.decide(ballot)
                self.ballots.remove(ballot)
            self.controller.move_on()
            self.begin_to_lead()
            self.check()

    # --- promises ----------------------------------------------------------------------------

    def check(self) -> None:
        for replica in self.leaders():
            self._check_leader(replica)
        self._check_electable()
        for replica in self.replicas.values():
            self._check_epochs(replica)
            self._check_readable(replica)
        self._check_reads()

    def _check_reads(self) -> None:
        """What is confirmed was current when it was read."""
        up = [replica.leader for replica in self.leaders()]
        self.reads = [read for read in self.reads if read.leader in up]
        for read in list(self.reads):
            if read.leader.confirmed >= read.number:
                self.reads.remove(read)
                self.confirmed_count += 1
                if read.high_watermark < read.committed_end:
                    raise BrokenPromiseError(f"{read} was confirmed")

    def _check_wake(self, replica: Replica) -> None:
        """A leader has nothing to do before the time at which it says to ask again."""
        assert replica.leader is not None
        wake_ms = replica.leader.wake_ms(self.now_ms)
        last_ms = self.now_ms + 100_000 if wake_ms is None else wake_ms - 1
        for now_ms in (self.now_ms, last_ms):
            if self.now_ms <= now_ms <= last_ms:
                leader = copy.deepcopy(replica.leader)
                if leader.pushes(now_ms) or leader.proposal(now_ms):
                    raise BrokenPromiseError(f"due at {now_ms}, to be asked at {wake_ms}")

    def _check_epochs(self, replica: Replica) -> None:
        """The epochs a replica knows are those of its batches."""
        machine = replica.machine
        for header, _ in replica.batches:
            offset = max(header.base_offset, machine.log_start_offset)
            known = epoch_span(machine.leader_epochs.entries, offset)[0]
            if header.next_offset > offset and known != header.leader_epoch:
                raise BrokenPromiseError(f"{machine} takes {offset} to be of epoch {known}")

    def _check_readable(self, replica: Replica) -> None:
        """What any replica gives to consumers is committed, whoever leads by now."""
        machine = replica.machine
        for base_offset, batch in replica.content(machine.log_start_offset, machine.high_watermark):
            if self.committed.get(base_offset) != batch:
                raise BrokenPromiseError(f"{machine} can be read, {base_offset} is not committed")

    def _check_leader(self, replica: Replica) -> None:
        """What a leader says is committed: one per epoch, only upwards, synced by the ISR."""
        machine, epoch = replica.machine, replica.machine.leader_epoch
        committer = self.committers.setdefault(epoch, replica.broker_id)
        if committer != replica.broker_id:
            raise BrokenPromiseError(f"{committer} and {replica.broker_id} lead in {epoch}")
        watermark = machine.high_watermark
        if watermark < self.watermarks.get(epoch, 0):
            raise BrokenPromiseError(f"high watermark of {epoch} went back to {watermark}")
        if watermark > self.watermarks.get(epoch, watermark):
            self._check_synced(watermark)
            self._check_minimum(replica)
        self.watermarks[epoch] = watermark
        for base_offset, batch in replica.content(machine.log_start_offset, watermark):
            if self.committed.setdefault(base_offset, batch) != batch:
                raise BrokenPromiseError(f"two batches are committed at {base_offset}")
        self.committed_end = max(self.committed_end, watermark)

    def _check_minimum(self, replica: Replica) -> None:
        assert replica.leader is not None
        isr = replica.leader.in_sync.isr
        if len(isr) < self.settings.min_insync_replicas:
            raise BrokenPromiseError(f"high watermark rose with {sorted(isr)} in sync")

    def _check_synced(self, watermark: int) -> None:
        """Whoever could be elected now has all of it, synced."""
        for broker_id in self.controller.isr:
            synced = self.replicas[broker_id].synced_end_offset
            if synced < watermark:
                raise BrokenPromiseError(f"{watermark} is committed, {broker_id} has {synced}")

    def _check_electable(self) -> None:
        """Every member of the ISR has every committed batch that is not deleted."""
        starts = [r.machine.log_start_offset for r in self.replicas.values()]
        for broker_id in self.controller.isr:
            replica = self.replicas[broker_id]
            held = {header.base_offset: batch for header, batch in replica.batches}
            for base_offset, batch in self.committed.items():
                if base_offset >= max(starts) and held.get(base_offset) != batch:
                    raise BrokenPromiseError(f"{broker_id} lacks the committed {base_offset}")

    def check_equal(self) -> None:
        """After healing: all logs are equal, byte for byte, and all is committed."""
        leader = self.replicas[self.controller.leader]
        present = [self.replicas[n] for n in self.controller.partition.replicas]
        start = max(replica.machine.log_start_offset for replica in present)
        end = leader.end_offset
        for replica in present:
            if replica.content(start, end) != leader.content(start, end):
                raise BrokenPromiseError(f"{replica.broker_id} differs from its leader")
            if replica.end_offset != end:
                raise BrokenPromiseError(f"{replica.broker_id} ends at {replica.end_offset}")
            if not self.has_deletions and replica.machine.snapshot() != leader.machine.snapshot():
                raise BrokenPromiseError(f"{replica.broker_id} knows other producers")
        if self.controller.partition.is_moving or len(self.controller.isr) != len(present):
            raise BrokenPromiseError(f"not all are in sync: {self.controller.partition}")
        if leader.machine.high_watermark != end:
            raise BrokenPromiseError(f"not all is committed: {leader.machine}")


def walk(seed: int, steps: int = 400, **fields: object) -> ReplicationWorld:
    """One random history, healed at its end; raises if a promise is broken."""
    chance = random.Random(seed)
    settings = ReplicationSettings(
        min_insync_replicas=chance.choice((1, 1, 2)), push_max_bytes=chance.choice((150, 1_000))
    )
    has_deletions = chance.random() < 0.5
    world = ReplicationWorld(chance, settings=settings, has_deletions=has_deletions, **fields)  # type: ignore[arg-type]
    for _ in range(steps):
        world.step()
    world.heal()
    world.check_equal()
    return world
