"""Whether the end of a log looks as a power loss leaves it, or as nothing but damage can.

What was written and not synced is lost in whole sectors: each is what it became, or what it was
before, and a log only grows, so before means empty. A dying process leaves a file that ends inside
a batch. So a *torn* batch reaches past the end of its file, or has a sector that is zeros to its
end. Whatever else is wrong, a bit that flipped or bytes that are not ours, was written whole and
may have been acknowledged, however old the checkpoint is.

Two things look torn and need not be: a page of the medium that reads as zeros, and a flipped bit in
a batch that has a whole sector of zeros among its records, or only zeros in its last one. Which of
them were synced is then told by the checkpoint alone.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from oncelog.storage.record_batch import HEADER_BYTES, Buffer
from oncelog.storage.recovery import TailDefect, holds_intact_batch

SECTOR_BYTES: Final = 512
"""What a disk writes wholly or not at all, at least; aligned in the file as on the disk."""

_LENGTH_END: Final = 12
_CRC_AT: Final = 17
_CRC_BEGIN: Final = 21
_ZEROS: Final = bytes(SECTOR_BYTES)


def looks_torn(defect: TailDefect, data: Buffer, position: int, expected_offset: int) -> bool:
    """Whether a power loss or the death of a writer may have left ``defect``.

    ``data``: all bytes of the file from ``position`` on, where the batch of ``expected_offset``
    should begin.
    """
    match defect:
        case TailDefect.NONE:
            return False
        case TailDefect.MISSING_RECORDS | TailDefect.SHORT_HEADER | TailDefect.ZEROS:
            return True
        case TailDefect.SHORT_BATCH:
            return not _is_whole(data) and not holds_intact_batch(data[1:], expected_offset)
        case TailDefect.BAD_HEADER:
            return _has_empty_sector(data, position, HEADER_BYTES)
    length = int.from_bytes(data[8:_LENGTH_END], "big", signed=True)
    return _has_empty_sector(data, position, _LENGTH_END + length)


def _is_whole(data: Buffer) -> bool:
    """Whether ``data`` is one batch but for its length, which no CRC covers."""
    crc = int.from_bytes(data[_CRC_AT:_CRC_BEGIN], "big")
    return crc32c(bytes(data[_CRC_BEGIN:])) == crc


def _has_empty_sector(data: Buffer, position: int, size_bytes: int) -> bool:
    """Whether in one of its sectors a batch, and all after it, is nothing but zeros."""
    view = memoryview(data)
    at = 0
    while at < min(size_bytes, len(view)):
        end = min(at + SECTOR_BYTES - (position + at) % SECTOR_BYTES, len(view))
        if view[at:end] == _ZEROS[: end - at]:
            return True
        at = end
    return False
