"""Track the bytes of a log that are not durable yet, and sync them in a background thread.

The event loop appends and marks the file as written. ``SyncLedger.capture`` takes all that is
unsynced now. ``SyncPoint.run`` syncs it in another thread while appends continue. Back on the loop,
``SyncLedger.mark_synced`` forgets what has not been written again since. A sync point holds
duplicates of the file descriptors, so the log may roll or close meanwhile.
"""

from __future__ import annotations

import errno
from pathlib import Path

from oncelog.storage.disk.disk_errors import DiskVerdict, is_transient, verdict_of
from oncelog.storage.disk.file_system import FileHandle, FileSystem


class SyncPoint:
    """All bytes of a log up to ``log_end_offset`` (exclusive), to be made durable once.

    Sync it at most once; ``discard`` must close its files, synced or not.
    """

    __slots__ = (
        "_directory",
        "_files",
        "_filesystem",
        "_ledger",
        "generation",
        "log_end_offset",
        "marks",
    )

    def __init__(
        self,
        *,
        log_end_offset: int,
        generation: int,
        marks: dict[FileHandle | None, int],
        files: list[FileHandle],
        directory: Path | None,
        filesystem: FileSystem,
        ledger: SyncLedger,
    ) -> None:
        self.log_end_offset = log_end_offset
        self.generation = generation
        self.marks = marks
        self._files = files
        self._directory = directory
        self._filesystem = filesystem
        self._ledger = ledger

    def run(self) -> None:
        """Sync, in any thread, and close the files. Raises as ``sync``."""
        try:
            self.sync()
        finally:
            self.discard()

    def sync(self) -> None:
        """Sync, in any thread. After an OSError the log is offline: it is unknown what is durable.

        If the process merely ran out of descriptors, the log stays online and all of it can be
        synced again. The files are not closed here: a thread would have to wait for the GIL once
        more.
        """
        try:
            for file in self._files:
                file.datasync()
            if self._directory is not None:
                self._filesystem.sync_directory(self._directory)
        except OSError as error:
            self._ledger.fail_in_sync(error)
            raise

    def discard(self) -> None:
        """Close the files. A second call does nothing."""
        files, self._files = self._files, []
        for file in files:
            file.close()


class SyncLedger:
    """The files of one log that were written since they were last synced."""

    __slots__ = (
        "_close_when_synced",
        "_directory",
        "_filesystem",
        "_marks",
        "_serial",
        "failure",
    )

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._filesystem = filesystem
        self._directory = directory
        # Set once, perhaps by a syncing thread: from then on it is unknown what is on disk.
        self.failure: OSError | None = None
        # The serial number of the last write; the key None stands for the directory's names.
        self._marks: dict[FileHandle | None, int] = {}
        self._close_when_synced: set[FileHandle] = set()
        self._serial = 0

    def fail(self, error: OSError) -> None:
        """A write or a sync failed, for good. The first failure is kept."""
        if self.failure is None:
            self.failure = error

    def fail_unless_transient(self, error: OSError) -> None:
        """A write failed: take the log offline, unless the error is transient (a full disk)."""
        if not is_transient(error):
            self.fail(error)

    def fail_in_sync(self, error: OSError) -> None:
        """A sync failed: what it covers may be lost, unless it never began."""
        if verdict_of(error, is_sync=True) is not DiskVerdict.REPEAT:
            self.fail(error)

    def check(self) -> None:
        """Raise OSError if a write or a sync has ever failed for good."""
        if self.failure is not None:
            raise OSError(
                self.failure.errno or errno.EIO, f"the log is offline after: {self.failure}"
            )

    def mark_written(self, file: FileHandle, *, close_when_synced: bool = False) -> None:
        """The file has been written. With ``close_when_synced`` the ledger takes it over."""
        self._serial += 1
        self._marks[file] = self._serial
        if close_when_synced:
            self._close_when_synced.add(file)

    def mark_directory_changed(self) -> None:
        """A file was made or removed."""
        self._serial += 1
        self._marks[None] = self._serial

    def holds(self, file: FileHandle | None) -> bool:
        """Whether the file is unsynced, and so must stay open."""
        return file in self._marks

    def capture(self, log_end_offset: int, generation: int) -> SyncPoint:
        """Everything unsynced now. OSError if the log is offline or no descriptors are left."""
        self.check()
        files: list[FileHandle] = []
        try:
            for file in filter(None, self._marks):
                files.append(file.duplicate())  # noqa: PERF401 - what was opened must be closed
        except OSError:
            for duplicate in files:
                duplicate.close()
            raise
        return SyncPoint(
            log_end_offset=log_end_offset,
            generation=generation,
            marks=dict(self._marks),
            files=files,
            directory=self._directory if None in self._marks else None,
            filesystem=self._filesystem,
            ledger=self,
        )

    def mark_synced(self, point: SyncPoint) -> None:
        """The point has run: forget what was not written again since.

        OSError if any sync has failed: the kernel reports a lost page to one sync only, so a later
        success proves nothing about it.
        """
        self.check()
        for file, serial in point.marks.items():
            if self._marks.get(file) == serial:
                del self._marks[file]
                if file is not None and file in self._close_when_synced:
                    self._close_when_synced.discard(file)
                    file.close()

    def forget(self, file: FileHandle | None) -> None:
        """The file is being removed and need not be synced."""
        self._marks.pop(file, None)

    def close(self) -> None:
        """Close the files that the ledger owns, synced or not."""
        for file in self._close_when_synced:
            file.close()
        self._close_when_synced.clear()
        self._marks.clear()
