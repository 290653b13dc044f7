"""Stories a client must get right, whatever the network and the coordinator do.

Source: KIP-98, "Idempotent producer guarantees" and "Transactional guarantees"; KIP-890.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    IllegalStateError,
    OncelogError,
    TransactionAbortableError,
)
from oncelog.storage.records.batch import parse_header


async def opened(producer: Any) -> Any:
    await producer.init_transactions()
    await producer.begin_transaction()
    return producer


async def five_batches(producer: Any) -> list[Any]:
    """Each record is larger than half a batch, so that each is a batch."""
    return [await producer.send("t", b"%d" % number + b"." * 60) for number in range(5)]


@pytest.mark.parametrize(
    "fault", ["lose reply", "lose call", ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CORRUPT_MESSAGE]
)
@pytest.mark.parametrize("victim", range(5))
def test_five_on_their_way_land_once_and_in_order_whichever_of_them_fails_first(
    cluster: Any, run: Any, fault: Any, victim: int
) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(ProduceRequest, *[None] * victim, fault)

    async def story() -> None:
        async with cluster.producer(batch_size=64) as producer:
            places = await asyncio.gather(*await five_batches(producer))
            assert [place.offset for place in places] == list(range(5))

    run(story())
    assert [value[:1] for value in leader.values()] == [b"0", b"1", b"2", b"3", b"4"]
    bytes_of: dict[int, set[bytes]] = {}
    for request in cluster.requests(ProduceRequest):
        bytes_of.setdefault(parse_header(request.batch).base_sequence, set()).add(
            bytes(request.batch)
        )
    # A retry repeats the very bytes.
    assert [len(copies) for copies in bytes_of.values()] == [1] * 5


def test_a_transactional_batch_that_expires_leaves_only_abort_and_the_next_begins_at_0(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(ProduceRequest, *["lose call"] * 50)
    timeouts = {"request_timeout_ms": 500, "delivery_timeout_ms": 1_000}

    async def story() -> None:
        producer = await opened(cluster.producer("loader", **timeouts))
        await producer.send("t", b"lost")
        with pytest.raises(TransactionAbortableError, match=r"abort_transaction\(\)"):
            await producer.commit_transaction()
        for refused in (
            producer.begin_transaction,
            producer.commit_transaction,
            lambda: producer.send("t", b"more"),
        ):
            with pytest.raises(TransactionAbortableError):
                await refused()
        cluster.faults.clear()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"kept")

    run(story())
    assert leader.committed_values() == [b"kept"]
    (header,) = leader.headers
    assert (header.producer_epoch, header.base_sequence) == (1, 0)


def test_a_stale_epoch_at_a_leader_is_abortable_and_the_producer_goes_on(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_PRODUCER_EPOCH)

    async def story() -> None:
        producer = await opened(cluster.producer("loader"))
        await producer.send("t", b"stale")
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send("t", b"good")
        await producer.commit_transaction()

    run(story())
    assert leader.committed_values() == [b"good"]


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize(
    "request_type", [InitProducerIdRequest, AddPartitionsToTxnRequest, EndTxnRequest]
)
def test_a_stale_epoch_at_the_coordinator_is_fatal(
    cluster: Any, run: Any, request_type: type, code: ErrorCode
) -> None:
    cluster.create("t")
    cluster.fault(request_type, code)

    async def story() -> None:
        producer = cluster.producer("loader")

        async def transact() -> None:
            await opened(producer)
            await producer.send("t", b"v")
            await producer.commit_transaction()

        with pytest.raises(OncelogError) as failure:
            await transact()
        assert failure.value.code is code
        for refused in (producer.abort_transaction, producer.begin_transaction, producer.flush):
            with pytest.raises(OncelogError, match="close it and make a new one"):
                await refused()
        await producer.close()

    run(story())


def test_a_batch_waits_for_its_enrolment_and_the_commit_for_every_batch(
    cluster: Any, run: Any
) -> None:
    cluster.create("t")
    cluster.fault(AddPartitionsToTxnRequest, 5.0)
    cluster.fault(ProduceRequest, 7.0)

    async def story() -> None:
        producer = await opened(cluster.producer("loader"))
        await producer.send("t", b"v")
        committing = asyncio.ensure_future(producer.commit_transaction())
        await asyncio.sleep(4)
        assert not cluster.requests(ProduceRequest)
        with pytest.raises(IllegalStateError, match=r"commit_transaction\(\) again"):
            await producer.send("t", b"late")
        await asyncio.sleep(6)
        assert cluster.requests(ProduceRequest)
        assert not cluster.requests(EndTxnRequest)
        assert await committing

    run(story())
    assert [request.committed for request in cluster.requests(EndTxnRequest)] == [True]


def test_a_lost_answer_to_an_end_is_asked_for_again_with_the_same_epoch(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(EndTxnRequest, "lose reply", ErrorCode.NOT_COORDINATOR)

    async def story() -> None:
        producer = await opened(cluster.producer("loader"))
        await producer.send("t", b"v")
        await producer.commit_transaction()
        await producer.begin_transaction()

    run(story())
    requests = cluster.requests(EndTxnRequest)
    assert len(requests) == 3
    assert len(set(requests)) == 1
    assert leader.committed_values() == [b"v"]
