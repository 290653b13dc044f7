"""Decide whether bytes of a log are its next batch, and if not, why.

Reads, replay, recovery and dump all use it. A disk may change bytes long after the write. The CRC
of a batch covers all of it but base offset, length, leader epoch, magic and the CRC itself. Of
these, offset and epoch are checked against the batches around it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records import compiled
from oncelog.storage.records.batch import BatchHeader, Buffer, crc_matches, parse_header
from oncelog.storage.records.layout import HEADER_BYTES, MAGIC, MAGIC_AT
from oncelog.storage.segments.leader_epochs import OFFSET_MAX, LeaderEpochPairs, epoch_span

_MAGIC: Final = bytes((MAGIC,))


class TailDefect(enum.Enum):
    """Why the next bytes of a log are not its next batch."""

    NONE = "the log ends here"
    SHORT_HEADER = "the file ends inside a batch header"
    SHORT_BATCH = "the file ends inside a batch"
    ZEROS = "a batch length of zero: the disk lost these bytes"
    BAD_HEADER = "no batch header of format version 2"
    BAD_CRC = "the batch does not match its CRC"
    WRONG_OFFSET = "the batch does not begin at the next offset"
    WRONG_EPOCH = "the batch is not of the leader epoch that wrote at its offset"
    UNREADABLE = "the disk cannot read these bytes"
    MISSING_RECORDS = "the next segment does not begin at the next offset"


def whole_header(frame: Buffer) -> BatchHeader | TailDefect:
    """The header in ``frame`` if it is plausible and the batch is whole; the CRC is not checked."""
    if len(frame) < HEADER_BYTES:
        return TailDefect.SHORT_HEADER if any(frame) else TailDefect.ZEROS
    try:
        header = parse_header(frame)
    except CorruptDataError:
        return TailDefect.BAD_HEADER if any(frame[:HEADER_BYTES]) else TailDefect.ZEROS
    return header if header.size_bytes <= len(frame) else TailDefect.SHORT_BATCH


def inspect_batch(
    frame: Buffer,
    expected_offset: int,
    *,
    may_skip: bool = False,
    leader_epochs: LeaderEpochPairs = (),
) -> BatchHeader | TailDefect:
    """The header of the batch in ``frame`` if it is whole, intact and the next one.

    ``frame`` holds the bytes that the batch claims, or all that the file has left. ``may_skip``:
    compaction may have removed batches before it, so it may begin later. ``leader_epochs``: those
    known; each was durable before its first batch was written.
    """
    header = whole_header(frame)
    if isinstance(header, TailDefect):
        return header
    if not crc_matches(frame, header):
        return TailDefect.BAD_CRC
    # Base offset and leader epoch are not under the CRC, so damaged ones are only seen here.
    is_next = header.base_offset == expected_offset or (
        may_skip and header.base_offset > expected_offset
    )
    if not (is_next and 0 <= header.last_offset_delta < OFFSET_MAX - header.base_offset):
        return TailDefect.WRONG_OFFSET
    known_epoch, _ = epoch_span(leader_epochs, header.base_offset)
    if known_epoch is not None and header.leader_epoch != known_epoch:
        return TailDefect.WRONG_EPOCH
    return header


def find_damage(data: bytes, *, lowest_offset: int) -> tuple[int, int, TailDefect]:
    """Position where whole batches of ``data`` end, the offset after them (exclusive), and why.

    The first may begin at ``lowest_offset`` or later, each other one where the one before it
    ended, or later: compaction leaves gaps. ``TailDefect.NONE``: all of it is good.
    """
    view = memoryview(data)
    at, expected = compiled.kernel.skip_sound(data, crc32c, lowest_offset)
    while at < len(data):
        found = inspect_batch(view[at:], expected, may_skip=True)
        if isinstance(found, TailDefect):
            return at, expected, found
        at, expected = at + found.size_bytes, found.next_offset
    return at, expected, TailDefect.NONE


def batch_places(data: bytes) -> Iterator[int]:
    """Positions in ``data`` where a batch may begin, because the magic byte matches."""
    magic_at = data.find(_MAGIC, MAGIC_AT)
    while magic_at >= 0:
        yield magic_at - MAGIC_AT
        magic_at = data.find(_MAGIC, magic_at + 1)


def holds_intact_batch(data: Buffer, lowest_offset: int) -> bool:
    """Whether an intact batch of ``lowest_offset`` or later begins anywhere in ``data``."""
    view = memoryview(data)
    for at in batch_places(bytes(data)):
        header = whole_header(view[at:])
        if (
            isinstance(header, BatchHeader)
            and header.base_offset >= lowest_offset
            and crc_matches(view, header, at)
        ):
            return True
    return False
