"""A producer's calls to its coordinators: one at a time, each retried until its reply is final.

A coordinator works on one step of a transactional id at a time and answers others with
``CONCURRENT_TRANSACTIONS``; so these calls are queued here. Each is safe to repeat with the same
arguments. A reply with a retriable error means that ``max_block_ms`` have passed.

Two replies are kept: why leaders reject an epoch, and the producer ids of a producer without
transactions.

One file: the calls, and what is kept of their replies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from random import Random
from typing import Any, Final, Protocol

from msgspec import structs

from oncelog.actors.protocol.messages.base import Reply, ReplyT
from oncelog.actors.protocol.messages.group import (
    OffsetAndMetadata,
    OffsetCommitReply,
    TxnOffsetCommitRequest,
)
from oncelog.actors.protocol.messages.share import (
    ShareAcknowledgeReply,
    TxnShareAcknowledgeRequest,
)
from oncelog.actors.protocol.messages.transaction import (
    NO_RUN,
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    BeginRunReply,
    BeginRunRequest,
    EndTxnReply,
    EndTxnRequest,
    EnlistReply,
    EnlistRequest,
    Holder,
    InitProducerIdReply,
    InitProducerIdRequest,
    LeaveRunRequest,
    PrepareTxnRequest,
    ProducerHeartbeatRequest,
    RenewRunRequest,
    Run,
)
from oncelog.api.config import ProducerSettings
from oncelog.api.records import GivenUpInput, QueueAcknowledgements
from oncelog.api.session.retry import BackoffPolicy, call_with_retries
from oncelog.api.session.routing import Router
from oncelog.api.transacting.producer_transaction import (
    ProducerIdentity,
    ProducerTransaction,
    severity,
)
from oncelog.storage.errors import ErrorClass, ErrorCode
from oncelog.storage.exceptions import exception_for
from oncelog.storage.model import TopicPartition

WHY_WITHIN_MS: Final = 2_000
"""How long to wait for a coordinator's reason for fencing; after that the leader's is used."""

LEAVE_WITHIN_MS: Final = 2_000
"""How long a failed task is delayed so that it can report its failure."""

UNKNOWN_TOPIC_WAIT_MS: Final = 3_000
"""How long a topic may be missing before a call fails: it may have just been created."""


_WITHOUT_CAUSE: Final = frozenset({ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""Codes of partitions that did not make the call fail."""


