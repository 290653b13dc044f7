"""Transactions that follow each other: the commit of one enrols the partitions of the next."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from oncelog.actors.protocol.messages.group import TxnOffsetCommitRequest
from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import AddPartitionsToTxnRequest, EndTxnRequest
from oncelog.api.batching.partitioner import STAY_BYTES
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.api.transacting.enrolment import TIMEOUT_SHARE
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    OncelogError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortableError,
)
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition

PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1))
AHEAD_MS = 100
TIMEOUT_MIN_MS = TIMEOUT_SHARE * AHEAD_MS
LAPSED_S = 2 * AHEAD_MS / 1_000


async def write(producer: Any, value: bytes, *partitions: int) -> None:
    """One whole transaction."""
    await producer.begin_transaction()
    for partition in partitions or (0, 1):
        await producer.send("t", value, partition=partition)
    await producer.commit_transaction()


async def steady(cluster: Any, **options: Any) -> Any:
    """A producer whose last commit has enrolled its partitions in the next transaction."""
    producer = cluster.producer("loader", **options)
    await producer.init_transactions()
    for value in (b"1", b"2"):
        await write(producer, value)
    return producer


def ends(cluster: Any) -> list[tuple[bool, int]]:
    """Of each end that was asked for: whether it commits, and the epoch."""
    return [(end.committed, end.producer_epoch) for end in cluster.requests(EndTxnRequest)]


def asked_ahead(cluster: Any) -> list[tuple[TopicPartition, ...]]:
    return [end.next_partitions for end in cluster.requests(EndTxnRequest)]


def test_steady_transactions_enrol_nothing_by_calls_of_their_own(cluster: Any, run: Any) -> None:
    leaders = cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        for value in (b"3", b"4", b"5"):
            await write(producer, value)
        await producer.close()

    run(story())
    for leader in leaders:
        assert leader.committed_values() == [b"1", b"2", b"3", b"4", b"5"]
    assert len(cluster.requests(AddPartitionsToTxnRequest)) == 2
    assert asked_ahead(cluster) == [(), *[PARTITIONS] * 4, ()]
    epochs = {request.ticket for request in cluster.requests(ProduceRequest)}
    assert len(epochs) == 5 * 2


async def write_anywhere(producer: Any, *values: bytes) -> int:
    """A transaction of records without keys, a batch each; the partition of the last."""
    await producer.begin_transaction()
    for value in values:
        sent = await producer.send("t", value)
        await producer.flush()
    await producer.commit_transaction()
    return int(sent.result().partition)


def test_transactions_that_follow_each_other_stay_on_a_partition(cluster: Any, run: Any) -> None:
    cluster.create("t", 8)

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        first = {await write_anywhere(producer, b"1", b"2") for _ in range(10)}
        assert len(first) == 1
        assert len(cluster.requests(AddPartitionsToTxnRequest)) == 2
        await asyncio.sleep(LAPSED_S)
        assert await write_anywhere(producer, b"3") not in first
        await producer.close()

    run(story())


def test_a_transaction_that_failed_is_repeated_on_another_partition(cluster: Any, run: Any) -> None:
    cluster.create("t", 8)
    answer = cluster._answer

    async def story() -> None:
        producer = cluster.producer("loader", delivery_timeout_ms=4_000, request_timeout_ms=1_500)
        await producer.init_transactions()
        lost = await write_anywhere(producer, b"1")

        async def without_leader(actor: str, request: Any) -> Any:
            if isinstance(request, ProduceRequest) and request.topic_partition.partition == lost:
                return request.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return await answer(actor, request)

        cluster._answer = without_leader
        with pytest.raises(OncelogError):
            await write_anywhere(producer, b"2")
        await producer.abort_transaction()
        assert await write_anywhere(producer, b"2") != lost
        await producer.close()

    run(story())


def test_they_go_on_to_another_after_some_bytes(cluster: Any, run: Any) -> None:
    cluster.create("t", 8)

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        third = b"x" * (STAY_BYTES // 3 + 1)
        written = [await write_anywhere(producer, third) for _ in range(9)]
        assert written == [one for one in written[::3] for _ in range(3)]
        assert written[0] != written[3] != written[6]
        await producer.close()

    run(story())


def test_tables_stay_and_go_on_too(cluster: Any, run: Any) -> None:
    cluster.create("t", 8)
    third = pa.table({"value": [b"x" * (STAY_BYTES // 3 + 1)]})

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        written = []
        for _ in range(9):
            await producer.begin_transaction()
            sent = await producer.send_arrow("t", third)
            await producer.commit_transaction()
            written += [batch.partition for batch in await sent]
        assert written == [one for one in written[::3] for _ in range(3)]
        assert written[0] != written[3] != written[6]
        await producer.close()

    run(story())


def test_without_transactions_each_batch_goes_on_to_another_partition(
    cluster: Any, run: Any
) -> None:
    cluster.create("t", 8)

    async def story() -> None:
        producer = cluster.producer(None)
        sent = []
        for _ in range(5):
            sent.append(await producer.send("t", b"1"))
            await producer.flush()
        partitions = [one.result().partition for one in sent]
        assert all(one != other for one, other in pairwise(partitions))
        await producer.close()

    run(story())


def test_the_last_of_them_is_ended_by_close(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        await producer.close()

    run(story())
    assert ends(cluster) == [(True, 0), (True, 1), (False, 2)]
    assert not cluster.transactions["loader"].is_open


def test_what_no_transaction_takes_over_is_ended_soon(cluster: Any, run: Any) -> None:
    leaders = cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        await asyncio.sleep(LAPSED_S)
        assert not cluster.transactions["loader"].is_open
        await write(producer, b"3")

    run(story())
    assert ends(cluster) == [(True, 0), (True, 1), (False, 2), (True, 3)]
    for leader in leaders:
        assert leader.committed_values() == [b"1", b"2", b"3"]


def test_what_is_taken_over_is_not_ended_later(cluster: Any, run: Any) -> None:
    (leader, _) = cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        await producer.begin_transaction()
        await producer.send("t", b"3", partition=0)
        await asyncio.sleep(LAPSED_S)
        await producer.commit_transaction()

    run(story())
    assert leader.committed_values() == [b"1", b"2", b"3"]
    assert ends(cluster) == [(True, 0), (True, 1), (True, 2)]


def test_a_transaction_may_begin_while_that_is_ended(cluster: Any, run: Any) -> None:
    leaders = cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        cluster.fault(EndTxnRequest, 0.5)
        await asyncio.sleep(AHEAD_MS / 1_000 + 0.01)
        assert ends(cluster)[-1] == (False, 2)
        await write(producer, b"3")

    run(story())
    assert ends(cluster) == [(True, 0), (True, 1), (False, 2), (True, 3)]
    for leader in leaders:
        assert leader.committed_values() == [b"1", b"2", b"3"]


def test_a_transaction_may_begin_long_before_its_first_record(cluster: Any, run: Any) -> None:
    """As long as nothing is enrolled there is nothing that the coordinator could give up."""
    (leader, _) = cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        await producer.begin_transaction()
        await asyncio.sleep(120)
        assert not cluster.transactions["loader"].is_open
        await producer.send("t", b"3", partition=0)
        await producer.commit_transaction()

    run(story())
    assert leader.committed_values() == [b"1", b"2", b"3"]
    assert ends(cluster) == [(True, 0), (True, 1), (False, 2), (True, 3)]


def test_a_reply_that_comes_late_brings_nothing_that_is_taken_over(cluster: Any, run: Any) -> None:
    """The coordinator has begun the transaction long ago, and may give it up at any time."""
    (leader, _) = cluster.create("t", 2)

    async def story() -> None:
        producer = cluster.producer("loader", transaction_timeout_ms=60_000)
        await producer.init_transactions()
        await write(producer, b"1")
        cluster.fault(EndTxnRequest, "lose reply", 6.0)
        await write(producer, b"2")
        await write(producer, b"3")

    run(story())
    assert leader.committed_values() == [b"1", b"2", b"3"]
    assert ends(cluster) == [(True, 0), (True, 1), (True, 1), (False, 2), (True, 3)]


@pytest.mark.parametrize("delay_s", [0, AHEAD_MS / 1_000 + 0.01])
def test_a_token_alone_is_committed_after_that_is_ended(
    cluster: Any, run: Any, delay_s: float
) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        cluster.fault(EndTxnRequest, 0.5)
        await asyncio.sleep(delay_s)
        await producer.begin_transaction()
        await producer.commit_transaction(token=b"token")
        await write(producer, b"3")

    run(story())
    assert ends(cluster) == [(True, 0), (True, 1), (False, 2), (True, 3), (True, 4)]
    assert cluster.transactions["loader"].token == b"token"


def test_close_does_not_wait_long_for_a_coordinator_that_is_away(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        cluster.fault(EndTxnRequest, *["lose call"] * 1_000)
        started_s = asyncio.get_running_loop().time()
        await producer.close()
        assert asyncio.get_running_loop().time() - started_s < 3

    run(story())
    assert ends(cluster)[-1] == (False, 2)


def test_close_ends_it_after_an_empty_transaction_as_well(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        await producer.begin_transaction()
        await producer.close()

    run(story())
    assert ends(cluster)[-1] == (False, 2)


def test_an_end_that_fails_is_made_up_for_before_anything_is_enrolled(
    cluster: Any, run: Any
) -> None:
    (leader, _) = cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster, max_block_ms=1_000)
        cluster.fault(EndTxnRequest, *["lose call"] * 50)
        await asyncio.sleep(5)
        await producer.begin_transaction()
        await producer.send("t", b"3", partition=0)
        with pytest.raises((TransactionAbortableError, RequestTimedOutError)):
            await producer.commit_transaction()
        cluster.faults.clear()
        await producer.abort_transaction()
        await write(producer, b"4")

    run(story())
    assert leader.committed_values() == [b"1", b"2", b"4"]
    assert leader.values() == [b"1", b"2", b"4"]


def test_a_record_does_not_wait_twice_for_a_coordinator_that_is_away(
    cluster: Any, run: Any
) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster, max_block_ms=10_000)
        cluster.fault(EndTxnRequest, *["lose call"] * 1_000)
        await asyncio.sleep(AHEAD_MS / 1_000 + 0.01)
        started_s = asyncio.get_running_loop().time()
        await producer.begin_transaction()
        await producer.send("t", b"3", partition=0)
        with pytest.raises((TransactionAbortableError, RequestTimedOutError)):
            await producer.commit_transaction()
        assert asyncio.get_running_loop().time() - started_s < 12

    run(story())


def test_a_lost_reply_to_its_end_does_no_harm(cluster: Any, run: Any) -> None:
    (leader, _) = cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        cluster.fault(EndTxnRequest, "lose reply", "lose reply")
        await asyncio.sleep(1)
        await write(producer, b"3")

    run(story())
    assert leader.committed_values() == [b"1", b"2", b"3"]


def test_a_commit_whose_reply_is_lost_still_brings_the_tickets(cluster: Any, run: Any) -> None:
    (leader, _) = cluster.create("t", 2)

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        await write(producer, b"1")
        cluster.fault(EndTxnRequest, "lose reply")
        await write(producer, b"2")
        await write(producer, b"3")

    run(story())
    assert leader.committed_values() == [b"1", b"2", b"3"]
    assert len(cluster.requests(AddPartitionsToTxnRequest)) == 2


def test_another_partition_is_enrolled_as_ever(cluster: Any, run: Any) -> None:
    leaders = cluster.create("t", 3)

    async def story() -> None:
        producer = await steady(cluster)
        await write(producer, b"3", 0, 2)

    run(story())
    assert leaders[2].committed_values() == [b"3"]
    asked = [request.partitions for request in cluster.requests(AddPartitionsToTxnRequest)]
    assert asked[2:] == [(TopicPartition("t", 2),)]


def test_without_tickets_partitions_are_enrolled_again(cluster: Any, run: Any) -> None:
    (leader, _) = cluster.create("t", 2)
    cluster.gives_tickets_ahead = False

    async def story() -> None:
        producer = await steady(cluster)
        await write(producer, b"3")

    run(story())
    assert leader.committed_values() == [b"1", b"2", b"3"]
    assert len(cluster.requests(AddPartitionsToTxnRequest)) == 3


def test_a_coordinator_that_enrols_nothing_is_asked_to_end_nothing(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)
    cluster.enrols_ahead = False

    async def story() -> None:
        producer = await steady(cluster)
        await producer.begin_transaction()
        await producer.commit_transaction()
        await producer.close()

    run(story())
    assert ends(cluster) == [(True, 0), (True, 1)]


@pytest.mark.parametrize("committed", [True, False])
def test_transactions_without_records_take_nothing_over(
    cluster: Any, run: Any, committed: bool
) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        for _ in range(2):
            await producer.begin_transaction()
            await (producer.commit_transaction if committed else producer.abort_transaction)()
        assert ends(cluster) == [(True, 0), (True, 1)]
        await asyncio.sleep(LAPSED_S)

    run(story())
    assert ends(cluster) == [(True, 0), (True, 1), (False, 2)]


def test_an_abort_enrols_nothing_ahead(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        await producer.begin_transaction()
        await producer.send("t", b"3", partition=0)
        await producer.flush()
        await producer.abort_transaction()

    run(story())
    assert asked_ahead(cluster)[-1] == ()
    assert not cluster.transactions["loader"].is_open


@pytest.mark.parametrize(
    ("between_ms", "options", "is_asked"),
    [
        (AHEAD_MS - 5, {}, True),
        (AHEAD_MS + 5, {}, False),
        (0, {"transaction_timeout_ms": TIMEOUT_MIN_MS}, True),
        (0, {"transaction_timeout_ms": TIMEOUT_MIN_MS - 1}, False),
        (AHEAD_MS - 5, {"enrol_ahead_ms": AHEAD_MS - 10}, False),
        (AHEAD_MS + 5, {"enrol_ahead_ms": AHEAD_MS + 10}, True),
        (0, {"enrol_ahead_ms": 0}, False),
    ],
)
def test_only_transactions_that_follow_at_once_are_enrolled_ahead(
    cluster: Any, run: Any, between_ms: int, options: dict[str, int], is_asked: bool
) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        producer = cluster.producer("loader", **options)
        await producer.init_transactions()
        for value in (b"1", b"2"):
            await write(producer, value)
            await asyncio.sleep(between_ms / 1_000)

    run(story())
    assert asked_ahead(cluster)[:2] == [(), PARTITIONS if is_asked else ()]


def test_offsets_are_enrolled_ahead_as_well(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)
    group = ConsumerGroupMetadata(group_id="g")

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        for position in range(1, 5):
            await producer.begin_transaction()
            await producer.send("t", b"v", partition=0)
            await producer.send_offsets_to_transaction({PARTITIONS[0]: position}, group)
            await producer.commit_transaction()
        await producer.close()

    run(story())
    assert cluster.offsets == {PARTITIONS[0]: 4}
    assert len(cluster.requests(TxnOffsetCommitRequest)) == 4
    assert {tp.topic for tp in asked_ahead(cluster)[-2]} == {"t", CONSUMER_OFFSETS_TOPIC}
    last_end = cluster.requests(EndTxnRequest)[1]
    kinds = [request for _, request in cluster.calls]
    later = kinds[kinds.index(last_end) :]
    assert not any(isinstance(request, AddPartitionsToTxnRequest) for request in later)


def test_a_group_that_is_no_longer_used_is_forgotten(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)
    group = ConsumerGroupMetadata(group_id="g")

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        for position in range(1, 7):
            await producer.begin_transaction()
            await producer.send("t", b"v", partition=0)
            if position < 4:
                await producer.send_offsets_to_transaction({PARTITIONS[0]: position}, group)
            await producer.commit_transaction()

    run(story())
    topics = [{tp.topic for tp in asked} for asked in asked_ahead(cluster)]
    assert topics == [set(), *[{"t", CONSUMER_OFFSETS_TOPIC}] * 2, *[{"t"}] * 3]


def test_a_fenced_producer_hears_of_it_when_it_sends(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        cluster.fault(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
        await asyncio.sleep(LAPSED_S)
        cluster.fault(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
        await producer.begin_transaction()
        await producer.send("t", b"3", partition=0)
        with pytest.raises(ProducerFencedError):
            await producer.commit_transaction()

    run(story())


def test_one_that_timed_out_is_aborted_like_any_other(cluster: Any, run: Any) -> None:
    (leader, _) = cluster.create("t", 2)

    async def story() -> None:
        producer = await steady(cluster)
        await producer.begin_transaction()
        cluster.time_out("loader")
        await producer.send("t", b"3", partition=0)
        with pytest.raises(TransactionAbortableError, match="as the coordinator says"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await write(producer, b"4")

    run(story())
    assert leader.committed_values() == [b"1", b"2", b"4"]
