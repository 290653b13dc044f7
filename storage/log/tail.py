"""Where the readable part of a log ends: keep it, cut what follows, or refuse to open it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from oncelog.storage.disk.errors import reading
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.recovery import (
    Durability,
    TailAction,
    decide,
    durability_of,
    looks_torn,
)
from oncelog.storage.log.side_files import (
    LEADER_EPOCH_FILE,
    RECOVERY_FILE,
    RecoveryCheckpoint,
    read_accepted_cut,
)
from oncelog.storage.segments.inspection import TailDefect, holds_intact_batch
from oncelog.storage.segments.segment import LOG_SUFFIX, Segment

_logger = logging.getLogger(__name__)


class Tail(NamedTuple):
    """The end of the readable part: at byte ``position`` of ``segment``, before ``offset``."""

    segment: Segment
    position: int
    offset: int
    defect: TailDefect

    @property
    def path(self) -> Path:
        """The file it is in."""
        return self.segment.path_of(LOG_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailCut:
    """What recovery cut: from byte ``position`` of ``path``, where ``offset`` should have begun.

    ``cut_bytes`` counts the segments after it too. ``is_accepted``: recovery had refused, and an
    operator accepted the cut.
    """

    path: Path
    position: int
    offset: int
    cut_bytes: int
    defect: TailDefect
    is_accepted: bool = False

    def __str__(self) -> str:
        asked = "as an operator accepted, " if self.is_accepted else ""
        return (
            f"{asked}{self.cut_bytes} bytes are cut from {self.path} at byte {self.position}, "
            f"offset {self.offset}: {self.defect.value}"
        )


def settle_tail(
    filesystem: FileSystem,
    segments: Sequence[Segment],
    tail: Tail,
    checkpoint: RecoveryCheckpoint | None,
) -> TailCut | None:
    """Look the tail up in the table; return what the caller must cut, None if nothing.

    CorruptDataError if it is refused and no operator has accepted the cut. Before an
    accepted one the checkpoint is lowered, durably.
    """
    recovery_point = checkpoint.recovery_point if checkpoint is not None else None
    durability = durability_of(tail.offset, recovery_point)
    row = decide(
        tail.defect,
        durability,
        intact_follows=durability is Durability.UNKNOWN and _intact_follows(segments, tail),
        is_torn=_is_torn(tail),
    )
    if row.action is TailAction.KEEP:
        return None
    directory = tail.path.parent
    is_accepted = row.action is TailAction.REFUSE and _is_accepted(filesystem, tail, checkpoint)
    if row.action is TailAction.REFUSE and not is_accepted:
        known = "unknown" if recovery_point is None else str(recovery_point)
        hint = f"; to lose all from there on: oncelog accept-cut {directory} {tail.offset}"
        if tail.defect is TailDefect.WRONG_EPOCH:
            # Nobody can tell which of the two is wrong; each kind of damage is one bit away.
            hint += f"; without {directory / LEADER_EPOCH_FILE} its epoch is believed"
        raise CorruptDataError(
            f"{tail.path} at byte {tail.position}, offset {tail.offset}: {tail.defect.value} "
            f"(recovery point {known}, rule {row.label}){hint}"
        )
    base_offset = tail.segment.base_offset
    later = sum(other.size_bytes for other in segments if other.base_offset > base_offset)
    cut = TailCut(
        path=tail.path,
        position=tail.position,
        offset=tail.offset,
        cut_bytes=tail.segment.size_bytes - tail.position + later,
        defect=tail.defect,
        is_accepted=is_accepted,
    )
    _logger.warning("%s", cut)
    return cut


def _is_torn(tail: Tail) -> bool:
    """See ``torn_tail``. The batch length may be what is wrong, so everything is read."""
    with reading(tail.path):
        rest = tail.segment.log.read(tail.position, tail.segment.size_bytes - tail.position)
    return looks_torn(tail.defect, rest, tail.position, tail.offset)


def _intact_follows(segments: Sequence[Segment], tail: Tail) -> bool:
    segment, position, expected, defect = tail
    if defect is TailDefect.NONE:
        return False
    skipped = 1 if position < segment.size_bytes else 0
    with reading(tail.path):
        data = segment.log.read(position + skipped, segment.size_bytes - position - skipped)
    if holds_intact_batch(data, expected):
        return True
    for other in segments:
        if other.base_offset > segment.base_offset:
            with reading(other.log_path):
                data = other.log.read(0, other.size_bytes)
            if holds_intact_batch(data, expected):
                return True
    return False


def _is_accepted(filesystem: FileSystem, tail: Tail, checkpoint: RecoveryCheckpoint | None) -> bool:
    """Whether an operator has accepted a cut exactly here; if so, lower the checkpoint first."""
    directory = tail.path.parent
    lowest_offset = checkpoint.log_start_offset if checkpoint is not None else 0
    if tail.offset != read_accepted_cut(filesystem, directory) or tail.offset < lowest_offset:
        return False
    if checkpoint is not None:
        lowered = RecoveryCheckpoint(
            min(checkpoint.recovery_point, tail.offset),
            checkpoint.log_start_offset,
            min(checkpoint.high_watermark, tail.offset),
        )
        filesystem.write_atomically(directory / RECOVERY_FILE, lowered.to_bytes())
    return True
