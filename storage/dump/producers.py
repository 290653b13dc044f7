"""Producer snapshots checked against replay of the log, and replay against the aborted index."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Protocol

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.dump.findings import Checkpoints, Finding
from oncelog.storage.errors import InvariantViolation
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.producer_entry import ProducerSnapshotEntry
from oncelog.storage.log.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.control import ControlRecord
from oncelog.storage.segments.aborted_index import AbortedIndexEntry


class ProducerReplay(Protocol):
    """The rules of producer state, which storage itself does not know."""

    def begin(self, offset: int, entries: Sequence[ProducerSnapshotEntry]) -> None:
        """Start at ``offset`` with the state before it."""
        ...

    def apply(self, header: BatchHeader, control: ControlRecord | None) -> AbortedIndexEntry | None:
        """Apply a batch; return the entry of the transaction it aborts. InvariantViolation."""
        ...

    def snapshot(self) -> Sequence[ProducerSnapshotEntry]:
        """The state after the last batch."""
        ...


class ProducerCheck:
    """One replay of one directory. It ends, silently, at the first damage of the log."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        replay: ProducerReplay,
        checkpoints: Checkpoints,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._replay = replay
        self._checkpoints = checkpoints
        self._offsets: list[int] = []
        self._start = 0
        self._cleaned_offset = 0
        self._knows_all = True
        self.is_replaying = True

    @property
    def is_exact(self) -> bool:
        """Whether every transaction open at this place is known."""
        return self.is_replaying and self._knows_all

    def begin(
        self, base_offset: int, offsets: Sequence[int], cleaned_offset: int
    ) -> Iterator[Finding]:
        """Begin at the first batch: with its snapshot, or with nothing if the log begins at 0.

        ``offsets`` are those of the snapshots, ascending. Up to ``cleaned_offset`` compaction has
        removed what most of them were made from: they are read, and the last one restarts the
        replay.
        """
        self._cleaned_offset = cleaned_offset
        entries = None
        if base_offset in offsets:
            entries = yield from self._read(base_offset)
        for offset in offsets:
            if offset < base_offset:
                reason = f"offset {offset} is below the first segment"
                yield Finding(path=self._path(offset), position=0, reason=reason, is_problem=False)
        self._start = base_offset
        self._knows_all = base_offset == 0 or entries is not None
        self._offsets = [offset for offset in offsets if offset > base_offset]
        self._replay.begin(base_offset, entries or [])

    def batch(
        self, path: Path, position: int, header: BatchHeader, control: ControlRecord | None
    ) -> Generator[Finding, None, AbortedIndexEntry | None]:
        """A batch passes: first the snapshots before it, then its own effect.

        Returns what the aborted index must say about it.
        """
        yield from self._check_before(header.base_offset, header.next_offset)
        if not self.is_replaying:
            return None
        try:
            return self._replay.apply(header, control)
        except InvariantViolation as error:
            yield Finding(path=path, position=position, reason=str(error))
            self.is_replaying = False
            return None

    def end(self, log_end_offset: int) -> Iterator[Finding]:
        """The log ends: check the snapshot of its end, and those that belong to no state."""
        yield from self._check_before(log_end_offset, log_end_offset + 1)
        for offset in self._offsets:
            yield Finding(
                path=self._path(offset),
                position=0,
                reason=f"offset {offset} is beyond the log end {log_end_offset}",
                is_problem=self._checkpoints.is_synced(offset - 1),
            )

    def _check_before(self, base_offset: int, next_offset: int) -> Iterator[Finding]:
        """Compare those up to ``base_offset``; one within the batch fits no state at all."""
        while self._offsets and self._offsets[0] < next_offset:
            offset = self._offsets.pop(0)
            if offset > base_offset:
                reason = f"offset {offset} lies within the batch at offset {base_offset}"
                yield Finding(path=self._path(offset), position=0, reason=reason)
            else:
                yield from self._check(offset)

    def _check(self, offset: int) -> Iterator[Finding]:
        stored = yield from self._read(offset)
        if stored is None or not self.is_replaying:
            return
        if offset <= self._cleaned_offset:
            self._start, self._knows_all = offset, True
            self._replay.begin(offset, stored)
            return
        path = self._path(offset)
        replayed = {entry.producer_id: entry for entry in self._replay.snapshot()}
        for entry in stored:
            for difference in self._differences(entry, replayed.pop(entry.producer_id, None)):
                reason = f"producer {entry.producer_id}: {difference}"
                yield Finding(path=path, position=0, reason=reason)
        for entry in replayed.values():
            if entry.has_open_transaction:
                reason = f"producer {entry.producer_id} with an open transaction is not in it"
                yield Finding(path=path, position=0, reason=reason)
        forgotten = sum(not entry.has_open_transaction for entry in replayed.values())
        if forgotten:
            # A producer that is silent for a day is forgotten; the log does not say when.
            reason = f"{forgotten} producers of the log are not in it"
            yield Finding(path=path, position=0, reason=reason, is_problem=False)

    def _differences(
        self, stored: ProducerSnapshotEntry, replayed: ProducerSnapshotEntry | None
    ) -> Iterator[str]:
        """Where an entry differs from the log; what the log cannot say is accepted."""
        if not self._knows_all and stored.last_offset < self._start:
            return
        if replayed is None:
            yield "the log does not know it"
            return
        for field in fields(ProducerSnapshotEntry):
            value, expected = getattr(stored, field.name), getattr(replayed, field.name)
            # A producer that was forgotten and came back has no coordinator epoch.
            if value != expected and not (field.name == "coordinator_epoch" and value < 0):
                yield f"{field.name} {value}, the log says {expected}"

    def _read(self, offset: int) -> Generator[Finding, None, list[ProducerSnapshotEntry] | None]:
        path = self._path(offset)
        try:
            return decode_snapshot(self._filesystem.read_whole(path))
        except CorruptDataError as error:
            yield Finding(path=path, position=0, reason=str(error))
        except FileNotFoundError:
            reason = "it was removed meanwhile"
            yield Finding(path=path, position=0, reason=reason, is_problem=False)
        return None

    def _path(self, offset: int) -> Path:
        return self._directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"
