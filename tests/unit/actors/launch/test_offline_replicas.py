"""What a process answers to a ping about replicas of its own that cannot use their logs."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from deadlines import to_its_end, until
from replicas import FLIGHTS, TOPIC_ID
from server_world import ServerWorld, stop

from oncelog.actors.config import ClusterConfig, HostConfig
from oncelog.actors.launch.assembly import PartitionShell
from oncelog.actors.launch.host import Host
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.brokers import OfflineReplica, PingRequest
from oncelog.actors.protocol.messages.cluster import (
    BecomeLeaderReply,
    BecomeLeaderRequest,
    HoldReplicasRequest,
    HostedReplica,
    HostedReplicasReply,
    HostedReplicasRequest,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaRequest
from oncelog.actors.protocol.messages.replication import ReplicateRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

OFFLINE = (OfflineReplica(topic_partition=FLIGHTS, topic_id=TOPIC_ID),)
REFUSED = OSError(errno.ENOSPC, "the disk is full")
Body = Callable[[], Awaitable[None]]


def led_by(leader: int) -> ServerWorld:
    """A controller that says who leads, and lists two replicas for the host."""
    replicas = [
        HostedReplica(
            topic_partition=TopicPartition("flights", number), topic_id=TOPIC_ID, is_in_sync=False
        )
        for number in (0, 1)
    ]
    world = ServerWorld()
    world.answers = {
        BecomeLeaderRequest: BecomeLeaderReply(
            leader_epoch=1,
            topic_id=TOPIC_ID,
            leader=leader,
            replicas=(1, 2),
            hosts=(0, 0),
            isr=(1, 2),
            transaction_state_partitions=1,
            offsets_partitions=1,
        ),
        HostedReplicasRequest: HostedReplicasReply(replicas=tuple(replicas)),
        ReplicateRequest: lambda request: request.failed(ErrorCode.NETWORK_EXCEPTION),
    }
    return world


async def offline(server: Any) -> tuple[OfflineReplica, ...]:
    found: tuple[OfflineReplica, ...] = (await server.ping(PingRequest())).offline_replicas
    return found


@pytest.mark.parametrize("leader", [1, 2])
def test_who_leads_or_follows_is_not_offline_until_its_disk_fails(
    tmp_path: Path, leader: int
) -> None:
    async def body() -> None:
        server = led_by(leader).server(FLIGHTS, tmp_path)
        assert await offline(server) == ()
        await until(lambda: server.is_serving() or server.replica.is_following)
        server.replica.waits_for = "room that it had not a moment ago"
        assert await offline(server) == ()
        server.replica.go_offline("the disk has failed")
        assert await offline(server) == OFFLINE
        await stop(server)

    to_its_end(body())


def test_what_waits_for_the_disk_before_it_serves_is_offline(tmp_path: Path) -> None:
    async def body() -> None:
        server = ServerWorld().server(FLIGHTS, tmp_path)
        server.replica.waits_for = "room"
        nameless = OfflineReplica(topic_partition=FLIGHTS, topic_id="")
        assert await offline(server) == (nameless,)
        await until(server.is_serving)
        assert await offline(server) == ()
        await stop(server)

    to_its_end(body())


def test_what_leads_but_could_not_load_is_offline(tmp_path: Path) -> None:
    class Broken(PartitionShell):
        async def load(self) -> None:
            raise OSError("a bad sector")

    async def body() -> None:
        server = ServerWorld().server(FLIGHTS, tmp_path, new_shell=Broken)
        await until(lambda: bool(server.failure))
        assert await offline(server) == OFFLINE
        await stop(server)

    to_its_end(body())


def test_a_host_tells_of_each_of_its_replicas(tmp_path: Path) -> None:
    async def body() -> None:
        world = led_by(1)
        config = HostConfig(number=1, broker_id=1, data_dir=str(tmp_path), cluster=ClusterConfig())
        alone = world.server(FLIGHTS, tmp_path / "elsewhere")
        host = Host(config, alone.environment)
        await host.hold_replicas(HoldReplicasRequest())
        one, other = host.servers.values()
        await until(lambda: one.is_serving() and other.is_serving())
        assert await offline(host) == ()
        other.replica.go_offline("the disk has failed")
        one.replica.refusal.record(REFUSED, ends_at=1, now_ms=loop_ms() - 10_000)
        told = await host.ping(PingRequest())
        for tell, server in ((told.offline_replicas, other), (told.refusing_replicas, one)):
            (found,) = tell
            known = (server.replica.topic_partition, TOPIC_ID)
            assert (found.topic_partition, found.topic_id) == known
        for server in (one, other, alone):
            await server.end()

    to_its_end(body())


@pytest.mark.parametrize("is_leading", [True, False])
def test_a_leader_whose_disk_refuses_tells_so_after_a_while_and_a_follower_at_once(
    tmp_path: Path, is_leading: bool
) -> None:
    async def body() -> None:
        server = led_by(1 if is_leading else 2).server(FLIGHTS, tmp_path)
        await until(lambda: server.is_serving() or server.replica.is_following)
        limit_ms = server.config.cluster.disk_refusal_time_max_ms
        refusal = server.replica.refusal
        for lasts_ms, is_told in ((0, not is_leading), (limit_ms, True)):
            refusal.reason = ""
            refusal.record(REFUSED, ends_at=1, now_ms=loop_ms() - lasts_ms)
            reply = await server.ping(PingRequest())
            assert reply.refusing_replicas == (OFFLINE if is_told else ())
            assert reply.offline_replicas == ()
        described = await server.describe_replica(DescribeReplicaRequest())
        assert (described.refusal, described.refused_ms >= limit_ms) == (str(REFUSED), True)
        server.replica.go_offline("the disk has failed")
        assert (await server.ping(PingRequest())).refusing_replicas == ()
        refusal.synced(1)
        assert (await server.describe_replica(DescribeReplicaRequest())).refusal == ""
        await stop(server)

    to_its_end(body())
