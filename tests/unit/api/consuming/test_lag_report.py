"""The lag that members of groups tell the monitoring of the cluster."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.actors.process.metrics import CONSUMER_LAG
from oncelog.actors.rpc.call_meter import CallReports
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.storage.model import TopicPartition

INTERVAL_MS = 1_000
TP = TopicPartition("t", 1)


class Gauges:
    def __init__(self):
        self.told = []

    def set(self, metric, value, tags):
        assert tuple(tags) == metric.tags
        if metric is CONSUMER_LAG:
            self.told.append((tuple(tags.values()), value))

    def add(self, metric, amount, tags):
        assert set(tags) == set(metric.tags)


def reporting(cluster, metrics):
    """A router whose clients report to ``metrics``."""
    router = cluster.router()
    router.reports = CallReports(metrics, INTERVAL_MS)
    return router


def test_what_was_deleted_is_no_lag(fake_cluster, run):
    """1. A partition is read to its end. 2. The reader goes back, and is paused. 3. What it would
    read again was deleted, as it learnt with the last reply.
    """
    log = fake_cluster.create("t", 2)[1]
    log.append(b"0", b"1", b"2")
    gauges = Gauges()

    async def scenario():
        consumer = AsyncConsumer(
            reporting(fake_cluster, gauges),
            ConsumerSettings.from_options({"group_id": "g", "auto_offset_reset": "earliest"}),
            fake_cluster.random,
        )
        await consumer.assign(TP)
        assert len(await consumer.poll(500)) == 3
        log.log_start_offset = 2
        log.append(b"3")
        await consumer.poll(500)
        await consumer.pause(TP)
        await consumer.seek(TP, 0)
        await asyncio.sleep(1.5 * INTERVAL_MS / 1_000)
        assert gauges.told[-1][1] == 2
        await consumer.close()

    run(scenario())
    assert gauges.told[-1][1] == 0


@pytest.mark.parametrize("group_id", ["readers", None])
def test_a_member_of_a_group_tells_its_lag_from_its_first_poll_to_its_end(
    fake_cluster, run, group_id
):
    log = fake_cluster.create("t", 2)[1]
    log.append(b"0", b"1", b"2")
    gauges = Gauges()

    async def scenario():
        options = {"group_id": group_id, "auto_offset_reset": "earliest"}
        consumer = AsyncConsumer(
            reporting(fake_cluster, gauges),
            ConsumerSettings.from_options(options),
            fake_cluster.random,
        )
        await consumer.assign(TP)
        await asyncio.sleep(2 * INTERVAL_MS / 1_000)
        assert gauges.told == []
        await consumer.poll(500, max_records=1)
        await asyncio.sleep(1.5 * INTERVAL_MS / 1_000)
        told = list(gauges.told)
        await consumer.poll(500)
        await asyncio.sleep(INTERVAL_MS / 1_000)
        told.append(gauges.told[-1] if gauges.told else None)
        await consumer.close()
        count = len(gauges.told)
        await asyncio.sleep(3 * INTERVAL_MS / 1_000)
        assert len(gauges.told) == count
        return told

    told = run(scenario())
    if group_id is None:
        assert told == [None]
    else:
        tags = ("readers", "t", "1")
        assert told == [(tags, 2), (tags, 0)]
