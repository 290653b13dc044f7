"""The read side of a log: one set of offsets over segments, snapshots and leader epochs.

Nothing here changes the log; ``partition`` writes it.

One file: all ways to read a log, by offset, by timestamp and around damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from oncelog.storage.disk.disk_errors import is_unreadable
from oncelog.storage.exceptions import CorruptDataError, CorruptRecordError
from oncelog.storage.log.loader import LoadedLog
from oncelog.storage.log.side_files import LeaderEpochFile
from oncelog.storage.model import (
    INT64_MAX,
    NO_TIMESTAMP,
    AbortedTransaction,
    FilePart,
    ProducerSnapshotEntry,
)
from oncelog.storage.records.batch import BatchHeader, claimed_bytes, iterate_batches, parse_header
from oncelog.storage.records.codec import decode_records
from oncelog.storage.records.layout import HEADER_BYTES, LENGTH_AT, LENGTH_END
from oncelog.storage.segments.frames import SCAN_BYTES, Gap
from oncelog.storage.segments.inspection import TailDefect, batch_places, inspect_batch
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
        """Exclusive. A copy for the next checkpoint; the replica keeps the authoritative one."""

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
        self,
        offset: int,
        *,
        max_bytes: int,
        upper_offset: int,
        is_checked: bool = False,
        part_min_bytes: int = INT64_MAX,
    ) -> LogSlice:
        """Whole batches from the one that holds ``offset``, all below ``upper_offset``.

        ``upper_offset`` is exclusive; a batch that straddles it is left out. Returns as many
        batches as fit into ``max_bytes``, at least one if there is any; if none: empty, with
        ``offset``. A read ends with its segment, unless that has nothing left to read.
        ``is_checked``: verify the CRC even of what this process wrote. Of ``part_min_bytes`` or
        more it is only told where they are. ValueError for an offset outside [log start, log end];
        CorruptRecordError if the batch at ``offset`` is damaged; sound batches before damage are
        returned first. OSError if no part of a file can be read.
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
                    offset,
                    max_bytes=max_bytes,
                    upper_offset=upper_offset,
                    is_checked=is_checked,
                    part_min_bytes=part_min_bytes,
                )
            except (CorruptDataError, OSError) as error:
                if isinstance(error, OSError) and not is_unreadable(error):
                    raise
                records, next_offset = read_sound(
                    segment, offset, max_bytes=max_bytes, upper_offset=upper_offset
                )
            if isinstance(records, FilePart):
                return LogSlice(records=b"", next_offset=next_offset, file_part=records)
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
        """Replay only the batches that producer state needs, and the last batch.

        The caller already knows the state before ``snapshot_offset``. Below ``history_end``
        (exclusive, at most ``snapshot_offset``) it needs only sequences. From there to the stored
        high watermark it needs, of committed transactions, only the newest one with data and what
        follows. Batches left out may have leader epochs of their own: all epochs are in
        ``leader_epochs``. For use right after ``open``: what that has checked is not checked again.
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
        """An offset to read from to get the last ``bytes_max`` before ``offset``, or a bit more."""
        return self._segments.offset_before(offset, bytes_max)

    def latest_snapshot(self) -> tuple[int, list[ProducerSnapshotEntry]]:
        """The newest readable state and its offset, from which the caller must replay.

        It may lie below the log start: the first segment still has those batches, which are
        replayed for their producers. Without a snapshot: the first base offset and no entries.
        """
        lowest_offset = self._segments.first.base_offset
        found = self._snapshots.newest(
            lowest_offset=lowest_offset, highest_offset=self._snapshot_limit
        )
        return found if found is not None else (lowest_offset, [])


# --- by timestamp: the index finds the batch, decoding finds the record -------------------------


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

    A segment's largest timestamp is an upper bound: its record may have been compacted away, and
    then the largest that is left may be in another segment.
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
        # In a compacted batch the first record may have any offset delta.
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
    """Like ``_find_record`` for the largest timestamp, for a compacted segment: reads all of it."""
    best: tuple[int, int] | None = None
    for place in segment.walk(0):
        if best is not None and place.max_timestamp_ms <= best[1]:
            continue
        for offset, timestamp_ms in _times_of(segment.read_batch(place)):
            if offset >= lowest_offset and (best is None or timestamp_ms > best[1]):
                best = offset, timestamp_ms
    return best


def _times_of(batch: bytes) -> list[tuple[int, int]]:
    return [(record.offset, record.timestamp_ms) for record in decode_records(batch)]


# --- around damage ------------------------------------------------------------------------------
# Return the sound batches before the damage, then say where the damage ends.
#
# This is the slow path, batch by batch with every check, taken only after the fast one has failed.
# The CRC of a batch does not cover its base offset and length, so a wrong one shows only by the
# batches around it. The batch that directly follows a sound one is trusted; of two that overlap,
# the other one is damaged. The next sound batch is searched first where the damaged one claims to
# end, then in the bytes before the next index entry whose batch is sound. What the disk cannot read
# is damage as well. If it can read nothing of the file, the disk itself may be failing, perhaps
# only for a while.
#
# A search over long damage is slow, so its result is kept with the segment. So are the positions
# where sound batches were last read, since the index may end at the damage.


SEARCH_BYTES_MAX: Final = 8_388_608
"""How far beyond damage each byte is tried as the start of a batch."""

KNOWN_GAPS_MAX: Final = 64
"""Damaged places remembered per segment; beyond that the oldest is forgotten."""

SOUND_PLACES_MAX: Final = 64
"""Positions remembered per segment, beyond damage, where a sound batch begins or should."""

BLOCK_BYTES = 4_096
"""Unit of a failed read: one bad sector makes the whole page unreadable."""

_BAD_BLOCKS_MAX: Final = 16
"""Give up after this many: a disk may take seconds for each block that it cannot read."""


class _Sound(NamedTuple):
    """A sound batch at ``position`` and its bytes."""

    position: int
    header: BatchHeader
    frame: memoryview


def read_sound(
    segment: Segment, offset: int, *, max_bytes: int, upper_offset: int
) -> tuple[bytes, int]:
    """Like ``Segment.read``, but return the sound batches that end before damage.

    CorruptRecordError if ``offset`` itself is damaged: it says where to resume.
    """
    taken: list[memoryview] = []
    size, next_offset, end = 0, offset, 0
    for found in _scan_sound(segment, _start_before(segment, offset)):
        if isinstance(found, Gap):
            if found.next_offset <= offset:
                continue
            if taken or max(found.offset, offset) >= upper_offset:
                break
            raise _error(segment, found, offset)
        if found.header.next_offset <= offset:
            continue
        size += len(found.frame)
        if found.header.next_offset > upper_offset or (taken and size > max_bytes):
            break
        if not taken:
            _record_sound(segment, found.header.base_offset, found.position)
        taken.append(found.frame)
        next_offset, end = found.header.next_offset, found.position + len(found.frame)
    if taken:
        _record_sound(segment, next_offset, end)
    return b"".join(taken), next_offset


def _record_sound(segment: Segment, offset: int, position: int) -> None:
    places = segment.sound_places
    places[offset] = position
    if len(places) > SOUND_PLACES_MAX:
        del places[next(iter(places))]


def _error(segment: Segment, gap: Gap, offset: int) -> CorruptRecordError:
    first = max(gap.offset, offset)
    return CorruptRecordError(
        f"{segment.log_path} at byte {gap.position}: {gap.reason}; the records from "
        f"offset {first} to {gap.next_offset - 1} cannot be read",
        offset=first,
        next_offset=gap.next_offset,
    )


def _start_before(segment: Segment, offset: int) -> tuple[int, int]:
    """Position and lowest offset of a batch, or of damage, at or before the one with ``offset``."""
    known = (0, segment.base_offset)
    for gap in segment.known_gaps:
        if gap.next_offset <= offset:
            known = max(known, (gap.resume, gap.next_offset))
        elif gap.offset <= offset:
            return gap.position, gap.offset
    for start, position in segment.sound_places.items():
        if start <= offset:
            known = max(known, (position, start))
    for last_offset, position in segment.indexes[0].entries_before(offset):
        if position <= known[0]:
            break
        sound = _sound_at(segment, position, segment.base_offset, last_offset)
        if sound is not None:
            return position, sound.header.base_offset
    return known


def _scan_sound(segment: Segment, start: tuple[int, int]) -> Iterator[_Sound | Gap]:
    """Sound batches, and the gaps between them, up to the end of the segment."""
    position, expected = start
    while position < segment.size_bytes:
        found = _judge(segment, position, expected)
        if isinstance(found, TailDefect):
            gap = _gap(segment, position, expected, found)
            yield gap
            position, expected = gap.resume, gap.next_offset
        else:
            yield found
            position, expected = position + len(found.frame), found.header.next_offset
    if expected < segment.next_offset:
        reason = TailDefect.MISSING_RECORDS.value
        yield Gap(position, position, expected, segment.next_offset, reason)


def _judge(segment: Segment, position: int, expected: int) -> _Sound | TailDefect:
    """The batch at ``position``, or why it is not sound."""
    found = _inspect(segment, position, expected)
    if isinstance(found, TailDefect):
        return found
    if found.header.next_offset > segment.next_offset:
        return TailDefect.WRONG_OFFSET
    if found.header.base_offset > expected:
        following = _inspect(segment, position + len(found.frame), expected)
        if isinstance(following, _Sound) and following.header.base_offset < (
            found.header.next_offset
        ):
            return TailDefect.WRONG_OFFSET
    return found


def _gap(segment: Segment, position: int, expected: int, defect: TailDefect) -> Gap:
    """What is lost from ``position`` on, where the offset ``expected`` was due."""
    for known in segment.known_gaps:
        if (known.position, known.offset) == (position, expected):
            return known
    resume = _find_sound(segment, position, expected)
    if defect is TailDefect.UNREADABLE:
        _check_disk(segment, segment.size_bytes if resume is None else resume[0])
    if resume is None:
        end, next_offset = segment.size_bytes, segment.next_offset
    else:
        end, next_offset = resume
    gap = Gap(position, end, expected, next_offset, defect.value)
    segment.known_gaps = [*segment.known_gaps[1 - KNOWN_GAPS_MAX :], gap]
    return gap


def _find_sound(segment: Segment, position: int, expected: int) -> tuple[int, int] | None:
    """Position and base offset of the first sound batch after the damage at ``position``."""
    head = _read(segment, position, LENGTH_END) or b""
    if len(head) == LENGTH_END and claimed_bytes(head) >= HEADER_BYTES:
        end = position + claimed_bytes(head)
        claimed = _sound_at(segment, end, expected + 1)
        if claimed is not None:
            return end, claimed.header.base_offset
    limit, limit_offset = segment.size_bytes, segment.next_offset
    for last_offset, at in segment.indexes[0].entries_after(position):
        sound = _sound_at(segment, at, expected, last_offset)
        if sound is not None:
            limit, limit_offset = at, sound.header.base_offset
            break
    searched = _search(segment, position + 1, limit, expected, limit_offset)
    if searched is not None:
        return searched
    return (limit, limit_offset) if limit < segment.size_bytes else None


def _search(
    segment: Segment, position: int, limit: int, lowest_offset: int, upper_offset: int
) -> tuple[int, int] | None:
    """Like ``_find_sound``, between ``position`` and ``limit``."""
    end = min(limit, position + SEARCH_BYTES_MAX)
    data = _read_blocks(segment, position, end - position)
    for at in batch_places(data):
        base_offset = int.from_bytes(data[at : at + LENGTH_AT], "big", signed=True)
        if lowest_offset <= base_offset < upper_offset:
            sound = _sound_at(segment, position + at, lowest_offset)
            if sound is not None and sound.header.next_offset <= upper_offset:
                return position + at, base_offset
    return None


def _sound_at(
    segment: Segment, position: int, lowest_offset: int, last_offset: int | None = None
) -> _Sound | None:
    """The batch at ``position`` if it is intact, within the segment's offsets and ends there."""
    head = _read(segment, position, HEADER_BYTES)
    try:
        header = parse_header(head or b"")
    except CorruptDataError:
        return None
    # Check the offset first: garbage may claim any size, and reading it would be wasted.
    if not lowest_offset <= header.base_offset < header.next_offset <= segment.next_offset:
        return None
    if last_offset is not None and header.last_offset != last_offset:
        return None
    found = _inspect(segment, position, lowest_offset)
    return None if isinstance(found, TailDefect) else found


