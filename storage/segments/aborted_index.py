"""The aborted transactions of one segment: the segment that holds the ABORT marker.

Kafka's ``.txnindex`` file, big-endian, 34 bytes per entry, made on first use:

| bytes | field |
|---|---|
| 2 | version, 0 |
| 8 | producer id |
| 8 | first offset of the transaction |
| 8 | last offset: that of the marker (inclusive); rises strictly from entry to entry |
| 8 | last stable offset right after the marker |

An entry is durable with the next sync point. Source: KIP-98, "Transaction index".
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from oncelog.storage.disk.disk_errors import read_small_file
from oncelog.storage.disk.file_system import FileHandle, FileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import AbortedTransaction

_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_BYTES: Final = _ENTRY.size
_VERSION: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedIndexEntry:
    """One aborted transaction. Offsets are inclusive; ``last_stable_offset`` is exclusive.

    ``last_stable_offset`` lets a search stop: transactions of later entries began at or after it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def to_bytes(self) -> bytes:
        """The 34 bytes of the file."""
        return _ENTRY.pack(
            _VERSION,
            self.producer_id,
            self.first_offset,
            self.last_offset,
            self.last_stable_offset,
        )


def decode_entries(data: bytes) -> list[AbortedIndexEntry]:
    """All entries of a file; CorruptDataError for a torn, unknown or disordered entry."""
    if len(data) % ENTRY_BYTES:
        raise CorruptDataError(f"aborted index of {len(data)} bytes ends inside an entry")
    entries: list[AbortedIndexEntry] = []
    for version, producer_id, first_offset, last_offset, stable_offset in _ENTRY.iter_unpack(data):
        if version != _VERSION:
            raise CorruptDataError(f"aborted index entry of unknown version {version}")
        if entries and last_offset <= entries[-1].last_offset:
            raise CorruptDataError(f"aborted index goes back to offset {last_offset}")
        # A transaction has data before its marker, and nothing is stable beyond that.
        if not (0 <= first_offset < last_offset and 0 <= stable_offset <= last_offset + 1):
            raise CorruptDataError(f"aborted index has an impossible entry for {last_offset}")
        if producer_id < 0:
            raise CorruptDataError(f"aborted index names producer {producer_id}")
        entries.append(
            AbortedIndexEntry(
                producer_id=producer_id,
                first_offset=first_offset,
                last_offset=last_offset,
                last_stable_offset=stable_offset,
            )
        )
    return entries


class TxnIndex:
    """The aborted index of one segment: all entries in memory, appended to the file at once."""

    __slots__ = (
        "_entries",
        "_filesystem",
        "_handle",
        "_is_stale",
        "_last_offsets",
        "is_complete",
        "path",
    )

    def __init__(self, filesystem: FileSystem, path: Path) -> None:
        self._filesystem = filesystem
        self.path = path
        self._handle: FileHandle | None = None
        self._entries: list[AbortedIndexEntry] = []
        self._last_offsets: list[int] = []
        self._is_stale = False
        self.is_complete = False
        """Whether it is complete for sure: what a replay finds is in it or was compacted away."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[AbortedIndexEntry, ...]:
        """All entries in the order of their markers."""
        return tuple(self._entries)

    @property
    def handle(self) -> FileHandle | None:
        """The open file, if it has been written since it was loaded."""
        return self._handle

    def load(self) -> None:
        """Read the file if there is one; CorruptDataError names it if it is damaged."""
        if not self._filesystem.exists(self.path):
            return
        try:
            entries = decode_entries(read_small_file(self._filesystem, self.path))
        except CorruptDataError as error:
            raise CorruptDataError(f"{self.path}: {error}") from error
        self._set_entries(entries)

    @property
    def crc32c(self) -> int:
        """CRC of the bytes that the file should have; 0 without entries."""
        return crc32c(b"".join([entry.to_bytes() for entry in self._entries]))

    def load_if(self, expected_crc32c: int) -> bool:
        """Read the file; False if its CRC is not the expected one."""
        try:
            self.load()
        except CorruptDataError:
            return False
        return self.crc32c == expected_crc32c

    def append(self, entry: AbortedIndexEntry) -> FileHandle | None:
        """Add an entry and return the file to sync; None if the index has it already.

        Recovery replays markers whose entries survived, so a known entry is not an error. One that
        would break the order is: CorruptDataError.
        """
        if self.is_complete:
            return None
        slot = bisect_left(self._last_offsets, entry.last_offset)
        if slot < len(self._last_offsets):
            if self._last_offsets[slot] == entry.last_offset:
                return None
            raise CorruptDataError(
                f"{self.path}: no entry for the marker at {entry.last_offset}, "
                f"but one for the later marker at {self._last_offsets[-1]}"
            )
        handle = self._open()
        handle.append((entry.to_bytes(),))
        self._entries.append(entry)
        self._last_offsets.append(entry.last_offset)
        return handle

    def collect(
        self, fetch_offset: int, upper_offset: int, found: list[AbortedTransaction]
    ) -> bool:
        """Add what touches [fetch_offset, upper_offset) to ``found``; True: stop searching."""
        # By position: a slice could copy a million entries, and only a few are looked at.
        for place in range(bisect_left(self._last_offsets, fetch_offset), len(self._entries)):
            entry = self._entries[place]
            if entry.first_offset < upper_offset:
                found.append(
                    AbortedTransaction(
                        producer_id=entry.producer_id, first_offset=entry.first_offset
                    )
                )
            if entry.last_stable_offset >= upper_offset:
                return True
        return False

    def truncate_to(self, offset: int) -> FileHandle | None:
        """Drop the entries whose marker is at ``offset`` or later; return the file to sync."""
        self.is_complete = False
        keep = bisect_left(self._last_offsets, offset)
        if keep == len(self._entries):
            return None
        handle = self._open()
        handle.truncate(keep * ENTRY_BYTES)
        self._set_entries(self._entries[:keep])
        return handle

    def distrust(self) -> None:
        """Forget what the file says, readable or not, so that replay can fill the index anew.

        The file is emptied by the first entry or by ``drop_stale``. If the open fails before that,
        the file is unchanged.
        """
        self.is_complete = False
        self._set_entries([])
        self._is_stale = self._filesystem.exists(self.path)

    def drop_stale(self) -> FileHandle | None:
        """Empty a distrusted file that got no entry; return it to be synced, if it exists."""
        return self._open() if self._is_stale else None

    def fill(self, entries: Sequence[AbortedIndexEntry]) -> FileHandle:
        """Write exactly these entries, even if none, and hand over the open file."""
        handle = self._filesystem.open(self.path, create=True)
        try:
            handle.truncate(0)
            handle.append((b"".join([entry.to_bytes() for entry in entries]),))
        except OSError:
            handle.close()
            raise
        self._set_entries(list(entries))
        return handle

    def hand_over(self) -> FileHandle | None:
        """Hand over the open file, to be synced and closed; a later append opens it again."""
        handle, self._handle = self._handle, None
        return handle

    def close(self) -> None:
        """Close the file; the entries stay readable."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _set_entries(self, entries: list[AbortedIndexEntry]) -> None:
        self._entries = entries
        self._last_offsets = [entry.last_offset for entry in entries]

    def _open(self) -> FileHandle:
        if self._handle is None:
            self._handle = self._filesystem.open(self.path, create=True)
        if self._is_stale:
            self._handle.truncate(0)
            self._is_stale = False
        return self._handle
