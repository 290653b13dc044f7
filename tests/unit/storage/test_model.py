"""Ids, sentinels and the small functions on them."""

from __future__ import annotations

import pytest

from oncelog.storage.model import (
    INTERNAL_TOPICS,
    PRODUCER_EPOCH_EXHAUSTED,
    SEQUENCE_MAX,
    TopicPartition,
    is_valid_topic_name,
    sequence_after,
    shard_of,
)


@pytest.mark.parametrize("name", ["a", "flights-2013", "A.b_c-9", "...", "x" * 249])
def test_topic_name_of_allowed_characters_is_valid(name: str) -> None:
    assert is_valid_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "é", "a\n"])
def test_topic_name_outside_the_rules_is_invalid(name: str) -> None:
    assert not is_valid_topic_name(name)


def test_internal_topics_have_valid_names() -> None:
    assert all(is_valid_topic_name(name) for name in INTERNAL_TOPICS)


@pytest.mark.parametrize(
    ("sequence", "count", "following"),
    [
        (0, 1, 1),
        (SEQUENCE_MAX, 1, 0),
        (SEQUENCE_MAX - 1, 3, 1),
        (7, 0, 7),
        (SEQUENCE_MAX, 0, 2**31 - 1),
    ],
)
def test_sequence_after_the_last_one_is_zero(sequence: int, count: int, following: int) -> None:
    assert sequence_after(sequence, count) == following


def test_topic_partition_prints_as_its_directory_name() -> None:
    assert str(TopicPartition("flights", 3)) == "flights-3"


def test_topic_partitions_sort_by_topic_then_number() -> None:
    partitions = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]
    assert sorted(partitions) == [partitions[2], partitions[1], partitions[0]]


# Hash values as Java's String.hashCode gives them.
@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
    ],
)
def test_shard_is_java_hash_modulo_count(key: str, java_hash: int) -> None:
    expected = 0 if java_hash == -(2**31) else abs(java_hash) % 50
    assert shard_of(key, 50) == expected


def test_exhausted_epoch_leaves_one_epoch_to_fence_with() -> None:
    assert PRODUCER_EPOCH_EXHAUSTED == 32_766
