"""``Transport`` to actors: Ray finds them, connections of our own carry the calls."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any, Final, Protocol

from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.rpc.call_meter import (
    CALLER,
    NO_REPORTS,
    UNMETERED,
    CallMeter,
    CallReports,
    MeteredCall,
)
from oncelog.actors.rpc.connection import Connection, connect
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.actors.rpc.message_codec import answers_on_connections
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS: Final = 10_000
FAILURES_BEFORE_RAY: Final = 2
"""One may be due to a process dying meanwhile; after two in a row Ray carries the calls."""

UNREACHABLE_MAX: Final = 1_000
"""How many unreachable actors are remembered; beyond that all are tried again."""

UNREACHABLE_RETRY_S: Final = 30.0
"""How long an actor that Ray reaches but a connection does not is called through Ray."""


class RayCalls(Protocol):
    """What Ray is asked for: where actors listen, and calls to those without a connection."""

    async def call(
        self,
        actor: str,
        request: Request[ReplyT],
        *,
        timeout_ms: int,
        metered: MeteredCall = UNMETERED,
        key: str = "",
    ) -> ReplyT:
        """Call ``request.method`` of ``actor``, see ``Transport.call``; report the sizes.

        ``key`` is the replica it is for, of those that the actor holds.
        """
        ...

    async def listener_of(
        self, actor: str, *, timeout_ms: int
    ) -> ListenerAddress | ErrorCode | None:
        """Where ``actor`` listens; ``None`` if it does not; or why Ray does not know."""
        ...


class ActorTransport:
    """Calls actors by name over one connection per actor and event loop, made at the first call.

    A connection ends with its actor's process, and then all its calls at once. The next call asks
    Ray where the actor listens now. Where no connection can be made, calls go through Ray.
    """

    def __init__(self, ray_calls: RayCalls, reports: CallReports = NO_REPORTS) -> None:
        self._ray_calls = ray_calls
        self._reports = reports
        self._of_loop: dict[asyncio.AbstractEventLoop, _LoopConnections] = {}

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """Call ``request.method`` of ``actor``; see ``Transport.call``. Calls are counted here."""
        loop = asyncio.get_running_loop()
        connections = self._of_loop.get(loop) or self._begin(loop)
        metered = connections.meter.begin(request.method)
        reply = await self._call(connections, actor, request, timeout_ms, metered)
        connections.meter.end(metered, reply.error)
        return reply

    async def _call(
        self,
        connections: _LoopConnections,
        actor: str,
        request: Request[ReplyT],
        timeout_ms: int,
        metered: MeteredCall,
    ) -> ReplyT:
        """Call over a connection, through Ray without one, or answer why neither is possible."""
        actor, _, key = actor.partition("/")
        road: Connection | ErrorCode | None = None
        if answers_on_connections(request):
            road = connections.usable(actor)
            if road is None:
                loop = asyncio.get_running_loop()
                deadline = loop.time() + timeout_ms / 1000
                road = await connections.make(actor, timeout_ms=timeout_ms)
                timeout_ms = int(1000 * (deadline - loop.time()))
        if road is None:
            return await self._ray_calls.call(
                actor, request, timeout_ms=timeout_ms, metered=metered, key=key
            )
        if isinstance(road, ErrorCode):
            return request.failed(road)
        reply = await road.call(request, timeout_ms=timeout_ms, metered=metered, key=key)
        if reply.error is ErrorCode.NOT_CONTROLLER:
            # It may live on beside its successor: Ray knows which of them has the name.
            road.retire()
        return reply

    def close(self) -> None:
        """Close every connection, on any loop. Later calls would open new ones."""
        for loop, connections in list(self._of_loop.items()):
            if connections.keeper is not None and not loop.is_closed():
                loop.call_soon_threadsafe(connections.keeper.cancel)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> _LoopConnections:
        """The first call on ``loop``; drops what is left of loops closed without their tasks."""
        for known in [known for known in self._of_loop if known.is_closed()]:
            del self._of_loop[known]
        connections = self._of_loop[loop] = _LoopConnections(self._ray_calls, self._reports)
        keeper: Any = loop.create_task(_until_cancelled())
        # No warning for a program that closes its loop without its tasks: this one is not its own.
        keeper._log_destroy_pending = False
        # A callback of the loop: the task may be cancelled before its first step, and what it does
        # when it is collected may run in any thread, or in the child of a fork.
        keeper.add_done_callback(functools.partial(self._end, loop, connections))
        connections.keeper = keeper
        return connections

    def _end(
        self,
        loop: asyncio.AbstractEventLoop,
        connections: _LoopConnections,
        _keeper: asyncio.Task[None],
    ) -> None:
        """The loop ends, which cancels its tasks: close what was opened on it."""
        if self._of_loop.get(loop) is connections:
            del self._of_loop[loop]
        connections.close()


async def _until_cancelled() -> None:
    """Body of the task by which the end of a loop is noticed."""
    await asyncio.get_running_loop().create_future()


class _LoopConnections:
    """The connections of one event loop."""

    def __init__(self, ray_calls: RayCalls, reports: CallReports) -> None:
        self.meter = CallMeter(CALLER, reports)
        self.keeper: asyncio.Task[None] | None = None
        self._ray_calls = ray_calls
        self._connections: dict[str, Connection] = {}
        self._making: dict[str, asyncio.Task[Connection | ErrorCode | None]] = {}
        self._failures: dict[str, int] = {}
        self._without_until: dict[str, float] = {}

    def usable(self, actor: str) -> Connection | None:
        """The connection to ``actor``, if there is one to make calls on."""
        connection = self._connections.get(actor)
        return connection if connection is not None and connection.is_usable else None

    async def make(self, actor: str, *, timeout_ms: int) -> Connection | ErrorCode | None:
        """A new connection, shared by all who wait for it; ``None``: call through Ray instead."""
        if asyncio.get_running_loop().time() < self._without_until.get(actor, 0.0):
            return None
        making = self._making.get(actor)
        if making is None:
            making = asyncio.ensure_future(self._make(actor))
            self._making[actor] = making
            # Not by the task itself: one that is cancelled before its first step does nothing.
            making.add_done_callback(lambda made: self._made(actor, made))
        done, _ = await asyncio.wait([making], timeout=timeout_ms / 1000)
        if making.cancelled():
            # Not by its callers: by a program that shuts down, and may yet go on.
            return ErrorCode.NETWORK_EXCEPTION
        return making.result() if done else ErrorCode.REQUEST_TIMED_OUT

    def _made(self, actor: str, making: asyncio.Future[Connection | ErrorCode | None]) -> None:
        if self._making.get(actor) is making:
            del self._making[actor]

    def close(self) -> None:
        """Close every connection and report the finished calls."""
        self.meter.report()
        for connection in list(self._connections.values()):
            connection.close()

    async def _make(self, actor: str) -> Connection | ErrorCode | None:
        address = await self._ray_calls.listener_of(actor, timeout_ms=CONNECT_TIMEOUT_MS)
        if address is None:
            self._call_through_ray(actor)
        if not isinstance(address, ListenerAddress):
            return address
        connection = await connect(address, timeout_ms=CONNECT_TIMEOUT_MS)
        if connection is None:
            return self._failed(actor, address)
        self._connections[actor] = connection
        connection.on_lost = functools.partial(self._forget, actor, connection)
        self._failures.pop(actor, None)
        return connection

    def _failed(self, actor: str, address: ListenerAddress) -> ErrorCode | None:
        """Ray reached the actor, we did not: it has just died, or it is unreachable from here."""
        if len(self._failures) >= UNREACHABLE_MAX:
            self._failures.clear()
        failures = self._failures[actor] = self._failures.get(actor, 0) + 1
        if failures < FAILURES_BEFORE_RAY:
            return ErrorCode.NETWORK_EXCEPTION
        _logger.warning(
            "%s cannot be connected at %s:%d: it is called through Ray, which is slower",
            actor,
            address.host,
            address.port,
        )
        self._call_through_ray(actor)
        return None

    def _call_through_ray(self, actor: str) -> None:
        if len(self._without_until) >= UNREACHABLE_MAX:
            self._without_until.clear()
        self._without_until[actor] = _soon()

    def _forget(self, actor: str, connection: Connection) -> None:
        if self._connections.get(actor) is connection:
            del self._connections[actor]


def _soon() -> float:
    """When an actor that is called through Ray is tried again, on the loop's clock."""
    return asyncio.get_running_loop().time() + UNREACHABLE_RETRY_S
