"""Call a leader, and give the call up once another leads: the first may hang.

A hung process accepts calls and answers none. Others lead its partitions after the session of its
broker, long before the deadline of a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from oncelog.actors.interfaces import Transport
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.storage.errors import ErrorCode

LEADER_CHECK_MS: Final = 1_000
"""Time without an answer before the leader is looked up, and the interval after that."""


class LeaderWatch:
    """One call to ``actor``. ``leader_now`` looks the leader up; ``None`` if it is unknown."""

    def __init__(self, actor: str, leader_now: Callable[[], Awaitable[str | None]]) -> None:
        self._actor = actor
        self._leader_now = leader_now
        self._caller: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._check: asyncio.Task[None] | None = None
        self._has_moved = False
        self._bug: BaseException | None = None
        """An exception of a look-up: a bug."""

    async def call(
        self, transport: Transport, request: Request[ReplyT], *, timeout_ms: int
    ) -> ReplyT:
        """The reply, or ``NETWORK_EXCEPTION`` once another leads: it may still take effect."""
        self._caller = asyncio.current_task()
        self._check_later()
        try:
            return await transport.call(self._actor, request, timeout_ms=timeout_ms)
        except asyncio.CancelledError:
            is_ours = self._has_moved or self._bug is not None
            if not is_ours or _is_cancelled_by_others(self._caller):
                raise
            if self._bug is not None:
                raise self._bug from None
            return request.failed(ErrorCode.NETWORK_EXCEPTION, f"{self._actor} leads no longer")
        finally:
            self._caller = None
            if self._timer is not None:
                self._timer.cancel()
            if self._check is not None:
                self._check.cancel()

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LEADER_CHECK_MS / 1000, self._begin_check)

    def _begin_check(self) -> None:
        self._check = asyncio.get_running_loop().create_task(self._cancel_if_moved())
        self._check.add_done_callback(self._on_check_end)

    def _on_check_end(self, check: asyncio.Task[None]) -> None:
        """A bug would leave the call unwatched: its caller gets it instead of a reply.

        A program that shuts down cancels all tasks it finds; then the next look-up follows.
        """
        if self._caller is None or self._has_moved:
            return
        if not check.cancelled() and check.exception() is not None:
            self._bug = check.exception()
            self._caller.cancel()
        else:
            self._check_later()

    async def _cancel_if_moved(self) -> None:
        leader = await self._leader_now()
        if leader is None or leader == self._actor or self._caller is None:
            return
        self._has_moved = True
        self._caller.cancel()


def _is_cancelled_by_others(caller: asyncio.Task[object] | None) -> bool:
    """Take back our own cancellation; return whether there is another. Unknown in Python 3.10."""
    uncancel: Callable[[], int] | None = getattr(caller, "uncancel", None)
    return uncancel is not None and uncancel() > 0
