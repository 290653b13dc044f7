"""Records to batches and back: rows, columns, and hostile bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records import arrow_columns
from oncelog.storage.records import block as record_block
from oncelog.storage.records.batch import parse_header, patch, seal, stamp_log_append_time
from oncelog.storage.records.codec import (
    Record,
    RecordInput,
    decode_columns,
    decode_records,
    encode_columns,
    encode_records,
)
from oncelog.storage.records.compression import Codec, compress

MANY = 130
"""Zig-zag offsets take two bytes from 64 on."""
TIME = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def plain(count: int) -> list[RecordInput]:
    return [(b"key", b"value %d" % index, TIME + index, ()) for index in range(count)]


def make_batch(records: bytes, count: int, **changes: Any) -> bytes:
    """A batch with a right CRC around whatever ``records`` are."""
    fields: dict[str, Any] = {
        "codec": Codec.NONE,
        "base_timestamp_ms": TIME,
        "max_timestamp_ms": TIME,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "is_transactional": False,
    }
    return bytes(seal(records, record_count=count, **(fields | changes)))


def column_rows(batch: pa.RecordBatch) -> list[Record]:
    return [
        Record(
            row["offset"],
            row["timestamp_ms"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in batch.to_pylist()
    ]


def decode_one_column_batch(batch: bytes | bytearray) -> list[Record]:
    return column_rows(decode_columns([batch]))


DECODERS = pytest.mark.parametrize("decode", [decode_records, decode_one_column_batch])
COUNTS = pytest.mark.parametrize("count", [1, 127, MANY])


# --- what a batch says of its records ---------------------------------------------------------


@COUNTS
def test_batch_states_producer_times_and_count(count: int) -> None:
    header = parse_header(
        encode_records(
            plain(count),
            codec=Codec.LZ4,
            producer_id=5,
            producer_epoch=6,
            base_sequence=7,
            is_transactional=True,
        )
    )
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, 7)
    assert (header.codec, header.is_transactional) == (Codec.LZ4, True)
    assert (header.base_offset, header.leader_epoch) == (0, -1)
    assert (header.record_count, header.last_offset_delta) == (count, count - 1)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (TIME, TIME + count - 1)


@pytest.mark.parametrize("filler", [0, MANY])
def test_base_timestamp_is_the_first_and_maximum_the_greatest(filler: int) -> None:
    records: list[RecordInput] = [(None, b"", time, ()) for time in [50, 90, 10] + [20] * filler]
    batch = encode_records(records)
    header = parse_header(batch)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (50, 90)
    assert [record.timestamp_ms for record in decode_records(batch)] == [
        record[2] for record in records
    ]


@DECODERS
@COUNTS
def test_null_is_not_empty(decode: Callable[[bytes], list[Record]], count: int) -> None:
    pairs = [(None, b""), (b"", None), (None, None), (b"", b""), (b"k", b"v")] * count
    records = [(key, value, TIME, ()) for key, value in pairs[:count]]
    decoded = decode(bytes(encode_records(records)))
    assert [(record.key, record.value) for record in decoded] == pairs[:count]


@DECODERS
@COUNTS
def test_headers_keep_order_repeats_and_nulls(
    decode: Callable[[bytes], list[Record]], count: int
) -> None:
    headers = (("b", b"1"), ("a", None), ("b", b""), ("", b"x"), ("ü", b"\xff"))
    records: list[RecordInput] = [(b"k", b"v", TIME, ()) for _ in range(count)]
    records[-1] = (b"k", b"v", TIME, headers)
    decoded = decode(bytes(encode_records(records)))
    assert [record.headers for record in decoded] == [()] * (count - 1) + [headers]


@DECODERS
@COUNTS
def test_offsets_follow_from_the_patched_base_offset(
    decode: Callable[[bytes], list[Record]], count: int
) -> None:
    batch = encode_records(plain(count))
    patch(batch, base_offset=2**40, leader_epoch=0)
    assert [record.offset for record in decode(bytes(batch))] == [
        2**40 + index for index in range(count)
    ]


@DECODERS
@COUNTS
def test_append_time_is_the_time_of_every_record(
    decode: Callable[[bytes], list[Record]], count: int
) -> None:
    batch = encode_records(plain(count))
    stamp_log_append_time(batch, 99)
    assert {record.timestamp_ms for record in decode(bytes(batch))} == {99}


@pytest.mark.parametrize("codec", Codec)
@COUNTS
def test_records_survive_every_codec(codec: Codec, count: int) -> None:
    batch = encode_records(plain(count), codec=codec)
    assert decode_records(batch) == decode_records(encode_records(plain(count)))
    assert decode_one_column_batch(batch) == decode_records(batch)


@DECODERS
def test_sparse_batch_keeps_its_offsets(decode: Callable[[bytes], list[Record]]) -> None:
    # Offset deltas 2 and 5 of a compacted batch whose last offset delta is 9.
    records = bytes.fromhex("0c 000004 01 01 00" + "0c 00000a 01 01 00")
    batch = make_batch(records, 2, base_offset=100, last_offset_delta=9)
    assert [record.offset for record in decode(batch)] == [102, 105]


@DECODERS
def test_batch_emptied_by_compaction_has_no_records(
    decode: Callable[[bytes], list[Record]],
) -> None:
    assert decode(make_batch(b"", 0, last_offset_delta=4)) == []


@DECODERS
def test_header_key_that_is_no_utf8_decodes_with_replacement(
    decode: Callable[[bytes], list[Record]],
) -> None:
    batch = make_batch(bytes.fromhex("16 000000 01 01 02 04 61ff 02 78"), 1)
    assert decode(batch)[0].headers == (("a\ufffd", b"x"),)


def test_batch_is_decoded_at_its_position_with_a_known_header() -> None:
    batch = encode_records(plain(2))
    buffer = memoryview(b"\xff" * 7 + batch + b"\xff" * 7)
    assert decode_records(buffer, parse_header(buffer, 7), 7) == decode_records(batch)
    assert decode_records(buffer, position=7) == decode_records(batch)


# --- what cannot be encoded -------------------------------------------------------------------


def test_no_records_make_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_records([])
    with pytest.raises(ValueError, match="at least one"):
        encode_columns(keys=None, values=pa.array([], pa.binary()), timestamps_ms=0, headers=None)


@pytest.mark.parametrize("filler", [0, MANY])
@pytest.mark.parametrize("times", [(0, 2**63), (-(2**63) - 1, 0), (-1, 2**63 - 1), (1, -(2**63))])
def test_timestamp_or_delta_beyond_64_bits_is_refused(times: tuple[int, int], filler: int) -> None:
    records: list[RecordInput] = [(None, b"", time, ()) for time in times + (0,) * filler]
    with pytest.raises(ValueError, match=r"64 bits|too far apart"):
        encode_records(records)


@pytest.mark.parametrize("count", [2, MANY])
def test_batch_that_nobody_could_read_is_refused(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_block, "BLOCK_BYTES_MAX", 20)
    with pytest.raises(ValueError, match="exceed 20 bytes"):
        encode_records(plain(count), codec=Codec.ZSTD)


# --- columns ----------------------------------------------------------------------------------


@COUNTS
def test_columns_encode_to_the_bytes_of_rows(count: int) -> None:
    records = plain(count)
    keys, values, times, _ = zip(*records, strict=True)
    batch = encode_columns(
        keys=pa.array(keys, pa.binary()),
        values=pa.array(values, pa.binary()),
        timestamps_ms=pa.array(times, pa.int64()),
        headers=None,
        codec=Codec.GZIP,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        is_transactional=True,
    )
    assert batch == encode_records(
        records,
        codec=Codec.GZIP,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        is_transactional=True,
    )


@COUNTS
@pytest.mark.parametrize(
    "convert",
    [
        lambda column: column,
        lambda column: column.cast(pa.string()),
        lambda column: column.cast(pa.large_binary()),
        lambda column: column.cast(pa.large_string()),
        lambda column: column.cast(pa.binary_view()),
        lambda column: column.dictionary_encode(),
        lambda column: pa.chunked_array([column.slice(0, 1), column.slice(1)]),
        lambda column: pa.concat_arrays([pa.array([b"x", None]), column, pa.array([b"y"])]).slice(
            2, len(column)
        ),
    ],
)
def test_column_type_and_slicing_do_not_change_the_bytes(
    convert: Callable[[pa.Array], pa.Array], count: int
) -> None:
    texts = [None if index % 3 == 0 else b"text %d" % index for index in range(count)]
    column = convert(pa.array(texts, pa.binary()))
    batch = encode_columns(keys=column, values=column, timestamps_ms=TIME, headers=None)
    assert batch == encode_records([(text, text, TIME, ()) for text in texts])


@COUNTS
@pytest.mark.parametrize("keys", [None, "nulls", "null type"])
def test_missing_keys_are_null_keys(keys: str | None, count: int) -> None:
    column = {
        None: None,
        "nulls": pa.nulls(count, pa.binary()),
        "null type": pa.nulls(count),
    }[keys]
    values = pa.array([b"v"] * count)
    batch = encode_columns(keys=column, values=values, timestamps_ms=TIME, headers=None)
    assert batch == encode_records([(None, b"v", TIME, ())] * count)


def test_bytes_behind_a_null_slot_are_not_encoded() -> None:
    hidden = pa.Array.from_buffers(
        pa.binary(),
        MANY,
        [
            pa.py_buffer(bytes(MANY // 8 + 1)),
            pa.py_buffer(b"".join((4 * index).to_bytes(4, "little") for index in range(MANY + 1))),
            pa.py_buffer(b"ghost" * MANY),
        ],
    )
    batch = encode_columns(keys=None, values=hidden, timestamps_ms=TIME, headers=None)
    assert batch == encode_records([(None, None, TIME, ())] * MANY)


@COUNTS
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_arrow_timestamps_become_milliseconds(unit: str, count: int) -> None:
    times = pa.array([TIME] * count, pa.timestamp("ms", "UTC")).cast(pa.timestamp(unit, "UTC"))
    values = pa.array([b"v"] * count)
    batch = encode_columns(keys=None, values=values, timestamps_ms=times, headers=None)
    assert batch == encode_records([(None, b"v", TIME, ())] * count)


@COUNTS
def test_header_column_encodes_as_headers_of_rows(count: int) -> None:
    rows: list[list[tuple[str, bytes | None]]] = [
        [("a", b"1"), ("a", None)],
        [],
        [("", b"")],
    ] * count
    column = pa.array(
        [[{"key": key, "value": value} for key, value in row] for row in rows[:count]], HEADERS
    )
    values = pa.array([b"v"] * count)
    batch = encode_columns(keys=None, values=values, timestamps_ms=TIME, headers=column)
    assert batch == encode_records([(None, b"v", TIME, row) for row in rows[:count]])


@COUNTS
def test_null_or_empty_header_lists_are_no_headers(count: int) -> None:
    column = pa.array([None, []] * count, HEADERS).slice(0, count)
    values = pa.array([b"v"] * count)
    batch = encode_columns(keys=None, values=values, timestamps_ms=TIME, headers=column)
    assert batch == encode_records([(None, b"v", TIME, ())] * count)


@pytest.mark.parametrize(
    "change",
    [
        {"keys": pa.array([b"k"])},
        {"timestamps_ms": pa.array([TIME])},
        {"timestamps_ms": pa.array([TIME, None])},
        {"headers": pa.array([[{"key": "a", "value": b""}]], HEADERS)},
        {"values": pa.array([1, 2])},
    ],
)
def test_columns_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    columns: dict[str, Any] = {
        "keys": None,
        "values": pa.array([b"a", b"b"]),
        "timestamps_ms": TIME,
        "headers": None,
    }
    with pytest.raises((ValueError, NotImplementedError)):
        encode_columns(**(columns | change))


def test_batches_of_different_codecs_decode_in_one_call() -> None:
    batches: list[Any] = []
    expected: list[Record] = []
    for index, codec in enumerate(Codec):
        batch = encode_records(plain(index + 1), codec=codec)
        patch(batch, base_offset=1000 * index, leader_epoch=0)
        if codec is Codec.LZ4:
            stamp_log_append_time(batch, 7)
        batches.append(memoryview(batch))
        expected += decode_records(batch)
    batches.insert(1, make_batch(b"", 0, last_offset_delta=3))
    decoded = decode_columns(batches)
    assert column_rows(decoded) == expected
    assert decoded["timestamp_type"].to_pylist() == [0] * 6 + [1] * 4 + [0] * 5


def test_no_batches_decode_to_an_empty_table() -> None:
    decoded = decode_columns([])
    assert decoded.num_rows == 0
    assert decoded.schema == arrow_columns.RECORD_SCHEMA


def test_decoded_columns_do_not_keep_the_fetched_bytes() -> None:
    batch = encode_records(plain(MANY))
    decoded = decode_columns([batch])
    before = decoded.to_pylist()
    batch[:] = bytes(len(batch))
    assert decoded.to_pylist() == before


def test_more_bytes_than_a_column_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_columns, "COLUMN_BYTES_MAX", 50)
    with pytest.raises(ValueError, match="pass fewer"):
        decode_columns([encode_records(plain(3))] * 2)


# --- hostile bytes ----------------------------------------------------------------------------


GOOD = bytes.fromhex("0c 000000 01 01 00")


@DECODERS
def test_damaged_batch_is_corrupt(decode: Callable[[bytes], list[Record]]) -> None:
    batch = encode_records(plain(3))
    batch[-1] ^= 1
    with pytest.raises(CorruptDataError, match="CRC"):
        decode(bytes(batch))


@DECODERS
@pytest.mark.parametrize(
    "record",
    [
        "0e 000000 01 01 00",  # longer than its batch
        "0b 000000 01 01 00",  # negative length
        "ffffffffff01 000000 01 01 00",  # length of more than 32 bits
        "06 000000",  # no key length
        "08 000000 01",  # no value length
        "0a 000000 01 01",  # no header count
        "0c 000000 03 01 00",  # key length -2
        "0c 000000 10 01 00",  # key longer than the record
        "0c 000000 01 03 00",  # value length -2
        "0c 000000 01 02 00",  # a value that leaves no header count
        "0c 000000 01 01 01",  # header count -1
        "0c 000000 01 01 02",  # one header, no bytes for it
        "10 000000 01 01 02 01 00",  # header key null
        "10 000000 01 01 02 10 61",  # header key longer than the record
        "14 000000 01 01 02 02 61 10 62",  # header value longer than the record
        "0e 000000 01 01 00 00",  # a byte after no headers
        "14 000000 01 01 02 02 61 00 00",  # a byte after the last header
        "0c 000002 01 01 00",  # offset delta beyond the batch
        "0c 000001 01 01 00",  # offset delta -1
        "14 0000 8080808010 01 01 00",  # offset delta of more than 32 bits
        "1e 00 80808080808080808002 00 01 01 00",  # timestamp delta of more than 64 bits
        "00 00 00 00 00 00 00",  # records of no bytes
    ],
)
def test_record_that_breaks_the_format_is_corrupt(
    decode: Callable[[bytes], list[Record]], record: str
) -> None:
    with pytest.raises(CorruptDataError):
        decode(make_batch(bytes.fromhex(record), 1))


@DECODERS
@pytest.mark.parametrize("position", [0, 5, MANY - 1])
@pytest.mark.parametrize(
    "damage", ["0c 000000 01 03 00", "0e 000000 01 01 00", "0b 000000 01 01 00"]
)
def test_one_bad_record_among_many_is_corrupt(
    decode: Callable[[bytes], list[Record]], position: int, damage: str
) -> None:
    block = bytes(encode_records([(None, None, TIME, ())] * MANY))[61:]
    # The first 64 records are 7 bytes long, the others 8.
    at = 7 * position if position < 64 else 7 * 64 + 8 * (position - 64)
    block = block[:at] + bytes.fromhex(damage) + block[at + 7 :]
    with pytest.raises(CorruptDataError):
        decode(make_batch(block, MANY))


@DECODERS
@pytest.mark.parametrize("count", [1, 3, 2**31 - 1, -1])
def test_count_that_differs_from_the_records_is_corrupt(
    decode: Callable[[bytes], list[Record]], count: int
) -> None:
    with pytest.raises(CorruptDataError):
        decode(make_batch(GOOD + bytes.fromhex("0c 000002 01 01 00"), count, last_offset_delta=1))


@DECODERS
def test_repeated_offset_is_corrupt(decode: Callable[[bytes], list[Record]]) -> None:
    with pytest.raises(CorruptDataError, match="out of order"):
        decode(make_batch(GOOD + GOOD, 2))


@DECODERS
def test_timestamp_beyond_64_bits_is_corrupt(decode: Callable[[bytes], list[Record]]) -> None:
    batch = make_batch(bytes.fromhex("0c 000200 01 01 00"), 1, base_timestamp_ms=2**63 - 1)
    with pytest.raises(CorruptDataError, match="64 bits"):
        decode(batch)


@DECODERS
@pytest.mark.parametrize("count", [2, MANY])
def test_offset_beyond_64_bits_is_corrupt(
    decode: Callable[[bytes], list[Record]], count: int
) -> None:
    batch = encode_records(plain(count))
    patch(batch, base_offset=2**63 - count + 1, leader_epoch=0)
    with pytest.raises(CorruptDataError, match="offset exceeds 64 bits"):
        decode(bytes(batch))


@DECODERS
def test_bomb_is_refused_before_it_fills_the_memory(
    decode: Callable[[bytes], list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_block, "BLOCK_BYTES_MAX", 100_000)
    bomb = make_batch(compress(Codec.ZSTD, bytes(10_000_000)), 1, codec=Codec.ZSTD)
    with pytest.raises(CorruptDataError, match="exceed 100000 bytes"):
        decode(bomb)


def test_record_that_spans_two_batches_is_corrupt() -> None:
    # Each record ends where the next begins, but not where the first batch ends.
    first = make_batch(bytes.fromhex("0e 000000 01 01 00"), 1)
    second = make_batch(bytes.fromhex("00 0c 000000 01 01 00"), 1)
    with pytest.raises(CorruptDataError, match="do not fill"):
        decode_columns([first, second])
