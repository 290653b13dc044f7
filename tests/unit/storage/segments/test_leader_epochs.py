from __future__ import annotations

import pytest

from oncelog.storage.segments.leader_epochs import (
    UNDEFINED_END,
    end_of_epoch,
    without_end,
    without_start,
)

EPOCHS = [(1, 0), (3, 10), (6, 20)]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, (0, 0)), (1, (1, 10)), (2, (1, 10)), (3, (3, 20)), (5, (3, 20)), (6, (6, 30))],
)
def test_an_epoch_ends_where_the_next_one_begins(epoch, expected):
    assert end_of_epoch(EPOCHS, epoch, log_end_offset=30) == expected


@pytest.mark.parametrize("epoch", [-1, 7])
def test_the_end_of_an_epoch_nobody_knows_is_undefined(epoch):
    assert end_of_epoch(EPOCHS, epoch, log_end_offset=30) == UNDEFINED_END
    assert end_of_epoch([], epoch, log_end_offset=30) == UNDEFINED_END


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (1, 1), (10, 1), (11, 2), (30, 3)])
def test_a_cut_drops_the_epochs_that_began_at_or_after_it(offset, left):
    assert without_end(EPOCHS, offset) == EPOCHS[:left]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, EPOCHS),
        (5, [(1, 5), (3, 10), (6, 20)]),
        (10, [(3, 10), (6, 20)]),
        (25, [(6, 25)]),
    ],
)
def test_a_raised_start_keeps_the_epoch_it_lies_in(offset, expected):
    assert without_start(EPOCHS, offset) == expected


def test_a_raised_start_of_no_epochs_has_none():
    assert without_start([], 5) == []
