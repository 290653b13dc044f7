"""``Transport`` to actors, the caller's side: Ray finds them, our connections carry the calls.

``ActorTransport`` finds the ``ActorConnection`` for a call; a connection carries many at a time. A
call to a replica of the same process is a direct method call (``LocalTransport``).

One file: what a call needs, from the actor's name to the reply.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import math
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from oncelog.actors.interfaces import Transport
from oncelog.actors.process.background import resolve_future
from oncelog.actors.process.clock import SystemClock
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
from oncelog.actors.rpc.certificates import Certificates, is_ray_plain
from oncelog.actors.rpc.dispatch import Dispatch, read_answer
from oncelog.actors.rpc.frames import HELLO_ID, FramedProtocol, Outcome
from oncelog.actors.rpc.handshake import Ending, Greeting, Identity, ProgramIdentity
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.actors.rpc.message_codec import answers_on_connections
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError

_logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS: Final = 10_000

A_PROGRAM: Final = ProgramIdentity()
"""Any program of the Ray cluster."""

FAILURES_BEFORE_RAY: Final = 2
"""Failed connection attempts in a row before Ray carries the calls; one may be a dying process."""

UNREACHABLE_MAX: Final = 1_000
"""Unreachable actors remembered; beyond that all are tried again."""

UNREACHABLE_RETRY_S: Final = 30.0
"""How long an actor is called through Ray before a connection is tried again."""

SILENCE_MS: Final = 1_000
"""Silence on a connection below this may just be a slow call."""


class RayCalls(Protocol):
    """Ray's part: tells where actors listen, and carries calls without a connection."""

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

        ``key`` is the called replica in an actor that holds several.
        """
        ...

    async def listener_of(
        self, actor: str, *, timeout_ms: int
    ) -> ListenerAddress | ErrorCode | None:
        """Where ``actor`` listens; ``None`` if it does not; or an error if Ray does not know."""
        ...


class ActorTransport:
    """Calls actors by name, over one connection per actor and event loop, opened on first use.

    When the actor's process ends, so do the connection and all its calls. The next call asks Ray
    where the actor listens now. If no connection can be made, calls go through Ray. But not those
    of a user: Ray's calls are of programs of the Ray cluster. Nor those of a process that has not
    joined Ray, which ``has_ray`` tells. ``identity`` is who calls.
    """

    def __init__(
        self,
        ray_calls: RayCalls,
        reports: CallReports = NO_REPORTS,
        identity: Identity = A_PROGRAM,
        has_ray: Callable[[], bool] = lambda: True,
    ) -> None:
        self._ray_calls = ray_calls
        self._has_ray = has_ray
        self._reports = reports
        self._identity = identity
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
        """Call over a connection, or else through Ray, or answer why neither is possible."""
        actor, _, key = actor.partition("/")
        connection: _Made = None
        if answers_on_connections(request):
            connection = connections.usable(actor)
            if connection is None:
                loop = asyncio.get_running_loop()
                deadline = loop.time() + timeout_ms / 1000
                connection = await connections.make(actor, timeout_ms=timeout_ms)
                timeout_ms = math.ceil(1000 * (deadline - loop.time()))
            if connection is None and not connections.may_use_ray:
                return request.failed(
                    ErrorCode.NETWORK_EXCEPTION, connections.why_not_by_ray(actor)
                )
        if connection is None:
            return await self._ray_calls.call(
                actor, request, timeout_ms=timeout_ms, metered=metered, key=key
            )
        if isinstance(connection, NoConnection):
            return request.failed(*connection)
        reply = await connection.call(request, timeout_ms=timeout_ms, metered=metered, key=key)
        if reply.error is ErrorCode.NOT_CONTROLLER:
            # It may live on beside its successor: Ray knows which of them has the name.
            connection.retire()
        return reply

    def connected(self, count_max: int) -> list[tuple[str, ActorConnection]]:
        """Up to so many actors that the running loop has usable connections to, oldest first."""
        connections = self._of_loop.get(asyncio.get_running_loop())
        return [] if connections is None else connections.all_usable(count_max)

    def close(self) -> None:
        """Close every connection, on any loop. Later calls would open new ones."""
        for loop, connections in list(self._of_loop.items()):
            if connections.keeper is not None and not loop.is_closed():
                loop.call_soon_threadsafe(connections.keeper.cancel)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> _LoopConnections:
        """Prepare for calls on ``loop``; drop the connections of loops that were closed."""
        for known in [known for known in self._of_loop if known.is_closed()]:
            del self._of_loop[known]
        connections = self._of_loop[loop] = _LoopConnections(
            self._ray_calls, self._reports, self._identity, self._has_ray
        )
        keeper: Any = loop.create_task(_until_cancelled())
        # Do not warn a program that closes its loop with pending tasks: this task is ours.
        keeper._log_destroy_pending = False
        # A callback, since the task may be cancelled before its first step, and its cleanup on
        # garbage collection may run in any thread, or in the child of a fork.
        keeper.add_done_callback(functools.partial(self._end, loop, connections))
        connections.keeper = keeper
        return connections

    def _end(
        self,
        loop: asyncio.AbstractEventLoop,
        connections: _LoopConnections,
        _keeper: asyncio.Task[None],
    ) -> None:
        """The loop ends and cancels its tasks: close its connections."""
        if self._of_loop.get(loop) is connections:
            del self._of_loop[loop]
        connections.close()


async def _until_cancelled() -> None:
    """Body of the task that detects the end of a loop."""
    await asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class _Making:
    """A connection that is being made, or whose callers have not all gone on yet."""

    task: asyncio.Task[_Made]
    waiting_count: int = 0
    turns: deque[asyncio.Future[bool]] = field(default_factory=deque)
    """Of who waits for the task, in the order they came in."""
    is_told: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether it is of no use to who comes now."""
        task = self.task
        if not task.done():
            return False
        if task.cancelled() or task.exception() is not None:
            return True
        made = task.result()
        return not isinstance(made, ActorConnection) or not made.is_usable

    def tell(self, _task: asyncio.Task[_Made]) -> None:
        """The task has ended: all who wait go on with the next turn of the loop."""
        self.is_told = True
        for turn in self.turns:
            resolve_future(turn, True)

    async def wait(self, timeout_ms: int) -> bool:
        """Go on behind those who came before, once the task has ended; false if time is up."""
        if self.is_told:
            await asyncio.sleep(0)
            return True
        return await _turn(self.turns, asyncio.get_running_loop().time() + timeout_ms / 1_000)


