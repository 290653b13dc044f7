"""Distributed writes at the coordinator: many tasks enlist, one call decides for them all.

Rules. A *run* is one attempt at the whole write. Whoever plans it begins the run here and gets its
number; the newest run counts, whatever any clock says, and fences those before. Who enlists first
opens the transaction, with a record of the whole id; each further member, and each enrolment of
one, is a record of its own, and PREPARE has them all again. A run whose driver is gone is aborted
unless it is decided. A token is committed once, and the versions of an application only rise.

| request | unknown id | at rest | Ongoing | Prepare* |
|---|---|---|---|---|
| begin, after the newest run | new id, run waits | run waits | abort; CONCURRENT | CONCURRENT |
| begin, again | - | its number | its number | its number |
| begin, after another run | CONCURRENT | CONCURRENT | CONCURRENT | CONCURRENT |
| enlist, newest run | - | first member if it waits, else FENCED | one more | FENCED |
| enlist, another run | FENCED | FENCED | FENCED | FENCED |
| end of the newest run | - | table in ``transaction.end`` | PREPARE | table |
| end of another run | FENCED | table | table | table |
| driver gone | - | - | abort | - |

FENCED is PRODUCER_FENCED. A begin names the newest run that its caller has heard of, so a late copy
of it changes nothing.
Source: members, runs and tokens are oncelog's own, on top of KIP-98.
"""

from __future__ import annotations

from msgspec import structs

from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.transaction import (
    BeginRunReply,
    BeginRunRequest,
    DriverProcess,
    EndTxnReply,
    EndTxnRequest,
    EnlistReply,
    EnlistRequest,
    Run,
)
from oncelog.actors.protocol.transaction.causes import cause_text
from oncelog.actors.protocol.transaction.checks import (
    FINE,
    Refusal,
    check_begin_run,
    check_enlist,
    check_version,
)
from oncelog.actors.protocol.transaction.end import EndAction, run_end_verdict
from oncelog.actors.protocol.transaction.members import (
    MEMBERS_MAX,
    HeldRecords,
    Member,
    MemberStatus,
    active_count,
    check_winners,
    free_member,
    with_member,
)
from oncelog.actors.protocol.transaction.operations import TransactionOperations
from oncelog.actors.protocol.transaction.state import (
    AT_REST,
    EpochCause,
    TransactionMetadata,
    has_run_committed,
    is_run_open,
    is_token_decided,
    newest_run_number,
    run_begun,
    run_opened,
)
from oncelog.storage.errors import ErrorCode


