"""Clients of version 1 at the coordinator's shell: tickets that go on, and the epoch it tells."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import structs
from transaction_calls import CLUSTER_KEY, FLIGHTS, add, end, init

from oncelog.actors.interfaces import CONTROLLER_ACTOR, actor_of
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.messages.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    ConnectionLabel,
    EndTxnReply,
    EndTxnRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
    PartitionEnrolment,
    VerifyTxnReply,
    VerifyTxnRequest,
)
from oncelog.actors.protocol.tickets import (
    NO_CHAIN,
    ClusterKeys,
    TicketVerdict,
    chain_epoch_of,
    check_ticket,
)
from oncelog.actors.protocol.transaction.transaction_records import encode_key, encode_value
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition, shard_of

DELAYS = TopicPartition("delays", 1)
POSITIONS = TopicPartition(CONSUMER_OFFSETS_TOPIC, shard_of("billing", 2))
KEYS = ClusterKeys(current=CLUSTER_KEY)
Pair = tuple[int, int]


async def come(coordinator: Any, pair: Pair = (-1, -1)) -> InitProducerIdReply:
    reply: InitProducerIdReply = await coordinator.init_producer_id(
        InitProducerIdRequest(
            transactional_id="loader",
            producer_id=pair[0],
            producer_epoch=pair[1],
            as_version_1=True,
        )
    )
    return reply


class Caller:
    """A client on one connection of a gateway that knew ``epoch`` before."""

    def __init__(self, coordinator: Any, told: InitProducerIdReply, epoch: int) -> None:
        assert told.error is ErrorCode.NONE, told
        self.coordinator, self.epoch = coordinator, epoch
        self.fields: dict[str, Any] = {
            "transactional_id": "loader",
            "producer_id": told.producer_id,
            "producer_epoch": told.producer_epoch,
        }
        self.request = 0

    def label(self) -> ConnectionLabel:
        self.request += 1
        return ConnectionLabel(
            coordinator_epoch=self.epoch, incarnation=0, number=0, request=self.request
        )

    async def add(self, *partitions: TopicPartition) -> AddPartitionsToTxnReply:
        reply: AddPartitionsToTxnReply = await self.coordinator.add_partitions_to_txn(
            AddPartitionsToTxnRequest(**self.fields, partitions=partitions, label=self.label())
        )
        return reply

    async def add_offsets(self, group_id: str) -> AddPartitionsToTxnReply:
        reply: AddPartitionsToTxnReply = await self.coordinator.add_offsets_to_txn(
            AddOffsetsToTxnRequest(**self.fields, group_id=group_id, label=self.label())
        )
        return reply

    async def end(self, *, committed: bool = True) -> EndTxnReply:
        reply: EndTxnReply = await self.coordinator.end_txn(
            EndTxnRequest(**self.fields, committed=committed, label=self.label())
        )
        return reply

    async def verify(
        self, *partitions: TopicPartition, group_id: str | None = None
    ) -> VerifyTxnReply:
        reply: VerifyTxnReply = await self.coordinator.verify_txn(
            VerifyTxnRequest(**self.fields, partitions=partitions, group_id=group_id)
        )
        return reply


def chain_epoch(
    world: Any, reply: AddPartitionsToTxnReply | VerifyTxnReply, one: PartitionEnrolment
) -> int:
    """The chain epoch of a ticket that is valid for the batches of the reply's pair."""
    assert one.error is ErrorCode.NONE
    verdict = check_ticket(
        one.ticket,
        keys=KEYS,
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
        transactional_id="loader",
        topic_id=world.topic_ids[one.topic_partition.topic],
        partition=one.topic_partition.partition,
        now_ms=world.now_ms(),
    )
    assert verdict is TicketVerdict.VALID
    return chain_epoch_of(one.ticket)


def prepare(world: Any) -> None:
    for tp in (FLIGHTS, DELAYS, TopicPartition("delays", 0), POSITIONS):
        world.add_partition(tp)
        world.answer_markers(actor_of(tp, 1))


def test_tickets_go_on_from_the_told_epoch_in_each_transaction(world: Any) -> None:
    async def scenario() -> None:
        prepare(world)
        coordinator = await world.coordinator()
        told = await come(coordinator)
        caller = Caller(coordinator, told, told.coordinator_epoch)
        for number in range(2):
            added = await caller.add(FLIGHTS)
            positions = await caller.add_offsets("billing")
            found = await caller.verify(FLIGHTS, DELAYS, group_id="billing")
            pair = (told.producer_id, told.producer_epoch + number)
            assert {(one.producer_id, one.producer_epoch) for one in (added, found)} == {pair}
            (enrolled,) = added.enrolments
            assert chain_epoch(world, added, enrolled) == told.producer_epoch
            flights, delays, offsets = found.enrolments
            assert chain_epoch(world, found, flights) == told.producer_epoch
            assert (delays.error, delays.ticket) == (ErrorCode.INVALID_TXN_STATE, b"")
            # Whoever sends positions numbers them anew in each transaction.
            assert chain_epoch(world, found, offsets) == NO_CHAIN
            assert positions.enrolments == (offsets,)
            assert offsets.topic_partition == POSITIONS
            ended = await caller.end(committed=not number)
            assert (ended.error, ended.visible) == (ErrorCode.NONE, True)

    world.run(scenario)


