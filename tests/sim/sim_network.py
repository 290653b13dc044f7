"""Calls between simulated processes: delayed, repeated, lost, held at a gate; never in order.

What crosses is bytes, in the codec and the frames of production (``sim_wire``), so nothing is
shared. Actors are addressed by name: a late request reaches whoever has the name then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random
from typing import TYPE_CHECKING, Any

from crash_disk import Crash
from sim_wire import CalleeWire, CallerWire, reply_in, request_in

from oncelog.actors.rpc.message_codec import answers_on_connections
from oncelog.storage.errors import ErrorCode

if TYPE_CHECKING:
    from sim_process import Process
    from sim_world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """How calls suffer: probabilities from 0 to 1 per call, times in milliseconds.

    ``delay`` stretches a request or reply by something between both bounds, any order of magnitude
    being as likely. ``break_off`` answers NETWORK_EXCEPTION at once though the call goes through. A
    dropped request or reply is answered with NETWORK_EXCEPTION or times out.
    """

    latency_ms: tuple[float, float] = (0.1, 1.0)
    delay: float = 0.0
    delay_ms: tuple[float, float] = (1.0, 60_000.0)
    duplicate: float = 0.0
    drop_request: float = 0.0
    drop_reply: float = 0.0
    break_off: float = 0.0


BREAK_NOTICED_S = (0.0, 0.1)
"""When a caller hears that its callee died."""


class Exchange:
    """One call: its request, who made it, and the future that waits for its reply."""

    __slots__ = (
        "callee",
        "callee_node",
        "caller",
        "frame",
        "future",
        "key",
        "method",
        "number",
        "request",
    )

    def __init__(self, number: int, caller: Process, callee: str, request: Any) -> None:
        self.number = number
        self.caller = caller
        self.callee, _, self.key = callee.partition("/")
        self.callee_node: int | None = None
        """Of the process that the request has reached."""
        self.method: str = request.method
        self.request = request
        self.frame = b""
        self.future: asyncio.Future[Any] | None = None

    def settle(self, reply: Any) -> None:
        """Give the caller its answer, unless it has one."""
        if self.future is not None and not self.future.done():
            self.future.set_result(reply)

    def fail(self, error: ErrorCode) -> None:
        """Answer with a code of the transport."""
        self.settle(self.request.failed(error))


@dataclass(slots=True, kw_only=True)
class Match:
    """Which messages: patterns as of a shell over names, and ``when`` over the message itself."""

    method: str = "*"
    caller: str = "*"
    callee: str = "*"
    is_reply: bool = False
    when: Callable[[Any], bool] | None = None

    def fits(self, exchange: Exchange, message: Any, *, is_reply: bool) -> bool:
        """Whether this message is meant."""
        return (
            is_reply == self.is_reply
            and fnmatchcase(exchange.method, self.method)
            and fnmatchcase(exchange.caller.name, self.caller)
            and fnmatchcase(exchange.callee, self.callee)
            and (self.when is None or self.when(message))
        )


@dataclass(slots=True, eq=False)
class Held:
    """A message that stands at a gate; ``deliver`` brings it to where it was going."""

    exchange: Exchange
    message: Any
    deliver: Callable[[], None]


@dataclass(slots=True, eq=False)
class Gate:
    """Holds messages that match, after the first ``skip`` of them, at most ``limit`` in all.

    Held messages are numbered by arrival. A caller gives up in its own time; a held request that is
    released later still arrives.
    """

    network: Network
    match: Match
    skip: int = 0
    limit: int | None = None
    held: list[Held] = field(default_factory=list)
    seen_count: int = 0
    is_open: bool = False
    _watchers: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)

    def catches(self, held: Held, *, is_reply: bool) -> bool:
        """Hold the message if it is one of those."""
        if self.is_open or not self.match.fits(held.exchange, held.message, is_reply=is_reply):
            return False
        self.seen_count += 1
        taken = self.seen_count - self.skip
        if taken <= 0 or (self.limit is not None and taken > self.limit):
            return False
        self.held.append(held)
        for count, watcher in self._watchers:
            if len(self.held) >= count and not watcher.done():
                watcher.set_result(None)
        return True

    async def wait_held(self, count: int = 1) -> None:
        """Wait until ``count`` messages stand here."""
        if len(self.held) < count:
            watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append((count, watcher))
            await watcher

    def release(self, index: int = 0, *, times: int = 1, keep: bool = False) -> None:
        """Deliver message ``index`` now, ``times`` times; ``keep`` it to deliver it again later."""
        held = self.held[index] if keep else self.held.pop(index)
        for _ in range(times):
            held.deliver()

    def release_all(self) -> None:
        """Deliver all and hold nothing any more."""
        self.is_open = True
        while self.held:
            self.release()

    def drop(self, index: int = 0) -> None:
        """Lose message ``index``: its caller's time runs out."""
        self.held.pop(index)


