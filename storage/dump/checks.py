"""Check the files beside a log: each alone, against each other and against the batches.

The checkpoints are read first; they say how far to trust the log. Indexes and snapshots are checked
during one ordered pass over its batches.

One file: one check for each kind of file, and the findings that all of them yield.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from crc32c import crc32c

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.dump.contents import Row, rows_of
from oncelog.storage.errors import InvariantViolation
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from oncelog.storage.log.side_files import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERY_FILE,
    CleanShutdown,
    RecoveryCheckpoint,
    decode_leader_epochs,
    read_clean_shutdown,
    read_log_start,
)
from oncelog.storage.model import NO_PRODUCER_EPOCH, NO_TIMESTAMP, ProducerSnapshotEntry
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.control import ControlRecord
from oncelog.storage.segments.aborted_index import AbortedIndexEntry
from oncelog.storage.segments.segment import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from oncelog.storage.segments.summary import SUMMARY_SUFFIX, SegmentSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong at byte ``position`` of a file.

    With ``is_problem`` False it is a note: the next open repairs it without loss.
    """

    path: Path
    position: int
    reason: str
    is_problem: bool = True


class Checkpoints:
    """The checkpoints of one directory, and what they say about a position in its log.

    Read them before the log: while an actor writes, the log may only be ahead of them. ``flag`` is
    what a clean close left; None: the process is running, or it crashed.
    """

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self.flag: CleanShutdown | None = None
        self.recovery_point: int | None = None
        self.epochs: list[tuple[int, int]] = []

    def read(self) -> Iterator[Finding]:
        """Read all four; one that is missing or unreadable is a finding.

        A log start offset may be missing.
        """
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
        try:
            log_start_offset = read_log_start(self._filesystem, self._directory)
        except CorruptDataError as error:
            path = self._directory / LOG_START_FILE
            yield Finding(path=path, position=0, reason=str(error).removeprefix(f"{path}: "))
        else:
            if log_start_offset is not None:
                # Only synced records are hidden, and a power loss may set the checkpoint back.
                self.recovery_point = max(self.recovery_point or 0, log_start_offset)
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

    def must_indexes_fit(self, next_offset: int, *, is_active: bool) -> bool:
        """Whether the indexes of a segment that ends before ``next_offset`` must fit its log."""
        if self.flag is not None:
            return True
        return not is_active and self.is_synced(next_offset - 1)


# --- the summary of a sealed segment ------------------------------------------------------------


def check_summary(filesystem: FileSystem, log_path: Path) -> Iterator[Finding]:
    """Compare the segment of ``log_path`` and the files beside it with its summary.

    The next open rebuilds all of it except the log itself.
    """
    path = log_path.with_suffix(SUMMARY_SUFFIX)
    try:
        data = filesystem.read_whole(path)
    except FileNotFoundError:
        reason = "it is missing: the next open reads the segment again"
        yield Finding(path=path, position=0, reason=reason, is_problem=False)
        return
    try:
        summary = SegmentSummary.from_bytes(data)
    except CorruptDataError as error:
        yield Finding(path=path, position=0, reason=str(error))
        return
    found = list(_differences(filesystem, log_path, summary))
    # Compaction may have replaced the files meanwhile.
    if found and filesystem.exists(path) and filesystem.read_whole(path) == data:
        yield from found


def _differences(
    filesystem: FileSystem, log_path: Path, summary: SegmentSummary
) -> Iterator[Finding]:
    size_bytes = filesystem.file_size(log_path)
    if size_bytes != summary.log_bytes:
        reason = f"{size_bytes} bytes, {summary.log_bytes} when the segment was sealed"
        yield Finding(path=log_path, position=min(size_bytes, summary.log_bytes), reason=reason)
    for suffix, expected in (
        (OFFSET_INDEX_SUFFIX, summary.index_crc32c),
        (TIME_INDEX_SUFFIX, summary.timeindex_crc32c),
        (TXN_INDEX_SUFFIX, summary.txnindex_crc32c),
    ):
        path = log_path.with_suffix(suffix)
        try:
            found = crc32c(filesystem.read_whole(path))
        except FileNotFoundError:
            found = 0
        if found != expected:
            reason = "it is not what it was when the segment was sealed"
            yield Finding(path=path, position=0, reason=reason)


# --- indexes ------------------------------------------------------------------------------------
# Each check streams its file beside the log, so neither has to fit in memory. It returns
# findings as (position in the index file, reason).


