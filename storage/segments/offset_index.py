"""The sparse offset index of one segment: batch last offset -> byte position of the batch.

Kafka's ``.index`` file, big-endian, 8 bytes per entry:

| bytes | field |
|---|---|
| 4 | last offset of a batch, less the segment's base offset |
| 4 | position of that batch in the ``.log`` file |

Both columns rise strictly. The index can always be rebuilt from the log, so its bytes need not
be durable before the segment is sealed.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from oncelog.storage.exceptions import CorruptDataError

ENTRY_BYTES: Final = 8
INDEX_MAX_BYTES: Final = 10_485_760
"""An index of this many bytes is full: the segment must roll."""

_ENTRIES_MAX: Final = INDEX_MAX_BYTES // ENTRY_BYTES

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""The largest last offset, relative to the base offset, that a segment can index."""


class OffsetIndex:
    """The entries of one segment in memory: 8 bytes each."""

    __slots__ = ("_base_offset", "_positions", "_relative_offsets")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._relative_offsets = array("I")
        self._positions = array("I")

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes) -> OffsetIndex:
        """Read a file's bytes; CorruptDataError if they cannot be an index."""
        if len(data) % ENTRY_BYTES:
            raise CorruptDataError(f"offset index of {len(data)} bytes is not whole entries")
        columns = array("I", data)
        if sys.byteorder == "little":
            columns.byteswap()
        index = cls(base_offset)
        index._relative_offsets = columns[0::2]
        index._positions = columns[1::2]
        return index

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        columns = array("I", bytes(ENTRY_BYTES * len(self)))
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
        """Append entries at once: unsigned 32-bit numbers of this machine."""
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
        # True but for a damaged file, which must never show a reader more than it may see.
        is_within = position <= limit_position and last_offset < upper_offset
        return (last_offset, position) if is_within else None
