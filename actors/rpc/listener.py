"""Accepts the calls to an actor over connections.

Ray starts, names, places and restarts the actor. But a call through Ray costs a millisecond of CPU
time, many times the work of a small call (``docs/adr/0010``).

One file: a connection from the moment it is accepted, its login and its place among others.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.process.freed_memory import return_freed_memory
from oncelog.actors.protocol.access import RAY, SERVER, Principal
from oncelog.actors.protocol.messages.access import USER_KIND
from oncelog.actors.rpc.admission import (
    Caller,
    Opening,
    Places,
    RequestRoom,
    RequestsInProgress,
    Reserved,
)
from oncelog.actors.rpc.certificates import Certificates
from oncelog.actors.rpc.dispatch import Answer, Dispatch, LogBudget
from oncelog.actors.rpc.frames import FRAME_MAX_BYTES, HELLO, HELLO_ID, FramedProtocol, Outcome
from oncelog.actors.rpc.handshake import Reception, connection_secret

_logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
FIRST_FRAME_TIMEOUT_S: Final = 10.0
LARGE_FRAME_TIMEOUT_S: Final = 30.0
"""A large frame that takes longer is lost, waits for room included: its caller has given up."""

FIRST_FRAME_MAX_BYTES: Final = 8_448
"""Of each frame of a handshake: the longest signed token fits."""

REFUSAL_DELAY_S: Final = 1.0
"""How long a refused login waits for its answer, and counts against its host.

After ``HALF_OPEN_PER_HOST_MAX`` of them no other login from there is looked at: that bounds how
fast a host can guess passwords. Kafka's ``connection.failed.authentication.delay.ms``.
"""

EXPIRY_CHECK_S: Final = 60.0
"""Interval at which it is looked whether a user's proof has expired: a clock may be set."""

BACKLOG: Final = 1_024
"""Connections that the system keeps until they are accepted."""

TRIM_AFTER: Final = 256
"""Ends of TLS handshakes and connections after which freed memory is returned.

uvloop has a buffer of 256 KiB for each, of which little is used. Freed ones are broken up by small
blocks, so without that a flood leaves a process with buffers for all places of strangers.
"""

TRIM_DELAY_S: Final = 1.0
"""How long that waits for more to end; it takes up to 30 ms, and happens no more often."""

_IPV6_NETWORK_BITS: Final = 64

