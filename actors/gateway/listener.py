"""The port that Kafka's clients connect to: frames, who they are of, their order and their room.

======  ====  =====================================================================
offset  size  field (big-endian)
======  ====  =====================================================================
0       4     length of what follows, at most ``FRAME_MAX_BYTES``
4       ...   a header (``messages/headers.py``), and the message of an API
======  ====  =====================================================================

Answers go out in the order of requests. Requests of one connection are handled one after the other,
too, as in Kafka, but for those that may overlap (``_LANES``): produces share a sync, and whoever
waits for records or for a group holds up nobody else. They begin in the order in which they came.

What one connection, and what all of them may take up is bounded as for actors' own callers, by the
same rules (``rpc/admission.py``, ``docs/BOUNDS.md``): beyond a bound a connection is not read.

One file: a connection from the moment it is accepted, its login, its requests and its end.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from oncelog.actors.gateway.calls import Client
from oncelog.actors.gateway.connection_order import ConnectionPlace
from oncelog.actors.gateway.door import OF_CONNECTIONS, ConnectionEndError, KafkaDoor
from oncelog.actors.gateway.messages.api_versions import ApiVersionsRequest
from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.headers import RequestHeader, decode_request_header
from oncelog.actors.gateway.messages.primitives import Buffer, MalformedError
from oncelog.actors.gateway.messages.sasl_authenticate import SaslAuthenticateResponse
from oncelog.actors.gateway.messages.sasl_handshake import SaslHandshakeResponse
from oncelog.actors.gateway.sasl import (
    ANONYMOUS,
    ILLEGAL_SASL_STATE,
    Login,
    LoginRefused,
    Proved,
    answered,
    without_login,
)
from oncelog.actors.gateway.sizes import (
    DECODED_FACTOR,
    FRAME_MAX_BYTES,
    OTHER_FRAME_MAX_BYTES,
    is_produce,
)
from oncelog.actors.gateway.versions import versions_told
from oncelog.actors.interfaces import Clock
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.freed_memory import keep_freed_memory, return_freed_memory
from oncelog.actors.protocol.access import Principal
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
from oncelog.actors.rpc.dispatch import LogBudget
from oncelog.actors.rpc.frames import OUTGOING_PAUSE_BYTES, FramedProtocol
from oncelog.actors.rpc.listener import (
    ACCEPT_RETRY_S,
    BACKLOG,
    EXPIRY_CHECK_S,
    FIRST_FRAME_MAX_BYTES,
    FIRST_FRAME_TIMEOUT_S,
    REFUSAL_DELAY_S,
    TRIM_AFTER,
    TRIM_DELAY_S,
    address_of,
    host_of,
)

_logger = logging.getLogger(__name__)

LARGE_FRAME_TIMEOUT_S: Final = 60.0
"""A large request that takes longer to arrive is lost, waits for room included."""

IN_PROGRESS_MAX: Final = 100
"""Requests of one connection that are not answered yet; beyond that it is read no further."""

STRANGER_REQUESTS_MAX: Final = 32
"""Requests of a connection before it is known whose they are; a client's login takes 5."""

SOFTWARE_CHARACTERS_MAX: Final = 100
"""So much is kept of the name that a client gives its software, and of its version."""

IDLE_S: Final = 600.0
"""A connection without requests for so long is closed. Kafka's ``connections.max.idle.ms``."""

IDLE_CHECK_S: Final = 10.0

LOOPBACK: Final = "127.0.0.1"

PORT_WAIT_S: Final = 5.0
"""How long a port is waited for that is taken: an earlier life of this process may still end."""

PORT_RETRY_S: Final = 0.1

FURTHER_PORTS: Final = 16
"""Ports that are tried after that: brokers of one machine have one each."""

_SPLIT_BYTES: Final = 9
"""``FramedProtocol`` takes so many bytes of a frame for a head; here they are of Kafka's header."""

_FETCHES: Final = "fetches"
_GROUPS: Final = "groups"
_OTHERS: Final = "others"
_LANES: Final = {
    ApiKey.PRODUCE: None,
    ApiKey.JOIN_GROUP: _GROUPS,
    ApiKey.SYNC_GROUP: _GROUPS,
    ApiKey.FETCH: _FETCHES,
}
"""API → with which requests of its connection it takes turns, ``_OTHERS`` by default.

``None``: with none. A turn ends as the answer goes out, so there is one answer with records at a
time, and few requests of a connection are decoded and wait.
"""

