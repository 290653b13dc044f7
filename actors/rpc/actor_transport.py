"""``Transport`` to actors, the caller's side: Ray finds them, connections of ours carry the calls.

``ActorTransport`` finds the ``ActorConnection`` for a call, which carries many at a time. A call to
a replica of the same process is a call of its method (``LocalTransport``).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol

from oncelog.actors.interfaces import Transport
from oncelog.actors.process.background import resolve_future
from oncelog.actors.protocol.messages.base import Reply, ReplyT, Request
from oncelog.actors.rpc import message_codec
from oncelog.actors.rpc.call_meter import (
    CALLER,
    NO_REPORTS,
    UNMETERED,
    CallMeter,
    CallReports,
    MeteredCall,
)
from oncelog.actors.rpc.certificates import files_in_use, secure_context
from oncelog.actors.rpc.dispatch import Dispatch, read_answer
from oncelog.actors.rpc.frames import HELLO, FramedProtocol, Outcome
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.actors.rpc.message_codec import answers_on_connections
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError

_logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS: Final = 10_000

FAILURES_BEFORE_RAY: Final = 2
"""One may be due to a process dying meanwhile; after two in a row Ray carries the calls."""

UNREACHABLE_MAX: Final = 1_000
"""How many unreachable actors are remembered; beyond that all are tried again."""

UNREACHABLE_RETRY_S: Final = 30.0
"""How long an actor that Ray reaches but a connection does not is called through Ray."""

SILENCE_MS: Final = 1_000
"""A connection silent for less may just have a slow call."""

_HELLO_ID: Final = 0


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
        connection: ActorConnection | ErrorCode | None = None
        if answers_on_connections(request):
            connection = connections.usable(actor)
            if connection is None:
                loop = asyncio.get_running_loop()
                deadline = loop.time() + timeout_ms / 1000
                connection = await connections.make(actor, timeout_ms=timeout_ms)
                timeout_ms = int(1000 * (deadline - loop.time()))
        if connection is None:
            return await self._ray_calls.call(
                actor, request, timeout_ms=timeout_ms, metered=metered, key=key
            )
        if isinstance(connection, ErrorCode):
            return request.failed(connection)
        reply = await connection.call(request, timeout_ms=timeout_ms, metered=metered, key=key)
        if reply.error is ErrorCode.NOT_CONTROLLER:
            # It may live on beside its successor: Ray knows which of them has the name.
            connection.retire()
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
        self._connections: dict[str, ActorConnection] = {}
        self._making: dict[str, asyncio.Task[ActorConnection | ErrorCode | None]] = {}
        self._failures: dict[str, int] = {}
        self._without_until: dict[str, float] = {}

    def usable(self, actor: str) -> ActorConnection | None:
        """The connection to ``actor``, if there is one to make calls on."""
        connection = self._connections.get(actor)
        return connection if connection is not None and connection.is_usable else None

    async def make(self, actor: str, *, timeout_ms: int) -> ActorConnection | ErrorCode | None:
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

    def _made(self, actor: str, making: asyncio.Future[ActorConnection | ErrorCode | None]) -> None:
        if self._making.get(actor) is making:
            del self._making[actor]

    def close(self) -> None:
        """Close every connection and report the finished calls."""
        self.meter.report()
        for connection in list(self._connections.values()):
            connection.close()

    async def _make(self, actor: str) -> ActorConnection | ErrorCode | None:
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

    def _forget(self, actor: str, connection: ActorConnection) -> None:
        if self._connections.get(actor) is connection:
            del self._connections[actor]


def _soon() -> float:
    """When an actor that is called through Ray is tried again, on the loop's clock."""
    return asyncio.get_running_loop().time() + UNREACHABLE_RETRY_S


class ActorConnection(FramedProtocol):
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
        timer = self.loop.call_at(deadline, resolve_future, answer, None)
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
        resolve_future(drained, None)

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
            resolve_future(self._accepted, self.is_usable)
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
        resolve_future(self._accepted, False)
        resolve_future(self._drained, None)
        for request, answer, _ in self._pending.values():
            resolve_future(answer, request.failed(ErrorCode.NETWORK_EXCEPTION))


async def connect(address: ListenerAddress, *, timeout_ms: int) -> ActorConnection | None:
    """Open a connection; ``None`` if no listener that accepts the token answers in time.

    Also ``None`` if Ray's certificates should secure it and cannot: then a warning says why.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    try:
        context = secure_context(is_caller=True)
        opening = loop.create_connection(ActorConnection, address.host, address.port, ssl=context)
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


class LocalTransport:
    """Calls the replicas that the actor ``name`` holds directly, and all others by ``others``.

    As with a call that travels, its caller may give up while it goes on.
    """

    def __init__(self, name: str, others: Transport) -> None:
        self.dispatch: Dispatch | None = None
        """Set by the process, once it has what answers calls."""
        self._name = name
        self._others = others
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """See ``Transport.call``."""
        name, _, key = actor.partition("/")
        if name != self._name or self.dispatch is None:
            return await self._others.call(actor, request, timeout_ms=timeout_ms)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ReplyT] = loop.create_future()
        task = loop.create_task(self._answer(self.dispatch, key, request, answer))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._answered, answer))
        timed_out = request.failed(ErrorCode.REQUEST_TIMED_OUT)
        timer = loop.call_later(timeout_ms / 1000, resolve_future, answer, timed_out)
        try:
            return await answer
        finally:
            timer.cancel()

    async def _answer(
        self,
        dispatch: Dispatch,
        key: str,
        request: Request[ReplyT],
        answer: asyncio.Future[ReplyT],
    ) -> None:
        resolve_future(answer, await dispatch.answer_here(key, request))

    def _answered(self, answer: asyncio.Future[ReplyT], task: asyncio.Task[None]) -> None:
        """A caller that waits hears of a bug too."""
        self._tasks.discard(task)
        bug = None if task.cancelled() else task.exception()
        if bug is not None and not answer.done():
            answer.set_exception(bug)
