"""Short ways to make requests to a transaction coordinator."""

from __future__ import annotations

from typing import Any

from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    EndTxnReply,
    EndTxnRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
    Run,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

CLUSTER_KEY = b"k" * 32
FLIGHTS = TopicPartition("flights", 0)
RUN = Run(number=1, id="run")


async def init(coordinator: Any, transactional_id: str | None = "loader") -> InitProducerIdReply:
    request = InitProducerIdRequest(transactional_id=transactional_id)
    reply: InitProducerIdReply = await coordinator.init_producer_id(request)
    return reply


async def add(
    coordinator: Any, producer_id: int, epoch: int, *partitions: TopicPartition
) -> AddPartitionsToTxnReply:
    reply: AddPartitionsToTxnReply = await coordinator.add_partitions_to_txn(
        AddPartitionsToTxnRequest(
            transactional_id="loader",
            producer_id=producer_id,
            producer_epoch=epoch,
            partitions=partitions or (FLIGHTS,),
        )
    )
    return reply


async def end(
    coordinator: Any,
    producer_id: int,
    epoch: int,
    committed: bool = True,
    ahead: tuple[TopicPartition, ...] = (),
) -> EndTxnReply:
    reply: EndTxnReply = await coordinator.end_txn(
        EndTxnRequest(
            transactional_id="loader",
            committed=committed,
            producer_id=producer_id,
            producer_epoch=epoch,
            next_partitions=ahead,
        )
    )
    return reply


def state_of(coordinator: Any) -> str:
    (description,) = coordinator.machine.operations.describe(["loader"])
    return str(description.state)


async def begin(world: Any, coordinator: Any, *partitions: TopicPartition) -> tuple[int, int]:
    for tp in partitions or (FLIGHTS,):
        world.add_partition(tp)
    reply = await init(coordinator)
    added = await add(coordinator, reply.producer_id, reply.producer_epoch, *partitions)
    assert added.error is ErrorCode.NONE
    return reply.producer_id, reply.producer_epoch
