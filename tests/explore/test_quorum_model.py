"""Slices of the quorum's model: no state that is wrong, and a rule taken out makes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import quorum_model
from explorer import explore
from msgspec.structs import replace
from quorum_model import QUIET, QuorumModel, Scope

from oncelog.actors.protocol.cluster.quorum import LogPosition
from oncelog.actors.protocol.messages.brokers import Disk

SLICE = 250
BOUND_SECONDS = 60.0
SABOTAGED_STATES_MAX = 6_000

ELECTED = ("2 stands, and votes for itself", "2 asks 1 for its vote, which answers")
COPIED = ("the disk of 1 is copied", "1 appends record 1")


@pytest.mark.parametrize("model", quorum_model.MODELS, ids=lambda model: model.name)
def test_no_state_of_a_slice_is_wrong(model: QuorumModel) -> None:
    report = explore(model, seconds=BOUND_SECONDS, states_max=SLICE)
    assert not report.broken, str(report)
    assert report.states >= SLICE


def test_one_of_two_copies_since_the_last_registration_is_not_told_from_the_other() -> None:
    """A limit: nothing is written to a disk by which a copy of this hour is older than the next.

    So OPERATIONS tells never to put a copy back under one broker.
    """
    model = QuorumModel("copy", replace(QUIET, copies=1), is_registered=False, story=COPIED)
    report = explore(model, seconds=BOUND_SECONDS, states_max=SABOTAGED_STATES_MAX)
    assert "is committed" in report.broken, str(report)


Patch = Callable[[pytest.MonkeyPatch], None]


def take_a_disk_for_another(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Disk, "may_be", lambda *_: True)


def vote_for_older_logs(patch: pytest.MonkeyPatch) -> None:
    decide = quorum_model.decide_vote
    patch.setattr(
        quorum_model,
        "decide_vote",
        lambda state, _, request, **known: decide(state, LogPosition(-1, 0), request, **known),
    )


def vote_twice(patch: pytest.MonkeyPatch) -> None:
    decide = quorum_model.decide_vote

    def forgetting(state: Any, log: Any, request: Any, **known: Any) -> Any:
        return decide(replace(state, voted_for=-1), log, request, **known)

    patch.setattr(quorum_model, "decide_vote", forgetting)


def forget_votes(patch: pytest.MonkeyPatch) -> None:
    crash = quorum_model.Voter.crash

    def forgetting(voter: quorum_model.Voter) -> None:
        voter.state = replace(voter.state, voted_for=-1)
        crash(voter)

    patch.setattr(quorum_model.Voter, "crash", forgetting)


SABOTEURS: dict[str, tuple[Patch, Scope, tuple[str, ...]]] = {
    "an old disk counts as the newest": (take_a_disk_for_another, replace(QUIET, copies=1), COPIED),
    "an empty disk counts as the one before": (
        take_a_disk_for_another,
        replace(QUIET, replaced_disks=1),
        (),
    ),
    "a vote for an older log": (vote_for_older_logs, QUIET, ()),
    "two votes in one epoch": (vote_twice, replace(QUIET, records=0), ()),
    "a vote forgotten by a crash": (forget_votes, replace(QUIET, records=0, crashes=1), ELECTED),
}


@pytest.mark.parametrize("name", SABOTEURS)
def test_a_rule_taken_out_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, scope, story = SABOTEURS[name]
    patch(monkeypatch)
    report = explore(
        QuorumModel(name, scope, story=story),
        seconds=BOUND_SECONDS,
        states_max=SABOTAGED_STATES_MAX,
    )
    assert report.broken, str(report)
    assert report.story
