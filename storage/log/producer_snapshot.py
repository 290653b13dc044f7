"""Producer state at an offset, as bytes on disk: ``<20 digit offset>.snapshot``.

Kafka's layout, big-endian. The state is that *before* the offset of the name.

| bytes | field |
|---|---|
| 2 | version, 1 |
| 4 | CRC-32C of everything after this field |
| 4 | number of entries |
| 46 each | producer id 8, epoch 2, last sequence 4, last offset 8, offset delta 4, timestamp 8, |
|  | coordinator epoch 4, first offset of the open transaction 8 (-1 none) |

A producer whose epoch a marker has raised above that of its newest batch has two entries, one after
the other: first that batch with its epoch, then its state without a batch. Who knows only one entry
per producer, as Kafka does, takes the last one.

A damaged snapshot costs a longer replay and nothing else. Source: KIP-98, "Producer state".
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from crc32c import crc32c

from oncelog.storage.disk.disk_errors import read_small_file
from oncelog.storage.disk.file_system import FileHandle, FileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_PRODUCER_EPOCH, ProducerSnapshotEntry

SNAPSHOT_SUFFIX: Final = ".snapshot"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">hIi")
_CHECKED_FROM: Final = 6
_ENTRY: Final = struct.Struct(">qhiqiqiq")


def encode_snapshot(entries: Sequence[ProducerSnapshotEntry]) -> bytes:
    """The file's bytes."""
    stored = [part for entry in entries for part in _parts(entry)]
    body = b"".join(
        _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.timestamp_ms,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in stored
    )
    checked = struct.pack(">i", len(stored)) + body
    return _HEADER.pack(_VERSION, crc32c(checked), len(stored)) + body


def decode_snapshot(data: bytes) -> list[ProducerSnapshotEntry]:
    """The entries; CorruptDataError if the bytes are torn, damaged or of another version."""
    if len(data) < _HEADER.size:
        raise CorruptDataError(f"producer snapshot of {len(data)} bytes is torn")
    version, crc, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise CorruptDataError(f"producer snapshot of unknown version {version}")
    if crc32c(memoryview(data)[_CHECKED_FROM:]) != crc:
        raise CorruptDataError("producer snapshot does not match its CRC")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptDataError(f"producer snapshot does not hold its {count} entries")
    entries: list[ProducerSnapshotEntry] = []
    for fields in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :]):
        entry = ProducerSnapshotEntry(
            producer_id=fields[0],
            producer_epoch=fields[1],
            last_sequence=fields[2],
            last_offset=fields[3],
            offset_delta=fields[4],
            timestamp_ms=fields[5],
            coordinator_epoch=fields[6],
            current_txn_first_offset=fields[7],
        )
        if entries and entries[-1].producer_id == entry.producer_id:
            entry = _joined(entries.pop(), entry)
        entries.append(entry)
    return entries


def _parts(entry: ProducerSnapshotEntry) -> Iterator[ProducerSnapshotEntry]:
    """What is stored of an entry: see the module."""
    if entry.batch_epoch == NO_PRODUCER_EPOCH:
        yield entry
        return
    yield replace(entry, producer_epoch=entry.batch_epoch, batch_epoch=NO_PRODUCER_EPOCH)
    yield entry.without_batch()


def _joined(batch: ProducerSnapshotEntry, state: ProducerSnapshotEntry) -> ProducerSnapshotEntry:
    """The entry of which both parts are stored."""
    return replace(
        state,
        last_sequence=batch.last_sequence,
        last_offset=batch.last_offset,
        offset_delta=batch.offset_delta,
        batch_epoch=batch.producer_epoch,
    )


class SnapshotStore:
    """The snapshots of one partition directory."""

    __slots__ = ("_directory", "_filesystem", "_offsets")

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._offsets = sorted(
            int(stem)
            for stem, _, suffix in (
                name.partition(".") for name in filesystem.list_directory(directory)
            )
            if f".{suffix}" == SNAPSHOT_SUFFIX and stem.isdecimal()
        )

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets for which there is a file, ascending."""
        return tuple(self._offsets)

    def write(self, offset: int, entries: Sequence[ProducerSnapshotEntry]) -> FileHandle | None:
        """Write the state before ``offset``; durable once the returned file is synced.

        An undamaged existing one is kept, and None returned: it describes the same batches, and if
        they are removed it may be the only copy.
        """
        if offset in self._offsets and self.is_readable(offset):
            return None
        handle = self._filesystem.open(self.path_of(offset), create=True)
        try:
            handle.truncate(0)
            handle.append((encode_snapshot(entries),))
        except OSError:
            handle.close()
            raise
        if offset not in self._offsets:
            self._offsets = sorted([*self._offsets, offset])
        return handle

    def newest(
        self, *, lowest_offset: int, highest_offset: int
    ) -> tuple[int, list[ProducerSnapshotEntry]] | None:
        """The newest readable snapshot in the range, both ends included; None if there is none.

        A damaged one is removed and the next older one tried.
        """
        for offset in reversed(self._offsets):
            if lowest_offset <= offset <= highest_offset:
                try:
                    return offset, self._read(offset)
                except CorruptDataError:
                    self.remove(offset)
        return None

    def forget_below(self, offset: int) -> tuple[Path, ...]:
        """Forget the snapshots below ``offset``; return their files for the caller to remove."""
        stale = [known for known in self._offsets if known < offset]
        self._offsets = self._offsets[len(stale) :]
        return tuple(self.path_of(known) for known in stale)

    def restart(self) -> None:
        """Forget all snapshots: the log was dropped, and they with it."""
        self._offsets = []

    def thin_out(self, bases: Collection[int]) -> None:
        """Keep the snapshots at ``bases``, the base offsets of segments, and the newest one."""
        for offset in self.offsets[:-1]:
            if offset not in bases:
                self.remove(offset)

    def remove_above(self, offset: int) -> None:
        """Remove the snapshots that a log cut at ``offset`` no longer reaches."""
        for known in self.offsets:
            if known > offset:
                self.remove(known)

    def has_open_transaction(self, offset: int) -> bool:
        """Whether the snapshot at ``offset`` shows an open transaction, or is damaged."""
        try:
            entries = self._read(offset)
        except CorruptDataError:
            return True
        return any(entry.has_open_transaction for entry in entries)

    def is_readable(self, offset: int) -> bool:
        """Whether the file is whole and undamaged."""
        try:
            self._read(offset)
        except CorruptDataError:
            return False
        return True

    def write_again(self, offset: int) -> FileHandle | None:
        """Rewrite a snapshot in place; durable once the returned file is synced.

        A damaged one is removed: None.
        """
        path = self.path_of(offset)
        try:
            data = encode_snapshot(self._read(offset))
        except CorruptDataError:
            self.remove(offset)
            return None
        handle = self._filesystem.open(path, create=False)
        try:
            handle.write_at(0, data)
        except OSError:
            handle.close()
            raise
        return handle

    def remove(self, offset: int) -> None:
        """Remove one file."""
        self._filesystem.remove(self.path_of(offset))
        self._offsets = [known for known in self._offsets if known != offset]

    def _read(self, offset: int) -> list[ProducerSnapshotEntry]:
        return decode_snapshot(read_small_file(self._filesystem, self.path_of(offset)))

    def path_of(self, offset: int) -> Path:
        """The path of the snapshot at ``offset``."""
        return self._directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"
