"""Who is noticed to be gone, on which machine, and how many calls it costs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from virtual_time import run_virtually

from oncelog.actors.coordination import process_watch
from oncelog.actors.coordination.process_watch import (
    CALL_TIMEOUT_MS,
    FORGET_AFTER_MS,
    LOOK_MS,
    LOOKED_AT_ONCE,
    SEARCH_INTERVAL_MS,
    ProcessWatch,
    described_processes,
    ended_members,
)
from oncelog.actors.protocol.messages.brokers import DescribeProcessesRequest
from oncelog.actors.protocol.messages.cluster import BrokerMetadata, MetadataReply, MetadataRequest
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.storage.errors import ErrorCode

SCAN_S = 0.25
"""How often a coordinator asks."""

NOTICED_S = 1.0
"""How long a death on any machine may go unnoticed."""


class Machine:
    """``ProcessSight`` of one machine."""

    def __init__(self, name: str, dead: set[DriverProcess]) -> None:
        self.name = name
        self.dead = dead

    def lives(self, process: DriverProcess) -> bool | None:
        return None if process.machine != self.name else process not in self.dead


class Brokers:
    """A controller on machine 0, and brokers by number; those in ``silent`` let calls time out."""

    def __init__(self, count: int) -> None:
        self.dead: set[DriverProcess] = set()
        self.sights = {
            "controller": Machine("m0", self.dead),
            **{f"broker:{n}": Machine(f"m{n}", self.dead) for n in range(1, count + 1)},
        }
        self.silent: set[str] = set()
        self.asked: list[tuple[str, DescribeProcessesRequest]] = []
        self.searches = 0

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        await asyncio.sleep(0.001)
        if actor in self.silent:
            await asyncio.sleep(timeout_ms / 1_000)
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)
        if isinstance(request, MetadataRequest):
            self.searches += 1
            numbers = [int(name[7:]) for name in self.sights if name != "controller"]
            return MetadataReply(
                brokers=tuple(BrokerMetadata(broker_id=n, data_dir="/d") for n in numbers)
            )
        self.asked.append((actor, request))
        if actor not in self.sights:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        return await described_processes(self.sights[actor], request)


def process(machine: str, number: int = 1) -> DriverProcess:
    return DriverProcess(machine=machine, process_id=number, start_ticks=0)


Scenario = Callable[[Brokers, ProcessWatch], Coroutine[Any, Any, None]]


def play(scenario: Scenario, *, brokers: int = 3) -> None:
    async def run() -> None:
        cluster = Brokers(brokers)
        bugs: list[BaseException] = []
        watch = ProcessWatch(Machine("here", cluster.dead), cluster, on_failure=bugs.append)
        await scenario(cluster, watch)
        assert bugs == []

    run_virtually(run())


async def until_gone(watch: ProcessWatch, *processes: DriverProcess, limit_s: float = 30) -> float:
    """How long it takes until one is known to be gone, in seconds; all are asked about."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True not in [watch.is_gone(one) for one in processes]:
        assert loop.time() - began_s < limit_s, "nobody noticed"
        await asyncio.sleep(SCAN_S)
    return loop.time() - began_s


async def poll(watch: ProcessWatch, *processes: DriverProcess, for_s: float) -> None:
    """Ask as a coordinator does; none of them may be taken for gone."""
    end_s = asyncio.get_running_loop().time() + for_s
    while asyncio.get_running_loop().time() < end_s:
        assert True not in [watch.is_gone(one) for one in processes]
        await asyncio.sleep(SCAN_S)


def test_a_process_of_this_machine_is_seen_without_a_call() -> None:
    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        here = process("here")
        assert not watch.is_gone(here)
        brokers.dead.add(here)
        assert watch.is_gone(here)
        await asyncio.sleep(10)
        assert (brokers.asked, brokers.searches) == ([], 0)

    play(scenario)


@pytest.mark.parametrize("machine", ["m0", "m1", "m3"])
def test_a_death_on_another_machine_is_noticed_within_a_second(machine: str) -> None:
    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        worker, other = process(machine, 1), process("m2", 2)
        await poll(watch, worker, other, for_s=20)
        brokers.dead.add(worker)
        assert await until_gone(watch, worker, other) <= NOTICED_S
        assert not watch.is_gone(other)

    play(scenario)


def test_who_was_dead_when_the_watch_began_is_noticed_too() -> None:
    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        worker = process("m2")
        brokers.dead.add(worker)
        assert await until_gone(watch, worker) <= NOTICED_S

    play(scenario)


def test_all_of_a_machine_are_asked_about_in_one_call() -> None:
    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        workers = [process("m2", number) for number in range(500)]
        await poll(watch, *workers, for_s=1)
        brokers.asked.clear()
        await poll(watch, *workers, for_s=10)
        assert {actor for actor, _ in brokers.asked} == {"broker:2"}
        assert len(brokers.asked) <= 10_000 / LOOK_MS + 1
        assert {len(request.processes) for _, request in brokers.asked} == {500}

    play(scenario)


def test_of_a_machine_without_a_broker_nothing_is_known_and_little_is_asked() -> None:
    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        stranger = process("elsewhere")
        brokers.dead.add(stranger)
        await poll(watch, stranger, for_s=60)
        assert brokers.searches <= 60_000 / SEARCH_INTERVAL_MS + 1

    play(scenario)


def test_a_machine_whose_broker_joins_later_is_found() -> None:
    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        worker = process("m9")
        await poll(watch, worker, for_s=20)
        brokers.sights["broker:9"] = Machine("m9", brokers.dead)
        brokers.dead.add(worker)
        assert await until_gone(watch, worker) <= SEARCH_INTERVAL_MS / 1_000 + NOTICED_S

    play(scenario)


