"""What a host keeps of the fetches of consumers, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from virtual_time import run_virtually

from oncelog.actors.launch import host
from oncelog.actors.launch.host import SESSION_MS, FetchSessions
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.protocol.messages.partition import (
    FetchReply,
    FetchRequest,
    FetchTogetherReply,
    FetchTogetherRequest,
    SharedFetch,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition


class Replicas:
    """Answers fetches once they are told to; ``under_way`` are those that wait."""

    def __init__(self) -> None:
        self.under_way: dict[int, asyncio.Future[FetchReply]] = {}
        self.begun: list[int] = []
        self.tasks = OwnTasks(self.fail)
        self.sessions = FetchSessions(self.answer, self.tasks)

    def fail(self, error: BaseException) -> None:
        raise error

    async def answer(self, key: str, request: FetchRequest) -> FetchReply:
        assert key == f"replica-{request.topic_partition.partition}"
        number = request.fetch_offset
        self.begun.append(number)
        future = self.under_way[number] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            del self.under_way[number]

    def end(self, number: int, records: bytes = b"") -> None:
        self.under_way[number].set_result(FetchReply(high_watermark=number, records=records))

    async def call(self, *numbers: int, session: str = "s", **fields: Any) -> FetchTogetherReply:
        fetches = tuple(
            SharedFetch(
                number=number,
                key=f"replica-{number % 3}",
                fetch=FetchRequest(
                    topic_partition=TopicPartition("t", number % 3), fetch_offset=number
                ),
            )
            for number in numbers
        )
        request = FetchTogetherRequest(session_id=session, fetches=fetches, **fields)
        return await self.sessions.fetch(request)


def told(reply: FetchTogetherReply) -> list[int]:
    assert [one.reply.high_watermark for one in reply.ended] == [n.number for n in reply.ended]
    assert len(reply.records) == len(reply.ended)
    return [one.number for one in reply.ended]


def run(steps: Callable[[Replicas], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        replicas = Replicas()
        await steps(replicas)
        await asyncio.gather(*replicas.tasks.cancel(), return_exceptions=True)

    run_virtually(body())


def test_each_fetch_is_begun_once_and_told_once_and_the_others_wait_on() -> None:
    async def steps(replicas: Replicas) -> None:
        first = await replicas.call(1, 2, 3)
        assert (told(first), first.is_new) == ([], True)
        replicas.end(2, b"two")
        second = await replicas.call()
        assert (told(second), second.records, second.is_new) == ([2], (b"two",), False)
        assert told(await replicas.call(4)) == []
        replicas.end(1)
        replicas.end(4)
        assert told(await replicas.call()) == [1, 4]
        assert replicas.begun == [1, 2, 3, 4]

    run(steps)


def test_a_call_returns_as_soon_as_one_ends_and_in_vain_after_its_time() -> None:
    async def steps(replicas: Replicas) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert told(await replicas.call(1, max_wait_ms=500)) == []
        assert loop.time() - began == pytest.approx(0.5)
        loop.call_later(0.2, replicas.end, 1)
        assert told(await replicas.call(max_wait_ms=500)) == [1]
        assert loop.time() - began == pytest.approx(0.7)

    run(steps)


def test_a_newer_call_ends_the_wait_of_an_older_and_one_that_came_twice_begins_nothing() -> None:
    async def steps(replicas: Replicas) -> None:
        older = asyncio.ensure_future(replicas.call(1, max_wait_ms=5_000))
        await asyncio.sleep(0.1)
        newer = asyncio.ensure_future(replicas.call(1, 2, max_wait_ms=5_000))
        await asyncio.sleep(0.1)
        assert older.done()
        assert not newer.done()
        replicas.end(2)
        assert told(await newer) == [2]
        assert replicas.begun == [1, 2]

    run(steps)


def test_a_reply_has_no_more_bytes_than_asked_for_after_its_first_fetch() -> None:
    async def steps(replicas: Replicas) -> None:
        await replicas.call(1, 2, 3, max_wait_ms=1)
        for number in (1, 2, 3):
            replicas.end(number, b"12345678")
        await asyncio.sleep(0.1)
        assert told(await replicas.call(max_bytes=9)) == [1, 2]
        assert told(await replicas.call(max_bytes=1)) == [3]

    run(steps)


def test_fetches_of_a_consumer_that_does_not_call_any_more_are_given_up() -> None:
    async def steps(replicas: Replicas) -> None:
        await replicas.call(1, 2)
        await asyncio.sleep(SESSION_MS / 1_000 - 1)
        await replicas.call(max_wait_ms=1)
        await asyncio.sleep(SESSION_MS / 1_000 - 1)
        assert set(replicas.under_way) == {1, 2}
        await asyncio.sleep(2)
        assert not replicas.under_way
        reply = await replicas.call(3)
        assert reply.is_new

    run(steps)


def test_of_too_many_sessions_that_is_given_up_which_was_called_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "SESSIONS_MAX", 2)

    async def steps(replicas: Replicas) -> None:
        for number, session in enumerate("aba"):
            await replicas.call(number, session=session, max_wait_ms=1)
        await replicas.call(7, session="c", max_wait_ms=1)
        assert set(replicas.under_way) == {0, 2, 7}
        await replicas.call(session="d", max_wait_ms=1)
        assert set(replicas.under_way) == {7}

    run(steps)


def test_too_many_fetches_in_all_end_those_of_who_called_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "FETCHES_IN_ALL_MAX", 4)

    async def steps(replicas: Replicas) -> None:
        await replicas.call(1, 2, session="a", max_wait_ms=1)
        await replicas.call(3, session="b", max_wait_ms=1)
        await replicas.call(session="a", max_wait_ms=1)
        await replicas.call(4, 5, session="c", max_wait_ms=1)
        assert set(replicas.under_way) == {1, 2, 4, 5}

    run(steps)


def test_a_session_has_so_many_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "FETCHES_MAX", 3)

    async def steps(replicas: Replicas) -> None:
        await replicas.call(1, 2)
        refused = await replicas.call(3, 4)
        assert refused.error is ErrorCode.INVALID_REQUEST
        assert "3 fetches" in refused.detail
        assert (await replicas.call(3)).error is ErrorCode.NONE

    run(steps)


def test_while_much_is_not_told_yet_no_other_fetch_of_the_consumer_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "ENDED_MAX_BYTES", 8)

    async def steps(replicas: Replicas) -> None:
        await replicas.call(1, 2, max_wait_ms=1)
        replicas.end(1, b"12345678")
        replicas.end(2, b"12345678")
        await asyncio.sleep(0.1)
        assert told(await replicas.call(3, max_bytes=1)) == [1]
        await asyncio.sleep(0.1)
        assert replicas.begun == [1, 2]
        assert told(await replicas.call()) == [2]
        await asyncio.sleep(0.1)
        assert replicas.begun == [1, 2, 3]

    run(steps)


def test_too_many_bytes_in_all_end_the_fetches_of_who_called_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "ENDED_IN_ALL_MAX_BYTES", 8)

    async def steps(replicas: Replicas) -> None:
        await replicas.call(1, session="a", max_wait_ms=1)
        await replicas.call(2, session="b", max_wait_ms=1)
        replicas.end(1, b"12345678")
        await asyncio.sleep(0.1)
        assert not (await replicas.call(3, session="b", max_wait_ms=1)).is_new
        assert (await replicas.call(session="a", max_wait_ms=1)).is_new

    run(steps)
