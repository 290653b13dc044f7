"""What replicas and the controller tell operators while nodes come and go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.launch.server_metrics import ControllerMetrics
from oncelog.storage.model import TopicPartition

SETTINGS = WorldSettings(
    brokers=3, replication_factor=3, cluster=ClusterConfig(replicas_per_actor=1)
)
REPLICA = "partition:a-1@"
LEADER = 2
"""Whose broker leads partition 1, as the preferred one."""


class Sink:
    """What one replica has told last, counters in sum, by name."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def set(self, metric: Any, value: float, tags: Any) -> None:
        self.values[f"{metric.name} {tags['broker']}"] = value
        self.values[metric.name] = value

    def add(self, metric: Any, amount: float, tags: Any) -> None:
        self.values[metric.name] = self.values.get(metric.name, 0) + amount


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=3, topics={"a": 3}, settings=SETTINGS) as world:
        yield world


def write(world: World, *texts: str, **settings: Any) -> None:
    """To partition 1."""

    async def send(client: Any) -> None:
        producer = client.producer(**settings)
        for text in texts:
            await producer.send("a", text.encode(), partition=1)
        await producer.flush()
        await producer.close()

    client = world.client(f"writer-{world.process_count}")
    world.run(client.spawn(send(client)))


def told(world: World, name: str) -> dict[str, float]:
    """What a server tells now, everything that it has counted included."""
    server, sink = world.server(name), Sink()

    async def report() -> None:
        metrics = server.metrics
        metrics.sink, metrics._reported, metrics._raised = sink, {}, set()
        if name == "controller":
            server.cluster_metrics = ControllerMetrics(
                machine=server.shell.machine, sink=sink, broker_id=1
            )
        server.report_metrics()

    world.run(report())
    return sink.values


def replica(world: World, broker_id: int) -> dict[str, float]:
    return told(world, f"{REPLICA}{broker_id}")


def test_what_is_copied_is_told_by_both_sides(world: World) -> None:
    write(world, "a", "b", "c")
    world.quiesce()
    leader, follower = replica(world, LEADER), replica(world, 3)
    assert leader["pushed_bytes"] == 2 * leader["appended_bytes"] > 0
    assert "replicated_bytes" not in leader
    assert follower["replicated_bytes"] == leader["appended_bytes"]
    assert not {"pushed_bytes", "appended_bytes", "leader_epoch"} & follower.keys()
    assert follower["log_size_bytes"] == leader["log_size_bytes"] > 0
    resting = {"under_replicated", "under_min_isr", "replication_lag", "replication_lag_ms"}
    assert not resting & leader.keys()
    controller = told(world, "controller")
    assert controller["offline_partition_count"] == 0
    assert [controller[f"broker_fenced {number}"] for number in (1, 2, 3)] == [0, 0, 0]


def test_a_leader_tells_how_far_the_followers_are_that_it_has_lost(world: World) -> None:
    write(world, "a")
    world.quiesce()
    world.kill_node(3)
    write(world, "b", "c")
    world.run_for(10.0)
    leader = replica(world, LEADER)
    assert leader["under_replicated"] == 1
    assert leader["replication_lag"] == 2
    assert 5_000 < leader["replication_lag_ms"] < 20_000
    assert leader["isr_shrinks"] == 1
    assert "under_min_isr" not in leader
    assert told(world, "controller")["broker_fenced 3"] == 1
    world.start_node(3)
    world.quiesce()
    leader = replica(world, LEADER)
    assert (leader["isr_shrinks"], leader["isr_expands"]) == (1, 1)
    assert not {"under_replicated", "replication_lag", "replication_lag_ms"} & leader.keys()


def test_an_election_and_fewer_in_sync_than_the_minimum_are_told(world: World) -> None:
    write(world, "a")
    before = told(world, "controller")["leader_elections"]
    world.kill_node(LEADER)
    world.run_for(10.0)
    assert told(world, "controller")["leader_elections"] > before
    world.pause(f"{REPLICA}3")
    world.run_for(10.0)
    assert replica(world, 1)["under_min_isr"] == 1


def test_a_follower_that_cuts_its_log_tells_it(world: World) -> None:
    """1. A leader is cut off. 2. It appends what nobody copies. 3. Another leads. 4. It is back."""
    client = world.client("inside", node=LEADER)

    async def begin() -> Any:
        return await send(client.producer(acks=1), "known to all")

    async def send(producer: Any, text: str) -> Any:
        await (await producer.send("a", text.encode(), partition=1))
        return producer

    producer = world.run(client.spawn(begin()))
    world.quiesce()
    world.isolate_node(LEADER)
    world.run(client.spawn(send(producer, "copied by nobody")))
    world.run_for(10.0)
    write(world, "in its place")
    world.rejoin_node(LEADER)
    world.quiesce()
    placement = world.placement_of(TopicPartition("a", 1))
    assert placement is not None
    assert placement.broker_id != LEADER
    assert replica(world, LEADER)["follower_cuts"] == 1
