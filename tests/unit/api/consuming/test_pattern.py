"""Subscription by pattern."""

from __future__ import annotations

import re

import pytest

from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidRegularExpressionError, InvalidRequestError
from oncelog.storage.model import TopicPartition


def consumer_of(cluster, **settings):
    options = {"group_id": "g", "max_poll_interval_ms": 3_600_000}
    return AsyncConsumer(
        cluster.router(), ConsumerSettings.from_options(options | settings), cluster.random
    )


def topics_of(consumer):
    return sorted({tp.topic for tp in consumer.assignment()})


def test_topics_are_read_whose_whole_name_matches_but_no_internal_ones(fake_cluster, run):
    for name in ("flights-eu", "flights-us", "old-flights-eu", "flights"):
        fake_cluster.create(name)

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.subscribe(pattern="flights-.*|__.*")
        await consumer.poll(1_000)
        return topics_of(consumer), consumer.subscription()

    assert run(scenario()) == (["flights-eu", "flights-us"], {"flights-eu", "flights-us"})


def test_a_pattern_that_matches_nothing_waits_for_a_topic(fake_cluster, run):
    fake_cluster.create("other")

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.subscribe(pattern=re.compile("t[0-9]"))
        assert await consumer.poll(1_000) == []
        fake_cluster.create("t1")
        await consumer.poll(310_000)
        return topics_of(consumer)

    assert run(scenario()) == ["t1"]


def test_a_new_topic_is_noticed_within_minutes_by_one_call_each_time(fake_cluster, run):
    fake_cluster.create("t1")

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.subscribe(pattern="t[0-9]")
        await consumer.poll(1_000)
        fake_cluster.create("t2")
        asked = len(whole(fake_cluster))
        await consumer.poll(290_000)
        assert len(whole(fake_cluster)) == asked
        await consumer.poll(20_000)
        return topics_of(consumer)

    def whole(cluster):
        return [one for one in cluster.requests(MetadataRequest) if one.topics is None]

    assert run(scenario()) == ["t1", "t2"]


def test_a_group_looks_for_topics_as_often_as_its_members_say(fake_cluster, run):
    fake_cluster.create("t1")

    async def scenario():
        consumer = consumer_of(fake_cluster, metadata_max_age_ms=10_000)
        await consumer.subscribe(pattern="t[0-9]")
        await consumer.poll(1_000)
        fake_cluster.create("t2")
        await consumer.poll(8_000)
        seen = topics_of(consumer)
        await consumer.poll(5_000)
        return seen, topics_of(consumer)

    assert run(scenario()) == (["t1"], ["t1", "t2"])


def test_new_partitions_of_a_topic_are_noticed_as_often(fake_cluster, run):
    fake_cluster.create("t", partitions=1)

    async def scenario():
        consumer = consumer_of(fake_cluster, metadata_max_age_ms=10_000)
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        fake_cluster.create("t", partitions=2)
        await consumer.poll(8_000)
        seen = len(consumer.assignment())
        await consumer.poll(9_000)
        return seen, len(consumer.assignment())

    assert run(scenario()) == (1, 2)


def test_a_failed_look_for_topics_changes_nothing_and_is_repeated(fake_cluster, run):
    fake_cluster.create("t1")

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.subscribe(pattern="t[0-9]")
        await consumer.poll(1_000)
        fake_cluster.create("t2")

        def hook(request):
            return request.failed(ErrorCode.NETWORK_EXCEPTION) if request.topics is None else None

        fake_cluster.hooks[MetadataRequest] = hook
        await consumer.poll(310_000)
        assert topics_of(consumer) == ["t1"]
        fake_cluster.hooks.clear()
        await consumer.poll(10_000)
        return topics_of(consumer)

    assert run(scenario()) == ["t1", "t2"]


def test_a_join_that_cannot_look_for_topics_is_repeated(fake_cluster, run):
    fake_cluster.create("t1")
    fake_cluster.fail(MetadataRequest, ErrorCode.NETWORK_EXCEPTION, times=2)

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.subscribe(pattern="t[0-9]")
        await consumer.poll(5_000)
        return topics_of(consumer)

    assert run(scenario()) == ["t1"]


def test_another_pattern_or_topics_replace_a_pattern_and_the_same_one_changes_nothing(
    fake_cluster, run
):
    for name in ("a1", "b1"):
        fake_cluster.create(name)

    async def scenario():
        consumer = consumer_of(fake_cluster)
        seen = []
        for wanted in ({"pattern": "a."}, {"pattern": "a."}, {"pattern": "b."}, {"topics": "a1"}):
            await consumer.subscribe(**wanted)
            await consumer.poll(1_000)
            seen.append((topics_of(consumer), fake_cluster.generation_id))
        return seen

    assert run(scenario()) == [(["a1"], 1), (["a1"], 1), (["b1"], 3), (["a1"], 4)]


def test_a_pattern_that_is_no_regular_expression_is_refused_by_name(fake_cluster, run):
    async def scenario():
        consumer = consumer_of(fake_cluster)
        with pytest.raises(InvalidRegularExpressionError, match=r"pattern='\('.*missing \)"):
            await consumer.subscribe(pattern="(")
        with pytest.raises(InvalidRequestError, match="give one of them"):
            await consumer.subscribe("t", pattern="t")
        with pytest.raises(TypeError):
            await consumer.subscribe(pattern=7)

    run(scenario())


def test_a_deleted_topic_of_a_pattern_does_not_end_the_poll(fake_cluster, run):
    fake_cluster.create("t1")

    async def scenario():
        consumer = consumer_of(fake_cluster, auto_offset_reset="earliest")
        await consumer.subscribe(pattern="t[0-9]")
        await consumer.poll(1_000)
        fake_cluster.delete("t1")
        await consumer.poll(400_000)
        (log,) = fake_cluster.create("t2")
        log.append(b"0")
        seen = await consumer.poll(400_000)
        return [record.topic_partition for record in seen]

    assert run(scenario()) == [TopicPartition("t2", 0)]
