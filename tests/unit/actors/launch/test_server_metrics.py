"""What the controller tells of the cluster: leaders, moves, fenced brokers and voters."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cluster_worlds import TOPIC_ID, ClusterWorld
from voting_world import VotingWorld, play

from oncelog.actors.launch.server_metrics import ControllerMetrics
from oncelog.actors.process.metrics import (
    BROKER_FENCED,
    BROKER_TAGS,
    LAGGING_VOTER_COUNT,
    METRICS,
    VOTER_COUNT,
    VOTER_LAG,
    VOTER_LAG_MS,
    Kind,
    Metric,
)
from oncelog.actors.protocol.cluster.brokers import fence
from oncelog.actors.protocol.cluster.cluster_records import ReplicasChanged
from oncelog.storage.errors import ErrorCode


class Sink:
    """The last value of each gauge, and each counter's sum, by name; fenced brokers apart."""

    def __init__(self) -> None:
        self.values: Counter[str] = Counter()
        self.fenced: dict[str, float] = {}

    def set(self, metric: Any, value: float, tags: Any) -> None:
        assert (metric in METRICS, metric.kind, tuple(tags)) == (True, Kind.GAUGE, metric.tags)
        if metric is BROKER_FENCED:
            self.fenced[tags["broker"]] = value
        else:
            self.values[metric.name] = int(value)
            assert tags["broker"] == "7"

    def add(self, metric: Any, amount: float, tags: Any) -> None:
        assert (metric in METRICS, metric.kind, tags) == (True, Kind.COUNTER, {"broker": "7"})
        assert amount >= 0
        self.values[metric.name] += int(amount)


@pytest.fixture
def world() -> ClusterWorld:
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.create((1, 2), (2, 3))
    return world


def metrics_of(world: ClusterWorld, sink: Sink) -> ControllerMetrics:
    return ControllerMetrics(machine=world.machine, sink=sink, broker_id=7)


def test_partitions_without_a_leader_and_fenced_brokers_are_told(world: ClusterWorld) -> None:
    sink = Sink()
    metrics = metrics_of(world, sink)
    world.lead(1, (1,), 0)
    metrics.report(0)
    assert sink.values["offline_partition_count"] == 1
    assert sink.fenced == {"1": 0, "2": 0, "3": 0}
    machine = world.machine
    world.apply(fence(machine.topics, machine.broker_states, 1))
    metrics.report(0)
    assert sink.values["offline_partition_count"] == 2
    assert sink.fenced == {"1": 1, "2": 0, "3": 0}
    world.change(1)
    world.lead(1, (1,), 0)
    world.lead(2, (2, 3), 1)
    metrics.report(0)
    assert sink.values["offline_partition_count"] == 0
    assert sink.fenced["1"] == 0


def test_elections_are_counted_from_when_the_log_was_loaded(world: ClusterWorld) -> None:
    """One that leaves a partition without a leader elects nobody."""
    world.lead(1, (1, 2), 0)
    world.lead(2, (1, 2), 0)
    assert world.replayed().election_count == world.machine.election_count == 2
    sink, loaded_count = Sink(), world.machine.election_count
    metrics = metrics_of(world, sink)
    metrics.report(loaded_count)
    assert sink.values["leader_elections"] == 0
    world.lead(1, (1, 2), 0)
    world.lead(-1, (1, 2), 0)
    for _ in range(2):
        metrics.report(loaded_count)
        assert sink.values["leader_elections"] == 1


def test_partitions_are_counted_while_they_move(world: ClusterWorld) -> None:
    sink = Sink()
    world.lead(1, (1, 2), 0)
    for version, replicas, adding in ((2, (1, 2, 3), (3,)), (3, (1, 2, 3), ())):
        record = ReplicasChanged(
            topic_id=TOPIC_ID,
            partition=0,
            partition_version=version,
            replicas=replicas,
            hosts=(0,) * 3,
            isr=(1, 2),
            adding=adding,
            removing=(),
        )
        world.apply([record])
        metrics_of(world, sink).report(0)
        assert sink.values["reassignment_count"] == len(adding)


class ByBroker:
    """The last value of each gauge, by the number of its broker."""

    def __init__(self) -> None:
        self.values: dict[Metric, dict[int, int]] = {}

    def set(self, metric: Metric, value: float, tags: Any) -> None:
        assert (metric in METRICS, metric.kind, tuple(tags)) == (True, Kind.GAUGE, BROKER_TAGS)
        self.values.setdefault(metric, {})[int(tags["broker"])] = int(value)

    def add(self, metric: Metric, amount: float, tags: Any) -> None: ...


def test_a_voter_that_is_away_is_told_and_for_how_long(tmp_path: Path) -> None:
    """1. Three voters. 2. The third dies. 3. A topic is created. 4. Twenty seconds later."""

    async def scenario(world: VotingWorld) -> None:
        def told() -> dict[Metric, dict[int, int]]:
            controller, sink = world.nodes[1].controller, ByBroker()
            assert controller is not None
            quorum = controller.metadata_log.quorum
            assert quorum is not None
            metrics = ControllerMetrics(machine=controller.shell.machine, sink=sink, broker_id=1)
            metrics.report_voters(quorum)
            return sink.values

        assert told()[VOTER_COUNT] == {1: 1}
        assert VOTER_LAG not in told()
        await world.until_voters(1, 2, 3)
        assert (told()[VOTER_COUNT], told()[LAGGING_VOTER_COUNT]) == ({1: 3}, {1: 0})
        assert told()[VOTER_LAG] == told()[VOTER_LAG_MS] == {2: 0, 3: 0}
        world.nodes[3].kill()
        assert await world.create("a") is ErrorCode.NONE
        await asyncio.sleep(20)
        seen = told()
        assert (seen[VOTER_COUNT], seen[LAGGING_VOTER_COUNT]) == ({1: 3}, {1: 1})
        assert seen[VOTER_LAG][2] == seen[VOTER_LAG_MS][2] == 0
        assert seen[VOTER_LAG][3] > 1
        assert 19_000 < seen[VOTER_LAG_MS][3] < 25_000

    play(tmp_path, scenario)
