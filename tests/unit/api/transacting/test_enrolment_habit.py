"""What the next transaction is expected to write to."""

from __future__ import annotations

from oncelog.api.transacting.enrolment import EXPECTED_MAX, EnrolmentHabit
from oncelog.storage.model import TopicPartition


def partitions(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", number) for number in numbers)


def test_one_transaction_is_no_habit() -> None:
    habit = EnrolmentHabit()
    habit.ended(partitions(0, 1))
    assert habit.expected == frozenset()


def test_what_both_of_the_last_two_wrote_to_is_expected() -> None:
    habit = EnrolmentHabit()
    habit.ended(partitions(0, 1, 2))
    habit.ended(partitions(1, 2, 3))
    assert habit.expected == partitions(1, 2)
    habit.ended(partitions(3))
    assert habit.expected == partitions(3)


def test_a_transaction_without_records_ends_the_habit() -> None:
    habit = EnrolmentHabit()
    habit.ended(partitions(0))
    habit.ended(partitions(0))
    habit.ended(())
    assert habit.expected == frozenset()


def test_too_many_partitions_are_not_expected() -> None:
    habit = EnrolmentHabit()
    for count, expected in ((EXPECTED_MAX, EXPECTED_MAX), (EXPECTED_MAX + 1, 0)):
        habit.ended(partitions(*range(count)))
        habit.ended(partitions(*range(count)))
        assert len(habit.expected) == expected
