"""Tells every process of the cluster the users and ACLs, after each change.

A process that cannot be reached is told again a few times. By then it has asked by itself, as it
does when it starts and now and then (``rpc/door.py``), if it can reach this one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from oncelog.actors.interfaces import Transport
from oncelog.actors.process.background import OwnTasks, resolve_future
from oncelog.actors.protocol.messages.access import Access, LearnAccessRequest
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)

ACCESS_ANNOUNCE_RETRY_MS: Final = 500
"""Interval at which a process that was not reached is told again."""

ACCESS_ROUNDS_MAX: Final = 20
"""How often; together at least the interval at which it asks by itself."""

ACCESS_CALLS_MAX: Final = 64
"""Concurrent calls; the others wait."""

_REACHED: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_REQUEST})
"""The latter is of a process of an earlier build, which has no rules."""


class AccessAnnouncements:
    """One task that tells the newest state to all that do not have it yet.

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
        self._task: asyncio.Task[None] | None = None
        self._told: dict[str, int] = {}
        """Actor → the version that it has; bounded by the number of actors."""
        self._round_version = -1
        """The version of the last round that is over."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """Versions whose round is waited for; bounded by the requests in progress."""

    async def announce(self) -> None:
        """Tell all; return once each has answered, or has not been reached in time."""
        wanted = self._access().rules.version
        if wanted <= self._round_version:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, waiting))
        if self._task is None or self._task.done():
            self._task = self._tasks.spawn(self._tell_all())
            # Also if it is cancelled before its first step.
            self._task.add_done_callback(self._ended)
        await waiting

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._release(wanted=None)

    def _release(self, wanted: int | None) -> None:
        """Answer those that wait for this version or an earlier one; ``None``: all."""
        waiting, self._waiting = self._waiting, []
        for version, future in waiting:
            if wanted is None or version <= wanted:
                resolve_future(future, None)
            else:
                self._waiting.append((version, future))

    async def _tell_all(self) -> None:
        calling = asyncio.Semaphore(ACCESS_CALLS_MAX)
        round_count = 0
        while True:
            # Read again in each round: there may be a newer one, or fewer actors.
            access, actors = self._access(), self._actors()
            version = access.rules.version
            self._told = {name: told for name, told in self._told.items() if name in actors}
            missing = sorted(name for name in actors if self._told.get(name, -1) < version)
            await asyncio.gather(*(self._tell(name, access, calling) for name in missing))
            self._round_version = version
            self._release(version)
            if self._access().rules.version > version:
                round_count = 0
                continue
            left = [name for name in missing if self._told.get(name, -1) < version]
            round_count += 1
            if left and round_count == 1:
                shown = ", ".join(left[:3])
                _logger.warning("%d actors missed users and ACLs: %s", len(left), shown)
            if not left or round_count == ACCESS_ROUNDS_MAX:
                return
            await asyncio.sleep(ACCESS_ANNOUNCE_RETRY_MS / 1000)

    async def _tell(self, name: str, access: Access, calling: asyncio.Semaphore) -> None:
        async with calling:
            request = LearnAccessRequest(access=access)
            reply = await self._transport.call(name, request, timeout_ms=self._timeout_ms)
        if reply.error in _REACHED:
            self._told[name] = access.rules.version
