"""Offsets of a consumer group in the transaction of a producer, in memory and in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.actors.protocol.messages.group import TxnOffsetCommitRequest
from oncelog.actors.protocol.messages.transaction import AddPartitionsToTxnRequest, EndTxnRequest
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    OncelogError,
    TransactionAbortableError,
    TransactionTimedOutError,
)
from oncelog.storage.model import TopicPartition

GROUP = ConsumerGroupMetadata(group_id="billing", generation_id=3, member_id="m")


async def begun(cluster: Any, **options: Any) -> Any:
    """A transactional producer with an open transaction."""
    producer = cluster.producer("loader", **options)
    await producer.init_transactions()
    await producer.begin_transaction()
    return producer


def test_offsets_become_visible_with_the_commit_only(cluster: Any, run: Any) -> None:
    cluster.create("t")
    position = TopicPartition("source", 0)

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send("t", b"v")
        await producer.send_offsets_to_transaction({position: 42}, GROUP)
        assert cluster.offsets == {}
        await producer.commit_transaction()

    run(story())
    assert cluster.offsets == {position: 42}
    (request,) = cluster.requests(TxnOffsetCommitRequest)
    assert (request.generation_id, request.member_id) == (3, "m")


def test_offsets_and_records_are_enrolled_together(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send("t", b"v")
        await producer.send_offsets_to_transaction({TopicPartition("s", 0): 1}, GROUP)
        await producer.send_offsets_to_transaction({TopicPartition("s", 0): 2}, GROUP)
        await producer.commit_transaction()

    run(story())
    (request,) = cluster.requests(AddPartitionsToTxnRequest)
    assert {tp.topic for tp in request.partitions} == {"t", "__consumer_offsets"}


def test_offsets_of_one_transaction_are_numbered_from_0(cluster: Any, run: Any) -> None:
    async def story() -> None:
        producer = await begun(cluster)
        first, second = TopicPartition("s", 0), TopicPartition("s", 1)
        await producer.send_offsets_to_transaction({first: 1, second: 1}, GROUP)
        await producer.send_offsets_to_transaction({first: 2}, GROUP)
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({first: 3}, GROUP)

    run(story())
    numbers = [request.base_sequence for request in cluster.requests(TxnOffsetCommitRequest)]
    assert numbers == [0, 2, 0]


def test_offsets_alone_make_a_transaction_that_is_ended(cluster: Any, run: Any) -> None:
    async def story() -> None:
        producer = await begun(cluster)
        await producer.send_offsets_to_transaction({TopicPartition("s", 0): 1}, GROUP)
        await producer.abort_transaction()

    run(story())
    assert cluster.offsets == {}
    assert len(cluster.requests(EndTxnRequest)) == 1


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    ],
)
def test_offsets_of_a_replaced_member_spoil_only_the_transaction(
    cluster: Any, run: Any, error: ErrorCode
) -> None:
    cluster.fault(TxnOffsetCommitRequest, error)

    async def story() -> None:
        producer = await begun(cluster)
        with pytest.raises(OncelogError) as caught:
            await producer.send_offsets_to_transaction({TopicPartition("s", 0): 1}, GROUP)
        assert caught.value.abortable
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await producer.begin_transaction()

    run(story())


def test_offsets_that_come_after_the_timeout_are_told_of_it_and_the_producer_goes_on(
    cluster: Any, run: Any
) -> None:
    """1. The transaction has enrolled the group. 2. It times out. 3. More offsets are refused."""

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send_offsets_to_transaction({TopicPartition("s", 0): 1}, GROUP)
        cluster.time_out("loader")
        cluster.fault(TxnOffsetCommitRequest, ErrorCode.INVALID_PRODUCER_EPOCH)
        with pytest.raises(TransactionTimedOutError, match="as the coordinator says"):
            await producer.send_offsets_to_transaction({TopicPartition("s", 0): 2}, GROUP)
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_offsets_to_transaction({TopicPartition("s", 0): 3}, GROUP)

    run(story())
    assert cluster.offsets == {TopicPartition("s", 0): 3}


def test_offsets_that_wait_for_an_enrolment_take_no_longer_than_max_block_ms_all_in_all(
    cluster: Any, run: Any
) -> None:
    """1. A record's enrolment is under way, and nobody answers. 2. Offsets wait for their turn.

    3. The enrolment is given up, and theirs gets no answer either.
    """
    cluster.create("t")
    enrolled: list[set[str]] = []

    async def story() -> float:
        producer = await begun(cluster, max_block_ms=2_000, request_timeout_ms=30_000, linger_ms=0)
        real, loop = cluster.call, asyncio.get_running_loop()

        async def call_of_a_hung_coordinator(actor: str, request: Any, *, timeout_ms: int) -> Any:
            if not isinstance(request, AddPartitionsToTxnRequest):
                return await real(actor, request, timeout_ms=timeout_ms)
            enrolled.append({tp.topic for tp in request.partitions})
            await asyncio.sleep(timeout_ms / 1_000)
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)

        cluster.call = call_of_a_hung_coordinator
        await producer.send("t", b"v")
        await asyncio.sleep(0.5)
        assert enrolled == [{"t"}]
        started_s = loop.time()
        with pytest.raises(OncelogError) as caught:
            await producer.send_offsets_to_transaction({TopicPartition("s", 0): 1}, GROUP)
        took_s = loop.time() - started_s
        assert caught.value.abortable
        cluster.call = real
        await producer.abort_transaction()
        return took_s

    assert run(story()) == pytest.approx(2, abs=0.01)
    assert len(enrolled) == 2
