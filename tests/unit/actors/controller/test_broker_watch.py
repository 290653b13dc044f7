"""What the controller makes of the nodes that it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from virtual_time import VirtualLoop, run_virtually

from oncelog.actors.controller.broker_membership import (
    LONE_NODES_CHECK_MS,
    SESSION_CHECK_MS,
    BrokerNode,
    BrokerWatch,
)
from oncelog.actors.protocol.cluster.cluster_state import BrokerState

SESSION_MS = 9_000


class Nodes:
    """What is alive, what was started, and who is registered; a broker is fenced once."""

    def __init__(self, *numbers: int) -> None:
        self.alive = list(numbers)
        self.started: list[int] = []
        self.brokers: dict[int, BrokerState] = {}
        self.fenced: list[int] = []
        self.own_racks: list[str] = []
        self.is_own_a_voter = False

    async def nodes(self) -> Sequence[BrokerNode]:
        return [BrokerNode(broker_id=number, rack=f"rack {number}") for number in self.alive]

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        self.started += [node.broker_id for node in nodes]

    async def record_own_node(self, rack: str) -> None:
        self.own_racks.append(rack)

    async def fence(self, broker_id: int) -> None:
        self.fenced.append(broker_id)
        if broker_id in self.brokers:
            self.brokers[broker_id].is_fenced = True


def watch_of(nodes: Nodes, *registered: int) -> BrokerWatch:
    for number in registered:
        nodes.brokers[number] = BrokerState(broker_id=number, data_dir="/data")
    return BrokerWatch(
        launcher=nodes,
        own=1,
        brokers=lambda: nodes.brokers,
        fence=nodes.fence,
        record_own_node=nodes.record_own_node,
        is_a_voter=lambda: nodes.is_own_a_voter,
        session_ms=SESSION_MS,
    )


def test_the_controllers_own_broker_is_alive_and_needs_no_actor_until_it_votes_with_others():
    nodes = Nodes(1, 2)
    watch = watch_of(nodes, 1)
    assert watch.live == {1}
    asyncio.run(watch.check_nodes())
    assert (watch.live, nodes.started) == ({1, 2}, [2])
    nodes.is_own_a_voter = True
    asyncio.run(watch.check_nodes())
    assert nodes.started == [2, 1, 2]


def test_the_rack_of_the_controllers_own_node_is_told_unless_two_have_its_number():
    nodes = Nodes(1, 2)
    watch = watch_of(nodes, 1)
    asyncio.run(watch.check_nodes())
    assert nodes.own_racks == ["rack 1"]
    nodes.alive = [1, 1, 2]
    asyncio.run(watch.check_nodes())
    assert nodes.own_racks == ["rack 1"]


def test_a_node_that_went_is_told():
    nodes = Nodes(2)
    watch = watch_of(nodes, 1, 2)
    asyncio.run(watch.check_nodes())
    nodes.alive.clear()
    asyncio.run(watch.check_nodes())
    assert [(one.broker_id, one.is_live) for one in watch.described()] == [(1, True), (2, False)]
    assert nodes.fenced == [2]
    asyncio.run(watch.check_nodes())
    assert nodes.fenced == [2]


def test_a_node_that_had_gone_before_the_controller_started_is_noticed_at_its_first_look():
    nodes = Nodes(2)
    watch = watch_of(nodes, 1, 2, 3, 4)
    nodes.brokers[4].is_fenced = True
    asyncio.run(watch.check_nodes())
    assert (nodes.fenced, watch.gone) == ([3], {3})


def test_a_broker_that_is_fenced_is_not_alive_however_its_node_is():
    nodes = Nodes(2)
    watch = watch_of(nodes, 1, 2)
    asyncio.run(watch.check_nodes())
    nodes.brokers[2].is_fenced = nodes.brokers[2].is_draining = True
    told = {one.broker_id: (one.is_live, one.is_draining) for one in watch.described()}
    assert told == {1: (True, False), 2: (False, True)}


def test_the_controllers_own_broker_is_not_fenced_for_a_node_that_is_not_seen():
    nodes = Nodes(1, 2)
    watch = watch_of(nodes, 1, 2)
    asyncio.run(watch.check_nodes())
    nodes.alive[:] = [2]
    asyncio.run(watch.check_nodes())
    assert (nodes.fenced, watch.live) == ([], {1, 2})


# --- sessions ------------------------------------------------------------------------------------


def play(nodes: Nodes, scenario: Callable[[BrokerWatch], Coroutine[Any, Any, None]]) -> None:
    """Brokers 1 to 3, with the sessions watched from the start; time passes when all wait."""

    async def body() -> None:
        watch = watch_of(nodes, 1, 2, 3)
        watching = asyncio.ensure_future(watch.watch_sessions())
        await asyncio.sleep(0)
        await scenario(watch)
        watching.cancel()

    run_virtually(body())


def test_a_broker_that_is_silent_for_a_session_is_fenced_once():
    nodes = Nodes()

    async def scenario(watch: BrokerWatch) -> None:
        for _ in range(17):
            await asyncio.sleep(SESSION_CHECK_MS / 1000)
            watch.record_contact(3)
        assert nodes.fenced == []
        for _ in range(17):
            await asyncio.sleep(SESSION_CHECK_MS / 1000)
            watch.record_contact(3)
        assert nodes.fenced == [2]

    play(nodes, scenario)


def test_the_controllers_own_broker_needs_no_heartbeat():
    nodes = Nodes()

    async def scenario(watch: BrokerWatch) -> None:
        await asyncio.sleep(10 * SESSION_MS / 1000)
        assert nodes.fenced == [2, 3]

    play(nodes, scenario)


def test_a_controller_that_stood_still_gives_everybody_a_whole_session():
    nodes = Nodes()

    async def scenario(watch: BrokerWatch) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await asyncio.sleep(1)
        loop.now_s += 10 * SESSION_MS / 1000
        await asyncio.sleep((SESSION_MS - SESSION_CHECK_MS) / 1000)
        assert nodes.fenced == []
        await asyncio.sleep(3 * SESSION_CHECK_MS / 1000)
        assert nodes.fenced == [2, 3]

    play(nodes, scenario)


def test_two_nodes_of_one_number_take_no_part_and_are_told():
    nodes = Nodes(2, 2, 2, 3)
    watch = watch_of(nodes, 1)
    asyncio.run(watch.check_nodes())
    assert (watch.live, nodes.started) == ({1, 3}, [3])
    problems = {one.broker_id: one.problem for one in watch.described()}
    assert "3 living nodes are labelled broker=2" in problems[2]
    nodes.alive[:] = [2, 3]
    asyncio.run(watch.check_nodes())
    assert watch.live == {1, 2, 3}
    assert [one.broker_id for one in watch.described()] == [1]


def test_a_problem_is_told_until_it_is_mended_or_the_node_goes():
    nodes = Nodes(2, 3)
    watch = watch_of(nodes, 1, 2)
    asyncio.run(watch.check_nodes())
    watch.record_problem(2, "another directory")
    watch.record_problem(3, "another cluster")
    problems = {one.broker_id: one.problem for one in watch.described()}
    assert problems == {1: "", 2: "another directory", 3: "another cluster"}
    assert {one.broker_id: one.is_live for one in watch.described()} == {1: True, 2: True, 3: True}
    watch.record_problem(2, "")
    nodes.alive.remove(3)
    asyncio.run(watch.check_nodes())
    problems = {one.broker_id: one.problem for one in watch.described()}
    assert problems == {1: "", 2: ""}


def test_a_look_that_ray_cannot_answer_ends_nothing():
    class Silent(Nodes):
        async def nodes(self) -> Sequence[BrokerNode]:
            if self.alive:
                return await super().nodes()
            self.alive = [3]
            raise RuntimeError("the control store is away")

    async def body() -> None:
        nodes = Silent(2)
        watch = watch_of(nodes, 1)
        await watch.check_nodes()
        nodes.alive.clear()
        watching = asyncio.ensure_future(watch.watch())
        await asyncio.sleep(3 * LONE_NODES_CHECK_MS / 1_000)
        watching.cancel()
        assert nodes.started[:2] == [2, 3]
        assert watch.live == {1, 3}

    run_virtually(body())