async def _turn(turns: deque[asyncio.Future[bool]], deadline: float) -> bool:
    """Wait as the last of ``turns`` until somebody resolves ours; false if the time is up first."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[bool] = loop.create_future()
    timer = loop.call_at(deadline, resolve_future, turn, False)
    turns.append(turn)
    try:
        return await turn
    finally:
        timer.cancel()
        turns.remove(turn)


class _LoopConnections:
    """The connections of one event loop."""

    def __init__(
        self,
        ray_calls: RayCalls,
        reports: CallReports,
        identity: Identity,
        has_ray: Callable[[], bool],
    ) -> None:
        self._identity = identity
        self._has_ray = has_ray
        self._certificates = identity.certificates(SystemClock())
        self.meter = CallMeter(CALLER, reports)
        self.keeper: asyncio.Task[None] | None = None
        self._ray_calls = ray_calls
        self._connections: dict[str, ActorConnection] = {}
        self._making: dict[str, _Making] = {}
        self._failures: dict[str, int] = {}
        self._without_until: dict[str, float] = {}

    @property
    def may_use_ray(self) -> bool:
        """Users may not: what Ray carries is of a program of the Ray cluster."""
        return isinstance(self._identity, ProgramIdentity) and self._has_ray()

    def why_not_by_ray(self, actor: str) -> str:
        """What a caller is told that may not use Ray, and has no connection."""
        if self._identity.is_user:
            return f"a user cannot call {actor} through Ray, and it cannot be connected to"
        return f"{actor} cannot be connected to, and this process has not joined Ray"

    def all_usable(self, count_max: int) -> list[tuple[str, ActorConnection]]:
        """Up to so many actors, each with a connection to make calls on."""
        usable = ((name, one) for name, one in self._connections.items() if one.is_usable)
        return list(itertools.islice(usable, count_max))

    def usable(self, actor: str) -> ActorConnection | None:
        """The connection to ``actor``, if there is one to make calls on, and nobody waits for it.

        Who comes now must not overtake those that wait.
        """
        if actor in self._making:
            return None
        connection = self._connections.get(actor)
        return connection if connection is not None and connection.is_usable else None

    async def make(self, actor: str, *, timeout_ms: int) -> _Made:
        """A new connection, shared by all who wait for it; ``None``: call through Ray instead."""
        if asyncio.get_running_loop().time() < self._without_until.get(actor, 0.0):
            return None
        making = self._making.get(actor)
        if making is None or making.has_failed:
            making = _Making(asyncio.ensure_future(self._make(actor)))
            self._making[actor] = making
            # Not in the task itself: if it is cancelled before its first step, it does nothing.
            making.task.add_done_callback(making.tell)
            making.task.add_done_callback(lambda _: self._forget_made(actor, making))
        making.waiting_count += 1
        try:
            is_in_time = await making.wait(timeout_ms)
        finally:
            making.waiting_count -= 1
            self._forget_made(actor, making)
        if not is_in_time:
            return NoConnection(ErrorCode.REQUEST_TIMED_OUT)
        if making.task.cancelled():
            # Cancelled not by its callers but by a program that shuts down, and may still go on.
            return NoConnection(ErrorCode.NETWORK_EXCEPTION)
        return making.task.result()

    def _forget_made(self, actor: str, making: _Making) -> None:
        is_over = making.task.done() and not making.waiting_count
        if is_over and self._making.get(actor) is making:
            del self._making[actor]

    def close(self) -> None:
        """Close every connection and report the finished calls."""
        self.meter.report()
        for connection in list(self._connections.values()):
            connection.close()

    async def _make(self, actor: str) -> _Made:
        address = await self._ray_calls.listener_of(actor, timeout_ms=CONNECT_TIMEOUT_MS)
        if isinstance(address, ErrorCode):
            return NoConnection(address)
        if address is None and self._identity.is_user:
            return NoConnection(ErrorCode.SASL_AUTHENTICATION_FAILED, _only_ray(actor))
        if address is None:
            self._call_through_ray(actor)
            return None
        connection = await connect(
            address,
            timeout_ms=CONNECT_TIMEOUT_MS,
            identity=self._identity,
            certificates=self._certificates,
        )
        if connection is None:
            return self._failed(actor, address)
        if isinstance(connection, NoConnection):
            # The actor is well, so this is no reason to call it through Ray.
            return connection
        self._connections[actor] = connection
        connection.on_lost = functools.partial(self._forget, actor, connection)
        self._failures.pop(actor, None)
        return connection

    def _failed(self, actor: str, address: ListenerAddress) -> NoConnection | None:
        """Ray reached the actor but we did not: it has just died, or is unreachable from here."""
        if len(self._failures) >= UNREACHABLE_MAX:
            self._failures.clear()
        failures = self._failures[actor] = self._failures.get(actor, 0) + 1
        # Nobody who cuts our secured connections may make us call in plain text.
        if failures < FAILURES_BEFORE_RAY or is_ray_plain() or not self.may_use_ray:
            where = f"{address.host}:{address.port}"
            return NoConnection(
                ErrorCode.NETWORK_EXCEPTION, f"{actor!r} cannot be connected to at {where}"
            )
        _logger.warning(
            "cannot connect to %s at %s:%d: it is called through Ray, which is slower — let the "
            "firewall pass connections between the nodes",
            *(actor, address.host, address.port),
        )
        self._call_through_ray(actor)
        return None

    def _call_through_ray(self, actor: str) -> None:
        if not self.may_use_ray:
            return
        if len(self._without_until) >= UNREACHABLE_MAX:
            self._without_until.clear()
        self._without_until[actor] = _soon()

    def _forget(self, actor: str, connection: ActorConnection) -> None:
        if self._connections.get(actor) is connection:
            del self._connections[actor]


def _soon() -> float:
    """When to try a connection again to an actor called through Ray, in loop time."""
    return asyncio.get_running_loop().time() + UNREACHABLE_RETRY_S


class ActorConnection(FramedProtocol):
    """Made by ``connect``. Calls that are open when it breaks end with ``NETWORK_EXCEPTION``.

    ``is_usable`` says whether new calls may be made on it. It becomes false for good once the
    connection breaks, or once a call times out and nothing else arrives: the process may be
    stopped, or Ray may have replaced it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_usable = False
        self.error: Exception | None = None
        self.refusal = ""
        """Why the listener refuses a caller that is over its limits."""
        self.on_lost: Callable[[], None] | None = None
        self._next_id = HELLO_ID + 1
        self._last_received = 0.0
        self._pending: dict[
            int, tuple[Request[Any], asyncio.Future[Reply | None], MeteredCall]
        ] = {}
        self._greeted: asyncio.Future[tuple[int, bytes]] = self.loop.create_future()
        """Done with the next frame of the handshake."""
        self._turns: deque[asyncio.Future[bool]] = deque()
        """Of calls that wait for the actor to read; they leave in the order they came in."""

    async def call(
        self,
        request: Request[ReplyT],
        *,
        timeout_ms: int,
        metered: MeteredCall = UNMETERED,
        key: str = "",
    ) -> ReplyT:
        """Send ``request`` and return its reply; see ``Transport.call`` for errors.

        ``key`` is the called replica in an actor that holds several.
        """
        began = self.loop.time()
        deadline = began + timeout_ms / 1000
        is_in_time = True
        if self.is_congested or self._turns:
            is_in_time = await self._turn(deadline)
        if self.is_closing:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        if not is_in_time:
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

    async def _turn(self, deadline: float) -> bool:
        """Wait until the actor reads or the connection is lost; false if the time is up first."""
        try:
            return await _turn(self._turns, deadline)
        finally:
            # Once this call is sent: it may have filled the connection again.
            self.loop.call_soon(self.drained)

    def drained(self) -> None:
        """Resume the call that has waited longest; the next one follows if there is still room."""
        if self._turns and (self.is_closing or not self.is_congested):
            resolve_future(self._turns[0], True)

    def _unanswered(self, request: Request[ReplyT], began: float, timeout_ms: int) -> ReplyT:
        if self._last_received < began and timeout_ms >= SILENCE_MS:
            self.retire()
        return request.failed(ErrorCode.REQUEST_TIMED_OUT)

    def retire(self) -> None:
        """Accept no new calls; close when the last open one has ended."""
        self.is_usable = False
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if not self._pending:
            self.close()

    async def greet(self, greeting: Greeting) -> Ending:
        """Prove who calls; return how that ended, also whether the listener has proved itself."""
        while True:
            kind, body = await self._greeted
            step = greeting.receive(kind, body)
            if isinstance(step, Ending) or self.is_closing:
                break
            method, message = step[0].encode("ascii"), step[1]
            self._greeted = self.loop.create_future()
            self.send(HELLO_ID, len(method), method, message)
        self.is_usable = step is Ending.ACCEPTED and not self.is_closing
        return step if isinstance(step, Ending) else Ending.FAILED

    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        """Take a reply; it is dropped if no call waits for it any more."""
        self._last_received = self.loop.time()
        if correlation_id == HELLO_ID:
            if kind == Outcome.LIMITED:
                self.refusal = bytes(body).decode("utf-8", "replace")
            resolve_future(self._greeted, (kind, bytes(body)))
            return
            return
        pending = self._pending.get(correlation_id)
        if pending is not None:
            request, answer, metered = pending
            metered.reply_bytes = len(body)
            if not answer.done():
                answer.set_result(read_answer(request, kind, body))

    def connection_lost(self, exc: Exception | None) -> None:
        """End all open calls; each may have run or not."""
        super().connection_lost(exc)
        self.error = exc
        self.is_usable = False
        if self.on_lost is not None:
            self.on_lost()
        resolve_future(self._greeted, (Outcome.FAILED, b""))
        self.drained()
        for request, answer, _ in self._pending.values():
            resolve_future(answer, request.failed(ErrorCode.NETWORK_EXCEPTION))