class TransactionRuns(TransactionOperations):
    """The decisions about distributed writes; ``TransactionMachine`` adds those of one producer."""

    # --- begin ------------------------------------------------------------------------------

    def decide_begin_run(self, request: BeginRunRequest, now_ms: int) -> Decision[BeginRunReply]:
        """Give the caller's run its number, which fences every run and producer before it.

        What they left open is aborted first: the caller is told ``CONCURRENT_TRANSACTIONS`` and
        asks again; so it is, with the newest number, when it has not heard of the newest run.
        """
        error, detail = check_begin_run(request, self._transaction_max_timeout_ms)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error, detail))
        return self._with_producer_ids(lambda: self._begin_run(request, now_ms), request.failed)

    def _begin_run(self, request: BeginRunRequest, now_ms: int) -> Decision[BeginRunReply]:
        metadata = self._transactions.get(request.transactional_id)
        error, detail = self._pending_error(request.transactional_id), ""
        if error is ErrorCode.NONE and metadata is not None:
            error, detail = _token_refusal(metadata, request.token)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error, detail))
        newest = newest_run_number(metadata)
        if metadata is not None and metadata.run is not None and metadata.run.id == request.run_id:
            return Decision(reply=BeginRunReply(number=newest))
        if request.after != newest:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
            return Decision(reply=BeginRunReply(error=error, number=newest))
        if metadata is not None and metadata.state not in AT_REST:
            return self._superseded(request, metadata, now_ms, EpochCause.RUN)
        if metadata is None:
            metadata = self._created(
                request.transactional_id, request.transaction_timeout_ms, now_ms
            )
        begun = run_begun(
            metadata,
            request.run_id,
            driver=request.driver,
            transaction_timeout_ms=request.transaction_timeout_ms,
            spare_producer_id=self._spare_producer_id(needed=metadata.is_exhausted),
            now_ms=now_ms,
        )
        return self._decision(BeginRunReply(number=newest_run_number(begun)), begun)

    # --- members ----------------------------------------------------------------------------

    def decide_enlist(self, request: EnlistRequest, now_ms: int) -> Decision[EnlistReply]:
        """Make the caller one more member of its run, opening the transaction if it is the first.

        ``PRODUCER_FENCED`` unless its run is the newest: one that is over is so for good.
        """
        error, detail = check_enlist(request)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error, detail))
        return self._with_producer_ids(lambda: self._enlist(request, now_ms), request.failed)

    def _enlist(self, request: EnlistRequest, now_ms: int) -> Decision[EnlistReply]:
        metadata = self._transactions.get(request.transactional_id)
        error, detail = self._pending_error(request.transactional_id), ""
        if error is ErrorCode.NONE and metadata is not None:
            error, detail = _token_refusal(metadata, request.token)
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error, detail))
        if metadata is None:
            detail = f"no run of {request.transactional_id!r} is known"
            return Decision(reply=request.failed(ErrorCode.PRODUCER_FENCED, detail))
        if metadata.run == request.run and metadata.is_run_waiting:
            return self._first_enlisted(metadata, now_ms)
        if not is_run_open(metadata, request.run):
            detail = cause_text(metadata)
            return Decision(reply=request.failed(ErrorCode.PRODUCER_FENCED, detail))
        if active_count(metadata.members) >= MEMBERS_MAX:
            detail = f"the run has {MEMBERS_MAX} members already, the most that are allowed"
            return Decision(reply=request.failed(ErrorCode.POLICY_VIOLATION, detail))
        enlisted = self._newly_enlisted(metadata)
        return self._member_decision(_enlist_reply(enlisted), metadata, enlisted, now_ms)

    def _first_enlisted(self, metadata: TransactionMetadata, now_ms: int) -> Decision[EnlistReply]:
        """The transaction opens: the record of the id has the whole pool, and its first member."""
        opened = run_opened(metadata, now_ms)
        enlisted = self._newly_enlisted(opened)
        return self._decision(
            _enlist_reply(enlisted),
            structs.replace(opened, members=with_member(opened.members, enlisted)),
        )

    def _newly_enlisted(self, metadata: TransactionMetadata) -> Member:
        """A member out of the pool, or a new one."""
        member = free_member(metadata.members)
        if member is None:
            member = Member(producer_id=self._spare_producer_id(needed=True))
        return structs.replace(member, status=MemberStatus.ENLISTED)

    # --- ends -------------------------------------------------------------------------------

    def _end_run(
        self, request: EndTxnRequest, run: Run, held: HeldRecords, now_ms: int
    ) -> Decision[EndTxnReply]:
        metadata = self._transactions.get(request.transactional_id)
        error = self._pending_error(request.transactional_id)
        if error is ErrorCode.NONE and metadata is None:
            error = ErrorCode.PRODUCER_FENCED
        if error is not ErrorCode.NONE or metadata is None:
            return Decision(reply=request.failed(error))
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
            return Decision(reply=request.failed(verdict, cause_text(metadata)))
        if request.committed:
            error, detail = _commit_refusal(metadata, request, held)
            if error is not ErrorCode.NONE:
                return Decision(reply=request.failed(error, detail))
        steps: tuple[TransactionMetadata, ...] = ()
        if metadata.is_run_waiting:
            # Nobody enlisted: its token counts. It begins and ends in one batch of the log.
            metadata = run_opened(metadata, now_ms)
            steps = (metadata,)
        return self._decision(EndTxnReply(), *steps, self._prepared(metadata, request, now_ms))

    # --- drivers ----------------------------------------------------------------------------

    def open_drivers(self) -> tuple[tuple[str, DriverProcess], ...]:
        """Every id with an open run that ends with its driver, and that driver."""
        return tuple(
            (transactional_id, driver)
            for transactional_id in self._unsettled
            if (driver := self._open_driver(transactional_id)) is not None
        )

    def decide_driver_gone(
        self, transactional_id: str, driver: DriverProcess, now_ms: int
    ) -> Decision[Reply]:
        """Abort the open run of ``driver``, which is gone for good; of another's do nothing."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or self._open_driver(transactional_id) != driver:
            return Decision(reply=Reply())
        abandoned = metadata
        return self._with_producer_ids(
            lambda: self._decision(Reply(), self._aborted(abandoned, now_ms, EpochCause.DRIVER)),
            lambda error, detail: Reply(error=error, detail=detail),
        )

    def _open_driver(self, transactional_id: str) -> DriverProcess | None:
        """The driver of the id's run, if that is open and nothing else happens to it."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or metadata.run is None or transactional_id in self._pending:
            return None
        return metadata.driver if is_run_open(metadata, metadata.run) else None


def _enlist_reply(member: Member) -> EnlistReply:
    return EnlistReply(producer_id=member.producer_id, producer_epoch=member.producer_epoch)


def _token_refusal(metadata: TransactionMetadata, token: bytes) -> Refusal:
    """Whether what ``token`` names is committed already, or below what is."""
    if is_token_decided(metadata, token):
        return ErrorCode.ALREADY_COMMITTED, ""
    return check_version(metadata.transactional_id, token, metadata.commit_token)


def _commit_refusal(
    metadata: TransactionMetadata, request: EndTxnRequest, held: HeldRecords
) -> Refusal:
    """Whether the run may commit what it says: its token, and the records of its winners."""
    refusal = _token_refusal(metadata, request.token or b"")
    return check_winners(metadata.members, request.winners, held) if refusal is FINE else refusal
