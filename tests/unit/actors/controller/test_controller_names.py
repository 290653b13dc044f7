"""A topic's name while its actors come and go: nobody else gets it before they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from actor_environment import AtOnceBackground
from controller_world import ControllerWorld
from virtual_time import give_turns

from oncelog.storage.errors import ErrorCode

FLIGHTS = "partition:flights-0@1"
OTHER_ID = "b" * 32


def topic_ids(world: ControllerWorld) -> dict[str, str]:
    topics = world.controller.machine.metadata(None)
    return {topic.name: topic.topic_id for topic in topics if not topic.name.startswith("__")}


Scenario = Callable[[ControllerWorld], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scenario], None]:
    """Run a scenario with a controller that knows the topic ``flights``."""

    def run(scenario: Scenario) -> None:
        async def body() -> None:
            world = ControllerWorld(tmp_path, AtOnceBackground)
            await world.begin()
            assert (await world.create("flights")).error is ErrorCode.NONE
            world.events.clear()
            await scenario(world)
            await world.controller.replica.stop()

        asyncio.run(body())

    return run


@pytest.mark.parametrize("held", ["stop", "end"])
def test_a_topic_created_while_its_name_is_deleted_gets_actors_of_its_own(
    play: Any, held: str
) -> None:
    """1. A deletion is in the log and its actor is being ended. 2. A topic of the name is created.
    3. The creation waits. 4. The old actor is gone. 5. The new topic starts one of its own.
    """

    async def scenario(world: ControllerWorld) -> None:
        gate = world.gates[held, FLIGHTS] = asyncio.Event()
        deleting = asyncio.create_task(world.delete("flights"))
        await give_turns(100)
        creating = asyncio.create_task(world.create("flights", OTHER_ID))
        await give_turns(100)
        assert topic_ids(world) == {}
        assert not creating.done()
        gate.set()
        replies = await asyncio.gather(deleting, creating)
        assert [reply.error for reply in replies] == [ErrorCode.NONE, ErrorCode.NONE]
        assert world.events == [("stop", FLIGHTS), ("end", FLIGHTS), ("start", FLIGHTS)]
        assert FLIGHTS in world.actors
        assert topic_ids(world) == {"flights": OTHER_ID}

    play(scenario)


def test_a_topic_deleted_while_its_actors_start_leaves_none_of_them(play: Any) -> None:
    """1. A creation is in the log and its actor is being started. 2. The topic is deleted. 3. The
    deletion waits. 4. The actor is there. 5. It is stopped and ended.
    """

    async def scenario(world: ControllerWorld) -> None:
        actor = "partition:trains-0@1"
        gate = world.gates["start", actor] = asyncio.Event()
        creating = asyncio.create_task(world.create("trains", OTHER_ID))
        await give_turns(100)
        deleting = asyncio.create_task(world.delete("trains"))
        await give_turns(100)
        gate.set()
        replies = await asyncio.gather(creating, deleting)
        assert [reply.error for reply in replies] == [ErrorCode.NONE, ErrorCode.NONE]
        assert world.events == [("start", actor), ("stop", actor), ("end", actor)]
        assert actor not in world.actors

    play(scenario)


def test_a_deletion_that_takes_long_holds_up_no_other_name(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        gate = world.gates["stop", FLIGHTS] = asyncio.Event()
        deleting = asyncio.create_task(world.delete("flights"))
        await give_turns(100)
        assert (await world.create("trains", OTHER_ID)).error is ErrorCode.NONE
        assert not deleting.done()
        gate.set()
        assert (await deleting).error is ErrorCode.NONE

    play(scenario)


def test_a_name_is_free_again_after_a_refusal(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        refused = [await world.create("flights", OTHER_ID), await world.delete("trains")]
        assert [reply.error for reply in refused] == [
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        replies = [await world.delete("flights"), await world.create("trains", OTHER_ID)]
        assert [reply.error for reply in replies] == [ErrorCode.NONE, ErrorCode.NONE]

    play(scenario)


def test_a_new_controller_ends_actors_of_deleted_topics_and_keeps_all_others(play: Any) -> None:
    """1. A deletion is in the log. 2. The controller dies before it ends the actor. 3. The next one
    ends it, before it starts what is missing.
    """

    async def scenario(world: ControllerWorld) -> None:
        world.gates["stop", FLIGHTS] = asyncio.Event()
        await world.create("trains", OTHER_ID)
        deleting = asyncio.create_task(world.delete("flights"))
        await give_turns(100)
        deleting.cancel()
        await world.controller.replica.stop()
        world.actors["controller"] = 0
        del world.actors["partition:trains-0@1"]
        assert world.events[-1] == ("stop", FLIGHTS)
        world.events.clear()
        await world.begin()
        happened = [event for event in world.events if event[1].startswith("partition:")]
        assert happened == [("end", FLIGHTS), ("start", "partition:trains-0@1")]
        assert {"controller", "partition:trains-0@1"} <= world.actors.keys()
        assert FLIGHTS not in world.actors

    play(scenario)


def test_a_topic_created_while_the_controller_starts_keeps_its_replicas(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.controller.replica.stop()
        gate = world.gates["look", "all"] = asyncio.Event()
        starting = asyncio.create_task(world.begin())
        await give_turns(100)
        early = await world.create("t", OTHER_ID)
        gate.set()
        await starting
        if early.error is not ErrorCode.NONE:
            assert early.error.retriable
            assert (await world.create("t", OTHER_ID)).error is ErrorCode.NONE
        assert "partition:t-0@1" in world.actors

    play(scenario)


def test_a_deletion_that_took_long_ends_no_actor_that_was_given_the_name_since(play: Any) -> None:
    """1. A deletion is in the log, and the replica is being told. 2. Another controller follows,
    ends the actor, and makes a topic of the name again. 3. The first one hears the replica.
    """

    async def scenario(world: ControllerWorld) -> None:
        gate = world.gates["stop", FLIGHTS] = asyncio.Event()
        deleting = asyncio.create_task(world.delete("flights"))
        await give_turns(100)
        world.actors[FLIGHTS] = successor = -1
        gate.set()
        assert (await deleting).error is ErrorCode.NONE
        assert world.actors[FLIGHTS] == successor

    play(scenario)


def test_a_controller_that_was_followed_ends_nothing_that_it_does_not_know(play: Any) -> None:
    """1. A controller looks for what an earlier one left. 2. It is followed meanwhile, and what it
    finds is a topic's that the next one has made.
    """

    async def scenario(world: ControllerWorld) -> None:
        controller = world.controller
        world.actors["partition:next-0@1"] = 0
        world.events.clear()

        async def is_current() -> bool:
            controller.replica.halt()
            return False

        controller.voters.is_current = is_current  # type: ignore[method-assign]
        assert not await controller._end_undeclared()
        assert world.events == []

    play(scenario)
