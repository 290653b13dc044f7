"""Check the files of a partition directory against each other, in one pass over its log.

========================  =====================================================================
file                      checked against
========================  =====================================================================
``.log``                  its CRCs, the order of offsets, the rules of control records
``.index, .timeindex``    the batches of the segment
``.txnindex``             the ABORT markers, and the transactions that replay says they closed
``.snapshot``             replay of the log up to its offset
leader-epoch-checkpoint   the leader epochs of the batches
recovery-checkpoint       the log end: synced records must be there
log-start-offset          the log end: the log does not end below its start
.clean_shutdown           the log end and the size of the active segment
========================  =====================================================================

Damage where the log was synced, or in what a clean close left, is a *problem*. What the next open
repairs without loss is a *note*: a torn tail after a crash, indexes of the active segment,
producers that a snapshot has forgotten. In a compacted part, gaps and missing transactions are
neither. Nothing is written, no lock is taken, and memory holds one batch and the producer state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.dump.checks import (
    Checkpoints,
    Fault,
    Finding,
    IndexFile,
    OffsetIndexCheck,
    ProducerCheck,
    ProducerReplay,
    TimeIndexCheck,
    TxnIndexCheck,
    check_summary,
)
from oncelog.storage.dump.contents import (
    FileKind,
    LogEnd,
    ScannedBatch,
    kind_of,
    records_of,
    scan_log,
)
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.side_files import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_FILE,
    CleanShutdown,
    read_first_dirty_offset,
    read_gaps_end,
)
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.control import ControlRecord, decode_control
from oncelog.storage.segments.inspection import TailDefect
from oncelog.storage.segments.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)

_TORN: Final = frozenset({TailDefect.SHORT_HEADER, TailDefect.SHORT_BATCH, TailDefect.ZEROS})
"""Defects at the end of a log that a crash explains, even without a checkpoint."""

_KNOWN_ATTRIBUTES: Final = 0x7F
_CODEC_MASK: Final = 0x07
_CODEC_MAX: Final = 4


def verify_directory(
    filesystem: FileSystem,
    directory: Path,
    replay: ProducerReplay,
    *,
    is_deep: bool = False,
) -> Iterator[Finding]:
    """All findings, in the order found; ``is_deep`` also decodes every record.

    OSError if the directory cannot be read.
    """
    check = _DirectoryCheck(filesystem, directory, replay, is_deep=is_deep)
    yield from check.run()


class _SegmentIndexes:
    """The three indexes of one segment, checked during a pass over its batches."""

    def __init__(self, filesystem: FileSystem, stem: Path, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._sees_times = True
        self.offsets = OffsetIndexCheck(
            IndexFile(filesystem, stem.with_suffix(OFFSET_INDEX_SUFFIX), "offset", "batch_position")
        )
        self.times = TimeIndexCheck(
            IndexFile(filesystem, stem.with_suffix(TIME_INDEX_SUFFIX), "timestamp_ms")
        )
        self.aborted = TxnIndexCheck(
            IndexFile(filesystem, stem.with_suffix(TXN_INDEX_SUFFIX), "last_offset")
        )

    def batch(self, position: int, header: BatchHeader, *, is_active: bool) -> Iterator[Finding]:
        """A batch passes the offset and the time index."""
        must_fit = self._checkpoints.must_indexes_fit(header.base_offset, is_active=is_active)
        faults = self.offsets.batch(position, header)
        yield from _findings(self.offsets.file, faults, is_problem=must_fit)
        if self._sees_times:
            yield from _findings(self.times.file, self.times.batch(header), is_problem=must_fit)

    def skip(self, position: int) -> None:
        """Visit a damaged batch, of which only the position is known."""
        self.offsets.skip(position)
        self._sees_times = False

    def end(
        self, position: int, next_offset: int, *, is_active: bool, is_exact: bool
    ) -> Iterator[Finding]:
        """The log ends at ``position``, before ``next_offset``."""
        must_fit = self._checkpoints.must_indexes_fit(next_offset, is_active=is_active)
        for file in (self.offsets.file, self.times.file):
            if file.is_missing and must_fit:
                yield Finding(path=file.path, position=0, reason="it is missing")
        faults = self.offsets.end(position)
        yield from _findings(self.offsets.file, faults, is_problem=must_fit)
        if self._sees_times:
            faults = self.times.end(is_complete=must_fit and not self.times.file.is_missing)
            yield from _findings(self.times.file, faults, is_problem=must_fit)
        faults = self.aborted.end(next_offset, is_exact=is_exact)
        is_synced = self._checkpoints.is_synced(next_offset - 1)
        yield from _findings(self.aborted.file, faults, is_problem=is_synced)


class _DirectoryCheck:
    """One pass over one directory."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        replay: ProducerReplay,
        *,
        is_deep: bool,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._cleaned_offset = 0
        self._is_deep = is_deep
        self._checkpoints = Checkpoints(filesystem, directory)
        self._producers = ProducerCheck(filesystem, directory, replay, self._checkpoints)
        self._epoch_seen = -1
        self._next_offset = 0
        self._is_over = False

    def run(self) -> Iterator[Finding]:
        """Run the checks, in an order that a running actor cannot make fail."""
        yield from self._checkpoints.read()
        names = self._filesystem.list_directory(self._directory)
        segments = _offsets(names, FileKind.LOG)
        if not segments:
            yield Finding(path=self._directory, position=0, reason="there is no segment")
            return
        if read_first_dirty_offset(self._filesystem, self._directory) is not None:
            # Compaction may be at work right now, so any of the sealed segments may have gaps.
            self._cleaned_offset = segments[-1]
        gaps_end = read_gaps_end(self._filesystem, self._directory)
        self._cleaned_offset = max(self._cleaned_offset, gaps_end)
        self._next_offset = segments[0]
        snapshots = _offsets(names, FileKind.SNAPSHOT)
        yield from self._producers.begin(segments[0], snapshots, self._cleaned_offset)
        for base_offset in segments:
            try:
                yield from self._check_sealed(base_offset, is_active=base_offset == segments[-1])
            except FileNotFoundError as error:
                yield Finding(
                    path=Path(error.filename),
                    position=0,
                    reason="it was removed meanwhile",
                    is_problem=False,
                )
                self._producers.is_replaying = False
            if self._is_over:
                return
        yield from self._check_end(segments[-1])

    def _check_sealed(self, base_offset: int, *, is_active: bool) -> Iterator[Finding]:
        """Check the batches with their indexes, then the files by themselves."""
        named = set()
        for finding in self._check_segment(base_offset, is_active=is_active):
            named.add(finding.path)
            yield finding
        if not is_active or self._checkpoints.flag is not None:
            path = self._directory / f"{base_offset:020d}{LOG_SUFFIX}"
            for finding in check_summary(self._filesystem, path):
                if finding.path not in named:
                    yield finding

    def _check_segment(self, base_offset: int, *, is_active: bool) -> Iterator[Finding]:
        path = self._directory / f"{base_offset:020d}{LOG_SUFFIX}"
        if base_offset != self._next_offset:
            yield from self._check_gap(path, 0, base_offset)
            self._next_offset = max(self._next_offset, base_offset)
        indexes: _SegmentIndexes | None = None
        end = 0
        for found in scan_log(self._filesystem, path):
            # After the size of the log was taken: by now an index has at least as much.
            indexes = indexes or _SegmentIndexes(self._filesystem, path, self._checkpoints)
            end = found.position
            if isinstance(found, LogEnd):
                yield from self._check_log_end(path, found, is_active=is_active)
                break
            yield from self._check_batch(path, found, indexes, is_active=is_active)
            if self._is_over:
                return
        if indexes is not None:
            is_exact = self._is_exact(self._next_offset)
            yield from indexes.end(end, self._next_offset, is_active=is_active, is_exact=is_exact)

    def _check_batch(
        self, path: Path, batch: ScannedBatch, indexes: _SegmentIndexes, *, is_active: bool
    ) -> Iterator[Finding]:
        position, header = batch.position, batch.header
        if not batch.is_intact:
            indexes.skip(position)
            yield from self._damage(path, position, TailDefect.BAD_CRC.value)
            self._next_offset = max(self._next_offset, header.next_offset)
            return
        if header.base_offset != self._next_offset:
            yield from self._check_gap(path, position, header.base_offset)
            if self._is_over:
                return
        yield from indexes.batch(position, header, is_active=is_active)
        yield from self._check_epoch(path, position, header)
        control = None
        try:
            control = self._read_control(batch)
        except CorruptDataError as error:
            yield Finding(path=path, position=position, reason=str(error))
        expected = yield from self._producers.batch(path, position, header, control)
        if control is not None and control.committed is False and self._producers.is_replaying:
            is_exact = self._is_exact(header.last_offset)
            faults = indexes.aborted.abort(header.last_offset, expected, is_exact=is_exact)
            is_synced = self._checkpoints.is_synced(header.last_offset)
            yield from _findings(indexes.aborted.file, faults, is_problem=is_synced)
        self._next_offset = max(self._next_offset, header.next_offset)

    def _read_control(self, batch: ScannedBatch) -> ControlRecord | None:
        """Decode a control batch; CorruptDataError if a batch breaks a rule of the format."""
        header = batch.header
        if header.last_offset_delta < 0:
            raise CorruptDataError(f"last offset delta {header.last_offset_delta}")
        if not 0 <= header.record_count <= header.last_offset_delta + 1:
            raise CorruptDataError(
                f"{header.record_count} records in {header.last_offset_delta + 1} offsets"
            )
        codec = header.attributes & _CODEC_MASK
        if header.attributes & ~_KNOWN_ATTRIBUTES or codec > _CODEC_MAX:
            raise CorruptDataError(f"unknown attributes {header.attributes:#06x}")
        if header.is_control:
            return decode_control(batch.frame, header)
        if self._is_deep:
            records_of(batch)
        return None

    def _check_epoch(self, path: Path, position: int, header: BatchHeader) -> Iterator[Finding]:
        """Epochs only rise, and the checkpoint says when; each new one is checked once."""
        epoch, offset = header.leader_epoch, header.base_offset
        if epoch < self._epoch_seen:
            reason = f"leader epoch {epoch} after {self._epoch_seen}"
            yield Finding(path=path, position=position, reason=reason)
        if epoch <= self._epoch_seen:
            return
        self._epoch_seen = epoch
        epochs = self._checkpoints.epochs
        slot = bisect_right([start for _, start in epochs], offset) - 1
        if slot >= 0 and epochs[slot][0] != epoch:
            yield Finding(
                path=self._directory / LEADER_EPOCH_FILE,
                position=0,
                reason=f"leader epoch {epochs[slot][0]} at offset {offset}, the log says {epoch}",
                is_problem=self._checkpoints.is_synced(offset),
            )

    def _check_gap(self, path: Path, position: int, base_offset: int) -> Iterator[Finding]:
        """The next batch or segment does not begin where the last one ended."""
        if not self._next_offset < base_offset <= self._cleaned_offset:
            reason = f"it begins with offset {base_offset} where {self._next_offset} is due"
            yield from self._damage(path, position, reason)

    def _damage(self, path: Path, position: int, reason: str) -> Iterator[Finding]:
        """A batch is damaged: data loss where it was synced, else a tail to be cut."""
        self._producers.is_replaying = False
        checkpoints = self._checkpoints
        if checkpoints.recovery_point is None or checkpoints.is_synced(self._next_offset):
            yield Finding(path=path, position=position, reason=reason)
            return
        self._is_over = True
        yield Finding(
            path=path,
            position=position,
            reason=f"{reason}; nothing from here on was synced, the next open cuts it",
            is_problem=False,
        )

    def _check_log_end(self, path: Path, end: LogEnd, *, is_active: bool) -> Iterator[Finding]:
        if end.defect is TailDefect.NONE:
            return
        checkpoints = self._checkpoints
        if checkpoints.flag is None and checkpoints.recovery_point is None:
            is_torn = is_active and end.defect in _TORN
        else:
            is_torn = not checkpoints.is_synced(self._next_offset)
        reason = f"{end.defect.value}; {end.unread_bytes} bytes"
        if is_torn:
            reason = f"torn tail: {reason} that the next open cuts"
            self._is_over = not is_active
        else:
            reason += " cannot be read"
            self._producers.is_replaying = False
        yield Finding(path=path, position=end.position, reason=reason, is_problem=not is_torn)

    def _check_end(self, active_base_offset: int) -> Iterator[Finding]:
        path = self._directory / f"{active_base_offset:020d}{LOG_SUFFIX}"
        checkpoints, end = self._checkpoints, self._next_offset
        yield from self._producers.end(end)
        found = CleanShutdown(
            log_end_offset=end,
            active_base_offset=active_base_offset,
            active_size_bytes=self._filesystem.file_size(path),
        )
        if checkpoints.recovery_point is not None and end < checkpoints.recovery_point:
            reason = f"the log ends with offset {end}, but {checkpoints.recovery_point} were synced"
            yield Finding(path=path, position=found.active_size_bytes, reason=reason)
        if checkpoints.epochs and checkpoints.epochs[-1][1] > end:
            yield Finding(
                path=self._directory / LEADER_EPOCH_FILE,
                position=0,
                reason=f"leader epoch {checkpoints.epochs[-1][0]} begins beyond the log end {end}",
                is_problem=checkpoints.flag is not None,
            )
        if checkpoints.flag is not None and checkpoints.flag != found:
            yield Finding(
                path=self._directory / CLEAN_SHUTDOWN_FILE,
                position=0,
                reason=f"it says {checkpoints.flag}, the log is {found}",
            )

    def _is_exact(self, offset: int) -> bool:
        """Whether the log still has everything about a transaction that ends at ``offset``."""
        return self._producers.is_exact and offset >= self._cleaned_offset


def _offsets(names: Iterable[str], kind: FileKind) -> list[int]:
    """The offsets that files of one kind are named after, ascending."""
    return sorted(int(name.partition(".")[0]) for name in names if kind_of(name) is kind)


def _findings(file: IndexFile, faults: Iterator[Fault], *, is_problem: bool) -> Iterator[Finding]:
    for position, reason in faults:
        yield Finding(path=file.path, position=position, reason=reason, is_problem=is_problem)
