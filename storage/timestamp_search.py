"""The record that a timestamp asks for: the index finds the batch, one decoded batch the record."""

from __future__ import annotations

from oncelog.storage.model import NO_TIMESTAMP
from oncelog.storage.record_batch import parse_header
from oncelog.storage.segment import Segment
from oncelog.storage.segment_list import SegmentList


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
    """(offset, timestamp) of the first record with the largest timestamp; None without any."""
    best: Segment | None = None
    for segment in segments.opened_from(lowest_offset):
        segment.load_times()
        if best is None or segment.max_timestamp_ms > best.max_timestamp_ms:
            best = segment
    if best is None or best.max_timestamp_ms == NO_TIMESTAMP:
        return None
    return _find_record(best, best.max_timestamp_ms, lowest_offset)


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
        if header.is_log_append_time:
            return max(header.base_offset, lowest_offset), header.max_timestamp_ms
        # The first record has the base timestamp, so most searches need no decoding.
        if (
            not header.has_delete_horizon
            and header.base_timestamp_ms >= timestamp_ms
            and header.base_offset >= lowest_offset
            and header.record_count
        ):
            return header.base_offset, header.base_timestamp_ms
        # Imported here because it loads numpy and pyarrow, which no leader needs otherwise.
        from oncelog.storage.record_codec import decode_records

        for record in decode_records(batch):
            if record.timestamp_ms >= timestamp_ms and record.offset >= lowest_offset:
                return record.offset, record.timestamp_ms
    return None
