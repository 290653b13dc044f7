"""Knows which processes have ended, on every machine that a broker is on.

A process of this machine is seen at once. Of one elsewhere the broker there is asked, with all
others of its machine in one call, every ``LOOK_MS`` for as long as somebody wants to know. Which
broker that is, all brokers are asked first. Of a machine without a broker nothing is known.

An answer is news: whoever acts on it must be safe if it is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from oncelog.actors.interfaces import (
    CONTROLLER_ACTOR,
    DriverWatch,
    ProcessSight,
    Transport,
    broker_actor,
)
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.brokers import (
    DescribeProcessesReply,
    DescribeProcessesRequest,
)
from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.storage.errors import ErrorCode

LOOK_MS: Final = 250
CALL_TIMEOUT_MS: Final = 1_000

SEARCH_INTERVAL_MS: Final = 5_000
"""How long a machine on which no broker was found is not looked for again."""

WATCHED_MAX: Final = 2_000
"""Processes on other machines that are watched; of one more nothing is known."""

MEMBERS_WATCHED_MAX: Final = 2_000
"""The same of those that are watched as members of groups, which take no other's place."""

FORGET_AFTER_MS: Final = 60_000
"""A process that nobody has asked about for so long is not watched any more."""

LOOKED_AT_ONCE: Final = 100
"""Processes looked at before other calls have a turn."""


@dataclass(slots=True)
class _Place:
    """Who sees the processes of a machine, ``None`` if nobody was found."""

    actor: str | None = None
    searched_ms: float = -SEARCH_INTERVAL_MS
    call: asyncio.Task[None] | None = None
    """The search, or the question, that is under way."""


class ProcessWatch:
    """``DriverWatch`` of a process, and its ``ProcessSight``; ``own`` sees its own machine.

    ``on_failure`` gets the exception of a task that fails, which is a bug.
    """

    def __init__(
        self,
        own: ProcessSight,
        transport: Transport,
        *,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._own = own
        self._transport = transport
        self._tasks = OwnTasks(on_failure)
        self._looking: asyncio.Task[None] | None = None
        self._asked_ms: dict[DriverProcess, float] = {}
        """The processes on other machines that are watched, and when they were last asked about."""
        self._members_asked_ms: dict[DriverProcess, float] = {}
        """The same of members."""
        self._gone: set[DriverProcess] = set()
        self._places: dict[str, _Place] = {}
        """By machine, those of watched processes."""

    def lives(self, process: DriverProcess) -> bool | None:
        """See ``ProcessSight.lives``: of this machine only."""
        return self._own.lives(process)

    def is_gone(self, driver: DriverProcess, *, is_member: bool = False) -> bool:
        """See ``DriverWatch.is_gone``; call it on the event loop."""
        lives = self._own.lives(driver)
        if lives is not None:
            return not lives
        asked_ms, count_max = self._asked_ms, WATCHED_MAX
        if is_member:
            asked_ms, count_max = self._members_asked_ms, MEMBERS_WATCHED_MAX
        if driver in asked_ms or len(asked_ms) < count_max:
            asked_ms[driver] = loop_ms()
            if self._looking is None:
                self._looking = self._tasks.spawn(self._look())
        return driver in self._gone

    async def _look(self) -> None:
        """The task that asks, while anything is watched."""
        while self._asked_ms or self._members_asked_ms:
            for machine, processes in self._watched().items():
                place = self._places.setdefault(machine, _Place())
                if place.call is not None:
                    continue
                if place.actor is not None:
                    place.call = self._tasks.spawn(self._ask_in(place, processes))
                elif loop_ms() - place.searched_ms >= SEARCH_INTERVAL_MS:
                    place.searched_ms = loop_ms()
                    place.call = self._tasks.spawn(self._search(place, processes))
            await asyncio.sleep(LOOK_MS / 1_000)
        self._looking = None

    def _watched(self) -> dict[str, list[DriverProcess]]:
        """The processes of each machine that are not known to be gone; forgets old ones."""
        oldest_ms = loop_ms() - FORGET_AFTER_MS
        for asked_ms in (self._asked_ms, self._members_asked_ms):
            for process in [one for one, ms in asked_ms.items() if ms < oldest_ms]:
                del asked_ms[process]
        asked = dict.fromkeys((*self._asked_ms, *self._members_asked_ms))
        self._gone &= asked.keys()
        machines = {one.machine for one in asked}
        self._places = {name: one for name, one in self._places.items() if name in machines}
        watched: dict[str, list[DriverProcess]] = {}
        for process in asked:
            if process not in self._gone:
                watched.setdefault(process.machine, []).append(process)
        return watched

    async def _search(self, place: _Place, processes: Sequence[DriverProcess]) -> None:
        """Ask all brokers; the one that sees the processes is asked from now on."""
        request = MetadataRequest(topics=())
        known = await self._transport.call(CONTROLLER_ACTOR, request, timeout_ms=CALL_TIMEOUT_MS)
        actors = [broker_actor(broker.broker_id) for broker in known.brokers if broker.is_live]
        seen = await asyncio.gather(
            *(self._ask(actor, processes) for actor in (*actors, CONTROLLER_ACTOR))
        )
        for actor, is_seen in zip((*actors, CONTROLLER_ACTOR), seen, strict=True):
            if is_seen:
                place.actor = actor
                break
        place.call = None

    async def _ask_in(self, place: _Place, processes: Sequence[DriverProcess]) -> None:
        is_seen = place.actor is not None and await self._ask(place.actor, processes)
        if is_seen is False:
            # The broker is on another machine now.
            place.actor = None
        elif is_seen is None and loop_ms() - place.searched_ms >= SEARCH_INTERVAL_MS:
            # It may be gone for good, and another broker be on that machine.
            place.searched_ms = loop_ms()
            await self._search(place, processes)
        place.call = None

    async def _ask(self, actor: str, processes: Sequence[DriverProcess]) -> bool | None:
        """Ask once; return whether the actor sees the processes, ``None`` without an answer."""
        request = DescribeProcessesRequest(processes=tuple(processes))
        reply = await self._transport.call(actor, request, timeout_ms=CALL_TIMEOUT_MS)
        if reply.error is not ErrorCode.NONE:
            return None
        self._gone |= {
            process
            for process, lives in zip(processes, reply.lives, strict=False)
            if lives is False
        }
        return all(lives is not None for lives in reply.lives)


async def ended_members(
    watch: DriverWatch, processes: Iterable[DriverProcess]
) -> set[DriverProcess]:
    """Those of the members' processes that have ended; other calls have a turn in between."""
    ended = set()
    for count, process in enumerate(dict.fromkeys(processes)):
        if count and count % LOOKED_AT_ONCE == 0:
            await asyncio.sleep(0)
        if watch.is_gone(process, is_member=True):
            ended.add(process)
    return ended


async def described_processes(
    sight: ProcessSight, request: DescribeProcessesRequest
) -> DescribeProcessesReply:
    """What ``sight`` sees, in pieces: other calls have a turn in between."""
    lives: list[bool | None] = []
    for first in range(0, len(request.processes), LOOKED_AT_ONCE):
        if first:
            await asyncio.sleep(0)
        lives += map(sight.lives, request.processes[first : first + LOOKED_AT_ONCE])
    return DescribeProcessesReply(lives=tuple(lives))
