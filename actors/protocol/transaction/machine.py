"""The transaction coordinator's machine: from first partition to COMPLETE, for many ids.

Rules. ``decide_…`` validates and returns records and a reply; it changes nothing but a pending
mark. ``apply`` is the one mutator, live and on reload. While a mark stands, requests that would
change the id are answered ``CONCURRENT_TRANSACTIONS``. Once PREPARE is durable the verdict is
final (I-11); COMPLETE follows when every marker is written (I-15).

| request | unknown id | at rest | Ongoing | Prepare* |
|---|---|---|---|---|
| init_producer_id | new id, epoch 0 | next epoch | abort; CONCURRENT | CONCURRENT |
| begin_run, enlist | table in ``transaction.runs`` | | | |
| add_partitions | INVALID_MAPPING | begin | enrol | CONCURRENT, a member: PRODUCER_FENCED |
| end_txn | INVALID_MAPPING | table in ``transaction.end`` | PREPARE | table |
| timeout | - | - | PREPARE_ABORT | - |

Source: KIP-98, KIP-360, KIP-890; members, runs and tokens are oncelog's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import structs

from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    EndTxnReply,
    EndTxnRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
    PartitionEnrolment,
)
from oncelog.actors.protocol.transaction.ahead import ahead_partitions
from oncelog.actors.protocol.transaction.causes import cause_text, outdated
from oncelog.actors.protocol.transaction.checks import (
    FINE,
    Refusal,
    bad_partition,
    check_end_txn,
    check_init_producer_id,
    check_version,
)
from oncelog.actors.protocol.transaction.end import (
    EndAction,
    EndAge,
    end_age,
    end_verdict,
    is_retry_of_previous_id,
)
from oncelog.actors.protocol.transaction.members import HeldRecords, Member, MemberStatus
from oncelog.actors.protocol.transaction.runs import TransactionRuns
from oncelog.actors.protocol.transaction.state import (
    AT_REST,
    PREPARED,
    TRANSACTION_PARTITIONS_MAX,
    EpochCause,
    TransactionMetadata,
    TransactionState,
    begun,
    initialised,
    next_producer,
    raised,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

_NOT_ITS_END: Final = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED})
NOTHING_HELD: Final = HeldRecords()
NO_TOPICS: Final[Mapping[str, int]] = MappingProxyType({})


class TransactionMachine(TransactionRuns):
    """Decides what becomes of the transactional ids of one coordinator shard."""

    # --- producers --------------------------------------------------------------------------

    def decide_init_producer_id(
        self, request: InitProducerIdRequest, now_ms: int
    ) -> Decision[InitProducerIdReply]:
        """Give the id's owner its next epoch, fencing the owner before (KIP-98, KIP-360).

        An open transaction is aborted first: the caller is told ``CONCURRENT_TRANSACTIONS`` and
        asks again. ``transactional_id`` must not be ``None``: that needs no record.
        """
        error, detail = check_init_producer_id(request, self._transaction_max_timeout_ms)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error, detail))
        return self._with_producer_ids(
            lambda: self._init_producer_id(request, now_ms), request.failed
        )

    def _init_producer_id(
        self, request: InitProducerIdRequest, now_ms: int
    ) -> Decision[InitProducerIdReply]:
        transactional_id = request.transactional_id or ""
        metadata = self._transactions.get(transactional_id)
        error = self._pending_error(transactional_id)
        if error is ErrorCode.NONE and metadata is not None:
            error = _init_error(metadata, request)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error))
        if metadata is None:
            following = self._created(transactional_id, request.transaction_timeout_ms, now_ms)
        elif metadata.state not in AT_REST:
            return self._superseded(request, metadata, now_ms, EpochCause.PRODUCER)
        elif request.producer_id != NO_PRODUCER_ID and _is_last_epoch(metadata, request):
            following = metadata
        else:
            following = raised(
                metadata,
                spare_producer_id=self._spare_producer_id(needed=metadata.is_exhausted),
                last_producer_epoch=(
                    NO_PRODUCER_EPOCH
                    if request.producer_id == NO_PRODUCER_ID
                    else metadata.producer_epoch
                ),
                cause=(
                    EpochCause.PRODUCER
                    if request.producer_id == NO_PRODUCER_ID
                    else EpochCause.OWNER
                ),
            )
        following = initialised(
            following, transaction_timeout_ms=request.transaction_timeout_ms, now_ms=now_ms
        )
        reply = InitProducerIdReply(
            producer_id=following.producer_id,
            producer_epoch=following.producer_epoch,
            commit_token=following.commit_token,
        )
        return self._decision(reply, following)

    # --- partitions -------------------------------------------------------------------------

    def decide_add_partitions(
        self,
        request: AddPartitionsToTxnRequest,
        now_ms: int,
        partition_counts: Mapping[str, int],
    ) -> Decision[AddPartitionsToTxnReply]:
        """Enrol partitions in the transaction of the id's own producer or of one member.

        ``partition_counts`` has the number of partitions of each topic that exists. One bad
        partition refuses them all. What is enrolled already is answered without a record.
        """
        metadata = self._transactions.get(request.transactional_id)
        member = metadata.members.get(request.producer_id) if metadata is not None else None
        detail = ""
        if metadata is None:
            error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        elif request.transactional_id in self._pending:
            # Before the producer id: a client may know of a change of it that is not applied yet.
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        elif member is not None:
            error, detail = _member_error(metadata, member, request)
        else:
            error, detail = _producer_error(metadata, request)
        if error is not ErrorCode.NONE or metadata is None:
            return Decision(reply=request.failed(error, detail))
        refused, detail = bad_partition(request.partitions, partition_counts)
        if refused:
            return Decision(reply=_refused(request, refused, detail))
        wanted = frozenset(request.partitions)
        if len(metadata.all_partitions | wanted) > TRANSACTION_PARTITIONS_MAX:
            detail = f"a transaction has at most {TRANSACTION_PARTITIONS_MAX} partitions"
            return Decision(reply=request.failed(ErrorCode.INVALID_REQUEST, detail))
        reply = AddPartitionsToTxnReply(
            enrolments=tuple(
                PartitionEnrolment(topic_partition=tp, error=ErrorCode.NONE)
                for tp in request.partitions
            )
        )
        if wanted <= (metadata.partitions if member is None else member.partitions):
            return Decision(reply=reply)
        if member is None:
            return self._decision(reply, begun(metadata, wanted, now_ms))
        enrolled = structs.replace(member, partitions=member.partitions | wanted)
        return self._member_decision(reply, metadata, enrolled, now_ms)

    # --- ends -------------------------------------------------------------------------------

    def decide_end_txn(
        self,
        request: EndTxnRequest,
        now_ms: int,
        held: HeldRecords = NOTHING_HELD,
        partition_counts: Mapping[str, int] = NO_TOPICS,
    ) -> Decision[EndTxnReply]:
        """Decide a transaction, or tell how it was decided.

        ``held`` is what the leaders hold of the winners; see ``winner_partitions``.
        ``partition_counts`` is as in ``decide_add_partitions``, for what is enrolled ahead.
        """
        error, detail = check_end_txn(request)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error, detail))
        run = request.run
        if run is None:
            return self._with_producer_ids(
                lambda: self._end_own(request, now_ms, partition_counts), request.failed
            )
        return self._with_producer_ids(
            lambda: self._end_run(request, run, held, now_ms), request.failed
        )

    def _end_own(
        self, request: EndTxnRequest, now_ms: int, partition_counts: Mapping[str, int]
    ) -> Decision[EndTxnReply]:
        metadata = self._transactions.get(request.transactional_id)
        error, age = _end_error(metadata, request)
        if error is ErrorCode.NONE:
            error = self._pending_error(request.transactional_id)
        if error is not ErrorCode.NONE or metadata is None:
            return Decision(reply=request.failed(error))
        if age is None:
            return Decision(reply=request.failed(*_outdated(metadata, request)))
        verdict = end_verdict(metadata, committed=request.committed, age=age)
        steps: tuple[TransactionMetadata, ...] = ()
        if verdict is ErrorCode.INVALID_TXN_STATE and _is_token_alone(metadata, request, age):
            # A commit of nothing but its token: it begins and ends in one batch of the log.
            metadata = begun(metadata, frozenset(), now_ms)
            steps, verdict = (metadata,), EndAction.PREPARE
        if verdict is EndAction.PREPARE and request.committed:
            error, detail = check_version(
                request.transactional_id, request.token, metadata.commit_token
            )
            if error is not ErrorCode.NONE:
                return Decision(reply=request.failed(error, detail))
        if verdict is EndAction.PREPARE:
            ahead = ahead_partitions(metadata, request, partition_counts)
            metadata = self._prepared(metadata, request, now_ms, ahead)
            steps += (metadata,)
        elif verdict in _NOT_ITS_END and age is EndAge.RETRY:
            return Decision(reply=request.failed(*_outdated(metadata, request, verdict)))
        elif verdict is not EndAction.DECIDED:
            return Decision(reply=request.failed(verdict))
        producer_id, producer_epoch = next_producer(metadata)
        reply = EndTxnReply(producer_id=producer_id, producer_epoch=producer_epoch)
        return self._decision(reply, *steps)

    def decide_timeout(self, transactional_id: str, now_ms: int) -> Decision[Reply]:
        """Abort the id's transaction if it is open and over its time; otherwise do nothing."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or not self._is_expired(metadata, now_ms):
            return Decision(reply=Reply())
        expired = metadata
        return self._with_producer_ids(
            lambda: self._decision(Reply(), self._aborted(expired, now_ms, EpochCause.TIMEOUT)),
            lambda error, detail: Reply(error=error, detail=detail),
        )

    def decide_complete(self, transactional_id: str, now_ms: int) -> Decision[Reply]:
        """Close a prepared transaction. The caller has seen every one of its markers written."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or metadata.state not in PREPARED:
            return Decision(reply=Reply())
        return self._completed(Reply(), metadata, now_ms)

    def decide_expire(self, transactional_id: str, now_ms: int) -> Decision[Reply]:
        """Forget an id that was idle for long and carries no token; otherwise do nothing."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or not self._is_idle(metadata, now_ms):
            return Decision(reply=Reply())
        return self._forgotten(transactional_id, Reply())


