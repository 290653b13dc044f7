"""Calls over real connections: many at once, late, lost, refused, and whoever has no token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from called_server import TIMEOUT_MS, TOKEN, Server, fetch, listener_of, produce, served
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import pending_of

from oncelog.actors.protocol.messages.partition import (
    DeleteRecordsRequest,
    DescribeReplicaRequest,
    ProduceReply,
)
from oncelog.actors.rpc import actor_transport, frames
from oncelog.actors.rpc.actor_transport import ActorConnection, connect
from oncelog.actors.rpc.call_meter import UNMETERED
from oncelog.actors.rpc.frames import FRAME_MAX_BYTES, FramedProtocol
from oncelog.actors.rpc.handshake import NONCE_BYTES
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

SOON_MS = 20


def on_connection(body: Callable[[Server, ActorConnection], Awaitable[None]]) -> None:
    async def run() -> None:
        async with served() as (server, _, connection):
            await body(server, connection)

    asyncio.run(run())


def test_many_calls_at_once_each_get_their_own_answer():
    async def body(server: Server, connection: ActorConnection) -> None:
        calls = [connection.call(produce(number), timeout_ms=TIMEOUT_MS) for number in range(500)]
        replies = await asyncio.gather(*calls)
        assert [reply.base_offset for reply in replies] == list(range(500))
        assert server.begun == list(range(500))

    on_connection(body)


@pytest.mark.parametrize("size_bytes", [0, 16_384, 16_385, 65_000, 65_536, 3_000_000])
def test_messages_of_any_size_pass_both_ways(size_bytes):
    async def body(server: Server, connection: ActorConnection) -> None:
        batch = bytes(range(256)) * (size_bytes // 256) + b"e" * (size_bytes % 256)
        sent = [connection.call(produce(n, batch), timeout_ms=TIMEOUT_MS) for n in range(3)]
        read = [connection.call(fetch(size_bytes), timeout_ms=TIMEOUT_MS) for _ in range(3)]
        assert [reply.base_offset for reply in await asyncio.gather(*sent)] == [0, 1, 2]
        assert server.batches == [batch] * 3
        replies = await asyncio.gather(*read)
        assert [reply.records for reply in replies] == [b"r" * size_bytes] * 3
        assert all(isinstance(reply.records, memoryview) for reply in replies), "a copy"

    on_connection(body)


def test_an_answer_that_is_late_is_dropped_and_the_next_call_gets_its_own():
    async def body(server: Server, connection: ActorConnection) -> None:
        server.gate.clear()
        late = asyncio.create_task(connection.call(produce(1), timeout_ms=SOON_MS))
        await server.entered.get()
        # Something else comes in meanwhile: the process lives, the connection stays.
        await connection.call(fetch(1), timeout_ms=TIMEOUT_MS)
        assert (await late).error is ErrorCode.REQUEST_TIMED_OUT
        assert connection.is_usable
        server.gate.set()
        reply = await connection.call(produce(2), timeout_ms=TIMEOUT_MS)
        assert reply == ProduceReply(base_offset=2)
        assert server.begun == [1, 2], "a call that was given up on runs all the same"

    on_connection(body)


def test_a_connection_on_which_nothing_comes_in_is_retired_and_open_calls_still_end(monkeypatch):
    monkeypatch.setattr(actor_transport, "SILENCE_MS", SOON_MS)

    async def body(server: Server, connection: ActorConnection) -> None:
        server.gate.clear()
        patient = asyncio.create_task(connection.call(produce(1), timeout_ms=TIMEOUT_MS))
        reply = await connection.call(produce(2), timeout_ms=SOON_MS)
        assert reply.error is ErrorCode.REQUEST_TIMED_OUT
        assert not connection.is_usable
        server.gate.set()
        assert await patient == ProduceReply(base_offset=1)
        assert connection.is_closing

    on_connection(body)


def test_calls_that_are_open_when_the_connection_breaks_end_at_once():
    async def body(server: Server, connection: ActorConnection) -> None:
        server.gate.clear()
        calls = [
            asyncio.create_task(connection.call(produce(n), timeout_ms=60_000)) for n in (1, 2)
        ]
        assert {await server.entered.get(), await server.entered.get()} == {1, 2}
        assert connection.transport is not None
        connection.transport.abort()
        for call in calls:
            assert (await call).error is ErrorCode.NETWORK_EXCEPTION
        assert not connection.is_usable

    on_connection(body)


def test_a_call_that_is_cancelled_in_the_turn_of_its_answer_does_not_go_on():
    async def body(server: Server, connection: ActorConnection) -> None:
        server.gate.clear()
        calling = asyncio.create_task(connection.call(produce(1), timeout_ms=TIMEOUT_MS))
        await server.entered.get()
        ((_, answer, _),) = pending_of(connection).values()
        answer.set_result(ProduceReply(base_offset=1))
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert not pending_of(connection)

    on_connection(body)


def test_a_method_that_raises_is_answered_with_what_it_raised(caplog):
    async def body(server: Server, connection: ActorConnection) -> None:
        reply = await connection.call(DescribeReplicaRequest(), timeout_ms=TIMEOUT_MS)
        assert reply.error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert "asked by DescribeReplicaRequest" in reply.detail

    on_connection(body)
    assert "asked by DescribeReplicaRequest" in caplog.text


def test_a_request_that_cannot_be_sent_is_answered_here():
    async def body(server: Server, connection: ActorConnection) -> None:
        reply = await connection.call(produce(2**64), timeout_ms=TIMEOUT_MS)
        assert reply.error is ErrorCode.INVALID_REQUEST
        assert not server.begun

    on_connection(body)


def raw_request(connection: ActorConnection, method: str, message: bytes) -> asyncio.Future[Any]:
    """Send what is no request of ours, as if it were a ``produce``."""
    answer: asyncio.Future[Any] = connection.loop.create_future()
    pending_of(connection)[77] = (produce(0), answer, UNMETERED)
    connection.send(77, len(method), method.encode(), message)
    return answer


@pytest.mark.parametrize(
    ("method", "message", "reason"),
    [
        ("produce", b"\xc1", "not a request of 'produce'"),
        ("nothing", b"", "it has no method 'nothing'"),
        ("__init__", b"", "it has no method '__init__'"),
        ("fetch", b"\x80", "not a request of 'fetch'"),
        ("metadata", b"\x80", "it has no method 'metadata'"),
    ],
)
def test_what_is_no_request_is_refused_and_harms_no_other(method, message, reason):
    async def body(server: Server, connection: ActorConnection) -> None:
        reply = await raw_request(connection, method, message)
        assert reply.error is ErrorCode.INVALID_REQUEST
        assert reason in reply.detail
        assert await connection.call(produce(3), timeout_ms=TIMEOUT_MS) == ProduceReply(
            base_offset=3
        )

    on_connection(body)


def test_whoever_has_another_token_is_not_heard():
    async def run() -> None:
        async with served() as (server, listener, _):
            address = await listener.address()
            for token in (b"", b"u" * 32, TOKEN + b"t"):
                wrong = ListenerAddress(host=address.host, port=address.port, token=token)
                assert await connect(wrong, timeout_ms=TIMEOUT_MS) is None
            assert not server.begun

    asyncio.run(run())


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\xff" * 100,
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x09" + b"\x00" * 9,
        (2_000).to_bytes(4, "big") + b"\x00" * 2_000,
    ],
)
def test_a_connection_that_begins_with_anything_but_the_token_is_closed(first):
    async def run() -> None:
        async with served() as (_, listener, connection):
            address = await listener.address()
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(first)
            with contextlib.suppress(ConnectionError):
                assert len(await reader.read()) == 13 + NONCE_BYTES, "it says its nonce, no more"
            writer.close()
            assert connection.is_usable

    asyncio.run(run())


def test_a_call_on_a_connection_that_is_lost_is_answered_at_once():
    async def body(server: Server, connection: ActorConnection) -> None:
        connection.close()
        reply = await connection.call(produce(1), timeout_ms=TIMEOUT_MS)
        assert reply.error is ErrorCode.NETWORK_EXCEPTION
        assert not server.begun

    on_connection(body)


def test_a_short_silence_does_not_retire_a_connection():
    async def body(server: Server, connection: ActorConnection) -> None:
        server.gate.clear()
        reply = await connection.call(produce(1), timeout_ms=SOON_MS)
        assert reply.error is ErrorCode.REQUEST_TIMED_OUT
        assert connection.is_usable

    on_connection(body)


def test_both_ends_notice_a_machine_that_vanishes():
    """A process that dies says so; of a machine only the silence tells."""

    async def body(_: Server, connection: ActorConnection) -> None:
        assert connection.transport is not None
        opened = connection.transport.get_extra_info("socket")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 5_000
        silence_s = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        silence_s += opened.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_KEEPINTVL
        ) * opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert silence_s <= 5

    on_connection(body)


def test_a_message_that_is_too_long_for_a_frame_harms_no_other(monkeypatch):
    monkeypatch.setattr(frames, "FRAME_MAX_BYTES", 10_000)

    async def body(server: Server, connection: ActorConnection) -> None:
        server.gate.clear()
        other = asyncio.create_task(connection.call(produce(1), timeout_ms=TIMEOUT_MS))
        await server.entered.get()
        sent = await connection.call(produce(2, b"b" * 20_000), timeout_ms=TIMEOUT_MS)
        assert sent.error is ErrorCode.INVALID_REQUEST
        assert "at most 10000" in sent.detail
        read = await connection.call(fetch(20_000), timeout_ms=TIMEOUT_MS)
        assert read.error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert "at most 10000" in read.detail
        server.gate.set()
        assert await other == ProduceReply(base_offset=1)

    on_connection(body)


def test_somebody_who_only_echoes_is_not_taken_for_an_actor():
    async def run() -> None:
        has_left = asyncio.Event()

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\x00\x00\x00\x29" + bytes(8) + b"\x03" + bytes(32))
            while data := await reader.read(1_000):
                writer.write(data)
            writer.close()
            has_left.set()

        mirror = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = mirror.sockets[0].getsockname()[1]
        address = ListenerAddress(host="127.0.0.1", port=port, token=TOKEN)
        assert await connect(address, timeout_ms=TIMEOUT_MS) is None
        await has_left.wait()
        mirror.close()

    asyncio.run(run())


def test_a_broken_invariant_is_told_and_not_answered():
    """The process ends then, and the caller hears of that; an answer might be believed."""

    async def body(server: Server, connection: ActorConnection) -> None:
        request = DeleteRecordsRequest(topic_partition=TopicPartition("flights", 0), offset=1)
        call = asyncio.ensure_future(connection.call(request, timeout_ms=TIMEOUT_MS))
        told = asyncio.ensure_future(server.bugs.get())
        await asyncio.wait({call, told}, return_when=asyncio.FIRST_COMPLETED)
        assert str(told.result()) == "I-04: asked by DeleteRecordsRequest"
        assert (await connection.call(produce(1), timeout_ms=TIMEOUT_MS)).base_offset == 1
        assert not call.done()
        call.cancel()

    on_connection(body)


def test_an_address_that_is_logged_shows_no_token():
    assert "planted" not in repr(ListenerAddress(host="h", port=1, token=b"planted"))


def test_connecting_to_nobody_is_none():
    async def run() -> None:
        listener = listener_of(Server())
        address = await listener.address()
        await listener.close()
        assert await connect(address, timeout_ms=TIMEOUT_MS) is None

    asyncio.run(run())


def test_connecting_to_somebody_who_says_nothing_is_none_in_time():
    async def run() -> None:
        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        mute = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        port = mute.sockets[0].getsockname()[1]
        address = ListenerAddress(host="127.0.0.1", port=port, token=TOKEN)
        assert await connect(address, timeout_ms=SOON_MS) is None
        mute.close()

    asyncio.run(run())


# --- frames --------------------------------------------------------------------------------


class Collector(FramedProtocol):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[int, int, memoryview]] = []

    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        # Kept as it is: what comes later must not be read into it.
        self.frames.append((correlation_id, kind, body))

    def drained(self) -> None:
        """Nothing waits for it."""


class Sink:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.is_aborted

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.is_aborted = True


def feed(reader: FramedProtocol, data: bytes, sizes: list[int]) -> None:
    """Give ``data`` in pieces of ``sizes``, the last of which repeats."""
    position = 0
    while position < len(data):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        target = reader.get_buffer(-1)
        piece = data[position : position + min(size, len(target))]
        target[: len(piece)] = piece
        del target
        reader.buffer_updated(len(piece))
        position += len(piece)


@settings(max_examples=60)
@given(
    bodies=st.lists(
        st.one_of(st.binary(max_size=40), st.integers(0, 200_000).map(lambda n: b"b" * n)),
        max_size=8,
    ),
    sizes=st.lists(st.integers(1, 70_000), min_size=1, max_size=20),
)
def test_frames_come_out_as_they_went_in_however_they_are_cut(bodies, sizes):
    async def run() -> None:
        sink, writer, reader = Sink(), Collector(), Collector()
        writer.transport = sink  # type: ignore[assignment]
        reader.transport = Sink()  # type: ignore[assignment]
        for number, body in enumerate(bodies):
            writer.send(number, number % 200, body)
        await asyncio.sleep(0)
        feed(reader, b"".join(sink.writes), [*sizes[:-1], max(sizes[-1], 1_000)])
        assert reader.frames == [(n, n % 200, body) for n, body in enumerate(bodies)]

    asyncio.run(run())


def test_small_frames_of_one_turn_leave_in_one_write():
    async def run() -> None:
        sink, writer = Sink(), Collector()
        writer.transport = sink  # type: ignore[assignment]
        for number in range(10):
            writer.send(number, 0, b"small")
        assert not sink.writes
        await asyncio.sleep(0)
        assert len(sink.writes) == 1

    asyncio.run(run())


@pytest.mark.parametrize("length", [0, 8, FRAME_MAX_BYTES + 1, 2**32 - 1])
def test_an_impossible_length_closes_the_connection_and_reserves_nothing(length):
    async def run() -> None:
        sink, reader = Sink(), Collector()
        reader.transport = sink  # type: ignore[assignment]
        feed(reader, length.to_bytes(4, "big") + b"\x00" * 20, [100])
        assert sink.is_aborted
        assert not reader.frames

    asyncio.run(run())
