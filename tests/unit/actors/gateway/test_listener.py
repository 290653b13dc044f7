"""The port of a gateway: order, bounds and room of what clients send, over real connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from deadlines import to_its_end, until
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka_gateway import HERE, Served, Wire, refuse, served
from virtual_time import give_turns, run_virtually

from oncelog.actors.gateway import listener as module
from oncelog.actors.gateway import sizes
from oncelog.actors.gateway.calls import Call
from oncelog.actors.gateway.connection_order import ConnectionPlace
from oncelog.actors.gateway.errors import ReconnectError, UnansweredError
from oncelog.actors.gateway.listener import KafkaListener
from oncelog.actors.gateway.messages import fetch, find_coordinator, metadata, produce
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.protocol.messages.access import ANYBODY, Access, Limits, Rules
from oncelog.actors.rpc import frames
from oncelog.actors.rpc.listener import FIRST_FRAME_MAX_BYTES, FIRST_FRAME_TIMEOUT_S

MIB = 1_048_576
ACKS_ALL = -1


class Handlers:
    """Answers once a gate is open; notes what has begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.batches: list[memoryview] = []
        self.places: list[ConnectionPlace | None] = []
        self.fetched_bytes = 10

    def by_key(self) -> dict[ApiKey, Any]:
        return {
            ApiKey.PRODUCE: self.produce,
            ApiKey.FETCH: self.fetch,
            ApiKey.METADATA: self.metadata,
            ApiKey.FIND_COORDINATOR: self.find,
            ApiKey.LIST_GROUPS: refuse,
        }

    async def passes(self, name: str) -> None:
        self.begun.append(name)
        if name in self.gates:
            await self.gates[name].wait()

    def hold(self, *names: str) -> None:
        self.gates |= {name: asyncio.Event() for name in names}

    async def produce(self, call: Call, request: produce.ProduceRequest) -> Any:
        (topic,) = request.topic_data
        (partition,) = topic.partition_data
        await self.passes(topic.name)
        assert partition.records is not None
        self.batches.append(partition.records)
        if request.acks == 0:
            return None
        done = produce.PartitionProduceResponse(index=partition.index, base_offset=len(topic.name))
        response = produce.TopicProduceResponse(name=topic.name, partition_responses=[done])
        return produce.ProduceResponse(responses=[response])

    async def fetch(self, call: Call, request: fetch.FetchRequest) -> fetch.FetchResponse:
        name = request.topics[0].topic
        await self.passes(name)
        records = b"r" * self.fetched_bytes
        done = fetch.PartitionData(partition_index=0, records=records)
        response = fetch.FetchableTopicResponse(topic=name, partitions=[done])
        return fetch.FetchResponse(responses=[response])

    async def metadata(self, call: Call, request: Any) -> metadata.MetadataResponse:
        await self.passes(request.topics[0].name)
        return metadata.MetadataResponse(cluster_id=request.topics[0].name)

    async def find(self, call: Call, request: Any) -> Any:
        if request.key == "unanswered":
            raise UnansweredError("the controller does not answer")
        if request.key == "too old":
            raise ReconnectError("the coordinator has moved")
        self.places.append(call.client.place)
        await self.passes(request.key)
        return find_coordinator.FindCoordinatorResponse(node_id=-1, host=request.key)


def produce_to(topic: str, records: bytes = b"batch", *, acks: int = ACKS_ALL) -> Any:
    data = ProduceRequest.TopicProduceData
    return ProduceRequest[9](
        transactional_id=None,
        acks=acks,
        timeout_ms=1_000,
        topic_data=[
            data(
                version=9,
                name=topic,
                partition_data=[data.PartitionProduceData(version=9, index=0, records=records)],
            )
        ],
    )


