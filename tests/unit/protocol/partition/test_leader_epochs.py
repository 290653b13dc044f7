from __future__ import annotations

import pytest

from oncelog.actors.protocol.partition.bounds import (
    UNDEFINED_EPOCH_END,
    EpochEnd,
    LeaderEpochs,
)

EPOCHS = ((2, 10), (3, 20), (6, 20 + 15))


def test_empty_log_has_no_latest_epoch_and_no_end_of_any() -> None:
    epochs = LeaderEpochs()
    assert (epochs.latest_epoch, epochs.latest_start_offset) == (-1, -1)
    assert epochs.end_offset_for(0, log_end_offset=0) == UNDEFINED_EPOCH_END
    assert epochs.end_offset_for(-1, log_end_offset=0) == UNDEFINED_EPOCH_END


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (1, EpochEnd(1, 10)),
        (2, EpochEnd(2, 20)),
        (3, EpochEnd(3, 35)),
        (5, EpochEnd(3, 35)),
        (6, EpochEnd(6, 50)),
        (7, UNDEFINED_EPOCH_END),
        (-1, UNDEFINED_EPOCH_END),
    ],
)
def test_end_of_an_epoch_is_where_the_next_one_begins(asked: int, answer: EpochEnd) -> None:
    assert LeaderEpochs(EPOCHS).end_offset_for(asked, log_end_offset=50) == answer


def test_epoch_that_has_begun_is_not_entered_again() -> None:
    epochs = LeaderEpochs(EPOCHS)
    assert not epochs.assign(6, 40)
    assert epochs.entries == EPOCHS


def test_newer_epoch_at_the_same_start_replaces_one_that_wrote_nothing() -> None:
    epochs = LeaderEpochs(EPOCHS)
    assert epochs.assign(7, 35)
    assert epochs.entries == ((2, 10), (3, 20), (7, 35))


def test_conflicting_epochs_are_removed() -> None:
    epochs = LeaderEpochs(EPOCHS)
    assert epochs.assign(4, 15)
    assert epochs.entries == ((2, 10), (4, 15))


def test_same_epoch_with_a_lower_start_begins_there() -> None:
    epochs = LeaderEpochs(EPOCHS)
    assert epochs.assign(6, 30)
    assert epochs.entries == ((2, 10), (3, 20), (6, 30))


def test_truncated_end_forgets_epochs_that_began_there_or_later() -> None:
    epochs = LeaderEpochs(EPOCHS)
    epochs.truncate_end(35)
    assert epochs.entries == ((2, 10), (3, 20))
    epochs.truncate_end(0)
    assert epochs.entries == ()


def test_raised_log_start_keeps_one_epoch_and_moves_it() -> None:
    epochs = LeaderEpochs(EPOCHS)
    epochs.truncate_start(5)
    assert epochs.entries == EPOCHS
    epochs.truncate_start(25)
    assert epochs.entries == ((3, 25), (6, 35))
    epochs.truncate_start(35)
    assert epochs.entries == ((6, 35),)
