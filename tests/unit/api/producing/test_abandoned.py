"""Futures nobody looks at, calls that are cancelled, and producers a fork has copied."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from deadlines import DEADLINE_S

from oncelog.actors.protocol.messages.group import OffsetAndMetadata, TxnOffsetCommitRequest
from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import EndTxnRequest
from oncelog.api.batching.interceptors import ProducerInterceptor
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.producer import Producer
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.api.session.event_loop import LoopThread
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    IllegalStateError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    OutOfOrderSequenceNumberError,
    TransactionAbortableError,
)
from oncelog.storage.model import TopicPartition


@pytest.mark.parametrize(
    ("transactional_id", "options", "is_flush_told"),
    [
        ("loader", {}, False),
        (None, {"interceptors": (ProducerInterceptor(),)}, False),
        (None, {}, True),
    ],
)
def test_a_failure_is_told_once_and_not_reported_as_never_retrieved(
    cluster: Any,
    run: Any,
    caplog: pytest.LogCaptureFixture,
    transactional_id: str | None,
    options: dict[str, Any],
    *,
    is_flush_told: bool,
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)

    gc.freeze()  # Only what is made from here on is looked through.

    async def story() -> None:
        producer = cluster.producer(transactional_id, **options)
        if transactional_id:
            await producer.init_transactions()
            await producer.begin_transaction()
        # Nobody keeps the future.
        await producer.send("t", b"v")
        if transactional_id:
            with pytest.raises(TransactionAbortableError):
                await producer.commit_transaction()
        elif is_flush_told:
            with pytest.raises(InvalidRecordError):
                await producer.flush()
        else:
            await producer.flush()
        gc.collect()

    with caplog.at_level(logging.ERROR, logger="asyncio"):
        run(story())
        gc.collect()
    assert "never retrieved" not in caplog.text
    assert ("no one was waiting" in caplog.text) is is_flush_told


def test_a_failed_future_still_raises_to_whoever_awaits_it(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.MESSAGE_TOO_LARGE)

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        await producer.begin_transaction()
        future = await producer.send("t", b"v")
        with pytest.raises(MessageTooLargeError):
            await future

    run(story())


def test_offsets_whose_call_was_cancelled_cannot_be_left_out_of_a_commit(
    cluster: Any, run: Any
) -> None:
    """The call hangs, the application gives it up and commits all the same."""
    cluster.create("t")
    cluster.fault(TxnOffsetCommitRequest, 60.0)
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(offset=5)}

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("t", b"half")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(
                producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group_id="g")),
                1,
            )
        with pytest.raises(TransactionAbortableError, match=r"cancelled.*abort_transaction\(\)"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"whole")
            await producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group_id="g"))

    run(story())
    assert cluster.leaders[TopicPartition("t", 0)].committed_values() == [b"whole"]
    assert cluster.offsets == {TopicPartition("t", 0): 5}


@pytest.mark.parametrize("size_bytes", [300, 900])
def test_a_batch_that_may_be_in_the_log_is_never_split_into_other_ones(
    cluster: Any, run: Any, size_bytes: int
) -> None:
    # 1. The batch is appended and its answer is lost.
    # 2. The topic's largest batch is made smaller: the retry is too large, before the leader has
    #    looked whether it has the batch already.
    # 3. Its halves are no batches that the leader knows. Under a new epoch they would land again.
    (leader,) = cluster.create("t")
    cluster.fault(ProduceRequest, "lose reply")

    async def story() -> None:
        async with cluster.producer() as producer:
            futures = [await producer.send("t", b"%d" % n + b"." * 98) for n in range(8)]
            await asyncio.sleep(0.05)
            assert len(leader.records) == 8
            leader.message_max_bytes = size_bytes
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert all(isinstance(result, OutOfOrderSequenceNumberError) for result in results)
            await (await producer.send("t", b"last"))

    run(story())
    assert len(leader.records) == 9
    assert len(set(leader.values())) == 9


def test_a_refusal_after_a_lost_answer_does_not_claim_that_nothing_was_appended(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(ProduceRequest, "lose reply", ErrorCode.INVALID_TIMESTAMP)

    async def story() -> None:
        async with cluster.producer() as producer:
            with pytest.raises(InvalidTimestampError, match="may or may not be in the log"):
                await (await producer.send("t", b"first"))
            cluster.fault(ProduceRequest, ErrorCode.INVALID_TIMESTAMP)
            with pytest.raises(InvalidTimestampError) as refusal:
                await (await producer.send("t", b"second"))
            assert "may or may not" not in str(refusal.value)
            await (await producer.send("t", b"last"))

    run(story())
    assert leader.values() == [b"first", b"last"]


def in_child(check: Callable[[], bool]) -> bool:
    """Whether ``check`` is true in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        is_true = False
        try:
            is_true = check()
        finally:
            os.write(writer, bytes([is_true]))
            os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    return answer == b"\x01"


