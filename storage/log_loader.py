"""Opening the directory of one partition: what is trusted, what is read again, what is cut.

After a clean close everything is trusted. Otherwise the last segment, and every segment that
reaches beyond the recovery point, is read batch by batch with its CRC; ``recovery`` decides what
happens where that ends. Aborted-transaction entries and producer state from the recovery point
on are not trusted either: they come back when the caller replays the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from oncelog.storage.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    RECOVERY_FILE,
    CleanShutdown,
    RecoveryCheckpoint,
    read_clean_shutdown,
    read_leader_epochs,
    read_recovery_checkpoint,
    with_leader_epoch,
    write_leader_epochs,
)
from oncelog.storage.cleaner_checkpoint import read_first_dirty_offset
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.fs import TEMPORARY_SUFFIX, FileSystem
from oncelog.storage.leader_epoch_list import OFFSET_MAX, note_epoch, without_start
from oncelog.storage.producer_snapshot import SnapshotStore
from oncelog.storage.recovery import (
    Durability,
    TailAction,
    TailDefect,
    decide,
    durability_of,
    holds_intact_batch,
    inspect_batch,
)
from oncelog.storage.segment import INDEX_SUFFIXES, LOG_SUFFIX, Segment
from oncelog.storage.segment_frames import BatchPlace
from oncelog.storage.segment_scan import SegmentScan
from oncelog.storage.segment_swap import complete_swaps
from oncelog.storage.sync_point import SyncLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class TailCut:
    """What recovery cut: from byte ``position`` of ``path``, where ``offset`` should have begun.

    ``cut_bytes`` counts the segments after it too.
    """

    path: Path
    position: int
    offset: int
    cut_bytes: int
    defect: TailDefect


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """A log as it was found. ``recovery_point`` None: no readable checkpoint.

    ``checked_from``: every batch of the segments from that base offset on has been found good.
    ``snapshot_limit``: the newest offset at which a producer snapshot may be used, so that the
    replay from there also restores the aborted-transaction entries that cannot be trusted.
    """

    segments: list[Segment]
    snapshots: SnapshotStore
    leader_epochs: list[tuple[int, int]]
    log_start_offset: int
    high_watermark: int
    recovery_point: int | None
    snapshot_limit: int
    checked_from: int
    was_clean: bool
    is_new: bool
    cut: TailCut | None


@dataclass(slots=True, kw_only=True)
class LogLoader:
    """Loads one directory once. What it writes is noted in the ledger and durable with that."""

    filesystem: FileSystem
    directory: Path
    index_interval_bytes: int
    ledger: SyncLedger
    _cut: TailCut | None = None
    _scanned_from: int | None = None
    _known: int = 0
    """Up to here (exclusive) the log was synced with success; 0 if that is not known."""
    _stored_epochs: list[tuple[int, int]] = field(default_factory=list)
    _epochs_seen: list[tuple[int, int]] = field(default_factory=list)

    def load(self) -> LoadedLog:
        """Load and, if it was not closed cleanly, recover.

        CorruptDataError names the file and the position of damage in synced data; nothing is
        changed then. OSError if the disk refuses.
        """
        self.filesystem.make_directory(self.directory)
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
        checkpoint = read_recovery_checkpoint(self.filesystem, self.directory)
        flag = read_clean_shutdown(self.filesystem, self.directory)
        self._stored_epochs = read_leader_epochs(self.filesystem, self.directory)
        is_new = not segments
        if is_new:
            segments.append(self._create_first(checkpoint))
        self._check_head(segments[0], checkpoint)
        was_clean = is_new or (flag is not None and self._load_clean(segments, flag))
        recovery_point = checkpoint.recovery_point if checkpoint is not None else None
        if not was_clean:
            self._recover(segments, recovery_point)
        log_end_offset = segments[-1].next_offset
        if was_clean:
            recovery_point = log_end_offset
        log_start_offset = segments[0].base_offset
        if checkpoint is not None:
            log_start_offset = max(log_start_offset, checkpoint.log_start_offset)
        trusted = recovery_point if recovery_point is not None else log_start_offset
        snapshot_limit = self._load_txn_indexes(segments, checkpoint, min(trusted, log_end_offset))
        high_watermark = checkpoint.high_watermark if checkpoint is not None else log_start_offset
        snapshots = self._load_snapshots(segments)
        leader_epochs = self._load_leader_epochs(log_start_offset, log_end_offset)
        self._begin_use()
        return LoadedLog(
            segments=segments,
            snapshots=snapshots,
            leader_epochs=leader_epochs,
            log_start_offset=log_start_offset,
            high_watermark=min(max(high_watermark, log_start_offset), log_end_offset),
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
        self._remove_orphans(set(bases))
        return segments

    def _remove_orphans(self, bases: set[int]) -> None:
        """Indexes whose segment is gone: one that begins there again must not find them."""
        for name in self.filesystem.list_directory(self.directory):
            stem, dot, suffix = name.partition(".")
            if dot + suffix in INDEX_SUFFIXES and stem.isdecimal() and int(stem) not in bases:
                self.filesystem.remove(self.directory / name)
                self.ledger.note_directory()

    def _segment(self, base_offset: int, next_offset: int) -> Segment:
        return Segment(
            filesystem=self.filesystem,
            directory=self.directory,
            base_offset=base_offset,
            next_offset=next_offset,
            index_interval_bytes=self.index_interval_bytes,
        )

    def _create_first(self, checkpoint: RecoveryCheckpoint | None) -> Segment:
        base_offset = checkpoint.log_start_offset if checkpoint is not None else 0
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
        """The log start is raised durably before what lies below it is removed."""
        if checkpoint is not None and checkpoint.log_start_offset < first.base_offset:
            raise CorruptDataError(
                f"{first.path_of(LOG_SUFFIX)} at byte 0, offset {checkpoint.log_start_offset}: "
                f"{TailDefect.MISSING_RECORDS.value}: the segments before it are gone"
            )

    def _load_clean(self, segments: list[Segment], flag: CleanShutdown) -> bool:
        """Trust the files if they are what the clean close left."""
        active = segments[-1]
        if (active.base_offset, active.size_bytes) != (
            flag.active_base_offset,
            flag.active_size_bytes,
        ):
            return False
        active.load_tail()
        return active.next_offset == flag.log_end_offset

    # Recovery

    def _recover(self, segments: list[Segment], recovery_point: int | None) -> None:
        """Read again what is not known to be good, and cut or refuse where that ends."""
        known = self._known = recovery_point if recovery_point is not None else 0
        first = next(
            (slot for slot, segment in enumerate(segments[:-1]) if segment.next_offset > known),
            len(segments) - 1,
        )
        expected = self._scanned_from = segments[first].base_offset
        for slot in range(first, len(segments)):
            segment = segments[slot]
            if segment.base_offset != expected:
                previous = segments[slot - 1]
                self._settle_tail(
                    segments,
                    (previous, previous.size_bytes, expected, TailDefect.MISSING_RECORDS),
                    recovery_point,
                )
                self._cut_after(segments, slot - 1, previous.size_bytes, expected)
                break
            is_last = slot == len(segments) - 1
            gaps_end = self._gaps_end(segment, is_last=is_last)
            position, expected, defect = self._scan(segment, gaps_end)
            if defect is not TailDefect.NONE or is_last:
                self._settle_tail(segments, (segment, position, expected, defect), recovery_point)
                self._cut_after(segments, slot, position, expected)
                break
            segment.end_scan(position, expected)
        for segment in segments[first:]:
            self.ledger.note(segment.log)
        for segment in segments[first:-1]:
            self._write_indexes(segment)
        if first and segments[first].base_offset == known:
            self._index_again(segments[first - 1])
        self.ledger.note_directory()

    def _write_indexes(self, segment: Segment) -> None:
        for handle in segment.write_indexes():
            self.ledger.note(handle, close_when_synced=True)

    def _index_again(self, segment: Segment) -> None:
        """Its records are synced up to the last; its indexes, which came later, perhaps not.

        Damage is left to those who read there: this segment is not what has to be recovered.
        """
        next_offset = segment.next_offset
        _, _, defect = self._scan(segment, next_offset)
        if defect is TailDefect.NONE:
            self._write_indexes(segment)
        else:
            segment.begin_scan()
            segment.release()
        segment.end_scan(segment.size_bytes, next_offset)

    def _gaps_end(self, segment: Segment, *, is_last: bool) -> int:
        """Up to which offset (exclusive) compaction may have removed batches of the segment."""
        first_dirty = read_first_dirty_offset(self.filesystem, self.directory)
        if first_dirty is None:
            return segment.base_offset
        return first_dirty if is_last else segment.next_offset

    def _scan(self, segment: Segment, gaps_end: int) -> tuple[int, int, TailDefect]:
        """Read all batches; where that ended, the offset expected there, and why."""
        segment.begin_scan()
        stored_epochs = self._stored_epochs
        scan = SegmentScan(
            segment,
            gaps_end=gaps_end,
            leader_epochs=self._epochs_seen,
            known_epochs=stored_epochs,
            synced_offset=self._known,
        )
        scan.run()
        end, expected = scan.position, scan.expected_offset
        for position, frame in segment.frames(end):
            found = inspect_batch(
                frame, expected, may_skip=expected < gaps_end, leader_epochs=stored_epochs
            )
            if isinstance(found, TailDefect):
                return position, expected, found
            end = position + len(frame)
            segment.counting.account(
                BatchPlace(
                    position, end, found.base_offset, found.last_offset, found.max_timestamp_ms
                )
            )
            note_epoch(self._epochs_seen, found.leader_epoch, found.base_offset)
            expected = found.next_offset
            if expected > self._known:
                segment.log.write_at(position, frame)
        return end, expected, TailDefect.NONE

    def _settle_tail(
        self,
        segments: list[Segment],
        tail: tuple[Segment, int, int, TailDefect],
        recovery_point: int | None,
    ) -> None:
        """Look the tail up in the table: raise if it must be refused, note what will be cut."""
        segment, position, expected, defect = tail
        path = segment.path_of(LOG_SUFFIX)
        durability = durability_of(expected, recovery_point)
        follows = durability is Durability.UNKNOWN and self._intact_follows(segments, tail)
        row = decide(defect, durability, intact_follows=follows)
        if row.action is TailAction.REFUSE:
            known = "unknown" if recovery_point is None else str(recovery_point)
            raise CorruptDataError(
                f"{path} at byte {position}, offset {expected}: {defect.value} "
                f"(recovery point {known}, rule {row.label})"
            )
        if row.action is TailAction.CUT:
            later = sum(
                other.size_bytes for other in segments if other.base_offset > segment.base_offset
            )
            self._cut = TailCut(
                path=path,
                position=position,
                offset=expected,
                cut_bytes=segment.size_bytes - position + later,
                defect=defect,
            )

    def _intact_follows(
        self, segments: list[Segment], tail: tuple[Segment, int, int, TailDefect]
    ) -> bool:
        segment, position, expected, defect = tail
        if defect is TailDefect.NONE:
            return False
        skipped = 1 if position < segment.size_bytes else 0
        data = segment.log.read(position + skipped, segment.size_bytes - position - skipped)
        if holds_intact_batch(data, expected):
            return True
        later = [other for other in segments if other.base_offset > segment.base_offset]
        return any(
            holds_intact_batch(other.log.read(0, other.size_bytes), expected) for other in later
        )

    def _cut_after(
        self, segments: list[Segment], slot: int, position: int, next_offset: int
    ) -> None:
        """End the log at ``position`` of one segment: what is not there is removed for good."""
        segments[slot].end_scan(position, next_offset)
        for later in reversed(segments[slot + 1 :]):
            later.remove()
        del segments[slot + 1 :]

    # The files beside the segments

    def _load_txn_indexes(
        self, segments: list[Segment], checkpoint: RecoveryCheckpoint | None, trusted_offset: int
    ) -> int:
        """Read all aborted entries; the offset from which the replay must restore them.

        A damaged index is only a copy of what the markers in the log say. Those of the segments
        that were read again are emptied too: where a power loss took a page from the unsynced
        end, zeros may look like an older entry.
        """
        limit = known = trusted_offset if self._scanned_from is None else self._scanned_from
        untrusted = []
        for segment in segments:
            index, base_offset = segment.txn_index, segment.base_offset
            is_trusted = self._scanned_from is None or base_offset < self._scanned_from
            if not (is_trusted and index.load_within(base_offset, segment.next_offset)):
                untrusted.append(index)
                limit = min(limit, base_offset)
        if limit < known and checkpoint is not None:
            self._lower_promise(checkpoint, limit)
        for index in untrusted:
            handle = index.clear()
            if handle is not None:
                self.ledger.note(handle)
        return min(limit, trusted_offset)

    def _lower_promise(self, checkpoint: RecoveryCheckpoint, offset: int) -> None:
        """Have the next load replay from ``offset`` too, should this process die before it has.

        Until then an index that was found damaged is empty, which is what a good one may be.
        """
        lowered = checkpoint._replace(recovery_point=max(offset, checkpoint.log_start_offset))
        self.filesystem.write_atomically(self.directory / RECOVERY_FILE, lowered.to_bytes())
        self._begin_use()

    def _load_snapshots(self, segments: list[Segment]) -> SnapshotStore:
        """Keep one snapshot per segment and the newest; remove what belongs to no state.

        Those of the segments that were read again may be torn or not durable: one may be all that
        is known of the producers before it, once the segments there are removed.
        """
        store = SnapshotStore(self.filesystem, self.directory)
        log_end_offset = segments[-1].next_offset
        for offset in store.offsets:
            if not segments[0].base_offset <= offset <= log_end_offset:
                store.remove(offset)
        keep = {segment.base_offset for segment in segments} | set(store.offsets[-1:])
        for offset in store.offsets:
            is_trusted = self._scanned_from is None or offset < self._scanned_from
            if offset not in keep:
                store.remove(offset)
            elif not is_trusted and (handle := store.write_again(offset)) is not None:
                self.ledger.note(handle, close_when_synced=True)
        return store

    def _load_leader_epochs(
        self, log_start_offset: int, log_end_offset: int
    ) -> list[tuple[int, int]]:
        """The epochs of the file and of the batches read, as far as the log reaches."""
        stored = self._stored_epochs
        epochs = [(epoch, start) for epoch, start in stored if start <= log_end_offset]
        for epoch, start in self._epochs_seen:
            if not epochs or epoch > epochs[-1][0]:
                epochs = with_leader_epoch(epochs, epoch, start)
        epochs = without_start(epochs, log_start_offset)
        if epochs != stored:
            write_leader_epochs(self.filesystem, self.directory, epochs)
        return epochs

    def _begin_use(self) -> None:
        """From here on the log is not clean, and leftovers of an earlier life are gone."""
        names = self.filesystem.list_directory(self.directory)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                self.filesystem.remove(self.directory / name)
        if CLEAN_SHUTDOWN_FILE in names:
            self.filesystem.remove(self.directory / CLEAN_SHUTDOWN_FILE)
            self.filesystem.sync_directory(self.directory)