class Network:
    """Every message on its way. ``counts`` tells how many faults of each kind were injected.

    ``watchers`` are called with each message that arrives: (exchange, message, whether a reply).
    """

    def __init__(self, world: World, random: Random) -> None:
        self.faults = NetworkFaults()
        self.zombie_share = 0.0
        """How often a call reaches a process that was replaced and still lives."""
        self.counts: Counter[str] = Counter()
        self.call_count = 0
        self._world = world
        self._random = random
        self.watchers: list[Callable[[Exchange, Any, bool], None]] = []
        self.cuts: set[tuple[int, int]] = set()
        """From which node nothing arrives at which."""
        self._rules: list[tuple[Match, NetworkFaults]] = []
        self._gates: list[Gate] = []
        # Of its own: how bytes are cut changes nothing else that a seed stands for.
        self._wire_random = Random(f"wires {world.seed}")

    # --- for tests ----------------------------------------------------------------------------

    def set_faults(
        self, faults: NetworkFaults, *, method: str = "*", caller: str = "*", callee: str = "*"
    ) -> None:
        """``faults`` for these calls only; the newest rule that fits wins."""
        self._rules.insert(0, (Match(method=method, caller=caller, callee=callee), faults))

    def forget_rules(self) -> None:
        """What ``set_faults`` made holds no more."""
        self._rules.clear()

    def partition(self, caller: str, callee: str) -> None:
        """No call from ``caller`` arrives at ``callee`` (patterns); ``heal`` mends it."""
        self.set_faults(NetworkFaults(drop_request=1.0), caller=caller, callee=callee)

    def heal(self) -> None:
        """No faults, rules or cuts, all gates open; what was delayed stays delayed."""
        self.faults = NetworkFaults()
        self.cuts.clear()
        self.forget_rules()
        for gate in self._gates:
            gate.release_all()
        self._gates.clear()

    def hold(
        self,
        method: str = "*",
        *,
        caller: str = "*",
        callee: str = "*",
        reply: bool = False,
        when: Callable[[Any], bool] | None = None,
        skip: int = 0,
        limit: int | None = None,
    ) -> Gate:
        """Hold requests (or replies) from now on; ``when`` is asked about the message."""
        match = Match(method=method, caller=caller, callee=callee, is_reply=reply, when=when)
        gate = Gate(self, match, skip, limit)
        self._gates.append(gate)
        return gate

    # --- a call -------------------------------------------------------------------------------

    async def call(self, caller: Process, callee: str, request: Any, timeout_ms: int) -> Any:
        """See ``Transport.call``."""
        if caller.is_dead:
            raise Crash(f"{caller.name} is dead")
        loop = self._world.loop
        self.call_count += 1
        exchange = Exchange(self.call_count, caller, callee, request)
        exchange.future = future = loop.create_future()
        self._world.tell(caller.name, f"→ {callee}", request)
        if not answers_on_connections(request):
            raise AssertionError(f"{type(request).__name__} is no message of an actor of the log")
        wire = self._caller_wire(caller)
        try:
            exchange.frame = wire.request(exchange)
        except ValueError as error:
            return request.failed(ErrorCode.INVALID_REQUEST, str(error))
        self._send(exchange)
        timer = loop.call_later(timeout_ms / 1_000, exchange.fail, ErrorCode.REQUEST_TIMED_OUT)
        try:
            return await future
        finally:
            timer.cancel()
            wire.forget(exchange)

    def _caller_wire(self, process: Process) -> CallerWire:
        if process.caller_wire is None:
            process.caller_wire = CallerWire(process, self._wire_random)
        return process.caller_wire

    def _faults_of(self, exchange: Exchange) -> NetworkFaults:
        for match, faults in self._rules:
            if match.fits(exchange, exchange.request, is_reply=False):
                return faults
        return self.faults

    def _send(self, exchange: Exchange) -> None:
        faults = self._faults_of(exchange)
        if self._happens(faults.break_off, "break_off", exchange):
            self._later(self._latency(faults), exchange.fail, ErrorCode.NETWORK_EXCEPTION)
        if self._happens(faults.drop_request, "drop_request", exchange):
            self._lose(exchange, faults)
        else:
            self._later(self._delay(faults, exchange), self._request_arrives, exchange)
        if self._happens(faults.duplicate, "duplicate", exchange):
            delay_s = self._latency(faults) + self._stretch(faults)
            self._later(delay_s, self._request_arrives, exchange)

    def _happens(self, probability: float, kind: str, exchange: Exchange) -> bool:
        if not probability or self._random.random() >= probability:
            return False
        self.counts[kind] += 1
        self._world.tell(exchange.caller.name, f"* {kind} → {exchange.callee} {exchange.method}")
        return True

    def _lose(self, exchange: Exchange, faults: NetworkFaults) -> None:
        if self._random.random() < 0.5:
            self._later(self._latency(faults), exchange.fail, ErrorCode.NETWORK_EXCEPTION)

    def _latency(self, faults: NetworkFaults) -> float:
        return self._random.uniform(*faults.latency_ms) / 1_000

    def _stretch(self, faults: NetworkFaults) -> float:
        low_ms, high_ms = faults.delay_ms
        return low_ms * (high_ms / low_ms) ** self._random.random() / 1_000

    def _delay(self, faults: NetworkFaults, exchange: Exchange) -> float:
        delay_s = self._latency(faults)
        if self._happens(faults.delay, "delay", exchange):
            delay_s += self._stretch(faults)
        return delay_s

    def _later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        context = self._world.driver.context
        self._world.loop.call_later(delay_s, callback, *args, context=context)

    # --- at the callee ------------------------------------------------------------------------

    def _request_arrives(self, exchange: Exchange) -> None:
        if self._is_cut(exchange.caller.node, self._world.node_of(exchange.callee), exchange):
            return
        if self._gates or self.watchers:
            request = request_in(exchange.frame, exchange.method)
            for watcher in tuple(self.watchers):
                watcher(exchange, request, False)
            held = Held(exchange, request, lambda: self._deliver_request(exchange))
            if any(gate.catches(held, is_reply=False) for gate in self._gates):
                what = f"* held: request of {exchange.caller.name}"
                self._world.tell(exchange.callee, what, request)
                return
        self._deliver_request(exchange)

    def _deliver_request(self, exchange: Exchange) -> None:
        callee = self._callee(exchange)
        if callee is None:
            if self._world.node_of(exchange.callee) in self._world.dead_nodes:
                self._lose(exchange, self.faults)
            else:
                self._later(self._latency(self.faults), self._breaks, exchange)
            return
        exchange.callee_node = callee.node
        callee.calls[exchange.number] = exchange
        if callee.callee_wire is None:
            callee.callee_wire = CalleeWire(callee, self._wire_random, self._answer)
        callee.callee_wire.request_arrives(exchange)

    def _callee(self, exchange: Exchange) -> Process | None:
        """Whoever has the name; or a zombie, of which a connection from before still tells."""
        zombies = [
            one
            for one in self._world.zombies()
            if one.name == exchange.callee and (exchange.caller.node, one.node) not in self.cuts
        ]
        if zombies and self._wire_random.random() < self.zombie_share:
            return zombies[-1]
        found: Process | None = self._world.actor(exchange.callee)
        return found

    # --- back at the caller -------------------------------------------------------------------

    def _answer(self, callee: Process, exchange: Exchange, frame: bytes) -> None:
        callee.calls.pop(exchange.number, None)
        faults = self._faults_of(exchange)
        if self._happens(faults.drop_reply, "drop_reply", exchange):
            self._lose(exchange, faults)
            return
        self._later(self._delay(faults, exchange), self._reply_arrives, exchange, frame)

    def _reply_arrives(self, exchange: Exchange, frame: bytes) -> None:
        if self._is_cut(self._node_of_callee(exchange), exchange.caller.node, exchange):
            return
        if self._gates or self.watchers:
            reply = reply_in(frame, exchange)
            for watcher in tuple(self.watchers):
                watcher(exchange, reply, True)
            held = Held(exchange, reply, lambda: self._deliver_reply(exchange, frame))
            if any(gate.catches(held, is_reply=True) for gate in self._gates):
                what = f"* held: reply of {exchange.callee}"
                self._world.tell(exchange.caller.name, what, reply)
                return
        self._deliver_reply(exchange, frame)

    def _deliver_reply(self, exchange: Exchange, frame: bytes) -> None:
        if not exchange.caller.is_dead:
            self._caller_wire(exchange.caller).arrives(frame)

    def callee_died(self, exchange: Exchange, node: int) -> None:
        """The connection broke while the call ran: the caller hears of it soon.

        Not always if the machine is gone: nobody closes its connections.
        """
        if node not in self._world.dead_nodes or self._random.random() < 0.5:
            self._later(self._random.uniform(*BREAK_NOTICED_S), self._breaks, exchange)

    # --- between nodes ------------------------------------------------------------------------

    def _breaks(self, exchange: Exchange) -> None:
        """The caller hears that there is no connection, unless it hears nothing from there."""
        if not self._is_cut(self._node_of_callee(exchange), exchange.caller.node, exchange):
            exchange.fail(ErrorCode.NETWORK_EXCEPTION)

    def _node_of_callee(self, exchange: Exchange) -> int:
        if exchange.callee_node is None:
            return self._world.node_of(exchange.callee)
        return exchange.callee_node

    def _is_cut(self, sender: int, receiver: int, exchange: Exchange) -> bool:
        """Whether what is about to arrive is lost, as no message passes between the two nodes."""
        if (sender, receiver) not in self.cuts:
            return False
        self._world.tell(exchange.caller.name, f"* cut off: {exchange.callee} {exchange.method}")
        return True


class SimTransport:
    """``Transport`` of one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        """See ``Transport.call``."""
        return await self._network.call(self._process, actor, request, timeout_ms)
