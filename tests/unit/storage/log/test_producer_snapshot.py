from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.producer_snapshot import SnapshotStore, decode_snapshot, encode_snapshot
from oncelog.storage.model import ProducerSnapshotEntry

ENTRY = ProducerSnapshotEntry(
    producer_id=4242,
    producer_epoch=1,
    last_sequence=11,
    last_offset=8,
    offset_delta=1,
    timestamp_ms=1_700_000_000_005,
    coordinator_epoch=5,
    current_txn_first_offset=7,
)
OTHER = ProducerSnapshotEntry(producer_id=7)
ENDED = ProducerSnapshotEntry(
    producer_id=4243,
    producer_epoch=4,
    last_sequence=11,
    last_offset=8,
    offset_delta=1,
    timestamp_ms=1_700_000_000_006,
    coordinator_epoch=5,
    batch_epoch=1,
)
"""A marker has raised its epoch above that of its newest batch."""


def test_layout_is_kafkas():
    body = bytes.fromhex(
        "00000001 0000000000001092 0001 0000000b 0000000000000008 00000001"
        "0000018bcfe56805 00000005 0000000000000007"
    )
    assert encode_snapshot([ENTRY]) == struct.pack(">hI", 1, crc32c(body)) + body


def test_entries_come_back():
    assert decode_snapshot(encode_snapshot([ENTRY, OTHER])) == [ENTRY, OTHER]
    assert decode_snapshot(encode_snapshot([])) == []


def test_a_batch_of_an_older_epoch_has_an_entry_of_its_own_before_the_producers():
    """A reader that keeps the last entry of a producer sees one without a batch."""
    body = bytes.fromhex(
        "00000002"
        "0000000000001093 0001 0000000b 0000000000000008 00000001"
        "0000018bcfe56806 00000005 ffffffffffffffff"
        "0000000000001093 0004 ffffffff ffffffffffffffff 00000000"
        "0000018bcfe56806 00000005 ffffffffffffffff"
    )
    assert encode_snapshot([ENDED]) == struct.pack(">hI", 1, crc32c(body)) + body
    both = [OTHER, ENDED, ENTRY]
    assert decode_snapshot(encode_snapshot(both)) == both
    assert decode_snapshot(encode_snapshot([ENDED.without_batch()])) == [ENDED.without_batch()]


def test_every_cut_and_every_damaged_byte_is_noticed():
    data = encode_snapshot([ENTRY, OTHER])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        for broken in (data[:position], bytes(damaged)):
            with pytest.raises(CorruptDataError):
                decode_snapshot(broken)


def test_count_that_does_not_fit_is_refused_despite_its_crc():
    checked = struct.pack(">i", 3)
    with pytest.raises(CorruptDataError, match="3 entries"):
        decode_snapshot(struct.pack(">hI", 1, crc32c(checked)) + checked)


@pytest.fixture
def store(filesystem, tmp_path) -> SnapshotStore:
    store = SnapshotStore(filesystem, tmp_path)
    store.write(10, [OTHER]).close()
    store.write(20, [ENTRY]).close()
    return store


def test_newest_in_the_range_is_given(store):
    assert store.newest(lowest_offset=0, highest_offset=20) == (20, [ENTRY])
    assert store.newest(lowest_offset=0, highest_offset=19) == (10, [OTHER])
    assert store.newest(lowest_offset=11, highest_offset=19) is None


def test_files_are_found_again(store, filesystem, tmp_path):
    (tmp_path / "nonsense.snapshot").write_bytes(b"")
    assert SnapshotStore(filesystem, tmp_path).offsets == (10, 20)
    assert (tmp_path / f"{20:020d}.snapshot").exists()


def test_damaged_snapshot_is_removed_and_the_older_one_given(store, tmp_path):
    path = tmp_path / f"{20:020d}.snapshot"
    path.write_bytes(path.read_bytes()[:-1])
    assert store.newest(lowest_offset=0, highest_offset=99) == (10, [OTHER])
    assert not path.exists()
    assert store.offsets == (10,)


def test_snapshot_that_is_there_is_not_written_over(store):
    assert store.write(20, [OTHER]) is None
    assert store.newest(lowest_offset=0, highest_offset=99) == (20, [ENTRY])


def test_damaged_snapshot_is_written_over(store):
    path = store.path_of(20)
    path.write_bytes(path.read_bytes()[:-1])
    store.write(20, [OTHER]).close()
    assert store.offsets == (10, 20)
    assert store.newest(lowest_offset=0, highest_offset=99) == (20, [OTHER])
