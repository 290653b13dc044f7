"""Offsets of times and ends, as Kafka's consumers and admin tools ask for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka_records import FLIGHTS, FakeLeader, KafkaClient, World, played
from leader_harness import LeaderHarness
from topics import topic_of
from virtual_time import give_turns

from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.actors.protocol.messages.partition import ListOffsetsReply
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import IsolationLevel

LATEST, EARLIEST, MAX, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def test_ends_and_times_are_those_of_the_leader(harness: LeaderHarness) -> None:
    async def body() -> None:
        await harness.start()
        world = World(topic_of(FLIGHTS, 1, topic_id=harness.topic_id, leader_epoch=9))

        async def answer(request: Any) -> ListOffsetsReply:
            return await harness.leader.list_offsets(request)

        world.actors[f"partition:{FLIGHTS}-0@1"] = answer
        first_ms = harness.clock.time_ms
        for _ in range(3):
            await harness.produce(harness.batch(b"x"))
            harness.clock.time_ms += 10
        client = world.client()
        for timestamp, offset, found_ms in (
            (LATEST, 3, -1),
            (EARLIEST, 0, -1),
            (EARLIEST_LOCAL, 0, -1),
            (MAX, 2, first_ms + 20),
            (first_ms + 5, 1, first_ms + 10),
            (0, 0, first_ms),
        ):
            found = await client.offset(timestamp)
            assert (found.error_code, found.offset) == (0, offset), timestamp
            assert (found.timestamp, found.leader_epoch) == (found_ms, 9)
        for timestamp in (first_ms + 21, LATEST_TIERED):
            found = await client.offset(timestamp)
            assert (found.error_code, found.offset, found.timestamp) == (0, -1, -1)
            assert found.leader_epoch == -1
        await world.handlers.close()
        await harness.replica.stop()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("timestamp", "version"), [(MAX, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9)]
)
def test_a_time_is_refused_in_versions_before_it(timestamp: int, version: int) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        found = await client.offset(timestamp, version - 1)
        assert (found.error_code, found.offset) == (35, -1)
        assert not leaders[0].asked
        assert (await client.offset(timestamp, version)).error_code == 0


@pytest.mark.parametrize("timestamp", [-6, -7, -(2**63)])
def test_other_negative_times_mean_nothing(timestamp: int) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        assert (await client.offset(timestamp)).error_code == 35
        assert not leaders[0].asked


@pytest.mark.parametrize(
    ("level", "asked"), [(0, IsolationLevel.READ_UNCOMMITTED), (1, IsolationLevel.READ_COMMITTED)]
)
def test_isolation_and_leader_epoch_reach_the_leader(level: int, asked: IsolationLevel) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        await client.offset(LATEST, isolation_level=level, epoch=3)
        (request,) = leaders[0].asked
        assert (request.isolation_level, request.leader_epoch) == (asked, 3)


def test_before_version_4_there_are_no_leader_epochs() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        assert (await client.offset(LATEST, 3)).leader_epoch == -1
        assert (await client.offset(LATEST, 4)).leader_epoch == 3


def test_right_after_an_election_latest_is_not_told_in_the_code_of_the_version() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        leaders[0].error = ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await client.offset(LATEST, 5)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await client.offset(LATEST, 4)).error_code == 5


def test_all_leaders_are_asked_at_the_same_time_and_answered_in_order() -> None:
    @played(3)
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        for number, leader in enumerate(leaders):
            leader.gate = asyncio.Event()
            leader.append(*[b"x"] * number)
        leaders[1].error = ErrorCode.KAFKA_STORAGE_ERROR
        partitions = [ListOffsetsPartition(number, -1, LATEST) for number in (2, 0, 1, 7)]
        topics = [
            ListOffsetsTopic(FLIGHTS, partitions),
            ListOffsetsTopic("trains", [ListOffsetsPartition(0, -1, LATEST)]),
        ]
        asking = asyncio.ensure_future(
            client.ask(ApiKey.LIST_OFFSETS, 10, ListOffsetsRequest(topics=topics))
        )
        await give_turns()
        assert [len(leader.asked) for leader in leaders] == [1, 1, 1]
        for leader in leaders:
            assert leader.gate is not None
            leader.gate.set()
        response = await asking
        assert [
            (topic.name, [(one.partition_index, one.error_code) for one in topic.partitions])
            for topic in response.topics
        ] == [(FLIGHTS, [(2, 0), (0, 0), (1, 56), (7, 3)]), ("trains", [(0, 3)])]
        assert [one.offset for one in response.topics[0].partitions] == [2, 0, -1, -1]


def test_a_leader_that_has_moved_is_found() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        await client.offset(LATEST)
        await asyncio.sleep(0.1)
        world.topics[FLIGHTS] = topic_of(FLIGHTS, 2, leader_epoch=4)
        world.lead(f"partition:{FLIGHTS}-0@2").append(b"x", b"y")
        leaders[0].error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        found = await client.offset(LATEST)
        assert (found.error_code, found.offset, found.leader_epoch) == (0, 2, 4)


def test_who_may_not_see_a_topic_hears_that() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        sees = Acl(
            principal="User:eve",
            operation=Operation.DESCRIBE,
            resource=Resource.TOPIC,
            name=FLIGHTS,
        )
        world.switch_on(sees)
        assert (await world.client("User:eve").offset(LATEST)).error_code == 0
        bob = world.client("User:bob")
        for topic in (FLIGHTS, "trains"):
            found = await bob.offset(LATEST, topic=topic)
            assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_throttling_is_told() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        async def answer(request: Any) -> ListOffsetsReply:
            return ListOffsetsReply(offset=3, throttle_ms=90)

        world.actors[f"partition:{FLIGHTS}-0@1"] = answer
        topics = [ListOffsetsTopic(FLIGHTS, [ListOffsetsPartition(0, -1, LATEST)])]
        response = await client.ask(ApiKey.LIST_OFFSETS, 10, ListOffsetsRequest(topics=topics))
        assert response.throttle_time_ms == 90
