"""The segments of one log in offset order, and which of the sealed ones are kept open."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.disk.sync_point import SyncLedger
from oncelog.storage.log_settings import SegmentFacts
from oncelog.storage.model import NO_TIMESTAMP, FilePart
from oncelog.storage.segments.leader_epochs import LeaderEpochPairs
from oncelog.storage.segments.segment import Segment

_OPEN_SEALED_MAX: Final = 256
_INDEX_BYTES_MAX: Final = 67_108_864


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Whole batches as they are on disk, and the offset after the last of them (exclusive).

    If ``file_part`` is set it says where they are, and ``records`` is empty.
    """

    records: bytes
    next_offset: int
    file_part: FilePart | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes of the batches."""
        return len(self.records) if self.file_part is None else self.file_part.size_bytes


class SegmentList:
    """At least one segment; the last is the active one.

    Up to ``open_sealed_max`` sealed segments stay open, so that random reads of a long log need not
    open files. Their indexes, except those of the one in use, take at most ``index_bytes_max``.
    Segments that are not durable yet always stay open: closing could lose the report of a failed
    write.
    """

    __slots__ = (
        "_bases",
        "_index_bytes_max",
        "_ledger",
        "_open_sealed_max",
        "_recent",
        "_segments",
        "active",
    )

    def __init__(
        self,
        segments: list[Segment],
        ledger: SyncLedger,
        *,
        open_sealed_max: int = _OPEN_SEALED_MAX,
        index_bytes_max: int = _INDEX_BYTES_MAX,
    ) -> None:
        self._open_sealed_max = open_sealed_max
        self._index_bytes_max = index_bytes_max
        self._segments = segments
        self.active = segments[-1]
        """The segment that takes appends; an attribute for speed, since each append needs it."""
        self._bases = [segment.base_offset for segment in segments]
        self._ledger = ledger
        self._recent: OrderedDict[int, Segment] = OrderedDict(
            (segment.base_offset, segment) for segment in segments[:-1] if segment.is_open
        )

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def first(self) -> Segment:
        """The oldest segment."""
        return self._segments[0]

    @property
    def bases(self) -> frozenset[int]:
        """The base offsets of all segments."""
        return frozenset(self._bases)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size_bytes for segment in self._segments)

    def holding(self, offset: int) -> Segment:
        """The segment in whose range ``offset`` lies; the first one for all below it."""
        return self._segments[self._slot_of(offset)]

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """``holding(offset)`` and those after it, as they are now. They need not be open."""
        yield from self._segments[self._slot_of(offset) :]

    def opened_from(self, offset: int) -> Iterator[Segment]:
        """Like ``from_offset``, but each is open when it is yielded, and stays open for a while.

        Lazy: most callers need only the first.
        """
        first = self.holding(offset)
        self._keep_open(first)
        yield first
        for segment in self.from_offset(offset):
            if segment.base_offset > first.base_offset:
                self._keep_open(segment)
                yield segment

    def offset_before(self, offset: int, bytes_max: int) -> int:
        """An offset whose batch begins about ``bytes_max`` before the one that holds ``offset``.

        Accurate to the index interval; the log's first offset if there are fewer bytes.
        """
        left = bytes_max
        while offset > self.first.base_offset:
            segment = self.holding(offset - 1)
            self._keep_open(segment)
            begin = segment.offset_before(offset, left)
            if begin is not None:
                return begin
            left -= segment.size_bytes
            offset = segment.base_offset
        return offset

    def facts(self) -> Iterator[SegmentFacts]:
        """The facts that retention needs, oldest first; without an empty active segment."""
        for segment in list(self._segments):
            if segment is self.active and segment.size_bytes == 0:
                return
            if segment.max_timestamp_ms == NO_TIMESTAMP:
                self._keep_open(segment)
                segment.load_times()
            yield SegmentFacts(
                next_offset=segment.next_offset,
                size_bytes=segment.size_bytes,
                max_timestamp_ms=segment.max_timestamp_ms,
            )

    def base_offset_at(self, slot: int) -> int:
        """Base offset of the segment at ``slot``; after the last one, the log end offset."""
        return self._bases[slot] if slot < len(self._bases) else self.active.next_offset

    def roll(
        self,
        filesystem: FileSystem,
        directory: Path,
        index_interval_bytes: int,
        leader_epochs: LeaderEpochPairs,
    ) -> None:
        """Seal the active segment and begin the next; durable with the next sync point.

        OSError: the active segment is still the active one.
        """
        sealed = self.active
        segment = Segment(
            filesystem=filesystem,
            directory=directory,
            base_offset=sealed.next_offset,
            next_offset=sealed.next_offset,
            index_interval_bytes=index_interval_bytes,
        )
        for handle in sealed.write_sealed(leader_epochs):
            self._ledger.mark_written(handle, close_when_synced=True)
        aborted_file = sealed.txn_index.hand_over()
        if aborted_file is not None:
            self._ledger.mark_written(aborted_file, close_when_synced=True)
        segment.create()
        self._ledger.mark_written(segment.log)
        self._ledger.mark_directory_changed()
        self.add(segment)

    def add(self, segment: Segment) -> None:
        """Make ``segment`` the active one."""
        sealed = self.active
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment
        self._keep_open(sealed)

    def cut(self, offset: int, end: int, next_offset: int) -> None:
        """End the log at byte ``end`` of the segment that holds ``offset``, which becomes active.

        ``next_offset`` (exclusive) is the new log end. Durable with the next sync point.
        """
        slot = self._slot_of(offset)
        for later in reversed(self._segments[slot + 1 :]):
            self._forget(later)
            later.remove()
        del self._segments[slot + 1 :], self._bases[slot + 1 :]
        active = self.active = self._segments[-1]
        self._recent.pop(active.base_offset, None)
        active.truncate_to_position(end, next_offset)
        self._ledger.mark_written(active.log)
        self._ledger.mark_directory_changed()
        handle = active.txn_index.truncate_to(next_offset)
        if handle is not None:
            self._ledger.mark_written(handle)

    def restart(
        self, filesystem: FileSystem, directory: Path, index_interval_bytes: int, offset: int
    ) -> None:
        """Drop every segment, whose files are gone, for an empty one at ``offset``; durable."""
        segment = Segment(
            filesystem=filesystem,
            directory=directory,
            base_offset=offset,
            next_offset=offset,
            index_interval_bytes=index_interval_bytes,
        )
        segment.create()
        filesystem.sync_directory(directory)
        for dropped in self._segments:
            self._forget(dropped)
            dropped.close()
        self._segments[:], self._bases[:] = [segment], [segment.base_offset]
        self.active = segment

    def take_below(self, offset: int) -> list[Segment]:
        """Close and drop the sealed segments that end at or below ``offset``; oldest first."""
        count = 0
        while self._segments[count] is not self.active and self._bases[count + 1] <= offset:
            count += 1
        taken = self._segments[:count]
        for segment in taken:
            self._forget(segment)
            segment.close()
        del self._segments[:count], self._bases[:count]
        return taken

    def holds(self, segments: Sequence[Segment]) -> bool:
        """Whether exactly these are sealed segments of the log, one after the other."""
        slot = self._slot_of(segments[0].base_offset)
        found = self._segments[slot : slot + len(segments)]
        return len(found) == len(segments) and all(
            known is segment and known is not self.active
            for known, segment in zip(found, segments, strict=True)
        )

    def replace(self, segments: Sequence[Segment], cleaned: Segment) -> None:
        """Put ``cleaned`` in the place of ``segments``, which the log ``holds``; they are closed.

        It has their offsets: the first one's base offset and the last one's next offset.
        """
        slot = self._slot_of(cleaned.base_offset)
        for segment in segments:
            self._forget(segment)
            segment.close()
        self._segments[slot : slot + len(segments)] = [cleaned]
        self._bases[slot : slot + len(segments)] = [cleaned.base_offset]

    def _forget(self, segment: Segment) -> None:
        for file in (segment.open_log, segment.txn_index.handle):
            if file is not None:
                self._ledger.forget(file)
        self._recent.pop(segment.base_offset, None)

    def close(self) -> None:
        """Close every file; nothing is synced."""
        for segment in self._segments:
            segment.close()

    def _slot_of(self, offset: int) -> int:
        return max(bisect_right(self._bases, offset) - 1, 0)

    def _keep_open(self, segment: Segment) -> None:
        if segment is self._segments[-1]:
            return
        recent = self._recent
        is_known = segment.base_offset in recent
        recent[segment.base_offset] = segment
        recent.move_to_end(segment.base_offset)
        if is_known and len(recent) <= self._open_sealed_max:
            return
        excess = len(recent) - self._open_sealed_max
        index_bytes = sum(other.index_bytes for other in recent.values())
        if index_bytes > self._index_bytes_max:
            for count, other in enumerate(recent.values(), 1):
                index_bytes -= other.index_bytes
                if index_bytes <= self._index_bytes_max:
                    excess = max(excess, count)
                    break
        if excess > 0:
            self._release_oldest(excess, keep=segment)

    def _release_oldest(self, count: int, *, keep: Segment) -> None:
        for other in list(self._recent.values()):
            log = other.open_log
            if count > 0 and other is not keep and (log is None or not self._ledger.holds(log)):
                other.release()
                del self._recent[other.base_offset]
                count -= 1
