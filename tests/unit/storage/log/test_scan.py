from __future__ import annotations

import pytest

from oncelog.storage.log.loader import SegmentScan
from oncelog.storage.records.batch import parse_header
from oncelog.storage.segments.segment import Segment

MIXED_SIZES = (70, 300, 5_000, 61, 4_096, 90, 2_000_000, 75, 1_048_576, 100) * 2
TIMES_MS = (5, 5, 9, 2, 9, 11, 11, 3, 40, 40)


@pytest.fixture
def segment(filesystem, tmp_path):
    made = Segment(
        filesystem=filesystem,
        directory=tmp_path,
        base_offset=0,
        next_offset=0,
        index_interval_bytes=4_096,
    )
    made.create()
    yield made
    made.close()


@pytest.fixture
def fill(segment, make_batch):
    """``fill(sizes, first_offset)`` appends batches of two records each."""

    def append(sizes, *, first_offset=0, leader_epoch=0):
        for number, size in enumerate(sizes):
            batch = make_batch(
                first_offset + 2 * number,
                2,
                size_bytes=size,
                timestamp_ms=TIMES_MS[number % len(TIMES_MS)],
                leader_epoch=leader_epoch,
            )
            segment.append(batch, parse_header(batch))

    return append


def scan(segment, *, gaps_end=0, known_epochs=()):
    epochs = []
    segment.begin_scan()
    found = SegmentScan(
        segment,
        gaps_end=gaps_end,
        leader_epochs=epochs,
        known_epochs=known_epochs,
        synced_offset=2**62,
    )
    found.run()
    return found.position, found.expected_offset, epochs


def state_of(segment):
    offsets, times = segment.indexes
    return (
        offsets.to_bytes(),
        times.to_bytes(),
        segment.max_timestamp_ms,
        segment.first_timestamp_ms,
        segment.counting.count,
    )


@pytest.mark.parametrize("sizes", [MIXED_SIZES, (100,) * 500, (16_384,) * 100])
def test_scan_leaves_the_indexes_that_the_appends_left(segment, fill, sizes):
    fill(sizes)
    appended = state_of(segment)
    assert scan(segment) == (sum(sizes), 2 * len(sizes), [(0, 0)])
    assert state_of(segment) == appended


def test_scan_stops_at_the_first_damaged_batch(segment, fill):
    fill((100,) * 50)
    segment.log.write_at(30 * 100 + 70, b"\xff")
    assert scan(segment) == (3_000, 60, [(0, 0)])


def test_scan_stops_at_a_batch_that_the_file_cuts_off(segment, fill):
    fill((100, 3_000_000))
    segment.log.truncate(2_000_000)
    assert scan(segment)[:2] == (100, 2)


def test_scan_stops_at_an_impossible_length(segment, fill):
    fill((100,) * 3)
    segment.log.write_at(108, b"\xff\xff\xff\xff")
    assert scan(segment)[:2] == (100, 2)


def test_scan_stops_at_a_gap(segment, fill):
    fill((100, 100))
    fill((100,), first_offset=10)
    assert scan(segment)[:2] == (200, 4)


def test_scan_passes_a_gap_that_compaction_may_have_left(segment, fill):
    fill((100, 100))
    fill((100,), first_offset=10)
    assert scan(segment, gaps_end=5)[:2] == (300, 12)


def test_scan_tells_where_each_leader_epoch_begins(segment, fill):
    fill((100, 100), leader_epoch=3)
    fill((100, 100), first_offset=4, leader_epoch=7)
    assert scan(segment)[2] == [(3, 0), (7, 4)]


def test_scan_stops_at_a_batch_of_another_epoch_than_its_known_one(segment, fill):
    fill((100, 100), leader_epoch=3)
    fill((100, 100), first_offset=4, leader_epoch=7)
    assert scan(segment, known_epochs=[(3, 0), (6, 4)])[:2] == (200, 4)


def test_scan_stops_where_a_segment_cannot_index_the_offset(segment, fill, make_batch):
    fill((100, 100))
    fill((100,), first_offset=2**31 - 2)
    fill((100,), first_offset=2**31)
    assert scan(segment, gaps_end=2**40)[:2] == (300, 2**31)
