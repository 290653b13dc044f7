"""Both sparse indexes of one segment as they grow, and the times that retention needs.

Batches are counted one by one as they are appended, or many at once after a scan: the entries
are the same. An entry is made before the first batch that begins more than the index interval
after the last entry.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog.storage.model import NO_OFFSET, NO_TIMESTAMP
from oncelog.storage.segments.offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from oncelog.storage.segments.offset_index import OffsetIndex
from oncelog.storage.segments.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from oncelog.storage.segments.time_index import TimeIndex


class IndexCount(NamedTuple):
    """The state of the count: bytes since the last entry, and the largest timestamp.

    ``max_timestamp_offset`` is the last offset of the first batch that has it.
    """

    bytes_since_entry: int
    max_timestamp_ms: int
    max_timestamp_offset: int


class IndexRun(NamedTuple):
    """Entries in the order of an ``array``'s bytes; offsets are relative to the segment's.

    The first two columns, the offset index, and the last two, the time index, are equally long.
    """

    last_offsets: bytes
    positions: bytes
    timestamps_ms: bytes
    timestamp_offsets: bytes


class SegmentIndexes:
    """Entries, which may be dropped and loaded again, and times, which stay."""

    __slots__ = (
        "_base_offset",
        "_bytes_since_entry",
        "_interval_bytes",
        "_max_timestamp_offset",
        "entries",
        "first_timestamp_ms",
        "max_timestamp_ms",
    )

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0
        self._max_timestamp_offset = NO_OFFSET
        self.entries: tuple[OffsetIndex, TimeIndex] | None = None
        self.max_timestamp_ms = NO_TIMESTAMP
        self.first_timestamp_ms = NO_TIMESTAMP

    @property
    def memory_bytes(self) -> int:
        """Memory that the entries take now."""
        if self.entries is None:
            return 0
        offsets, times = self.entries
        return OFFSET_ENTRY_BYTES * len(offsets) + TIME_ENTRY_BYTES * len(times)

    def reset(self) -> None:
        """Start over, without any batch."""
        self.entries = (OffsetIndex(self._base_offset), TimeIndex(self._base_offset))
        self._bytes_since_entry = 0
        self.max_timestamp_ms = self.first_timestamp_ms = NO_TIMESTAMP
        self._max_timestamp_offset = NO_OFFSET

    def take_last_time(self, times: TimeIndex) -> None:
        """Take over the largest timestamp that a loaded time index knows."""
        if times.last_entry is not None and times.last_entry[0] > self.max_timestamp_ms:
            self.max_timestamp_ms, self._max_timestamp_offset = times.last_entry

    def set_last_time(self, max_timestamp_ms: int, last_offset: int) -> None:
        """The largest timestamp is known from elsewhere."""
        self.max_timestamp_ms, self._max_timestamp_offset = max_timestamp_ms, last_offset

    def begin_tail(self, bytes_since_entry: int) -> None:
        """Continue after loaded entries, ``bytes_since_entry`` after the last of them."""
        self._bytes_since_entry = bytes_since_entry

    def note_time(self, max_timestamp_ms: int, last_offset: int) -> None:
        """Count the time of a batch only."""
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self._max_timestamp_offset = last_offset

    def account(self, place: tuple[int, int, int, int, int]) -> None:
        """Count a batch into times and entries: the same for an append and for a rebuild.

        ``place`` has the fields of a ``BatchPlace``.
        """
        assert self.entries is not None
        position, end, _, last_offset, max_timestamp_ms = place
        if position == 0:
            self.first_timestamp_ms = max_timestamp_ms
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self._max_timestamp_offset = last_offset
        if self._bytes_since_entry <= self._interval_bytes:
            self._bytes_since_entry += end - position
            return
        offsets, times = self.entries
        offsets.append(last_offset, position)
        times.maybe_append(self.max_timestamp_ms, self._max_timestamp_offset)
        self._bytes_since_entry = end - position

    # Counting many batches at once

    @property
    def interval_bytes(self) -> int:
        """An entry is made once more than this many bytes have passed."""
        return self._interval_bytes

    @property
    def count(self) -> IndexCount:
        """The state of the count."""
        return IndexCount(
            self._bytes_since_entry, self.max_timestamp_ms, self._max_timestamp_offset
        )

    @property
    def last_entered_timestamp_ms(self) -> int:
        """The timestamp of the newest entry of the time index; -1 if it has none."""
        assert self.entries is not None
        entry = self.entries[1].last_entry
        return NO_TIMESTAMP if entry is None else entry[0]

    def take_run(self, run: IndexRun, count: IndexCount) -> None:
        """Take over the entries of batches that a scan has counted on from ``count``."""
        assert self.entries is not None
        offsets, times = self.entries
        offsets.extend(run.last_offsets, run.positions)
        times.extend(run.timestamps_ms, run.timestamp_offsets)
        self._bytes_since_entry, self.max_timestamp_ms, self._max_timestamp_offset = count

    def enter_last_time(self) -> None:
        """Give the largest timestamp its entry: the segment is sealed."""
        assert self.entries is not None
        self.entries[1].maybe_append(self.max_timestamp_ms, self._max_timestamp_offset)
