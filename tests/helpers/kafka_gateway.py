"""Clients of Kafka at a gateway with actors that are made up: real frames over a real port.

Requests are encoded, and answers read, by the classes of kafka-python.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from topics import topic_of
from virtual_time import START_MS, ManualClock

from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.gateway.calls import Call, Client, Cluster
from oncelog.actors.gateway.door import Handler, KafkaDoor
from oncelog.actors.gateway.listener import KafkaListener
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.interfaces import Clock
from oncelog.actors.protocol.access import Principal, Verdict
from oncelog.actors.protocol.messages.access import NO_ACCESS, Access
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.brokers import (
    FindKafkaListenerReply,
    FindKafkaListenerRequest,
)
from oncelog.actors.protocol.messages.cluster import (
    AllocateProducerIdsReply,
    AllocateProducerIdsRequest,
    BrokerMetadata,
    CreateTopicReply,
    CreateTopicRequest,
    MetadataReply,
    MetadataRequest,
    TopicMetadata,
    VoterMetadata,
)
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.actors.rpc.certificates import Certificates
from oncelog.actors.rpc.door import Door, Naming
from oncelog.storage.errors import ErrorCode

HERE = "127.0.0.1"
OWN = 1
SECRET = b"s" * 32
IDS = {name: f"{number:032x}" for number, name in enumerate(("flights", "taxis"), start=1)}

Answers: TypeAlias = "Mapping[ApiKey, Callable[[Call, Any], Awaitable[Any]]]"


def shards(topic: str, *leaders: int) -> TopicMetadata:
    return topic_of(topic, *leaders, topic_id=topic.encode().hex().ljust(32, "0")[:32])


class Actors:
    """``Transport`` to a controller and to the gateways of other brokers."""

    def __init__(self) -> None:
        self.error = ErrorCode.NONE
        """What the controller answers instead."""
        self.gateways: dict[str, tuple[str, int]] = {"gateway:0@2": ("10.0.0.2", 9_092)}
        self.asked: list[tuple[str, Request[Any]]] = []
        self.next_producer_id = 0
        self.has_producer_ids = True
        self.gate: asyncio.Event | None = None
        """Holds up the gateways' answers until it is set."""
        self.brokers = (
            BrokerMetadata(broker_id=1, data_dir="/d", rack="east"),
            BrokerMetadata(broker_id=2, data_dir="/d"),
        )
        self.topics = {
            topic.name: topic
            for topic in (
                topic_of("flights", 1, 2, topic_id=IDS["flights"], leader_epoch=7),
                topic_of("taxis", 2, topic_id=IDS["taxis"]),
                shards("__consumer_offsets", 1, 2),
                shards("__transaction_state", 2, 1),
            )
        }

    async def call(self, actor: str, request: Request[Any], *, timeout_ms: int) -> Any:
        self.asked.append((actor, request))
        if isinstance(request, FindKafkaListenerRequest):
            if self.gate is not None:
                await self.gate.wait()
            if actor not in self.gateways:
                return request.failed(ErrorCode.NETWORK_EXCEPTION)
            host, port = self.gateways[actor]
            return FindKafkaListenerReply(host=host, port=port)
        assert actor == "controller", actor
        if self.error is not ErrorCode.NONE:
            return request.failed(self.error)
        if isinstance(request, CreateTopicRequest):
            leaders = [1] * request.partitions
            self.topics[request.name] = topic_of(request.name, *leaders, topic_id=request.topic_id)
            return CreateTopicReply(topic_id=request.topic_id)
        if isinstance(request, AllocateProducerIdsRequest):
            if not self.has_producer_ids:
                return request.failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            first, self.next_producer_id = self.next_producer_id, self.next_producer_id + 1_000
            return AllocateProducerIdsReply(first_producer_id=first, count=1_000)
        assert isinstance(request, MetadataRequest)
        names = self.topics if request.topics is None else request.topics
        return MetadataReply(
            cluster_id="c1",
            brokers=self.brokers,
            topics=tuple(self.topics[name] for name in names if name in self.topics),
            voters=tuple(
                VoterMetadata(broker_id=one.broker_id, is_controller=one.broker_id == 2)
                for one in self.brokers
            ),
        )

    def asked_of(self, kind: type[Request[Any]]) -> list[Any]:
        return [request for _, request in self.asked if isinstance(request, kind)]


