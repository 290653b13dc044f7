"""Topic metadata is asked for once and kept as long as it is young enough."""

from __future__ import annotations

import asyncio
from typing import Any

from oncelog.actors.coordination.cluster_view import ANY_AGE_MS, Location
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.process.clock import loop_ms
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition

FLIGHTS = TopicPartition("flights", 0)


def test_an_answer_is_used_until_it_is_too_old(world: Any) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS)
        view = world.cluster_view()
        for _ in range(3):
            assert (
                await view.locate(FLIGHTS, as_of_ms=ANY_AGE_MS)
            ).actor == f"partition:{FLIGHTS}@1"
        assert len(world.calls) == 1
        await asyncio.sleep(1)
        await view.topics(["flights"], as_of_ms=loop_ms())
        assert len(world.calls) == 2

    world.run(scenario)


def test_questions_at_the_same_time_share_one_call(world: Any) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS)
        view = world.cluster_view()
        await asyncio.gather(*(view.locate(FLIGHTS, as_of_ms=loop_ms()) for _ in range(5)))
        assert len(world.calls) == 1

    world.run(scenario)


def test_an_unknown_topic_is_gone_but_an_internal_one_never_is(world: Any) -> None:
    async def scenario() -> None:
        view = world.cluster_view()
        assert await view.locate(FLIGHTS, as_of_ms=ANY_AGE_MS) == Location(is_gone=True)
        missing = TopicPartition(CONSUMER_OFFSETS_TOPIC, 9)
        assert await view.locate(missing, as_of_ms=ANY_AGE_MS) == Location()

    world.run(scenario)


def test_a_silent_controller_leaves_the_old_answer(world: Any) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS)
        view = world.cluster_view()
        await view.locate(FLIGHTS, as_of_ms=ANY_AGE_MS)
        world.actors.pop(CONTROLLER_ACTOR)
        await asyncio.sleep(1)
        error, topics = await view.topics(["flights", "delays"], as_of_ms=loop_ms())
        assert error is ErrorCode.NETWORK_EXCEPTION
        assert set(topics) == {"flights"}

    world.run(scenario)


def test_a_question_shares_no_call_that_began_too_early_for_it(world: Any) -> None:
    async def scenario() -> None:
        view = world.cluster_view()
        first = asyncio.ensure_future(view.topics(["flights"], as_of_ms=loop_ms()))
        await asyncio.sleep(0.0005)
        later = [view.topics(["flights"], as_of_ms=loop_ms() + 1) for _ in range(3)]
        await asyncio.gather(first, *later)
        assert len(world.calls) == 2

    world.run(scenario)


def test_all_who_ask_a_silent_controller_wait_for_one_call(world: Any) -> None:
    async def scenario() -> None:
        world.actors.pop(CONTROLLER_ACTOR)
        view = world.cluster_view()
        asked = [view.topics(["flights"], as_of_ms=loop_ms()) for _ in range(5)]
        for error, _ in await asyncio.gather(*asked):
            assert error is ErrorCode.NETWORK_EXCEPTION
        assert len(world.calls) == 1

    world.run(scenario)