def test_an_async_producer_refuses_every_call_in_a_forked_child(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> Any:
        producer, plain = cluster.producer("loader"), cluster.producer()
        await producer.init_transactions()
        await plain.send("t", b"v")
        return producer, plain

    producer, plain = run(story())

    def refused() -> bool:
        calls = (
            producer.init_transactions,
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
            lambda: producer.send_offsets_to_transaction({}, ConsumerGroupMetadata(group_id="g")),
            lambda: producer.send("t", b"v"),
            lambda: plain.send("t", b"v"),
            lambda: plain.send("other", b"v"),
            plain.flush,
            plain.close,
        )
        producer.forbid()
        plain.forbid()
        count = 0
        for call in calls:
            try:
                call().send(None)
            except IllegalStateError as error:
                count += "made before the process forked" in str(error)
        return count == len(calls)

    assert in_child(refused)


def test_with_its_loop_a_producer_ends_and_the_futures_of_its_records_say_so(
    cluster: Any,
) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(ProduceRequest, 60.0)
    loop_thread = LoopThread()
    settings = ProducerSettings(linger_ms=60_000)
    producer = Producer(cluster.router(), loop_thread, settings, random=Random(5))
    futures = [producer.send("t", b"v") for _ in range(2)]
    loop_thread.close()
    for future in futures:
        with pytest.raises(ClientClosedError):
            future.result(DEADLINE_S)
    with pytest.raises(ClientClosedError):
        producer.send("t", b"v")
    assert leader.values() == []


@pytest.mark.parametrize("closes", ["loop", "producer"])
def test_a_commit_under_way_when_its_producer_is_closed_commits_nothing_that_is_not_delivered(
    cluster: Any, closes: str
) -> None:
    (leader,) = cluster.create("t")
    is_sent = threading.Event()
    produce = leader.produce

    async def never(request: ProduceRequest) -> Any:
        is_sent.set()
        await asyncio.Event().wait()
        return await produce(request)

    leader.produce = never
    loop_thread = LoopThread()
    settings = ProducerSettings(transactional_id="loader")
    producer = Producer(cluster.router(), loop_thread, settings, random=Random(5))
    producer.init_transactions()
    producer.begin_transaction()
    record = producer.send("t", b"v")
    with ThreadPoolExecutor(1) as pool:
        commit = pool.submit(producer.commit_transaction)
        assert is_sent.wait(DEADLINE_S)
        if closes == "loop":
            loop_thread.close()
        else:
            producer.close(timeout_ms=0)
        with pytest.raises(ClientClosedError):
            commit.result(DEADLINE_S)
    loop_thread.close()
    with pytest.raises(ClientClosedError):
        record.result(DEADLINE_S)
    assert cluster.requests(EndTxnRequest) == []


def test_a_flush_under_way_when_its_producer_is_closed_says_so(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, 60.0)

    async def story() -> None:
        producer = cluster.producer()
        await producer.send("t", b"v")
        flush = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0)
        await producer.close(0)
        with pytest.raises(ClientClosedError):
            await flush

    run(story())
