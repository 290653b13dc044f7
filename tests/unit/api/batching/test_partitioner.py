"""Partitions are those that Kafka's clients choose."""

from __future__ import annotations

import zlib
from random import Random
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from oncelog.api.batching.open_batches import murmur2
from oncelog.api.batching.partitioner import (
    STAY_BYTES,
    Partitioner,
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


def test_a_producer_that_stays_moves_on_after_some_bytes() -> None:
    sticky = StickyPartitions(Random(1))
    first = sticky.following("t", 4, is_staying=True)
    other = (first + 1) % 4
    sticky.filled("t", other, STAY_BYTES)
    sticky.filled("another topic", first, STAY_BYTES)
    sticky.filled("t", first, STAY_BYTES - 1)
    assert sticky.following("t", 4, is_staying=True) == first
    sticky.filled("t", first, 1)
    second = sticky.following("t", 4, is_staying=True)
    assert second != first
    assert sticky.following("t", 4, is_staying=True) == second
    assert sticky.following("t", 4, is_staying=False) != second
    for _ in range(10):
        assert sticky.following("t", 1, is_staying=True) == 0


def test_a_sticky_partition_is_chosen_anew_when_the_count_shrinks() -> None:
    sticky = StickyPartitions(Random(1))
    for _ in range(10):
        sticky.advance("t", 100)
        assert sticky.current("t", 1) == 0


def test_every_partition_has_its_turn() -> None:
    sticky = StickyPartitions(Random(1))
    assert {sticky.advance("t", 5) for _ in range(100)} == set(range(5))


MOCK_PARTITIONS = 4
"""Of a topic of librdkafka's own cluster in memory."""


@pytest.mark.parametrize(
    ("name", "theirs"), [("murmur2", "murmur2_random"), ("consistent_random", "consistent_random")]
)
def test_a_key_goes_where_librdkafka_takes_it(name: Any, theirs: str) -> None:
    other = confluent_kafka.Producer(
        {"test.mock.num.brokers": 1, "partitioner": theirs, "linger.ms": 0, "log_level": 0}
    )
    placed: dict[bytes, int] = {}
    random = Random(8)
    keys = {random.randbytes(1 + number % 40) for number in range(200)}

    def place(error: object, made: Any) -> None:
        placed[made.key()] = made.partition()

    for key in keys:
        other.produce("t", b"v", key, on_delivery=place)
    assert other.flush(30) == 0
    ours = Partitioner(name)
    assert placed == {key: ours.of_key(key, MOCK_PARTITIONS) for key in keys}
    column = ours.of_column("t", pa.array(list(keys), pa.binary()), MOCK_PARTITIONS)
    assert placed == dict(zip(keys, column.tolist(), strict=True))


def test_an_empty_key_places_nothing_with_librdkafkas_hash_but_does_with_kafkas() -> None:
    by_crc32, by_murmur2 = Partitioner("consistent_random"), Partitioner("murmur2")
    assert by_crc32.of_key(b"", 5) is None
    assert by_murmur2.of_key(b"", 5) == partition_for_key(b"", 5)
    keys = pa.array([b"", None, b"a", b""], pa.binary())
    assert by_crc32.of_column("t", keys, 5).tolist() == [-1, -1, zlib.crc32(b"a") % 5, -1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, r"for topic 't' returned 3; give 0 to 2, or None"),
        (-1, r"returned -1; give 0 to 2"),
        (True, r"int or None, not True"),
        ("0", r"int or None, not '0'"),
        (1.0, r"int or None, not 1.0"),
    ],
)
def test_what_a_function_returns_is_checked(given: Any, message: str) -> None:
    ours = Partitioner(lambda topic, key, count: given)
    for ask in (
        lambda: ours.by_function("t", b"k", 3),
        lambda: ours.of_column("t", pa.array([b"k"]), 3),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            ask()
