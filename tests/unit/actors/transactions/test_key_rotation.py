"""A change of the cluster key, met by coordinators and leaders that hear of it late."""

from __future__ import annotations

import random
from typing import Any

from oncelog.actors.protocol.messages.partition import ProduceReply, ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import encode_records

FLIGHTS, DELAYS = TopicPartition("flights", 0), TopicPartition("delays", 0)
FIRST = ClusterKeys(current=b"k" * 32)


class Rotation:
    """A coordinator, two leaders and a producer that enrols and writes."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.second = FIRST.rotated(b"n" * 32, world.now_ms())

    async def start(self) -> None:
        self.leaders = {tp: await self.world.partition(tp) for tp in (FLIGHTS, DELAYS)}
        self.coordinator = await self.world.coordinator()
        request = InitProducerIdRequest(transactional_id="loader")
        self.owner = await self.coordinator.init_producer_id(request)

    async def enrol(self, tp: TopicPartition) -> bytes:
        request = AddPartitionsToTxnRequest(
            transactional_id="loader",
            producer_id=self.owner.producer_id,
            producer_epoch=self.owner.producer_epoch,
            partitions=(tp,),
        )
        reply = await self.coordinator.add_partitions_to_txn(request)
        assert reply.error is ErrorCode.NONE
        ticket: bytes = reply.enrolments[0].ticket
        return ticket

    async def next_transaction(self) -> None:
        request = EndTxnRequest(
            transactional_id="loader",
            committed=False,
            producer_id=self.owner.producer_id,
            producer_epoch=self.owner.producer_epoch,
        )
        self.owner = await self.coordinator.end_txn(request)
        assert self.owner.visible

    async def write(self, tp: TopicPartition, ticket: bytes) -> ProduceReply:
        batch = encode_records(
            [(None, b"value", self.world.now_ms(), ())],
            producer_id=self.owner.producer_id,
            producer_epoch=self.owner.producer_epoch,
            base_sequence=0,
            is_transactional=True,
        )
        request = ProduceRequest(
            topic_partition=tp, batch=bytes(batch), transactional_id="loader", ticket=ticket
        )
        reply: ProduceReply = await self.leaders[tp].produce(request)
        return reply


def test_a_transaction_goes_on_over_a_change_of_the_key(world: Any) -> None:
    async def scenario() -> None:
        play = Rotation(world)
        await play.start()
        early = await play.enrol(FLIGHTS)
        play.coordinator.replica.learn_keys(play.second)
        for leader in play.leaders.values():
            leader.replica.learn_keys(play.second)
        late = await play.enrol(DELAYS)
        assert early[1:5] != late[1:5]
        assert (await play.write(FLIGHTS, early)).error is ErrorCode.NONE
        assert (await play.write(DELAYS, late)).error is ErrorCode.NONE

    world.run(scenario)


def test_a_leader_that_has_not_heard_asks_and_the_producer_comes_back(world: Any) -> None:
    async def scenario() -> None:
        play = Rotation(world)
        await play.start()
        play.coordinator.replica.learn_keys(play.second)
        replica = play.leaders[FLIGHTS].replica
        ticket = await play.enrol(FLIGHTS)
        refused = await play.write(FLIGHTS, ticket)
        assert refused.error.retriable
        assert replica.events.key_requests == 1
        assert replica.machine.log_end_offset == 0
        replica.learn_keys(play.second)
        assert (await play.write(FLIGHTS, ticket)).error is ErrorCode.NONE

    world.run(scenario)


def test_a_coordinator_that_has_not_heard_notices_with_the_next_metadata(world: Any) -> None:
    async def scenario() -> None:
        play = Rotation(world)
        await play.start()
        replica = play.coordinator.replica
        for leader in play.leaders.values():
            leader.replica.learn_keys(play.second)
        world.cluster_key_version = 1
        ticket = await play.enrol(FLIGHTS)
        assert replica.events.key_requests == 1
        assert (await play.write(FLIGHTS, ticket)).error is ErrorCode.NONE
        replica.learn_keys(play.second)
        await play.enrol(DELAYS)
        assert replica.events.key_requests == 1

    world.run(scenario)


def test_older_keys_that_come_late_change_nothing(world: Any) -> None:
    async def scenario() -> None:
        play = Rotation(world)
        await play.start()
        replica = play.leaders[FLIGHTS].replica
        replica.learn_keys(play.second)
        replica.learn_keys(FIRST)
        assert replica.keys == play.second
        play.coordinator.replica.learn_keys(play.second)
        assert (await play.write(FLIGHTS, await play.enrol(FLIGHTS))).error is ErrorCode.NONE

    world.run(scenario)


def test_whoever_hears_first_nobody_is_refused_for_good(world: Any) -> None:
    async def scenario() -> None:
        play = Rotation(world)
        await play.start()
        rng = random.Random(5)
        seen = set()
        for number in range(20):
            actors = [play.coordinator.replica, play.leaders[FLIGHTS].replica]
            following = actors[0].keys.rotated(bytes([number]) * 32, world.now_ms())
            rng.shuffle(actors)
            for actor in actors:
                actor.learn_keys(following)
                ticket = await play.enrol(FLIGHTS)
                batch = await play.write(FLIGHTS, ticket)
                seen.add(batch.error)
                await play.next_transaction()
        assert seen == {ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS}

    world.run(scenario)
