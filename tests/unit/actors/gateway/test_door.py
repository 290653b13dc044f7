"""Every API has its handler, requests are counted, and real clients find their way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import TopicPartition
from counted_calls import Counted
from deadlines import to_its_end
from kafka.protocol.metadata import MetadataResponse
from kafka_gateway import HERE, Actors, call_of, cluster_of, served

from oncelog.actors.config import ClusterConfig
from oncelog.actors.gateway.calls import Call
from oncelog.actors.gateway.door import OF_CONNECTIONS, KafkaDoor, handlers_of
from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.find_coordinator import FindCoordinatorResponse
from oncelog.actors.gateway.messages.headers import RequestHeader
from oncelog.actors.gateway.metadata import MetadataHandlers
from oncelog.actors.protocol.messages.access import Access, User
from oncelog.actors.protocol.scram import ITERATIONS_MIN, make_credential
from oncelog.actors.rpc.call_meter import CallReports
from oncelog.storage.errors import InvariantViolation

NEVER_MS = 600_000


def not_expected(bug: BaseException) -> None:
    raise bug


def test_every_api_that_can_be_read_has_a_handler_and_no_other():
    async def body() -> None:
        cluster = cluster_of(Actors())
        handlers = handlers_of(cluster, ClusterConfig(), lambda: (HERE, 1), not_expected)
        assert {*handlers, *OF_CONNECTIONS} == {api.key for api in APIS.values()}
        assert KafkaDoor(cluster, handlers, on_bug=not_expected).versions.keys() == {*ApiKey}

    asyncio.run(body())


def header_of(key: ApiKey, version: int) -> RequestHeader:
    return RequestHeader(int(key), version, 7, "c")


async def answered(door: KafkaDoor, header: RequestHeader, body: bytes) -> bytes:
    client = call_of(door.cluster, header.api_version).client
    parts = await door.answer(client, header, memoryview(body), 0, lambda _: None)
    return b"".join(parts)


def test_requests_are_counted_by_api_and_version():
    counted = Counted()

    async def find(call: Call, request: Any) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(host="h")

    async def body() -> None:
        door = KafkaDoor(
            cluster_of(Actors()),
            {ApiKey.FIND_COORDINATOR: find},
            on_bug=not_expected,
            reports=CallReports(counted, NEVER_MS),
        )
        frames = [
            await answered(door, header_of(ApiKey.FIND_COORDINATOR, version), b"\0\1k\0"[:size])
            for version, size in ((1, 4), (1, 4), (0, 3))
        ]
        door.meter.report()
        assert {int.from_bytes(frame[4:8], "big") for frame in frames} == {7}
        assert all(int.from_bytes(frame[:4], "big") == len(frame) - 4 for frame in frames)

    asyncio.run(body())
    assert counted.of("calls", "FindCoordinator/1", "kafka") == 2
    assert counted.of("calls", "FindCoordinator/0", "kafka") == 1
    assert counted.of("call_request_bytes", "FindCoordinator/1", "kafka") == 8


def test_a_broken_invariant_ends_the_process():
    bugs: list[BaseException] = []

    async def find(call: Call, request: Any) -> Any:
        raise InvariantViolation("I-01: broken")

    async def body() -> None:
        door = KafkaDoor(cluster_of(Actors()), {ApiKey.FIND_COORDINATOR: find}, on_bug=bugs.append)
        with pytest.raises(InvariantViolation):
            await answered(door, header_of(ApiKey.FIND_COORDINATOR, 0), b"\0\1k")

    asyncio.run(body())
    assert [str(bug) for bug in bugs] == ["I-01: broken"]


PASSWORD = "secret"
ALICE = User(name="alice", credential=make_credential(PASSWORD, b"s" * 16, ITERATIONS_MIN))


@pytest.mark.parametrize(
    "login",
    [
        {},
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORD,
        },
    ],
)
def test_aiokafka_finds_brokers_topics_and_coordinators(login: dict[str, Any]):
    async def body() -> None:
        actors = Actors()
        actors.gateways.clear()
        handlers: dict[ApiKey, Any] = {}
        async with served(handlers, actors=actors, access=Access(users=(ALICE,))) as gateway:
            found = MetadataHandlers(
                gateway.cluster, ClusterConfig(), lambda: (HERE, gateway.port), not_expected
            )
            handlers |= found.handlers
            gateway.listener.door = KafkaDoor(gateway.cluster, handlers, on_bug=not_expected)
            address = f"{HERE}:{gateway.port}"
            client = AIOKafkaClient(bootstrap_servers=address, **login)
            await client.bootstrap()
            metadata = await client.fetch_all_metadata()
            assert {one.nodeId for one in metadata.brokers()} == {1}
            assert {"flights", "taxis"} <= metadata.topics(exclude_internal_topics=True)
            assert metadata.leader_for_partition(TopicPartition("flights", 1)) == 1
            await client.close()
            admin = AIOKafkaAdminClient(bootstrap_servers=address, **login)
            await admin.start()
            assert (await admin.describe_cluster())["cluster_id"] == "c1"
            assert await admin.find_coordinator("billing") == 1
            (topic,) = await admin.describe_topics(["flights"])
            assert topic["topic"] == "flights"
            assert [one["leader"] for one in topic["partitions"]] == [1, 1]
            await admin.close()

    to_its_end(body())


def test_librdkafkas_question_for_all_topics_is_answered_though_it_is_too_long():
    """It leaves three bytes of a longer count behind, which Kafka does not look at either."""

    async def body() -> None:
        handlers: dict[ApiKey, Any] = {}
        async with served(handlers) as gateway:
            found = MetadataHandlers(
                gateway.cluster, ClusterConfig(), lambda: (HERE, gateway.port), not_expected
            )
            handlers |= found.handlers
            gateway.listener.door = KafkaDoor(gateway.cluster, handlers, on_bug=not_expected)
            wire = await gateway.connect()
            head = b"\0\3\0\x0c\0\0\0\7\0\7rdkafka\0"
            question = head + b"\0\1\0\0" + bytes(3)
            wire.writer.write(len(question).to_bytes(4, "big") + question)
            frame = await wire.frame()
            answer = MetadataResponse.decode(frame, version=12, header=True)
            assert int.from_bytes(frame[:4], "big") == 7
            assert {one.name for one in answer.topics} >= {"flights", "taxis"}

    to_its_end(body())
