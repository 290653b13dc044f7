"""Calls between Ray actors by name, with deadlines; Ray's failures become retriable codes.

The only file that submits calls. A failed call may have run, and one given up on may still run:
every request is made so that neither matters.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, TypeAlias

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    RayActorError,
    RayError,
    RayTaskError,
)

from oncelog.actors.interfaces import NAMESPACE, ResultT
from oncelog.actors.protocol.messages import ReplyT, Request
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)


class RayTransport:
    """``Transport`` over Ray actor handles, looked up by name and kept until they die."""

    def __init__(self, namespace: str = NAMESPACE) -> None:
        self._namespace = namespace
        self._handles: dict[str, Any] = {}

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """Call ``request.method`` of ``actor``; see ``Transport.call``."""
        try:
            handle = self._handles.get(actor)
            if handle is None:
                handle = await asyncio.to_thread(ray.get_actor, actor, self._namespace)
                self._handles[actor] = handle
            method = getattr(handle, request.method, None)
            if method is None:
                # Another program's actor has the name.
                return request.failed(
                    ErrorCode.UNKNOWN_SERVER_ERROR, f"it has no method {request.method!r}"
                )
            reply: ReplyT | None = await _within(timeout_ms, method.remote(request))
        except ActorUnavailableError:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        except (ActorDiedError, RayActorError, ValueError):
            # The name is free, or belongs to a new actor: look it up again next time.
            self._handles.pop(actor, None)
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        except RayTaskError as error:
            _logger.exception("%s.%s raised", actor, request.method)
            return request.failed(ErrorCode.UNKNOWN_SERVER_ERROR, str(error.cause))
        except RayError as error:
            return request.failed(ErrorCode.NETWORK_EXCEPTION, str(error))
        return request.failed(ErrorCode.REQUEST_TIMED_OUT) if reply is None else reply


async def _within(timeout_ms: int, reference: Awaitable[ResultT]) -> ResultT | None:
    """The value of ``reference``, or ``None`` when it does not come in time.

    Not ``asyncio.wait_for``: that swallows a cancellation which meets the answer (before Python
    3.12), and a task that was told to end would go on with it.
    """
    waiting = asyncio.ensure_future(reference)
    try:
        done, _ = await asyncio.wait({waiting}, timeout=timeout_ms / 1000)
        return waiting.result() if done else None
    finally:
        waiting.cancel()


class SystemClock:
    """``Clock`` of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


class ThreadBackground:
    """``Background`` on one thread, so that pieces of work keep their order.

    Every sync passes here, so it is a bare queue: half the delay of an executor. Work that was
    given is run even if nobody waits for it any more.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Piece | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=_work_off, args=(self._queue,), name="oncelog-disk", daemon=True
        )
        self._is_started = False
        weakref.finalize(self, self._queue.put, None)

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Run ``work`` on the thread and return its result or raise its exception."""
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._queue.put((loop, future, work))
        return await future


_Piece: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


def _work_off(queue: SimpleQueue[_Piece | None]) -> None:
    while (piece := queue.get()) is not None:
        loop, future, work = piece
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(_settle, future, result, error)
        except RuntimeError:
            _logger.warning("work ended after the event loop that asked for it was closed")
        del piece, loop, future, work, result, error


def _settle(future: asyncio.Future[ResultT], result: ResultT, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
