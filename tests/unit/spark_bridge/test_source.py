from __future__ import annotations

from datetime import datetime, timezone

import pytest
from distributed_world import TimedConnection
from fake_cluster import one_partition
from pyspark.sql.datasource import DataSourceReader, EqualTo, GreaterThanOrEqual
from pyspark.sql.streaming.datasource import ReadMaxRows

from oncelog.api.distributing.read import PartitionRange
from oncelog.api.session.event_loop import LoopThread
from oncelog.spark_bridge import source
from oncelog.spark_bridge.schema import read_schema
from oncelog.storage.model import TopicPartition

A0 = TopicPartition("a", 0)


def new_reader(**options):
    """The reader of a batch."""
    return source.OncelogDataSource(options).reader(read_schema(includes_headers=False))


@pytest.fixture
def planned_by(monkeypatch, timed_connection):
    """The ranges that a reader plans."""
    monkeypatch.setattr(source, "connect", lambda endpoint: timed_connection)
    return lambda reader: [partition.value for partition in reader.partitions()]


@pytest.fixture
def planned(planned_by):
    """Plans a batch read of topic ``a``."""
    return lambda **options: planned_by(new_reader(subscribe="a", **options))


def test_a_batch_reads_what_there_is_or_what_times_stand_for(topics, planned):
    topics.make("a", (3, 10))
    topics.times[A0] = {2_000: 5, 3_000: 8}
    whole = PartitionRange(
        topic_partition=A0, start_offset=3, end_offset=10, topic_id=topics.ids["a"]
    )
    assert planned() == [whole]
    (found,) = planned(startingtimestamp="2000", endingtimestamp="3000")
    assert (found.start_offset, found.end_offset) == (5, 8)
    # No record is as late: an end is then the end of the partition, a start is refused.
    (found,) = planned(endingtimestamp="9000")
    assert found == whole
    with pytest.raises(ValueError, match="no record of a-0 is as late as that"):
        planned(startingtimestamp="9000")


def test_a_batch_reads_only_what_the_filters_of_its_query_want(topics, planned_by):
    topics.make("a", (3, 10), (0, 20))
    topics.times[A0] = {2_000: 7}
    later = GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(2, timezone.utc))
    reader = new_reader(subscribe="a", pushdown="true")
    assert len(planned_by(reader)) == 2
    assert reader.pushFilters([EqualTo(("partition",), 0), later]) == [later]
    (found,) = planned_by(reader)
    assert (found.topic_partition, found.start_offset, found.end_offset) == (A0, 7, 10)


def test_a_reader_takes_filters_only_if_told_to():
    """Spark refuses one that does, unless it is configured to push filters."""
    assert new_reader(subscribe="a").pushFilters.__func__ is DataSourceReader.pushFilters


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_task_skips_lost_records_only_if_told_to(monkeypatch, fails):
    """1. A read is planned. 2. Retention deletes some of it. 3. Its task reads."""
    cluster, log = one_partition()
    for value in b"012":
        log.append(b"%d" % value)
    reader = new_reader(subscribe="t", failondataloss=fails)
    wanted = PartitionRange(topic_partition=TopicPartition("t", 0), start_offset=0, end_offset=3)
    log.log_start_offset = 2
    loop_thread = LoopThread("test")
    monkeypatch.setattr(source, "connect", lambda _: TimedConnection(cluster, loop_thread))
    try:
        read = reader.read(source.RangePartition(wanted))
        if fails == "true":
            with pytest.raises(ValueError, match="oncelog: fetch of t-0 at offset 0"):
                list(read)
        else:
            assert [batch["offset"].to_pylist() for batch in read] == [[2]]
    finally:
        loop_thread.close()


def test_a_group_is_shown_the_last_batch_of_a_query_too(monkeypatch, topics, timed_connection):
    """Spark tells that a batch is done when it makes the next one, and after the last one never.
    But it asks how far the next one may go: then what is before it is done.
    """
    topics.make("a", (0, 10))
    monkeypatch.setattr(source, "connect", lambda endpoint: timed_connection)
    given = {"subscribe": "a", "kafka.group.id": "g", "startingoffsets": "earliest"}
    schema = read_schema(includes_headers=False)
    reader = source.OncelogDataSource(given).streamReader(schema)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset({}, ReadMaxRows(6))
    assert topics.committed == []
    reader.commit(end)
    last = reader.latestOffset(end, ReadMaxRows(6))
    assert last != end
    for _ in range(2):
        assert reader.latestOffset(last, ReadMaxRows(6)) == last
    shown = [[position.offset for position in offsets.values()] for _, offsets in topics.committed]
    assert shown == [[6], [10]]
