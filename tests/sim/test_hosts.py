"""Several replicas in one process: each fails, restarts and ends alone, and they die together."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Any

import pytest
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.launch.assembly import LeadershipLostError
from oncelog.actors.protocol.messages.cluster import DeleteTopicRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

HOST = "partitions:1@1"
LEADERS = ("partition:a-0@1", "partition:a-1@1")
SETTINGS = WorldSettings(cluster=ClusterConfig(log_retention_check_interval_ms=500))


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=11, topics={"a": 2}, settings=SETTINGS) as world:
        yield world


def written(world: World, values: list[str], *, topic: str = "a", partition: int = 0) -> None:
    async def write(client: Any) -> None:
        producer = client.producer()
        for value in values:
            await producer.send(topic, value.encode(), partition=partition)
        await producer.close()

    client = world.client(f"writer-{world.process_count}")
    world.run(client.spawn(write(client)))


def read(world: World, topic: str = "a") -> list[str]:
    async def drain(client: Any) -> list[str]:
        consumer = client.consumer(auto_offset_reset="earliest", enable_auto_commit=False)
        tp = TopicPartition(topic, 0)
        await consumer.assign(tp)
        end = (await consumer.end_offsets(tp))[tp]
        found: list[str] = []
        while await consumer.position(tp) < end:
            found += [record.value.decode() for record in await consumer.poll(1_000)]
        await consumer.close()
        return found

    client = world.client(f"reader-{world.process_count}")
    result: list[str] = world.run(client.spawn(drain(client)))
    return result


def test_all_replicas_share_one_process_that_calls_them_by_key(world: World):
    assert world.actor_names() == ["controller", HOST]
    assert {*LEADERS, "transaction:0@1", "group:1@1"} < world.servers().keys()
    written(world, ["one"])
    assert read(world) == ["one"]


def test_a_host_that_was_killed_comes_back_with_all_its_replicas(world: World):
    written(world, ["before"])
    epochs = [world.server(name).replica.leader_epoch for name in LEADERS]
    world.kill(HOST)
    world.quiesce()
    assert [world.server(name).replica.leader_epoch for name in LEADERS] == [
        epoch + 1 for epoch in epochs
    ]
    written(world, ["after"])
    assert read(world) == ["before", "after"]


def test_a_replica_that_has_to_begin_again_does_so_alone(world: World):
    written(world, ["before"])
    server, neighbour = (world.server(name) for name in LEADERS)
    host = world.actor(HOST)
    host.soon(server.environment.die, LeadershipLostError("made up"))
    world.run_for(1.0)
    world.quiesce()
    assert world.actor(HOST) is host
    assert world.server(LEADERS[1]) is neighbour
    again = world.server(LEADERS[0])
    assert again is not server
    assert again.replica.leader_epoch == server.replica.leadership.leader_epoch + 1
    # What the old one may still say reaches nobody.
    host.soon(server.environment.die, LeadershipLostError("late"))
    world.run_for(1.0)
    world.quiesce()
    assert world.server(LEADERS[0]) is again
    assert read(world) == ["before"]


def test_a_failed_disk_takes_one_replica_offline_and_its_neighbours_serve(world: World):
    world.disk(HOST).fail("datasync", ".log", errno.EIO, times=1)

    async def write(client: Any) -> None:
        producer = client.producer(delivery_timeout_ms=2_000, request_timeout_ms=500, linger_ms=0)
        with contextlib.suppress(OncelogError):
            await producer.send("a", b"lost", partition=0)
            await producer.flush()
        await producer.close()

    client = world.client("writer")
    world.run(client.spawn(write(client)))
    assert world.server(LEADERS[0]).replica.availability() is not ErrorCode.NONE
    written(world, ["kept"], partition=1)
    assert world.server(LEADERS[1]).replica.availability() is ErrorCode.NONE


def test_replicas_of_a_topic_ask_for_its_settings_together(world: World):
    asked: list[str] = []

    def watch(exchange: Any, message: Any, is_reply: bool) -> None:
        if exchange.caller.name == HOST and exchange.method == "metadata" and not is_reply:
            asked.append(message.topics)

    world.network.watchers.append(watch)
    world.run_for(3.0)
    assert 3 <= asked.count(("a",)) <= 6


def test_a_topic_that_is_made_again_has_nothing_of_the_last_one(world: World):
    async def remake(client: Any) -> None:
        admin = client.admin()
        for _ in range(3):
            await admin.delete_topic("a")
            await admin.create_topic("a", 2)

    written(world, ["old"])
    client = world.client("operator")
    world.run(client.spawn(remake(client)))
    world.quiesce()
    assert read(world) == []
    written(world, ["new"])
    assert read(world) == ["new"]
    held = [name for name in world.servers() if name.startswith("partition:a-")]
    assert sorted(held) == list(LEADERS)


def test_a_host_that_missed_a_deletion_ends_the_replicas_when_it_is_back(world: World):
    world.pause(HOST)
    controller = world.server("controller")
    gone = world.client("operator")

    async def delete(client: Any) -> None:
        request = DeleteTopicRequest(name="a")
        await client.transport.call("controller", request, timeout_ms=60_000)

    world.run(gone.spawn(delete(gone)))
    assert not controller.shell.machine.hosted(1, 1)[4:]
    world.resume(HOST)
    world.run_for(10.0)
    assert not [name for name in world.servers() if name.startswith("partition:a-")]


def test_a_host_that_looks_while_a_topic_is_deleted_still_removes_its_files(world: World):
    """The deletion is logged, and the host looks before it is told to remove: nothing is left."""
    gate = world.network.hold("shutdown", callee=HOST)

    async def delete(client: Any) -> None:
        await client.admin().delete_topic("a")

    async def create(client: Any) -> None:
        await client.admin().create_topic("b", 1)

    remover, maker = world.client("remover"), world.client("maker")
    removing = remover.spawn(delete(remover))
    world.run(gate.wait_held(2))
    world.run(maker.spawn(create(maker)))
    gate.release_all()
    world.run(removing)
    world.run_for(1.0)
    held = {name for name in world.servers() if name.startswith("partition:")}
    assert held == {"partition:b-0@1"}
    assert not [path for path in world.disk(HOST).files() if path.parent.name.startswith("a-")]
