"""The fast part of a recovery scan: the intact batches from the start of one segment.

Recovery reads a segment twice in effect: this takes whole runs of good batches and stops at the
first that is anything else, and ``inspection.inspect_batch`` then says what stands there. So this
needs no opinion on defects, and a batch that it does not take is never lost by it.
"""

from __future__ import annotations

import struct
from typing import Final

import crc32c as _crc32c

from oncelog.storage.model import NO_LEADER_EPOCH, NO_TIMESTAMP
from oncelog.storage.records import scan_kernel
from oncelog.storage.records.batch import HEADER_BYTES, MAGIC
from oncelog.storage.segments.frames import SCAN_BYTES, BatchPlace
from oncelog.storage.segments.indexes import IndexCount, IndexRun
from oncelog.storage.segments.leader_epochs import (
    LeaderEpochPairs,
    epoch_span,
    note_epoch,
    packed_epochs,
)
from oncelog.storage.segments.offset_index import RELATIVE_OFFSET_MAX
from oncelog.storage.segments.segment import Segment

_FIELDS: Final = struct.Struct(">qiibI2xi8xq")
"""Base offset, length, leader epoch, magic, CRC, last offset delta and maximum timestamp."""

_LENGTH_END: Final = 12
_CHECKED_AT: Final = 21
_MAX_TIMESTAMP: Final = slice(35, 43)


class SegmentScan:
    """Takes the intact batches of ``segment`` into its indexes, from ``begin_scan`` on.

    ``position`` and ``expected_offset`` (exclusive) say how far it has come. ``leader_epochs``
    grows by (epoch, its first offset) for each higher epoch. Below ``gaps_end`` (exclusive)
    compaction may have removed batches, so the next one may begin later than expected. Of batches
    whose epoch is known, others are not good.

    What reaches beyond ``synced_offset`` (exclusive) is written over itself, from the very bytes
    that were found good. After a failed sync Linux goes on showing the pages that the disk refused
    and takes them for clean: a later sync has nothing to do, and a second look at them may find
    what is on the disk.
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

    def run(self) -> None:
        """Stop at the end of the file, or at the first batch that is not plainly good."""
        log, size_bytes = self._segment.log, self._segment.size_bytes
        wanted = SCAN_BYTES
        while self.position < size_bytes:
            chunk = log.read(self.position, min(wanted, size_bytes - self.position))
            taken = self._take(chunk) if scan_kernel.kernel is None else self._take_fast(chunk)
            if taken:
                if self.expected_offset > self._synced_offset:
                    log.write_at(self.position - taken, memoryview(chunk)[:taken])
                wanted = SCAN_BYTES
                continue
            # Not even one: the batch is bad, or longer than a chunk.
            if len(chunk) < HEADER_BYTES:
                return
            needed = int.from_bytes(chunk[8:_LENGTH_END], "big", signed=True) + _LENGTH_END
            if not len(chunk) < needed <= size_bytes - self.position:
                return
            wanted = needed

    def _take_fast(self, chunk: bytes) -> int:
        """``_take`` by the kernel."""
        counting, epochs = self._segment.counting, self._leader_epochs
        taken, self.expected_offset, count, run, new_epochs = scan_kernel.kernel.scan_batches(
            chunk,
            _crc32c.crc32c,
            self.position,
            self._segment.base_offset,
            self.expected_offset,
            self._gaps_end,
            self._known_packed,
            epochs[-1][0] if epochs else NO_LEADER_EPOCH,
            counting.interval_bytes,
            (*counting.count, counting.last_entered_timestamp_ms),
        )
        if self.position == 0 and taken:
            counting.first_timestamp_ms = int.from_bytes(chunk[_MAX_TIMESTAMP], "big", signed=True)
        counting.take_run(IndexRun(*run), IndexCount(*count))
        epochs.extend(new_epochs)
        self.position += taken
        return taken

    def _take(self, chunk: bytes) -> int:
        """Account for the good batches at the start of ``chunk``; returns their bytes."""
        view, crc32c, counting = memoryview(chunk), _crc32c.crc32c, self._segment.counting
        gaps_end, expected = self._gaps_end, self.expected_offset
        highest = self._segment.base_offset + RELATIVE_OFFSET_MAX
        epoch_now, epoch_end = NO_LEADER_EPOCH, 0
        limit, at, end = len(chunk) - HEADER_BYTES, 0, 0
        # Batches between two index entries only count by their sum and their largest timestamp.
        room, run_bytes, run_max_ms, run_offset = counting.room_before_entry, 0, NO_TIMESTAMP, 0
        while at <= limit:
            base_offset, length, epoch, magic, crc, delta, max_ms = _FIELDS.unpack_from(chunk, at)
            end = at + _LENGTH_END + length
            if (
                magic != MAGIC
                or not at + HEADER_BYTES <= end <= limit + HEADER_BYTES
                or not (base_offset == expected or gaps_end > expected < base_offset)
                or not 0 <= delta <= highest - base_offset
                or crc32c(view[at + _CHECKED_AT : end]) != crc
            ):
                break
            if epoch != epoch_now or base_offset >= epoch_end:
                known, epoch_end = epoch_span(self._known_epochs, base_offset)
                if known is not None and known != epoch:
                    break
                epoch_now = epoch
                note_epoch(self._leader_epochs, epoch, base_offset)
            expected = base_offset + delta + 1
            if run_bytes > room or self.position + at == 0:
                counting.account_between(run_bytes, run_max_ms, run_offset)
                place = self.position + at, self.position + end, base_offset, expected - 1, max_ms
                counting.account(BatchPlace(*place))
                room, run_bytes, run_max_ms = counting.room_before_entry, 0, NO_TIMESTAMP
            else:
                run_bytes += end - at
                if max_ms > run_max_ms:
                    run_max_ms, run_offset = max_ms, expected - 1
            at = end
        counting.account_between(run_bytes, run_max_ms, run_offset)
        self.position += at
        self.expected_offset = expected
        return at
