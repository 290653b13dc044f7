"""Compact one log: keep the latest record of each key, and no record of an aborted transaction.

A round first reads keys from the first dirty offset on, as many as its map holds, skipping aborted
records. Then it reads the log from its start and writes smaller segments. Each is swapped in as
soon as it is durable. A crash at any point leaves a log that reads the same. Only sealed segments
below ``upper_offset``, the last stable offset, are compacted: below it every transaction is
decided. Offsets and sequences never change, and a replay gives the same producer state as before.

A round is an iterator of small steps, and the caller decides where they run. ``Cleaner.clean`` runs
them in place; a server runs each in a background thread and pauses in between. Only the owner of
the log changes its state: in ``Cleaner.begin``, and for each ``Replacement`` that a step yields.

Source: KIP-58 for the lag, KIP-98 for transactions, KIP-534 for the delete horizon.

One file: the steps of one round, and what the owner of the log does before and after each.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from oncelog.storage.compaction.filter import (
    KEYS_PER_ROUND_MAX,
    BatchFilter,
    CleanedTransactions,
    FilterCounts,
    KeyOffsets,
    ProducerTails,
    record_spans,
)
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.log.partition import PartitionLog
from oncelog.storage.log.sealed_segments import RemovedFiles, Replacement
from oncelog.storage.log.side_files import read_first_dirty_offset, write_first_dirty_offset
from oncelog.storage.model import INT64_MAX, NO_TIMESTAMP, ProducerSnapshotEntry
from oncelog.storage.records.batch import BatchHeader, Buffer, parse_header
from oncelog.storage.records.block import open_block
from oncelog.storage.records.control import decode_control
from oncelog.storage.segments.aborted_index import AbortedIndexEntry
from oncelog.storage.segments.frames import BatchPlace
from oncelog.storage.segments.indexes import RELATIVE_OFFSET_MAX
from oncelog.storage.segments.leader_epochs import LeaderEpochPairs
from oncelog.storage.segments.segment import Segment
from oncelog.storage.segments.swap import CLEANED_SUFFIX, discard_swap, prepare_swap

DELETE_RETENTION_MS: Final = 86_400_000
"""How long tombstones and markers stay readable after what they refer to is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When a log is compacted and how long tombstones and markers outlive their meaning.

    A log is due when the dirty share of the bytes that may be compacted exceeds
    ``min_dirty_ratio``, or when the oldest dirty record is older than ``max_lag_ms``. Records
    younger than ``min_lag_ms`` are not compacted.
    """

    min_dirty_ratio: float = 0.5
    delete_retention_ms: int = DELETE_RETENTION_MS
    min_lag_ms: int = 0
    max_lag_ms: int = INT64_MAX
    keys_max: int = KEYS_PER_ROUND_MAX

    def __post_init__(self) -> None:
        if not 0 <= self.min_dirty_ratio <= 1:
            raise ValueError(f"min_dirty_ratio={self.min_dirty_ratio}: give 0 to 1")
        if self.delete_retention_ms < 0 or self.min_lag_ms < 0 or self.keys_max < 1:
            raise ValueError("times must not be negative, and a round needs at least one key")
        if self.max_lag_ms < self.min_lag_ms:
            raise ValueError(f"max_lag_ms={self.max_lag_ms} is below min_lag_ms={self.min_lag_ms}")


@dataclass(slots=True, kw_only=True)
class CleanResult:
    """What a compaction did; ``bytes_read`` counts every read, also of the same bytes."""

    first_dirty_offset: int
    round_count: int = 0
    bytes_read: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_removed: int = 0
    segments_replaced: int = 0
    is_complete: bool = True


@dataclass(slots=True)
class Cleaner:
    """Compacts one log. Call its methods only on the event loop that owns the log."""

    log: PartitionLog
    settings: CompactionSettings = field(default_factory=CompactionSettings)

    @property
    def first_dirty_offset(self) -> int:
        """The first offset that was never compacted; survives a restart.

        The log start if the checkpoint does not fit the log.
        """
        view = self.log.compaction_view
        stored = read_first_dirty_offset(view.filesystem, view.directory)
        if stored is None or not view.base_offset <= stored <= self.log.log_end_offset:
            return view.base_offset
        return stored

    def dirty_ratio(self, *, upper_offset: int, now_ms: int) -> float:
        """The dirty share of the bytes that may be compacted now; 0 if there are none."""
        segments = self._cleanable(upper_offset, now_ms)
        total_bytes = sum(segment.size_bytes for segment in segments)
        dirty_bytes = sum(segment.size_bytes for segment in self._dirty(segments))
        return dirty_bytes / total_bytes if total_bytes else 0.0

    def is_due(self, *, upper_offset: int, now_ms: int) -> bool:
        """Whether the log should be compacted now."""
        if (
            self.dirty_ratio(upper_offset=upper_offset, now_ms=now_ms)
            > self.settings.min_dirty_ratio
        ):
            return True
        if self.settings.max_lag_ms == INT64_MAX:
            return False
        for segment in self._dirty(self._cleanable(upper_offset, now_ms)):
            oldest_ms = self.log.compaction_view.oldest_timestamp_ms(segment)
            return oldest_ms != NO_TIMESTAMP and now_ms - oldest_ms > self.settings.max_lag_ms
        return False

    def clean(
        self, *, upper_offset: int, now_ms: int, producers: Iterable[ProducerSnapshotEntry]
    ) -> CleanResult:
        """Compact all that may be compacted below ``upper_offset`` (exclusive), due or not.

        ``producers`` are those live at the log end. CorruptDataError names the damage; OSError: the
        disk. After either the log is unchanged, or offline if ``failure`` is set.
        """
        result = CleanResult(first_dirty_offset=self.first_dirty_offset)
        producers = tuple(producers)
        while True:
            cleaning = self.begin(upper_offset=upper_offset, now_ms=now_ms, producers=producers)
            for step in cleaning.steps():
                if isinstance(step, Replacement):
                    self.install(cleaning, step)
            self.account(result, cleaning)
            if cleaning.is_last:
                return result

    def begin(
        self, *, upper_offset: int, now_ms: int, producers: Iterable[ProducerSnapshotEntry]
    ) -> CleaningRound:
        """Prepare one round over what may be compacted now."""
        view = self.log.compaction_view
        segments = self._cleanable(upper_offset, now_ms)
        end = segments[-1].next_offset if segments else view.base_offset
        view.drop_open_snapshots(end)
        return CleaningRound(
            filesystem=view.filesystem,
            directory=view.directory,
            segments=segments,
            first_dirty_offset=self.first_dirty_offset,
            aborted=view.aborted_entries(end),
            producers=tuple(producers),
            segment_bytes=self.log.settings.segment_bytes,
            keys_max=self.settings.keys_max,
            delete_retention_ms=self.settings.delete_retention_ms,
            now_ms=now_ms,
        )

    def install(self, cleaning: CleaningRound, replacement: Replacement) -> None:
        """Swap a cleaned segment in before the next step; a changed log ends the round."""
        cleaning.on_replaced(self.log.compaction_view.replace_segments(replacement))

    @staticmethod
    def account(result: CleanResult, cleaning: CleaningRound) -> None:
        """Add a finished round to ``result``."""
        counts = cleaning.counts
        result.first_dirty_offset = cleaning.cleaned_to
        result.round_count += 1
        result.bytes_read += cleaning.bytes_read
        result.records_removed += counts.records_removed
        result.segments_replaced += cleaning.segments_replaced
        if result.round_count == 1:
            result.bytes_before = cleaning.bytes_before
        result.bytes_after = cleaning.bytes_after
        result.is_complete = not cleaning.is_stale

    def _cleanable(self, upper_offset: int, now_ms: int) -> Sequence[Segment]:
        """The sealed, durable segments whose records are decided and old enough, oldest first."""
        view = self.log.compaction_view
        segments = view.sealed_below(min(upper_offset, self.log.recovery_point))
        if self.settings.min_lag_ms == 0:
            return segments
        view.load_times()
        young = (
            slot
            for slot, segment in enumerate(segments)
            if segment.max_timestamp_ms > now_ms - self.settings.min_lag_ms
        )
        return segments[: next(young, len(segments))]

    def _dirty(self, segments: Sequence[Segment]) -> Iterator[Segment]:
        first_dirty_offset = self.first_dirty_offset
        return (segment for segment in segments if segment.next_offset > first_dirty_offset)


# --- one round ----------------------------------------------------------------------------------
# It reads keys and writes smaller segments, in small steps. These run in any thread, one at a time.
# They open files for themselves and write files that are not yet part of the log; they neither read
# nor change the log's state. A step is a number of bytes read, after which to rest, or a
# ``Replacement`` for the owner of the log to swap in before the next step.


STEP_BYTES: Final = 262_144
"""Bytes that one step reads: about 10 ms of work for small records."""

Step: TypeAlias = int | Replacement
Steps: TypeAlias = Generator[Step, None, None]


class CleaningRound:
    """One round; created by ``Cleaner.begin``, run by iterating over ``steps``."""

    def __init__(
        self,
        *,
        filesystem: FileSystem,
        directory: Path,
        segments: Sequence[Segment],
        first_dirty_offset: int,
        aborted: tuple[AbortedIndexEntry, ...],
        producers: tuple[ProducerSnapshotEntry, ...],
        segment_bytes: int,
        keys_max: int,
        delete_retention_ms: int,
        now_ms: int,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._segments = segments
        self._first_dirty_offset = first_dirty_offset
        self._aborted = aborted
        self._producers = producers
        self._segment_bytes = segment_bytes
        self._keys_max = keys_max
        self._delete_retention_ms = delete_retention_ms
        self._now_ms = now_ms
        self._unpaid_bytes = 0
        self._removed: RemovedFiles | None = None
        self.is_stale = False
        self.cleaned_to = first_dirty_offset
        self.counts = FilterCounts()
        self.bytes_read = 0
        self.bytes_before = sum(segment.size_bytes for segment in segments)
        self.bytes_after = self.bytes_before
        self.segments_replaced = 0

    @property
    def is_last(self) -> bool:
        """Whether no dirty records are left for another round, or none is allowed."""
        return self.is_stale or not self._segments or self.cleaned_to >= self._end

    @property
    def _end(self) -> int:
        return self._segments[-1].next_offset

    def on_replaced(self, removed: RemovedFiles | None) -> None:
        """Take the fate of the last replacement: files to remove, or None if it was refused."""
        self._removed = removed
        self.is_stale = removed is None

    def steps(self) -> Steps:
        """Run the round. CorruptDataError or OSError: what was not swapped in is discarded."""
        if not self._segments:
            return
        if read_first_dirty_offset(self._filesystem, self._directory) is None:
            write_first_dirty_offset(self._filesystem, self._directory, self._first_dirty_offset)
        tails = ProducerTails(
            data={
                entry.producer_id: entry.last_offset
                for entry in self._producers
                if entry.last_offset >= 0
            },
            markers=(yield from self._newest_markers()),
        )
        keys = KeyOffsets(self._keys_max)
        keys_end = yield from self._read_keys(keys)
        yield from self._rewrite(
            BatchFilter(
                keys=keys,
                keys_end=keys_end,
                transactions=CleanedTransactions(self._aborted),
                tails=tails,
                now_ms=self._now_ms,
                delete_retention_ms=self._delete_retention_ms,
                counts=self.counts,
            )
        )
        if not self.is_stale and keys_end > self._first_dirty_offset:
            write_first_dirty_offset(self._filesystem, self._directory, keys_end)
        if not self.is_stale:
            self.cleaned_to = max(keys_end, self._first_dirty_offset)

    # Reading

    def _newest_markers(self) -> Generator[Step, None, dict[int, int]]:
        """Last offset of the newest marker that is not empty, by live producer id."""
        live = {entry.producer_id for entry in self._producers}
        newest: dict[int, int] = {}
        for segment in self._segments if live else ():
            with _SegmentReader(self._filesystem, self._directory, segment) as reader:
                for header, _ in reader.replay(segment.base_offset):
                    if header.is_control and header.record_count and header.producer_id in live:
                        newest[header.producer_id] = header.last_offset
                    yield from self._charge(header)
        return newest

    def _read_keys(self, keys: KeyOffsets) -> Generator[Step, None, int]:
        """Fill ``keys`` from the first dirty offset on; return the offset (exclusive) reached."""
        start = self._first_dirty_offset
        transactions = CleanedTransactions(
            entry for entry in self._aborted if entry.last_offset >= start
        )
        for segment in self._segments:
            if segment.next_offset <= start:
                continue
            with _SegmentReader(self._filesystem, self._directory, segment) as reader:
                for header, frame in reader.replay(start):
                    yield from self._charge(header)
                    if header.is_control:
                        transactions.observe_control(header, decode_control(frame, header))
                    elif not transactions.observe_data(header) and header.record_count:
                        if not keys.has_room_for(header.record_count):
                            return header.base_offset
                        _record_keys(keys, header, frame)
        return self._end

    # Writing

    def _rewrite(self, batches: BatchFilter) -> Steps:
        """Rewrite the segments up to the last key read, yielding each one to be swapped in."""
        for group in self._groups(batches.keys_end):
            yield from self._rewrite_group(group, batches)
            if self.is_stale:
                return
            if self._removed is not None:
                self._removed.run()
                self._removed = None

    def _groups(self, keys_end: int) -> Iterator[list[Segment]]:
        """Groups of adjacent segments that fit into one segment."""
        group: list[Segment] = []
        size_bytes = 0
        for segment in self._segments:
            if segment.base_offset >= keys_end:
                break
            is_fitting = (
                size_bytes + segment.size_bytes <= self._segment_bytes
                and bool(group)
                and segment.next_offset - group[0].base_offset <= RELATIVE_OFFSET_MAX
            )
            if group and not is_fitting:
                yield group
                group, size_bytes = [], 0
            group.append(segment)
            size_bytes += segment.size_bytes
        if group:
            yield group

    def _rewrite_group(self, group: list[Segment], batches: BatchFilter) -> Steps:
        first = group[0]
        cleaned = CleanedSegment(
            self._filesystem, self._directory, first.base_offset, first.index_interval_bytes
        )
        replaced_bytes = sum(segment.size_bytes for segment in group)
        is_prepared = False
        try:
            is_changed = yield from self._copy(group, batches, cleaned)
            aborted = batches.transactions.take_needed()
            if is_changed:
                cleaned.seal(aborted, _epochs_of(group))
                is_prepared = True
        finally:
            if not is_prepared:
                cleaned.discard()
        if not is_changed:
            return
        # If the swap fails halfway its files must stay: the next open finishes it.
        yield Replacement(replaced=tuple(group), replaced_bytes=replaced_bytes)
        if self.is_stale:
            cleaned.discard()
            return
        self.segments_replaced += len(group)
        self.bytes_after += cleaned.size_bytes - replaced_bytes

    def _copy(
        self, group: list[Segment], batches: BatchFilter, cleaned: CleanedSegment
    ) -> Generator[Step, None, bool]:
        """Filter all batches of ``group`` into ``cleaned``; return whether anything changed."""
        is_changed = len(group) > 1
        for segment in group:
            position = 0
            with _SegmentReader(self._filesystem, self._directory, segment) as reader:
                for header, frame in reader.replay(segment.base_offset):
                    position += header.size_bytes
                    ends_segment = segment is group[-1] and position == segment.size_bytes
                    kept = batches.apply(frame, header, ends_segment=ends_segment)
                    is_changed |= kept is not frame
                    if kept is not None:
                        cleaned.append(kept)
                    yield from self._charge(header)
        return is_changed

    def _charge(self, header: BatchHeader) -> Steps:
        self.bytes_read += header.size_bytes
        self._unpaid_bytes += header.size_bytes
        if self._unpaid_bytes >= STEP_BYTES:
            unpaid_bytes, self._unpaid_bytes = self._unpaid_bytes, 0
            yield unpaid_bytes


class _SegmentReader(Segment):
    """A segment read through its own file handle, not the log's."""

    def __init__(self, filesystem: FileSystem, directory: Path, segment: Segment) -> None:
        super().__init__(
            filesystem=filesystem,
            directory=directory,
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            index_interval_bytes=segment.index_interval_bytes,
        )

    def __enter__(self) -> _SegmentReader:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _epochs_of(group: list[Segment]) -> list[tuple[int, int]]:
    """The leader epochs of consecutive segments; empty if any segment does not know its own."""
    if not all(segment.summary and segment.summary.leader_epochs for segment in group):
        return []
    pairs = {pair for each in group if each.summary for pair in each.summary.leader_epochs}
    return sorted(pairs)


def _record_keys(keys: KeyOffsets, header: BatchHeader, frame: memoryview) -> None:
    block = bytes(open_block(frame, header))
    base_offset = header.base_offset
    for span in record_spans(block, header):
        if span.key is not None:
            keys.put(span.key, base_offset + span.offset_delta)


# --- the segment that a round writes ------------------------------------------------------------


_WRITE_BYTES: Final = 262_144
"""Size of one write: batches are gathered, since most batches of an internal log are small."""

_SYNC_BYTES: Final = 4_194_304
"""Sync after this many bytes, so that no single sync blocks other users of the disk for long."""


class CleanedSegment:
    """A segment being written beside the log, to be sealed or discarded.

    Its files are the ``.cleaned`` ones, until they are durable and can be swapped.
    """

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
        """Close and remove the files, unless they have been committed."""
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
