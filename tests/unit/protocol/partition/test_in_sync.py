"""The in-sync replicas and the proposal whose outcome is unknown."""

from __future__ import annotations

import pytest

from oncelog.actors.protocol.partition.followers import InSyncReplicas, IsrProposal
from oncelog.storage.errors import ErrorCode

ALL = frozenset({1, 2, 3})


@pytest.fixture
def in_sync() -> InSyncReplicas:
    return InSyncReplicas((1, 2), 7)


def test_proposal_names_the_version_it_follows(in_sync: InSyncReplicas) -> None:
    assert in_sync.proposal is None
    in_sync.propose(ALL)
    assert in_sync.proposal == IsrProposal(isr=(1, 2, 3), partition_version=7)


def test_the_isr_as_it_is_is_not_proposed(in_sync: InSyncReplicas) -> None:
    in_sync.propose(frozenset({1, 2}))
    assert in_sync.proposal is None


@pytest.mark.parametrize("proposed", [ALL, frozenset({1}), frozenset({1, 3})])
def test_while_a_proposal_is_pending_both_sets_are_waited_for(
    in_sync: InSyncReplicas, proposed: frozenset[int]
) -> None:
    in_sync.propose(proposed)
    assert in_sync.isr == {1, 2}
    assert in_sync.maximal == {1, 2} | proposed


def test_one_proposal_at_a_time(in_sync: InSyncReplicas) -> None:
    in_sync.propose(ALL)
    in_sync.propose(frozenset({1}))
    assert in_sync.proposal is not None
    assert in_sync.proposal.isr == (1, 2, 3)


@pytest.mark.parametrize("isr", [(1, 2, 3), (1,), (1, 2)])
def test_a_newer_version_ends_all_proposals(in_sync: InSyncReplicas, isr: tuple[int, ...]) -> None:
    in_sync.propose(ALL)
    assert in_sync.learn(isr, 8)
    assert in_sync.isr == in_sync.maximal == frozenset(isr)
    assert (in_sync.version, in_sync.proposal) == (8, None)


@pytest.mark.parametrize("version", [6, 7])
def test_what_is_not_newer_is_ignored_since_the_proposal_may_still_be_accepted(
    in_sync: InSyncReplicas, version: int
) -> None:
    in_sync.propose(ALL)
    assert not in_sync.learn((1, 2), version)
    assert in_sync.maximal == ALL
    assert in_sync.proposal == IsrProposal(isr=(1, 2, 3), partition_version=7)


@pytest.mark.parametrize(
    "error",
    [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION, ErrorCode.INVALID_UPDATE_VERSION],
)
def test_a_failed_call_is_made_again(in_sync: InSyncReplicas, error: ErrorCode) -> None:
    in_sync.propose(ALL)
    in_sync.refused(error)
    assert in_sync.proposal == IsrProposal(isr=(1, 2, 3), partition_version=7)


def test_what_names_an_ineligible_member_is_over_and_changes_nothing(
    in_sync: InSyncReplicas,
) -> None:
    in_sync.propose(ALL)
    in_sync.refused(ErrorCode.INELIGIBLE_REPLICA)
    assert in_sync.proposal is None
    assert in_sync.maximal == {1, 2}
    in_sync.propose(frozenset({1}))
    assert in_sync.proposal == IsrProposal(isr=(1,), partition_version=7)
    assert in_sync.maximal == {1, 2}


def test_a_late_refusal_proposes_nothing(in_sync: InSyncReplicas) -> None:
    in_sync.refused(ErrorCode.INELIGIBLE_REPLICA)
    assert in_sync.proposal is None
