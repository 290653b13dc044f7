"""All producers of one partition: fencing, deduplication, transactions, expiry.

Rules. The ``check`` and ``find`` methods answer and change nothing (I-09); only the ``apply``
methods change state, from the log, both live and on replay (I-05). How a batch is answered:

==================================  ========================  =================================
producer's entry                    event                     answer
==================================  ========================  =================================
none                                sequence 0                accept
none                                another                   OUT_OF_ORDER, early
same epoch                          one of the last 5 again   duplicate: the original's place
same epoch                          other content, sequence   OUT_OF_ORDER
                                    of one of the last 5
same epoch                          sequence follows          accept
same epoch                          sequence ahead            OUT_OF_ORDER, early
same epoch                          sequence behind           OUT_OF_ORDER
same epoch, batches of a lower one  as for a lower epoch
lower epoch                         the first sequence        accept: a new epoch begins
lower epoch                         sequence ahead of it      OUT_OF_ORDER, early
lower epoch                         sequence behind it        OUT_OF_ORDER
higher epoch                        any                       INVALID_PRODUCER_EPOCH
open transaction, or a marker       data outside transaction  INVALID_TXN_STATE
data outside a transaction          data of a transaction     INVALID_TXN_STATE
any                                 coordinator's data        as above; a sequence may be left
                                                              out, or be ahead
none                                marker                    accept: fences lower epochs
epoch below the marker's            marker                    accept: closes, raises the epoch
same epoch, no open transaction     marker                    accept: a repeat, no effect
same epoch, open transaction        marker                    INVALID_PRODUCER_EPOCH
higher epoch                        marker                    INVALID_PRODUCER_EPOCH
higher coordinator epoch            marker                    TRANSACTION_COORDINATOR_FENCED
==================================  ========================  =================================

*Early* means that the batches in between may still be in flight: a producer's calls overtake each
other. The shell decides whether the batch then waits, and how long.

*The first sequence* of an epoch is 0. Only a client with a chained ticket (``protocol.tickets``)
goes on after the newest remembered batch, if that is of the ticket's chain: of ``chain_epoch`` or a
later one. So its late copy of a batch of an earlier transaction is behind, and no duplicate, though
the gateway has written the current epoch into it. A chain without a batch here begins at 0. A
coordinator counts from 0 in each epoch, whatever the ticket.

An unknown producer begins at 0, even if its entry was forgotten after a day of silence: a batch
further on may be a copy of one that is in the log. A living producer continues under its next
epoch, at 0, and does so by itself once it has been silent for half a day (``api.producing``). So
nothing needs to keep the entries of idle producers, on the leader or on its followers.

An entry has a producer's epoch, its newest batches and its transaction. Only log content changes an
entry, so every replica and every replay arrives at the same one. All remembered batches are of one
epoch, the newest that has data. A marker keeps them: whether the producer is chained only its next
ticket tells, and tickets are not in the log.

============================  =============================================================
event                         answer
============================  =============================================================
data, same epoch              batch remembered, the sixth oldest forgotten
data, another than theirs     batches cleared, epoch taken, batch remembered
data without sequence         as above, but not remembered: a coordinator's
data, transactional           transaction begins here unless one is open; records counted
marker, same epoch            transaction closed
marker, another epoch         epoch taken, transaction closed
============================  =============================================================

One file: every answer depends on the entry of one producer.

Source: KIP-98; KIP-360; KIP-890 and KIP-1228 for markers.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from oncelog.actors.protocol.messages.partition import ProducerDescription
from oncelog.actors.protocol.partition.open_transactions import (
    CompletedTransaction,
    OpenTransactions,
)
from oncelog.actors.protocol.tickets import NO_CHAIN
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    DUPLICATE_WINDOW_BATCHES,
    NO_COORDINATOR_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    SEQUENCE_MAX,
    AppendOrigin,
    ProducerSnapshotEntry,
    sequence_after,
)
from oncelog.storage.records.batch import BatchHeader, Buffer, crc_when_stamped
from oncelog.storage.records.control import ControlRecord

PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000
"""A producer without an open transaction is forgotten after a day of silence."""

_SEQUENCE_COUNT: Final = SEQUENCE_MAX + 1
_AHEAD_MAX: Final = _SEQUENCE_COUNT // 2
"""Half the sequence range: a sequence less than this far above is ahead, any other is behind."""

NO_CRC: Final = -1
"""``crc`` of a remembered batch whose content is unknown."""


class AppendedBatch(NamedTuple):
    """One remembered batch; sequences and offsets are inclusive.

    ``crc`` is that of its bytes in the log, or -1 if what the producer sent is unknown: the batch
    is only in a snapshot, or compaction has rewritten it.
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

    They were written in ``batches_epoch``, which is -1 if there are none, and below
    ``producer_epoch`` after a marker, until the next data.
    ``current_txn_first_offset`` is -1 while no transaction is open; ``open_record_count`` sums the
    records of the open one. ``idle_since_ms`` is when an expiry scan first saw the entry unchanged,
    by this replica's clock; the only field that does not come from the log.
    """

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp_ms: int = NO_TIMESTAMP
    current_txn_first_offset: int = NO_OFFSET
    open_record_count: int = 0
    batches: deque[AppendedBatch] = field(default_factory=_empty_window)
    batches_epoch: int = NO_PRODUCER_EPOCH
    idle_since_ms: int = field(default=NO_TIMESTAMP, compare=False)

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction of this producer awaits its marker."""
        return self.current_txn_first_offset != NO_OFFSET

    @property
    def is_transactional(self) -> bool:
        """Whether its id is transactional: it has had a marker here, or waits for one.

        A snapshot stores both. An id is either transactional or plain, never both.
        """
        return (
            self.coordinator_epoch != NO_COORDINATOR_EPOCH
            or self.current_txn_first_offset != NO_OFFSET
        )

    @property
    def last_sequence(self) -> int:
        """The newest sequence of this epoch, -1 if there is none."""
        is_current = self.batches_epoch == self.producer_epoch and bool(self.batches)
        return self.batches[-1].last_sequence if is_current else NO_SEQUENCE

    def first_sequence(self, chain_epoch: int) -> int:
        """The first sequence of an epoch above that of the remembered batches."""
        is_continued = NO_CHAIN < chain_epoch <= self.batches_epoch
        return sequence_after(self.batches[-1].last_sequence, 1) if is_continued else 0

    def duplicate_of(self, header: BatchHeader) -> AppendedBatch | None:
        """The remembered batch that ``header`` repeats: same epoch, first and last sequence."""
        epoch = header.producer_epoch
        if epoch != self.producer_epoch or epoch != self.batches_epoch:
            return None
        last_sequence = header.last_sequence
        for batch in self.batches:
            if (
                batch.last_sequence == last_sequence
                and batch.first_sequence == header.base_sequence
            ):
                return batch
        return None

    def add_batch(self, header: BatchHeader) -> None:
        """Apply a data batch: take its epoch, and remember it if it has a sequence."""
        has_sequence = header.base_sequence != NO_SEQUENCE
        if header.producer_epoch != self.batches_epoch:
            self.producer_epoch = header.producer_epoch
            self.batches_epoch = header.producer_epoch if has_sequence else NO_PRODUCER_EPOCH
            self.batches.clear()
        if has_sequence:
            self.batches.append(_appended(header))
        self.last_timestamp_ms = header.max_timestamp_ms
        self.idle_since_ms = NO_TIMESTAMP

    def add_older_batch(self, header: BatchHeader) -> None:
        """Remember a batch older than the one that the snapshot of this entry stored.

        Called in offset order, so it goes right before the newest one. If it is the newest one
        itself, take its timestamp: the snapshot may have that of a later marker.
        """
        if header.base_sequence == NO_SEQUENCE or header.producer_epoch != self.batches_epoch:
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
        """The entry of a producer snapshot, with only the newest of the remembered batches."""
        newest = self.batches[-1] if self.batches else None
        is_current = self.batches_epoch == self.producer_epoch
        return ProducerSnapshotEntry(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_sequence=newest.last_sequence if newest else NO_SEQUENCE,
            last_offset=newest.last_offset if newest else NO_OFFSET,
            offset_delta=newest.offset_delta if newest else 0,
            timestamp_ms=self.last_timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=self.current_txn_first_offset,
            batch_epoch=NO_PRODUCER_EPOCH if is_current else self.batches_epoch,
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
            is_current = stored.batch_epoch == NO_PRODUCER_EPOCH
            entry.batches_epoch = stored.producer_epoch if is_current else stored.batch_epoch
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
        """The description for operators, and for a coordinator that counts a winner's records."""
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


class BatchEnrolment(enum.Enum):
    """How a transactional data batch relates to what its producer has open here."""

    OPEN = "open"
    """It joins the open transaction of its epoch; no ticket is needed."""

    TICKET_NEEDED = "ticket needed"
    """It would begin a transaction here."""

    OLDER_OPEN = "older open"
    """A transaction of a lower epoch still awaits its marker."""

    FENCED = "fenced"
    """A higher epoch is known."""


class ProducerStates:
    """The entry of each producer, and the transactions among them."""

    __slots__ = ("_entries", "transactions")

    def __init__(self, stored: Iterable[ProducerSnapshotEntry] = ()) -> None:
        self._entries = {entry.producer_id: ProducerEntry.from_snapshot(entry) for entry in stored}
        self.transactions = OpenTransactions()
        unfinished = [entry for entry in self._entries.values() if entry.has_open_transaction]
        for entry in sorted(unfinished, key=lambda entry: entry.current_txn_first_offset):
            self.transactions.begin(entry.producer_id, entry.current_txn_first_offset)

    def __len__(self) -> int:
        """Number of remembered producers."""
        return len(self._entries)

    @property
    def entries(self) -> Mapping[int, ProducerEntry]:
        """The entries by producer id; read-only."""
        return MappingProxyType(self._entries)

    # --- decide ------------------------------------------------------------------------------

    def is_continued_by(self, header: BatchHeader) -> bool:
        """Whether the batch simply follows its producer's newest one, so that the table accepts it.

        That is: the same epoch, the same transaction or none, no duplicate, no ticket needed, and
        in order. A fast path; a producer's first batch, and one after sequences wrap, take the slow
        one.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return False
        return (
            header.producer_epoch == entry.batches_epoch == entry.producer_epoch
            and header.base_sequence == entry.batches[-1].last_sequence + 1
            and header.is_transactional is (entry.current_txn_first_offset != NO_OFFSET)
            and (header.is_transactional or entry.coordinator_epoch == NO_COORDINATOR_EPOCH)
        )

    def find_duplicate(
        self, header: BatchHeader, batch: Buffer | None = None
    ) -> AppendedBatch | None:
        """The appended batch that ``header`` repeats, if it is still remembered.

        With ``batch``, a client's bytes, the content must match too, if it is known: another batch
        that used the sequence must not count as this one. A coordinator passes none: its retry has
        other timestamps and so other bytes.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None or header.is_transactional is not entry.is_transactional:
            return None
        found = entry.duplicate_of(header)
        if found is None or batch is None or found.crc in (NO_CRC, header.crc):
            return found
        # The leader may have written its own timestamp into it.
        return found if crc_when_stamped(batch, found.timestamp_ms) == found.crc else None

    def is_known(self, producer_id: int) -> bool:
        """Whether the id has written here and has not been forgotten."""
        return producer_id in self._entries

    def is_transactional(self, producer_id: int) -> bool:
        """Whether the id is known to be transactional."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.is_transactional

    def check_enrolment(self, header: BatchHeader) -> BatchEnrolment:
        """Whether a transactional data batch needs a ticket, or cannot be accepted at all.

        Source: KIP-890; KAFKA-18575 for ``OLDER_OPEN``, which must not join the older transaction.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return BatchEnrolment.TICKET_NEEDED
        if header.producer_epoch < entry.producer_epoch:
            return BatchEnrolment.FENCED
        if not entry.has_open_transaction:
            return BatchEnrolment.TICKET_NEEDED
        if header.producer_epoch > entry.producer_epoch:
            return BatchEnrolment.OLDER_OPEN
        return BatchEnrolment.OPEN

    def check_data(
        self, header: BatchHeader, origin: AppendOrigin, chain_epoch: int = NO_CHAIN
    ) -> tuple[ErrorCode, bool]:
        """Check epoch, sequence and transaction of a data batch that is not a duplicate.

        ``chain_epoch`` is that of its ticket. Returns the error and whether the batch is early:
        batches still in flight may fill the gap before it.
        """
        entry = self._entries.get(header.producer_id)
        if entry is not None and entry.is_transactional is not header.is_transactional:
            return ErrorCode.INVALID_TXN_STATE, False
        if entry is not None and header.producer_epoch < entry.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, False
        if origin is AppendOrigin.CLIENT:
            return _check_sequence(entry, header, chain_epoch)
        if header.base_sequence != NO_SEQUENCE:
            # The sequence also counts offsets that the transaction commits in other shards: gaps
            # are normal.
            error, is_ahead = _check_sequence(entry, header, NO_CHAIN)
            if error is not ErrorCode.NONE and not is_ahead:
                return error, False
        return ErrorCode.NONE, False

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> ErrorCode:
        """Whether a marker may be appended. ``producer_epoch`` is one above that of the data.

        An equal epoch is a repeat of the last marker. It is harmless only until the next
        transaction begins, whose data has that epoch. Source: KIP-1228.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return ErrorCode.NONE
        if producer_epoch < entry.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if producer_epoch == entry.producer_epoch and entry.has_open_transaction:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if coordinator_epoch < entry.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return ErrorCode.NONE

    # --- apply -------------------------------------------------------------------------------

    def apply_plain_data(self, header: BatchHeader) -> None:
        """Apply a producer's data batch outside any transaction."""
        producer_id = header.producer_id
        (self._entries.get(producer_id) or self._entry_of(producer_id)).add_batch(header)

    def apply_data(self, header: BatchHeader) -> None:
        """Apply a producer's data batch."""
        entry = self._entry_of(header.producer_id)
        entry.add_batch(header)
        if not header.is_transactional:
            return
        if not entry.has_open_transaction:
            entry.current_txn_first_offset = header.base_offset
            self.transactions.begin(header.producer_id, header.base_offset)
        entry.open_record_count += header.record_count

    def apply_marker(
        self, header: BatchHeader, control: ControlRecord
    ) -> CompletedTransaction | None:
        """Apply a marker; return the transaction it closed, None if none was open.

        It creates an entry even for an unknown producer, so that older epochs that arrive later are
        rejected.
        """
        entry = self._entry_of(header.producer_id)
        first_offset = entry.current_txn_first_offset
        entry.producer_epoch = header.producer_epoch
        entry.coordinator_epoch = max(entry.coordinator_epoch, control.coordinator_epoch)
        entry.last_timestamp_ms = header.max_timestamp_ms
        entry.current_txn_first_offset = NO_OFFSET
        entry.open_record_count = 0
        entry.idle_since_ms = NO_TIMESTAMP
        if first_offset == NO_OFFSET:
            return None
        return self.transactions.complete(
            producer_id=header.producer_id,
            first_offset=first_offset,
            marker_offset=header.last_offset,
            is_aborted=not control.committed,
        )

    def apply_history(self, header: BatchHeader) -> None:
        """Apply a batch from before the loaded snapshot: restore what a snapshot does not store.

        That is the record count of a transaction open at the snapshot, and the
        remembered batches before the newest one.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None or header.is_control:
            return
        entry.add_older_batch(header)
        if (
            header.is_transactional
            and entry.has_open_transaction
            and header.base_offset >= entry.current_txn_first_offset
        ):
            entry.open_record_count += header.record_count

    def expire(self, now_ms: int, expiration_ms: int = PRODUCER_ID_EXPIRATION_MS) -> int:
        """Forget producers silent for ``expiration_ms`` by this replica's clock; return how many.

        Silence is counted from the first scan that finds the entry unchanged, not from a record's
        timestamp, which the client sets. A producer with an open transaction is never forgotten.
        """
        expired = []
        for producer_id, entry in self._entries.items():
            if entry.has_open_transaction:
                continue
            if entry.idle_since_ms == NO_TIMESTAMP or now_ms < entry.idle_since_ms:
                entry.idle_since_ms = now_ms
            elif now_ms - entry.idle_since_ms >= expiration_ms:
                expired.append(producer_id)
        for producer_id in expired:
            del self._entries[producer_id]
        return len(expired)

    # --- describe ----------------------------------------------------------------------------

    def snapshot(self) -> list[ProducerSnapshotEntry]:
        """The state before the log end, as a producer snapshot stores it."""
        return [entry.to_snapshot() for entry in self._entries.values()]

    def describe(self, producer_ids: Iterable[int] | None) -> tuple[ProducerDescription, ...]:
        """The requested producers that are known, or all."""
        wanted = self._entries if producer_ids is None else producer_ids
        found = (self._entries.get(producer_id) for producer_id in wanted)
        return tuple(entry.describe() for entry in found if entry is not None)

    def _entry_of(self, producer_id: int) -> ProducerEntry:
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id)
        return entry


def _check_sequence(
    entry: ProducerEntry | None, header: BatchHeader, chain_epoch: int
) -> tuple[ErrorCode, bool]:
    """The sequence rules for a batch whose epoch is not below the entry's."""
    if entry is None:
        expected = 0
    elif header.producer_epoch == entry.batches_epoch:
        expected = sequence_after(entry.batches[-1].last_sequence, 1)
    else:
        expected = entry.first_sequence(chain_epoch)
    if header.base_sequence == expected:
        return ErrorCode.NONE, False
    ahead = (header.base_sequence - expected) % _SEQUENCE_COUNT
    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ahead < _AHEAD_MAX
