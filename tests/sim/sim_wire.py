"""A call in transit: bytes of the real codec in real frames, torn and merged at random.

Each process has two wires: one that carries its calls and their replies, one that serves the calls
of others. Both are production's framing over a stream of this module; production's
``connection`` and ``listener`` interpret the frames. Only the transit is the simulator's: a message
is a piece of bytes that the network may delay, lose, repeat and hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from crash_disk import Crash

from oncelog.actors.process.background import resolve_future
from oncelog.actors.protocol.access import SERVER
from oncelog.actors.rpc import message_codec
from oncelog.actors.rpc.dispatch import read_answer
from oncelog.actors.rpc.frames import FramedProtocol, Outcome
from oncelog.actors.rpc.listener import Listener

if TYPE_CHECKING:
    from sim_network import Exchange
    from sim_process import Process

TORN = 0.25
"""How often a part of what has come is read only later, perhaps with what follows it."""

HEADER_BYTES = 16
"""Every other cut is within so many bytes: in a length, a correlation id, a name."""

REST_AFTER_S = (0.0, 0.0005)

KIND_AT = 12
"""Where byte 12 of a frame is; see ``frames``."""


class _Pipe:
    """``asyncio.Transport`` as far as frames use it: what is written is taken out again."""

    def __init__(self) -> None:
        self._written: list[Any] = []

    def write(self, data: Any) -> None:
        self._written.append(data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        raise AssertionError("a frame of the simulator was taken for none")

    def take(self) -> bytes:
        written, self._written = self._written, []
        return b"".join(written)


class _NoTurns:
    """The loop of a wire that is flushed by hand: each message is a piece of its own."""

    def __init__(self, loop: Any) -> None:
        self.create_task = loop.create_task

    def call_soon(self, *_: Any) -> None:
        """Not waited for: ``Wire.framed`` flushes."""


class Wire(FramedProtocol):
    """One end of all connections of a kind that a process has."""

    def __init__(self, process: Process, random: Random) -> None:
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(process.world.loop)
        super().__init__()
        # A gate may be opened while the world stands still.
        asyncio._set_running_loop(before)
        self.process = process
        self._pipe = self.transport = _Pipe()  # type: ignore[assignment]
        self._clock = self.loop
        self.loop = _NoTurns(self._clock)  # type: ignore[assignment]
        self._random = random
        self._arrived = bytearray()
        self._is_reading = False

    def framed(self, number: int, kind: int, *parts: Any) -> bytes:
        """One frame, as production sends it."""
        self.send(number, kind, *parts)
        self._flush()
        return self._pipe.take()

    def arrives(self, frame: bytes) -> None:
        """More bytes are here; the process reads them in its turn."""
        self._arrived += frame
        if not self._is_reading:
            self._is_reading = True
            self._clock.call_soon(self._read, context=self.process.context)

    def _read(self) -> None:
        self._is_reading = False
        chunk = self._arrived
        size = self._chunk_bytes(len(chunk))
        self._arrived = chunk[size:]
        if self._arrived:
            self._is_reading = True
            after_s = self._random.uniform(*REST_AFTER_S)
            self._clock.call_later(after_s, self._read, context=self.process.context)
        position = 0
        while position < size:
            view = self.get_buffer(-1)
            part = chunk[position : min(size, position + len(view))]
            view[: len(part)] = part
            position += len(part)
            del view
            self.buffer_updated(len(part))

    def drained(self) -> None:
        """The network takes whatever is sent."""

    def _chunk_bytes(self, available: int) -> int:
        if available < 2 or self._random.random() >= TORN:
            return available
        reach = available if self._random.random() < 0.5 else min(HEADER_BYTES, available)
        return self._random.randrange(1, reach)


class CallerWire(Wire):
    """Sends requests, and gives callers their replies."""

    def __init__(self, process: Process, random: Random) -> None:
        super().__init__(process, random)
        self._waiting: dict[int, Exchange] = {}

    def request(self, exchange: Exchange) -> bytes:
        """The frame of a request; ``ValueError`` if it cannot be sent."""
        self._waiting[exchange.number] = exchange
        name = f"{exchange.method}/{exchange.key}" if exchange.key else exchange.method
        method = name.encode("ascii")
        parts = message_codec.encode_in_parts(exchange.request)
        return self.framed(exchange.number, len(method), method, *parts)

    def forget(self, exchange: Exchange) -> None:
        """Its caller waits no more."""
        self._waiting.pop(exchange.number, None)

    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        """A reply; one that nobody waits for any more is dropped."""
        exchange = self._waiting.get(correlation_id)
        if exchange is not None and exchange.future is not None:
            reply = read_answer(exchange.request, kind, body)
            self.process.world.tell(self.process.name, f"← {exchange.callee}", reply)
            resolve_future(exchange.future, reply)


class CalleeWire(Wire):
    """Reads requests and has the process' server answer them."""

    def __init__(
        self,
        process: Process,
        random: Random,
        answer: Callable[[Process, Exchange, bytes], None],
    ) -> None:
        super().__init__(process, random)
        self.in_progress = 0
        self.last_used = 0.0
        self.principal = SERVER
        self.host = self.address = ""
        self._answer = answer
        self._copies: dict[int, tuple[Exchange, int]] = {}
        """Requests to be answered, by number, and how often: a repeated one is, each time."""
        self._listener = Listener(process.dispatch, host="", token=b"")

    def request_arrives(self, exchange: Exchange) -> None:
        """One more request, or the same again."""
        count = self._copies.get(exchange.number, (exchange, 0))[1]
        self._copies[exchange.number] = (exchange, count + 1)
        self.arrives(exchange.frame)

    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        """A request."""
        method = bytes(body[:kind]).decode("ascii")
        caller = self._copies[correlation_id][0].caller
        self.process.world.tell(self.process.name, f"· {method} of {caller.name}")
        self.principal = caller.principal
        self._listener.begin(self, correlation_id, method, body[kind:])

    def has_room(self) -> None:
        """Never waited for."""

    def mute(self, throttle_ms: int) -> None:
        """Never asked for: no program of a world has limits."""

    def send(self, correlation_id: int, kind: int, *parts: Any) -> None:
        """A reply leaves; nothing does once the process is dead."""
        if self.process.is_dead:
            raise Crash(f"{self.process.name} is dead")
        if kind == Outcome.FAILED:
            text = b"".join(parts).decode()
            self.process.world.fail(AssertionError(text), f"{self.process.name} raised in a call")
        super().send(correlation_id, kind, *parts)
        self._flush()
        exchange, count = self._copies.pop(correlation_id)
        if count > 1:
            self._copies[correlation_id] = (exchange, count - 1)
        self._answer(self.process, exchange, self._pipe.take())


def reply_in(frame: bytes, exchange: Exchange) -> Any:
    """The message in the frame of a reply, for those who look on."""
    return read_answer(exchange.request, frame[KIND_AT], memoryview(frame)[KIND_AT + 1 :])


def request_in(frame: bytes, method: str) -> Any:
    """The message in the frame of a request, for those who look on."""
    return message_codec.decode_request(method, frame[KIND_AT + 1 + frame[KIND_AT] :])
