"""Replicas move between the brokers of a simulated cluster, which goes on serving."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.protocol.cluster.cluster_state import PartitionState
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, TopicPartition

BROKERS: dict[str, Any] = {
    "brokers": 4,
    "replication_factor": 2,
    "topic_settings": {"a": {"min_insync_replicas": 1}},
}
OWN = WorldSettings(cluster=ClusterConfig(replicas_per_actor=1), **BROKERS)
SHARED = WorldSettings(cluster=ClusterConfig(replicas_per_actor=9), **BROKERS)
TP = TopicPartition("a", 0)


@pytest.fixture(params=[OWN, SHARED], ids=["own", "shared"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(seed=3, topics={"a": 1}, settings=request.param) as world:
        yield world


def write(world: World, *texts: str) -> None:
    async def send(client: Any) -> None:
        producer = client.producer(transactional_id="writer")
        await producer.init_transactions()
        for text in texts:
            async with producer.transaction():
                await producer.send("a", text.encode(), partition=0)
        await producer.close()

    client = world.client(f"writer-{world.process_count}")
    world.run(client.spawn(send(client)))


def read(world: World) -> list[str]:
    async def drain(client: Any) -> list[str]:
        consumer = client.consumer(auto_offset_reset="earliest")
        await consumer.assign(TP)
        end = (await consumer.end_offsets(TP))[TP]
        found: list[str] = []
        while await consumer.position(TP) < end:
            found += [record.value.decode() for record in await consumer.poll(1_000)]
        await consumer.close()
        return found

    client = world.client(f"reader-{world.process_count}")
    found: list[str] = world.run(client.spawn(drain(client)))
    return found


def admin(world: World, method: str, *arguments: Any) -> None:
    async def call(client: Any) -> None:
        await getattr(client.admin(), method)(*arguments)

    client = world.client(f"admin-{world.process_count}")
    world.run(client.spawn(call(client)))


def partition(world: World, tp: TopicPartition = TP) -> PartitionState:
    machine = world.server("controller").shell.machine
    found: PartitionState = machine.topics[tp.topic].partitions[tp.partition]
    return found


def held(world: World, tp: TopicPartition = TP) -> set[int]:
    """The brokers on which something has this partition's log open."""
    return {
        server.replica.broker_id
        for server in world.servers().values()
        if getattr(server, "replica", None) is not None
        and server.replica.topic_partition == tp
        and not server.is_stopped
    }


def has_moved(world: World, *replicas: int) -> bool:
    state = partition(world)
    is_there = state.replicas == replicas and set(state.isr) == set(replicas)
    return is_there and held(world) == set(replicas)


def test_a_partition_moves_to_brokers_that_had_none_of_it(world: World) -> None:
    old = partition(world).replicas
    new = tuple(n for n in (1, 2, 3, 4) if n not in old)
    write(world, "a", "b")
    admin(world, "reassign_partition", "a", 0, list(new))
    write(world, "c")
    world.run_until(lambda: has_moved(world, *new))
    write(world, "d")
    assert read(world) == ["a", "b", "c", "d"]


def test_a_partition_that_comes_back_copies_what_it_has_missed(world: World) -> None:
    old = partition(world).replicas
    new = tuple(n for n in (1, 2, 3, 4) if n not in old)
    write(world, "a")
    admin(world, "reassign_partition", "a", 0, list(new))
    world.run_until(lambda: has_moved(world, *new))
    write(world, "b")
    admin(world, "reassign_partition", "a", 0, list(old))
    world.run_until(lambda: has_moved(world, *old))
    assert read(world) == ["a", "b"]


def test_a_move_goes_on_when_the_controller_and_a_new_replica_die(world: World) -> None:
    """1. It begins. 2. All of a new broker and the controller die. 3. They are back."""
    old = partition(world).replicas
    new = tuple(n for n in (1, 2, 3, 4) if n not in old)
    write(world, "a")
    admin(world, "reassign_partition", "a", 0, list(new))
    world.kill_node(max(new))
    world.kill("controller")
    world.run_for(20)
    world.start_node(max(new))
    world.run_until(lambda: has_moved(world, *new))
    assert read(world) == ["a"]


