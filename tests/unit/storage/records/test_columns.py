"""Many records without the kernel: whatever lengths and times they have, the bytes of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.storage.records import columns as record_columns
from oncelog.storage.records import rows as record_rows
from oncelog.storage.records.rows import COLUMNAR_RECORDS_MIN, RecordInput

TIME = 1_700_000_000_000
COUNTS = (COLUMNAR_RECORDS_MIN, 8_192, 8_193, 9_001)
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
def test_columns_make_the_bytes_of_rows(shape: str, count: int) -> None:
    records = [SHAPES[shape](index) for index in range(count)]
    block, rows = record_columns.encode_many_rows(records), record_rows.encode_rows(records)
    assert block.data == rows.data
    assert (block.base_timestamp_ms, block.max_timestamp_ms) == (
        rows.base_timestamp_ms,
        rows.max_timestamp_ms,
    )
