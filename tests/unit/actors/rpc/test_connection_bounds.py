"""What callers may take up of an actor, and what happens beyond: over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from called_server import (
    TIMEOUT_MS,
    TOKEN,
    Link,
    Server,
    fetch,
    frame,
    linked,
    listener_of,
    produce,
    served,
)
from deadlines import to_its_end, until
from inside import callers_of, pending_of, waiting_of
from virtual_time import give_turns, run_virtually

from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.partition import ProduceReply
from oncelog.actors.rpc import admission, frames, listener, message_codec
from oncelog.actors.rpc.actor_transport import ActorConnection, connect
from oncelog.actors.rpc.frames import FRAME_MAX_BYTES, HELLO, FramedProtocol, Outcome
from oncelog.actors.rpc.handshake import NONCE_BYTES, caller_proof, listener_proof, new_nonce
from oncelog.actors.rpc.listener import Listener, ListenerAddress
from oncelog.storage.errors import ErrorCode

MIB = 1_048_576
LARGE = b"b" * 800_000


def play(body: Callable[[Server, Listener, ActorConnection], Awaitable[None]]) -> None:
    async def run() -> None:
        async with served() as (server, listening, connection):
            await body(server, listening, connection)

    to_its_end(run())


def outcome(number: int, kind: Outcome, message: bytes) -> bytes:
    head = (9 + len(message)).to_bytes(4, "big") + number.to_bytes(8, "big")
    return head + bytes([kind]) + message


def framed(number: int, request: Request[ProduceReply]) -> bytes:
    return frame(number, request.method, message_codec.encode(request))


class Raw:
    """A caller that writes and reads only what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.challenge = b""
        self.hello = b""

    async def reply(self) -> bytes:
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(length)

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(MIB):
                pass
        return True


@contextlib.asynccontextmanager
async def raw(listening: Listener, *, token: bytes = TOKEN) -> AsyncIterator[Raw]:
    """A connection that has proved its token, unless that is empty."""
    address = await listening.address()
    caller = Raw(*await asyncio.open_connection(address.host, address.port, limit=MIB))
    caller.challenge = (await caller.reply())[-NONCE_BYTES:]
    if token:
        nonce = new_nonce()
        caller.hello = frame(0, HELLO, nonce, caller_proof(token, caller.challenge, nonce))
        caller.writer.write(caller.hello)
        await caller.reply()
    try:
        yield caller
    finally:
        caller.writer.transport.abort()


async def another(listening: Listener) -> ActorConnection:
    connection = await connect(await listening.address(), timeout_ms=TIMEOUT_MS)
    assert connection is not None
    return connection


# --- what a peer does not read ---------------------------------------------------------------


def test_a_caller_that_does_not_read_is_read_no_further_until_it_does(monkeypatch):
    monkeypatch.setattr(frames, "OUTGOING_PAUSE_BYTES", 100_000)

    async def body(server: Server, listening: Listener, other: ActorConnection) -> None:
        async with raw(listening) as slow:
            trusted = callers_of(listening)
            caller = list(trusted)[-1]
            server.gate.clear()
            slow.writer.write(b"".join(framed(number, produce(number)) for number in (1, 2, 3)))
            await until(lambda: len(server.begun) == 3)
            count = 0
            while not caller.is_held:  # type: ignore[attr-defined]
                slow.writer.write(framed(count + 1, fetch(MIB)))
                count += 1
                await until(lambda: len(server.fetched) == count or caller.is_held)  # noqa: B023
            answered = len(server.fetched)
            for number in range(20):
                slow.writer.write(framed(1_000 + number, fetch(1)))
            server.gate.set()
            await other.call(fetch(1), timeout_ms=TIMEOUT_MS)
            await other.call(fetch(1), timeout_ms=TIMEOUT_MS)
            assert caller.in_progress == 0
            assert len(server.fetched) == answered + 2
            for _ in range(3 + count + 20):
                await slow.reply()
            await until(lambda: not listening.places._slow)

    play(body)


