"""Whether bytes that are about to be given to a reader are still the batches that were written.

A disk may change what it holds long after the write. The CRC of a batch covers all of it but base
offset, length, leader epoch, magic and the CRC itself: of these, the two that would mislead a
reader, offset and length, are checked against the batches around.
"""

from __future__ import annotations

import struct
from typing import Final

import crc32c as _crc32c

from oncelog.storage.records import scan_kernel
from oncelog.storage.records.batch import HEADER_BYTES, MAGIC
from oncelog.storage.segments.inspection import TailDefect
from oncelog.storage.segments.leader_epochs import OFFSET_MAX

_FIELDS: Final = struct.Struct(">qi4xbI2xi")
"""Base offset, batch length, magic, CRC and last offset delta."""

_LENGTH_END: Final = 12
_CHECKED_AT: Final = 21

_DEFECTS: Final = (
    TailDefect.NONE,
    TailDefect.SHORT_HEADER,
    TailDefect.BAD_HEADER,
    TailDefect.SHORT_BATCH,
    TailDefect.BAD_CRC,
    TailDefect.WRONG_OFFSET,
)
"""By the kernel's numbers."""


def find_damage(data: bytes, *, lowest_offset: int) -> tuple[int, int, TailDefect]:
    """Where whole batches of ``data`` end, the offset after them (exclusive), and why there.

    The first may begin at ``lowest_offset`` or later, each other one where the one before it
    ended, or later: compaction leaves gaps. ``TailDefect.NONE``: all of it is good.
    """
    if scan_kernel.kernel is not None:
        at, expected, number = scan_kernel.kernel.find_damage(data, _crc32c.crc32c, lowest_offset)
        return at, expected, _DEFECTS[number]
    return _find_in_python(data, lowest_offset)


def _find_in_python(data: bytes, lowest_offset: int) -> tuple[int, int, TailDefect]:
    view, crc32c, size = memoryview(data), _crc32c.crc32c, len(data)
    at, expected = 0, lowest_offset
    while at < size:
        if size - at < HEADER_BYTES:
            return at, expected, TailDefect.SHORT_HEADER
        base_offset, length, magic, crc, delta = _FIELDS.unpack_from(data, at)
        end = at + _LENGTH_END + length
        if magic != MAGIC or end < at + HEADER_BYTES:
            return at, expected, TailDefect.BAD_HEADER
        if end > size:
            return at, expected, TailDefect.SHORT_BATCH
        if crc32c(view[at + _CHECKED_AT : end]) != crc:
            return at, expected, TailDefect.BAD_CRC
        if not (base_offset >= expected and 0 <= delta < OFFSET_MAX - base_offset):
            return at, expected, TailDefect.WRONG_OFFSET
        at, expected = end, base_offset + delta + 1
    return at, expected, TailDefect.NONE
