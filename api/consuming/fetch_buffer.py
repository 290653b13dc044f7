"""The fetched replies of one partition: what is visible, and how much of it is delivered.

A reply is first filtered by the rules of ``visible_batches``; the rest is buffered. ``position`` is
the offset of the next record for the application. Fetched replies wait in order as *pieces*. Taking
from them, as records or as columns, decodes one batch at a time and moves the position. When the
last visible batch of a piece is taken, the position moves to the end of the piece. So it passes
markers, aborted data and gaps left by compaction.

Invariant: ``position <= fetch_offset`` while both are known, and the pieces cover exactly the
offsets between them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.api.records import ConsumerRecord
from oncelog.storage.exceptions import CorruptDataError, CorruptRecordError, OncelogError
from oncelog.storage.model import AbortedTransaction, TopicPartition
from oncelog.storage.records.batch import BatchHeader, Buffer, crc_matches, iterate_batches
from oncelog.storage.records.codec import decode_columns, decode_rows
from oncelog.storage.records.control import decode_control
from oncelog.storage.records.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa

PIECES_MAX: Final = 2
"""Replies buffered per partition: the one being delivered, and one fetched ahead."""


# --- what may be seen -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VisibleBatch:
    """A data batch to deliver: ``header.size_bytes`` bytes from ``position`` on."""

    position: int
    header: BatchHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleBatches:
    """The visible batches of one reply.

    ``next_offset`` (exclusive) is the end of the reply, past markers and aborted data: the position
    to continue from once every batch here is delivered. ``aborted_record_count`` counts the records
    skipped because their transaction was aborted.
    """

    batches: tuple[VisibleBatch, ...]
    next_offset: int
    aborted_record_count: int = 0


class AbortedTransactions:
    """The producers whose transaction is aborted at the current batch."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = [(item.first_offset, item.producer_id) for item in aborted]
        heapq.heapify(self._waiting)
        self._active: set[int] = set()

    def advance_to(self, last_offset: int) -> None:
        """Activate every transaction that began at or before ``last_offset``."""
        while self._waiting and self._waiting[0][0] <= last_offset:
            self._active.add(heapq.heappop(self._waiting)[1])

    def end(self, producer_id: int) -> None:
        """End the producer's aborted transaction, if it has one."""
        self._active.discard(producer_id)

    def covers(self, header: BatchHeader) -> bool:
        """Whether the batch is data of an aborted transaction."""
        return header.is_transactional and header.producer_id in self._active


def visible_batches(
    records: Buffer,
    *,
    fetch_offset: int,
    aborted_transactions: Iterable[AbortedTransaction] | None,
    checks_crc: bool = True,
) -> VisibleBatches:
    """Filter the ``records`` of a fetch from ``fetch_offset`` (inclusive): the read_committed rule.

    Below the last stable offset every transaction is decided. So a transaction that is not in the
    aborted list is committed, and the reader needs neither buffering nor look-ahead. The rule,
    batch by batch in offset order (Source: KIP-98, "Consumer"):

    * a batch with a producer id first *activates* every listed transaction whose first offset is
      not above the batch's last offset;
    * an ABORT marker *deactivates* its producer id. COMMIT markers, other control types and control
      batches that compaction has emptied change nothing. No control batch is ever delivered;
    * a transactional data batch of an active producer id is skipped; all other data is delivered.

    The state starts empty for each reply, because a leader lists every overlapping transaction. One
    producer may have several aborted transactions in one reply: each activates it again.

    ``aborted_transactions`` is ``None`` for read_uncommitted: then only control batches are
    hidden. A truncated batch at the end is ignored. The first visible batch may begin below
    ``fetch_offset``; the caller drops its earlier records.

    Raises ``CorruptDataError`` if the first batch is damaged. If a later one is, the result ends
    before it, so that sound records are delivered first; the next fetch then hits the damage.
    """
    aborted = AbortedTransactions(aborted_transactions or ())
    visible: list[VisibleBatch] = []
    next_offset = fetch_offset
    aborted_record_count = 0
    is_first = True
    try:
        for position, header in iterate_batches(records):
            if checks_crc and not crc_matches(records, header, position):
                raise CorruptDataError(f"batch at offset {header.base_offset} fails its CRC check")
            if header.has_producer_id:
                aborted.advance_to(header.last_offset)
            if header.is_control:
                if _is_abort_marker(records, header, position):
                    aborted.end(header.producer_id)
            elif aborted.covers(header):
                aborted_record_count += header.record_count
            elif header.record_count > 0 and header.last_offset >= fetch_offset:
                visible.append(VisibleBatch(position, header))
            next_offset = max(next_offset, header.next_offset)
            is_first = False
    except CorruptDataError:
        if is_first:
            raise
    return VisibleBatches(
        batches=tuple(visible), next_offset=next_offset, aborted_record_count=aborted_record_count
    )


