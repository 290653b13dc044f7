"""The recovery scan of one segment: its batches into the indexes, up to the first that is not good.

The kernel takes whole runs of batches that are plainly good. What it does not take, and all where
it was not built, ``inspection.inspect_batch`` judges one by one.
"""

from __future__ import annotations

from types import ModuleType

from crc32c import crc32c

from oncelog.storage.model import NO_LEADER_EPOCH
from oncelog.storage.records import compiled
from oncelog.storage.records.batch import BatchHeader, parse_header
from oncelog.storage.segments.frames import BatchPlace, check_batches, read_run
from oncelog.storage.segments.indexes import IndexCount, IndexRun
from oncelog.storage.segments.inspection import TailDefect
from oncelog.storage.segments.leader_epochs import LeaderEpochPairs, note_epoch, packed_epochs
from oncelog.storage.segments.segment import Segment


class SegmentScan:
    """Takes the intact batches of ``segment`` into its indexes, from ``begin_scan`` on.

    ``position`` and ``expected_offset`` (exclusive) are its progress. ``leader_epochs``
    grows by (epoch, its first offset) for each higher epoch. Below ``gaps_end`` (exclusive)
    compaction may have removed batches, so the next one may begin later than expected. Of batches
    whose epoch is known, others are not good.

    What reaches beyond ``synced_offset`` (exclusive) is written over itself, from the very bytes
    that were found good. After a failed sync Linux keeps showing the pages that the disk refused,
    but marks them clean: a later sync does nothing, and reading them again may return what is on
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
        kernel = compiled.kernel
        while True:
            if kernel is not None:
                self._take_runs(kernel)
            for position, found, frame in check_batches(
                self._segment.log_file,
                self.position,
                self.expected_offset,
                gaps_end=self._gaps_end,
                leader_epochs=self._known_epochs,
            ):
                if isinstance(found, TailDefect):
                    return found
                self._take(position, found, frame)
                if kernel is not None:
                    break
            else:
                return TailDefect.NONE

    def _take_runs(self, kernel: ModuleType) -> None:
        """Take what is plainly good: the kernel does not classify defects."""
        file, counting, epochs = self._segment.log_file, self._segment.counting, self._leader_epochs
        while self.position < file.size_bytes:
            run = read_run(file, self.position)
            taken, self.expected_offset, count, entries, new_epochs = kernel.scan_batches(
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
        note_epoch(self._leader_epochs, header.leader_epoch, header.base_offset)
        self._write_again(position, frame)

    def _write_again(self, position: int, batches: memoryview) -> None:
        if self.expected_offset > self._synced_offset:
            self._segment.log.write_at(position, batches)
