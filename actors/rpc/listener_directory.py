"""Where the actors of a cluster listen, told without Ray.

To join Ray takes a second, and a program that only asks something needs no more of it than to find
the actors. So a broker's servers name one listener in a file of its data directory, and every actor
tells where the others listen (``ListenerDirectory``): it asks Ray, of which it is a part.
``DirectTransport`` is the caller's side.

The file proves nothing by itself. It has the listener's token, which is new in each life of its
actor, so who answers there and proves to know it is the process that wrote the file. A program
proves it too, keyed with Ray's own token where the cluster has one (``handshake.py``,
``docs/adr/0031``). A user proves his password instead, and only TLS tells him who answers. So
without TLS he calls only a process that is seen to live (``NamedListener.may_be_called_by``).

One file: what is written, who answers and who asks are one protocol.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import structs

from oncelog.actors.interfaces import LOG_ACTORS
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.cluster import FindListenerReply, FindListenerRequest
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.actors.rpc.actor_transport import ActorTransport, RayCalls
from oncelog.actors.rpc.call_meter import NO_REPORTS, UNMETERED, CallReports, MeteredCall
from oncelog.actors.rpc.certificates import are_connections_secured
from oncelog.actors.rpc.handshake import Identity
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)

# --- the file ---------------------------------------------------------------------------------

LISTENER_FILE: Final = "listener.json"
FILE_MAX_BYTES: Final = 16_384
"""A longer file is none of ours."""

_VERSION: Final = 1
_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedListener:
    """A listener of a cluster: the file's content.

    ``address`` has the token that the actor itself would tell, so callers key it. ``process`` is
    the actor's; ``None`` if it cannot be identified. ``ray_address`` is where Ray can be joined.
    """

    cluster_id: str
    broker_id: int
    actor: str
    address: ListenerAddress
    ray_address: str
    process: DriverProcess | None = None

    @property
    def processes(self) -> ProcessTable:
        """The processes of this machine, under the name by which the cluster knows it.

        On another machine it knows nothing of them.
        """
        # The name of the machine comes first.
        machine = "" if self.process is None else self.process.machine
        return ProcessTable(machine.partition(" ")[0])

    def lives(self) -> bool | None:
        """Whether the process lives; ``None`` if that cannot be seen from here."""
        return None if self.process is None else self.processes.lives(self.process)

    def may_be_called_by(self, identity: Identity) -> bool:
        """Whether to connect to the address: once the process has ended, anybody may have its port.

        From a login by password without TLS, whoever answers can find the password by guessing.
        """
        lives = self.lives()
        return lives is True or (
            lives is None and (not identity.is_user or are_connections_secured())
        )

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        fields = {
            "version": _VERSION,
            "cluster_id": self.cluster_id,
            "broker_id": self.broker_id,
            "actor": self.actor,
            "host": self.address.host,
            "port": self.address.port,
            "token": self.address.token.hex(),
            "is_keyed": self.address.is_keyed,
            "ray_address": self.ray_address,
            "process": None if self.process is None else structs.asdict(self.process),
        }
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> NamedListener:
        """Read the file's bytes; ``ValueError`` if they are of another version, or none of ours."""
        try:
            fields: dict[str, Any] = json.loads(data)
            if fields["version"] != _VERSION:
                raise ValueError(f"{LISTENER_FILE} is of version {fields['version']!r}")
            process = fields["process"]
            return cls(
                cluster_id=str(fields["cluster_id"]),
                broker_id=int(fields["broker_id"]),
                actor=str(fields["actor"]),
                address=ListenerAddress(
                    host=str(fields["host"]),
                    port=int(fields["port"]),
                    token=bytes.fromhex(fields["token"]),
                    is_keyed=bool(fields["is_keyed"]),
                ),
                ray_address=str(fields["ray_address"]),
                process=None if process is None else DriverProcess(**process),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{LISTENER_FILE} is unreadable: {error!r}") from None


def read_named(data_dir: Path) -> NamedListener | None:
    """The listener that a data directory names; ``None`` if there is no file to go by.

    One of another user, or that others may read or write, is none that a server of ours has left.
    """
    try:
        descriptor = os.open(
            data_dir / LISTENER_FILE,
            os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
        )
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        known = os.fstat(descriptor)
        is_ours = known.st_uid == os.geteuid() and not known.st_mode & _OF_OTHERS
        if not is_ours or not stat.S_ISREG(known.st_mode) or known.st_size > FILE_MAX_BYTES:
            _logger.warning(
                "%s in %s is not used: not a file of this user alone — remove it: its broker "
                "writes it anew",
                LISTENER_FILE,
                data_dir,
            )
            return None
        try:
            return NamedListener.from_bytes(file.read(FILE_MAX_BYTES))
        except (OSError, ValueError) as error:
            _logger.warning(
                "%s in %s is not used: %s — remove it: its broker writes it anew",
                LISTENER_FILE,
                data_dir,
                error,
            )
            return None


def ray_token_here() -> bytes:
    """Ray's own token as Ray would find it, but without Ray; b"" without one.

    Like a program that joins: with ``RAY_AUTH_MODE`` unset, a token that is there counts. Whatever
    Ray does otherwise, a wrong token only fails to prove anything.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return b""
    given = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    if given:
        return given.encode()
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    try:
        return Path(path).read_bytes().strip()
    except OSError:
        return b""


# --- the servers ------------------------------------------------------------------------------

FIND_TIMEOUT_MS: Final = 1_500
"""Deadline of one question to Ray, its turn included; its caller waits a little longer."""

FINDS_AT_ONCE_MAX: Final = 4
"""Such questions at a time in one process; others wait their turn.

For an actor that is not known yet Ray is asked in a thread of the process's default executor. That
has few, 5 on a machine with one core, and a question to a Ray that hangs keeps its thread.
"""


class ToldListeners(Protocol):
    """Ray's part: asks an actor where it listens."""

    async def told_listener(
        self, actor: str, *, timeout_ms: int
    ) -> ListenerAddress | ErrorCode | None:
        """Where ``actor`` listens, as it tells itself; otherwise as ``RayCalls.listener_of``."""
        ...


class ListenerDirectory:
    """Tells callers of one process where the other actors of the log listen, as Ray knows it."""

    def __init__(self, ray: ToldListeners) -> None:
        self._ray = ray
        self._at_once = asyncio.Semaphore(FINDS_AT_ONCE_MAX)
        self._asking: set[asyncio.Future[ListenerAddress | ErrorCode | None]] = set()
        """The questions that are open, also those that nobody waits for any more."""

    async def find_listener(self, request: FindListenerRequest) -> FindListenerReply:
        """Where that actor listens now. Who may know the token is decided by ``access``."""
        if not request.actor.startswith(LOG_ACTORS):
            return request.failed(ErrorCode.INVALID_REQUEST, "that is no actor of the log")
        deadline_ms = loop_ms() + FIND_TIMEOUT_MS
        try:
            await asyncio.wait_for(self._at_once.acquire(), FIND_TIMEOUT_MS / 1_000)
        except asyncio.TimeoutError:
            return request.failed(ErrorCode.REQUEST_TIMED_OUT, "Ray is asked for too much here")
        asking = asyncio.ensure_future(
            self._ray.told_listener(request.actor, timeout_ms=FIND_TIMEOUT_MS)
        )
        self._asking.add(asking)
        asking.add_done_callback(self._asked)
        await asyncio.wait((asking,), timeout=max(deadline_ms - loop_ms(), 0) / 1_000)
        if not asking.done():
            return request.failed(ErrorCode.REQUEST_TIMED_OUT, "Ray does not answer")
        told = asking.result()
        if isinstance(told, ErrorCode):
            return FindListenerReply(absence=told)
        if told is None:
            return FindListenerReply()
        return FindListenerReply(
            host=told.host, port=told.port, token=told.token, is_keyed=told.is_keyed
        )

    def _asked(self, asking: asyncio.Future[ListenerAddress | ErrorCode | None]) -> None:
        # Only now is its thread free.
        self._asking.discard(asking)
        self._at_once.release()


# --- the caller -------------------------------------------------------------------------------

ASK_TIMEOUT_MS: Final = 2_000
"""How long one actor may take to tell where another listens."""

ASKED_MAX: Final = 3
"""Actors with a connection that are asked, before the file is read again."""


class DirectTransport:
    """``Transport`` to the cluster of a data directory; ``identity`` is who calls.

    Once the process has joined Ray, ``use_ray`` has Ray asked as by any other program.
    """

    def __init__(
        self,
        data_dir: Path,
        named: NamedListener,
        identity: Identity,
        reports: CallReports = NO_REPORTS,
    ) -> None:
        self._calls = _DirectCalls(data_dir, named, identity)
        self._connections = ActorTransport(
            self._calls, reports, identity, has_ray=lambda: self._calls.ray is not None
        )
        self._calls.connections = self._connections

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """See ``Transport.call``."""
        return await self._connections.call(actor, request, timeout_ms=timeout_ms)

    def use_ray(self, ray: RayCalls) -> None:
        """Ask ``ray`` from now on, and let it carry calls; open connections are kept."""
        self._calls.ray = ray

    def close(self) -> None:
        """See ``ActorTransport.close``."""
        self._connections.close()


class _DirectCalls:
    """``RayCalls`` of a process that has not joined Ray: other actors tell where one listens."""

    connections: ActorTransport

    def __init__(self, data_dir: Path, named: NamedListener, identity: Identity) -> None:
        self.ray: RayCalls | None = None
        self._data_dir = data_dir
        self._named = named
        self._identity = identity
        self._ray_token = ray_token_here()

    async def call(
        self,
        actor: str,
        request: Request[ReplyT],
        *,
        timeout_ms: int,
        metered: MeteredCall = UNMETERED,
        key: str = "",
    ) -> ReplyT:
        """See ``RayCalls.call``; fails without Ray."""
        if self.ray is None:
            detail = f"only Ray carries {request.method!r} to {actor}, and it has not been joined"
            return request.failed(ErrorCode.NETWORK_EXCEPTION, detail)
        return await self.ray.call(actor, request, timeout_ms=timeout_ms, metered=metered, key=key)

    async def listener_of(
        self, actor: str, *, timeout_ms: int
    ) -> ListenerAddress | ErrorCode | None:
        """See ``RayCalls.listener_of``: ask whoever is connected, else whom the file names now."""
        if self.ray is not None:
            return await self.ray.listener_of(actor, timeout_ms=timeout_ms)
        request = FindListenerRequest(actor=actor)
        # ``actor`` is not among them: that it has no usable connection is why we ask.
        for _, connection in self.connections.connected(ASKED_MAX):
            reply = await connection.call(request, timeout_ms=min(ASK_TIMEOUT_MS, timeout_ms))
            if reply.error is ErrorCode.NONE:
                return self._told(reply)
        self._named = await asyncio.to_thread(self._named_now)
        if not self._named.may_be_called_by(self._identity):
            return ErrorCode.NETWORK_EXCEPTION
        if actor == self._named.actor:
            return self._named.address.keyed(self._ray_token)
        reply = await self.connections.call(
            self._named.actor, request, timeout_ms=min(ASK_TIMEOUT_MS, timeout_ms)
        )
        return self._told(reply) if reply.error is ErrorCode.NONE else reply.error

    def _named_now(self) -> NamedListener:
        """What the file names: an actor that restarts is named anew, of the same cluster."""
        found = read_named(self._data_dir)
        is_ours = found is not None and found.cluster_id == self._named.cluster_id
        return found if found is not None and is_ours else self._named

    def _told(self, reply: FindListenerReply) -> ListenerAddress | ErrorCode | None:
        if reply.absence is not ErrorCode.NONE:
            return reply.absence
        if not reply.host:
            return None
        told = ListenerAddress(
            host=reply.host, port=reply.port, token=reply.token, is_keyed=reply.is_keyed
        )
        return told.keyed(self._ray_token)
