"""What a coordinator decides by itself: it completes, ends what is overdue, forgets what is idle.

| | at rest | Ongoing | Prepare* |
|---|---|---|---|
| every marker is written | - | - | COMPLETE |
| transaction timeout; of a run, since one of its tasks was heard | - | PREPARE_ABORT | - |
| id expiration, no commit token | tombstone | - | - |

Source: KIP-98; that tokens are kept is oncelog's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.partition import TxnMarker
from oncelog.actors.protocol.transaction.ids import TransactionalIds
from oncelog.actors.protocol.transaction.log import encode_member_key
from oncelog.actors.protocol.transaction.members import MemberStatus
from oncelog.actors.protocol.transaction.producer_ids import (
    ProducerIdBlocks,
    waiting_for_producer_ids,
)
from oncelog.actors.protocol.transaction.state import (
    AT_REST,
    PREPARED,
    EpochCause,
    TransactionMetadata,
    TransactionState,
    aborted,
    begun_ahead,
    completed,
    txn_markers,
)

NOTHING = Decision(reply=Reply())


@dataclass(eq=False)
class Upkeep:
    """The decisions without a request."""

    ids: TransactionalIds
    producer_ids: ProducerIdBlocks
    transactional_id_expiration_ms: int
    distributed_write_max_ms: int

    # --- completion -------------------------------------------------------------------------

    def unfinished(self) -> tuple[str, ...]:
        """Every id whose transaction is prepared and not complete: a new coordinator resumes it."""
        return tuple(
            metadata.transactional_id
            for metadata in self.ids.unsettled()
            if metadata.state in PREPARED
        )

    def is_prepared(self, transactional_id: str) -> bool:
        """Whether the id's transaction is prepared and waits for its markers."""
        metadata = self.ids.metadata(transactional_id)
        return metadata is not None and metadata.state in PREPARED

    def markers_due(self, transactional_id: str) -> tuple[TxnMarker, ...]:
        """The markers of a prepared transaction: one per producer with partitions."""
        metadata = self.ids.metadata(transactional_id)
        if metadata is None or metadata.state not in PREPARED:
            return ()
        return txn_markers(metadata)

    def decide_complete(self, transactional_id: str, now_ms: int) -> Decision[Reply]:
        """Close a prepared transaction. Its markers must all have been written.

        A tombstone for each member's record of the run comes along: compaction drops them. What
        was enrolled ahead begins the next transaction in the same batch of the log.
        """
        metadata = self.ids.metadata(transactional_id)
        if metadata is None or metadata.state not in PREPARED:
            return NOTHING
        complete = completed(metadata, now_ms)
        steps: tuple[TransactionMetadata, ...] = (complete,)
        if metadata.state is TransactionState.PREPARE_COMMIT and metadata.ahead_partitions:
            steps += (begun_ahead(complete, now_ms),)
        decision = self.ids.move(Reply(), *steps)
        tombstones = tuple(
            LogRecord(encode_member_key(transactional_id, producer_id), None)
            for producer_id, member in sorted(metadata.members.items())
            if member.status is not MemberStatus.FREE
        )
        return structs.replace(decision, records=decision.records + tombstones)

    # --- timeouts ---------------------------------------------------------------------------

    def expired_transactions(self, now_ms: int) -> tuple[str, ...]:
        """Every id whose transaction has been open for longer than its timeout."""
        return tuple(
            metadata.transactional_id
            for metadata in self.ids.unsettled()
            if self._is_expired(metadata, now_ms)
        )

    @waiting_for_producer_ids
    def decide_timeout(self, transactional_id: str, now_ms: int) -> Decision[Reply]:
        """Abort the id's transaction if it is open and past its timeout; otherwise do nothing."""
        metadata = self.ids.metadata(transactional_id)
        if metadata is None or not self._is_expired(metadata, now_ms):
            return NOTHING
        spare = self.producer_ids.spare(metadata)
        return self.ids.move(Reply(), aborted(metadata, EpochCause.TIMEOUT, now_ms, spare))

    def _is_expired(self, metadata: TransactionMetadata, now_ms: int) -> bool:
        return (
            metadata.state is TransactionState.ONGOING
            and not self.ids.is_pending(metadata.transactional_id)
            and self._deadline_ms(metadata) < now_ms
        )

    def longest_ms(self, metadata: TransactionMetadata) -> int:
        """How long after its start it may be open at most: so long its tickets must count."""
        if metadata.is_run_current:
            return self.distributed_write_max_ms
        return metadata.transaction_timeout_ms

    def _deadline_ms(self, metadata: TransactionMetadata) -> int:
        """Until when it may be open; a run for as long as something is heard of its tasks."""
        latest_ms = metadata.start_ms + self.longest_ms(metadata)
        if not metadata.is_run_current:
            return latest_ms
        return min(metadata.last_update_ms + metadata.transaction_timeout_ms, latest_ms)

    # --- idle ids ---------------------------------------------------------------------------

    def idle_ids(self, now_ms: int) -> tuple[str, ...]:
        """Every id that may be forgotten: long at rest, and without a token to remember."""
        return tuple(
            metadata.transactional_id
            for metadata in self.ids.forgettable(now_ms - self.transactional_id_expiration_ms)
            if self._is_idle(metadata, now_ms)
        )

    def decide_expire(self, transactional_id: str, now_ms: int) -> Decision[Reply]:
        """Forget an id that was long idle and has no token; otherwise do nothing."""
        metadata = self.ids.metadata(transactional_id)
        if metadata is None or not self._is_idle(metadata, now_ms):
            return NOTHING
        return self.ids.forget(Reply(), transactional_id)

    def _is_idle(self, metadata: TransactionMetadata, now_ms: int) -> bool:
        return (
            metadata.state in AT_REST
            and not self.ids.is_pending(metadata.transactional_id)
            and metadata.commit_token is None
            and metadata.last_update_ms <= now_ms - self.transactional_id_expiration_ms
        )
