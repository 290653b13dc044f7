"""The transaction coordinator's machine, for all transactional ids of a shard.

Rules. ``decide_…`` validates and returns records and a reply; it sets only a pending mark. Only
``ids.apply`` changes state, live and on reload. While a mark is set, requests that would change the
id are answered ``CONCURRENT_TRANSACTIONS``. Once PREPARE is durable the verdict is final (I-11);
COMPLETE follows when every marker is written (I-15).

| who asks | part |
|---|---|
| a producer: init_producer_id, add_partitions, prepare_txn, end_txn | ``producers``, ``end`` |
| one of version 1: the same, and verify_txn | ``told``, then as above |
| producers that live: heartbeats | ``holders`` |
| a distributed write: begin_run, enlist, leave_run, renew_run, end_txn | ``runs``, ``end`` |
| an operator: describe, abort, end prepared, delete | ``Operations`` |
| the coordinator itself: completion, timeout, expiration | ``Upkeep`` |

Source: KIP-98, KIP-360, KIP-890; members, runs and tokens are oncelog's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from msgspec import structs

from oncelog.actors.protocol.effects import Decision, LogRecord, refused
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.partition import TxnMarker
from oncelog.actors.protocol.messages.transaction import (
    AbortTransactionReply,
    AbortTransactionRequest,
    DeleteTransactionalIdReply,
    DeleteTransactionalIdRequest,
    DescribeTransactionsRequest,
    EndPreparedTxnRequest,
    EndTxnReply,
    EndTxnRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
    TransactionDescription,
    TransactionMemberDescription,
)
from oncelog.actors.protocol.tickets import TRANSACTION_TIMEOUT_LIMIT_MS
from oncelog.actors.protocol.transaction.checks import Refusal, check_end_txn
from oncelog.actors.protocol.transaction.commit_versions import version_in
from oncelog.actors.protocol.transaction.end import EndAge, end_age
from oncelog.actors.protocol.transaction.holders import Holders
from oncelog.actors.protocol.transaction.ids import TransactionalIds
from oncelog.actors.protocol.transaction.members import HeldRecords, MemberStatus, active_count
from oncelog.actors.protocol.transaction.producer_ids import (
    ProducerIdBlocks,
    waiting_for_producer_ids,
)
from oncelog.actors.protocol.transaction.producers import Producers
from oncelog.actors.protocol.transaction.runs import Runs
from oncelog.actors.protocol.transaction.transaction_records import encode_member_key
from oncelog.actors.protocol.transaction.transaction_state import (
    ABORTED,
    AT_REST,
    COMMITTED,
    DECIDED,
    EpochCause,
    TransactionMetadata,
    TransactionState,
    aborted,
    begun_ahead,
    completed,
    prepared,
    txn_markers,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP

NOTHING_HELD: Final = HeldRecords()
NO_TOPICS: Final[Mapping[str, int]] = MappingProxyType({})
NOTHING = Decision(reply=Reply())


class TransactionMachine:
    """The transactional ids of one coordinator shard, and the parts that decide about them."""

    def __init__(
        self,
        *,
        producer_ids: ProducerIdBlocks,
        transaction_max_timeout_ms: int,
        transactional_id_expiration_ms: int,
        distributed_write_max_ms: int = TRANSACTION_TIMEOUT_LIMIT_MS,
        is_two_phase_allowed: bool = False,
    ) -> None:
        self.ids = TransactionalIds()
        self.producers = Producers(
            self.ids, producer_ids, transaction_max_timeout_ms, is_two_phase_allowed
        )
        self.holders = Holders(self.ids)
        self.runs = Runs(self.ids, producer_ids, transaction_max_timeout_ms)
        self.operations = Operations(self.ids, producer_ids)
        self.upkeep = Upkeep(
            self.ids,
            producer_ids,
            self.holders,
            transactional_id_expiration_ms,
            distributed_write_max_ms,
        )

    def decide_init_producer_id(
        self, request: InitProducerIdRequest, now_ms: int, monotonic_ms: int
    ) -> Decision[InitProducerIdReply]:
        """Give an id to a producer, unless it is not to put out a holder that lives."""
        refusal = self.holders.refusal(request, monotonic_ms)
        if refusal is not None:
            return refused(request, *refusal)
        return self.producers.decide_init_producer_id(request, now_ms)

    def decide_end_txn(
        self,
        request: EndTxnRequest,
        now_ms: int,
        held: HeldRecords = NOTHING_HELD,
        partition_counts: Mapping[str, int] = NO_TOPICS,
    ) -> Decision[EndTxnReply]:
        """End a transaction of one producer or of a run, or answer how it has ended.

        ``held`` is what the leaders hold of the winners; see ``Runs.winner_partitions``.
        ``partition_counts`` is as in ``decide_add_partitions``, for enrolment ahead.
        """
        refusal = check_end_txn(request)
        if refusal is not None:
            return refused(request, *refusal)
        if request.run is None:
            return self.producers.decide_end(request, now_ms, partition_counts)
        return self.runs.decide_end(request, request.run, held, now_ms)


@dataclass(eq=False)
class Operations:
    """An operator's requests: find a transactional id, abort its transaction, delete the id.

    Rules. An operator's abort is an abort like any other: PREPARE_ABORT, markers with the next
    epoch, COMPLETE. The producer continues with that epoch, as after a timeout. The request names a
    producer id and epoch, so that a late copy never aborts the next transaction. An id is deleted
    only at rest: an open or undecided transaction concerns its partitions as well.

    | request | at rest | Ongoing | Prepared | PrepareAbort | PrepareCommit |
    |---|---|---|---|---|---|
    | abort, current epoch | INVALID | PREPARE | INVALID | INVALID | INVALID |
    | abort, epoch before | NONE if aborted | INVALID | INVALID | NONE | INVALID |
    | end prepared, current epoch | INVALID | INVALID | PREPARE | INVALID | INVALID |
    | end prepared, epoch before | NONE if so ended | INVALID | INVALID | NONE if so | NONE if so |
    | delete | tombstone | INVALID | INVALID | INVALID | INVALID |

    An unknown id is TRANSACTIONAL_ID_NOT_FOUND; what is not NONE is INVALID as well.
    INVALID is INVALID_TXN_STATE. A prepared transaction may be committed in another system, so an
    operator who ends it says how.

    Source: KIP-664, KIP-939 ("force terminate"); tokens, and so deletion, are oncelog's own.
    """

    ids: TransactionalIds
    producer_ids: ProducerIdBlocks

    def describe(self, transactional_ids: Sequence[str]) -> tuple[TransactionDescription, ...]:
        """Describe those of ``transactional_ids`` that exist."""
        found = (self.ids.metadata(transactional_id) for transactional_id in transactional_ids)
        return tuple(_described(metadata) for metadata in found if metadata is not None)

    def matching(
        self, request: DescribeTransactionsRequest, now_ms: int
    ) -> tuple[TransactionDescription, ...]:
        """Every id of the shard that passes the filters of ``request``, by id."""
        return tuple(
            _described(metadata)
            for metadata in self.ids.all()
            if _passes(metadata, request, now_ms)
        )

    def _changeable(self, transactional_id: str) -> TransactionMetadata | Refusal:
        """The state of an id that may be changed now, or why it may not."""
        metadata = self.ids.metadata(transactional_id)
        if metadata is None:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, (
                f"there is no transactional id {transactional_id!r}"
            )
        return self.ids.check_not_pending(transactional_id) or metadata

    @waiting_for_producer_ids
    def decide_abort(
        self, request: AbortTransactionRequest, now_ms: int
    ) -> Decision[AbortTransactionReply]:
        """Abort the transaction that the request names, unless its commit is decided."""
        metadata = self._changeable(request.transactional_id)
        if isinstance(metadata, tuple):
            return refused(request, *metadata)
        age = end_age(
            metadata, producer_id=request.producer_id, producer_epoch=request.producer_epoch
        )
        if age is EndAge.CURRENT and metadata.state is TransactionState.ONGOING:
            spare = self.producer_ids.spare(metadata)
            following = aborted(metadata, EpochCause.OPERATOR, now_ms, spare)
            return self.ids.move(AbortTransactionReply(), following)
        if age is EndAge.RETRY and metadata.state in ABORTED:
            return Decision(reply=AbortTransactionReply())
        detail = (
            f"{request.transactional_id!r} is in state {metadata.state.value} with producer id "
            f"{metadata.producer_id} and epoch {metadata.producer_epoch}, not in an open "
            f"transaction of producer id {request.producer_id} and epoch {request.producer_epoch}"
        )
        return refused(request, ErrorCode.INVALID_TXN_STATE, detail)

    @waiting_for_producer_ids
    def decide_end_prepared(
        self, request: EndPreparedTxnRequest, now_ms: int
    ) -> Decision[AbortTransactionReply]:
        """Commit or abort the prepared transaction that the request names."""
        metadata = self._changeable(request.transactional_id)
        if isinstance(metadata, tuple):
            return refused(request, *metadata)
        age = end_age(
            metadata, producer_id=request.producer_id, producer_epoch=request.producer_epoch
        )
        if age is EndAge.CURRENT and metadata.state is TransactionState.PREPARED:
            following = prepared(
                metadata,
                committed=request.committed,
                now_ms=now_ms,
                spare_producer_id=self.producer_ids.spare(metadata),
                token=metadata.commit_token,
                cause=EpochCause.OPERATOR,
            )
            return self.ids.move(AbortTransactionReply(), following)
        is_so_ended = metadata.state in (COMMITTED if request.committed else ABORTED)
        if age is EndAge.RETRY and is_so_ended and metadata.epoch_cause is EpochCause.OPERATOR:
            return Decision(reply=AbortTransactionReply())
        detail = (
            f"{request.transactional_id!r} is in state {metadata.state.value} with producer id "
            f"{metadata.producer_id} and epoch {metadata.producer_epoch}: it has no prepared "
            f"transaction of producer id {request.producer_id} and epoch {request.producer_epoch}"
        )
        return refused(request, ErrorCode.INVALID_TXN_STATE, detail)

    def decide_delete(
        self, request: DeleteTransactionalIdRequest
    ) -> Decision[DeleteTransactionalIdReply]:
        """Delete an id at rest, even one with a token; its next owner starts anew."""
        metadata = self._changeable(request.transactional_id)
        if isinstance(metadata, tuple):
            return refused(request, *metadata)
        if metadata.state not in AT_REST:
            detail = (
                f"{request.transactional_id!r} is in state {metadata.state.value}: "
                "end its transaction first"
            )
            return refused(request, ErrorCode.INVALID_TXN_STATE, detail)
        return self.ids.forget(DeleteTransactionalIdReply(), request.transactional_id)


def _passes(
    metadata: TransactionMetadata, request: DescribeTransactionsRequest, now_ms: int
) -> bool:
    if request.states and metadata.state.value not in request.states:
        return False
    if request.producer_ids:
        known = {metadata.producer_id, metadata.next_producer_id, *metadata.members}
        if metadata.prepared_txn is not None:
            known.add(metadata.prepared_txn.producer_id)
        if known.isdisjoint(request.producer_ids):
            return False
    if request.app_id:
        version = version_in(metadata.commit_token or b"")
        if version is None or version.app_id != request.app_id:
            return False
    if request.running_longer_than_ms < 0:
        return True
    is_running = metadata.state not in AT_REST
    return is_running and now_ms - metadata.start_ms > request.running_longer_than_ms


def _described(metadata: TransactionMetadata) -> TransactionDescription:
    """The id as a reply describes it."""
    told = metadata.told
    return TransactionDescription(
        transactional_id=metadata.transactional_id,
        state=metadata.state.value,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.transaction_timeout_ms,
        transaction_start_ms=NO_TIMESTAMP if metadata.state in AT_REST else metadata.start_ms,
        last_update_ms=metadata.last_update_ms,
        partitions=tuple(sorted(metadata.all_partitions)),
        commit_token=metadata.commit_token,
        member_count=active_count(metadata.members),
        prepared=metadata.prepared_txn,
        told_producer_id=NO_PRODUCER_ID if told is None else told.producer_id,
        told_producer_epoch=NO_PRODUCER_EPOCH if told is None else told.producer_epoch,
        members=tuple(
            TransactionMemberDescription(
                producer_id=member.producer_id,
                producer_epoch=member.producer_epoch,
                status=member.status.name,
                partitions=tuple(sorted(member.partitions)),
            )
            for _, member in sorted(metadata.members.items())
            if member.status is not MemberStatus.FREE
        ),
    )


@dataclass(eq=False)
class Upkeep:
    """The coordinator's own decisions: complete, time out, and forget idle ids.

    | | at rest | Ongoing | Prepared | Prepare* |
    |---|---|---|---|---|
    | every marker is written | - | - | - | COMPLETE |
    | transaction timeout; of a run, since one of its tasks was heard | - | PREPARE_ABORT | - | - |
    | id expiration, no commit token | tombstone | - | - | - |

    Source: KIP-98; keeping ids with tokens is oncelog's own.
    """

    ids: TransactionalIds
    producer_ids: ProducerIdBlocks
    holders: Holders
    transactional_id_expiration_ms: int
    distributed_write_max_ms: int

    # --- completion -------------------------------------------------------------------------

    def unfinished(self) -> tuple[str, ...]:
        """All ids with a prepared, incomplete transaction; a new coordinator resumes these."""
        return tuple(
            metadata.transactional_id
            for metadata in self.ids.not_at_rest()
            if metadata.state in DECIDED
        )

    def is_prepared(self, transactional_id: str) -> bool:
        """Whether the id's transaction is prepared and waits for its markers."""
        metadata = self.ids.metadata(transactional_id)
        return metadata is not None and metadata.state in DECIDED

    def markers_due(self, transactional_id: str) -> tuple[TxnMarker, ...]:
        """The markers of a prepared transaction: one per producer with partitions."""
        metadata = self.ids.metadata(transactional_id)
        if metadata is None or metadata.state not in DECIDED:
            return ()
        return txn_markers(metadata)

    def decide_complete(self, transactional_id: str, now_ms: int) -> Decision[Reply]:
        """Close a prepared transaction. Its markers must all have been written.

        It also writes a tombstone for each member's record of the run. Partitions enrolled ahead
        begin the next transaction in the same log batch.
        """
        metadata = self.ids.metadata(transactional_id)
        if metadata is None or metadata.state not in DECIDED:
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

    def oldest_prepared_ms(self) -> int | None:
        """When the transaction was prepared that has waited longest for a decision elsewhere."""
        found = (metadata.prepared_txn for metadata in self.ids.not_at_rest())
        return min((one.prepared_ms for one in found if one is not None), default=None)

    # --- timeouts ---------------------------------------------------------------------------

    def expired_transactions(self, now_ms: int) -> tuple[str, ...]:
        """Every id whose transaction has been open for longer than its timeout."""
        return tuple(
            metadata.transactional_id
            for metadata in self.ids.not_at_rest()
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
        """How long a transaction may be open at most; its tickets must stay valid that long."""
        if metadata.is_run_current:
            return self.distributed_write_max_ms
        return metadata.transaction_timeout_ms

    def _deadline_ms(self, metadata: TransactionMetadata) -> int:
        """When it times out; a run stays open while its tasks are heard."""
        latest_ms = metadata.start_ms + self.longest_ms(metadata)
        if not metadata.is_run_current:
            return latest_ms
        return min(metadata.last_update_ms + metadata.transaction_timeout_ms, latest_ms)

    # --- idle ids ---------------------------------------------------------------------------

    def idle_ids(self, now_ms: int, monotonic_ms: int = 0) -> tuple[str, ...]:
        """All ids that may be forgotten: long at rest, not heard of, and without a token."""
        since_ms = monotonic_ms - self.transactional_id_expiration_ms
        return tuple(
            metadata.transactional_id
            for metadata in self.ids.forgettable(now_ms - self.transactional_id_expiration_ms)
            if self._is_idle(metadata, now_ms)
            and not self.holders.was_heard_since(metadata.transactional_id, since_ms)
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
