from __future__ import annotations

import pytest

from oncelog.api.distributing.read import Selection
from oncelog.storage.exceptions import UnknownTopicOrPartitionError
from oncelog.storage.model import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
COUNTS = {"a": 2, "b": 1, "__consumer_offsets": 2}


def test_all_partitions_of_the_named_topics_are_chosen():
    assert Selection(topics=("b", "a")).choose(COUNTS) == [A0, A1, B0]


def test_named_partitions_are_chosen_alone():
    assert Selection(partitions=(B0, A1)).choose(COUNTS) == [A1, B0]


def test_a_pattern_matches_whole_names_and_no_internal_topic():
    assert Selection(pattern=".*").choose(COUNTS) == [A0, A1, B0]
    assert Selection(pattern="a").choose({**COUNTS, "ab": 1}) == [A0, A1]
    assert Selection(pattern="z").choose(COUNTS) == []


def test_an_unknown_topic_is_refused_with_those_that_exist():
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'z' \(there are a, b\); create it"):
        Selection(topics=("z",)).choose(COUNTS)
    with pytest.raises(UnknownTopicOrPartitionError, match="there are none yet"):
        Selection(topics=("z",)).choose({})


def test_an_unknown_partition_is_refused():
    with pytest.raises(UnknownTopicOrPartitionError, match="'a' has partitions 0 to 1, not 2"):
        Selection(partitions=(TopicPartition("a", 2),)).choose(COUNTS)
