"""Distributed writes at the coordinator: many tasks enlist, one call commits or aborts all.

Rules. A *run* is one attempt at the whole write. Its planner begins the run and gets a number; the
newest run fences those before, whatever any clock says. The first member opens the transaction,
with a record of the whole id. Each further member, and each enrolment, is a record of its own;
PREPARE contains them all. If its driver is gone a run is aborted, unless it is decided. A token is
committed once, and the versions of an application only increase.

| request | unknown id | at rest | Ongoing | Prepare* |
|---|---|---|---|---|
| begin, after the newest run | new id, run waits | run waits | abort; CONCURRENT | CONCURRENT |
| begin, again | - | its number | its number | its number |
| begin, after another run | CONCURRENT | CONCURRENT | CONCURRENT | CONCURRENT |
| enlist, newest run | - | first member if it waits, else FENCED | one more | FENCED |
| enlist, another run | FENCED | FENCED | FENCED | FENCED |
| leave, enlisted in the newest run | - | nothing | LEFT; the last: abort, the run waits | nothing |
| leave, any other | nothing | nothing | nothing | nothing |
| renew, newest run | - | FENCED unless it waits | logged, now and then | FENCED unless it waits |
| renew, another run | FENCED | FENCED | FENCED | FENCED |
| end of the newest run | - | table in ``transaction.end`` | PREPARE | table |
| end of another run | FENCED | table | table | table |
| driver gone | - | - | abort | - |

An enlist is CONCURRENT while a run that will wait again is being aborted. FENCED is
PRODUCER_FENCED. A begin names the newest run that its caller knows of, so a late copy of it changes
nothing. Source: members, runs and tokens are oncelog's own, on top of KIP-98.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec import structs

from oncelog.actors.protocol.effects import Decision, refused
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.transaction import (
    BeginRunReply,
    BeginRunRequest,
    DriverProcess,
    EndTxnReply,
    EndTxnRequest,
    EnlistReply,
    EnlistRequest,
    LeaveRunRequest,
    RenewRunRequest,
    Run,
)
from oncelog.actors.protocol.transaction.checks import (
    BUSY,
    Refusal,
    check_begin_run,
    check_enlist,
    check_run,
    check_version,
)
from oncelog.actors.protocol.transaction.end import EndAction, cause_text, run_end_verdict
from oncelog.actors.protocol.transaction.ids import TransactionalIds
from oncelog.actors.protocol.transaction.members import (
    MEMBERS_MAX,
    HeldRecords,
    MemberStatus,
    RunMember,
    active_count,
    check_winners,
    free_member,
    has_enlisted,
    with_member,
)
from oncelog.actors.protocol.transaction.producer_ids import (
    ProducerIdBlocks,
    waiting_for_producer_ids,
)
from oncelog.actors.protocol.transaction.transaction_state import (
    AT_REST,
    DECIDED,
    EpochCause,
    TransactionMetadata,
    aborted,
    created,
    emptied,
    has_run_committed,
    is_run_open,
    is_token_committed,
    newest_run_number,
    prepared,
    run_begun,
    run_opened,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

RENEWALS: Final = 8
"""Maximum number of log records per timeout of a run saying that its tasks are alive."""


@dataclass(eq=False)
class Runs:
    """Decisions about distributed writes."""

    ids: TransactionalIds
    producer_ids: ProducerIdBlocks
    transaction_max_timeout_ms: int

    # --- begin ------------------------------------------------------------------------------

    @waiting_for_producer_ids
    def decide_begin_run(self, request: BeginRunRequest, now_ms: int) -> Decision[BeginRunReply]:
        """Give the caller's run its number, which fences all earlier runs and producers.

        An open transaction is aborted first: the caller gets ``CONCURRENT_TRANSACTIONS`` and
        retries. It gets the same code, with the newest number, if it does not know the newest run.
        """
        metadata = self.ids.metadata(request.transactional_id)
        refusal = check_begin_run(request, self.transaction_max_timeout_ms)
        refusal = refusal or self._write_refusal(request)
        if refusal is not None:
            return refused(request, *refusal)
        newest = newest_run_number(metadata)
        if metadata is not None and metadata.run is not None and metadata.run.id == request.run_id:
            return Decision(reply=_begin_reply(metadata))
        if request.after != newest:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
            return Decision(reply=BeginRunReply(error=error, number=newest))
        if metadata is None:
            metadata = created(
                request.transactional_id,
                producer_id=self.producer_ids.take(),
                transaction_timeout_ms=request.transaction_timeout_ms,
                now_ms=now_ms,
            )
        elif metadata.state not in AT_REST:
            return self.ids.abort_ongoing(
                request, metadata, EpochCause.RUN, now_ms, self.producer_ids
            )
        begun = run_begun(
            metadata,
            request.run_id,
            driver=request.driver,
            transaction_timeout_ms=request.transaction_timeout_ms,
            spare_producer_id=self.producer_ids.spare(metadata),
            now_ms=now_ms,
        )
        return self.ids.move(_begin_reply(begun), begun)

    def _write_refusal(self, request: BeginRunRequest | EnlistRequest) -> Refusal | None:
        """Reject the request if the id has a pending change or the token may not be committed."""
        metadata = self.ids.metadata(request.transactional_id)
        refusal = self.ids.check_not_pending(request.transactional_id)
        if refusal is not None or metadata is None:
            return refusal
        return _token_refusal(metadata, request.token)

    # --- members ----------------------------------------------------------------------------

    @waiting_for_producer_ids
    def decide_enlist(self, request: EnlistRequest, now_ms: int) -> Decision[EnlistReply]:
        """Make the caller a member of its run; the first member opens the transaction.

        ``PRODUCER_FENCED`` unless its run is the newest: a run that has ended stays ended.
        """
        metadata = self.ids.metadata(request.transactional_id)
        refusal = check_enlist(request) or self._write_refusal(request)
        if refusal is not None:
            return refused(request, *refusal)
        if metadata is None:
            detail = f"no run of {request.transactional_id!r} is known"
            return refused(request, ErrorCode.PRODUCER_FENCED, detail)
        if metadata.run == request.run and metadata.is_run_waiting:
            if metadata.state in DECIDED:
                return refused(request, *BUSY)
            return self._first_enlisted(metadata, now_ms)
        if not is_run_open(metadata, request.run):
            detail = cause_text(metadata)
            return refused(request, ErrorCode.PRODUCER_FENCED, detail)
        if active_count(metadata.members) >= MEMBERS_MAX:
            detail = (
                f"the run has {MEMBERS_MAX} members already, the most that are allowed: write with "
                "fewer tasks, in Spark after coalesce(n)"
            )
            return refused(request, ErrorCode.POLICY_VIOLATION, detail)
        enlisted = self._newly_enlisted(metadata)
        return self.ids.move_member(_enlist_reply(enlisted), metadata, enlisted, now_ms)

    def _first_enlisted(self, metadata: TransactionMetadata, now_ms: int) -> Decision[EnlistReply]:
        """Open the transaction, with a record of the id, the whole pool and the first member."""
        opened = run_opened(metadata, now_ms)
        enlisted = self._newly_enlisted(opened)
        return self.ids.move(
            _enlist_reply(enlisted),
            structs.replace(opened, members=with_member(opened.members, enlisted)),
        )

    def _newly_enlisted(self, metadata: TransactionMetadata) -> RunMember:
        """A member out of the pool, or a new one."""
        member = free_member(metadata.members)
        if member is None:
            member = RunMember(producer_id=self.producer_ids.take())
        return structs.replace(member, status=MemberStatus.ENLISTED)

    @waiting_for_producer_ids
    def decide_leave(self, request: LeaveRunRequest, now_ms: int) -> Decision[Reply]:
        """The caller has failed and can no longer win; the last one to leave empties the run."""
        metadata = self.ids.metadata(request.transactional_id)
        refusal = check_run(request) or self.ids.check_not_pending(request.transactional_id)
        if refusal is not None:
            return refused(request, *refusal)
        if metadata is None or not is_run_open(metadata, request.run):
            return Decision(reply=Reply())
        member = metadata.members.get(request.producer_id)
        if member is None or not _is_enlisted(member, request.producer_epoch):
            return Decision(reply=Reply())
        left = structs.replace(member, status=MemberStatus.LEFT)
        members = with_member(metadata.members, left)
        if has_enlisted(members):
            return self.ids.move_member(Reply(), metadata, left, now_ms)
        spare = self.producer_ids.spare(metadata)
        following = emptied(structs.replace(metadata, members=members), now_ms, spare)
        return self.ids.move(Reply(), following)

    @waiting_for_producer_ids
    def decide_renew(self, request: RenewRunRequest, now_ms: int) -> Decision[Reply]:
        """A task is alive; this is logged a few times per timeout, for all tasks together."""
        metadata = self.ids.metadata(request.transactional_id)
        refusal = check_run(request)
        if refusal is not None:
            return refused(request, *refusal)
        if metadata is not None and metadata.run == request.run and metadata.is_run_waiting:
            return Decision(reply=Reply())
        if metadata is None or not is_run_open(metadata, request.run):
            detail = "" if metadata is None else cause_text(metadata)
            return refused(request, ErrorCode.PRODUCER_FENCED, detail)
        is_news = now_ms - metadata.last_update_ms >= metadata.transaction_timeout_ms // RENEWALS
        if not is_news or self.ids.is_pending(request.transactional_id):
            return Decision(reply=Reply())
        return self.ids.move(Reply(), structs.replace(metadata, last_update_ms=now_ms))

    # --- ends -------------------------------------------------------------------------------

    def winner_partitions(self, request: EndTxnRequest) -> tuple[TopicPartition, ...]:
        """The partitions whose leaders must report record counts before the run may end."""
        metadata = self.ids.metadata(request.transactional_id)
        if metadata is None or request.run is None or not request.committed:
            return ()
        if not is_run_open(metadata, request.run):
            return ()
        members = [metadata.members.get(winner.producer_id) for winner in request.winners]
        wanted = (member.partitions for member in members if member is not None)
        return tuple(sorted(frozenset[TopicPartition]().union(*wanted)))

    @waiting_for_producer_ids
    def decide_end(
        self, request: EndTxnRequest, run: Run, held: HeldRecords, now_ms: int
    ) -> Decision[EndTxnReply]:
        """End the transaction of ``run``, or answer how it has ended: see ``end``."""
        metadata = self.ids.metadata(request.transactional_id)
        refusal = self.ids.check_not_pending(request.transactional_id)
        if refusal is not None:
            return refused(request, *refusal)
        if metadata is None:
            return refused(request, ErrorCode.PRODUCER_FENCED)
        verdict = run_end_verdict(
            metadata,
            is_newest=run == metadata.run,
            committed=request.committed,
            is_token_committed=is_token_committed(metadata, request.token),
        )
        if verdict is EndAction.ENDED:
            is_by_other = request.committed and not has_run_committed(metadata, run)
            error = ErrorCode.ALREADY_COMMITTED if is_by_other else ErrorCode.NONE
            return Decision(reply=EndTxnReply(error=error))
        if verdict is not EndAction.PREPARE:
            return refused(request, verdict, cause_text(metadata))
        if request.committed:
            refusal = _commit_refusal(metadata, request, held)
            if refusal is not None:
                return refused(request, *refusal)
        steps: tuple[TransactionMetadata, ...] = ()
        if metadata.is_run_waiting:
            # No one enlisted: only the token is committed. The transaction begins and ends in one
            # log batch.
            metadata = run_opened(metadata, now_ms)
            steps = (metadata,)
        following = prepared(
            metadata,
            committed=request.committed,
            now_ms=now_ms,
            spare_producer_id=self.producer_ids.spare(metadata),
            token=request.token,
            winners=frozenset(winner.producer_id for winner in request.winners),
        )
        return self.ids.move(EndTxnReply(), *steps, following)

    # --- drivers ----------------------------------------------------------------------------

    def open_drivers(self) -> tuple[tuple[str, DriverProcess], ...]:
        """All ids with an open run that has a driver, and the driver."""
        return tuple(
            (metadata.transactional_id, driver)
            for metadata in self.ids.not_at_rest()
            if (driver := self._open_driver(metadata)) is not None
        )

    @waiting_for_producer_ids
    def decide_driver_gone(
        self, transactional_id: str, driver: DriverProcess, now_ms: int
    ) -> Decision[Reply]:
        """Abort the open run of ``driver``, which is gone for good; ignore any other run."""
        metadata = self.ids.metadata(transactional_id)
        if metadata is None or self._open_driver(metadata) != driver:
            return Decision(reply=Reply())
        spare = self.producer_ids.spare(metadata)
        return self.ids.move(Reply(), aborted(metadata, EpochCause.DRIVER, now_ms, spare))

    def _open_driver(self, metadata: TransactionMetadata) -> DriverProcess | None:
        """The driver of the id's run, if the run is open and no change is pending."""
        if metadata.run is None or self.ids.is_pending(metadata.transactional_id):
            return None
        return metadata.driver if is_run_open(metadata, metadata.run) else None


def _is_enlisted(member: RunMember, producer_epoch: int) -> bool:
    return member.status is MemberStatus.ENLISTED and member.producer_epoch == producer_epoch


def _begin_reply(metadata: TransactionMetadata) -> BeginRunReply:
    return BeginRunReply(number=newest_run_number(metadata), commit_token=metadata.commit_token)


def _enlist_reply(member: RunMember) -> EnlistReply:
    return EnlistReply(producer_id=member.producer_id, producer_epoch=member.producer_epoch)


def _token_refusal(metadata: TransactionMetadata, token: bytes) -> Refusal | None:
    """Reject a token whose version is already committed, or older than the committed one."""
    if is_token_committed(metadata, token):
        return ErrorCode.ALREADY_COMMITTED, ""
    return check_version(metadata.transactional_id, token, metadata.commit_token)


def _commit_refusal(
    metadata: TransactionMetadata, request: EndTxnRequest, held: HeldRecords
) -> Refusal | None:
    """Reject a commit if its token or the record counts of its winners are not valid."""
    return _token_refusal(metadata, request.token or b"") or check_winners(
        metadata.members, request.winners, held
    )
