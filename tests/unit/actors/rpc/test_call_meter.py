"""How calls are counted: number, outcome, size and duration, on both sides of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from called_server import TIMEOUT_MS, Server, fetch, listener_of, produce
from counted_calls import Counted
from deadlines import DEADLINE_S

from oncelog.actors.launch.processes import ActorProcess
from oncelog.actors.process.metrics import DURATION_BOUNDS_MS
from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.partition import (
    DescribeReplicaRequest,
    FetchReply,
    FetchRequest,
    ListOffsetsRequest,
    ProduceReply,
)
from oncelog.actors.rpc import message_codec
from oncelog.actors.rpc.actor_transport import ActorTransport, connect
from oncelog.actors.rpc.call_meter import (
    CALLEE,
    CALLER,
    OTHER,
    CallMeter,
    CallReports,
    MeteredCall,
)
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.storage.errors import ErrorCode

NEVER_MS = 600_000
NOT_SERVED = ListOffsetsRequest(topic_partition=fetch(1).topic_partition, timestamp_ms=-1)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def one_call(
    meter: CallMeter,
    clock: Clock,
    took_ms: float = 1.0,
    *,
    method: str = "produce",
    error: ErrorCode = ErrorCode.NONE,
) -> None:
    call = meter.begin(method, 100)
    clock.now_s += took_ms / 1_000
    call.reply_bytes = 10
    meter.end(call, error)


def on_meter(body: Callable[[CallMeter, Clock, Counted], None], side: str = CALLER) -> None:
    async def run() -> None:
        counted, clock = Counted(), Clock()
        body(CallMeter(side, CallReports(counted, NEVER_MS), clock), clock, counted)

    asyncio.run(run())


# --- the meter ------------------------------------------------------------------------------


def test_number_size_and_duration_are_added_up_by_method() -> None:
    def body(meter: CallMeter, clock: Clock, counted: Counted) -> None:
        for took_ms in (3.0, 4.0):
            one_call(meter, clock, took_ms)
        one_call(meter, clock, method="fetch")
        assert not counted.amounts, "nothing before it is asked for"
        meter.report()
        assert counted.of("calls", "produce", CALLEE) == 2
        assert counted.of("calls", "fetch", CALLEE) == 1
        assert counted.of("call_request_bytes", "produce", CALLEE) == 200
        assert counted.of("call_reply_bytes", "produce", CALLEE) == 20
        assert counted.of("call_duration_ms_sum", "produce", CALLEE) == pytest.approx(7.0)

    on_meter(body, CALLEE)


def test_what_was_reported_is_not_reported_again() -> None:
    def body(meter: CallMeter, clock: Clock, counted: Counted) -> None:
        one_call(meter, clock, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        meter.report()
        first = dict(counted.amounts)
        meter.report()
        assert counted.amounts == first
        counted.amounts.clear()
        one_call(meter, clock)
        meter.report()
        assert counted.of("calls", "produce", CALLER) == 1
        assert counted.of("call_request_bytes", "produce", CALLER) == 100
        assert not [name for name, *_ in counted.amounts if name == "call_errors"]

    on_meter(body)


def test_errors_are_counted_by_their_code() -> None:
    def body(meter: CallMeter, clock: Clock, counted: Counted) -> None:
        codes = [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT]
        for error in codes:
            one_call(meter, clock, error=error)
        meter.report()
        assert counted.of("calls", "produce", CALLER) == 3
        errors = {tags[3]: n for tags, n in counted.amounts.items() if tags[0] == "call_errors"}
        assert errors == {"REQUEST_TIMED_OUT": 2}

    on_meter(body)


def test_buckets_are_cumulative_and_their_bounds_inclusive() -> None:
    def body(meter: CallMeter, clock: Clock, counted: Counted) -> None:
        clock.now_s = 0.0
        for took_ms in (0.0, 500.0, 500.1, 30_000.1):
            clock.now_s = 0.0
            one_call(meter, clock, took_ms)
        meter.report()
        buckets = counted.buckets("produce", CALLER)
        assert list(buckets) == [str(bound) for bound in DURATION_BOUNDS_MS] + ["+Inf"]
        assert [buckets[le] for le in ("0.1", "200", "500", "1000", "30000", "+Inf")] == [
            *(1, 1, 2, 3, 3),
            4,
        ]

    on_meter(body)


def test_methods_that_no_request_has_are_counted_under_one_name() -> None:
    def body(meter: CallMeter, clock: Clock, counted: Counted) -> None:
        for number in range(100):
            one_call(meter, clock, method=f"guessed_{number}")
        meter.report()
        assert counted.of("calls", OTHER, CALLER) == 100
        assert {tags[1] for tags in counted.amounts} == {OTHER}

    on_meter(body)


def test_a_meter_reports_by_itself_when_there_is_something_to_report() -> None:
    async def body() -> None:
        counted, clock = Counted(), Clock()
        reports = CallReports(counted, NEVER_MS)
        meter = CallMeter(CALLER, reports, clock)
        reports.interval_ms = 1
        for expected in (1, 2):
            one_call(meter, clock)
            await asyncio.wait_for(counted.reported.wait(), DEADLINE_S)
            assert counted.of("calls", "produce", CALLER) == expected
            counted.reported.clear()

    asyncio.run(body())


def test_a_meter_that_nobody_watches_needs_no_event_loop() -> None:
    clock = Clock()
    meter = CallMeter(CALLER, now_s=clock)
    one_call(meter, clock)
    assert meter._timer is None
    meter.report()


# --- where calls are counted ----------------------------------------------------------------


class Where:
    """Tells where the listener is; whatever else is asked of Ray fails."""

    def __init__(self, address: ListenerAddress) -> None:
        self.address = address

    async def listener_of(self, actor: str, *, timeout_ms: int) -> ListenerAddress:
        assert (actor, timeout_ms > 0) == ("somebody", True)
        return self.address

    async def call(
        self, actor: str, request: Request[Any], *, timeout_ms: int, metered: MeteredCall
    ) -> Any:
        raise AssertionError(f"{actor}: {request} in {timeout_ms} ms, {metered}")


async def counted_at_both_sides(*requests: Request[Any]) -> tuple[Counted, list[Reply]]:
    """What is counted when ``requests`` are sent to a ``Server`` over a connection."""
    counted = Counted()
    reports = CallReports(counted, NEVER_MS)
    listener = listener_of(Server(), reports)
    transport = ActorTransport(Where(await listener.address()), reports)
    replies = [await transport.call("somebody", one, timeout_ms=TIMEOUT_MS) for one in requests]
    transport.close()
    listener.dispatch.meter.report()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await listener.close()
    return counted, replies


def size_of(message: Request[Any] | Reply) -> int:
    return sum(map(len, message_codec.encode_in_parts(message)))


@pytest.mark.parametrize("side", [CALLER, CALLEE])
def test_a_call_over_a_connection_is_counted_with_the_sizes_of_its_messages(side: str) -> None:
    request, read = produce(3, b"b" * 100_000), fetch(50_000)
    counted, replies = asyncio.run(counted_at_both_sides(request, request, read))
    assert replies == [ProduceReply(base_offset=3)] * 2 + [FetchReply(records=b"r" * 50_000)]
    for method, count, sent, answer in (
        ("produce", 2, request, replies[0]),
        ("fetch", 1, read, replies[2]),
    ):
        assert counted.of("calls", method, side) == count
        assert counted.of("call_request_bytes", method, side) == count * size_of(sent)
        assert counted.of("call_reply_bytes", method, side) == count * size_of(answer)
    assert counted.of("call_duration_ms_sum", "produce", side) > 0
    assert counted.buckets("produce", side)["+Inf"] == 2
    assert not [tags for tags in counted.amounts if tags[0] == "call_errors"]


@pytest.mark.parametrize(
    ("request_", "code_at_callee"),
    [
        (DescribeReplicaRequest(), ErrorCode.UNKNOWN_SERVER_ERROR),
        (NOT_SERVED, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_call_that_raises_or_is_refused_is_an_error_at_both_sides(
    request_: Request[Any], code_at_callee: ErrorCode
) -> None:
    counted, (reply,) = asyncio.run(counted_at_both_sides(request_))
    assert reply.error is code_at_callee
    for side in (CALLER, CALLEE):
        assert counted.of("calls", request_.method, side) == 1
        assert counted.of("call_errors", request_.method, side, code_at_callee.name) == 1


def test_what_callers_make_up_is_counted_under_one_name() -> None:
    async def body() -> None:
        counted = Counted()
        reports = CallReports(counted, NEVER_MS)
        listener = listener_of(Server(), reports)
        connection = await connect(await listener.address(), timeout_ms=TIMEOUT_MS)
        assert connection is not None
        request = FetchRequest(topic_partition=fetch(1).topic_partition, fetch_offset=1)
        for number in range(3):
            method = f"guessed_{number}".encode()
            connection.send(1_000 + number, len(method), method, b"")
        await connection.call(request, timeout_ms=TIMEOUT_MS)
        connection.close()
        await listener.close()
        listener.dispatch.meter.report()
        assert counted.of("call_errors", OTHER, CALLEE, "INVALID_REQUEST") == 3
        assert {tags[1] for tags in counted.amounts} == {OTHER, "fetch"}

    asyncio.run(body())


@pytest.mark.parametrize("fails", [False, True])
def test_an_encoded_call_through_ray_is_counted_at_the_callee(fails: bool) -> None:
    async def body() -> None:
        counted = Counted()

        class Process(ActorProcess):
            answering = (Server,)

        process: Any = Process(Server(), calls="ray", reports=CallReports(counted, NEVER_MS))
        request: Request[Any] = DescribeReplicaRequest() if fails else produce(3, b"b")
        data = message_codec.encode(request)
        _, answer = await getattr(process, request.method)(data)
        process.dispatch.meter.report()
        assert counted.of("calls", request.method, CALLEE) == 1
        assert counted.of("call_request_bytes", request.method, CALLEE) == len(data)
        assert counted.of("call_reply_bytes", request.method, CALLEE) == len(answer)
        failed = counted.of("call_errors", request.method, CALLEE, "UNKNOWN_SERVER_ERROR")
        assert failed == int(fails)

    asyncio.run(body())
