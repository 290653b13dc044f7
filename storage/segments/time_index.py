"""The sparse time index of one segment: largest timestamp so far -> offset that has it.

Kafka's ``.timeindex`` file, big-endian, 12 bytes per entry:

| bytes | field |
|---|---|
| 8 | largest timestamp of the segment up to here, ms |
| 4 | last offset of the batch that holds it, less the segment's base offset |

Timestamps rise strictly. Like the offset index it can be rebuilt from the log.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from typing import Final

from oncelog.storage.exceptions import CorruptDataError

ENTRY_BYTES: Final = 12
_TIMESTAMP_BYTES: Final = 8


class TimeIndex:
    """The entries of one segment in memory."""

    __slots__ = ("_base_offset", "_relative_offsets", "_timestamps_ms")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._timestamps_ms = array("q")
        self._relative_offsets = array("I")

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes) -> TimeIndex:
        """Read a file's bytes; CorruptDataError if they cannot be an index."""
        if len(data) % ENTRY_BYTES:
            raise CorruptDataError(f"time index of {len(data)} bytes is not whole entries")
        count = len(data) // ENTRY_BYTES
        timestamps = bytearray(_TIMESTAMP_BYTES * count)
        offsets = bytearray(4 * count)
        # Byte columns are moved as strided slices: no Python work per entry.
        for column in range(ENTRY_BYTES):
            if column < _TIMESTAMP_BYTES:
                timestamps[column::_TIMESTAMP_BYTES] = data[column::ENTRY_BYTES]
            else:
                offsets[column - _TIMESTAMP_BYTES :: 4] = data[column::ENTRY_BYTES]
        index = cls(base_offset)
        index._timestamps_ms = _from_big_endian(array("q", bytes(timestamps)))
        index._relative_offsets = _from_big_endian(array("I", bytes(offsets)))
        return index

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        timestamps = _from_big_endian(self._timestamps_ms[:]).tobytes()
        offsets = _from_big_endian(self._relative_offsets[:]).tobytes()
        data = bytearray(ENTRY_BYTES * len(self))
        for column in range(ENTRY_BYTES):
            if column < _TIMESTAMP_BYTES:
                data[column::ENTRY_BYTES] = timestamps[column::_TIMESTAMP_BYTES]
            else:
                data[column::ENTRY_BYTES] = offsets[column - _TIMESTAMP_BYTES :: 4]
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
        """Append entries that rise, at once: 64 and 32-bit numbers of this machine."""
        self._timestamps_ms.frombytes(timestamps_ms)
        self._relative_offsets.frombytes(relative_offsets)

    def offset_before(self, timestamp_ms: int) -> int:
        """An offset up to which (inclusive) every timestamp is below ``timestamp_ms``.

        The segment's base offset if nothing better is known.
        """
        slot = bisect_left(self._timestamps_ms, timestamp_ms) - 1
        return self._base_offset + (self._relative_offsets[slot] if slot >= 0 else 0)


def _from_big_endian(values: array[int]) -> array[int]:
    """Swap the bytes where the machine is little-endian; its own inverse."""
    if sys.byteorder == "little":
        values.byteswap()
    return values
