from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
from fake_cluster import one_partition
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.actors.process.metrics import CONSUMER_BYTES, CONSUMER_RECORDS
from oncelog.actors.protocol.messages.partition import FetchRequest
from oncelog.actors.rpc.call_meter import CallReports
from oncelog.api.distributing import read
from oncelog.api.distributing.read import PartitionRange, read_range
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    OffsetOutOfRangeError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import IsolationLevel, TopicPartition

ALWAYS = 1_000_000


def values(cluster, start, end, topic_id="", *, skips_lost=False, between=lambda: None):
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
            cluster.router(),
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


def test_what_a_task_has_read_is_reported_at_its_end():
    cluster, log = one_partition()
    log.append(b"0", b"1")
    added = Counter()

    class Sink:
        def add(self, metric, amount, tags):
            if metric in (CONSUMER_RECORDS, CONSUMER_BYTES):
                assert tags == {"client": "task", "group": ""}
                added[metric.name] += amount

        def set(self, metric, value, tags):
            assert tags["client"] == "task"

    router = cluster.router()
    router.reports = CallReports(Sink(), ALWAYS)
    cluster.router = lambda: router
    assert flat(values(cluster, 0, 2)) == [b"0", b"1"]
    assert added == {"consumer_records": 2, "consumer_bytes": len(log.batches[0])}


def test_a_range_is_read_from_batch_to_batch():
    cluster, log = one_partition()
    log.append(b"0", b"1")
    log.append(b"2")
    assert flat(values(cluster, 0, 3)) == [b"0", b"1", b"2"]


def test_a_range_within_batches_gives_no_record_outside_it():
    cluster, log = one_partition()
    log.append(b"0", b"1", b"2")
    log.append(b"3", b"4", b"5")
    assert flat(values(cluster, 2, 5)) == [b"2", b"3", b"4"]


def test_a_range_that_the_log_has_lost_fails():
    cluster, log = one_partition()
    log.append(b"0", b"1")
    log.log_start_offset = 1
    with pytest.raises(OffsetOutOfRangeError):
        values(cluster, 0, 2)


def test_records_that_the_log_has_lost_are_skipped_with_a_warning(caplog):
    cluster, log = one_partition()
    log.append(b"0", b"1")
    log.append(b"2")
    log.log_start_offset = 2
    assert flat(values(cluster, 0, 3, skips_lost=True)) == [b"2"]
    (warning,) = caplog.messages
    assert warning.startswith("skipping offsets 0 to 1 of t-0, which are gone — ")


def test_records_that_are_lost_in_the_midst_of_a_read_are_skipped(caplog):
    """1. The first batch is read. 2. Retention deletes it, and two more. 3. The rest is read."""
    cluster, log = one_partition()
    for value in range(6):
        log.append(b"%d" % value)
    log.log_start_offset = 1

    def delete():
        log.log_start_offset = 5

    found = flat(values(cluster, 0, 6, skips_lost=True, between=delete))
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
    cluster, log = one_partition()
    for value in range(10):
        log.append(b"%d" % value)
    left = iter(deletions)

    def delete():
        log.log_start_offset = max(log.log_start_offset, next(left, 0))

    delete()
    end = min(start + size, 10)
    read = values(cluster, start, end, skips_lost=True, between=delete)
    found = [int(value) for value in flat(read)]
    assert found == sorted(set(found))
    assert set(range(max(start, log.log_start_offset), end)) <= set(found)
    assert set(found) <= set(range(start, end))


@pytest.mark.parametrize("log_start_offset", [2, 9])
def test_a_range_that_is_lost_as_a_whole_gives_nothing(caplog, log_start_offset):
    cluster, log = one_partition()
    log.append(b"0", b"1")
    log.log_start_offset = log_start_offset
    log.log_end_offset = 9
    assert values(cluster, 0, 2, skips_lost=True) == []
    assert [one.split(" — ")[0] for one in caplog.messages] == [
        "skipping offsets 0 to 1 of t-0, which are gone"
    ]


def test_what_is_beyond_the_end_of_a_log_that_was_cut_is_skipped(caplog):
    cluster, log = one_partition()
    log.append(b"0")
    cluster.hooks[FetchRequest] = lambda request: (
        request.failed(ErrorCode.OFFSET_OUT_OF_RANGE)
        if request.fetch_offset >= log.log_end_offset
        else None
    )
    assert flat(values(cluster, 0, 3, skips_lost=True)) == [b"0"]
    assert [one.split(" — ")[0] for one in caplog.messages] == [
        "skipping offsets 1 to 2 of t-0, which are gone"
    ]


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_topic_that_is_gone_is_skipped(caplog, is_made_again):
    cluster, log = one_partition()
    log.append(b"0")
    planned = cluster.topic_ids["t"]
    cluster.topic_ids["t"] = "1" * 32
    if not is_made_again:
        cluster.delete("t")
    assert values(cluster, 0, 1, planned, skips_lost=True) == []
    assert [one.split(" — ")[0] for one in caplog.messages] == [
        "skipping offsets 0 to 0 of t-0, which are gone"
    ]


def test_a_topic_that_may_not_be_seen_is_not_taken_for_gone():
    cluster, log = one_partition()
    log.append(b"0")
    cluster.hidden = {"t"}
    with pytest.raises(TopicAuthorizationFailedError):
        values(cluster, 0, 1, cluster.topic_ids["t"], skips_lost=True)


def test_a_topic_that_only_its_leader_does_not_know_is_not_taken_for_gone():
    cluster, log = one_partition()
    log.append(b"0")
    cluster.fail(FetchRequest, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ALWAYS)
    with pytest.raises(UnknownTopicOrPartitionError):
        values(cluster, 0, 1, cluster.topic_ids["t"], skips_lost=True)


def test_a_leader_that_gives_nothing_for_long_fails_the_read(monkeypatch):
    cluster, log = one_partition()
    monkeypatch.setattr(read, "STALL_TIMEOUT_MS", 20)
    log.append(b"0")
    cluster.fail(FetchRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER, ALWAYS)
    with pytest.raises(RequestTimedOutError, match="the leader of t-0 sent nothing"):
        values(cluster, 0, 1)


def test_a_topic_that_vanished_after_the_plan_fails_the_read():
    cluster, log = one_partition()
    log.append(b"0")
    cluster.delete("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        values(cluster, 0, 1)


def test_a_topic_of_the_same_name_is_not_read_in_place_of_the_planned_one():
    cluster, log = one_partition()
    log.append(b"0")
    planned = cluster.topic_ids["t"]
    assert flat(values(cluster, 0, 1, planned)) == [b"0"]
    cluster.topic_ids["t"] = "1" * 32
    with pytest.raises(UnknownTopicIdError):
        values(cluster, 0, 1, planned)