def test_a_connection_whose_peer_leaves_too_much_unread_is_closed(monkeypatch, caplog):
    monkeypatch.setattr(frames, "OUTGOING_MAX_BYTES", 4 * MIB)

    async def body(server: Server, listening: Listener, other: ActorConnection) -> None:
        async with raw(listening) as slow:
            slow.writer.write(b"".join(framed(number, fetch(MIB)) for number in range(1, 65)))
            assert await slow.is_closed()
            assert len(server.fetched) == 64
            assert await other.call(produce(1), timeout_ms=TIMEOUT_MS) == ProduceReply(
                base_offset=1
            )

    play(body)
    assert "unread bytes was closed" in caplog.text


def test_of_callers_that_leave_too_much_unread_the_slowest_is_closed(monkeypatch, caplog):
    monkeypatch.setattr(frames, "OUTGOING_PAUSE_BYTES", 100_000)
    monkeypatch.setattr(admission, "UNREAD_MAX_BYTES", 40 * MIB)

    async def body(server: Server, listening: Listener, _: ActorConnection) -> None:
        async with raw(listening) as slow, raw(listening) as slowest:
            slow.writer.write(b"".join(framed(n, fetch(MIB)) for n in range(1, 21)))
            await until(lambda: len(server.fetched) == 20)
            slowest.writer.write(b"".join(framed(n, fetch(MIB)) for n in range(21, 81)))
            assert await slowest.is_closed()
            for _ in range(20):
                assert len(await slow.reply()) > MIB

    play(body)
    assert "one of too many connections with unread answers was closed" in caplog.text


def test_calls_wait_for_an_actor_that_does_not_read(monkeypatch):
    monkeypatch.setattr(frames, "OUTGOING_PAUSE_BYTES", 100_000)

    async def run() -> None:
        is_reading, has_left = asyncio.Event(), asyncio.Event()
        read = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = Raw(reader, writer)
            challenge = new_nonce()
            writer.write(outcome(0, Outcome.CHALLENGE, challenge))
            nonce = (await peer.reply())[9 + len(HELLO) :][:NONCE_BYTES]
            writer.write(outcome(0, Outcome.REPLY, listener_proof(TOKEN, challenge, nonce)))
            await is_reading.wait()
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    request = await peer.reply()
                    read.append(request)
                    number = int.from_bytes(request[:8], "big")
                    writer.write(frame(number, "", message_codec.encode(ProduceReply())))
            writer.close()
            has_left.set()

        mute = await asyncio.start_server(serve, "127.0.0.1", 0, limit=MIB)
        address = ListenerAddress(
            host="127.0.0.1", port=mute.sockets[0].getsockname()[1], token=TOKEN
        )
        connection = await connect(address, timeout_ms=TIMEOUT_MS)
        assert connection is not None
        calls = [
            asyncio.create_task(connection.call(produce(n, LARGE), timeout_ms=TIMEOUT_MS))
            for n in range(40)
        ]
        sent_count = -1
        while connection._next_id != sent_count:
            # Until nothing can be sent any more; the system takes some of it.
            sent_count = connection._next_id
            await until(lambda: connection.is_congested)
            late = await connection.call(produce(99, LARGE), timeout_ms=20)
            assert late.error is ErrorCode.REQUEST_TIMED_OUT
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < 100_000 + 2 * len(LARGE)
        is_reading.set()
        replies = await asyncio.gather(*calls)
        assert {reply.error for reply in replies} == {ErrorCode.NONE}
        assert len(read) == connection._next_id - 1, "calls that timed out had not been sent"
        connection.close()
        await has_left.wait()
        mute.close()

    to_its_end(run())


def test_calls_that_wait_for_an_actor_to_read_end_with_its_connection(monkeypatch):
    monkeypatch.setattr(frames, "OUTGOING_PAUSE_BYTES", 100_000)

    async def body(_: Server, listening: Listener, connection: ActorConnection) -> None:
        (caller,) = callers_of(listening)
        caller.hold()  # type: ignore[attr-defined]
        calls = [
            asyncio.create_task(connection.call(produce(n, LARGE), timeout_ms=TIMEOUT_MS))
            for n in range(40)
        ]
        await until(lambda: connection.is_congested)
        connection.close()
        replies = await asyncio.gather(*calls)
        assert {reply.error for reply in replies} == {ErrorCode.NETWORK_EXCEPTION}

    play(body)


