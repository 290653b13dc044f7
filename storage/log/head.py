"""The old end of a log: which segments may go, and their removal beside the log.

Removal goes in steps, each safe to die after: retention names the offset to keep from; the log
start is raised to it and made durable; the segments below are let go of; their files are removed,
in another thread if need be. What is left of them is found below the log start by the next open
and goes with the next retention.
"""

from __future__ import annotations

from pathlib import Path

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.log.producer_snapshot import SnapshotStore
from oncelog.storage.log_settings import RetentionPolicy
from oncelog.storage.segments.list import SegmentList
from oncelog.storage.segments.retention import removable_count


class RemovedFiles:
    """Closed files of one directory that nothing refers to any more."""

    __slots__ = ("_directory", "_filesystem", "paths")

    def __init__(self, filesystem: FileSystem, directory: Path, paths: tuple[Path, ...]) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self.paths = paths

    def run(self) -> None:
        """Remove them, durably, in any thread. OSError: some are left, which harms nobody."""
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
        """Base offset of the first segment to keep, never below the first there is.

        Nothing that reaches beyond ``upper_offset`` (exclusive) goes: give the high watermark or
        the recovery point, the lower one. The log end offset when the active segment is to go as
        well: roll it first. CorruptDataError or OSError if a time index can neither be read nor
        built anew.
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
        """Whether what is known of producers would go with everything before ``offset``.

        After a crash no snapshot beyond the base offset of the active segment can be used.
        """
        last = self._segments.active.base_offset
        return not any(offset <= known <= last for known in self._snapshots.offsets)

    def take_below(self, log_start_offset: int) -> list[RemovedFiles]:
        """Let go of the sealed segments below the durable log start; run the results in order."""
        removed = [segment.paths for segment in self._segments.take_below(log_start_offset)]
        if removed:
            removed.append(self._snapshots.forget_below(self._segments.first.base_offset))
        return [RemovedFiles(self._filesystem, self._directory, paths) for paths in removed]
