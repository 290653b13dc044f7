"""Every record has its outcome within ``delivery_timeout_ms``, whatever its leader does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    InitProducerIdRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError, RequestTimedOutError

NEVER_S = 1_000_000.0
SLACK_S = 0.2
"""What the loop may be late; far less than a request or a wait between two."""

TIMEOUTS = {"delivery_timeout_ms": 4_000, "request_timeout_ms": 1_500}


def ending(cluster: Any) -> Any:
    """``cluster``, whose calls end at their time-out as a real transport's do."""
    answer = cluster.call

    async def call(actor: str, request: Any, *, timeout_ms: int) -> Any:
        try:
            return await asyncio.wait_for(
                answer(actor, request, timeout_ms=timeout_ms), timeout_ms / 1_000
            )
        except asyncio.TimeoutError:
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)

    cluster.call = call
    return cluster


@pytest.fixture
def stopping(cluster: Any) -> Any:
    """A cluster whose leaders may stop answering."""
    return ending(cluster)


async def outcomes(futures: list[Any]) -> list[tuple[float, Any]]:
    """When each future was done, and with what."""
    loop = asyncio.get_running_loop()
    done_s: dict[Any, float] = {}
    for future in futures:
        future.add_done_callback(lambda done: done_s.setdefault(done, loop.time()))
    results = await asyncio.gather(*futures, return_exceptions=True)
    return [(done_s[future], result) for future, result in zip(futures, results, strict=True)]


async def send_batches(producer: Any, count: int) -> list[Any]:
    return [await producer.send("t", b"%d" % n + b"." * 60, partition=0) for n in range(count)]


def test_every_batch_for_a_stopped_leader_fails_in_time_sent_or_not(
    stopping: Any, run: Any
) -> None:
    """0.0 The leader stops. Nine batches are sent; five fill the window, the others wait.
    1.5, 3.0 The calls time out; each batch that is sent again waits for the one before it.
    4.0 The time of all nine is up."""
    stopping.create("t")
    stopping.fault(ProduceRequest, *([NEVER_S] * 100))

    async def story() -> None:
        producer = stopping.producer(batch_size=64, **TIMEOUTS)
        began_s = asyncio.get_running_loop().time()
        for done_s, result in await outcomes(await send_batches(producer, 9)):
            assert isinstance(result, RequestTimedOutError)
            assert "delivery_timeout_ms=4000" in str(result)
            assert done_s - began_s <= 4.0 + SLACK_S
        await producer.close(timeout_ms=0)

    run(story())


@pytest.mark.parametrize("transactional_id", [None, "loader"])
def test_records_that_never_could_be_sent_fail_in_time_too(
    stopping: Any, run: Any, transactional_id: str | None
) -> None:
    stopping.create("t")

    async def story() -> None:
        producer = stopping.producer(transactional_id, max_block_ms=60_000, **TIMEOUTS)
        if transactional_id is not None:
            await producer.init_transactions()
            await producer.begin_transaction()
        silent = InitProducerIdRequest if transactional_id is None else AddPartitionsToTxnRequest
        stopping.fault(silent, *([NEVER_S] * 100))
        began_s = asyncio.get_running_loop().time()
        ((done_s, result),) = await outcomes([await producer.send("t", b"v")])
        assert isinstance(result, OncelogError)
        assert done_s - began_s <= 4.0 + SLACK_S
        stopping.faults.clear()
        await producer.close(timeout_ms=0)

    run(story())


def test_after_the_expiry_the_partition_goes_on_under_the_next_epoch(
    stopping: Any, run: Any
) -> None:
    (leader,) = stopping.create("t")

    async def story() -> None:
        async with stopping.producer(batch_size=64, **TIMEOUTS) as producer:
            await (await producer.send("t", b"before"))
            stopping.fault(ProduceRequest, *([NEVER_S] * 100))
            await outcomes(await send_batches(producer, 7))
            stopping.faults.clear()
            await (await producer.send("t", b"after"))

    run(story())
    assert leader.values() == [b"before", b"after"]
    epochs = [(header.producer_epoch, header.base_sequence) for header in leader.headers]
    assert epochs == [(0, 0), (1, 0)]