def test_calls_that_wait_for_an_actor_to_read_are_not_overtaken_by_newer_ones(monkeypatch):
    monkeypatch.setattr(frames, "OUTGOING_PAUSE_BYTES", 100_000)

    async def body(server: Server, _: Listener, connection: ActorConnection) -> None:
        calls: list[asyncio.Task[ProduceReply]] = []

        def call() -> None:
            asked = produce(len(calls), LARGE)
            calls.append(asyncio.create_task(connection.call(asked, timeout_ms=TIMEOUT_MS)))

        drained = connection.drained

        def drained_and_called() -> None:
            drained()
            if len(calls) < 60:
                call()

        monkeypatch.setattr(connection, "drained", drained_and_called)
        for _ in range(20):
            call()
        await until(lambda: len(calls) == 60)
        replies = await asyncio.gather(*calls)
        assert {reply.error for reply in replies} == {ErrorCode.NONE}
        assert server.begun == list(range(60))

    play(body)


def test_a_call_that_gives_up_waiting_lets_those_behind_it_through(monkeypatch):
    monkeypatch.setattr(frames, "OUTGOING_PAUSE_BYTES", 100_000)

    async def body(server: Server, _: Listener, connection: ActorConnection) -> None:
        calls = [
            asyncio.create_task(connection.call(produce(n, LARGE), timeout_ms=TIMEOUT_MS))
            for n in range(20)
        ]
        await until(lambda: connection.is_congested)
        cancelled = calls[1::2]
        for one in cancelled:
            one.cancel()
        replies = await asyncio.gather(*calls[::2])
        assert {reply.error for reply in replies} == {ErrorCode.NONE}
        assert server.begun == list(range(0, 20, 2))
        await asyncio.wait(cancelled)

    play(body)


# --- requests --------------------------------------------------------------------------------


class Reader(FramedProtocol):
    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        raise AssertionError(f"frame {correlation_id} of {kind} with {len(body)} bytes")

    def drained(self) -> None:
        """Nothing waits for it."""


@pytest.mark.parametrize("arrived_bytes", [100, 3 * MIB, 20 * MIB])
def test_a_frame_takes_memory_only_as_it_arrives(arrived_bytes):
    async def run() -> None:
        reader = Reader()
        tracemalloc.start()
        data = memoryview(FRAME_MAX_BYTES.to_bytes(4, "big") + b"\0" * arrived_bytes)
        while data:
            target = reader.get_buffer(-1)
            piece = data[: len(target)]
            target[: len(piece)] = piece
            del target
            reader.buffer_updated(len(piece))
            data = data[len(piece) :]
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 5 * arrived_bytes + 2 * frames.FRAME_STEP_BYTES

    to_its_end(run())


def test_a_connection_reads_into_no_more_than_its_frames_may_need():
    async def run() -> None:
        reader = Reader(frame_max_bytes=1_024)
        target = reader.get_buffer(-1)
        assert len(target) == 4 + 1_024
        target[:3] = b"\0\0\x10"
        del target
        reader.buffer_updated(3)
        assert len(reader.get_buffer(-1)) == 1_025
        reader.frame_max_bytes = FRAME_MAX_BYTES
        target = reader.get_buffer(-1)
        assert len(target) == frames._READ_BYTES - 3
        # 4,106 bytes: more than it could read before.
        target[:4_107] = b"\x0a" + b"\0" * 4_106
        with pytest.raises(AssertionError, match="frame 0 of 0 with 4097 bytes"):
            reader.buffer_updated(4_107)

    to_its_end(run())


def test_a_connection_without_a_proof_takes_little_memory():
    async def body(server: Server, listening: Listener, _: ActorConnection) -> None:
        async with raw(listening, token=b""):
            (half_open,) = listening.places._half_open
            assert len(half_open.get_buffer(-1)) < 10_000  # type: ignore[attr-defined]
        async with raw(listening) as proved:
            proved.writer.write(framed(1, produce(7, b"b" * 50_000)))
            assert message_codec.decode_reply("produce", (await proved.reply())[9:]).error is (
                ErrorCode.NONE
            )
            assert server.begun == [7]

    play(body)


