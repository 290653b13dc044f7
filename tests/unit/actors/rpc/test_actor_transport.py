"""Which way a call takes: a connection, a new one after a restart, or Ray."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest
from counted_calls import Counted
from deadlines import DEADLINE_S
from inside import loops_of
from virtual_time import give_turns

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.brokers import PingReply, PingRequest
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.actors.rpc import actor_transport
from oncelog.actors.rpc.actor_transport import FAILURES_BEFORE_RAY, ActorTransport
from oncelog.actors.rpc.call_meter import CallReports, MeteredCall
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.actors.rpc.listener import Listener, ListenerAddress
from oncelog.storage.errors import ErrorCode

TIMEOUT_MS = 30_000
BY_RAY_BYTES = (7, 70)
BY_RAY = DescribeReplicaReply(process_id=-7)


class Server:
    def __init__(self, process_id: int, error: ErrorCode) -> None:
        self.process_id = process_id
        self.error = error

    async def describe_replica(self, request: DescribeReplicaRequest) -> DescribeReplicaReply:
        assert request == DescribeReplicaRequest()
        return DescribeReplicaReply(process_id=self.process_id, error=self.error)


class FakeRay:
    """Knows where one actor listens; ``known`` may also be a code or ``None``."""

    def __init__(self) -> None:
        self.known: ListenerAddress | ErrorCode | None = None
        self.asked = 0
        self.answer = asyncio.Event()
        self.answer.set()

    async def listener_of(
        self, actor: str, *, timeout_ms: int
    ) -> ListenerAddress | ErrorCode | None:
        assert actor == "partition:flights-0@0"
        assert timeout_ms > 0
        self.asked += 1
        await self.answer.wait()
        return self.known

    async def call(
        self,
        actor: str,
        request: Request[Reply],
        *,
        timeout_ms: int,
        metered: MeteredCall,
        key: str,
    ) -> Reply:
        metered.request_bytes, metered.reply_bytes = BY_RAY_BYTES
        assert (actor, request) == ("partition:flights-0@0", DescribeReplicaRequest())
        assert (timeout_ms > 0, key) == (True, "")
        return BY_RAY


def listener_of(process_id: int, error: ErrorCode = ErrorCode.NONE) -> Listener:
    dispatch = Dispatch(Server(process_id, error), on_bug=sys.exit)
    return Listener(dispatch, host="127.0.0.1", token=b"%32d" % process_id)


async def describe(transport: ActorTransport, timeout_ms: int = TIMEOUT_MS) -> DescribeReplicaReply:
    return await transport.call(
        "partition:flights-0@0", DescribeReplicaRequest(), timeout_ms=timeout_ms
    )


def test_callers_that_come_together_share_one_connection():
    async def body() -> None:
        ray, listener = FakeRay(), listener_of(1)
        ray.known = await listener.address()
        transport = ActorTransport(ray)
        replies = await asyncio.gather(*(describe(transport) for _ in range(20)))
        assert {reply.process_id for reply in replies} == {1}
        assert ray.asked == 1

    asyncio.run(body())


class Arrivals:
    """Notes in which order calls arrive."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    async def ping(self, request: PingRequest) -> PingReply:
        self.numbers.append(request.hold_ms)
        return PingReply()


def test_a_call_that_comes_with_the_connection_does_not_overtake_those_that_waited_for_it():
    async def body() -> None:
        ray, arrivals = FakeRay(), Arrivals()
        dispatch = Dispatch(arrivals, on_bug=sys.exit)
        listener = Listener(dispatch, host="127.0.0.1", token=b"%32d" % 1)
        ray.known = await listener.address()
        transport = ActorTransport(ray)
        calls: list[asyncio.Future[PingReply]] = []

        def call() -> None:
            request = PingRequest(hold_ms=len(calls))
            answer = transport.call("partition:flights-0@0", request, timeout_ms=TIMEOUT_MS)
            calls.append(asyncio.ensure_future(answer))

        call()
        while not transport.connected(1):
            await give_turns(1)
        (connections,) = loops_of(transport).values()
        for _ in range(10):
            call()
            await asyncio.sleep(0)
        # Though there was one each turn, the last ones waited for nobody.
        assert connections.usable("partition:flights-0@0") is not None
        await asyncio.gather(*calls)
        assert arrivals.numbers == sorted(arrivals.numbers)
        assert ray.asked == 1

    asyncio.run(body())


