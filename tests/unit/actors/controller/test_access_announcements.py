"""Who is told of users and ACLs, how often, and when a change is answered."""

from __future__ import annotations

import asyncio
from typing import Any

from virtual_time import run_virtually

from oncelog.actors.controller.access_announcements import (
    ACCESS_ANNOUNCE_RETRY_MS,
    ACCESS_CALLS_MAX,
    ACCESS_ROUNDS_MAX,
    AccessAnnouncements,
)
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.protocol.messages.access import Access, LearnAccessReply, Rules
from oncelog.actors.rpc.door import ACCESS_CHECK_MS
from oncelog.storage.errors import ErrorCode


class Actors:
    """Actors that note which versions they are told.

    Those that are ``away`` are called in vain, and ``silent`` ones do not answer.
    """

    def __init__(self, *names: str) -> None:
        self.version = 1
        self.names = set(names)
        self.away: set[str] = set()
        self.silent: set[str] = set()
        self.told: list[tuple[str, int]] = []
        self.bugs: list[BaseException] = []
        self.tasks = OwnTasks(self.bugs.append)
        self.hold: asyncio.Event | None = None
        self.announcements = AccessAnnouncements(
            access=self.access,
            actors=lambda: self.names,
            transport=self,
            tasks=self.tasks,
            timeout_ms=1_000,
        )

    def access(self) -> Access:
        return Access(rules=Rules(version=self.version))

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        assert timeout_ms == 1_000
        if self.hold is not None:
            await self.hold.wait()
        if actor in self.silent:
            await asyncio.sleep(timeout_ms / 1_000)
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)
        if actor in self.away:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        self.told.append((actor, request.access.rules.version))
        return LearnAccessReply()


def test_each_is_told_once_before_the_change_is_answered():
    async def body() -> None:
        actors = Actors("a", "b")
        await actors.announcements.announce()
        assert actors.told == [("a", 1), ("b", 1)]
        await actors.announcements.announce()
        assert len(actors.told) == 2
        actors.version = 2
        await actors.announcements.announce()
        assert actors.told[2:] == [("a", 2), ("b", 2)]
        assert not actors.bugs

    run_virtually(body())


def test_one_that_is_away_holds_nobody_up_and_is_told_when_it_is_back():
    async def body() -> None:
        actors = Actors("a", "b")
        actors.away = {"a"}
        await actors.announcements.announce()
        assert actors.told == [("b", 1)]
        await asyncio.sleep(3 * ACCESS_ANNOUNCE_RETRY_MS / 1_000)
        actors.away = set()
        await asyncio.sleep(ACCESS_ANNOUNCE_RETRY_MS / 1_000)
        assert actors.told == [("b", 1), ("a", 1)]
        assert not actors.tasks.running

    run_virtually(body())


def test_one_that_stays_away_is_given_up_once_it_must_have_asked_by_itself():
    async def body() -> None:
        actors = Actors("a")
        actors.away = {"a"}
        loop = asyncio.get_running_loop()
        began = loop.time()
        await actors.announcements.announce()
        await asyncio.wait(actors.tasks.running)
        assert 1_000 * (loop.time() - began) >= ACCESS_CHECK_MS - ACCESS_ANNOUNCE_RETRY_MS
        assert ACCESS_ROUNDS_MAX * ACCESS_ANNOUNCE_RETRY_MS >= ACCESS_CHECK_MS
        # The next change tells it again.
        actors.version, actors.away = 2, set()
        await actors.announcements.announce()
        assert actors.told == [("a", 2)]

    run_virtually(body())


def test_a_change_during_a_round_is_told_in_the_next_and_answered_after_that():
    async def body() -> None:
        actors = Actors("a")
        actors.hold = asyncio.Event()
        first = asyncio.ensure_future(actors.announcements.announce())
        await asyncio.sleep(0.1)
        actors.version = 2
        second = asyncio.ensure_future(actors.announcements.announce())
        await asyncio.sleep(0.1)
        assert not first.done()
        assert not second.done()
        actors.hold.set()
        await asyncio.gather(first, second)
        assert actors.told == [("a", 1), ("a", 2)]

    run_virtually(body())


def test_of_a_network_that_is_cut_nobody_waits_to_be_told():
    """However many are behind the cut, and however often something changes meanwhile."""

    async def body() -> None:
        silent = [f"partition:a-{number}@2" for number in range(5 * ACCESS_CALLS_MAX)]
        actors = Actors("partition:z-0@1", *silent)
        actors.silent = set(silent)
        loop = asyncio.get_running_loop()
        announcing = []
        for version in range(1, 6):
            began_s = loop.time()
            actors.version = version
            announcing.append(asyncio.ensure_future(actors.announcements.announce()))
            await asyncio.sleep(0.7)
            assert actors.told[-1:] == [("partition:z-0@1", version)], loop.time() - began_s
        await asyncio.gather(*announcing)
        # The last change waited for no more than the others do.
        assert loop.time() - began_s < 4
        actors.silent.clear()
        await asyncio.sleep(2)
        assert {name for name, version in actors.told if version == 5} == actors.names
        assert not actors.tasks.running
        assert not actors.bugs

    run_virtually(body())


def test_a_controller_that_stops_leaves_no_request_waiting():
    async def body() -> None:
        actors = Actors("a")
        actors.hold = asyncio.Event()
        waiting = asyncio.ensure_future(actors.announcements.announce())
        await asyncio.sleep(0.1)
        actors.tasks.cancel()
        await asyncio.wait_for(waiting, 10)
        assert actors.told == []

    run_virtually(body())