def test_requests_share_their_bytes_and_wait_their_turn(monkeypatch):
    monkeypatch.setattr(admission, "REQUEST_BYTES_MAX", MIB)

    async def body(server: Server, listening: Listener, first: ActorConnection) -> None:
        second, third = await another(listening), await another(listening)
        server.gate.clear()
        calls = [asyncio.create_task(first.call(produce(1, LARGE), timeout_ms=TIMEOUT_MS))]
        await until(lambda: server.begun == [1])
        # The third would fit.
        for number, connection, batch in ((2, second, LARGE), (3, third, LARGE[:150_000])):
            call = connection.call(produce(number, batch), timeout_ms=TIMEOUT_MS)
            calls.append(asyncio.create_task(call))
            await until(lambda: len(waiting_of(listening.room)) == number - 1)  # noqa: B023
        assert server.begun == [1]
        assert (await first.call(fetch(1), timeout_ms=TIMEOUT_MS)).records == b"r"
        server.gate.set()
        assert [reply.base_offset for reply in await asyncio.gather(*calls)] == [1, 2, 3]
        assert sorted(server.begun) == [1, 2, 3]
        assert listening.room.used_bytes == 0
        second.close()
        third.close()

    play(body)


@pytest.mark.parametrize("ending", ["stalls", "is lost"])
def test_a_frame_that_does_not_end_gives_its_bytes_back(monkeypatch, ending):
    monkeypatch.setattr(admission, "REQUEST_BYTES_MAX", MIB)
    if ending == "stalls":
        monkeypatch.setattr(listener, "LARGE_FRAME_TIMEOUT_S", 0.05)

    async def body(server: Server, listening: Listener, connection: ActorConnection) -> None:
        async with raw(listening) as half, raw(listening) as waiting:
            half.writer.write(framed(1, produce(1, LARGE))[:500_000])
            await until(lambda: listening.room.used_bytes)
            monkeypatch.setattr(listener, "LARGE_FRAME_TIMEOUT_S", 30.0)
            waiting.writer.write(framed(1, produce(2, LARGE)))
            await until(lambda: waiting_of(listening.room))
            waiting_of(listening.room)[0].close()
            call = connection.call(produce(3, LARGE), timeout_ms=TIMEOUT_MS)
            whole = asyncio.create_task(call)
            await until(lambda: pending_of(connection))
            if ending == "is lost":
                half.writer.transport.abort()
            assert (await whole).base_offset == 3
            assert server.begun == [3]
            assert listening.room.used_bytes == 0

    play(body)


def test_a_large_request_that_is_refused_gives_its_bytes_back():
    async def body(_: Server, listening: Listener, __: ActorConnection) -> None:
        async with raw(listening) as caller:
            caller.writer.write(frame(1, "nothing", LARGE))
            assert b"it has no method" in await caller.reply()
            assert listening.room.used_bytes == 0

    play(body)


# --- claims ----------------------------------------------------------------------------------


def in_memory(body: Callable[[Server, Listener], Awaitable[None]]) -> None:
    async def run() -> None:
        server = Server()
        await body(server, listener_of(server))

    run_virtually(run())


def claim(length: int, arrived: bytes = b"") -> bytes:
    return length.to_bytes(4, "big") + arrived


@pytest.mark.parametrize("arrived_bytes", [0, 60_000, 66_000])
def test_claims_of_what_does_not_come_hold_up_nobody(arrived_bytes):
    async def body(server: Server, listening: Listener) -> None:
        for _ in range(50):
            (await linked(listening)).arrives(claim(FRAME_MAX_BYTES, b"\0" * arrived_bytes))
        honest = await linked(listening)
        began_s = asyncio.get_running_loop().time()
        for number in range(20):
            honest.arrives(framed(number, produce(number, b"b" * 3 * MIB)))
            await give_turns()
        assert server.begun == list(range(20))
        assert asyncio.get_running_loop().time() == began_s
        assert listening.room.used_bytes <= 50 * max(2 * arrived_bytes, frames.FRAME_STEP_BYTES)

    in_memory(body)


