"""Watch the actors of a node: which are silent, or have replicas that cannot serve.

A call to each actor is always open. It ends when the process does, so a dead actor is noticed at
once, and a hung one after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from oncelog.actors.interfaces import Transport
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.brokers import OfflineReplica, PingReply, PingRequest
from oncelog.storage.errors import ErrorCode

PING_TIMEOUT_MS: Final = 1_000
"""Added to the time for which an actor holds the call."""


class WatchReport(NamedTuple):
    """What a check has found: actors that are silent, and what others say of their replicas.

    ``has_new_death``: an actor has died since the previous look.
    """

    silent_actors: tuple[str, ...] = ()
    offline_replicas: tuple[OfflineReplica, ...] = ()
    refusing_replicas: tuple[OfflineReplica, ...] = ()
    has_new_death: bool = False


class ActorWatch:
    """Calls actors; *silent* are those that have died, or not answered for ``silent_after_ms``.

    A new actor counts as heard when it is first watched, and as still starting until it has
    answered. ``hold_ms``: how long an actor holds a call.
    """

    def __init__(self, transport: Transport, *, silent_after_ms: int, hold_ms: int) -> None:
        self._transport = transport
        self._silent_after_ms = silent_after_ms
        self._hold_ms = hold_ms
        self._last_contact_ms: dict[str, int] = {}
        self._replies: dict[str, PingReply] = {}
        """Actor → its last answer; none for those that have never answered."""
        self._dead: set[str] = set()
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._has_new_death = False
        self._checked_ms = 0

    async def check(self, actors: Iterable[str]) -> WatchReport:
        """Call all of ``actors``, those watched from now on; return what they are like.

        Returns once all have answered or failed, or as soon as one has died.
        """
        self._watch(actors)
        calls = set(self._calls.values())
        try:
            while calls and not self._has_new_death:
                _, calls = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._forget(list(self._calls))
            raise
        for name, call in list(self._calls.items()):
            if call.done():
                del self._calls[name]
                call.result()
        return self._report()

    def _watch(self, actors: Iterable[str]) -> None:
        now_ms = loop_ms()
        if now_ms - self._checked_ms > self._silent_after_ms:
            # This process was stalled and heard nobody; that says nothing about the actors.
            self._last_contact_ms = {}
        self._checked_ms = now_ms
        self._last_contact_ms = {name: self._last_contact_ms.get(name, now_ms) for name in actors}
        self._forget([name for name in self._calls if name not in self._last_contact_ms])
        self._replies = {
            n: reply for n, reply in self._replies.items() if n in self._last_contact_ms
        }
        self._dead &= self._last_contact_ms.keys()
        for name in self._last_contact_ms:
            if name not in self._calls:
                self._calls[name] = asyncio.ensure_future(self._ask(name))

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._calls.pop(name).cancel()

    def _report(self) -> WatchReport:
        oldest_ms, replies = loop_ms() - self._silent_after_ms, self._replies.values()
        has_new_death, self._has_new_death = self._has_new_death, False
        return WatchReport(
            tuple(
                name
                for name, last_contact_ms in self._last_contact_ms.items()
                if last_contact_ms < oldest_ms or name in self._dead
            ),
            tuple(one for reply in replies for one in reply.offline_replicas),
            tuple(one for reply in replies for one in reply.refusing_replicas),
            has_new_death,
        )

    async def _ask(self, name: str) -> None:
        reply = await self._ping(name, self._hold_ms)
        if reply.error is ErrorCode.NETWORK_EXCEPTION and self._is_alive(name):
            # Its connection has ended, but perhaps not its process.
            reply = await self._ping(name, 0)
            if reply.error is ErrorCode.NETWORK_EXCEPTION:
                self._dead.add(name)
                self._has_new_death = True
        if reply.error is ErrorCode.NONE:
            self._last_contact_ms[name] = loop_ms()
            self._dead.discard(name)
            self._replies[name] = reply
        elif name in self._replies:
            self._replies[name] = PingReply(error=reply.error)

    def _is_alive(self, name: str) -> bool:
        """Whether the actor has answered and has not died since."""
        return name in self._replies and name not in self._dead

    async def _ping(self, name: str, hold_ms: int) -> PingReply:
        request, timeout_ms = PingRequest(hold_ms=hold_ms), hold_ms + PING_TIMEOUT_MS
        return await self._transport.call(name, request, timeout_ms=timeout_ms)