def test_after_a_restart_ray_is_asked_again():
    async def body() -> None:
        ray, first, second = FakeRay(), listener_of(1), listener_of(2)
        ray.known = await first.address()
        transport = ActorTransport(ray)
        assert (await describe(transport)).process_id == 1
        (connections,) = loops_of(transport).values()
        connection = connections.usable("partition:flights-0@0")
        assert connection is not None
        connection.close()
        await asyncio.sleep(0)
        assert not connections._connections, "what is lost is not kept"
        ray.known = ErrorCode.NETWORK_EXCEPTION
        assert (await describe(transport)).error is ErrorCode.NETWORK_EXCEPTION
        ray.known = await second.address()
        assert (await describe(transport)).process_id == 2
        assert ray.asked == 3

    asyncio.run(body())


def test_a_controller_that_says_it_is_none_may_have_been_replaced_so_ray_is_asked_again():
    async def body() -> None:
        ray, first, second = FakeRay(), listener_of(1, ErrorCode.NOT_CONTROLLER), listener_of(2)
        ray.known = await first.address()
        transport = ActorTransport(ray)
        assert (await describe(transport)).error is ErrorCode.NOT_CONTROLLER
        ray.known = await second.address()
        assert (await describe(transport)).process_id == 2
        assert (await describe(transport)).process_id == 2
        assert ray.asked == 2

    asyncio.run(body())


def test_an_actor_that_does_not_listen_is_called_through_ray():
    async def body() -> None:
        ray = FakeRay()
        transport = ActorTransport(ray)
        for _ in range(3):
            assert await describe(transport) == BY_RAY
        assert ray.asked == 1, "it is left alone for a while"

    asyncio.run(body())


def test_an_actor_that_cannot_be_connected_is_called_through_ray_after_a_second_try():
    async def body() -> None:
        ray, listener = FakeRay(), listener_of(1)
        ray.known = await listener.address()
        await listener.close()
        transport = ActorTransport(ray)
        for _ in range(FAILURES_BEFORE_RAY - 1):
            assert (await describe(transport)).error is ErrorCode.NETWORK_EXCEPTION
        assert await describe(transport) == BY_RAY
        asked = ray.asked
        assert await describe(transport) == BY_RAY
        assert ray.asked == asked, "it is left alone for a while"

    asyncio.run(body())


def test_a_caller_does_not_wait_for_ray_longer_than_its_own_time():
    async def body() -> None:
        ray, listener = FakeRay(), listener_of(1)
        ray.known = await listener.address()
        ray.answer.clear()
        transport = ActorTransport(ray)
        assert (await describe(transport, timeout_ms=5)).error is ErrorCode.REQUEST_TIMED_OUT
        patient = asyncio.create_task(describe(transport))
        await asyncio.sleep(0)
        ray.answer.set()
        assert (await patient).process_id == 1
        assert ray.asked == 1

    asyncio.run(body())


def test_each_event_loop_has_its_own_connections_and_leaves_none_open():
    ray, transports = None, []
    transport: ActorTransport | None = None
    for number in (1, 2):

        async def body(number: int = number) -> None:
            nonlocal ray, transport
            if ray is None:
                ray = FakeRay()
                transport = ActorTransport(ray)
            assert transport is not None
            ray.known = await listener_of(number).address()
            assert (await describe(transport)).process_id == number
            (connections,) = loops_of(transport).values()
            connection = connections.usable("partition:flights-0@0")
            assert connection is not None
            transports.append(connection.transport)

        asyncio.run(body())
    assert transport is not None
    assert not loops_of(transport)
    assert all(opened.is_closing() for opened in transports)


