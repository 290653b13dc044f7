"""The offset and time index of one segment, their files, and the times that retention needs.

Both can always be rebuilt from the log, so their bytes need not be durable before the segment is
sealed. Batches are counted one by one as they are appended, or many at once after a scan, with the
same entries. A batch gets an entry if it begins more than the index interval after the last entry.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_OFFSET, NO_TIMESTAMP

INDEX_MAX_BYTES: Final = 10_485_760
"""An offset index of this many bytes is full: the segment must roll."""

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""The largest last offset, relative to the base offset, that a segment can index."""

_OFFSET_ENTRY_BYTES: Final = 8
_ENTRIES_MAX: Final = INDEX_MAX_BYTES // _OFFSET_ENTRY_BYTES
_TIME_ENTRY_BYTES: Final = 12
_TIMESTAMP_BYTES: Final = 8


class OffsetIndex:
    """The sparse offset index of one segment: batch last offset -> byte position of the batch.

    In memory an entry takes 8 bytes, as in Kafka's ``.index`` file, which is big-endian:

    | bytes | field |
    |---|---|
    | 4 | last offset of a batch, less the segment's base offset |
    | 4 | position of that batch in the ``.log`` file |

    Both columns rise strictly.
    """

    __slots__ = ("_base_offset", "_positions", "_relative_offsets")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._relative_offsets = array("I")
        self._positions = array("I")

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes) -> OffsetIndex:
        """Read a file's bytes; CorruptDataError if they cannot be an index."""
        if len(data) % _OFFSET_ENTRY_BYTES:
            raise CorruptDataError(f"offset index of {len(data)} bytes ends inside an entry")
        columns = array("I", data)
        if sys.byteorder == "little":
            columns.byteswap()
        index = cls(base_offset)
        index._relative_offsets = columns[0::2]
        index._positions = columns[1::2]
        return index

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        columns = array("I", bytes(_OFFSET_ENTRY_BYTES * len(self)))
        columns[0::2] = self._relative_offsets
        columns[1::2] = self._positions
        if sys.byteorder == "little":
            columns.byteswap()
        return columns.tobytes()

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits."""
        return len(self._positions) >= _ENTRIES_MAX

    @property
    def last_entry(self) -> tuple[int, int] | None:
        """The newest (last offset, position)."""
        if not self._positions:
            return None
        return self._base_offset + self._relative_offsets[-1], self._positions[-1]

    def append(self, last_offset: int, position: int) -> None:
        """Index the batch that ends with ``last_offset`` (inclusive) and begins at ``position``."""
        self._relative_offsets.append(last_offset - self._base_offset)
        self._positions.append(position)

    def extend(self, relative_offsets: bytes, positions: bytes) -> None:
        """Append entries at once: unsigned 32-bit numbers in native byte order."""
        self._relative_offsets.frombytes(relative_offsets)
        self._positions.frombytes(positions)

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """The greatest entry whose last offset is at most ``offset``; None before the first."""
        slot = bisect_right(self._relative_offsets, offset - self._base_offset) - 1
        if slot < 0:
            return None
        return self._base_offset + self._relative_offsets[slot], self._positions[slot]

    def entries_before(self, offset: int) -> Iterator[tuple[int, int]]:
        """The entries (last offset, position) up to ``lookup(offset)``, that one first."""
        count = bisect_right(self._relative_offsets, offset - self._base_offset)
        for slot in range(count - 1, -1, -1):
            yield self._base_offset + self._relative_offsets[slot], self._positions[slot]

    def entries_after(self, position: int) -> Iterator[tuple[int, int]]:
        """The entries (last offset, position) of batches that begin after ``position``."""
        for slot in range(bisect_right(self._positions, position), len(self._positions)):
            yield self._base_offset + self._relative_offsets[slot], self._positions[slot]

    def lookup_end(self, *, limit_position: int, upper_offset: int) -> tuple[int, int] | None:
        """The greatest entry up to ``limit_position`` that ends below ``upper_offset`` (exclusive).

        None if there is none.
        """
        by_position = bisect_right(self._positions, limit_position)
        by_offset = bisect_left(self._relative_offsets, upper_offset - self._base_offset)
        slot = min(by_position, by_offset) - 1
        if slot < 0:
            return None
        last_offset = self._base_offset + self._relative_offsets[slot]
        position = self._positions[slot]
        # False only for a damaged file, which must never show a reader more than it may see.
        is_within = position <= limit_position and last_offset < upper_offset
        return (last_offset, position) if is_within else None


class TimeIndex:
    """The sparse time index of one segment: largest timestamp so far -> offset that has it.

    Kafka's ``.timeindex`` file, big-endian, 12 bytes per entry:

    | bytes | field |
    |---|---|
    | 8 | largest timestamp of the segment up to here, ms |
    | 4 | last offset of the batch that holds it, less the segment's base offset |

    Timestamps rise strictly.
    """

    __slots__ = ("_base_offset", "_relative_offsets", "_timestamps_ms")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._timestamps_ms = array("q")
        self._relative_offsets = array("I")

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes) -> TimeIndex:
        """Read a file's bytes; CorruptDataError if they cannot be an index."""
        if len(data) % _TIME_ENTRY_BYTES:
            raise CorruptDataError(f"time index of {len(data)} bytes ends inside an entry")
        count = len(data) // _TIME_ENTRY_BYTES
        timestamps = bytearray(_TIMESTAMP_BYTES * count)
        offsets = bytearray(4 * count)
        # Byte columns are moved as strided slices: no Python work per entry.
        for column in range(_TIME_ENTRY_BYTES):
            if column < _TIMESTAMP_BYTES:
                timestamps[column::_TIMESTAMP_BYTES] = data[column::_TIME_ENTRY_BYTES]
            else:
                offsets[column - _TIMESTAMP_BYTES :: 4] = data[column::_TIME_ENTRY_BYTES]
        index = cls(base_offset)
        index._timestamps_ms = _from_big_endian(array("q", bytes(timestamps)))
        index._relative_offsets = _from_big_endian(array("I", bytes(offsets)))
        return index

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        timestamps = _from_big_endian(self._timestamps_ms[:]).tobytes()
        offsets = _from_big_endian(self._relative_offsets[:]).tobytes()
        data = bytearray(_TIME_ENTRY_BYTES * len(self))
        for column in range(_TIME_ENTRY_BYTES):
            if column < _TIMESTAMP_BYTES:
                data[column::_TIME_ENTRY_BYTES] = timestamps[column::_TIMESTAMP_BYTES]
            else:
                data[column::_TIME_ENTRY_BYTES] = offsets[column - _TIMESTAMP_BYTES :: 4]
        return bytes(data)

    def __len__(self) -> int:
        return len(self._timestamps_ms)

    @property
    def last_entry(self) -> tuple[int, int] | None:
        """The newest (timestamp in ms, offset)."""
        if not self._timestamps_ms:
            return None
        return self._timestamps_ms[-1], self._base_offset + self._relative_offsets[-1]

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Add an entry if ``timestamp_ms`` is larger than all before it."""
        if timestamp_ms >= 0 and (
            not self._timestamps_ms or timestamp_ms > self._timestamps_ms[-1]
        ):
            self._timestamps_ms.append(timestamp_ms)
            self._relative_offsets.append(offset - self._base_offset)

    def extend(self, timestamps_ms: bytes, relative_offsets: bytes) -> None:
        """Append increasing entries at once: 64 and 32-bit numbers in native byte order."""
        self._timestamps_ms.frombytes(timestamps_ms)
        self._relative_offsets.frombytes(relative_offsets)

    def offset_before(self, timestamp_ms: int) -> int:
        """An offset up to which (inclusive) every timestamp is below ``timestamp_ms``.

        The segment's base offset if nothing better is known.
        """
        slot = bisect_left(self._timestamps_ms, timestamp_ms) - 1
        return self._base_offset + (self._relative_offsets[slot] if slot >= 0 else 0)


def _from_big_endian(values: array[int]) -> array[int]:
    """Swap the bytes on a little-endian machine; its own inverse."""
    if sys.byteorder == "little":
        values.byteswap()
    return values


class IndexCount(NamedTuple):
    """The state of the count: bytes since the last entry, and the largest timestamp.

    ``max_timestamp_offset`` is the last offset of the first batch that has it.
    """

    bytes_since_entry: int
    max_timestamp_ms: int
    max_timestamp_offset: int


class IndexRun(NamedTuple):
    """Index entries as ``array`` bytes, in native byte order; offsets relative to the base offset.

    The first two columns, the offset index, and the last two, the time index, are equally long.
    """

    last_offsets: bytes
    positions: bytes
    timestamps_ms: bytes
    timestamp_offsets: bytes


class SegmentIndexes:
    """The entries, which may be dropped and loaded again, and the times, which stay in memory."""

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
        return _OFFSET_ENTRY_BYTES * len(offsets) + _TIME_ENTRY_BYTES * len(times)

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
        """Set the largest timestamp, known from the summary."""
        self.max_timestamp_ms, self._max_timestamp_offset = max_timestamp_ms, last_offset

    def begin_tail(self, bytes_since_entry: int) -> None:
        """Continue counting after loaded entries, ``bytes_since_entry`` after the last one."""
        self._bytes_since_entry = bytes_since_entry

    def record_time(self, max_timestamp_ms: int, last_offset: int) -> None:
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
        """Append the entries of a scan that continued counting from ``count``."""
        assert self.entries is not None
        offsets, times = self.entries
        offsets.extend(run.last_offsets, run.positions)
        times.extend(run.timestamps_ms, run.timestamp_offsets)
        self._bytes_since_entry, self.max_timestamp_ms, self._max_timestamp_offset = count

    def enter_last_time(self) -> None:
        """Add an entry for the largest timestamp: the segment is being sealed."""
        assert self.entries is not None
        self.entries[1].maybe_append(self.max_timestamp_ms, self._max_timestamp_offset)
