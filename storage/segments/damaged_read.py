"""Reading a damaged segment: the sound batches before the damage, then where it ends.

This is the slow path, batch by batch with every check, taken only after the fast one has failed.
The CRC of a batch does not cover its base offset and length, so a wrong one shows only by the
batches around it: the one that directly follows a sound batch is believed, and of two that overlap
the other one is damaged. Beyond the damage, the next sound batch is sought first where the
damaged one claims to end, then in the bytes before the next index entry whose batch is sound. What
the disk cannot read is damage as well, unless it can read nothing of the file: then the disk itself
may be failing, perhaps only for a while.

A search over long damage takes long, so its result is kept with the segment for as long as
the damage is there. So are the places where sound batches were last read, since the index may end
at the damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from oncelog.storage.disk.errors import is_unreadable
from oncelog.storage.exceptions import CorruptDataError, CorruptRecordError
from oncelog.storage.records.batch import BatchHeader, claimed_bytes, parse_header
from oncelog.storage.records.layout import HEADER_BYTES, LENGTH_AT, LENGTH_END
from oncelog.storage.segments.frames import Gap
from oncelog.storage.segments.inspection import TailDefect, batch_places, inspect_batch
from oncelog.storage.segments.segment import Segment

SEARCH_BYTES_MAX: Final = 8_388_608
"""How far beyond damage every byte is tried for the beginning of a batch."""

KNOWN_GAPS_MAX: Final = 64
"""Damaged places remembered per segment; beyond that the oldest is forgotten."""

SOUND_PLACES_MAX: Final = 64
"""The same for places beyond damage where a sound batch begins, or should."""

BLOCK_BYTES = 4_096
"""What a disk that cannot read one sector fails to return: a whole page of memory."""

_BAD_BLOCKS_MAX: Final = 16
"""A disk may take seconds over each block that it cannot read."""


class _Sound(NamedTuple):
    """A sound batch at ``position`` and its bytes."""

    position: int
    header: BatchHeader
    frame: memoryview


def read_sound(
    segment: Segment, offset: int, *, max_bytes: int, upper_offset: int
) -> tuple[bytes, int]:
    """As ``Segment.read``, but sound batches that end before damage are given.

    CorruptRecordError if ``offset`` itself is damaged: it says where to resume.
    """
    taken: list[memoryview] = []
    size, next_offset, end = 0, offset, 0
    for found in _go_over(segment, _start_before(segment, offset)):
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
            _note_sound(segment, found.header.base_offset, found.position)
        taken.append(found.frame)
        next_offset, end = found.header.next_offset, found.position + len(found.frame)
    if taken:
        _note_sound(segment, next_offset, end)
    return b"".join(taken), next_offset


def _note_sound(segment: Segment, offset: int, position: int) -> None:
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
    """Position and least offset of a batch, or of damage, at or before what holds ``offset``."""
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


def _go_over(segment: Segment, start: tuple[int, int]) -> Iterator[_Sound | Gap]:
    """Sound batches and what is damaged between them, up to the end of the segment."""
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
    """The same among the bytes from ``position`` to ``limit``."""
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
    # These bytes may claim any size, which is not worth reading for a wrong offset.
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
