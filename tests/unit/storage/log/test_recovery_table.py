"""Every combination of what recovery may find at the end of a log, against the rules in words."""

from __future__ import annotations

import itertools

import pytest

from oncelog.storage.log.recovery import (
    RECOVERY_TABLE,
    Durability,
    TailAction,
    decide,
)
from oncelog.storage.segments.inspection import TailDefect

DEFECTS = [defect for defect in TailDefect if defect is not TailDefect.NONE]
ALL = list(itertools.product(TailDefect, Durability, (False, True), (False, True)))
IMPOSSIBLE = [found for found in ALL if found[0] is TailDefect.NONE and (found[2] or found[3])]
POSSIBLE = [found for found in ALL if found not in IMPOSSIBLE]
COMBINATION = ("defect", "durability", "follows", "torn")


@pytest.mark.parametrize(COMBINATION, POSSIBLE)
def test_every_possible_combination_has_exactly_one_row(defect, durability, follows, torn):
    rows = [
        row
        for row in RECOVERY_TABLE
        if row.holds(defect, durability, intact_follows=follows, is_torn=torn)
    ]
    assert len(rows) == 1


@pytest.mark.parametrize(COMBINATION, IMPOSSIBLE)
def test_nothing_follows_the_end_of_the_files_and_it_is_not_torn(defect, durability, follows, torn):
    with pytest.raises(AssertionError, match="no row"):
        decide(defect, durability, intact_follows=follows, is_torn=torn)


def test_every_row_is_used():
    used = {
        decide(defect, durability, intact_follows=follows, is_torn=torn).label
        for defect, durability, follows, torn in POSSIBLE
    }
    assert used == {row.label for row in RECOVERY_TABLE}


def action(defect: TailDefect, durability: Durability, *, follows: bool, torn: bool) -> TailAction:
    return decide(defect, durability, intact_follows=follows, is_torn=torn).action


@pytest.mark.parametrize(COMBINATION, POSSIBLE)
def test_synced_records_are_never_cut(defect, durability, follows, torn):
    if durability is Durability.SYNCED:
        assert action(defect, durability, follows=follows, torn=torn) is TailAction.REFUSE


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("defect", DEFECTS)
def test_unsynced_tail_is_cut_where_it_is_torn_and_refused_where_it_is_damaged(defect, follows):
    unsynced = Durability.UNSYNCED
    assert action(defect, unsynced, follows=follows, torn=True) is TailAction.CUT
    assert action(defect, unsynced, follows=follows, torn=False) is TailAction.REFUSE


@pytest.mark.parametrize("defect", DEFECTS)
def test_without_a_checkpoint_only_the_last_batch_may_be_torn(defect):
    unknown = Durability.UNKNOWN
    assert action(defect, unknown, follows=False, torn=True) is TailAction.CUT
    assert action(defect, unknown, follows=False, torn=False) is TailAction.REFUSE
    assert action(defect, unknown, follows=True, torn=True) is TailAction.REFUSE
    assert action(defect, unknown, follows=True, torn=False) is TailAction.REFUSE


@pytest.mark.parametrize("durability", [Durability.UNSYNCED, Durability.UNKNOWN])
def test_whole_unsynced_batches_are_kept(durability):
    assert action(TailDefect.NONE, durability, follows=False, torn=False) is TailAction.KEEP
