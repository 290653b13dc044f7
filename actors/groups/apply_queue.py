"""Appends of a group coordinator, and the state that they become once they are committed.

One file: the queue, and the state of the shard that it applies records to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group.group_machine import GroupMachine
from oncelog.actors.protocol.group.rebalance import GroupSettings
from oncelog.actors.protocol.messages.group import TxnOffsetCommitRequest
from oncelog.actors.protocol.messages.partition import TxnMarker
from oncelog.actors.protocol.messages.share import TxnShareAcknowledgeRequest
from oncelog.actors.protocol.queue.share_groups import ShareGroups
from oncelog.actors.replica.replica import Replica
from oncelog.actors.replica.replica_log import AppendOutcome
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_ID


class ShardState:
    """The groups of one shard, of both kinds.

    ``on_ended`` gets the share groups in which a marker ended something.
    """

    def __init__(
        self, settings: GroupSettings, on_ended: Callable[[tuple[str, ...]], None]
    ) -> None:
        self.groups = GroupMachine(settings)
        self.shares = ShareGroups()
        self._on_ended = on_ended

    def apply(self, record: LogRecord, *, record_offset: int, producer_id: int) -> None:
        """Apply one committed record; raises ``CorruptDataError`` if it cannot be read."""
        if not self.shares.apply(record):
            self.groups.apply(record, record_offset=record_offset, producer_id=producer_id)

    def apply_marker(self, producer_id: int, *, committed: bool) -> None:
        """Apply one committed marker."""
        self.groups.apply_marker(producer_id, committed=committed)
        ended = self.shares.apply_marker(producer_id, committed=committed)
        if ended:
            self._on_ended(ended)


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
    """Appends to ``replica`` and applies to ``state``, in the current leader epoch.

    Records are applied in log order, once committed. Any number of appends may be in flight, so
    that commits share syncs. A waiter for one of them, or a reader, first applies everything
    committed by then. So state is never ahead of the high watermark, and does not depend on which
    waiter wakes first.

    A coordinator that loads again makes a new queue; records in an older one are never applied.
    ``on_failure`` is called when a committed record could not be applied: the state no longer
    matches the log.
    """

    def __init__(
        self,
        *,
        replica: Replica,
        state: ShardState,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._replica = replica
        self._state = state
        self._on_failure = on_failure
        self._entries: deque[_Entry] = deque()
        self._leader_epoch = replica.leader_epoch
        self._is_closed = False

    def close(self) -> None:
        """Apply nothing more, and tell every waiter that the outcome is unknown."""
        self._is_closed = True
        self._entries.clear()

    def append(
        self,
        group_id: str,
        records: Sequence[LogRecord],
        now_ms: int,
        transaction: TxnOffsetCommitRequest | TxnShareAcknowledgeRequest | None = None,
    ) -> AppendOutcome:
        """Append records of one group as one batch; wait for it with ``applied``.

        With ``transaction`` the batch belongs to that producer's transaction: its epoch, sequence
        and ticket are checked, and its records are pending until a marker follows. A duplicate
        batch is waited for like a new one, but not applied again.
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

    async def wait_until_applied(self, group_id: str) -> ErrorCode:
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
            self._state.apply_marker(entry.marker.producer_id, committed=entry.marker.committed)
        for place, record in enumerate(entry.records):
            self._state.apply(
                record,
                record_offset=entry.base_offset + place,
                producer_id=entry.producer_id,
            )

    def marker_of(self, is_sought: Callable[[int], bool]) -> AppendOutcome | None:
        """The last marker on its way of a producer that ``is_sought``; None if there is none."""
        for entry in reversed(self._entries):
            if entry.marker is not None and is_sought(entry.marker.producer_id):
                return AppendOutcome(error=ErrorCode.NONE, next_offset=entry.next_offset)
        return None

    @property
    def group_ids(self) -> set[str]:
        """The groups with records in flight."""
        return {entry.group_id for entry in self._entries}
