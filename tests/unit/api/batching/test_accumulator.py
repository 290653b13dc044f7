"""How records become batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topics import topic_of

from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.api.batching.accumulator import Accumulator, Wake
from oncelog.api.batching.delivery import RecordFuture
from oncelog.api.batching.open_batches import OpenBatches
from oncelog.api.batching.partitioner import Partitioner, partition_for_key
from oncelog.api.batching.rows import RecordRows
from oncelog.storage.exceptions import ClientClosedError, UnknownTopicOrPartitionError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import decode_records
from oncelog.storage.records.compression import Codec

T0 = TopicPartition("t", 0)


def accept() -> None:
    """A gate that is open."""


def new(batch_bytes: int = 100, gate: Callable[[], None] = accept) -> Accumulator:
    return Accumulator(
        open_batches=OpenBatches(
            known_topics={},
            now_ms=lambda: 9,
            batch_bytes=batch_bytes,
            record_bytes_max=10_000,
            buffer_bytes_max=10_000,
        ),
        batch_bytes=batch_bytes,
        partitioner=Partitioner("murmur2"),
        random=Random(1),
        gate=gate,
        on_done=accept,
        now=lambda: 3.5,
    )


@cache
def metadata(partitions: int) -> TopicMetadata:
    return topic_of("t", *[1] * partitions)


def append(
    accumulator: Accumulator,
    value: bytes,
    size: int = 40,
    *,
    partition: int | None = 0,
    key: bytes | None = None,
    partitions: int = 3,
) -> tuple[RecordFuture, Wake]:
    return accumulator.append("t", metadata(partitions), partition, (key, value, 9, ()), size)


def values(batch: Any) -> list[bytes | None]:
    sealed = batch.rows.encode(
        codec=Codec.NONE, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=False
    )
    return [record.value for record in decode_records(sealed)]


def test_a_batch_is_not_given_out_before_it_is_full_or_due() -> None:
    accumulator = new()
    append(accumulator, b"a")
    assert accumulator.take(T0) is None
    assert not accumulator.has_due()
    accumulator.end_linger()
    assert accumulator.has_due()
    assert values(accumulator.take(T0)) == [b"a"]
    assert accumulator.take(T0) is None


def test_a_record_that_does_not_fit_closes_the_batch_and_opens_the_next() -> None:
    accumulator = new(batch_bytes=100)
    for value in (b"a", b"b", b"c"):
        append(accumulator, value, 40)
    assert values(accumulator.take(T0)) == [b"a", b"b"]
    assert accumulator.take(T0) is None


def test_a_record_larger_than_a_batch_has_one_of_its_own() -> None:
    accumulator = new(batch_bytes=100)
    append(accumulator, b"a", 40)
    append(accumulator, b"large", 500)
    assert values(accumulator.take(T0)) == [b"a"]
    assert values(accumulator.take(T0)) == [b"large"]


def test_the_loop_is_woken_once_per_linger_time_and_once_for_full_batches() -> None:
    accumulator = new(batch_bytes=100)
    assert append(accumulator, b"a", 30)[1] is Wake.LINGER
    assert append(accumulator, b"b", 30)[1] is Wake.NOTHING
    assert append(accumulator, b"c", 60)[1] is Wake.FULL
    assert append(accumulator, b"d", 100)[1] is Wake.NOTHING
    accumulator.end_linger()
    accumulator.take_full_batches()
    assert append(accumulator, b"e", 30)[1] is Wake.LINGER
    assert append(accumulator, b"f", 100)[1] is Wake.FULL


def test_records_with_a_key_go_by_its_hash() -> None:
    accumulator = new()
    for key in (b"a", b"b", b"c", b"d"):
        append(accumulator, b"v", partition=None, key=key)
        assert partition_for_key(key, 3) in [tp.partition for tp in accumulator.waiting()]


def test_records_without_key_fill_one_batch_and_then_another_partition() -> None:
    accumulator = new(batch_bytes=100)
    partitions = []
    for _ in range(40):
        append(accumulator, b"v", 40, partition=None)
        append(accumulator, b"v", 40, partition=None)
        accumulator.end_linger()
        (topic_partition,) = [tp for tp in accumulator.waiting() if accumulator.take(tp)]
        partitions.append(topic_partition.partition)
    assert all(one != next_one for one, next_one in pairwise(partitions))
    assert set(partitions) == {0, 1, 2}


def test_a_full_batch_of_records_without_key_is_followed_by_another_partition() -> None:
    accumulator = new(batch_bytes=100)
    for _ in range(2):
        append(accumulator, b"v", 40, partition=None)
    (first,) = accumulator.waiting()
    append(accumulator, b"v", 40, partition=None)
    (second,) = set(accumulator.waiting()) - {first}
    append(accumulator, b"v", 40, partition=None)
    accumulator.end_linger()
    assert len(values(accumulator.take(first))) == len(values(accumulator.take(second))) == 2


def test_a_partition_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="0 to 2, not 3"):
        append(new(), b"v", partition=3)


def test_a_closed_gate_lets_nothing_in() -> None:
    def refuse() -> None:
        raise ClientClosedError

    accumulator = new(gate=refuse)
    with pytest.raises(ClientClosedError):
        append(accumulator, b"v")
    with pytest.raises(ClientClosedError):
        accumulator.append_rows(T0, RecordRows([(None, b"v", 0, ())]), 40)
    assert accumulator.waiting() == []
    assert accumulator.buffered_bytes == 0


def test_memory_is_released_when_the_outcome_is_known() -> None:
    accumulator = new()
    future, _ = append(accumulator, b"a", 40)
    deliveries = accumulator.close_open()
    batch = accumulator.take(T0)
    assert batch is not None
    assert accumulator.buffered_bytes == 40
    assert not accumulator.is_delivered(deliveries)
    batch.delivery.finish(5, -1)
    assert accumulator.buffered_bytes == 0
    assert accumulator.is_delivered(deliveries)
    assert future.result(0).offset == 5


def test_a_flush_does_not_wait_for_later_records() -> None:
    accumulator = new()
    append(accumulator, b"a")
    deliveries = accumulator.close_open()
    append(accumulator, b"later")
    batch = accumulator.take(T0)
    assert batch is not None
    batch.delivery.finish(0, -1)
    assert accumulator.is_delivered(deliveries)


def test_drop_fails_what_was_not_taken_and_nothing_else() -> None:
    accumulator = new()
    taken, _ = append(accumulator, b"a", 100)
    batch = accumulator.take(T0)
    dropped, _ = append(accumulator, b"b")
    for batch in accumulator.drop():
        batch.delivery.finish(error=ClientClosedError())
    assert isinstance(dropped.exception(0), ClientClosedError)
    assert not taken.done()
    assert batch is not None
    assert accumulator.waiting() == []


def test_rows_keep_their_place_among_records() -> None:
    accumulator = new()
    append(accumulator, b"before")
    delivery, _ = accumulator.append_rows(T0, RecordRows([(None, b"table", 0, ())]), 40)
    append(accumulator, b"after")
    accumulator.end_linger()
    taken = [accumulator.take(T0) for _ in range(3)]
    assert [values(batch) for batch in taken] == [[b"before"], [b"table"], [b"after"]]
    assert taken[1] is not None
    assert taken[1].delivery is delivery


def test_a_batch_remembers_when_its_first_record_came() -> None:
    accumulator = new()
    append(accumulator, b"a", 100)
    batch = accumulator.take(T0)
    assert batch is not None
    assert batch.created_s == 3.5


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 150)), max_size=60))
def test_records_of_a_partition_keep_their_order(sends: list[tuple[int, int]]) -> None:
    accumulator = new()
    for number, (partition, size) in enumerate(sends):
        append(accumulator, b"%d" % number, size, partition=partition)
        if size % 7 == 0:
            accumulator.end_linger()
    accumulator.close_open()
    for partition in range(3):
        got: list[bytes | None] = []
        while (batch := accumulator.take(TopicPartition("t", partition))) is not None:
            got.extend(values(batch))
        sent = [b"%d" % number for number, (to, _) in enumerate(sends) if to == partition]
        assert got == sent
