"""One segment of a log: a ``.log`` file of whole batches with its sparse indexes.

The *active* segment is the last one and takes appends; the others are *sealed*. The indexes of the
active segment are in memory and become files when it is sealed or the log is closed. After a crash
they are rebuilt from the batches, which must be read again anyway.

A read finds its first and last byte by the index and a walk over a few headers, then reads
everything between in one ``pread``. Records are never decoded here.

One file: appending, indexing and reading share the same few positions.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

from crc32c import crc32c

from oncelog.storage.disk.disk_errors import is_unreadable, read_small_file
from oncelog.storage.disk.file_system import FileHandle, FileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import INT64_MAX, NO_OFFSET, NO_TIMESTAMP, FilePart
from oncelog.storage.records.batch import PLACEMENT_BYTES, BatchHeader, Buffer
from oncelog.storage.records.layout import LENGTH_AT
from oncelog.storage.segments.aborted_index import TxnIndex
from oncelog.storage.segments.frames import (
    WALK_BYTES,
    BatchPlace,
    Gap,
    LogFile,
    begins_with_batch,
    sound_batches,
    state_batches,
    walk_batches,
)
from oncelog.storage.segments.indexes import OffsetIndex, SegmentIndexes, TimeIndex
from oncelog.storage.segments.inspection import TailDefect, find_damage
from oncelog.storage.segments.leader_epochs import LeaderEpochPairs
from oncelog.storage.segments.summary import SUMMARY_SUFFIX, SegmentSummary, epochs_within

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
INDEX_SUFFIXES: Final = (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    SUMMARY_SUFFIX,
)
"""The suffixes of the files beside a ``.log`` file."""

TIMESTAMP_MAX: Final = INT64_MAX
"""The largest timestamp of a segment where it is unknown: retention by time keeps the segment."""

_NOTHING: Final = INT64_MAX


class Segment:
    """One ``.log`` file and its indexes. ``next_offset`` is exclusive.

    For a sealed segment ``next_offset`` is the base offset of the next one. ``state_suffix`` is
    appended to the names of files that are not part of the log yet.
    """

    def __init__(
        self,
        *,
        filesystem: FileSystem,
        directory: Path,
        base_offset: int,
        next_offset: int,
        index_interval_bytes: int,
        state_suffix: str = "",
    ) -> None:
        self._filesystem = filesystem
        self._stem = directory / f"{base_offset:020d}"
        self._state_suffix = state_suffix
        self.log_path = self.path_of(LOG_SUFFIX)
        self.index_interval_bytes = index_interval_bytes
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.size_bytes = 0
        self.summary: SegmentSummary | None = None
        """The state of the files when they were sealed; None: only the ``.log`` is trusted."""
        self.txn_index = TxnIndex(filesystem, self.path_of(TXN_INDEX_SUFFIX))
        self._log: FileHandle | None = None
        self._indexes = SegmentIndexes(base_offset, index_interval_bytes)
        self.known_gaps: list[Gap] = []
        """Damage that reads have found since the file was opened."""
        self.sound_places: dict[int, int] = {}
        """Offset → position of batches that reads beyond damage have found."""
        # Bytes written through the open file are not checked again: their CRCs were checked before.
        self._own_from = _NOTHING
        self._is_closed = False

    # Opening and closing

    def create(self) -> None:
        """Make the empty file; its name is durable after the directory is synced."""
        path = self.path_of(LOG_SUFFIX)
        try:
            self._log = self._filesystem.open(path, create=True)
            self._log.truncate(0)
        except OSError:
            # Left there, it would look like the end of a segment that keeps growing.
            self.release()
            self._filesystem.remove(path)
            raise
        self._own_from = 0
        self._reset()

    def attach(self) -> None:
        """Use an existing file as it is; the indexes are read when they are needed."""
        self.size_bytes = self._filesystem.file_size(self.path_of(LOG_SUFFIX))

    def load_summary(self) -> None:
        """Read the summary of an attached file; ignore one that does not fit the log."""
        try:
            data = read_small_file(self._filesystem, self.path_of(SUMMARY_SUFFIX))
            summary = SegmentSummary.from_bytes(data)
        except (FileNotFoundError, CorruptDataError):
            return
        if summary.log_bytes == self.size_bytes:
            self.summary = summary
            self._indexes.record_time(summary.max_timestamp_ms, summary.max_timestamp_offset)

    def begin_scan(self) -> None:
        """Use an existing file whose batches the caller will check and ``account`` for anew."""
        self.attach()
        self.next_offset = self.base_offset
        self.summary = None
        self._reset()

    def end_scan(self, size_bytes: int, next_offset: int) -> None:
        """All batches up to ``size_bytes`` are accounted for; what follows them is cut off."""
        if size_bytes < self.size_bytes:
            self.log.truncate(size_bytes)
        self.size_bytes = size_bytes
        self.next_offset = next_offset

    def load_tail(self) -> None:
        """Use an existing, trusted file as the active segment: find its end and its times."""
        self.attach()
        offsets, times = self.indexes
        self.summary = None
        self._indexes.take_last_time(times)
        position = 0
        if offsets.last_entry is not None:
            position = offsets.last_entry[1]
        self._indexes.begin_tail(self.size_bytes - position)
        for place in self.walk(position):
            self.next_offset = place.last_offset + 1
            self._indexes.record_time(place.max_timestamp_ms, place.last_offset)
        for place in self.walk(0):
            self._indexes.first_timestamp_ms = place.max_timestamp_ms
            break

    def release(self) -> None:
        """Close the log file and drop the indexes; both come back on the next use."""
        if self._log is not None:
            self._log.close()
            self._log = None
            self._own_from = _NOTHING
        self._indexes.entries = None
        self.known_gaps = []
        self.sound_places = {}

    def close(self) -> None:
        """Close every file for good; nothing is synced."""
        self.release()
        self.txn_index.close()
        self._is_closed = True

    def remove(self) -> None:
        """Close and remove all files of the segment."""
        self.close()
        for path in self.paths:
            self._filesystem.remove(path)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of all files that the segment may have."""
        return tuple(self.path_of(suffix) for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES))

    def path_of(self, suffix: str) -> Path:
        """The path of one of the segment's files."""
        return self._stem.with_name(self._stem.name + suffix + self._state_suffix)

    @property
    def log(self) -> FileHandle:
        """The ``.log`` file, opened if need be."""
        if self._log is None:
            if self._is_closed:
                raise OSError(errno.EBADF, "the segment is closed")
            self._log = self._filesystem.open(self.path_of(LOG_SUFFIX), create=False)
        return self._log

    @property
    def open_log(self) -> FileHandle | None:
        """The ``.log`` file if it is open."""
        return self._log

    @property
    def index_bytes(self) -> int:
        """Memory that the indexes take now."""
        return self._indexes.memory_bytes

    @property
    def is_open(self) -> bool:
        """Whether the segment holds an open file or indexes in memory."""
        return self._log is not None or self._indexes.entries is not None

    # The indexes

    @property
    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both sparse indexes; missing or damaged files are rebuilt from the log."""
        if self._indexes.entries is None:
            self._indexes.entries = self._read_indexes() or self._rebuild_indexes()
        return self._indexes.entries

    @property
    def index_is_full(self) -> bool:
        """Whether the segment must roll because its index takes no further entry."""
        return (self._indexes.entries or self.indexes)[0].is_full

    def write_sealed(self, leader_epochs: LeaderEpochPairs) -> list[FileHandle]:
        """Write both index files and the summary; the caller syncs and closes them.

        The aborted index must be complete. ``leader_epochs``: those of the log; none if unknown.
        """
        offsets, times = self.indexes
        self._indexes.enter_last_time()
        index_data, time_data = offsets.to_bytes(), times.to_bytes()
        summary = SegmentSummary(
            next_offset=self.next_offset,
            log_bytes=self.size_bytes,
            max_timestamp_ms=self.max_timestamp_ms,
            max_timestamp_offset=self._indexes.count.max_timestamp_offset,
            index_crc32c=crc32c(index_data),
            timeindex_crc32c=crc32c(time_data),
            txnindex_crc32c=self.txn_index.crc32c,
            leader_epochs=epochs_within(leader_epochs, self.base_offset, self.next_offset),
        )
        handles = self._write_files(
            (OFFSET_INDEX_SUFFIX, index_data),
            (TIME_INDEX_SUFFIX, time_data),
            (SUMMARY_SUFFIX, summary.to_bytes()),
        )
        self.summary = summary
        return handles

    def _write_files(self, *files: tuple[str, bytes]) -> list[FileHandle]:
        handles: list[FileHandle] = []
        try:
            for suffix, data in files:
                handles.append(self._filesystem.open(self.path_of(suffix), create=True))
                handles[-1].truncate(0)
                handles[-1].append((data,))
        except OSError:
            for handle in handles:
                handle.close()
            raise
        return handles

    def _read_indexes(self) -> tuple[OffsetIndex, TimeIndex] | None:
        """Both files, if they are as they were when the segment was sealed."""
        if self.summary is None:
            return None
        try:
            index_data = read_small_file(self._filesystem, self.path_of(OFFSET_INDEX_SUFFIX))
            time_data = read_small_file(self._filesystem, self.path_of(TIME_INDEX_SUFFIX))
        except (FileNotFoundError, CorruptDataError):
            return None
        found = crc32c(index_data), crc32c(time_data)
        if found != (self.summary.index_crc32c, self.summary.timeindex_crc32c):
            return None
        offsets = OffsetIndex.from_bytes(self.base_offset, index_data)
        times = TimeIndex.from_bytes(self.base_offset, time_data)
        self._indexes.take_last_time(times)
        return offsets, times

    def _rebuild_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Rebuild both from the log; if damage ends the walk, the largest timestamp is unknown."""
        known = self._indexes.count
        self._reset()
        try:
            for place in self.walk(0):
                self._indexes.account(place)
        except (CorruptDataError, OSError) as error:
            if isinstance(error, OSError) and not is_unreadable(error):
                raise
            self._indexes.record_time(TIMESTAMP_MAX, self.base_offset)
        if self.summary is not None:
            self._indexes.set_last_time(known.max_timestamp_ms, known.max_timestamp_offset)
        assert self._indexes.entries is not None
        return self._indexes.entries

    def _reset(self) -> None:
        self._indexes.reset()
        self.known_gaps = []
        self.sound_places = {}

    @property
    def counting(self) -> SegmentIndexes:
        """For callers that count batches themselves, after ``create`` or ``begin_scan``."""
        return self._indexes

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp of all batches; -1 without any, or before ``load_times``."""
        return self._indexes.max_timestamp_ms

    @property
    def first_timestamp_ms(self) -> int:
        """The largest timestamp of the first batch; known only for a segment that takes appends."""
        return self._indexes.first_timestamp_ms

    # Writing

    def append(self, batch: Buffer, header: BatchHeader) -> FileHandle:
        """Write one batch with one system call; base offset and leader epoch come from ``header``.

        Returns the file, which is unsynced now. OSError: ``discard_partial_append`` or give up.
        """
        if self._own_from == _NOTHING:
            self._own_from = self.size_bytes
        log = self._log or self.log
        position = log.append((header.placement(), memoryview(batch)[PLACEMENT_BYTES:]))
        self.size_bytes = end = position + len(batch)
        base_offset = header.base_offset
        last_offset = base_offset + header.last_offset_delta
        self.next_offset = last_offset + 1
        self._indexes.account((position, end, base_offset, last_offset, header.max_timestamp_ms))
        return log

    def discard_partial_append(self) -> None:
        """Cut what a failed append may have left beyond the last whole batch."""
        self.log.truncate(self.size_bytes)

    def truncate_to_position(self, size_bytes: int, next_offset: int) -> None:
        """Cut the file to whole batches; the segment becomes active and ends at ``next_offset``."""
        self.log.truncate(size_bytes)
        self.size_bytes = size_bytes
        self.next_offset = next_offset
        self.summary = None
        self._filesystem.remove(self.path_of(SUMMARY_SUFFIX))
        self._rebuild_indexes()

    def position_after(self, offset: int) -> tuple[int, int]:
        """End and next offset of the last batch wholly below ``offset`` (exclusive)."""
        end, next_offset = 0, self.base_offset
        for place in self._walk_from(lambda index: index.lookup(offset - 1)):
            if place.last_offset >= offset:
                break
            end, next_offset = place.end, place.last_offset + 1
        return end, next_offset

    # Reading

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        upper_offset: int,
        is_checked: bool = False,
        part_min_bytes: int = INT64_MAX,
    ) -> tuple[bytes | FilePart, int]:
        """Whole batches from the one that holds ``offset``, and the offset after them.

        Only batches that end below ``upper_offset`` (exclusive): as many as fit into ``max_bytes``,
        at least one if there is any. If none: ``(b"", offset)``. ``is_checked``: verify CRCs also
        of what this process wrote. Of ``part_min_bytes`` or more it is only told where they are.
        CorruptDataError for any damage, even after sound batches.
        """
        start = self._find_start(offset)
        if start is None:
            if offset < self.next_offset:
                self._refuse(self.size_bytes, TailDefect.MISSING_RECORDS.value)
            return b"", offset
        end, next_offset = self._find_end(start, max_bytes=max_bytes, upper_offset=upper_offset)
        if end == start:
            if upper_offset >= self.next_offset:
                self._refuse(start, TailDefect.WRONG_OFFSET.value)
            return b"", offset
        is_part = end - start >= part_min_bytes
        is_checked |= start < self._own_from
        if is_part and not is_checked:
            return self._part(start, end, next_offset), next_offset
        data = self.log.read(start, end - start)
        if len(data) < end - start:
            self._refuse(start + len(data), "the file has become shorter")
        if is_checked:
            self._check_run(data, start, offset)
        return self._part(start, end, next_offset) if is_part else data, next_offset

    def _part(self, start: int, end: int, next_offset: int) -> FilePart:
        device, inode = self.log.identity()
        return FilePart(
            path=str(self.log_path),
            device=device,
            inode=inode,
            position=start,
            size_bytes=end - start,
            next_offset=next_offset,
        )

    def _check_run(self, data: bytes, start: int, offset: int) -> None:
        """Reject damage: check CRCs, and offsets against the batch that follows."""
        at, expected, defect = find_damage(data, lowest_offset=self.base_offset)
        if defect is not TailDefect.NONE:
            self._refuse(start + at, defect.value)
        end = start + at
        if end == self.size_bytes:
            # Compaction keeps the last batch of a segment, so none may be missing after it.
            is_right = expected == self.next_offset
        else:
            is_right = expected <= int.from_bytes(self.log.read(end, LENGTH_AT), "big", signed=True)
        if not (is_right and offset < expected):
            self._refuse(end, TailDefect.WRONG_OFFSET.value)

    def walk(self, position: int, head: bytes = b"") -> Iterator[BatchPlace]:
        """The places of all batches from the one at ``position``: see ``walk_batches``."""
        return walk_batches(self.log_file, position, head)

    def replay(
        self, from_offset: int, leader_epochs: LeaderEpochPairs = ()
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Header and bytes of each batch from the one that holds ``from_offset``, all checked.

        ``leader_epochs``: what is known of them.
        """
        return self._replay(
            from_offset,
            lambda start: sound_batches(
                self.log_file, start, self.base_offset, leader_epochs=leader_epochs
            ),
        )

    def replay_state(
        self,
        from_offset: int,
        leader_epochs: LeaderEpochPairs,
        *,
        is_checked: bool,
        history_end: int,
        settled: range,
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """As ``replay``, but only what a partition's state needs: see ``state_batches``."""
        return self._replay(
            from_offset,
            lambda start: state_batches(
                self.log_file,
                start,
                leader_epochs=leader_epochs,
                is_checked=is_checked,
                history_end=history_end,
                settled=settled,
            ),
        )

    def _replay(
        self,
        from_offset: int,
        batches_from: Callable[[int], Iterator[tuple[BatchHeader, memoryview]]],
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """What ``batches_from`` gives from the position of ``from_offset`` to the end.

        Rejects a file that has lost its last batches, or whose last batch claims too many offsets.
        Compaction keeps the last batch of a segment, so the segment must end with it.
        """
        if from_offset >= self.next_offset:
            return
        start = self._find_start(from_offset) if from_offset > self.base_offset else 0
        if start is None:
            self._refuse(self.size_bytes, TailDefect.MISSING_RECORDS.value)
        next_offset = self.base_offset
        for header, frame in batches_from(start):
            next_offset = header.next_offset
            yield header, frame
        if next_offset < self.next_offset:
            self._refuse(self.size_bytes, TailDefect.MISSING_RECORDS.value)
        if next_offset > self.next_offset:
            self._refuse(self.size_bytes, TailDefect.WRONG_OFFSET.value)

    def offset_before(self, offset: int, bytes_max: int) -> int | None:
        """The last indexed offset that is ``bytes_max`` or more before ``offset``; None if none."""
        index = self.indexes[0]
        entry = index.lookup(offset) if offset < self.next_offset else None
        end = self.size_bytes if entry is None else entry[1]
        found = index.lookup_end(limit_position=end - bytes_max, upper_offset=offset)
        return None if found is None else found[0]

    def read_batch(self, place: BatchPlace) -> bytes:
        """The bytes of one batch."""
        return self.log.read(place.position, place.end - place.position)

    def load_times(self) -> None:
        """Make ``max_timestamp_ms`` known; for a sealed segment it is in its time index."""
        if self.max_timestamp_ms == NO_TIMESTAMP:
            _ = self.indexes

    def places_from_timestamp(self, timestamp_ms: int) -> Iterator[BatchPlace]:
        """Batches from one before which every timestamp is below ``timestamp_ms``."""
        times = self.indexes[1]
        if self.max_timestamp_ms >= timestamp_ms:
            below = times.offset_before(timestamp_ms)
            yield from self._walk_from(lambda index: index.lookup(below))

    def _walk_from(
        self, find: Callable[[OffsetIndex], tuple[int, int] | None], *, lowest: int = 0
    ) -> Iterator[BatchPlace]:
        """Walk from what ``find`` finds, or from ``lowest``.

        ``lowest`` is the position of a batch; an entry before it is ignored. CorruptDataError if
        the log has no such batch where the index says.
        """
        entry, head = find(self.indexes[0]), b""
        if entry is not None and entry[1] > lowest:
            head = self.log.read(entry[1], WALK_BYTES)
            if not begins_with_batch(head, entry[0]):
                # The index is intact, so the log is not. A new index would end here.
                self._refuse(entry[1], TailDefect.BAD_HEADER.value)
        return self.walk(max(entry[1], lowest) if entry is not None else lowest, head)

    def _find_start(self, offset: int) -> int | None:
        """The position of the first batch that ends at ``offset`` or later."""
        before: BatchPlace | None = None
        found: int | None = None
        for place in self._walk_from(lambda index: index.lookup(offset)):
            if place.last_offset >= offset:
                found = place.position
                if place.base_offset <= offset:
                    return found
                break
            before = place
        # Compaction leaves gaps, and so does a damaged header that claims too few offsets.
        if before is not None:
            self._check_run(self.read_batch(before), before.position, before.base_offset)
        return found

    def _find_end(self, start: int, *, max_bytes: int, upper_offset: int) -> tuple[int, int]:
        """End of the last batch that may be read from ``start``, and the offset after it."""
        limit = start + max_bytes
        if upper_offset >= self.next_offset and self.size_bytes <= limit:
            return self.size_bytes, self.next_offset
        # All batches before an indexed one that begins by the limit fit, so the walk begins there.
        end, next_offset = start, NO_OFFSET
        for place in self._walk_from(
            lambda index: index.lookup_end(limit_position=limit, upper_offset=upper_offset),
            lowest=start,
        ):
            if place.last_offset >= upper_offset or (place.end > limit and place.position > start):
                # The batch that the index named may itself be too large: end before it.
                if next_offset == NO_OFFSET:
                    end, next_offset = place.position, place.base_offset
                break
            end, next_offset = place.end, place.last_offset + 1
        return end, next_offset

    @property
    def log_file(self) -> LogFile:
        """The ``.log`` file, for walks over it."""
        return LogFile(self.log, self.log_path, self.base_offset, self.size_bytes)

    def _refuse(self, position: int, reason: str) -> NoReturn:
        self.log_file.refuse(position, reason)
