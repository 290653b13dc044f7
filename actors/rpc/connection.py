"""One connection to an actor: many calls at a time, each with its own deadline."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final

from oncelog.actors.process.background import settle
from oncelog.actors.protocol.messages.base import Reply, ReplyT, Request
from oncelog.actors.rpc import message_codec
from oncelog.actors.rpc.call_meter import UNMETERED, MeteredCall
from oncelog.actors.rpc.certificates import files_in_use, secure_context
from oncelog.actors.rpc.dispatch import read_answer
from oncelog.actors.rpc.frames import HELLO, FramedProtocol, Outcome
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError

_logger = logging.getLogger(__name__)

SILENCE_MS: Final = 1_000
"""A connection silent for less may just have a slow call."""

_HELLO_ID: Final = 0


class Connection(FramedProtocol):
    """Made by ``connect``. Calls that are open when it breaks end with ``NETWORK_EXCEPTION``.

    ``is_usable`` says whether new calls may be made on it. It turns false for good once the
    connection breaks, or a call gets no answer while nothing else comes in either: the process
    may be stopped, or Ray may have replaced it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_usable = False
        self.error: Exception | None = None
        self.on_lost: Callable[[], None] | None = None
        self._next_id = _HELLO_ID + 1
        self._last_received = 0.0
        self._pending: dict[
            int, tuple[Request[Any], asyncio.Future[Reply | None], MeteredCall]
        ] = {}
        self._accepted: asyncio.Future[bool] = self.loop.create_future()
        self._drained: asyncio.Future[None] = self.loop.create_future()
        """Done when calls that waited for the actor to read may continue."""

    async def call(
        self,
        request: Request[ReplyT],
        *,
        timeout_ms: int,
        metered: MeteredCall = UNMETERED,
        key: str = "",
    ) -> ReplyT:
        """Send ``request`` and return its reply; see ``Transport.call`` for what may happen.

        ``key`` is the replica it is for, of those that the actor holds.
        """
        began = self.loop.time()
        deadline = began + timeout_ms / 1000
        if self.is_congested:
            await self._room(deadline)
        if self.is_closing:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        if self.is_congested:
            return self._unanswered(request, began, timeout_ms)
        correlation_id, self._next_id = self._next_id, self._next_id + 1
        answer: asyncio.Future[Any] = self.loop.create_future()
        name = f"{request.method}/{key}" if key else request.method
        method = name.encode("ascii")
        try:
            message = message_codec.encode_in_parts(request)
            self.send(correlation_id, len(method), method, *message)
        except ValueError as error:
            return request.failed(ErrorCode.INVALID_REQUEST, str(error))
        metered.request_bytes = sum(map(len, message))
        self._pending[correlation_id] = (request, answer, metered)
        timer = self.loop.call_at(deadline, settle, answer, None)
        try:
            reply: ReplyT | None = await answer
        finally:
            timer.cancel()
            self._pending.pop(correlation_id, None)
            if not self.is_usable:
                self._close_when_idle()
        return self._unanswered(request, began, timeout_ms) if reply is None else reply

    async def _room(self, deadline: float) -> None:
        """Wait until the actor reads, the connection is lost, or the time is up."""
        while self.is_congested and not self.is_closing and self.loop.time() < deadline:
            await asyncio.wait({self._drained}, timeout=deadline - self.loop.time())

    def drained(self) -> None:
        """Resume the waiting calls; those that fill the connection again wait again."""
        drained, self._drained = self._drained, self.loop.create_future()
        settle(drained, None)

    def _unanswered(self, request: Request[ReplyT], began: float, timeout_ms: int) -> ReplyT:
        if self._last_received < began and timeout_ms >= SILENCE_MS:
            self.retire()
        return request.failed(ErrorCode.REQUEST_TIMED_OUT)

    def retire(self) -> None:
        """Take no more calls; close when the last open one has ended."""
        self.is_usable = False
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if not self._pending:
            self.close()

    async def greet(self, token: bytes) -> bool:
        """Show the token; return whether it was accepted and calls may be made."""
        method = HELLO.encode("ascii")
        self.send(_HELLO_ID, len(method), method, token)
        return await self._accepted

    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        """A reply; it is dropped if no call waits for it any more."""
        self._last_received = self.loop.time()
        if correlation_id == _HELLO_ID:
            self.is_usable = kind == Outcome.REPLY
            settle(self._accepted, self.is_usable)
            return
        pending = self._pending.get(correlation_id)
        if pending is not None:
            request, answer, metered = pending
            metered.reply_bytes = len(body)
            if not answer.done():
                answer.set_result(read_answer(request, kind, body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Every open call may have run or not: its caller decides what that means."""
        self.error = exc
        self.is_usable = False
        if self.on_lost is not None:
            self.on_lost()
        settle(self._accepted, False)
        settle(self._drained, None)
        for request, answer, _ in self._pending.values():
            settle(answer, request.failed(ErrorCode.NETWORK_EXCEPTION))


async def connect(address: ListenerAddress, *, timeout_ms: int) -> Connection | None:
    """Open a connection; ``None`` if no listener that accepts the token answers in time.

    Also ``None`` if Ray's certificates should secure it and cannot: then a warning says why.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    try:
        context = secure_context(is_caller=True)
        opening = loop.create_connection(Connection, address.host, address.port, ssl=context)
        _, connection = await asyncio.wait_for(opening, timeout_ms / 1000)
    except (InvalidSettingError, ssl.SSLError) as error:
        _warn_insecure(address, error)
        return None
    except (OSError, asyncio.TimeoutError):
        return None
    timer = loop.call_at(deadline, connection.close)
    try:
        is_accepted = await connection.greet(address.token)
    except BaseException:
        connection.close()
        raise
    finally:
        timer.cancel()
    if not is_accepted:
        connection.close()
        if context is not None:
            # The other side rejects our certificate only after the handshake, if at all.
            _warn_insecure(address, connection.error or "closed by the other side")
    return connection if connection.is_usable else None


def _warn_insecure(address: ListenerAddress, error: Exception | str) -> None:
    _logger.warning(
        "no secure connection to %s:%d: %s (%s)", address.host, address.port, error, files_in_use()
    )
