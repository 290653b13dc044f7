"""How far the batches of a stream go, asked of the real connection to topics in memory."""

from __future__ import annotations

import json
import logging

import pytest

from oncelog.spark_bridge.micro_batch_read import (
    IDLE_WAIT_MS,
    TOPICS_AGE_MS,
    MicroBatchReads,
)
from oncelog.spark_bridge.read_options import parse_read_options
from oncelog.storage.exceptions import (
    InvalidSettingError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
B0 = TopicPartition("b", 0)


@pytest.fixture
def stream(topics, timed_connection):
    """Makes the reads of a stream of topic ``a``."""

    def new_stream(**options):
        if "subscribePattern" not in options:
            options = {"subscribe": "a", **options}
        options = {"startingOffsets": "earliest", **options}
        parsed = parse_read_options({name.lower(): value for name, value in options.items()})
        return MicroBatchReads(lambda endpoint: timed_connection, parsed)

    return new_stream


def logged(offset):
    """An offset after its journey through the checkpoint."""
    return json.loads(json.dumps(offset))


def following(reads, start, offsets_max=None, offsets_min=0):
    return logged(reads.following(start, offsets_max=offsets_max, offsets_min=offsets_min))


def ranges(reads, start, end):
    return [
        (item.topic_partition, item.start_offset, item.end_offset)
        for item in reads.ranges(start, end)
    ]


# --- where a stream starts --------------------------------------------------------------------


def test_the_first_offset_tells_where_the_stream_began(topics, stream):
    topics.make("a", (3, 10), (0, 4))
    end = following(stream(), {})
    assert end == {
        "@start": {"a": {"0": 3, "1": 0}},
        "@topicIds": {"a": "id of a"},
        "a": {"0": 10, "1": 4},
    }
    assert ranges(stream(), {}, end) == [(A0, 3, 10), (A1, 0, 4)]


def test_a_stream_starts_at_the_end_unless_told_otherwise(topics, stream):
    topics.make("a", (3, 10))
    end = following(stream(startingOffsets="latest"), {})
    assert (end["@start"], end["a"]) == ({"a": {"0": 10}}, {"0": 10})


def test_a_first_batch_that_comes_again_starts_where_it_did(topics, stream):
    """1. Batch 0 is planned, from the end on. 2. Records come, and the driver dies. 3. It is
    started again: its first batch and the next one have all the records since the first start.
    """
    topics.make("a", (0, 10))
    first = following(stream(startingOffsets="latest"), {})
    topics.make("a", (0, 15))
    restarted = stream(startingOffsets="latest")
    assert ranges(restarted, {}, first) == []
    second = following(restarted, first)
    assert ranges(restarted, first, second) == [(A0, 10, 15)]


def test_given_offsets_and_times_say_where_to_start(topics, stream):
    topics.make("a", (0, 10), (2, 10))
    given = following(stream(startingOffsets='{"a":{"0":7,"1":-2}}'), {})
    assert given["@start"] == {"a": {"0": 7, "1": 2}}
    topics.times = {A0: {5_000: 4}}
    options = {"startingOffsetsByTimestampStrategy": "latest", "startingTimestamp": "5000"}
    assert following(stream(**options), {})["@start"] == {"a": {"0": 4, "1": 10}}
    with pytest.raises(OffsetOutOfRangeError, match=r"no record of a-1 is as late .*=latest"):
        following(stream(startingTimestamp="5000"), {})


def test_offsets_of_a_checkpoint_may_be_given_as_they_are(topics, stream):
    topics.make("a", (0, 10))
    end = following(stream(), {})
    assert following(stream(startingOffsets=json.dumps(end)), {})["@start"] == {"a": {"0": 10}}


def test_a_start_beyond_the_end_is_refused(topics, stream):
    topics.make("a", (0, 10))
    with pytest.raises(OffsetOutOfRangeError, match="to be read from offset 11, but ends at 10"):
        following(stream(startingOffsets='{"a":{"0":11}}'), {})


def test_a_topic_that_does_not_exist_is_refused(topics, stream):
    topics.make("b", (0, 1))
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no topic 'a' \(there are b\)"):
        following(stream(), {})


# --- nothing new ------------------------------------------------------------------------------


def test_without_news_the_same_offset_is_given_after_a_while(topics, timed_connection, stream):
    topics.make("a", (0, 10))
    reads = stream()
    end = following(reads, {})
    assert reads.following(end, offsets_max=None) is end
    assert timed_connection.clock_ms == IDLE_WAIT_MS


def test_three_idle_sources_hold_up_the_batches_of_a_fourth_by_less_than_a_tenth_of_a_second(
    topics, timed_connection, stream
):
    topics.make("a", (0, 10))
    idle = [stream() for _ in range(3)]
    ends = [following(reads, {}) for reads in idle]
    for reads, end in zip(idle, ends, strict=True):
        assert following(reads, end) == end
    assert 0 < timed_connection.clock_ms < 100


def test_what_comes_while_it_waits_is_told_at_the_next_question(topics, timed_connection, stream):
    topics.make("a", (0, 10))
    reads = stream()
    end = following(reads, {})
    timed_connection.meanwhile = [lambda: topics.make("a", (0, 11))]
    assert following(reads, end) == end
    assert following(reads, end)["a"] == {"0": 11}
    assert timed_connection.wait_count == 1


def test_an_idle_stream_looks_for_partitions_once_a_second(topics, timed_connection, stream):
    topics.make("a", (0, 10))
    reads = stream()
    end = following(reads, {})
    assert following(reads, end) == end
    topics.make("a", (0, 10), (0, 3))
    assert following(reads, end) == end
    timed_connection.clock_ms += TOPICS_AGE_MS
    assert following(reads, end)["a"] == {"0": 10, "1": 3}


def test_a_controller_that_is_away_for_a_moment_is_asked_again(topics, stream):
    topics.make("a", (0, 10))
    topics.is_away = 1
    assert following(stream(), {})["a"] == {"0": 10}


def test_the_latest_offsets_are_shown_for_the_lag(topics, stream):
    topics.make("a", (0, 10))
    reads = stream()
    assert reads.latest() is None
    assert following(reads, {}, offsets_max=4)["a"] == {"0": 4}
    assert reads.latest() == {"a": {"0": 10}}


# --- limits -----------------------------------------------------------------------------------


def test_a_limited_batch_takes_its_share_of_each_partition(topics, stream):
    topics.make("a", (0, 90), (0, 9), (5, 5))
    reads = stream()
    end = following(reads, {}, offsets_max=10)
    assert end["a"] == {"0": 9, "1": 1, "2": 5}
    assert following(reads, end, offsets_max=1_000)["a"] == {"0": 90, "1": 9, "2": 5}


def test_a_batch_waits_for_as_many_as_it_needs(topics, timed_connection, stream):
    topics.make("a", (0, 10))
    reads = stream(minOffsetsPerTrigger="5")
    end = following(reads, {}, offsets_min=5)
    topics.make("a", (0, 14))
    assert following(reads, end, offsets_min=5) == end
    topics.make("a", (0, 15))
    assert following(reads, end, offsets_min=5)["a"] == {"0": 15}


def test_a_batch_does_not_count_what_was_deleted(topics, timed_connection, stream):
    topics.make("a", (0, 10))
    reads = stream(minOffsetsPerTrigger="5", failOnDataLoss="false")
    end = following(reads, {}, offsets_min=5)
    topics.make("a", (13, 17))
    assert following(reads, end, offsets_min=5) == end
    topics.make("a", (13, 18))
    assert following(reads, end, offsets_min=5)["a"] == {"0": 18}


def test_a_batch_does_not_wait_for_ever(topics, timed_connection, stream):
    topics.make("a", (0, 10))
    reads = stream(minOffsetsPerTrigger="5", maxTriggerDelay="10m")
    end = following(reads, {}, offsets_min=5)
    topics.make("a", (0, 11))
    assert following(reads, end, offsets_min=5) == end
    timed_connection.clock_ms += 600_000
    assert following(reads, end, offsets_min=5)["a"] == {"0": 11}


def test_a_stream_that_is_to_end_reads_what_there_was_at_its_start(
    topics, timed_connection, stream
):
    topics.make("a", (0, 10))
    reads = stream(minOffsetsPerTrigger="50")
    reads.end_here()
    first = following(reads, {}, offsets_max=6, offsets_min=50)
    topics.make("a", (0, 99), (0, 99))
    second = following(reads, first, offsets_max=6, offsets_min=50)
    assert (first["a"], second["a"]) == ({"0": 6}, {"0": 10, "1": 0})
    assert following(reads, second, offsets_max=6, offsets_min=50) == second
    assert timed_connection.wait_count == 0


def test_the_ranges_of_a_batch_are_split_as_told(topics, stream):
    topics.make("a", (0, 10))
    reads = stream(maxRecordsPerPartition="4")
    assert ranges(reads, {}, following(reads, {})) == [(A0, 0, 3), (A0, 3, 6), (A0, 6, 10)]


# --- partitions and topics that come and go ---------------------------------------------------


def test_a_new_partition_is_read_from_its_first_record(topics, stream):
    topics.make("a", (0, 10))
    reads = stream(startingOffsets="latest")
    first = following(reads, {})
    topics.make("a", (0, 10), (2, 5))
    second = following(reads, first)
    assert second["@start"] == {"a": {"1": 2}}
    assert ranges(reads, first, second) == [(A1, 2, 5)]
    topics.make("a", (0, 10), (2, 6))
    assert "@start" not in following(reads, second)


def test_a_pattern_finds_topics_as_they_come(topics, stream):
    reads = stream(subscribePattern="[ab]", startingOffsets="latest")
    first = following(reads, {})
    assert first == {"@topicIds": {}}
    topics.make("b", (0, 3))
    restarted = stream(subscribePattern="[ab]", startingOffsets="latest")
    assert ranges(restarted, first, following(restarted, first)) == [(B0, 0, 3)]


@pytest.fixture
def resumed(topics, stream):
    """The offset that a stream has come to, and how to go on from it."""
    topics.make("a", (0, 10))
    topics.make("b", (0, 4))
    end = following(stream(subscribe="a,b"), {})
    return lambda **options: (stream(subscribe="a,b", **options), end)


def test_a_topic_that_was_deleted_ends_the_stream(topics, resumed):
    topics.remove("a")
    reads, end = resumed()
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no topic 'a' any more: .*=false"):
        following(reads, end)
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'a' any more"):
        ranges(reads, {}, end)


def test_a_topic_that_was_made_again_or_is_in_another_cluster_ends_the_stream(topics, resumed):
    topics.make("a", (0, 99), topic_id="other")
    reads, end = resumed()
    with pytest.raises(UnknownTopicIdError, match="id other, but in the checkpoint id of a"):
        following(reads, end)
    with pytest.raises(UnknownTopicIdError, match="or this is another cluster; start a new query"):
        ranges(reads, {}, end)


def test_a_topic_that_is_made_again_while_a_batch_is_planned_is_not_read(
    topics, timed_connection, resumed, monkeypatch
):
    """1. The planner has looked at the ids. 2. The topic is made again. 3. Tasks want the old."""
    bounds_of = timed_connection.bounds

    def made_again(*what):
        topics.make("a", (0, 10), topic_id="other")
        timed_connection.router.invalidate(A0)
        return bounds_of(*what)

    monkeypatch.setattr(timed_connection, "bounds", made_again)
    reads, end = resumed(minPartitions="4")
    found = reads.ranges({}, end)
    assert {item.topic_id for item in found if item.topic_partition == A0} == {"id of a"}


def test_if_losses_are_allowed_the_stream_goes_on_without_a_deleted_topic(topics, resumed, caplog):
    topics.remove("a")
    topics.make("b", (0, 6))
    reads, end = resumed(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        after = following(reads, end)
    assert "topic 'a', which the stream has read, was deleted" in caplog.text
    assert ranges(reads, end, after) == [(B0, 4, 6)]
    assert ranges(reads, {}, end) == [(B0, 0, 4)]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_is_not_seen_any_more_ends_the_stream_which_goes_on_once_it_is(
    topics, resumed, fails
):
    """1. A stream has read a topic. 2. Its right is taken away. 3. It gets it back: if the stream
    had forgotten the topic meanwhile, it would read it again from its start.
    """
    topics.hidden = {"a"}
    reads, end = resumed(failOnDataLoss=fails)
    for plan in (following, lambda *offsets: ranges(*offsets, end)):
        with pytest.raises(TopicAuthorizationFailedError, match="may not Describe topic 'a'"):
            plan(reads, end)
    topics.hidden = set()
    assert following(reads, end) == end


def test_a_topic_that_is_seen_again_while_a_batch_is_planned_is_not_forgotten(
    topics, timed_connection, resumed, monkeypatch
):
    """1. The planner lists all topics, without one. 2. The right to see it comes back."""
    reads, end = resumed(failOnDataLoss="false")
    all_topics = timed_connection.router.all_topics

    async def without():
        return {name: topic for name, topic in (await all_topics()).items() if name != "a"}

    monkeypatch.setattr(timed_connection.router, "all_topics", without)
    assert following(reads, end)["a"] == end["a"]
    assert ranges(reads, {}, end) == [(A0, 0, 10), (B0, 0, 4)]


def test_if_losses_are_allowed_a_topic_that_was_made_again_is_read_from_its_start(topics, resumed):
    topics.make("a", (0, 3), topic_id="other")
    reads, end = resumed(failOnDataLoss="false")
    after = following(reads, end)
    assert ranges(reads, end, after) == [(A0, 0, 3)]
    assert following(reads, after) == after


def test_records_that_were_deleted_before_they_were_read_end_the_stream(topics, resumed):
    reads, end = resumed()
    topics.make("a", (12, 15))
    after = following(reads, end)
    with pytest.raises(OffsetOutOfRangeError, match="offset 10, but only 12 to 15 can be read"):
        ranges(reads, end, after)
    assert ranges(resumed(failOnDataLoss="false")[0], end, after) == [(A0, 12, 15)]


def test_a_partition_that_has_become_shorter_ends_the_stream(topics, resumed):
    topics.make("a", (0, 7))
    reads, end = resumed()
    with pytest.raises(OffsetOutOfRangeError, match="read from offset 10, but ends at 7"):
        following(reads, end)
    tolerant, end = resumed(failOnDataLoss="false")
    after = following(tolerant, end)
    assert after["a"] == {"0": 7}
    assert ranges(tolerant, end, after) == []


@pytest.mark.parametrize(
    "stored", [{"a": {"0": 1}}, {"a": 1}, {"@topicIds": 1}, {"offset": 7}, {"a": {"x": 1}}]
)
def test_an_offset_of_another_source_is_refused(topics, stream, stored):
    topics.make("a", (0, 10))
    with pytest.raises(InvalidSettingError, match="not one of oncelog's"):
        following(stream(), stored)


# --- progress ---------------------------------------------------------------------------------


def test_progress_is_shown_to_the_group_that_was_named(topics, stream):
    topics.make("a", (0, 10))
    reads = stream(**{"kafka.group.id": "g"})
    reads.show(following(reads, {}))
    ((group_id, offsets),) = topics.committed
    assert group_id == "g"
    assert (offsets[A0].offset, offsets[A0].topic_id) == (10, "id of a")
    stream().show(following(stream(), {}))
    assert len(topics.committed) == 1
