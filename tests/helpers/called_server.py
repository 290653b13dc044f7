"""An actor's methods behind a real listener on loopback, and connections to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from crash_disk import Crash
from inside import new_caller
from virtual_time import give_turns

from oncelog.actors.protocol.messages.partition import (
    DeleteRecordsReply,
    DeleteRecordsRequest,
    DescribeReplicaReply,
    DescribeReplicaRequest,
    FetchReply,
    FetchRequest,
    ProduceReply,
    ProduceRequest,
)
from oncelog.actors.rpc.actor_transport import ActorConnection, connect
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.actors.rpc.frames import HELLO
from oncelog.actors.rpc.handshake import NONCE_BYTES, caller_proof, new_nonce
from oncelog.actors.rpc.listener import Listener
from oncelog.storage.errors import InvariantViolation
from oncelog.storage.model import TopicPartition

TOKEN = b"t" * 32
TIMEOUT_MS = 30_000


def produce(number: int, batch: bytes = b"") -> ProduceRequest:
    return ProduceRequest(topic_partition=TopicPartition("flights", number), batch=batch)


def fetch(size_bytes: int) -> FetchRequest:
    return FetchRequest(topic_partition=TopicPartition("flights", 0), fetch_offset=size_bytes)


class Server:
    """Answers ``produce`` with the partition's number once ``gate`` is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun: list[int] = []
        self.entered: asyncio.Queue[int] = asyncio.Queue()
        self.batches: list[bytes] = []
        self.fetched: list[int] = []
        self.bugs: asyncio.Queue[InvariantViolation] = asyncio.Queue()

    async def produce(self, request: ProduceRequest) -> ProduceReply:
        self.begun.append(request.topic_partition.partition)
        self.batches.append(request.batch)
        self.entered.put_nowait(request.topic_partition.partition)
        await self.gate.wait()
        return ProduceReply(base_offset=request.topic_partition.partition)

    async def fetch(self, request: FetchRequest) -> FetchReply:
        self.fetched.append(request.fetch_offset)
        return FetchReply(records=b"r" * request.fetch_offset)

    async def describe_replica(self, request: DescribeReplicaRequest) -> DescribeReplicaReply:
        raise LookupError(f"no such replica, asked by {type(request).__name__}")

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsReply:
        raise InvariantViolation(f"I-04: asked by {type(request).__name__}")

    def die_of_bug(self, bug: InvariantViolation) -> NoReturn:
        self.bugs.put_nowait(bug)
        raise Crash("the process ends here")


def listener_of(
    server: Server, reports: CallReports = NO_REPORTS, host: str = "127.0.0.1"
) -> Listener:
    """A listener on loopback that has the calls of ``server`` answered."""
    dispatch = Dispatch(server, on_bug=server.die_of_bug, reports=reports)
    return Listener(dispatch, host=host, token=TOKEN)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[Server, Listener, ActorConnection]]:
    server = Server()
    listener = listener_of(server)
    connection = await connect(await listener.address(), timeout_ms=TIMEOUT_MS)
    assert isinstance(connection, ActorConnection)
    try:
        yield server, listener, connection
    finally:
        connection.close()
        await listener.close()


def frame(number: int, method: str, *parts: bytes) -> bytes:
    length = 9 + len(method) + sum(map(len, parts))
    head = length.to_bytes(4, "big") + number.to_bytes(8, "big") + bytes([len(method)])
    return head + method.encode() + b"".join(parts)


class Link(asyncio.Transport):
    """The network under a connection, in memory and virtual time: it reads only what it may."""

    def __init__(self, peer: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.peer = peer
        """The certificate that TLS has shown; ``None`` without TLS."""
        self.written = b""
        self._is_reading = True
        self._is_closing = False
        self._left = b""
        self._protocol: Any = None
        self._socket: socket.socket | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self._socket, "peercert": self.peer}.get(name, default)

    def open(self, protocol: Any) -> None:
        self._protocol = protocol
        with socket.socket() as self._socket:
            protocol.connection_made(self)

    def arrives(self, data: bytes) -> None:
        self._left += data
        while self._left and self._is_reading and not self._is_closing:
            target = self._protocol.get_buffer(-1)
            size = min(len(target), len(self._left))
            target[:size], self._left = self._left[:size], self._left[size:]
            del target
            self._protocol.buffer_updated(size)

    def write(self, data: Any) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        asyncio.get_running_loop().call_soon(self.arrives, b"")

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


async def linked(
    listening: Listener, *, is_proved: bool = True, peer: dict[str, Any] | None = None
) -> Link:
    """A connection of a listener, which has proved its token."""
    link = Link(peer)
    link.open(new_caller(listening))
    await give_turns()
    if is_proved:
        challenge, nonce = link.written[-NONCE_BYTES:], new_nonce()
        link.arrives(frame(0, HELLO, nonce, caller_proof(TOKEN, challenge, nonce)))
        await give_turns()
    return link