def test_tickets_of_all_others_have_no_chain(world: Any) -> None:
    async def scenario() -> None:
        prepare(world)
        coordinator = await world.coordinator()
        told = await init(coordinator)
        added = await add(coordinator, told.producer_id, told.producer_epoch)
        (one,) = added.enrolments
        assert (added.producer_id, chain_epoch_of(one.ticket)) == (-1, NO_CHAIN)

    world.run(scenario)


def test_every_reply_tells_the_epoch_of_the_coordinator_also_an_error(world: Any) -> None:
    async def scenario() -> None:
        prepare(world)
        coordinator = await world.coordinator()
        epoch = coordinator.replica.leader_epoch
        told = await come(coordinator)
        stranger = Caller(coordinator, told, -1)
        for replies in (
            [await init(coordinator, None), await stranger.add(FLIGHTS)],
            [await stranger.add_offsets("billing"), await stranger.add_offsets("")],
            [await stranger.end(), await stranger.verify(FLIGHTS)],
            [await add(coordinator, 7, 0), await end(coordinator, 7, 0)],
        ):
            assert {reply.coordinator_epoch for reply in replies} == {epoch}
        coordinator.runtime.is_loaded = False
        reply = await stranger.add(FLIGHTS)
        assert reply.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert reply.coordinator_epoch == epoch
        await world.crash(coordinator)
        replies = [await stranger.add(FLIGHTS), await stranger.verify(), await come(coordinator)]
        assert {reply.error for reply in replies} == {ErrorCode.NOT_COORDINATOR}
        assert {reply.coordinator_epoch for reply in replies} == {-1}

    world.run(scenario)


def test_the_next_coordinator_takes_no_request_of_a_connection_that_is_older(world: Any) -> None:
    async def scenario() -> None:
        prepare(world)
        first = await world.coordinator()
        told = await come(first)
        caller = Caller(first, told, told.coordinator_epoch)
        assert (await caller.add(FLIGHTS)).error is ErrorCode.NONE
        await world.crash(first)
        caller.coordinator = await world.coordinator()
        refused = await caller.end()
        assert refused.error is ErrorCode.NOT_COORDINATOR
        assert refused.coordinator_epoch > told.coordinator_epoch
        again = Caller(caller.coordinator, told, refused.coordinator_epoch)
        found = await again.verify(FLIGHTS)
        assert chain_epoch(world, found, found.enrolments[0]) == told.producer_epoch
        assert (await again.end()).error is ErrorCode.NONE
        assert (await again.verify(FLIGHTS)).enrolments[0].error is ErrorCode.INVALID_TXN_STATE

    world.run(scenario)


def test_verify_says_what_it_cannot_answer(world: Any) -> None:
    async def scenario() -> None:
        prepare(world)
        coordinator = await world.coordinator()
        told = await come(coordinator)
        caller = Caller(coordinator, told, told.coordinator_epoch)
        await caller.add(FLIGHTS, DELAYS)
        assert (await caller.verify(group_id="")).error is ErrorCode.INVALID_GROUP_ID
        fenced = Caller(coordinator, structs.replace(told, producer_epoch=9), 0)
        reply = await fenced.verify(FLIGHTS)
        assert (reply.error, reply.enrolments) == (ErrorCode.PRODUCER_FENCED, ())
        for number in range(2):
            del world.leaders[TopicPartition("delays", number)]
        await asyncio.sleep(2)
        found = await caller.verify(FLIGHTS, DELAYS)
        assert [one.error for one in found.enrolments] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        controller = world.actors.pop(CONTROLLER_ACTOR)
        unknown = TopicPartition("unknown", 0)
        assert (await caller.verify(unknown)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.actors[CONTROLLER_ACTOR] = controller
        found = await caller.verify(unknown)
        assert found.enrolments[0].error is ErrorCode.INVALID_TXN_STATE

    world.run(scenario)


def test_where_the_sequences_cannot_go_on_there_is_no_ticket(world: Any) -> None:
    async def scenario() -> None:
        prepare(world)
        coordinator = await world.coordinator()
        await come(coordinator)
        ids = coordinator.machine.ids
        resting = structs.replace(ids.metadata("loader"), producer_epoch=32_765, told=None)
        ids.apply(LogRecord(encode_key("loader"), encode_value(resting)))
        told = await come(coordinator)
        caller = Caller(coordinator, told, told.coordinator_epoch)
        assert told.producer_epoch == 32_766
        await caller.add(FLIGHTS)
        assert (await caller.end()).error is ErrorCode.NONE
        added = await caller.add(FLIGHTS)
        assert added.producer_id != told.producer_id
        assert [(one.error, one.ticket) for one in added.enrolments] == [(ErrorCode.NONE, b"")]
        positions = await caller.add_offsets("billing")
        assert chain_epoch(world, positions, positions.enrolments[0]) == NO_CHAIN
        found = await caller.verify(FLIGHTS, group_id="billing")
        assert found.enrolments[0].error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert chain_epoch(world, found, found.enrolments[1]) == NO_CHAIN
        assert (await caller.end(committed=False)).error is ErrorCode.NONE
        pair = (told.producer_id, told.producer_epoch)
        following = Caller(coordinator, await come(coordinator, pair), told.coordinator_epoch)
        added = await following.add(FLIGHTS)
        assert chain_epoch(world, added, added.enrolments[0]) == added.producer_epoch

    world.run(scenario)
