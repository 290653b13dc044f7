"""The numbers of ``Consumer.metrics()``."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.actors.process.metrics import CONSUMER_POLL_GAP_RATIO
from oncelog.actors.protocol.messages.group import OffsetCommitRequest
from oncelog.actors.protocol.messages.partition import FetchRequest
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.consuming.metrics import METRICS
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OffsetMetadataTooLargeError
from oncelog.storage.model import TopicPartition

TP = TopicPartition("t", 0)


def consumer_of(cluster):
    settings = ConsumerSettings(
        group_id="g", enable_auto_commit=False, auto_offset_reset="earliest"
    )
    return AsyncConsumer(cluster.router(), settings, cluster.random)


def test_a_new_consumer_has_every_metric_of_the_table(fake_cluster, run):
    async def scenario():
        return await consumer_of(fake_cluster).metrics()

    metrics = run(scenario())
    assert list(metrics) == list(METRICS)
    since = {name for name, value in metrics.items() if value == -1}
    assert since == {name for name in METRICS if name.endswith("_seconds_ago")}
    assert all(value == 0 for name, value in metrics.items() if name not in since)


def poll_gaps(consumer):
    return [
        value
        for metric, value, _ in consumer._core._readings()
        if metric is CONSUMER_POLL_GAP_RATIO
    ]


def test_only_members_of_groups_have_a_poll_gap(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    async def scenario():
        member = consumer_of(fake_cluster)
        await member.subscribe("t")
        await member.poll(1_000)
        await asyncio.sleep(60)
        by_hand = consumer_of(fake_cluster)
        alone = AsyncConsumer(fake_cluster.router(), ConsumerSettings(), fake_cluster.random)
        for consumer in (by_hand, alone):
            await consumer.assign(TP)
            await consumer.poll(0)
            await asyncio.sleep(60)
        return [poll_gaps(consumer) for consumer in (member, by_hand, alone)]

    assert run(scenario()) == [[pytest.approx(180 / 300)], [0], []]


def test_what_a_consumer_does_is_counted(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1", b"2")
    size = len(log.batches[0])

    async def late(_request):
        await asyncio.sleep(0.25)

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.subscribe("t")
        await consumer.poll(1_000, max_records=1)
        fake_cluster.hooks[OffsetCommitRequest] = late
        await consumer.commit()
        fake_cluster.fail(OffsetCommitRequest, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        with pytest.raises(OffsetMetadataTooLargeError):
            await consumer.commit()
        fake_cluster.fail(FetchRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await asyncio.sleep(4)
        await consumer.poll(0, max_records=1)
        await asyncio.sleep(1)
        return await consumer.metrics()

    metrics = run(scenario())
    assert {name: metrics[name] for name in METRICS if name.endswith("_total")} == {
        "records_consumed_total": 2,
        "bytes_consumed_total": size,
        "fetch_total": pytest.approx(9, abs=3),
        "failed_fetch_total": 1,
        "follower_fetch_total": 0,
        "commit_total": 1,
        "failed_commit_total": 1,
        "rebalance_total": 1,
        "failed_rebalance_total": 0,
        "partitions_lost_total": 0,
        "heartbeat_total": 1,
        "poll_total": 2,
    }
    assert metrics["assigned_partitions"] == 1
    assert metrics["records_lag_max"] == 1
    assert metrics["fetch_buffered_bytes"] == size
    assert metrics["commit_latency_avg"] == metrics["commit_latency_max"] == pytest.approx(250)
    assert metrics["time_between_poll_max"] == pytest.approx(4_250, abs=10)
    assert metrics["last_poll_seconds_ago"] == pytest.approx(1)
    assert 0 <= metrics["last_heartbeat_seconds_ago"] < 3
    assert metrics["last_rebalance_seconds_ago"] == pytest.approx(5.25, abs=0.01)
