"""Many records: whatever lengths and times they have, the bytes that an oracle makes of them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from record_oracle import encode_rows

from oncelog.storage.records.block import seal_block
from oncelog.storage.records.codec import encode_columns, encode_records
from oncelog.storage.records.rows import RecordInput

TIME = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COUNTS = (128, 8_192, 8_193, 9_001)
"""Zig-zag offsets take two bytes from 64 on and three from 8192 on."""

SHAPES: dict[str, Callable[[int], RecordInput]] = {
    "all numbers alike": lambda index: (b"key", b"v" * 100, TIME, ()),
    "rising times": lambda index: (b"key", b"v" * 100, TIME + 7 * index, ()),
    "falling times": lambda index: (b"key", b"v" * 100, TIME - 2**40 * index, ()),
    "one longer value": lambda index: (b"key", b"v" * (70 if index == 130 else 5), TIME, ()),
    "longer at the end": lambda index: (b"k" * (1 + index // 200), b"v" * 62, TIME + index, ()),
    "lengths up and down": lambda index: (b"k", b"v" * (60 + index % 9), TIME + index, ()),
    "some nulls": lambda index: (
        None if index % 7 else b"k",
        None if index % 5 else b"v",
        TIME,
        (),
    ),
    "no keys": lambda index: (None, b"v" * 62, TIME, ()),
    "nothing": lambda index: (None, None, TIME, ()),
    "headers": lambda index: (b"k", b"v", TIME, (("h", b"x" * (index % 70)),)),
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_and_columns_make_the_bytes_of_the_oracle(shape: str, count: int) -> None:
    records = [SHAPES[shape](index) for index in range(count)]
    keys, values, times, headers = zip(*records, strict=True)
    pairs = [[{"key": key, "value": value} for key, value in row] for row in headers]
    batch = seal_block(encode_rows(records))
    assert encode_records(records) == batch
    assert batch == encode_columns(
        keys=pa.array(keys, pa.binary()),
        values=pa.array(values, pa.binary()),
        timestamps_ms=pa.array(times, pa.int64()),
        headers=pa.array(pairs, HEADERS),
    )