class Audit:
    """Takes what was decided."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.refused: list[tuple[str, str]] = []

    def judged(self, who: Principal, host: str, method: str, verdicts: list[Verdict], /) -> None:
        self.verdicts += verdicts

    def login_refused(self, name: str, host: str, /) -> None:
        self.refused.append((name, host))


def cluster_of(
    actors: Actors,
    access: Access = NO_ACCESS,
    *,
    naming: Naming | None = None,
    clock: Clock | None = None,
) -> Cluster:
    """What the calls of a gateway share, on the running loop."""

    async def ask(request: MetadataRequest) -> MetadataReply:
        reply: MetadataReply = await actors.call("controller", request, timeout_ms=5_000)
        return reply

    return Cluster(
        transport=actors,  # type: ignore[arg-type]
        door=Door(access, secret=SECRET, naming=naming),
        view=ClusterView(ask, asyncio.get_running_loop().create_task),
        clock=clock or ManualClock(),
        random=random.Random(7),
        broker_id=OWN,
        cluster_id="c1",
        audit=Audit(),
    )


def call_of(cluster: Cluster, version: int, principal: str = "User:ANONYMOUS") -> Call:
    return Call(
        cluster=cluster,
        client=Client(principal=Principal(principal), host=HERE),
        version=version,
        client_id="c",
    )


class Wire:
    """One connection of a client that sends and reads what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.count = 0
        self.sent: list[tuple[int, Any, int]] = []
        """Correlation id, response class and version of what was sent and not answered."""

    def send(self, message: Any, response: Any, *, client_id: str = "c") -> None:
        """Send a request with its version."""
        self.count += 1
        message.with_header(correlation_id=self.count, client_id=client_id)
        self.sent.append((self.count, response, message.API_VERSION))
        self.writer.write(bytes(message.encode(header=True, framed=True)))

    async def frame(self) -> bytes:
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(length)

    async def answer(self) -> Any:
        """The answer to the oldest request, which must have its correlation id."""
        number, response, version = self.sent.pop(0)
        frame = await self.frame()
        assert int.from_bytes(frame[:4], "big") == number
        return response.decode(frame, version=version, header=True)

    async def ask(self, message: Any, response: Any) -> Any:
        assert not self.sent
        self.send(message, response)
        return await self.answer()

    async def versions(self, version: int = 3) -> Any:
        """What begins every connection of a client."""
        message = ApiVersionsRequest[version](
            client_software_name="test", client_software_version="1"
        )
        return await self.ask(message, ApiVersionsResponse)

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while await self.reader.read(1_048_576):
                pass
        return True


class Served:
    """A listener that serves, and who connects to it."""

    def __init__(self, listener: KafkaListener, cluster: Cluster) -> None:
        self.listener = listener
        self.cluster = cluster
        self.wires: list[Wire] = []

    @property
    def port(self) -> int:
        return self.listener.port

    @property
    def audit(self) -> Audit:
        audit = self.cluster.audit
        assert isinstance(audit, Audit)
        return audit

    async def connect(self, context: ssl.SSLContext | None = None) -> Wire:
        streams = await asyncio.open_connection(
            HERE, self.port, limit=2**24, ssl=context, server_hostname=HERE if context else None
        )
        self.wires.append(Wire(*streams))
        return self.wires[-1]


async def refuse(call: Call, request: Any) -> Any:
    raise LookupError(f"nobody answers {type(request).__name__} {call.version} here")


@contextlib.asynccontextmanager
async def served(
    handlers: Mapping[ApiKey, Handler],
    *,
    actors: Actors | None = None,
    access: Access = NO_ACCESS,
    naming: Naming | None = None,
    clock: Clock | None = None,
    reports: CallReports = NO_REPORTS,
) -> AsyncIterator[Served]:
    """A listener on loopback; what connects to it is closed at the end."""
    clock = clock or ManualClock()
    cluster = cluster_of(actors or Actors(), access, naming=naming, clock=clock)
    door = KafkaDoor(cluster, handlers, on_bug=_raise, reports=reports)
    listener = KafkaListener(door, certificates=Certificates(clock), clock=clock)
    await listener.open((HERE,), 0)
    found = Served(listener, cluster)
    try:
        yield found
    finally:
        for wire in found.wires:
            wire.writer.transport.abort()
        await listener.close()


def _raise(bug: BaseException) -> None:
    raise bug


NOW_MS = START_MS
