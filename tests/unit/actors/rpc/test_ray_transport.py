"""Waiting for an answer: in time, too late, and told to stop in the very turn it comes."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest
from ray.exceptions import RaySystemError

from oncelog.actors.rpc.ray_transport import RayTransport, _within, find_actor
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import ConnectionFailedError


def test_an_answer_in_time_is_returned() -> None:
    async def body() -> None:
        answer: Future[int] = Future()
        answer.set_result(7)
        assert await _within(1_000, answer) == 7

    asyncio.run(body())


def test_no_answer_in_time_is_told_and_is_waited_for_no_more() -> None:
    async def body() -> None:
        answer: Future[int] = Future()
        with pytest.raises(asyncio.TimeoutError):
            await _within(1, answer)
        answer.set_result(7)
        await asyncio.sleep(0)

    asyncio.run(body())


def test_an_answer_that_is_an_error_is_raised() -> None:
    async def body() -> None:
        answer: Future[int] = Future()
        asyncio.get_running_loop().call_soon(answer.set_exception, KeyError("lost"))
        with pytest.raises(KeyError):
            await _within(1_000, answer)

    asyncio.run(body())


def test_an_answer_after_the_loop_is_closed_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer: Future[int] = Future()
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(_within(1, answer))
    answer.set_result(7)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_caller_that_is_cancelled_in_the_turn_of_the_answer_does_not_go_on() -> None:
    """A late answer must not reach a task that was told to stop.

    1. A task waits for an answer. 2. The answer comes. 3. In the same turn the task is cancelled.
    4. The task ends: it does not go on with the answer.
    """

    async def body() -> None:
        answer: Future[int] = Future()
        calling = asyncio.create_task(_within(1_000, answer))
        await asyncio.sleep(0)
        answer.set_result(7)
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    asyncio.run(body())


class Handle:
    """An actor whose calls end with ``answer``."""

    def __init__(self, answer: Future[Any]) -> None:
        self.answer = answer
        self.listener_address = self

    def remote(self) -> Handle:
        return self

    def future(self) -> Future[Any]:
        return self.answer


def test_an_actor_that_does_not_listen_is_no_actor_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)

    async def asked(answer: Future[Any], timeout_ms: int) -> object:
        transport = RayTransport()
        transport._handles["controller"] = Handle(answer)
        return await transport.listener_of("controller", timeout_ms=timeout_ms)

    answer: Future[Any] = Future()
    assert asyncio.run(asked(answer, 1)) is ErrorCode.REQUEST_TIMED_OUT
    answer.set_result(None)
    assert asyncio.run(asked(answer, 1_000)) is None


def test_ray_is_called_only_where_it_is_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would begin another cluster, by itself, inside the program that has shut it down.

    1. A program makes calls. 2. It shuts Ray down. 3. It goes on with Ray, and other handles.
    """
    answer: Future[Any] = Future()
    answer.set_result(None)
    is_up, found = [True], []

    def get_actor(name: str, namespace: str) -> Handle:
        assert is_up[0], "this starts another Ray"
        found.append(name)
        return Handle(answer)

    monkeypatch.setattr("ray.is_initialized", lambda: is_up[0])
    monkeypatch.setattr("ray.get_actor", get_actor)
    transport = RayTransport()

    async def asked(actor: str = "controller") -> object:
        return await transport.listener_of(actor, timeout_ms=1_000)

    assert asyncio.run(asked()) is None
    is_up[0] = False
    assert asyncio.run(asked()) is ErrorCode.NETWORK_EXCEPTION
    assert asyncio.run(asked("another")) is ErrorCode.NETWORK_EXCEPTION
    with pytest.raises(ConnectionFailedError, match="not initialized"):
        find_actor("controller")
    is_up[0] = True
    assert asyncio.run(asked()) is None
    assert found == ["controller", "controller"]


def test_a_ray_that_is_shut_down_while_an_actor_is_looked_for_does_not_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray wraps what it offers in its own start: that is left out."""

    def inner(name: str, namespace: str) -> None:
        raise RaySystemError("not started")

    def get_actor(name: str, namespace: str) -> None:
        raise AssertionError("this starts another Ray")

    get_actor.__wrapped__ = inner  # type: ignore[attr-defined]
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.get_actor", get_actor)

    async def body() -> object:
        return await RayTransport().listener_of("controller", timeout_ms=1_000)

    assert asyncio.run(body()) is ErrorCode.NETWORK_EXCEPTION
