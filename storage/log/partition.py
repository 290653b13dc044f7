"""The log of one partition replica: ordered segments behind one set of offsets, and their writer.

One owner, one event loop: no two methods may run at the same time. Only ``SyncPoint.run`` may run
in another thread. An OSError from a write or a sync takes the log offline: it is unknown what
reached the disk, so later appends raise and only reads go on. After a transient error, such as a
full disk, the failed append is truncated and the next one may succeed. ``disk.errors`` has the
table.

Invariant: log_start_offset <= recovery_point <= log_end_offset, and every byte below the
recovery point is durable.

One file: every method changes the same few offsets, and says what is durable when.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from oncelog.storage.disk.disk_errors import is_transient
from oncelog.storage.disk.file_system import FileHandle, FileSystem
from oncelog.storage.disk.sync_point import SyncLedger, SyncPoint
from oncelog.storage.log.loader import LoadedLog, LogLoader, TailCut
from oncelog.storage.log.readable import ReadableLog
from oncelog.storage.log.sealed_segments import CompactionView, LogRetention
from oncelog.storage.log.side_files import (
    CLEAN_SHUTDOWN_FILE,
    CleanShutdown,
    LeaderEpochFile,
    RecoveryCheckpoint,
    RecoveryCheckpointFile,
    begin_restart,
    finish_restart,
    lower_first_dirty_offset,
    write_gaps_end,
    write_log_start,
)
from oncelog.storage.log_settings import LogSettings
from oncelog.storage.model import NO_TIMESTAMP, ProducerSnapshotEntry
from oncelog.storage.records.batch import PLACEMENT_BYTES, BatchHeader, Buffer
from oncelog.storage.segments.aborted_index import AbortedIndexEntry
from oncelog.storage.segments.indexes import RELATIVE_OFFSET_MAX
from oncelog.storage.segments.leader_epochs import OFFSET_MAX
from oncelog.storage.segments.list import LogSlice, SegmentList

__all__ = ["LogSettings", "LogSlice", "PartitionLog"]

_ROUNDS_PER_CHECKPOINT_SYNC: Final = 256
"""Sync rounds that the checkpoint may lose in a power loss; a process crash loses none."""


class PartitionLog(ReadableLog):
    """One partition's log; create it with ``open``."""

    def __init__(
        self,
        *,
        filesystem: FileSystem,
        directory: Path,
        settings: LogSettings,
        now_ms: int,
        ledger: SyncLedger,
        loaded: LoadedLog,
    ) -> None:
        super().__init__(
            SegmentList(loaded.segments, ledger),
            LeaderEpochFile(filesystem, directory, loaded.leader_epochs),
            loaded,
        )
        self._filesystem = filesystem
        self._directory = directory
        self.settings = settings
        self._ledger = ledger
        self.retention = LogRetention(
            filesystem=filesystem,
            directory=directory,
            segments=self._segments,
            snapshots=self._snapshots,
        )
        self.compaction_view = CompactionView(
            filesystem, directory, self._segments, self._snapshots, ledger
        )
        self._aborted = AbortedEntries(self._segments, ledger)
        self._checkpoint = RecoveryCheckpointFile(filesystem, directory)
        self._rounds_since_checkpoint_sync = 0
        self._recorded_recovery_point = -1
        self.generation = 0
        """Incremented by each truncation; a sync point of an older generation is ignored."""
        self._active_since_ms = now_ms
        self.was_clean = loaded.was_clean
        self._unsealed = loaded.unsealed
        self._gaps_end = loaded.gaps_end
        self.cut: TailCut | None = loaded.cut
        self._written_log_start = loaded.log_start_offset
        """What ``log-start-offset`` may hold; higher than the log start once a rise has failed."""
        self.recovery_point = (
            loaded.log_start_offset if loaded.recovery_point is None else loaded.recovery_point
        )

    @classmethod
    def open(
        cls,
        *,
        filesystem: FileSystem,
        directory: Path,
        settings: LogSettings,
        now_ms: int,
        on_cut: Callable[[TailCut], None] = lambda _cut: None,
    ) -> PartitionLog:
        """Open the log in ``directory``; a missing one is made, a dirty one is recovered.

        After a recovery (``was_clean`` is False) the caller replays from ``latest_snapshot`` and
        calls ``append_aborted`` for each aborted transaction it completes, then syncs: only then is
        what was found durable, so only then may it be read. ``cut`` says what was cut, and
        ``on_cut`` is called beforehand, even if the open then fails.

        CorruptDataError names file and position of damage in synced data; OSError: the disk.
        """
        ledger = SyncLedger(filesystem, directory)
        loaded = LogLoader(
            filesystem=filesystem,
            directory=directory,
            index_interval_bytes=settings.index_interval_bytes,
            ledger=ledger,
            on_cut=on_cut,
        ).load()
        log = cls(
            filesystem=filesystem,
            directory=directory,
            settings=settings,
            now_ms=now_ms,
            ledger=ledger,
            loaded=loaded,
        )
        if loaded.is_new:
            log._write_checkpoint(log.recovery_point, log.log_start_offset)
        return log

    @property
    def failure(self) -> OSError | None:
        """Why the log is offline for writes; None if it is not."""
        return self._ledger.failure

    # Appending

    def needs_roll(
        self, batch_bytes: int, max_timestamp_ms: int, now_ms: int, *, last_offset_delta: int = 0
    ) -> bool:
        """Whether ``roll`` must be called before a batch of this size and time is appended.

        ``last_offset_delta``: the batch's last offset minus the log end. Reasons to roll: size;
        age, by record timestamps if there are any, else by wall clock; a full index; an offset that
        does not fit an index entry. Source: KIP-32.
        """
        active, settings = self._segments.active, self.settings
        size_bytes = active.size_bytes
        if size_bytes == 0:
            self._active_since_ms = now_ms
            return False
        first_timestamp_ms = active.first_timestamp_ms
        if first_timestamp_ms != NO_TIMESTAMP and max_timestamp_ms != NO_TIMESTAMP:
            age_ms = max_timestamp_ms - first_timestamp_ms
        else:
            age_ms = now_ms - self._active_since_ms
        relative_offset = self.log_end_offset + last_offset_delta - active.base_offset
        return (
            size_bytes + batch_bytes > settings.segment_bytes
            or age_ms > settings.segment_ms
            or relative_offset > RELATIVE_OFFSET_MAX
            or active.index_is_full
        )

    def roll(self, snapshot: Sequence[ProducerSnapshotEntry]) -> None:
        """Seal the active segment and begin one at the log end. ``snapshot``: the state there.

        Everything is durable with the next sync point. OSError as for ``append``.
        """
        self._ledger.check()
        if self._segments.active.size_bytes == 0:
            return
        self._aborted.enter_pending()
        try:
            self.write_snapshot(snapshot)
            self._segments.roll(
                self._filesystem,
                self._directory,
                self.settings.index_interval_bytes,
                self._epochs.pairs,
            )
        except OSError as error:
            self._ledger.fail_unless_transient(error)
            raise

    def write_snapshot(self, snapshot: Sequence[ProducerSnapshotEntry]) -> None:
        """Write a snapshot of the state at the log end; durable with the next sync point."""
        handle = self._snapshots.write(self.log_end_offset, snapshot)
        if handle is not None:
            self._ledger.mark_written(handle, close_when_synced=True)
            self._ledger.mark_directory_changed()

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        """Write one batch; durable with the next sync point.

        ``header`` is that of ``batch`` with the base offset and leader epoch that the leader
        assigns. Both are written from ``header``; ``batch`` itself is not changed. OSError: nothing
        was appended; the log is offline unless the error is transient.
        """
        ledger = self._ledger
        if ledger.failure is not None:
            ledger.check()
        if self._aborted.pending:
            self._aborted.enter_pending()
        base_offset, active = header.base_offset, self._segments.active
        last_offset = base_offset + header.last_offset_delta
        if (
            base_offset != self.log_end_offset
            or not header.is_of(batch)
            or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
        ):
            raise ValueError(
                f"batch [{header.base_offset}, {last_offset}] of {len(batch)} bytes "
                f"does not fit the log end {self.log_end_offset}"
            )
        if header.leader_epoch > self._epochs.latest_epoch:
            # Before the batch: recovery treats a batch of an unknown epoch as damage.
            self.assign_leader_epoch(header.leader_epoch, header.base_offset)
        self._write(batch, header)

    def append_as_is(self, batch: Buffer, header: BatchHeader) -> None:
        """Write one batch as the leader's log has it; durable with the next sync point.

        ``header`` is that of ``batch``. It may begin beyond the log end: compaction has left a gap
        there. A batch of a newer leader epoch begins that epoch here. For ``needs_roll`` the gap
        counts as part of ``last_offset_delta``. OSError as for ``append``.
        """
        ledger = self._ledger
        ledger.check()
        self._aborted.enter_pending()
        base_offset, log_end_offset = header.base_offset, self.log_end_offset
        segment_end = self._segments.active.base_offset + RELATIVE_OFFSET_MAX + 1
        if (
            base_offset < log_end_offset
            or not header.is_of(batch)
            or header.placement() != bytes(batch[:PLACEMENT_BYTES])
            or header.next_offset > segment_end
        ):
            raise ValueError(
                f"batch [{base_offset}, {header.last_offset}] of {len(batch)} bytes "
                f"cannot follow the log end {log_end_offset}"
            )
        try:
            self._epochs.assign_copied(header.leader_epoch, base_offset, log_end_offset)
            if base_offset > log_end_offset >= self._gaps_end:
                write_gaps_end(self._filesystem, self._directory, segment_end)
                self._gaps_end = segment_end
        except OSError as error:
            ledger.fail_unless_transient(error)
            raise
        self._write(batch, header)

    def _write(self, batch: Buffer, header: BatchHeader) -> None:
        try:
            file = self._segments.active.append(batch, header)
        except OSError as error:
            self._undo_append(error)
            raise
        self._ledger.mark_written(file)
        self.log_end_offset = header.base_offset + header.last_offset_delta + 1

    def append_aborted(
        self, *, producer_id: int, first_offset: int, last_offset: int, last_stable_offset: int
    ) -> None:
        """Index an aborted transaction whose marker, at ``last_offset``, has been appended.

        A known transaction is ignored, so recovery may replay it. Durable with the next sync point,
        or owed if the disk is full: see ``indexed_end_offset``. OSError: the log is offline, and
        the last stable offset must not move.
        """
        self._ledger.check()
        self._aborted.enter(
            AbortedIndexEntry(
                producer_id=producer_id,
                first_offset=first_offset,
                last_offset=last_offset,
                last_stable_offset=last_stable_offset,
            )
        )

    @property
    def indexed_end_offset(self) -> int:
        """Exclusive upper limit of reads and syncs: the log end, unless an index entry is owed."""
        return self._aborted.covered_end(self.log_end_offset)

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """``epoch`` leads from ``start_offset`` (inclusive); durable. OSError as for ``append``."""
        self._ledger.check()
        try:
            self._epochs.assign(epoch, start_offset)
        except OSError as error:
            self._ledger.fail_unless_transient(error)
            raise

    def _undo_append(self, error: OSError) -> None:
        """After a failed append: a transient error leaves the log usable, others take it offline.

        The truncation is synced before anything is written there. After a power loss a sector must
        hold its new content or zeros, never part of an abandoned batch (see ``recovery``).
        """
        self._ledger.fail_unless_transient(error)
        if self.failure is None:
            try:
                self._segments.active.discard_partial_append()
                self._segments.active.log.datasync()
            except OSError as second:
                self._ledger.fail(second)

    # Making it durable

    def begin_restore(self) -> None:
        """Begin, or begin again, to replay what the load did not trust; nothing is written yet."""
        self._aborted.begin_replay()

    def end_restore(self) -> None:
        """The replay is done: write the aborted indexes, then the summaries of unsealed segments.

        Durable with the next sync point. OSError as for ``append``.
        """
        self._ledger.check()
        unsealed, self._unsealed = self._unsealed, []
        try:
            self._aborted.end_replay()
            self._snapshots.thin_out(self._segments.bases)
            for segment in unsealed:
                if segment is not self._segments.active:
                    for handle in segment.write_sealed(self._epochs.pairs):
                        self._ledger.mark_written(handle, close_when_synced=True)
                    self._ledger.mark_directory_changed()
        except OSError as error:
            self._ledger.fail_unless_transient(error)
            raise

    def sync_point(self) -> SyncPoint:
        """Capture all that is not durable yet, up to the current log end offset; cheap.

        It ends before a marker whose index entry is owed and still cannot be written. Run it in any
        thread while appends go on, then call ``mark_synced``. OSError: offline, or no descriptors
        are left.
        """
        if self._aborted.pending:
            try:
                self._aborted.enter_pending()
            except OSError:
                self._ledger.check()
        return self._ledger.capture(self.indexed_end_offset, self.generation)

    def mark_synced(self, point: SyncPoint) -> bool:
        """The point has run without error: the recovery point rises to its log end offset.

        False: the log was truncated meanwhile, so records below that end may be newer and unsynced.
        The new recovery point survives a process crash at once, a power loss later. OSError:
        nothing has changed; offline unless the error is transient.
        """
        self._ledger.mark_synced(point)
        if point.generation != self.generation:
            return False
        recovery_point = max(self.recovery_point, point.log_end_offset)
        file = self._write_checkpoint(recovery_point, self.log_start_offset)
        # By now the caller has restored what the load did not trust; newer snapshots are good.
        self.recovery_point = self._snapshot_limit = recovery_point
        self._rounds_since_checkpoint_sync += 1
        if self._rounds_since_checkpoint_sync >= _ROUNDS_PER_CHECKPOINT_SYNC:
            self._record_checkpoint_file(file)
        return True

    def _record_checkpoint_file(self, file: FileHandle) -> None:
        self._rounds_since_checkpoint_sync = 0
        self._recorded_recovery_point = self.recovery_point
        self._ledger.mark_written(file)

    @property
    def has_old_checkpoint(self) -> bool:
        """Whether a power loss would set the recovery point back by more than one sync point."""
        return self.recovery_point > self._recorded_recovery_point

    def _sync_now(self) -> None:
        (point := self.sync_point()).run()
        self._ledger.mark_synced(point)

    def _write_checkpoint(self, recovery_point: int, log_start_offset: int) -> FileHandle:
        high_watermark = min(max(self.high_watermark, log_start_offset), self.log_end_offset)
        try:
            return self._checkpoint.write(
                RecoveryCheckpoint(recovery_point, log_start_offset, high_watermark)
            )
        except OSError as error:
            self._ledger.fail_unless_transient(error)
            raise

    def record_checkpoint(self) -> None:
        """Sync the checkpoint too with the next sync point, so that it survives a power loss.

        OSError: nothing has changed; offline unless the error is transient.
        """
        self._ledger.check()
        file = self._write_checkpoint(self.recovery_point, self.log_start_offset)
        self._record_checkpoint_file(file)

    # Cutting at either end

    def advance_log_start(self, offset: int) -> bool:
        """Raise the log start to ``offset``; a lower offset changes nothing.

        ValueError beyond the recovery point: only durable records can be hidden. Durable on return,
        but on a full disk a start that is a segment's may only be so with the next sync point.
        OSError: nothing has changed; offline unless the error is transient.
        """
        if offset > self.recovery_point:
            raise ValueError(f"log start {offset} above the recovery point {self.recovery_point}")
        if offset <= self.log_start_offset:
            return False
        self._ledger.check()
        self._write_log_start(offset)
        self._record_checkpoint_file(self._write_checkpoint(self.recovery_point, offset))
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self._epochs.cut_start(offset)
        return True

    def _write_log_start(self, offset: int) -> None:
        self._written_log_start = max(self._written_log_start, offset)
        try:
            write_log_start(self._filesystem, self._directory, offset)
        except OSError as error:
            self._ledger.fail_unless_transient(error)
            is_of_segment = self._segments.holding(offset).base_offset == offset
            if self.failure is not None or not is_of_segment:
                raise
            # The segments below are removed next: that makes room, and shows the log start.

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that ends at ``offset`` or later; durable on return.

        Also remove every leader epoch that begins at or after ``offset``, even if the log already
        ends there: an epoch without batches here may be unknown to the leader. The caller rebuilds
        producer state from ``latest_snapshot``, which is then at or below the new log end. OSError:
        offline.
        """
        self._ledger.check()
        if offset >= self.log_end_offset:
            self._cut_epochs(offset)
            return
        end, next_offset = self._segments.holding(offset).position_after(offset)
        if min(offset, next_offset) < self.log_start_offset:
            raise ValueError(f"offset {offset} to cut at is below the log start")
        self.generation += 1
        try:
            self._lower_recovery_point(next_offset)
            self._cut_segments(offset, end, next_offset)
            self._sync_now()
            # Last: a power loss may bring batches back, and batches of an unknown epoch count as
            # damage.
            self._epochs.cut_end(next_offset)
        except OSError as error:
            self._ledger.fail(error)
            raise

    def restart_at(self, offset: int) -> None:
        """Drop the whole log; the new, empty one begins and ends at ``offset``. Durable on return.

        After a crash the next open finds the old log or the new one. No ``RemovedFiles`` may run
        meanwhile: the new log may reuse file names. OSError: offline.
        """
        if offset < 0:
            raise ValueError(f"offset={offset}: offsets begin at 0")
        self._ledger.check()
        self.generation += 1
        try:
            begin_restart(self._filesystem, self._directory, offset)
            finish_restart(self._filesystem, self._directory)
            self._segments.restart(
                self._filesystem, self._directory, self.settings.index_interval_bytes, offset
            )
        except OSError as error:
            self._ledger.fail(error)
            raise
        self._ledger.close()
        self._snapshots.restart()
        self._epochs.restart()
        self._checkpoint.close()
        self._aborted.cut(0)
        self._unsealed = []
        self._gaps_end = 0
        self._checked_from = OFFSET_MAX
        self.log_start_offset = self.log_end_offset = self._snapshot_limit = offset
        self._written_log_start = offset
        self.high_watermark = self.recovery_point = self._recorded_recovery_point = offset
        self._rounds_since_checkpoint_sync = 0

    def _lower_recovery_point(self, offset: int) -> None:
        """Lower the recovery point, durably, before what it covers is removed."""
        if self._written_log_start > self.log_start_offset:
            # Left by a rise that failed. The log must not end below it.
            write_log_start(self._filesystem, self._directory, self.log_start_offset)
            self._written_log_start = self.log_start_offset
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self._write_checkpoint(self.recovery_point, self.log_start_offset).datasync()
        lower_first_dirty_offset(self._filesystem, self._directory, offset)

    def _cut_epochs(self, offset: int) -> None:
        try:
            self._epochs.cut_end(offset)
        except OSError as error:
            self._ledger.fail_unless_transient(error)
            raise

    def _cut_segments(self, offset: int, end: int, next_offset: int) -> None:
        self._segments.cut(offset, end, next_offset)
        self._aborted.cut(next_offset)
        self.log_end_offset = next_offset
        self._snapshot_limit = min(self._snapshot_limit, next_offset)
        self._checked_from = OFFSET_MAX
        self._snapshots.remove_above(next_offset)

    def close(self, snapshot: Sequence[ProducerSnapshotEntry] | None) -> None:
        """Close all files. With a ``snapshot`` of the log end: sync all and leave a clean log.

        Without one, or after a failure, the next open recovers. OSError: closed, but not clean.
        """
        try:
            if snapshot is not None and self.failure is None:
                self._close_clean(snapshot)
        except OSError as error:
            self._ledger.fail(error)
            raise
        finally:
            self._ledger.fail(OSError(errno.EBADF, "the log is closed"))
            self._ledger.close()
            self._segments.close()
            self._checkpoint.close()

    def _close_clean(self, snapshot: Sequence[ProducerSnapshotEntry]) -> None:
        active = self._segments.active
        self._aborted.enter_pending()
        self.write_snapshot(snapshot)
        for handle in active.write_sealed(self._epochs.pairs):
            self._ledger.mark_written(handle, close_when_synced=True)
        self._sync_now()
        self.recovery_point = self.log_end_offset
        self._write_checkpoint(self.recovery_point, self.log_start_offset).datasync()
        flag = CleanShutdown(
            log_end_offset=self.log_end_offset,
            active_base_offset=active.base_offset,
            active_size_bytes=active.size_bytes,
        )
        self._filesystem.write_atomically(self._directory / CLEAN_SHUTDOWN_FILE, flag.to_bytes())


class AbortedEntries:
    """Aborted transactions that are still to be written to an index; oldest marker first.

    Once its marker is in the log, each goes into the index of its segment. If the disk is full, the
    entry is *owed*: it is retried with every append and every sync. Until then nothing is appended
    after its marker, and no sync point reaches past it. So neither the recovery point nor the high
    watermark passes the marker, and its transaction holds back the last stable offset.
    """

    __slots__ = ("_is_replaying", "_ledger", "_segments", "pending")

    def __init__(self, segments: SegmentList, ledger: SyncLedger) -> None:
        self._segments = segments
        self._ledger = ledger
        self._is_replaying = False
        self.pending: list[AbortedIndexEntry] = []
        """Bounded by what a recovery replays; while a log is led there is at most one."""

    def begin_replay(self) -> None:
        """Owe every entry until ``end_replay``: the replay may still fail."""
        self._is_replaying = True
        self.pending.clear()

    def end_replay(self) -> None:
        """Write what the replay found in place of index files that are not trusted. OSError."""
        self._is_replaying = False
        self.enter_pending()
        for segment in self._segments.from_offset(self._segments.first.base_offset):
            handle = segment.txn_index.drop_stale()
            if handle is not None:
                self._ledger.mark_written(handle)

    def enter(self, entry: AbortedIndexEntry) -> None:
        """Enter it, or keep it pending. OSError: the log is offline."""
        self.pending.append(entry)
        if self._is_replaying:
            return
        try:
            self.enter_pending()
        except OSError:
            if self._ledger.failure is not None:
                raise

    def enter_pending(self) -> None:
        """Enter all that is pending. OSError: some still is; offline unless it is transient."""
        entered = 0
        try:
            for entry in self.pending:
                index = self._segments.holding(entry.last_offset).txn_index
                handle = index.append(entry)
                if handle is not None:
                    self._ledger.mark_written(handle)
                    self._ledger.mark_directory_changed()
                entered += 1
        except OSError as error:
            if not is_transient(error):
                self._ledger.fail(error)
            raise
        finally:
            del self.pending[:entered]

    def covered_end(self, log_end_offset: int) -> int:
        """Exclusive: every transaction aborted below it is in the index."""
        return self.pending[0].last_offset if self.pending else log_end_offset

    def cut(self, offset: int) -> None:
        """The log now ends at ``offset``: markers from there on are gone."""
        self.pending = [entry for entry in self.pending if entry.last_offset < offset]