class NoConnection(NamedTuple):
    """Why there is no connection, although the actor is well or Ray may not carry the calls."""

    error: ErrorCode
    detail: str = ""


_Made: TypeAlias = "ActorConnection | NoConnection | None"
"""A connection, why there is none, or ``None``: the actor is called through Ray."""


async def connect(
    address: ListenerAddress,
    *,
    timeout_ms: int,
    identity: Identity = A_PROGRAM,
    certificates: Certificates | None = None,
) -> ActorConnection | NoConnection | None:
    """Open a connection; ``None`` if no listener that proves itself answers in time.

    ``SASL_AUTHENTICATION_FAILED`` if it does not believe who ``identity`` is, or the file that
    would prove it is of no use; ``THROTTLING_QUOTA_EXCEEDED`` if the caller may have no more
    connections. ``None`` also if certificates cannot secure it although they should: a warning says
    why.
    """
    certificates = certificates or identity.certificates(SystemClock())
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    try:
        context = certificates.context(is_caller=True)
        if context is None and identity.needs_tls:
            return _unproved(address, _NEEDS_TLS)
        opening = loop.create_connection(ActorConnection, address.host, address.port, ssl=context)
        _, connection = await asyncio.wait_for(opening, timeout_ms / 1000)
    except (InvalidSettingError, ssl.SSLError) as error:
        reason = certificates.reason(error)
        if identity.needs_tls and isinstance(error, InvalidSettingError):
            return _unproved(address, reason)
        _warn_insecure(address, reason)
        return None
    except (OSError, asyncio.TimeoutError):
        return None
    timer = loop.call_at(deadline, connection.close)
    try:
        ending = await connection.greet(identity.greeting(address.token))
    except InvalidSettingError as error:
        # The file of a token is read anew for each connection.
        connection.close()
        return _unproved(address, str(error))
    except BaseException:
        connection.close()
        raise
    finally:
        timer.cancel()
    if ending is Ending.REFUSED:
        connection.close()
        return NoConnection(ErrorCode.SASL_AUTHENTICATION_FAILED, identity.refused)
    if connection.is_usable:
        return connection
    connection.close()
    if connection.refusal:
        return NoConnection(ErrorCode.THROTTLING_QUOTA_EXCEEDED, connection.refusal)
    if context is not None:
        # The other side rejects our certificate only after the handshake, if at all.
        why = connection.error or "closed by the other side"
        reason = certificates.reason(why)
        _warn_insecure(address, reason)
        if identity.needs_tls:
            return NoConnection(ErrorCode.NETWORK_EXCEPTION, reason)
    return None


