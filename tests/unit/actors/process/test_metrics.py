"""The figures that operators watch: what they say, and that every actor sets its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from server_world import FLIGHTS, KEY, World, stop

from oncelog.actors.launch.assembly import PartitionServer, TransactionCoordinatorServer
from oncelog.actors.process.metrics import METRICS, TransactionAges
from oncelog.actors.protocol.messages.partition import DescribeReplicaRequest, ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    InitProducerIdRequest,
)
from oncelog.actors.protocol.tickets import issue_ticket
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.storage.records.codec import encode_records

LATE_MS = 900_000 + 300_000


def request(world: World, *, is_transactional: bool) -> ProduceRequest:
    batch = encode_records(
        [(None, b"old", 1, ()), (None, b"older", 0, ())],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
    )
    ticket = issue_ticket(
        cluster_key=KEY,
        producer_id=7,
        producer_epoch=0,
        topic_id="a" * 32,
        partition=0,
        issued_ms=world.now_ms(),
        transaction_timeout_ms=60_000,
    )
    return ProduceRequest(
        topic_partition=FLIGHTS, batch=bytes(batch), transactional_id="t", ticket=ticket
    )


# --- ages -------------------------------------------------------------------------------------


def test_age_counts_from_when_a_transaction_was_first_seen() -> None:
    ages = TransactionAges(late_after_ms=100)
    ages.observe({5: 1, 9: 2}, 1_000)
    assert (ages.oldest_ms, ages.late_count) == (0, 0)
    ages.observe({5: 1, 9: 2, 30: 3}, 1_100)
    assert (ages.oldest_ms, ages.late_count) == (100, 0)
    ages.observe({9: 2, 30: 3}, 1_101)
    assert (ages.oldest_ms, ages.late_count) == (101, 1)
    ages.observe({30: 3}, 1_102)
    assert (ages.oldest_ms, ages.late_count) == (2, 0)
    ages.observe({}, 9_999)
    assert (ages.oldest_ms, ages.late_count) == (0, 0)


def test_a_transaction_after_another_of_the_same_producer_is_young() -> None:
    ages = TransactionAges(late_after_ms=100)
    ages.observe({5: 1}, 0)
    ages.observe({8: 1}, 500)
    assert (ages.oldest_ms, ages.late_count) == (0, 0)


def test_a_clock_that_steps_back_gives_no_negative_age() -> None:
    ages = TransactionAges(late_after_ms=100)
    ages.observe({5: 1}, 1_000)
    ages.observe({5: 1}, 400)
    assert ages.oldest_ms == 0
    ages.observe({5: 1}, 450)
    assert ages.oldest_ms == 50


# --- actors -----------------------------------------------------------------------------------


def test_every_metric_has_a_name_of_its_own_and_says_what_it_is() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.description.endswith(".")
        assert not metric.name.endswith("_ms") or metric.unit == "ms"


def test_a_partition_tells_what_open_transactions_hold_back(tmp_path: Path, caplog: Any) -> None:
    async def scenario() -> None:
        world = World()
        server = world.server(PartitionServer, FLIGHTS, tmp_path)
        await server._start_task
        reply = await server.produce(request(world, is_transactional=True))
        assert reply.error is ErrorCode.NONE
        server.report_metrics()
        assert world.figures == {
            "producer_id_count": 1,
            "open_transaction_count": 1,
            "last_stable_offset": 0,
            "last_stable_offset_lag": 2,
            "cut_bytes": 0,
            "oldest_open_transaction_age_ms": 0,
            "partition_late_transaction_count": 0,
            "damaged_place_count": 0,
        }
        assert world.tags == {(("topic", "flights"), ("partition", "0"), ("broker", "1"))}
        world.time_ms += LATE_MS
        server.report_metrics()
        assert world.figures["partition_late_transaction_count"] == 0
        world.time_ms += 1
        described = await server.describe_replica(DescribeReplicaRequest())
        assert described.late_transaction_count == 1
        assert described.oldest_open_transaction_age_ms == LATE_MS + 1
        assert described.active_transactional_id_count is None
        assert "find-hanging" in caplog.text
        server.report_metrics()
        assert world.figures["partition_late_transaction_count"] == 1
        assert caplog.text.count("find-hanging") == 1
        await stop(server)

    asyncio.run(scenario())


def test_a_coordinator_tells_how_many_ids_are_active(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World()
        tp = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
        server = world.server(TransactionCoordinatorServer, tp, tmp_path)
        await server._start_task
        for name in ("loader", "idle"):
            owner = await server.init_producer_id(InitProducerIdRequest(transactional_id=name))
        add = AddPartitionsToTxnRequest(
            transactional_id="idle",
            producer_id=owner.producer_id,
            producer_epoch=owner.producer_epoch,
            partitions=(FLIGHTS,),
        )
        assert (await server.add_partitions_to_txn(add)).error is ErrorCode.NONE
        server.report_metrics()
        assert world.figures["transactional_id_count"] == 2
        assert world.figures["active_transactional_id_count"] == 1
        described = await server.describe_replica(DescribeReplicaRequest())
        assert described.active_transactional_id_count == 1
        await stop(server)

    asyncio.run(scenario())


@pytest.mark.parametrize("interval_ms", [1, 60_000])
def test_figures_are_set_by_maintenance(tmp_path: Path, interval_ms: int) -> None:
    async def scenario() -> None:
        world = World()
        reported = asyncio.Event()

        class Server(PartitionServer):
            def report_metrics(self) -> None:
                super().report_metrics()
                reported.set()

        server = world.server(Server, FLIGHTS, tmp_path, metrics_interval_ms=interval_ms)
        await server._start_task
        if interval_ms == 1:
            await asyncio.wait_for(reported.wait(), 30)
        await stop(server)
        assert bool(world.figures) is (interval_ms == 1)

    asyncio.run(scenario())
