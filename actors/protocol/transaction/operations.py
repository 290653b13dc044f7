"""What an operator may do to a transactional id: look for it, abort its transaction, forget it.

Rules. An abort from outside is an abort like any other: PREPARE_ABORT, markers with the next
epoch, COMPLETE; its producer goes on with that epoch, as after a timeout. It names the producer id
and epoch it is about, so that a copy that comes late never meets the transaction after. An id is
forgotten only at rest: what is open or undecided belongs to its partitions as well.

| request | unknown id | at rest | Ongoing | PrepareAbort | PrepareCommit |
|---|---|---|---|---|---|
| abort, current epoch | NOT_FOUND | INVALID_TXN_STATE | PREPARE | INVALID_TXN_STATE | INVALID |
| abort, epoch before | NOT_FOUND | NONE if aborted, else INVALID | INVALID | NONE | INVALID |
| delete | NOT_FOUND | tombstone | INVALID_TXN_STATE | INVALID_TXN_STATE | INVALID |

Source: KIP-664, KIP-939 ("force terminate"); tokens, and so deletion, are oncelog's own.
"""

from __future__ import annotations

from typing import Final

from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.admin import (
    AbortTransactionReply,
    AbortTransactionRequest,
    DeleteTransactionalIdReply,
    DeleteTransactionalIdRequest,
    DescribeTransactionsRequest,
    TransactionDescription,
)
from oncelog.actors.protocol.transaction.end import EndAge, end_age
from oncelog.actors.protocol.transaction.state import (
    AT_REST,
    EpochCause,
    TransactionMetadata,
    TransactionState,
    described,
)
from oncelog.actors.protocol.transaction.table import TransactionTable
from oncelog.storage.errors import ErrorCode

_ABORTED: Final = frozenset({TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT})


class TransactionOperations(TransactionTable):
    """The decisions of operators; ``TransactionMachine`` adds those of producers."""

    def matching(
        self, request: DescribeTransactionsRequest, now_ms: int
    ) -> tuple[TransactionDescription, ...]:
        """Every id of the shard that passes the filters of ``request``, by id."""
        return tuple(
            described(metadata)
            for _, metadata in sorted(self._transactions.items())
            if _passes(metadata, request, now_ms)
        )

    @property
    def active_count(self) -> int:
        """How many ids have a transaction that is open, or decided and not complete."""
        return sum(metadata.state not in AT_REST for metadata in self._transactions.values())

    @property
    def id_count(self) -> int:
        """How many ids the shard remembers."""
        return len(self._transactions)

    def decide_abort(
        self, request: AbortTransactionRequest, now_ms: int
    ) -> Decision[AbortTransactionReply]:
        """Abort the transaction that the request names, unless it is decided to commit."""
        metadata = self._transactions.get(request.transactional_id)
        if metadata is None:
            return Decision(reply=request.failed(*_unknown(request.transactional_id)))
        error = self._pending_error(request.transactional_id)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error))
        age = end_age(
            metadata, producer_id=request.producer_id, producer_epoch=request.producer_epoch
        )
        if age is EndAge.CURRENT and metadata.state is TransactionState.ONGOING:
            open_one = metadata
            return self._with_producer_ids(
                lambda: self._decision(
                    AbortTransactionReply(), self._aborted(open_one, now_ms, EpochCause.OPERATOR)
                ),
                request.failed,
            )
        if age is EndAge.RETRY and metadata.state in _ABORTED:
            return Decision(reply=AbortTransactionReply())
        detail = (
            f"{request.transactional_id!r} is in state {metadata.state.value} with producer id "
            f"{metadata.producer_id} and epoch {metadata.producer_epoch}, not in an open "
            f"transaction of producer id {request.producer_id} and epoch {request.producer_epoch}"
        )
        return Decision(reply=request.failed(ErrorCode.INVALID_TXN_STATE, detail))

    def decide_delete(
        self, request: DeleteTransactionalIdRequest
    ) -> Decision[DeleteTransactionalIdReply]:
        """Forget an id at rest, also one with a token; its next owner starts anew."""
        metadata = self._transactions.get(request.transactional_id)
        if metadata is None:
            return Decision(reply=request.failed(*_unknown(request.transactional_id)))
        error = self._pending_error(request.transactional_id)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error))
        if metadata.state not in AT_REST:
            detail = (
                f"{request.transactional_id!r} is in state {metadata.state.value}: "
                "end its transaction first"
            )
            return Decision(reply=request.failed(ErrorCode.INVALID_TXN_STATE, detail))
        return self._forgotten(request.transactional_id, DeleteTransactionalIdReply())


def _unknown(transactional_id: str) -> tuple[ErrorCode, str]:
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
    if request.running_longer_than_ms < 0:
        return True
    is_running = metadata.state not in AT_REST
    return is_running and now_ms - metadata.start_ms > request.running_longer_than_ms
