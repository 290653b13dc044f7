"""Records made when they are taken, in the type that their reader wants."""

from __future__ import annotations

import gc
import pickle
from typing import NamedTuple

import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import parse_header, patch, seal
from oncelog.storage.records.codec import Record, decode_records, decode_rows, encode_records
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.layout import HEADER_BYTES

TIME = 1_700_000_000_000
PAIR = (("name", b"1"), ("name", None))
MANY = 130
"""Zig-zag offsets take two bytes from 64 on."""


class Placed(NamedTuple):
    """A record and where it was read."""

    place: str
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def batch_of(count, base_offset=0, codec=Codec.NONE):
    """Every third record has headers; all have keys or values that differ."""
    batch = encode_records(
        [
            (b"%d" % index, None if index == 1 else b"value", TIME, PAIR if index % 3 == 0 else ())
            for index in range(count)
        ],
        codec=codec,
    )
    patch(batch, base_offset=base_offset, leader_epoch=0)
    return bytes(batch)


def rows_of(batch, **options):
    return decode_rows(batch, parse_header(batch), 0, **({"row_type": Record} | options))


def placed(count):
    return rows_of(batch_of(count), row_type=Placed, leading=("here",)).take(count)


@pytest.mark.parametrize("count", [10, MANY])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_taken_in_portions_they_are_all_that_the_batch_holds(count, codec):
    batch = batch_of(count, codec=codec)
    rows = rows_of(batch)

    assert rows.left == count
    taken = [*rows.take(1), *rows.take(0), *rows.take(4)]
    assert rows.left == count - 5
    taken += rows.take(count)

    assert (rows.left, rows.take(1)) == (0, [])
    assert taken == decode_records(batch)
    assert [record.headers for record in taken[:4]] == [PAIR, (), (), PAIR]
    assert all(type(record) is Record for record in taken)


def test_leading_fields_come_before_those_of_the_record():
    assert rows_of(batch_of(2, 5), row_type=Placed, leading=("here",)).take(2) == [
        Placed("here", 5, TIME, b"0", b"value", PAIR),
        Placed("here", 6, TIME, b"1", None, ()),
    ]


@pytest.mark.parametrize("count", [10, MANY])
@pytest.mark.parametrize("first", [-1, 20, 21, 23])
def test_records_before_the_first_offset_are_left_out(count, first):
    offsets = range(max(first, 20), 20 + count)
    rows = rows_of(batch_of(count, 20), first_offset=first)

    assert rows.left == len(offsets)
    assert [record.offset for record in rows.take(count)] == list(offsets)


def test_a_batch_that_ends_before_the_first_offset_gives_nothing():
    assert rows_of(batch_of(3), first_offset=3).left == 0


@pytest.mark.parametrize("first", [0, 2])
def test_a_damaged_record_spoils_its_batch_before_any_is_made(first):
    batch = batch_of(3)
    records = bytearray(batch[HEADER_BYTES:])
    records[-1] = 2  # headers that the last record does not have
    header = parse_header(batch)
    damaged = seal(
        records,
        codec=Codec.NONE,
        record_count=3,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
    )
    with pytest.raises(CorruptDataError):
        rows_of(damaged, first_offset=first)


def test_they_are_what_their_own_constructor_makes():
    for record in placed(4):
        made = Placed(*record)
        assert type(record) is Placed
        assert (record, hash(record), repr(record)) == (made, hash(made), repr(made))
        assert pickle.loads(pickle.dumps(record)) == record
        place, offset, *_ = record
        assert (place, offset) == ("here", record.offset)
        assert record._replace(offset=9).offset == 9


def test_what_is_the_same_in_all_is_shared():
    first, second, *_ = placed(3)

    assert first.place is second.place
    assert first.timestamp_ms is second.timestamp_ms


def test_the_collector_is_not_troubled_with_them():
    records = placed(4)
    gc.collect()

    assert not any(map(gc.is_tracked, records))
    del records[1:]
    assert records[0].headers == PAIR


def test_bytes_that_change_under_them_are_noticed():
    batch = bytearray(batch_of(3))
    rows = rows_of(batch)
    rows.take(1)
    batch[HEADER_BYTES + 20 :] = b"\xff" * len(batch[HEADER_BYTES + 20 :])

    for _ in range(2):
        with pytest.raises(CorruptDataError, match="changes while it is read"):
            rows.take(2)
        assert rows.left == 2


def test_a_plain_tuple_is_no_type_of_rows():
    for row_type in (tuple, list):
        with pytest.raises(TypeError, match="no named tuple"):
            rows_of(batch_of(1), row_type=row_type)
