"""Partitions are those that Kafka's clients choose."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from oncelog.api.batching.open_batches import murmur2
from oncelog.api.batching.partitioner import (
    StickyPartitions,
    partition_for_key,
    partitions_for_keys,
)


# From Kafka's UtilsTest.testMurmur2.
@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_kafkas_numbers(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


@given(st.binary(max_size=100))
def test_murmur2_agrees_with_another_client(key: bytes) -> None:
    assert murmur2(key) == kafka_murmur2(key) & 0xFFFFFFFF


@given(st.lists(st.none() | st.binary(max_size=40), max_size=60), st.integers(1, 50))
def test_a_column_of_keys_goes_where_each_key_would(
    keys: list[bytes | None], partition_count: int
) -> None:
    expected = [-1 if key is None else partition_for_key(key, partition_count) for key in keys]
    column = pa.array(keys, pa.binary())
    assert partitions_for_keys(column, partition_count).tolist() == expected
    assert partitions_for_keys(column.dictionary_encode(), partition_count).tolist() == expected


def test_a_slice_of_keys_keeps_its_places() -> None:
    column = pa.array([b"a", b"bb", None, b"a", b"ccc"], pa.binary())
    whole = partitions_for_keys(column, 7)
    assert np.array_equal(partitions_for_keys(column.slice(1, 3), 7), whole[1:4])


def test_a_null_in_the_dictionary_is_a_null_key() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([None, b"a"]))
    assert partitions_for_keys(column, 5).tolist() == [-1, partition_for_key(b"a", 5), -1]


def test_records_without_key_stay_until_the_next_batch_and_then_move() -> None:
    sticky = StickyPartitions(Random(1))
    first = sticky.current("t", 4)
    assert {sticky.current("t", 4) for _ in range(5)} == {first}
    assert sticky.advance("t", 4) != first


def test_a_sticky_partition_is_chosen_anew_when_the_count_shrinks() -> None:
    sticky = StickyPartitions(Random(1))
    for _ in range(10):
        sticky.advance("t", 100)
        assert sticky.current("t", 1) == 0


def test_every_partition_has_its_turn() -> None:
    sticky = StickyPartitions(Random(1))
    assert {sticky.advance("t", 5) for _ in range(100)} == set(range(5))