Fault: TypeAlias = tuple[int, str]
"""A position in the index file, and what is wrong there."""


class IndexFile:
    """The rows of one index in order, up to the first fault of the file itself."""

    def __init__(self, filesystem: FileSystem, path: Path, *rising: str) -> None:
        self.path = path
        self.is_missing = False
        self.row: Row | None = None
        self._rows = rows_of(filesystem, path)
        self._rising = rising
        self._fault: Fault | None = None
        try:
            self.row = next(self._rows, None)
        except FileNotFoundError:
            self.is_missing = True
        except CorruptDataError as error:
            self._stop(0, error)

    def __getitem__(self, field: str) -> Any:
        """A field of the current row."""
        assert self.row is not None
        return self.row[field]

    def advance(self) -> None:
        """Go to the next row; a row that does not increase is a fault."""
        before = self.row
        assert before is not None
        try:
            self.row = next(self._rows, None)
        except CorruptDataError as error:
            self._stop(before["position"], error)
            return
        if self.row is not None:
            for field in self._rising:
                if self.row[field] <= before[field]:
                    self._fault = (
                        self.row["position"],
                        f"{field} goes from {before[field]} to {self.row[field]}",
                    )
                    self.row = None
                    return

    def faults(self) -> Iterator[Fault]:
        """The fault that ended the file early; yielded once."""
        if self._fault is not None:
            yield self._fault
            self._fault = None

    @property
    def is_whole(self) -> bool:
        """Whether no fault has been met."""
        return self._fault is None

    def _stop(self, position: int, error: CorruptDataError) -> None:
        """``error`` begins with the path and position, which the finding has anyway."""
        text = str(error).removeprefix(f"{self.path} at byte ")
        number, _, reason = text.partition(": ")
        self.row = None
        self._fault = (int(number), reason) if number.isdecimal() else (position, str(error))


class OffsetIndexCheck:
    """``.index``: each entry names the first byte and the last offset of one batch."""

    def __init__(self, file: IndexFile) -> None:
        self.file = file

    def batch(self, position: int, header: BatchHeader) -> Iterator[Fault]:
        """Visit the batch at ``position`` of the log."""
        file = self.file
        while file.row is not None and file["batch_position"] <= position:
            if file["batch_position"] < position:
                yield file["position"], f"no batch begins at byte {file['batch_position']}"
            elif file["offset"] != header.last_offset:
                yield (
                    file["position"],
                    f"offset {file['offset']} for the batch at byte {position}, "
                    f"which ends with offset {header.last_offset}",
                )
            file.advance()

    def skip(self, position: int) -> None:
        """Visit a batch at ``position`` whose header cannot be trusted."""
        while self.file.row is not None and self.file["batch_position"] <= position:
            self.file.advance()

    def end(self, position: int) -> Iterator[Fault]:
        """The log ends at ``position``."""
        while self.file.row is not None:
            yield (
                self.file["position"],
                f"byte {self.file['batch_position']} is beyond the last batch, "
                f"which ends at {position}",
            )
            self.file.advance()
        yield from self.file.faults()


class TimeIndexCheck:
    """``.timeindex``: each entry is the largest timestamp up to the batch that has it."""

    def __init__(self, file: IndexFile) -> None:
        self.file = file
        self._largest_ms = NO_TIMESTAMP
        self._last_ms = NO_TIMESTAMP

    def batch(self, header: BatchHeader) -> Iterator[Fault]:
        """Visit a batch."""
        file = self.file
        self._largest_ms = max(self._largest_ms, header.max_timestamp_ms)
        while file.row is not None and file["offset"] <= header.last_offset:
            position, timestamp_ms = file["position"], file["timestamp_ms"]
            if file["offset"] < header.last_offset:
                yield position, f"no batch ends with offset {file['offset']}"
            elif timestamp_ms != header.max_timestamp_ms:
                yield (
                    position,
                    f"timestamp {timestamp_ms} for the batch that ends with offset "
                    f"{header.last_offset} and has {header.max_timestamp_ms}",
                )
            elif timestamp_ms != self._largest_ms:
                yield position, f"timestamp {timestamp_ms} comes after {self._largest_ms}"
            self._last_ms = timestamp_ms
            file.advance()

    def end(self, *, is_complete: bool) -> Iterator[Fault]:
        """The log ends; in a complete index the last entry is the segment's largest timestamp."""
        file = self.file
        while file.row is not None:
            yield file["position"], f"offset {file['offset']} is beyond the last batch"
            self._last_ms = file["timestamp_ms"]
            file.advance()
        is_short = is_complete and file.is_whole and self._last_ms < self._largest_ms
        yield from file.faults()
        if is_short:
            yield 0, f"no entry for the largest timestamp, {self._largest_ms}"


