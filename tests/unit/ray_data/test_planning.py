from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.api.distributing.read import PartitionRange, ReadBounds
from oncelog.ray_data.planning import END, START, plan, rows_bytes, shares, times_ms
from oncelog.storage.exceptions import InvalidSettingError, OffsetOutOfRangeError
from oncelog.storage.model import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
NOON_MS = 1_767_268_800_000


def a_range(topic_partition, start, end):
    return PartitionRange(topic_partition=topic_partition, start_offset=start, end_offset=end)


def planned(bounds, start="earliest", end="latest", start_times=(), end_times=()):
    return [
        (str(item.topic_partition), item.start_offset, item.end_offset)
        for item in plan(
            START.positions(start, list(bounds)),
            END.positions(end, list(bounds)),
            bounds={
                tp: ReadBounds(start_offset=low, end_offset=high)
                for tp, (low, high) in bounds.items()
            },
            start_times=dict(start_times),
            end_times=dict(end_times),
        )
    ]


# --- positions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "given", "told"),
    [
        (
            START,
            "latest",
            r"start_offset='latest' is not allowed; give an offset, a datetime, 'ear",
        ),
        (END, "earliest", r"end_offset='earliest' is not allowed; .* 'latest'"),
        (START, -1, "start_offset=-1 is not"),
        (START, True, "start_offset=True is not"),
        (START, 1.5, r"start_offset=1\.5 is not"),
        (END, None, "end_offset=None is not"),
        (START, {"a": 3}, r"start_offset\['a'\]=3 is not allowed; give \{topic"),
        (START, {"a": {"0": 3}}, r"start_offset\['a'\]: '0' is no partition number"),
        (END, {"a": {0: "earliest"}}, r"end_offset\['a'\]\[0\]='earliest' is not"),
    ],
)
def test_what_is_no_position_is_refused_with_its_value(side, given, told):
    with pytest.raises(InvalidSettingError, match=told):
        side.check(given)


@pytest.mark.parametrize("given", [0, NOON, "earliest", {"a": {0: 0, 1: NOON, 2: "earliest"}}])
def test_a_position_is_one_for_all_partitions_or_one_each(given):
    START.check(given)
    places = [TopicPartition("a", number) for number in range(3)]
    named = given.get("a") if isinstance(given, dict) else dict.fromkeys(range(3), given)
    assert list(START.positions(given, places).values()) == list(named.values())


def test_partitions_that_are_not_named_have_the_default():
    assert START.positions({"a": {1: 7}}, [A0, A1]) == {A0: "earliest", A1: 7}


def test_a_position_of_what_is_not_read_is_refused():
    with pytest.raises(InvalidSettingError, match="end_offset names b-0, but what is read is a-0"):
        END.positions({"b": {0: 7}}, [A0])


def test_a_time_without_a_zone_is_utc_and_a_part_of_a_millisecond_counts_as_the_next():
    east = timezone(timedelta(hours=2))
    times = {
        A0: NOON.replace(tzinfo=None) + timedelta(microseconds=1),
        A1: datetime(2026, 1, 1, 14, tzinfo=east),
        B0: datetime(1, 1, 1),
    }
    assert times_ms({**times, TopicPartition("c", 0): 5}) == {A0: NOON_MS + 1, A1: NOON_MS, B0: 0}


# --- ranges -----------------------------------------------------------------------------------


def test_all_that_can_be_read_is_and_empty_partitions_are_left_out():
    assert planned({A1: (0, 3), A0: (2, 9), B0: (4, 4)}) == [("a-0", 2, 9), ("a-1", 0, 3)]


def test_an_end_beyond_what_can_be_read_is_cut_to_it():
    assert planned({A0: (0, 9), A1: (0, 3)}, start=1, end=5) == [("a-0", 1, 5), ("a-1", 1, 3)]


@pytest.mark.parametrize("start", [1, 10])
def test_a_start_that_is_deleted_or_not_there_yet_is_refused(start):
    with pytest.raises(
        OffsetOutOfRangeError, match=f"start_offset={start} of a-0; only 2 to 9 can be read"
    ):
        planned({A0: (2, 9)}, start={"a": {0: start}})


def test_a_start_after_the_end_is_refused():
    with pytest.raises(InvalidSettingError, match="start_offset=5 is after end_offset=4 in a-0"):
        planned({A0: (0, 9)}, start=5, end=4)


def test_times_stand_for_the_first_record_at_or_after_them():
    found = planned(
        {A0: (2, 9), A1: (0, 9)},
        start=NOON,
        end=NOON,
        # Records before the log start are gone, and a-1 has none so late: it is read to its end.
        start_times={A0: 1, A1: 3},
        end_times={A0: 8, A1: -1},
    )
    assert found == [("a-0", 2, 8), ("a-1", 3, 9)]


def test_a_start_later_than_every_record_reads_nothing():
    assert planned({A0: (2, 9)}, start=NOON, start_times={A0: -1}) == []


# --- tasks ------------------------------------------------------------------------------------


def told(item):
    return str(item.topic_partition), item.start_offset, item.end_offset


def pieces(found):
    return [list(map(told, share)) for share in found]


def offsets(ranges):
    return [
        (item.topic_partition, offset)
        for item in ranges
        for offset in range(item.start_offset, item.end_offset)
    ]


def test_a_large_partition_is_cut_and_small_ones_share_a_task():
    ranges = [a_range(A0, 0, 80), a_range(A1, 5, 15), a_range(B0, 0, 10)]
    even = {A0: 1, A1: 1, B0: 1}
    assert pieces(shares(ranges, even, 5)) == [
        [("a-0", 0, 20)],
        [("a-0", 20, 40)],
        [("a-0", 40, 60)],
        [("a-0", 60, 80)],
        [("a-1", 5, 15), ("b-0", 0, 10)],
    ]


def test_tasks_are_even_in_bytes_not_in_records():
    ranges = [a_range(A0, 0, 10), a_range(A1, 0, 100)]
    assert pieces(shares(ranges, {A0: 100, A1: 10}, 2)) == [[("a-0", 0, 10)], [("a-1", 0, 100)]]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60), st.integers(1, 300)), max_size=6),
    st.integers(1, 40),
)
def test_shares_have_every_offset_once_in_order(sizes, count):
    places = [TopicPartition("t", number) for number in range(len(sizes))]
    ranges = [
        a_range(tp, start, start + size) for tp, (start, size, _) in zip(places, sizes, strict=True)
    ]
    found = shares(ranges, {tp: each for tp, (*_, each) in zip(places, sizes, strict=True)}, count)
    assert offsets(item for share in found for item in share) == offsets(ranges)
    assert len(found) <= count
    assert all(found)


@given(st.integers(1, 200), st.integers(1, 40))
def test_as_many_shares_as_asked_for_if_there_are_offsets(size, count):
    found = shares([a_range(A0, 3, 3 + size)], {A0: 7}, count)
    counts = [r.size for share in found for r in share]
    assert len(counts) == min(size, count)
    if size >= count:
        assert max(counts) - min(counts) <= 1


def test_the_estimate_is_of_the_rows_not_of_the_log():
    assert rows_bytes([a_range(A0, 0, 10)], {A0: 100}) == 10 * (100 + 48)