ACCEPT_RETRY_S: Final = 0.1
"""Pause after a connection could not be accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAddress:
    """Where one incarnation of an actor listens, and the token that its callers must know.

    ``is_keyed``: the actor's process has Ray's token, and callers must know that too.
    """

    host: str
    port: int
    token: bytes = field(repr=False)
    is_keyed: bool = False

    def keyed(self, ray_token: bytes) -> ListenerAddress:
        """With the secret that callers prove to know, made of the token that the actor told."""
        key = ray_token if self.is_keyed else b""
        return replace(self, token=connection_secret(self.token, key))


class Listener:
    """Accepts calls over connections; ``dispatch`` answers them.

    Only processes that can call the actor through Ray get ``token``, which is new at each start.
    ``server_secret`` is what servers of the cluster prove to know besides.
    """

    def __init__(
        self, dispatch: Dispatch, *, host: str, token: bytes, server_secret: bytes = b""
    ) -> None:
        self.token = token
        self.server_secret = server_secret
        self.places = Places()
        self.progress = RequestsInProgress()
        self.room = RequestRoom()
        self.warnings = LogBudget(_logger)
        self.dispatch = dispatch
        self.clock = SystemClock()
        self.certificates = Certificates(self.clock)
        self._host = host
        self._opening: asyncio.Task[asyncio.Server | _TlsServer] | None = None
        self._tasks = OwnTasks(_log_bug)
        self._ended_count = 0
        """TLS handshakes and connections that have ended since memory was returned."""

    async def address(self) -> ListenerAddress:
        """The address; the first call begins to listen, on the running loop.

        ``OSError`` if listening fails, ``InvalidSettingError`` if certificates are required and
        cannot be used.
        """
        if self._opening is None or (self._opening.done() and self._opening.exception()):
            self._opening = asyncio.ensure_future(self._listen())
        opened = await asyncio.shield(self._opening)
        return ListenerAddress(
            host=self._host, port=opened.sockets[0].getsockname()[1], token=self.token
        )

    async def _listen(self) -> asyncio.Server | _TlsServer:
        if self.certificates.context(is_caller=False) is not None:
            return _TlsServer(self, self._host)
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _Caller(self), self._host, 0, backlog=BACKLOG)

    def open_place(self, opening: Opening) -> None:
        """Count a connection without a proof; the one that must make room for it is closed."""
        displaced = self.places.begin(opening)
        if displaced is not None:
            self.warnings.warn(
                "one of too many connections without a token was closed — see who connects to "
                "this port: it is no program of this cluster"
            )
            displaced.close()

    def refusal(self, principal: Principal) -> str:
        """Why ``principal`` may have no more connections; "" if it may."""
        limit = self.dispatch.door.limits(principal).connections
        if limit is None or self.places.count(principal) < limit:
            return ""
        return f"{principal.name} has {limit} connections to this actor, its limit (connections)"

    def owed_ms(self, principal: Principal) -> int:
        """For how long a new connection of ``principal`` is not read."""
        return self.dispatch.limits.owed_ms(principal, self.dispatch.door.limits(principal))

    def secured_ended(self) -> None:
        """Count a TLS handshake or connection that has ended; much memory of them is returned."""
        self._ended_count += 1
        if self._ended_count == TRIM_AFTER:
            asyncio.get_running_loop().call_later(TRIM_DELAY_S, self._trim)

    def _trim(self) -> None:
        self._ended_count = 0
        return_freed_memory()

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
        reserved: Reserved | None = None,
    ) -> None:
        """Answer one call in its own task; then release what is ``reserved`` for it."""
        self.progress.begin(caller)
        answering = self.dispatch.answer(
            method, message, caller.principal, caller.address, caller.mute
        )
        self._tasks.spawn(self._answer(caller, correlation_id, answering, reserved))

    async def _answer(
        self,
        caller: Caller,
        correlation_id: int,
        answering: Coroutine[Any, Any, Answer],
        reserved: Reserved | None,
    ) -> None:
        try:
            outcome, body = await answering
            try:
                caller.send(correlation_id, outcome, *body)
            except ValueError as error:
                caller.send(correlation_id, Outcome.FAILED, repr(error).encode())
        finally:
            self.progress.end(caller)
            if reserved is not None:
                self.room.give(reserved)


def _log_bug(bug: BaseException) -> None:
    """Log a bug: the call gets no answer, and its caller waits until its deadline."""
    _logger.error(
        "unexpected error in a call: %r — this is a bug: report it with this log",
        bug,
        exc_info=bug,
    )


class _TlsServer:
    """Accepts connections that are encrypted; a handshake has a place from its first packet on."""

    def __init__(self, listener: Listener, host: str) -> None:
        self._listener = listener
        self._tasks = OwnTasks(_log_bug)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        opened = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        opened.setblocking(False)
        self.sockets = (opened,)
        self._accepting = self._tasks.spawn(self._accept(opened))

    def close(self) -> None:
        """Stop listening."""
        self._accepting.cancel()
        self.sockets[0].close()

    async def _accept(self, opened: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(opened)
            except OSError as error:
                # Too many open files: those that wait are accepted later.
                self._listener.warnings.warn(
                    "a connection could not be accepted: %s — raise the limit of open files "
                    "(ulimit -n) if that is it; it is tried again",
                    error,
                )
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            handshake = _TlsHandshake(host_of(peer), accepted)
            handshake.task = self._tasks.spawn(self._secure(accepted, handshake))
            self._listener.open_place(handshake)
            # ``sock_accept`` does not wait while there are connections: others have a turn.
            await asyncio.sleep(0)

    async def _secure(self, accepted: socket.socket, handshake: _TlsHandshake) -> None:
        """Encrypt a connection, and then let its caller prove its token."""
        handshake.accepted = None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Caller(self._listener, handshake),
                accepted,
                ssl=self._listener.certificates.context(is_caller=False),
                ssl_handshake_timeout=FIRST_FRAME_TIMEOUT_S,
            )
        except OSError as error:
            reason = self._listener.certificates.reason(error)
            self._listener.warnings.warn(
                "a TLS handshake of %s failed: %s — give that host a certificate of this "
                "cluster's authority",
                *(handshake.host, reason),
            )
        finally:
            self._listener.places.end_opening(handshake)
            handshake.task = None
            self._listener.secured_ended()


@dataclass(eq=False, slots=True)
class _TlsHandshake:
    """A connection that is not encrypted yet; ``accepted`` until its task has begun."""

    host: str
    accepted: socket.socket | None
    task: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Close the connection."""
        if self.accepted is not None:
            self.accepted.close()
        if self.task is not None:
            self.task.cancel()


