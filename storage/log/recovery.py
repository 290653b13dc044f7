"""What to do where the readable part of a log ends: one pure table.

After an unclean stop every batch from the last segment's start, or from the recovery point if
that is earlier, is read again. The scan ends at the end of the files or at a *defect*. What
follows depends on whether the place was already synced, because a reader may have seen synced
records and a producer may have been told that they are safe:

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
R-4     unsynced    any defect      either    yes    CUT here: nobody was promised what follows. A
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
*unknown* if there is no readable checkpoint. The recovery point never claims too much; after a
power loss it may claim too little, by what was synced since the checkpoint itself was. What *torn*
means is in ``torn_tail``. An operator can have cut what is refused (``accepted_cut``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRow:
    """One row of the table above: when it holds and what it orders."""

    label: str
    places: frozenset[Durability]
    defects: frozenset[TailDefect]
    intact_follows: frozenset[bool]
    is_torn: frozenset[bool]
    action: TailAction

    def holds(
        self, defect: TailDefect, durability: Durability, *, intact_follows: bool, is_torn: bool
    ) -> bool:
        """Whether this row is the one for such a place."""
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
    RecoveryRow(
        label=label,
        places=places,
        defects=defects,
        intact_follows=follows,
        is_torn=torn,
        action=action,
    )
    for label, places, defects, follows, torn, action in (
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
"""Exactly one row holds for every combination that is possible."""


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
    """The one row of the table that holds; AssertionError for what the table calls impossible."""
    for row in RECOVERY_TABLE:
        if row.holds(defect, durability, intact_follows=intact_follows, is_torn=is_torn):
            return row
    raise AssertionError(
        f"no row for {defect}, {durability}, intact_follows={intact_follows}, is_torn={is_torn}"
    )


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