class GroupMetadata(Protocol):
    """The identity of a group member, as ``Consumer.group_metadata`` returns it (KIP-447)."""

    @property
    def group_id(self) -> str:
        """The group id."""
        ...

    @property
    def generation_id(self) -> int:
        """The generation it joined; -1 for none."""
        ...

    @property
    def member_id(self) -> str:
        """Its member id; "" for none."""
        ...

    @property
    def group_instance_id(self) -> str | None:
        """Its static member id, if it has one."""
        ...

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The id of each topic that it reads."""
        ...

    @property
    def given_up(self) -> Mapping[TopicPartition, GivenUpInput]:
        """The partitions that rebalances have taken from it."""
        ...


class AcknowledgingQueue(Protocol):
    """A queue whose records a transaction accepts; see ``Queue``."""

    def acknowledgements(self, records: Any) -> QueueAcknowledgements:
        """Give up ``records`` to the transaction; all or none."""
        ...

    def unsent(self, given: QueueAcknowledgements) -> None:
        """Take note that the transaction could not accept them."""
        ...


class TransactionRequests:
    """The calls of one producer. Belongs to one event loop."""

    def __init__(self, *, router: Router, settings: ProducerSettings, random: Random) -> None:
        self._router = router
        self._settings = settings
        self._random = random
        self._policy = BackoffPolicy.of(settings)
        self._timeout_ms = min(settings.request_timeout_ms, settings.max_block_ms)
        self._turn = asyncio.Lock()
        self.called_s = 0.0
        """When the last call to a coordinator ended, in the loop's time."""

    async def init_producer_id(
        self,
        transactional_id: str | None,
        *,
        keep_prepared: bool = False,
        holder: Holder | None = None,
    ) -> InitProducerIdReply:
        """Get a producer id; with a transactional id, fence its older producers.

        Sent without an epoch: the coordinator fences everyone else, whatever became of earlier
        attempts of this call.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            keep_prepared=keep_prepared,
            holder=holder,
            refuse_if_alive=holder is not None,
        )

        return await self._init(request)

    async def renew_ticket(self, identity: ProducerIdentity, ticket: bytes) -> InitProducerIdReply:
        """Get a ticket for ``identity`` under the current key, given its previous ``ticket``."""
        return await self._init(
            InitProducerIdRequest(
                transactional_id=None,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                ticket=ticket,
            )
        )

    async def _init(self, request: InitProducerIdRequest) -> InitProducerIdReply:
        def attempt(timeout_ms: int) -> Awaitable[InitProducerIdReply]:
            # Any shard serves an idempotent producer.
            key = request.transactional_id or str(self._random.getrandbits(32))
            return self._router.call_transaction_coordinator(key, request, timeout_ms=timeout_ms)

        return await self._repeat("init_producer_id", attempt)

    async def heartbeat(
        self, transactional_id: str, identity: ProducerIdentity, *, is_leaving: bool = False
    ) -> Reply:
        """Report once that the producer lives, or ends; the next one makes up for a lost one."""
        request = ProducerHeartbeatRequest(
            transactional_id=transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            is_leaving=is_leaving,
        )
        return await self._router.call_transaction_coordinator(
            transactional_id, request, timeout_ms=min(self._timeout_ms, LEAVE_WITHIN_MS)
        )

    async def begin_run(self, request: BeginRunRequest) -> BeginRunReply:
        """Begin a run of a distributed write; its number is above that of the newest."""

        async def attempt(timeout_ms: int) -> BeginRunReply:
            nonlocal request
            reply = await self._router.call_transaction_coordinator(
                request.transactional_id, request, timeout_ms=timeout_ms
            )
            if reply.error is ErrorCode.CONCURRENT_TRANSACTIONS and reply.number != NO_RUN:
                request = structs.replace(request, after=reply.number)
                reply = await self._router.call_transaction_coordinator(
                    request.transactional_id, request, timeout_ms=timeout_ms
                )
            return reply

        return await self._repeat("begin_run", attempt)

    async def enlist(self, transactional_id: str, run: Run, token: bytes) -> EnlistReply:
        """Get a member's identity in the distributed write ``run``."""
        request = EnlistRequest(transactional_id=transactional_id, run=run, token=token)
        return await self._repeat(
            "enlist",
            lambda timeout_ms: self._router.call_transaction_coordinator(
                transactional_id, request, timeout_ms=timeout_ms
            ),
        )

    async def leave_run(self, transactional_id: str, run: Run, identity: ProducerIdentity) -> Reply:
        """Report that a member has failed; if that is lost, the end of the run settles it."""
        request = LeaveRunRequest(
            transactional_id=transactional_id,
            run=run,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )
        return await self._repeat(
            "leave_run",
            lambda timeout_ms: self._router.call_transaction_coordinator(
                transactional_id, request, timeout_ms=timeout_ms
            ),
            within_ms=min(LEAVE_WITHIN_MS, self._settings.max_block_ms),
        )

    async def renew_run(self, transactional_id: str, run: Run) -> Reply:
        """Report once that a task lives; a lost report is followed by another soon."""
        request = RenewRunRequest(transactional_id=transactional_id, run=run)
        return await self._router.call_transaction_coordinator(
            transactional_id, request, timeout_ms=self._timeout_ms
        )

    async def add_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Collection[TopicPartition],
        *,
        expected: Collection[TopicPartition] = (),
    ) -> AddPartitionsToTxnReply:
        """Enrol ``partitions``; the reply's error is that of the worst partition.

        Partitions that are only ``expected`` are enrolled with them, or left out if that fails.
        """

        async def call(wanted: set[TopicPartition], timeout_ms: int) -> AddPartitionsToTxnReply:
            request = AddPartitionsToTxnRequest(
                transactional_id=transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                partitions=tuple(sorted(wanted)),
            )
            return _with_worst_enrolment(
                await self._router.call_transaction_coordinator(
                    transactional_id, request, timeout_ms=timeout_ms
                )
            )

        needed = set(partitions)
        wanted = needed.union(expected)

        async def attempt(timeout_ms: int) -> AddPartitionsToTxnReply:
            nonlocal wanted
            reply = await call(wanted, timeout_ms)
            if reply.error is not ErrorCode.NONE and wanted != needed:
                wanted = needed
                reply = await call(wanted, timeout_ms)
            return reply

        return await self._repeat("add_partitions_to_txn", attempt)

    async def fencing_error(
        self, transactional_id: str, identity: ProducerIdentity, partition: TopicPartition
    ) -> Reply:
        """Ask the coordinator why a leader rejected the epoch of ``identity``.

        ``partition`` is enrolled already, so the call changes nothing. ``NONE`` or a retriable
        error means that the coordinator knows no reason, or does not reply.
        """
        request = AddPartitionsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            partitions=(partition,),
        )
        return await self._repeat(
            "add_partitions_to_txn",
            lambda timeout_ms: self._router.call_transaction_coordinator(
                transactional_id, request, timeout_ms=timeout_ms
            ),
            within_ms=min(WHY_WITHIN_MS, self._settings.max_block_ms),
        )

    async def commit_offsets(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
        ticket: bytes,
        *,
        base_sequence: int,
    ) -> OffsetCommitReply:
        """Send the offsets to the group's coordinator, where they wait for the marker.

        ``base_sequence`` is the number of positions that the transaction has sent before.
        """
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group.group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=base_sequence,
            offsets=tuple(offsets.items()),
            ticket=ticket,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
        )

        async def attempt(timeout_ms: int) -> OffsetCommitReply:
            reply = await self._router.call_group_coordinator(
                group.group_id, request, timeout_ms=timeout_ms
            )
            for result in reply.results:
                # If a call is rejected the others were not attempted; their codes mean nothing.
                is_refused = result.error not in _WITHOUT_CAUSE
                if reply.error is ErrorCode.NONE and is_refused:
                    return structs.replace(
                        reply,
                        error=result.error,
                        detail=reply.detail or f"partition {result.topic_partition}",
                    )
            return reply

        return await self._repeat("txn_offset_commit", attempt)

    async def acknowledge(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        given: QueueAcknowledgements,
        ticket: bytes,
        *,
        base_sequence: int,
    ) -> ShareAcknowledgeReply:
        """Send a queue's acknowledgements to its coordinator, where they wait for the marker.

        ``base_sequence`` is as for ``commit_offsets``; each partition counts as a position.
        """
        request = TxnShareAcknowledgeRequest(
            transactional_id=transactional_id,
            group_id=given.group_id,
            member_id=given.member_id,
            member_epoch=given.member_epoch,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=base_sequence,
            acknowledgements=given.acknowledgements,
            ticket=ticket,
        )
        return await self._repeat(
            "txn_share_acknowledge",
            lambda timeout_ms: self._router.call_group_coordinator(
                given.group_id, request, timeout_ms=timeout_ms
            ),
        )

    async def prepare(self, request: PrepareTxnRequest, *, within_ms: int) -> Reply:
        """Have the transaction kept for a decision elsewhere; retried for ``within_ms``."""
        return await self._repeat(
            "prepare_txn",
            lambda timeout_ms: self._router.call_transaction_coordinator(
                request.transactional_id, request, timeout_ms=timeout_ms
            ),
            within_ms=within_ms,
        )

    async def end(self, request: EndTxnRequest, *, within_ms: int | None = None) -> EndTxnReply:
        """Commit or abort; retried until the decision is known, or for ``within_ms``."""
        return await self._repeat(
            "end_txn",
            lambda timeout_ms: self._router.call_transaction_coordinator(
                request.transactional_id, request, timeout_ms=timeout_ms
            ),
            within_ms=within_ms,
        )

    async def _repeat(
        self,
        method: str,
        attempt: Callable[[int], Awaitable[ReplyT]],
        *,
        within_ms: int | None = None,
    ) -> ReplyT:
        loop = asyncio.get_running_loop()
        allowed_ms = self._settings.max_block_ms if within_ms is None else within_ms
        deadline_s = loop.time() + allowed_ms / 1_000
        missing_since: float | None = None

        def is_retriable(error: ErrorCode) -> bool:
            nonlocal missing_since
            if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                missing_since = loop.time() if missing_since is None else missing_since
                return (loop.time() - missing_since) * 1_000 < UNKNOWN_TOPIC_WAIT_MS
            return severity(method, error) is ErrorClass.RETRIABLE

        async with self._turn:
            # Who has waited for its turn has less time left; one attempt is always made.
            reply = await call_with_retries(
                lambda left_ms: attempt(min(left_ms, self._timeout_ms)),
                random=self._random,
                timeout_ms=max(0.0, deadline_s - loop.time()) * 1_000,
                policy=self._policy,
                is_retriable=is_retriable,
            )
            self.called_s = loop.time()
            return reply


