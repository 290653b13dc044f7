"""Clients of Kafka that write and read, at a gateway whose leaders are made up, or real ones."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from leader_harness import LeaderHarness
from topics import topic_of
from virtual_time import START_MS, ManualClock, run_virtually

from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.gateway.calls import Call, Client, Cluster
from oncelog.actors.gateway.messages import fetch, list_offsets, produce
from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from oncelog.actors.gateway.records.handlers import RecordHandlers
from oncelog.actors.gateway.records.producer_ids import FIRST_KAFKA_ID
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages import partition
from oncelog.actors.protocol.messages.access import Access, Acl, Rules
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.cluster import (
    AllocateProducerIdsReply,
    AllocateProducerIdsRequest,
    ClusterKeysReply,
    ClusterKeysRequest,
    MetadataReply,
    MetadataRequest,
    TopicMetadata,
)
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import IsolationLevel
from oncelog.storage.records.codec import encode_records

FLIGHTS = "flights"
FLIGHTS_ID = "f" * 32
KEY = b"key" * 10
OURS = FIRST_KAFKA_ID + 7
"""A producer id of those that gateways give."""
FOREVER_MS = 3_600_000
ResultT = TypeVar("ResultT")
Answer = Callable[[Any], Awaitable[Any]]
Story = Callable[..., Coroutine[Any, Any, None]]


class FakeLeader:
    """A partition whose records are any bytes, one offset each; it waits as a leader does."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.topic_id = ""
        self.error = ErrorCode.NONE
        """What it answers instead."""
        self.fields: dict[str, Any] = {}
        """Fields of each reply to a fetch that differ."""
        self.asked: list[Any] = []
        self.gate: asyncio.Event | None = None
        """Holds up its answers until it is set."""
        self._more = asyncio.Event()

    def append(self, *records: bytes) -> None:
        self.records += records
        self.moved()

    def moved(self) -> None:
        """Those that wait look again."""
        self._more.set()
        self._more = asyncio.Event()

    @property
    def fetches(self) -> list[partition.FetchRequest]:
        return [one for one in self.asked if isinstance(one, partition.FetchRequest)]

    @property
    def batches(self) -> list[bytes]:
        return [bytes(one.batch) for one in self.asked if hasattr(one, "batch")]

    async def answer(self, request: Any) -> Any:
        self.asked.append(request)
        found = None
        if getattr(request, "topic_id", "") not in ("", self.topic_id):
            return request.failed(ErrorCode.UNKNOWN_TOPIC_ID)
        if self.error is ErrorCode.NONE and isinstance(request, partition.FetchRequest):
            found = await self._fetched(request)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not ErrorCode.NONE:
            return request.failed(self.error)
        if found is not None:
            return found
        if isinstance(request, partition.ListOffsetsRequest):
            return partition.ListOffsetsReply(offset=len(self.records), timestamp_ms=5)
        assert isinstance(request, partition.ProduceRequest), request
        self.records.append(bytes(request.batch))
        return partition.ProduceReply(base_offset=len(self.records) - 1, log_start_offset=0)

    async def _fetched(self, request: partition.FetchRequest) -> partition.FetchReply:
        loop = asyncio.get_running_loop()
        ends = loop.time() + request.max_wait_ms / 1_000
        while True:
            found = self._read(request)
            left = ends - loop.time()
            is_at_once = self.error is not ErrorCode.NONE or "records" in self.fields
            if len(found) >= request.min_bytes or left <= 0 or is_at_once:
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._more.wait(), left)
        is_committed = request.isolation_level is IsolationLevel.READ_COMMITTED
        end = len(self.records)
        fields = {
            "high_watermark": end,
            "last_stable_offset": end,
            "log_start_offset": 0,
            "aborted_transactions": () if is_committed else None,
            "records": memoryview(found),
        }
        return partition.FetchReply(**{**fields, **self.fields})

    def _read(self, request: partition.FetchRequest) -> bytes:
        found = b""
        for record in self.records[request.fetch_offset :]:
            if found and len(found) + len(record) > request.max_bytes:
                break
            found += record
        return found