class TxnIndexCheck:
    """``.txnindex``: an entry for each ABORT marker that closed a transaction, and no other."""

    def __init__(self, file: IndexFile) -> None:
        self.file = file

    def abort(
        self, offset: int, expected: AbortedIndexEntry | None, *, is_exact: bool
    ) -> Iterator[Fault]:
        """Visit the ABORT marker at ``offset``; ``expected`` None: it closed no known transaction.

        Unless ``is_exact``, batches of this or of a concurrent transaction may be gone from the
        log. Then an entry may say more than the log does, or be gone as well.
        """
        file = self.file
        yield from self._unexpected_entries(offset, is_exact=is_exact)
        if file.row is None or file["last_offset"] > offset:
            if expected is not None and file.is_whole and is_exact:
                at = file["position"] if file.row is not None else 0
                yield at, f"no entry for the aborted transaction that ends at offset {offset}"
            return
        yield from self._compare(expected, is_exact=is_exact)
        file.advance()

    def end(self, next_offset: int, *, is_exact: bool) -> Iterator[Fault]:
        """The log ends before ``next_offset``; entries from there on are not checked."""
        yield from self._unexpected_entries(next_offset, is_exact=is_exact)
        yield from self.file.faults()

    def _unexpected_entries(self, offset: int, *, is_exact: bool) -> Iterator[Fault]:
        """Entries before ``offset`` that no marker claimed."""
        file = self.file
        while file.row is not None and file["last_offset"] < offset:
            if is_exact:
                yield file["position"], f"no ABORT marker at offset {file['last_offset']}"
            file.advance()

    def _compare(self, expected: AbortedIndexEntry | None, *, is_exact: bool) -> Iterator[Fault]:
        file = self.file
        if expected is None:
            if is_exact:
                yield (
                    file["position"],
                    f"the ABORT marker at offset {file['last_offset']} closed no transaction",
                )
            return
        fields = ["producer_id"]
        if is_exact:
            fields += ["first_offset", "last_stable_offset"]
        for field in fields:
            if file[field] != getattr(expected, field):
                yield (
                    file["position"],
                    f"{field} {file[field]} for the transaction that ends at offset "
                    f"{file['last_offset']}, the log says {getattr(expected, field)}",
                )


# --- producer snapshots -------------------------------------------------------------------------
# A replay of the log checks them, and it checks the aborted index.


class ProducerReplay(Protocol):
    """The rules of producer state, which storage itself does not know."""

    def begin(self, offset: int, entries: Sequence[ProducerSnapshotEntry]) -> None:
        """Start at ``offset`` with the state before it."""
        ...

    def apply(self, header: BatchHeader, control: ControlRecord | None) -> AbortedIndexEntry | None:
        """Apply a batch; return the entry of the transaction it aborts. InvariantViolation."""
        ...

    def snapshot(self) -> Sequence[ProducerSnapshotEntry]:
        """The state after the last batch."""
        ...