def fetch_of(topic: str) -> Any:
    one = FetchRequest.FetchTopic
    return FetchRequest[11](
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=MIB,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            one(
                version=11,
                topic=topic,
                partitions=[
                    one.FetchPartition(
                        version=11,
                        partition=0,
                        current_leader_epoch=-1,
                        fetch_offset=0,
                        log_start_offset=-1,
                        partition_max_bytes=MIB,
                    )
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id="",
    )


def metadata_of(topic: str) -> Any:
    topics = [MetadataRequest.MetadataRequestTopic(version=5, name=topic)]
    return MetadataRequest[5](topics=topics, allow_auto_topic_creation=False)


def find(key: str) -> Any:
    return FindCoordinatorRequest[2](key=key, key_type=0)


Story = Callable[[Served, Handlers], Awaitable[None]]


def play(story: Story, run: Callable[[Any], Any] = to_its_end, **options: Any) -> None:
    async def body() -> None:
        handlers = Handlers()
        async with served(handlers.by_key(), **options) as gateway:
            await story(gateway, handlers)

    run(body())


async def client(gateway: Served) -> Wire:
    """A connection that has begun as every client's does."""
    wire = await gateway.connect()
    assert (await wire.versions()).error_code == 0
    return wire


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_small_answer_does_not_wait_until_the_one_before_is_acknowledged(run):
    async def story(gateway: Served, handlers: Handlers) -> None:
        await client(gateway)
        (connection,) = gateway.listener.connections
        assert connection.transport is not None
        opened = connection.transport.get_extra_info("socket")
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    play(story, run)


# --- requests and answers ---------------------------------------------------------------------


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("size_bytes", [10, 100_000, 3 * MIB])
def test_requests_and_answers_of_any_size_pass(run, size_bytes):
    async def story(gateway: Served, handlers: Handlers) -> None:
        handlers.fetched_bytes = size_bytes
        wire = await client(gateway)
        records = bytes(range(250)) * (size_bytes // 250 + 1)
        produced = await wire.ask(produce_to("flights", records), ProduceResponse)
        assert produced.responses[0].partition_responses[0].base_offset == len("flights")
        assert handlers.batches == [records]
        answer = await wire.ask(fetch_of("flights"), FetchResponse)
        assert answer.responses[0].partitions[0].records == b"r" * size_bytes

    play(story, run)


@pytest.mark.parametrize("version", range(5))
def test_a_connection_begins_with_versions_in_any_version(version):
    async def story(gateway: Served, handlers: Handlers) -> None:
        wire = await gateway.connect()
        answer = await wire.versions(version)
        assert {one.api_key for one in answer.api_keys} >= {
            *map(int, handlers.by_key()),
            17,
            18,
            36,
        }

    play(story)


def test_a_version_of_versions_that_is_too_new_is_answered_in_version_0():
    async def story(gateway: Served, handlers: Handlers) -> None:
        wire = await gateway.connect()
        request = ApiVersionsRequest[4](client_software_name="new", client_software_version="9")
        request.with_header(correlation_id=1, client_id="c")
        frame = bytearray(request.encode(header=True, framed=True))
        frame[6:8] = (9).to_bytes(2, "big")
        wire.writer.write(frame)
        answer = ApiVersionsResponse.decode(await wire.frame(), version=0, header=True)
        assert answer.error_code == 35
        assert [(one.api_key, one.max_version) for one in answer.api_keys] == [(18, 4)]
        assert (await wire.versions(4)).error_code == 0

    play(story)


def test_answers_go_out_in_the_order_of_requests_though_a_later_produce_is_done_first():
    async def story(gateway: Served, handlers: Handlers) -> None:
        handlers.hold("first")
        wire = await client(gateway)
        wire.send(produce_to("first"), ProduceResponse)
        wire.send(produce_to("second"), ProduceResponse)
        await until(lambda: handlers.begun == ["first", "second"])
        handlers.gates["first"].set()
        names = [(await wire.answer()).responses[0].name for _ in range(2)]
        assert names == ["first", "second"]

    play(story)


def test_other_requests_of_a_connection_are_handled_one_after_the_other():
    async def story(gateway: Served, handlers: Handlers) -> None:
        handlers.hold("first")
        wire, other = await client(gateway), await client(gateway)
        wire.send(metadata_of("first"), MetadataResponse)
        wire.send(find("second"), FindCoordinatorResponse)
        await until(lambda: handlers.begun == ["first"])
        assert (await other.ask(find("other"), FindCoordinatorResponse)).host == "other"
        assert handlers.begun == ["first", "other"]
        handlers.gates["first"].set()
        assert (await wire.answer()).cluster_id == "first"
        assert (await wire.answer()).host == "second"

    play(story)


def test_a_fetch_that_waits_holds_up_no_request_behind_it_but_another_fetch():
    async def story(gateway: Served, handlers: Handlers) -> None:
        handlers.hold("waits")
        wire = await client(gateway)
        wire.send(fetch_of("waits"), FetchResponse)
        wire.send(fetch_of("next"), FetchResponse)
        wire.send(produce_to("produced"), ProduceResponse)
        wire.send(metadata_of("asked"), MetadataResponse)
        await until(lambda: sorted(handlers.begun) == ["asked", "produced", "waits"])
        handlers.gates["waits"].set()
        assert [(await wire.answer()).responses[0].topic for _ in range(2)] == ["waits", "next"]
        assert (await wire.answer()).responses[0].name == "produced"
        assert (await wire.answer()).cluster_id == "asked"

    play(story)


def test_a_produce_that_wants_no_answer_gets_none():
    async def story(gateway: Served, handlers: Handlers) -> None:
        wire = await client(gateway)
        silent = produce_to("silent", acks=0)
        silent.with_header(correlation_id=99, client_id="c")
        wire.writer.write(bytes(silent.encode(header=True, framed=True)))
        assert (await wire.ask(produce_to("told"), ProduceResponse)).responses[0].name == "told"
        assert len(handlers.batches) == 2

    play(story)


# --- what closes a connection -----------------------------------------------------------------


def check_closed(
    caplog: pytest.LogCaptureFixture,
    told: str,
    begin: Callable[[Wire], object],
    *,
    level: int = logging.WARNING,
    **options: Any,
) -> None:
    """Whether what ``begin`` sends closes its connection, and no other, and the log says why."""

    async def story(gateway: Served, handlers: Handlers) -> None:
        wire, other = await client(gateway), await client(gateway)
        begin(wire)
        assert await wire.is_closed()
        assert (await other.ask(find("other"), FindCoordinatorResponse)).host == "other"
        assert gateway.listener.progress.count == 0
        assert gateway.listener.room.used_bytes == 0

    with caplog.at_level(level):
        play(story, **options)
    assert told in caplog.text


@pytest.mark.parametrize("length", [sizes.FRAME_MAX_BYTES + 1, 2**31 - 1, 2**32 - 1, 2**31, 0, 8])
def test_an_impossible_length_closes_the_connection(caplog, length):
    check_closed(
        caplog,
        "longer than 104857600 bytes, or has an impossible length",
        lambda wire: wire.writer.write(length.to_bytes(4, "big") + bytes(20)),
    )


def header(key: int, version: int, rest: bytes = b"") -> bytes:
    body = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\0\1c" + rest
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (header(68, 0), "API 68 version 0 of client 'c' is not served"),
        (header(ApiKey.PRODUCE, 2), "API 0 version 2 of client 'c' is not served"),
        (header(ApiKey.FETCH, 17, b"\0"), "API 1 version 17 of client 'c' is not served"),
        (header(ApiKey.INIT_PRODUCER_ID, 0), "API 22 version 0 of client 'c' is not served"),
        (header(ApiKey.METADATA, 5, b"\0\0"), "Metadata/5 of client 'c' at 127.0.0.1 cannot be"),
        (header(ApiKey.API_VERSIONS, 3, b"\0\xff"), "ApiVersions cannot be read"),
        ((12).to_bytes(4, "big") + b"\0\1\0\0\0\0\0\0\1\0ab", "a frame cannot be read"),
    ],
)
def test_what_cannot_be_read_or_is_not_offered_closes_the_connection(caplog, frame, told):
    check_closed(caplog, told, lambda wire: wire.writer.write(frame))


def test_a_handler_that_raises_closes_the_connection_and_is_told_as_a_bug(caplog):
    check_closed(
        caplog,
        "ListGroups/2 raised — this is a bug",
        lambda wire: wire.writer.write(header(ApiKey.LIST_GROUPS, 2)),
    )


def test_an_answer_that_does_not_fit_its_fields_closes_the_connection(caplog):
    async def story(gateway: Served, handlers: Handlers) -> None:
        async def long(call: Call, request: Any) -> Any:
            return find_coordinator.FindCoordinatorResponse(node_id=2**40)

        async with served({ApiKey.FIND_COORDINATOR: long}) as other:
            wire = await client(other)
            wire.send(find("k"), FindCoordinatorResponse)
            assert await wire.is_closed()

    play(story)
    assert "FindCoordinator/2 raised — this is a bug" in caplog.text


def test_a_request_without_an_answer_closes_the_connection_so_that_it_is_made_again(caplog):
    check_closed(
        caplog,
        "has no answer: the controller does not answer — see `oncelog status`",
        lambda wire: wire.send(find("unanswered"), FindCoordinatorResponse),
    )


def test_a_request_that_is_to_come_on_a_new_connection_closes_the_old_one(caplog):
    def send(wire: Wire) -> None:
        wire.send(find("too old"), FindCoordinatorResponse)

    told = "comes again on another: the coordinator has moved"
    check_closed(caplog, told, send, level=logging.INFO)
    # It is no problem of the cluster.
    assert not [one for one in caplog.records if one.levelno > logging.INFO]


def test_a_place_among_connections_is_taken_when_versions_are_asked_for():
    async def story(gateway: Served, handlers: Handlers) -> None:
        first, second, third = [await gateway.connect() for _ in range(3)]
        # It is a place before this answer and not at accept; a second question takes no other.
        for wire in (second, first, second):
            await wire.versions()
        # The last one may have sent its request before its versions were told.
        await third.ask(find("third"), FindCoordinatorResponse)
        await third.versions()
        for wire in (first, second, third):
            await wire.ask(find("k"), FindCoordinatorResponse)
        places = [None if place is None else place.number for place in handlers.places]
        assert places == [None, 2, 1, None]

    play(story)


def test_requests_that_wait_for_their_turn_are_dropped_with_their_connection():
    async def story(gateway: Served, handlers: Handlers) -> None:
        handlers.hold("first")
        wire = await client(gateway)
        wire.send(metadata_of("first"), MetadataResponse)
        for number in range(5):
            wire.send(metadata_of(f"later-{number}"), MetadataResponse)
        await until(lambda: gateway.listener.progress.count == 6)
        wire.writer.transport.abort()
        await until(lambda: not gateway.listener.connections)
        assert gateway.listener.progress.count == 1, "what is under way goes on"
        handlers.gates["first"].set()
        await until(lambda: gateway.listener.progress.count == 0)
        assert handlers.begun == ["first"]

    play(story)


# --- strangers --------------------------------------------------------------------------------


def test_a_stranger_may_send_nothing_large_and_a_client_may(caplog):
    async def story(gateway: Served, handlers: Handlers) -> None:
        records = b"r" * FIRST_FRAME_MAX_BYTES
        stranger = await gateway.connect()
        stranger.send(produce_to("flights", records), ProduceResponse)
        assert await stranger.is_closed()
        wire = await client(gateway)
        await wire.ask(produce_to("flights", records), ProduceResponse)
        assert handlers.batches == [records]

    play(story)
    assert f"longer than {FIRST_FRAME_MAX_BYTES} bytes" in caplog.text


def test_a_stranger_is_closed_after_a_while_and_a_client_is_not():
    async def story(gateway: Served, handlers: Handlers) -> None:
        wire, stranger = await client(gateway), await gateway.connect()
        await until(lambda: len(gateway.listener.connections) == 2)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        assert await stranger.is_closed()
        assert loop.time() - begun_s == pytest.approx(FIRST_FRAME_TIMEOUT_S)
        assert (await wire.ask(find("still"), FindCoordinatorResponse)).host == "still"

    play(story, run_virtually)


def test_an_idle_connection_is_closed_and_one_that_waits_for_an_answer_is_not():
    async def story(gateway: Served, handlers: Handlers) -> None:
        handlers.hold("waits")
        idle, waiting = await client(gateway), await client(gateway)
        waiting.send(fetch_of("waits"), FetchResponse)
        await until(lambda: handlers.begun == ["waits"])
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        assert await idle.is_closed()
        assert module.IDLE_S <= loop.time() - begun_s <= module.IDLE_S + module.IDLE_CHECK_S
        handlers.gates["waits"].set()
        assert (await waiting.answer()).responses[0].topic == "waits"
        assert await waiting.is_closed()
        assert gateway.listener._idle_timer is None or not gateway.listener.connections

    play(story, run_virtually)


# --- room -------------------------------------------------------------------------------------


def test_a_connection_has_so_many_requests_in_progress_and_is_read_no_further():
    async def story(gateway: Served, handlers: Handlers) -> None:
        handlers.hold("p")
        wire = await client(gateway)
        for _ in range(module.IN_PROGRESS_MAX + 5):
            wire.send(produce_to("p"), ProduceResponse)
        await until(lambda: len(handlers.begun) == module.IN_PROGRESS_MAX)
        (connection,) = gateway.listener.connections
        await until(lambda: connection.is_held)
        await give_turns(50)
        assert len(handlers.begun) == module.IN_PROGRESS_MAX
        handlers.gates["p"].set()
        for _ in range(module.IN_PROGRESS_MAX + 5):
            await wire.answer()
        assert gateway.listener.progress.count == 0

    play(story)


def test_a_client_that_does_not_read_is_read_no_further_and_nothing_new_is_begun(monkeypatch):
    monkeypatch.setattr(frames, "OUTGOING_PAUSE_BYTES", 100_000)
    monkeypatch.setattr(module, "OUTGOING_PAUSE_BYTES", 100_000)

    async def story(gateway: Served, handlers: Handlers) -> None:
        handlers.fetched_bytes = 4 * MIB
        wire = await client(gateway)
        other = await client(gateway)
        wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for number in range(40):
            wire.send(fetch_of(f"f{number}"), FetchResponse)
        connection = next(iter(gateway.listener.connections))
        await until(lambda: connection.is_held and connection.is_congested)
        begun = len(handlers.begun)
        assert (await other.ask(find("other"), FindCoordinatorResponse)).host == "other"
        await give_turns(50)
        assert len(handlers.begun) == begun + 1 < 40
        wire.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for number in range(40):
            assert (await wire.answer()).responses[0].topic == f"f{number}"
        assert not connection.is_congested

    play(story)


def test_a_large_request_takes_room_as_it_arrives_and_gives_it_back(monkeypatch):
    async def story(gateway: Served, handlers: Handlers) -> None:
        room = gateway.listener.room
        handlers.hold("large")
        wire = await client(gateway)
        request = produce_to("large", b"r" * 3 * MIB)
        request.with_header(correlation_id=5, client_id="c")
        frame = bytes(request.encode(header=True, framed=True))
        wire.writer.write(frame[:200_000])
        await until(lambda: room.used_bytes)
        assert room.used_bytes < len(frame), "a length that is only claimed takes none"
        wire.writer.write(frame[200_000:])
        await until(lambda: handlers.begun == ["large"])
        assert room.used_bytes >= 3 * MIB
        handlers.gates["large"].set()
        await wire.frame()
        assert room.used_bytes == 0

    play(story)


@pytest.mark.parametrize("size_bytes", [sizes.OTHER_FRAME_MAX_BYTES + 1, 50 * MIB])
def test_only_a_produce_may_be_longer_than_other_requests(caplog, size_bytes):
    async def story(gateway: Served, handlers: Handlers) -> None:
        wire = await client(gateway)
        head = size_bytes.to_bytes(4, "big") + int(ApiKey.METADATA).to_bytes(2, "big")
        wire.writer.write(head + bytes(100_000))
        assert await wire.is_closed()
        assert gateway.listener.room.used_bytes == 0

    play(story)
    assert f"a request of {size_bytes} bytes is too long" in caplog.text


def test_a_large_request_reserves_room_for_its_decoded_form():
    async def story(gateway: Served, handlers: Handlers) -> None:
        room = gateway.listener.room
        handlers.hold("t")
        wire = await client(gateway)
        topics = [MetadataRequest.MetadataRequestTopic(version=5, name="t")] * 70_000
        request = MetadataRequest[5](topics=topics, allow_auto_topic_creation=False)
        request.with_header(correlation_id=5, client_id="c")
        frame = bytes(request.encode(header=True, framed=True))
        wire.writer.write(frame)
        await until(lambda: handlers.begun == ["t"])
        assert room.used_bytes >= sizes.DECODED_FACTOR * (len(frame) - 4)
        handlers.gates["t"].set()
        await wire.frame()
        assert room.used_bytes == 0

    play(story)


def test_a_produce_that_lists_too_much_is_not_decoded(caplog):
    async def story(gateway: Served, handlers: Handlers) -> None:
        wire = await client(gateway)
        body = b"\xff\xff\0\1\0\0\3\xe8" + (20_000).to_bytes(4, "big") + bytes(6 * 20_000)
        frame = b"\0\0\0\3\0\0\0\7\xff\xff" + body
        wire.writer.write(len(frame).to_bytes(4, "big") + frame)
        assert await wire.is_closed()
        assert not handlers.begun

    play(story)
    assert "topics and partitions, and few records" in caplog.text


def test_a_fetch_ends_with_its_connection_and_a_produce_does_not():
    async def story(gateway: Served, handlers: Handlers) -> None:
        handlers.hold("f", "p")
        progress = gateway.listener.progress
        wire = await client(gateway)
        wire.send(produce_to("p"), ProduceResponse)
        wire.send(fetch_of("f"), FetchResponse)
        await until(lambda: handlers.begun == ["p", "f"])
        wire.writer.transport.abort()
        await until(lambda: progress.count == 1)
        handlers.gates["p"].set()
        await until(lambda: progress.count == 0)
        assert len(handlers.batches) == 1

    play(story)


def test_a_fetch_whose_turn_has_not_begun_ends_with_its_connection():
    async def story(gateway: Served, handlers: Handlers) -> None:
        wire = await client(gateway)
        (connection,) = gateway.listener.connections
        wire.send(fetch_of("f"), FetchResponse)
        await until(lambda: connection.in_progress)
        connection.connection_lost(None)
        assert gateway.listener.progress.count == 0
        await give_turns()
        assert gateway.listener.progress.count == 0

    play(story)


def test_groups_are_joined_one_after_the_other_on_a_connection():
    assert module._LANES[ApiKey.JOIN_GROUP] == module._LANES[ApiKey.SYNC_GROUP] is not None


def test_a_long_name_of_software_is_not_kept():
    async def story(gateway: Served, handlers: Handlers) -> None:
        wire = await client(gateway)
        await wire.ask(metadata_of("t"), MetadataResponse)
        told = ApiVersionsRequest[3](
            client_software_name="n" * 30_000, client_software_version="v" * 30_000
        )
        assert (await wire.ask(told, ApiVersionsResponse)).error_code == 0
        (connection,) = gateway.listener.connections
        assert connection.client is not None
        assert len(connection.client.name) == 2 * module.SOFTWARE_CHARACTERS_MAX + 1

    play(story)


def test_a_large_request_that_does_not_end_gives_its_room_back():
    async def story(gateway: Served, handlers: Handlers) -> None:
        wire = await client(gateway)
        wire.writer.write((50 * MIB).to_bytes(4, "big") + bytes(200_000))
        await until(lambda: gateway.listener.room.used_bytes)
        assert await wire.is_closed()
        await until(lambda: not gateway.listener.room.used_bytes)

    play(story, run_virtually)


# --- limits -----------------------------------------------------------------------------------


def limited(**limits: int) -> Access:
    return Access(rules=Rules(version=1, limits=((ANYBODY, Limits(**limits)),)))


def test_a_client_over_its_rate_is_told_and_read_no_further_for_as_long():
    async def story(gateway: Served, handlers: Handlers) -> None:
        wire = await client(gateway)
        loop = asyncio.get_running_loop()
        count = 0
        while not (answer := await wire.ask(find("k"), FindCoordinatorResponse)).throttle_time_ms:
            count += 1
        assert 1 <= count <= 10
        begun_s = loop.time()
        await wire.ask(find("later"), FindCoordinatorResponse)
        waited_ms = 1_000 * (loop.time() - begun_s)
        assert waited_ms == pytest.approx(answer.throttle_time_ms, abs=5)

    play(story, run_virtually, access=limited(requests_per_second=1))


def test_a_principal_has_so_many_connections_and_no_more(caplog):
    async def story(gateway: Served, handlers: Handlers) -> None:
        first, second = await client(gateway), await client(gateway)
        for wire in (first, second):
            await wire.ask(find("k"), FindCoordinatorResponse)
        third = await client(gateway)
        third.send(find("k"), FindCoordinatorResponse)
        assert await third.is_closed()
        await first.ask(find("k"), FindCoordinatorResponse)

    play(story, access=limited(connections=2))
    assert "User:ANONYMOUS has 2 connections to this gateway" in caplog.text


def test_beyond_the_most_connections_the_idlest_is_closed(monkeypatch, caplog):
    monkeypatch.setattr("oncelog.actors.rpc.admission.CONNECTIONS_MAX", 2)

    async def story(gateway: Served, handlers: Handlers) -> None:
        first, second = await client(gateway), await client(gateway)
        await first.ask(find("k"), FindCoordinatorResponse)
        third = await client(gateway)
        assert await second.is_closed()
        for wire in (first, third):
            await wire.ask(find("k"), FindCoordinatorResponse)

    play(story)
    assert "one of too many connections was closed" in caplog.text


# --- the port ---------------------------------------------------------------------------------


def taken(host: str = HERE) -> socket.socket:
    return socket.create_server((host, 0))


def test_a_port_that_becomes_free_is_waited_for():
    async def story(gateway: Served, handlers: Handlers) -> None:
        other = taken()
        port = other.getsockname()[1]
        async with served({}) as second:
            opening = asyncio.ensure_future(second.listener.open((HERE,), port))
            await asyncio.sleep(module.PORT_WAIT_S / 2)
            other.close()
            assert await opening == port

    play(story, run_virtually)


def test_a_port_that_stays_taken_is_replaced_by_the_next_that_is_free(caplog):
    async def story(gateway: Served, handlers: Handlers) -> None:
        with taken() as other:
            port = other.getsockname()[1]
            async with served({}) as second:
                found = await second.listener.open((HERE,), port)
                assert port < found <= port + module.FURTHER_PORTS
                assert f"kafka_port={port} is taken" in caplog.text
                assert f"on port {found} here" in caplog.text

    play(story, run_virtually)


def test_a_port_is_free_only_if_it_is_at_all_addresses():
    async def story(gateway: Served, handlers: Handlers) -> None:
        with taken("127.0.0.2") as other:
            port = other.getsockname()[1]
            async with served({}) as second:
                found = await second.listener.open((HERE, "127.0.0.2"), port)
                assert found != port
                for host in (HERE, "127.0.0.2"):
                    _, writer = await asyncio.open_connection(host, found)
                    writer.close()

    play(story, run_virtually)


def test_if_all_ports_are_taken_that_is_told(monkeypatch):
    async def story(gateway: Served, handlers: Handlers) -> None:
        monkeypatch.setattr(module, "_bind", lambda *_: None)
        listening = KafkaListener(
            gateway.listener.door,
            certificates=gateway.listener.certificates,
            clock=gateway.listener.clock,
        )
        with pytest.raises(OSError, match="ports 9092 to 9108 are all taken"):
            await listening.open((HERE,), 9_092)
        assert listening.port == 0

    play(story, run_virtually)


def test_what_is_open_is_closed_with_the_listener():
    async def story(gateway: Served, handlers: Handlers) -> None:
        handlers.hold("waits")
        wire = await client(gateway)
        wire.send(fetch_of("waits"), FetchResponse)
        await until(lambda: handlers.begun == ["waits"])
        port = gateway.port
        await gateway.listener.close()
        assert await wire.is_closed()
        with pytest.raises(OSError, match=r"refused|failed"):
            await asyncio.open_connection(HERE, port)

    play(story)
