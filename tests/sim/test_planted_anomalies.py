"""Clean random histories are accepted, and an anomaly planted in one is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sample_histories import clean_history
from sim_checkers import COMMITTED, UNCOMMITTED
from sim_history import History, Outcome
from sim_txn_checkers import check_history


def names(history: History) -> set[str]:
    return {violation.checker for violation in check_history(history)}


@pytest.mark.parametrize("number", range(40))
def test_a_clean_history_is_accepted(number):
    history = clean_history(number)
    assert check_history(history) == []
    assert history.reads
    assert any(write.outcome is Outcome.OK for write in history.writes)


def _drop_committed(history: History) -> str:
    for (partition, level), placed in history.final.items():
        if level is COMMITTED and placed:
            offset, value = placed.pop(len(placed) // 2)
            history.final[partition, UNCOMMITTED].remove((offset, value))
            return "LostRecords|TornWrites|VanishedRecords"
    return ""


def _repeat(history: History) -> str:
    for (_, level), placed in history.final.items():
        if level is COMMITTED and placed:
            placed.append((placed[-1][0] + 50, placed[0][1]))
            return "DuplicateRecords"
    return ""


def _swap(history: History) -> str:
    for placed in history.final.values():
        if len(placed) > 1:
            (first, one), (second, other) = placed[:2]
            placed[:2] = [(first, other), (second, one)]
            return "InconsistentOffsets|MismatchedOffsets|ProducerOrder|DuplicateRecords"
    return ""


def _show_aborted(history: History) -> str:
    for write in history.writes:
        for record in write.records:
            if write.outcome is Outcome.FAIL and record.offset is not None:
                history.final[record.topic_partition, COMMITTED].append(
                    (record.offset, record.value)
                )
                return "AbortedReads"
    return ""


def _turn_reader_back(history: History) -> str:
    for number, item in enumerate(history.reads):
        for later in range(number + 1, len(history.reads)):
            other = history.reads[later]
            if (other.reader, other.session, other.topic_partition) == (
                item.reader,
                item.session,
                item.topic_partition,
            ):
                history.reads[number], history.reads[later] = other, item
                return "ReadsGoBack"
    return ""


def _lower_position(history: History) -> str:
    for position, offset in history.final_positions.items():
        if offset:
            history.final_positions[position] = offset - 1
            return "TornOffsets|WrongOffsets|SkippedInputs"
    return ""


PLANTS = [_drop_committed, _repeat, _swap, _show_aborted, _turn_reader_back, _lower_position]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_an_anomaly_planted_in_a_clean_history_is_found(plant: Callable[[History], str]):
    planted = 0
    for number in range(40):
        history = clean_history(number)
        expected = plant(history)
        if expected:
            planted += 1
            assert names(history) & set(expected.split("|")), number
    assert planted >= 10
