"""The small files beside the segments of one partition: their meaning and their bytes.

| file | says | form |
|---|---|---|
| ``recovery-checkpoint`` | how far the log is known to be good | ours |
| ``log-start-offset`` | where the log begins, if not with its first segment | ours |
| ``.clean_shutdown`` | how the log was closed, until the next open | ours |
| ``leader-epoch-checkpoint`` | the leader epochs and where they begin | Kafka's |
| ``cleaner-offset-checkpoint`` | how far the log has been compacted | Kafka's |
| ``offset-gaps`` | up to where batches that were copied may have gaps between them | ours |
| ``accepted-cut`` | where an operator lets recovery cut | ours |
| ``partition.metadata``, ``.topic_id`` | the topic of these files | Kafka's, ours |
| ``restart-offset`` | that the log is being dropped, and where it begins anew | ours |
| ``.lock`` | nothing: it is held with ``flock`` | |

All are a few lines of ASCII. Each but the first is replaced atomically; on a full disk the second
is overwritten in place.

One file: whoever opens, cuts or drops a log handles several of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from oncelog.storage.disk.disk_errors import is_transient, read_small_file
from oncelog.storage.disk.file_system import FileHandle, FileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_LEADER_EPOCH
from oncelog.storage.segments.leader_epochs import (
    OFFSET_MAX,
    with_leader_epoch,
    without_end,
    without_start,
)

RECOVERY_FILE: Final = "recovery-checkpoint"
LOG_START_FILE: Final = "log-start-offset"
CLEAN_SHUTDOWN_FILE: Final = ".clean_shutdown"
LEADER_EPOCH_FILE: Final = "leader-epoch-checkpoint"
CLEANER_CHECKPOINT_FILE: Final = "cleaner-offset-checkpoint"
OFFSET_GAPS_FILE: Final = "offset-gaps"
ACCEPTED_CUT_FILE: Final = "accepted-cut"
PARTITION_METADATA_FILE: Final = "partition.metadata"
"""Which topic these files belong to: the topic id, in Kafka's form."""
TOPIC_ID_FILE: Final = ".topic_id"
RESTART_FILE: Final = "restart-offset"
LOCK_FILE: Final = ".lock"
"""Held with ``flock`` by the one process that writes the directory; never read."""

_VERSION: Final = "0"


# --- how far the log is known to be good --------------------------------------------------------
# The checkpoint has a fixed width and a CRC, because it is overwritten in place after each sync
# round: one write within one page, which a dying process cannot tear.


_RECOVERY_TEXT: Final = (
    f"{_VERSION}\nrecovery_point %020d\nlog_start_offset %020d\nhigh_watermark %020d\n"
).encode()


class RecoveryCheckpoint(NamedTuple):
    """How far the log is known to be good. A tuple for speed: one is written after each sync.

    ``recovery_point`` (exclusive): everything below is synced. ``log_start_offset`` (inclusive).
    ``high_watermark`` (exclusive): the last one known; the current one may be higher.
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
    """The checkpoint; None if it is missing or damaged."""
    try:
        return RecoveryCheckpoint.from_bytes(read_small_file(filesystem, directory / RECOVERY_FILE))
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
                if not (is_transient(error) and self._filesystem.exists(self._path)):
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


# --- where the log begins -----------------------------------------------------------------------
# Records below the log start are hidden long before their segment is removed. The checkpoint alone
# must not remember that: if it is damaged, deleted records would be back. So this file is written,
# durably, before they are hidden. It may be older than the checkpoint or the first segment: the log
# begins at the highest of the three. The file: ``0`` (version), ``log_start_offset N`` (20 digits)
# and ``crc32c X`` (8 hex digits, of both lines before), a line each.


def encode_log_start(offset: int) -> bytes:
    """The file's bytes; always the same length."""
    text = f"{_VERSION}\nlog_start_offset {offset:020d}\n".encode()
    return b"%bcrc32c %08x\n" % (text, crc32c(text))


def decode_log_start(data: bytes) -> int:
    """The offset (inclusive); CorruptDataError if the bytes are torn or damaged."""
    try:
        _, line, _ = data.decode("ascii").splitlines()
        offset = int(line.split(" ")[1])
    except (ValueError, IndexError) as error:
        raise CorruptDataError("log start offset cannot be read") from error
    if encode_log_start(offset) != data:
        raise CorruptDataError("log start offset does not match its CRC")
    return offset


