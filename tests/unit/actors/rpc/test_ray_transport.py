"""Waiting for an answer: in time, too late, and told to stop in the very turn it comes."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from oncelog.actors.rpc.ray_transport import _within


def test_an_answer_in_time_is_returned() -> None:
    async def body() -> None:
        answer: Future[int] = Future()
        answer.set_result(7)
        assert await _within(1_000, answer) == 7

    asyncio.run(body())


def test_no_answer_in_time_is_none_and_is_waited_for_no_more() -> None:
    async def body() -> None:
        answer: Future[int] = Future()
        assert await _within(1, answer) is None
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
    assert asyncio.run(_within(1, answer)) is None
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
