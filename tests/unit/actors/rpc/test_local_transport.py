"""Calls within a host: by key, without a socket, and as patient as any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from virtual_time import give_turns

from oncelog.actors.protocol.access import RAY
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.actors.rpc.actor_transport import LocalTransport
from oncelog.actors.rpc.dispatch import Dispatch, Outcome, read_answer
from oncelog.actors.rpc.message_codec import encode
from oncelog.storage.errors import ErrorCode, InvariantViolation

REQUEST = DescribeReplicaRequest()
HERE = DescribeReplicaReply(process_id=1)
ELSEWHERE = DescribeReplicaReply(process_id=2)


class Server:
    """One replica of a host."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.calls = 0
        self.error: Exception | None = None

    async def describe_replica(self, request: DescribeReplicaRequest) -> DescribeReplicaReply:
        assert request is REQUEST or request == REQUEST
        await self.gate.wait()
        self.calls += 1
        if self.error is not None:
            raise self.error
        return HERE


class Others:
    """The way to all other actors."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        assert (request, timeout_ms) == (REQUEST, 1_000)
        self.called.append(actor)
        return ELSEWHERE


class House:
    """A host with one replica, ``here``, and its transport."""

    def __init__(self) -> None:
        self.server, self.others = Server(), Others()
        self.bugs: list[InvariantViolation] = []
        self.find: Callable[[str], Server | None] = {"here": self.server}.get
        self.dispatch = Dispatch("host", on_bug=self._die, find=lambda key: self.find(key))
        self.transport = LocalTransport("partitions:1@1", self.dispatch, self.others)

    def _die(self, bug: InvariantViolation) -> NoReturn:
        self.bugs.append(bug)
        raise SystemExit

    async def call(self, address: str, timeout_ms: int = 1_000) -> DescribeReplicaReply:
        return await self.transport.call(address, REQUEST, timeout_ms=timeout_ms)


def test_a_replica_of_this_process_is_called_directly():
    async def body() -> None:
        house = House()
        assert await house.call("partitions:1@1/here") is HERE
        assert house.others.called == []

    asyncio.run(body())


@pytest.mark.parametrize("address", ["partitions:2@1/here", "controller", "partition:t-0@1"])
def test_every_other_actor_is_called_the_usual_way(address: str):
    async def body() -> None:
        house = House()
        assert await house.call(address) is ELSEWHERE
        assert house.others.called == [address]
        assert house.server.calls == 0

    asyncio.run(body())


def test_a_bug_on_the_way_to_a_replica_is_told_to_the_caller():
    async def body() -> None:
        house = House()

        def broken(key: str) -> None:
            raise ZeroDivisionError("planted")

        house.find = broken
        with pytest.raises(ZeroDivisionError, match="planted"):
            await house.call("partitions:1@1/here", timeout_ms=60_000)

    asyncio.run(body())


def test_a_replica_that_is_not_here_any_more_is_as_one_that_is_gone():
    async def body() -> None:
        house = House()
        reply = await house.call("partitions:1@1/elsewhere")
        assert reply.error is ErrorCode.NETWORK_EXCEPTION
        answer = await house.dispatch.answer("describe_replica/elsewhere", encode(REQUEST), RAY)
        assert read_answer(REQUEST, answer[0], answer[1][0]).error is ErrorCode.NETWORK_EXCEPTION

    asyncio.run(body())


def test_a_call_over_the_wire_finds_its_replica_by_key():
    async def body() -> None:
        house = House()
        outcome, parts = await house.dispatch.answer("describe_replica/here", encode(REQUEST), RAY)
        assert read_answer(REQUEST, outcome, b"".join(parts)) == HERE
        refused, _ = await house.dispatch.answer("describe_replica", encode(REQUEST), RAY)
        assert refused is Outcome.REFUSED

    asyncio.run(body())


def test_a_caller_that_gives_up_does_not_take_its_call_back():
    async def body() -> None:
        house = House()
        house.server.gate.clear()
        reply = await house.call("partitions:1@1/here", timeout_ms=1)
        assert (reply.error, house.server.calls) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        cancelled = asyncio.ensure_future(house.call("partitions:1@1/here"))
        await asyncio.sleep(0)
        cancelled.cancel()
        house.server.gate.set()
        await give_turns(5)
        assert house.server.calls == 2

    asyncio.run(body())


def test_what_a_method_raises_is_a_code_and_a_broken_invariant_the_end():
    async def body() -> None:
        house = House()
        house.server.error = ValueError("no")
        reply = await house.call("partitions:1@1/here")
        assert (reply.error, reply.detail) == (ErrorCode.UNKNOWN_SERVER_ERROR, "ValueError('no')")
        try:
            invariant(False, "I-24", "made up")
        except InvariantViolation as bug:
            house.server.error = bug
        with pytest.raises(SystemExit):
            await house.dispatch.answer_here("here", REQUEST)
        assert len(house.bugs) == 1

    asyncio.run(body())
