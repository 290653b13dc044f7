"""What a producer without transactions promises, in memory and in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.partition import ProduceReply, ProduceRequest
from oncelog.actors.protocol.messages.transaction import InitProducerIdRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    MessageTooLargeError,
    OncelogError,
    OutOfOrderSequenceNumberError,
    RequestTimedOutError,
    TransactionAbortableError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import parse_header


async def send_batches(producer: Any, count: int, *, partition: int = 0) -> list[Any]:
    """Send ``count`` records, each larger than half a batch, so that each is a batch."""
    return [
        await producer.send("t", b"%d" % number + b"." * 60, partition=partition)
        for number in range(count)
    ]


def numbers(values: list[bytes | None]) -> list[int]:
    return [int((value or b"").rstrip(b".")) for value in values]


def sequences(cluster: Any) -> list[int]:
    return [
        parse_header(request.batch).base_sequence for request in cluster.requests(ProduceRequest)
    ]


def test_a_record_is_acknowledged_with_its_place(cluster: Any, run: Any) -> None:
    cluster.create("t", 3)

    async def story() -> None:
        async with cluster.producer() as producer:
            future = await producer.send("t", b"v", b"k", timestamp_ms=7, partition=2)
            metadata = await future
        assert (metadata.topic, metadata.partition, metadata.offset) == ("t", 2, 0)
        assert metadata.timestamp_ms == 7

    run(story())
    assert cluster.leaders[TopicPartition("t", 2)].values() == [b"v"]


def test_the_producer_id_is_fetched_once_and_only_with_the_first_record(
    cluster: Any, run: Any
) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        async with cluster.producer() as producer:
            assert not cluster.requests(InitProducerIdRequest)
            for number in range(4):
                await (await producer.send("t", b"v", partition=number % 2))

    run(story())
    requests = cluster.requests(InitProducerIdRequest)
    assert [request.transactional_id for request in requests] == [None]


def test_records_within_the_linger_time_share_a_batch(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> None:
        async with cluster.producer(linger_ms=50) as producer:
            futures = [await producer.send("t", b"%d" % number) for number in range(10)]
            metadata = await asyncio.gather(*futures)
            assert [place.offset for place in metadata] == list(range(10))

    run(story())
    assert len(cluster.requests(ProduceRequest)) == 1


def test_a_record_that_fills_a_batch_which_had_lingered_begins_the_next_linger_time(
    cluster: Any, run: Any
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, 0.3)

    async def story() -> None:
        settings = {"batch_size": 200, "max_in_flight_requests_per_connection": 1}
        async with cluster.producer(**settings) as producer:
            on_its_way = await producer.send("t", b"0", partition=0)
            await asyncio.sleep(0.05)
            has_lingered = await producer.send("t", b"1", partition=0)
            await asyncio.sleep(0.05)
            # Does not fit behind the one before: it closes that batch and opens another.
            large = await producer.send("t", b"2" + b"." * 175, partition=0)
            done, _ = await asyncio.wait({on_its_way, has_lingered, large}, timeout=1.0)
            assert len(done) == 3

    run(story())


def test_at_most_five_batches_are_on_their_way(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, *([1.0] * 8))

    async def story() -> None:
        async with cluster.producer(batch_size=64) as producer:
            await send_batches(producer, 8)
            await asyncio.sleep(0.5)
            assert len(cluster.requests(ProduceRequest)) == 5
            await producer.flush()

    run(story())
    assert numbers(cluster.leaders[TopicPartition("t", 0)].values()) == list(range(8))


def test_a_batch_whose_answer_is_missed_late_is_still_known_to_its_leader(
    cluster: Any, run: Any
) -> None:
    """1 Batch 0 is appended, its reply lost. 2 Batches 1 to 4 are acknowledged. 3 Before batch 0 is
    known to need a retry no sixth batch may go: the leader would forget batch 0, refuse the retry,
    and it would land again under the next epoch."""
    cluster.create("t")
    cluster.fault(ProduceRequest, "lose reply late")

    async def story() -> None:
        async with cluster.producer(batch_size=64) as producer:
            futures = await send_batches(producer, 12)
            await asyncio.wait(futures, timeout=0.2)
            assert sequences(cluster) == [0, 1, 2, 3, 4]
            places = await asyncio.gather(*futures)
            assert [place.offset for place in places] == list(range(12))

    run(story())
    assert numbers(cluster.leaders[TopicPartition("t", 0)].values()) == list(range(12))


@pytest.mark.parametrize("fault", ["lose call", "lose reply", ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_failed_call_is_repeated_with_the_same_bytes_and_lands_once_in_order(
    cluster: Any, run: Any, fault: Any
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, fault, None, fault, None, "lose reply", fault, fault)

    async def story() -> None:
        async with cluster.producer(batch_size=64) as producer:
            futures = await send_batches(producer, 12)
            metadata = await asyncio.gather(*futures)
            assert [place.offset for place in metadata] == list(range(12))

    run(story())
    assert numbers(cluster.leaders[TopicPartition("t", 0)].values()) == list(range(12))
    batches: dict[int, set[bytes]] = {}
    for request in cluster.requests(ProduceRequest):
        copies = batches.setdefault(parse_header(request.batch).base_sequence, set())
        copies.add(bytes(request.batch))
    assert {len(variants) for variants in batches.values()} == {1}


def test_new_batches_wait_while_one_is_being_retried(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, "lose call")

    async def story() -> None:
        async with cluster.producer(batch_size=64, linger_ms=0) as producer:
            first = await send_batches(producer, 1)
            await asyncio.sleep(0.01)
            more = await send_batches(producer, 3)
            await asyncio.sleep(0.03)
            assert sequences(cluster) == [0]
            await asyncio.gather(*first, *more)

    run(story())
    assert sequences(cluster) == [0, 0, 1, 2, 3]


def test_a_stale_leader_is_looked_up_again(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def story() -> None:
        async with cluster.producer() as producer:
            await (await producer.send("t", b"v"))

    run(story())
    asked = [request for request in cluster.requests(MetadataRequest) if "t" in request.topics]
    assert len(asked) == 2


def test_a_batch_not_acknowledged_in_time_fails_and_later_ones_go_on_under_a_new_epoch(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        options = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 500}
        async with cluster.producer(**options) as producer:
            await (await producer.send("t", b"0"))
            cluster.fault(ProduceRequest, *(["lose call"] * 20))
            lost = await producer.send("t", b"1")
            with pytest.raises(RequestTimedOutError, match="delivery_timeout_ms=1000"):
                await lost
            cluster.faults.clear()
            assert (await (await producer.send("t", b"2"))).offset == 1

    run(story())
    assert leader.values() == [b"0", b"2"]
    assert [(header.producer_epoch, header.base_sequence) for header in leader.headers] == [
        (0, 0),
        (1, 0),
    ]


def test_a_refused_batch_fails_alone_and_those_behind_it_land_under_a_new_epoch(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(ProduceRequest, None, ErrorCode.INVALID_RECORD)

    async def story() -> list[Any]:
        async with cluster.producer(batch_size=64) as producer:
            futures = await send_batches(producer, 5)
            return await asyncio.gather(*futures, return_exceptions=True)

    results = run(story())
    landed = [n for n, result in enumerate(results) if not isinstance(result, OncelogError)]
    assert len(landed) == 4
    assert numbers(leader.values()) == landed
    assert {header.producer_epoch for header in leader.headers} == {0, 1}


def test_a_batch_behind_one_of_unknown_outcome_is_never_sent_under_another_epoch(
    cluster: Any, run: Any
) -> None:
    # 0.00 the first batch is lost for good, the second arrives early and is parked
    # 1.00 the first expires; nobody knows whether it will still arrive
    # then the second is refused by the leader: sent again it could land twice, so it fails
    (leader,) = cluster.create("t")

    async def answer(actor: str, request: Any, *, timeout_ms: int) -> Any:
        if isinstance(request, ProduceRequest):
            header = parse_header(request.batch)
            if (header.producer_epoch, header.base_sequence) == (0, 0):
                cluster.calls.append((actor, request))
                return request.failed(ErrorCode.NETWORK_EXCEPTION)
        return await type(cluster).call(cluster, actor, request, timeout_ms=timeout_ms)

    cluster_call, cluster.call = cluster.call, answer

    async def story() -> None:
        options = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 500, "batch_size": 64}
        async with cluster.producer(**options) as producer:
            first = await producer.send("t", b"0" + b"." * 60)
            await asyncio.sleep(0.5)
            second = await producer.send("t", b"1" + b"." * 60)
            assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], Exception)
            await asyncio.gather(second, return_exceptions=True)
            assert (await (await producer.send("t", b"2"))).offset == len(leader.records) - 1

    run(story())
    cluster.call = cluster_call
    assert numbers(leader.values())[-1] == 2
    assert len(leader.values()) == len(set(leader.values()))


@pytest.mark.parametrize(
    ("fault", "is_twice_possible"),
    [
        ("lose reply", True),
        # What a leader also answers when it loses its place, or its disk, after the append.
        ((ErrorCode.NOT_LEADER_OR_FOLLOWER,), True),
        ((ErrorCode.KAFKA_STORAGE_ERROR,), True),
        ((ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,), True),
        (ErrorCode.NOT_ENOUGH_REPLICAS, False),
        (None, False),
    ],
)
def test_a_batch_that_may_be_in_the_log_is_never_sent_under_another_epoch(
    cluster: Any, run: Any, *, fault: Any, is_twice_possible: bool
) -> None:
    # 1. The batch is appended, the answer is lost (or: an answer says that it is not appended).
    # 2. The leader forgets the producer's batches and expects a later sequence.
    # 3. The retry is refused. Under a new epoch the leader would take it, a second time.
    (leader,) = cluster.create("t")

    async def story() -> None:
        async with cluster.producer() as producer:
            await (await producer.send("t", b"first"))
            cluster.fault(ProduceRequest, fault)
            future = await producer.send("t", b"second")
            await asyncio.sleep(0.05)
            (entry,) = leader.producers.values()
            entry.window.clear()
            entry.next_sequence = 7
            if fault is None:
                await future
                future = await producer.send("t", b"third")
            if is_twice_possible:
                with pytest.raises(OutOfOrderSequenceNumberError, match="may or may not be"):
                    await future
            else:
                await future
            await (await producer.send("t", b"last"))

    run(story())
    values = leader.values()
    assert len(values) == len(set(values))
    assert values[:2] == [b"first", b"second"]
    assert values[-1] == b"last"


def test_a_batch_that_is_sent_again_waits_until_those_before_it_are_final(
    cluster: Any, run: Any
) -> None:
    """1. Two batches are refused. 2. The first is sent again, and its answer takes long. 3. The
    second is not sent again before it.
    """
    (leader,) = cluster.create("t")
    refused = ErrorCode.NOT_ENOUGH_REPLICAS
    cluster.fault(ProduceRequest, refused, refused, 5.0)

    async def story() -> None:
        async with cluster.producer(batch_size=64) as producer:
            futures = await send_batches(producer, 2)
            await asyncio.sleep(3)
            assert sequences(cluster) == [0, 1, 0]
            await asyncio.gather(*futures)

    run(story())
    assert sequences(cluster) == [0, 1, 0, 1]
    assert numbers(leader.values()) == [0, 1]


@pytest.mark.parametrize("transactional_id", [None, "loader"])
def test_a_bug_of_ours_fails_what_is_held_and_what_comes_later(
    cluster: Any, run: Any, transactional_id: str | None
) -> None:
    cluster.create("t")
    reach = cluster.call

    async def call(actor: str, request: Any, *, timeout_ms: int) -> Any:
        if isinstance(request, ProduceRequest):
            raise ZeroDivisionError
        return await reach(actor, request, timeout_ms=timeout_ms)

    cluster.call = call

    async def story() -> None:
        producer = cluster.producer(transactional_id)
        if transactional_id is not None:
            await producer.init_transactions()
            await producer.begin_transaction()
        with pytest.raises(UnknownServerError, match="ZeroDivisionError"):
            await (await producer.send("t", b"v"))
        with pytest.raises(UnknownServerError, match="ZeroDivisionError"):
            await producer.send("t", b"v")
        if transactional_id is not None:
            with pytest.raises(UnknownServerError, match="ZeroDivisionError"):
                await producer.commit_transaction()
        await producer.close()

    run(story())


def test_a_batch_too_large_for_its_topic_is_sent_in_parts(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")
    leader.message_max_bytes = 500

    async def story() -> None:
        async with cluster.producer() as producer:
            futures = [await producer.send("t", b"%d" % n + b"." * 90) for n in range(16)]
            metadata = await asyncio.gather(*futures)
            assert [place.offset for place in metadata] == list(range(16))

    run(story())
    assert numbers(leader.values()) == list(range(16))
    assert {header.producer_epoch for header in leader.headers} == {0}


def test_a_record_too_large_for_its_topic_fails(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")
    leader.message_max_bytes = 200

    async def story() -> None:
        async with cluster.producer() as producer:
            with pytest.raises(MessageTooLargeError):
                await (await producer.send("t", b"." * 300))
            await (await producer.send("t", b"small"))

    run(story())
    assert leader.values() == [b"small"]


def test_a_record_above_max_request_size_is_refused_at_once(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> None:
        async with cluster.producer(max_request_size=100) as producer:
            with pytest.raises(MessageTooLargeError, match="max_request_size=100"):
                await producer.send("t", b"." * 100)

    run(story())


def test_a_missing_topic_is_named_within_seconds_with_how_to_create_it(
    cluster: Any, run: Any
) -> None:
    async def story() -> None:
        async with cluster.producer() as producer:
            started = asyncio.get_running_loop().time()
            with pytest.raises(UnknownTopicOrPartitionError, match=r"create_topic\('nowhere'"):
                await producer.send("nowhere", b"v")
            assert asyncio.get_running_loop().time() - started < 5

    run(story())


def test_a_topic_that_appears_while_send_waits_is_found(cluster: Any, run: Any) -> None:
    async def story() -> None:
        async with cluster.producer() as producer:
            asyncio.get_running_loop().call_later(1, cluster.create, "t")
            await (await producer.send("t", b"v"))

    run(story())
    assert cluster.leaders[TopicPartition("t", 0)].values() == [b"v"]


def test_a_deleted_topic_fails_its_records_within_seconds(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> None:
        async with cluster.producer() as producer:
            await (await producer.send("t", b"v"))
            cluster.leaders.clear()
            cluster.counts.clear()
            started = asyncio.get_running_loop().time()
            with pytest.raises(UnknownTopicOrPartitionError, match="'t'"):
                await (await producer.send("t", b"w"))
            assert asyncio.get_running_loop().time() - started < 8

    run(story())


def test_an_internal_topic_is_refused(cluster: Any, run: Any) -> None:
    async def story() -> None:
        async with cluster.producer() as producer:
            with pytest.raises(InvalidTopicError, match="__consumer_offsets"):
                await producer.send("__consumer_offsets", b"v")

    run(story())


def test_a_partition_that_does_not_exist_is_refused(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        async with cluster.producer() as producer:
            with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 1, not 2"):
                await producer.send("t", b"v", partition=2)

    run(story())


def test_a_full_buffer_makes_send_wait_and_then_fail(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, 2.0)

    async def story() -> None:
        options = {"buffer_memory": 100, "max_block_ms": 500, "linger_ms": 0}
        async with cluster.producer(**options) as producer:
            first = await producer.send("t", b"." * 100)
            with pytest.raises(RequestTimedOutError, match="buffer_memory=100"):
                await producer.send("t", b"v")
            await first
            await (await producer.send("t", b"v"))

    run(story())


def test_close_delivers_what_was_sent_and_then_refuses_more(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = cluster.producer(linger_ms=1_000)
        future = await producer.send("t", b"v")
        await producer.close()
        assert future.done() or (await future).offset == 0
        with pytest.raises(ClientClosedError):
            await producer.send("t", b"w")

    run(story())
    assert leader.values() == [b"v"]


def test_close_fails_what_is_not_delivered_in_time(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, 100.0)

    async def story() -> None:
        producer = cluster.producer()
        future = await producer.send("t", b"v")
        await producer.close(timeout_ms=1_000)
        with pytest.raises(ClientClosedError):
            await future

    run(story())


def test_two_refusals_in_one_turn_leave_a_producer_that_can_abort(cluster: Any, run: Any) -> None:
    """1. Batches for two partitions of a transaction are on their way. 2. The first is refused: the
    transaction is spoilt and the other call is given up. 3. Its answer, a refusal, arrives all the
    same. 4. The producer aborts, and the next transaction commits.
    """
    leaders = cluster.create("t", 2)
    begun = asyncio.Event()
    late: list[ProduceRequest] = []

    async def refuse(request: ProduceRequest) -> Any:
        del leaders[0].produce
        await begun.wait()
        return request.failed(ErrorCode.INVALID_PRODUCER_EPOCH)

    async def refuse_though_cancelled(request: ProduceRequest) -> Any:
        del leaders[1].produce
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            late.append(request)
        return request.failed(ErrorCode.INVALID_PRODUCER_EPOCH)

    leaders[0].produce = refuse
    leaders[1].produce = refuse_though_cancelled

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        await producer.begin_transaction()
        for number in range(2):
            await producer.send("t", b"lost", partition=number)
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await producer.begin_transaction()
        for number in range(2):
            await producer.send("t", b"kept", partition=number)
        assert await producer.commit_transaction() is True

    run(story())
    assert len(late) == 1
    assert [leader.committed_values() for leader in leaders] == [[b"kept"], [b"kept"]]


@pytest.mark.parametrize("transactional_id", [None, "loader"])
def test_a_record_that_is_refused_is_told_from_its_neighbours(
    cluster: Any, run: Any, transactional_id: str | None
) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(
        ProduceRequest,
        ProduceReply(
            error=ErrorCode.INVALID_TIMESTAMP,
            detail="record 1 of 3: timestamp 7 is too old",
            refused_records=(1,),
        ),
    )

    async def story() -> None:
        async with cluster.producer(transactional_id) as producer:
            if transactional_id:
                await producer.init_transactions()
                await producer.begin_transaction()
            sent = [await producer.send("t", b"%d" % number) for number in range(3)]
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
            kinds = [InvalidRecordError, InvalidTimestampError, InvalidRecordError]
            assert [type(outcome) for outcome in outcomes] == kinds
            assert str(outcomes[1]).startswith("record 1 of 3: timestamp 7 is too old")
            assert "nothing is wrong with this record" in str(outcomes[0])
            assert "record 1 of 3: timestamp 7 is too old" in str(outcomes[0])
            if transactional_id:
                await producer.abort_transaction()
                await producer.begin_transaction()
            await producer.send("t", b"next")
            await producer.flush()

    run(story())
    assert leader.values() == [b"next"]
