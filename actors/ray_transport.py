"""Calls between Ray actors by name, with deadlines; Ray's failures become retriable codes.

The only file that submits calls. A failed call may have run, and one given up on may still run:
every request is made so that neither matters.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import pickle
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    RayActorError,
    RayError,
    RayTaskError,
)

from oncelog.actors.background import settle
from oncelog.actors.interfaces import NAMESPACE, ResultT
from oncelog.actors.protocol.messages import ReplyT, Request
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)


def pack(message: object) -> bytes:
    """``message`` as the bytes that travel.

    Ray hands bytes through as they are; an object costs each side of a call a pass of its own
    serializer, under the lock of the interpreter, which is more than all else the call does.
    """
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(packed: bytes) -> Any:
    """What ``pack`` packed. Both ends are processes of one cluster, which runs our code anyway."""
    return pickle.loads(packed)  # noqa: S301 - Ray itself would do the same


class RayTransport:
    """``Transport`` over Ray actor handles, looked up by name and kept until they die."""

    def __init__(self, namespace: str = NAMESPACE) -> None:
        self._namespace = namespace
        self._methods: dict[str, dict[str, Any]] = {}

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """Call ``request.method`` of ``actor``; see ``Transport.call``."""
        try:
            method = self._methods.get(actor, {}).get(request.method)
            if method is None:
                handle = await asyncio.to_thread(ray.get_actor, actor, self._namespace)
                method = getattr(handle, request.method, None)
                if method is None:
                    # Another program's actor has the name.
                    return request.failed(
                        ErrorCode.UNKNOWN_SERVER_ERROR, f"it has no method {request.method!r}"
                    )
                self._methods.setdefault(actor, {})[request.method] = method
            answer = await _within(timeout_ms, method.remote(pack(request)).future())
        except ActorUnavailableError:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        except (ActorDiedError, RayActorError, ValueError):
            # The name is free, or belongs to a new actor: look it up again next time.
            self._methods.pop(actor, None)
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        except RayTaskError as error:
            _logger.exception("%s.%s raised", actor, request.method)
            return request.failed(ErrorCode.UNKNOWN_SERVER_ERROR, str(error.cause))
        except RayError as error:
            return request.failed(ErrorCode.NETWORK_EXCEPTION, str(error))
        if answer is None:
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)
        reply: ReplyT = unpack(answer) if isinstance(answer, bytes) else answer
        return reply


async def _within(timeout_ms: int, answer: concurrent.futures.Future[ResultT]) -> ResultT | None:
    """The value of ``answer``, or ``None`` when it does not come in time.

    One future and one timer, where asyncio's own helpers make a task and more of each. Awaiting a
    bare future is also what lets a cancellation win that meets the answer in one turn: a task that
    was told to end does not go on with it.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[ResultT | None] = loop.create_future()
    answer.add_done_callback(functools.partial(_hand_over, loop, waiting))
    timer = loop.call_later(timeout_ms / 1000, settle, waiting, None, None)
    try:
        return await waiting
    finally:
        timer.cancel()


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    waiting: asyncio.Future[ResultT | None],
    answer: concurrent.futures.Future[ResultT],
) -> None:
    """Bring an answer, which comes in one of Ray's threads, to the loop that waits for it."""
    error = answer.exception()
    result = answer.result() if error is None else None
    try:
        loop.call_soon_threadsafe(settle, waiting, result, error)
    except RuntimeError:
        _logger.debug("an answer came after the event loop that asked was closed")
