"""Opening one partition's directory: what is trusted, what is read again, what is cut.

After a clean close the records are trusted. Otherwise the last segment, and every segment that
reaches beyond the recovery point, is read batch by batch with its CRC (``SegmentScan``). Where that
ends, the rest is kept or cut, or the open fails (``decide_tail``, by the table in ``recovery``).
Aborted-transaction entries and producer state from the recovery point on are not trusted either:
the caller's replay of the log restores them. Files beside the records are only trusted as far as
the summary of their segment vouches for them.

One file: each step of an open depends on what earlier steps found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from oncelog.storage.disk.disk_errors import is_transient, is_unreadable, named_in_errors
from oncelog.storage.disk.file_system import TEMPORARY_SUFFIX, FileSystem
from oncelog.storage.disk.sync_point import SyncLedger
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.producer_snapshot import SnapshotStore
from oncelog.storage.log.recovery import (
    Durability,
    TailAction,
    decide,
    durability_of,
    looks_torn,
)
from oncelog.storage.log.side_files import (
    ACCEPTED_CUT_FILE,
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERY_FILE,
    CleanShutdown,
    RecoveryCheckpoint,
    finish_restart,
    read_accepted_cut,
    read_clean_shutdown,
    read_first_dirty_offset,
    read_gaps_end,
    read_leader_epochs,
    read_log_start,
    read_recovery_checkpoint,
    write_leader_epochs,
    write_log_start,
)
from oncelog.storage.model import NO_LEADER_EPOCH
from oncelog.storage.records import compiled
from oncelog.storage.records.batch import BatchHeader, parse_header
from oncelog.storage.segments.frames import BatchPlace, check_batches, read_run
from oncelog.storage.segments.indexes import IndexCount, IndexRun
from oncelog.storage.segments.inspection import TailDefect, holds_intact_batch
from oncelog.storage.segments.leader_epochs import (
    OFFSET_MAX,
    LeaderEpochPairs,
    packed_epochs,
    record_epoch,
    without_start,
)
from oncelog.storage.segments.segment import INDEX_SUFFIXES, LOG_SUFFIX, Segment
from oncelog.storage.segments.summary import SegmentSummary, epochs_of
from oncelog.storage.segments.swap import complete_swaps

_logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """The result of a load. ``recovery_point`` None: no readable checkpoint.

    ``checked_from``: every batch of the segments from that base offset on has been found good.
    ``snapshot_limit``: the newest offset at which a producer snapshot may be used, so that the
    replay from there also restores the aborted-transaction entries that cannot be trusted.
    """

    segments: list[Segment]
    unsealed: list[Segment]
    """Sealed segments, read again and sound, that need new index files and a summary."""
    snapshots: SnapshotStore
    leader_epochs: list[tuple[int, int]]
    log_start_offset: int
    high_watermark: int
    gaps_end: int
    """Exclusive: gaps may begin below this offset; see ``read_gaps_end``."""
    recovery_point: int | None
    snapshot_limit: int
    checked_from: int
    was_clean: bool
    is_new: bool
    cut: TailCut | None


@dataclass(slots=True, kw_only=True)
class LogLoader:
    """Loads one directory once. Files it writes go into the ledger, which syncs them."""

    filesystem: FileSystem
    directory: Path
    index_interval_bytes: int
    ledger: SyncLedger
    on_cut: Callable[[TailCut], None] = lambda _cut: None
    """Called before anything is cut: if the open then fails, no other record of the cut remains."""
    _cut: TailCut | None = None
    _scanned_from: int | None = None
    _known: int = 0
    """Exclusive: the log is synced up to this offset; 0 if unknown."""
    _stored_log_start: int | None = 0
    """See ``read_log_start``; None: the file is damaged."""
    _log_start_offset: int = 0
    """The log start as far as the small files know it; the first segment may begin later."""
    _copied_gaps_end: int = 0
    """See ``read_gaps_end``."""
    _stored_epochs: list[tuple[int, int]] = field(default_factory=list)
    _unsealed: list[Segment] = field(default_factory=list)
    _summaries: dict[int, SegmentSummary] = field(default_factory=dict)
    """Summaries of the segments that are not read again, by base offset."""
    _epochs_seen: list[tuple[int, int]] = field(default_factory=list)

    def load(self) -> LoadedLog:
        """Load and, if it was not closed cleanly, recover.

        CorruptDataError names the file and the position of damage in synced data; then nothing
        has changed. OSError: the disk.
        """
        self.filesystem.make_directory(self.directory)
        finish_restart(self.filesystem, self.directory)
        complete_swaps(self.filesystem, self.directory)
        segments = self._find_segments()
        try:
            return self._load(segments)
        except (CorruptDataError, OSError):
            for segment in segments:
                segment.close()
            self.ledger.close()
            raise

    def _load(self, segments: list[Segment]) -> LoadedLog:
        checkpoint = self._read_log_start(read_recovery_checkpoint(self.filesystem, self.directory))
        flag = read_clean_shutdown(self.filesystem, self.directory)
        self._stored_epochs = self._read_leader_epochs()
        self._copied_gaps_end = read_gaps_end(self.filesystem, self.directory)
        is_new = not segments
        if is_new:
            self._remove_orphans(segments)
            segments.append(self._create_first(checkpoint))
        self._check_head(segments[0], checkpoint)
        self._load_summaries(segments)
        was_clean = is_new or (flag is not None and self._load_clean(segments, flag))
        recovery_point = checkpoint.recovery_point if checkpoint is not None else None
        self._check_again(segments, checkpoint, was_clean=was_clean)
        if not was_clean:
            self._recover(segments, checkpoint)
            if self._cut is not None and recovery_point is not None:
                # Below the recovery point only if an operator has accepted it.
                recovery_point = min(recovery_point, self._cut.offset)
        log_end_offset = segments[-1].next_offset
        if was_clean:
            recovery_point = log_end_offset
        log_start_offset = max(segments[0].base_offset, self._log_start_offset)
        trusted = recovery_point if recovery_point is not None else log_start_offset
        snapshot_limit = self._load_txn_indexes(segments, min(trusted, log_end_offset))
        high_watermark = checkpoint.high_watermark if checkpoint is not None else log_start_offset
        snapshots = self._load_snapshots(segments)
        leader_epochs = self._load_leader_epochs(segments, log_start_offset)
        self._remove_orphans(segments)
        self._begin_use()
        self._write_log_start_again(segments[0], log_start_offset)
        return LoadedLog(
            segments=segments,
            unsealed=[segment for segment in self._unsealed if segment in segments],
            snapshots=snapshots,
            leader_epochs=leader_epochs,
            log_start_offset=log_start_offset,
            high_watermark=min(max(high_watermark, log_start_offset), log_end_offset),
            gaps_end=self._copied_gaps_end,
            recovery_point=recovery_point,
            snapshot_limit=snapshot_limit,
            checked_from=OFFSET_MAX if self._scanned_from is None else self._scanned_from,
            was_clean=was_clean,
            is_new=is_new,
            cut=self._cut,
        )

    def _find_segments(self) -> list[Segment]:
        stems = [
            name.removesuffix(LOG_SUFFIX)
            for name in self.filesystem.list_directory(self.directory)
            if name.endswith(LOG_SUFFIX)
        ]
        bases = sorted(int(stem) for stem in stems if stem.isdecimal())
        segments = [self._segment(base, next_base) for base, next_base in pairwise(bases)]
        if bases:
            segments.append(self._segment(bases[-1], bases[-1]))
        for segment in segments:
            segment.attach()
        return segments

    def _remove_orphans(self, segments: list[Segment]) -> None:
        """Remove indexes whose segment is gone: a new one with that base must not find them."""
        bases = {segment.base_offset for segment in segments}
        for name in self.filesystem.list_directory(self.directory):
            stem, dot, suffix = name.partition(".")
            if dot + suffix in INDEX_SUFFIXES and stem.isdecimal() and int(stem) not in bases:
                self.filesystem.remove(self.directory / name)
                self.ledger.mark_directory_changed()

    def _segment(self, base_offset: int, next_offset: int) -> Segment:
        return Segment(
            filesystem=self.filesystem,
            directory=self.directory,
            base_offset=base_offset,
            next_offset=next_offset,
            index_interval_bytes=self.index_interval_bytes,
        )

    def _create_first(self, checkpoint: RecoveryCheckpoint | None) -> Segment:
        base_offset = self._log_start_offset
        if checkpoint is not None and checkpoint.recovery_point > base_offset:
            raise CorruptDataError(
                f"{self.directory}: no segment is left, but offsets up to "
                f"{checkpoint.recovery_point} were synced"
            )
        segment = self._segment(base_offset, base_offset)
        segment.create()
        self.filesystem.sync_directory(self.directory)
        return segment

    def _check_head(self, first: Segment, checkpoint: RecoveryCheckpoint | None) -> None:
        """Check the log start: it is raised durably before anything below it is removed."""
        if checkpoint is not None and checkpoint.log_start_offset < first.base_offset:
            raise CorruptDataError(
                f"{first.path_of(LOG_SUFFIX)} at byte 0, offset {checkpoint.log_start_offset}: "
                f"{TailDefect.MISSING_RECORDS.value}: the segments before it are gone"
            )

    def _load_summaries(self, segments: list[Segment]) -> None:
        """Load the summaries, written when the segments were sealed."""
        for segment in segments:
            segment.load_summary()
            is_sealed = segment is not segments[-1]
            if is_sealed and segment.summary and segment.summary.next_offset > segment.next_offset:
                segment.summary = None

    def _load_clean(self, segments: list[Segment], flag: CleanShutdown) -> bool:
        """Trust the files if they are as the clean close left them."""
        active = segments[-1]
        summary = active.summary
        if summary is None or summary.next_offset != flag.log_end_offset:
            return False
        if (active.base_offset, active.size_bytes) != (
            flag.active_base_offset,
            flag.active_size_bytes,
        ):
            return False
        with named_in_errors(active.log_path):
            active.load_tail()
        self._summaries[active.base_offset] = summary
        return active.next_offset == flag.log_end_offset

    # Recovery

    def _recover(self, segments: list[Segment], checkpoint: RecoveryCheckpoint | None) -> None:
        """Read what is not known to be good; where that ends, cut or fail."""
        known = self._known = checkpoint.recovery_point if checkpoint is not None else 0
        first = next(
            (slot for slot, segment in enumerate(segments[:-1]) if segment.next_offset > known),
            len(segments) - 1,
        )
        expected = self._scanned_from = segments[first].base_offset
        for slot in range(first, len(segments)):
            segment = segments[slot]
            if segment.base_offset != expected:
                previous = segments[slot - 1]
                tail = Tail(previous, previous.size_bytes, expected, TailDefect.MISSING_RECORDS)
                self._decide_tail(segments, tail, checkpoint)
                self._cut_after(segments, slot - 1, previous.size_bytes, expected)
                break
            is_last = slot == len(segments) - 1
            gaps_end = self._gaps_end(segment, is_last=is_last)
            with named_in_errors(segment.log_path):
                position, expected, defect = self._scan(segment, gaps_end)
            if defect is not TailDefect.NONE or is_last:
                tail = Tail(segment, position, expected, defect)
                self._decide_tail(segments, tail, checkpoint)
                self._cut_after(segments, slot, position, expected)
                break
            segment.end_scan(position, expected)
        for segment in segments[first:]:
            self.ledger.mark_written(segment.log)
        self._unsealed += segments[first:-1]
        self.ledger.mark_directory_changed()

    def _decide_tail(
        self, segments: list[Segment], tail: Tail, checkpoint: RecoveryCheckpoint | None
    ) -> None:
        self._cut = decide_tail(
            self.filesystem, segments, tail, checkpoint, log_start_offset=self._log_start_offset
        )
        if self._cut is not None:
            self.on_cut(self._cut)

    def _check_again(
        self, segments: list[Segment], checkpoint: RecoveryCheckpoint | None, *, was_clean: bool
    ) -> None:
        """Read the sealed segments that recovery does not, and that have no summary.

        The summary is damaged or lost, an earlier build wrote the segment, or nothing written after
        the records was synced. Damage found here is only logged and left to readers: these segments
        are not part of recovery.
        """
        known = checkpoint.recovery_point if checkpoint is not None else 0
        for segment in segments[:-1]:
            if not was_clean and segment.next_offset > known:
                break
            summary = segment.summary
            if summary is None:
                self._scan_sealed(segment)
                continue
            self._summaries[segment.base_offset] = summary
            # A power loss may bring removed segments back; they are below the log start.
            if summary.next_offset < segment.next_offset > self._log_start_offset:
                raise CorruptDataError(
                    f"{segment.path_of(LOG_SUFFIX)} at byte {segment.size_bytes}, offset "
                    f"{summary.next_offset}: {TailDefect.MISSING_RECORDS.value}: the segments up "
                    f"to offset {segment.next_offset} are gone"
                )
            if segment.next_offset == known and not was_clean:
                # All its records are synced; its indexes, which came later, perhaps not.
                self._unsealed.append(segment)

    def _scan_sealed(self, segment: Segment) -> None:
        next_offset, size_bytes = segment.next_offset, segment.size_bytes
        self._known = OFFSET_MAX
        try:
            position, expected, defect = self._scan(segment, next_offset)
        except OSError as error:
            if not is_unreadable(error):
                raise
            position, expected, defect = 0, segment.next_offset, TailDefect.UNREADABLE
        if defect is TailDefect.NONE and expected == next_offset:
            self._unsealed.append(segment)
        else:
            path = segment.path_of(LOG_SUFFIX)
            _logger.error(
                "%s at byte %d is damaged: %s — check the disk; `oncelog dump --verify` shows what "
                "is damaged, and readers can skip it",
                *(path, position, defect.value),
            )
            segment.begin_scan()
            segment.release()
        segment.end_scan(size_bytes, next_offset)

    def _gaps_end(self, segment: Segment, *, is_last: bool) -> int:
        """Offset (exclusive) up to which compaction may have removed batches of the segment.

        Compaction here, or at the leader that this log was copied from.
        """
        first_dirty = read_first_dirty_offset(self.filesystem, self.directory)
        if first_dirty is None:
            return max(segment.base_offset, self._copied_gaps_end)
        return max(first_dirty if is_last else segment.next_offset, self._copied_gaps_end)

    def _scan(self, segment: Segment, gaps_end: int) -> tuple[int, int, TailDefect]:
        """Read all batches; return the end position, the offset expected there, and the defect."""
        segment.begin_scan()
        scan = SegmentScan(
            segment,
            gaps_end=gaps_end,
            leader_epochs=self._epochs_seen,
            known_epochs=self._stored_epochs,
            synced_offset=self._known,
        )
        defect = scan.run()
        return scan.position, scan.expected_offset, defect

    def _cut_after(
        self, segments: list[Segment], slot: int, position: int, next_offset: int
    ) -> None:
        """End the log at ``position`` of one segment; everything after it is removed for good."""
        segments[slot].end_scan(position, next_offset)
        for later in reversed(segments[slot + 1 :]):
            later.remove()
        del segments[slot + 1 :]

    # The files beside the segments

    def _load_txn_indexes(self, segments: list[Segment], trusted_offset: int) -> int:
        """Read all aborted entries; return the offset from which the replay must restore them.

        The index only repeats what the markers in the log say. An index that does not match the
        summary is not trusted, nor is that of a segment that was read again. These are rewritten
        after the replay: if the replay fails, nothing has changed.
        """
        limit = trusted_offset if self._scanned_from is None else self._scanned_from
        for segment in segments:
            index, base_offset = segment.txn_index, segment.base_offset
            summary = self._summaries.get(base_offset)
            if summary is not None and index.load_if(summary.txnindex_crc32c):
                index.is_complete = segment is not segments[-1]
                continue
            limit = min(limit, base_offset)
            index.distrust()
            if summary is not None and segment is not segments[-1]:
                self._unsealed.append(segment)
        return min(limit, trusted_offset)

    def _load_snapshots(self, segments: list[Segment]) -> SnapshotStore:
        """Load the snapshots, and remove those of a state that the log was never in.

        Snapshots of the segments that were read again may be torn or not durable. One may be all
        that is known of earlier producers, once the segments there are removed.
        """
        store = SnapshotStore(self.filesystem, self.directory)
        log_end_offset = segments[-1].next_offset
        for offset in store.offsets:
            if not segments[0].base_offset <= offset <= log_end_offset:
                store.remove(offset)
        for offset in store.offsets:
            is_trusted = self._scanned_from is None or offset < self._scanned_from
            if not is_trusted and (handle := store.write_again(offset)) is not None:
                self.ledger.mark_written(handle, close_when_synced=True)
        return store

    def _read_log_start(self, checkpoint: RecoveryCheckpoint | None) -> RecoveryCheckpoint | None:
        """Read where the log begins; the checkpoint, raised to it: only synced records are hidden.

        CorruptDataError if both files are damaged: then records that were deleted would be back.
        """
        known = checkpoint.log_start_offset if checkpoint is not None else 0
        try:
            stored = self._stored_log_start = read_log_start(self.filesystem, self.directory) or 0
        except CorruptDataError as error:
            if checkpoint is None:
                raise CorruptDataError(
                    f"{error}, and {RECOVERY_FILE} is damaged or missing: it is unknown which "
                    f"records were deleted; without {LOG_START_FILE} those in the first segment "
                    f"are back"
                ) from error
            _logger.warning(
                "%s; %s has the log start too — nothing to do: the file is written again; check "
                "the disk if this repeats",
                *(error, RECOVERY_FILE),
            )
            stored, self._stored_log_start = 0, None
        self._log_start_offset = max(stored, known)
        if checkpoint is None or stored <= known:
            return checkpoint
        # A power loss may leave a checkpoint that is older.
        return RecoveryCheckpoint(
            max(checkpoint.recovery_point, stored), stored, max(checkpoint.high_watermark, stored)
        )

    def _write_log_start_again(self, first: Segment, log_start_offset: int) -> None:
        """Write the file if it is damaged, or if only the checkpoint knows the log start."""
        is_needed = self._stored_log_start is None or log_start_offset > first.base_offset
        if not is_needed or self._stored_log_start == log_start_offset:
            return
        try:
            write_log_start(self.filesystem, self.directory, log_start_offset)
        except OSError as error:
            # The log must still open on a full disk.
            if not is_transient(error):
                raise
            _logger.warning(
                "%s: %s was not written: %s — make room on its disk, or repair it; the next "
                "checkpoint writes it again",
                *(self.directory, LOG_START_FILE, error),
            )

    def _read_leader_epochs(self) -> list[tuple[int, int]]:
        """The pairs of the file; empty if it is missing or unreadable: the log has them too."""
        try:
            return read_leader_epochs(self.filesystem, self.directory)
        except CorruptDataError as error:
            _logger.warning(
                "%s; the leader epochs are taken from the log — nothing to do: the file is "
                "written again; check the disk if this repeats",
                error,
            )
            return []

    def _load_leader_epochs(
        self, segments: list[Segment], log_start_offset: int
    ) -> list[tuple[int, int]]:
        stored = self._stored_epochs
        spans = [
            (each.base_offset, each.next_offset, self._summaries.get(each.base_offset))
            for each in segments
        ]
        epochs = epochs_of(spans, stored, self._epochs_seen)
        epochs = without_start(epochs, log_start_offset)
        if epochs != stored:
            write_leader_epochs(self.filesystem, self.directory, epochs)
        return epochs

    def _begin_use(self) -> None:
        """Mark the log as in use, so no longer clean; remove leftovers of earlier processes."""
        names = self.filesystem.list_directory(self.directory)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                self.filesystem.remove(self.directory / name)
        if CLEAN_SHUTDOWN_FILE in names:
            self.filesystem.remove(self.directory / CLEAN_SHUTDOWN_FILE)
            self.filesystem.sync_directory(self.directory)
        if ACCEPTED_CUT_FILE in names:
            self.filesystem.remove(self.directory / ACCEPTED_CUT_FILE)
            self.ledger.mark_directory_changed()


# --- reading a segment again ---------------------------------------------------------------------


class SegmentScan:
    """Takes the intact batches of ``segment`` into its indexes, from ``begin_scan`` on.

    ``position`` and ``expected_offset`` (exclusive) are its progress. ``leader_epochs`` grows by
    (epoch, its first offset) for each higher epoch; a batch must be of the epoch known for its
    offset. Below ``gaps_end`` (exclusive) compaction may have removed batches, so the next one may
    begin later than expected.

    The compiled kernel takes whole runs of batches that are plainly good. Without the kernel, and
    for batches it does not take, ``inspect_batch`` judges one by one.

    Batches that reach beyond ``synced_offset`` (exclusive) are rewritten in place, from the very
    bytes that were found good. After a failed sync Linux keeps the dirty pages in its cache but
    marks them clean. A later sync then does nothing, and a later read may return the old bytes from
    the disk.
    """

    __slots__ = (
        "_gaps_end",
        "_known_epochs",
        "_known_packed",
        "_leader_epochs",
        "_segment",
        "_synced_offset",
        "expected_offset",
        "position",
    )

    def __init__(
        self,
        segment: Segment,
        *,
        gaps_end: int,
        leader_epochs: list[tuple[int, int]],
        known_epochs: LeaderEpochPairs,
        synced_offset: int,
    ) -> None:
        self._segment = segment
        self._synced_offset = synced_offset
        self._gaps_end = gaps_end
        self._leader_epochs = leader_epochs
        self._known_epochs = known_epochs
        self._known_packed = packed_epochs(known_epochs)
        self.position = 0
        self.expected_offset = segment.base_offset

    def run(self) -> TailDefect:
        """Take all batches up to the end of the file, or to one that is not good: says why."""
        while True:
            self._take_runs()
            left = check_batches(
                self._segment.log_file,
                self.position,
                self.expected_offset,
                gaps_end=self._gaps_end,
                leader_epochs=self._known_epochs,
            )
            judged = next(left, None)
            if judged is None:
                return TailDefect.NONE
            position, found, frame = judged
            if isinstance(found, TailDefect):
                return found
            self._take(position, found, frame)

    def _take_runs(self) -> None:
        """Take what is plainly good: the kernel does not classify defects."""
        file, counting, epochs = self._segment.log_file, self._segment.counting, self._leader_epochs
        while self.position < file.size_bytes:
            run = read_run(file, self.position)
            taken, self.expected_offset, count, entries, new_epochs = compiled.kernel.scan_batches(
                run,
                crc32c,
                self.position,
                self._segment.base_offset,
                self.expected_offset,
                self._gaps_end,
                self._known_packed,
                epochs[-1][0] if epochs else NO_LEADER_EPOCH,
                counting.interval_bytes,
                (*counting.count, counting.last_entered_timestamp_ms),
            )
            if not taken:
                return
            if self.position == 0:
                counting.first_timestamp_ms = parse_header(run).max_timestamp_ms
            counting.take_run(IndexRun(*entries), IndexCount(*count))
            epochs.extend(new_epochs)
            self._write_again(self.position, memoryview(run)[:taken])
            self.position += taken

    def _take(self, position: int, header: BatchHeader, frame: memoryview) -> None:
        self.position, self.expected_offset = position + len(frame), header.next_offset
        self._segment.counting.account(BatchPlace.of(position, header))
        record_epoch(self._leader_epochs, header.leader_epoch, header.base_offset)
        self._write_again(position, frame)

    def _write_again(self, position: int, batches: memoryview) -> None:
        if self.expected_offset > self._synced_offset:
            self._segment.log.write_at(position, batches)


# --- where the readable part ends ----------------------------------------------------------------


class Tail(NamedTuple):
    """The end of the readable part: at byte ``position`` of ``segment``, before ``offset``."""

    segment: Segment
    position: int
    offset: int
    defect: TailDefect

    @property
    def path(self) -> Path:
        """The file it is in."""
        return self.segment.path_of(LOG_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailCut:
    """A cut made by recovery, at byte ``position`` of ``path``, where ``offset`` should begin.

    ``cut_bytes`` counts the segments after it too. ``is_accepted``: recovery had refused, and an
    operator accepted the cut.
    """

    path: Path
    position: int
    offset: int
    cut_bytes: int
    defect: TailDefect
    is_accepted: bool = False

    def __str__(self) -> str:
        asked = "as an operator accepted, " if self.is_accepted else ""
        return (
            f"{asked}{self.cut_bytes} bytes are cut from {self.path} at byte {self.position}, "
            f"offset {self.offset}: {self.defect.value}"
        )


def decide_tail(
    filesystem: FileSystem,
    segments: Sequence[Segment],
    tail: Tail,
    checkpoint: RecoveryCheckpoint | None,
    *,
    log_start_offset: int,
) -> TailCut | None:
    """Look the tail up in the table; return the cut that the caller must make, if any.

    ``log_start_offset`` is known even without a checkpoint; all before it was synced.

    CorruptDataError if the table refuses and no operator has accepted the cut. Before an accepted
    cut the checkpoint is lowered, durably.
    """
    recovery_point = checkpoint.recovery_point if checkpoint is not None else None
    durability = durability_of(tail.offset, recovery_point)
    if tail.offset < log_start_offset:
        durability = Durability.SYNCED
    row = decide(
        tail.defect,
        durability,
        intact_follows=durability is Durability.UNKNOWN and _intact_follows(segments, tail),
        is_torn=_is_torn(tail),
    )
    if row.action is TailAction.KEEP:
        return None
    directory = tail.path.parent
    is_accepted = (
        row.action is TailAction.REFUSE
        and tail.offset >= log_start_offset
        and _is_accepted(filesystem, tail, checkpoint)
    )
    if row.action is TailAction.REFUSE and not is_accepted:
        known = "unknown" if recovery_point is None else str(recovery_point)
        hint = f"; to lose all from there on, run: oncelog accept-cut {directory} {tail.offset}"
        if tail.defect is TailDefect.WRONG_EPOCH:
            # Nobody can tell which of the two is wrong: one flipped bit explains either.
            hint += f"; without {directory / LEADER_EPOCH_FILE} the batch's epoch is trusted"
        raise CorruptDataError(
            f"{tail.path} at byte {tail.position}, offset {tail.offset}: {tail.defect.value} "
            f"(recovery point {known}, rule {row.label}){hint}"
        )
    base_offset = tail.segment.base_offset
    later = sum(other.size_bytes for other in segments if other.base_offset > base_offset)
    cut = TailCut(
        path=tail.path,
        position=tail.position,
        offset=tail.offset,
        cut_bytes=tail.segment.size_bytes - tail.position + later,
        defect=tail.defect,
        is_accepted=is_accepted,
    )
    _logger.info("%s", cut)
    return cut


def _is_torn(tail: Tail) -> bool:
    """See ``looks_torn``. The batch length may be what is wrong, so everything is read."""
    with named_in_errors(tail.path):
        rest = tail.segment.log.read(tail.position, tail.segment.size_bytes - tail.position)
    return looks_torn(tail.defect, rest, tail.position, tail.offset)


def _intact_follows(segments: Sequence[Segment], tail: Tail) -> bool:
    segment, position, expected, defect = tail
    if defect is TailDefect.NONE:
        return False
    skipped = 1 if position < segment.size_bytes else 0
    with named_in_errors(tail.path):
        data = segment.log.read(position + skipped, segment.size_bytes - position - skipped)
    if holds_intact_batch(data, expected):
        return True
    for other in segments:
        if other.base_offset > segment.base_offset:
            with named_in_errors(other.log_path):
                data = other.log.read(0, other.size_bytes)
            if holds_intact_batch(data, expected):
                return True
    return False


def _is_accepted(filesystem: FileSystem, tail: Tail, checkpoint: RecoveryCheckpoint | None) -> bool:
    """Whether an operator has accepted a cut exactly here; if so, lower the checkpoint first."""
    directory = tail.path.parent
    if tail.offset != read_accepted_cut(filesystem, directory):
        return False
    if checkpoint is not None:
        lowered = RecoveryCheckpoint(
            min(checkpoint.recovery_point, tail.offset),
            checkpoint.log_start_offset,
            min(checkpoint.high_watermark, tail.offset),
        )
        filesystem.write_atomically(directory / RECOVERY_FILE, lowered.to_bytes())
    return True
