"""For any records: what is encoded decodes to the same, and rows, columns and an oracle agree."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_oracle import decode_rows as decode_by_oracle
from record_oracle import encode_rows as encode_by_oracle

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import parse_header, seal
from oncelog.storage.records.block import open_block, seal_block
from oncelog.storage.records.codec import (
    Record,
    RecordInput,
    decode_columns,
    decode_records,
    encode_columns,
    encode_records,
)
from oncelog.storage.records.compression import Codec, compress, decompress
from oncelog.storage.records.layout import HEADER_BYTES
from oncelog.storage.records.varint import encode_varlong, read_varint, read_varlong

NULLABLE = st.none() | st.binary(max_size=200)
TIMES = st.integers(-(2**62), 2**62 - 1) | st.integers(1_700_000_000_000, 1_700_000_000_500)
HEADERS = st.lists(st.tuples(st.text(max_size=5), NULLABLE), max_size=3)
ROWS = st.lists(st.tuples(NULLABLE, NULLABLE, TIMES, HEADERS), min_size=1, max_size=40)
BLOCKS = st.lists(
    st.sampled_from([b"\x00", b"\x01", b"\x0c", b"\x7e", b"\x80", b"\xff"]) | st.binary(max_size=4),
    max_size=60,
).map(b"".join)
HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def in_columns(rows: list[RecordInput], codec: Codec) -> bytearray:
    keys, values, times, headers = zip(*rows, strict=True)
    header_rows = [[{"key": key, "value": value} for key, value in row] for row in headers]
    return encode_columns(
        keys=pa.array(keys, pa.binary()),
        values=pa.array(values, pa.binary()),
        timestamps_ms=pa.array(times, pa.int64()),
        headers=pa.array(header_rows, HEADER_TYPE),
        codec=codec,
    )


@given(st.integers(-(2**63), 2**63 - 1))
def test_int64_reads_back(value: int) -> None:
    encoded = encode_varlong(value)
    assert read_varlong(encoded, 0, len(encoded)) == (value, len(encoded))
    if -(2**31) <= value < 2**31:
        assert read_varint(encoded, 0, len(encoded)) == (value, len(encoded))


@given(st.sampled_from(Codec), st.binary(max_size=100_000))
def test_bytes_survive_every_codec(codec: Codec, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data), limit_bytes=len(data))) == data


@given(ROWS, st.sampled_from(Codec))
def test_rows_read_back_by_every_path(rows: list[RecordInput], codec: Codec) -> None:
    expected = [
        Record(offset, timestamp_ms, key, value, tuple(headers))
        for offset, (key, value, timestamp_ms, headers) in enumerate(rows)
    ]
    batch = encode_records(rows, codec=codec)
    assert decode_records(batch) == expected
    columns = decode_columns([batch])
    assert columns["offset"].to_pylist() == list(range(len(rows)))
    assert columns["timestamp_ms"].to_pylist() == [row[2] for row in rows]
    assert columns["key"].to_pylist() == [row[0] for row in rows]
    assert columns["value"].to_pylist() == [row[1] for row in rows]
    assert [
        [(header["key"], header["value"]) for header in headers]
        for headers in columns["headers"].to_pylist()
    ] == [list(row[3]) for row in rows]


@given(ROWS)
def test_every_encoding_path_writes_the_same_bytes(rows: list[RecordInput]) -> None:
    batch = encode_records(rows)
    assert batch == seal_block(encode_by_oracle(rows))
    assert in_columns(rows, Codec.NONE) == batch


@given(st.lists(ROWS, max_size=6))
def test_many_batches_decode_as_each_alone(groups: list[list[RecordInput]]) -> None:
    batches = [encode_records(rows) for rows in groups]
    together = decode_columns(batches)
    alone = [row for batch in batches for row in decode_columns([batch]).to_pylist()]
    assert together.to_pylist() == alone


@given(
    st.integers(1, 400),
    st.integers(0, 80),
    st.lists(st.tuples(st.integers(0, 399), st.integers(0, 300)), max_size=8),
)
def test_runs_of_equal_lengths_with_exceptions_read_back(
    count: int, length: int, exceptions: list[tuple[int, int]]
) -> None:
    values = [b"v" * length] * count
    for index, other_length in exceptions:
        values[index % count] = b"w" * other_length
    batch = encode_records([(None, value, 0, ()) for value in values])
    assert decode_columns([batch])["value"].to_pylist() == values
    assert [record.value for record in decode_records(batch)] == values


@given(BLOCKS, st.integers(0, 6))
def test_any_bytes_decode_alike_or_are_corrupt_by_every_path(block: bytes, count: int) -> None:
    batch = seal(
        block,
        codec=Codec.NONE,
        record_count=count,
        base_timestamp_ms=2**63 - 1,
        max_timestamp_ms=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        is_transactional=False,
    )
    check_decoding(batch)


@given(ROWS, st.data())
def test_changed_byte_is_corrupt_or_decodes_alike(
    rows: list[RecordInput], data: st.DataObject
) -> None:
    batch = encode_records(rows)
    position = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
    batch[position] = data.draw(st.integers(0, 255))
    # Sealed again, so that the CRC does not catch what the bounds checks are there for.
    header = parse_header(batch)
    again = seal(
        batch[HEADER_BYTES:],
        codec=Codec.NONE,
        record_count=header.record_count,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        is_transactional=False,
    )
    check_decoding(again)


def check_decoding(batch: bytearray) -> None:
    """Rows, columns and the oracle find the same records, or all of them damage."""
    header = parse_header(batch)
    try:
        expected = decode_by_oracle(bytes(open_block(batch, header)), header)
    except CorruptDataError:
        for decode in (lambda: decode_records(batch), lambda: decode_columns([batch])):
            with pytest.raises(CorruptDataError):
                decode()
        return
    assert decode_records(batch) == expected
    assert decode_columns([batch]).num_rows == len(expected)
