"""Appends of a group coordinator that wait to be applied: always in log order, once committed.

Any number may be in flight, so that commits share syncs. A waiter for one of them, or a
reader, first applies everything committed by then: state never runs ahead of the high watermark,
and never depends on which waiter wakes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group.machine import GroupTable
from oncelog.actors.protocol.messages.group import TxnOffsetCommitRequest
from oncelog.actors.protocol.messages.partition import TxnMarker
from oncelog.actors.replica.log import AppendOutcome
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One batch: a marker, or records of one group, in a transaction or not."""

    base_offset: int
    next_offset: int
    group_id: str = ""
    producer_id: int = NO_PRODUCER_ID
    records: Sequence[LogRecord] = ()
    marker: TxnMarker | None = None


class ApplyQueue:
    """Appends to ``replica`` and applies to ``table``, in the epoch ``replica`` leads with now.

    A coordinator that loads again makes a new queue: what an older one holds is never applied.
    ``on_failure`` is called when a committed record could not be applied: the table no longer
    matches the log.
    """

    def __init__(
        self,
        *,
        replica: Replica,
        table: GroupTable,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._replica = replica
        self._table = table
        self._on_failure = on_failure
        self._entries: deque[_Entry] = deque()
        self._leader_epoch = replica.leader_epoch
        self._is_closed = False

    def close(self) -> None:
        """Nothing more is applied, and every waiter is told that the outcome is unknown."""
        self._is_closed = True
        self._entries.clear()

    def append(
        self,
        group_id: str,
        records: Sequence[LogRecord],
        now_ms: int,
        transaction: TxnOffsetCommitRequest | None = None,
    ) -> AppendOutcome:
        """Append records of one group as one batch; wait for it with ``applied``.

        With ``transaction`` the batch belongs to that producer's transaction: its epoch, sequence
        and ticket are checked, and its offsets are pending until a marker follows. A batch
        appended before is waited for like a new one, but not applied a second time.
        """
        producer_id = NO_PRODUCER_ID
        if transaction is None:
            outcome = self._replica.append(records, now_ms=now_ms)
        else:
            producer_id = transaction.producer_id
            outcome = self._replica.append(
                records,
                now_ms=now_ms,
                producer_id=producer_id,
                producer_epoch=transaction.producer_epoch,
                base_sequence=transaction.base_sequence,
                transactional_id=transaction.transactional_id,
                ticket=transaction.ticket,
            )
        if outcome.error is ErrorCode.NONE and not outcome.is_duplicate:
            self._entries.append(
                _Entry(
                    base_offset=outcome.base_offset,
                    next_offset=outcome.next_offset,
                    group_id=group_id,
                    producer_id=producer_id,
                    records=records,
                )
            )
        return outcome

    def append_marker(
        self, marker: TxnMarker, coordinator_epoch: int, now_ms: int
    ) -> AppendOutcome:
        """Append a transaction's marker; wait for it with ``applied``."""
        outcome = self._replica.append_marker(marker, coordinator_epoch, now_ms)
        if outcome.error is ErrorCode.NONE:
            self._entries.append(
                _Entry(
                    base_offset=outcome.base_offset,
                    next_offset=outcome.next_offset,
                    marker=marker,
                )
            )
        return outcome

    async def applied(self, outcome: AppendOutcome) -> ErrorCode:
        """Wait until an append is durable and applied.

        On an error the outcome of an accepted append is unknown.
        """
        error = outcome.error
        if error is ErrorCode.NONE:
            error = await self._replica.committed(outcome.next_offset)
        if error is not ErrorCode.NONE:
            return error
        if self._is_closed or self._leader_epoch != self._replica.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.catch_up()
        return ErrorCode.NONE

    async def settled(self, group_id: str) -> ErrorCode:
        """Wait until everything appended for a group so far is applied."""
        waiting = [entry.next_offset for entry in self._entries if entry.group_id == group_id]
        if not waiting:
            return ErrorCode.NONE
        return await self.applied(AppendOutcome(error=ErrorCode.NONE, next_offset=waiting[-1]))

    def catch_up(self) -> None:
        """Apply, in log order, everything committed by now."""
        high_watermark = self._replica.machine.high_watermark
        while self._entries and self._entries[0].next_offset <= high_watermark:
            try:
                self._apply(self._entries.popleft())
            except Exception as error:
                self._on_failure(error)
                raise

    def _apply(self, entry: _Entry) -> None:
        if entry.marker is not None:
            self._table.apply_marker(entry.marker.producer_id, committed=entry.marker.committed)
        for place, record in enumerate(entry.records):
            self._table.apply(
                record,
                record_offset=entry.base_offset + place,
                producer_id=entry.producer_id,
            )

    @property
    def group_ids(self) -> set[str]:
        """The groups with records in flight."""
        return {entry.group_id for entry in self._entries}
