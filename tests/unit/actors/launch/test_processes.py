"""One server, called both ways: what Ray carries is answered like what a connection carries."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

import pytest
from called_server import TIMEOUT_MS, Server, produce

from oncelog.actors.config import CONNECTIONS, RAY, ReplicaConfig
from oncelog.actors.launch.processes import (
    ActorProcess,
    ControllerProcess,
    GroupCoordinatorProcess,
    PartitionProcess,
    ReplicaProcess,
    TransactionCoordinatorProcess,
    production,
)
from oncelog.actors.process.background import THREADS_MAX
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.partition import (
    DescribeReplicaRequest,
    FetchRequest,
    ProduceReply,
)
from oncelog.actors.rpc.actor_transport import connect
from oncelog.actors.rpc.dispatch import read_answer
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.message_codec import REQUESTS, encode
from oncelog.actors.rpc.ray_transport import connection_secret
from oncelog.storage.errors import ErrorCode


class Process(ActorProcess):
    answering = (Server,)

    def __init__(self, calls: str = CONNECTIONS) -> None:
        super().__init__(Server(), calls=calls)


@pytest.mark.parametrize(
    "kind",
    [
        PartitionProcess,
        TransactionCoordinatorProcess,
        GroupCoordinatorProcess,
        ControllerProcess,
    ],
)
def test_ray_has_a_method_for_each_request_of_the_server(kind: type[ReplicaProcess]) -> None:
    requests = {name for name in REQUESTS for one in (Door, *kind.answering) if hasattr(one, name)}
    assert "describe_replica" in requests
    for name in requests:
        assert asyncio.iscoroutinefunction(getattr(kind, name)), name
        assert getattr(kind, name).__name__ == name
    assert {name for name in REQUESTS if hasattr(kind, name)} == requests


def test_the_logs_of_a_process_share_its_threads() -> None:
    async def body() -> set[threading.Thread]:
        environment = production(
            ReplicaConfig(topic="flights", partition=0, broker_id=1, data_dir="/nowhere")
        )
        logs = [environment.new_background() for _ in range(2 * THREADS_MAX)]
        assert len(set(map(id, logs))) == len(logs)
        return set(await asyncio.gather(*(log.run(threading.current_thread) for log in logs)))

    assert 1 <= len(asyncio.run(body())) <= THREADS_MAX


async def by_ray(process: Any, request: Request[Any]) -> Any:
    """What ``RayTransport`` makes of an answer."""
    outcome, body = await getattr(process, request.method)(encode(request))
    assert (type(outcome), type(body)) == (int, bytes)
    return read_answer(request, outcome, body)


@pytest.mark.parametrize(
    ("request_", "error", "detail"),
    [
        (produce(7, b"batch"), ErrorCode.NONE, ""),
        (DescribeReplicaRequest(), ErrorCode.UNKNOWN_SERVER_ERROR, "no such replica"),
    ],
)
def test_both_roads_and_a_handle_get_the_same_answer(
    request_: Request[Any], error: ErrorCode, detail: str
) -> None:
    async def body() -> None:
        process: Any = Process()
        address = await process.listener_address()
        assert address is not None
        known = dataclasses.replace(address, token=connection_secret(address.token, b""))
        assert await connect(address, timeout_ms=TIMEOUT_MS) is None, "what Ray tells is not enough"
        connection = await connect(known, timeout_ms=TIMEOUT_MS)
        assert connection is not None
        replies = [
            await connection.call(request_, timeout_ms=TIMEOUT_MS),
            await by_ray(process, request_),
            await getattr(process, request_.method)(request_),
        ]
        assert replies == [replies[0]] * 3
        assert replies[0].error is error
        assert detail in getattr(replies[0], "detail", detail)
        assert process.dispatch.answered_calls == 3
        connection.close()
        await process.listener.close()

    asyncio.run(body())


def test_what_ray_carries_and_is_no_request_is_refused() -> None:
    async def body() -> None:
        process: Any = Process()
        outcome, text = await process.fetch(b"\x80")
        request = FetchRequest(topic_partition=produce(0).topic_partition, fetch_offset=0)
        reply = read_answer(request, outcome, text)
        assert reply.error is ErrorCode.INVALID_REQUEST
        assert "not a request of 'fetch'" in reply.detail
        assert process.dispatch.answered_calls == 0

    asyncio.run(body())


def test_an_actor_whose_calls_ray_carries_does_not_listen() -> None:
    async def body() -> None:
        process: Any = Process(RAY)
        assert process.listener is None
        assert await process.listener_address() is None
        assert await by_ray(process, produce(3)) == ProduceReply(base_offset=3)

    asyncio.run(body())
