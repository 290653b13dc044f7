"""Producer ids of plain production: given with a ticket, renewed for whoever has one."""

from __future__ import annotations

from typing import Any

from oncelog.actors.protocol.messages.partition import FetchRequest, ProduceReply, ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
)
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import decode_records, encode_records

FLIGHTS = TopicPartition("flights", 0)
FIRST = ClusterKeys(current=b"k" * 32)


async def write(
    leader: Any,
    value: bytes,
    producer_id: int,
    producer_epoch: int,
    ticket: bytes | None,
    *,
    base_sequence: int = 0,
    is_transactional: bool = False,
) -> ProduceReply:
    batch = encode_records(
        [(None, value, 0, ())],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )
    request = ProduceRequest(
        topic_partition=FLIGHTS,
        batch=bytes(batch),
        transactional_id="loader" if is_transactional else None,
        ticket=ticket,
    )
    reply: ProduceReply = await leader.produce(request)
    return reply


async def committed(leader: Any) -> list[bytes | None]:
    found = await leader.fetch(FetchRequest(topic_partition=FLIGHTS, fetch_offset=0, max_wait_ms=0))
    return [record.value for record in decode_records(found.records)] if found.records else []


def renewal(identity: InitProducerIdReply) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=None,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        ticket=identity.ticket,
    )


def test_a_committed_record_is_not_lost_to_a_stranger_with_the_same_producer_id(
    world: Any,
) -> None:
    """1. The owner has its id. 2. A stranger sends a plain batch with that id and epoch, sequence
    0, also with the last epoch. 3. The owner commits its first batch: it is there.
    """

    async def scenario() -> None:
        coordinator = await world.coordinator()
        leader = await world.partition(FLIGHTS)
        owner = await coordinator.init_producer_id(InitProducerIdRequest(transactional_id="loader"))
        mine = (owner.producer_id, owner.producer_epoch)
        plain = await coordinator.init_producer_id(InitProducerIdRequest(transactional_id=None))
        for epoch in (owner.producer_epoch, 32_767):
            for ticket in (None, plain.ticket):
                stolen = await write(leader, b"stolen", mine[0], epoch, ticket)
                assert stolen.error is ErrorCode.UNKNOWN_PRODUCER_ID
        enrolled = await coordinator.add_partitions_to_txn(
            AddPartitionsToTxnRequest(
                transactional_id="loader",
                producer_id=mine[0],
                producer_epoch=mine[1],
                partitions=(FLIGHTS,),
            )
        )
        ticket = enrolled.enrolments[0].ticket
        written = await write(leader, b"mine", *mine, ticket, is_transactional=True)
        assert (written.error, written.base_offset) == (ErrorCode.NONE, 0)
        ended = await coordinator.end_txn(
            EndTxnRequest(
                transactional_id="loader",
                committed=True,
                producer_id=mine[0],
                producer_epoch=mine[1],
            )
        )
        assert (ended.error, ended.visible) == (ErrorCode.NONE, True)
        assert await committed(leader) == [b"mine"]

    world.run(scenario)


def test_a_plain_producer_writes_with_its_ticket_and_renews_it(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        leader = await world.partition(FLIGHTS)
        mine = await coordinator.init_producer_id(InitProducerIdRequest(transactional_id=None))
        first = await write(leader, b"a", mine.producer_id, 0, mine.ticket)
        assert (first.error, first.is_ticket_old) == (ErrorCode.NONE, False)
        second = FIRST.rotated(b"n" * 32, world.now_ms())
        leader.replica.learn_keys(second)
        told = await write(leader, b"b", mine.producer_id, 0, mine.ticket, base_sequence=1)
        assert (told.error, told.is_ticket_old) == (ErrorCode.NONE, True)
        coordinator.replica.learn_keys(second)
        newer = await coordinator.init_producer_id(renewal(mine))
        assert (newer.producer_id, newer.producer_epoch) == (mine.producer_id, 0)
        last = await write(leader, b"c", mine.producer_id, 0, newer.ticket, base_sequence=2)
        assert (last.error, last.is_ticket_old) == (ErrorCode.NONE, False)

    world.run(scenario)


def test_a_ticket_is_not_renewed_for_who_has_none_or_before_the_keys_are_known(
    world: Any,
) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        mine = await coordinator.init_producer_id(InitProducerIdRequest(transactional_id=None))
        forged = InitProducerIdReply(producer_id=mine.producer_id, ticket=b"x" * 49)
        refused = await coordinator.init_producer_id(renewal(forged))
        assert (refused.error, refused.ticket) == (ErrorCode.UNKNOWN_PRODUCER_ID, b"")
        events = coordinator.replica.events
        coordinator.replica.learn_keys(FIRST.rotated(b"n" * 32, world.now_ms()))
        newer = await coordinator.init_producer_id(renewal(mine))
        coordinator.replica.keys = FIRST
        early = await coordinator.init_producer_id(renewal(newer))
        assert (early.error, events.key_requests) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 1)

    world.run(scenario)
