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
*unknown* if there is no readable checkpoint. The recovery point never claims too much; after a
power loss it may claim too little, by what was synced since the checkpoint itself was.
``torn_tail`` defines *torn*. An operator can accept a cut that is refused (``accepted_cut``).
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from oncelog.storage.segments.inspection import TailDefect


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