def _is_abort_marker(records: Buffer, header: BatchHeader, position: int) -> bool:
    control = decode_control(records, header, position)
    return control is not None and control.committed is False


# --- what is held ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _FetchedPiece:
    """One filtered fetch reply, how much of it is delivered, and the rest of its current batch."""

    records: Buffer
    visible: VisibleBatches
    batches_taken: int = 0
    rows: Rows[ConsumerRecord] | None = None

    @property
    def is_taken(self) -> bool:
        return self.batches_taken == len(self.visible.batches)

    @property
    def size_bytes(self) -> int:
        return len(self.records)


class AssignedPartition:
    """One assigned partition. ``position`` is ``None`` while it is unknown.

    ``reset_timestamp`` says how to find it: ``EARLIEST_TIMESTAMP`` or ``LATEST_TIMESTAMP`` after a
    seek; ``None`` for the committed offset or else the reset policy. ``topic_id`` is that of the
    topic the position is in, "" while unknown.

    From the last reply: ``readable_end`` (exclusive), the last stable offset or the high watermark;
    ``log_start_offset``; ``is_suspicious``, the reply was damaged and the leader must check the
    next one; ``is_read_alone``, it had so many records that the next fetch travels by itself.

    ``failure`` is raised to the user once everything fetched before it is delivered. ``moves``
    counts seeks and resets, so that the result of an older look-up is recognised as stale.
    ``delivered_at`` is the moment at which the application last got records, 0 if it got none.
    ``is_withheld`` once it is about to be given up. ``stored`` is the offset that the application
    has stored for the next commit.
    """

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.position: int | None = None
        self.fetch_offset: int | None = None
        self.reset_timestamp: int | None = None
        self.readable_end: int | None = None
        self.log_start_offset = 0
        self.is_paused = False
        self.is_withheld = False
        self.failure: OncelogError | None = None
        self.is_suspicious = False
        self.is_read_alone = False
        self.aborted_record_count = 0
        self.moves = 0
        self.topic_id = ""
        self.delivered_at = 0
        self.stored: OffsetAndMetadata | None = None
        self._pieces: deque[_FetchedPiece] = deque()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the buffered replies."""
        return sum(piece.size_bytes for piece in self._pieces)

    @property
    def has_pieces(self) -> bool:
        """Whether a fetched reply is buffered, even one without visible records."""
        return bool(self._pieces)

    @property
    def is_readable(self) -> bool:
        """Whether the application may get what is fetched."""
        return not self.is_paused and not self.is_withheld

    @property
    def has_room(self) -> bool:
        """Whether one more reply may be fetched ahead."""
        return len(self._pieces) < PIECES_MAX

    def seek(self, offset: int) -> None:
        """Continue from ``offset`` (inclusive) and drop what was fetched."""
        self._forget()
        self.position = offset
        self.fetch_offset = offset

    def reset(self, timestamp: int | None) -> None:
        """Make the position unknown; ``reset_timestamp`` says how to find it again."""
        self._forget()
        self.position = None
        self.fetch_offset = None
        self.reset_timestamp = timestamp
        self.topic_id = ""

    def drop_ahead(self) -> None:
        """Drop what was fetched; the next fetch starts at the position again."""
        if self.position is not None:
            self.seek(self.position)

    def release(self) -> None:
        """Drop what was fetched: the partition is assigned no more."""
        self._forget()

    def _forget(self) -> None:
        self._pieces.clear()
        self.moves += 1
        self.failure = None
        self.is_suspicious = False
        self.reset_timestamp = None

    def corrupt(self, detail: str, offset: int, next_offset: int) -> CorruptRecordError:
        """The error for unreadable records from ``offset`` to ``next_offset`` (exclusive).

        If their end is unknown (-1) the error names ``offset + 1``.
        """
        next_offset = max(next_offset, offset + 1)
        return CorruptRecordError(
            f"{self.topic_partition} at offset {offset}: {detail}",
            advice=f"to skip it, seek to offset {next_offset}",
            topic_partition=self.topic_partition,
            offset=offset,
            next_offset=next_offset,
        )

    def is_at(self, offset: int) -> bool:
        """Whether the position is exactly there."""
        return self.position == offset

    def position_of(self, committed: OffsetAndMetadata) -> int:
        """The position that the group has stored as ``committed``."""
        return committed.offset

    def receive(
        self,
        records: Buffer,
        aborted_transactions: Iterable[AbortedTransaction] | None,
        *,
        checks_crc: bool,
    ) -> None:
        """Filter and buffer one reply; raises as ``visible_batches`` does."""
        visible = visible_batches(
            records,
            fetch_offset=self.fetch_offset or 0,
            aborted_transactions=aborted_transactions,
            checks_crc=checks_crc,
        )
        self.add(records, visible)

    def add(self, records: Buffer, visible: VisibleBatches) -> None:
        """Buffer one filtered reply; drop an empty one that does not move the position."""
        if visible.next_offset == self.fetch_offset:
            return
        self.fetch_offset = visible.next_offset
        self.aborted_record_count += visible.aborted_record_count
        self._pieces.append(_FetchedPiece(records, visible))

    # --- taking -------------------------------------------------------------------------------

    def take_records(self, count_max: int) -> list[ConsumerRecord]:
        """Take up to ``count_max`` records from the position on, and move the position past them.

        Raises ``CorruptRecordError`` for a batch that cannot be decoded. Records of the batches
        before it are returned first, and the position stays at the damaged batch.
        """
        taken: list[ConsumerRecord] = []
        self._finish_taken_pieces()
        while self._pieces and len(taken) < count_max:
            piece = self._pieces[0]
            if piece.rows is None:
                try:
                    piece.rows = self._decode(piece)
                except OncelogError:
                    if taken:
                        return taken
                    raise
            taken += piece.rows.take(count_max - len(taken))
            if piece.rows.left:
                self.position = taken[-1].offset + 1
            else:
                self._finish_batch(piece)
            self._finish_taken_pieces()
        return taken

    def take_columns(self, count_max: int | None) -> list[pa.RecordBatch]:
        """The records from the position on as columns, one record batch per buffered reply.

        Schema as ``record_codec.decode_columns``. ``None`` takes everything that is buffered.
        Raises as ``take_records`` does.
        """
        taken: list[pa.RecordBatch] = []
        left = count_max
        self._finish_taken_pieces()
        while self._pieces and (left is None or left > 0):
            piece = self._pieces[0]
            try:
                columns = self._decode_columns(piece, left)
            except OncelogError:
                if taken:
                    return taken
                raise
            if columns.num_rows:
                taken.append(columns)
                if left is not None:
                    left -= columns.num_rows
            self._finish_taken_pieces()
        return taken

    def _decode(self, piece: _FetchedPiece) -> Rows[ConsumerRecord]:
        """The records of the piece's next batch from the position on."""
        batch = piece.visible.batches[piece.batches_taken]
        return self._decode_rows(
            *(piece.records, batch.header),
            position=batch.position,
            first_offset=self.position or 0,
        )

    def _decode_rows(
        self, records: Buffer, header: BatchHeader, *, position: int, first_offset: int
    ) -> Rows[ConsumerRecord]:
        """The records of a batch from ``first_offset`` on; ``CorruptRecordError`` for damage."""
        try:
            return decode_rows(
                records,
                header,
                position,
                row_type=ConsumerRecord,
                leading=(self.topic_partition.topic, self.topic_partition.partition),
                first_offset=first_offset,
                # Checked when the reply came in, unless ``check_crcs`` is off.
                checks_crc=False,
            )
        except CorruptDataError as error:
            raise self._undecodable(header, error, first_offset) from error

    def _undecodable(
        self, header: BatchHeader, error: CorruptDataError, first_offset: int
    ) -> CorruptRecordError:
        offset = max(header.base_offset, first_offset)
        return self.corrupt(str(error), offset, header.next_offset)

    def _decode_columns(self, piece: _FetchedPiece, count_max: int | None) -> pa.RecordBatch:
        """Take whole batches of ``piece`` until there are ``count_max`` rows, then cut."""
        import pyarrow.compute as pc

        batches = []
        row_count = 0
        for batch in piece.visible.batches[piece.batches_taken :]:
            if count_max is not None and row_count >= count_max:
                break
            batches.append(batch)
            row_count += batch.header.record_count
        columns = self._decode_sound(piece, batches)
        offsets = columns.column("offset")
        if len(offsets) and offsets[0].as_py() < (self.position or 0):
            columns = columns.filter(pc.greater_equal(offsets, self.position))
        piece.rows = None
        if count_max is not None and columns.num_rows > count_max:
            # The last batch stays in its piece and is decoded again from the new position.
            columns = columns.slice(0, count_max)
            self.position = columns.column("offset")[-1].as_py() + 1
            piece.batches_taken += sum(item.header.next_offset <= self.position for item in batches)
        else:
            piece.batches_taken += len(batches)
            self.position = batches[-1].header.next_offset
        return columns

    def _decode_sound(self, piece: _FetchedPiece, batches: list[VisibleBatch]) -> pa.RecordBatch:
        """Decode ``batches``, or fewer; those not decoded are removed from the list.

        Together they may decompress to more than one Arrow array can hold, and sound batches must
        not wait for a damaged one. ``CorruptRecordError`` if the first is damaged.
        """
        while True:
            try:
                return decode_columns(_runs(piece, batches))
            except (ValueError, CorruptDataError) as error:
                if len(batches) > 1:
                    del batches[len(batches) // 2 :]
                elif isinstance(error, CorruptDataError):
                    raise self._undecodable(batches[0].header, error, self.position or 0) from error
                else:
                    raise

    def _finish_batch(self, piece: _FetchedPiece) -> None:
        self.position = piece.visible.batches[piece.batches_taken].header.next_offset
        piece.batches_taken += 1
        piece.rows = None

    def _finish_taken_pieces(self) -> None:
        """Drop what is fully taken and step over what the reader must not see."""
        while self._pieces and self._pieces[0].is_taken:
            self.position = self._pieces.popleft().visible.next_offset


def _runs(piece: _FetchedPiece, batches: Sequence[VisibleBatch]) -> list[memoryview]:
    """The bytes of ``batches``: one view for each run of adjacent batches."""
    bounds: list[list[int]] = []
    for batch in batches:
        end = batch.position + batch.header.size_bytes
        if bounds and bounds[-1][1] == batch.position:
            bounds[-1][1] = end
        else:
            bounds.append([batch.position, end])
    view = memoryview(piece.records)
    return [view[start:end] for start, end in bounds]