_NEEDS_TLS: Final = (
    "tokens and certificates are shown over TLS only; set ONCELOG_TLS_CERT, ONCELOG_TLS_KEY and "
    "ONCELOG_TLS_CA, here as in the cluster"
)


def _unproved(address: ListenerAddress, reason: str) -> NoConnection:
    """Who cannot even try to prove who it is; a retry ends alike."""
    _warn_insecure(address, reason)
    return NoConnection(ErrorCode.SASL_AUTHENTICATION_FAILED, reason)


def _only_ray(actor: str) -> str:
    return (
        f"a user cannot call {actor!r}: it takes only calls that Ray carries, and those are "
        'User:ray\'s; start the cluster with calls="connections", or connect as nobody'
    )


def _warn_insecure(address: ListenerAddress, reason: str) -> None:
    _logger.warning(
        "no secure connection to %s:%d: %s — give both sides certificates of one authority",
        *(address.host, address.port, reason),
    )


class LocalTransport:
    """Calls replicas in the actor ``name`` by its ``dispatch``, and all others by ``others``.

    As with a remote call, the caller may give up while the call goes on.
    """

    def __init__(self, name: str, dispatch: Dispatch, others: Transport) -> None:
        self._name = name
        self._dispatch = dispatch
        self._others = others
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """See ``Transport.call``."""
        name, _, key = actor.partition("/")
        if name != self._name:
            return await self._others.call(actor, request, timeout_ms=timeout_ms)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ReplyT] = loop.create_future()
        task = loop.create_task(self._answer(key, request, answer))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._answered, answer))
        timed_out = request.failed(ErrorCode.REQUEST_TIMED_OUT)
        timer = loop.call_later(timeout_ms / 1000, resolve_future, answer, timed_out)
        try:
            return await answer
        finally:
            timer.cancel()

    async def _answer(
        self, key: str, request: Request[ReplyT], answer: asyncio.Future[ReplyT]
    ) -> None:
        resolve_future(answer, await self._dispatch.answer_here(key, request))

    def _answered(self, answer: asyncio.Future[ReplyT], task: asyncio.Task[None]) -> None:
        """Pass a bug on to a caller that still waits."""
        self._tasks.discard(task)
        bug = None if task.cancelled() else task.exception()
        if bug is not None and not answer.done():
            answer.set_exception(bug)
