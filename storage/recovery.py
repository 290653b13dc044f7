"""What to do where the readable part of a log ends: one pure table.

After an unclean stop every batch from the last segment's start, or from the recovery point if
that is earlier, is read again. The scan ends at the end of the files or at a *defect*. What
follows depends on whether the place was already synced, because a reader may have seen synced
records and a producer may have been told that they are safe:

======  ==========  ===================  =========================================================
row     place       found                action
======  ==========  ===================  =========================================================
R-1     any but     nothing wrong        KEEP: the log ends at the end of its files
        synced
R-2     synced      nothing wrong        REFUSE: synced records are missing from the end
R-3     synced      any defect           REFUSE: synced records are damaged, never cut silently
R-4     unsynced    any defect           CUT here: nobody was promised what follows. A power loss
                                         may keep a later page and lose this one, so intact
                                         batches beyond it change nothing
R-5     unknown     defect, and intact   REFUSE: without a checkpoint this looks like damage
                    batches follow
R-6     unknown     defect, and nothing  CUT here: it looks like the torn last write
                    intact follows
======  ==========  ===================  =========================================================

A place is *synced* below the recovery point of the checkpoint, *unsynced* at or beyond it and
*unknown* if there is no readable checkpoint.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    crc_matches,
    parse_header,
)


class TailDefect(enum.Enum):
    """Why the next bytes of a log are not its next batch."""

    NONE = "the log ends here"
    SHORT_HEADER = "the file ends inside a batch header"
    SHORT_BATCH = "the file ends inside a batch"
    ZEROS = "a batch length of zero: the disk lost these bytes"
    BAD_HEADER = "no batch header of format version 2"
    BAD_CRC = "the batch does not match its CRC"
    WRONG_OFFSET = "the batch does not begin at the next offset"
    MISSING_RECORDS = "the next segment does not begin at the next offset"


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


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """One row of the table above: when it holds and what it orders."""

    label: str
    action: TailAction
    holds: Callable[[TailDefect, Durability, bool], bool]


_NONE = TailDefect.NONE

RECOVERY_TABLE: tuple[RecoveryRow, ...] = (
    RecoveryRow("R-1", TailAction.KEEP, lambda d, p, _: d is _NONE and p is not Durability.SYNCED),
    RecoveryRow("R-2", TailAction.REFUSE, lambda d, p, _: d is _NONE and p is Durability.SYNCED),
    RecoveryRow(
        "R-3", TailAction.REFUSE, lambda d, p, _: d is not _NONE and p is Durability.SYNCED
    ),
    RecoveryRow("R-4", TailAction.CUT, lambda d, p, _: d is not _NONE and p is Durability.UNSYNCED),
    RecoveryRow(
        "R-5",
        TailAction.REFUSE,
        lambda d, p, follows: d is not _NONE and p is Durability.UNKNOWN and follows,
    ),
    RecoveryRow(
        "R-6",
        TailAction.CUT,
        lambda d, p, follows: d is not _NONE and p is Durability.UNKNOWN and not follows,
    ),
)
"""Exactly one row holds for every combination."""


def durability_of(next_offset: int, recovery_point: int | None) -> Durability:
    """What is known of the place where ``next_offset`` should begin.

    ``recovery_point`` (exclusive) is the first offset not known to be synced; None: no checkpoint.
    """
    if recovery_point is None:
        return Durability.UNKNOWN
    return Durability.SYNCED if next_offset < recovery_point else Durability.UNSYNCED


def decide(defect: TailDefect, durability: Durability, *, intact_follows: bool) -> RecoveryRow:
    """The one row of the table that holds."""
    for row in RECOVERY_TABLE:
        if row.holds(defect, durability, intact_follows):
            return row
    raise AssertionError(f"no row for {defect}, {durability}, intact_follows={intact_follows}")


def inspect_batch(frame: Buffer, expected_offset: int) -> BatchHeader | TailDefect:
    """The header of the batch in ``frame`` if it is whole, intact and the next one.

    ``frame`` holds the bytes that the batch claims, or all that the file has left.
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
    # The base offset is not under the CRC, so a damaged one is only seen here.
    if header.base_offset != expected_offset or header.last_offset_delta < 0:
        return TailDefect.WRONG_OFFSET
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
