"""What to do where the readable part of a log ends: one table, and the test for a *torn* batch.

After an unclean stop every batch from the last segment's start, or from the recovery point if that
is earlier, is read again. The scan ends at the end of the files or at a *defect*. What follows
depends on whether the place was already synced: synced records may have been read, and acknowledged
to a producer.

======  ==========  ==============  ========  =====  ============================================
row     place       found           intact    torn   action
                                    follows
======  ==========  ==============  ========  =====  ============================================
R-1     unsynced    nothing wrong   no        no     KEEP: the log ends at the end of its files
        or unknown
R-2     synced      nothing wrong   no        no     REFUSE: synced records are missing from the
                                                     end
R-3     synced      any defect      either    any    REFUSE: synced records are damaged, and these
                                                     are never cut silently
R-4     unsynced    any defect      either    yes    CUT here: what follows was never promised. A
                                                     power loss may keep a later page and lose this
                                                     one, so intact batches beyond it change nothing
R-5     unknown     any defect      yes       any    REFUSE: without a checkpoint this looks like
                                                     damage
R-6     unknown     any defect      no        yes    CUT here: it looks like the torn last write
R-7     unsynced    any defect      either    no     REFUSE: no power loss leaves this, so it was
                                                     written whole, and perhaps acknowledged
R-8     unknown     any defect      no        no     REFUSE: as R-7
none    any         nothing wrong   yes       any    impossible: nothing follows the end of the
                                                     files, and it is not torn
======  ==========  ==============  ========  =====  ============================================

A place is *synced* below the recovery point of the checkpoint, *unsynced* at or beyond it and
*unknown* if there is no readable checkpoint. The recovery point is never too high. After a power
loss it may be too low, by what was synced since the checkpoint itself was. An operator can accept a
cut that is refused (``accept_cut``).

A power loss loses unsynced writes in whole sectors: each has its new or its old content, and since
a log only grows, the old content is zeros. A process crash leaves a file that ends inside a batch.
So a *torn* batch extends past the end of its file, or has a sector that is zeros to its end. A
batch with any other defect, such as a flipped bit or foreign bytes, was written whole. It may have
been acknowledged, however old the checkpoint is.

A batch may well contain a whole sector of zeros. Therefore a defect that one flipped bit explains
does not count as torn, whatever zeros there are: the CRC tells whether there is such a bit. For a
torn batch the CRC says so by chance, once in 2^32 / (8 * its size).

Two kinds of damage also look torn: a page of the medium that reads as zeros, and several flipped
bits in a batch with a sector of zeros. There only the checkpoint tells whether it was synced.
"""

from __future__ import annotations

import enum
from math import isqrt
from typing import Final, NamedTuple

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


class Durability(enum.Enum):
    """What is known of a place in the log."""

    SYNCED = "synced"
    UNSYNCED = "unsynced"
    UNKNOWN = "unknown"


class TailAction(enum.Enum):
    """What recovery does at the end of the readable part."""

    KEEP = "keep"
    CUT = "cut"
    REFUSE = "refuse"


class RecoveryRow(NamedTuple):
    """One row of the table above: when it applies and what to do."""

    label: str
    places: frozenset[Durability]
    defects: frozenset[TailDefect]
    intact_follows: frozenset[bool]
    is_torn: frozenset[bool]
    action: TailAction

    def holds(
        self, defect: TailDefect, durability: Durability, *, intact_follows: bool, is_torn: bool
    ) -> bool:
        """Whether this row applies to such a place."""
        return (
            durability in self.places
            and defect in self.defects
            and intact_follows in self.intact_follows
            and is_torn in self.is_torn
        )


_NOTHING_WRONG: Final = frozenset({TailDefect.NONE})
_ANY_DEFECT: Final = frozenset(TailDefect) - _NOTHING_WRONG
_SYNCED: Final = frozenset({Durability.SYNCED})
_UNSYNCED: Final = frozenset({Durability.UNSYNCED})
_UNKNOWN: Final = frozenset({Durability.UNKNOWN})
_YES: Final = frozenset({True})
_NO: Final = frozenset({False})

_ANY: Final = _YES | _NO

