from __future__ import annotations

import itertools

import pytest

from oncelog.storage.record_batch import parse_header
from oncelog.storage.recovery import (
    RECOVERY_TABLE,
    Durability,
    TailAction,
    TailDefect,
    decide,
    durability_of,
    holds_intact_batch,
    inspect_batch,
)

ALL = list(itertools.product(TailDefect, Durability, (False, True)))


@pytest.mark.parametrize(("defect", "durability", "follows"), ALL)
def test_every_combination_has_exactly_one_row(defect, durability, follows):
    assert sum(row.holds(defect, durability, follows) for row in RECOVERY_TABLE) == 1


@pytest.mark.parametrize(("defect", "durability", "follows"), ALL)
def test_synced_records_are_never_cut(defect, durability, follows):
    action = decide(defect, durability, intact_follows=follows).action
    if durability is Durability.SYNCED:
        assert action is TailAction.REFUSE
    elif defect is TailDefect.NONE:
        assert action is TailAction.KEEP
    elif durability is Durability.UNKNOWN and follows:
        assert action is TailAction.REFUSE
    else:
        assert action is TailAction.CUT


def test_every_row_is_used():
    used = {decide(d, p, intact_follows=follows).label for d, p, follows in ALL}
    assert used == {row.label for row in RECOVERY_TABLE}


def test_durability_changes_at_the_recovery_point():
    assert durability_of(9, 10) is Durability.SYNCED
    assert durability_of(10, 10) is Durability.UNSYNCED
    assert durability_of(0, None) is Durability.UNKNOWN


def test_intact_next_batch_gives_its_header(make_batch):
    batch = make_batch(7, 2)
    assert inspect_batch(batch, 7) == parse_header(batch)


@pytest.mark.parametrize(
    ("change", "defect"),
    [
        (lambda batch: batch[:60], TailDefect.SHORT_HEADER),
        (lambda batch: batch[:99], TailDefect.SHORT_BATCH),
        (lambda batch: bytes(100), TailDefect.ZEROS),
        (lambda batch: bytes(5), TailDefect.ZEROS),
        (lambda batch: batch[:16] + b"\x01" + batch[17:], TailDefect.BAD_HEADER),
        (lambda batch: batch[:8] + bytes(4) + batch[12:], TailDefect.BAD_HEADER),
        (lambda batch: batch[:99] + b"\x00", TailDefect.BAD_CRC),
        (lambda batch: (6).to_bytes(8, "big") + batch[8:], TailDefect.WRONG_OFFSET),
        (lambda batch: (8).to_bytes(8, "big") + batch[8:], TailDefect.WRONG_OFFSET),
    ],
)
def test_each_defect_is_told_apart(make_batch, change, defect):
    assert inspect_batch(change(bytes(make_batch(7))), 7) is defect


def test_intact_batch_is_found_behind_garbage(make_batch):
    assert holds_intact_batch(b"\x02garbage" + make_batch(9), 9)


def test_damaged_or_earlier_batch_is_not_found(make_batch):
    batch = make_batch(9)
    assert not holds_intact_batch(batch, 10)
    batch[-1] ^= 1
    assert not holds_intact_batch(batch, 9)
