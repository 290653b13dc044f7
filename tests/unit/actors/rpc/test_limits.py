"""Limits per principal at the door of an actor: over real connections, and at a coordinator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

import pytest
from called_server import TIMEOUT_MS, TOKEN, Server, listener_of, produce
from deadlines import to_its_end, until
from inside import callers_of
from msgspec import UNSET, structs
from virtual_time import run_virtually

from oncelog.actors.process.clock import loop_ms
from oncelog.actors.process.metrics import THROTTLE_MS, THROTTLED_CALLS, Metric
from oncelog.actors.protocol import quotas
from oncelog.actors.protocol.access import RAY, Principal
from oncelog.actors.protocol.messages.access import ANYBODY, Access, Limits, Rules
from oncelog.actors.protocol.messages.base import Reply, ReplyT, Request
from oncelog.actors.protocol.messages.brokers import PingRequest
from oncelog.actors.protocol.messages.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    EndTxnReply,
    EndTxnRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
)
from oncelog.actors.protocol.quotas import OpenTransactions
from oncelog.actors.rpc import message_codec
from oncelog.actors.rpc.actor_transport import (
    ActorConnection,
    ActorTransport,
    NoConnection,
    connect,
)
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.actors.rpc.dispatch import Dispatch, read_answer
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.frames import HELLO, Outcome
from oncelog.actors.rpc.handshake import NONCE_BYTES, ProgramIdentity, caller_proof, new_nonce
from oncelog.actors.rpc.listener import FIRST_FRAME_TIMEOUT_S, Listener, ListenerAddress
from oncelog.api.session.throttling import PoliteTransport
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

WINDOW_MS = 1_000
TWO_A_SECOND = Limits(requests_per_second=2)
SECRET = b"known to servers"
ALICE, BOB = Principal("User:alice"), Principal("User:bob")


def framed(number: int, request: Request[Any]) -> bytes:
    name, message = request.method.encode(), message_codec.encode(request)
    body = number.to_bytes(8, "big") + bytes([len(name)]) + name + message
    return len(body).to_bytes(4, "big") + body


class Counted:
    """Counts what is added to each counter, by tags."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, ...], float] = {}

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        raise AssertionError(f"{metric.name} = {value}, {tags}")

    def add(self, metric: Metric, amount: float, tags: Mapping[str, str]) -> None:
        key = (metric.name, *tags.values())
        self.sums[key] = self.sums.get(key, 0) + amount


@pytest.fixture(autouse=True)
def _little_is_saved_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "QUOTA_WINDOW_MS", WINDOW_MS)


@contextlib.asynccontextmanager
async def limited(
    limits: Limits, who: str = ANYBODY, counted: Counted | None = None
) -> AsyncIterator[tuple[Server, Listener]]:
    server = Server()
    reports = CallReports(cast("Any", counted or Counted()), interval_ms=600_000)
    listener = listener_of(server, reports)
    listener.server_secret = SECRET
    listener.dispatch.door = Door(Access(rules=Rules(limits=((who, limits),))))
    try:
        yield server, listener
    finally:
        for caller in list(callers_of(listener)):
            caller.close()
        await listener.close()


async def connected(listener: Listener, server_secret: bytes = b"") -> ActorConnection:
    connection = await connect(
        await listener.address(), timeout_ms=TIMEOUT_MS, identity=ProgramIdentity(server_secret)
    )
    assert isinstance(connection, ActorConnection)
    return connection


async def ask(connection: ActorConnection, request: Request[Any]) -> Any:
    reply = await connection.call(request, timeout_ms=TIMEOUT_MS)
    assert reply.error is ErrorCode.NONE
    return reply


# --- rates ----------------------------------------------------------------------------------------


def test_a_throttled_call_is_answered_and_then_nothing_is_read_for_as_long_as_it_says():
    counted = Counted()

    async def body() -> None:
        async with limited(TWO_A_SECOND, counted=counted) as (server, listener):
            connection = await connected(listener)
            for number in range(2):
                assert not isinstance((await ask(connection, produce(number))).throttle_ms, int)
            began_ms = loop_ms()
            throttled = await ask(connection, produce(2))
            (caller,) = callers_of(listener)
            assert 0 < throttled.throttle_ms <= 501
            assert caller.is_held
            await ask(connection, produce(3))
            assert loop_ms() - began_ms >= throttled.throttle_ms - 1
            assert server.begun == [0, 1, 2, 3]

    to_its_end(body())
    assert counted.sums[THROTTLED_CALLS.name, "ray"] >= 1
    assert 0 < counted.sums[THROTTLE_MS.name, "ray"] <= 1_000


