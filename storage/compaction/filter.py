"""What compaction turns a batch into: itself, a smaller batch, an empty one or nothing.

| batch | becomes |
|---|---|
| data, nothing superseded | itself |
| data, some records stay | a smaller batch |
| data, aborted or nothing stays | nothing |
| a tombstone stays for the first time | the batch with a delete horizon, at which tombstones go |
| needed marker | itself |
| removable marker, no horizon | the marker with a delete horizon |
| removable marker, horizon passed | nothing |
| newest marker of a live producer | as above, but never removed: it holds the producer's epoch |

Where the answer is "nothing", an empty batch stays if it is the last data batch of a live
producer, whose sequence it holds, or the last batch of a segment, so that a segment always ends
where the next one begins. Source: KIP-98, KIP-534, KAFKA-4586 for the empty batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oncelog.storage.compaction.batch import RecordSpan, empty_batch, rebuilt_batch, record_spans
from oncelog.storage.compaction.keys import KeyOffsets
from oncelog.storage.compaction.transactions import CleanedTransactions
from oncelog.storage.records.batch import BatchHeader, Buffer
from oncelog.storage.records.block import open_block
from oncelog.storage.records.control import decode_control


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTails:
    """What replay needs of each live producer: last offset of its newest data batch and marker.

    Offsets by producer id. Only live producers are in them.
    """

    data: Mapping[int, int]
    markers: Mapping[int, int]

    def holds_data(self, header: BatchHeader) -> bool:
        """Whether the batch is the newest data batch of a live producer."""
        return header.has_producer_id and self.data.get(header.producer_id) == header.last_offset

    def holds_marker(self, header: BatchHeader) -> bool:
        """Whether the control batch is the newest of a live producer."""
        return self.markers.get(header.producer_id) == header.last_offset


@dataclass(slots=True, kw_only=True)
class FilterCounts:
    """What a filter has met so far."""

    records_kept: int = 0
    records_removed: int = 0
    batches_removed: int = 0


@dataclass(slots=True, kw_only=True)
class BatchFilter:
    """One pass over a log. Records at ``keys_end`` or later are not in ``keys`` and stay."""

    keys: KeyOffsets
    keys_end: int
    transactions: CleanedTransactions
    tails: ProducerTails
    now_ms: int
    delete_retention_ms: int
    counts: FilterCounts = field(default_factory=FilterCounts)

    def apply(self, batch: memoryview, header: BatchHeader, *, ends_segment: bool) -> Buffer | None:
        """What replaces ``batch``, whose CRC is right, in the cleaned log; None: nothing.

        ``ends_segment``: its offsets must not be lost. Raises ``CorruptDataError``.
        """
        if header.is_control:
            cleaned = self._control(batch, header, ends_segment=ends_segment)
        else:
            cleaned = self._data(batch, header, ends_segment=ends_segment)
        if cleaned is None:
            self.counts.batches_removed += 1
        return cleaned

    def _control(
        self, batch: memoryview, header: BatchHeader, *, ends_segment: bool
    ) -> Buffer | None:
        is_removable = self.transactions.meet_control(header, decode_control(batch, header))
        if header.record_count == 0:
            return batch if ends_segment else None
        if not is_removable:
            return batch
        if not header.has_delete_horizon:
            return self._stamped(batch, header)
        if self.now_ms < header.base_timestamp_ms or self.tails.holds_marker(header):
            return batch
        return empty_batch(header) if ends_segment else None

    def _stamped(self, batch: memoryview, header: BatchHeader) -> Buffer:
        block = bytes(open_block(batch, header))
        return rebuilt_batch(
            header,
            block,
            record_spans(block, header),
            horizon_ms=self.now_ms + self.delete_retention_ms,
            keeps_max_timestamp=True,
        )

    def _data(self, batch: memoryview, header: BatchHeader, *, ends_segment: bool) -> Buffer | None:
        is_aborted = self.transactions.meet_data(header)
        is_tail = self.tails.holds_data(header)
        kept: list[RecordSpan] = []
        block = b""
        if header.record_count and not is_aborted:
            block = bytes(open_block(batch, header))
            kept = self._kept(record_spans(block, header), header)
        self.counts.records_kept += len(kept)
        self.counts.records_removed += header.record_count - len(kept)
        if not kept:
            if not (is_tail or ends_segment):
                return None
            return batch if header.record_count == 0 else empty_batch(header)
        needs_horizon = (
            not header.has_delete_horizon
            and header.base_offset < self.keys_end
            and any(span.is_tombstone for span in kept)
        )
        if len(kept) == header.record_count and not needs_horizon:
            return batch
        return rebuilt_batch(
            header,
            block,
            kept,
            horizon_ms=self.now_ms + self.delete_retention_ms if needs_horizon else None,
            keeps_max_timestamp=is_tail,
        )

    def _kept(self, spans: list[RecordSpan], header: BatchHeader) -> list[RecordSpan]:
        if header.base_offset >= self.keys_end:
            return spans
        is_latest, base_offset = self.keys.is_latest, header.base_offset
        is_expired = header.has_delete_horizon and self.now_ms >= header.base_timestamp_ms
        # A record without a key supersedes nothing and is superseded by nothing.
        return [
            span
            for span in spans
            if span.key is None
            or (
                is_latest(span.key, base_offset + span.offset_delta)
                and not (is_expired and span.is_tombstone)
            )
        ]
