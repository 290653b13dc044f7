"""The honest client of Kafka: asks two gateways at a steady rate, and tells how long that took.

    python fuzz_kafka_caller.py PLAIN_PORT TLS_PORT

It tells the same as ``fuzz_caller.py``.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections import deque
from dataclasses import asdict
from typing import Any, Final

from fuzz_caller import CALL_INTERVAL_S, LARGE_BYTES, LARGE_EVERY, NEW_EVERY, Calls
from fuzz_kafka_target import HONEST_HOST, PASSWORD, USER
from fuzz_target import lines_of_input, tell
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafka_gateway import Wire
from kafka_records import batch

from oncelog.actors.protocol.scram import ScramClient
from oncelog.actors.rpc.certificates import OUR_FILES

TIMEOUT_S: Final = 30.0
TOPIC: Final = "flights"
MECHANISM: Final = "SCRAM-SHA-256"


def produce(records: bytes) -> Any:
    """A Produce of one batch."""
    data = ProduceRequest.TopicProduceData
    one = data.PartitionProduceData(version=9, index=0, records=records)
    topic = data(version=9, name=TOPIC, partition_data=[one])
    return ProduceRequest[9](transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=[topic])


def metadata() -> Any:
    """A Metadata of one topic."""
    topics = [MetadataRequest.MetadataRequestTopic(version=5, name=TOPIC)]
    return MetadataRequest[5](topics=topics, allow_auto_topic_creation=False)


SMALL: Final = batch(b"v" * 200)
LARGE: Final = batch(b"v" * LARGE_BYTES)


class Connection:
    """One connection of the client, on which answers are told apart by their order."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._waiting: deque[tuple[int, Any, asyncio.Future[Any]]] = deque()
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def open(cls, port: int, context: ssl.SSLContext | None) -> Connection:
        """Connect, and log in where TLS is."""
        name = HONEST_HOST if context else None
        opening = asyncio.open_connection(HONEST_HOST, port, ssl=context, server_hostname=name)
        wire = Wire(*await opening)
        asked = ApiVersionsRequest[3](client_software_name="fuzz", client_software_version="1")
        await wire.ask(asked, ApiVersionsResponse)
        if context is not None:
            await _log_in(wire)
        return cls(wire)

    async def ask(self, message: Any, response: Any) -> Any:
        """The answer to a request."""
        answer = asyncio.get_running_loop().create_future()
        self._wire.send(message, response)
        self._waiting.append((message.API_VERSION, response, answer))
        return await asyncio.wait_for(answer, TIMEOUT_S)

    async def _read(self) -> None:
        number = self._wire.count
        try:
            while True:
                frame = await self._wire.frame()
                number += 1
                version, response, answer = self._waiting.popleft()
                if int.from_bytes(frame[:4], "big") != number:
                    raise ConnectionError(f"answer {frame[:4].hex()} in the place of {number}")
                if not answer.done():
                    answer.set_result(response.decode(frame, version=version, header=True))
        except (ConnectionError, EOFError) as error:
            for _, _, answer in self._waiting:
                if not answer.done():
                    answer.set_exception(ConnectionError(repr(error)))

    def close(self) -> None:
        """Close it."""
        self._reading.cancel()
        self._wire.writer.transport.abort()


async def _log_in(wire: Wire) -> None:
    scram = ScramClient(name=USER, password=PASSWORD, nonce="a-nonce-of-the-honest-caller")
    await wire.ask(SaslHandshakeRequest[1](mechanism=MECHANISM), SaslHandshakeResponse)
    message = scram.first()
    for _ in range(2):
        if not isinstance(message, bytes):
            raise ConnectionError(f"the login failed: {message}")
        asked = SaslAuthenticateRequest[2](auth_bytes=message)
        answer = await wire.ask(asked, SaslAuthenticateResponse)
        if answer.error_code:
            raise ConnectionError(f"the login was refused: {answer.error_message}")
        message = scram.receive(bytes(answer.auth_bytes))


class HonestClient:
    """Asks a gateway on one connection, and now and then on a new one."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self._port = port
        self._context = context
        self._calls = Calls()
        self._tasks: set[asyncio.Task[None]] = set()

    def taken(self) -> Calls:
        """What has happened since this was last asked."""
        taken, self._calls = self._calls, Calls()
        return taken

    async def run(self) -> None:
        """Ask until cancelled; no request waits for another."""
        connection = await self._connected()
        if connection is None:
            return
        loop, number = asyncio.get_running_loop(), 0
        next_s = loop.time()
        try:
            while True:
                number += 1
                self._spawn(self._call(connection, number))
                if number % NEW_EVERY == 0:
                    self._spawn(self._call_anew(number))
                next_s += CALL_INTERVAL_S
                await asyncio.sleep(max(0.0, next_s - loop.time()))
        finally:
            for task in self._tasks:
                task.cancel()
            connection.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self) -> Connection | None:
        self._calls.new_connections += 1
        self._calls.connect_attempts += 1
        try:
            opening = Connection.open(self._port, self._context)
            return await asyncio.wait_for(opening, TIMEOUT_S)
        except (OSError, EOFError, asyncio.TimeoutError) as error:
            self._calls.failed.append(f"no new connection: {error!r}")
        return None

    async def _call_anew(self, number: int) -> None:
        connection = await self._connected()
        if connection is not None:
            await self._call(connection, number + 1)
            connection.close()

    async def _call(self, connection: Connection, number: int) -> None:
        is_large = number % LARGE_EVERY == 0
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            if number % 2 and not is_large:
                told = await connection.ask(metadata(), MetadataResponse)
                is_right = told.topics[0].name == TOPIC and not told.topics[0].error_code
            else:
                asked = produce(LARGE if is_large else SMALL)
                told = await connection.ask(asked, ProduceResponse)
                (one,) = told.responses[0].partition_responses
                is_right = (one.error_code, one.base_offset) == (0, 0)
        except (OSError, EOFError, asyncio.TimeoutError) as error:
            told, is_right = error, False
        took = self._calls.large_took if is_large else self._calls.took
        took.append(1_000 * (loop.time() - begun_s))
        if not is_right:
            self._calls.failed.append(f"request {number}: {told!r:.200}")


async def call(plain_port: int, tls_port: int) -> None:
    """Ask, and tell of it, until the input ends."""
    context = ssl.create_default_context(cafile=os.environ[OUR_FILES[2]])
    callers = {"plain": HonestClient(plain_port, None), "tls": HonestClient(tls_port, context)}
    calling = [asyncio.create_task(caller.run()) for caller in callers.values()]
    asked = await lines_of_input()
    while await asked.readline():
        tell({name: asdict(caller.taken()) for name, caller in callers.items()})
    for task in calling:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(call(int(sys.argv[1]), int(sys.argv[2])))
