from __future__ import annotations

import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.segments.indexes import INDEX_MAX_BYTES, OffsetIndex


@pytest.fixture
def index() -> OffsetIndex:
    index = OffsetIndex(1_000)
    index.append(1_009, 4_200)
    index.append(1_025, 9_000)
    return index


def test_bytes_are_kafkas(index):
    assert index.to_bytes() == bytes.fromhex("00000009 00001068 00000019 00002328")


def test_bytes_come_back(index):
    again = OffsetIndex.from_bytes(1_000, index.to_bytes())
    assert again.to_bytes() == index.to_bytes()
    assert again.last_entry == (1_025, 9_000)


def test_torn_bytes_are_refused(index):
    with pytest.raises(CorruptDataError, match="15 bytes"):
        OffsetIndex.from_bytes(1_000, index.to_bytes()[:-1])


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        (1_000, None),
        (1_008, None),
        (1_009, (1_009, 4_200)),
        (1_024, (1_009, 4_200)),
        (1_025, (1_025, 9_000)),
        (9_999, (1_025, 9_000)),
    ],
)
def test_lookup_gives_the_greatest_entry_up_to_the_offset(index, offset, found):
    assert index.lookup(offset) == found


@pytest.mark.parametrize(
    ("limit_position", "upper_offset", "found"),
    [
        (4_199, 9_999, None),
        (4_200, 9_999, (1_009, 4_200)),
        (9_000, 9_999, (1_025, 9_000)),
        (9_000, 1_025, (1_009, 4_200)),
        (9_000, 1_009, None),
    ],
)
def test_lookup_end_keeps_both_limits(index, limit_position, upper_offset, found):
    assert index.lookup_end(limit_position=limit_position, upper_offset=upper_offset) == found


def test_disordered_entries_never_lead_beyond_the_limits():
    index = OffsetIndex(0)
    for entry in ((900, 10), (20, 800), (30, 30)):
        index.append(*entry)
    found = index.lookup_end(limit_position=100, upper_offset=25)
    assert found is None or (found[0] < 25 and found[1] <= 100)


def test_index_is_full_at_kafkas_limit():
    index = OffsetIndex.from_bytes(0, bytes(INDEX_MAX_BYTES - 8))
    assert not index.is_full
    index.append(1, 1)
    assert index.is_full


def test_empty_index_has_no_last_entry():
    assert OffsetIndex(0).last_entry is None