def read_log_start(filesystem: FileSystem, directory: Path) -> int | None:
    """The offset in the file; None if there is none. CorruptDataError names the file."""
    path = directory / LOG_START_FILE
    try:
        return decode_log_start(read_small_file(filesystem, path))
    except FileNotFoundError:
        return None
    except CorruptDataError as error:
        raise CorruptDataError(f"{path}: {error}") from error


def write_log_start(filesystem: FileSystem, directory: Path, offset: int) -> None:
    """Replace the file; durable on return. OSError: it may hold the old offset or the new one."""
    path, data = directory / LOG_START_FILE, encode_log_start(offset)
    try:
        filesystem.write_atomically(path, data)
    except OSError as error:
        # Records are deleted to make room on a full disk: the existing file needs none.
        if not (is_transient(error) and filesystem.exists(path)):
            raise
        handle = filesystem.open(path, create=False)
        try:
            handle.truncate(len(data))
            handle.write_at(0, data)
            handle.datasync()
        finally:
            handle.close()


# --- how the log was closed ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanShutdown:
    """The log as it was closed. If it differs at the next open, the close was not clean."""

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
        data = read_small_file(filesystem, directory / CLEAN_SHUTDOWN_FILE)
        version, line = data.decode("ascii").splitlines()
        end, base, size = map(int, line.split())
    except (FileNotFoundError, ValueError, CorruptDataError):
        return None
    if version != _VERSION:
        return None
    return CleanShutdown(log_end_offset=end, active_base_offset=base, active_size_bytes=size)


# --- leader epochs ------------------------------------------------------------------------------
# A version, a count, then ``epoch start_offset`` lines. Source: KIP-101, KIP-279.


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
        return decode_leader_epochs(read_small_file(filesystem, path))
    except FileNotFoundError:
        return []
    except CorruptDataError as error:
        raise CorruptDataError(f"{path}: {error}") from error


def write_leader_epochs(
    filesystem: FileSystem, directory: Path, epochs: Sequence[tuple[int, int]]
) -> None:
    """Replace the file; durable on return."""
    filesystem.write_atomically(directory / LEADER_EPOCH_FILE, encode_leader_epochs(epochs))


