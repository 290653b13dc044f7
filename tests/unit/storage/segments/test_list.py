from __future__ import annotations

import pytest

from oncelog.storage.disk.sync_point import SyncLedger
from oncelog.storage.records.batch import parse_header
from oncelog.storage.segments.list import SegmentList
from oncelog.storage.segments.segment import Segment


@pytest.fixture
def ledger(filesystem, tmp_path) -> SyncLedger:
    return SyncLedger(filesystem, tmp_path)


@pytest.fixture
def segments(filesystem, tmp_path, make_batch, ledger):
    """Twenty segments of one batch with ten records each."""

    def make(base_offset: int) -> Segment:
        segment = Segment(
            filesystem=filesystem,
            directory=tmp_path,
            base_offset=base_offset,
            next_offset=base_offset,
            index_interval_bytes=4_096,
        )
        segment.create()
        batch = make_batch(base_offset, 10)
        segment.append(batch, parse_header(batch))
        return segment

    segments = SegmentList([make(0)], ledger, open_sealed_max=8)
    for base_offset in range(10, 200, 10):
        segments.add(make(base_offset))
    yield segments
    segments.close()


def test_segment_is_found_by_offset(segments):
    assert [segments.holding(offset).base_offset for offset in (-5, 0, 9, 10, 199, 500)] == [
        0,
        0,
        0,
        10,
        190,
        190,
    ]


def test_segments_from_an_offset_come_in_order(segments):
    assert [segment.base_offset for segment in segments.from_offset(175)] == [170, 180, 190]


def test_only_the_latest_used_sealed_segments_stay_open(segments):
    opened = [segment.base_offset for segment in segments.from_offset(0) if segment.is_open]
    assert opened == [110, 120, 130, 140, 150, 160, 170, 180, 190]


def test_reading_opens_and_releases(segments):
    for segment in segments.opened_from(0):
        assert segment.read(segment.base_offset, max_bytes=1, upper_offset=999)[0]
    assert sum(segment.is_open for segment in segments.from_offset(0)) == 9


def test_unsynced_segment_stays_open(segments, ledger):
    first = segments.holding(0)
    ledger.mark_written(first.log)
    for segment in segments.opened_from(0):
        assert segment.log is not None
    assert first.is_open


def test_removal_keeps_the_segment_that_holds_the_offset(segments, ledger, tmp_path):
    ledger.mark_written(segments.active.log)
    segments.cut(25, 0, 20)
    assert segments.active.base_offset == 20
    assert len(segments) == 3
    assert sorted(path.name for path in tmp_path.glob("*.log"))[-1] == f"{20:020d}.log"
    ledger.capture(0, 0).run()
    assert segments.size_bytes == 200


def test_large_indexes_are_not_all_kept_in_memory(filesystem, tmp_path, make_batch, ledger):
    def make(base_offset: int) -> Segment:
        segment = Segment(
            filesystem=filesystem,
            directory=tmp_path,
            base_offset=base_offset,
            next_offset=base_offset,
            index_interval_bytes=0,
        )
        segment.create()
        for offset in range(base_offset, base_offset + 10):
            batch = make_batch(offset)
            segment.append(batch, parse_header(batch))
        return segment

    # Nine entries of eight bytes and a time entry of twelve each: two fit, and a new one.
    segments = SegmentList([make(0)], ledger, index_bytes_max=200)
    for base_offset in range(10, 100, 10):
        segments.add(make(base_offset))
    assert [segment.base_offset for segment in segments.from_offset(0) if segment.is_open] == [
        70,
        80,
        90,
    ]
    segments.close()
