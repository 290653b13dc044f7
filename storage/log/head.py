"""The old end of a log: which segments may be removed, and how.

Removal takes several steps, and a crash after any is safe: retention names the offset to keep
from; the log start is raised to it and made durable; the segments below are dropped; their files
are removed, in another thread if need be. The next open finds any leftovers below the log start,
and the next retention removes them.
"""

from __future__ import annotations

from pathlib import Path

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.log.producer_snapshot import SnapshotStore
from oncelog.storage.log_settings import RetentionPolicy, removable_count
from oncelog.storage.segments.list import SegmentList


class RemovedFiles:
    """Closed files of one directory that nothing refers to any more."""

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


class LogHead:
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
        """Where the oldest segment begins; at most the log start."""
        return self._segments.first.base_offset

    def retained_from(
        self, policy: RetentionPolicy, *, log_start_offset: int, upper_offset: int, now_ms: int
    ) -> int:
        """Base offset of the first segment to keep, never below the first segment's.

        Nothing that reaches beyond ``upper_offset`` (exclusive) is dropped: pass the lower of the
        high watermark and the recovery point. The log end offset if the active segment is to go
        as well: roll it first. CorruptDataError or OSError if a time index can neither be read
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
