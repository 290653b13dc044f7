"""The small text files beside the segments of one partition.

``leader-epoch-checkpoint`` is Kafka's: a version, a count, then ``epoch start_offset`` lines.
``recovery-checkpoint`` is ours and has a fixed width and a CRC, because it is overwritten in
place after each sync round: one write within one page, which a dying process cannot tear.
``.clean_shutdown`` exists only between a clean close and the next open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from oncelog.storage.disk.errors import is_passing, read_beside
from oncelog.storage.disk.file_system import FileHandle, FileSystem
from oncelog.storage.exceptions import CorruptDataError

LEADER_EPOCH_FILE: Final = "leader-epoch-checkpoint"
RECOVERY_FILE: Final = "recovery-checkpoint"
LOCK_FILE: Final = ".lock"
"""Held with ``flock`` by the one process that writes the directory; never read."""
PARTITION_METADATA_FILE: Final = "partition.metadata"
"""Which topic these files belong to: the topic id, in Kafka's form."""
CLEAN_SHUTDOWN_FILE: Final = ".clean_shutdown"

_VERSION: Final = "0"
_RECOVERY_TEXT: Final = (
    f"{_VERSION}\nrecovery_point %020d\nlog_start_offset %020d\nhigh_watermark %020d\n"
).encode()


class RecoveryCheckpoint(NamedTuple):
    """How far the log is known to be good. A tuple, because one is written after each sync.

    ``recovery_point`` (exclusive): everything below is synced. ``log_start_offset`` (inclusive).
    ``high_watermark`` (exclusive): the last one known; it may be behind the true one.
    """

    recovery_point: int
    log_start_offset: int
    high_watermark: int

    def to_bytes(self) -> bytes:
        """The file's bytes; every checkpoint has the same length."""
        text = _RECOVERY_TEXT % self
        return b"%bcrc32c %08x\n" % (text, crc32c(text))

    @classmethod
    def from_bytes(cls, data: bytes) -> RecoveryCheckpoint:
        """Read the file's bytes; CorruptDataError if they are torn or damaged."""
        try:
            version, *fields, crc = data.decode("ascii").splitlines()
            values = dict(line.split(" ") for line in fields)
            checkpoint = cls(**{name: int(values[name]) for name in cls._fields})
        except (ValueError, KeyError) as error:
            raise CorruptDataError("recovery checkpoint cannot be read") from error
        if version != _VERSION or checkpoint.to_bytes() != data:
            raise CorruptDataError(f"recovery checkpoint does not match its own {crc}")
        return checkpoint


def read_recovery_checkpoint(filesystem: FileSystem, directory: Path) -> RecoveryCheckpoint | None:
    """The checkpoint; None if there is none or it is damaged: then nothing is known."""
    try:
        return RecoveryCheckpoint.from_bytes(read_beside(filesystem, directory / RECOVERY_FILE))
    except (FileNotFoundError, CorruptDataError):
        return None


class RecoveryCheckpointFile:
    """The checkpoint of an open log: replaced durably once, then overwritten in place.

    An overwrite survives a process crash at once, a power loss once it is synced.
    """

    __slots__ = ("_filesystem", "_handle", "_path")

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._filesystem = filesystem
        self._path = directory / RECOVERY_FILE
        self._handle: FileHandle | None = None

    def write(self, checkpoint: RecoveryCheckpoint) -> FileHandle:
        """Write the checkpoint and return the file, which the caller may sync."""
        data = checkpoint.to_bytes()
        if self._handle is None:
            try:
                self._filesystem.write_atomically(self._path, data)
            except OSError as error:
                # The log must still open on a full disk: the existing file needs no room.
                if not (is_passing(error) and self._filesystem.exists(self._path)):
                    raise
            self._handle = self._filesystem.open(self._path, create=False)
            self._handle.truncate(len(data))
        self._handle.write_at(0, data)
        return self._handle

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanShutdown:
    """The log as it was closed; if it is not the same at open, the close was not clean."""

    log_end_offset: int
    active_base_offset: int
    active_size_bytes: int

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        return (
            f"{_VERSION}\n{self.log_end_offset} {self.active_base_offset} "
            f"{self.active_size_bytes}\n"
        ).encode()


def read_clean_shutdown(filesystem: FileSystem, directory: Path) -> CleanShutdown | None:
    """The flag; None if there is none or it cannot be read: then the log must be recovered."""
    try:
        data = read_beside(filesystem, directory / CLEAN_SHUTDOWN_FILE)
        version, line = data.decode("ascii").splitlines()
        end, base, size = map(int, line.split())
    except (FileNotFoundError, ValueError, CorruptDataError):
        return None
    if version != _VERSION:
        return None
    return CleanShutdown(log_end_offset=end, active_base_offset=base, active_size_bytes=size)


def encode_leader_epochs(epochs: Sequence[tuple[int, int]]) -> bytes:
    """Kafka's text of (epoch, start offset) pairs."""
    lines = [_VERSION, str(len(epochs)), *(f"{epoch} {start}" for epoch, start in epochs)]
    return ("\n".join(lines) + "\n").encode()


def decode_leader_epochs(data: bytes) -> list[tuple[int, int]]:
    """The pairs; CorruptDataError for another version, a wrong count or pairs out of order."""
    try:
        version, count, *lines = data.decode("ascii").splitlines()
        pairs = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines)]
        is_whole = version == _VERSION and len(pairs) == int(count)
    except ValueError as error:
        raise CorruptDataError("leader epoch checkpoint cannot be read") from error
    ordered = all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
    if not is_whole or not ordered:
        raise CorruptDataError("leader epoch checkpoint is incomplete or out of order")
    return pairs


def read_leader_epochs(filesystem: FileSystem, directory: Path) -> list[tuple[int, int]]:
    """The pairs of the file, in order; empty if there is none. CorruptDataError names the file."""
    path = directory / LEADER_EPOCH_FILE
    try:
        return decode_leader_epochs(read_beside(filesystem, path))
    except FileNotFoundError:
        return []
    except CorruptDataError as error:
        raise CorruptDataError(f"{path}: {error}") from error


def write_leader_epochs(
    filesystem: FileSystem, directory: Path, epochs: Sequence[tuple[int, int]]
) -> None:
    """Replace the file; durable on return."""
    filesystem.write_atomically(directory / LEADER_EPOCH_FILE, encode_leader_epochs(epochs))