class ProducerCheck:
    """One replay of one directory. It ends at the first damage of the log, without a finding."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        replay: ProducerReplay,
        checkpoints: Checkpoints,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._replay = replay
        self._checkpoints = checkpoints
        self._offsets: list[int] = []
        self._start = 0
        self._cleaned_offset = 0
        self._knows_all = True
        self.is_replaying = True

    @property
    def is_exact(self) -> bool:
        """Whether every transaction open at this offset is known."""
        return self.is_replaying and self._knows_all

    def begin(
        self, base_offset: int, offsets: Sequence[int], cleaned_offset: int
    ) -> Iterator[Finding]:
        """Begin at the first batch: with its snapshot, or with nothing if the log begins at 0.

        ``offsets`` are those of the snapshots, ascending. Up to ``cleaned_offset`` compaction has
        removed batches that most of them were made from. Those snapshots are only read, and the
        last one restarts the replay.
        """
        self._cleaned_offset = cleaned_offset
        entries = None
        if base_offset in offsets:
            entries = yield from self._read(base_offset)
        for offset in offsets:
            if offset < base_offset:
                reason = f"offset {offset} is below the first segment"
                yield Finding(path=self._path(offset), position=0, reason=reason, is_problem=False)
        self._start = base_offset
        self._knows_all = base_offset == 0 or entries is not None
        self._offsets = [offset for offset in offsets if offset > base_offset]
        self._replay.begin(base_offset, entries or [])

    def batch(
        self, path: Path, position: int, header: BatchHeader, control: ControlRecord | None
    ) -> Generator[Finding, None, AbortedIndexEntry | None]:
        """Visit a batch: check the snapshots before it, then apply it.

        Returns what the aborted index must say about it.
        """
        yield from self._check_before(header.base_offset, header.next_offset)
        if not self.is_replaying:
            return None
        try:
            return self._replay.apply(header, control)
        except InvariantViolation as error:
            yield Finding(path=path, position=position, reason=str(error))
            self.is_replaying = False
            return None

    def end(self, log_end_offset: int) -> Iterator[Finding]:
        """The log ends: check the snapshot at its end, and report those beyond it."""
        yield from self._check_before(log_end_offset, log_end_offset + 1)
        for offset in self._offsets:
            yield Finding(
                path=self._path(offset),
                position=0,
                reason=f"offset {offset} is beyond the log end {log_end_offset}",
                is_problem=self._checkpoints.is_synced(offset - 1),
            )

    def _check_before(self, base_offset: int, next_offset: int) -> Iterator[Finding]:
        """Compare the snapshots up to ``base_offset``; one inside a batch is wrong in any case."""
        while self._offsets and self._offsets[0] < next_offset:
            offset = self._offsets.pop(0)
            if offset > base_offset:
                reason = f"offset {offset} lies within the batch at offset {base_offset}"
                yield Finding(path=self._path(offset), position=0, reason=reason)
            else:
                yield from self._check(offset)

    def _check(self, offset: int) -> Iterator[Finding]:
        stored = yield from self._read(offset)
        if stored is None or not self.is_replaying:
            return
        if offset <= self._cleaned_offset:
            self._start, self._knows_all = offset, True
            self._replay.begin(offset, stored)
            return
        path = self._path(offset)
        replayed = {entry.producer_id: entry for entry in self._replay.snapshot()}
        for entry in stored:
            for difference in self._differences(entry, replayed.pop(entry.producer_id, None)):
                reason = f"producer {entry.producer_id}: {difference}"
                yield Finding(path=path, position=0, reason=reason)
        for entry in replayed.values():
            if entry.has_open_transaction:
                reason = f"producer {entry.producer_id} with an open transaction is not in it"
                yield Finding(path=path, position=0, reason=reason)
        forgotten = sum(not entry.has_open_transaction for entry in replayed.values())
        if forgotten:
            # A producer that is silent for a day is forgotten; the log does not say when.
            reason = f"{forgotten} producers of the log are not in it"
            yield Finding(path=path, position=0, reason=reason, is_problem=False)

    def _differences(
        self, stored: ProducerSnapshotEntry, replayed: ProducerSnapshotEntry | None
    ) -> Iterator[str]:
        """Where an entry differs from the log; what the log cannot tell is accepted."""
        if not self._knows_all and stored.last_offset < self._start:
            return
        if replayed is None:
            yield "the log does not know it"
            return
        if not stored.has_batch and replayed.batch_epoch != NO_PRODUCER_EPOCH:
            # Kafka forgets batches at a marker, and so did older builds.
            replayed = replayed.without_batch()
        for field in fields(ProducerSnapshotEntry):
            value, expected = getattr(stored, field.name), getattr(replayed, field.name)
            # A producer that was forgotten and came back has no coordinator epoch.
            if value != expected and not (field.name == "coordinator_epoch" and value < 0):
                yield f"{field.name} {value}, the log says {expected}"

    def _read(self, offset: int) -> Generator[Finding, None, list[ProducerSnapshotEntry] | None]:
        path = self._path(offset)
        try:
            return decode_snapshot(self._filesystem.read_whole(path))
        except CorruptDataError as error:
            yield Finding(path=path, position=0, reason=str(error))
        except FileNotFoundError:
            reason = "it was removed meanwhile"
            yield Finding(path=path, position=0, reason=reason, is_problem=False)
        return None

    def _path(self, offset: int) -> Path:
        return self._directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"
