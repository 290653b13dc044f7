"""Tells every process of the cluster the users and ACLs, after each change.

A process that cannot be reached is told again a few times. By then it has asked by itself, as it
does when it starts and now and then (``rpc/door.py``), if it can reach this one. Neither the others
nor the next change wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from oncelog.actors.interfaces import Transport
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.protocol.messages.access import Access, LearnAccessRequest
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)

ACCESS_ANNOUNCE_RETRY_MS: Final = 500
"""Interval at which a process that was not reached is told again."""

ACCESS_ROUNDS_MAX: Final = 20
"""How often; together at least the interval at which it asks by itself."""

ACCESS_CALLS_MAX: Final = 64
"""Calls that are begun together; the others wait."""

ACCESS_SLOW_MS: Final = 100
"""For so long a call has others wait: one behind a cut network must not hold up the rest."""

_REACHED: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_REQUEST})
"""The latter is of a process of an earlier build, which has no rules."""


class AccessAnnouncements:
    """Tells the newest state to all that do not have it yet.

    ``actors`` lists the names of all that are to know it.
    """

    def __init__(
        self,
        *,
        access: Callable[[], Access],
        actors: Callable[[], set[str]],
        transport: Transport,
        tasks: OwnTasks,
        timeout_ms: int,
    ) -> None:
        self._access = access
        self._actors = actors
        self._transport = transport
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._told: dict[str, int] = {}
        """Actor → the version that it has; bounded by the number of actors."""
        self._calls: dict[str, asyncio.Task[bool]] = {}
        """Actor → the call that tells it, one at a time."""
        self._starting = asyncio.Semaphore(ACCESS_CALLS_MAX)
        self._rounds: dict[int, asyncio.Task[None]] = {}
        """Version → its first round, while that lasts; bounded by the requests in progress."""
        self._announced_version = -1
        """The highest version whose first round is over."""
        self._retrying: asyncio.Task[None] | None = None

    async def announce(self) -> None:
        """Tell all; return once each has answered, or has not been reached in time."""
        version = self._access().rules.version
        if version <= self._announced_version:
            return
        first = self._rounds.get(version)
        if first is None:
            first = self._rounds[version] = self._tasks.spawn(self._tell_first(version))
            first.add_done_callback(lambda _: self._rounds.pop(version, None))
        # Also if it is cancelled, as this controller stops.
        await asyncio.wait({first})

    async def _tell_first(self, version: int) -> None:
        left = await self._tell_all(version)
        self._announced_version = max(self._announced_version, version)
        if not left:
            return
        shown = ", ".join(left[:3])
        _logger.info("%d actors missed users and ACLs, and are told again: %s", len(left), shown)
        if self._retrying is None or self._retrying.done():
            self._retrying = self._tasks.spawn(self._retry())

    async def _retry(self) -> None:
        """Tell the newest state to those that were not reached, so often after each change."""
        version, round_count = -1, 1
        while round_count < ACCESS_ROUNDS_MAX:
            await asyncio.sleep(ACCESS_ANNOUNCE_RETRY_MS / 1000)
            newest = self._access().rules.version
            round_count = round_count + 1 if newest == version else 1
            version = newest
            if not await self._tell_all(version) and version == self._access().rules.version:
                return

    async def _tell_all(self, version: int) -> list[str]:
        """Tell all at least this version; return those that were not reached."""
        # Listed again each time: there may be fewer.
        actors = self._actors()
        self._told = {name: told for name, told in self._told.items() if name in actors}
        missing = [name for name in actors if self._told.get(name, -1) < version]
        # Those first that were reached before.
        missing.sort(key=lambda name: (name not in self._told, name))
        are_told = await asyncio.gather(*(self._tell(name, version) for name in missing))
        return [name for name, is_told in zip(missing, are_told, strict=True) if not is_told]

    async def _tell(self, name: str, version: int) -> bool:
        """Tell one at least this version; a call in progress may have an earlier one."""
        while self._told.get(name, -1) < version:
            call = self._calls.get(name)
            if call is None:
                call = self._calls[name] = self._tasks.spawn(self._call(name))
                call.add_done_callback(lambda _: self._calls.pop(name, None))
            await asyncio.wait({call})
            if call.cancelled() or call.exception() is not None or not call.result():
                return False
        return True

    async def _call(self, name: str) -> bool:
        """Tell one the newest state; return whether it was reached."""
        async with self._starting:
            access = self._access()
            request = LearnAccessRequest(access=access)
            calling = self._tasks.spawn(
                self._transport.call(name, request, timeout_ms=self._timeout_ms)
            )
            await asyncio.wait({calling}, timeout=ACCESS_SLOW_MS / 1000)
        reply = await calling
        if reply.error not in _REACHED:
            return False
        self._told[name] = access.rules.version
        return True
