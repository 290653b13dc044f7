"""One server, called both ways: what Ray carries is answered like what a connection carries."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
from called_server import TIMEOUT_MS, Server, produce

from oncelog.actors.config import (
    CONNECTIONS,
    RAY,
    BrokerConfig,
    ClusterConfig,
    GatewayConfig,
    HostConfig,
    ReplicaConfig,
)
from oncelog.actors.launch.assembly import Environment
from oncelog.actors.launch.host import Host
from oncelog.actors.launch.processes import (
    ActorProcess,
    ControllerProcess,
    GroupCoordinatorProcess,
    PartitionProcess,
    ReplicaProcess,
    TransactionCoordinatorProcess,
    audit_log,
    production,
)
from oncelog.actors.process.background import THREADS_MAX
from oncelog.actors.protocol.access import Principal, Verdict
from oncelog.actors.protocol.messages.access import NO_ACCESS, Operation, Resource
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.brokers import PingReply, PingRequest
from oncelog.actors.protocol.messages.partition import (
    DescribeReplicaRequest,
    FetchRequest,
    ProduceReply,
)
from oncelog.actors.rpc.actor_transport import connect
from oncelog.actors.rpc.dispatch import read_answer
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.handshake import connection_secret
from oncelog.actors.rpc.message_codec import REQUESTS, encode
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC


class Process(ActorProcess):
    answering = (Server,)

    def __init__(self, calls: str = CONNECTIONS, environment: Environment | None = None) -> None:
        super().__init__(PingedServer(), calls=calls, environment=environment)


class PingedServer(Server):
    async def ping(self, _: PingRequest) -> PingReply:
        return PingReply()


RAY_PROGRAM = Principal("User:ray")
REFUSED = Verdict(Operation.READ, Resource.TOPIC, "flights", is_allowed=False)


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


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (
            ReplicaConfig(topic="flights", partition=0, broker_id=1, data_dir=""),
            "partition_flights-0_1",
        ),
        (
            ReplicaConfig(topic=TRANSACTION_STATE_TOPIC, partition=1, broker_id=2, data_dir=""),
            "transaction_1_2",
        ),
        (
            ReplicaConfig(topic=CLUSTER_METADATA_TOPIC, partition=0, broker_id=1, data_dir=""),
            "controller",
        ),
        (HostConfig(number=3, broker_id=2, data_dir=""), "partitions_3_2"),
        (BrokerConfig(broker_id=2, data_dir=""), "broker_2"),
        (GatewayConfig(number=0, broker_id=2, data_dir=""), "gateway_0_2"),
    ],
)
def test_each_process_has_an_audit_log_in_the_first_data_directory(
    config: Any, name: str, tmp_path: Path
) -> None:
    async def body() -> None:
        threads = threading.active_count()
        log = audit_log(dataclasses.replace(config, data_dir=f"{tmp_path},/further"))
        assert threading.active_count() == threads, "an actor without refusals has no thread more"
        log.judged(RAY_PROGRAM, "", "fetch", [REFUSED])
        await log.flush()

    asyncio.run(body())
    assert (tmp_path / "audit" / f"{name}.log").read_text().count("\n") == 1


@pytest.mark.parametrize("has_allowed", [False, True])
def test_the_setting_says_whether_it_has_what_was_allowed(
    has_allowed: bool, tmp_path: Path
) -> None:
    cluster = ClusterConfig(audit_allowed=has_allowed)

    async def body() -> None:
        log = audit_log(BrokerConfig(broker_id=1, data_dir=str(tmp_path), cluster=cluster))
        log.judged(RAY_PROGRAM, "", "fetch", [REFUSED._replace(is_allowed=True)])
        await log.flush()

    asyncio.run(body())
    assert (tmp_path / "audit").exists() is has_allowed


@pytest.mark.parametrize("calls", [CONNECTIONS, RAY])
def test_a_process_tells_its_audit_log_of_a_refused_call(calls: str, tmp_path: Path) -> None:
    async def body() -> None:
        environment = production(BrokerConfig(broker_id=1, data_dir=str(tmp_path)))
        environment.door.learn(NO_ACCESS)
        process = Process(calls, environment)
        await process.answer("ping", encode(PingRequest()), RAY_PROGRAM)
        assert environment.audit is not None
        await environment.audit.flush()
        if process.listener is not None:
            await process.listener.close()

    asyncio.run(body())
    (line,) = (tmp_path / "audit" / "broker_1.log").read_text().splitlines()
    assert '"principal":"User:ray"' in line
    assert '"operation":"ClusterAction"' in line


def test_so_does_a_host(tmp_path: Path) -> None:
    async def body() -> None:
        config = HostConfig(number=1, broker_id=1, data_dir=str(tmp_path))
        environment = production(config)
        environment.door.learn(NO_ACCESS)
        host = Host(config, environment)
        await host.dispatch.answer("ping", encode(PingRequest()), RAY_PROGRAM)
        assert environment.audit is not None
        await environment.audit.flush()

    asyncio.run(body())
    assert '"request":"ping"' in (tmp_path / "audit" / "partitions_1_1.log").read_text()


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
