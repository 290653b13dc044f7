"""Partitions with three replicas: who leads, what followers have, and who takes over."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest
from sim_log_watch import watching
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.storage.model import TopicPartition

OWN = WorldSettings(brokers=3, replication_factor=3, cluster=ClusterConfig(replicas_per_actor=1))
SHARED = WorldSettings(brokers=3, replication_factor=3, cluster=ClusterConfig(replicas_per_actor=3))


@pytest.fixture(params=[OWN, SHARED], ids=["own", "shared"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(seed=3, topics={"a": 3}, settings=request.param) as world:
        yield world


def write(world: World, texts: list[str], partition: int = 0, **settings: Any) -> None:
    async def send(client: Any) -> None:
        producer = client.producer(**settings)
        for text in texts:
            await producer.send("a", text.encode(), partition=partition)
        await producer.flush()
        await producer.close()

    client = world.client(f"writer-{world.process_count}")
    world.run(client.spawn(send(client)))


def read(world: World, partition: int = 0) -> list[str]:
    async def drain(client: Any) -> list[str]:
        consumer = client.consumer(auto_offset_reset="earliest")
        tp = TopicPartition("a", partition)
        await consumer.assign(tp)
        end = (await consumer.end_offsets(tp))[tp]
        found: list[str] = []
        while await consumer.position(tp) < end:
            found += [record.value.decode() for record in await consumer.poll(1_000)]
        await consumer.close()
        return found

    client = world.client(f"reader-{world.process_count}")
    found: list[str] = world.run(client.spawn(drain(client)))
    return found


def leader(world: World, partition: int = 0) -> int:
    placement = world.placement_of(TopicPartition("a", partition))
    assert placement is not None
    return placement.broker_id


def isr(world: World, partition: int = 0) -> set[int]:
    machine = world.server("controller").machine
    return set(machine.topics["a"].partitions[partition].isr)


def disk_of(world: World, broker_id: int, partition: int = 0) -> tuple[str, Any]:
    """The actor that holds a replica, and its disk."""
    name = next(
        process.name
        for process in world.actors()
        for server in process.servers.values()
        if server.replica.topic_partition == TopicPartition("a", partition)
        and server.replica.broker_id == broker_id
    )
    return name, world.disk(name)


def logs(world: World, partition: int = 0) -> dict[int, bytes]:
    """The bytes of each replica's log, by broker."""
    found = {}
    for server in world.servers().values():
        replica = getattr(server, "replica", None)
        if replica is not None and replica.topic_partition == TopicPartition("a", partition):
            log = replica.log
            slice_ = log.fetch(0, max_bytes=10_000_000, upper_offset=log.log_end_offset)
            found[replica.broker_id] = bytes(slice_.records)
    return found


def test_followers_have_the_bytes_of_the_leader(world: World) -> None:
    assert [leader(world, number) for number in range(3)] == [1, 2, 3]
    assert isr(world) == {1, 2, 3}
    write(world, [str(number) for number in range(50)])
    found = logs(world)
    assert len(found) == 3
    assert found[1]
    assert found[1] == found[2] == found[3]
    assert read(world) == [str(number) for number in range(50)]


def test_another_leads_when_a_node_dies_and_nothing_acknowledged_is_lost(world: World) -> None:
    """1. Written. 2. The leader's node dies. 3. Others write on. 4. It is back, in sync again."""
    write(world, ["a", "b"], 1)
    world.kill_node(2)
    write(world, ["c", "d"], 1)
    assert leader(world, 1) != 2
    assert isr(world, 1) == {1, 3}
    assert read(world, 1) == ["a", "b", "c", "d"]
    world.start_node(2)
    world.quiesce()
    assert isr(world, 1) == {1, 2, 3}
    found = logs(world, 1)
    assert found[1] == found[2] == found[3]


def test_a_node_with_a_new_disk_is_in_sync_only_once_it_has_all(world: World) -> None:
    """1. All have all. 2. Node 3 is fenced, loses its disks and is back. 3. Nobody writes."""
    write(world, ["a", "b"])
    world.run_for(3.0)
    world.lose_node_disks(3)
    world.run_for(6.0)
    assert isr(world) == {1, 2}
    with watching() as watch:
        world.start_node(3)
        world.run_for(20.0)
    found = logs(world)
    assert isr(world) == {1, 2, 3}
    assert found[3] == found[1]
    assert watch.violations == []


@pytest.mark.parametrize("broker_id", [1, 2])
def test_another_leads_when_the_disk_of_a_leader_fails(world: World, broker_id: int) -> None:
    """1. Written. 2. The leader's disk fails. 3. Others write on. 4. An operator mends it.

    Broker 1 is the one whose actors the controller watches.
    """
    number = broker_id - 1
    write(world, ["a", "b"], number)
    assert leader(world, number) == broker_id
    name, disk = disk_of(world, broker_id, number)
    for call in ("append", "datasync", "open", "read"):
        disk.fail(call, "", errno.EIO)
    session_s = world.settings.cluster.broker_session_timeout_ms / 1000
    began_s = world.now_s
    write(world, ["c", "d"], number)
    assert world.now_s - began_s <= session_s
    assert leader(world, number) != broker_id
    assert isr(world, number) == {1, 2, 3} - {broker_id}
    assert read(world, number) == ["a", "b", "c", "d"]
    actor = world.actor(name)
    assert actor is not None
    assert actor.needs_operator
    world.media.broken.add(name)
    world.media.attend()
    world.quiesce()
    world.run_for(10)
    assert isr(world, number) == {1, 2, 3}
    found = logs(world, number)
    assert found[1] == found[2] == found[3]


def test_a_follower_whose_disk_fails_is_out_of_sync_within_seconds(world: World) -> None:
    name, disk = disk_of(world, 3)
    write(world, ["a"])
    disk.fail("append", "", errno.EIO)
    disk.fail("datasync", "", errno.EIO)
    write(world, ["b"])
    world.run_for(5)
    assert isr(world) == {1, 2}
    world.media.broken.add(name)
    world.media.attend()
    world.run_for(20)
    assert isr(world) == {1, 2, 3}
    assert read(world) == ["a", "b"]


def test_a_follower_that_only_the_controller_does_not_hear_fills_no_metadata_log(
    world: World,
) -> None:
    """1. Broker 3 is fenced, and copies on. 2. Two minutes. 3. It is heard again, and joins."""
    write(world, ["a"], 1)
    assert leader(world, 1) == 2
    world.cut(3, 1)
    world.run_for(10)
    write(world, ["b"], 1)
    controller = world.server("controller")
    before = controller.replica.machine.log_end_offset
    world.run_for(120)
    assert isr(world, 1) == {1, 2}
    assert logs(world, 1)[3] == logs(world, 1)[2]
    assert controller.replica.machine.log_end_offset == before
    world.mend(3, 1)
    world.run_for(5)
    assert isr(world, 1) == {1, 2, 3}
