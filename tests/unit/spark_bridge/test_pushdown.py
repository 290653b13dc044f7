from __future__ import annotations

import itertools
import operator
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from oncelog.api.distributing.read import PartitionRange
from oncelog.spark_bridge.pushdown import GAP_MIN, SPANS_MAX, Spans, push
from oncelog.storage.model import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
TOPIC, PARTITION, OFFSET, TIMESTAMP = ("topic",), ("partition",), ("offset",), ("timestamp",)


def at(milliseconds, microseconds=0):
    """A time as Spark gives it."""
    passed = timedelta(milliseconds=milliseconds, microseconds=microseconds)
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + passed


def a_range(topic_partition, start, end):
    return PartitionRange(topic_partition=topic_partition, start_offset=start, end_offset=end)


WHOLE = [a_range(A0, 0, 100), a_range(A1, 50, 100), a_range(B0, 0, 10)]


def no_times(times):
    raise AssertionError(f"asked for {times}")


def left_of(*filters, offsets_at=no_times):
    """What is read of ``WHOLE`` as (partition, start, end), and what Spark evaluates."""
    narrowing, left = push(filters)
    ranges = narrowing.cut(WHOLE, offsets_at)
    return [(item.topic_partition, item.start_offset, item.end_offset) for item in ranges], left


# --- partitions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "partitions"),
    [
        (EqualTo(TOPIC, "a"), [A0, A1]),
        (In(TOPIC, ("b", "c", None)), [B0]),
        (Not(EqualTo(TOPIC, "a")), [B0]),
        (Not(In(TOPIC, ("a", "b"))), []),
        (EqualTo(PARTITION, 0), [A0, B0]),
        (EqualNullSafe(PARTITION, 1), [A1]),
        (In(PARTITION, (1, 7, None)), [A1]),
        (Not(EqualTo(PARTITION, 0)), [A1]),
        (Not(In(PARTITION, (1, 5))), [A0, B0]),
        (LessThan(PARTITION, 1), [A0, B0]),
        (LessThanOrEqual(PARTITION, 0), [A0, B0]),
        (GreaterThan(PARTITION, 0), [A1]),
        (GreaterThanOrEqual(PARTITION, 2), []),
        (IsNotNull(PARTITION), [A0, A1, B0]),
        (IsNotNull(TIMESTAMP), [A0, A1, B0]),
    ],
    ids=str,
)
def test_partitions_that_no_row_can_come_from_are_not_read(item, partitions):
    ranges, left = left_of(item)
    assert [place for place, _, _ in ranges] == partitions
    assert left == []


# --- offsets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "wanted"),
    [
        ((GreaterThan(OFFSET, 59),), [(A0, 60, 100), (A1, 60, 100)]),
        ((GreaterThanOrEqual(OFFSET, 60), LessThan(OFFSET, 70)), [(A0, 60, 70), (A1, 60, 70)]),
        ((LessThanOrEqual(OFFSET, 4), EqualTo(TOPIC, "b")), [(B0, 0, 5)]),
        ((EqualTo(OFFSET, 55),), [(A0, 55, 56), (A1, 55, 56)]),
        ((In(OFFSET, (7, 5, 6, None)),), [(A0, 5, 8), (B0, 5, 8)]),
        ((EqualTo(OFFSET, 2**40),), []),
    ],
    ids=str,
)
def test_offsets_cut_each_partition_and_spark_need_not_look_again(items, wanted):
    assert left_of(*items) == (wanted, [])


def test_offsets_far_apart_are_read_each_for_itself_and_near_ones_together():
    wide = [a_range(A0, 0, 10 * GAP_MIN)]
    item = In(OFFSET, (5, 7, 8 + GAP_MIN, 5 * GAP_MIN))
    narrowing, left = push([item])
    assert [(r.start_offset, r.end_offset) for r in narrowing.cut(wide, no_times)] == [
        (5, 8),
        (8 + GAP_MIN, 9 + GAP_MIN),
        (5 * GAP_MIN, 5 * GAP_MIN + 1),
    ]
    assert left == [item], "6 is read and not wanted"


def test_many_offsets_are_one_range():
    item = In(OFFSET, tuple(range(0, 2 * GAP_MIN * (SPANS_MAX + 1), 2 * GAP_MIN)))
    narrowing, left = push([item])
    (found,) = narrowing.cut([a_range(A0, 0, 10**9)], no_times)
    assert (found.start_offset, found.end_offset) == (0, 2 * GAP_MIN * SPANS_MAX + 1)
    assert left == [item]


# --- times ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "from_ms"),
    [
        (GreaterThanOrEqual(TIMESTAMP, at(2_000)), 2_000),
        (GreaterThanOrEqual(TIMESTAMP, at(2_000, 1)), 2_001),
        (GreaterThan(TIMESTAMP, at(2_000)), 2_001),
        (GreaterThan(TIMESTAMP, at(2_000, 999)), 2_001),
        (EqualTo(TIMESTAMP, at(2_000)), 2_000),
        (In(TIMESTAMP, (at(9_000), None, at(2_000))), 2_000),
    ],
    ids=str,
)
def test_a_read_begins_at_the_first_record_that_is_late_enough(item, from_ms):
    asked = []

    def offsets_at(times):
        asked.append(dict(times))
        return {A0: 20, A1: 10, B0: -1}

    wanted = [(A0, 20, 100), (A1, 50, 100)]
    assert left_of(item, offsets_at=offsets_at) == (wanted, [item])
    assert asked == [dict.fromkeys((A0, A1, B0), from_ms)]


