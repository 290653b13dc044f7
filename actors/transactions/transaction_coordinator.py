"""The transaction coordinator of one shard, on the log partition it leads.

The machine decides. This shell provides what decisions need (producer ids, topics, record counts at
the leaders), logs them, issues tickets only afterwards, and completes every decided transaction. It
also looks for transactions left open, and for idle ids.

One file: the requests, and the scans and questions to leaders that they share a log with.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Final, TypeVar

from msgspec import structs

from oncelog.actors.config import ClusterConfig
from oncelog.actors.coordination.cluster_view import ANY_AGE_MS, ClusterView
from oncelog.actors.coordination.runtime import CoordinatorRuntime
from oncelog.actors.interfaces import CONTROLLER_ACTOR, Clock, DriverWatch, Transport
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import jittered_backoff_ms, loop_ms, monotonic_s
from oncelog.actors.process.metrics import (
    ACTIVE_TRANSACTIONAL_ID_COUNT,
    OLDEST_PREPARED_TRANSACTION_AGE_MS,
    TRANSACTIONAL_ID_COUNT,
    Metric,
    MetricSink,
)
from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.base import Reply, ReplyT, Request
from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.actors.protocol.messages.partition import DescribeProducersRequest, ProducerDescription
from oncelog.actors.protocol.messages.transaction import (
    NO_COORDINATOR_EPOCH,
    AbortTransactionReply,
    AbortTransactionRequest,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    BeginRunReply,
    BeginRunRequest,
    DeleteTransactionalIdReply,
    DeleteTransactionalIdRequest,
    DescribeTransactionsReply,
    DescribeTransactionsRequest,
    EndPreparedTxnRequest,
    EndTxnReply,
    EndTxnRequest,
    EnlistReply,
    EnlistRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
    LeaveRunRequest,
    PartitionEnrolment,
    PrepareTxnRequest,
    ProducerHeartbeatRequest,
    RenewRunRequest,
    VerifyTxnReply,
    VerifyTxnRequest,
)
from oncelog.actors.protocol.quotas import OpenTransactions
from oncelog.actors.protocol.tickets import NO_CHAIN, issue_ticket
from oncelog.actors.protocol.transaction.checks import Refusal, check_transactional_id
from oncelog.actors.protocol.transaction.members import HeldRecords
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.transaction.transaction_machine import NOTHING_HELD, TransactionMachine
from oncelog.actors.protocol.transaction.transaction_state import (
    TransactionMetadata,
    TransactionState,
)
from oncelog.actors.replica.replica import Replica
from oncelog.actors.transactions.completions import (
    EndDurations,
    EndStep,
    MarkerSender,
    TransactionCompletions,
)
from oncelog.actors.transactions.producer_ids import PlainProducers, ProducerIdReservation
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    GROUP_ID_MAX_BYTES,
    TopicPartition,
    shard_of,
)

_logger = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=Request[Any])

TOPIC_AGE_MAX_MS: Final = 1_000
"""Maximum age of the topic ids in tickets."""

LOAD_BATCHES_PER_TURN: Final = 500
"""Batches replayed per turn of the event loop."""


HOLDER_NEWS_MS: Final = 300
"""How long a takeover waits for news of the holder's process, before it is refused."""

HOLDER_LOOK_MS: Final = 20
"""Interval of looking for them."""

EnrolledT = TypeVar("EnrolledT", AddPartitionsToTxnReply, VerifyTxnReply)
TellingT = TypeVar(
    "TellingT", InitProducerIdReply, AddPartitionsToTxnReply, VerifyTxnReply, EndTxnReply
)


