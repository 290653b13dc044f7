"""Answers the calls that reach an actor over connections of its own.

Ray starts, names, places and restarts the actor; its task calls cost a millisecond of processor
time each, which is many times what the work of a small call costs (``docs/adr/0010``).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from oncelog.actors import message_codec
from oncelog.actors.frames import FRAME_MAX_BYTES, HELLO, FramedProtocol, Outcome
from oncelog.storage.errors import InvariantViolation

_logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
FIRST_FRAME_TIMEOUT_S: Final = 10.0
_FIRST_FRAME_MAX_BYTES: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAddress:
    """Where one life of an actor listens, and the token that it wants to see first."""

    host: str
    port: int
    token: bytes


class Listener:
    """Serves the public methods of ``server`` that are those of requests.

    ``token`` is told only to those whom Ray lets call the actor, and new in each life of it.
    ``on_bug`` ends the process when a call meets a broken invariant.
    """

    def __init__(
        self,
        server: object,
        *,
        host: str,
        token: bytes,
        on_bug: Callable[[InvariantViolation], object],
    ) -> None:
        self.server = server
        self.token = token
        self.answered_calls = 0
        self._host = host
        self._on_bug = on_bug
        self._opening: asyncio.Task[asyncio.Server] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def address(self) -> ListenerAddress:
        """Where to connect to; begins to listen, on the running loop, at the first call.

        ``OSError`` if the address cannot be listened on.
        """
        if self._opening is None or (self._opening.done() and self._opening.exception()):
            self._opening = asyncio.ensure_future(self._listen())
        opened = await asyncio.shield(self._opening)
        return ListenerAddress(
            host=self._host, port=opened.sockets[0].getsockname()[1], token=self.token
        )

    async def _listen(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _Caller(self), self._host, 0, backlog=1_024)

    async def close(self) -> None:
        """Listen no more; calls that run go on."""
        if self._opening is not None:
            (await asyncio.shield(self._opening)).close()

    def begin(self, caller: _Caller, correlation_id: int, method: str, body: memoryview) -> None:
        """Answer one request in a task of its own."""
        if method not in message_codec.REQUESTS:
            self._refuse(caller, correlation_id, f"no request has the method {method!r}")
            return
        try:
            request = message_codec.decode_request(method, body)
        except ValueError as error:
            self._refuse(caller, correlation_id, f"not a request of {method!r}: {error}")
            return
        answer = getattr(self.server, method, None)
        if answer is None:
            self._refuse(caller, correlation_id, f"it has no method {method!r}")
            return
        task = caller.loop.create_task(self._answer(caller, correlation_id, answer, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, caller: _Caller, correlation_id: int, method: Any, request: object
    ) -> None:
        self.answered_calls += 1
        try:
            reply = message_codec.encode_in_parts(await method(request))
            caller.send(correlation_id, Outcome.REPLY, *reply)
        except InvariantViolation as bug:
            self._on_bug(bug)
        except Exception as error:
            _logger.exception("%r.%s raised", self.server, method.__name__)
            caller.send(correlation_id, Outcome.FAILED, repr(error).encode())

    def _refuse(self, caller: _Caller, correlation_id: int, reason: str) -> None:
        _logger.warning("%r refused a call: %s", self.server, reason)
        caller.send(correlation_id, Outcome.REFUSED, reason.encode())


class _Caller(FramedProtocol):
    """One connection of one caller. Nothing but its token is looked at before that is right."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(frame_max_bytes=_FIRST_FRAME_MAX_BYTES)
        self._listener = listener
        self._is_trusted = False
        self._patience = self.loop.call_later(FIRST_FRAME_TIMEOUT_S, self.close)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """What it asked for goes on: a caller may also have given up only on the answer."""
        self._patience.cancel()

    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        """A request; ``kind`` is the length of its method's name."""
        method = bytes(body[:kind]).decode("ascii", "replace")
        message = body[kind:]
        if self._is_trusted:
            self._listener.begin(self, correlation_id, method, message)
        elif method == HELLO and hmac.compare_digest(bytes(message), self._listener.token):
            self._is_trusted = True
            self._patience.cancel()
            self.frame_max_bytes = FRAME_MAX_BYTES
            self.send(correlation_id, Outcome.REPLY)
        else:
            _logger.warning("a connection without the right token was closed")
            self.close()
