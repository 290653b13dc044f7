"""Random histories of replicas, elections, crashes and lost, late and repeated calls.

What is promised is in ``replication_world``; each saboteur breaks one rule of the machines, and a
walk must notice.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from replica_model import Replica
from replication_world import BrokenPromiseError, ReplicationWorld, walk

from oncelog.actors.protocol.cluster import brokers, elections
from oncelog.actors.protocol.cluster.cluster_records import LeaderElected
from oncelog.actors.protocol.messages.cluster import AlterIsrReply
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition import following
from oncelog.actors.protocol.partition.followers import InSyncReplicas, Push
from oncelog.actors.protocol.partition.following import FollowerReplication, ReplicateVerdict
from oncelog.actors.protocol.partition.replication import LeaderReplication
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.model import NO_OFFSET

SABOTAGED_WALKS_MAX = 400


@example(seed=16777216)  # a move that only takes a replica away: no change of the ISR ends it
@given(seed=st.integers(0, 2**32))
def test_committed_batches_stay_and_logs_become_equal(seed: int) -> None:
    assert walk(seed).committed_end > 0


def test_walks_reach_what_they_are_for() -> None:
    """Elections, deletions, a changed ISR and cuts all happen; else the walks prove little."""
    worlds = [ReplicationWorld(random.Random(seed)) for seed in range(40)]
    cuts = restarts = 0
    for world in worlds:
        for _ in range(400):
            world.step()
            verdicts = [answer.verdict for answer in world.answers[-1:]]
            cuts += sum(verdict.truncate_offset != NO_OFFSET for verdict in verdicts)
            restarts += sum(verdict.restart_offset != NO_OFFSET for verdict in verdicts)
    assert sum(world.controller.leader_epoch for world in worlds) > 200
    assert sum(world.committed_end for world in worlds) > 1_000
    assert sum(len(world.controller.isr) < 3 for world in worlds) > 10
    assert sum(world.confirmed_count for world in worlds) > 50
    assert cuts > 50
    assert restarts > 5


# --- saboteurs ---------------------------------------------------------------------------------


class CountsShrinkEarly(LeaderReplication):
    def _committed_end_offset(self) -> int:
        wanted = self.in_sync.proposal
        members = self.in_sync.maximal if wanted is None else wanted.isr
        return min(self._match_offset(broker_id) for broker_id in members)


class FollowsTheFastest(LeaderReplication):
    def _committed_end_offset(self) -> int:
        others = self.in_sync.maximal - {self._broker_id}
        best = max((self._match_offset(broker_id) for broker_id in others), default=2**62)
        return min(self._synced_end_offset, best)


class CountsWhatIsNotSynced(LeaderReplication):
    def _advance(self) -> bool:
        self._synced_end_offset = self._bounds.log_end_offset
        return super()._advance()


class ExpandsEarly(LeaderReplication):
    def _wanted_isr(self, now_ms: int) -> frozenset[int]:
        known = {n for n, progress in self._followers.items() if progress.match_offset >= 0}
        return super()._wanted_isr(now_ms) | known


class ForgetsProposals(LeaderReplication):
    def proposal_answered(self, reply: AlterIsrReply, now_ms: int) -> bool:
        if reply.leader_epoch < 0:
            self._in_sync = InSyncReplicas(self._in_sync.isr, self._in_sync.version)
        return super().proposal_answered(reply, now_ms)


class IgnoresTheMinimum(LeaderReplication):
    @property
    def has_too_few(self) -> bool:
        return False


class ConfirmsByItself(LeaderReplication):
    @property
    def confirmed(self) -> int:
        return self._asked


class IsConfirmedByOne(LeaderReplication):
    def _confirmed_by_enough(self) -> int:
        others = self._in_sync.maximal - {self._broker_id}
        return max((self._confirmed_by(other) for other in others), default=self._asked)


class IsConfirmedByWhatWasSentBefore(LeaderReplication):
    def answered(self, push: Push, reply: ReplicateReply, now_ms: int) -> bool:
        self._sent[push.broker_id] = self._asked
        return super().answered(push, reply, now_ms)


class IgnoresEpochs(FollowerReplication):
    @property
    def known_epoch(self) -> int:
        return -1


class AcknowledgesEarly(FollowerReplication):
    def acknowledge(self, request, verdict, synced_end_offset):  # type: ignore[no-untyped-def]
        return super().acknowledge(request, verdict, self._machine.log_end_offset)


class LateSyncs(Replica):
    following = AcknowledgesEarly

    def sync_for_answer(self) -> None:
        """Answers first."""


class CutsToTheHighWatermark(Replica):
    def take(self, request: ReplicateRequest) -> ReplicateVerdict:
        if self.follower.decide(request).adopts_epoch:
            self.machine.become_follower(self.machine.leader_epoch)
            self.truncate(self.machine.high_watermark)
            self.machine.become_follower(self.machine.leader_epoch)
        return super().take(request)


class CutsWhereverAPushBegins(Replica):
    def take(self, request: ReplicateRequest) -> ReplicateVerdict:
        verdict = self.follower.decide(request)
        begins = request.previous_end_offset
        if verdict.agreed_offset != NO_OFFSET and begins < self.end_offset and self.leader is None:
            self.truncate(begins)
            self.machine.become_follower(self.machine.leader_epoch)
        return super().take(request)


class DoesNotAsk(Replica):
    def crash(self) -> None:
        super().crash()
        self.machine.become_follower(-1)


def led_by(kind: type[LeaderReplication]) -> type[Replica]:
    return type("Led", (Replica,), {"leading": kind})


def followed_by(kind: type[FollowerReplication]) -> type[Replica]:
    return type("Followed", (Replica,), {"following": kind})


SABOTEURS = {
    "shrink counted before the controller has it": led_by(CountsShrinkEarly),
    "high watermark of the fastest follower": led_by(FollowsTheFastest),
    "own end counted before it is synced": led_by(CountsWhatIsNotSynced),
    "follower joins before it has what is committed": led_by(ExpandsEarly),
    "proposal forgotten when its call fails": led_by(ForgetsProposals),
    "no epoch check at followers": followed_by(IgnoresEpochs),
    "acknowledged before it is synced": LateSyncs,
    "cut to the high watermark under a new leader": CutsToTheHighWatermark,
    "cut wherever a push begins": CutsWhereverAPushBegins,
    "high watermark raised by too few": led_by(IgnoresTheMinimum),
    "confirmed by nobody": led_by(ConfirmsByItself),
}


def is_caught(**fields: object) -> bool:
    """Whether one of some walks ends in a broken promise, or the machines stop themselves."""
    for seed in range(SABOTAGED_WALKS_MAX):
        try:
            walk(seed, **fields)
        except (BrokenPromiseError, InvariantViolation):
            return True
    return False


@pytest.mark.parametrize("sabotage", SABOTEURS)
def test_a_broken_rule_is_noticed(sabotage: str) -> None:
    assert is_caught(replica_type=SABOTEURS[sabotage])


@pytest.mark.parametrize("kind", [Replica, DoesNotAsk])
def test_a_late_push_of_an_older_leader_cuts_nothing(kind: type[Replica]) -> None:
    """A replica that starts asks for the epoch first: too rare for a walk, so step by step.

    1. Broker 1 leads in epoch 0; batch 0 is everywhere, batch 1 at 1 and 3 only.
    2. Broker 2 is elected (epoch 1, which begins after batch 0). Its push to 3 is on its way.
    3. Broker 1 is elected (epoch 2). Broker 3 adopts epoch 2 and agrees up to batch 1, which is
       committed once 2 has left the ISR.
    4. Replica 3 crashes and starts again. The push of epoch 1 arrives: it would cut batch 1.
    """
    world = ReplicationWorld(random.Random(1), replica_type=kind, broker_count=3)
    one, two, three = world.replicas.values()
    exchange(world, one, (2, 3))
    world.append(one)
    exchange(world, one, (2, 3))
    world.append(one)
    exchange(world, one, (3,))
    lead_next(world, two)
    world.push(two)
    late = next(call for call in world.calls if call.receiver == 3)
    lead_next(world, one)
    world.calls = []
    exchange(world, one, (3,))
    world.now_ms += 31_000
    world.propose(one)
    world.decide(world.ballots.pop())
    world.decide(world.ballots.pop())
    assert world.controller.isr == (1, 3)
    assert one.machine.high_watermark == one.end_offset == three.end_offset
    world.check()
    world.crash(three)
    three.is_up = True
    world.deliver(late)
    if kind is Replica:
        assert world.answers[-1].verdict.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        world.ask(three)
        world.deliver(late)
        assert world.answers[-1].verdict.error is ErrorCode.FENCED_LEADER_EPOCH
        world.check()
    else:
        with pytest.raises(BrokenPromiseError, match="3 lacks the committed"):
            world.check()


def read_is_confirmed(world: ReplicationWorld) -> bool:
    """Whether it is, and what was read was old, which must be noticed then."""
    try:
        world.check()
    except BrokenPromiseError as broken:
        return "was confirmed" in str(broken)
    assert world.confirmed_count == 0
    return False


@pytest.mark.parametrize("kind", [Replica, led_by(IsConfirmedByWhatWasSentBefore)])
def test_an_answer_to_what_was_sent_before_a_read_does_not_confirm_it(kind: type[Replica]) -> None:
    """Too rare for a walk, so step by step.

    1. Broker 1 pushes; 2 and 3 take it, and their answers are on the way.
    2. Broker 2 is elected, and a batch is committed. 3. Broker 1 is read; the answers arrive.
    """
    world = ReplicationWorld(random.Random(1), replica_type=kind, broker_count=3)
    one, two, _ = world.replicas.values()
    world.append(one)
    exchange(world, one, (2, 3))
    assert one.leader is not None
    pushes = one.leader.pushes(world.now_ms + 1_000)
    assert {push.broker_id for push in pushes} == {2, 3}
    lead_next(world, two)
    world.append(two)
    exchange(world, two, (3,))
    world.controller.fence(1)
    world.tell(two)
    assert two.machine.high_watermark == two.end_offset > one.machine.high_watermark
    world.check()
    world.read(one)
    for push in pushes:
        reply = ReplicateReply(log_end_offset=one.end_offset)
        one.leader.answered(push, reply, world.now_ms)
    assert read_is_confirmed(world) is (kind is not Replica)


@pytest.mark.parametrize("kind", [Replica, led_by(IsConfirmedByOne)])
def test_one_of_two_in_sync_does_not_confirm_a_read(kind: type[Replica]) -> None:
    """Too rare for a walk, so step by step.

    1. Broker 2 is elected, and broker 3, which it does not reach, leaves the ISR. 2. It commits.
    3. Broker 1 is read, and broker 3, which knows no newer leader, answers it.
    """
    world = ReplicationWorld(random.Random(1), replica_type=kind, broker_count=3)
    one, two, _ = world.replicas.values()
    world.append(one)
    exchange(world, one, (2, 3))
    lead_next(world, two)
    world.append(two)
    world.sync(two)
    for other in (1, 3):
        world.controller.fence(other)
    world.tell(two)
    assert two.machine.high_watermark == two.end_offset > one.machine.high_watermark
    world.check()
    world.read(one)
    world.now_ms += 1_000
    exchange(world, one, (3,))
    assert read_is_confirmed(world) is (kind is not Replica)


def leads_only(topics, broker_id):  # type: ignore[no-untyped-def]
    records = elections.after_unfencing(topics, broker_id)
    return tuple(record for record in records if isinstance(record, LeaderElected))


@pytest.mark.parametrize("is_sabotaged", [False, True])
def test_a_late_copy_of_a_proposal_that_was_refused_is_refused_again(
    is_sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader has forgotten it: too rare for a walk, so step by step.

    1. Broker 3 is fenced, and not in sync, but reached by its leader, which proposes it in vain.
    2. A batch is committed at 1 and 2 only. 3. Broker 3 is heard again, and leaders are to be told.
    4. A copy of the proposal arrives: broker 3 would be in sync without the batch.
    """
    if is_sabotaged:
        monkeypatch.setattr(brokers, "after_unfencing", leads_only)
    world = ReplicationWorld(random.Random(1), broker_count=3)
    one = world.replicas[1]
    world.append(one)
    exchange(world, one, (2, 3))
    world.controller.fence(3)
    world.tell(one)
    world.now_ms += 1_000
    exchange(world, one, (2, 3))
    world.propose(one)
    late = world.ballots.pop()
    assert late.proposal.isr == (1, 2, 3)
    world.decide(late)
    world.decide(world.ballots.pop())
    world.append(one)
    exchange(world, one, (2,))
    assert world.controller.isr == (1, 2)
    assert one.machine.high_watermark == one.end_offset
    world.check()
    world.controller.beat(3)
    world.decide(late)
    if is_sabotaged:
        with pytest.raises(BrokenPromiseError, match="3 lacks the committed"):
            world.check()
    else:
        assert world.controller.isr == (1, 2)
        world.check()


def lead_next(world: ReplicationWorld, replica: Replica) -> None:
    """Elect this one."""
    world.controller.elect(replica.broker_id)
    replica.leader = None
    world.begin_to_lead()


def exchange(world: ReplicationWorld, leader: Replica, receivers: tuple[int, ...]) -> None:
    """Sync, and push to these until they have all; calls to others are lost."""
    world.sync(leader)
    for _ in range(3):
        world.push(leader)
        for call in world.calls:
            if call.receiver in receivers:
                world.deliver(call)
        world.calls = []
        for answer in world.answers:
            world.answer(answer)
        world.answers = []


def test_an_election_outside_the_isr_is_noticed() -> None:
    assert is_caught(elects_outside=True)


def test_a_follower_without_log_matching_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def agrees(log: following._Log, request: ReplicateRequest) -> bool:
        return request.previous_end_offset <= log.end_offset

    monkeypatch.setattr(following, "_agrees", agrees)
    assert is_caught()
