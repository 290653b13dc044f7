"""Records that retention, deletion or compaction removed are not missed; all others still are."""

from __future__ import annotations

import pytest
from sample_histories import A, B, final, read, transaction
from sim_history import COMPACTED_PREFIX, History, LogEnd, Outcome, key_of
from sim_txn_checkers import check_history

from oncelog.storage.model import TopicPartition

KEYED = TopicPartition(f"{COMPACTED_PREFIX}0", 0)


def names(history: History) -> set[str]:
    return {violation.checker for violation in check_history(history)}


def log_starts_at(history: History, offset: int) -> None:
    history.log_ends[A] = LogEnd(9, 9, 9, log_start_offset=offset)


@pytest.mark.parametrize(("start", "found"), [(1, set()), (0, {"LostRecords"})])
def test_a_record_below_the_log_start_may_be_gone_and_no_other(start, found):
    history = History()
    write = transaction(history, {A: ["a"]})
    history.acknowledge(write.records[0], 0)
    read(history, A, 0, "a")
    final(history, A, [])
    log_starts_at(history, start)
    assert names(history) & {"LostRecords"} == found


def test_a_record_above_the_log_start_that_was_read_may_not_be_gone():
    history = History()
    transaction(history, {A: ["a"]})
    read(history, A, 5, "a")
    final(history, A, [])
    log_starts_at(history, 3)
    assert "VanishedRecords" in names(history)


def test_a_write_of_which_a_part_is_below_the_log_start_is_not_torn():
    history = History()
    write = transaction(history, {A: ["a"], B: ["b"]})
    history.acknowledge(write.records[0], 0)
    final(history, A, [])
    final(history, B, [(0, "b")])
    assert "TornWrites" in names(history)
    log_starts_at(history, 1)
    assert names(history) == set()


def same_key(count: int) -> list[str]:
    """Values of one key."""
    values = [str(number) for number in range(100)]
    return [value for value in values if key_of(KEYED, value) == "k0"][:count]


def test_only_the_newest_record_of_a_key_must_be_there():
    old, new = same_key(2)
    history = History()
    for offset, value in enumerate((old, new)):
        write = transaction(history, {KEYED: [value]})
        history.acknowledge(write.records[0], offset)
        read(history, KEYED, offset, value)
    final(history, KEYED, [(1, new)])
    assert names(history) == set()
    final(history, KEYED, [(0, old)])
    assert names(history) >= {"LostRecords", "VanishedRecords"}


def test_a_record_that_only_an_aborted_one_follows_must_be_there():
    old, new = same_key(2)
    history = History()
    history.acknowledge(transaction(history, {KEYED: [old]}).records[0], 0)
    history.acknowledge(transaction(history, {KEYED: [new]}, Outcome.FAIL).records[0], 1)
    final(history, KEYED, [], [(1, new)])
    assert "LostRecords" in names(history)
