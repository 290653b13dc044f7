"""One node of three stays broken and nobody mends it: everything goes on without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sim_liveness import LASTING_FAULTS, PROGRESS_LIMIT_S, Before, progress_s
from sim_log_watch import watching
from sim_replica_stage import replicated
from sim_world import World

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
