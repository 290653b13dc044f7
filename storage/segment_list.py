"""The segments of one log in offset order, and which of the sealed ones are kept open."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from oncelog.storage.segment import Segment
from oncelog.storage.sync_point import SyncLedger

_OPEN_SEALED_MAX: Final = 8


class SegmentList:
    """At least one segment; the last is the active one.

    At most eight sealed segments keep their file and indexes open between uses, not counting
    those that are not durable yet: closing such a file could lose the report of a failed write.
    """

    __slots__ = ("_bases", "_ledger", "_recent", "_segments")

    def __init__(self, segments: list[Segment], ledger: SyncLedger) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._ledger = ledger
        self._recent: OrderedDict[int, Segment] = OrderedDict(
            (segment.base_offset, segment) for segment in segments[:-1] if segment.is_open
        )

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def active(self) -> Segment:
        """The segment that takes appends."""
        return self._segments[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size_bytes for segment in self._segments)

    def holding(self, offset: int) -> Segment:
        """The segment in whose range ``offset`` lies; the first one for all below it."""
        return self._segments[self._slot_of(offset)]

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """``holding(offset)`` and those after it, as they are now. They need not be open."""
        yield from self._segments[self._slot_of(offset) :]

    def opened_from(self, offset: int) -> Iterator[Segment]:
        """The same, for reading: each is open when it is given, and kept open for a while."""
        for segment in self.from_offset(offset):
            self._keep_open(segment)
            yield segment

    def add(self, segment: Segment) -> None:
        """Make ``segment`` the active one."""
        sealed = self.active
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self._keep_open(sealed)

    def remove_after(self, offset: int) -> Segment:
        """Remove all segments after the one that holds ``offset``; that one becomes active."""
        slot = self._slot_of(offset)
        for later in reversed(self._segments[slot + 1 :]):
            for file in (later.open_log, later.txn_index.handle):
                if file is not None:
                    self._ledger.forget(file)
            self._recent.pop(later.base_offset, None)
            later.remove()
        del self._segments[slot + 1 :], self._bases[slot + 1 :]
        self._recent.pop(self.active.base_offset, None)
        return self.active

    def close(self) -> None:
        """Close every file; nothing is synced."""
        for segment in self._segments:
            segment.close()

    def _slot_of(self, offset: int) -> int:
        return max(bisect_right(self._bases, offset) - 1, 0)

    def _keep_open(self, segment: Segment) -> None:
        if segment is self._segments[-1]:
            return
        recent = self._recent
        recent[segment.base_offset] = segment
        recent.move_to_end(segment.base_offset)
        if len(recent) > _OPEN_SEALED_MAX:
            self._release_oldest(len(recent) - _OPEN_SEALED_MAX, keep=segment)

    def _release_oldest(self, count: int, *, keep: Segment) -> None:
        for other in list(self._recent.values()):
            log = other.open_log
            if count > 0 and other is not keep and (log is None or not self._ledger.holds(log)):
                other.release()
                del self._recent[other.base_offset]
                count -= 1
