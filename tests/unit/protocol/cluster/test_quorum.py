"""Votes, candidates and who becomes a voter: every row of the table."""

from __future__ import annotations

import pytest
from msgspec import structs

from oncelog.actors.protocol.cluster.cluster_records import BrokerChanged, BrokerRegistered
from oncelog.actors.protocol.cluster.cluster_state import BrokerState
from oncelog.actors.protocol.cluster.quorum import (
    NOBODY,
    Candidacy,
    LogPosition,
    VoterState,
    decide_vote,
    disks_of,
    learners,
    majority_of,
    may_be_candidate,
    may_leave,
    next_voters,
    voters_without,
    with_epoch,
)
from oncelog.actors.protocol.messages.brokers import Disk
from oncelog.actors.protocol.messages.replication import VoteReply, VoteRequest
from oncelog.storage.errors import ErrorCode

CLUSTER = "c" * 32
KNOWN = VoterState(epoch=5, voted_for=2)
LOG = LogPosition(4, 100)


def asked(epoch: int, candidate: int = 2, log: LogPosition = LOG, **fields: object) -> VoteRequest:
    return VoteRequest(
        cluster_id=CLUSTER,
        candidate=candidate,
        leader_epoch=epoch,
        log_epoch=log.epoch,
        log_end_offset=log.end_offset,
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("state", "request_", "after", "reply"),
    [
        pytest.param(
            KNOWN,
            asked(4),
            KNOWN,
            VoteReply(error=ErrorCode.FENCED_LEADER_EPOCH, leader_epoch=5),
            id="an older epoch",
        ),
        pytest.param(
            KNOWN,
            asked(6, log=LogPosition(4, 99)),
            VoterState(epoch=6),
            VoteReply(leader_epoch=6, is_behind=True),
            id="a shorter log",
        ),
        pytest.param(
            KNOWN,
            asked(6, log=LogPosition(3, 1_000)),
            VoterState(epoch=6),
            VoteReply(leader_epoch=6, is_behind=True),
            id="a longer log of an older epoch",
        ),
        pytest.param(
            KNOWN,
            asked(6, candidate=3, log=LogPosition(5, 1)),
            VoterState(epoch=6, voted_for=3),
            VoteReply(leader_epoch=6, is_granted=True),
            id="a shorter log of a newer epoch",
        ),
        pytest.param(
            KNOWN,
            asked(5, candidate=3),
            KNOWN,
            VoteReply(leader_epoch=5),
            id="an epoch in which it voted for another",
        ),
        pytest.param(
            KNOWN,
            asked(5),
            KNOWN,
            VoteReply(leader_epoch=5, is_granted=True),
            id="its vote again",
        ),
        pytest.param(
            VoterState(epoch=5),
            asked(5, candidate=3),
            VoterState(epoch=5, voted_for=3),
            VoteReply(leader_epoch=5, is_granted=True),
            id="an epoch that it knows from others",
        ),
        pytest.param(
            KNOWN,
            asked(6, candidate=3),
            VoterState(epoch=6, voted_for=3),
            VoteReply(leader_epoch=6, is_granted=True),
            id="a newer epoch",
        ),
        pytest.param(
            VoterState(),
            asked(0, log=LogPosition(-1, 0)),
            VoterState(epoch=0, voted_for=2),
            VoteReply(leader_epoch=0, is_granted=True),
            id="a voter that knows nothing",
        ),
    ],
)
@pytest.mark.parametrize("is_trial", [False, True])
def test_a_vote(
    state: VoterState, request_: VoteRequest, after: VoterState, reply: VoteReply, is_trial: bool
) -> None:
    log = LOG if state.epoch > -1 else LogPosition(-1, 0)
    trial = asked(
        request_.leader_epoch,
        request_.candidate,
        LogPosition(request_.log_epoch, request_.log_end_offset),
        is_trial=is_trial,
    )
    vote = decide_vote(state, log, trial, cluster_id=CLUSTER)
    assert vote.reply == reply
    assert vote.state == (state if is_trial else after)


