"""Entering aborted transactions in the index of their segment, at once or when the disk has room.

The marker is in the log first. An entry for which the disk has no room is *owed*: it is
retried with every append and every sync, nothing is appended behind its marker meanwhile, and
no sync point reaches past it. So neither the recovery point nor the high watermark passes the
marker, and its transaction holds back the last stable offset.
"""

from __future__ import annotations

from oncelog.storage.disk.errors import is_passing
from oncelog.storage.disk.sync_point import SyncLedger
from oncelog.storage.segments.aborted_index import AbortedIndexEntry
from oncelog.storage.segments.list import SegmentList


class AbortedEntries:
    """The aborted transactions of one log that are still to be entered; oldest marker first."""

    __slots__ = ("_is_replaying", "_ledger", "_segments", "owed")

    def __init__(self, segments: SegmentList, ledger: SyncLedger) -> None:
        self._segments = segments
        self._ledger = ledger
        self._is_replaying = False
        self.owed: list[AbortedIndexEntry] = []
        """Bounded by what a recovery replays; while a log is led there is at most one."""

    def begin_replay(self) -> None:
        """Owe every entry from here to ``end_replay``: the replay may yet be refused."""
        self._is_replaying = True
        self.owed.clear()

    def end_replay(self) -> None:
        """Enter what the replay found, and nothing else that is not trusted. OSError."""
        self._is_replaying = False
        self.settle()
        for segment in self._segments.from_offset(self._segments.first.base_offset):
            handle = segment.txn_index.drop_stale()
            if handle is not None:
                self._ledger.note(handle)

    def enter(self, entry: AbortedIndexEntry) -> None:
        """Enter it, or owe it. OSError: the log is offline."""
        self.owed.append(entry)
        if self._is_replaying:
            return
        try:
            self.settle()
        except OSError:
            if self._ledger.failure is not None:
                raise

    def settle(self) -> None:
        """Enter all that is owed. OSError: some still is; offline unless the error is transient."""
        entered = 0
        try:
            for entry in self.owed:
                index = self._segments.holding(entry.last_offset).txn_index
                handle = index.append(entry)
                if handle is not None:
                    self._ledger.note(handle)
                    self._ledger.note_directory()
                entered += 1
        except OSError as error:
            if not is_passing(error):
                self._ledger.fail(error)
            raise
        finally:
            del self.owed[:entered]

    def covered_end(self, log_end_offset: int) -> int:
        """Exclusive: every transaction aborted below it is in the index."""
        return self.owed[0].last_offset if self.owed else log_end_offset

    def cut(self, offset: int) -> None:
        """The log now ends at ``offset``: markers from there on are gone."""
        self.owed = [entry for entry in self.owed if entry.last_offset < offset]