def test_what_has_come_takes_room_and_one_that_waits_longest_can_end(monkeypatch):
    """The shared room is full of frames that do not end, each of which wants more of it."""
    monkeypatch.setattr(admission, "REQUEST_BYTES_MAX", FRAME_MAX_BYTES + MIB)

    async def body(server: Server, listening: Listener) -> None:
        room, most = listening.room, 0
        frames_ = [framed(number, produce(number, b"b" * 3 * MIB)) for number in range(12)]
        links = [await linked(listening) for _ in frames_]
        for place in range(0, len(frames_[0]), 50_000):
            for link, data in zip(links, frames_, strict=True):
                link.arrives(data[place : place + 50_000])
                most = max(most, room.used_bytes)
            await give_turns(3)
        await give_turns(100)
        assert sorted(server.begun) == list(range(12))
        assert MIB < most <= MIB + len(frames_[0])
        assert room.used_bytes == 0

    in_memory(body)


def test_frames_that_do_not_end_hold_what_has_come_for_as_long_as_one_may_take(monkeypatch):
    monkeypatch.setattr(admission, "REQUEST_BYTES_MAX", FRAME_MAX_BYTES + MIB)

    async def body(server: Server, listening: Listener) -> None:
        stuck = [await linked(listening) for _ in range(20)]
        for link in stuck:
            link.arrives(claim(FRAME_MAX_BYTES, b"\0" * 200_000))
        await asyncio.sleep(5)
        honest = await linked(listening)
        honest.arrives(framed(7, produce(7, LARGE)))
        await give_turns()
        assert server.begun == []
        assert listening.room.used_bytes <= MIB + frames.FRAME_STEP_BYTES
        await asyncio.sleep(listener.LARGE_FRAME_TIMEOUT_S - 4.9)
        assert server.begun == [7]
        assert all(link.is_closing() for link in stuck)

    in_memory(body)


