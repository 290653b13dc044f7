"""How leaders are found: without the controller if they are known, and with one question if not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kafka_records import FLIGHTS, FLIGHTS_ID, World, batch
from topics import topic_of
from virtual_time import give_turns

from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.records import handlers
from oncelog.actors.gateway.records.handlers import Found, Leaders, Place
from oncelog.actors.protocol.messages.cluster import MetadataRequest, PartitionMetadata
from oncelog.actors.protocol.messages.partition import ListOffsetsRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

Story = Callable[[World, Leaders], Coroutine[Any, Any, None]]


def played(story: Story) -> None:
    world = World()
    world.add(partitions=3)
    world.play(lambda: story(world, world.handlers.leaders))


async def place_of(leaders: Leaders, topic: str, partition: int) -> Found:
    (found,) = await leaders.find_all(((topic, partition),))
    return found


def test_what_is_known_is_used_however_old_it_is() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        first = await place_of(leaders, FLIGHTS, 1)
        assert isinstance(first, Place)
        assert (first.tp, first.actor) == (TopicPartition(FLIGHTS, 1), f"partition:{FLIGHTS}-1@1")
        await asyncio.sleep(3_600)
        world.controller_error = ErrorCode.NETWORK_EXCEPTION
        assert await place_of(leaders, FLIGHTS, 1) is first
        assert leaders.find(FLIGHTS, 2) is not None
        assert len(world.asked_controller) == 1


def test_a_place_is_described_anew_once_the_controller_has_said_something_else() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        await place_of(leaders, FLIGHTS, 0)
        await asyncio.sleep(0.1)
        world.topics[FLIGHTS] = topic_of(FLIGHTS, 2, 2, 2)
        await world.cluster.view.topics((FLIGHTS,), as_of_ms=100)
        place = leaders.find(FLIGHTS, 0)
        assert place is not None
        assert place.actor == f"partition:{FLIGHTS}-0@2"


def test_all_that_is_unknown_is_one_question() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        world.add("taxis")
        wanted = [(FLIGHTS, 0), ("taxis", 0), ("trains", 0), ("taxis", 5), ("no/name", 0)]
        found = await leaders.find_all(wanted)
        assert [isinstance(one, Place) for one in found] == [True, True, False, False, False]
        assert found[2:] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
        (asked,) = world.asked_controller
        assert asked == MetadataRequest(topics=(FLIGHTS, "taxis", "trains"))


def test_a_partition_that_was_added_is_found() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        await place_of(leaders, FLIGHTS, 0)
        await asyncio.sleep(0.1)
        world.topics[FLIGHTS] = topic_of(FLIGHTS, 1, 1, 1, 1)
        assert isinstance(await place_of(leaders, FLIGHTS, 3), Place)


def test_without_a_controller_nothing_is_gone() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        world.controller_error = ErrorCode.NETWORK_EXCEPTION
        assert await place_of(leaders, FLIGHTS, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_topics_beyond_the_bound_of_a_request_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "UNKNOWN_TOPICS_MAX", 2)

    @played
    async def story(world: World, leaders: Leaders) -> None:
        for name in ("a", "b", "c", "d"):
            world.add(name)
        found = await leaders.find_all([(name, 0) for name in ("a", "b", "c", "d")])
        assert sum(isinstance(one, Place) for one in found) == 2
        (asked,) = world.looked_up()
        assert asked.topics is not None
        assert len(asked.topics) == 2


def test_beyond_the_places_remembered_all_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "PLACES_MAX", 2)

    @played
    async def story(world: World, leaders: Leaders) -> None:
        found = await leaders.find_all([(FLIGHTS, number) for number in range(3)])
        assert all(isinstance(one, Place) for one in found)
        assert len(leaders._places) == 1


def test_a_follower_is_one_in_sync_that_does_not_lead() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        partition = PartitionMetadata(
            partition=0, leader=2, leader_epoch=1, replicas=(1, 2, 3), isr=(1, 2)
        )
        place = Place(TopicPartition(FLIGHTS, 0), topic_of(FLIGHTS, 2), partition, None)
        assert place.follower(1) == f"partition:{FLIGHTS}-0@1"
        assert place.follower(2) is None
        assert place.follower(3) is None


# --- topic ids --------------------------------------------------------------------------------


def test_a_topic_is_found_by_its_id_also_if_nothing_is_known() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        world.add("taxis", topic_id="e" * 32)
        world.add("odd", topic_id="z" * 32)
        ids = {bytes.fromhex(one * 32) for one in "ef0"}
        named = await leaders.names_of(ids)
        assert named == {b"\xff" * 16: FLIGHTS, b"\xee" * 16: "taxis"}
        assert world.asked_controller == [MetadataRequest()]
        # Its partitions are known now.
        assert leaders.find("taxis", 0) is not None


def test_an_id_that_no_topic_has_makes_one_question_a_second() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        for _ in range(5):
            assert await leaders.names_of({b"\x01" * 16}) == {}
            await asyncio.gather(*(leaders.names_of({bytes([n]) * 16}) for n in range(9)))
        assert len(world.asked_controller) == 1
        await asyncio.sleep(handlers.IDS_AGAIN_MS / 1_000)
        world.add("taxis", topic_id="01" * 16)
        assert await leaders.names_of({b"\x01" * 16}) == {b"\x01" * 16: "taxis"}
        assert len(world.asked_controller) == 2


def test_an_id_that_others_have_learnt_needs_no_question() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        await world.cluster.view.topics((FLIGHTS,), as_of_ms=0)
        assert await leaders.names_of({bytes.fromhex(FLIGHTS_ID)}) == {b"\xff" * 16: FLIGHTS}
        assert len(world.asked_controller) == 1


def test_a_topic_of_the_same_name_has_not_the_old_id() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        await leaders.names_of({b"\xff" * 16})
        await asyncio.sleep(10)
        world.add(topic_id="e" * 32)
        await world.cluster.view.topics((FLIGHTS,), as_of_ms=10_000)
        assert await leaders.names_of({b"\xff" * 16}) == {}
        named = await leaders.names_of({b"\xff" * 16, b"\xee" * 16})
        assert named == {b"\xee" * 16: FLIGHTS}


# --- asking -----------------------------------------------------------------------------------


def test_one_item_needs_no_task_and_of_many_some_are_asked_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handlers, "ASKED_AT_ONCE_MAX", 3)

    @played
    async def story(world: World, leaders: Leaders) -> None:
        running: list[int] = []
        most = 0

        async def ask(item: int) -> int:
            nonlocal most
            running.append(item)
            most = max(most, len(running))
            await give_turns(3)
            running.remove(item)
            return 2 * item

        before = len(asyncio.all_tasks())
        single = leaders.ask_each([4], ask)
        task_counts: list[int] = []

        async def count(item: int) -> int:
            task_counts.append(len(asyncio.all_tasks()))
            return item

        assert await single == [8]
        await leaders.ask_each([1], count)
        assert task_counts == [before]
        assert await leaders.ask_each(list(range(8)), ask) == [2 * one for one in range(8)]
        assert most == 3
        assert await leaders.ask_each([], ask) == []


def test_a_partition_without_a_leader_is_looked_up_each_time_it_is_asked() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        world.topics[FLIGHTS] = topic_of(FLIGHTS, -1)
        client = world.client()
        assert (await client.offset(-1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await asyncio.sleep(0.1)
        world.topics[FLIGHTS] = topic_of(FLIGHTS, 1)
        assert (await client.offset(-1)).error_code == 0
        (found,) = await client.produce(batch())
        assert found.error_code == 0


def test_one_partition_that_fails_does_not_make_others_wait_for_the_controller() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        client = world.client()
        await client.offset(-1, number=1)
        await asyncio.sleep(0.1)
        world.actors[f"partition:{FLIGHTS}-0@1"] = world.leaders[f"partition:{FLIGHTS}-0@1"].answer
        world.leaders[f"partition:{FLIGHTS}-0@1"].error = ErrorCode.NETWORK_EXCEPTION
        assert (await client.offset(-1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        asked = len(world.asked_controller)
        assert (await client.offset(-1, number=1)).error_code == 0
        assert len(world.asked_controller) == asked


def test_what_the_gateway_asks_for_itself_needs_a_leader() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        request = ListOffsetsRequest(topic_partition=TopicPartition(FLIGHTS, 0), timestamp_ms=-1)
        reply = await leaders.ask_for_itself(request.topic_partition, request)
        assert reply.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await place_of(leaders, FLIGHTS, 0)
        reply = await leaders.ask_for_itself(request.topic_partition, request)
        assert reply.error is ErrorCode.NONE


def test_the_handlers_are_those_of_records() -> None:
    @played
    async def story(world: World, leaders: Leaders) -> None:
        assert world.handlers.handlers.keys() == {
            ApiKey.PRODUCE,
            ApiKey.FETCH,
            ApiKey.LIST_OFFSETS,
            ApiKey.INIT_PRODUCER_ID,
        }
