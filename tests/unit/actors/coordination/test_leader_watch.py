"""A call that is given up once another leads, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from virtual_time import run_virtually

from oncelog.actors.coordination.leader_watch import LEADER_CHECK_MS, LeaderWatch
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.storage.errors import ErrorCode

CHECK_S = LEADER_CHECK_MS / 1000
REQUEST = DescribeReplicaRequest()


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a coroutine in virtual time."""
    return run_virtually


class Hanging:
    """A transport whose call is answered when the test says so."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[DescribeReplicaReply] = asyncio.Future()

    async def call(self, _actor: str, _request: Any, *, timeout_ms: int) -> Any:
        return await self.answer


class Leader:
    """Who leads, and how often that was asked."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.asked = 0

    async def now(self) -> str | None:
        self.asked += 1
        return self.name


def test_it_is_given_up_when_another_leads(run: Any) -> None:
    async def story() -> None:
        leader = Leader("one")
        call = asyncio.create_task(
            LeaderWatch("one", leader.now).call(Hanging(), REQUEST, timeout_ms=30_000)
        )
        await asyncio.sleep(1.5 * CHECK_S)
        assert not call.done()
        leader.name = "two"
        await asyncio.sleep(CHECK_S)
        assert (await call).error is ErrorCode.NETWORK_EXCEPTION
        assert leader.asked == 2

    run(story())


@pytest.mark.parametrize("name", ["one", None])
def test_it_waits_while_the_same_leads_or_nobody_knows(run: Any, name: str | None) -> None:
    async def story() -> None:
        leader, transport = Leader(name), Hanging()
        call = asyncio.create_task(
            LeaderWatch("one", leader.now).call(transport, REQUEST, timeout_ms=30_000)
        )
        await asyncio.sleep(3.5 * CHECK_S)
        transport.answer.set_result(DescribeReplicaReply())
        assert (await call).error is ErrorCode.NONE
        assert leader.asked == 3
        await asyncio.sleep(2 * CHECK_S)
        assert leader.asked == 3

    run(story())


def test_a_bug_in_a_look_is_told_to_the_caller_at_once(run: Any) -> None:
    async def look() -> str | None:
        raise ZeroDivisionError("planted")

    async def story() -> None:
        call = asyncio.create_task(
            LeaderWatch("one", look).call(Hanging(), REQUEST, timeout_ms=30_000)
        )
        await asyncio.sleep(1.5 * CHECK_S)
        assert call.done()
        with pytest.raises(ZeroDivisionError, match="planted"):
            await call

    run(story())


def test_one_that_is_cancelled_by_its_caller_is_cancelled(run: Any) -> None:
    async def story() -> None:
        leader = Leader("two")
        call = asyncio.create_task(
            LeaderWatch("one", leader.now).call(Hanging(), REQUEST, timeout_ms=30_000)
        )
        await asyncio.sleep(0.5 * CHECK_S)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(2 * CHECK_S)
        assert leader.asked == 0

    run(story())


def test_a_look_that_a_program_cancels_as_it_shuts_down_is_followed_by_another(run: Any) -> None:
    async def story() -> None:
        asked = 0

        async def leader_now() -> str:
            nonlocal asked
            asked += 1
            if asked == 1:
                await asyncio.Event().wait()
            return "two"

        watch = LeaderWatch("one", leader_now)
        call = asyncio.create_task(watch.call(Hanging(), REQUEST, timeout_ms=30_000))
        await asyncio.sleep(1.5 * CHECK_S)
        assert watch._check is not None
        watch._check.cancel()
        await asyncio.sleep(1.5 * CHECK_S)
        assert call.done()
        assert (await call).error is ErrorCode.NETWORK_EXCEPTION

    run(story())
