"""One node of three stays broken and nobody mends it: everything goes on without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from unittest import mock
from unittest.mock import AsyncMock

import pytest
from sim_controllers import SimPlace
from sim_liveness import LASTING_FAULTS, PROGRESS_LIMIT_S, Before, progress_s
from sim_log_watch import watching
from sim_nemesis import FaultPlan, Nemesis
from sim_replica_stage import replicated
from sim_stage import Stage, WorkloadPlan
from sim_world import SimulationError, World

from oncelog.actors.coordination.actor_watch import ActorWatch, WatchReport
from oncelog.actors.launch.assembly import ReplicaServer
from oncelog.actors.launch.controller_server import ControllerServer
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.cluster import MetadataReply
from oncelog.api.consuming import fetcher
from oncelog.storage.model import TopicPartition

SETTINGS = replicated(3, replica_lag_time_max_ms=3_000)
"""A broker is fenced before it takes others out of sync, as with the defaults."""

PARTITIONS = [TopicPartition("a", number) for number in range(3)]


@pytest.fixture
def world() -> Iterator[World]:
    """Each broker leads one partition of ``a``; node 1 has the controller; all is watched."""
    with watching() as watch, World(seed=5, topics={"a": 3}, settings=SETTINGS) as world:
        while not world.has_three_voters():
            world.run_for(0.1)
        yield world
        assert watch.violations == []


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        *((fault, 2) for fault in LASTING_FAULTS if fault != "controller hangs"),
        ("node dead", 1),
        ("node dead, Ray misleads", 1),
        ("disks fail", 1),
        ("disks full", 1),
        ("replicas hang", 1),
        ("controller hangs", 1),
        ("isolated", 1),
        ("not heard", 1),
        ("hears nothing", 1),
        ("old disks", 1),
        ("empty disks", 1),
    ],
)
def test_everything_goes_on_while_one_node_stays_broken(
    world: World, fault: str, number: int
) -> None:
    """Node 1 has the controller."""
    assert progress_s(world, PARTITIONS, "before") < 1
    before = Before(world, PARTITIONS, "after")
    LASTING_FAULTS[fault](world, number)
    assert progress_s(world, PARTITIONS, "after", before) <= PROGRESS_LIMIT_S


@pytest.mark.parametrize(
    ("strikes", "fault", "broken"),
    [
        ("cut_node", "hears nothing", lambda world: world.network.cuts),
        ("kill_node", "node dead", lambda world: world.dead_nodes),
    ],
)
def test_a_random_fault_that_ends_late_leaves_a_lasting_one_as_it_is(
    world: World, strikes: str, fault: str, broken: Callable[[World], set[object]]
) -> None:
    """1. Faults strike, each to end after some seconds. 2. The run is over, and all is healed.
    3. Something of node 2 breaks for good. 4. The time comes when those of 1. were to end."""
    stage = Stage(world, WorkloadPlan(topics={"a": 3}, duration_s=2.0))
    nemesis = Nemesis(stage, FaultPlan(peace=0.0, **{strikes: 5.0}), Random(1))
    world.driver.spawn(nemesis.rage())
    world.run_for(stage.plan.duration_s)
    stage.is_over = True
    world.quiesce()
    LASTING_FAULTS[fault](world, 2)
    lasting = set(broken(world))
    world.run_for(30.0)
    assert broken(world) == lasting


REPORT = ActorWatch._report


def nobody_silent(watch: ActorWatch) -> WatchReport:
    return REPORT(watch)._replace(silent_actors=())


async def never(*_: object) -> None:
    """Does nothing."""


def nothing_taken(*_: object) -> Decision[MetadataReply]:
    return Decision(reply=MetadataReply())


async def useful(_: object) -> str:
    return ""


PROTECTIONS = {
    "a controller that can decide nothing makes way": (
        lambda: mock.patch.object(ControllerServer, "_resign_reason", useful),
        "isolated",
        1,
    ),
    "a controller on an empty disk asks others whether they vote": (
        lambda: mock.patch.object(
            ControllerServer, "_others_know_voters", AsyncMock(return_value=False)
        ),
        "empty disks",
        1,
    ),
    "a controller that hangs is killed": (
        lambda: mock.patch.object(SimPlace, "kill_process", never),
        "controller hangs",
        1,
    ),
    "a leader whose disk refuses gives way": (
        lambda: mock.patch.object(ReplicaServer, "refusing_replicas", return_value=()),
        "disks full",
        2,
    ),
    "others lead what a process led that hangs": (
        lambda: mock.patch.object(ActorWatch, "_report", nobody_silent),
        "replicas hang",
        2,
    ),
    "idle readers ask who leads": (
        lambda: mock.patch.object(fetcher, "IDLE_CHECK_MS", 1_000_000),
        "hears nothing",
        2,
    ),
    "a higher minimum that a leader has taken counts": (
        lambda: mock.patch.object(ClusterMachine, "decide_taken", nothing_taken),
        "hears nothing",
        1,
    ),
}


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_without_a_protection_something_does_not_go_on(protection: str) -> None:
    """Else its absence would not be noticed."""
    sabotage, fault, number = PROTECTIONS[protection]
    with sabotage(), World(seed=5, topics={"a": 3}, settings=SETTINGS) as world:
        while not world.has_three_voters():
            world.run_for(0.1)
        progress_s(world, PARTITIONS, "before")
        before = Before(world, PARTITIONS, "after")
        LASTING_FAULTS[fault](world, number)
        with pytest.raises(SimulationError, match="was not done within"):
            progress_s(world, PARTITIONS, "after", before)
