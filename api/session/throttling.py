"""Waits before calling an actor that has asked for it: this program is over its limits.

An actor reads no more of a throttled program's requests until the time in its reply is over. Here
they wait before they are sent, up to their deadline, so that none is lost in a mute connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oncelog.actors.interfaces import Transport
from oncelog.actors.process.clock import monotonic_s
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.quotas import THROTTLE_MAX_MS
from oncelog.storage.errors import ErrorCode


class PoliteTransport:
    """Calls by ``transport``, each when its actor is ready for it. For all event loops together.

    Replicas of one actor share its limits. Bounded by the actors that throttled this program in
    the last ``THROTTLE_MAX_MS``.
    """

    def __init__(self, transport: Transport, now_s: Callable[[], float] = monotonic_s) -> None:
        self._transport = transport
        self._now_s = now_s
        self._ready_s: dict[str, float] = {}
        """Actor → when it may be called again."""

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """See ``Transport.call``; ``THROTTLING_QUOTA_EXCEEDED`` if it was not sent in time."""
        name = actor.partition("/")[0]
        if name in self._ready_s:
            timeout_ms = await self._until_ready(name, timeout_ms)
            if timeout_ms <= 0:
                return request.failed(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    f"not sent in time: {name} asks this program to wait, as it is over its limits",
                )
        reply = await self._transport.call(actor, request, timeout_ms=timeout_ms)
        if isinstance(reply.throttle_ms, int):
            self._note(name, reply.throttle_ms)
        return reply

    async def _until_ready(self, name: str, timeout_ms: int) -> int:
        """Wait until ``name`` may be called; return how much of ``timeout_ms`` is left, or 0."""
        deadline_s = self._now_s() + timeout_ms / 1000
        while (wait_s := self._ready_s.get(name, 0.0) - self._now_s()) > 0:
            left_s = deadline_s - self._now_s()
            if left_s <= 0:
                return 0
            await asyncio.sleep(min(wait_s, left_s))
        self._ready_s.pop(name, None)
        return max(1, round(1000 * (deadline_s - self._now_s())))

    def _note(self, name: str, throttle_ms: int) -> None:
        """Remember a throttle, and forget those that are over."""
        now_s = self._now_s()
        ready_s = now_s + min(throttle_ms, THROTTLE_MAX_MS) / 1000
        waiting = {known: time_s for known, time_s in self._ready_s.items() if time_s > now_s}
        self._ready_s = waiting | {name: max(ready_s, waiting.get(name, 0.0))}
