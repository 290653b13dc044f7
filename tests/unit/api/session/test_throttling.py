"""What a program does that an actor has asked to wait: it does, before its next call there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import structs
from virtual_time import run_virtually

from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.partition import DescribeReplicaRequest
from oncelog.actors.protocol.quotas import THROTTLE_MAX_MS
from oncelog.api.session.throttling import PoliteTransport
from oncelog.storage.errors import ErrorCode

HOST, REPLICA, OTHER = "partitions:1@1", "partitions:1@1/abc-0", "group:0@1"


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Actors:
    """Answer, and tell to wait what the test says."""

    def __init__(self) -> None:
        self.throttles_ms: list[int] = []
        self.takes_s: list[float] = []
        self.called: list[tuple[str, int, int]] = []
        self.polite = PoliteTransport(self, now_s)

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        self.called.append((actor, round(1_000 * now_s()), timeout_ms))
        reply = request.failed(ErrorCode.NONE)
        if self.takes_s:
            await asyncio.sleep(self.takes_s.pop(0))
        if self.throttles_ms:
            return structs.replace(reply, throttle_ms=self.throttles_ms.pop(0))
        return reply

    async def ask(self, actor: str = HOST, timeout_ms: int = 60_000) -> ErrorCode:
        request = DescribeReplicaRequest()
        return (await self.polite.call(actor, request, timeout_ms=timeout_ms)).error


def play(body: Callable[[Actors], Awaitable[None]]) -> None:
    async def run() -> None:
        await body(Actors())

    run_virtually(run())


def test_the_next_call_to_that_actor_waits_as_long_as_it_was_told():
    async def body(actors: Actors) -> None:
        actors.throttles_ms = [500]
        await actors.ask()
        await actors.ask(OTHER)
        await actors.ask(REPLICA)
        await actors.ask(REPLICA)
        told = [(actor, at_ms) for actor, at_ms, _ in actors.called]
        assert told == [(HOST, 0), (OTHER, 0), (REPLICA, 500), (REPLICA, 500)]
        assert [left_ms for _, _, left_ms in actors.called] == [60_000, 60_000, 59_500, 60_000]

    play(body)


def test_a_call_that_would_be_too_late_is_not_sent_and_says_why():
    async def body(actors: Actors) -> None:
        actors.throttles_ms = [500]
        await actors.ask()
        reply = await actors.polite.call(HOST, DescribeReplicaRequest(), timeout_ms=200)
        assert reply.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert HOST in reply.detail
        assert now_s() == 0.2
        assert len(actors.called) == 1

    play(body)


def test_who_waits_already_waits_on_if_another_call_was_throttled_too():
    async def body(actors: Actors) -> None:
        actors.takes_s, actors.throttles_ms = [0.01, 0.05], [100, 900]
        slow = asyncio.create_task(actors.ask())
        await actors.ask()
        await actors.ask()
        assert slow.done()
        assert [at_ms for _, at_ms, _ in actors.called] == [0, 0, 950]

    play(body)


def test_no_actor_makes_a_program_wait_for_longer_than_the_longest_throttle():
    async def body(actors: Actors) -> None:
        actors.throttles_ms = [2**62, -5]
        await actors.ask()
        await actors.ask()
        await actors.ask()
        assert [at_ms for _, at_ms, _ in actors.called] == [0, THROTTLE_MAX_MS, THROTTLE_MAX_MS]

    play(body)


def test_throttles_that_are_over_are_forgotten():
    async def body(actors: Actors) -> None:
        for number in range(50):
            actors.throttles_ms = [100]
            await actors.ask(f"{HOST}{number}")
            await asyncio.sleep(0.2)
        assert len(actors.polite._ready_s) == 1

    play(body)