def test_a_polite_program_never_waits_in_a_mute_connection():
    async def body() -> None:
        async with limited(Limits(bytes_per_second=100_000)) as (server, listener):
            address = await listener.address()
            transport = Watching(ActorTransport(Where(address)), listener)
            polite = PoliteTransport(transport, asyncio.get_running_loop().time)
            for number in range(4):
                reply = await polite.call("it", produce(number, b"b" * 60_000), timeout_ms=30_000)
                assert reply.error is ErrorCode.NONE
            assert len(server.begun) == 4
            assert transport.held == [False] * 4
            assert sum(transport.throttles_ms) > 0

    to_its_end(body())


class Watching:
    """Looks whether the connection is held when a call is sent."""

    def __init__(self, transport: ActorTransport, listener: Listener) -> None:
        self.transport = transport
        self.listener = listener
        self.held: list[bool] = []
        self.throttles_ms: list[int] = []

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        self.held.append(any(caller.is_held for caller in callers_of(self.listener)))
        reply = await self.transport.call(actor, request, timeout_ms=timeout_ms)
        if isinstance(reply.throttle_ms, int):
            self.throttles_ms.append(reply.throttle_ms)
        return reply


class Where:
    """Tells where an actor listens; Ray carries no call to it."""

    def __init__(self, address: ListenerAddress) -> None:
        self.address = address

    async def listener_of(self, actor: str, *, timeout_ms: int) -> ListenerAddress:
        assert (actor, timeout_ms > 0) == ("it", True)
        return self.address

    async def call(self, actor: str, request: Request[Any], **_: object) -> Any:
        raise AssertionError(f"{actor} is called through Ray: {request}")


def test_a_reply_says_what_is_left_to_wait_when_it_goes_out_and_throttles_are_counted():
    counted = Counted()

    async def body() -> None:
        called = Called(TWO_A_SECOND, CallReports(cast("Any", counted), interval_ms=600_000))
        for expected in (UNSET, UNSET, 501):
            assert (await called.ask(commits("a"))).throttle_ms == expected
        for after_s, expected in ((0.4, 601), (0.5, 601), (1.0, 101), (1.1, UNSET)):
            called.coordinator.ending = partial(asyncio.sleep, after_s)
            assert (await called.ask(commits("a"))).throttle_ms == expected

    run_virtually(body())
    assert counted.sums == {
        (THROTTLED_CALLS.name, "user"): 5,
        (THROTTLE_MS.name, "user"): 500 + 1_000 + 1_100 + 1_100 + 600,
    }


def test_a_refused_call_is_told_to_wait_too():
    async def body() -> None:
        called = Called(Limits(requests_per_second=1))
        for request in (PingRequest(), PingRequest(), adds("a")):
            reply = await called.ask(request)
        assert isinstance(reply.throttle_ms, int)
        refused = await called.ask(PingRequest())
        assert refused.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert isinstance(refused.throttle_ms, int)
        message = message_codec.encode(adds("a"))
        outcome, parts = await called.dispatch.answer("add_partitions_to_txn/gone", message, ALICE)
        absent = read_answer(adds("a"), outcome, b"".join(parts))
        assert absent.error is ErrorCode.NETWORK_EXCEPTION
        assert isinstance(absent.throttle_ms, int)

    to_its_end(body())


def test_a_server_has_no_limits_and_others_have_no_part_in_those_of_one():
    async def body() -> None:
        for who, secret in ((ANYBODY, SECRET), (ALICE.name, b"")):
            async with limited(Limits(requests_per_second=1), who) as (_, listener):
                connection = await connected(listener, secret)
                for number in range(20):
                    reply = await ask(connection, produce(number))
                    assert not isinstance(reply.throttle_ms, int)

    to_its_end(body())


def test_to_connect_again_repays_no_debt():
    async def body() -> None:
        async with limited(TWO_A_SECOND) as (server, listener):
            first = await connected(listener)
            began_ms = loop_ms()
            for number in range(3):
                await ask(first, produce(number))
            first.close()
            second = await connected(listener)
            await ask(second, produce(99))
            assert loop_ms() - began_ms >= 498
            assert server.begun[-1] == 99

    to_its_end(body())


