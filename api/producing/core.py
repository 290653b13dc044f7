"""The implementation of producers: what each call does to the transaction.

Belongs to one event loop; only ``begin_transaction`` may be called from another thread.

One file: each call is a few steps on the same state, and one must see how they exclude each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal, TypeVar, get_args

from oncelog.actors.protocol.messages.cluster import PartitionMetadata
from oncelog.actors.protocol.messages.group import OffsetAndMetadata, OffsetCommitReply
from oncelog.actors.protocol.messages.share import ShareAcknowledgeReply
from oncelog.actors.protocol.messages.transaction import (
    EndTxnRequest,
    Holder,
    PrepareTxnRequest,
    Run,
)
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.sender import Sender
from oncelog.api.records import QueueAcknowledgements
from oncelog.api.session.routing import Router
from oncelog.api.transacting.enrolment import END_WITHIN_MS, ProducerEnrolments
from oncelog.api.transacting.producer_transaction import (
    PreparedTxnState,
    ProducerIdentity,
    ProducerTransaction,
    TransactionStatus,
)
from oncelog.api.transacting.requests import GroupMetadata, TransactionRequests
from oncelog.storage.errors import ErrorClass, ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    IllegalStateError,
    InvalidRequestError,
    OncelogError,
    RequestTimedOutError,
    TransactionAbortableError,
    exception_for,
)
from oncelog.storage.model import COMMIT_TOKEN_MAX_BYTES, INT32_MAX, NO_PRODUCER_ID, TopicPartition
from oncelog.storage.settings import check_range, refused

ResultT = TypeVar("ResultT")

RENEWALS: Final = 4
"""How often a task of a distributed write renews its run within each timeout."""

RENEW_MS: Final = 1_800_000
"""How often an idle producer says that it lives, so that its id does not expire."""

RESOLUTION_S: Final = 0.001
"""A timer may fire early by the clock's resolution: what is due within this is due."""

SILENCES: Final = 3
"""After so many intervals without a heartbeat another producer may have the id."""

