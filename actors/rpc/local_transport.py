"""``Transport`` of a host: a call to a replica of the same process is a call of its method."""

from __future__ import annotations

import asyncio
import functools

from oncelog.actors.interfaces import Transport
from oncelog.actors.process.background import settle
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.storage.errors import ErrorCode


class LocalTransport:
    """Calls the replicas that the actor ``name`` holds directly, and all others by ``others``.

    As with a call that travels, its caller may give up while it goes on.
    """

    def __init__(self, name: str, others: Transport) -> None:
        self.dispatch: Dispatch | None = None
        """Set by the process, once it has what answers calls."""
        self._name = name
        self._others = others
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """See ``Transport.call``."""
        name, _, key = actor.partition("/")
        if name != self._name or self.dispatch is None:
            return await self._others.call(actor, request, timeout_ms=timeout_ms)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ReplyT] = loop.create_future()
        task = loop.create_task(self._answer(self.dispatch, key, request, answer))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._answered, answer))
        timed_out = request.failed(ErrorCode.REQUEST_TIMED_OUT)
        timer = loop.call_later(timeout_ms / 1000, settle, answer, timed_out)
        try:
            return await answer
        finally:
            timer.cancel()

    async def _answer(
        self,
        dispatch: Dispatch,
        key: str,
        request: Request[ReplyT],
        answer: asyncio.Future[ReplyT],
    ) -> None:
        settle(answer, await dispatch.answer_here(key, request))

    def _answered(self, answer: asyncio.Future[ReplyT], task: asyncio.Task[None]) -> None:
        """A caller that waits hears of a bug too."""
        self._tasks.discard(task)
        bug = None if task.cancelled() else task.exception()
        if bug is not None and not answer.done():
            answer.set_exception(bug)