def test_a_replica_on_a_dead_broker_moves_and_its_files_go_when_that_is_back(
    world: World,
) -> None:
    leader, gone = partition(world).replicas
    if gone == 1:
        leader, gone = gone, leader
    new = next(n for n in (2, 3, 4) if n not in (leader, gone))
    write(world, "a")
    world.kill_node(gone)
    world.run_until(lambda: gone not in partition(world).isr)
    admin(world, "reassign_partition", "a", 0, [leader, new])
    world.run_until(lambda: has_moved(world, leader, new))
    world.start_node(gone)
    leaving = world.server("controller").shell.moves.leaving
    world.run_until(lambda: not len(leaving))
    assert has_moved(world, leader, new)
    assert read(world) == ["a"]


def test_a_broker_is_drained_of_everything_and_coordinators_serve_on(world: World) -> None:
    write(world, "a")
    machine = world.server("controller").shell.machine

    def on(broker_id: int) -> int:
        return sum(one.broker_id == broker_id for one in machine.placements())

    admin(world, "drain_broker", 2)
    world.run_until(lambda: not on(2))
    write(world, "b")
    assert read(world) == ["a", "b"]
    admin(world, "resume_broker", 2)
    admin(world, "create_topic", "later", 8)
    assert on(2)


def test_a_preferred_leader_that_is_back_leads_again() -> None:
    balancing = ClusterConfig(leader_imbalance_check_interval_ms=5_000)
    settings = WorldSettings(cluster=balancing, **BROKERS)
    with World(seed=3, topics={"a": 2}, settings=settings) as world:
        tp = next(tp for n in (0, 1) if partition(world, tp := TopicPartition("a", n)).leader != 1)
        preferred = partition(world, tp).replicas[0]
        world.kill_node(preferred)
        world.run_until(lambda: partition(world, tp).leader not in (-1, preferred))
        world.start_node(preferred)
        world.run_until(lambda: partition(world, tp).leader == preferred)
        assert partition(world, tp).leader_epoch >= 2


def test_internal_topics_have_three_replicas_in_the_end(world: World) -> None:
    tp = TopicPartition(CONSUMER_OFFSETS_TOPIC, 1)
    world.run_until(
        lambda: len(partition(world, tp).isr) == 3 and not partition(world, tp).is_moving
    )
    assert partition(world, tp).replicas[0] == 2
    write(world, "a")
    world.kill_node(2)
    write(world, "b")
    assert read(world) == ["a", "b"]


def test_one_of_three_brokers_is_drained_and_used_again() -> None:
    """The coordinators' topics have two replicas meanwhile; a user's would need three brokers."""
    settings = WorldSettings(**(BROKERS | {"brokers": 3}))
    with World(seed=3, topics={"a": 1}, settings=settings) as world:
        machine = world.server("controller").shell.machine
        internal = [
            machine.topics[name] for name in sorted(INTERNAL_TOPICS & machine.topics.keys())
        ]

        def have(*brokers: int) -> bool:
            return all(
                set(one.replicas) == set(one.isr) == set(brokers) and not one.is_moving
                for topic in internal
                for one in topic.partitions
            )

        world.run_until(lambda: have(1, 2, 3))
        write(world, "a")
        admin(world, "drain_broker", 3)
        world.run_until(
            lambda: have(1, 2) and not any(n.broker_id == 3 for n in machine.placements())
        )
        write(world, "b")
        admin(world, "resume_broker", 3)
        world.run_until(lambda: have(1, 2, 3) and len(machine.voters) == 3)
        world.kill_node(2)
        write(world, "c")
        assert read(world) == ["a", "b", "c"]


def test_a_replica_that_is_down_is_not_proposed_to_be_in_sync(world: World) -> None:
    """It had everything when it died; that must not fill the metadata log, nor hold others up."""
    write(world, "a")
    leader, follower = partition(world).replicas
    assert leader == partition(world).leader
    world.kill_node(follower)
    world.run_until(lambda: follower not in partition(world).isr)
    world.run_for(5)
    version = partition(world).version
    world.run_for(30)
    assert partition(world).version == version
