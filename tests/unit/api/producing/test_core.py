"""What a transactional producer promises, in memory and in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    IllegalStateError,
    InvalidRequestError,
    InvalidSettingError,
    OncelogError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortableError,
)
from oncelog.storage.model import TopicPartition


async def begun(cluster: Any, **options: Any) -> Any:
    """A transactional producer with an open transaction."""
    producer = cluster.producer("loader", **options)
    await producer.init_transactions()
    await producer.begin_transaction()
    return producer


async def under_way(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """``call``, so far that it waits for an answer."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.1)
    return task


def test_a_committed_transaction_is_visible_on_all_partitions(cluster: Any, run: Any) -> None:
    leaders = cluster.create("t", 3)

    async def story() -> None:
        producer = await begun(cluster)
        for number in range(3):
            await producer.send("t", b"%d" % number, partition=number)
        assert await producer.commit_transaction() is True

    run(story())
    assert [leader.committed_values() for leader in leaders] == [[b"0"], [b"1"], [b"2"]]


def test_all_new_partitions_of_a_flush_are_enrolled_in_one_call_before_any_batch(
    cluster: Any, run: Any
) -> None:
    cluster.create("t", 5)

    async def story() -> None:
        producer = await begun(cluster)
        for number in range(5):
            await producer.send("t", b"v", partition=number)
        await producer.commit_transaction()

    run(story())
    (request,) = cluster.requests(AddPartitionsToTxnRequest)
    assert [tp.partition for tp in request.partitions] == [0, 1, 2, 3, 4]
    kinds = [type(request) for _, request in cluster.calls]
    assert kinds.index(AddPartitionsToTxnRequest) < kinds.index(ProduceRequest)