def test_another_cluster_gets_no_vote() -> None:
    vote = decide_vote(KNOWN, LOG, asked(9), cluster_id="d" * 32)
    assert (vote.state, vote.reply.error) == (KNOWN, ErrorCode.INVALID_REQUEST)


OURS = Disk(directory_id="a", broker_epoch=7)
OLDER = Disk(directory_id="a", broker_epoch=6)


@pytest.mark.parametrize(
    ("disk", "is_granted"),
    [(OURS, True), (OLDER, False), (Disk(directory_id="b"), False), (Disk(), True)],
)
def test_a_candidate_with_another_disk_or_an_older_copy_gets_no_vote(
    disk: Disk, is_granted: bool
) -> None:
    request = structs.replace(asked(9), disk=disk)
    vote = decide_vote(KNOWN, LOG, request, cluster_id=CLUSTER, disk=OURS)
    assert vote.reply.is_granted is is_granted
    assert vote.reply.is_behind is not is_granted
    assert (vote.state == KNOWN) is not is_granted


def test_the_vote_of_another_disk_or_of_an_older_copy_does_not_count() -> None:
    granted = VoteReply(leader_epoch=6, is_granted=True)
    for disk in (OLDER, Disk(directory_id="b")):
        candidacy = Candidacy((1, 2, 3), 1, 6, {2: OURS})
        candidacy.answered(2, structs.replace(granted, disk=disk))
        candidacy.answered(2, VoteReply(is_behind=True, disk=disk))
        assert not candidacy.is_won
        assert not candidacy.is_behind
        candidacy.answered(2, structs.replace(granted, disk=OURS))
        assert candidacy.is_won


def test_a_log_names_the_disks_of_brokers() -> None:
    records = [
        BrokerRegistered(broker_id=1, data_dir="/d", directory_id="a"),
        BrokerRegistered(broker_id=2, data_dir="/d", directory_id="b", disk_epoch=3),
        BrokerChanged(
            broker_id=1, broker_epoch=7, is_fenced=False, is_draining=False, disk_epoch=7
        ),
        BrokerChanged(broker_id=2, broker_epoch=4, is_fenced=True, is_draining=False),
    ]
    first = disks_of(records)
    assert first == {1: OURS, 2: Disk(directory_id="b", broker_epoch=3)}
    replaced = BrokerRegistered(broker_id=2, data_dir="/d", directory_id="c", broker_epoch=5)
    assert disks_of([replaced], first) == {1: OURS, 2: Disk(directory_id="c")}


def test_a_vote_leaves_what_the_log_was_made_of() -> None:
    copied = VoterState(epoch=5, is_copied=True)
    vote = decide_vote(copied, LOG, asked(6), cluster_id=CLUSTER)
    assert vote.state == VoterState(epoch=6, voted_for=2, is_copied=True)
    assert with_epoch(copied, 9).is_copied


def test_voters_may_stand_but_not_a_founder_with_half_a_copy() -> None:
    founder, copied = VoterState(), VoterState(is_copied=True)
    assert may_be_candidate(founder, (1,), 1)
    assert may_be_candidate(copied, (1, 2), 1)
    assert not may_be_candidate(copied, (1,), 1)
    assert not may_be_candidate(founder, (1,), 2)


def test_a_newer_epoch_is_one_in_which_nobody_was_voted_for() -> None:
    assert with_epoch(KNOWN, 5) is KNOWN
    assert with_epoch(KNOWN, 4) is KNOWN
    assert with_epoch(KNOWN, 6) == VoterState(epoch=6, voted_for=NOBODY)


