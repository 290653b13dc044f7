"""Ids of Kafka's idempotent producers: new each time, in a range that has no transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from coordinator_world import CoordinatorWorld
from kafka_records import FLIGHTS, KafkaClient, World

from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from oncelog.actors.gateway.records.producer_ids import FIRST_KAFKA_ID
from oncelog.actors.protocol.messages import transaction
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.actors.protocol.messages.cluster import AllocateProducerIdsRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INT64_MAX, TopicPartition

Story = Callable[[World, KafkaClient], Coroutine[Any, Any, None]]


def played(**options: Any) -> Callable[[Story], None]:
    def play(story: Story) -> None:
        world = World()
        world.options = options
        world.play(lambda: story(world, world.client()))

    return play


def test_each_producer_gets_another_id_and_epoch_0() -> None:
    @played()
    async def story(world: World, client: KafkaClient) -> None:
        clients = [client, world.client()]
        found = [await one.init() for one in clients * 1_500]
        assert {(one.error_code, one.producer_epoch) for one in found} == {(0, 0)}
        ids = [one.producer_id for one in found]
        assert len(set(ids)) == len(ids)
        assert min(ids) == FIRST_KAFKA_ID
        assert max(ids) <= INT64_MAX
        blocks = list(world.asked_controller)
        # Three are used up and a fourth has been asked for in time.
        assert [type(one) for one in blocks] == [AllocateProducerIdsRequest] * len(blocks)
        assert 3 <= len(blocks) <= 4


def test_a_producer_that_has_an_id_gets_another_one_as_from_kafka() -> None:
    """librdkafka asks so when it bumps its epoch."""

    @played()
    async def story(world: World, client: KafkaClient) -> None:
        first = await client.init()
        asked = InitProducerIdRequest(
            transactional_id=None, producer_id=first.producer_id, producer_epoch=0
        )
        second = await client.ask(ApiKey.INIT_PRODUCER_ID, 5, asked)
        assert (second.error_code, second.producer_epoch) == (0, 0)
        assert second.producer_id not in (first.producer_id, -1)


def test_while_the_controller_is_away_the_client_asks_again() -> None:
    @played()
    async def story(world: World, client: KafkaClient) -> None:
        world.controller_error = ErrorCode.NETWORK_EXCEPTION
        found = await client.init()
        assert (found.error_code, found.producer_id, found.producer_epoch) == (14, -1, -1)
        world.controller_error = ErrorCode.NONE
        assert (await client.init()).error_code == 0


def test_who_may_write_nowhere_gets_none() -> None:
    @played()
    async def story(world: World, client: KafkaClient) -> None:
        writes = Acl(
            principal="User:eve", operation=Operation.WRITE, resource=Resource.TOPIC, name=FLIGHTS
        )
        world.switch_on(writes)
        assert (await world.client("User:eve").init()).error_code == 0
        found = await world.client("User:bob").init()
        assert (found.error_code, found.producer_id) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, -1)


def test_transactional_ids_are_for_another_handler() -> None:
    seen: list[Any] = []

    async def init(call: Any, request: InitProducerIdRequest) -> InitProducerIdResponse:
        seen.append(request.transactional_id)
        return InitProducerIdResponse(producer_id=3, producer_epoch=4)

    @played(init_transactional=init)
    async def story(world: World, client: KafkaClient) -> None:
        found = await client.init("t")
        assert (found.producer_id, found.producer_epoch) == (3, 4)
        await client.init("")
        assert seen == ["t", ""]


def test_without_one_they_are_refused() -> None:
    @played()
    async def story(world: World, client: KafkaClient) -> None:
        found = await client.init("t")
        assert (found.error_code, found.producer_id) == (35, -1)


@pytest.fixture
def coordinators(tmp_path: Path) -> CoordinatorWorld:
    return CoordinatorWorld(tmp_path)


def test_no_coordinator_enrols_an_id_of_that_range(coordinators: CoordinatorWorld) -> None:
    async def scenario() -> None:
        coordinator = await coordinators.coordinator()
        found = await coordinator.init_producer_id(
            transaction.InitProducerIdRequest(transactional_id="t")
        )
        assert found.producer_id < FIRST_KAFKA_ID
        for producer_id in (FIRST_KAFKA_ID, found.producer_id + FIRST_KAFKA_ID):
            enrolled = await coordinator.add_partitions_to_txn(
                transaction.AddPartitionsToTxnRequest(
                    transactional_id="t",
                    producer_id=producer_id,
                    producer_epoch=found.producer_epoch,
                    partitions=(TopicPartition(FLIGHTS, 0),),
                )
            )
            assert enrolled.error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert not enrolled.enrolments
            # Nor can anybody have such an id by recovering it.
            taken = await coordinator.init_producer_id(
                transaction.InitProducerIdRequest(
                    transactional_id="t", producer_id=producer_id, producer_epoch=0
                )
            )
            assert taken.error is not ErrorCode.NONE

    coordinators.run(scenario)


def test_ids_that_are_asked_for_at_the_same_time_differ() -> None:
    @played()
    async def story(world: World, client: KafkaClient) -> None:
        found = await asyncio.gather(*(client.init() for _ in range(50)))
        assert len({one.producer_id for one in found}) == 50
        assert len(world.asked_controller) == 1
