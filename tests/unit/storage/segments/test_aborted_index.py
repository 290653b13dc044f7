from __future__ import annotations

import dataclasses

import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import AbortedTransaction
from oncelog.storage.segments.aborted_index import AbortedIndexEntry, TxnIndex, decode_entries

FIRST = AbortedIndexEntry(producer_id=4242, first_offset=0, last_offset=9, last_stable_offset=5)
SECOND = AbortedIndexEntry(producer_id=7, first_offset=5, last_offset=12, last_stable_offset=13)


@pytest.fixture
def path(tmp_path):
    return tmp_path / f"{0:020d}.txnindex"


@pytest.fixture
def index(filesystem, path) -> TxnIndex:
    index = TxnIndex(filesystem, path)
    index.append(FIRST)
    index.append(SECOND)
    return index


def test_bytes_are_kafkas():
    assert FIRST.to_bytes() == bytes.fromhex(
        "0000 0000000000001092 0000000000000000 0000000000000009 0000000000000005"
    )


def test_file_is_made_on_first_use(filesystem, path):
    index = TxnIndex(filesystem, path)
    index.load()
    index.distrust()
    assert index.drop_stale() is None
    assert not path.exists()
    index.append(FIRST)
    assert path.read_bytes() == FIRST.to_bytes()


def test_entries_come_back(index, filesystem, path):
    again = TxnIndex(filesystem, path)
    again.load()
    assert again.entries == (FIRST, SECOND)


def test_what_is_distrusted_is_written_over_and_not_before(index, filesystem, path):
    before = path.read_bytes()
    index.distrust()
    assert (index.entries, path.read_bytes()) == ((), before)
    index.append(SECOND)
    assert path.read_bytes() == SECOND.to_bytes()
    index.distrust()
    assert index.drop_stale() is not None
    assert path.read_bytes() == b""
    assert index.drop_stale() is None


def test_known_entry_is_not_written_again(index, path):
    assert index.append(FIRST) is None
    assert index.append(SECOND) is None
    assert path.stat().st_size == 68


def test_missing_earlier_entry_is_refused(index):
    late = AbortedIndexEntry(producer_id=1, first_offset=1, last_offset=11, last_stable_offset=12)
    with pytest.raises(CorruptDataError, match="no entry for the marker at 11"):
        index.append(late)


def entry(**fields: int) -> bytes:
    return dataclasses.replace(FIRST, **fields).to_bytes()


@pytest.mark.parametrize(
    "data",
    [
        FIRST.to_bytes()[:-1],
        b"\x00\x01" + FIRST.to_bytes()[2:],
        SECOND.to_bytes() + FIRST.to_bytes(),
        FIRST.to_bytes() * 2,
        bytes(34),
        FIRST.to_bytes() + bytes(34),
        entry(producer_id=-1),
        entry(first_offset=-1),
        entry(first_offset=9),
        entry(last_stable_offset=-1),
        entry(last_stable_offset=11),
    ],
)
def test_impossible_file_is_refused(filesystem, path, data):
    with pytest.raises(CorruptDataError, match="aborted index"):
        decode_entries(data)
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match=str(path)):
        TxnIndex(filesystem, path).load()


@pytest.mark.parametrize(
    ("fetch_offset", "upper_offset", "producers", "is_done"),
    [
        (0, 3, [4242], True),
        (0, 6, [4242, 7], True),
        (6, 13, [4242, 7], True),
        (10, 13, [7], True),
        (10, 14, [7], False),
        (13, 20, [], False),
    ],
)
def test_collect_gives_what_touches_the_range_and_stops_early(
    index, fetch_offset, upper_offset, producers, is_done
):
    found: list[AbortedTransaction] = []
    assert index.collect(fetch_offset, upper_offset, found) is is_done
    assert [item.producer_id for item in found] == producers


def test_truncation_drops_the_markers_at_or_after_the_offset(index, path):
    assert index.truncate_to(13) is None
    assert index.truncate_to(12) is not None
    assert index.entries == (FIRST,)
    assert path.read_bytes() == FIRST.to_bytes()


def test_append_after_truncation_follows_the_kept_entries(index, path):
    index.truncate_to(12)
    index.append(SECOND)
    assert decode_entries(path.read_bytes()) == [FIRST, SECOND]


def test_file_is_only_taken_if_it_is_what_it_was(index, filesystem, path):
    expected = index.crc32c
    assert TxnIndex(filesystem, path).load_if(expected)
    assert not TxnIndex(filesystem, path).load_if(0)
    path.write_bytes(path.read_bytes()[:-34])
    assert not TxnIndex(filesystem, path).load_if(expected)
    path.unlink()
    assert not TxnIndex(filesystem, path).load_if(expected)
    assert TxnIndex(filesystem, path).load_if(0)


def test_settled_index_takes_nothing_new(index):
    before = index.entries
    index.is_complete = True
    assert index.append(before[-1]) is None
    later = AbortedIndexEntry(
        producer_id=9, first_offset=90, last_offset=99, last_stable_offset=100
    )
    assert index.append(later) is None
    assert index.entries == before