def test_a_partition_is_enrolled_once_per_transaction(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        producer = await begun(cluster)
        for _ in range(2):
            await producer.send("t", b"v", partition=0)
            await producer.flush()
        await producer.send("t", b"v", partition=1)
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.send("t", b"v", partition=0)
        await producer.commit_transaction()

    run(story())
    enrolled = [
        [tp.partition for tp in request.partitions]
        for request in cluster.requests(AddPartitionsToTxnRequest)
    ]
    assert enrolled == [[0], [1], [0]]


def test_each_transaction_has_the_next_epoch_and_starts_its_sequences_at_zero(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = await begun(cluster)
        for number in range(3):
            if number:
                await producer.begin_transaction()
            await producer.send("t", b"a")
            await producer.flush()
            await producer.send("t", b"b")
            await producer.commit_transaction()

    run(story())
    assert [(header.producer_epoch, header.base_sequence) for header in leader.headers] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]


def test_an_empty_transaction_asks_nobody(cluster: Any, run: Any) -> None:
    async def story() -> None:
        producer = await begun(cluster)
        assert await producer.commit_transaction() is True
        await producer.begin_transaction()
        await producer.abort_transaction()

    run(story())
    assert not cluster.requests(EndTxnRequest)


def test_a_token_is_committed_even_if_nothing_was_sent_and_read_back(
    cluster: Any, run: Any
) -> None:
    async def story() -> None:
        producer = await begun(cluster)
        await producer.commit_transaction(token=b"batch-42")
        assert await cluster.producer("loader").init_transactions() == b"batch-42"

    run(story())


def test_a_token_that_is_too_long_is_refused(cluster: Any, run: Any) -> None:
    async def story() -> None:
        producer = await begun(cluster)
        with pytest.raises(InvalidRequestError, match=r"1025 bytes is not .* 1 to 1024 bytes"):
            await producer.commit_transaction(token=b"." * 1_025)
        with pytest.raises(InvalidRequestError, match=r"'batch' is not .* 1 to 1024 bytes"):
            await producer.commit_transaction(token="batch")
        await producer.commit_transaction()

    run(story())


@pytest.mark.parametrize(
    "answer",
    [ErrorCode.INVALID_REQUEST, ErrorCode.OUTDATED_VERSION, ErrorCode.ALREADY_COMMITTED],
)
def test_a_commit_that_is_refused_for_its_token_can_be_aborted(
    cluster: Any, run: Any, answer: ErrorCode
) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send("t", b"refused")
        cluster.fault(EndTxnRequest, answer)
        with pytest.raises(
            TransactionAbortableError, match=r"call abort_transaction\(\)"
        ) as caught:
            await producer.commit_transaction(token=b"1")
        assert isinstance(caught.value.__cause__, OncelogError)
        assert caught.value.__cause__.code is answer
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send("t", b"accepted")
        await producer.commit_transaction()

    run(story())
    assert leader.committed_values() == [b"accepted"]


def test_abort_takes_back_what_was_sent_and_drops_what_was_not(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = await begun(cluster, linger_ms=10_000)
        await producer.send("t", b"sent")
        await producer.flush()
        dropped = await producer.send("t", b"dropped")
        await producer.abort_transaction()
        with pytest.raises(TransactionAbortableError, match="aborted"):
            await dropped
        await producer.begin_transaction()
        await producer.send("t", b"next")
        await producer.commit_transaction()

    run(story())
    assert leader.values() == [b"sent", b"next"]
    assert leader.committed_values() == [b"next"]


def test_a_lost_commit_reply_is_asked_for_again(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(EndTxnRequest, "lose reply", ErrorCode.CONCURRENT_TRANSACTIONS)

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send("t", b"v")
        assert await producer.commit_transaction() is True

    run(story())
    assert leader.committed_values() == [b"v"]
    requests = cluster.requests(EndTxnRequest)
    assert len(requests) == 3
    assert len(set(requests)) == 1


def test_concurrent_transactions_is_asked_again_after_20_ms(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(EndTxnRequest, *([ErrorCode.CONCURRENT_TRANSACTIONS] * 10))

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send("t", b"v")
        await producer.flush()
        started = asyncio.get_running_loop().time()
        await producer.commit_transaction()
        assert asyncio.get_running_loop().time() - started < 0.25

    run(story())


def test_a_commit_that_timed_out_is_finished_by_the_same_call_only(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(EndTxnRequest, *(["lose reply"] * 6))

    async def story() -> None:
        producer = await begun(cluster, max_block_ms=1_000)
        await producer.send("t", b"v")
        with pytest.raises(RequestTimedOutError, match=r"call commit_transaction\(\) again"):
            await producer.commit_transaction(token=b"1")
        for call in (producer.abort_transaction, producer.begin_transaction):
            with pytest.raises(IllegalStateError, match=r"call commit_transaction\(\) again"):
                await call()
        with pytest.raises(IllegalStateError, match="another token"):
            await producer.commit_transaction(token=b"2")
        cluster.faults.clear()
        await producer.commit_transaction(token=b"1")
        await producer.begin_transaction()

    run(story())
    assert leader.committed_values() == [b"v"]


def test_a_failed_batch_leaves_only_abort(cluster: Any, run: Any) -> None:
    leaders = cluster.create("t", 2)
    cluster.fault(ProduceRequest, None, ErrorCode.INVALID_RECORD)

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send("t", b"0", partition=0)
        await producer.send("t", b"1", partition=1)
        with pytest.raises(TransactionAbortableError, match=r"abort_transaction\(\)"):
            await producer.commit_transaction()
        with pytest.raises(TransactionAbortableError):
            await producer.send("t", b"2")
        with pytest.raises(TransactionAbortableError):
            await producer.begin_transaction()
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send("t", b"3", partition=0)
        await producer.commit_transaction()

    run(story())
    assert leaders[0].committed_values() == [b"3"]
    assert leaders[1].committed_values() == []
    assert [request.committed for request in cluster.requests(EndTxnRequest)] == [False, True]


def test_a_failed_batch_fails_the_others_of_its_transaction_at_once(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)
    cluster.fault(ProduceRequest, 60.0, ErrorCode.INVALID_RECORD)

    async def story() -> None:
        producer = await begun(cluster)
        slow = await producer.send("t", b"0", partition=0)
        await producer.send("t", b"1", partition=1)
        started = asyncio.get_running_loop().time()
        with pytest.raises(TransactionAbortableError, match="another part"):
            await slow
        assert asyncio.get_running_loop().time() - started < 1

    run(story())


@pytest.mark.parametrize("waits_in", [ProduceRequest, EndTxnRequest])
def test_close_waits_for_a_commit_that_was_asked_for(
    cluster: Any, run: Any, waits_in: type
) -> None:
    """As with Kafka: what the application has decided is carried out, and it is told of it."""
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send("t", b"v")
        cluster.fault(waits_in, 2.0)
        commit = await under_way(producer.commit_transaction())
        await producer.close()
        assert commit.done()
        assert await commit

    run(story())
    assert leader.committed_values() == [b"v"]


def test_close_waits_for_an_abort_that_was_asked_for(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = await begun(cluster)
        await (await producer.send("t", b"v"))
        cluster.fault(EndTxnRequest, 2.0)
        abort = await under_way(producer.abort_transaction())
        await producer.close()
        await abort

    run(story())
    assert leader.committed_values() == []
    assert len(cluster.requests(EndTxnRequest)) == 1


def test_close_waits_no_longer_than_it_is_told(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send("t", b"v")
        cluster.fault(ProduceRequest, 100.0)
        commit = await under_way(producer.commit_transaction())
        started = asyncio.get_running_loop().time()
        await producer.close(timeout_ms=1_000)
        assert asyncio.get_running_loop().time() - started < 1.5
        with pytest.raises(ClientClosedError):
            await commit

    run(story())


def test_a_newer_producer_fences_the_older_one_for_good(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        old = await begun(cluster)
        await old.send("t", b"old")
        await old.flush()
        new = cluster.producer("loader")
        await new.init_transactions()
        with pytest.raises(ProducerFencedError):
            await old.commit_transaction()
        with pytest.raises(ProducerFencedError, match="close it"):
            await old.begin_transaction()
        await old.close()
        await new.begin_transaction()
        await new.send("t", b"new")
        await new.commit_transaction()

    run(story())
    assert leader.committed_values() == [b"new"]


def test_a_transaction_that_the_coordinator_timed_out_can_be_aborted_and_the_producer_goes_on(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send("t", b"late")
        await producer.flush()
        cluster.time_out("loader")
        with pytest.raises(OncelogError) as caught:
            await producer.commit_transaction()
        assert caught.value.abortable
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send("t", b"next")
        await producer.commit_transaction()

    run(story())
    assert leader.committed_values() == [b"next"]


def test_an_unknown_partition_of_a_transaction_is_reported_within_seconds(
    cluster: Any, run: Any
) -> None:
    cluster.create("t")

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send("t", b"v")
        del cluster.counts["t"]
        started = asyncio.get_running_loop().time()
        with pytest.raises(TransactionAbortableError, match=r"create_topic\('t'"):
            await producer.commit_transaction()
        assert asyncio.get_running_loop().time() - started < 5
        await producer.abort_transaction()

    run(story())


def test_init_waits_until_the_older_transaction_is_aborted(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        crashed = await begun(cluster)
        await crashed.send("t", b"orphan")
        await crashed.flush()
        await begun(cluster)

    run(story())
    assert leader.committed_values() == []
    assert len(cluster.requests(InitProducerIdRequest)) == 3


def test_close_aborts_an_open_transaction(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        async with await begun(cluster) as producer:
            await producer.send("t", b"v")
            await producer.flush()

    run(story())
    assert leader.values() == [b"v"]
    assert leader.committed_values() == []
    assert not cluster.transactions["loader"].is_open


def test_a_block_commits_at_its_end_and_aborts_on_an_exception(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("t", b"kept")
        with contextlib.suppress(KeyError):
            async with producer.transaction():
                await producer.send("t", b"dropped")
                await producer.flush()
                raise KeyError
        async with producer.transaction(token=b"2"):
            await producer.send("t", b"kept too")

    run(story())
    assert leader.committed_values() == [b"kept", b"kept too"]
    assert cluster.transactions["loader"].token == b"2"


def test_a_block_whose_commit_fails_is_aborted_so_that_the_next_can_begin(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", b"bad")
        async with producer.transaction():
            await producer.send("t", b"good")

    run(story())
    assert leader.committed_values() == [b"good"]


@pytest.mark.parametrize("call", ["begin_transaction", "commit_transaction", "abort_transaction"])
def test_a_call_before_init_says_what_to_call(cluster: Any, run: Any, call: str) -> None:
    async def story() -> None:
        with pytest.raises(IllegalStateError, match=r"init_transactions\(\) first"):
            await getattr(cluster.producer("loader"), call)()

    run(story())


def test_a_record_outside_a_transaction_is_refused_with_what_to_call(
    cluster: Any, run: Any
) -> None:
    cluster.create("t")

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        with pytest.raises(IllegalStateError, match=r"begin_transaction\(\) first"):
            await producer.send("t", b"v")

    run(story())


def test_a_producer_without_transactional_id_says_how_to_get_transactions(
    cluster: Any, run: Any
) -> None:
    async def story() -> None:
        with pytest.raises(IllegalStateError, match="transactional_id="):
            await cluster.producer().begin_transaction()

    run(story())


@pytest.mark.parametrize("hangs", [ProduceRequest, EndTxnRequest, MetadataRequest])
@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_the_end_of_a_transaction_waits_no_longer_than_max_block_ms(
    cluster: Any, run: Any, hangs: type, call: str
) -> None:
    """Whatever of it gets no answer, its records included; called again, it goes on."""
    cluster.create("t")

    async def story() -> float:
        producer = await begun(
            cluster, max_block_ms=2_000, request_timeout_ms=30_000, linger_ms=60_000
        )
        await producer.send("t", b"v")
        real = cluster.call

        async def call_of_a_hung_server(actor: str, request: Any, *, timeout_ms: int) -> Any:
            if not isinstance(request, hangs):
                return await real(actor, request, timeout_ms=timeout_ms)
            await asyncio.sleep(timeout_ms / 1_000)
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)

        cluster.call = call_of_a_hung_server
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        with contextlib.suppress(RequestTimedOutError):
            await getattr(producer, call)()
        took_s = loop.time() - started_s
        cluster.call = real
        await asyncio.sleep(60)
        with contextlib.suppress(IllegalStateError):
            await getattr(producer, call)()
        await producer.close()
        return took_s

    assert run(story()) <= 2
    assert cluster.leaders[TopicPartition("t", 0)].committed_values() == (
        [b"v"] if call == "commit_transaction" else []
    )


@pytest.mark.parametrize("timeout_ms", [0, 500, 300_000])
@pytest.mark.parametrize("call", ["flush", "commit_transaction", "abort_transaction"])
def test_a_call_takes_as_long_as_it_may_and_goes_on_when_it_is_repeated(
    cluster: Any, run: Any, call: str, timeout_ms: int
) -> None:
    """Even longer than max_block_ms, if that was asked for."""
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = await begun(cluster, max_block_ms=2_000, request_timeout_ms=100, linger_ms=0)
        await producer.send("t", b"v")
        if call == "abort_transaction":
            await producer.flush()
        real, loop = cluster.call, asyncio.get_running_loop()

        async def call_of_a_hung_server(actor: str, request: Any, *, timeout_ms: int) -> Any:
            if not isinstance(request, ProduceRequest | EndTxnRequest):
                return await real(actor, request, timeout_ms=timeout_ms)
            await asyncio.sleep(timeout_ms / 1_000)
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)

        cluster.call = call_of_a_hung_server
        started_s = loop.time()
        wanted = getattr(producer, call)
        with pytest.raises(OncelogError) as raised:
            await wanted(timeout_ms=timeout_ms)
        took_s = loop.time() - started_s
        if timeout_ms == 300_000 and call != "abort_transaction":
            # The record's own delivery_timeout_ms comes first.
            assert (took_s, raised.value.abortable) == (pytest.approx(120, abs=1), True)
            return
        assert f"{call}() " in str(raised.value)
        assert f"timeout_ms={timeout_ms}" in str(raised.value)
        assert isinstance(raised.value, RequestTimedOutError)
        assert took_s == pytest.approx(timeout_ms / 1_000, abs=2)
        cluster.call = real
        await wanted(timeout_ms=60_000)
        if call == "flush":
            await producer.commit_transaction()

    run(story())
    is_committed = timeout_ms < 300_000 and call != "abort_transaction"
    assert leader.committed_values() == ([b"v"] if is_committed else [])


@pytest.mark.parametrize("timeout_ms", [-1, 2**31, 1.5, True])
def test_a_time_that_is_none_is_refused_and_changes_nothing(
    cluster: Any, run: Any, timeout_ms: Any
) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = await begun(cluster)
        await producer.send("t", b"v")
        for call in (producer.flush, producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(InvalidSettingError, match=r"timeout_ms=.* from 0 to 2147483647"):
                await call(timeout_ms=timeout_ms)
        await producer.commit_transaction()

    run(story())
    assert leader.committed_values() == [b"v"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="nobody can tell who cancels a task")
@pytest.mark.parametrize("was_cancelled_before", [False, True])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_who_is_cancelled_at_the_moment_when_max_block_ms_is_over_hears_of_that(
    cluster: Any, run: Any, is_cancelled: bool, was_cancelled_before: bool
) -> None:
    """Also in a task that has been cancelled before, and went on."""
    cluster.create("t")

    async def story() -> asyncio.Task[Any]:
        producer = await begun(cluster, max_block_ms=2_000, linger_ms=0)
        await producer.send("t", b"v")
        await producer.flush()
        real = cluster.call

        async def call_of_a_hung_server(actor: str, request: Any, *, timeout_ms: int) -> Any:
            if not isinstance(request, EndTxnRequest):
                return await real(actor, request, timeout_ms=timeout_ms)
            await asyncio.sleep(timeout_ms / 1_000)
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)

        cluster.call = call_of_a_hung_server

        async def commit() -> None:
            if was_cancelled_before:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1)
            await producer.commit_transaction()

        task = asyncio.ensure_future(commit())
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        if was_cancelled_before:
            task.cancel()
        if is_cancelled:
            loop.call_later(2, task.cancel)
        await asyncio.wait({task})
        return task

    task = run(story())
    assert task.cancelled() is is_cancelled
    assert is_cancelled or isinstance(task.exception(), RequestTimedOutError)


def test_on_delivery_runs_before_flush_returns_and_in_the_order_of_the_log(
    cluster: Any, run: Any
) -> None:
    cluster.create("t", 2)

    async def story() -> list[tuple[int, int]]:
        told: list[tuple[int, int]] = []

        def tell(metadata: Any, error: Any) -> None:
            assert error is None
            told.append((metadata.partition, metadata.offset))

        async with cluster.producer(None, batch_size=200) as producer:
            for number in range(40):
                await producer.send("t", b"v", partition=number % 2, on_delivery=tell)
            await producer.flush()
            assert len(told) == 40
            assert len(await producer.partitions_for("t")) == 2
        return told

    told = run(story())
    for partition in (0, 1):
        assert [offset for number, offset in told if number == partition] == list(range(20))