IfAlive = Literal["replace", "refuse"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TransactionCounters:
    """Transaction counts of one producer; times are sums, from the call to the decision."""

    begun: int = 0
    committed: int = 0
    aborted: int = 0
    commit_ms: float = 0.0
    abort_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class CallLimit:
    """How long a call may take: the name of what says so, and milliseconds."""

    name: str
    ms: int

    @classmethod
    def given(cls, timeout_ms: int) -> CallLimit:
        """The limit that the application gave; ``InvalidSettingError`` unless it is one."""
        check_range("timeout_ms", timeout_ms, 0, INT32_MAX)
        return cls("timeout_ms", timeout_ms)

    def __str__(self) -> str:
        """As in an error."""
        return f"{self.name}={self.ms}"


class ProducerCore:
    """One producer. Its transactional calls are queued: one takes effect before the next."""

    def __init__(
        self,
        *,
        router: Router,
        settings: ProducerSettings,
        random: Random,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._router = router
        self._state = (
            ProducerTransaction(settings.transactional_id) if settings.transactional_id else None
        )
        self._requests = TransactionRequests(router=router, settings=settings, random=random)
        self._operation = asyncio.Lock()
        self._is_closed = False
        self._loop = loop
        self._renewal: asyncio.Task[None] | None = None
        """Says that this producer, or its run, lives."""
        self._random = random
        self._holder_id = ""
        self._is_single = False
        self.transactions = TransactionCounters()
        self.sender = Sender(
            router=router,
            settings=settings,
            random=random,
            loop=loop,
            requests=self._requests,
            state=self._state,
        )
        self._buffer = self.sender.buffer
        self._transaction = self.sender.transaction

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until the outcome of everything sent so far is known.

        In a transaction, raises the failure of its records or offsets, or the error of a rejected
        ``send``. Outside, raises a failure whose future nobody has read.
        """
        self._buffer.check_process()
        if timeout_ms is None:
            await self.sender.deliver_all()
        else:
            limit = CallLimit.given(timeout_ms)
            await self._within(limit, self.sender.deliver_all(), "flush()")
        if self._state is not None:
            self._state.raise_error()
        self.raise_unreported()
        self.check_complete()

    async def partitions_for(self, topic: str) -> tuple[PartitionMetadata, ...]:
        """The partitions of ``topic``, cached or asked for."""
        self._buffer.check_process()
        if self._is_closed:
            raise ClientClosedError("the producer is closed", advice="make a new one")
        return (await self._buffer.topics.metadata(topic)).partitions

    async def close(self, timeout_ms: int | None = None) -> None:
        """Deliver what was sent, or end the transaction, within the time; then stop.

        A commit in progress is waited for; a transaction that is only open is aborted.
        """
        self._buffer.check_process()
        if self._is_closed:
            return
        timeout_s = None if timeout_ms is None else timeout_ms / 1_000
        # What does not finish in time is left to the transaction timeout; the records' futures
        # say so.
        with contextlib.suppress(OncelogError, asyncio.TimeoutError):
            await asyncio.wait_for(self._finish(), timeout_s)
        state = self._state
        if self._is_single and state is not None and not state.is_fatal:
            # A successor need not wait. If this is lost, it waits for the heartbeat's timeout.
            await self._requests.heartbeat(state.transactional_id, state.identity, is_leaving=True)
        await self.leave()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    async def abandon(self) -> None:
        """As ``close``: what was sent is delivered, and an open transaction aborted."""
        await self.close()

    def raise_unreported(self) -> None:
        """Raise a failure outside transactions that nobody has seen, as ``flush`` does."""
        if (error := self.sender.take_failure()) is not None:
            raise error

    async def leave(self) -> None:
        """Stop at once, without ending the transaction."""
        self._is_closed = True
        if self._renewal is not None:
            self._renewal.cancel()
        self.sender.close()

    # --- transactions -------------------------------------------------------------------------

    async def init_transactions(
        self, *, keep_prepared: bool = False, if_alive: IfAlive = "replace"
    ) -> bytes | None:
        """Fence older producers of the id; return the last committed transaction's token."""
        state = self._transactional()
        if if_alive not in get_args(IfAlive):
            raise refused("if_alive", if_alive, "'replace' or 'refuse'")
        interval_ms = self._buffer.settings.producer_heartbeat_interval_ms
        holder = None
        if if_alive == "refuse":
            self._holder_id = self._holder_id or f"{self._random.getrandbits(128):032x}"
            holder = Holder(
                id=self._holder_id,
                timeout_ms=SILENCES * interval_ms,
                process=self._router.process,
            )
        async with self._operation:
            state.begin_init()
            reply = await self._requests.init_producer_id(
                state.transactional_id, keep_prepared=keep_prepared, holder=holder
            )
            if reply.error is ErrorCode.TRANSACTIONAL_ID_IN_USE:
                raise exception_for(reply.error, reply.detail)  # It may be called again.
            if reply.error is not ErrorCode.NONE:
                raise self._transaction.failed("init_producer_id", reply, "init_transactions()")
            found = None
            if reply.prepared_producer_id != NO_PRODUCER_ID:
                found = PreparedTxnState(
                    producer_id=reply.prepared_producer_id,
                    producer_epoch=reply.prepared_producer_epoch,
                )
            state.initialized(
                ProducerIdentity(
                    producer_id=reply.producer_id, producer_epoch=reply.producer_epoch
                ),
                found,
            )
            self._keep_id(interval_ms if holder is not None else RENEW_MS, holder is not None)
            return reply.commit_token

    def _keep_id(self, interval_ms: int, is_single: bool) -> None:
        if self._renewal is None and not self._is_closed:
            self._is_single = is_single
            self._renewal = self._loop.create_task(self._send_heartbeats(interval_ms / 1_000))
            self._renewal.add_done_callback(_log_renewal_end)

    async def _send_heartbeats(self, interval_s: float) -> None:
        """Say that this producer lives, unless its calls say so; until another has the id."""
        state = self._transactional()
        while True:
            left_s = self._requests.called_s + interval_s - self._loop.time()
            if left_s > RESOLUTION_S:
                await asyncio.sleep(left_s)
                continue
            reply = await self._requests.heartbeat(state.transactional_id, state.identity)
            if reply.error is ErrorCode.PRODUCER_FENCED:
                # Its next call says why.
                return
            await asyncio.sleep(interval_s)

    async def enlist(self, run: Run, token: bytes) -> bool:
        """Join a distributed write; return false if ``token`` is committed already."""
        state = self._transactional()
        async with self._operation:
            state.begin_init()
            reply = await self._requests.enlist(state.transactional_id, run, token)
            if reply.error is ErrorCode.ALREADY_COMMITTED:
                return False
            if reply.error is not ErrorCode.NONE:
                raise self._transaction.failed("enlist", reply, "enlist()")
            state.enlisted(
                ProducerIdentity(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)
            )
            return True

    async def leave_run(self, run: Run) -> None:
        """Stop, and report that this member of a distributed write has failed. Never raises."""
        await self.leave()
        identity, state = self._transaction.identity, self._state
        if identity is None or state is None:
            return
        name = state.transactional_id
        reply = await self._requests.leave_run(name, run, identity)
        if reply.error is not ErrorCode.NONE:
            _log.warning(
                "the coordinator of %r was not told that a member has failed: %s %s; its records "
                "are aborted with its run",
                name,
                reply.error.name,
                reply.detail,
            )

    async def keep_run(self, run: Run, timeout_ms: int) -> None:
        """Renew ``run`` until this member has left, however long it computes."""
        if self._renewal is None and not self._is_closed:
            self._renewal = self._loop.create_task(self._renew(run, timeout_ms))
            self._renewal.add_done_callback(_log_renewal_end)

    async def _renew(self, run: Run, timeout_ms: int) -> None:
        """The renewal task. A renewal that fails is made up for by the next one."""
        name = self._transactional().transactional_id
        while True:
            await asyncio.sleep(timeout_ms / RENEWALS / 1_000)
            reply = await self._requests.renew_run(name, run)
            if reply.error is ErrorCode.PRODUCER_FENCED:
                # The member's next record will be rejected, and its future says why.
                return

    def begin_transaction(self) -> None:
        """Open a transaction; the coordinator learns of it from the first enrolment."""
        state = self._transactional()
        state.begin()
        self.transactions.begun += 1
        self._buffer.interceptors.on_transaction_begin(state.transactional_id)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        """Add the positions of a consumer group to the transaction."""
        state = self._transactional()
        async with self._operation:
            state.check_send()
            state.check_input(group.given_up)
            if not offsets:
                return
            try:
                reply = await self._commit_offsets(state, offsets, group)
            except asyncio.CancelledError:
                # The outcome is unknown: the transaction must not commit without them.
                self._transaction.fail(
                    TransactionAbortableError(
                        "send_offsets_to_transaction() was cancelled before its outcome was known"
                    ),
                    ErrorClass.ABORTABLE,
                )
                raise
            if reply.error is not ErrorCode.NONE:
                # Even a timeout fails the transaction: it must not commit without them.
                raise self._transaction.failed("txn_offset_commit", reply)

    async def send_acknowledgements(self, given: QueueAcknowledgements) -> None:
        """Have the transaction accept records of a queue."""
        state = self._transactional()
        async with self._operation:
            state.check_send()
            try:
                reply = await self._acknowledge(state, given)
            except asyncio.CancelledError:
                # The outcome is unknown: the transaction must not commit without them.
                self._transaction.fail(
                    TransactionAbortableError(
                        "send_acknowledgements_to_transaction() was cancelled before its outcome "
                        "was known"
                    ),
                    ErrorClass.ABORTABLE,
                )
                raise
            if reply.error is not ErrorCode.NONE:
                raise self._transaction.failed("txn_share_acknowledge", reply)

    def offsets_refused(self, error: BaseException) -> None:
        """Note that ``send_offsets_to_transaction`` raised ``error``; from any thread."""
        if self._state is not None:
            self._state.offsets_refused(error)

    async def commit_transaction(
        self,
        token: bytes | None,
        *,
        despite_refused_sends: bool = False,
        timeout_ms: int | None = None,
    ) -> bool:
        """Send everything, then commit; return whether all of it is already readable."""
        check_token(token)
        state, limit = self._transactional(), self._limit(timeout_ms)
        commit = self._commit(state, token, despite_refused_sends, limit)
        return await self._within(limit, commit, "commit_transaction()")

    async def _commit(
        self,
        state: ProducerTransaction,
        token: bytes | None,
        despite_refused_sends: bool,
        limit: CallLimit,
    ) -> bool:
        started_s = self._loop.time()
        async with self._operation:
            state.begin_commit(token, despite_refused=despite_refused_sends)
            await self.sender.deliver_all()
            state.raise_error()
            is_visible = await self._end(state, limit, is_commit=True)
            self.transactions.committed += 1
            self.transactions.commit_ms += 1_000 * (self._loop.time() - started_s)
            self._buffer.interceptors.on_transaction_commit(state.transactional_id)
            return is_visible

    @property
    def prepared(self) -> PreparedTxnState | None:
        """The prepared transaction, its own or a predecessor's."""
        return None if self._state is None else self._state.prepared

    async def prepare_transaction(self, timeout_ms: int | None = None) -> PreparedTxnState:
        """Send everything, then have the transaction kept for a decision elsewhere."""
        state, limit = self._transactional(), self._limit(timeout_ms)
        return await self._within(limit, self._prepare(state, limit), "prepare_transaction()")

    async def _prepare(self, state: ProducerTransaction, limit: CallLimit) -> PreparedTxnState:
        call = "prepare_transaction()"
        async with self._operation:
            state.begin_prepare()
            await self.sender.deliver_all()
            state.raise_error()
            if not state.has_work:
                ahead = await self._enrolment().end_ahead()
                if ahead.error is not ErrorCode.NONE:
                    raise self._transaction.failed("end_txn", ahead, call, str(limit))
            request = PrepareTxnRequest(
                transactional_id=state.transactional_id,
                producer_id=state.identity.producer_id,
                producer_epoch=state.identity.producer_epoch,
            )
            state.has_work = True
            reply = await self._requests.prepare(request, within_ms=limit.ms)
            if reply.error is not ErrorCode.NONE:
                raise self._transaction.failed("prepare_txn", reply, call, str(limit))
            return state.is_prepared_now()

    async def complete_transaction(
        self,
        prepared: PreparedTxnState | None,
        token: bytes | None = None,
        timeout_ms: int | None = None,
    ) -> bool:
        """Commit the prepared transaction if it is this one, else abort it; which it was."""
        check_token(token)
        if prepared is not None and not isinstance(prepared, PreparedTxnState):
            kind = type(prepared).__name__
            raise TypeError(
                f"state must be a PreparedTxnState or None, not {kind}; parse() reads text"
            )
        is_commit = self._transactional().should_commit(prepared)
        if is_commit:
            await self.commit_transaction(token, timeout_ms=timeout_ms)
        elif is_commit is not None:
            await self.abort_transaction(timeout_ms)
        return bool(is_commit)

    async def abort_transaction(self, timeout_ms: int | None = None) -> None:
        """Drop what was not sent and abort what was."""
        state, limit = self._transactional(), self._limit(timeout_ms)
        await self._within(limit, self._abort(state, limit), "abort_transaction()")

    def _limit(self, timeout_ms: int | None) -> CallLimit:
        if timeout_ms is not None:
            return CallLimit.given(timeout_ms)
        return CallLimit("max_block_ms", self._buffer.settings.max_block_ms)

    async def _within(
        self, limit: CallLimit, work: Coroutine[Any, Any, ResultT], call: str
    ) -> ResultT:
        """Run ``work`` for up to ``limit``; repeating the call continues where it stopped."""
        task = asyncio.current_task()
        assert task is not None
        # Python 3.10 cannot tell who else has cancelled it.
        cancelled_before = task.cancelling() if hasattr(task, "cancelling") else 0
        is_late = False

        def expire() -> None:
            nonlocal is_late
            is_late = True
            task.cancel()

        # Not wait_for: it would report the end only after the tasks that waited for it.
        timer = self._loop.call_later(limit.ms / 1_000, expire)
        try:
            return await work
        except asyncio.CancelledError:
            if not is_late:
                raise
            if hasattr(task, "uncancel") and task.uncancel() > cancelled_before:
                raise  # The application cancelled it too, at the same moment.
            raise RequestTimedOutError(
                f"{call} has not ended within {limit}: records or the end of the transaction "
                "got no reply, and may have taken effect",
                advice=f"call {call} again",
            ) from None
        finally:
            timer.cancel()

    async def _abort(self, state: ProducerTransaction, limit: CallLimit) -> None:
        started_s = self._loop.time()
        async with self._operation:
            state.begin_abort()
            self.sender.stop(
                TransactionAbortableError("the transaction was aborted by abort_transaction()")
            )
            await self._end(state, limit, is_commit=False)
            self.transactions.aborted += 1
            self.transactions.abort_ms += 1_000 * (self._loop.time() - started_s)
            self._buffer.interceptors.on_transaction_abort(state.transactional_id)

    def check_complete(self) -> None:
        """Raise if a send or offsets of the open transaction were rejected."""
        if self._state is not None:
            self._state.check_complete()

    # --- ending -------------------------------------------------------------------------------

    async def _commit_offsets(
        self,
        state: ProducerTransaction,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
    ) -> OffsetCommitReply:
        ticket = await self._offsets_ticket(state, group.group_id)
        partition = self._router.offsets_partition(group.group_id)
        state.offsets_partitions.add(partition)
        reply = await self._requests.commit_offsets(
            state.transactional_id,
            state.identity,
            offsets,
            group,
            ticket,
            base_sequence=state.take_offset_sequence(len(offsets)),
        )
        return await self._transaction.fencing.explained(partition, reply)

    async def _acknowledge(
        self, state: ProducerTransaction, given: QueueAcknowledgements
    ) -> ShareAcknowledgeReply:
        ticket = await self._offsets_ticket(state, given.group_id)
        partition = self._router.offsets_partition(given.group_id)
        state.offsets_partitions.add(partition)
        reply = await self._requests.acknowledge(
            state.transactional_id,
            state.identity,
            given,
            ticket,
            base_sequence=state.take_offset_sequence(len(given.acknowledgements)),
        )
        return await self._transaction.fencing.explained(partition, reply)

    async def _offsets_ticket(self, state: ProducerTransaction, group_id: str) -> bytes:
        await self._router.start()
        partition = self._router.offsets_partition(group_id)
        if partition not in state.tickets:
            # Together with the partitions that the transaction's records are waiting for.
            await self.sender.enrol({partition, *self.sender.unready_partitions()})
            state.raise_error()
        return state.tickets[partition]

    async def _end(self, state: ProducerTransaction, limit: CallLimit, *, is_commit: bool) -> bool:
        # The coordinator stores a token even if nothing was sent.
        enrolment = self._enrolment()
        written = self.sender.written_partitions | state.offsets_partitions
        if not state.has_work and not (is_commit and state.token):
            state.ended(state.identity)
            enrolment.ended(written)
            self.sender.forget_partitions()
            return True
        call = "commit_transaction()" if is_commit else "abort_transaction()"
        if not state.has_work:
            ahead = await enrolment.end_ahead()
            if ahead.error is not ErrorCode.NONE:
                raise self._transaction.failed("end_txn", ahead, call, str(limit))
        identity = state.identity
        reply = await self._requests.end(
            EndTxnRequest(
                transactional_id=state.transactional_id,
                committed=is_commit,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                token=state.token if is_commit else None,
                next_partitions=enrolment.wanted_ahead(written) if is_commit else (),
            ),
            within_ms=limit.ms,
        )
        if reply.error is not ErrorCode.NONE:
            raise self._transaction.failed("end_txn", reply, call, str(limit))
        # The next transaction has another epoch, and so its sequences start at 0.
        state.ended(
            ProducerIdentity(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)
        )
        enrolment.ended(written, reply)
        self.sender.forget_partitions()
        return reply.visible

    async def _finish(self) -> None:
        if self._state is None:
            await self.sender.deliver_all()
            return
        async with self._operation:
            pass  # Let a commit that another thread or task has begun finish.
        if self._state.status in (
            TransactionStatus.IN_TRANSACTION,
            TransactionStatus.ABORTABLE_ERROR,
            TransactionStatus.ABORTING_TRANSACTION,
        ):
            await self.abort_transaction()
        if self._state.status is TransactionStatus.READY:
            # If there is no reply, the transaction timeout ends it.
            await self._enrolment().end_ahead(within_ms=END_WITHIN_MS)

    def _enrolment(self) -> ProducerEnrolments:
        assert self._transaction.enrolments is not None
        return self._transaction.enrolments

    def _transactional(self) -> ProducerTransaction:
        self._buffer.check_process()
        if self._is_closed:
            raise ClientClosedError("the producer is closed", advice="make a new one")
        if self._state is None:
            raise IllegalStateError(
                "this producer has no transactions", advice="make it with transactional_id='...'"
            )
        return self._state


def check_token(token: object) -> None:
    """``InvalidRequestError`` unless ``token`` is ``None`` or 1 to 1,024 bytes."""
    if token is None or (isinstance(token, bytes) and 1 <= len(token) <= COMMIT_TOKEN_MAX_BYTES):
        return
    what = f"{len(token)} bytes" if isinstance(token, bytes) else repr(token)
    raise InvalidRequestError(
        f"a commit token of {what} is not allowed",
        advice=f"give 1 to {COMMIT_TOKEN_MAX_BYTES} bytes",
    )


def _log_renewal_end(renewal: asyncio.Task[None]) -> None:
    """It ends with its producer, member or run; if it fails, these may time out."""
    if not renewal.cancelled() and (bug := renewal.exception()) is not None:
        _log.error("a producer no longer says that it lives: %r", bug, exc_info=bug)