def test_times_are_asked_only_of_partitions_that_are_read():
    def offsets_at(times):
        assert set(times) == {A1}
        return {A1: 100}

    late = GreaterThan(TIMESTAMP, at(5))
    assert left_of(late, EqualTo(PARTITION, 1), offsets_at=offsets_at) == ([], [late])
    assert left_of(late, EqualTo(PARTITION, 9)) == ([], [late])


@pytest.mark.parametrize("time", [at(0), at(-1), at(-5_000)], ids=str)
def test_no_time_before_1970_is_asked_for(time):
    """-1 and -2 would stand for the ends of a partition."""
    item = GreaterThanOrEqual(TIMESTAMP, time)
    assert left_of(item) == ([(A0, 0, 100), (A1, 50, 100), (B0, 0, 10)], [item])


# --- what is left to Spark --------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    [
        LessThan(TIMESTAMP, at(5)),
        Not(EqualTo(TIMESTAMP, at(5))),
        GreaterThan(TIMESTAMP, datetime(2020, 1, 1)),
        In(TIMESTAMP, (None,)),
        Not(EqualTo(OFFSET, 5)),
        EqualTo(OFFSET, None),
        EqualTo(OFFSET, 5.0),
        EqualNullSafe(PARTITION, None),
        Not(In(PARTITION, (1, None))),
        EqualTo(PARTITION, True),
        IsNull(PARTITION),
        Not(IsNotNull(PARTITION)),
        StringStartsWith(TOPIC, "a"),
        EqualTo(("value",), b"x"),
        IsNotNull(("key",)),
        EqualTo(("offset", "part"), 3),
    ],
    ids=str,
)
def test_what_tells_nothing_is_left_to_spark(item):
    assert left_of(item) == ([(A0, 0, 100), (A1, 50, 100), (B0, 0, 10)], [item])


# --- sets of numbers --------------------------------------------------------------------------

NUMBERS = st.sets(st.integers(-20, 20))


@given(NUMBERS, NUMBERS, st.integers(-25, 25), st.integers(-25, 25))
def test_spans_are_sets(first, second, start, end):
    everything = set(range(-25, 25))
    one, other = Spans.of(first), Spans.of(second)

    def numbers(spans):
        return {n for low, high in spans.within(-25, 25) for n in range(low, high)}

    assert numbers(one) == first
    assert numbers(one.others()) == everything - first
    assert numbers(one.both(other)) == first & second
    assert numbers(one.both(other.others())) == first - second
    within = {n for low, high in one.within(start, end) for n in range(low, high)}
    assert within == first & set(range(start, end))


# --- rows -------------------------------------------------------------------------------------

ROWS = st.fixed_dictionaries(
    {
        TopicPartition(topic, place): st.lists(st.integers(0, 12), min_size=least, max_size=12)
        for topic, place, least in (("a", 0, 6), ("a", 1, 0), ("a", 2, 3), ("b", 0, 0), ("b", 1, 6))
    }
)
"""By partition: the times of its records in milliseconds, in the order of their offsets."""

KINDS = (EqualTo, EqualNullSafe, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual)
VALUES = {
    TOPIC: st.sampled_from("abc"),
    PARTITION: st.integers(-1, 3),
    OFFSET: st.integers(-1, 13),
    TIMESTAMP: st.builds(at, st.integers(-1, 13), st.sampled_from((0, 1, 999))),
}


@st.composite
def filters(draw):
    column = draw(st.sampled_from(list(VALUES)))
    value = VALUES[column]
    item = draw(
        st.one_of(
            st.builds(draw(st.sampled_from(KINDS)), st.just(column), value),
            st.builds(In, st.just(column), st.lists(value | st.none(), min_size=1, max_size=4)),
        )
    )
    return Not(item) if draw(st.booleans()) else item


COMPARISONS = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
}


def truth(item, row):
    """What SQL says, ``None`` for unknown; rows have no nulls."""
    if isinstance(item, Not):
        inner = truth(item.child, row)
        return None if inner is None else not inner
    value = row[item.attribute[0]]
    if isinstance(item, In):
        return value in item.value or (None if None in item.value else False)
    return COMPARISONS[type(item)](value, item.value)


@given(ROWS, st.lists(filters(), min_size=1, max_size=8))
def test_a_query_has_the_same_rows_with_and_without_pushing_its_filters(times, items):
    """Times are in any order. One filter, and two together: more leave no row."""
    rows = {
        (place, offset): {
            "topic": place.topic,
            "partition": place.partition,
            "offset": offset,
            "timestamp": at(time),
        }
        for place, found in times.items()
        for offset, time in enumerate(found)
    }

    def offsets_at(wanted):
        return {
            place: next((n for n, time in enumerate(times[place]) if time >= from_ms), -1)
            for place, from_ms in wanted.items()
        }

    whole = [a_range(place, 0, len(found)) for place, found in times.items() if found]
    for together in [*([item] for item in items), *itertools.pairwise(items)]:
        narrowing, left = push(together)
        read = [
            (item.topic_partition, offset)
            for item in narrowing.cut(whole, offsets_at)
            for offset in range(item.start_offset, item.end_offset)
        ]
        found = [row for row in read if all(truth(item, rows[row]) is True for item in left)]
        wanted = [row for row in rows if all(truth(item, rows[row]) is True for item in together)]
        assert sorted(found) == sorted(wanted)
