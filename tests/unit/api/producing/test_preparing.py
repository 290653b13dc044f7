"""What has to be known or enrolled before the first batch is sent, is while it is gathered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    InitProducerIdRequest,
)
from oncelog.api.producing import sender as sending
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.storage.model import TopicPartition

LINGER_MS = 1_000


def enrolled(cluster: Any) -> list[set[int]]:
    return [
        {tp.partition for tp in request.partitions}
        for request in cluster.requests(AddPartitionsToTxnRequest)
    ]


def test_partitions_are_enrolled_together_while_their_records_are_gathered(
    cluster: Any, run: Any
) -> None:
    leaders = cluster.create("t", 3)

    async def story() -> None:
        async with cluster.producer("loader", linger_ms=LINGER_MS) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("t", b"a", partition=0)
            await producer.send("t", b"b", partition=2)
            await asyncio.sleep(0.02)
            assert enrolled(cluster) == [{0, 2}]
            assert not cluster.requests(ProduceRequest)
            await producer.send("t", b"c", partition=0)
            await producer.commit_transaction()

    run(story())
    assert enrolled(cluster) == [{0, 2}]
    assert leaders[0].committed_values() == [b"a", b"c"]


def test_a_partition_that_comes_later_is_enrolled_when_its_batch_is_due(
    cluster: Any, run: Any
) -> None:
    leaders = cluster.create("t", 2)

    async def story() -> None:
        async with cluster.producer("loader", linger_ms=LINGER_MS) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("t", b"a", partition=0)
            await asyncio.sleep(0.02)
            await producer.send("t", b"b", partition=1)
            await asyncio.sleep(0.02)
            assert enrolled(cluster) == [{0}]
            await asyncio.sleep(LINGER_MS / 1_000)
            assert enrolled(cluster) == [{0}, {1}]
            await producer.commit_transaction()

    run(story())
    assert [leader.committed_values() for leader in leaders] == [[b"a"], [b"b"]]


def test_partitions_of_the_last_two_transactions_are_enrolled_with_the_first_record(
    cluster: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders = cluster.create("t", 3)
    cluster.enrols_ahead = False
    monkeypatch.setattr(sending, "ENROL_AFTER_S", 10)

    async def story() -> None:
        async with cluster.producer("loader", linger_ms=60_000) as producer:
            await producer.init_transactions()
            for partitions in ((0, 1, 2), (0, 1), (1,)):
                await producer.begin_transaction()
                for partition in partitions:
                    await producer.send("t", b"v", partition=partition)
                await producer.commit_transaction()
            assert enrolled(cluster) == [{0, 1, 2}, {0, 1}, {0, 1}]
            await producer.begin_transaction()
            assert len(enrolled(cluster)) == 3
            await producer.abort_transaction()

    run(story())
    assert [len(leader.committed_values()) for leader in leaders] == [2, 3, 1]


def test_an_expected_partition_that_cannot_be_enrolled_is_left_out(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")
    cluster.create("gone")

    async def story() -> None:
        async with cluster.producer("loader") as producer:
            await producer.init_transactions()
            for _ in range(2):
                await producer.begin_transaction()
                await producer.send("t", b"v")
                await producer.send("gone", b"v")
                await producer.commit_transaction()
            del cluster.counts["gone"]
            await producer.begin_transaction()
            await producer.send("t", b"last")
            assert await producer.commit_transaction()

    run(story())
    assert leader.committed_values() == [b"v", b"v", b"last"]


def test_a_transaction_that_was_ended_first_enrols_nothing(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> None:
        async with cluster.producer("loader", linger_ms=LINGER_MS) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("t", b"dropped")
            await producer.abort_transaction()
            await asyncio.sleep(0.02)

    run(story())
    assert enrolled(cluster) == []


def test_the_producer_id_is_there_when_the_first_batch_is_due(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        async with cluster.producer(linger_ms=LINGER_MS) as producer:
            await producer.send("t", b"a")
            await asyncio.sleep(0.02)
            assert len(cluster.requests(InitProducerIdRequest)) == 1
            assert not cluster.requests(ProduceRequest)

    run(story())
    assert leader.values() == [b"a"]
    assert len(cluster.requests(InitProducerIdRequest)) == 1


def test_a_record_that_was_enrolled_with_the_offsets_is_sent(
    cluster: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever enrols lets the records go.

    1. A record waits; its partition is enrolled together with that of the group's offsets.
    2. In the turn of the answer somebody flushes, so a second enrolment is about to begin.
    3. That one finds nothing left to enrol. The record is sent all the same.
    """
    (leader,) = cluster.create("t")
    monkeypatch.setattr(sending, "ENROL_AFTER_S", 10)

    async def story() -> None:
        answered = asyncio.get_running_loop().create_future()
        asked = asyncio.Event()
        call = cluster.call

        async def held(actor: str, request: Any, *, timeout_ms: int) -> Any:
            reply = await call(actor, request, timeout_ms=timeout_ms)
            if isinstance(request, AddPartitionsToTxnRequest):
                asked.set()
                await answered
            return reply

        monkeypatch.setattr(cluster, "call", held)
        async with cluster.producer("loader", linger_ms=60_000) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("t", b"v")
            offsets = {TopicPartition("t", 0): 1}
            sending = asyncio.create_task(
                producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group_id="g"))
            )
            await asked.wait()
            flushing = asyncio.create_task(producer.flush())
            answered.set_result(None)
            done, _ = await asyncio.wait({flushing}, timeout=5)
            assert done, "flush() waits for a record that nobody sends"
            await sending
            await producer.commit_transaction()

    run(story())
    assert leader.committed_values() == [b"v"]
