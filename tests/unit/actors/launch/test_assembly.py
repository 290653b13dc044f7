"""A server and its shell: who answers what, and in which order they begin and end."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from deadlines import until
from replicas import FLIGHTS, TOPIC_ID
from server_world import ServerWorld, stop

from oncelog.actors.launch.assembly import READS, PartitionShell, ReplicaServer
from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.brokers import PingRequest
from oncelog.actors.protocol.messages.cluster import (
    ClusterKeysReply,
    ClusterKeysRequest,
    ShutdownReply,
    ShutdownRequest,
)
from oncelog.actors.protocol.messages.group import OffsetAndMetadata, OffsetCommitRequest
from oncelog.actors.protocol.messages.partition import (
    DescribeProducersRequest,
    FetchRequest,
    ListOffsetsRequest,
)
from oncelog.actors.protocol.messages.transaction import InitProducerIdRequest
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    LATEST_TIMESTAMP,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from oncelog.storage.records.batch import parse_header

TOPICS = ["flights", TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC]


class Shell(PartitionShell):
    """Has a method for a request of the server, and one for a request that it leaves to shells."""

    def __init__(self, server: ReplicaServer) -> None:
        super().__init__(server)
        self.events: list[str] = []
        self._server = server

    async def shutdown(self, request: ShutdownRequest) -> ShutdownReply:
        raise AssertionError(f"the server itself answers {request}")

    async def cluster_keys(self, request: ClusterKeysRequest) -> ClusterKeysReply:
        return request.failed(ErrorCode.NOT_CONTROLLER, "from the shell")

    async def load(self) -> None:
        self.events.append(f"load: {self._server.replica.availability().name}")

    async def stop(self) -> None:
        self.events.append(f"stop: {self._server.replica.availability().name}")


def dispatch_of(server: Any) -> Dispatch:
    def die(bug: BaseException) -> Any:
        raise bug

    return Dispatch(server, on_bug=die)


def test_a_request_is_answered_by_the_server_or_else_by_its_shell(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = ServerWorld().server(FLIGHTS, tmp_path, new_shell=Shell)
        dispatch = dispatch_of(server)
        assert (await dispatch.answer_here("", PingRequest())).error is ErrorCode.NONE
        answered: Reply = await dispatch.answer_here("", ClusterKeysRequest())
        assert (answered.error, answered.detail) == (ErrorCode.NOT_CONTROLLER, "from the shell")
        await until(server.is_serving)
        own = await dispatch.answer_here("", ShutdownRequest(topic_id=TOPIC_ID))
        assert own.error is ErrorCode.NONE

    asyncio.run(scenario())


def test_a_shell_loads_once_the_replica_leads_and_stops_before_it_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = ServerWorld().server(FLIGHTS, tmp_path, new_shell=Shell)
        await until(server.is_serving)
        await server.end()
        assert server.shell.events == ["load: NONE", "stop: NONE"]
        assert server.replica.availability() is not ErrorCode.NONE

    asyncio.run(scenario())


def test_a_server_that_ends_writes_out_the_audit_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        server, flushed = ServerWorld().server(FLIGHTS, tmp_path), []

        class Audit:
            async def flush(self) -> None:
                assert server.replica.availability() is not ErrorCode.NONE
                flushed.append("flushed")

        server.environment = dataclasses.replace(server.environment, audit=Audit())
        await until(server.is_serving)
        await stop(server)
        assert flushed == ["flushed"]

    asyncio.run(scenario())


WRITES: dict[str, Request[Any]] = {
    TRANSACTION_STATE_TOPIC: InitProducerIdRequest(transactional_id="copier"),
    CONSUMER_OFFSETS_TOPIC: OffsetCommitRequest(
        group_id="readers", offsets=((FLIGHTS, OffsetAndMetadata(offset=7)),)
    ),
}


@pytest.mark.parametrize("topic", WRITES)
def test_a_coordinators_log_is_read_as_any_other_topic(tmp_path: Path, topic: str) -> None:
    async def scenario() -> None:
        tp = TopicPartition(topic, 0)
        server = ServerWorld().server(tp, tmp_path)
        dispatch = dispatch_of(server)
        await until(server.is_serving)
        written = await dispatch.answer_here("", WRITES[topic])
        assert written.error is ErrorCode.NONE
        latest = ListOffsetsRequest(topic_partition=tp, timestamp_ms=LATEST_TIMESTAMP)
        end = await dispatch.answer_here("", latest)
        assert (end.error, end.offset) == (ErrorCode.NONE, 1)
        read = await dispatch.answer_here("", FetchRequest(topic_partition=tp, fetch_offset=0))
        assert (read.error, parse_header(read.records).last_offset) == (ErrorCode.NONE, 0)
        described = DescribeProducersRequest(topic_partition=tp)
        producers = await dispatch.answer_here("", described)
        assert (producers.error, producers.producers) == (ErrorCode.NONE, ())
        await stop(server)

    asyncio.run(scenario())


def test_the_clusters_own_log_is_not_read(tmp_path: Path) -> None:
    """It has the keys of the cluster, and what users log in by."""

    async def scenario() -> None:
        tp = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
        server = ServerWorld().server(tp, tmp_path, new_shell=lambda _: object())
        for name in READS:
            assert not hasattr(server, name)
        await server.replica.stop(remove_data=False)

    asyncio.run(scenario())


@pytest.mark.parametrize("topic", TOPICS)
def test_what_a_server_asks_goes_on_when_its_shell_has_stopped(tmp_path: Path, topic: str) -> None:
    """A coordinator that loses its role must not end the questions of the replica under it."""

    async def scenario() -> None:
        world, asked, may_answer = ServerWorld(), asyncio.Event(), asyncio.Event()

        async def answer(_request: Any) -> ClusterKeysReply:
            asked.set()
            await may_answer.wait()
            return ClusterKeysReply(keys=ClusterKeys(current=b"n" * 32, version=7))

        world.answers[ClusterKeysRequest] = answer
        server = world.server(TopicPartition(topic, 0), tmp_path)
        await until(server.is_serving)
        server.refresh_keys_soon()
        await asked.wait()
        await server.shell.stop()
        may_answer.set()
        await until(lambda: server.replica.keys.version == 7)
        await stop(server)
        assert world.deaths == []

    asyncio.run(scenario())


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_server_that_ends_while_it_starts_leaves_its_directory_to_the_next(
    tmp_path: Path, topic: str, is_begun: bool
) -> None:
    async def scenario() -> None:
        world, tp = ServerWorld(), TopicPartition(topic, 0)
        first = world.server(tp, tmp_path)
        if is_begun:
            await asyncio.sleep(0)
        await first.end()
        second = world.server(tp, tmp_path)
        await until(second.is_serving)
        assert not first.is_serving()
        await stop(second)
        assert world.deaths == []

    asyncio.run(scenario())
