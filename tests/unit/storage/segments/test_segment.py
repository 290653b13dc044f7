from __future__ import annotations

import os

import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import FilePart
from oncelog.storage.records.batch import parse_header
from oncelog.storage.segments.frames import holds_from, read_batches
from oncelog.storage.segments.inspection import whole_header
from oncelog.storage.segments.segment import Segment


@pytest.fixture
def segment(filesystem, tmp_path, make_batch):
    """Ten batches of two records and 100 bytes: offsets 40 to 59, an index entry per 200 bytes."""
    segment = Segment(
        filesystem=filesystem,
        directory=tmp_path,
        base_offset=40,
        next_offset=40,
        index_interval_bytes=199,
    )
    segment.create()
    for base_offset in range(40, 60, 2):
        batch = make_batch(base_offset, 2, timestamp_ms=10 * base_offset)
        segment.append(batch, parse_header(batch))
    yield segment
    segment.close()


def copy_of(segment: Segment, filesystem, tmp_path) -> Segment:
    copy = Segment(
        filesystem=filesystem,
        directory=tmp_path,
        base_offset=40,
        next_offset=40,
        index_interval_bytes=199,
    )
    copy.attach()
    return copy


def test_index_has_an_entry_per_interval_with_the_batch_that_passed_it(segment):
    offsets, times = segment.indexes
    assert offsets.to_bytes() == b"".join(
        last.to_bytes(4, "big") + position.to_bytes(4, "big")
        for last, position in ((5, 200), (9, 400), (13, 600), (17, 800))
    )
    assert times.last_entry == (560, 57)


def test_written_indexes_are_used_by_the_next_owner(segment, filesystem, tmp_path):
    for handle in segment.write_sealed([(3, 0), (4, 50)]):
        handle.close()
    copy = copy_of(segment, filesystem, tmp_path)
    copy.attach()
    copy.load_summary()
    assert copy.summary == segment.summary
    assert copy.summary.leader_epochs == ((3, 0), (4, 50))
    copy.load_tail()
    assert copy.next_offset == 60
    assert copy.max_timestamp_ms == 580
    assert copy.first_timestamp_ms == 400
    assert copy.indexes[0].to_bytes() == segment.indexes[0].to_bytes()
    copy.close()


def test_rebuilt_indexes_equal_those_of_the_appends(segment, filesystem, tmp_path):
    copy = copy_of(segment, filesystem, tmp_path)
    assert copy.indexes[0].to_bytes() == segment.indexes[0].to_bytes()
    assert copy.indexes[1].to_bytes() == segment.indexes[1].to_bytes()
    copy.close()


def test_released_segment_reads_on(segment):
    segment.release()
    assert not segment.is_open
    assert segment.read(51, max_bytes=100, upper_offset=60)[1] == 52


def test_closed_segment_does_not_open_again(segment):
    segment.close()
    with pytest.raises(OSError, match="closed"):
        segment.read(51, max_bytes=100, upper_offset=60)


def test_removed_segment_leaves_no_file(segment, tmp_path):
    for handle in segment.write_sealed([]):
        handle.close()
    segment.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("offset", "end", "next_offset"), [(40, 0, 40), (41, 0, 40), (42, 100, 42), (59, 900, 58)]
)
def test_position_after_is_the_end_of_the_last_batch_below(segment, offset, end, next_offset):
    assert segment.position_after(offset) == (end, next_offset)


def test_batches_are_given_once_each(segment):
    assert [
        (position, len(batch))
        for position, _, batch in read_batches(segment.log_file, 300, whole_header)
    ] == [(position, 100) for position in range(300, 1_000, 100)]


@pytest.mark.parametrize("length", [2**31 - 1, 0, -5, 10**6])
def test_impossible_length_ends_a_replay_with_its_position(segment, length):
    segment.log.write_at(308, length.to_bytes(4, "big", signed=True))
    with pytest.raises(CorruptDataError, match="at byte 300"):
        list(segment.replay(40))


def test_file_that_became_shorter_is_reported(segment):
    segment.log.truncate(950)
    with pytest.raises(CorruptDataError, match="the file has become shorter"):
        segment.read(40, max_bytes=10_000, upper_offset=60)


def test_header_that_leads_nowhere_is_reported_with_its_position(segment):
    segment.log.write_at(908, bytes(4))
    with pytest.raises(CorruptDataError, match=r"\.log at byte 900: no batch header"):
        segment.read(59, max_bytes=100, upper_offset=60)


def part_of(segment: Segment, offset: int, part_min_bytes: int) -> bytes | FilePart:
    found, next_offset = segment.read(
        offset, max_bytes=300, upper_offset=60, part_min_bytes=part_min_bytes
    )
    assert isinstance(found, bytes) or found.next_offset == next_offset
    return found


def test_many_bytes_are_only_told_of_and_lie_where_that_says(segment, tmp_path):
    part, data = part_of(segment, 44, 300), part_of(segment, 44, 301)
    assert isinstance(part, FilePart)
    status = os.stat(part.path)
    assert (part.device, part.inode) == (status.st_dev, status.st_ino)
    content = next(tmp_path.glob("*.log")).read_bytes()
    assert content[part.position : part.position + part.size_bytes] == data
    assert len(data) == 300


def test_what_an_earlier_process_wrote_is_checked_before_it_is_told_of(
    segment, filesystem, tmp_path
):
    for handle in segment.write_sealed([]):
        handle.close()
    copy = copy_of(segment, filesystem, tmp_path)
    copy.load_tail()
    assert isinstance(part_of(copy, 44, 300), FilePart)
    segment.log.write_at(290, b"damage")
    with pytest.raises(CorruptDataError, match="at byte 200"):
        part_of(copy, 44, 300)
    copy.close()


@pytest.mark.parametrize(
    ("begin", "offset", "next_offset", "holds"),
    [
        (0, 40, 50, True),
        (0, 41, 50, True),
        # Compaction has removed what comes before.
        (0, 39, 50, True),
        (0, 42, 50, False),
        (0, 39, 40, False),
        (1, 41, 50, False),
        (60, 41, 50, False),
        (950, 59, 60, False),
    ],
)
def test_bytes_that_begin_elsewhere_are_not_taken_for_a_batch(
    segment, tmp_path, begin, offset, next_offset, holds
):
    content = next(tmp_path.glob("*.log")).read_bytes()
    assert holds_from(content[begin:], offset, next_offset) is holds
