"""Random histories of the controller's log: elections, votes, crashes, lost and late calls.

What is promised is in ``quorum_world``; each saboteur breaks one rule, and a walk must notice.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from quorum_world import Node, QuorumWorld, walk
from replication_world import BrokenPromiseError

from oncelog.actors.protocol.cluster.quorum import NOBODY, LogPosition, Vote
from oncelog.actors.protocol.messages.replication import VoteRequest
from oncelog.actors.protocol.partition.following import FollowerReplication
from oncelog.actors.protocol.partition.quorum_replication import QuorumReplication
from oncelog.storage.errors import InvariantViolation

SABOTAGED_WALKS_MAX = 600


@given(seed=st.integers(0, 2**32))
def test_committed_records_stay_and_an_epoch_has_one_controller(seed: int) -> None:
    assert walk(seed).committed_end > 0


def test_walks_reach_what_they_are_for() -> None:
    """Elections, three voters, other voters and confirmed reads all happen."""
    worlds = [QuorumWorld(random.Random(seed)) for seed in range(40)]
    sizes: list[int] = []
    for world in worlds:
        for _ in range(700):
            world.step()
        sizes += [len(voters) for voters in world.voters_at.values()]
    assert sum(len(world.controllers) for world in worlds) > 150
    assert len({n for world in worlds for n in world.controllers.values()}) >= 3
    assert sizes.count(3) > 10
    assert sum(world.committed_end for world in worlds) > 500
    assert sum(world.confirmed_count for world in worlds) > 100


# --- saboteurs ---------------------------------------------------------------------------------


class MajorityOfOne(QuorumReplication):
    def _committed_end_offset(self) -> int:
        return self._synced_end_offset


class CountsOlderEpochs(QuorumReplication):
    def _committed_end_offset(self) -> int:
        ends = sorted((self._match_offset(voter) for voter in self.voters), reverse=True)
        return ends[len(ends) // 2]


class ConfirmsByItself(QuorumReplication):
    @property
    def confirmed(self) -> int:
        return self._asked


class ForgetsItsVote(Node):
    def remembered_epoch(self) -> int:
        self.state = replace(self.state, epoch=self.position.epoch, voted_for=NOBODY)
        return self.state.epoch


class VotesForOlderLogs(Node):
    @property
    def position(self) -> LogPosition:
        position = super().position
        return position if self.candidacy is not None else LogPosition(-1, 0)


class VotesTwice(Node):
    def decide(self, request: VoteRequest) -> Vote:
        if self.state.epoch == request.leader_epoch and self.state.voted_for != self.broker_id:
            self.state = replace(self.state, voted_for=NOBODY)
        return super().decide(request)


class KnowsNoEpoch(FollowerReplication):
    @property
    def known_epoch(self) -> int:
        return -1


class ObeysOlderControllers(Node):
    following = KnowsNoEpoch


class VotesWithoutItsDisk(Node):
    is_blank = property(lambda _self: False, lambda _self, _value: None)  # type: ignore[assignment]


class BelievesHalfACopy(QuorumWorld):
    def may_be_candidate(self, node: Node, voters: tuple[int, ...]) -> bool:
        return node.broker_id in voters


class AnswersBeforeItsSync(Node):
    class Early(FollowerReplication):
        def acknowledge(self, request, verdict, synced_end_offset):  # type: ignore[no-untyped-def]
            return super().acknowledge(request, verdict, self._machine.log_end_offset)

    following = Early

    def sync_for_answer(self) -> None:
        """Answers first."""


def led_by(kind: type[QuorumReplication]) -> type[Node]:
    return type("Led", (Node,), {"replicating": kind})


SABOTEURS = {
    "majority of one": led_by(MajorityOfOne),
    "an older epoch's records committed by count alone": led_by(CountsOlderEpochs),
    "confirmed by nobody": led_by(ConfirmsByItself),
    "vote not durable": ForgetsItsVote,
    "vote for an older log": VotesForOlderLogs,
    "two votes in one epoch": VotesTwice,
    "old controller not refused": ObeysOlderControllers,
    "voter that has lost its disk": VotesWithoutItsDisk,
    "acknowledged before it is synced": AnswersBeforeItsSync,
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
    assert is_caught(node_type=SABOTEURS[sabotage])


def test_voters_that_change_before_the_last_change_is_committed_are_noticed() -> None:
    assert is_caught(asks_may_change=False)


def test_a_founder_that_believes_half_a_copy_is_noticed() -> None:
    assert is_caught(world_type=BelievesHalfACopy)
