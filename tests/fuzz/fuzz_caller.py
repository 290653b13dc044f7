"""The honest caller: calls two listeners at a steady rate, and tells how long that took.

    python fuzz_caller.py PLAIN_PORT TLS_PORT

For each line that it reads it prints what has happened since the last one, by listener. It ends
with its input.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from fuzz_inputs import SECRET, TOKEN
from fuzz_target import HONEST_HOST, REPLY_BYTES, certified, lines_of_input, tell

from oncelog.actors.process.clock import SystemClock
from oncelog.actors.protocol.messages.partition import FetchRequest, ProduceRequest
from oncelog.actors.rpc.actor_transport import ActorConnection, connect
from oncelog.actors.rpc.certificates import OUR_FILES, Certificates
from oncelog.actors.rpc.handshake import ProgramIdentity
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.storage.model import TopicPartition

CALL_INTERVAL_S: Final = 0.02
LARGE_EVERY: Final = 25
"""Every so many calls one is too large for the read buffer, and needs room."""

LARGE_BYTES: Final = 100_000
NEW_EVERY: Final = 25
"""Every so many calls one is made on a new connection."""

TIMEOUT_MS: Final = 30_000
CONNECT_ATTEMPTS: Final = 10
CONNECT_TIMEOUT_MS: Final = 3_000


@dataclass(slots=True)
class Calls:
    """What has happened to the calls; durations in ms."""

    took: list[float] = field(default_factory=list)
    large_took: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    new_connections: int = 0
    connect_attempts: int = 0


class HonestCaller:
    """Calls a target on one connection, and now and then on a new one; with certificates by TLS."""

    def __init__(self, port: int, certificates: Certificates) -> None:
        self._certificates = certificates
        self._address = ListenerAddress(host=HONEST_HOST, port=port, token=TOKEN)
        self._calls = Calls()
        self._tasks: set[asyncio.Task[None]] = set()

    def taken(self) -> Calls:
        """What has happened since this was last asked."""
        taken, self._calls = self._calls, Calls()
        return taken

    async def run(self) -> None:
        """Call until cancelled; no call waits for another."""
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

    async def _connected(self) -> ActorConnection | None:
        self._calls.new_connections += 1
        for _ in range(CONNECT_ATTEMPTS):
            self._calls.connect_attempts += 1
            connection = await connect(
                self._address,
                timeout_ms=CONNECT_TIMEOUT_MS,
                identity=ProgramIdentity(SECRET),
                certificates=self._certificates,
            )
            if isinstance(connection, ActorConnection):
                return connection
        self._calls.failed.append(f"no new connection in {CONNECT_ATTEMPTS} attempts")
        return None

    async def _call_anew(self, number: int) -> None:
        connection = await self._connected()
        if connection is not None:
            await self._call(connection, number + 1)
            connection.close()

    async def _call(self, connection: ActorConnection, number: int) -> None:
        place = TopicPartition("flights", number)
        is_large = number % LARGE_EVERY == 0
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if number % 2 and not is_large:
            fetch = FetchRequest(topic_partition=place, fetch_offset=number)
            fetched = await connection.call(fetch, timeout_ms=TIMEOUT_MS)
            is_right = fetched.high_watermark == number and len(fetched.records) == REPLY_BYTES
            reply: Any = fetched
        else:
            batch = b"b" * (LARGE_BYTES if is_large else 200)
            produce = ProduceRequest(topic_partition=place, batch=batch)
            reply = await connection.call(produce, timeout_ms=TIMEOUT_MS)
            is_right = reply.base_offset == number
        took = self._calls.large_took if is_large else self._calls.took
        took.append(1_000 * (loop.time() - began_s))
        if not is_right:
            self._calls.failed.append(f"call {number}: {reply!r:.200}")


async def call(plain_port: int, tls_port: int) -> None:
    """Call, and tell of the calls, until the input ends."""
    secured = Certificates(SystemClock())
    with certified({name: os.environ[name] for name in OUR_FILES}):
        secured.context(is_caller=True)
    callers = {
        "plain": HonestCaller(plain_port, Certificates(SystemClock())),
        "tls": HonestCaller(tls_port, secured),
    }
    calling = [asyncio.create_task(caller.run()) for caller in callers.values()]
    asked = await lines_of_input()
    while await asked.readline():
        tell({name: asdict(caller.taken()) for name, caller in callers.items()})
    for task in calling:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(call(int(sys.argv[1]), int(sys.argv[2])))