def test_closing_closes_the_connections_of_every_loop_and_the_loop_goes_on():
    async def body() -> None:
        ray, listener = FakeRay(), listener_of(1)
        ray.known = await listener.address()
        transport = ActorTransport(ray)
        assert (await describe(transport)).process_id == 1
        (connections,) = loops_of(transport).values()
        connection = connections.usable("partition:flights-0@0")
        assert connection is not None
        transport.close()
        keeper = connections.keeper
        assert keeper is not None
        await asyncio.wait([keeper])
        assert connection.is_closing
        assert not loops_of(transport)
        assert (await describe(transport)).process_id == 1

    asyncio.run(body())


def test_a_loop_that_is_closed_without_its_tasks_is_forgotten_at_the_next(caplog):
    ray = asyncio.run(_fake_ray())
    transport = ActorTransport(ray)
    abandoned = asyncio.new_event_loop()
    assert abandoned.run_until_complete(describe(transport)) == BY_RAY
    pending = asyncio.all_tasks(abandoned)
    abandoned.close()
    assert len(loops_of(transport)) == 1
    asyncio.run(_describe_once(transport))
    assert not loops_of(transport)
    assert len(pending) == 1
    del abandoned, pending
    gc.collect()
    assert "destroyed" not in caplog.text


async def _fake_ray() -> FakeRay:
    return FakeRay()


async def _describe_once(transport: ActorTransport) -> None:
    assert await describe(transport) == BY_RAY


def test_the_first_calls_to_a_hundred_actors_wait_for_none_of_each_other():
    """A first transaction over many partitions: every leader is looked for at once."""
    partitions = 100

    async def body() -> None:
        asked: list[str] = []
        all_asked = asyncio.Event()

        class Slow(FakeRay):
            async def listener_of(self, actor: str, *, timeout_ms: int) -> None:
                assert timeout_ms > 0
                asked.append(actor)
                if len(asked) == partitions:
                    all_asked.set()
                await all_asked.wait()

            async def call(
                self,
                actor: str,
                request: Request[Reply],
                *,
                timeout_ms: int,
                metered: MeteredCall,
                key: str,
            ) -> Reply:
                assert metered.method == request.method
                assert (actor in asked, request) == (True, DescribeReplicaRequest())
                assert (timeout_ms > 0, key) == (True, "")
                return BY_RAY

        transport = ActorTransport(Slow())
        calls = [
            transport.call(
                f"partition:flights-{number}@0", DescribeReplicaRequest(), timeout_ms=TIMEOUT_MS
            )
            for number in range(partitions)
        ]
        assert await asyncio.gather(*calls) == [BY_RAY] * partitions
        transport.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(body())


def test_actors_that_could_not_be_connected_are_remembered_within_a_bound(monkeypatch):
    monkeypatch.setattr(actor_transport, "UNREACHABLE_MAX", 10)

    class Nowhere(FakeRay):
        async def listener_of(self, actor: str, *, timeout_ms: int) -> None:
            assert (actor != "", timeout_ms > 0) == (True, True)
            self.asked += 1

        async def call(
            self,
            actor: str,
            request: Request[Reply],
            *,
            timeout_ms: int,
            metered: MeteredCall,
            key: str,
        ) -> Reply:
            assert (metered.method, key) == (request.method, "")
            assert (actor != "", request, timeout_ms > 0) == (True, DescribeReplicaRequest(), True)
            return BY_RAY

    async def body() -> None:
        ray = Nowhere()
        transport = ActorTransport(ray)
        for number in [*range(10), *range(10), 10, 0]:
            reply = await transport.call(
                f"partition:t-{number}@0", DescribeReplicaRequest(), timeout_ms=TIMEOUT_MS
            )
            assert reply == BY_RAY
        # Ten are remembered; one more, and the first is asked for anew.
        assert ray.asked == 12
        transport.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(body())