def _telling_epoch(
    handler: Callable[[TransactionCoordinator, RequestT], Awaitable[TellingT]],
) -> Callable[[TransactionCoordinator, RequestT], Coroutine[Any, Any, TellingT]]:
    """Let each reply tell the coordinator's epoch, once it leads.

    Whoever knows it knows that what earlier coordinators have accepted was sent before: this one
    takes nothing from them any more.
    """

    @wraps(handler)
    async def told(coordinator: TransactionCoordinator, request: RequestT) -> TellingT:
        reply = await handler(coordinator, request)
        is_leading = coordinator.replica.availability() is ErrorCode.NONE
        epoch = coordinator.runtime.coordinator_epoch if is_leading else NO_COORDINATOR_EPOCH
        return structs.replace(reply, coordinator_epoch=epoch)

    return told


class TransactionCoordinator:
    """Serves the transactional ids of one shard. Call ``load`` once the replica leads.

    ``on_failure`` gets the exception of a background task: a bug, so production ends the process.
    """

    def __init__(
        self,
        *,
        replica: Replica,
        transport: Transport,
        clock: Clock,
        rng: random.Random,
        drivers: DriverWatch,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        # One thing: the parts of the coordinator, and what each gets.
        cluster = replica.config.cluster
        self.replica = replica
        self._tasks = OwnTasks(on_failure)
        self._clock = clock
        producer_ids = ProducerIdBlocks()
        self.machine = TransactionMachine(
            producer_ids=producer_ids,
            transaction_max_timeout_ms=cluster.transaction_max_timeout_ms,
            distributed_write_max_ms=cluster.distributed_write_max_ms,
            transactional_id_expiration_ms=cluster.transactional_id_expiration_ms,
            is_two_phase_allowed=cluster.transaction_two_phase_commit_enable,
        )
        self.open_transactions = OpenTransactions(self.machine.ids.holds_readers)
        """For the limits per principal; empty again after each start."""
        self.runtime = CoordinatorRuntime(
            replica=replica,
            clock=clock,
            apply=self.machine.ids.apply,
            abandon=self.machine.ids.abandon,
            on_failure=on_failure,
        )
        timeout_ms = cluster.internal_call_timeout_ms
        self._cluster = ClusterView(
            lambda request: transport.call(CONTROLLER_ACTOR, request, timeout_ms=timeout_ms),
            self._tasks.spawn,
        )
        self._reservation = ProducerIdReservation(
            producer_ids=producer_ids,
            transport=transport,
            broker_id=replica.broker_id,
            call_timeout_ms=timeout_ms,
            spawn=self._tasks.spawn,
        )
        self._plain = PlainProducers(replica, clock, producer_ids, self._reservation)
        self.end_durations = EndDurations()
        self._completions = TransactionCompletions(
            machine=self.machine,
            runtime=self.runtime,
            markers=MarkerSender(
                transport=transport,
                cluster=self._cluster,
                rng=rng,
                call_timeout_ms=timeout_ms,
                shard=replica.topic_partition,
            ),
            rng=rng,
            visibility_wait_ms=cluster.transaction_visibility_wait_ms,
            durations=self.end_durations,
            spawn=self._tasks.spawn,
        )
        self._drivers = drivers
        self._held_records = HeldRecordsReader(
            transport=transport, cluster=self._cluster, rng=rng, call_timeout_ms=timeout_ms
        )
        self._is_stopped = False
        self._refresh: asyncio.Task[Any] | None = None
        """The task that refreshes topics beside commits, one at a time."""

    # --- start and stop -------------------------------------------------------------------

    async def load(self) -> None:
        """Load the log, resume decided transactions that are not complete, then serve.

        It resumes only once the whole log is committed: markers of a PREPARE that is lost with this
        leader could contradict the next coordinator's. Does nothing if the replica does not lead; a
        stop meanwhile discards what is loaded. Raises ``CorruptDataError``.
        """
        if self.replica.availability() is not ErrorCode.NONE:
            return
        for number, batch in enumerate(self.replica.replay()):
            for record in batch.records:
                self.machine.ids.apply(LogRecord(record.key, record.value))
            if number % LOAD_BATCHES_PER_TURN == 0:
                await asyncio.sleep(0)
                if self._is_stopped:
                    return
        if await self.replica.all_committed() is not ErrorCode.NONE or self._is_stopped:
            return
        self.machine.holders.started(loop_ms())
        self.machine.producers.coordinator_epoch = self.runtime.coordinator_epoch
        self.runtime.is_loaded = True
        self._completions.resume()
        scans = TransactionScans(
            machine=self.machine,
            runtime=self.runtime,
            completions=self._completions,
            reservation=self._reservation,
            drivers=self._drivers,
            config=self.replica.config.cluster,
            clock=self._clock,
        )
        self._tasks.spawn(scans.abort_left_open())
        self._tasks.spawn(scans.forget_idle())

    async def stop(self) -> None:
        """Stop sending markers and looking for timeouts; call it before the replica stops."""
        self._is_stopped = True
        self.runtime.is_loaded = False
        await asyncio.gather(*self._tasks.cancel(), return_exceptions=True)

    def gauges(self) -> Mapping[Metric, int]:
        """How many ids there are, how many have a transaction that is not complete, and its age.

        The age is that of the oldest prepared one, by this machine's clock.
        """
        ids = self.machine.ids
        prepared_ms = self.machine.upkeep.oldest_prepared_ms()
        age_ms = 0 if prepared_ms is None else max(self._clock.now_ms() - prepared_ms, 0)
        return {
            TRANSACTIONAL_ID_COUNT: len(ids),
            ACTIVE_TRANSACTIONAL_ID_COUNT: len(ids.not_at_rest()),
            OLDEST_PREPARED_TRANSACTION_AGE_MS: age_ms,
        }

    def report_metrics(self, sink: MetricSink) -> None:
        """Report how long the ends of transactions took."""
        self.end_durations.report(sink, self.replica.broker_id)

    # --- requests -------------------------------------------------------------------------

    @_telling_epoch
    async def init_producer_id(self, request: InitProducerIdRequest) -> InitProducerIdReply:
        """Give a producer its id and epoch, durably; with a transactional id, fence others."""
        transactional_id = request.transactional_id
        if transactional_id is None:
            error = self.runtime.unavailable()
            if error is not ErrorCode.NONE:
                return request.failed(error)
            return await self._plain.identity(request)
        reply = await self._take_over(request, transactional_id)
        is_in_use = reply.error is ErrorCode.TRANSACTIONAL_ID_IN_USE
        if is_in_use and await self._has_holder_ended(transactional_id):
            reply = await self._take_over(request, transactional_id)
        return self._heard(transactional_id, reply)

    async def _take_over(
        self, request: InitProducerIdRequest, transactional_id: str
    ) -> InitProducerIdReply:
        return await self._execute(
            request,
            transactional_id,
            lambda now_ms: self.machine.decide_init_producer_id(request, now_ms, loop_ms()),
        )

    async def _has_holder_ended(self, transactional_id: str) -> bool:
        """Whether the process of an id's holder has ended, as far as that is known soon."""
        metadata = self.machine.ids.metadata(transactional_id)
        holder = None if metadata is None else metadata.holder
        if holder is None or holder.process is None:
            return False
        deadline_ms = loop_ms() + HOLDER_NEWS_MS
        while not self._drivers.is_gone(holder.process):
            if loop_ms() >= deadline_ms:
                return False
            await asyncio.sleep(HOLDER_LOOK_MS / 1_000)
        self.machine.holders.ended(transactional_id, holder)
        return True

    async def producer_heartbeat(self, request: ProducerHeartbeatRequest) -> Reply:
        """Note that a transactional producer lives, or that it ends; in memory only."""
        refusal = self._refusal(request.transactional_id)
        refusal = refusal or self.machine.holders.step(request, loop_ms())
        return Reply() if refusal is None else request.failed(*refusal)

    def _heard(self, transactional_id: str, reply: ReplyT) -> ReplyT:
        """The holder of an id has made a call that succeeded, so it lives."""
        if reply.error is ErrorCode.NONE:
            self.machine.holders.heard(transactional_id, loop_ms())
        return reply

    async def begin_run(self, request: BeginRunRequest) -> BeginRunReply:
        """Begin a run of a distributed write, durably; older ones are fenced."""
        return await self._execute(
            request,
            request.transactional_id,
            lambda now_ms: self.machine.runs.decide_begin_run(request, now_ms),
        )

    async def enlist(self, request: EnlistRequest) -> EnlistReply:
        """Make the caller a member of the distributed write, durably."""
        return await self._execute(
            request,
            request.transactional_id,
            lambda now_ms: self.machine.runs.decide_enlist(request, now_ms),
        )

    async def leave_run(self, request: LeaveRunRequest) -> Reply:
        """Note, durably, that a member of a distributed write has failed."""
        return await self._execute(
            request,
            request.transactional_id,
            lambda now_ms: self.machine.runs.decide_leave(request, now_ms),
        )

    async def renew_run(self, request: RenewRunRequest) -> Reply:
        """Note, durably, that a task of a distributed write is alive."""
        return await self._execute(
            request,
            request.transactional_id,
            lambda now_ms: self.machine.runs.decide_renew(request, now_ms),
        )

    @_telling_epoch
    async def add_partitions_to_txn(
        self, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnReply:
        """Enrol partitions, durably, and answer their tickets."""
        refusal = self._refusal(request.transactional_id)
        if refusal is not None:
            return request.failed(*refusal)
        topics = await self._topics(request.partitions)
        if isinstance(topics, tuple):
            return request.failed(*topics)
        counts = {name: len(topic.partitions) for name, topic in topics.items()}
        reply = await self.runtime.execute(
            request.transactional_id,
            lambda now_ms: self.machine.producers.decide_add_partitions(request, now_ms, counts),
            refused=request.failed,
        )
        if reply.error is not ErrorCode.NONE:
            return reply
        return self._with_tickets(request, self._heard(request.transactional_id, reply), topics)

    async def _topics(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[str, TopicMetadata] | Refusal:
        """The topics of ``partitions`` that exist, as they were lately."""
        names = {tp.topic for tp in partitions}
        error, topics = await self._cluster.topics(names, as_of_ms=loop_ms() - TOPIC_AGE_MAX_MS)
        if error is not ErrorCode.NONE and len(topics) < len(names):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the controller answers {error.name}"
        self._learn_newer_keys()
        return topics

    @_telling_epoch
    async def add_offsets_to_txn(self, request: AddOffsetsToTxnRequest) -> AddPartitionsToTxnReply:
        """Enrol the offsets partition of a group, durably, and answer its ticket."""
        tp = self._offsets_partition(request.group_id)
        if not isinstance(tp, TopicPartition):
            return request.failed(*tp)
        return await self.add_partitions_to_txn(
            AddPartitionsToTxnRequest(
                transactional_id=request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                partitions=(tp,),
                label=request.label,
            )
        )

    def _offsets_partition(self, group_id: str) -> TopicPartition | Refusal:
        if not 0 < len(group_id.encode("utf-8", "replace")) <= GROUP_ID_MAX_BYTES:
            return ErrorCode.INVALID_GROUP_ID, f"group_id: give 1 to {GROUP_ID_MAX_BYTES} bytes"
        error = self.runtime.unavailable()
        if error is not ErrorCode.NONE:
            return error, ""
        shard = shard_of(group_id, self.replica.leadership.offsets_partitions)
        return TopicPartition(CONSUMER_OFFSETS_TOPIC, shard)

    @_telling_epoch
    async def verify_txn(self, request: VerifyTxnRequest) -> VerifyTxnReply:
        """Answer the tickets of what a version 1 client has enrolled; enrol nothing."""
        partitions = request.partitions
        if request.group_id is not None:
            tp = self._offsets_partition(request.group_id)
            if not isinstance(tp, TopicPartition):
                return request.failed(*tp)
            partitions = (*partitions, tp)
        topics = await self._topics(partitions)
        refusal = self._refusal(request.transactional_id)
        if refusal is not None:
            return request.failed(*refusal)
        if isinstance(topics, tuple):
            return request.failed(*topics)
        reply = self.machine.producers.verify(request, partitions)
        return self._with_chained_tickets(request, reply, topics)

    async def prepare_txn(self, request: PrepareTxnRequest) -> Reply:
        """Keep a transaction for a decision elsewhere, durably."""
        refusal = self._refusal(request.transactional_id)
        if refusal is not None:
            return request.failed(*refusal)
        return await self.runtime.execute(
            request.transactional_id,
            lambda now_ms: self.machine.producers.decide_prepare(request, now_ms),
            refused=request.failed,
        )

    @_telling_epoch
    async def end_txn(self, request: EndTxnRequest) -> EndTxnReply:
        """Commit or abort, durably; answer once it is visible, or after a while."""
        transactional_id = request.transactional_id
        refusal = self._refusal(transactional_id)
        if refusal is not None:
            return request.failed(*refusal)
        held = NOTHING_HELD
        partitions = self.machine.runs.winner_partitions(request)
        if partitions:
            producer_ids = [winner.producer_id for winner in request.winners]
            read = await self._held_records.read(partitions, producer_ids)
            if read is None:
                return request.failed(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, "a partition of a winner does not answer"
                )
            held = read
        counts = self._counts_ahead(request)
        await self._reservation.ensure()
        began_s = monotonic_s()
        reply = await self.runtime.execute(
            transactional_id,
            lambda now_ms: self.machine.decide_end_txn(request, now_ms, held, counts),
            refused=request.failed,
        )
        completion = self._completions.ensure(transactional_id)
        if reply.error not in (ErrorCode.NONE, ErrorCode.ALREADY_COMMITTED):
            return reply
        if reply.error is ErrorCode.NONE:
            self.end_durations.observe(EndStep.DECISION, began_s)
        self._heard(transactional_id, reply)
        visible = await self._completions.is_visible(completion)
        enrolments = self._enrolled_ahead(request, reply)
        return structs.replace(reply, visible=visible, enrolments=enrolments)

    def _counts_ahead(self, request: EndTxnRequest) -> Mapping[str, int]:
        """Partition counts of the topics that a commit enrols ahead, if they are known.

        A commit never waits for the controller: old entries are refreshed in the background.
        """
        names = {tp.topic for tp in request.next_partitions}
        as_of_ms = loop_ms() - TOPIC_AGE_MAX_MS
        is_refreshing = self._refresh is not None and not self._refresh.done()
        if not is_refreshing and len(self._cluster.cached(names, as_of_ms=as_of_ms)) < len(names):
            self._refresh = self._tasks.spawn(self._cluster.topics(names, as_of_ms=as_of_ms))
        known = self._cluster.cached(names)
        return {name: len(topic.partitions) for name, topic in known.items()}

    def _enrolled_ahead(
        self, request: EndTxnRequest, reply: EndTxnReply
    ) -> tuple[PartitionEnrolment, ...]:
        """The partitions that the commit has enrolled in the next transaction, durably.

        Empty if that transaction has ended meanwhile. With tickets if it is open, which is after
        every marker of the commit, and if the topic ids are recent enough.
        """
        metadata = self.machine.ids.metadata(request.transactional_id)
        if not request.next_partitions or metadata is None:
            return ()
        if metadata.state not in (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT):
            return ()
        self._learn_newer_keys()
        owner = (metadata.producer_id, metadata.producer_epoch)
        names = {tp.topic for tp in metadata.ahead_partitions}
        as_of_ms = loop_ms() - TOPIC_AGE_MAX_MS
        topics = self._cluster.cached(names, as_of_ms=as_of_ms)
        if owner != (reply.producer_id, reply.producer_epoch):
            return ()
        is_open = metadata.state is TransactionState.ONGOING
        if not is_open or len(topics) < len(names):
            return tuple(
                PartitionEnrolment(topic_partition=tp, error=ErrorCode.NONE)
                for tp in sorted(metadata.ahead_partitions)
            )
        return tuple(
            self._enrolment(tp, topics[tp.topic].topic_id, metadata, owner)
            for tp in sorted(metadata.ahead_partitions)
        )

    async def describe_transactions(
        self, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsReply:
        """Describe transactional ids of this shard."""
        error = self.runtime.unavailable()
        if error is not ErrorCode.NONE:
            return request.failed(error)
        if request.transactional_ids is None:
            found = self.machine.operations.matching(request, self._clock.now_ms())
            return DescribeTransactionsReply(transactions=found)
        found = self.machine.operations.describe(request.transactional_ids)
        known = {description.transactional_id for description in found}
        unknown = [name for name in request.transactional_ids if name not in known]
        if not unknown:
            return DescribeTransactionsReply(transactions=found)
        return DescribeTransactionsReply(
            error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            detail=f"there is no transactional id {', '.join(map(repr, unknown))}",
            transactions=found,
        )

    async def abort_transaction(self, request: AbortTransactionRequest) -> AbortTransactionReply:
        """Abort an open transaction for an operator, durably; answer as ``end_txn`` does."""
        return await self._end_for_operator(
            request, lambda now_ms: self.machine.operations.decide_abort(request, now_ms)
        )

    async def end_prepared_txn(self, request: EndPreparedTxnRequest) -> AbortTransactionReply:
        """End a prepared transaction for an operator, durably; answer as ``end_txn`` does."""
        return await self._end_for_operator(
            request, lambda now_ms: self.machine.operations.decide_end_prepared(request, now_ms)
        )

    async def _end_for_operator(
        self,
        request: AbortTransactionRequest | EndPreparedTxnRequest,
        decide: Callable[[int], Decision[AbortTransactionReply]],
    ) -> AbortTransactionReply:
        reply = await self._execute(request, request.transactional_id, decide)
        if reply.error is not ErrorCode.NONE:
            return reply
        completion = self._completions.ensure(request.transactional_id)
        return structs.replace(reply, visible=await self._completions.is_visible(completion))

    async def delete_transactional_id(
        self, request: DeleteTransactionalIdRequest
    ) -> DeleteTransactionalIdReply:
        """Forget an id at rest, durably."""
        refusal = self._refusal(request.transactional_id)
        if refusal is not None:
            return request.failed(*refusal)
        return await self.runtime.execute(
            request.transactional_id,
            lambda _now_ms: self.machine.operations.decide_delete(request),
            refused=request.failed,
        )

    async def _execute(
        self,
        request: Request[ReplyT],
        transactional_id: str,
        decide: Callable[[int], Decision[ReplyT]],
    ) -> ReplyT:
        """Decide a request, durably, unless it is rejected; then complete what was prepared."""
        refusal = self._refusal(transactional_id)
        if refusal is not None:
            return request.failed(*refusal)
        await self._reservation.ensure()
        reply = await self.runtime.execute(transactional_id, decide, refused=request.failed)
        self._completions.ensure(transactional_id)
        return reply

    def _refusal(self, transactional_id: str) -> Refusal | None:
        """Reject a request whose id is invalid or belongs to another shard."""
        refusal = check_transactional_id(transactional_id)
        if refusal is not None:
            return refusal
        error = self.runtime.unavailable()
        if error is not ErrorCode.NONE:
            return error, self.replica.failure or ""
        shard = shard_of(transactional_id, self.replica.leadership.transaction_state_partitions)
        if shard != self.replica.topic_partition.partition:
            return ErrorCode.NOT_COORDINATOR, f"{transactional_id!r} belongs to shard {shard}"
        return None

    def _learn_newer_keys(self) -> None:
        if self._cluster.cluster_key_version > self.replica.keys.version:
            self.replica.events.refresh_keys_soon()

    def _with_tickets(
        self,
        request: AddPartitionsToTxnRequest,
        reply: AddPartitionsToTxnReply,
        topics: Mapping[str, TopicMetadata],
    ) -> AddPartitionsToTxnReply:
        """Add tickets to the reply, now that the enrolment is durable."""
        if request.label is not None:
            return self._with_chained_tickets(request, reply, topics)
        metadata = self.machine.ids.metadata(request.transactional_id)
        if metadata is None:
            return request.failed(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        owner = (request.producer_id, request.producer_epoch)
        enrolments = tuple(
            self._enrolment(tp, topics[tp.topic].topic_id, metadata, owner)
            for tp in request.partitions
        )
        return structs.replace(reply, enrolments=enrolments)

    def _with_chained_tickets(
        self,
        request: AddPartitionsToTxnRequest | VerifyTxnRequest,
        reply: EnrolledT,
        topics: Mapping[str, TopicMetadata],
    ) -> EnrolledT:
        """Add the tickets of a version 1 client, whose sequences go on since its pair was told.

        Where they cannot, since the producer id is another one by now, it gets none.
        """
        metadata = self.machine.ids.metadata(request.transactional_id)
        if reply.error is not ErrorCode.NONE or metadata is None:
            return reply
        owner = (reply.producer_id, reply.producer_epoch)

        def with_ticket(one: PartitionEnrolment) -> PartitionEnrolment:
            tp = one.topic_partition
            if one.error is not ErrorCode.NONE:
                return one
            if tp.topic not in topics:
                return structs.replace(one, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topic_id = topics[tp.topic].topic_id
            if tp.topic == CONSUMER_OFFSETS_TOPIC:
                # Whoever sends positions numbers them anew in each transaction.
                return self._enrolment(tp, topic_id, metadata, owner)
            if request.producer_id != owner[0]:
                return one
            return self._enrolment(
                tp, topic_id, metadata, owner, chain_epoch=request.producer_epoch
            )

        return structs.replace(reply, enrolments=tuple(map(with_ticket, reply.enrolments)))

    def _enrolment(
        self,
        tp: TopicPartition,
        topic_id: str,
        metadata: TransactionMetadata,
        owner: tuple[int, int],
        *,
        chain_epoch: int = NO_CHAIN,
    ) -> PartitionEnrolment:
        """The enrolment of ``owner`` (producer id, epoch) with its ticket; it must be durable."""
        ticket = issue_ticket(
            cluster_key=self.replica.keys.current,
            key_version=self.replica.keys.version,
            producer_id=owner[0],
            producer_epoch=owner[1],
            transactional_id=metadata.transactional_id,
            topic_id=topic_id,
            partition=tp.partition,
            # The logged start, not the current time: no coordinator can extend a ticket.
            issued_ms=metadata.start_ms,
            transaction_timeout_ms=self.machine.upkeep.longest_ms(metadata),
            chain_epoch=chain_epoch,
        )
        return PartitionEnrolment(topic_partition=tp, error=ErrorCode.NONE, ticket=ticket)


class TransactionScans:
    """A coordinator's periodic scans: for transactions left open, and for idle ids.

    Run each loop as a task that ends with the coordinator. A transaction is left open if it has
    timed out, or if its driver is gone. A driver counts as gone only if this process can see that
    for certain; otherwise the timeout ends the transaction. Only undecided transactions are
    aborted: their commit then fails cleanly.
    """

    def __init__(
        self,
        *,
        machine: TransactionMachine,
        runtime: CoordinatorRuntime,
        completions: TransactionCompletions,
        reservation: ProducerIdReservation,
        drivers: DriverWatch,
        config: ClusterConfig,
        clock: Clock,
    ) -> None:
        self._machine = machine
        self._runtime = runtime
        self._completions = completions
        self._reservation = reservation
        self._drivers = drivers
        self._config = config
        self._clock = clock

    async def abort_left_open(self) -> None:
        """Abort transactions left open, and complete decided ones."""
        while True:
            await asyncio.sleep(max(self._config.transaction_abort_scan_ms, 1) / 1000)
            if self._runtime.unavailable() is not ErrorCode.NONE:
                continue
            self._completions.resume()
            await self._abort_expired()
            await self._abort_abandoned()

    async def _abort_expired(self) -> None:
        for transactional_id in self._machine.upkeep.expired_transactions(self._clock.now_ms()):
            _logger.info("the transaction of %r timed out: aborting", transactional_id)
            await self._abort(
                transactional_id, partial(self._machine.upkeep.decide_timeout, transactional_id)
            )

    async def _abort_abandoned(self) -> None:
        for transactional_id, driver in self._machine.runs.open_drivers():
            if not self._drivers.is_gone(driver):
                continue
            _logger.info(
                "process %d, which wrote as %r, is gone: aborting",
                driver.process_id,
                transactional_id,
            )
            await self._abort(
                transactional_id,
                partial(self._machine.runs.decide_driver_gone, transactional_id, driver),
            )

    async def _abort(self, transactional_id: str, decide: Callable[[int], Decision[Reply]]) -> None:
        await self._reservation.ensure()
        await self._runtime.execute(transactional_id, decide)
        self._completions.ensure(transactional_id)

    async def forget_idle(self) -> None:
        """Forget ids that have been idle for too long."""
        interval_ms = self._config.transactional_id_expiration_check_interval_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            if self._runtime.unavailable() is not ErrorCode.NONE:
                continue
            for transactional_id in self._machine.upkeep.idle_ids(self._clock.now_ms(), loop_ms()):
                await self._runtime.execute(
                    transactional_id, partial(self._machine.upkeep.decide_expire, transactional_id)
                )


class HeldRecordsReader:
    """Asks partition leaders concurrently how many records they hold of open transactions.

    The end of a distributed write names its winners and their record counts, which the leaders must
    confirm before it is decided. Without all answers nothing is decided.
    """

    def __init__(
        self,
        *,
        transport: Transport,
        cluster: ClusterView,
        rng: random.Random,
        call_timeout_ms: int,
    ) -> None:
        self._transport = transport
        self._cluster = cluster
        self._rng = rng
        self._call_timeout_ms = call_timeout_ms

    async def read(
        self, partitions: Sequence[TopicPartition], producer_ids: Sequence[int]
    ) -> HeldRecords | None:
        """Record counts of ``producer_ids`` in ``partitions``; ``None`` if one did not answer."""
        deadline_ms = loop_ms() + self._call_timeout_ms
        answers = await asyncio.gather(
            *(self._ask(tp, tuple(producer_ids), deadline_ms) for tp in partitions)
        )
        counts: dict[tuple[int, int, TopicPartition], int] = {}
        for tp, producers in zip(partitions, answers, strict=True):
            if producers is None:
                return None
            for producer in producers:
                key = (producer.producer_id, producer.producer_epoch, tp)
                counts[key] = producer.open_record_count
        return HeldRecords(answered=frozenset(partitions), counts=counts)

    async def _ask(
        self, tp: TopicPartition, producer_ids: tuple[int, ...], deadline_ms: int
    ) -> tuple[ProducerDescription, ...] | None:
        """The producers of one partition; empty if it is gone, ``None`` after the deadline."""
        request = DescribeProducersRequest(topic_partition=tp, producer_ids=producer_ids)
        attempt = 0
        while (remaining_ms := deadline_ms - loop_ms()) > 0:
            as_of_ms = loop_ms() if attempt else ANY_AGE_MS
            location = await self._cluster.locate(tp, as_of_ms=as_of_ms)
            if location.is_gone:
                return ()
            if location.actor is not None:
                reply = await self._transport.call(location.actor, request, timeout_ms=remaining_ms)
                if reply.error is ErrorCode.NONE:
                    return reply.producers
            await asyncio.sleep(jittered_backoff_ms(attempt, self._rng) / 1000)
            attempt += 1
        return None
