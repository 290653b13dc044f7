"""Calls to Ray actors by name, with deadlines; Ray's failures become retriable codes.

The only file that submits calls to Ray: to actors that do not listen, to ask where others listen,
and to those that cannot be connected to (``actor_transport.py``). A failed call may have run, and
an abandoned one may still run; every request is idempotent, so neither matters.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
from dataclasses import dataclass
from typing import Any, cast

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    RayActorError,
    RayError,
    RayTaskError,
)

from oncelog.actors.interfaces import NAMESPACE, ResultT
from oncelog.actors.process.background import resolve_future
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.rpc.call_meter import UNMETERED, MeteredCall
from oncelog.actors.rpc.dispatch import read_answer
from oncelog.actors.rpc.handshake import server_proof_by_ray
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.actors.rpc.message_codec import answers_on_connections, encode
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import ConnectionFailedError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RayFailure:
    """The error code and text of a call without an answer."""

    error: ErrorCode
    detail: str = ""


class RayTransport:
    """``Transport`` over Ray actor handles, looked up by name and kept until they die.

    With a ``server_secret`` it is a server that calls, and proves it.
    """

    def __init__(self, namespace: str = NAMESPACE, server_secret: bytes = b"") -> None:
        self._namespace = namespace
        self._server_secret = server_secret
        self._handles: dict[str, Any] = {}

    async def call(
        self,
        actor: str,
        request: Request[ReplyT],
        *,
        timeout_ms: int,
        metered: MeteredCall = UNMETERED,
        key: str = "",
    ) -> ReplyT:
        """Call ``request.method`` of ``actor``; see ``RayCalls.call``."""
        is_encoded = answers_on_connections(request)
        try:
            argument = encode(request) if is_encoded else request
        except ValueError as error:
            return request.failed(ErrorCode.INVALID_REQUEST, str(error))
        if isinstance(argument, bytes):
            metered.request_bytes = len(argument)
        proof = server_proof_by_ray(self._server_secret, request.method)
        arguments = (argument, key, proof) if proof else (argument, key) if key else (argument,)
        answer = await self._submit(actor, request.method, *arguments, timeout_ms=timeout_ms)
        if isinstance(answer, RayFailure):
            return request.failed(answer.error, answer.detail)
        if not is_encoded:
            return cast("ReplyT", answer)
        try:
            outcome, body = answer
            metered.reply_bytes = len(body)
            return cast("ReplyT", read_answer(request, outcome, body))
        except (TypeError, ValueError) as error:
            # Another program's actor has the name, and such a method.
            text = f"unreadable reply: {error}"
            return request.failed(ErrorCode.UNKNOWN_SERVER_ERROR, text)

    async def listener_of(
        self, actor: str, *, timeout_ms: int
    ) -> ListenerAddress | ErrorCode | None:
        """Where ``actor`` listens; see ``RayCalls.listener_of``."""
        told = await self.told_listener(actor, timeout_ms=timeout_ms)
        return told.keyed(ray_token()) if isinstance(told, ListenerAddress) else told

    async def told_listener(
        self, actor: str, *, timeout_ms: int
    ) -> ListenerAddress | ErrorCode | None:
        """The same, but the token is the listener's own: callers prove it keyed with Ray's."""
        answer = await self._submit(actor, "listener_address", timeout_ms=timeout_ms)
        if isinstance(answer, ListenerAddress):
            return answer
        if not isinstance(answer, RayFailure):
            return None
        # An actor that fails here, or is not ours, may still answer calls.
        return None if answer.error is ErrorCode.UNKNOWN_SERVER_ERROR else answer.error

    async def _submit(self, actor: str, method: str, *arguments: Any, timeout_ms: int) -> Any:
        """Call ``method`` of ``actor``; return its result or a ``RayFailure``."""
        if not ray.is_initialized():
            # The handles belong to a Ray that was shut down.
            self._handles.clear()
        try:
            handle = self._handles.get(actor)
            if handle is None:
                handle = await asyncio.to_thread(find_actor, actor, self._namespace)
                self._handles[actor] = handle
            remote = getattr(handle, method, None)
            if remote is None:
                # Another program's actor has the name.
                return RayFailure(ErrorCode.UNKNOWN_SERVER_ERROR, f"it has no method {method!r}")
            return await _within(timeout_ms, remote.remote(*arguments).future())
        except RayTaskError as error:
            # Caught first: Ray's wrapper of a ValueError is a ValueError as well.
            _logger.exception(
                "%s.%s raised — see that actor's log: `oncelog logs %s`", actor, method, actor
            )
            return RayFailure(ErrorCode.UNKNOWN_SERVER_ERROR, str(error.cause))
        except ActorUnavailableError:
            return RayFailure(ErrorCode.NETWORK_EXCEPTION)
        except (ActorDiedError, RayActorError, ValueError):
            # The name is free or has a new actor: look it up again next time.
            self._handles.pop(actor, None)
            return RayFailure(ErrorCode.NETWORK_EXCEPTION)
        except (RayError, ConnectionFailedError) as error:
            return RayFailure(ErrorCode.NETWORK_EXCEPTION, str(error))
        except asyncio.TimeoutError:
            return RayFailure(ErrorCode.REQUEST_TIMED_OUT)


def ray_token() -> bytes:
    """Ray's own token; empty without one."""
    # Of a private module: Ray has no public way to its token.
    loader = cast("Any", ray)._raylet.AuthenticationTokenLoader.instance()
    return str(loader.get_raw_token()).encode() if loader.has_token() else b""


def find_actor(actor: str, namespace: str | None = NAMESPACE) -> Any:
    """The Ray handle of a named actor; ``ValueError`` if there is none. Never starts Ray.

    ``namespace`` ``None`` is the program's. ``ray.get_actor`` starts Ray if it is not initialized:
    a new, empty one in a program that has shut Ray down. This raises ``ConnectionFailedError``
    instead.
    """
    if not ray.is_initialized():
        raise ConnectionFailedError("Ray is not initialized in this process: was it shut down?")
    # Without the wrapper that starts Ray, which may be shut down at this moment.
    get_actor = getattr(ray.get_actor, "__wrapped__", ray.get_actor)
    return get_actor(actor, namespace)


async def _within(timeout_ms: int, answer: concurrent.futures.Future[ResultT]) -> ResultT | None:
    """The value of ``answer``; ``asyncio.TimeoutError`` if it does not arrive in time.

    It needs one future and one timer; asyncio's helpers need a task and more of each. Awaiting a
    bare future also lets a cancellation win over an answer in the same turn: a cancelled task does
    not continue with the answer.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[ResultT | None] = loop.create_future()
    answer.add_done_callback(functools.partial(_hand_over, loop, waiting))
    timer = loop.call_later(
        timeout_ms / 1000, resolve_future, waiting, None, asyncio.TimeoutError()
    )
    try:
        return await waiting
    finally:
        timer.cancel()


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    waiting: asyncio.Future[ResultT | None],
    answer: concurrent.futures.Future[ResultT],
) -> None:
    """Hand an answer from one of Ray's threads to the loop that waits for it."""
    error = answer.exception()
    result = answer.result() if error is None else None
    try:
        loop.call_soon_threadsafe(resolve_future, waiting, result, error)
    except RuntimeError:
        _logger.debug("an answer came after the event loop that asked was closed")