def test_failures_to_connect_are_remembered_within_a_bound(monkeypatch):
    monkeypatch.setattr(actor_transport, "UNREACHABLE_MAX", 3)

    async def body() -> None:
        listener = listener_of(1)
        address = await listener.address()
        await listener.close()

        class Gone(FakeRay):
            async def listener_of(self, actor: str, *, timeout_ms: int) -> ListenerAddress:
                assert (actor != "", timeout_ms > 0) == (True, True)
                return address

        transport = ActorTransport(Gone())
        for number in range(8):
            reply = await transport.call(
                f"partition:t-{number}@0", DescribeReplicaRequest(), timeout_ms=TIMEOUT_MS
            )
            assert reply.error is ErrorCode.NETWORK_EXCEPTION
        (connections,) = loops_of(transport).values()
        assert len(connections._failures) <= 3
        transport.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(body())


# --- what is counted ------------------------------------------------------------------------


def test_calls_are_counted_whichever_way_they_take_and_reported_when_the_transport_is_closed():
    async def body() -> None:
        ray, counted = FakeRay(), Counted()
        transport = ActorTransport(ray, CallReports(counted, interval_ms=600_000))
        assert await describe(transport) == BY_RAY
        assert not counted.amounts
        transport.close()
        await give_turns(3)
        assert counted.of("calls", "describe_replica", "caller") == 1
        assert counted.of("call_request_bytes", "describe_replica", "caller") == BY_RAY_BYTES[0]
        assert counted.of("call_reply_bytes", "describe_replica", "caller") == BY_RAY_BYTES[1]

    asyncio.run(body())


def test_calls_that_reach_nobody_are_counted_as_errors():
    async def body() -> None:
        ray, counted = FakeRay(), Counted()
        ray.known = ErrorCode.NETWORK_EXCEPTION
        transport = ActorTransport(ray, CallReports(counted, interval_ms=1))
        assert (await describe(transport)).error is ErrorCode.NETWORK_EXCEPTION
        await asyncio.wait_for(counted.reported.wait(), DEADLINE_S)
        labels = ("describe_replica", "caller", "NETWORK_EXCEPTION")
        assert counted.of("call_errors", *labels) == 1
        assert counted.of("call_request_bytes", *labels[:2]) == 0

    asyncio.run(body())


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_connection_whose_making_was_cancelled_is_made_again(turns: int) -> None:
    """Even before the first step of the task that makes it."""

    async def body() -> None:
        ray, listener = FakeRay(), listener_of(1)
        ray.known = await listener.address()
        transport = ActorTransport(ray)
        calling = asyncio.ensure_future(describe(transport))
        await asyncio.sleep(0)
        (connections,) = loops_of(transport).values()
        (making,) = connections._making.values()
        await give_turns(turns)
        making.task.cancel()
        assert (await calling).error is ErrorCode.NETWORK_EXCEPTION
        assert (await describe(transport)).process_id == 1
        assert not connections._making

    asyncio.run(body())


def test_connections_are_closed_with_their_loop_even_if_its_end_comes_before_their_first_step() -> (
    None
):
    async def body() -> None:
        ray, listener = FakeRay(), listener_of(1)
        ray.known = await listener.address()
        transport = ActorTransport(ray)
        loop = asyncio.get_running_loop()
        connections = transport._begin(loop)
        assert connections.keeper is not None
        connections.keeper.cancel()
        await asyncio.wait([connections.keeper])
        await asyncio.sleep(0)
        assert loops_of(transport) == {}
        assert (await describe(transport)).process_id == 1
        assert connections not in loops_of(transport).values()

    asyncio.run(body())