class LeaderEpochFile:
    """(leader epoch, its first offset) pairs, ascending. OSError: nothing has changed."""

    __slots__ = ("_directory", "_filesystem", "latest_epoch", "pairs")

    def __init__(
        self, filesystem: FileSystem, directory: Path, pairs: list[tuple[int, int]]
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._take(pairs)

    def assign(self, epoch: int, start_offset: int) -> None:
        """``epoch`` leads from ``start_offset`` (inclusive); durable on return."""
        self._replace(with_leader_epoch(self.pairs, epoch, start_offset))

    def assign_copied(self, epoch: int, start_offset: int, log_end_offset: int) -> None:
        """Assign the epoch of a copied batch at ``start_offset``, at or after the log end.

        Epochs that begin at the log end or later have no batches and are dropped. ValueError if an
        epoch with batches is newer.
        """
        latest_start = self.pairs[-1][1] if self.pairs else -1
        if epoch == self.latest_epoch and latest_start <= start_offset:
            return
        kept = without_end(self.pairs, log_end_offset)
        if kept and kept[-1][0] > epoch:
            raise ValueError(f"a batch of leader epoch {epoch} after one of {kept[-1][0]}")
        self._replace(with_leader_epoch(kept, epoch, start_offset))

    def restart(self) -> None:
        """Forget all pairs: the log was dropped, and the file with it."""
        self._take([])

    def cut_end(self, offset: int) -> None:
        """The log now ends at ``offset`` (exclusive); durable on return."""
        self._replace(without_end(self.pairs, offset))

    def cut_start(self, offset: int) -> None:
        """The log now begins at ``offset``.

        The file keeps the old epochs until the next epoch is written; a load drops them again.
        """
        self._take(without_start(self.pairs, offset))

    def _replace(self, pairs: list[tuple[int, int]]) -> None:
        if pairs != self.pairs:
            write_leader_epochs(self._filesystem, self._directory, pairs)
            self._take(pairs)

    def _take(self, pairs: list[tuple[int, int]]) -> None:
        self.pairs = pairs
        self.latest_epoch = pairs[-1][0] if pairs else NO_LEADER_EPOCH
        """The highest epoch; -1 if none is known."""


# --- how far the log has been compacted ---------------------------------------------------------
# A version, a count of 1, then one line ``topic partition offset`` for this partition. The offset
# is the first dirty one. The file is written before anything is first replaced, so it also shows
# that batches of sealed segments may have gaps between them.


def read_first_dirty_offset(filesystem: FileSystem, directory: Path) -> int | None:
    """The first dirty offset; None if the log was never compacted, 0 if the file is damaged.

    Zero is always safe: compaction merely reads everything again.
    """
    try:
        data = read_small_file(filesystem, directory / CLEANER_CHECKPOINT_FILE)
        version, count, line = data.decode("ascii").splitlines()
        offset = int(line.split()[-1])
    except FileNotFoundError:
        return None
    except (ValueError, IndexError, CorruptDataError):
        return 0
    return max(offset, 0) if (version, count) == (_VERSION, "1") else 0


def lower_first_dirty_offset(filesystem: FileSystem, directory: Path, offset: int) -> None:
    """Mark everything from ``offset`` on dirty: the log is about to be cut there. Durable.

    What is written there later was never compacted.
    """
    stored = read_first_dirty_offset(filesystem, directory)
    if stored is not None and stored > offset:
        write_first_dirty_offset(filesystem, directory, offset)


def write_first_dirty_offset(filesystem: FileSystem, directory: Path, offset: int) -> None:
    """Replace the file; durable on return."""
    topic, _, partition = directory.name.rpartition("-")
    text = f"{_VERSION}\n1\n{topic} {partition} {offset}\n"
    filesystem.write_atomically(directory / CLEANER_CHECKPOINT_FILE, text.encode())


# --- gaps that were copied ----------------------------------------------------------------------
# A version and an offset (exclusive), a line each. A follower copies the leader's batches as they
# are, also where compaction has removed some between them. The file is written, durably, before the
# first batch after a gap, and covers the whole segment. Recovery treats a gap anywhere else as
# damage.


def read_gaps_end(filesystem: FileSystem, directory: Path) -> int:
    """The offset before which gaps may begin: 0 without the file, the largest if it is damaged.

    Damage shows that there are gaps, and batches are still checked one by one.
    """
    try:
        data = read_small_file(filesystem, directory / OFFSET_GAPS_FILE)
        version, offset = data.decode("ascii").splitlines()
        return int(offset) if version == _VERSION and offset.isdecimal() else OFFSET_MAX
    except FileNotFoundError:
        return 0
    except (ValueError, CorruptDataError):
        return OFFSET_MAX


def write_gaps_end(filesystem: FileSystem, directory: Path, offset: int) -> None:
    """Replace the file; durable on return."""
    filesystem.write_atomically(directory / OFFSET_GAPS_FILE, f"{_VERSION}\n{offset}\n".encode())


# --- a cut that an operator accepts -------------------------------------------------------------
# It holds the offset at which, as the failed open said, the intact part of the log ends. The next
# recovery that would fail at exactly this offset cuts there instead. The file is removed as soon as
# the log is open, so it never applies to a later failure.


def accept_cut(filesystem: FileSystem, directory: Path, offset: int) -> None:
    """Let the next recovery of ``directory`` cut at ``offset`` (inclusive). Durable. OSError."""
    if offset < 0:
        raise ValueError(f"offset={offset}: offsets begin at 0")
    filesystem.write_atomically(directory / ACCEPTED_CUT_FILE, f"{offset}\n".encode())


def read_accepted_cut(filesystem: FileSystem, directory: Path) -> int | None:
    """The accepted offset; None if there is none, or the file cannot be read."""
    try:
        return int(filesystem.read_whole(directory / ACCEPTED_CUT_FILE))
    except (FileNotFoundError, ValueError):
        return None


# --- the topic ----------------------------------------------------------------------------------
# Its id is kept twice. Kafka's file has no checksum; ours has one: ``0``, ``topic_id <id>`` and
# ``crc32c X`` (8 hex digits, of both lines) on a line each. The files of another topic are removed,
# so a flipped bit must not turn one topic into another.


def encode_topic_id(topic_id: str) -> bytes:
    """The bytes of our file."""
    text = f"0\ntopic_id {topic_id}\n".encode()
    return b"%bcrc32c %08x\n" % (text, crc32c(text))


def decode_topic_id(data: bytes) -> str:
    """The id in our file; CorruptDataError if it is torn or damaged."""
    try:
        _, line, _ = data.decode("ascii").splitlines()
        topic_id = line.split(" ")[1]
    except (ValueError, IndexError) as error:
        raise CorruptDataError("topic id cannot be read") from error
    if encode_topic_id(topic_id) != data:
        raise CorruptDataError("topic id does not match its CRC")
    return topic_id


def decode_metadata(data: bytes) -> tuple[str, str]:
    """Version and topic id in Kafka's file; CorruptDataError if they are not there."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode("ascii").splitlines())
        return fields["version"], fields["topic_id"]
    except (KeyError, ValueError) as error:
        raise CorruptDataError("no version and topic id") from error


def read_topic_id(filesystem: FileSystem, directory: Path) -> str | None:
    """The id of the topic that these files belong to; None if neither file is there.

    CorruptDataError if our file is damaged and Kafka's is missing: these may be the
    files of another topic. A directory of an earlier build has only Kafka's, which is trusted.
    """
    damage: CorruptDataError | None = None
    path = directory / TOPIC_ID_FILE
    try:
        return decode_topic_id(filesystem.read_whole(path))
    except FileNotFoundError:
        pass
    except CorruptDataError as error:
        damage = CorruptDataError(f"{path}: {error}")
    metadata = directory / PARTITION_METADATA_FILE
    try:
        version, topic_id = decode_metadata(filesystem.read_whole(metadata))
    except FileNotFoundError:
        if damage is not None:
            raise damage from None
        return None
    except CorruptDataError as error:
        raise CorruptDataError(f"{metadata}: {error}") from error
    if version != _VERSION:
        raise CorruptDataError(f"{metadata}: version {version} is not known")
    return topic_id


def write_topic_id(filesystem: FileSystem, directory: Path, topic_id: str) -> None:
    """Write the topic id to both files, unless they have it; durable on return."""
    metadata = f"version: 0\ntopic_id: {topic_id}\n".encode()
    for name, data in (
        (PARTITION_METADATA_FILE, metadata),
        (TOPIC_ID_FILE, encode_topic_id(topic_id)),
    ):
        try:
            found = filesystem.read_whole(directory / name)
        except FileNotFoundError:
            found = b""
        if found != data:
            filesystem.write_atomically(directory / name, data)


# --- dropping the whole log ---------------------------------------------------------------------
# The new log is empty and begins at another offset; one file makes that crash-safe.
# ``restart-offset`` is written first, durably: from then on the old log counts as dropped. Then
# every file but the topic id's is removed, the checkpoint of an empty log is written, and
# ``restart-offset`` is removed. If a crash left that file, the next open repeats these steps, so it
# finds either the old log or the empty one. The file: ``0`` (version), ``restart_offset N`` and
# ``crc32c X`` (8 hex digits, of both lines before), a line each.


_KEPT: Final = frozenset({LOCK_FILE, TOPIC_ID_FILE, PARTITION_METADATA_FILE, RESTART_FILE})


def encode_restart(offset: int) -> bytes:
    """The file's bytes."""
    text = f"0\nrestart_offset {offset}\n".encode()
    return b"%bcrc32c %08x\n" % (text, crc32c(text))


def decode_restart(data: bytes) -> int:
    """The offset; CorruptDataError if the bytes are torn or damaged."""
    try:
        _, line, _ = data.decode("ascii").splitlines()
        offset = int(line.split(" ")[1])
    except (ValueError, IndexError) as error:
        raise CorruptDataError("restart offset cannot be read") from error
    if encode_restart(offset) != data:
        raise CorruptDataError("restart offset does not match its CRC")
    return offset


def begin_restart(filesystem: FileSystem, directory: Path, offset: int) -> None:
    """Drop the log, durably: ``finish_restart`` must follow, now or at the next open."""
    filesystem.write_atomically(directory / RESTART_FILE, encode_restart(offset))


def finish_restart(filesystem: FileSystem, directory: Path) -> None:
    """Finish a restart that was begun, durably; nothing if there is none.

    CorruptDataError if the file is damaged: it is unknown where the new log begins.
    """
    path = directory / RESTART_FILE
    try:
        offset = decode_restart(read_small_file(filesystem, path))
    except FileNotFoundError:
        return
    except CorruptDataError as error:
        raise CorruptDataError(f"{path}: {error}") from error
    for name in filesystem.list_directory(directory):
        if name not in _KEPT:
            filesystem.remove(directory / name)
    # Its sync of the directory also makes the removals durable.
    checkpoint = RecoveryCheckpoint(offset, offset, offset)
    filesystem.write_atomically(directory / RECOVERY_FILE, checkpoint.to_bytes())
    filesystem.remove(path)
    filesystem.sync_directory(directory)
