"""Accepts the calls to an actor over connections.

Ray starts, names, places and restarts the actor. But a call through Ray costs a millisecond of CPU
time, many times the work of a small call (``docs/adr/0010``).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from dataclasses import dataclass
from typing import Final

from oncelog.actors.process.background import OwnTasks
from oncelog.actors.rpc.admission import Caller, Places, RequestRoom, RequestsInProgress
from oncelog.actors.rpc.certificates import secure_context
from oncelog.actors.rpc.dispatch import Dispatch, LogBudget
from oncelog.actors.rpc.frames import FRAME_MAX_BYTES, HELLO, FramedProtocol, Outcome

_logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
FIRST_FRAME_TIMEOUT_S: Final = 10.0
LARGE_FRAME_TIMEOUT_S: Final = 30.0
"""A large frame that takes longer loses its room: its caller has given up by then."""

FIRST_FRAME_MAX_BYTES: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAddress:
    """Where one incarnation of an actor listens, and the token it requires."""

    host: str
    port: int
    token: bytes


class Listener:
    """Accepts calls over connections; ``dispatch`` answers them.

    Only processes that can call the actor through Ray get ``token``, which is new at each start.
    """

    def __init__(self, dispatch: Dispatch, *, host: str, token: bytes) -> None:
        self.token = token
        self.places = Places()
        self.progress = RequestsInProgress()
        self.room = RequestRoom()
        self.warnings = LogBudget(_logger)
        self.dispatch = dispatch
        self._host = host
        self._opening: asyncio.Task[asyncio.Server] | None = None
        self._tasks = OwnTasks(_log_bug)

    async def address(self) -> ListenerAddress:
        """The address; the first call begins to listen, on the running loop.

        ``OSError`` if listening fails, ``InvalidSettingError`` if Ray's certificates are required
        and cannot be used.
        """
        if self._opening is None or (self._opening.done() and self._opening.exception()):
            self._opening = asyncio.ensure_future(self._listen())
        opened = await asyncio.shield(self._opening)
        return ListenerAddress(
            host=self._host, port=opened.sockets[0].getsockname()[1], token=self.token
        )

    async def _listen(self) -> asyncio.Server:
        context = secure_context(is_caller=False)
        return await asyncio.get_running_loop().create_server(
            lambda: _Caller(self),
            self._host,
            0,
            backlog=1_024,
            ssl=context,
            ssl_handshake_timeout=None if context is None else FIRST_FRAME_TIMEOUT_S,
        )

    async def close(self) -> None:
        """Stop listening; running calls continue."""
        if self._opening is not None:
            (await asyncio.shield(self._opening)).close()

    def begin(
        self,
        caller: Caller,
        correlation_id: int,
        method: str,
        message: memoryview,
        room_bytes: int = 0,
    ) -> None:
        """Answer one call in its own task; then release its ``room_bytes``."""
        self.progress.begin(caller)
        self._tasks.spawn(self._answer(caller, correlation_id, method, message, room_bytes))

    async def _answer(
        self, caller: Caller, correlation_id: int, method: str, message: memoryview, room_bytes: int
    ) -> None:
        try:
            outcome, body = await self.dispatch.answer(method, message)
            try:
                caller.send(correlation_id, outcome, *body)
            except ValueError as error:
                caller.send(correlation_id, Outcome.FAILED, repr(error).encode())
        finally:
            self.progress.end(caller)
            if room_bytes:
                self.room.give(room_bytes)


def _log_bug(bug: BaseException) -> None:
    """Log a bug: the call gets no answer, and its caller waits until its deadline."""
    _logger.error("a call met a bug: %r", bug, exc_info=bug)


class _Caller(FramedProtocol):
    """One connection of one caller. No request is read before its token is verified."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(frame_max_bytes=FIRST_FRAME_MAX_BYTES)
        self.in_progress = 0
        self.last_used = self.loop.time()
        self._listener = listener
        self._is_trusted = False
        self._room_bytes = 0
        """Bytes reserved for the incoming frame."""
        self._is_without_room = False
        self._first_frame_timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the connections without a verified token."""
        super().connection_made(transport)
        self._first_frame_timer = self.loop.call_later(FIRST_FRAME_TIMEOUT_S, self.close)
        self._close_displaced(self._listener.places.begin(self), "connections without a token")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Its requests run on: the caller may only have given up on the answers."""
        self._first_frame_timer.cancel()
        self._listener.places.end(self)
        self._listener.room.forget(self)
        self._listener.room.give(self._room_bytes)

    def _close_displaced(self, gone: Caller | None, what: str) -> None:
        if gone is not None:
            self._listener.warnings.warn("one of too many %s was closed", what)
            gone.close()

    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        """Take a request; ``kind`` is the length of its method's name."""
        method = bytes(body[:kind]).decode("ascii", "replace")
        message = body[kind:]
        if not self._is_trusted:
            self._admit(correlation_id, method, message)
            return
        room_bytes, self._room_bytes = self._room_bytes, 0
        if room_bytes:
            self._first_frame_timer.cancel()
        self.last_used = self.loop.time()
        self._listener.begin(self, correlation_id, method, message, room_bytes)
        if self.is_congested or self._listener.progress.is_full(self):
            self.hold()

    def _admit(self, correlation_id: int, method: str, message: memoryview) -> None:
        """Check the first frame: close the connection unless it is the token."""
        if method == HELLO and hmac.compare_digest(bytes(message), self._listener.token):
            self._is_trusted = True
            self._first_frame_timer.cancel()
            self.frame_max_bytes = FRAME_MAX_BYTES
            self.send(correlation_id, Outcome.REPLY)
            self._close_displaced(self._listener.places.trust(self), "connections")
        else:
            self._listener.warnings.warn("a connection without the right token was closed")
            self.close()

    # --- back-pressure --------------------------------------------------------------------

    def _must_wait(self) -> bool:
        return self.is_congested or self._is_without_room or self._listener.progress.is_full(self)

    def go_on(self) -> None:
        """Read more requests, unless something still prevents it."""
        if self.is_held and not self._must_wait():
            super().go_on()

    def pause_writing(self) -> None:
        """Stop reading requests of a caller that does not read its answers."""
        self._listener.places.slow_down(self)
        super().pause_writing()
        self.hold()

    def check_unread(self) -> None:
        """Also close the slowest caller if all together leave too much unread."""
        super().check_unread()
        self._close_displaced(self._listener.places.slowest(), "connections with unread answers")

    def drained(self) -> None:
        """The caller has read its answers."""
        self._listener.places.speed_up(self)
        self.go_on()

    def may_begin(self, length: int) -> bool:
        """Reserve room for a large request; without room the connection waits."""
        if not self._room_bytes:
            if not self._listener.room.take(self, length):
                self._is_without_room = True
                return False
            self._take_room(length)
        return True

    def has_room(self, size_bytes: int) -> None:
        """Resume the large request that waited."""
        self._is_without_room = False
        self._take_room(size_bytes)
        self.go_on()

    def _take_room(self, size_bytes: int) -> None:
        self._room_bytes = size_bytes
        self._first_frame_timer = self.loop.call_later(LARGE_FRAME_TIMEOUT_S, self.close)
