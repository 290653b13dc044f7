from __future__ import annotations

import pytest

from oncelog.api.distributing.ranges import PartitionRange
from oncelog.spark_bridge import source
from oncelog.spark_bridge.read_options import parse_read_options
from oncelog.spark_bridge.schema import read_schema
from oncelog.storage.model import TopicPartition

A0 = TopicPartition("a", 0)


@pytest.fixture
def planned(monkeypatch, timed_connection):
    """Plans a batch read of topic ``a``."""
    monkeypatch.setattr(source, "connect", lambda address: timed_connection)

    def plan(**options):
        parsed = parse_read_options({"subscribe": "a", **options})
        reader = source.BatchReader(parsed, read_schema(includes_headers=False))
        return [partition.value for partition in reader.partitions()]

    return plan


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
