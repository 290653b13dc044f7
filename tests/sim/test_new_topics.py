"""Topics that are made while a broker dies, or is away: they are led, and have their replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from msgspec import structs
from sim_log_watch import watching
from sim_replica_stage import SESSION_S, replicated
from sim_world import SimulationError, World

from oncelog.actors.protocol.cluster import cluster_machine
from oncelog.actors.protocol.cluster.cluster_state import PartitionState
from oncelog.actors.protocol.cluster.elections import after_start

PARTITIONS = 6
FIRST_LED_S = 0.02
"""When a new topic has first leaders, whose followers have not caught up yet."""

GROWN_LIMIT_S = 15.0
"""Two looks of the controller, as four partitions grow at a time, and a copy each."""

LED_LIMIT_S = 10.0
"""A session of a broker, an election, and the back-off of clients."""


@pytest.fixture(params=[1, 3], ids=["own", "shared"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Node 1 has the controller; all is watched."""
    settings = replicated(request.param)
    with watching() as watch, World(seed=4, topics={"a": 1}, settings=settings) as world:
        while not world.has_three_voters():
            world.run_for(0.1)
        yield world
        assert watch.violations == []


async def create(client: Any) -> None:
    await client.admin().create_topic("new", PARTITIONS, 3)


async def create_open(client: Any) -> None:
    """How many replicas is left to the cluster."""
    await client.admin().create_topic("new", PARTITIONS)


async def write_all(client: Any) -> None:
    """A record to each partition, acknowledged."""
    producer = client.producer(linger_ms=0, request_timeout_ms=500)
    futures = [await producer.send("new", b"v", partition=one) for one in range(PARTITIONS)]
    await producer.flush()
    for future in futures:
        await future
    await producer.close()


def spawn(world: World, work: Any) -> Any:
    """What a client of its own does."""
    client = world.client(f"{work.__name__}-{world.process_count}")
    return client.spawn(work(client))


def partitions(world: World) -> list[Any]:
    """What the controller has recorded."""
    found: list[Any] = world.server("controller").shell.machine.topics["new"].partitions
    return found


@pytest.mark.parametrize("delay_s", [FIRST_LED_S, 0.3])
def test_a_new_topic_is_led_although_a_first_leader_dies_at_once(
    world: World, delay_s: float
) -> None:
    """1. A topic is made. 2. A node dies that is to lead some of it, and stays away."""
    creating = spawn(world, create)
    world.run_for(delay_s)
    assert "new" in world.server("controller").shell.machine.topics
    world.kill_node(2)
    world.run(creating, limit_s=LED_LIMIT_S)
    world.run(spawn(world, write_all), limit_s=LED_LIMIT_S)


def test_with_the_first_leader_alone_in_sync_an_empty_partition_has_no_leader(
    world: World,
) -> None:
    def alone(*arguments: Any) -> Any:
        elected = after_start(*arguments)
        is_first = elected is not None and elected.leader_epoch == 0
        return structs.replace(elected, isr=(elected.leader,)) if is_first else elected

    none_is_eligible = mock.patch.object(PartitionState, "_keep_eligible", return_value=None)
    with mock.patch.object(cluster_machine, "after_start", alone), none_is_eligible:
        creating = spawn(world, create)
        topics = world.server("controller").shell.machine.topics
        while "new" not in topics or all(one.leader != 2 for one in partitions(world)):
            world.run_for(0.001)
        world.kill_node(2)
        with pytest.raises(SimulationError, match="was not done"):
            world.run(creating, limit_s=LED_LIMIT_S / 2)


def test_a_disk_that_is_lost_before_the_first_record_is_replaced(world: World) -> None:
    """1. A topic is made. 2. A node dies that leads some of it. 3. It is back with empty disks."""
    creating = spawn(world, create)
    world.run_for(FIRST_LED_S)
    world.kill_node(2)
    world.run(creating, limit_s=LED_LIMIT_S)
    world.lose_node_disks(2)
    world.start_node(2)
    world.quiesce()
    assert {tuple(sorted(one.isr)) for one in partitions(world)} == {(1, 2, 3)}
    world.run(spawn(world, write_all), limit_s=LED_LIMIT_S)


def test_a_topic_made_while_a_broker_is_away_gets_its_third_replica_when_that_is_back(
    world: World,
) -> None:
    """1. A node is dead. 2. A topic is made, and written. 3. The node is back, another one dies."""
    world.kill_node(2)
    world.run_for(SESSION_S)
    world.run(spawn(world, create_open), limit_s=LED_LIMIT_S)
    assert {tuple(sorted(one.replicas)) for one in partitions(world)} == {(1, 3)}
    world.run(spawn(world, write_all), limit_s=LED_LIMIT_S)
    world.start_node(2)
    world.quiesce()
    deadline_s = world.now_s + GROWN_LIMIT_S
    while any(len(one.isr) < 3 or one.is_moving for one in partitions(world)):
        world.run_for(0.5)
        assert world.now_s < deadline_s
    world.kill_node(3)
    world.run(spawn(world, write_all), limit_s=LED_LIMIT_S)
