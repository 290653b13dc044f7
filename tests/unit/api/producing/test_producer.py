"""The synchronous producer: threads on one side, its event loop on the other."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import zlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deadlines import DEADLINE_S

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.api.batching.delivery import RecordFuture
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.producer import Producer
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.api.session.event_loop import LoopThread
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTopicError,
    MessageTooLargeError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

GROUP = ConsumerGroupMetadata(group_id="billing")


@pytest.fixture
def make(cluster: Any) -> Iterator[Callable[..., Producer]]:
    """Makes producers on one loop thread."""
    loop_thread = LoopThread()

    def producer(transactional_id: str | None = None, **options: Any) -> Producer:
        settings = ProducerSettings(transactional_id=transactional_id, **options)
        return Producer(cluster.router(), loop_thread, settings, random=Random(5))

    yield producer
    loop_thread.close()


def test_a_future_waits_for_its_record(cluster: Any, make: Callable[..., Producer]) -> None:
    cluster.create("t")
    with make() as producer:
        assert producer.send("t", b"a", b"k").result(DEADLINE_S).offset == 0
        assert producer.send("t", b"b", headers=[("h", None)]).result(DEADLINE_S).offset == 1
    (_, _, first), (_, _, second) = cluster.leaders[TopicPartition("t", 0)].records
    assert (first.key, first.value) == (b"k", b"a")
    assert second.headers == (("h", None),)


def test_at_its_end_a_producer_delivers_what_it_holds_and_takes_no_more(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    (leader,) = cluster.create("t")
    with make(linger_ms=30_000) as producer:
        future = producer.send("t", b"a")
    assert (future.result(0).offset, leader.values()) == (0, [b"a"])
    with pytest.raises(ClientClosedError):
        producer.send("t", b"b")


def test_records_of_many_threads_all_land_once(cluster: Any, make: Callable[..., Producer]) -> None:
    leaders = cluster.create("t", 3)
    with make(batch_size=500, buffer_memory=5_000) as producer:

        def work(name: int) -> None:
            for number in range(100):
                producer.send("t", b"%d/%d" % (name, number), b"%d" % name)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert producer.metrics()["record_acknowledged_total"] == 400
        assert producer.metrics()["buffered_bytes"] == 0
    values = [value for leader in leaders for value in leader.values()]
    assert len(values) == 400
    for name in range(4):
        own = [value for value in values if value.startswith(b"%d/" % name)]
        assert own == [b"%d/%d" % (name, number) for number in range(100)]


def test_a_transaction_from_threads(cluster: Any, make: Callable[..., Producer]) -> None:
    (leader,) = cluster.create("t")
    position = TopicPartition("s", 0)
    with make("loader") as producer:
        assert producer.init_transactions() is None
        with producer.transaction(token=b"1"):
            future = producer.send("t", b"v")
            producer.send_offsets_to_transaction(
                {position: OffsetAndMetadata(offset=9, metadata="m")}, GROUP
            )
        assert future.done()
    assert leader.committed_values() == [b"v"]
    assert cluster.offsets == {position: 9}


def test_a_failed_record_raises_from_its_future(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)
    with make() as producer:
        future = producer.send("t", b"v")
        assert isinstance(future.exception(5), InvalidRecordError)
        with pytest.raises(InvalidRecordError, match="partition t-0"):
            future.result()


def test_flush_raises_what_spoilt_the_transaction(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)
    producer = make("loader")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"v")
    with pytest.raises(TransactionAbortableError):
        producer.flush()
    producer.close()


def test_record_futures_work_with_the_tools_of_concurrent_futures(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    cluster.create("t")
    with make() as producer:
        futures = [producer.send("t", b"%d" % number) for number in range(5)]
        done, waiting = concurrent.futures.wait(futures, timeout=DEADLINE_S)
        assert (len(done), len(waiting)) == (5, 0)
        assert len(list(concurrent.futures.as_completed(futures, timeout=DEADLINE_S))) == 5
        called: list[int] = []
        futures[3].add_done_callback(lambda future: called.append(future.result().offset))
        assert called == [3]

        async def wrapped() -> int:
            return (await asyncio.wrap_future(producer.send("t", b"v"))).offset

        assert asyncio.run(wrapped()) == 5


def test_a_table_goes_to_the_partitions_of_its_keys_and_one_future_tells_where(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    leaders = cluster.create("t", 3)
    table = pa.table(
        {
            "key": [b"a", b"b", None, b"a", b"c"] * 20,
            "value": [b"%d" % number for number in range(100)],
        }
    )
    with make() as producer:
        placed = producer.send_arrow("t", table).result(DEADLINE_S)
        by_record = producer.send("t", b"x", b"a").result(DEADLINE_S)
    assert sum(batch.record_count for batch in placed) == 100
    assert sorted(int(v) for leader in leaders for v in leader.values()[:100] if v != b"x") == list(
        range(100)
    )
    keys = {record.key for _, _, record in leaders[by_record.partition].records}
    assert b"a" in keys


def test_a_table_that_is_larger_than_the_buffer_is_sent_in_pieces(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    (leader,) = cluster.create("t")
    table = pa.table({"value": [b"%d" % number + b"." * 1_000 for number in range(500)]})
    with make(buffer_memory=50_000, max_request_size=20_000) as producer:
        placed = producer.send_arrow("t", table).result(DEADLINE_S)
    assert len(placed) > 20
    assert [int(value.rstrip(b".")) for value in leader.values()] == list(range(500))


def test_a_table_in_a_transaction_commits_with_it(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    (leader,) = cluster.create("t")
    with make("loader") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"first")
            producer.send_arrow("t", pa.record_batch({"value": ["second"]}))
    assert leader.committed_values() == [b"first", b"second"]


def test_a_table_too_large_for_its_topic_is_split(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    (leader,) = cluster.create("t")
    leader.message_max_bytes = 2_000
    with make() as producer:
        table = pa.table({"value": [b"%d" % number + b"." * 100 for number in range(64)]})
        placed = producer.send_arrow("t", table).result(DEADLINE_S)
    assert len(placed) > 1
    assert [batch.base_offset for batch in placed] == sorted(b.base_offset for b in placed)
    assert [int(value.rstrip(b".")) for value in leader.values()] == list(range(64))


def test_a_failed_batch_fails_the_future_of_the_table(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)
    with make() as producer, pytest.raises(InvalidRecordError):
        producer.send_arrow("t", pa.table({"value": [b"v"]})).result(DEADLINE_S)


def test_a_row_that_is_too_large_is_named_and_nothing_is_sent(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    (leader,) = cluster.create("t")
    with make(max_request_size=1_000) as producer:
        with pytest.raises(MessageTooLargeError, match="row 1 takes"):
            producer.send_arrow("t", pa.table({"value": [b"ok", b"." * 2_000]}))
        producer.flush()
    assert leader.values() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": "text"}, r"value must be bytes or None, not str; encode it"),
        ({"key": 7}, r"key must be bytes or None, not int"),
        ({"headers": [("h", "text")]}, r"header 'h' must be bytes"),
        ({"headers": ["h"]}, r"headers must be pairs"),
        ({"partition": "0"}, r"partition must be an int"),
        ({"timestamp_ms": 1.5}, r"timestamp_ms must be an int"),
    ],
)
def test_a_wrong_type_is_named(
    cluster: Any, make: Callable[..., Producer], arguments: dict[str, Any], message: str
) -> None:
    cluster.create("t")
    with make() as producer, pytest.raises(TypeError, match=message):
        producer.send("t", **arguments)


def test_a_topic_that_is_no_text_is_named(make: Callable[..., Producer]) -> None:
    with make() as producer, pytest.raises(TypeError, match="topic must be str, not bytes"):
        producer.send(b"t", b"v")  # type: ignore[arg-type]


def test_bytes_like_values_are_copied(cluster: Any, make: Callable[..., Producer]) -> None:
    (leader,) = cluster.create("t")
    value = bytearray(b"before")
    with make() as producer:
        future = producer.send("t", value)
        value[:] = b"after!"
        future.result(DEADLINE_S)
    assert leader.values() == [b"before"]


@pytest.mark.parametrize("offset", [-1, True, "7"])
def test_an_offset_that_is_none_is_refused(make: Callable[..., Producer], offset: Any) -> None:
    producer = make("loader")
    producer.init_transactions()
    producer.begin_transaction()
    with pytest.raises((TypeError, InvalidRequestError), match=r"offset.* of s-0"):
        producer.send_offsets_to_transaction({TopicPartition("s", 0): offset}, GROUP)
    producer.close()


def test_a_closed_producer_refuses_every_call(cluster: Any, make: Callable[..., Producer]) -> None:
    cluster.create("t")
    producer = make("loader")
    producer.init_transactions()
    producer.close()
    producer.close()
    for call in (
        producer.begin_transaction,
        producer.commit_transaction,
        lambda: producer.send("t", b"v"),
        lambda: producer.send_arrow("t", pa.table({"value": [b"v"]})),
    ):
        with pytest.raises(ClientClosedError):
            call()


def test_a_producer_that_is_forgotten_delivers_what_it_holds(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    (leader,) = cluster.create("t")
    producer = make(linger_ms=30_000)
    future = producer.send("t", b"a")
    with pytest.warns(ResourceWarning, match=r"a Producer made at .*test_producer.py"):
        del producer
    assert future.result(DEADLINE_S).offset == 0
    assert leader.values() == [b"a"]


def test_a_block_ends_with_the_failure_of_a_record_that_nobody_asked_about(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)
    producer = make()
    with pytest.raises(InvalidRecordError), producer:
        producer.send("t", b"lost")
    producer.close()  # Raised once, and only by the block.


def test_an_error_that_leaves_a_block_matters_more_than_a_record_that_failed(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)

    def fail() -> None:
        with make() as producer:
            producer.send("t", b"lost")
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_a_block_ends_in_silence_once_the_failure_was_seen(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)
    with make() as producer:
        future = producer.send("t", b"lost")
        with pytest.raises(InvalidRecordError):
            future.result(DEADLINE_S)


def test_a_block_of_an_asyncio_producer_ends_with_the_failure_too(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)

    async def story() -> None:
        async with cluster.producer() as producer:
            await producer.send("t", b"lost")

    with pytest.raises(InvalidRecordError):
        run(story())


def test_batches_are_compressed_at_the_level_that_was_set(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    value = " ".join(str(number * number) for number in range(20_000)).encode()
    for topic, level in (("fast", 1), ("thorough", 19)):
        (leader,) = cluster.create(topic)
        with make(compression_type="zstd", compression_level=level) as producer:
            producer.send(topic, value)
        assert leader.values() == [value]
        if level == 1:
            fast_bytes = producer.metrics()["byte_total"]
    assert producer.metrics()["byte_total"] < fast_bytes


def test_a_partitioner_of_the_application_is_asked_for_each_record(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    leaders = cluster.create("t", 3)

    def by_first_byte(topic: str, key: bytes | None, partition_count: int) -> int | None:
        assert (topic, partition_count) == ("t", 3)
        return key[0] - ord("0") if key else None

    with make("loader", partitioner=by_first_byte) as producer:
        producer.init_transactions()
        with producer.transaction():
            for key in (b"2", b"0", b"2"):
                producer.send("t", b"v" + key, key)
            producer.send("t", b"given", b"2", partition=1)
            placed = producer.send("t", b"anywhere").result(DEADLINE_S)
            assert 0 <= placed.partition < 3
        keyed = [[v for v in leader.values() if v != b"anywhere"] for leader in leaders]
        assert keyed == [[b"v0"], [b"given"], [b"v2", b"v2"]]
        producer.begin_transaction()
        with pytest.raises(
            ValueError, match=r"partitioner .*by_first_byte for topic 't' returned 3; give 0"
        ):
            producer.send("t", b"v", b"3")
        with pytest.raises(TransactionAbortableError, match="send\\(\\) rejected a record"):
            producer.commit_transaction()
        producer.abort_transaction()


def test_keys_of_a_librdkafka_program_stay_where_they_were(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    cluster.create("t", 7)
    with make(partitioner="consistent_random") as producer:
        for key in (b"UA", b"DL", b"AA"):
            for headers in ((), [("h", b"1")]):  # the compiled path, then the other one
                future = producer.send("t", b"v", key, headers=headers)
                assert future.result(DEADLINE_S).partition == zlib.crc32(key) % 7
        table = pa.table({"value": [b"v"], "key": [b"UA"]})
        (batch,) = producer.send_arrow("t", table).result(DEADLINE_S)
        assert batch.partition == zlib.crc32(b"UA") % 7


def test_each_record_may_have_somebody_who_is_told_of_its_outcome(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    cluster.create("t")
    told: list[tuple[Any, Any, str]] = []

    def tell(metadata: Any, error: Any) -> None:
        told.append((metadata, error, threading.current_thread().name))
        raise RuntimeError("a callback's own failure stops nothing")

    with make(linger_ms=0) as producer:
        producer.send("t", b"a", on_delivery=tell)
        producer.flush()
        assert [(m.offset, e) for m, e, _ in told] == [(0, None)]
        assert told[0][2] != threading.current_thread().name
        cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)
        producer.send("t", b"b", on_delivery=tell)
        producer.flush()  # what it was told of is not raised again
        assert told[1][0] is None
        assert isinstance(told[1][1], InvalidRecordError)
        with pytest.raises(TypeError, match="on_delivery must be a callable or None, not str"):
            producer.send("t", b"c", on_delivery="tell")  # type: ignore[arg-type]
        with pytest.raises(MessageTooLargeError):
            producer.send("t", bytes(2_000_000), on_delivery=tell)
    assert len(told) == 2


def test_who_is_told_late_is_told_on_the_same_thread(
    cluster: Any, make: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is acknowledged before its sender can say whom to tell."""
    cluster.create("t")
    threads: list[str] = []
    real = RecordFuture.tell

    def tell_late(self: RecordFuture, *arguments: Any) -> None:
        self.result(DEADLINE_S)
        real(self, *arguments)

    monkeypatch.setattr(RecordFuture, "tell", tell_late)

    def tell(metadata: Any, error: Any) -> None:
        threads.append(threading.current_thread().name)

    with make(linger_ms=0) as producer:
        producer.send("t", b"a", on_delivery=tell)
        producer.flush()
    assert len(threads) == 1
    assert threads != [threading.current_thread().name]


def test_a_producer_knows_the_partitions_of_a_topic(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    cluster.create("t", 3)
    with make(max_block_ms=100) as producer:
        assert [found.partition for found in producer.partitions_for("t")] == [0, 1, 2]
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.partitions_for("missing")
        with pytest.raises(InvalidTopicError):
            producer.partitions_for("a/b")
    with pytest.raises(ClientClosedError):
        producer.partitions_for("t")
