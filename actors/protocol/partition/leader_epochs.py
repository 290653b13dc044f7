"""Where each leader epoch began in the log, and so where two logs diverge.

Rules: entries rise in both epoch and start offset (I-08). An epoch is entered when its
leader is elected, at the log end, even if it never writes a batch; and when a batch of a newer
epoch is appended or replayed.

========================================  ====================================================
event                                     answer
========================================  ====================================================
assign, epoch and start above the latest  new entry
assign, the latest epoch, start not lower nothing: the epoch has begun already
assign, otherwise                         entries at or above the epoch or the start are removed
end of the latest epoch                   log end
end of an epoch above the latest          undefined
end of an epoch below the first           (that epoch, start of the first)
end of another epoch                      (largest entry not above it, start of the next entry)
========================================  ====================================================

Source: KIP-101, KIP-279.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter
from typing import Final

import msgspec

from oncelog.storage.model import NO_LEADER_EPOCH, NO_OFFSET
from oncelog.storage.segments.leader_epochs import (
    UNDEFINED_END,
    end_of_epoch,
    without_end,
    without_start,
)

_EPOCH = itemgetter(0)
_START = itemgetter(1)


class EpochEnd(msgspec.Struct, frozen=True):
    """The end of a leader epoch in one log: ``end_offset`` is exclusive, -1 if undefined."""

    leader_epoch: int
    end_offset: int


UNDEFINED_EPOCH_END: Final = EpochEnd(*UNDEFINED_END)
"""The log knows nothing of such an epoch."""


class LeaderEpochs:
    """The leader epochs of one log: sorted (leader epoch, start offset inclusive)."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = []
        for leader_epoch, start_offset in entries:
            self.assign(leader_epoch, start_offset)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """All (leader epoch, start offset), oldest first."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch, -1 if there is none."""
        return self._entries[-1][0] if self._entries else NO_LEADER_EPOCH

    @property
    def latest_start_offset(self) -> int:
        """Where the newest leader epoch began, -1 if there is none."""
        return self._entries[-1][1] if self._entries else NO_OFFSET

    def assign(self, leader_epoch: int, start_offset: int) -> bool:
        """Enter an epoch at its start offset; False if nothing changed."""
        if self._entries:
            latest_epoch, latest_start = self._entries[-1]
            if leader_epoch == latest_epoch and start_offset >= latest_start:
                return False
            keep = min(
                bisect_left(self._entries, leader_epoch, key=_EPOCH),
                bisect_left(self._entries, start_offset, key=_START),
            )
            del self._entries[keep:]
        self._entries.append((leader_epoch, start_offset))
        return True

    def end_offset_for(self, leader_epoch: int, *, log_end_offset: int) -> EpochEnd:
        """Where this log leaves ``leader_epoch``: a follower with more of it must truncate."""
        return EpochEnd(*end_of_epoch(self._entries, leader_epoch, log_end_offset=log_end_offset))

    def truncate_end(self, offset: int) -> None:
        """Forget the epochs that began at or after ``offset``, the new log end (exclusive)."""
        self._entries = without_end(self._entries, offset)

    def truncate_start(self, offset: int) -> None:
        """Forget what is before ``offset``, the new log start, where its epoch now begins."""
        self._entries = without_start(self._entries, offset)
