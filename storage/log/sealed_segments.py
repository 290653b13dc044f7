"""The sealed segments of a log: retention removes the oldest, compaction replaces some.

Removing the oldest (``LogRetention``) takes several steps, and a crash after any is safe. Retention
chooses the offset to keep from, and the log start is raised to it, durably. Then the segments below
are dropped, and their files removed, in another thread if need be. After a crash the next retention
removes any segments left below the log start.

Replacing some (``CompactionView``) is shared with ``compaction``. All methods here run on the loop
that owns the log. In between, ``compaction`` reads, filters and writes its own files in any thread.
Its result is accepted only if the segments it was made from are still there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.disk.sync_point import SyncLedger
from oncelog.storage.log.producer_snapshot import SnapshotStore
from oncelog.storage.log_settings import RetentionPolicy, removable_count
from oncelog.storage.model import NO_TIMESTAMP
from oncelog.storage.segments.aborted_index import AbortedIndexEntry
from oncelog.storage.segments.list import SegmentList
from oncelog.storage.segments.segment import Segment
from oncelog.storage.segments.swap import commit_swap, finish_swap


class RemovedFiles:
    """Closed files of one directory that are no longer used."""

    __slots__ = ("_directory", "_filesystem", "paths")

    def __init__(self, filesystem: FileSystem, directory: Path, paths: tuple[Path, ...]) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self.paths = paths

    def run(self) -> None:
        """Remove them, durably, in any thread. OSError: some are left, which is harmless."""
        for path in self.paths:
            self._filesystem.remove(path)
        self._filesystem.sync_directory(self._directory)


class LogRetention:
    """The oldest segments of one log and the producer snapshots that go with them."""

    __slots__ = ("_directory", "_filesystem", "_segments", "_snapshots")

    def __init__(
        self,
        *,
        filesystem: FileSystem,
        directory: Path,
        segments: SegmentList,
        snapshots: SnapshotStore,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._segments = segments
        self._snapshots = snapshots

    @property
    def first_base_offset(self) -> int:
        """Base offset of the oldest segment; at most the log start."""
        return self._segments.first.base_offset

    def retained_from(
        self, policy: RetentionPolicy, *, log_start_offset: int, upper_offset: int, now_ms: int
    ) -> int:
        """Base offset of the first segment to keep, never below the first segment's.

        Nothing that reaches beyond ``upper_offset`` (exclusive) is dropped: pass the lower of the
        high watermark and the recovery point. Returns the log end offset if the active segment must
        go as well: roll it first. CorruptDataError or OSError if a time index can neither be read
        nor rebuilt.
        """
        count = removable_count(
            self._segments.facts(),
            policy=policy,
            total_bytes=self._segments.size_bytes,
            log_start_offset=log_start_offset,
            upper_offset=upper_offset,
            now_ms=now_ms,
        )
        return self._segments.base_offset_at(count)

    def needs_snapshot(self, offset: int) -> bool:
        """Whether removing everything before ``offset`` would lose producer state.

        After a crash no snapshot beyond the base offset of the active segment can be used.
        """
        last = self._segments.active.base_offset
        return not any(offset <= known <= last for known in self._snapshots.offsets)

    def take_below(self, log_start_offset: int) -> list[RemovedFiles]:
        """Drop the sealed segments below the durable log start; run the results in order."""
        removed = [segment.paths for segment in self._segments.take_below(log_start_offset)]
        if removed:
            removed.append(self._snapshots.forget_below(self._segments.first.base_offset))
        return [RemovedFiles(self._filesystem, self._directory, paths) for paths in removed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A cleaned segment whose files await the commit, and the segments it replaces.

    ``replaced`` are adjacent and sealed, oldest first, and had ``replaced_bytes`` when they were
    read.
    """

    replaced: tuple[Segment, ...]
    replaced_bytes: int


class CompactionView:
    """The segments between the log start and the active one, for compaction."""

    __slots__ = ("_directory", "_filesystem", "_ledger", "_segments", "_snapshots")

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        segments: SegmentList,
        snapshots: SnapshotStore,
        ledger: SyncLedger,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._segments = segments
        self._snapshots = snapshots
        self._ledger = ledger

    @property
    def filesystem(self) -> FileSystem:
        """The file system of the log; its methods may be called in any thread."""
        return self._filesystem

    @property
    def directory(self) -> Path:
        """The directory of the log."""
        return self._directory

    @property
    def base_offset(self) -> int:
        """Base offset of the first segment."""
        return self._segments.first.base_offset

    def sealed_below(self, upper_offset: int) -> tuple[Segment, ...]:
        """The sealed segments that end at or below ``upper_offset`` (exclusive), oldest first."""
        return tuple(
            segment
            for segment in self._segments.from_offset(self.base_offset)
            if segment is not self._segments.active and segment.next_offset <= upper_offset
        )

    def load_times(self) -> None:
        """Load ``max_timestamp_ms`` of all segments."""
        for _ in self._segments.facts():
            pass

    def oldest_timestamp_ms(self, segment: Segment) -> int:
        """Largest timestamp of the first batch of ``segment``; -1 if it has none."""
        opened = next(self._segments.opened_from(segment.base_offset))
        return next((place.max_timestamp_ms for place in opened.walk(0)), NO_TIMESTAMP)

    def aborted_entries(self, upper_offset: int) -> tuple[AbortedIndexEntry, ...]:
        """All aborted transactions that began below ``upper_offset``, wherever their markers are.

        Source: KIP-98, "Transaction index".
        """
        found: list[AbortedIndexEntry] = []
        for segment in self._segments.from_offset(self.base_offset):
            for entry in segment.txn_index.entries:
                if entry.first_offset < upper_offset:
                    found.append(entry)
                if entry.last_stable_offset >= upper_offset:
                    return tuple(found)
        return tuple(found)

    def drop_open_snapshots(self, upper_offset: int) -> None:
        """Remove producer snapshots below ``upper_offset`` that show an open transaction.

        Compaction may remove the marker before the snapshot, and a replay from there would leave
        the transaction open forever. Any other snapshot gives the same state as before.
        """
        for offset in self._snapshots.offsets:
            if offset < upper_offset and self._snapshots.has_open_transaction(offset):
                self._snapshots.remove(offset)

    def replace_segments(self, replacement: Replacement) -> RemovedFiles | None:
        """Swap the cleaned segment in for those it was made from; durable on return.

        None, and nothing has changed, if those segments are no longer in the log. Run the result
        in any thread. OSError: the log is offline and the next open finishes the replacement.
        """
        self._ledger.check()
        replaced = replacement.replaced
        size_bytes = sum(segment.size_bytes for segment in replaced)
        if not self._segments.holds(replaced) or size_bytes != replacement.replaced_bytes:
            return None
        first = replaced[0]
        cleaned = Segment(
            filesystem=self._filesystem,
            directory=self._directory,
            base_offset=first.base_offset,
            next_offset=replaced[-1].next_offset,
            index_interval_bytes=first.index_interval_bytes,
        )
        try:
            commit_swap(self._filesystem, self._directory, first.base_offset)
            self._segments.replace(replaced, cleaned)
            for segment in replaced[1:]:
                self._snapshots.remove(segment.base_offset)
            paths = [path for segment in replaced[1:] for path in segment.paths]
            deleted = finish_swap(self._filesystem, self._directory, first.base_offset, paths)
            cleaned.attach()
            cleaned.load_summary()
            cleaned.txn_index.load()
        except OSError as error:
            self._ledger.fail(error)
            raise
        self._ledger.mark_directory_changed()
        return RemovedFiles(self._filesystem, self._directory, deleted)
