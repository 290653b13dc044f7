"""Delivery in commit order: a transaction's records come when it commits.

A reader of ``order="commit"`` reads up to the high watermark. It keeps the records of transactions
that are still open, and hands them out, together, when it meets the COMMIT marker. So no record
waits for an older transaction that is still open, as it does in offset order, where delivery ends
at the last stable offset. Records outside transactions are delivered where they are.

A position is three numbers (``CommitPosition``). The log alone decides the order, so a reader that
starts at a position delivers exactly what the one that committed it had not.

Source: the buffering consumer in the first draft of KIP-98, which Kafka did not build.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.api.consuming.fetch_buffer import PIECES_MAX, AssignedPartition
from oncelog.api.records import CommitPosition, ConsumerRecord
from oncelog.storage.disk.file_system import FileHandle, scratch_file
from oncelog.storage.exceptions import (
    CorruptDataError,
    OncelogError,
    SpillFailedError,
)
from oncelog.storage.model import AbortedTransaction, TopicPartition
from oncelog.storage.records.batch import BatchHeader, Buffer, crc_matches, iterate_batches
from oncelog.storage.records.codec import decode_columns
from oncelog.storage.records.control import decode_control
from oncelog.storage.records.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa

# --- records of open transactions -----------------------------------------------------------------


class SpillFile:
    """A file without a name, for records of open transactions beyond the memory they may have.

    Bytes are appended; the file is closed, and its room free, once none of them is wanted.
    """

    def __init__(self, directory: str | None, limit_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._file: FileHandle | None = None
        self.wanted_bytes = 0

    def append(self, data: Sequence[Buffer]) -> int:
        """Write ``data``, one after the other, and return where it begins.

        ``SpillFailedError`` leaves the file as it was.
        """
        size_bytes = sum(map(len, data))
        used_bytes = 0 if self._file is None else self._file.size
        if used_bytes + size_bytes > self._limit_bytes:
            raise self._failed(f"it would exceed spill_max_bytes={self._limit_bytes}")
        try:
            if self._file is None:
                self._file = scratch_file(self._directory)
            # Joined: a system call takes no more than 1,024 pieces.
            begin = self._file.append([b"".join(data)])
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from None
        self.wanted_bytes += size_bytes
        return begin

    def _failed(self, why: str) -> SpillFailedError:
        where = "the directory for temporary files"
        if self._directory is not None:
            where = f"spill_directory={self._directory!r}"
        return SpillFailedError(
            f"records of open transactions cannot be written to {where} ({why})",
            advice=SpillFailedError.advice,
        )

    def read(self, begin: int, size_bytes: int) -> bytes:
        """The bytes from ``begin`` on."""
        assert self._file is not None
        data = self._file.read(begin, size_bytes)
        if len(data) != size_bytes:
            raise CorruptDataError(f"{len(data)} of {size_bytes} bytes are left of spilled records")
        return data

    def forget(self, size_bytes: int) -> None:
        """So many of its bytes are wanted no more."""
        self.wanted_bytes -= size_bytes
        if not self.wanted_bytes and self._file is not None:
            file, self._file = self._file, None
            file.close()


@dataclass(slots=True)
class _Batch:
    """One batch to deliver: bytes in memory from ``position`` on, or in the spill file."""

    header: BatchHeader
    records: Buffer | None
    position: int

    def memory_bytes(self) -> int:
        """Its bytes, if they are in memory."""
        return 0 if self.records is None else self.header.size_bytes


@dataclass(slots=True)
class _OpenTransaction:
    """The batches of one transaction so far; the first ``spilled_count`` are in the spill file."""

    first_offset: int
    batches: list[_Batch] = field(default_factory=list)
    memory_bytes: int = 0
    spilled_count: int = 0

    def add(self, batch: _Batch) -> None:
        """One batch more."""
        self.batches.append(batch)
        self.memory_bytes += batch.header.size_bytes

    def keep_without(self, reply: Buffer) -> None:
        """Copy what is kept of a reply: a few bytes that wait long must not hold all of it."""
        for batch in reversed(self.batches):
            if batch.records is not reply:
                return
            end = batch.position + batch.header.size_bytes
            batch.records, batch.position = bytes(memoryview(reply)[batch.position : end]), 0

    def spill(self, file: SpillFile) -> None:
        """Move what is in memory to ``file``; ``SpillFailedError`` moves nothing."""
        held = self.batches[self.spilled_count :]
        begin = file.append([batch.records for batch in held if batch.records is not None])
        for batch in held:
            batch.records, batch.position = None, begin
            begin += batch.header.size_bytes
        self.memory_bytes, self.spilled_count = 0, len(self.batches)


@dataclass(slots=True)
class _Reply:
    """What one reply has completed, in order, and where the reader is after it.

    ``after`` is ``None`` if a former reader had delivered all of it. Of its records ``count_taken``
    are delivered or skipped, ``count_of_first`` of them in the batch that is now the first.
    """

    batches: deque[_Batch]
    after: CommitPosition | None
    memory_bytes: int
    count_taken: int = 0
    count_of_first: int = 0
    rows: Rows[ConsumerRecord] | None = None


# --- the partition --------------------------------------------------------------------------------


class CommitOrderPartition(AssignedPartition):
    """An assigned partition whose records are delivered in commit order.

    Replies wait in order. ``position`` is ``_base`` and the records since: those delivered of the
    first reply, and those that a former reader had delivered and that are yet to be skipped.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        buffer_bytes: int,
        spill_directory: str | None,
        spill_max_bytes: int,
    ) -> None:
        super().__init__(topic_partition)
        self._buffer_bytes = buffer_bytes
        self._spill = SpillFile(spill_directory, spill_max_bytes)
        self._open: dict[int, _OpenTransaction] = {}
        """The transactions that are open at ``fetch_offset``, by producer id."""
        self._start = CommitPosition(0)
        """Where the last seek went."""
        self._base = CommitPosition(0)
        """The position before the first reply that waits, without records of its own."""
        self._skip_count = 0
        """Records still to come that a former reader has delivered."""
        self._replies: deque[_Reply] = deque()

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait to be taken; those of open transactions have a bound of their own."""
        return sum(reply.memory_bytes for reply in self._replies)

    @property
    def open_bytes(self) -> int:
        """Bytes of open transactions in memory."""
        return sum(transaction.memory_bytes for transaction in self._open.values())

    @property
    def spilled_bytes(self) -> int:
        """Bytes in the spill file."""
        return self._spill.wanted_bytes

    @property
    def has_pieces(self) -> bool:
        """See ``AssignedPartition.has_pieces``."""
        return bool(self._replies)

    @property
    def has_room(self) -> bool:
        """See ``AssignedPartition.has_room``."""
        return len(self._replies) < PIECES_MAX

    def seek(self, offset: int) -> None:
        """Continue from a ``CommitPosition``, or from ``offset`` as if nothing were delivered."""
        start = offset if isinstance(offset, CommitPosition) else CommitPosition(offset)
        super().seek(start)
        self.fetch_offset = int(start)
        self._start = start
        self._base = CommitPosition(int(start), start.reading_offset)
        self._skip_count = start.record_count

    def is_at(self, offset: int) -> bool:
        """Whether the position is exactly there, with what is delivered beyond it."""
        return isinstance(offset, CommitPosition) and offset.is_same(self.position)

    def position_of(self, committed: OffsetAndMetadata) -> int:
        """See ``CommitPosition.of``."""
        return CommitPosition.of(committed)

    def _forget(self) -> None:
        super()._forget()
        for reply in self._replies:
            self._drop(reply.batches)
        self._replies.clear()
        for transaction in self._open.values():
            self._drop(transaction.batches)
        self._open.clear()

    def _drop(self, batches: Iterable[_Batch]) -> None:
        self._spill.forget(sum(b.header.size_bytes for b in batches if b.records is None))

    # --- receiving ----------------------------------------------------------------------------

    def receive(
        self,
        records: Buffer,
        _aborted_transactions: Iterable[AbortedTransaction] | None,
        *,
        checks_crc: bool,
    ) -> None:
        """Sort one reply, of a fetch to the high watermark, into what is complete and what is open.

        Raises as ``visible_batches`` does, and ``SpillFailedError``: then nothing has changed.
        """
        found = _whole_batches(records, checks_crc=checks_crc)
        if not found:
            return
        self._make_room(len(records))
        complete: deque[_Batch] = deque()
        for batch in found:
            self._sort(batch, complete)
        for transaction in self._open.values():
            transaction.keep_without(records)
        end = self.fetch_offset = found[-1].header.next_offset
        after = None
        if end > self._start.reading_offset:
            first_open = min((one.first_offset for one in self._open.values()), default=end)
            after = CommitPosition(first_open, end)
        size_bytes = sum(batch.memory_bytes() for batch in complete)
        self._replies.append(_Reply(complete, after, size_bytes))

    def _sort(self, batch: _Batch, complete: deque[_Batch]) -> None:
        """Add to ``complete`` what one batch of the log completes."""
        header = batch.header
        is_new = header.last_offset >= self._start.reading_offset
        if header.is_control:
            self._end_transaction(batch, complete if is_new else None)
        elif header.record_count and header.is_transactional:
            transaction = self._open.get(header.producer_id)
            if transaction is None:
                first_offset = max(header.base_offset, int(self._start))
                transaction = self._open[header.producer_id] = _OpenTransaction(first_offset)
            transaction.add(batch)
        elif header.record_count and is_new:
            complete.append(batch)

    def _end_transaction(self, marker: _Batch, complete: deque[_Batch] | None) -> None:
        assert marker.records is not None
        control = decode_control(marker.records, marker.header, marker.position)
        if control is None or control.committed is None:
            return
        ended = self._open.pop(marker.header.producer_id, None)
        if ended is None:
            return
        if control.committed and complete is not None:
            complete.extend(ended.batches)
            return
        self._drop(ended.batches)
        if not control.committed:
            self.aborted_record_count += sum(one.header.record_count for one in ended.batches)

    def _make_room(self, coming_bytes: int) -> None:
        """Spill the largest open transactions until ``coming_bytes`` more fit into memory."""
        over_bytes = self.open_bytes + coming_bytes - self._buffer_bytes
        if over_bytes <= 0:
            return
        largest = sorted(self._open.values(), key=lambda one: one.memory_bytes, reverse=True)
        for transaction in largest:
            size_bytes = transaction.memory_bytes
            if over_bytes <= 0 or not size_bytes:
                return
            transaction.spill(self._spill)
            over_bytes -= size_bytes

    # --- taking -------------------------------------------------------------------------------

    def take_records(self, count_max: int) -> list[ConsumerRecord]:
        """See ``AssignedPartition.take_records``; in commit order."""
        taken: list[ConsumerRecord] = []
        self._finish_replies()
        while self._replies and len(taken) < count_max:
            reply = self._replies[0]
            try:
                rows = reply.rows = reply.rows or self._rows_of_first(reply)
            except OncelogError:
                if taken:
                    return taken
                raise
            if self._skip_count:
                self._advance(reply, len(rows.take(self._skip_count)))
            else:
                records = rows.take(count_max - len(taken))
                taken += records
                self._advance(reply, len(records))
            if not rows.left:
                self._finish_first(reply)
            self._finish_replies()
        return taken

    def take_columns(self, count_max: int | None) -> list[pa.RecordBatch]:
        """See ``AssignedPartition.take_columns``; in commit order."""
        taken: list[pa.RecordBatch] = []
        left = count_max
        self._finish_replies()
        while self._replies and (left is None or left > 0):
            reply = self._replies[0]
            try:
                columns = self._columns_of_first(reply, left)
            except OncelogError:
                if taken:
                    return taken
                raise
            if columns.num_rows:
                taken.append(columns)
                left = None if left is None else left - columns.num_rows
            self._finish_replies()
        return taken

    def _rows_of_first(self, reply: _Reply) -> Rows[ConsumerRecord]:
        """The records of the reply's first batch that are not taken."""
        batch = reply.batches[0]
        rows = self._decode_rows(
            *(self._bytes_of(batch), batch.header),
            position=0 if batch.records is None else batch.position,
            first_offset=int(self._start),
        )
        rows.take(reply.count_of_first)
        return rows

    def _columns_of_first(self, reply: _Reply, count_max: int | None) -> pa.RecordBatch:
        """Take the first batch of a reply, or up to ``count_max`` rows of it, as columns."""
        import pyarrow.compute as pc

        batch = reply.batches[0]
        data = memoryview(self._bytes_of(batch))
        begin = 0 if batch.records is None else batch.position
        try:
            columns = decode_columns([data[begin : begin + batch.header.size_bytes]])
        except CorruptDataError as error:
            raise self._undecodable(batch.header, error, int(self._start)) from error
        if batch.header.base_offset < int(self._start):
            columns = columns.filter(pc.greater_equal(columns.column("offset"), int(self._start)))
        columns = columns.slice(reply.count_of_first)
        skipped = min(self._skip_count, columns.num_rows)
        self._advance(reply, skipped)
        columns = columns.slice(skipped)
        reply.rows = None
        if count_max is not None and columns.num_rows > count_max:
            columns = columns.slice(0, count_max)
            self._advance(reply, count_max)
        else:
            self._advance(reply, columns.num_rows)
            self._finish_first(reply)
        return columns

    def _bytes_of(self, batch: _Batch) -> Buffer:
        if batch.records is not None:
            return batch.records
        return self._spill.read(batch.position, batch.header.size_bytes)

    def _advance(self, reply: _Reply, count: int) -> None:
        """So many records of the reply's first batch are skipped or delivered."""
        self._skip_count = max(0, self._skip_count - count)
        reply.count_taken += count
        reply.count_of_first += count
        self.position = self._base.advanced(reply.count_taken + self._skip_count)

    def _finish_first(self, reply: _Reply) -> None:
        batch = reply.batches.popleft()
        self._drop((batch,))
        reply.memory_bytes -= batch.memory_bytes()
        reply.count_of_first, reply.rows = 0, None

    def _finish_replies(self) -> None:
        """Step over replies that are taken, with what they have shown of open transactions."""
        while self._replies and not self._replies[0].batches:
            reply = self._replies.popleft()
            if reply.after is not None:
                self._base = reply.after
                self.position = reply.after.advanced(self._skip_count)


def _whole_batches(records: Buffer, *, checks_crc: bool) -> list[_Batch]:
    """The batches of a reply; those before the first damaged one."""
    found: list[_Batch] = []
    try:
        for position, header in iterate_batches(records):
            if checks_crc and not crc_matches(records, header, position):
                raise CorruptDataError(f"batch at offset {header.base_offset} fails its CRC check")
            found.append(_Batch(header, records, position))
    except CorruptDataError:
        if not found:
            raise
    return found
