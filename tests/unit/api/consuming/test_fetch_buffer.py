from __future__ import annotations

import pickle

import pytest

from oncelog.api.consuming.fetch_buffer import AssignedPartition, visible_batches
from oncelog.api.records import ConsumerRecord
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import patch, seal, seal_in_place
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.control import encode_marker

TP = TopicPartition("t", 0)


def batch(base_offset, *values):
    encoded = encode_records([(b"k", value, 1_000, (("h", b"1"),)) for value in values])
    patch(encoded, base_offset=base_offset, leader_epoch=0)
    return bytes(encoded)


@pytest.fixture
def partition():
    partition = AssignedPartition(TP)
    partition.seek(0)
    return partition


def add(partition, records):
    partition.add(
        records,
        visible_batches(records, fetch_offset=partition.fetch_offset, aborted_transactions=()),
    )


def taken_offsets(partition, count_max=1_000):
    return [record.offset for record in partition.take_records(count_max)]


def test_a_record_carries_its_place_time_key_value_and_headers(partition):
    add(partition, batch(0, b"v"))

    (record,) = partition.take_records(10)

    assert record == ("t", 0, 0, 1_000, b"k", b"v", (("h", b"1"),))


def test_taking_part_of_a_batch_leaves_the_position_at_the_next_record(partition):
    add(partition, batch(0, b"0", b"1", b"2"))

    assert taken_offsets(partition, 2) == [0, 1]
    assert partition.position == 2
    assert taken_offsets(partition) == [2]


def test_a_record_is_what_its_constructor_makes(partition):
    add(partition, batch(0, b"0", b"1"))

    for record in partition.take_records(10):
        made = ConsumerRecord(*record)
        assert type(record) is ConsumerRecord
        assert (record, hash(record), repr(record)) == (made, hash(made), repr(made))
        assert pickle.loads(pickle.dumps(record)) == record
        assert record.topic_partition == TP


def test_records_below_the_position_are_dropped(partition):
    partition.seek(1)
    add(partition, batch(0, b"0", b"1"))

    assert taken_offsets(partition) == [1]


def test_the_position_steps_past_a_reply_that_shows_nothing(partition):
    empty = seal(
        b"",
        codec=0,
        record_count=0,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        is_transactional=False,
        last_offset_delta=4,
    )
    add(partition, bytes(empty))

    assert partition.take_records(10) == []
    assert partition.position == 5
    assert not partition.has_pieces


def test_the_position_steps_past_what_is_hidden_after_the_last_record(partition):
    records = batch(0, b"0")
    hidden = visible_batches(records + batch(1, b"1"), fetch_offset=0, aborted_transactions=())
    visible = type(hidden)(batches=hidden.batches[:1], next_offset=2)
    partition.add(records, visible)

    assert taken_offsets(partition, 1) == [0]
    assert partition.position == 2


def test_a_seek_drops_what_was_fetched_for_another_place(partition):
    add(partition, batch(0, b"0", b"1"))

    partition.seek(1)

    assert partition.take_records(10) == []
    assert partition.position == 1


def test_an_empty_reply_is_not_held(partition):
    add(partition, b"")

    assert not partition.has_pieces


def test_a_damaged_batch_stays_where_it_is_and_is_raised_once_it_is_first(partition):
    """Its checksum is right and its last record is not: none of its records is delivered."""
    damaged = bytearray(batch(1, b"1", b"2"))[:-1]
    seal_in_place(damaged, record_count=2, base_timestamp_ms=0, max_timestamp_ms=0, base_offset=1)
    add(partition, batch(0, b"0") + damaged)

    assert taken_offsets(partition) == [0]
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="offset 1"):
            partition.take_records(10)
    assert partition.position == 1


def test_columns_hold_every_record_and_move_the_position(partition):
    add(partition, batch(0, b"0", b"1") + batch(2, b"2"))
    add(partition, batch(3, b"3"))

    taken = partition.take_columns(None)

    assert [value for columns in taken for value in columns["value"].to_pylist()] == [
        b"0",
        b"1",
        b"2",
        b"3",
    ]
    assert partition.position == 4


def test_columns_are_cut_at_the_limit_and_go_on_from_there(partition):
    add(partition, batch(0, b"0", b"1", b"2") + batch(3, b"3", b"4"))

    first = partition.take_columns(4)
    rest = partition.take_columns(None)

    assert [columns["offset"].to_pylist() for columns in first] == [[0, 1, 2, 3]]
    assert [columns["offset"].to_pylist() for columns in rest] == [[4]]


def test_columns_after_records_begin_at_the_position(partition):
    add(partition, batch(0, b"0", b"1", b"2"))
    partition.take_records(1)

    (columns,) = partition.take_columns(None)

    assert columns["offset"].to_pylist() == [1, 2]


def test_records_after_columns_begin_at_the_position(partition):
    add(partition, batch(0, b"0", b"1", b"2"))
    partition.take_columns(1)

    assert taken_offsets(partition) == [1, 2]


def test_there_is_room_for_one_reply_ahead(partition):
    add(partition, batch(0, b"0"))
    assert partition.has_room
    add(partition, batch(1, b"1"))
    assert not partition.has_room

    partition.take_records(1)

    assert partition.has_room


@pytest.mark.parametrize("take", ["take_records", "take_columns"])
def test_a_reply_that_begins_with_nothing_to_see_is_stepped_over(partition, take):
    marker = encode_marker(
        producer_id=1, producer_epoch=0, committed=True, coordinator_epoch=0, timestamp_ms=1_000
    )
    patch(marker, base_offset=0, leader_epoch=0)
    add(partition, bytes(marker))

    assert getattr(partition, take)(10) == []
    assert partition.position == 1
    add(partition, batch(1, b"v"))
    assert len(getattr(partition, take)(10)) == 1