def _init_error(metadata: TransactionMetadata, request: InitProducerIdRequest) -> ErrorCode:
    """Whether the caller may have the next epoch: anyone new, or the present owner."""
    if request.producer_id == NO_PRODUCER_ID:
        return ErrorCode.NONE
    if _is_coming(metadata, request.producer_id):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    is_current_id = request.producer_id == metadata.producer_id
    if not is_current_id and not _is_last_epoch(metadata, request):
        return ErrorCode.PRODUCER_FENCED
    if metadata.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if is_current_id and request.producer_epoch == metadata.producer_epoch:
        return ErrorCode.NONE
    # Only the present owner may abort what is open: a late copy of its last call must not.
    is_retry = metadata.state in AT_REST and _is_last_epoch(metadata, request)
    return ErrorCode.NONE if is_retry else ErrorCode.PRODUCER_FENCED


def _end_error(
    metadata: TransactionMetadata | None, request: EndTxnRequest
) -> tuple[ErrorCode, EndAge | None]:
    """Whether the caller's producer id is one of the id's, and which transaction it ends."""
    if metadata is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING, None
    if _is_coming(metadata, request.producer_id):
        return ErrorCode.CONCURRENT_TRANSACTIONS, None
    age = end_age(metadata, producer_id=request.producer_id, producer_epoch=request.producer_epoch)
    if age is None and request.producer_id != metadata.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING, None
    return ErrorCode.NONE, age


