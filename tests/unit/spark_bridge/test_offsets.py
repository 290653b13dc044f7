from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.api.distributing.read import PartitionRange, ReadBounds
from oncelog.spark_bridge.offsets import (
    EARLIEST,
    LATEST,
    parse_assignment,
    parse_offsets,
    plan,
    split,
)
from oncelog.storage.exceptions import (
    InvalidSettingError,
    OffsetOutOfRangeError,
)
from oncelog.storage.model import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def a_range(topic_partition, start, end):
    return PartitionRange(topic_partition=topic_partition, start_offset=start, end_offset=end)


def planned(bounds, starting=EARLIEST, ending=LATEST, fails=True):
    return plan(
        {tp: ReadBounds(start_offset=start, end_offset=end) for tp, (start, end) in bounds.items()},
        starting=starting,
        ending=ending,
        fails_on_data_loss=fails,
    )


# --- JSON -------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.builds(
            TopicPartition,
            st.text("abc.-_", min_size=1, max_size=5),
            st.integers(0, 10_000),
        ),
        st.integers(-2, 2**63 - 1),
        min_size=1,
    )
)
def test_offsets_survive_their_json(offsets):
    nested = {}
    for topic_partition, offset in offsets.items():
        nested.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offset
    assert parse_offsets("startingOffsets", json.dumps(nested)) == offsets


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "a JSON object"),
        ("[]", "a JSON object"),
        ("{}", "a JSON object"),
        ("[" * 100_000, "a JSON object"),
        ('{"a":5}', "topic 'a' needs an object of partitions"),
        ('{"a":{"0":"5"}}', "'5' is not an offset"),
        ('{"a":{"0":true}}', "True is not an offset"),
        ('{"a":{"0":-3}}', "-3 is not an offset"),
        ('{"a":{"x":5}}', "'x' is not a partition of topic 'a'"),
        ('{"a":{"-1":5}}', "'-1' is not a partition of topic 'a'"),
    ],
)
def test_offsets_that_are_none_are_refused(text, reason):
    with pytest.raises(InvalidSettingError, match=reason):
        parse_offsets("startingOffsets", text)


def test_an_assignment_is_read_in_order_and_without_repetition():
    assert parse_assignment("assign", '{"b":[0],"a":[1,0,1]}') == (A0, A1, B0)


@pytest.mark.parametrize("text", ['{"a":{}}', '{"a":[]}', '{"a":[-1]}', '{"a":["x"]}', "a"])
def test_an_assignment_that_is_none_is_refused(text):
    with pytest.raises(InvalidSettingError, match="assign="):
        parse_assignment("assign", text)


# --- planning ---------------------------------------------------------------------------------


def test_a_read_covers_what_there_is():
    assert planned({A0: (3, 10), B0: (0, 4)}) == [a_range(A0, 3, 10), a_range(B0, 0, 4)]


def test_an_empty_partition_gives_no_range():
    assert planned({A0: (7, 7), B0: (0, 4)}) == [a_range(B0, 0, 4)]


def test_given_offsets_bound_the_read():
    ranges = planned({A0: (0, 10), A1: (0, 10)}, {A0: 2, A1: EARLIEST}, {A0: LATEST, A1: 5})
    assert ranges == [a_range(A0, 2, 10), a_range(A1, 0, 5)]


def test_offsets_must_name_every_partition_that_is_read():
    with pytest.raises(InvalidSettingError, match="startingOffsets has no offset for a-1"):
        planned({A0: (0, 10), A1: (0, 10)}, {A0: 2})


def test_offsets_must_not_name_a_partition_that_is_not_read():
    with pytest.raises(InvalidSettingError, match="endingOffsets names b-0"):
        planned({A0: (0, 10)}, EARLIEST, {A0: 2, B0: 3})


@pytest.mark.parametrize(
    ("starting", "ending", "text"),
    [
        ({A0: 2}, LATEST, "to start at offset 2, but only 5 to 10"),
        ({A0: 11}, LATEST, "to start at offset 11, but only 5 to 10"),
        (EARLIEST, {A0: 11}, "to end at offset 11, but only 5 to 10"),
    ],
)
def test_offsets_that_cannot_be_read_fail_the_read(starting, ending, text):
    with pytest.raises(OffsetOutOfRangeError, match=text):
        planned({A0: (5, 10)}, starting, ending)


def test_without_failing_on_data_loss_the_read_is_cut_to_what_there_is():
    assert planned({A0: (5, 10)}, {A0: 2}, {A0: 20}, fails=False) == [a_range(A0, 5, 10)]
    assert planned({A0: (5, 10)}, {A0: 11}, fails=False) == []


def test_more_tasks_than_partitions_cut_the_larger_ranges():
    pieces = split([a_range(A0, 0, 90), a_range(B0, 0, 10)], 4)
    assert [piece.size for piece in pieces if piece.topic_partition == A0] == [22, 23, 22, 23]
    assert [piece for piece in pieces if piece.topic_partition == B0] == [a_range(B0, 0, 10)]


def test_ranges_that_are_enough_already_stay_whole():
    ranges = [a_range(A0, 0, 90), a_range(B0, 0, 10)]
    assert split(ranges, 2) == ranges
    assert split([], 5) == []


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=1, max_size=5),
    st.integers(1, 40),
)
def test_split_ranges_cover_the_same_offsets_in_order(sizes, ranges_min):
    ranges = [
        a_range(TopicPartition("a", place), start, start + size)
        for place, (start, size) in enumerate(sizes)
    ]

    def offsets(pieces):
        return [
            (piece.topic_partition, offset)
            for piece in pieces
            for offset in range(piece.start_offset, piece.end_offset)
        ]

    pieces = split(ranges, ranges_min)
    assert offsets(pieces) == offsets(ranges)
    assert len(pieces) >= min(ranges_min, len(offsets(ranges)))
    assert all(piece.size for piece in pieces)
