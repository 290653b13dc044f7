"""Which batches of a fetch reply a reader may see: the read_committed rule.

Below the last stable offset every transaction is decided, so "not in the aborted list" means
committed, and the reader needs neither buffering nor a look-ahead. The rule, batch by batch in
offset order (Source: KIP-98, "Consumer"):

* a batch with a producer id first *activates* every listed transaction whose first offset is not
  above the batch's last offset;
* an ABORT marker *deactivates* its producer id; COMMIT markers, other control types and control
  batches that compaction has emptied change nothing; no control batch is ever delivered;
* a transactional data batch of an active producer id is skipped; all other data is delivered.

The state starts empty for each reply, because a leader lists every overlapping transaction. One
producer may have several aborted transactions in one reply: each activates it again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import AbortedTransaction
from oncelog.storage.records.batch import BatchHeader, Buffer, crc_matches, iterate_batches
from oncelog.storage.records.control import decode_control


@dataclass(frozen=True, slots=True)
class VisibleBatch:
    """One data batch whose records may be delivered: ``header.size_bytes`` from ``position`` on."""

    position: int
    header: BatchHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleBatches:
    """What one reply lets the reader see.

    ``next_offset`` (exclusive) is where the reply ends, past markers and aborted data too: the
    position to continue from once every batch here is delivered. ``aborted_record_count`` counts
    the records skipped because their transaction was aborted.
    """

    batches: tuple[VisibleBatch, ...]
    next_offset: int
    aborted_record_count: int = 0


class _AbortedTransactions:
    """The producers whose data is aborted at the current batch."""

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
    """Filter the ``records`` of a fetch from ``fetch_offset`` (inclusive).

    ``aborted_transactions`` is ``None`` for read_uncommitted: then only control batches are
    hidden. A truncated batch at the end is ignored. The first visible batch may begin below
    ``fetch_offset``; its earlier records are the caller's to drop.

    Raises ``CorruptDataError`` if the first batch is damaged. The result ends before any later
    damage, so that sound records are delivered first; the next fetch then hits the damage.
    """
    aborted = _AbortedTransactions(aborted_transactions or ())
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