def test_a_broker_that_has_moved_is_looked_for_again() -> None:
    """1. Its broker's number is on another machine now. 2. Another broker is on that machine."""

    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        worker = process("m2")
        await poll(watch, worker, for_s=20)
        brokers.sights["broker:2"].name = "another"
        brokers.sights["broker:4"] = Machine("m2", brokers.dead)
        await poll(watch, worker, for_s=2)
        brokers.dead.add(worker)
        assert await until_gone(watch, worker) <= NOTICED_S

    play(scenario)


def test_a_broker_that_does_not_answer_kills_nobody_and_holds_up_no_other() -> None:
    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        hung, healthy = process("m1"), process("m2")
        await poll(watch, hung, healthy, for_s=5)
        brokers.silent.add("broker:1")
        brokers.dead |= {hung}
        await poll(watch, hung, healthy, for_s=20)
        brokers.dead |= {healthy}
        assert await until_gone(watch, hung, healthy) <= NOTICED_S
        assert not watch.is_gone(hung)
        brokers.silent.clear()
        assert await until_gone(watch, hung) <= NOTICED_S + CALL_TIMEOUT_MS / 1_000

    play(scenario)


def test_another_broker_of_the_machine_is_asked_when_the_first_is_gone() -> None:
    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        worker = process("m2")
        await poll(watch, worker, for_s=20)
        brokers.sights["broker:4"] = Machine("m2", brokers.dead)
        del brokers.sights["broker:2"]
        await poll(watch, worker, for_s=2)
        brokers.dead.add(worker)
        assert await until_gone(watch, worker) <= NOTICED_S

    play(scenario)


def test_a_controller_that_is_away_only_delays_the_search() -> None:
    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        worker = process("m2")
        brokers.silent.add("controller")
        brokers.dead.add(worker)
        await poll(watch, worker, for_s=20)
        brokers.silent.clear()
        limit_s = (SEARCH_INTERVAL_MS + CALL_TIMEOUT_MS) / 1_000 + NOTICED_S
        assert await until_gone(watch, worker) <= limit_s

    play(scenario)


def test_what_nobody_asks_about_any_more_is_forgotten() -> None:
    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        await poll(watch, process("m1"), process("m2"), for_s=1)
        await asyncio.sleep(FORGET_AFTER_MS / 1_000 + 2)
        brokers.asked.clear()
        await asyncio.sleep(60)
        assert brokers.asked == []
        assert (watch._asked_ms, watch._looking) == ({}, None)
        # It begins anew.
        brokers.dead.add(process("m1"))
        assert await until_gone(watch, process("m1")) <= NOTICED_S

    play(scenario)


def test_so_many_processes_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_watch, "WATCHED_MAX", 2)

    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        workers = [process("m1", number) for number in range(3)]
        await poll(watch, *workers, for_s=2)
        brokers.dead |= set(workers)
        await until_gone(watch, *workers)
        await asyncio.sleep(5)
        assert [watch.is_gone(one) for one in workers] == [True, True, False]

    play(scenario)


def test_members_that_are_watched_take_no_place_of_drivers_and_holders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_watch, "WATCHED_MAX", 1)
    monkeypatch.setattr(process_watch, "MEMBERS_WATCHED_MAX", 2)

    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        members = [process("m1", number) for number in range(3)]
        driver = process("m2")
        brokers.dead |= {*members, driver}
        for _ in range(20):
            ended = await ended_members(watch, members)
            watch.is_gone(driver)
            await asyncio.sleep(SCAN_S)
        assert ended == {*members[:2]}
        assert watch.is_gone(driver)
        await asyncio.sleep(FORGET_AFTER_MS / 1_000 + 2)
        assert (watch._asked_ms, watch._members_asked_ms, watch._looking) == ({}, {}, None)

    play(scenario)


def test_other_calls_have_a_turn_while_many_members_are_looked_at() -> None:
    async def scenario(_: Brokers, watch: ProcessWatch) -> None:
        looked, looked_before_a_turn = 0, []

        class Counting:
            def is_gone(self, driver: DriverProcess, *, is_member: bool = False) -> bool:
                nonlocal looked
                looked += 1
                return watch.is_gone(driver, is_member=is_member)

        async def other_calls() -> None:
            while True:
                looked_before_a_turn.append(looked)
                await asyncio.sleep(0)

        others = asyncio.ensure_future(other_calls())
        members = [process("here", number) for number in range(5 * LOOKED_AT_ONCE)]
        assert await ended_members(Counting(), [*members, *members]) == set()
        others.cancel()
        assert looked == len(members), "once each"
        steps = [after - before for before, after in itertools.pairwise(looked_before_a_turn)]
        assert max(steps) == LOOKED_AT_ONCE

    play(scenario)


def test_an_answer_that_is_too_short_says_nothing_of_the_others() -> None:
    async def scenario(brokers: Brokers, watch: ProcessWatch) -> None:
        worker = process("m1")
        await poll(watch, worker, for_s=1)
        real = brokers.call

        async def call(actor: str, request: Any, *, timeout_ms: int) -> Any:
            reply = await real(actor, request, timeout_ms=timeout_ms)
            if isinstance(request, DescribeProcessesRequest):
                return type(reply)(lives=())
            return reply

        brokers.call = call  # type: ignore[method-assign]
        brokers.dead.add(worker)
        await poll(watch, worker, for_s=5)
        assert not watch.is_gone(worker)

    play(scenario)