def address_of(peer: Sequence[Any] | None) -> str:
    """The address in a socket address, without the interface of one that is local to a link."""
    return str(peer[0]).partition("%")[0] if peer else ""


def host_of(peer: Sequence[Any] | None) -> str:
    """Where a connection comes from, by its socket address: a host, or an IPv6 network of it."""
    if not peer:
        return ""
    address = address_of(peer)
    if ":" not in address:
        return address
    return str(ipaddress.IPv6Network((address, _IPV6_NETWORK_BITS), strict=False))


class _Caller(FramedProtocol):
    """One connection of one caller. No request is read before its token is verified."""

    def __init__(self, listener: Listener, handshake: _TlsHandshake | None = None) -> None:
        super().__init__(frame_max_bytes=FIRST_FRAME_MAX_BYTES)
        self._handshake = handshake
        self.host = self.address = ""
        self.in_progress = 0
        self.last_used = self.loop.time()
        self._listener = listener
        self._reception: Reception
        self.principal = RAY
        self._is_trusted = False
        self._is_refused = False
        self._mute_timer: asyncio.TimerHandle | None = None
        """Set while its principal pays for requests beyond its limits."""
        self._reserved: Reserved | None = None
        """Room for the incoming frame."""
        self._is_without_room = False
        self._first_frame_timer: asyncio.TimerHandle
        self._expiry_timer: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the connections without a verified token, and ask for a proof of it."""
        super().connection_made(transport)
        self._reception = Reception(
            self._listener.token,
            self._listener.server_secret,
            self._listener.dispatch.door,
            transport.get_extra_info("peercert"),
        )
        self.send(HELLO_ID, Outcome.CHALLENGE, self._reception.nonce)
        self._first_frame_timer = self.loop.call_later(FIRST_FRAME_TIMEOUT_S, self.close)
        peer = transport.get_extra_info("peername")
        self.host, self.address = host_of(peer), address_of(peer)
        if self._handshake is not None:
            # It takes the place of its handshake.
            self._listener.places.end_opening(self._handshake)
        self._listener.open_place(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Its requests run on: the caller may only have given up on the answers."""
        super().connection_lost(exc)
        self._first_frame_timer.cancel()
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self._listener.places.end(self)
        self._listener.dispatch.door.leave(self._user, self)
        if self._reserved is not None:
            self._listener.room.give(self._reserved)
        if self._handshake is not None:
            self._listener.secured_ended()

    def _close_displaced(self, gone: Caller | None, what: str) -> None:
        if gone is not None:
            self._listener.warnings.warn(
                "one of too many %s was closed — close the clients that are not needed", what
            )
            gone.close()

    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        """Take a request; ``kind`` is the length of its method's name."""
        method = bytes(body[:kind]).decode("ascii", "replace")
        message = body[kind:]
        if not self._is_trusted:
            if not self._is_refused:
                self._admit(correlation_id, method, message)
            return
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            self._is_without_room = False
            self._first_frame_timer.cancel()
        self.last_used = self.loop.time()
        self._listener.begin(self, correlation_id, method, message, reserved)
        if self._must_wait():
            self.hold()

    def _admit(self, correlation_id: int, method: str, message: memoryview) -> None:
        """Take a frame of the handshake: close the connection unless it proves who calls."""
        listener = self._listener
        if method != HELLO and not listener.places.may_log_in(self.host):
            listener.warnings.warn(
                "a login from %s was not looked at: too many fail — see which program there has "
                "a wrong password, or tries others'",
                self.host,
            )
            self.close()
            return
        admission = self._reception.receive(method, bytes(message))
        if admission is None:
            listener.warnings.warn(
                "a connection without the right token was closed — see who connects to this "
                "port: a program of an earlier life of this actor connects again by itself"
            )
            self.close()
            return
        if admission.kind is Outcome.REFUSED:
            listener.warnings.warn(
                "a login from %s was refused: %s — give that program the right credentials",
                *(self.host, admission.reason),
            )
            listener.dispatch.audit.login_refused(admission.name, self.address)
            self._is_refused = True
            self.hold()
            listener.places.refuse(self.host)
            self.loop.call_later(REFUSAL_DELAY_S, self._refuse, correlation_id, admission.body)
            return
        if admission.principal is None:
            self.send(correlation_id, admission.kind, admission.body)
            return
        self.principal = admission.principal
        if self._is_one_too_many(correlation_id):
            return
        self.send(correlation_id, admission.kind, admission.body)
        self._is_trusted = True
        self._first_frame_timer.cancel()
        self.frame_max_bytes = FRAME_MAX_BYTES
        self._close_displaced(listener.places.trust(self), "connections")
        if self._user:
            listener.dispatch.door.enter(self._user, self)
        if admission.expires_at_ms is not None:
            left_s = (admission.expires_at_ms - listener.clock.now_ms()) / 1_000
            self._check_expiry(admission.expires_at_ms, self.loop.time() + left_s)
        self.mute(listener.owed_ms(self.principal))

    def _check_expiry(self, at_ms: int, at_s: float) -> None:
        """Close the connection once its proof has expired, by the clock or in loop time."""
        left_s = min(at_s - self.loop.time(), (at_ms - self._listener.clock.now_ms()) / 1_000)
        self._expiry_timer = (
            self.loop.call_later(min(left_s, EXPIRY_CHECK_S), self._check_expiry, at_ms, at_s)
            if left_s > 0
            else self.loop.call_soon(self.close)
        )

    def _refuse(self, correlation_id: int, answer: bytes) -> None:
        self._listener.places.forgive(self.host)
        if not self.is_closing:
            self.send(correlation_id, Outcome.REFUSED, answer)
            self.close_when_sent()

    @property
    def _user(self) -> str:
        """The name of the user that has logged in; "" of any other caller."""
        name = self.principal.name
        is_user = self._is_trusted and self.principal not in (RAY, SERVER)
        return name.removeprefix(USER_KIND) if is_user else ""

    # --- limits ---------------------------------------------------------------------------

    def _is_one_too_many(self, correlation_id: int) -> bool:
        """Refuse a connection beyond its principal's limit, and say so."""
        reason = self._listener.refusal(self.principal)
        if not reason:
            return False
        self._is_refused = True
        self.send(correlation_id, Outcome.LIMITED, reason.encode())
        self._listener.warnings.warn(
            "a connection was refused: %s — close the clients that are not needed", reason
        )
        # After the answer is written; if its peer does not read that, it has until the first frame.
        self.loop.call_soon(self._close_gently)
        return True

    def _close_gently(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def mute(self, throttle_ms: int) -> None:
        """Read no more requests for so long, which replaces what was left of an earlier time."""
        if not throttle_ms or self.is_closing:
            return
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self._mute_timer = self.loop.call_later(throttle_ms / 1000, self._unmute)
        if self._must_wait():
            self.hold()

    def _unmute(self) -> None:
        self._mute_timer = None
        self.go_on()

    # --- back-pressure --------------------------------------------------------------------

    def _must_wait(self) -> bool:
        # A large frame that has begun is read to its end: it takes up room of others meanwhile.
        is_mute = self._mute_timer is not None and self._reserved is None
        return (
            is_mute
            or self.is_congested
            or self._is_without_room
            or self._listener.progress.is_full(self)
        )

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

    def grant(self, least_bytes: int, most_bytes: int) -> int:
        """Reserve room for a large request as it arrives; without room the connection waits."""
        if self._reserved is None:
            self._reserved = Reserved(self)
            self._first_frame_timer = self.loop.call_later(LARGE_FRAME_TIMEOUT_S, self.close)
        size_bytes = self._listener.room.grow(self._reserved, least_bytes, most_bytes)
        self._is_without_room = not size_bytes
        return size_bytes

    def has_room(self) -> None:
        """Resume the large request that waited."""
        self._is_without_room = False
        self.go_on()