class World:
    """The transport of a gateway on broker 1: a controller, and actors by their addresses."""

    def __init__(self, *topics: TopicMetadata) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.actors: dict[str, Answer] = {}
        self.controller_error = ErrorCode.NONE
        self.keys = ClusterKeys(current=KEY)
        self.next_id = 0
        self.asked_controller: list[Request[Any]] = []
        self.timeouts_ms: list[int] = []
        self.clock = ManualClock()
        self.door = Door()
        self.leaders: dict[str, FakeLeader] = {}
        self.options: dict[str, Any] = {}
        self._handlers: RecordHandlers | None = None
        self._cluster: Cluster | None = None

    # --- the cluster ----------------------------------------------------------------------

    async def call(self, actor: str, request: Request[Any], *, timeout_ms: int) -> Any:
        if actor == "controller":
            return self._control(request)
        self.timeouts_ms.append(timeout_ms)
        if actor not in self.actors:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        try:
            return await asyncio.wait_for(self.actors[actor](request), timeout_ms / 1_000)
        except asyncio.TimeoutError:
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)

    def _control(self, request: Request[Any]) -> Any:
        self.asked_controller.append(request)
        if self.controller_error is not ErrorCode.NONE:
            return request.failed(self.controller_error)
        if isinstance(request, ClusterKeysRequest):
            return ClusterKeysReply(keys=self.keys)
        if isinstance(request, AllocateProducerIdsRequest):
            first, self.next_id = self.next_id, self.next_id + 1_000
            return AllocateProducerIdsReply(first_producer_id=first, count=1_000)
        assert isinstance(request, MetadataRequest)
        names = self.topics if request.topics is None else request.topics
        return MetadataReply(
            topics=tuple(self.topics[name] for name in names if name in self.topics)
        )

    def looked_up(self) -> list[MetadataRequest]:
        return [one for one in self.asked_controller if isinstance(one, MetadataRequest)]

    def add(self, topic: str = FLIGHTS, partitions: int = 1, **fields: Any) -> list[FakeLeader]:
        """A topic whose partitions broker 1 leads."""
        described = topic_of(
            topic, *(1,) * partitions, **{"topic_id": FLIGHTS_ID, "leader_epoch": 3, **fields}
        )
        self.topics[topic] = described
        leaders = [self.lead(f"partition:{topic}-{number}@1") for number in range(partitions)]
        for leader in leaders:
            leader.topic_id = described.topic_id
        return leaders

    def lead(self, actor: str) -> FakeLeader:
        leader = self.leaders[actor] = FakeLeader()
        self.actors[actor] = leader.answer
        return leader

    def switch_on(self, *acls: Acl, version: int = 1) -> None:
        """Users have the rights that these give them, and no others."""
        self.door.learn(Access(rules=Rules(version=version, is_on=True, acls=acls)))

    # --- the gateway ----------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:

            async def ask(request: MetadataRequest) -> MetadataReply:
                reply: MetadataReply = await self.call("controller", request, timeout_ms=5_000)
                return reply

            self._cluster = Cluster(
                transport=self,  # type: ignore[arg-type]
                door=self.door,
                view=ClusterView(ask, asyncio.get_running_loop().create_task),
                clock=self.clock,
                random=random.Random(7),
                broker_id=1,
            )
        return self._cluster

    @property
    def handlers(self) -> RecordHandlers:
        if self._handlers is None:
            self._handlers = RecordHandlers(self.cluster, **self.options)
        return self._handlers

    def client(self, name: str = "User:ANONYMOUS") -> KafkaClient:
        return KafkaClient(self, name)

    def play(self, story: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Run in virtual time; in the end nothing of the gateway is left."""

        async def body() -> ResultT:
            try:
                return await story()
            finally:
                await self.handlers.close()

        return run_virtually(body())


class KafkaClient:
    """One connection: its answers are checked to be such as can be encoded."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.client = Client(principal=Principal(name), host="127.0.0.1")

    async def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        call = Call(cluster=self.world.cluster, client=self.client, version=version)
        response = await self.world.handlers.handlers[key](call, request)
        if response is not None:
            assert APIS[key].encode[version](response)
        return response

    async def fetch(
        self, *wanted: tuple[int, int], version: int = 12, topic: str = FLIGHTS, **fields: Any
    ) -> list[fetch.PartitionData]:
        """Fetch partitions of a topic at offsets; what the answer has of each, in order."""
        response = await self.fetch_all(*wanted, version=version, topic=topic, **fields)
        assert (response.error_code, len(response.responses)) == (0, 1)
        partitions: list[fetch.PartitionData] = response.responses[0].partitions
        assert [one.partition_index for one in partitions] == [number for number, _ in wanted]
        return partitions

    async def fetch_all(
        self,
        *wanted: tuple[int, int],
        version: int = 12,
        topic: str = FLIGHTS,
        topic_id: bytes = bytes.fromhex(FLIGHTS_ID),
        partition_max_bytes: int = 1_048_576,
        **fields: Any,
    ) -> fetch.FetchResponse:
        partitions = [
            fetch.FetchPartition(
                partition=number, fetch_offset=offset, partition_max_bytes=partition_max_bytes
            )
            for number, offset in wanted
        ]
        asked = {"max_wait_ms": 500, "min_bytes": 1, **fields}
        topics = [fetch.FetchTopic(topic, topic_id, partitions)]
        response: fetch.FetchResponse = await self.ask(
            ApiKey.FETCH, version, fetch.FetchRequest(**asked, topics=topics)
        )
        return response

    async def produce(
        self, *batches: bytes | None, version: int = 12, topic: str = FLIGHTS, **fields: Any
    ) -> list[produce.PartitionProduceResponse]:
        """Produce a batch to each partition from ``first`` on; the answers in their order."""
        response = await self.produce_all(*batches, version=version, topic=topic, **fields)
        assert response is not None
        assert [one.name for one in response.responses] == [topic]
        return response.responses[0].partition_responses

    async def produce_all(
        self,
        *batches: bytes | None,
        version: int = 12,
        topic: str = FLIGHTS,
        first: int = 0,
        **fields: Any,
    ) -> produce.ProduceResponse | None:
        data = [
            produce.PartitionProduceData(number, None if one is None else memoryview(one))
            for number, one in enumerate(batches, start=first)
        ]
        asked = {"acks": -1, "timeout_ms": 30_000, **fields}
        request = produce.ProduceRequest(
            **asked, topic_data=[produce.TopicProduceData(name=topic, partition_data=data)]
        )
        response: produce.ProduceResponse | None = await self.ask(ApiKey.PRODUCE, version, request)
        return response

    async def offset(
        self,
        timestamp: int,
        version: int = 10,
        *,
        topic: str = FLIGHTS,
        number: int = 0,
        **asked: Any,
    ) -> list_offsets.ListOffsetsPartitionResponse:
        """The offset of a time in one partition."""
        wanted = list_offsets.ListOffsetsPartition(number, asked.pop("epoch", -1), timestamp)
        request = list_offsets.ListOffsetsRequest(
            **asked, topics=[list_offsets.ListOffsetsTopic(topic, [wanted])]
        )
        response = await self.ask(ApiKey.LIST_OFFSETS, version, request)
        found: list_offsets.ListOffsetsPartitionResponse = response.topics[0].partitions[0]
        return found

    async def init(self, transactional_id: str | None = None) -> InitProducerIdResponse:
        request = InitProducerIdRequest(transactional_id=transactional_id)
        response: InitProducerIdResponse = await self.ask(ApiKey.INIT_PRODUCER_ID, 5, request)
        return response


def batch(
    *values: bytes, pid: int = -1, epoch: int = -1, seq: int = -1, is_transactional: bool = False
) -> bytes:
    """A record batch as a client sends it."""
    return bytes(
        encode_records(
            [(b"k", value, START_MS, ()) for value in values or (b"v",)],
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=seq,
            is_transactional=is_transactional,
        )
    )


# --- stories ----------------------------------------------------------------------------------


def now_ms() -> int:
    """The time of the running loop."""
    return round(1_000 * asyncio.get_running_loop().time())


def played(partitions: int = 1, **options: Any) -> Callable[[Story], None]:
    """Run a story with a world, its topic's leaders and a client."""

    def play(story: Story) -> None:
        world = World()
        world.options = options
        world.play(lambda: story(world, world.add(partitions=partitions), world.client()))

    return play


def real(harness: LeaderHarness, story: Callable[..., Awaitable[None]], **settings: str) -> None:
    """Run a story with a real leader of partition 0."""
    harness.settings = settings

    async def body() -> None:
        await harness.start()
        world = World(topic_of(FLIGHTS, 1, topic_id=harness.topic_id))

        async def answer(request: Any) -> Any:
            return await getattr(harness.leader, request.method)(request)

        world.actors[f"partition:{FLIGHTS}-0@1"] = answer
        try:
            await story(world, world.client())
        finally:
            await world.handlers.close()
            await harness.replica.stop()

    asyncio.run(body())


def replies(world: World, *given: partition.ProduceReply | ErrorCode, number: int = 0) -> list[Any]:
    """Have the leader answer produces so, one after the other, the last for ever; what it got."""
    asked: list[Any] = []
    left = list(given)

    async def answer(request: Any) -> Any:
        asked.append(request)
        found = left.pop(0) if len(left) > 1 else left[0]
        return request.failed(found) if isinstance(found, ErrorCode) else found

    world.actors[f"partition:{FLIGHTS}-{number}@1"] = answer
    return asked