def _with_worst_enrolment(reply: AddPartitionsToTxnReply) -> AddPartitionsToTxnReply:
    """``reply`` with the error of its worst partition as its own."""
    for enrolment in reply.enrolments:
        if enrolment.error not in _WITHOUT_CAUSE:
            partition = enrolment.topic_partition
            detail = reply.detail or f"partition {partition} cannot be enrolled"
            if enrolment.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                detail += f"; create it with admin.create_topic({partition.topic!r}, partitions=N)"
            return structs.replace(reply, error=enrolment.error, detail=detail)
    return reply


# --- why an epoch was fenced ----------------------------------------------------------------------


class Fencing:
    """Finds out why leaders reject a producer's epoch, with one call per transaction.

    Leaders only know that it was fenced; the transaction coordinator knows why.
    """

    def __init__(
        self,
        *,
        state: ProducerTransaction | None,
        requests: TransactionRequests,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._state = state
        self._requests = requests
        self._loop = loop
        self._question: asyncio.Task[Reply] | None = None

    async def explained(self, topic_partition: TopicPartition, reply: ReplyT) -> ReplyT:
        """A leader's ``reply``; if it rejects the transaction's epoch, with the true cause."""
        state = self._state
        if reply.error is not ErrorCode.INVALID_PRODUCER_EPOCH or state is None:
            return reply
        question = self._question
        if question is None:
            question = self._question = self._loop.create_task(
                self._requests.fencing_error(
                    state.transactional_id, state.identity, topic_partition
                )
            )
        await asyncio.wait((question,))
        why = Reply() if question.cancelled() else question.result()
        if why.error is ErrorCode.NONE or why.error.retriable:
            return reply
        return structs.replace(reply, error=why.error, detail=why.detail)

    def stop(self) -> None:
        """Stop asking: the transaction is over."""
        if self._question is not None:
            self._question.cancel()

    def forget(self) -> None:
        """Forget the cause: the next transaction has another epoch."""
        self._question = None


# --- ids without transactions ---------------------------------------------------------------------


class PlainIdentities:
    """The producer ids of a producer without transactions, and the tickets that prove them.

    ``current`` is the id that new partitions start with. A ticket is valid as long as its key. A
    leader that sees one under a replaced key says so; then the ticket is renewed in the background
    and the id stays. A producer that was idle for too long is rejected and starts over with a new
    id; it has nothing in flight. Keeps one ticket per id, so at most one more than the producer's
    partitions.
    """

    def __init__(
        self,
        requests: TransactionRequests,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._requests = requests
        self._spawn = spawn
        self._tickets: dict[int, bytes] = {}
        self._renewing: dict[int, asyncio.Task[None]] = {}
        self.current: ProducerIdentity | None = None

    async def fresh(self) -> ProducerIdentity:
        """Get a new producer id; ``OncelogError`` if there is none."""
        reply = await self._requests.init_producer_id(None)
        if reply.error is not ErrorCode.NONE:
            raise exception_for(reply.error, reply.detail or "no producer id could be obtained")
        self._tickets[reply.producer_id] = reply.ticket
        return ProducerIdentity(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)

    def ticket_of(self, identity: ProducerIdentity) -> bytes | None:
        """The ticket that proves that the producer id is ours."""
        return self._tickets.get(identity.producer_id)

    def renew_soon(self, identity: ProducerIdentity) -> None:
        """Get a ticket under the current key; if that fails, the leader's next hint retries."""
        task = self._renewing.get(identity.producer_id)
        ticket = self._tickets.get(identity.producer_id)
        if ticket is not None and (task is None or task.done()):
            self._renewing[identity.producer_id] = self._spawn(self._renew(identity, ticket))

    def discard(self, identity: ProducerIdentity) -> None:
        """A leader rejected our ticket: start nothing new with this id."""
        self._tickets.pop(identity.producer_id, None)
        if self.current is not None and self.current.producer_id == identity.producer_id:
            self.current = None

    async def _renew(self, identity: ProducerIdentity, ticket: bytes) -> None:
        producer_id = identity.producer_id
        reply = await self._requests.renew_ticket(identity, ticket)
        if reply.error is ErrorCode.NONE and producer_id in self._tickets:
            self._tickets[producer_id] = reply.ticket
        del self._renewing[producer_id]
