"""An actor's methods behind a real listener on loopback, and connections to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NoReturn

from crash_disk import Crash

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
