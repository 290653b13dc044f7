"""Slices of the partition's model: no state that is wrong, and a rule taken out makes one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import partition_model
import pytest
from explorer import explore
from msgspec.structs import replace
from partition_model import QUIET, PartitionModel, Scope

from oncelog.actors.protocol.cluster import cluster_machine, elections
from oncelog.actors.protocol.cluster.cluster_state import PartitionState
from oncelog.actors.protocol.partition import following
from oncelog.actors.protocol.partition.followers import InSyncReplicas
from oncelog.actors.protocol.partition.following import FollowerReplication
from oncelog.actors.protocol.partition.replication import LeaderReplication

SLICE = 250
"""States of each model that each run of the tests looks at; ``./run explore`` goes on."""

BOUND_SECONDS = 60.0
SABOTAGED_STATES_MAX = 4_000


@pytest.mark.parametrize("model", partition_model.MODELS, ids=lambda model: model.name)
def test_no_state_of_a_slice_is_wrong(model: PartitionModel) -> None:
    report = explore(model, seconds=BOUND_SECONDS, states_max=SLICE)
    assert not report.broken, str(report)
    assert report.states >= SLICE


def test_a_scope_is_explored_to_its_end() -> None:
    """One record and nothing that goes wrong: all is committed, and no more can happen."""
    report = explore(
        PartitionModel("quiet", replace(QUIET, records=1, leader_epoch_max=0)), seconds=9
    )
    assert report.is_complete, str(report)
    assert not report.broken, str(report)


# --- saboteurs -----------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]

FENCED = (
    "3 is taken for dead, and lives",
    "1 is told the ISR (1, 2)",
    "3 is heard again",
    "1 pushes to 3, which answers",
    "1 proposes its ISR: late",
    "3 loses its log",
)
LEFT_EARLY = ("3 is taken for dead, and lives",)
LOST_WHILE_ELIGIBLE = (
    "3 is taken for dead, and lives",
    "1 is told the ISR (1, 2)",
    "1 appends record 1",
)
DIVERGED = (
    "1 appends record 1",
    "1 is taken for dead, and lives",
    "1 is heard again",
    "2 begins to lead in 1",
    "2 appends record 2",
)


def nothing(*_: Any, **__: Any) -> None:
    """No record."""


def forget_returns(patch: pytest.MonkeyPatch) -> None:
    for module in (elections, cluster_machine):
        patch.setattr(module, "after_return", nothing)


def accept_any_version(patch: pytest.MonkeyPatch) -> None:
    check = elections._check_isr
    patch.setattr(
        elections,
        "_check_isr",
        lambda known, brokers, request: check(
            known, brokers, replace(request, partition_version=known.version)
        ),
    )


def count_shrink_early(patch: pytest.MonkeyPatch) -> None:
    wanted = property(lambda known: known._proposal or known._isr)
    patch.setattr(InSyncReplicas, "maximal", wanted)


def acknowledge_early(patch: pytest.MonkeyPatch) -> None:
    acknowledge = FollowerReplication.acknowledge
    patch.setattr(
        FollowerReplication,
        "acknowledge",
        lambda self, request, verdict, _: acknowledge(
            self, request, verdict, self._machine.log_end_offset
        ),
    )
    patch.setattr(partition_model.Node, "sync_for_answer", nothing)


def match_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        following, "_agrees", lambda log, request: request.previous_end_offset <= log.end_offset
    )


def obey_older_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowerReplication, "known_epoch", property(lambda _: -1))


def ignore_the_minimum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderReplication, "has_too_few", False)


def elect_anybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        elections,
        "candidates",
        lambda known, brokers, *, without=0: tuple(
            n for n in known.replicas if elections.is_live(n, brokers) and n != without
        ),
    )


def keep_all_eligible(patch: pytest.MonkeyPatch) -> None:
    def keep(known: PartitionState, possible: Collection[int], lost: int = -1) -> None:
        known.elr = tuple(n for n in possible if n not in {*known.isr, lost})

    patch.setattr(PartitionState, "_keep_eligible", keep)


def keep_the_lost_eligible(patch: pytest.MonkeyPatch) -> None:
    keep = PartitionState._keep_eligible
    patch.setattr(
        PartitionState, "_keep_eligible", lambda known, possible, lost=-1: keep(known, possible)
    )


def begin_empty(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionState, "has_log", lambda *_: False)


def count_what_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    advance = LeaderReplication._advance

    def advanced(leader: LeaderReplication) -> bool:
        leader._synced_end_offset = leader._bounds.log_end_offset
        return advance(leader)

    patch.setattr(LeaderReplication, "_advance", advanced)


def join_early(patch: pytest.MonkeyPatch) -> None:
    wanted = LeaderReplication._wanted_isr

    def with_all_known(leader: LeaderReplication, now_ms: int) -> frozenset[int]:
        known = {n for n, one in leader._followers.items() if one.match_offset >= 0}
        return wanted(leader, now_ms) | known

    patch.setattr(LeaderReplication, "_wanted_isr", with_all_known)


LATE_PROPOSAL = replace(QUIET, records=1, disturbed=1, wrong_fences=1, late=("proposal",))
SABOTEURS: dict[str, tuple[Patch, Scope, tuple[str, ...]]] = {
    "a proposal of before a log was lost is accepted": (
        forget_returns,
        replace(LATE_PROPOSAL, lost_disks=1, leader_epoch_max=0),
        FENCED,
    ),
    "a proposal of another version is accepted": (
        accept_any_version,
        replace(LATE_PROPOSAL, leader_epoch_max=0, lost_disks=1),
        FENCED,
    ),
    "a shrunk ISR counts before the controller has it": (count_shrink_early, LATE_PROPOSAL, ()),
    "acknowledged before it is synced": (
        acknowledge_early,
        replace(QUIET, records=1, crashes=1),
        (),
    ),
    "a follower takes whatever comes": (
        match_nothing,
        replace(QUIET, records=2, wrong_fences=2),
        DIVERGED,
    ),
    "a follower obeys older epochs": (
        obey_older_epochs,
        replace(QUIET, records=1, wrong_fences=2),
        (),
    ),
    "too few are enough": (ignore_the_minimum, replace(QUIET, records=1), ()),
    "anybody is elected": (elect_anybody, replace(QUIET, records=1, wrong_fences=2), ()),
    "who has left an ISR of enough is eligible": (
        keep_all_eligible,
        replace(QUIET, records=1, wrong_fences=3),
        LEFT_EARLY,
    ),
    "who has lost its log is eligible": (
        keep_the_lost_eligible,
        replace(QUIET, records=1, wrong_fences=3, lost_disks=1),
        LOST_WHILE_ELIGIBLE,
    ),
    "an empty replica begins a log": (begin_empty, replace(QUIET, records=1, lost_disks=1), ()),
    "a leader counts what it has not synced": (
        count_what_is_not_synced,
        replace(QUIET, records=1, crashes=1),
        (),
    ),
    "a follower joins before it has all": (
        join_early,
        replace(QUIET, records=1, wrong_fences=1),
        (),
    ),
}


@pytest.mark.parametrize("name", SABOTEURS)
def test_a_rule_taken_out_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, scope, story = SABOTEURS[name]
    patch(monkeypatch)
    model = PartitionModel(name, scope, story=story)
    report = explore(model, seconds=BOUND_SECONDS, states_max=SABOTAGED_STATES_MAX)
    assert report.broken, str(report)
    assert report.story
