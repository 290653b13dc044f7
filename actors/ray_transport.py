"""Calls between Ray actors by name, with deadlines; Ray's failures become retriable codes.

The only file that submits calls. A failed call may have run, and one given up on may still run:
every request is made so that neither matters.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
    """``Background`` on one thread, so that pieces of work keep their order."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="oncelog-disk")

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Run ``work`` on the thread and return its result or raise its exception."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
