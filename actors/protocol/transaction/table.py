"""All transactional ids of one coordinator shard: what is logged, and what is on its way.

Rules. ``apply`` is the one mutator, live and on reload. A *pending mark* stands from the decision
of a move until its record is applied or abandoned; meanwhile nothing else may move the id (I-18).
Moves follow the table of legal states, or the process ends (I-12).
Source: KIP-98, "Transaction Coordinator".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from msgspec import structs

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.admin import TransactionDescription
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.partition import TxnMarker
from oncelog.actors.protocol.messages.transaction import EndTxnRequest
from oncelog.actors.protocol.transaction.log import (
    decode_key,
    decode_member_key,
    decode_member_value,
    decode_value,
    encode_key,
    encode_member_key,
    encode_member_value,
    encode_value,
)
from oncelog.actors.protocol.transaction.members import Member, MemberStatus, with_member
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.transaction.rest import RestingIds
from oncelog.actors.protocol.transaction.state import (
    AT_REST,
    LEGAL_PREDECESSORS,
    PREPARED,
    EpochCause,
    TransactionMetadata,
    TransactionState,
    begun_ahead,
    completed,
    described,
    is_run_open,
    prepared,
    txn_markers,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_ID, TopicPartition


class _NoProducerIdError(Exception):
    """The reserved producer ids are used up; the caller may ask again in a moment."""


class TransactionTable:
    """The state of the machine; ``TransactionMachine`` adds the decisions."""

    def __init__(
        self,
        *,
        producer_ids: ProducerIdBlocks,
        transaction_max_timeout_ms: int,
        transactional_id_expiration_ms: int,
    ) -> None:
        self._producer_ids = producer_ids
        self._transaction_max_timeout_ms = transaction_max_timeout_ms
        self._transactional_id_expiration_ms = transactional_id_expiration_ms
        self._transactions: dict[str, TransactionMetadata] = {}
        self._pending: dict[str, TransactionState] = {}
        self._decided: dict[str, deque[tuple[bytes, TransactionMetadata]]] = {}
        """By id, what its records on the way say: live, nobody need read what was just written."""
        # Views of ``_transactions``, kept by ``apply``: a scan must not read 100,000 idle ids.
        self._unsettled: dict[str, None] = {}
        self._forgettable = RestingIds()

    # --- apply ------------------------------------------------------------------------------

    def apply(self, record: LogRecord) -> None:
        """Apply one committed record; the only way this machine changes, live and on reload.

        Raises ``CorruptDataError`` for bytes that do not fit their version.
        """
        if record.key is None:
            return
        transactional_id = decode_key(record.key)
        if transactional_id is None:
            self._apply_member(record.key, record.value)
            return
        self._pending.pop(transactional_id, None)
        if record.value is None:
            self._transactions.pop(transactional_id, None)
            self._classify(transactional_id, None)
            return
        metadata = self._read(transactional_id, record.value)
        if metadata is not None:
            self._transactions[transactional_id] = metadata
            self._classify(transactional_id, metadata)

    def _read(self, transactional_id: str, value: bytes) -> TransactionMetadata | None:
        """What a record says: decoded, unless it is the very one that was decided here."""
        decided = self._decided.get(transactional_id)
        if not decided or decided[0][0] is not value:
            self._decided.pop(transactional_id, None)
            return decode_value(transactional_id, value)
        _, metadata = decided.popleft()
        if not decided:
            del self._decided[transactional_id]
        return metadata

    def _apply_member(self, encoded_key: bytes, value: bytes | None) -> None:
        """One member of the run that is open now; of any other run it means nothing."""
        key = decode_member_key(encoded_key)
        if key is None or value is None:
            return
        self._pending.pop(key.transactional_id, None)
        metadata = self._transactions.get(key.transactional_id)
        found = decode_member_value(key.producer_id, value)
        if metadata is None or found is None:
            return
        owner = (metadata.producer_id, metadata.producer_epoch)
        is_open = metadata.state is TransactionState.ONGOING and metadata.is_run_current
        if is_open and owner == (found.owner_producer_id, found.owner_epoch):
            self._transactions[key.transactional_id] = structs.replace(
                metadata,
                members=with_member(metadata.members, found.member),
                last_update_ms=found.last_update_ms,
            )

    def _classify(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        """Keep the views: what is open or decided, and what may expire."""
        self._unsettled.pop(transactional_id, None)
        self._forgettable.discard(transactional_id)
        if metadata is None:
            return
        if metadata.state not in AT_REST:
            self._unsettled[transactional_id] = None
        elif metadata.commit_token is None:
            self._forgettable.add(transactional_id, metadata.last_update_ms)

    def abandon(self, transactional_id: str) -> None:
        """Take the pending mark back: the records were not committed under this coordinator."""
        self._pending.pop(transactional_id, None)
        self._decided.pop(transactional_id, None)

    # --- questions --------------------------------------------------------------------------

    def metadata(self, transactional_id: str) -> TransactionMetadata | None:
        """What is known of an id, or ``None``."""
        return self._transactions.get(transactional_id)

    def is_prepared(self, transactional_id: str) -> bool:
        """Whether the id's transaction is decided and waits for its markers."""
        metadata = self._transactions.get(transactional_id)
        return metadata is not None and metadata.state in PREPARED

    def markers_due(self, transactional_id: str) -> tuple[TxnMarker, ...]:
        """The markers of a prepared transaction: one per producer with partitions."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or metadata.state not in PREPARED:
            return ()
        return txn_markers(metadata)

    def unfinished(self) -> tuple[str, ...]:
        """Every id whose transaction is decided and not complete: a new coordinator resumes it."""
        return self._unsettled_with(lambda metadata: metadata.state in PREPARED)

    def expired_transactions(self, now_ms: int) -> tuple[str, ...]:
        """Every id whose transaction is open for longer than its timeout."""
        return self._unsettled_with(lambda metadata: self._is_expired(metadata, now_ms))

    def idle_ids(self, now_ms: int) -> tuple[str, ...]:
        """Every id that may be forgotten: long at rest, and without a token to remember."""
        bound_ms = now_ms - self._transactional_id_expiration_ms
        return tuple(
            transactional_id
            for transactional_id in self._forgettable.until(bound_ms)
            if self._is_idle(self._transactions[transactional_id], now_ms)
        )

    def winner_partitions(self, request: EndTxnRequest) -> tuple[TopicPartition, ...]:
        """Whose leaders to ask how much they hold before the end of a run is decided."""
        metadata = self._transactions.get(request.transactional_id)
        if metadata is None or request.run is None or not request.committed:
            return ()
        if not is_run_open(metadata, request.run):
            return ()
        members = [metadata.members.get(winner.producer_id) for winner in request.winners]
        wanted = (member.partitions for member in members if member is not None)
        return tuple(sorted(frozenset[TopicPartition]().union(*wanted)))

    def describe(
        self, transactional_ids: Sequence[str] | None
    ) -> tuple[TransactionDescription, ...]:
        """Describe those of ``transactional_ids`` that exist, or all, by id."""
        wanted = sorted(self._transactions) if transactional_ids is None else transactional_ids
        found = (self._transactions.get(transactional_id) for transactional_id in wanted)
        return tuple(described(metadata) for metadata in found if metadata is not None)

    def _unsettled_with(self, condition: Callable[[TransactionMetadata], bool]) -> tuple[str, ...]:
        return tuple(
            transactional_id
            for transactional_id in self._unsettled
            if condition(self._transactions[transactional_id])
        )

    def _is_expired(self, metadata: TransactionMetadata, now_ms: int) -> bool:
        return (
            metadata.state is TransactionState.ONGOING
            and metadata.transactional_id not in self._pending
            and metadata.start_ms + metadata.transaction_timeout_ms < now_ms
        )

    def _is_idle(self, metadata: TransactionMetadata, now_ms: int) -> bool:
        return (
            metadata.state in AT_REST
            and metadata.transactional_id not in self._pending
            and metadata.commit_token is None
            and metadata.last_update_ms <= now_ms - self._transactional_id_expiration_ms
        )

    # --- decisions --------------------------------------------------------------------------

    def _pending_error(self, transactional_id: str) -> ErrorCode:
        is_pending = transactional_id in self._pending
        return ErrorCode.CONCURRENT_TRANSACTIONS if is_pending else ErrorCode.NONE

    def _spare_producer_id(self, *, needed: bool) -> int:
        """A fresh producer id if one is ``needed``, else -1; only inside ``_with_producer_ids``."""
        if not needed:
            return NO_PRODUCER_ID
        producer_id = self._producer_ids.take()
        if producer_id is None:
            raise _NoProducerIdError
        return producer_id

    def _with_producer_ids(
        self,
        decide: Callable[[], Decision[ReplyT]],
        failed: Callable[[ErrorCode, str], ReplyT],
    ) -> Decision[ReplyT]:
        """Run ``decide``; when it needs a producer id and none is left, the caller must wait."""
        try:
            return decide()
        except _NoProducerIdError:
            detail = "no producer id is reserved at the moment"
            return Decision(reply=failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, detail))

    def _superseded(
        self,
        request: Request[ReplyT],
        metadata: TransactionMetadata,
        now_ms: int,
        cause: EpochCause,
    ) -> Decision[ReplyT]:
        """Abort what is open, unless it is decided; the caller asks again when that is over."""
        reply = request.failed(ErrorCode.CONCURRENT_TRANSACTIONS)
        if metadata.state in PREPARED:
            return Decision(reply=reply)
        return self._decision(reply, self._aborted(metadata, now_ms, cause))

    def _created(
        self, transactional_id: str, transaction_timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        return TransactionMetadata(
            transactional_id=transactional_id,
            producer_id=self._spare_producer_id(needed=True),
            producer_epoch=0,
            transaction_timeout_ms=transaction_timeout_ms,
            state=TransactionState.EMPTY,
            last_update_ms=now_ms,
        )

    def _prepared(
        self,
        metadata: TransactionMetadata,
        request: EndTxnRequest,
        now_ms: int,
        ahead_partitions: frozenset[TopicPartition] = frozenset(),
    ) -> TransactionMetadata:
        return prepared(
            metadata,
            committed=request.committed,
            now_ms=now_ms,
            spare_producer_id=self._spare_producer_id(needed=metadata.is_exhausted),
            token=request.token,
            winners=frozenset(winner.producer_id for winner in request.winners),
            ahead_partitions=ahead_partitions,
        )

    def _aborted(
        self, metadata: TransactionMetadata, now_ms: int, cause: EpochCause
    ) -> TransactionMetadata:
        """Aborted by somebody else than its owner, who may own it no more."""
        is_fencing = cause in (EpochCause.PRODUCER, EpochCause.RUN, EpochCause.DRIVER)
        return prepared(
            metadata,
            committed=False,
            now_ms=now_ms,
            spare_producer_id=self._spare_producer_id(needed=metadata.is_exhausted),
            ahead_partitions=frozenset() if is_fencing else metadata.ahead_partitions,
            cause=cause,
        )

    def _forgotten(self, transactional_id: str, reply: ReplyT) -> Decision[ReplyT]:
        """The tombstone of an id at rest; DEAD is pending until it is committed."""
        self._pending[transactional_id] = TransactionState.DEAD
        tombstone = LogRecord(encode_key(transactional_id), None)
        return Decision(reply=reply, records=(tombstone,))

    def _member_decision(
        self, reply: ReplyT, metadata: TransactionMetadata, member: Member, now_ms: int
    ) -> Decision[ReplyT]:
        """The record that adds or changes one member of the open run of ``metadata``."""
        self._pending[metadata.transactional_id] = metadata.state
        key = encode_member_key(metadata.transactional_id, member.producer_id)
        value = encode_member_value(metadata, member, now_ms)
        return Decision(reply=reply, records=(LogRecord(key, value),))

    def _completed(
        self, reply: ReplyT, metadata: TransactionMetadata, now_ms: int
    ) -> Decision[ReplyT]:
        """COMPLETE, and a tombstone for each member's record of the run: compaction drops them.

        What was enrolled ahead begins the next transaction in the same batch of the log.
        """
        complete = completed(metadata, now_ms)
        steps: tuple[TransactionMetadata, ...] = (complete,)
        if metadata.state is TransactionState.PREPARE_COMMIT and metadata.ahead_partitions:
            steps += (begun_ahead(complete, now_ms),)
        decision = self._decision(reply, *steps)
        tombstones = tuple(
            LogRecord(encode_member_key(metadata.transactional_id, producer_id), None)
            for producer_id, member in sorted(metadata.members.items())
            if member.status is not MemberStatus.FREE
        )
        return structs.replace(decision, records=decision.records + tombstones)

    def _decision(self, reply: ReplyT, *steps: TransactionMetadata) -> Decision[ReplyT]:
        """The records that lead one id through ``steps``, and the pending mark of the last."""
        if not steps:
            return Decision(reply=reply)
        transactional_id = steps[-1].transactional_id
        stored = self._transactions.get(transactional_id)
        state = TransactionState.EMPTY if stored is None else stored.state
        for step in steps:
            invariant(
                state in LEGAL_PREDECESSORS[step.state],
                "I-12",
                f"{transactional_id!r} cannot go from {state.value} to {step.state.value}",
            )
            state = step.state
        self._pending[transactional_id] = state
        values = [encode_value(step) for step in steps]
        self._decided[transactional_id] = deque(zip(values, steps, strict=True))
        key = encode_key(transactional_id)
        return Decision(reply=reply, records=tuple(LogRecord(key, value) for value in values))