@pytest.mark.parametrize(("voters", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(voters: int, majority: int) -> None:
    assert majority_of(voters) == majority


# --- candidates ------------------------------------------------------------------------------


def test_a_lone_voter_needs_nobody() -> None:
    assert Candidacy((1,), 1, 6).is_won


def test_each_voter_counts_once_and_nobody_else_does() -> None:
    candidacy = Candidacy((1, 2, 3, 4, 5), 1, 6)
    granted = VoteReply(leader_epoch=6, is_granted=True)
    candidacy.answered(2, granted)
    candidacy.answered(2, granted)
    candidacy.answered(9, granted)
    assert not candidacy.is_won
    candidacy.answered(3, granted)
    assert candidacy.is_won


def test_a_candidate_that_is_no_voter_does_not_count_itself() -> None:
    candidacy = Candidacy((1, 2), 3, 6)
    candidacy.answered(1, VoteReply(is_granted=True))
    assert not candidacy.is_won


def test_refusals_and_lost_calls_are_no_votes() -> None:
    candidacy = Candidacy((1, 2, 3), 1, 6)
    candidacy.answered(2, VoteReply(error=ErrorCode.REQUEST_TIMED_OUT, is_granted=True))
    candidacy.answered(3, VoteReply(leader_epoch=6))
    assert not candidacy.is_won
    assert not candidacy.is_behind
    assert candidacy.newest_epoch == 6


def test_a_candidate_learns_newer_epochs_and_that_its_log_is_behind() -> None:
    candidacy = Candidacy((1, 2, 3), 1, 6)
    candidacy.answered(2, VoteReply(error=ErrorCode.FENCED_LEADER_EPOCH, leader_epoch=8))
    candidacy.answered(3, VoteReply(leader_epoch=6, is_behind=True))
    assert candidacy.newest_epoch == 8
    assert candidacy.is_behind


# --- who is to be a voter --------------------------------------------------------------------


def brokers(racks: str, fenced: tuple[int, ...] = (), draining: tuple[int, ...] = ()) -> dict:
    return {
        number: BrokerState(
            broker_id=number,
            data_dir="/d",
            rack=rack,
            is_fenced=number in fenced,
            is_draining=number in draining,
        )
        for number, rack in enumerate(racks, start=1)
    }


def test_with_two_brokers_the_first_stays_the_only_voter() -> None:
    assert learners((1,), brokers("  ")) == ()


def test_with_three_brokers_all_are_to_vote() -> None:
    assert learners((1,), brokers("   ")) == (2, 3)


def test_with_two_voters_a_third_is_wanted() -> None:
    assert learners((1, 3), brokers("   ")) == (2,)


def test_three_voters_are_enough() -> None:
    assert learners((1, 2, 3), brokers("     ")) == ()


def test_other_racks_come_first() -> None:
    assert learners((1,), brokers("aabc")) == (3, 4)
    assert learners((1,), brokers("aaab")) == (4, 2)


def test_brokers_that_are_fenced_or_drain_are_not_chosen() -> None:
    assert learners((1,), brokers("     ", fenced=(2,), draining=(3,))) == (4, 5)
    assert learners((1,), brokers("    ", fenced=(2,), draining=(3,))) == ()


def test_one_voter_is_added_once_all_that_are_wanted_have_caught_up() -> None:
    assert next_voters((1,), (2, 3), {3}) is None
    assert next_voters((1,), (2, 3), {2, 3}) == (1, 2)
    assert next_voters((1, 2), (3,), {2, 3}) == (1, 2, 3)
    assert next_voters((1, 2, 3), (), {2, 3}) is None


def test_a_voter_without_its_disk_is_taken_off_if_two_are_left() -> None:
    assert voters_without((1, 2, 3), 2) == (1, 3)
    assert voters_without((1, 3), 3) is None
    assert voters_without((1,), 1) is None


def test_a_controller_may_leave_once_either_other_voter_could_follow() -> None:
    assert may_leave((1, 2, 3), 1, {2, 3})
    assert may_leave((1, 2, 3), 2, {1, 2, 3})
    assert not may_leave((1, 2, 3), 1, {1, 3})
    assert not may_leave((1, 2), 1, {2})
    assert not may_leave((1,), 1, set())
