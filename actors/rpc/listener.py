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

from oncelog.actors.process.log_budget import LogBudget
from oncelog.actors.rpc import message_codec
from oncelog.actors.rpc.admission import Caller, Places, Progress, RequestRoom
from oncelog.actors.rpc.call_meter import CALLEE, NO_REPORTS, CallMeter, CallReports, MeteredCall
from oncelog.actors.rpc.frames import FRAME_MAX_BYTES, HELLO, FramedProtocol, Outcome
from oncelog.storage.errors import ErrorCode, InvariantViolation

_logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
FIRST_FRAME_TIMEOUT_S: Final = 10.0
LARGE_FRAME_TIMEOUT_S: Final = 30.0
"""A frame that takes longer gives its room to others: its caller has given up on it by then."""

FIRST_FRAME_MAX_BYTES: Final = 1_024


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
        reports: CallReports = NO_REPORTS,
    ) -> None:
        self.server = server
        self.token = token
        self.answered_calls = 0
        self.meter = CallMeter(CALLEE, reports)
        self.places = Places()
        self.progress = Progress()
        self.room = RequestRoom()
        self.warnings = LogBudget(_logger)
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

    def begin(
        self,
        caller: Caller,
        correlation_id: int,
        method: str,
        body: memoryview,
        room_bytes: int = 0,
    ) -> None:
        """Answer one request in a task of its own; then its ``room_bytes`` are given back."""
        metered = self.meter.begin(method, len(body))
        answer, request = self._understood(method, body)
        if answer is None:
            self.meter.end(metered, ErrorCode.INVALID_REQUEST)
            self.room.give(room_bytes)
            self.warnings.warn("%r refused a call: %s", self.server, request)
            caller.send(correlation_id, Outcome.REFUSED, str(request).encode())
            return
        self.progress.begin(caller)
        work = self._answer(caller, correlation_id, answer, request, room_bytes, metered)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _understood(self, method: str, body: memoryview) -> tuple[Any, object]:
        """What answers a request, with the request; or ``None``, with why nothing does."""
        if method not in message_codec.REQUESTS:
            return None, f"no request has the method {method!r}"
        try:
            request = message_codec.decode_request(method, body)
        except ValueError as error:
            return None, f"not a request of {method!r}: {error}"
        answer = getattr(self.server, method, None)
        return answer, f"it has no method {method!r}" if answer is None else request

    async def _answer(
        self,
        caller: Caller,
        correlation_id: int,
        method: Any,
        request: object,
        room_bytes: int,
        metered: MeteredCall,
    ) -> None:
        self.answered_calls += 1
        error_code = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            reply = await method(request)
            message = message_codec.encode_in_parts(reply)
            caller.send(correlation_id, Outcome.REPLY, *message)
            error_code, metered.reply_bytes = reply.error, sum(map(len, message))
        except InvariantViolation as bug:
            self._on_bug(bug)
        except Exception as error:
            _logger.exception("%r.%s raised", self.server, method.__name__)
            caller.send(correlation_id, Outcome.FAILED, repr(error).encode())
        finally:
            self.meter.end(metered, error_code)
            self.progress.end(caller)
            if room_bytes:
                self.room.give(room_bytes)


class _Caller(FramedProtocol):
    """One connection of one caller. Nothing but its token is looked at before that is right."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(frame_max_bytes=FIRST_FRAME_MAX_BYTES)
        self.in_progress = 0
        self.last_used = self.loop.time()
        self._listener = listener
        self._is_trusted = False
        self._room_bytes = 0
        """Taken for the frame that comes in."""
        self._is_without_room = False
        self._patience = self.loop.call_later(FIRST_FRAME_TIMEOUT_S, self.close)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place among those whose token has not come yet."""
        super().connection_made(transport)
        self._make_way(self._listener.places.begin(self), "connections without a token")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """What it asked for goes on: a caller may also have given up only on the answer."""
        self._patience.cancel()
        self._listener.places.end(self)
        self._listener.room.forget(self)
        self._listener.room.give(self._room_bytes)

    def _make_way(self, gone: Caller | None, what: str) -> None:
        if gone is not None:
            self._listener.warnings.warn("one of too many %s was closed", what)
            gone.close()

    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        """A request; ``kind`` is the length of its method's name."""
        method = bytes(body[:kind]).decode("ascii", "replace")
        message = body[kind:]
        if self._is_trusted:
            self._ask(correlation_id, method, message)
        elif method == HELLO and hmac.compare_digest(bytes(message), self._listener.token):
            self._is_trusted = True
            self._patience.cancel()
            self.frame_max_bytes = FRAME_MAX_BYTES
            self.send(correlation_id, Outcome.REPLY)
            self._make_way(self._listener.places.trust(self), "connections")
        else:
            self._listener.warnings.warn("a connection without the right token was closed")
            self.close()

    def _ask(self, correlation_id: int, method: str, message: memoryview) -> None:
        room_bytes, self._room_bytes = self._room_bytes, 0
        if room_bytes:
            self._patience.cancel()
        self.last_used = self.loop.time()
        self._listener.begin(self, correlation_id, method, message, room_bytes)
        if self.is_congested or self._listener.progress.is_full(self):
            self.hold()

    # --- back-pressure --------------------------------------------------------------------

    def _must_wait(self) -> bool:
        return self.is_congested or self._is_without_room or self._listener.progress.is_full(self)

    def go_on(self) -> None:
        """Take more requests, if nothing is in the way any more."""
        if self.is_held and not self._must_wait():
            super().go_on()

    def pause_writing(self) -> None:
        """Read no more requests of a caller that does not read its answers."""
        self._listener.places.slow_down(self)
        super().pause_writing()
        self.hold()

    def check_unread(self) -> None:
        """If all callers together leave too much unread, the slowest of them is closed as well."""
        super().check_unread()
        self._make_way(self._listener.places.slowest(), "connections with unread answers")

    def drained(self) -> None:
        """The caller has read its answers."""
        self._listener.places.speed_up(self)
        self.go_on()

    def may_begin(self, length: int) -> bool:
        """Take room for a large request; without it the connection waits."""
        if not self._room_bytes:
            if not self._listener.room.take(self, length):
                self._is_without_room = True
                return False
            self._take_room(length)
        return True

    def has_room(self, size_bytes: int) -> None:
        """Go on with the large request that waited."""
        self._is_without_room = False
        self._take_room(size_bytes)
        self.go_on()

    def _take_room(self, size_bytes: int) -> None:
        self._room_bytes = size_bytes
        self._patience = self.loop.call_later(LARGE_FRAME_TIMEOUT_S, self.close)
