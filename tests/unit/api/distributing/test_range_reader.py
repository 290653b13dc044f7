from __future__ import annotations

import asyncio
from random import Random

import pytest

from oncelog.api.distributing import range_reader
from oncelog.api.distributing.range_reader import read_range
from oncelog.api.distributing.ranges import PartitionRange
from oncelog.storage.exceptions import (
    OffsetOutOfRangeError,
    RequestTimedOutError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import IsolationLevel, TopicPartition


def values(partition, start, end, topic_id=""):
    """The values that a read of offsets ``start`` to ``end`` gives, batch by batch."""

    async def scenario():
        wanted = PartitionRange(
            topic_partition=TopicPartition("t", 0),
            start_offset=start,
            end_offset=end,
            topic_id=topic_id,
        )
        return [
            batch["value"].to_pylist()
            async for batch in read_range(
                partition.router(),
                wanted,
                isolation_level=IsolationLevel.READ_COMMITTED,
                random=Random(1),
            )
        ]

    return asyncio.run(scenario())


def flat(batches):
    return [value for batch in batches for value in batch]


def test_a_range_is_read_from_batch_to_batch(one_partition):
    one_partition.append(b"0", b"1")
    one_partition.append(b"2")
    assert flat(values(one_partition, 0, 3)) == [b"0", b"1", b"2"]


def test_a_range_within_batches_gives_no_record_outside_it(one_partition):
    one_partition.append(b"0", b"1", b"2")
    one_partition.append(b"3", b"4", b"5")
    assert flat(values(one_partition, 2, 5)) == [b"2", b"3", b"4"]


def test_a_range_that_the_log_has_lost_fails(one_partition):
    one_partition.append(b"0", b"1")
    one_partition.log_start_offset = 1
    with pytest.raises(OffsetOutOfRangeError):
        values(one_partition, 0, 2)


def test_a_leader_that_gives_nothing_for_long_fails_the_read(one_partition, monkeypatch):
    monkeypatch.setattr(range_reader, "STALL_TIMEOUT_MS", 20)
    one_partition.append(b"0")
    one_partition.is_silent = True
    with pytest.raises(RequestTimedOutError, match="the leader of t-0 gave nothing"):
        values(one_partition, 0, 1)


def test_a_topic_that_vanished_after_the_plan_fails_the_read(one_partition):
    one_partition.append(b"0")
    one_partition.is_deleted = True
    with pytest.raises(UnknownTopicOrPartitionError):
        values(one_partition, 0, 1)


def test_a_topic_of_the_same_name_is_not_read_in_place_of_the_planned_one(one_partition):
    one_partition.append(b"0")
    planned = one_partition.topic_id
    assert flat(values(one_partition, 0, 1, planned)) == [b"0"]
    one_partition.topic_id = "1" * 32
    with pytest.raises(UnknownTopicIdError):
        values(one_partition, 0, 1, planned)