def _inspect(segment: Segment, position: int, lowest_offset: int) -> _Sound | TailDefect:
    rest = segment.size_bytes - position
    if rest <= 0:
        return TailDefect.NONE
    head = _read(segment, position, min(rest, HEADER_BYTES))
    if head is None:
        return TailDefect.UNREADABLE
    try:
        size = parse_header(head).size_bytes
    except CorruptDataError:
        size = HEADER_BYTES
    data = _read(segment, position, min(rest, size))
    if data is None:
        return TailDefect.UNREADABLE
    frame = memoryview(data)
    found = inspect_batch(frame, lowest_offset, may_skip=True)
    return found if isinstance(found, TailDefect) else _Sound(position, found, frame)


def _read(segment: Segment, position: int, size: int) -> bytes | None:
    """None if the disk cannot read these bytes."""
    try:
        return segment.log.read(position, size)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return None


def _read_blocks(segment: Segment, position: int, size: int) -> bytes:
    """What the disk can read, and zeros for the rest; ends after ``_BAD_BLOCKS_MAX`` bad blocks."""
    data = _read(segment, position, size)
    if data is not None:
        return data
    blocks: list[bytes] = []
    bad_count, end = 0, position + size
    while position < end and bad_count < _BAD_BLOCKS_MAX:
        block_size = min(BLOCK_BYTES - position % BLOCK_BYTES, end - position)
        block = _read(segment, position, block_size)
        bad_count += block is None
        blocks.append(bytes(block_size) if block is None else block)
        position += block_size
    return b"".join(blocks)


def _check_disk(segment: Segment, resume: int) -> None:
    """OSError if the disk can read nothing of the file: neither its ends nor what follows."""
    for position in (0, segment.size_bytes - 1, min(resume, segment.size_bytes - 1)):
        if _read(segment, position, 1) is not None:
            return
    segment.log.read(0, 1)
