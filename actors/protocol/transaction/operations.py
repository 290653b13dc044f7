"""What an operator may do to a transactional id: find it, abort its transaction, forget it.

Rules. An abort from outside is an abort like any other: PREPARE_ABORT, markers with the next
epoch, COMPLETE; its producer continues with that epoch, as after a timeout. It names the producer
id and epoch it is about, so that a late copy never hits the next transaction. An id is forgotten
only at rest: what is open or undecided concerns its partitions as well.

| request | unknown id | at rest | Ongoing | PrepareAbort | PrepareCommit |
|---|---|---|---|---|---|
| abort, current epoch | NOT_FOUND | INVALID_TXN_STATE | PREPARE | INVALID_TXN_STATE | INVALID |
| abort, epoch before | NOT_FOUND | NONE if aborted, else INVALID | INVALID | NONE | INVALID |
| delete | NOT_FOUND | tombstone | INVALID_TXN_STATE | INVALID_TXN_STATE | INVALID |

Source: KIP-664, KIP-939 ("force terminate"); tokens, and so deletion, are oncelog's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oncelog.actors.protocol.effects import Decision, refused
from oncelog.actors.protocol.messages.admin import (
    AbortTransactionReply,
    AbortTransactionRequest,
    DeleteTransactionalIdReply,
    DeleteTransactionalIdRequest,
    DescribeTransactionsRequest,
    TransactionDescription,
    TransactionMember,
)
from oncelog.actors.protocol.transaction.checks import Refusal
from oncelog.actors.protocol.transaction.commit_versions import version_in
from oncelog.actors.protocol.transaction.end import EndAge, end_age
from oncelog.actors.protocol.transaction.ids import TransactionalIds
from oncelog.actors.protocol.transaction.members import MemberStatus, active_count
from oncelog.actors.protocol.transaction.producer_ids import (
    ProducerIdBlocks,
    waiting_for_producer_ids,
)
from oncelog.actors.protocol.transaction.state import (
    ABORTED,
    AT_REST,
    EpochCause,
    TransactionMetadata,
    TransactionState,
    aborted,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_TIMESTAMP


@dataclass(eq=False)
class Operations:
    """What operators see and decide."""

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

    @waiting_for_producer_ids
    def decide_abort(
        self, request: AbortTransactionRequest, now_ms: int
    ) -> Decision[AbortTransactionReply]:
        """Abort the transaction that the request names, unless it is decided to commit."""
        metadata = self.ids.metadata(request.transactional_id)
        if metadata is None:
            return refused(request, *_unknown(request.transactional_id))
        refusal = self.ids.check_not_pending(request.transactional_id)
        if refusal is not None:
            return refused(request, *refusal)
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

    def decide_delete(
        self, request: DeleteTransactionalIdRequest
    ) -> Decision[DeleteTransactionalIdReply]:
        """Forget an id at rest, even one with a token; its next owner starts afresh."""
        metadata = self.ids.metadata(request.transactional_id)
        if metadata is None:
            return refused(request, *_unknown(request.transactional_id))
        refusal = self.ids.check_not_pending(request.transactional_id)
        if refusal is not None:
            return refused(request, *refusal)
        if metadata.state not in AT_REST:
            detail = (
                f"{request.transactional_id!r} is in state {metadata.state.value}: "
                "end its transaction first"
            )
            return refused(request, ErrorCode.INVALID_TXN_STATE, detail)
        return self.ids.forget(DeleteTransactionalIdReply(), request.transactional_id)


def _unknown(transactional_id: str) -> Refusal:
    detail = f"there is no transactional id {transactional_id!r}"
    return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, detail


def _passes(
    metadata: TransactionMetadata, request: DescribeTransactionsRequest, now_ms: int
) -> bool:
    if request.states and metadata.state.value not in request.states:
        return False
    if request.producer_ids:
        known = {metadata.producer_id, metadata.next_producer_id, *metadata.members}
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
    """The public view."""
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
        members=tuple(
            TransactionMember(
                producer_id=member.producer_id,
                producer_epoch=member.producer_epoch,
                status=member.status.name,
                partitions=tuple(sorted(member.partitions)),
            )
            for _, member in sorted(metadata.members.items())
            if member.status is not MemberStatus.FREE
        ),
    )
