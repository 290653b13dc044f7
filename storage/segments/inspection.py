"""Whether bytes of a log are its next batch, and if not, why.

Everything that walks the batches of a file asks here: reads, replay, recovery and dump.
"""

from __future__ import annotations

import enum

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    crc_matches,
    parse_header,
)
from oncelog.storage.segments.leader_epochs import LeaderEpochPairs, epoch_span


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
    UNREADABLE = "the disk does not give these bytes back"
    MISSING_RECORDS = "the next segment does not begin at the next offset"


def inspect_batch(
    frame: Buffer,
    expected_offset: int,
    *,
    may_skip: bool = False,
    leader_epochs: LeaderEpochPairs = (),
) -> BatchHeader | TailDefect:
    """The header of the batch in ``frame`` if it is whole, intact and the next one.

    ``frame`` holds the bytes that the batch claims, or all that the file has left.
    ``may_skip``: compaction may have removed batches before it, so it may begin later.
    ``leader_epochs``: as far as they are known; each was durable before its first batch was
    written.
    """
    if len(frame) < HEADER_BYTES:
        return TailDefect.SHORT_HEADER if any(frame) else TailDefect.ZEROS
    try:
        header = parse_header(frame)
    except CorruptDataError:
        return TailDefect.BAD_HEADER if any(frame[:HEADER_BYTES]) else TailDefect.ZEROS
    if header.size_bytes > len(frame):
        return TailDefect.SHORT_BATCH
    if not crc_matches(frame, header):
        return TailDefect.BAD_CRC
    # Base offset and leader epoch are not under the CRC, so damaged ones are only seen here.
    is_next = header.base_offset == expected_offset or (
        may_skip and header.base_offset > expected_offset
    )
    if not is_next or header.last_offset_delta < 0:
        return TailDefect.WRONG_OFFSET
    known_epoch, _ = epoch_span(leader_epochs, header.base_offset)
    if known_epoch is not None and header.leader_epoch != known_epoch:
        return TailDefect.WRONG_EPOCH
    return header


def holds_intact_batch(data: Buffer, lowest_offset: int) -> bool:
    """Whether an intact batch of ``lowest_offset`` or later begins anywhere in ``data``."""
    view = memoryview(data)
    whole = bytes(data)
    magic_at = whole.find(b"\x02", 16)
    while magic_at >= 0:
        start = magic_at - 16
        try:
            header = parse_header(view, start)
        except CorruptDataError:
            header = None
        if (
            header is not None
            and header.base_offset >= lowest_offset
            and crc_matches(view, header, start)
        ):
            return True
        magic_at = whole.find(b"\x02", magic_at + 1)
    return False