FAULTS = st.sampled_from(
    [
        None,
        None,
        NEVER_S,
        0.4,
        "lose call",
        "lose reply",
        "lose reply late",
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.INVALID_RECORD,
        ErrorCode.MESSAGE_TOO_LARGE,
    ]
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    faults=st.lists(FAULTS, max_size=60),
    ends=st.sampled_from([None, NEVER_S]),
    pauses=st.lists(st.sampled_from([0.0, 0.01, 0.7, 2.0]), min_size=1, max_size=25),
)
def test_whatever_the_leader_does_each_record_has_its_outcome_in_time_and_once(
    cluster: Any, run: Any, faults: list[Any], ends: Any, pauses: list[float]
) -> None:
    cluster = ending(type(cluster)())
    (leader,) = cluster.create("t")
    cluster.fault(ProduceRequest, *faults, *([ends] * 500))

    async def story() -> None:
        loop = asyncio.get_running_loop()
        producer = cluster.producer(batch_size=64, **TIMEOUTS)
        waiting: list[Any] = []
        for number, pause in enumerate(pauses):
            future = await producer.send("t", b"%d" % number + b"." * 60, partition=0)
            sent_s = loop.time()
            waiting.append((sent_s, asyncio.ensure_future(outcomes([future]))))
            await asyncio.sleep(pause)
        answers = [(sent_s, *(await outcome)[0]) for sent_s, outcome in waiting]
        for sent_s, done_s, _ in answers:
            assert done_s - sent_s <= 4.0 + SLACK_S
        acknowledged = [r.offset for _, _, r in answers if not isinstance(r, OncelogError)]
        assert len(set(acknowledged)) == len(acknowledged)
        await producer.close(timeout_ms=0)

    run(story())
    values = leader.values()
    assert len(set(values)) == len(values)


# --- a full buffer --------------------------------------------------------------------------------


def test_a_full_buffer_is_sent_at_once_instead_of_at_the_end_of_its_linger_time(
    cluster: Any, run: Any
) -> None:
    cluster.create("t", 3)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with cluster.producer(linger_ms=30_000, buffer_memory=1_000) as producer:
            began_s = loop.time()
            for number in range(100):
                await producer.send("t", b"." * 100, partition=number % 3)
            assert loop.time() - began_s < 1.0

    run(story())


# --- nobody waits ---------------------------------------------------------------------------------


def test_a_failed_record_nobody_waits_for_is_logged_counted_and_raised_by_the_flush(
    cluster: Any, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)

    async def story() -> None:
        async with cluster.producer() as producer:
            await producer.send("t", b"lost")
            with pytest.raises(OncelogError, match="breaks a rule of the format"):
                await producer.flush()
            await producer.flush()
            assert producer.metrics()["record_error_total"] == 1

    run(story())
    (line,) = [record for record in caplog.records if record.name == "oncelog.producer"]
    assert "1 record for t-0 was not delivered" in line.getMessage()


def test_a_failure_that_somebody_saw_is_not_raised_by_the_flush(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)

    async def story() -> None:
        async with cluster.producer() as producer:
            with pytest.raises(OncelogError):
                await (await producer.send("t", b"lost"))
            await producer.flush()

    run(story())


def test_a_table_that_failed_unseen_fails_the_flush(cluster: Any, run: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_RECORD)
    table = pa.table({"value": [b"a", b"b"]})

    async def story() -> None:
        async with cluster.producer() as producer:
            await producer.send_arrow("t", table)
            with pytest.raises(OncelogError, match="breaks a rule of the format"):
                await producer.flush()
            with pytest.raises(OncelogError):
                await (await producer.send_arrow("t", table))
            await producer.flush()

    run(story())


def test_many_failures_are_a_few_lines(
    cluster: Any, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, *([ErrorCode.INVALID_RECORD] * 200))

    async def story() -> None:
        async with cluster.producer(batch_size=64) as producer:
            await send_batches(producer, 200)
            with pytest.raises(OncelogError):
                await producer.flush()

    run(story())
    lines = [record for record in caplog.records if record.name == "oncelog.producer"]
    assert 2 <= len(lines) <= 20


def test_what_is_given_up_at_the_close_is_logged(
    cluster: Any, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, NEVER_S)

    async def story() -> None:
        producer = cluster.producer()
        await producer.send("t", b"v")
        await producer.close(timeout_ms=100)

    run(story())
    assert "1 record for t-0 was not delivered" in caplog.text
