from __future__ import annotations

import asyncio
from random import Random

import pytest
from distributed_world import OnePartition
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.api.distributing import read
from oncelog.api.distributing.read import PartitionRange, read_range
from oncelog.storage.exceptions import (
    OffsetOutOfRangeError,
    RequestTimedOutError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import IsolationLevel, TopicPartition


def values(partition, start, end, topic_id="", *, skips_lost=False, between=lambda: None):
    """The values that a read of offsets ``start`` to ``end`` gives, batch by batch.

    ``between`` is called after each of them.
    """

    async def scenario():
        wanted = PartitionRange(
            topic_partition=TopicPartition("t", 0),
            start_offset=start,
            end_offset=end,
            topic_id=topic_id,
        )
        found = []
        async for batch in read_range(
            partition.router(),
            wanted,
            isolation_level=IsolationLevel.READ_COMMITTED,
            random=Random(1),
            skips_lost=skips_lost,
        ):
            found.append(batch["value"].to_pylist())
            between()
        return found

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


def test_records_that_the_log_has_lost_are_skipped_with_a_warning(one_partition, caplog):
    one_partition.append(b"0", b"1")
    one_partition.append(b"2")
    one_partition.log_start_offset = 2
    assert flat(values(one_partition, 0, 3, skips_lost=True)) == [b"2"]
    (warning,) = caplog.messages
    assert warning == "skipping offsets 0 to 1 of t-0, which are gone"


def test_records_that_are_lost_in_the_midst_of_a_read_are_skipped(one_partition, caplog):
    """1. The first batch is read. 2. Retention deletes it, and two more. 3. The rest is read."""
    for value in range(6):
        one_partition.append(b"%d" % value)
    one_partition.log_start_offset = 1

    def delete():
        one_partition.log_start_offset = 5

    found = flat(values(one_partition, 0, 6, skips_lost=True, between=delete))
    assert found[0] == b"1"
    assert found[-1] == b"5"
    assert found == sorted(set(found))
    assert "skipping offsets 0 to 0 of t-0" in caplog.text


@settings(max_examples=60, deadline=None)
@given(
    deletions=st.lists(st.integers(0, 12), min_size=1, max_size=10),
    start=st.integers(0, 8),
    size=st.integers(1, 10),
)
def test_whatever_is_deleted_and_when_all_that_is_left_is_read_once(deletions, start, size):
    partition = OnePartition()
    for value in range(10):
        partition.append(b"%d" % value)
    left = iter(deletions)

    def delete():
        partition.log_start_offset = max(partition.log_start_offset, next(left, 0))

    delete()
    end = min(start + size, 10)
    read = values(partition, start, end, skips_lost=True, between=delete)
    found = [int(value) for value in flat(read)]
    assert found == sorted(set(found))
    assert set(range(max(start, partition.log_start_offset), end)) <= set(found)
    assert set(found) <= set(range(start, end))


@pytest.mark.parametrize("log_start_offset", [2, 9])
def test_a_range_that_is_lost_as_a_whole_gives_nothing(one_partition, caplog, log_start_offset):
    one_partition.append(b"0", b"1")
    one_partition.log_start_offset = log_start_offset
    one_partition.log_end_offset = 9
    assert values(one_partition, 0, 2, skips_lost=True) == []
    assert caplog.messages == ["skipping offsets 0 to 1 of t-0, which are gone"]


def test_what_is_beyond_the_end_of_a_log_that_was_cut_is_skipped(one_partition, caplog):
    one_partition.append(b"0")
    one_partition.end_is_enforced = True
    assert flat(values(one_partition, 0, 3, skips_lost=True)) == [b"0"]
    assert caplog.messages == ["skipping offsets 1 to 2 of t-0, which are gone"]


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_topic_that_is_gone_is_skipped(one_partition, caplog, is_made_again):
    one_partition.append(b"0")
    planned = one_partition.topic_id
    one_partition.topic_id = "1" * 32
    one_partition.is_deleted = not is_made_again
    assert values(one_partition, 0, 1, planned, skips_lost=True) == []
    assert caplog.messages == ["skipping offsets 0 to 0 of t-0, which are gone"]


def test_a_topic_that_only_its_leader_does_not_know_is_not_taken_for_gone(one_partition):
    one_partition.append(b"0")
    one_partition.is_unknown_to_leader = True
    with pytest.raises(UnknownTopicOrPartitionError):
        values(one_partition, 0, 1, one_partition.topic_id, skips_lost=True)


def test_a_leader_that_gives_nothing_for_long_fails_the_read(one_partition, monkeypatch):
    monkeypatch.setattr(read, "STALL_TIMEOUT_MS", 20)
    one_partition.append(b"0")
    one_partition.is_silent = True
    with pytest.raises(RequestTimedOutError, match="the leader of t-0 sent nothing"):
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
