"""Writes one cleaned segment: the ``.cleaned`` files, until they are durable and can be swapped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.records.batch import Buffer, parse_header
from oncelog.storage.segments.aborted_index import AbortedIndexEntry
from oncelog.storage.segments.frames import BatchPlace
from oncelog.storage.segments.leader_epochs import LeaderEpochPairs
from oncelog.storage.segments.segment import Segment
from oncelog.storage.segments.swap import CLEANED_SUFFIX, discard_swap, prepare_swap

_WRITE_BYTES: Final = 262_144
"""Batches are gathered into writes of this size: most batches of an internal log are small."""

_SYNC_BYTES: Final = 4_194_304
"""Synced as it grows, so that no single sync keeps the disk, and its other users, busy long."""


class CleanedSegment:
    """A segment being written beside the log, to be sealed or discarded."""

    def __init__(
        self, filesystem: FileSystem, directory: Path, base_offset: int, index_interval_bytes: int
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._segment = Segment(
            filesystem=filesystem,
            directory=directory,
            base_offset=base_offset,
            next_offset=base_offset,
            index_interval_bytes=index_interval_bytes,
            state_suffix=CLEANED_SUFFIX,
        )
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._unsynced_bytes = 0
        self.size_bytes = 0
        self._next_offset = base_offset
        self._segment.create()

    def append(self, batch: Buffer) -> None:
        """Add a batch; offsets must rise."""
        header = parse_header(batch)
        self._next_offset = header.next_offset
        self._segment.counting.account(BatchPlace.of(self.size_bytes, header))
        self.size_bytes += len(batch)
        # A copy: waiting batches would keep alive the whole chunk they were read with.
        self._waiting.append(bytes(batch))
        self._waiting_bytes += len(batch)
        if self._waiting_bytes >= _WRITE_BYTES:
            self._write()

    def seal(self, aborted: Sequence[AbortedIndexEntry], leader_epochs: LeaderEpochPairs) -> None:
        """Write the indexes, sync everything, ready for the commit. OSError: ``discard``.

        The aborted index is written even if it is empty, because it must replace an older one:
        an entry whose marker is gone would hide later data of its producer.
        """
        self._write()
        self._segment.end_scan(self.size_bytes, self._next_offset)
        handles = [self._segment.txn_index.fill(aborted)]
        try:
            handles += self._segment.write_sealed(leader_epochs)
            for handle in handles:
                handle.datasync()
            self._segment.log.datasync()
        finally:
            for handle in handles:
                handle.close()
            self._segment.close()
        prepare_swap(self._filesystem, self._directory, self._segment.base_offset)

    def discard(self) -> None:
        """Close and remove whatever there is, unless it has been committed."""
        self._segment.close()
        discard_swap(self._filesystem, self._directory, self._segment.base_offset)

    def _write(self) -> None:
        if self._waiting:
            self._segment.log.append((b"".join(self._waiting),))
            self._unsynced_bytes += self._waiting_bytes
            self._waiting.clear()
            self._waiting_bytes = 0
        if self._unsynced_bytes >= _SYNC_BYTES:
            self._segment.log.datasync()
            self._unsynced_bytes = 0