RECOVERY_TABLE: Final = tuple(
    RecoveryRow(*row)
    for row in (
        ("R-1", _UNSYNCED | _UNKNOWN, _NOTHING_WRONG, _NO, _NO, TailAction.KEEP),
        ("R-2", _SYNCED, _NOTHING_WRONG, _NO, _NO, TailAction.REFUSE),
        ("R-3", _SYNCED, _ANY_DEFECT, _ANY, _ANY, TailAction.REFUSE),
        ("R-4", _UNSYNCED, _ANY_DEFECT, _ANY, _YES, TailAction.CUT),
        ("R-5", _UNKNOWN, _ANY_DEFECT, _YES, _ANY, TailAction.REFUSE),
        ("R-6", _UNKNOWN, _ANY_DEFECT, _NO, _YES, TailAction.CUT),
        ("R-7", _UNSYNCED, _ANY_DEFECT, _ANY, _NO, TailAction.REFUSE),
        ("R-8", _UNKNOWN, _ANY_DEFECT, _NO, _NO, TailAction.REFUSE),
    )
)
"""Exactly one row applies to every possible combination."""


def durability_of(next_offset: int, recovery_point: int | None) -> Durability:
    """What is known of the place where ``next_offset`` should begin.

    ``recovery_point`` (exclusive) is the first offset not known to be synced; None: no checkpoint.
    """
    if recovery_point is None:
        return Durability.UNKNOWN
    return Durability.SYNCED if next_offset < recovery_point else Durability.UNSYNCED


def decide(
    defect: TailDefect, durability: Durability, *, intact_follows: bool, is_torn: bool
) -> RecoveryRow:
    """The one row that applies; AssertionError for what the table calls impossible."""
    for row in RECOVERY_TABLE:
        if row.holds(defect, durability, intact_follows=intact_follows, is_torn=is_torn):
            return row
    raise AssertionError(
        f"no row for {defect}, {durability}, intact_follows={intact_follows}, is_torn={is_torn}"
    )


# --- whether the tail is torn --------------------------------------------------------------------


SECTOR_BYTES: Final = 512
"""The unit that a disk writes atomically; aligned in the file as on the disk."""

_OFFSET_BYTES: Final = LENGTH_AT
_ZEROS: Final = bytes(SECTOR_BYTES)

_POLYNOMIAL: Final = 0x82F63B78
"""The reflected CRC-32C polynomial: what flipping the last bit changes in the CRC."""
_ALL_BITS: Final = 0xFFFF_FFFF


def looks_torn(defect: TailDefect, data: Buffer, position: int, expected_offset: int) -> bool:
    """Whether a power loss or a process crash may have left ``defect``.

    ``data``: all bytes of the file from ``position`` on, where the batch of ``expected_offset``
    should begin.
    """
    match defect:
        case TailDefect.NONE | TailDefect.WRONG_EPOCH:
            # The CRC is intact, so no sector is lost that holds more than part of the base offset.
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
    return may_be_torn and not _is_whole_but_one_bit(data)


def _has_lost_offset(data: Buffer, position: int, expected_offset: int) -> bool:
    """Whether the first bytes of the base offset are the end of a lost sector."""
    lost_bytes = min(-position % SECTOR_BYTES, _OFFSET_BYTES)
    should_be = expected_offset.to_bytes(_OFFSET_BYTES, "big")[:lost_bytes]
    return any(should_be) and not any(data[:lost_bytes])


def _has_empty_sector(data: Buffer, position: int, size_bytes: int) -> bool:
    """Whether some sector of the batch is zeros to its end.

    A sector with only part of the base offset does not count: the CRC does not cover that.
    """
    view = memoryview(data)
    at = 0
    while at < min(size_bytes, len(view)):
        end = min(at + SECTOR_BYTES - (position + at) % SECTOR_BYTES, len(view))
        if end > _OFFSET_BYTES and view[at:end] == _ZEROS[: end - at]:
            return True
        at = end
    return False


def _is_whole_but_one_bit(data: Buffer) -> bool:
    """Whether ``data`` begins with a batch that has exactly one flipped bit.

    Flips in the base offset and leader epoch do not count: the CRC does not cover them.
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
    return syndrome is not None and _is_one_bit(syndrome, LENGTH_END + length - CHECKED_AT)


def _syndrome(view: memoryview, length: int) -> int | None:
    """Stored CRC xor computed CRC of a batch of ``length``; ``None`` if it cannot be that long."""
    if not HEADER_BYTES <= LENGTH_END + length <= len(view):
        return None
    found = crc32c(view[CHECKED_AT : LENGTH_END + length])
    return int(found) ^ int.from_bytes(view[CRC_AT:CHECKED_AT], "big")


def _is_one_bit(syndrome: int, checked_bytes: int) -> bool:
    """Whether one flipped bit, in the CRC or in the bytes it covers, gives this syndrome.

    Flipping a bit gives the syndrome of the last bit, shifted once for each bit after it. The
    search is baby-step giant-step: shift the syndrome bit by bit through one stride, and the
    syndrome of the last bit stride by stride, until the two meet.
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
