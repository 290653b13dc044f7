"""The read side of a log: one set of offsets, and the segments, snapshots and epochs below them.

Nothing here changes the log; ``partition`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from oncelog.storage.disk.errors import is_unreadable
from oncelog.storage.exceptions import CorruptDataError, CorruptRecordError
from oncelog.storage.log.leader_epoch_file import LeaderEpochFile
from oncelog.storage.log.loader import LoadedLog
from oncelog.storage.log.producer_entry import ProducerSnapshotEntry
from oncelog.storage.model import NO_TIMESTAMP, AbortedTransaction
from oncelog.storage.records.batch import BatchHeader, iterate_batches, parse_header
from oncelog.storage.segments.damaged_read import read_sound
from oncelog.storage.segments.frames import SCAN_BYTES
from oncelog.storage.segments.list import LogSlice, SegmentList
from oncelog.storage.segments.segment import Segment


class ReadableLog:
    """A loaded log, readable from ``log_start_offset`` to ``log_end_offset``."""

    def __init__(self, segments: SegmentList, epochs: LeaderEpochFile, loaded: LoadedLog) -> None:
        self._segments = segments
        self._epochs = epochs
        self._snapshots = loaded.snapshots
        self._snapshot_limit = loaded.snapshot_limit
        self._checked_from = loaded.checked_from
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.segments[-1].next_offset
        self.high_watermark = loaded.high_watermark
        """Exclusive; the owner of the true one copies it here, for the next checkpoint."""

    @property
    def leader_epochs(self) -> list[tuple[int, int]]:
        """(leader epoch, its first offset) pairs, ascending."""
        return list(self._epochs.pairs)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        """The number of segments, the active one included."""
        return len(self._segments)

    def read(self, offset: int, *, max_bytes: int, upper_offset: int) -> bytes:
        """``fetch`` without the offset after the batches."""
        return self.fetch(offset, max_bytes=max_bytes, upper_offset=upper_offset).records

    def fetch(
        self, offset: int, *, max_bytes: int, upper_offset: int, is_checked: bool = False
    ) -> LogSlice:
        """Whole batches from the one that holds ``offset``, all below ``upper_offset``.

        ``upper_offset`` is exclusive and a batch that straddles it is left out. As many as fit
        into ``max_bytes``, but at least one if there is any; if none: empty, with ``offset``. Never
        reaches into the next segment unless this one has nothing. ``is_checked``: verify the CRC
        even of what this process wrote. ValueError for an offset outside [log start, log
        end]; CorruptRecordError if what is at ``offset`` is damaged: sound batches before
        damage are returned first. OSError if no part of a file can be read.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ValueError(
                f"offset {offset} is outside [{self.log_start_offset}, {self.log_end_offset}]"
            )
        for segment in self._segments.opened_from(offset):
            if segment.base_offset >= upper_offset:
                break
            try:
                records, next_offset = segment.read(
                    offset, max_bytes=max_bytes, upper_offset=upper_offset, is_checked=is_checked
                )
            except (CorruptDataError, OSError) as error:
                if isinstance(error, OSError) and not is_unreadable(error):
                    raise
                records, next_offset = read_sound(
                    segment, offset, max_bytes=max_bytes, upper_offset=upper_offset
                )
            if records:
                return LogSlice(records=records, next_offset=next_offset)
        return LogSlice(records=b"", next_offset=offset)

    def segment_end(self, offset: int) -> int:
        """Where the segment that holds ``offset`` ends (exclusive)."""
        return self._segments.holding(offset).next_offset

    def aborted_transactions(
        self, fetch_offset: int, upper_offset: int
    ) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that touch [fetch_offset, upper_offset), oldest marker first.

        Source: KIP-98, "Transaction index".
        """
        found: list[AbortedTransaction] = []
        for segment in self._segments.from_offset(fetch_offset):
            if segment.txn_index.collect(fetch_offset, upper_offset, found):
                break
        return tuple(found)

    def offset_for_timestamp(self, timestamp_ms: int, upper_offset: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with ``timestamp_ms`` or later.

        None if there is none below ``upper_offset`` (exclusive). Source: KIP-33.
        """
        return find_timestamp(
            self._segments,
            timestamp_ms,
            lowest_offset=self.log_start_offset,
            upper_offset=upper_offset,
        )

    def max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp; None if empty."""
        return find_max_timestamp(self._segments, lowest_offset=self.log_start_offset)

    def replay(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """All batches from the one that holds ``from_offset`` up to the log end, in order.

        CorruptDataError names the file and position of a batch that fails its CRC.
        """
        for segment in self._segments.opened_from(from_offset):
            yield from segment.replay(from_offset, self._epochs.pairs)

    def replay_state(
        self, from_offset: int, *, snapshot_offset: int = 0, history_end: int = 0
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """``replay`` of only what producer state is made of, and the last batch.

        The caller knows the state before ``snapshot_offset`` already. Of batches below
        ``history_end`` (exclusive), which is not above it, it needs sequences; of transactions
        between it and the high watermark that the log remembers, of those committed, the newest.
        What is left out may mention leader epochs: all of them are in ``leader_epochs``.
        For use right after ``open``: what that has read and checked is not checked again.
        """
        pairs = self._epochs.pairs
        settled = range(snapshot_offset, max(snapshot_offset, self.high_watermark))
        for segment in self._segments.opened_from(from_offset):
            is_checked = segment.base_offset >= self._checked_from
            yield from segment.replay_state(
                from_offset,
                pairs,
                is_checked=is_checked,
                history_end=history_end,
                settled=settled,
            )

    def replay_sound(
        self, from_offset: int, upper_offset: int
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The undamaged batches of ``replay`` up to ``upper_offset`` (exclusive)."""
        for segment in self._segments.opened_from(from_offset):
            if segment.base_offset >= upper_offset:
                return
            offset = max(from_offset, segment.base_offset)
            while offset < min(segment.next_offset, upper_offset):
                try:
                    records, offset = read_sound(
                        segment, offset, max_bytes=SCAN_BYTES, upper_offset=upper_offset
                    )
                except CorruptRecordError as damage:
                    offset = damage.next_offset
                    continue
                for position, header in iterate_batches(records):
                    yield header, memoryview(records)[position : position + header.size_bytes]

    def offset_before(self, offset: int, bytes_max: int) -> int:
        """Where to read from to meet the last ``bytes_max`` before ``offset``, or a bit more."""
        return self._segments.offset_before(offset, bytes_max)

    def latest_snapshot(self) -> tuple[int, list[ProducerSnapshotEntry]]:
        """The newest readable state and its offset, from which the caller must replay.

        It may lie below the log start, whose segment still has all its batches: they are replayed
        for their producers. Without one: where the first segment begins, no entries.
        """
        lowest_offset = self._segments.first.base_offset
        found = self._snapshots.newest(
            lowest_offset=lowest_offset, highest_offset=self._snapshot_limit
        )
        return found if found is not None else (lowest_offset, [])


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