def test_a_large_request_that_has_begun_is_read_while_its_connection_is_mute():
    """It takes up room that all callers share."""

    async def body() -> None:
        async with limited(NO_RATE) as (server, listener):
            connection = await connected(listener)
            (caller,) = callers_of(listener)
            whole = framed(7, produce(7, b"b" * 300_000))
            assert connection.transport is not None
            connection.transport.write(whole[:100_000])
            await until(lambda: listener.room.used_bytes)
            caller.mute(60_000)
            connection.transport.write(whole[100_000:] + framed(8, produce(8)))
            await until(lambda: server.begun == [7])
            await until(lambda: caller.is_held and not listener.room.used_bytes)
            caller.mute(1)
            await until(lambda: server.begun == [7, 8])

    to_its_end(body())


NO_RATE = Limits(connections=1_000)


def test_a_connection_that_is_lost_while_it_is_mute_leaves_nothing():
    async def body() -> None:
        async with limited(NO_RATE) as (_, listener):
            connection = await connected(listener)
            (caller,) = callers_of(listener)
            caller.mute(60_000)
            earlier = cast("Any", caller)._mute_timer
            caller.mute(60_000)
            assert earlier.cancelled()
            timer = cast("Any", caller)._mute_timer
            caller.close()
            await until(lambda: not callers_of(listener))
            assert timer.cancelled()
            caller.mute(60_000)
            assert cast("Any", caller)._mute_timer is timer
            connection.close()

    to_its_end(body())


# --- connections ----------------------------------------------------------------------------------


def test_one_connection_more_than_the_limit_is_refused_and_ray_does_not_replace_it(caplog):
    async def body() -> None:
        async with limited(Limits(connections=2)) as (_, listener):
            first, second = [await connected(listener) for _ in range(2)]
            address = await listener.address()
            refused = await connect(address, timeout_ms=TIMEOUT_MS)
            assert isinstance(refused, NoConnection)
            assert refused.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert "User:ray has 2 connections" in refused.detail
            transport = ActorTransport(Where(address))
            for _ in range(3):
                reply = await transport.call("it", produce(1), timeout_ms=TIMEOUT_MS)
                assert reply.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
                assert "2 connections" in reply.detail
            # Those that there are stay, and a server comes in.
            await ask(first, produce(1))
            await ask(await connected(listener, SECRET), produce(1))
            second.close()
            await until(lambda: listener.places.count(RAY) == 1)
            await ask(await connected(listener), produce(1))
            assert len(callers_of(listener)) == 3
            assert not listener.places._half_open
            transport.close()

    to_its_end(body())
    assert "a connection was refused: User:ray has 2 connections" in caplog.text


def test_a_refused_connection_is_answered_once_and_closed_at_once():
    async def body() -> None:
        async with limited(Limits(connections=1)) as (server, listener):
            await connected(listener)
            address = await listener.address()
            reader, writer = await asyncio.open_connection(address.host, address.port)
            challenge = (await reader.readexactly(13 + NONCE_BYTES))[13:]
            nonce = new_nonce()
            hello = HELLO.encode() + nonce + caller_proof(TOKEN, challenge, nonce)
            frame = (9 + len(hello)).to_bytes(4, "big") + bytes([*bytes(8), len(HELLO)]) + hello
            began_ms = loop_ms()
            writer.write(frame + frame + framed(1, produce(1)))
            answer = await reader.read()
            assert loop_ms() - began_ms < 1_000 * FIRST_FRAME_TIMEOUT_S
            assert answer[12] == Outcome.LIMITED
            assert len(answer) == 4 + int.from_bytes(answer[:4], "big")
            assert server.begun == []
            writer.close()

    to_its_end(body())


# --- transactions ---------------------------------------------------------------------------------


