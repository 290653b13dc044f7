"""Which actors hold replicas on a machine, and that hosts are told until they have heard it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from virtual_time import run_virtually

from oncelog.actors.controller.replica_actors import MachineSize, ReplicaActors
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR, Placement
from oncelog.actors.protocol.messages.cluster import HoldReplicasReply, HoldReplicasRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

GIB = 2**30


@pytest.mark.parametrize(
    ("size", "own_max", "hosts_max", "replicas_max"),
    [
        (MachineSize(processor_count=1, memory_bytes=64 * GIB, files_max=65_536), 0, 1, 1_000),
        (MachineSize(processor_count=2, memory_bytes=64 * GIB, files_max=65_536), 0, 1, 1_000),
        (MachineSize(processor_count=8, memory_bytes=64 * GIB, files_max=65_536), 6, 4, 1_000),
        (MachineSize(processor_count=8, memory_bytes=8 * GIB, files_max=65_536), 2, 4, 1_000),
        (MachineSize(processor_count=2, memory_bytes=8 * GIB, files_max=1_024), 0, 1, 128),
        (MachineSize(processor_count=2, memory_bytes=8 * GIB, files_max=4), 0, 1, 1),
    ],
)
def test_what_a_machine_allows(size: MachineSize, own_max: int, hosts_max: int, replicas_max: int):
    rules = size.rules("auto")
    assert (rules.own_max, rules.hosts_max) == (own_max, hosts_max)
    assert rules.replicas_max == replicas_max


class Hosts:
    """Hosts that answer with the given codes in turn, and then ``NONE``."""

    def __init__(self, *errors: ErrorCode) -> None:
        self.errors = list(errors)
        self.told: list[str] = []
        self.launched: list[Placement] = []

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        assert (request, timeout_ms) == (HoldReplicasRequest(), 100)
        self.told.append(actor)
        return HoldReplicasReply(error=self.errors.pop(0) if self.errors else ErrorCode.NONE)

    async def start(self, placements: Sequence[Placement]) -> None:
        self.launched += placements

    async def find(self, actors: Any) -> list[Any]:
        return []

    async def end(self, actors: Sequence[Any]) -> None:
        raise AssertionError(actors)

    async def running(self) -> list[str]:
        return []

    async def nodes(self) -> list[Any]:
        return []

    async def start_brokers(self, nodes: Sequence[Any]) -> None:
        raise AssertionError(nodes)


def placed(number: int, host: int) -> Placement:
    return Placement(TopicPartition("t", number), "a" * 32, 1, host)


def actors_of(hosts: Hosts, known: list[Placement]) -> tuple[ReplicaActors, OwnTasks]:
    tasks = OwnTasks([].append)
    actors = ReplicaActors(
        launcher=hosts,
        transport=hosts,
        timeout_ms=100,
        placements=lambda: known,
        tasks=tasks,
    )
    return actors, tasks


def test_each_host_is_told_once_for_all_its_replicas_and_lone_actors_are_not():
    async def body() -> None:
        hosts = Hosts()
        placements = [placed(0, 1), placed(1, 1), placed(2, 2), placed(3, OWN_ACTOR)]
        actors, tasks = actors_of(hosts, placements)
        await actors.start(placements)
        assert hosts.launched == placements
        assert sorted(hosts.told) == ["partitions:1@1", "partitions:2@1"]
        assert not tasks.running

    asyncio.run(body())


def test_hosts_are_told_in_the_same_order_in_every_process():
    async def body() -> None:
        hosts = Hosts()
        placements = [placed(number, host) for number, host in enumerate((5, 2, 7, 3, 6, 1, 4))]
        actors, _ = actors_of(hosts, placements)
        await actors.start(placements)
        assert hosts.told == [f"partitions:{host}@1" for host in range(1, 8)]

    asyncio.run(body())


def test_a_host_that_was_not_reached_is_told_until_it_is():
    async def body() -> None:
        hosts = Hosts(ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)
        actors, tasks = actors_of(hosts, [placed(0, 1)])
        await actors.start([placed(0, 1)])
        await asyncio.gather(*tasks.running)
        assert hosts.told == ["partitions:1@1"] * 3
        await actors.start([placed(0, 1)])
        assert not tasks.running

    run_virtually(body())


def test_a_host_that_has_nothing_to_hold_is_told_no_more():
    async def body() -> None:
        hosts = Hosts(*[ErrorCode.NETWORK_EXCEPTION] * 9)
        known = [placed(0, 1)]
        actors, tasks = actors_of(hosts, known)
        await actors.start(list(known))
        known.clear()
        await asyncio.gather(*tasks.running)
        assert hosts.told == ["partitions:1@1"]

    run_virtually(body())