_LENGTH = Struct(">i")


class KafkaListener:
    """Accepts connections of Kafka's clients, whom ``door`` answers."""

    def __init__(self, door: KafkaDoor, *, certificates: Certificates, clock: Clock) -> None:
        self.door = door
        self.certificates = certificates
        self.clock = clock
        self.places = Places()
        self.progress = RequestsInProgress()
        self.room = RequestRoom()
        self.warnings = LogBudget(_logger)
        self.connections: dict[KafkaConnection, None] = {}
        """Those that are open; bounded as the places are."""
        self.port = 0
        """Where it listens; 0: nowhere yet."""
        self._sockets: list[socket.socket] = []
        self._tasks = OwnTasks(_log_bug)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._ended_count = 0
        """TLS handshakes and connections that have ended since memory was returned."""

    # --- the port -------------------------------------------------------------------------

    async def open(self, hosts: Sequence[str], port: int) -> int:
        """Listen at each of ``hosts``, on one port: ``port``, or one after it if that is taken.

        ``OSError`` if none can be used, ``InvalidSettingError`` if certificates are required and
        cannot be used.
        """
        self._context()
        # Records come and go, a block for each answer of a leader and each large request.
        keep_freed_memory()
        sockets = await self._bound(hosts, port)
        self.port = sockets[0].getsockname()[1]
        self._sockets = sockets
        for opened in sockets:
            self._tasks.spawn(self._accept(opened))
        return self.port

    async def _bound(self, hosts: Sequence[str], port: int) -> list[socket.socket]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PORT_WAIT_S
        while (sockets := _bind(hosts, port)) is None and loop.time() < deadline:
            _logger.debug("port %d is taken: waiting for it", port)
            await asyncio.sleep(PORT_RETRY_S)
        if sockets is not None:
            return sockets
        last = min(port + FURTHER_PORTS, 65_535)
        for other in range(port + 1, last + 1):
            sockets = _bind(hosts, other)
            if sockets is not None:
                _logger.warning(
                    "kafka_port=%d is taken on this machine, so clients of Kafka are served on "
                    "port %d here — name that in bootstrap.servers, or end the program that has "
                    "the port and then this process",
                    *(port, other),
                )
                return sockets
        raise OSError(errno.EADDRINUSE, f"ports {port} to {last} are all taken")

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        for opened in self._sockets:
            opened.close()
        self._sockets = []
        self.port = 0
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in list(self.connections):
            connection.end()
        tasks = self._tasks.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, opened: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(opened)
            except OSError as error:
                # Too many open files: those that wait are accepted later.
                self.warnings.warn(
                    "a connection could not be accepted: %s — raise the limit of open files "
                    "(ulimit -n) if that is it; it is tried again",
                    error,
                )
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            arrival = _Arrival(host_of(peer), accepted)
            arrival.task = self._tasks.spawn(self._receive(accepted, arrival))
            self.open_place(arrival)
            # ``sock_accept`` does not wait while there are connections: others have a turn.
            await asyncio.sleep(0)

    async def _receive(self, accepted: socket.socket, arrival: _Arrival) -> None:
        """Secure a connection, if certificates are in use, and hand it over."""
        arrival.accepted = None
        context = self._context()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: KafkaConnection(self, arrival),
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else FIRST_FRAME_TIMEOUT_S,
            )
        except OSError as error:
            reason = str(error) if context is None else self.certificates.reason(error)
            self.warnings.warn(
                "a connection of %s was lost before it was secured: %s — if it is a client of "
                "Kafka, set its security.protocol to SSL or SASL_SSL, and let it trust the "
                "authority of this cluster's certificates",
                *(arrival.host, reason),
            )
        finally:
            self.places.end_opening(arrival)
            arrival.task = None
            self.secured_ended(context is not None)

    def _context(self) -> ssl.SSLContext | None:
        """What secures a connection. A client may show no certificate: then it must log in."""
        context = self.certificates.context(is_caller=False)
        if context is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def secured_ended(self, is_secured: bool) -> None:
        """Count a TLS handshake or connection that has ended; much memory of them is returned."""
        self._ended_count += is_secured
        if is_secured and self._ended_count == TRIM_AFTER:
            asyncio.get_running_loop().call_later(TRIM_DELAY_S, self._trim)

    def _trim(self) -> None:
        self._ended_count = 0
        return_freed_memory()

    # --- connections ----------------------------------------------------------------------

    def open_place(self, opening: Opening) -> None:
        """Count a connection that has shown nothing yet; one that makes room for it is closed."""
        displaced = self.places.begin(opening)
        if displaced is not None:
            self.warnings.warn(
                "one of too many connections without a request or a login was closed — see who "
                "connects to this port: it is no client of Kafka"
            )
            displaced.close()

    def begin(self, connection: KafkaConnection) -> None:
        """A connection has begun; idle ones are looked for as long as there are any."""
        self.connections[connection] = None
        if self._idle_timer is None:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(IDLE_CHECK_S, self._close_idle)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in list(self.connections):
            if connection.is_idle_since(loop.time() - IDLE_S):
                connection.end()
        is_wanted = bool(self.connections)
        self._idle_timer = loop.call_later(IDLE_CHECK_S, self._close_idle) if is_wanted else None

    def refusal(self, principal: Principal, own_count: int) -> str:
        """Why ``principal`` may have no more connections than ``own_count``; "" if it may."""
        limit = self.door.cluster.door.limits(principal).connections
        if limit is None or self.places.count(principal) - own_count < limit:
            return ""
        return f"{principal.name} has {limit} connections to this gateway, its limit (connections)"

    def run(self, connection: KafkaConnection, answer: _Answer) -> None:
        """Handle one request in its own task."""
        answer.task = self._tasks.spawn(connection.handle(answer))


