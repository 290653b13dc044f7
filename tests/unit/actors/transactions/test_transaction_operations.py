"""An operator's calls at the coordinator's shell: durable before they are answered."""

from __future__ import annotations

from typing import Any

from oncelog.actors.protocol.messages.transaction import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    DeleteTransactionalIdRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

FLIGHTS = TopicPartition("flights", 0)


async def begin(world: Any, coordinator: Any) -> AbortTransactionRequest:
    """Open a transaction on a partition; the request that aborts it."""
    world.add_partition(FLIGHTS)
    owner = await coordinator.init_producer_id(InitProducerIdRequest(transactional_id="loader"))
    add = AddPartitionsToTxnRequest(
        transactional_id="loader",
        producer_id=owner.producer_id,
        producer_epoch=owner.producer_epoch,
        partitions=(FLIGHTS,),
    )
    assert (await coordinator.add_partitions_to_txn(add)).error is ErrorCode.NONE
    return AbortTransactionRequest(
        transactional_id="loader",
        producer_id=owner.producer_id,
        producer_epoch=owner.producer_epoch,
    )


def test_an_abort_is_visible_once_every_partition_has_its_marker(world: Any) -> None:
    async def scenario() -> None:
        leader = await world.partition(FLIGHTS)
        coordinator = await world.coordinator()
        reply = await coordinator.abort_transaction(await begin(world, coordinator))
        assert (reply.error, reply.visible) == (ErrorCode.NONE, True)
        assert leader.replica.machine.log_end_offset == 1
        (shown,) = coordinator.machine.operations.describe(["loader"])
        assert (shown.state, shown.producer_epoch) == ("CompleteAbort", 1)

    world.run(scenario)


def test_an_abort_is_decided_though_a_partition_is_away(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        request = await begin(world, coordinator)
        reply = await coordinator.abort_transaction(request)
        assert (reply.error, reply.visible) == (ErrorCode.NONE, False)
        await world.crash(coordinator)
        successor = await world.coordinator()
        assert successor.machine.upkeep.is_prepared("loader")
        await world.partition(FLIGHTS)
        again = await successor.abort_transaction(request)
        assert (again.error, again.visible) == (ErrorCode.NONE, True)

    world.run(scenario)


def test_a_deleted_id_is_gone_after_a_restart(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        await coordinator.init_producer_id(InitProducerIdRequest(transactional_id="loader"))
        delete = DeleteTransactionalIdRequest(transactional_id="loader")
        assert (await coordinator.delete_transactional_id(delete)).error is ErrorCode.NONE
        await world.crash(coordinator)
        successor = await world.coordinator()
        everything = await successor.describe_transactions(DescribeTransactionsRequest())
        assert everything.transactions == ()
        again = await successor.delete_transactional_id(delete)
        assert again.error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    world.run(scenario)


def test_operators_are_answered_only_by_a_shard_that_is_loaded_and_the_right_one(
    world: Any,
) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        for request in (
            AbortTransactionRequest(transactional_id=""),
            DeleteTransactionalIdRequest(transactional_id=""),
        ):
            reply = await getattr(coordinator, request.method)(request)
            assert reply.error is ErrorCode.INVALID_REQUEST
        await coordinator.stop()
        for request in (
            AbortTransactionRequest(transactional_id="loader"),
            DeleteTransactionalIdRequest(transactional_id="loader"),
        ):
            reply = await getattr(coordinator, request.method)(request)
            assert reply.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    world.run(scenario)


def test_a_listing_is_filtered_at_the_shard(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        await begin(world, coordinator)
        for request, count in (
            (DescribeTransactionsRequest(states=("Ongoing",)), 1),
            (DescribeTransactionsRequest(states=("Empty",)), 0),
            (DescribeTransactionsRequest(running_longer_than_ms=3_600_000), 0),
        ):
            reply = await coordinator.describe_transactions(request)
            assert len(reply.transactions) == count

    world.run(scenario)
