from __future__ import annotations

import pytest

from oncelog.storage.log.recovery import Durability, durability_of
from oncelog.storage.records.batch import parse_header, patch
from oncelog.storage.segments.inspection import TailDefect, holds_intact_batch, inspect_batch


def test_durability_changes_at_the_recovery_point():
    assert durability_of(9, 10) is Durability.SYNCED
    assert durability_of(10, 10) is Durability.UNSYNCED
    assert durability_of(0, None) is Durability.UNKNOWN


def test_intact_next_batch_gives_its_header(make_batch):
    batch = make_batch(7, 2)
    assert inspect_batch(batch, 7) == parse_header(batch)


def test_batch_of_another_leader_epoch_than_the_one_that_wrote_there_is_a_defect(make_batch):
    batch = make_batch(7, leader_epoch=4)
    assert inspect_batch(batch, 7, leader_epochs=[(3, 0), (4, 7), (5, 8)]) == parse_header(batch)
    assert inspect_batch(batch, 7, leader_epochs=[(3, 0), (4, 8)]) is TailDefect.WRONG_EPOCH
    assert inspect_batch(batch, 7, leader_epochs=[(5, 7)]) is TailDefect.WRONG_EPOCH


def test_epoch_before_the_first_that_is_known_may_be_any(make_batch):
    batch = make_batch(7, leader_epoch=4)
    assert inspect_batch(batch, 7, leader_epochs=[(5, 8)]) == parse_header(batch)


def test_batch_after_a_gap_of_compaction_is_only_good_where_there_may_be_gaps(make_batch):
    batch = make_batch(7)
    assert inspect_batch(batch, 5) is TailDefect.WRONG_OFFSET
    assert inspect_batch(batch, 5, may_skip=True) == parse_header(batch)
    assert inspect_batch(batch, 8, may_skip=True) is TailDefect.WRONG_OFFSET


def test_batch_that_ends_beyond_all_offsets_is_not_the_next(make_batch):
    batch = bytearray(make_batch(0, 5))
    patch(batch, base_offset=2**63 - 5, leader_epoch=0)
    assert inspect_batch(batch, 2**63 - 5) is TailDefect.WRONG_OFFSET
    patch(batch, base_offset=2**63 - 6, leader_epoch=0)
    assert inspect_batch(batch, 2**63 - 6) == parse_header(batch)


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
