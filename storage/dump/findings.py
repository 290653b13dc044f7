"""What a verification finds, and what it knows beforehand about how far to trust a log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.side_files import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_FILE,
    RECOVERY_FILE,
    CleanShutdown,
    RecoveryCheckpoint,
    decode_leader_epochs,
    read_clean_shutdown,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong at byte ``position`` of a file.

    ``is_problem`` False: a note; the next open repairs it without loss.
    """

    path: Path
    position: int
    reason: str
    is_problem: bool = True


class Checkpoints:
    """The checkpoints of one directory, and what they imply for a place in its log.

    They must be read before the log: while an actor writes, the log only runs ahead of them.
    ``flag`` is what a clean close left; None: the process is running, or died.
    """

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self.flag: CleanShutdown | None = None
        self.recovery_point: int | None = None
        self.epochs: list[tuple[int, int]] = []

    def read(self) -> Iterator[Finding]:
        """Read all three; one that is missing or unreadable is a finding."""
        self.flag = read_clean_shutdown(self._filesystem, self._directory)
        path = self._directory / CLEAN_SHUTDOWN_FILE
        if self.flag is None and self._filesystem.exists(path):
            yield Finding(path=path, position=0, reason="it cannot be read")
        path = self._directory / RECOVERY_FILE
        try:
            checkpoint = RecoveryCheckpoint.from_bytes(self._filesystem.read_whole(path))
            self.recovery_point = checkpoint.recovery_point
        except CorruptDataError as error:
            yield Finding(path=path, position=0, reason=str(error))
        except FileNotFoundError:
            reason = "it is missing: nothing is known to be synced"
            yield Finding(path=path, position=0, reason=reason, is_problem=False)
        path = self._directory / LEADER_EPOCH_FILE
        try:
            self.epochs = decode_leader_epochs(self._filesystem.read_whole(path))
        except CorruptDataError as error:
            yield Finding(path=path, position=0, reason=str(error))
        except FileNotFoundError:
            yield Finding(path=path, position=0, reason="it is missing")

    def is_synced(self, offset: int) -> bool:
        """Whether damage at ``offset`` is loss: it was synced, or the log was closed cleanly."""
        if self.flag is not None:
            return True
        return self.recovery_point is not None and offset < self.recovery_point

    def is_settled(self, next_offset: int, *, is_active: bool) -> bool:
        """Whether the indexes of a segment that ends before ``next_offset`` must fit its log."""
        if self.flag is not None:
            return True
        return not is_active and self.is_synced(next_offset - 1)