@pytest.mark.parametrize("length", [70_000, 150_000, 400_000])
def test_what_comes_though_reading_is_paused_is_kept(length):
    """Python 3.10's TLS hands over what it has decrypted by then."""

    class Waiting(FramedProtocol):
        def __init__(self) -> None:
            super().__init__()
            self.frames: list[bytes] = []
            self.has_room = False

        def grant(self, least_bytes: int, most_bytes: int) -> int:
            return least_bytes if self.has_room else 0

        def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
            self.frames.append(bytes(body))

        def drained(self) -> None:
            """Nothing waits for it."""

    async def run() -> None:
        waiting = Waiting()
        Link().open(waiting)
        large = bytes(range(256)) * (length // 256)
        data = memoryview(frame(1, "", large) + frame(2, "", b"small") + frame(3, "", large))
        fed = 0
        while data:
            target = waiting.get_buffer(-1)
            assert target
            size = min(len(target), len(data))
            target[:size] = data[:size]
            del target
            waiting.buffer_updated(size)
            data, fed = data[size:], fed + size
            if fed > 100_000:
                waiting.has_room = True
                waiting.go_on()
        assert waiting.frames == [large, b"small", large]

    to_its_end(run())


def test_a_connection_with_too_many_requests_in_progress_is_read_no_further(monkeypatch):
    monkeypatch.setattr(admission, "REQUESTS_PER_CONNECTION_MAX", 3)

    async def body(server: Server, listening: Listener, connection: ActorConnection) -> None:
        server.gate.clear()
        calls = [
            asyncio.create_task(connection.call(produce(number), timeout_ms=TIMEOUT_MS))
            for number in range(10)
        ]
        other = await another(listening)
        await until(lambda: len(server.begun) == 3)
        for _ in range(5):
            assert (await other.call(fetch(1), timeout_ms=TIMEOUT_MS)).records == b"r"
        assert server.begun == [0, 1, 2]
        server.gate.set()
        replies = await asyncio.gather(*calls)
        assert [reply.base_offset for reply in replies] == list(range(10))
        assert server.begun == list(range(10))
        other.close()

    play(body)


def test_an_actor_with_too_many_requests_in_progress_reads_no_connection_further(monkeypatch):
    monkeypatch.setattr(admission, "REQUESTS_MAX", 3)

    async def body(server: Server, listening: Listener, connection: ActorConnection) -> None:
        server.gate.clear()
        others = [await another(listening) for _ in range(4)]
        calls = [
            asyncio.create_task(caller.call(produce(number), timeout_ms=TIMEOUT_MS))
            for caller in others
            for number in range(3)
        ]
        await until(lambda: len(server.begun) >= 3)
        held = asyncio.create_task(connection.call(fetch(1), timeout_ms=TIMEOUT_MS))
        await until(lambda: len(listening.progress._held) == 5)
        # The first request of a connection is read before it is known that it has to wait.
        assert len(server.begun) < 3 + len(others)
        server.gate.set()
        await asyncio.gather(*calls, held)
        assert len(server.begun) == len(calls)
        assert listening.progress.count == 0
        for other in others:
            other.close()

    play(body)


def test_requests_in_progress_that_never_end_leave_each_caller_one(monkeypatch):
    """Programs could else have an actor hear nobody any more, its controller included."""
    monkeypatch.setattr(admission, "REQUESTS_MAX", 3)

    async def body(server: Server, listening: Listener) -> None:
        server.gate.clear()
        greedy, other = await linked(listening), await linked(listening)
        greedy.arrives(b"".join(framed(number, produce(number)) for number in range(10)))
        await give_turns()
        assert server.begun == [0, 1, 2]
        for number in range(5):
            other.arrives(framed(number, fetch(number)))
            await give_turns()
        other.arrives(b"".join(framed(number, fetch(number)) for number in range(5, 9)))
        await give_turns(50)
        assert server.fetched == list(range(9))
        assert server.begun == [0, 1, 2]
        server.gate.set()
        await give_turns(50)
        assert server.begun == list(range(10))
        assert listening.progress.count == 0

    in_memory(body)


# --- connections -----------------------------------------------------------------------------


def test_beyond_the_most_connections_the_idlest_is_closed(monkeypatch, caplog):
    monkeypatch.setattr(admission, "CONNECTIONS_MAX", 3)

    async def body(server: Server, listening: Listener, busy: ActorConnection) -> None:
        used, idle = await another(listening), await another(listening)
        server.gate.clear()
        call = asyncio.create_task(busy.call(produce(1), timeout_ms=TIMEOUT_MS))
        await server.entered.get()
        await used.call(fetch(1), timeout_ms=TIMEOUT_MS)
        newest = await another(listening)
        await until(lambda: idle.is_closing)
        assert used.is_usable
        assert newest.is_usable
        server.gate.set()
        assert (await call).base_offset == 1
        used.close()
        newest.close()

    play(body)
    assert "one of too many connections was closed" in caplog.text


def test_beyond_the_most_connections_none_that_is_busy_gives_way(monkeypatch):
    monkeypatch.setattr(admission, "CONNECTIONS_MAX", 1)

    async def body(server: Server, listening: Listener, busy: ActorConnection) -> None:
        server.gate.clear()
        call = asyncio.create_task(busy.call(produce(1), timeout_ms=TIMEOUT_MS))
        await server.entered.get()
        assert await connect(await listening.address(), timeout_ms=TIMEOUT_MS) is None
        server.gate.set()
        assert (await call).base_offset == 1

    play(body)


def test_a_connection_that_is_lost_leaves_its_place_though_its_request_goes_on(monkeypatch):
    monkeypatch.setattr(admission, "CONNECTIONS_MAX", 1)

    async def body(server: Server, listening: Listener, lost: ActorConnection) -> None:
        server.gate.clear()
        call = asyncio.create_task(lost.call(produce(1), timeout_ms=TIMEOUT_MS))
        await server.entered.get()
        (caller,) = callers_of(listening)
        lost.close()
        assert (await call).error is ErrorCode.NETWORK_EXCEPTION
        await until(lambda: caller not in callers_of(listening))
        assert caller.in_progress == 1
        connection = await another(listening)
        server.gate.set()
        assert (await connection.call(fetch(1), timeout_ms=TIMEOUT_MS)).records == b"r"
        connection.close()

    play(body)


def test_a_large_request_that_is_whole_has_no_deadline_here():
    async def body(server: Server, listening: Listener, connection: ActorConnection) -> None:
        server.gate.clear()
        call = asyncio.create_task(connection.call(produce(1, LARGE), timeout_ms=TIMEOUT_MS))
        await server.entered.get()
        (caller,) = callers_of(listening)
        assert caller._first_frame_timer.cancelled()  # type: ignore[attr-defined]
        server.gate.set()
        assert (await call).base_offset == 1

    play(body)


def test_a_connection_whose_token_does_not_come_is_closed(monkeypatch):
    monkeypatch.setattr(listener, "FIRST_FRAME_TIMEOUT_S", 0.01)

    async def body(_: Server, listening: Listener, connection: ActorConnection) -> None:
        async with raw(listening, token=b"") as stranger:
            stranger.writer.write(frame(0, HELLO, TOKEN)[:-1])
            assert await stranger.is_closed()
        assert connection.is_usable

    play(body)


def test_strangers_take_no_place_of_a_caller(monkeypatch, caplog):
    monkeypatch.setattr(admission, "HALF_OPEN_PER_HOST_MAX", 3)
    monkeypatch.setattr(admission, "CONNECTIONS_MAX", 2)

    async def body(_: Server, listening: Listener, connection: ActorConnection) -> None:
        async with contextlib.AsyncExitStack() as stack:
            strangers = [
                await stack.enter_async_context(raw(listening, token=b"")) for _ in range(6)
            ]
            for stranger in strangers[:3]:
                assert await stranger.is_closed()
            caller = await another(listening)
            assert (await caller.call(fetch(1), timeout_ms=TIMEOUT_MS)).records == b"r"
            assert connection.is_usable
            caller.close()

    play(body)
    assert "one of too many connections without a token was closed" in caplog.text


@pytest.mark.parametrize(("of_host", "of_all"), [(3, 1_000), (1_000, 4)])
def test_strangers_of_other_hosts_close_none_of_ours(monkeypatch, of_host, of_all):
    """A caller that proves its token soon stays, however many begin elsewhere."""
    monkeypatch.setattr(admission, "HALF_OPEN_PER_HOST_MAX", of_host)
    monkeypatch.setattr(admission, "HALF_OPEN_MAX", of_all)

    async def body(_: Server, listening: Listener, __: ActorConnection) -> None:
        address = await listening.address()
        async with contextlib.AsyncExitStack() as stack:
            strangers = []
            for number in range(12):
                here = f"127.0.0.{2 + number % 2}"
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, local_addr=(here, 0)
                )
                stack.callback(writer.transport.abort)
                await reader.readexactly(13 + NONCE_BYTES)
                strangers.append(reader)
            async with raw(listening, token=b"") as ours:
                nonce = new_nonce()
                proof = caller_proof(TOKEN, ours.challenge, nonce)
                ours.writer.write(frame(0, HELLO, nonce, proof))
                assert len(await ours.reply()) == 9 + NONCE_BYTES
            left = [reader for reader in strangers if not reader.at_eof()]
            assert len(left) <= 2 * of_host if of_host < of_all else len(left) <= of_all

    play(body)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::/64"),
        (("2001:db8::ffff:2", 5, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 5, 0, 3), "fe80::/64"),
        (None, ""),
    ],
)
def test_an_ipv6_network_counts_as_one_host(peer, host):
    assert listener.host_of(peer) == host


def test_what_was_read_off_one_connection_opens_no_other():
    async def body(server: Server, listening: Listener, _: ActorConnection) -> None:
        async with raw(listening) as one, raw(listening, token=b"") as other:
            assert one.hello
            assert TOKEN not in one.hello
            other.writer.write(one.hello + framed(1, produce(1)))
            assert await other.is_closed()
            assert not server.begun

    play(body)
