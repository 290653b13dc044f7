"""What the controller makes of the nodes that it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from oncelog.actors.controller import broker_watch
from oncelog.actors.controller.broker_watch import BrokerNode, BrokerWatch
from oncelog.actors.protocol.messages.cluster import BrokerMetadata


class Nodes:
    """What is alive, and what was started."""

    def __init__(self, *numbers: int) -> None:
        self.alive = list(numbers)
        self.started: list[int] = []

    async def nodes(self) -> Sequence[BrokerNode]:
        return [BrokerNode(broker_id=number) for number in self.alive]

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        self.started += [node.broker_id for node in nodes]


def watch_of(nodes: Nodes, *registered: int) -> BrokerWatch:
    known = [BrokerMetadata(broker_id=number, data_dir="/data") for number in registered]
    return BrokerWatch(launcher=nodes, own=1, registered=lambda: known)


def test_the_controllers_own_broker_is_alive_and_needs_no_actor():
    nodes = Nodes(1, 2)
    watch = watch_of(nodes, 1)
    assert watch.live == {1}
    asyncio.run(watch.look())
    assert (watch.live, nodes.started) == ({1, 2}, [2])


def test_a_node_that_went_is_told():
    nodes = Nodes(2)
    watch = watch_of(nodes, 1, 2)
    asyncio.run(watch.look())
    nodes.alive.clear()
    asyncio.run(watch.look())
    assert [(one.broker_id, one.is_live) for one in watch.described()] == [(1, True), (2, False)]


def test_two_nodes_of_one_number_take_no_part_and_are_told():
    nodes = Nodes(2, 2, 2, 3)
    watch = watch_of(nodes, 1)
    asyncio.run(watch.look())
    assert (watch.live, nodes.started) == ({1, 3}, [3])
    problems = {one.broker_id: one.problem for one in watch.described()}
    assert "3 living nodes are labelled broker=2" in problems[2]
    nodes.alive[:] = [2, 3]
    asyncio.run(watch.look())
    assert watch.live == {1, 2, 3}
    assert [one.broker_id for one in watch.described()] == [1]


def test_a_problem_is_told_until_it_is_mended_or_the_node_goes():
    nodes = Nodes(2, 3)
    watch = watch_of(nodes, 1, 2)
    asyncio.run(watch.look())
    watch.note(2, "another directory")
    watch.note(3, "another cluster")
    problems = {one.broker_id: one.problem for one in watch.described()}
    assert problems == {1: "", 2: "another directory", 3: "another cluster"}
    watch.note(2, "")
    nodes.alive.remove(3)
    asyncio.run(watch.look())
    problems = {one.broker_id: one.problem for one in watch.described()}
    assert problems == {1: "", 2: ""}


def test_a_look_that_ray_cannot_answer_ends_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(broker_watch, "BROKER_LOOK_MS", 0)

    class Silent(Nodes):
        async def nodes(self) -> Sequence[BrokerNode]:
            if self.alive:
                return await super().nodes()
            self.alive = [3]
            raise RuntimeError("the control store is away")

    async def body() -> None:
        nodes = Silent(2)
        watch = watch_of(nodes, 1)
        await watch.look()
        nodes.alive.clear()
        watching = asyncio.ensure_future(watch.watch())
        for _ in range(10):
            await asyncio.sleep(0)
        watching.cancel()
        assert nodes.started[:2] == [2, 3]
        assert watch.live == {1, 3}

    asyncio.run(body())
