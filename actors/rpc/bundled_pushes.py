"""``Transport`` of a host: its small pushes to replicas of another host travel together.

A call costs both sides more than the push of a small batch: sending those of a turn of the event
loop together saves a fifth of the processor time of replication. Each push has an answer of its
own. None waits long for another's disk: what is not synced soon is answered as such, and pushed
again by itself, which a follower that has it by then takes for a repetition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from oncelog.actors.interfaces import Transport
from oncelog.actors.process.background import settle
from oncelog.actors.process.own_tasks import OwnTasks
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.replication import (
    HeldPush,
    ReplicateManyRequest,
    ReplicateReply,
    ReplicateRequest,
)
from oncelog.actors.rpc.message_codec import LONG_BYTES
from oncelog.storage.errors import ErrorCode

APART_S: Final = 5.0
"""How long pushes travel by themselves to a host that did not sync all of them soon."""


class _Waiting(NamedTuple):
    push: HeldPush
    answer: asyncio.Future[ReplicateReply | None]
    """``None``: it is to travel by itself."""


class BundledPushes:
    """Sends small pushes of one turn to one host in one call, and all other calls by ``others``.

    ``on_failure`` is given a bug. What waits is bounded by the replicas held here: each leader has
    one push at a time on its way to a follower.
    """

    def __init__(self, others: Transport, on_failure: Callable[[BaseException], None]) -> None:
        self._others = others
        self._tasks = OwnTasks(on_failure)
        self._bundles: dict[str, list[_Waiting]] = {}
        self._apart_until_s: dict[str, float] = {}

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """See ``Transport.call``."""
        host, _, key = actor.partition("/")
        if isinstance(request, ReplicateRequest) and key and self._may_wait(host, request):
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            answer: asyncio.Future[Any] = loop.create_future()
            if host not in self._bundles:
                self._bundles[host] = []
                loop.call_soon(self._leave, host, timeout_ms)
            self._bundles[host].append(_Waiting(HeldPush(key=key, request=request), answer))
            reply: ReplyT | None = await answer
            if reply is not None:
                return reply
            timeout_ms = max(1, timeout_ms - int(1000 * (loop.time() - begun_s)))
        return await self._others.call(actor, request, timeout_ms=timeout_ms)

    def _may_wait(self, host: str, request: ReplicateRequest) -> bool:
        """Whether it is small, as a large one is sent without a copy, and its host is quick."""
        if len(request.batches) > LONG_BYTES:
            return False
        until_s = self._apart_until_s.get(host)
        if until_s is not None and asyncio.get_running_loop().time() >= until_s:
            del self._apart_until_s[host]
        return host not in self._apart_until_s

    def _leave(self, host: str, timeout_ms: int) -> None:
        bundle = self._bundles.pop(host)
        if len(bundle) == 1:
            settle(bundle[0].answer, None)
        else:
            self._tasks.spawn(self._send(host, bundle, timeout_ms))

    async def _send(self, host: str, bundle: list[_Waiting], timeout_ms: int) -> None:
        request = ReplicateManyRequest(pushes=tuple(one.push for one in bundle))
        reply = await self._others.call(host, request, timeout_ms=timeout_ms)
        replies: list[ReplicateReply | None]
        if reply.error is ErrorCode.NONE and len(reply.replies) == len(bundle):
            is_late = ErrorCode.REQUEST_TIMED_OUT
            replies = [None if one.error is is_late else one for one in reply.replies]
        elif reply.error in {ErrorCode.NONE, ErrorCode.INVALID_REQUEST}:
            # An older version, which knows no such call.
            replies = [None] * len(bundle)
        else:
            replies = [one.push.request.failed(reply.error, reply.detail) for one in bundle]
        if None in replies:
            self._apart_until_s[host] = asyncio.get_running_loop().time() + APART_S
        for one, its_reply in zip(bundle, replies, strict=True):
            settle(one.answer, its_reply)
