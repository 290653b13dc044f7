"""A replica is told that its partition has moved elsewhere, perhaps long ago."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deadlines import to_its_end, until
from replicas import FLIGHTS, TOPIC_ID
from server_world import ServerWorld

from oncelog.actors.config import ClusterConfig, HostConfig
from oncelog.actors.launch.assembly import LeadershipLostError
from oncelog.actors.launch.host import Host
from oncelog.actors.protocol.messages.cluster import (
    BecomeLeaderReply,
    BecomeLeaderRequest,
    HoldReplicasRequest,
    HostedReplica,
    HostedReplicasReply,
    HostedReplicasRequest,
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    ShutdownRequest,
    TopicMetadata,
)
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.storage.errors import ErrorCode

MOVED = ShutdownRequest(remove_data=True, topic_id=TOPIC_ID, is_moved=True)
AWAY = MetadataRequest().failed(ErrorCode.NETWORK_EXCEPTION)


def known(*replicas: int) -> MetadataReply:
    """What the controller says of a partition with these replicas."""
    partition = PartitionMetadata(partition=0, leader=9, leader_epoch=3, replicas=replicas, isr=())
    topic = TopicMetadata(name="flights", topic_id=TOPIC_ID, partitions=(partition,))
    return MetadataReply(topics=(topic,))


def moving() -> ServerWorld:
    """The partition is on broker 1, and no host is to hold anything."""
    world = ServerWorld()
    world.answers = {
        HostedReplicasRequest: HostedReplicasReply(),
        BecomeLeaderRequest: lambda request: BecomeLeaderReply(
            leader_epoch=request.expected_epoch + 1,
            topic_id=TOPIC_ID,
            keys=ClusterKeys(current=b"k" * 32),
        ),
        MetadataRequest: known(1),
    }
    return world


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario with a replica that leads, on broker 1."""

    def run(scenario: Any) -> None:
        async def body() -> None:
            world = moving()
            server = world.server(FLIGHTS, tmp_path)
            await until(server.is_serving)
            await scenario(world, server, tmp_path / "flights-0")
            await server.end()

        to_its_end(body())

    return run


def is_there(files: Path) -> bool:
    return files.exists()


def test_one_that_is_elsewhere_now_removes_its_files(play: Any) -> None:
    async def scenario(world: ServerWorld, server: Any, files: Path) -> None:
        world.answers[MetadataRequest] = known(2, 3)
        assert is_there(files)
        assert (await server.shutdown(MOVED)).error is ErrorCode.NONE
        assert not is_there(files)
        assert (await server.shutdown(MOVED)).error is ErrorCode.NONE
        assert world.deaths == []

    play(scenario)


def test_one_whose_topic_is_deleted_meanwhile_removes_its_files(play: Any) -> None:
    async def scenario(world: ServerWorld, server: Any, files: Path) -> None:
        world.answers[MetadataRequest] = MetadataReply()
        assert (await server.shutdown(MOVED)).error is ErrorCode.NONE
        assert not is_there(files)

    play(scenario)


@pytest.mark.parametrize("answer", [known(1), AWAY])
def test_one_that_is_still_here_or_cannot_ask_keeps_its_files_and_begins_again(
    play: Any, answer: Any
) -> None:
    async def scenario(world: ServerWorld, server: Any, files: Path) -> None:
        world.answers[MetadataRequest] = answer
        assert (await server.shutdown(MOVED)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert is_there(files)
        (death,) = world.deaths
        assert isinstance(death, LeadershipLostError)

    play(scenario)


def test_nothing_is_taken_any_more_when_it_asks(play: Any) -> None:
    """What it took between the answer and its end would be lost with its files."""

    async def scenario(world: ServerWorld, server: Any, files: Path) -> None:
        seen: list[bool] = []

        def look(_request: Any) -> MetadataReply:
            seen.append(server.is_serving() or server.replica.is_following)
            return known(2)

        world.answers[MetadataRequest] = look
        await server.shutdown(MOVED)
        assert seen == [False]

    play(scenario)


def test_a_replica_of_another_topic_is_left_alone(play: Any) -> None:
    async def scenario(world: ServerWorld, server: Any, files: Path) -> None:
        world.answers[MetadataRequest] = known(2)
        other = ShutdownRequest(remove_data=True, topic_id="b" * 32, is_moved=True)
        assert (await server.shutdown(other)).error is ErrorCode.UNKNOWN_TOPIC_ID
        assert server.is_serving()
        assert is_there(files)

    play(scenario)


def test_a_host_begins_a_replica_anew_that_had_moved_away_and_is_back(tmp_path: Path) -> None:
    async def body() -> None:
        world = moving()
        config = HostConfig(number=1, broker_id=1, data_dir=str(tmp_path), cluster=ClusterConfig())
        alone = world.server(FLIGHTS, tmp_path / "elsewhere")
        host = Host(config, dataclasses.replace(alone.environment))
        listed = HostedReplica(topic_partition=FLIGHTS, topic_id=TOPIC_ID, is_in_sync=False)
        leaving = HostedReplica(
            topic_partition=FLIGHTS, topic_id=TOPIC_ID, is_in_sync=False, is_leaving=True
        )
        world.answers[HostedReplicasRequest] = HostedReplicasReply(replicas=(listed,))
        await host.hold_replicas(HoldReplicasRequest())
        (first,) = host.servers.values()
        await until(first.is_serving)
        world.answers[HostedReplicasRequest] = HostedReplicasReply(replicas=(leaving,))
        world.answers[MetadataRequest] = known(2)
        assert (await first.shutdown(MOVED)).error is ErrorCode.NONE
        await host.hold_replicas(HoldReplicasRequest())
        assert list(host.servers.values()) == [first]
        world.answers[HostedReplicasRequest] = HostedReplicasReply(replicas=(leaving, listed))
        world.answers[MetadataRequest] = known(1, 2)
        await host.hold_replicas(HoldReplicasRequest())
        (second,) = host.servers.values()
        assert second is not first
        await until(second.is_serving)
        for server in (second, alone):
            await server.end()

    to_its_end(body())
