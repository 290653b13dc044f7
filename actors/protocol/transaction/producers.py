"""One producer of a transactional id: it gets an epoch, enrols partitions, and ends.

| request | unknown id | at rest | Ongoing | Prepared | Prepare* |
|---|---|---|---|---|---|
| init_producer_id | new id, epoch 0 | next epoch | abort; CONCURRENT | INVALID_STATE | CONCURRENT |
| it, keep_prepared | new id, epoch 0 | next epoch | abort; CONCURRENT | next epoch | CONCURRENT |
| add_partitions | INVALID_MAPPING | begin | enrol | INVALID_STATE | CONCURRENT; members FENCED |
| prepare_txn | INVALID_MAPPING | begin, Prepared | Prepared | again: NONE | CONCURRENT |
| end_txn | INVALID_MAPPING | table in ``transaction.end`` | PREPARE | PREPARE | table |
| verify_txn | INVALID_MAPPING | INVALID_STATE | tickets | - | INVALID_STATE |

INVALID_STATE is INVALID_TXN_STATE, FENCED is PRODUCER_FENCED. With ``keep_prepared``, and to
prepare, the cluster must allow it: POLICY_VIOLATION. But what is prepared can always be ended. A
member of a distributed write enrols partitions here as well; everything else is in ``runs``.

*Version 1*: requests with a label, and ``verify_txn``, are judged by ``told`` first. Such a client
owns the id or does not: ``init_producer_id`` settles it, and a request of the wrong kind is FENCED.

*Enrolment ahead*: a commit may enrol the partitions of the transaction after it. PREPARE contains
them, so they are durable with the decision. The next transaction begins with them in the log batch
of COMPLETE, when every marker of the current one is written. From then on it is open, and times
out, like any other. Its owner may have missed the reply to the commit. Until it ends, a retry of
that commit gets the same answer, even after a timeout has aborted the transaction begun ahead.

One file: all decisions about one producer.

Source: KIP-98, KIP-360, KIP-890, KIP-939. Enrolment ahead is oncelog's own: Kafka's coordinator
learns of a transaction from its first partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from oncelog.actors.protocol.effects import Decision, refused
from oncelog.actors.protocol.messages.base import Reply, ReplyT
from oncelog.actors.protocol.messages.transaction import (
    NO_COORDINATOR_EPOCH,
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    ConnectionLabel,
    EndTxnReply,
    EndTxnRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
    PartitionEnrolment,
    PrepareTxnRequest,
    VerifyTxnReply,
    VerifyTxnRequest,
)
from oncelog.actors.protocol.transaction.checks import (
    BUSY,
    Refusal,
    bad_partition,
    check_init_producer_id,
    check_version,
    holds_prepared,
)
from oncelog.actors.protocol.transaction.end import (
    EndAction,
    EndAge,
    cause_text,
    end_age,
    end_verdict,
    is_retry_of_previous_id,
    outdated,
    told_end_age,
)
from oncelog.actors.protocol.transaction.ids import TransactionalIds
from oncelog.actors.protocol.transaction.members import MemberStatus, RunMember
from oncelog.actors.protocol.transaction.producer_ids import (
    ProducerIdBlocks,
    waiting_for_producer_ids,
)
from oncelog.actors.protocol.transaction.told import check_pair, check_recovery, check_told
from oncelog.actors.protocol.transaction.transaction_state import (
    AT_REST,
    DECIDED,
    TRANSACTION_PARTITIONS_MAX,
    EpochCause,
    TransactionMetadata,
    TransactionState,
    abort_noted,
    begun,
    created,
    held_back,
    initialised,
    labelled,
    next_producer,
    prepared,
    raised,
    taken_over,
    told_anew,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PRODUCER_EPOCH_EXHAUSTED,
    TopicPartition,
)

AHEAD_EPOCH_MAX: Final = PRODUCER_EPOCH_EXHAUSTED - 2
"""Above this epoch a commit enrols nothing ahead: the next one must keep the producer id."""

AHEAD_PARTITIONS_MAX: Final = 256
"""Maximum partitions enrolled ahead: each costs a ticket in the reply to the commit."""

TWO_PHASE_FORBIDDEN: Final[Refusal] = (
    ErrorCode.POLICY_VIOLATION,
    "this cluster does not prepare transactions: transaction_two_phase_commit_enable is off",
)

_NOT_ITS_END: Final = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED})


@dataclass(eq=False)
class Producers:
    """Decisions about ids with a single producer.

    ``coordinator_epoch`` is the one that this coordinator leads with, once it has loaded.
    """

    ids: TransactionalIds
    producer_ids: ProducerIdBlocks
    transaction_max_timeout_ms: int
    is_two_phase_allowed: bool = False
    coordinator_epoch: int = NO_COORDINATOR_EPOCH

    # --- epochs -----------------------------------------------------------------------------

    @waiting_for_producer_ids
    def decide_init_producer_id(
        self, request: InitProducerIdRequest, now_ms: int
    ) -> Decision[InitProducerIdReply]:
        """Give the id's owner its next epoch, which fences the owner before (KIP-98, KIP-360).

        An open transaction is aborted first: the caller gets ``CONCURRENT_TRANSACTIONS`` and
        retries. A prepared one is kept, for a caller that says so. ``transactional_id`` must not be
        ``None``: that needs no record. A version 1 client may come with the pair it was told.
        """
        transactional_id = request.transactional_id or ""
        metadata = self.ids.metadata(transactional_id)
        refusal = (
            check_init_producer_id(request, self.transaction_max_timeout_ms)
            or self.ids.check_not_pending(transactional_id)
            or _init_refusal(metadata, request)
            or self._keep_refusal(metadata, request)
        )
        if refusal is not None:
            return refused(request, *refusal)
        is_owner = request.producer_id != NO_PRODUCER_ID
        pair = (request.producer_id, request.producer_epoch) if is_owner else None
        if metadata is None:
            metadata = created(
                transactional_id,
                producer_id=self.producer_ids.take(),
                transaction_timeout_ms=request.transaction_timeout_ms,
                now_ms=now_ms,
            )
        elif metadata.state not in AT_REST and not _is_kept(metadata, request):
            cause, told = EpochCause.PRODUCER, pair if request.as_version_1 else None
            return self.ids.abort_ongoing(request, metadata, cause, now_ms, self.producer_ids, told)
        elif not _is_repeated(metadata, request):
            metadata = raised(
                metadata,
                spare_producer_id=self.producer_ids.spare(metadata),
                last_producer_epoch=metadata.producer_epoch if is_owner else NO_PRODUCER_EPOCH,
                cause=EpochCause.OWNER if is_owner else EpochCause.PRODUCER,
            )
        settle = taken_over if metadata.state is TransactionState.PREPARED else initialised
        following = settle(
            metadata,
            transaction_timeout_ms=request.transaction_timeout_ms,
            now_ms=now_ms,
            holder=request.holder,
        )
        if request.as_version_1:
            following = told_anew(following, pair)
        reply = InitProducerIdReply(
            producer_id=following.producer_id,
            producer_epoch=following.producer_epoch,
            commit_token=following.commit_token,
        )
        if (found := following.prepared_txn) is not None:
            reply = structs.replace(
                reply,
                prepared_producer_id=found.producer_id,
                prepared_producer_epoch=found.producer_epoch,
            )
        return self.ids.move(reply, following)

    def _keep_refusal(
        self, metadata: TransactionMetadata | None, request: InitProducerIdRequest
    ) -> Refusal | None:
        is_found = metadata is not None and metadata.state is TransactionState.PREPARED
        if not request.keep_prepared or is_found or self.is_two_phase_allowed:
            return None
        return TWO_PHASE_FORBIDDEN

    # --- prepared ---------------------------------------------------------------------------

    def decide_prepare(self, request: PrepareTxnRequest, now_ms: int) -> Decision[Reply]:
        """Keep the owner's transaction for a decision elsewhere (KIP-939).

        Without an open one an empty one begins: whoever asks for it later finds it.
        """
        metadata = self.ids.metadata(request.transactional_id)
        if metadata is None:
            return refused(request, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        refusal = self.ids.check_not_pending(request.transactional_id)
        refusal = refusal or _producer_refusal(metadata, request)
        if refusal is None and not self.is_two_phase_allowed:
            refusal = TWO_PHASE_FORBIDDEN
        caller = (request.producer_id, request.producer_epoch)
        if refusal is None and (found := metadata.prepared_txn) is not None:
            if caller == (found.producer_id, found.producer_epoch):
                return Decision(reply=Reply())
            refusal = holds_prepared(metadata.transactional_id)
        if refusal is not None:
            return refused(request, *refusal)
        if metadata.state is TransactionState.ONGOING:
            return self.ids.move(Reply(), held_back(metadata, now_ms))
        opened = begun(metadata, frozenset(), now_ms)
        return self.ids.move(Reply(), opened, held_back(opened, now_ms))

    # --- partitions -------------------------------------------------------------------------

    def decide_add_partitions(
        self,
        request: AddPartitionsToTxnRequest,
        now_ms: int,
        partition_counts: Mapping[str, int],
    ) -> Decision[AddPartitionsToTxnReply]:
        """Enrol partitions in the transaction of the id's own producer or of one member.

        ``partition_counts`` has the number of partitions of each topic that exists. One bad
        partition rejects them all. Partitions enrolled already need no record, unless the label
        is new.
        """
        metadata = self.ids.metadata(request.transactional_id)
        if metadata is None:
            return refused(request, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        member = metadata.members.get(request.producer_id)
        refusal = self._enrolment_refusal(metadata, member, request)
        if refusal is not None:
            return refused(request, *refusal)
        bad, detail = bad_partition(request.partitions, partition_counts)
        if bad:
            return Decision(reply=_not_attempted(request, bad, detail))
        wanted = frozenset(request.partitions)
        if len(metadata.all_partitions | wanted) > TRANSACTION_PARTITIONS_MAX:
            detail = f"a transaction has at most {TRANSACTION_PARTITIONS_MAX} partitions"
            return refused(request, ErrorCode.INVALID_REQUEST, detail)
        reply = AddPartitionsToTxnReply(
            enrolments=tuple(
                PartitionEnrolment(topic_partition=tp, error=ErrorCode.NONE)
                for tp in request.partitions
            )
        )
        if request.label is not None:
            reply = structs.replace(
                reply,
                producer_id=metadata.producer_id,
                producer_epoch=metadata.producer_epoch,
                aborts=0 if metadata.told is None else metadata.told.aborts,
            )
        if wanted <= (metadata.partitions if member is None else member.partitions):
            return self._heard(reply, metadata, request.label)
        if member is None:
            heard = labelled(metadata, request.label)
            return self.ids.move(reply, begun(heard, wanted, now_ms))
        enrolled = structs.replace(member, partitions=member.partitions | wanted)
        return self.ids.move_member(reply, metadata, enrolled, now_ms)

    def _enrolment_refusal(
        self,
        metadata: TransactionMetadata,
        member: RunMember | None,
        request: AddPartitionsToTxnRequest,
    ) -> Refusal | None:
        # Before the producer id: the client may know a new one that is not applied yet.
        refusal = self.ids.check_not_pending(request.transactional_id)
        if refusal is None and request.label is not None:
            refusal = check_told(metadata.told, request, request.label, self.coordinator_epoch)
            if refusal is None and metadata.state in DECIDED:
                refusal = BUSY
        elif refusal is None and member is not None:
            refusal = _member_refusal(metadata, member, request)
        elif refusal is None:
            refusal = _producer_refusal(metadata, request)
        if refusal is None and metadata.state is TransactionState.PREPARED:
            refusal = holds_prepared(metadata.transactional_id)
        return refusal

    def _heard(
        self, reply: ReplyT, metadata: TransactionMetadata, label: ConnectionLabel | None
    ) -> Decision[ReplyT]:
        """The answer to a request that changes nothing, unless its label is new."""
        heard = labelled(metadata, label)
        return Decision(reply=reply) if heard is metadata else self.ids.move(reply, heard)

    def verify(
        self, request: VerifyTxnRequest, partitions: Sequence[TopicPartition]
    ) -> VerifyTxnReply:
        """Which of ``partitions`` a version 1 client has enrolled; see ``VerifyTxnReply``.

        What is enrolled is in the log, so it may have its ticket.
        """
        metadata = self.ids.metadata(request.transactional_id)
        if metadata is None:
            return request.failed(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        refusal = check_pair(metadata.told, request)
        if refusal is not None:
            return request.failed(*refusal)
        return VerifyTxnReply(
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            aborts=0 if metadata.told is None else metadata.told.aborts,
            enrolments=tuple(
                PartitionEnrolment(topic_partition=tp, error=_enrolment_error(metadata, tp))
                for tp in partitions
            ),
        )

    # --- ends -------------------------------------------------------------------------------

    @waiting_for_producer_ids
    def decide_end(
        self, request: EndTxnRequest, now_ms: int, partition_counts: Mapping[str, int]
    ) -> Decision[EndTxnReply]:
        """End the producer's own transaction, or answer how it has ended: see ``end``."""
        metadata = self.ids.metadata(request.transactional_id)
        if metadata is None:
            return refused(request, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        caller = (request.producer_id, request.producer_epoch)
        age = self._end_age(metadata, request)
        if isinstance(age, tuple):
            return refused(request, *age)
        steps: tuple[TransactionMetadata, ...] = ()
        if _is_token_alone(metadata, request, age):
            # A commit of only a token: the transaction begins and ends in one log batch.
            metadata = begun(metadata, frozenset(), now_ms)
            steps = (metadata,)
        verdict = end_verdict(metadata, committed=request.committed, age=age)
        if verdict is EndAction.ENDED:
            return self._heard(_end_reply(metadata), metadata, request.label)
        if verdict is not EndAction.PREPARE:
            is_taken_over = age is EndAge.RETRY and metadata.epoch_cause is not EpochCause.OWNER
            if is_taken_over and verdict in _NOT_ITS_END:
                return refused(request, *outdated(metadata, *caller))
            is_empty = verdict is ErrorCode.INVALID_TXN_STATE and age is EndAge.CURRENT
            if is_empty and request.label is None:
                return Decision(reply=_nothing_to_commit(request))
            return refused(request, verdict)
        if request.committed:
            refusal = check_version(request.transactional_id, request.token, metadata.commit_token)
            if refusal is not None:
                return refused(request, *refusal)
        heard = labelled(metadata, request.label)
        following = prepared(
            heard if request.committed else abort_noted(heard),
            committed=request.committed,
            now_ms=now_ms,
            spare_producer_id=self.producer_ids.spare(metadata),
            token=request.token,
            ahead_partitions=ahead_partitions(metadata, request, partition_counts),
        )
        return self.ids.move(_end_reply(following), *steps, following)

    def _end_age(self, metadata: TransactionMetadata, request: EndTxnRequest) -> EndAge | Refusal:
        """Which transaction an end is of, or why it is rejected."""
        pending = self.ids.check_not_pending(request.transactional_id)
        if request.label is not None:
            refusal = pending or check_told(
                metadata.told, request, request.label, self.coordinator_epoch
            )
            return refusal or told_end_age(metadata)
        caller = (request.producer_id, request.producer_epoch)
        refusal = _mapping_refusal(metadata, caller) or pending
        if refusal is not None:
            return refusal
        age = end_age(metadata, producer_id=caller[0], producer_epoch=caller[1])
        is_of_version_1 = metadata.told is not None
        return outdated(metadata, *caller) if age is None or is_of_version_1 else age


def _nothing_to_commit(request: EndTxnRequest) -> EndTxnReply:
    """The refusal of a commit before anything was enrolled: it tells the pair, which is current."""
    return EndTxnReply(
        error=ErrorCode.INVALID_TXN_STATE,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
    )


def _init_refusal(
    metadata: TransactionMetadata | None, request: InitProducerIdRequest
) -> Refusal | None:
    """Reject a caller that is neither new nor the current owner."""
    if metadata is None or request.producer_id == NO_PRODUCER_ID:
        return None
    if request.as_version_1 or metadata.told is not None:
        return check_recovery(metadata.told, request)
    if _is_coming(metadata, request.producer_id):
        return BUSY
    is_current_id = request.producer_id == metadata.producer_id
    if not is_current_id and not _is_last_epoch(metadata, request):
        return ErrorCode.PRODUCER_FENCED, ""
    if metadata.state in DECIDED:
        return BUSY
    if is_current_id and request.producer_epoch == metadata.producer_epoch:
        return None
    # Only the current owner may abort an open transaction; a late copy of its last call must not.
    is_settled = metadata.state in AT_REST or _is_kept(metadata, request)
    is_retry = is_settled and _is_last_epoch(metadata, request)
    return None if is_retry else (ErrorCode.PRODUCER_FENCED, "")


def _mapping_refusal(metadata: TransactionMetadata, caller: tuple[int, int]) -> Refusal | None:
    """Reject a producer id that neither is the id's nor was until its last reply."""
    if _is_coming(metadata, caller[0]):
        return BUSY
    is_known = caller[0] == metadata.producer_id or is_retry_of_previous_id(
        metadata, producer_id=caller[0], producer_epoch=caller[1]
    )
    return None if is_known else (ErrorCode.INVALID_PRODUCER_ID_MAPPING, "")


def _is_repeated(metadata: TransactionMetadata, request: InitProducerIdRequest) -> bool:
    """Whether the caller has missed the reply with the current epoch."""
    if not request.as_version_1:
        return _is_last_epoch(metadata, request)
    pair = (request.producer_id, request.producer_epoch)
    return metadata.told is not None and metadata.told.before == pair


def _is_last_epoch(metadata: TransactionMetadata, request: InitProducerIdRequest) -> bool:
    """Whether the caller has the epoch before the current one because it missed a reply."""
    if request.producer_epoch != metadata.last_producer_epoch:
        return False
    return request.producer_id == metadata.producer_id or is_retry_of_previous_id(
        metadata, producer_id=request.producer_id, producer_epoch=request.producer_epoch
    )


def _is_coming(metadata: TransactionMetadata, producer_id: int) -> bool:
    """Whether the id's owner already got this new producer id, before COMPLETE."""
    return metadata.state in DECIDED and producer_id == metadata.next_producer_id


def _is_kept(metadata: TransactionMetadata, request: InitProducerIdRequest) -> bool:
    """Whether a prepared transaction stays, because the caller takes it over."""
    return request.keep_prepared and metadata.state is TransactionState.PREPARED


def _producer_refusal(
    metadata: TransactionMetadata, request: AddPartitionsToTxnRequest | PrepareTxnRequest
) -> Refusal | None:
    """Reject a caller that is not the id's own producer or may not change its transaction now."""
    caller = (request.producer_id, request.producer_epoch)
    refusal = _mapping_refusal(metadata, caller)
    if refusal is not None:
        return refusal
    is_current = caller == (metadata.producer_id, metadata.producer_epoch)
    if not is_current or metadata.told is not None:
        return outdated(metadata, *caller)
    if metadata.state in DECIDED:
        return BUSY
    is_open = metadata.state is TransactionState.ONGOING
    if metadata.is_run_waiting or (is_open and metadata.is_run_current):
        return ErrorCode.PRODUCER_FENCED, cause_text(metadata)
    return None


def _member_refusal(
    metadata: TransactionMetadata, member: RunMember, request: AddPartitionsToTxnRequest
) -> Refusal | None:
    """Reject a member that is not enlisted: after its run has ended it may not enrol partitions."""
    is_enlisted = member.status is MemberStatus.ENLISTED
    if is_enlisted and request.producer_epoch == member.producer_epoch:
        return None
    return ErrorCode.PRODUCER_FENCED, f"the member's run is over: {cause_text(metadata)}"


def _enrolment_error(metadata: TransactionMetadata, tp: TopicPartition) -> ErrorCode:
    """``NONE`` if the batches of a version 1 client in ``tp`` may have a ticket."""
    if metadata.state is not TransactionState.ONGOING or tp not in metadata.partitions:
        return ErrorCode.INVALID_TXN_STATE
    is_chained = metadata.told is not None and metadata.told.producer_id == metadata.producer_id
    # Its sequences do not go on under another producer id; those of positions need not.
    is_possible = is_chained or tp.topic == CONSUMER_OFFSETS_TOPIC
    return ErrorCode.NONE if is_possible else ErrorCode.INVALID_PRODUCER_ID_MAPPING


def _not_attempted(
    request: AddPartitionsToTxnRequest, bad: Mapping[TopicPartition, ErrorCode], detail: str
) -> AddPartitionsToTxnReply:
    """The answer if some partition is bad: its error, and "not attempted" for the others."""
    return AddPartitionsToTxnReply(
        error=next(iter(bad.values())),
        detail=detail,
        enrolments=tuple(
            PartitionEnrolment(
                topic_partition=tp, error=bad.get(tp, ErrorCode.OPERATION_NOT_ATTEMPTED)
            )
            for tp in request.partitions
        ),
    )


def ahead_partitions(
    metadata: TransactionMetadata, request: EndTxnRequest, partition_counts: Mapping[str, int]
) -> frozenset[TopicPartition]:
    """The partitions that a commit enrols in the next transaction: all requested, or none."""
    wanted = request.next_partitions
    is_possible = request.committed and metadata.producer_epoch <= AHEAD_EPOCH_MAX
    is_possible = is_possible and request.label is None
    if not is_possible or len(wanted) > AHEAD_PARTITIONS_MAX:
        return frozenset()
    bad, _ = bad_partition(wanted, partition_counts)
    return frozenset() if bad else frozenset(wanted)


def _is_token_alone(metadata: TransactionMetadata, request: EndTxnRequest, age: EndAge) -> bool:
    """Whether this commits only a token: no partition was enrolled in this epoch."""
    is_current_commit = request.committed and age is EndAge.CURRENT
    return is_current_commit and bool(request.token) and metadata.state in AT_REST


def _end_reply(metadata: TransactionMetadata) -> EndTxnReply:
    """The reply with the producer id and epoch to continue with."""
    told = metadata.told
    producer_id, producer_epoch = next_producer(metadata) if told is None else told.pair
    return EndTxnReply(producer_id=producer_id, producer_epoch=producer_epoch)
