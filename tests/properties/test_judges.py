"""The kernel passes only what the judges in Python pass, whatever the bytes."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

from codec_fuzz import run_of_batches
from crash_disk import CrashDisk
from hypothesis import example, given
from hypothesis import strategies as st
from record_oracle import decode_rows

from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.loader import SegmentScan
from oncelog.storage.records import compiled
from oncelog.storage.records.batch import BatchHeader, parse_header, seal
from oncelog.storage.records.client_batch import check_client_batch
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.layout import HEADER_BYTES
from oncelog.storage.segments.inspection import find_damage
from oncelog.storage.segments.segment import Segment

PASSES_NOTHING = {
    "skip_sound": lambda data, checksum, lowest_offset: (0, lowest_offset),
    "scan_batches": lambda *given: (0, given[4], (0, 0, 0), (b"",) * 4, []),
}
"""A kernel that leaves everything to the judges."""

EPOCHS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 5, 20, 2**31])), max_size=3
).map(lambda pairs: sorted(pairs, key=lambda pair: pair[1]))


def scanned(data, base_offset, gaps_end, known_epochs, interval):
    """All that a recovery scan of these bytes leaves."""
    disk, directory = CrashDisk(), Path("/log")
    disk.make_directory(directory)
    segment = Segment(
        filesystem=disk,
        directory=directory,
        base_offset=base_offset,
        next_offset=base_offset,
        index_interval_bytes=interval,
    )
    segment.create()
    segment.log.append((data,))
    segment.begin_scan()
    epochs = []
    scan = SegmentScan(
        segment,
        gaps_end=gaps_end,
        leader_epochs=epochs,
        known_epochs=known_epochs,
        synced_offset=2**62,
    )
    scan.run()
    offsets, times = segment.indexes
    return (
        scan.position,
        scan.expected_offset,
        epochs,
        offsets.to_bytes(),
        times.to_bytes(),
        segment.counting.count,
        segment.first_timestamp_ms,
    )


@given(st.integers(0, 2**64), st.sampled_from([0, 7, 2**62]))
def test_judges_alone_find_the_same_damage(seed, lowest_offset):
    data = run_of_batches(random.Random(seed))
    found = find_damage(data, lowest_offset=lowest_offset)
    with mock.patch.multiple(compiled.kernel, **PASSES_NOTHING):
        assert find_damage(data, lowest_offset=lowest_offset) == found


@given(
    st.integers(0, 2**64),
    st.sampled_from([0, 7, 2**31 - 300]),
    st.sampled_from([0, 0, 20, 2**40]),
    EPOCHS,
    st.sampled_from([0, 61, 500, 4096]),
)
@example(1, 0, 2**40, [], 0)
def test_a_scan_by_judges_alone_leaves_the_same_indexes(
    seed, base_offset, gaps_end, known_epochs, interval
):
    data = run_of_batches(random.Random(seed))
    found = scanned(data, base_offset, gaps_end, known_epochs, interval)
    with mock.patch.multiple(compiled.kernel, **PASSES_NOTHING):
        assert scanned(data, base_offset, gaps_end, known_epochs, interval) == found


EDGES = {
    8: [2**31 - 1, 2**31 - 2, -(2**31), -1, 0, 1, 10, 48, 49, 50],
    16: [-1, 0, 1, 2, 3, 130],
    21: [-(2**15), -1, 0, 1, 4, 5, 7, 8, 16, 17, 20, 32, 64, 128, 2**15 - 1],
    23: [-(2**31), -1, 0, 1, 2, 2**31 - 1],
    43: [-(2**63), -2, -1, 0, 2**63 - 1],
    51: [-(2**15), -1, 0, 2**15 - 1],
    53: [-(2**31), -1, 0, 2**31 - 1],
    57: [-(2**31), -1, 0, 1, 2, 3, 2**31 - 1],
    0: [-1, 1, 2**32],
}
"""By the place of a field what it may hold: what tells one answer from another."""

WIDTHS = {0: 8, 8: 4, 16: 1, 21: 2, 23: 4, 43: 8, 51: 2, 53: 4, 57: 4}


RECORDS = bytes.fromhex("0c000000010100" + "0c000002010100")


def checked(data, limit):
    return check_client_batch(data, message_max_bytes=limit)


def decodes(data):
    try:
        decode_rows(data[HEADER_BYTES:], parse_header(data))
    except CorruptDataError:
        return False
    return True


@given(
    st.dictionaries(st.sampled_from(sorted(EDGES)), st.integers(0, 20), max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(-70, 3),
    st.sampled_from([0, 74, 75, 76, 2**40]),
    st.one_of(st.none(), st.tuples(st.integers(0, 74), st.integers(1, 255))),
)
@example({}, False, True, 0, 75, None)
@example({}, True, True, 0, 75, None)
@example({}, True, True, -75, 75, None)
def test_an_oracle_says_the_same_of_what_a_client_sends(
    fields, is_transactional, has_crc, tail, limit, damage
):
    batch = seal(
        RECORDS,
        codec=Codec.NONE,
        record_count=2,
        base_timestamp_ms=5,
        max_timestamp_ms=6,
        producer_id=7,
        producer_epoch=0,
        base_sequence=3,
        is_transactional=is_transactional,
    )
    for place, choice in fields.items():
        value = EDGES[place][choice % len(EDGES[place])]
        width = WIDTHS[place]
        batch[place : place + width] = (value % 2 ** (8 * width)).to_bytes(width, "big")
    if has_crc:
        batch[17:21] = compiled.crc32c(bytes(batch[21:])).to_bytes(4, "big")
    if damage is not None:
        batch[damage[0]] ^= damage[1]
    data = bytes(batch[:tail] if tail < 0 else batch + bytes(tail))
    found = checked(data, limit)
    with mock.patch.object(compiled.kernel, "has_whole_records", decodes):
        assert checked(data, limit) == found
    assert isinstance(found, (BatchHeader, ErrorCode))
