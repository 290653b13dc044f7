"""Every combination of what recovery may find at the end of a log, against the rules in words."""

from __future__ import annotations

import itertools

import pytest

from oncelog.storage.recovery import (
    RECOVERY_TABLE,
    Durability,
    TailAction,
    TailDefect,
    decide,
)

DEFECTS = [defect for defect in TailDefect if defect is not TailDefect.NONE]
IMPOSSIBLE = [(TailDefect.NONE, durability, True) for durability in Durability]
POSSIBLE = [
    found
    for found in itertools.product(TailDefect, Durability, (False, True))
    if found not in IMPOSSIBLE
]


@pytest.mark.parametrize(("defect", "durability", "follows"), POSSIBLE)
def test_every_possible_combination_has_exactly_one_row(defect, durability, follows):
    assert sum(row.holds(defect, durability, follows) for row in RECOVERY_TABLE) == 1


@pytest.mark.parametrize(("defect", "durability", "follows"), IMPOSSIBLE)
def test_nothing_intact_follows_the_end_of_the_files(defect, durability, follows):
    assert not any(row.holds(defect, durability, follows) for row in RECOVERY_TABLE)
    with pytest.raises(AssertionError, match="no row"):
        decide(defect, durability, intact_follows=follows)


def test_every_row_is_used():
    used = {decide(d, p, intact_follows=follows).label for d, p, follows in POSSIBLE}
    assert used == {row.label for row in RECOVERY_TABLE}


def action(defect: TailDefect, durability: Durability, *, follows: bool) -> TailAction:
    return decide(defect, durability, intact_follows=follows).action


@pytest.mark.parametrize(("defect", "durability", "follows"), POSSIBLE)
def test_synced_records_are_never_cut(defect, durability, follows):
    if durability is Durability.SYNCED:
        assert action(defect, durability, follows=follows) is TailAction.REFUSE


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("defect", DEFECTS)
def test_unsynced_tail_is_cut_at_its_first_defect(defect, follows):
    assert action(defect, Durability.UNSYNCED, follows=follows) is TailAction.CUT


@pytest.mark.parametrize("defect", DEFECTS)
def test_without_a_checkpoint_only_the_last_batch_may_be_torn(defect):
    assert action(defect, Durability.UNKNOWN, follows=False) is TailAction.CUT
    assert action(defect, Durability.UNKNOWN, follows=True) is TailAction.REFUSE


@pytest.mark.parametrize("durability", [Durability.UNSYNCED, Durability.UNKNOWN])
def test_whole_unsynced_batches_are_kept(durability):
    assert action(TailDefect.NONE, durability, follows=False) is TailAction.KEEP
