"""Whether the end of a log is as a power loss can leave it, or only damage can.

What was written and not synced is lost in whole sectors: each has its new content or its old,
and since a log only grows, its old content is empty. A dying process leaves a file that ends inside
a batch. So a *torn* batch extends past the end of its file, or has a sector that is zeros to its
end. Anything else wrong, such as a flipped bit or foreign bytes, was written whole and
may have been acknowledged, however old the checkpoint is.

A batch may well contain a whole sector of zeros. Therefore what one flipped bit explains
was written whole, whatever zeros there are: the CRC says where that bit would be, if anywhere. For
a torn batch it says so by chance, once in 2^32 / (8 * its size).

Two things look torn but need not be: a page of the medium that reads as zeros, and several flipped
bits in a batch with a sector of zeros. Then only the checkpoint says which of them were synced.
"""

from __future__ import annotations

from math import isqrt
from typing import Final

from crc32c import crc32c

from oncelog.storage.records.batch import Buffer, claimed_bytes
from oncelog.storage.records.layout import (
    CHECKED_AT,
    CRC_AT,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_END,
    MAGIC,
    MAGIC_AT,
)
from oncelog.storage.segments.inspection import TailDefect, holds_intact_batch

SECTOR_BYTES: Final = 512
"""The least that a disk writes wholly or not at all; aligned in the file as on the disk."""

_OFFSET_BYTES: Final = LENGTH_AT
_ZEROS: Final = bytes(SECTOR_BYTES)

_POLYNOMIAL: Final = 0x82F63B78
"""That of CRC-32C, reflected: what the last bit under a CRC contributes to it."""
_ALL_BITS: Final = 0xFFFF_FFFF


def looks_torn(defect: TailDefect, data: Buffer, position: int, expected_offset: int) -> bool:
    """Whether a power loss or the death of a writer may have left ``defect``.

    ``data``: all bytes of the file from ``position`` on, where the batch of ``expected_offset``
    should begin.
    """
    match defect:
        case TailDefect.NONE | TailDefect.WRONG_EPOCH:
            # An intact CRC: no sector is lost that holds more than a part of the base offset.
            return False
        case TailDefect.UNREADABLE:
            # The medium has failed, which a power loss does not cause.
            return False
        case TailDefect.MISSING_RECORDS | TailDefect.SHORT_HEADER | TailDefect.ZEROS:
            return True
        case TailDefect.WRONG_OFFSET:
            return _has_lost_offset(data, position, expected_offset)
        case TailDefect.SHORT_BATCH:
            may_be_torn = not holds_intact_batch(data[1:], expected_offset)
        case TailDefect.BAD_HEADER:
            may_be_torn = _has_empty_sector(data, position, HEADER_BYTES)
        case TailDefect.BAD_CRC:
            may_be_torn = _has_empty_sector(data, position, claimed_bytes(data))
    return may_be_torn and not _is_whole_but_for_a_bit(data)


def _has_lost_offset(data: Buffer, position: int, expected_offset: int) -> bool:
    """Whether the first bytes of the base offset are the end of a lost sector."""
    lost_bytes = min(-position % SECTOR_BYTES, _OFFSET_BYTES)
    should_be = expected_offset.to_bytes(_OFFSET_BYTES, "big")[:lost_bytes]
    return any(should_be) and not any(data[:lost_bytes])


def _has_empty_sector(data: Buffer, position: int, size_bytes: int) -> bool:
    """Whether in one of its sectors a batch, and all after it, is only zeros.

    The sector before would lose at most part of its base offset, which no CRC covers.
    """
    view = memoryview(data)
    at = 0
    while at < min(size_bytes, len(view)):
        end = min(at + SECTOR_BYTES - (position + at) % SECTOR_BYTES, len(view))
        if end > _OFFSET_BYTES and view[at:end] == _ZEROS[: end - at]:
            return True
        at = end
    return False


def _is_whole_but_for_a_bit(data: Buffer) -> bool:
    """Whether ``data`` begins with a batch that one flipped bit has spoilt.

    Not in its base offset and leader epoch: these leave the CRC intact.
    """
    view = memoryview(data)
    length = claimed_bytes(data) - LENGTH_END
    flipped_lengths = (length ^ 1 << bit for bit in range(31))
    if (data[MAGIC_AT] ^ MAGIC).bit_count() > 1:
        return False
    if data[MAGIC_AT] != MAGIC:
        return _syndrome(view, length) == 0
    if any(_syndrome(view, flipped) == 0 for flipped in flipped_lengths):
        return True
    syndrome = _syndrome(view, length)
    return syndrome is not None and _is_of_one_bit(syndrome, LENGTH_END + length - CHECKED_AT)


def _syndrome(view: memoryview, length: int) -> int | None:
    """In which bits the CRC of a batch of ``length`` is wrong; ``None``: it cannot be so long."""
    if not HEADER_BYTES <= LENGTH_END + length <= len(view):
        return None
    found = crc32c(view[CHECKED_AT : LENGTH_END + length])
    return int(found) ^ int.from_bytes(view[CRC_AT:CHECKED_AT], "big")


def _is_of_one_bit(syndrome: int, checked_bytes: int) -> bool:
    """Whether a bit flipped in the CRC, or in the bytes under it, makes it wrong like this.

    A bit counts as the last one does, shifted by the bits after it. All these shifts are walked
    in strides; the syndrome is shifted on until it must meet one of them, if it is one.
    """
    if syndrome.bit_count() == 1:
        return True
    stride_bytes = isqrt(checked_bytes) + 1
    shifted, shifts_by = syndrome, {}
    for shift in range(8 * stride_bytes):
        shifts_by[shifted] = shift
        shifted = shifted >> 1 ^ (_POLYNOMIAL if shifted & 1 else 0)
    stride, of_bit = bytes(stride_bytes), _POLYNOMIAL
    for bits_after in range(0, 8 * (checked_bytes + stride_bytes), 8 * stride_bytes):
        shifted_by = shifts_by.get(of_bit)
        if shifted_by is not None and 0 <= bits_after - shifted_by < 8 * checked_bytes:
            return True
        of_bit = crc32c(stride, of_bit ^ _ALL_BITS) ^ _ALL_BITS
    return False
