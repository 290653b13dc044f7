"""The target: two listeners with a small server, in a process of its own that tells its counts.

One has certificates, those of its environment, and the other none.

    python fuzz_target.py asyncio|uvloop

It prints ``{"plain": PORT, "tls": PORT}``, then for each line that it reads a line of counts. It
ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import uvloop
from fuzz_inputs import SECRET, TOKEN

from oncelog.actors.protocol.access import SERVER
from oncelog.actors.protocol.messages.access import Access, User
from oncelog.actors.protocol.messages.cluster import MetadataReply, MetadataRequest
from oncelog.actors.protocol.messages.partition import (
    FetchReply,
    FetchRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
    ProduceReply,
    ProduceRequest,
)
from oncelog.actors.protocol.scram import ITERATIONS_MIN, make_credential
from oncelog.actors.rpc import message_codec
from oncelog.actors.rpc.admission import Caller, Places
from oncelog.actors.rpc.certificates import OUR_FILES
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.listener import Listener
from oncelog.actors.rpc.naming import ConfiguredNaming
from oncelog.storage.errors import InvariantViolation

HONEST_HOST: Final = "127.0.0.1"
"""Where the honest caller calls from, and no stranger."""

ALICE: Final = User(
    name="alice", credential=make_credential("nobody knows it", b"s" * 16, ITERATIONS_MIN)
)
RULES: Final = "RULE:^CN=honest$/honest/"
"""They name nobody: no certificate has this subject."""

ERRORS_KEPT: Final = 5
ERROR_CHARACTERS: Final = 2_000
REPLY_BYTES: Final = 1_000
LOOPS: Final[dict[str, Callable[..., Any]]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@dataclass(slots=True)
class Counts:
    """What has happened in the target.

    ``early``: requests that were begun before their connection had proved anything. ``trusted``:
    connections of strangers whose proof was accepted, ``trusted_servers`` those taken for servers.
    ``left``: connections of strangers that are open, and requests of those that have ended.
    """

    trusted: int = 0
    trusted_servers: int = 0
    begun: int = 0
    early: int = 0
    decoded: int = 0
    left: int = 0
    error_count: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing has happened that never may; who may be trusted others know."""
        return not self.error_count and not self.early and self.decoded <= self.begun

    def is_fooled(self, proved: int, proved_servers: int) -> bool:
        """Whether more strangers were trusted than have proved it."""
        return self.trusted > proved or self.trusted_servers > proved_servers


class SmallServer:
    """Answers four requests, each with what it can be recognized by."""

    async def produce(self, request: ProduceRequest) -> ProduceReply:
        return ProduceReply(base_offset=request.topic_partition.partition)

    async def fetch(self, request: FetchRequest) -> FetchReply:
        return FetchReply(high_watermark=request.fetch_offset, records=b"r" * REPLY_BYTES)

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsReply:
        return ListOffsetsReply(timestamp_ms=request.timestamp_ms)

    async def metadata(self, request: MetadataRequest) -> MetadataReply:
        return MetadataReply()


class _WatchedPlaces(Places):
    """Counts the connections whose proof was accepted."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts
        self.accepted: set[Caller] = set()

    def trust(self, caller: Caller) -> Caller | None:
        if caller.host != HONEST_HOST:
            self._counts.trusted += 1
            self._counts.trusted_servers += caller.principal is SERVER
        self.accepted.add(caller)
        return super().trust(caller)

    def end(self, caller: Caller) -> None:
        self.accepted.discard(caller)
        super().end(caller)


class WatchedListener(Listener):
    """A listener of production; it counts what it begins."""

    def __init__(self, counts: Counts) -> None:
        def bug(violation: InvariantViolation) -> None:
            raise violation

        door = Door(Access(users=(ALICE,)), naming=ConfiguredNaming(RULES))
        dispatch = Dispatch(SmallServer(), on_bug=bug, door=door)
        super().__init__(dispatch, host=HONEST_HOST, token=TOKEN, server_secret=SECRET)
        self.counts = counts
        self.watched = _WatchedPlaces(counts)
        self.places = self.watched

    def begin(self, caller: Caller, *arguments: Any) -> None:
        self.counts.begun += 1
        self.counts.early += caller not in self.watched.accepted
        super().begin(caller, *arguments)


class _ErrorCounter(logging.Handler):
    """Counts what is logged as an error: a bug that nobody else is told of."""

    def __init__(self, counts: Counts) -> None:
        super().__init__(logging.ERROR)
        self._counts = counts

    def emit(self, record: logging.LogRecord) -> None:
        self._counts.error_count += 1
        if len(self._counts.errors) < ERRORS_KEPT:
            self._counts.errors.append(logging.Formatter().format(record)[-ERROR_CHARACTERS:])


@contextlib.contextmanager
def watched() -> Iterator[Counts]:
    """Count requests that are decoded, and errors, in this process."""
    counts = Counts()
    decode, counter = message_codec.decode_request, _ErrorCounter(counts)

    def counting(method: str, data: bytes | memoryview) -> Any:
        counts.decoded += 1
        return decode(method, data)

    message_codec.decode_request = counting
    logging.getLogger().addHandler(counter)
    try:
        yield counts
    finally:
        message_codec.decode_request = decode
        logging.getLogger().removeHandler(counter)


@contextlib.contextmanager
def certified(variables: Mapping[str, str]) -> Iterator[None]:
    """Within, what begins to use certificates uses those of ``variables``; without them, none."""
    for name in OUR_FILES:
        os.environ.pop(name, None)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in OUR_FILES:
            os.environ.pop(name, None)


@contextlib.asynccontextmanager
async def listening(counts: Counts, variables: Mapping[str, str]) -> AsyncIterator[dict[str, int]]:
    """The ports of two listeners, ``plain`` and ``tls``."""
    listeners = {"plain": WatchedListener(counts), "tls": WatchedListener(counts)}
    ports = {}
    for name, listener in listeners.items():
        with certified(variables if name == "tls" else {}):
            ports[name] = (await listener.address()).port
    yield ports
    for listener in listeners.values():
        await listener.close()


def allow_many_files() -> None:
    """Open as many files as the system lets this process."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


async def lines_of_input() -> asyncio.StreamReader:
    """The lines that this process is sent."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def tell(facts: dict[str, Any]) -> None:
    """Print one line of facts."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def serve() -> None:
    """Listen, and tell the counts, until the input ends."""
    with watched() as counts:
        async with listening(counts, {name: os.environ[name] for name in OUR_FILES}) as ports:
            tell(ports)
            asked = await lines_of_input()
            while await asked.readline():
                tell(asdict(counts))


if __name__ == "__main__":
    allow_many_files()
    LOOPS[sys.argv[1]](serve())