def _bind(hosts: Sequence[str], port: int) -> list[socket.socket] | None:
    """A socket for each host, on one port; ``None`` if another program has it on one of them."""
    sockets: list[socket.socket] = []
    try:
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            opened = socket.create_server((host, port), family=family, backlog=BACKLOG)
            opened.setblocking(False)
            sockets.append(opened)
            port = opened.getsockname()[1]
    except OSError as error:
        for opened in sockets:
            opened.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return sockets


def _log_bug(bug: BaseException) -> None:
    """Log a bug: the request gets no answer."""
    _logger.error(
        "a request of Kafka's protocol failed: %r — this is a bug: report it with this log",
        bug,
        exc_info=bug,
    )


@dataclass(eq=False, slots=True)
class _Arrival:
    """A connection that is not secured yet; ``accepted`` until its task has begun."""

    host: str
    accepted: socket.socket | None
    task: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Close the connection."""
        if self.accepted is not None:
            self.accepted.close()
        if self.task is not None:
            self.task.cancel()


class _Answer:
    """The place of a request among the answers of its connection."""

    __slots__ = ("frame", "header", "is_done", "lane", "parts", "position", "reserved", "task")

    def __init__(
        self,
        header: RequestHeader,
        frame: memoryview,
        position: int,
        lane: str | None = None,
        reserved: Reserved | None = None,
    ) -> None:
        self.header = header
        self.frame = frame
        self.position = position
        self.lane = lane
        self.reserved = reserved
        self.parts: Sequence[Buffer] = ()
        self.is_done = False
        self.task: asyncio.Task[None] | None = None
        """Set once its turn has come."""


class KafkaConnection(FramedProtocol):
    """One connection of one client. It begins as a stranger's, with little room and time."""

    def __init__(self, listener: KafkaListener, arrival: _Arrival | None = None) -> None:
        super().__init__(frame_max_bytes=FIRST_FRAME_MAX_BYTES)
        self._listener = listener
        self._arrival = arrival
        self.host = self.address = ""
        self.in_progress = 0
        self.last_used = self.loop.time()
        self.principal = ANONYMOUS
        self.client: Client | None = None
        """Set once it is known whose requests these are."""
        self._software = ""
        self._place: ConnectionPlace | None = None
        """Taken by a first ApiVersions, before it is answered."""
        self._stranger_count = 0
        """Its requests until ``client`` is set."""
        self._login: Login
        self._unproved: Proved | None = None
        """Who it is without a login; ``None``: it must log in."""
        self._is_secured = False
        self._is_trusted = False
        self._is_over = False
        """No more is read: it is closed, or will be once a refusal is sent."""
        self._answers: deque[_Answer] = deque()
        """In the order of their requests; at most ``IN_PROGRESS_MAX``."""
        self._busy: set[str] = set()
        self._waiting: dict[str, deque[_Answer]] = {
            lane: deque() for lane in (_FETCHES, _GROUPS, _OTHERS)
        }
        """Those of ``_answers`` whose turn has not come."""
        self._reserved: Reserved | None = None
        """Room for the incoming frame."""
        self._weight = 1
        """Bytes that the incoming frame takes up for each of its own."""
        self._is_without_room = False
        self._stranger_timer: asyncio.TimerHandle | None = None
        self._large_timer: asyncio.TimerHandle | None = None
        self._mute_timer: asyncio.TimerHandle | None = None
        """Set while its principal pays for requests beyond its limits."""
        self._expiry_timer: asyncio.Handle | None = None

    # --- beginning and end ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the strangers; find out who this is without a login."""
        super().connection_made(transport)
        # Asyncio does that only for sockets that are made in another way.
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener = self._listener
        peer = transport.get_extra_info("peername")
        self.host, self.address = host_of(peer), address_of(peer)
        self._is_secured = transport.get_extra_info("ssl_object") is not None
        if self._arrival is not None:
            # It takes the place of its handshake.
            listener.places.end_opening(self._arrival)
        listener.begin(self)
        listener.open_place(self)
        self._be_a_stranger()
        door = listener.door.cluster.door
        self._login = Login(door, is_secured=self._is_secured)
        certificate = transport.get_extra_info("peercert")
        found = without_login(door, is_secured=self._is_secured, peer=certificate)
        if isinstance(found, LoginRefused):
            self._warn_of_refusal(found)
            self.end()
        else:
            self._unproved = found

    def connection_lost(self, exc: Exception | None) -> None:
        """Its requests run on, but for fetches: the client may only have given up on answers."""
        super().connection_lost(exc)
        listener = self._listener
        self._is_over = True
        timers = (self._stranger_timer, self._large_timer, self._mute_timer, self._expiry_timer)
        for timer in timers:
            if timer is not None:
                timer.cancel()
        listener.connections.pop(self, None)
        listener.places.end(self)
        listener.door.cluster.door.leave(self._user, self)
        if self._reserved is not None:
            listener.room.give(self._reserved)
        for waiting in self._waiting.values():
            waiting.clear()
        for answer in list(self._answers):
            if answer.task is not None and not answer.is_done:
                if answer.lane != _FETCHES:
                    continue
                # Or who connects again and again has as many wait as all may have in progress.
                answer.task.cancel()
            self._drop(answer)
        listener.secured_ended(self._is_secured)

    def end(self) -> None:
        """Close the connection, for a reason that is known."""
        self._is_over = True
        self.close()

    def is_idle_since(self, time_s: float) -> bool:
        """Whether it has not been used since ``time_s``, in loop time."""
        return not self.in_progress and self.last_used < time_s

    def _be_a_stranger(self) -> None:
        """Until it has shown who it is it may send small frames, and not for long."""
        self.frame_max_bytes = FIRST_FRAME_MAX_BYTES
        if self._stranger_timer is None:
            # To begin a login again gives it no more time.
            self._stranger_timer = self.loop.call_later(FIRST_FRAME_TIMEOUT_S, self.end)

    def _trust(self) -> None:
        """It speaks Kafka's protocol, and is somebody who may."""
        if self._stranger_timer is not None:
            self._stranger_timer.cancel()
            self._stranger_timer = None
        self.frame_max_bytes = FRAME_MAX_BYTES
        if not self._is_trusted:
            self._is_trusted = True
            self._close_displaced(self._listener.places.trust(self), "connections")

    def _close_displaced(self, gone: Caller | None, what: str) -> None:
        if gone is not None:
            self._listener.warnings.warn(
                "one of too many %s was closed — close the clients that are not needed", what
            )
            if gone is self:
                self._is_over = True
            gone.close()

    # --- requests -------------------------------------------------------------------------

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has arrived; say so if no frame can have such a length."""
        super().buffer_updated(nbytes)
        if self.is_closing and not self._is_over:
            self._is_over = True
            self._listener.warnings.warn(
                "a connection of %s was closed: a request of it is longer than %d bytes, or has "
                "an impossible length — see what sends it: batches must be smaller, "
                "security.protocol as the cluster has it, and other programs have no business "
                "on this port",
                *(self.host, self.frame_max_bytes),
            )

    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:  # noqa: ARG002
        """Take a frame; what it begins with is taken for a head, which Kafka's frames lack."""
        frame = memoryview(body.obj)[: _SPLIT_BYTES + len(body)]
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            self._is_without_room = False
            if self._large_timer is not None:
                self._large_timer.cancel()
        self.last_used = self.loop.time()
        if not self._is_over:
            reserved = self._take(frame, reserved)
        if reserved is not None:
            self._listener.room.give(reserved)
        if self._must_wait():
            self.hold()

    def _take(self, frame: memoryview, reserved: Reserved | None) -> Reserved | None:
        """Take a request, or a message of a login; return the room that it does not need."""
        if self._login.is_bare:
            self._take_bare(bytes(frame))
            return reserved
        door = self._listener.door
        try:
            header, position = decode_request_header(frame)
        except MalformedError as error:
            self._refuse("a frame", f"cannot be read: {error}")
            return reserved
        is_served = door.is_served(header)
        if header.api_key in OF_CONNECTIONS and (
            is_served or header.api_key == ApiKey.API_VERSIONS
        ):
            self._take_own(_Answer(header, frame, position), is_served=is_served)
        elif not is_served:
            what = f"API {header.api_key} version {header.api_version}"
            self._refuse(what, f"of client {header.client_id!r} is not served")
        elif self._is_known(header):
            lane = _LANES.get(APIS[header.api_key].key, _OTHERS)
            self._queue(_Answer(header, frame, position, lane, reserved))
            return None
        return reserved

    def _refuse(self, what: str, why: str) -> None:
        self._listener.warnings.warn(
            "a connection of %s was closed: %s %s — use a client of Kafka 2.1 or newer, and what "
            "is offered to it",
            *(self.host, what, why),
        )
        self.end()

    def _is_known(self, header: RequestHeader) -> bool:
        """Whether it is known whose requests these are: from now on without a login, if need be."""
        if self.client is not None:
            return True
        if self._unproved is not None and not self._login.is_going_on:
            return self._admit(self._unproved)
        self._listener.warnings.warn(
            "a connection of %s was closed: %s before a login — give client %r a user and "
            "password: security.protocol=SASL_SSL or SASL_PLAINTEXT, sasl.mechanism=SCRAM-SHA-256",
            *(self.host, APIS[header.api_key].name, header.client_id),
        )
        self.end()
        return False

    def _queue(self, answer: _Answer) -> None:
        self._listener.progress.begin(self)
        self._answers.append(answer)
        lane = answer.lane
        if lane is None:
            self._listener.run(self, answer)
        elif lane in self._busy or self._waiting[lane]:
            self._waiting[lane].append(answer)
        else:
            self._busy.add(lane)
            self._listener.run(self, answer)

    async def handle(self, answer: _Answer) -> None:
        """Have a request answered."""
        parts: Sequence[Buffer] = ()
        client = self.client
        try:
            if client is not None:
                parts = await self._listener.door.answer(
                    client, answer.header, answer.frame, answer.position, self.mute
                )
        except ConnectionEndError:
            self.end()
        except BaseException:
            # Later answers would be taken for this one's.
            self.end()
            raise
        finally:
            self._done(answer, parts)

    def _done(self, answer: _Answer, parts: Sequence[Buffer]) -> None:
        """A request is handled: its answer goes out once those before it have."""
        if self.transport is None:
            self._drop(answer)
            return
        answer.parts, answer.is_done = parts, True
        self._release(answer)
        self._send_ready()

    def _drop(self, answer: _Answer) -> None:
        """A request of a lost connection needs no answer."""
        if answer in self._answers:
            self._answers.remove(answer)
            self._release(answer)
            self._listener.progress.end(self)

    def _release(self, answer: _Answer) -> None:
        """A request's bytes are not needed any more."""
        answer.frame = memoryview(b"")
        if answer.reserved is not None:
            self._listener.room.give(answer.reserved)
            answer.reserved = None

    def _send_ready(self) -> None:
        answers = self._answers
        while answers and answers[0].is_done:
            answer = answers.popleft()
            self._write(answer.parts)
            self.last_used = self.loop.time()
            if answer.lane is not None:
                self._busy.discard(answer.lane)
            # It may read more, and so come here again.
            self._listener.progress.end(self)
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Begin the requests whose turn has come; no more while the client does not read."""
        for lane, waiting in self._waiting.items():
            is_free = lane not in self._busy and not self.is_congested and not self._is_over
            if waiting and is_free:
                self._busy.add(lane)
                self._listener.run(self, waiting.popleft())

    def _write(self, parts: Sequence[Buffer]) -> None:
        """Write a frame at the end of this turn."""
        if not parts or self.is_closing:
            return
        if not self._outgoing:
            self.loop.call_soon(self._flush)
        self._outgoing.extend(parts)
        self._outgoing_bytes += sum(map(len, parts))
        if self._outgoing_bytes > OUTGOING_PAUSE_BYTES:
            self.is_congested = True

    # --- what a connection answers by itself ----------------------------------------------

    def _take_own(self, answer: _Answer, *, is_served: bool) -> None:
        """Answer about versions, or take a step of a login."""
        header, door = answer.header, self._listener.door
        self._stranger_count += self.client is None
        if self.client is None and self._stranger_count > STRANGER_REQUESTS_MAX:
            self._refuse(APIS[header.api_key].name, "comes again and again before a login")
            return
        self._answers.append(answer)
        self._listener.progress.begin(self)
        response: Any = None
        if not is_served:
            response = versions_told(door.versions, header.api_version)
        else:
            try:
                request = APIS[header.api_key].decode[header.api_version](
                    answer.frame, answer.position
                )
            except MalformedError as error:
                self._refuse(APIS[header.api_key].name, f"cannot be read: {error}")
            else:
                response = self._own_response(answer, request)
        if response is not None:
            self._done(answer, door.framed(header, response))

    def _own_response(self, answer: _Answer, request: Any) -> Any:
        """The response, or ``None``: there is none now."""
        header = answer.header
        if header.api_key == ApiKey.API_VERSIONS:
            self._begin_with_versions(request)
            return versions_told(self._listener.door.versions, header.api_version)
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            return self._begin_login(header, request.mechanism)
        if not self._login.is_going_on:
            return SaslAuthenticateResponse(
                error_code=ILLEGAL_SASL_STATE, error_message="SaslHandshake comes before this"
            )
        return self._go_on_with_login(answer, bytes(request.auth_bytes))

    def _begin_with_versions(self, request: ApiVersionsRequest) -> None:
        if request.client_software_name:
            told = (request.client_software_name, request.client_software_version)
            self._software = " ".join(text[:SOFTWARE_CHARACTERS_MAX] for text in told)
        if self.client is not None:
            # No place now: other requests may have been sent before this answer.
            self.client.name = self._software
            return
        self._place = self._place or self._listener.door.cluster.order.take()
        if self._unproved is not None and not self._login.is_going_on:
            self._trust()

    def _begin_login(self, header: RequestHeader, mechanism: str) -> SaslHandshakeResponse:
        """A login is possible before anything else is asked; later, only to renew one."""
        if self.client is not None and not self._login.has_succeeded:
            return SaslHandshakeResponse(ILLEGAL_SASL_STATE, self._login.mechanisms)
        response = self._login.choose(mechanism, header.api_version)
        if self.client is None and self._login.is_going_on:
            self._be_a_stranger()
        return response

    def _take_bare(self, message: bytes) -> None:
        """Take a message of a login that has no header, and answer without one."""
        header = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0, None)
        answer = _Answer(header, memoryview(b""), 0)
        self._answers.append(answer)
        self._listener.progress.begin(self)
        response = self._go_on_with_login(answer, message)
        if response is not None:
            # The answer to a message without a header has none.
            self._done(answer, [_LENGTH.pack(len(response.auth_bytes)), response.auth_bytes])

    def _go_on_with_login(self, answer: _Answer, message: bytes) -> SaslAuthenticateResponse | None:
        """Take a message of a login. A refusal is told after a while, and ends the connection."""
        listener = self._listener
        if not listener.places.may_log_in(self.host):
            listener.warnings.warn(
                "a login from %s was not looked at: too many fail — see which program there has "
                "a wrong password, or tries others'",
                self.host,
            )
            self.end()
            return None
        mechanism, is_bare = self._login.mechanism, self._login.is_bare
        step = self._login.receive(message)
        response = answered(step, mechanism, listener.clock)
        if isinstance(step, LoginRefused):
            self._warn_of_refusal(step)
            self._is_over = True
            listener.places.refuse(self.host)
            parts = () if is_bare else listener.door.framed(answer.header, response)
            self.loop.call_later(REFUSAL_DELAY_S, self._tell_refusal, answer, parts)
            return None
        if isinstance(step, Proved) and not self._admit(step):
            return None
        return response

    def _warn_of_refusal(self, refused: LoginRefused) -> None:
        listener = self._listener
        listener.warnings.warn(
            "a login from %s was refused: %s — give that program the right credentials",
            *(self.host, refused.reason),
        )
        listener.door.cluster.audit.login_refused(refused.name, self.address)

    def _tell_refusal(self, answer: _Answer, parts: Sequence[Buffer]) -> None:
        self._listener.places.forgive(self.host)
        self._done(answer, parts)
        if not self.is_closing:
            self.close_when_sent()

    def _admit(self, proved: Proved) -> bool:
        """Go on as this principal, until its proof expires; ``False`` if it may not."""
        listener, principal = self._listener, proved.principal
        own_count = int(self._is_trusted and self.principal == principal)
        reason = listener.refusal(principal, own_count)
        if reason:
            listener.warnings.warn(
                "a connection was refused: %s — close the clients that are not needed", reason
            )
            self.end()
            return False
        self.principal = principal
        self._trust()
        if self.client is None:
            self.client = Client(principal=principal, host=self.address, name=self._software)
            self.client.place = self._place
            self.mute(listener.door.owed_ms(principal))
        listener.door.cluster.door.enter(self._user, self)
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        if proved.expires_at_ms is not None:
            left_s = (proved.expires_at_ms - listener.clock.now_ms()) / 1_000
            self._check_expiry(proved.expires_at_ms, self.loop.time() + left_s)
        return not self._is_over

    def _check_expiry(self, at_ms: int, at_s: float) -> None:
        """Close the connection once its proof has expired, by the clock or in loop time."""
        left_s = min(at_s - self.loop.time(), (at_ms - self._listener.clock.now_ms()) / 1_000)
        self._expiry_timer = (
            self.loop.call_later(min(left_s, EXPIRY_CHECK_S), self._check_expiry, at_ms, at_s)
            if left_s > 0
            else self.loop.call_soon(self.end)
        )

    @property
    def _user(self) -> str:
        """The name of who this is, as the door remembers connections by it."""
        return self.principal.name.removeprefix(USER_KIND)

    # --- limits and back-pressure ---------------------------------------------------------

    def send(self, correlation_id: int, kind: int, *parts: Buffer) -> None:
        """Not of this protocol: answers are frames of Kafka's."""
        raise NotImplementedError

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

    def _must_wait(self) -> bool:
        # A large frame that has begun is read to its end: it takes up room of others meanwhile.
        is_mute = self._mute_timer is not None and self._reserved is None
        return (
            is_mute
            or self._is_over
            or self.is_congested
            or self._is_without_room
            or len(self._answers) >= IN_PROGRESS_MAX
            or self._listener.progress.is_full(self)
        )

    def go_on(self) -> None:
        """Read more requests, unless something still prevents it."""
        if self.is_held and not self._must_wait():
            super().go_on()

    def pause_writing(self) -> None:
        """Stop reading requests of a client that does not read its answers."""
        self._listener.places.slow_down(self)
        super().pause_writing()
        self.hold()

    def check_unread(self) -> None:
        """Also close the slowest client if all together leave too much unread."""
        super().check_unread()
        self._close_displaced(self._listener.places.slowest(), "connections with unread answers")

    def drained(self) -> None:
        """The client has read its answers."""
        self._listener.places.speed_up(self)
        self._begin_waiting()
        self.go_on()

    def _begin_large(self, length: int, known: memoryview) -> None:
        """Begin a large request, unless it is too large for its API."""
        is_records = not self._login.is_bare and is_produce(known)
        if not is_records and length > OTHER_FRAME_MAX_BYTES:
            self._refuse(f"a request of {length} bytes", "is too long, as it is no Produce")
            return
        self._weight = 1 if is_records else DECODED_FACTOR
        super()._begin_large(length, known)

    def grant(self, least_bytes: int, most_bytes: int) -> int:
        """Reserve room for a large request as it arrives; without room the connection waits."""
        if self._reserved is None:
            self._reserved = Reserved(self)
            self._large_timer = self.loop.call_later(LARGE_FRAME_TIMEOUT_S, self.end)
        room, weight = self._listener.room, self._weight
        size_bytes = room.grow(self._reserved, weight * least_bytes, weight * most_bytes) // weight
        self._is_without_room = not size_bytes
        return size_bytes

    def has_room(self) -> None:
        """Resume the large request that waited."""
        self._is_without_room = False
        self.go_on()
