"""Compaction of one log: keep the latest record of each key, honouring what transactions decided.

A round reads keys from the first dirty offset on, as many as its map holds, skipping aborted
records; then it reads the log again from its start and writes smaller segments; each is swapped in
as soon as it is durable. A crash at any point leaves a log that reads the same. Only sealed
segments below ``upper_offset``, the last stable offset, are considered: there every transaction is
decided. Offsets and sequences never change, and a replay gives the same producers as before.

A round is an iterator of small steps, so its owner decides where they run: ``Cleaner.clean``
runs them in place; a server runs each in a background thread and rests in between. The owner of
the log makes the changes to its state, in ``Cleaner.begin`` and for each
``Replacement`` that the steps yield.

Source: KIP-58 for the lag, KIP-98 for transactions, KIP-534 for the delete horizon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from oncelog.storage.compaction.filter import KEYS_PER_ROUND_MAX
from oncelog.storage.compaction.round import CleaningRound
from oncelog.storage.log.partition import PartitionLog
from oncelog.storage.log.sealed import Replacement
from oncelog.storage.log.side_files import read_first_dirty_offset
from oncelog.storage.model import NO_TIMESTAMP, ProducerSnapshotEntry
from oncelog.storage.segments.segment import Segment

DELETE_RETENTION_MS: Final = 86_400_000
"""How long a reader has to read a tombstone or marker once what it refers to is gone."""

LAG_MAX_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When a log is compacted and how long tombstones and markers outlive their meaning.

    A log is due when more than ``min_dirty_ratio`` of the bytes that may be compacted never
    were, or the oldest of those is older than ``max_lag_ms``. Records younger than
    ``min_lag_ms`` are left alone.
    """

    min_dirty_ratio: float = 0.5
    delete_retention_ms: int = DELETE_RETENTION_MS
    min_lag_ms: int = 0
    max_lag_ms: int = LAG_MAX_MS
    keys_max: int = KEYS_PER_ROUND_MAX

    def __post_init__(self) -> None:
        if not 0 <= self.min_dirty_ratio <= 1:
            raise ValueError(f"min_dirty_ratio={self.min_dirty_ratio}: allowed are 0 to 1")
        if self.delete_retention_ms < 0 or self.min_lag_ms < 0 or self.keys_max < 1:
            raise ValueError("times must not be negative, and a round needs one key at least")
        if self.max_lag_ms < self.min_lag_ms:
            raise ValueError(f"max_lag_ms={self.max_lag_ms} is below min_lag_ms={self.min_lag_ms}")


@dataclass(slots=True, kw_only=True)
class CleanResult:
    """What a compaction did; ``bytes_read`` counts a byte each time it was read."""

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
    """Compacts one log. Everything here is for the owner of the log, on its loop."""

    log: PartitionLog
    settings: CompactionSettings = field(default_factory=CompactionSettings)

    @property
    def first_dirty_offset(self) -> int:
        """Records from here on were never compacted; survives a restart.

        The log start if the checkpoint does not fit the log.
        """
        body = self.log.body
        stored = read_first_dirty_offset(body.filesystem, body.directory)
        if stored is None or not body.base_offset <= stored <= self.log.log_end_offset:
            return body.base_offset
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
        if self.settings.max_lag_ms == LAG_MAX_MS:
            return False
        for segment in self._dirty(self._cleanable(upper_offset, now_ms)):
            oldest_ms = self.log.body.oldest_timestamp_ms(segment)
            return oldest_ms != NO_TIMESTAMP and now_ms - oldest_ms > self.settings.max_lag_ms
        return False

    def clean(
        self, *, upper_offset: int, now_ms: int, producers: Iterable[ProducerSnapshotEntry]
    ) -> CleanResult:
        """Compact what may be compacted below ``upper_offset`` (exclusive), due or not.

        ``producers`` are those live at the log end. CorruptDataError names the damage;
        OSError: the disk. After either the log is as it was, or offline if it says so.
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
        body = self.log.body
        segments = self._cleanable(upper_offset, now_ms)
        end = segments[-1].next_offset if segments else body.base_offset
        body.drop_open_snapshots(end)
        return CleaningRound(
            filesystem=body.filesystem,
            directory=body.directory,
            segments=segments,
            first_dirty_offset=self.first_dirty_offset,
            aborted=body.aborted_entries(end),
            producers=tuple(producers),
            segment_bytes=self.log.settings.segment_bytes,
            keys_max=self.settings.keys_max,
            delete_retention_ms=self.settings.delete_retention_ms,
            now_ms=now_ms,
        )

    def install(self, cleaning: CleaningRound, replacement: Replacement) -> None:
        """Swap a cleaned segment in before the next step; a changed log ends the round."""
        cleaning.settle(self.log.body.replace_segments(replacement))

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
        body = self.log.body
        segments = body.sealed_below(min(upper_offset, self.log.recovery_point))
        if self.settings.min_lag_ms == 0:
            return segments
        body.load_times()
        young = (
            slot
            for slot, segment in enumerate(segments)
            if segment.max_timestamp_ms > now_ms - self.settings.min_lag_ms
        )
        return segments[: next(young, len(segments))]

    def _dirty(self, segments: Sequence[Segment]) -> Iterator[Segment]:
        first_dirty_offset = self.first_dirty_offset
        return (segment for segment in segments if segment.next_offset > first_dirty_offset)
