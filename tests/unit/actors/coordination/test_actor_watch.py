"""Which actors are silent, and which replicas offline, by what they answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from virtual_time import run_virtually

from oncelog.actors.coordination.actor_watch import PING_TIMEOUT_MS, ActorWatch, WatchReport
from oncelog.actors.protocol.messages.brokers import OfflineReplica, PingReply, PingRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

SILENT_AFTER_MS = 9_000
HOLD_MS = 1_000
OFFLINE = OfflineReplica(topic_partition=TopicPartition("t", 0), topic_id="a" * 32)


class Actors:
    """Those in ``lost`` do not answer: a call to them takes all of its time.

    Those in ``dead`` have no process: open calls end when they are ``killed``.
    """

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self.dead: set[str] = set()
        self._open: dict[str, asyncio.Event] = {}
        self.offline: dict[str, tuple[OfflineReplica, ...]] = {}
        self.asked: list[str] = []
        self.watch = ActorWatch(self, silent_after_ms=SILENT_AFTER_MS, hold_ms=HOLD_MS)

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        assert isinstance(request, PingRequest)
        self.asked.append(actor)
        if actor in self.lost:
            await asyncio.sleep(timeout_ms / 1000)
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)
        if actor not in self.dead and request.hold_ms:
            ends = self._open.setdefault(actor, asyncio.Event())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ends.wait(), request.hold_ms / 1000)
                return request.failed(ErrorCode.NETWORK_EXCEPTION)
        if actor in self.dead:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        offline = self.offline.get(actor, ())
        return PingReply(offline_replicas=offline, refusing_replicas=offline[:1])

    def kill(self, actor: str, *, is_dead: bool = True) -> None:
        """Its connections end, and perhaps its process."""
        self.dead |= {actor} if is_dead else set()
        if actor in self._open:
            self._open.pop(actor).set()

    async def look_for(self, time_ms: int, *names: str) -> tuple[str, ...]:
        """Look again and again until so much time has passed; who is silent at the end."""
        loop = asyncio.get_running_loop()
        end_s, silent = loop.time() + time_ms / 1000, ()
        while loop.time() < end_s:
            silent = (await self.watch.check(names)).silent_actors
            await asyncio.sleep(1)
        return silent


def play(scenario: Callable[[Actors], Coroutine[Any, Any, None]]) -> None:
    run_virtually(scenario(Actors()))


def test_who_does_not_answer_for_its_time_is_silent_until_it_does():
    async def scenario(actors: Actors) -> None:
        actors.lost = {"b"}
        assert await actors.look_for(SILENT_AFTER_MS - 2_000, "a", "b") == ()
        assert await actors.look_for(5_000, "a", "b") == ("b",)
        actors.lost.clear()
        assert await actors.watch.check(("a", "b")) == WatchReport()

    play(scenario)


def test_calls_are_made_side_by_side():
    async def scenario(actors: Actors) -> None:
        names = tuple(map(str, range(50)))
        actors.lost = set(names)
        began_s = asyncio.get_running_loop().time()
        await actors.watch.check(names)
        assert asyncio.get_running_loop().time() - began_s == (HOLD_MS + PING_TIMEOUT_MS) / 1000
        assert actors.asked == list(names)

    play(scenario)


def test_who_is_watched_no_more_is_forgotten():
    async def scenario(actors: Actors) -> None:
        actors.lost = {"b"}
        assert await actors.look_for(SILENT_AFTER_MS + 4_000, "b") == ("b",)
        assert await actors.watch.check(("a",)) == WatchReport()
        assert await actors.watch.check(("b",)) == WatchReport()

    play(scenario)


def test_what_is_offline_is_told_as_often_as_an_actor_answers_so():
    async def scenario(actors: Actors) -> None:
        actors.offline = {"b": (OFFLINE,)}
        assert await actors.watch.check(("a", "b")) == WatchReport((), (OFFLINE,), (OFFLINE,))
        actors.lost = {"b"}
        assert await actors.watch.check(("a", "b")) == WatchReport()
        actors.lost.clear()
        assert await actors.watch.check(("a", "b")) == WatchReport((), (OFFLINE,), (OFFLINE,))
        actors.offline.clear()
        assert await actors.watch.check(("a", "b")) == WatchReport()

    play(scenario)


def test_who_answers_an_old_call_after_it_was_forgotten_is_not_remembered():
    async def scenario(actors: Actors) -> None:
        checking = asyncio.ensure_future(actors.watch.check(("b",)))
        await asyncio.sleep(0)
        await actors.watch.check(("a",))
        await checking
        assert set(actors.watch._last_contact_ms) == {"a"}

    play(scenario)


def test_who_dies_is_silent_at_once_until_it_answers_again():
    async def scenario(actors: Actors) -> None:
        loop = asyncio.get_running_loop()
        await actors.watch.check(("a", "b"))
        checking = asyncio.ensure_future(actors.watch.check(("a", "b")))
        await asyncio.sleep(0.1)
        killed_s = loop.time()
        actors.kill("b")
        seen = await checking
        assert (seen.silent_actors, seen.has_new_death) == (("b",), True)
        assert loop.time() == killed_s
        seen = await actors.watch.check(("a", "b"))
        assert (seen.silent_actors, seen.has_new_death) == (("b",), False)
        assert loop.time() > killed_s
        actors.dead.clear()
        assert await actors.watch.check(("a", "b")) == WatchReport()

    play(scenario)


def test_who_dies_between_two_looks_is_told_by_the_next_at_once():
    async def scenario(actors: Actors) -> None:
        loop = asyncio.get_running_loop()
        await actors.watch.check(("a", "b", "c"))
        checking = asyncio.ensure_future(actors.watch.check(("a", "b", "c")))
        await asyncio.sleep(0.1)
        actors.kill("a")
        await checking
        actors.kill("b")
        await asyncio.sleep(0.1)
        begun_s = loop.time()
        seen = await actors.watch.check(("a", "b", "c"))
        assert (seen.silent_actors, seen.has_new_death) == (("a", "b"), True)
        assert loop.time() == begun_s

    play(scenario)


def test_whose_connection_ends_alone_is_not_silent():
    async def scenario(actors: Actors) -> None:
        await actors.watch.check(("b",))
        checking = asyncio.ensure_future(actors.watch.check(("b",)))
        await asyncio.sleep(0.1)
        actors.kill("b", is_dead=False)
        assert await checking == WatchReport()

    play(scenario)


def test_who_has_never_answered_still_starts():
    async def scenario(actors: Actors) -> None:
        actors.kill("b")
        for _ in range(3):
            assert await actors.watch.check(("b",)) == WatchReport()

    play(scenario)


def test_a_look_that_is_given_up_leaves_no_call_open():
    async def scenario(actors: Actors) -> None:
        checking = asyncio.ensure_future(actors.watch.check(("a", "b")))
        await asyncio.sleep(0.1)
        calls = list(actors.watch._calls.values())
        checking.cancel()
        await asyncio.wait({checking, *calls})
        assert all(call.cancelled() for call in calls)
        assert len(calls) == 2

    play(scenario)
