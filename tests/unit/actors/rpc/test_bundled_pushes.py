"""Pushes of one turn to one host: together, each with an answer of its own, none held up long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.actors.protocol.messages.replication import (
    ReplicateManyReply,
    ReplicateManyRequest,
    ReplicateReply,
    ReplicateRequest,
)
from oncelog.actors.rpc.bundled_pushes import BundledPushes
from oncelog.actors.rpc.message_codec import LONG_BYTES, decode_request, encode
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

HOST = "partitions:1@2"
LATE = ReplicateReply(error=ErrorCode.REQUEST_TIMED_OUT)


def push(partition: int, size_bytes: int = 1) -> ReplicateRequest:
    return ReplicateRequest(
        topic_partition=TopicPartition("t", partition),
        topic_id="a",
        leader=1,
        leader_epoch=1,
        epoch_start_offset=0,
        previous_end_offset=0,
        previous_leader_epoch=-1,
        high_watermark=0,
        log_start_offset=0,
        batches=b"x" * size_bytes,
    )


class Others:
    """The way to other hosts: answers each push with its partition, unless told otherwise."""

    def __init__(self) -> None:
        self.called: list[tuple[str, int]] = []
        self.late: set[int] = set()
        self.error = ErrorCode.NONE

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        assert 0 < timeout_ms <= 8_000
        if isinstance(request, ReplicateRequest):
            self.called.append((actor, 1))
            return ReplicateReply(log_end_offset=request.topic_partition.partition)
        self.called.append((actor, len(request.pushes)))
        # As it would arrive.
        request = decode_request(request.method, encode(request))
        assert isinstance(request, ReplicateManyRequest)
        if self.error is not ErrorCode.NONE:
            return request.failed(self.error)
        numbers = [one.request.topic_partition.partition for one in request.pushes]
        replies = [
            LATE if number in self.late else ReplicateReply(log_end_offset=number)
            for number in numbers
        ]
        return ReplicateManyReply(replies=tuple(replies))


@pytest.fixture
def others() -> Others:
    return Others()


async def send(pushes: BundledPushes, *requests: ReplicateRequest, host: str = HOST) -> list[Any]:
    """All in one turn."""
    calls = (
        pushes.call(f"{host}/a-{one.topic_partition.partition}", one, timeout_ms=8_000)
        for one in requests
    )
    return await asyncio.gather(*calls)


def ends(replies: list[Any]) -> list[int]:
    return [one.log_end_offset for one in replies]


def test_pushes_of_a_turn_travel_in_one_call_per_host(others: Others) -> None:
    async def go() -> None:
        pushes = BundledPushes(others, pytest.fail)
        here, there = await asyncio.gather(
            send(pushes, push(1), push(2), push(3)),
            send(pushes, push(4), push(5), host="partitions:1@3"),
        )
        assert (ends(here), ends(there)) == ([1, 2, 3], [4, 5])
        assert others.called == [(HOST, 3), ("partitions:1@3", 2)]

    asyncio.run(go())


def test_a_push_alone_or_large_or_to_an_actor_of_its_own_is_an_ordinary_call(
    others: Others,
) -> None:
    async def go() -> None:
        pushes = BundledPushes(others, pytest.fail)
        assert ends(await send(pushes, push(1), push(2, LONG_BYTES + 1))) == [1, 2]
        await asyncio.gather(*(pushes.call("p", push(n), timeout_ms=8_000) for n in (3, 4)))
        assert sorted(others.called) == [("p", 1), ("p", 1), (HOST + "/a-1", 1), (HOST + "/a-2", 1)]

    asyncio.run(go())


def test_a_lost_call_loses_all_its_pushes(others: Others) -> None:
    async def go() -> None:
        others.error = ErrorCode.NETWORK_EXCEPTION
        replies = await send(BundledPushes(others, pytest.fail), push(1), push(2))
        assert [one.error for one in replies] == [ErrorCode.NETWORK_EXCEPTION] * 2
        assert others.called == [(HOST, 2)]

    asyncio.run(go())


def test_what_is_not_synced_soon_travels_by_itself_and_so_do_the_next(
    others: Others,
) -> None:
    async def go() -> None:
        pushes = BundledPushes(others, pytest.fail)
        others.late = {2}
        assert ends(await send(pushes, push(1), push(2))) == [1, 2]
        assert others.called == [(HOST, 2), (HOST + "/a-2", 1)]
        await send(pushes, push(1), push(3))
        assert others.called[2:] == [(HOST + "/a-1", 1), (HOST + "/a-3", 1)]

    asyncio.run(go())


def test_a_host_that_knows_no_such_call_is_sent_each_push_by_itself(others: Others) -> None:
    async def go() -> None:
        others.error = ErrorCode.INVALID_REQUEST
        assert ends(await send(BundledPushes(others, pytest.fail), push(1), push(2))) == [1, 2]

    asyncio.run(go())
