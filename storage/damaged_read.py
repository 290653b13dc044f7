"""Reading a segment in which something is damaged: what is sound before it, then where it ends.

The slow way, batch by batch with every check, which is gone only after the fast one has failed.
Base offset and length of a batch are not under its CRC. A wrong one shows by the batches around:
what follows directly on a sound batch is believed, and of two that overlap the one that does not.
Beyond the damage the next sound batch is looked for where the damaged one claims to end, then in
the bytes before the next index entry whose batch is sound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from oncelog.storage.exceptions import CorruptDataError, CorruptRecordError
from oncelog.storage.record_batch import HEADER_BYTES, BatchHeader, parse_header
from oncelog.storage.recovery import TailDefect, inspect_batch
from oncelog.storage.segment import Segment
from oncelog.storage.segment_frames import LENGTH_FIELD_END

SEARCH_BYTES_MAX: Final = 8_388_608
"""How far beyond damage every byte is tried for the beginning of a batch."""


class _Gap(NamedTuple):
    """Damage at ``position``: offsets from ``offset`` to ``next_offset`` (exclusive) are lost.

    The next sound batch, if there is one in the segment, begins at ``resume``.
    """

    position: int
    resume: int
    offset: int
    next_offset: int
    reason: str


class _Sound(NamedTuple):
    """A sound batch and its bytes."""

    header: BatchHeader
    frame: memoryview


def read_sound(
    segment: Segment, offset: int, *, max_bytes: int, upper_offset: int
) -> tuple[bytes, int]:
    """As ``Segment.read``, but sound batches that end before damage are given.

    CorruptRecordError if damage is what stands at ``offset``: it says where to go on.
    """
    taken: list[memoryview] = []
    size, next_offset = 0, offset
    for found in _go_over(segment, _start_before(segment, offset)):
        if isinstance(found, _Gap):
            if found.next_offset <= offset:
                continue
            if taken or max(found.offset, offset) >= upper_offset:
                break
            raise CorruptRecordError(
                f"{segment.log_path} at byte {found.position}: {found.reason}; the records from "
                f"offset {max(found.offset, offset)} to {found.next_offset - 1} cannot be read",
                offset=max(found.offset, offset),
                next_offset=found.next_offset,
            )
        if found.header.next_offset <= offset:
            continue
        size += len(found.frame)
        if found.header.next_offset > upper_offset or (taken and size > max_bytes):
            break
        taken.append(found.frame)
        next_offset = found.header.next_offset
    return b"".join(taken), next_offset


def _start_before(segment: Segment, offset: int) -> tuple[int, int]:
    """Position and least offset of a batch at or before the one that holds ``offset``."""
    for last_offset, position in segment.indexes[0].entries_before(offset):
        sound = _sound_at(segment, position, segment.base_offset)
        if sound is not None and sound.header.last_offset == last_offset:
            return position, sound.header.base_offset
    return 0, segment.base_offset


def _go_over(segment: Segment, start: tuple[int, int]) -> Iterator[_Sound | _Gap]:
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
        yield _Gap(position, position, expected, segment.next_offset, reason)


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


def _gap(segment: Segment, position: int, expected: int, defect: TailDefect) -> _Gap:
    """What is lost from ``position`` on, where the offset ``expected`` was due."""
    resume = _find_sound(segment, position, expected)
    if resume is None:
        end, next_offset = segment.size_bytes, segment.next_offset
    else:
        end, next_offset = resume
    return _Gap(position, end, expected, next_offset, defect.value)


def _find_sound(segment: Segment, position: int, expected: int) -> tuple[int, int] | None:
    """Position and base offset of the first sound batch after the damage at ``position``."""
    length = int.from_bytes(
        segment.log.read(position + LENGTH_FIELD_END - 4, 4), "big", signed=True
    )
    if length >= HEADER_BYTES - LENGTH_FIELD_END:
        claimed = _sound_at(segment, position + LENGTH_FIELD_END + length, expected + 1)
        if claimed is not None:
            return position + LENGTH_FIELD_END + length, claimed.header.base_offset
    limit, limit_offset = segment.size_bytes, segment.next_offset
    for last_offset, at in segment.indexes[0].entries_after(position):
        sound = _sound_at(segment, at, expected)
        if sound is not None and sound.header.last_offset == last_offset:
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
    data = segment.log.read(position, end - position)
    magic_at = data.find(b"\x02", 16)
    while magic_at >= 0:
        at = magic_at - 16
        base_offset = int.from_bytes(data[at : at + 8], "big", signed=True)
        if lowest_offset <= base_offset < upper_offset:
            sound = _sound_at(segment, position + at, lowest_offset)
            if sound is not None and sound.header.next_offset <= upper_offset:
                return position + at, base_offset
        magic_at = data.find(b"\x02", magic_at + 1)
    return None


def _sound_at(segment: Segment, position: int, lowest_offset: int) -> _Sound | None:
    """The batch at ``position`` if it is intact and within the segment's offsets."""
    found = _inspect(segment, position, lowest_offset)
    if isinstance(found, TailDefect) or found.header.next_offset > segment.next_offset:
        return None
    return found


def _inspect(segment: Segment, position: int, lowest_offset: int) -> _Sound | TailDefect:
    rest = segment.size_bytes - position
    if rest <= 0:
        return TailDefect.NONE
    head = segment.log.read(position, min(rest, HEADER_BYTES))
    try:
        size = parse_header(head).size_bytes
    except CorruptDataError:
        size = HEADER_BYTES
    frame = memoryview(segment.log.read(position, min(rest, size)))
    found = inspect_batch(frame, lowest_offset, may_skip=True)
    return found if isinstance(found, TailDefect) else _Sound(found, frame)