class Coordinator:
    """Enrols what it is asked to; its shell counts what is open."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.open_transactions = OpenTransactions(self.open.__contains__)
        self.shell = self
        self.asked: list[Request[Any]] = []
        self.ending: Callable[[], Awaitable[object]] | None = None
        """What happens while a transaction ends."""

    async def ping(self, request: PingRequest) -> Reply:
        raise AssertionError(f"no program may ask {request}")

    async def init_producer_id(self, request: InitProducerIdRequest) -> InitProducerIdReply:
        self.asked.append(request)
        return InitProducerIdReply(producer_id=1, producer_epoch=0)

    async def add_partitions_to_txn(
        self, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnReply:
        self.asked.append(request)
        self.open.add(request.transactional_id)
        return AddPartitionsToTxnReply()

    async def add_offsets_to_txn(self, request: AddOffsetsToTxnRequest) -> AddPartitionsToTxnReply:
        self.asked.append(request)
        self.open.add(request.transactional_id)
        return AddPartitionsToTxnReply()

    async def end_txn(self, request: EndTxnRequest) -> EndTxnReply:
        ending, self.ending = self.ending, None
        if ending is not None:
            await ending()
        self.asked.append(request)
        return EndTxnReply()


class Called:
    """A coordinator behind its door, with limits for anybody."""

    def __init__(self, limits: Limits, reports: CallReports = NO_REPORTS) -> None:
        self.coordinator = Coordinator()
        self.dispatch = Dispatch(self.coordinator, on_bug=_fail, reports=reports)
        self.dispatch.door = Door(Access(rules=Rules(limits=((ANYBODY, limits),))))

    async def ask(self, request: Request[Any], principal: Principal = ALICE) -> Reply:
        message = message_codec.encode(request)
        outcome, parts = await self.dispatch.answer(request.method, message, principal)
        return read_answer(request, outcome, b"".join(parts))


def _fail(bug: BaseException) -> None:
    raise bug


FLIGHTS = (TopicPartition("flights", 0),)


def adds(transactional_id: str) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactional_id=transactional_id, producer_id=1, producer_epoch=0, partitions=FLIGHTS
    )


def commits(transactional_id: str) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=1,
        producer_epoch=0,
        committed=True,
        next_partitions=FLIGHTS,
    )


def test_a_timeout_above_the_limit_does_not_reach_the_coordinator():
    async def body() -> None:
        called = Called(Limits(transaction_timeout_ms_max=5_000))
        request = InitProducerIdRequest(transactional_id="a", transaction_timeout_ms=9_000)
        reply = await called.ask(request)
        assert reply.error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert "9000" in reply.detail
        assert "5000" in reply.detail
        assert called.coordinator.asked == []
        allowed = InitProducerIdRequest(transactional_id="a", transaction_timeout_ms=5_000)
        assert (await called.ask(allowed)).error is ErrorCode.NONE

    to_its_end(body())


def test_the_first_partition_of_one_more_transaction_is_to_come_again():
    async def body() -> None:
        called = Called(Limits(open_transactions=1))
        assert (await called.ask(adds("a"))).error is ErrorCode.NONE
        assert (await called.ask(adds("a"))).error is ErrorCode.NONE
        offsets = AddOffsetsToTxnRequest(
            transactional_id="b", producer_id=1, producer_epoch=0, group_id="g"
        )
        for request in (adds("b"), offsets):
            reply = await called.ask(request)
            assert reply.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert reply.error.retriable
            assert "User:alice has 1 open" in reply.detail
        assert (await called.ask(adds("x"), BOB)).error is ErrorCode.NONE
        # Nothing else opens one.
        for other in (InitProducerIdRequest(transactional_id="b"), commits("b")):
            assert (await called.ask(other)).error is ErrorCode.NONE
        assert called.coordinator.asked[-1] == structs.replace(commits("b"), next_partitions=())
        called.coordinator.open.remove("a")
        assert (await called.ask(offsets)).error is ErrorCode.NONE

    to_its_end(body())


def test_a_commit_beyond_the_limit_counts_and_enrols_nothing_ahead():
    async def body() -> None:
        called = Called(Limits(open_transactions=1))
        plain = structs.replace(commits("p"), next_partitions=())
        called.coordinator.ending = lambda: called.ask(adds("a"))
        assert (await called.ask(plain)).error is ErrorCode.NONE
        assert "a" in called.coordinator.open, "a commit alone takes no place"
        assert (await called.ask(commits("a"))).error is ErrorCode.NONE
        assert called.coordinator.asked[-1] == commits("a")
        assert (await called.ask(commits("b"))).error is ErrorCode.NONE
        ended = called.coordinator.asked[-1]
        assert isinstance(ended, EndTxnRequest)
        assert (ended.transactional_id, ended.next_partitions) == ("b", ())

    to_its_end(body())


def test_where_no_open_transactions_are_known_none_is_counted():
    async def body() -> None:
        called = Called(Limits(open_transactions=1))
        del called.coordinator.shell
        for transactional_id in ("a", "b"):
            assert (await called.ask(adds(transactional_id))).error is ErrorCode.NONE

    to_its_end(body())
