"""What a partition remembers of one producer: its epoch, its newest batches, its transaction.

Rules. Only log content changes an entry, so every replica and every replay
arrives at the same entry. Another epoch clears the remembered batches: sequences restart at 0.

============================  =============================================================
event                         answer
============================  =============================================================
data, same epoch              batch remembered, the sixth oldest forgotten
data, another epoch           batches cleared, epoch taken, batch remembered
data without sequence         as above, but not remembered: a coordinator's
data, transactional           transaction begins here unless one is open; records counted
marker, same epoch            transaction closed
marker, another epoch         batches cleared, epoch taken, transaction closed
============================  =============================================================

Source: KIP-98, "Producer state"; KIP-890 for the epoch that a marker bumps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oncelog.actors.protocol.messages.partition import ProducerDescription
from oncelog.storage.model import (
    DUPLICATE_WINDOW_BATCHES,
    NO_COORDINATOR_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    SEQUENCE_MAX,
    ProducerSnapshotEntry,
    sequence_after,
)
from oncelog.storage.records.batch import BatchHeader

NO_CRC: Final = -1
"""The content of a remembered batch is not known."""


class AppendedBatch(NamedTuple):
    """One remembered batch; sequences and offsets are inclusive.

    ``crc`` is that of its bytes in the log, -1 if that does not show what its producer sent: it is
    known only from a snapshot, or compaction has rewritten the batch.
    """

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    crc: int = NO_CRC

    @property
    def first_sequence(self) -> int:
        """The sequence of the first record."""
        return sequence_after(self.last_sequence, -self.offset_delta)

    @property
    def base_offset(self) -> int:
        """The offset of the first record."""
        return self.last_offset - self.offset_delta


def _empty_window() -> deque[AppendedBatch]:
    return deque(maxlen=DUPLICATE_WINDOW_BATCHES)


@dataclass(slots=True)
class ProducerEntry:
    """One producer of one partition. ``batches`` holds the newest five, oldest first.

    ``current_txn_first_offset`` is -1 while no transaction is open; ``open_record_count`` sums
    the records of the open one. ``idle_since_ms`` is when an expiry scan first saw the entry
    unchanged: by this replica's clock, and the only field that is not from the log.
    """

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp_ms: int = NO_TIMESTAMP
    current_txn_first_offset: int = NO_OFFSET
    open_record_count: int = 0
    batches: deque[AppendedBatch] = field(default_factory=_empty_window)
    idle_since_ms: int = field(default=NO_TIMESTAMP, compare=False)

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction of this producer awaits its marker."""
        return self.current_txn_first_offset != NO_OFFSET

    @property
    def is_transactional(self) -> bool:
        """Whether its id is a transactional producer's: it has had a marker here, or awaits one.

        A snapshot keeps both facts. An id is either transactional or plain, never both.
        """
        return (
            self.coordinator_epoch != NO_COORDINATOR_EPOCH
            or self.current_txn_first_offset != NO_OFFSET
        )

    @property
    def last_sequence(self) -> int:
        """The newest sequence of this epoch, -1 if there is none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def duplicate_of(self, header: BatchHeader) -> AppendedBatch | None:
        """The remembered batch that ``header`` repeats: same epoch, first and last sequence."""
        if header.producer_epoch != self.producer_epoch:
            return None
        last_sequence = header.last_sequence
        for batch in self.batches:
            if (
                batch.last_sequence == last_sequence
                and batch.first_sequence == header.base_sequence
            ):
                return batch
        return None

    def take_epoch(self, producer_epoch: int) -> None:
        """Adopt an epoch; a different one starts without remembered batches."""
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches.clear()

    def add_batch(self, header: BatchHeader) -> None:
        """Apply a data batch: its epoch, and its place if it has a sequence to recognise it by."""
        if header.producer_epoch != self.producer_epoch:
            self.take_epoch(header.producer_epoch)
        if header.base_sequence != NO_SEQUENCE:
            self.batches.append(_appended(header))
        self.last_timestamp_ms = header.max_timestamp_ms
        self.idle_since_ms = NO_TIMESTAMP

    def add_older_batch(self, header: BatchHeader) -> None:
        """Remember a batch for which the snapshot behind this entry had no room.

        Called in offset order, so it belongs right before the newest one. For the newest one, a
        snapshot may have the timestamp of a later marker instead of its own.
        """
        if header.base_sequence == NO_SEQUENCE or header.producer_epoch != self.producer_epoch:
            return
        if not self.batches:
            return
        newest = self.batches.pop()
        if header.last_offset < newest.last_offset:
            if len(self.batches) == DUPLICATE_WINDOW_BATCHES - 1:
                self.batches.popleft()
            self.batches.append(_appended(header))
        elif header.last_offset == newest.last_offset:
            newest = _appended(header)
        self.batches.append(newest)

    def to_snapshot(self) -> ProducerSnapshotEntry:
        """What a producer snapshot stores: only the newest of the remembered batches."""
        newest = self.batches[-1] if self.batches else None
        return ProducerSnapshotEntry(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_sequence=newest.last_sequence if newest else NO_SEQUENCE,
            last_offset=newest.last_offset if newest else NO_OFFSET,
            offset_delta=newest.offset_delta if newest else 0,
            timestamp_ms=self.last_timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=self.current_txn_first_offset,
        )

    @classmethod
    def from_snapshot(cls, stored: ProducerSnapshotEntry) -> ProducerEntry:
        """The entry that ``to_snapshot`` was made from, with a window of one batch."""
        entry = cls(
            producer_id=stored.producer_id,
            producer_epoch=stored.producer_epoch,
            coordinator_epoch=stored.coordinator_epoch,
            last_timestamp_ms=stored.timestamp_ms,
            current_txn_first_offset=stored.current_txn_first_offset,
        )
        if stored.has_batch:
            entry.batches.append(
                AppendedBatch(
                    stored.last_sequence,
                    stored.last_offset,
                    stored.offset_delta,
                    stored.timestamp_ms,
                )
            )
        return entry

    def describe(self) -> ProducerDescription:
        """The view for an operator, or for a coordinator that counts a winner's records."""
        return ProducerDescription(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_sequence=self.last_sequence,
            last_timestamp_ms=self.last_timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=self.current_txn_first_offset,
            open_record_count=self.open_record_count,
        )


def _appended(header: BatchHeader) -> AppendedBatch:
    """A batch with a sequence."""
    delta = header.last_offset_delta
    is_as_sent = header.record_count == delta + 1 and not header.has_delete_horizon
    last_sequence = header.base_sequence + delta
    if last_sequence > SEQUENCE_MAX:
        last_sequence = sequence_after(last_sequence, 0)
    return AppendedBatch(
        last_sequence,
        header.base_offset + delta,
        delta,
        header.max_timestamp_ms,
        header.crc if is_as_sent else NO_CRC,
    )
