from __future__ import annotations

import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.segments.indexes import TimeIndex


@pytest.fixture
def index() -> TimeIndex:
    index = TimeIndex(1_000)
    index.maybe_append(1_700_000_000_000, 1_009)
    index.maybe_append(1_700_000_000_500, 1_025)
    return index


def test_bytes_are_kafkas(index):
    assert index.to_bytes() == bytes.fromhex("0000018bcfe56800 00000009 0000018bcfe569f4 00000019")


def test_bytes_come_back(index):
    again = TimeIndex.from_bytes(1_000, index.to_bytes())
    assert again.to_bytes() == index.to_bytes()
    assert again.last_entry == (1_700_000_000_500, 1_025)


def test_torn_bytes_are_refused(index):
    with pytest.raises(CorruptDataError, match="23 bytes"):
        TimeIndex.from_bytes(1_000, index.to_bytes()[:-1])


def test_timestamp_that_is_not_larger_gets_no_entry(index):
    index.maybe_append(1_700_000_000_500, 1_030)
    index.maybe_append(1_700_000_000_000, 1_040)
    assert len(index) == 2


def test_missing_timestamp_gets_no_entry():
    index = TimeIndex(0)
    index.maybe_append(-1, 5)
    assert index.last_entry is None


@pytest.mark.parametrize(
    ("timestamp_ms", "offset"),
    [
        (0, 1_000),
        (1_700_000_000_000, 1_000),
        (1_700_000_000_001, 1_009),
        (1_700_000_000_500, 1_009),
        (1_700_000_000_501, 1_025),
    ],
)
def test_offset_before_is_the_last_entry_with_a_smaller_timestamp(index, timestamp_ms, offset):
    assert index.offset_before(timestamp_ms) == offset
