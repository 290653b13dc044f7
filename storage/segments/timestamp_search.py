"""Finding the record for a timestamp: the index finds the batch, decoding it the record."""

from __future__ import annotations

from oncelog.storage.model import NO_TIMESTAMP
from oncelog.storage.records.batch import parse_header
from oncelog.storage.segments.list import SegmentList
from oncelog.storage.segments.segment import Segment


def find_timestamp(
    segments: SegmentList, timestamp_ms: int, *, lowest_offset: int, upper_offset: int
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record in [lowest, upper) with ``timestamp_ms`` or later."""
    for segment in segments.opened_from(lowest_offset):
        if segment.base_offset >= upper_offset:
            break
        found = _find_record(segment, timestamp_ms, lowest_offset)
        if found is not None:
            return found if found[0] < upper_offset else None
    return None


def find_max_timestamp(segments: SegmentList, *, lowest_offset: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record with the largest timestamp; None without any.

    A segment's largest timestamp is an upper bound: the record itself may have
    been compacted away, and the next best may be in another segment.
    """
    candidates = []
    for segment in segments.opened_from(lowest_offset):
        segment.load_times()
        if segment.max_timestamp_ms != NO_TIMESTAMP:
            candidates.append(segment)
    candidates.sort(key=lambda segment: -segment.max_timestamp_ms)
    best: tuple[int, int] | None = None
    for segment in candidates:
        if best is not None and segment.max_timestamp_ms < best[1]:
            break
        found = _find_record(segment, segment.max_timestamp_ms, lowest_offset)
        if found is None:
            found = _find_largest(segment, lowest_offset)
        if found is not None and (best is None or (-found[1], found[0]) < (-best[1], best[0])):
            best = found
    return best


def _find_record(segment: Segment, timestamp_ms: int, lowest_offset: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the segment's first record with ``timestamp_ms`` or later.

    Records below ``lowest_offset`` do not count; None if there is none. CorruptDataError if the
    batch cannot be decoded.
    """
    for place in segment.places_from_timestamp(timestamp_ms):
        if place.max_timestamp_ms < timestamp_ms or place.last_offset < lowest_offset:
            continue
        batch = segment.read_batch(place)
        header = parse_header(batch)
        # Of a compacted batch the first record may be anywhere.
        is_whole = header.record_count == header.last_offset_delta + 1
        if is_whole and header.is_log_append_time:
            return max(header.base_offset, lowest_offset), header.max_timestamp_ms
        # The first record has the base timestamp, so most searches need no decoding.
        if (
            is_whole
            and not header.has_delete_horizon
            and header.base_timestamp_ms >= timestamp_ms
            and header.base_offset >= lowest_offset
        ):
            return header.base_offset, header.base_timestamp_ms
        for offset, found_ms in _times_of(batch):
            if found_ms >= timestamp_ms and offset >= lowest_offset:
                return offset, found_ms
    return None


def _find_largest(segment: Segment, lowest_offset: int) -> tuple[int, int] | None:
    """The same for the largest timestamp, from every batch: for a compacted segment."""
    best: tuple[int, int] | None = None
    for place in segment.walk(0):
        if best is not None and place.max_timestamp_ms <= best[1]:
            continue
        for offset, timestamp_ms in _times_of(segment.read_batch(place)):
            if offset >= lowest_offset and (best is None or timestamp_ms > best[1]):
                best = offset, timestamp_ms
    return best


def _times_of(batch: bytes) -> list[tuple[int, int]]:
    # Imported here because it loads numpy and pyarrow, which no leader needs otherwise.
    from oncelog.storage.records.codec import decode_records

    return [(record.offset, record.timestamp_ms) for record in decode_records(batch)]
