"""Distributed writes at the coordinator: many tasks enlist, one call decides for them all.

Rules. A *run* is one attempt at the whole write; the newest one counts, and a newer one aborts
what an older left open. Who enlists first begins the run, with a record of the whole id; each
further member, and each enrolment of one, is a record of its own, and PREPARE has them all again.

| request | unknown id | at rest | Ongoing | Prepare* |
|---|---|---|---|---|
| enlist, newer run | new id, run begins | run begins | abort; CONCURRENT | CONCURRENT |
| enlist, newest run | - | PRODUCER_FENCED | one more member | PRODUCER_FENCED |
| end of the newest run | - | table in ``transaction_end`` | PREPARE | table |
| end of an unseen run | its token alone | its token alone | abort; CONCURRENT | CONCURRENT |

Source: members, runs and tokens are oncelog's own, on top of KIP-98.
"""

from __future__ import annotations

from msgspec import structs

from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages import (
    EndTxnReply,
    EndTxnRequest,
    EnlistReply,
    EnlistRequest,
    Run,
)
from oncelog.actors.protocol.transaction_checks import check_enlist
from oncelog.actors.protocol.transaction_end import EndAction, run_end_verdict
from oncelog.actors.protocol.transaction_members import (
    MEMBERS_MAX,
    HeldRecords,
    Member,
    MemberStatus,
    active_count,
    check_winners,
    free_member,
    with_member,
)
from oncelog.actors.protocol.transaction_operations import TransactionOperations
from oncelog.actors.protocol.transaction_state import (
    AT_REST,
    TransactionMetadata,
    has_run_committed,
    is_run_open,
    is_token_decided,
    run_begun,
)
from oncelog.storage.errors import ErrorCode


class TransactionRuns(TransactionOperations):
    """The decisions about distributed writes; ``TransactionMachine`` adds those of one producer."""

    def decide_enlist(self, request: EnlistRequest, now_ms: int) -> Decision[EnlistReply]:
        """Make the caller one more member of its run, beginning the run if it is the newest.

        What an older run, or the id's own producer, left open is aborted first: the caller is
        told ``CONCURRENT_TRANSACTIONS`` and asks again. A run that ended is over for good.
        """
        error, detail = check_enlist(request, self._transaction_max_timeout_ms)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error, detail))
        return self._with_producer_ids(lambda: self._enlist(request, now_ms), request.failed)

    def _enlist(self, request: EnlistRequest, now_ms: int) -> Decision[EnlistReply]:
        metadata = self._transactions.get(request.transactional_id)
        error = self._pending_error(request.transactional_id)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error))
        if metadata is not None and is_token_decided(metadata, request.token):
            return Decision(reply=request.failed(ErrorCode.ALREADY_COMMITTED))
        if metadata is None or metadata.run is None or request.run > metadata.run:
            if metadata is not None and metadata.state not in AT_REST:
                return self._superseded(request, metadata, now_ms)
            return self._first_enlisted(request, now_ms)
        if request.run < metadata.run or not is_run_open(metadata, request.run):
            return Decision(reply=request.failed(ErrorCode.PRODUCER_FENCED))
        if active_count(metadata.members) >= MEMBERS_MAX:
            detail = f"the run has {MEMBERS_MAX} members already, the most that are allowed"
            return Decision(reply=request.failed(ErrorCode.POLICY_VIOLATION, detail))
        enlisted = self._newly_enlisted(metadata)
        return self._member_decision(_enlist_reply(enlisted), metadata, enlisted, now_ms)

    def _first_enlisted(self, request: EnlistRequest, now_ms: int) -> Decision[EnlistReply]:
        """The run begins: the record of the id has the whole pool, and its first member."""
        metadata = self._run_begun(
            request.transactional_id, request.run, request.transaction_timeout_ms, now_ms
        )
        enlisted = self._newly_enlisted(metadata)
        return self._decision(
            _enlist_reply(enlisted),
            structs.replace(metadata, members=with_member(metadata.members, enlisted)),
        )

    def _newly_enlisted(self, metadata: TransactionMetadata) -> Member:
        """A member out of the pool, or a new one."""
        member = free_member(metadata.members)
        if member is None:
            member = Member(producer_id=self._spare_producer_id(needed=True))
        return structs.replace(member, status=MemberStatus.ENLISTED)

    def _end_run(
        self, request: EndTxnRequest, run: Run, held: HeldRecords, now_ms: int
    ) -> Decision[EndTxnReply]:
        metadata = self._transactions.get(request.transactional_id)
        error = self._pending_error(request.transactional_id)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error))
        if metadata is None or metadata.run is None or run > metadata.run:
            return self._end_unseen_run(request, run, metadata, now_ms)
        verdict = run_end_verdict(
            metadata,
            is_newest=run == metadata.run,
            committed=request.committed,
            is_token_decided=is_token_decided(metadata, request.token),
        )
        if verdict is EndAction.DECIDED:
            is_by_other = request.committed and not has_run_committed(metadata, run)
            error = ErrorCode.ALREADY_COMMITTED if is_by_other else ErrorCode.NONE
            return Decision(reply=EndTxnReply(error=error))
        if verdict is not EndAction.PREPARE:
            return Decision(reply=request.failed(verdict))
        if request.committed:
            error, detail = check_winners(metadata.members, request.winners, held)
            if error is not ErrorCode.NONE:
                return Decision(reply=request.failed(error, detail))
        return self._decision(EndTxnReply(), self._prepared(metadata, request, now_ms))

    def _end_unseen_run(
        self, request: EndTxnRequest, run: Run, metadata: TransactionMetadata | None, now_ms: int
    ) -> Decision[EndTxnReply]:
        """End a run nobody enlisted in: its token counts, and who enlists later is fenced."""
        if request.winners:
            detail = "nobody enlisted in this run, so it has no winners"
            return Decision(reply=request.failed(ErrorCode.INVALID_TXN_STATE, detail))
        is_decided = metadata is not None and is_token_decided(metadata, request.token)
        if request.committed and is_decided:
            return Decision(reply=EndTxnReply(error=ErrorCode.ALREADY_COMMITTED))
        if metadata is not None and metadata.state not in AT_REST:
            return self._superseded(request, metadata, now_ms)
        begun_run = self._run_begun(
            request.transactional_id, run, self._transaction_max_timeout_ms, now_ms
        )
        return self._decision(EndTxnReply(), begun_run, self._prepared(begun_run, request, now_ms))

    def _run_begun(
        self, transactional_id: str, run: Run, transaction_timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        metadata = self._transactions.get(transactional_id)
        if metadata is None:
            metadata = self._created(transactional_id, transaction_timeout_ms, now_ms)
        return run_begun(
            metadata,
            run,
            transaction_timeout_ms=transaction_timeout_ms,
            spare_producer_id=self._spare_producer_id(needed=metadata.is_exhausted),
            now_ms=now_ms,
        )


def _enlist_reply(member: Member) -> EnlistReply:
    return EnlistReply(producer_id=member.producer_id, producer_epoch=member.producer_epoch)