def _is_last_epoch(metadata: TransactionMetadata, request: InitProducerIdRequest) -> bool:
    """Whether the caller has the epoch before the present one, and only missed a reply."""
    if request.producer_epoch != metadata.last_producer_epoch:
        return False
    return request.producer_id == metadata.producer_id or is_retry_of_previous_id(
        metadata, producer_id=request.producer_id, producer_epoch=request.producer_epoch
    )


def _is_coming(metadata: TransactionMetadata, producer_id: int) -> bool:
    """Whether the id's owner was told this producer id already, ahead of COMPLETE."""
    return metadata.state in PREPARED and producer_id == metadata.next_producer_id


def _outdated(
    metadata: TransactionMetadata, request: EndTxnRequest, verdict: ErrorCode | None = None
) -> Refusal:
    """Why the end is none of the present transaction; ``verdict`` if its owner has ended that."""
    if verdict is not None and metadata.epoch_cause is EpochCause.OWNER:
        return verdict, ""
    return outdated(metadata, request.producer_id, request.producer_epoch)


def _producer_error(metadata: TransactionMetadata, request: AddPartitionsToTxnRequest) -> Refusal:
    """Whether the caller is the id's own producer and may enrol partitions now."""
    if _is_coming(metadata, request.producer_id):
        return ErrorCode.CONCURRENT_TRANSACTIONS, ""
    caller = (request.producer_id, request.producer_epoch)
    if request.producer_id != metadata.producer_id and not _is_of_previous_id(metadata, caller):
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING, ""
    if caller != (metadata.producer_id, metadata.producer_epoch):
        return outdated(metadata, *caller)
    if metadata.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS, ""
    is_open = metadata.state is TransactionState.ONGOING
    if metadata.is_run_waiting or (is_open and metadata.is_run_current):
        return ErrorCode.PRODUCER_FENCED, cause_text(metadata)
    return FINE


def _is_of_previous_id(metadata: TransactionMetadata, caller: tuple[int, int]) -> bool:
    """Whether the caller had the last epoch of the producer id before."""
    return is_retry_of_previous_id(metadata, producer_id=caller[0], producer_epoch=caller[1])


def _member_error(
    metadata: TransactionMetadata, member: Member, request: AddPartitionsToTxnRequest
) -> Refusal:
    """Whether the caller is enlisted: no member of a run that ended may enrol anything."""
    is_enlisted = member.status is MemberStatus.ENLISTED
    if is_enlisted and request.producer_epoch == member.producer_epoch:
        return FINE
    return ErrorCode.PRODUCER_FENCED, f"the member's run is over: {cause_text(metadata)}"


def _refused(
    request: AddPartitionsToTxnRequest, refused: Mapping[TopicPartition, ErrorCode], detail: str
) -> AddPartitionsToTxnReply:
    """The answer when one partition is bad: its error, and nothing attempted for the others."""
    return AddPartitionsToTxnReply(
        error=next(iter(refused.values())),
        detail=detail,
        enrolments=tuple(
            PartitionEnrolment(
                topic_partition=tp, error=refused.get(tp, ErrorCode.OPERATION_NOT_ATTEMPTED)
            )
            for tp in request.partitions
        ),
    )


def _is_token_alone(metadata: TransactionMetadata, request: EndTxnRequest, age: EndAge) -> bool:
    """Whether this commits nothing but its token: no partition was enrolled in this epoch."""
    is_current_commit = request.committed and age is EndAge.CURRENT
    return is_current_commit and bool(request.token) and metadata.state in AT_REST
