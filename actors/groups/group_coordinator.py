"""The coordinator of one shard's groups: the group machine on the log it leads.

Rules: a request is checked and its records are appended in one turn of the event loop. Records are
applied in log order once committed, and only then is the request answered. The record of a new
generation follows every offset commit admitted before it. So a reader of offsets in the new
generation sees those commits, as committed or as unstable.

One file: the coordinator, and the topics it checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial, wraps
from random import Random
from typing import Any, Final, TypeVar

from oncelog.actors.config import ClusterConfig
from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.coordination.process_watch import ended_members
from oncelog.actors.coordination.runtime import client_error_of_append
from oncelog.actors.groups.apply_queue import ApplyQueue, ShardState
from oncelog.actors.groups.share_coordinator import ShareCoordinator
from oncelog.actors.interfaces import CONTROLLER_ACTOR, Clock, DriverWatch, Transport
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.process.metrics import Metric, MetricSink
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group.rebalance import (
    CancelTimer,
    Effect,
    GroupSettings,
    ReplyTo,
    SetTimer,
    Timer,
    WriteGroup,
)
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.group import (
    DeleteGroupReply,
    DeleteGroupRequest,
    DeleteOffsetsReply,
    DeleteOffsetsRequest,
    DescribeGroupsReply,
    DescribeGroupsRequest,
    HeartbeatReply,
    HeartbeatRequest,
    JoinGroupReply,
    JoinGroupRequest,
    LeaveGroupReply,
    LeaveGroupRequest,
    LeavingMember,
    OffsetCommitReply,
    OffsetCommitRequest,
    OffsetFetchReply,
    OffsetFetchRequest,
    SyncGroupReply,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from oncelog.actors.protocol.messages.partition import (
    AbortHangingReply,
    AbortHangingRequest,
    DescribeProducersReply,
    DescribeProducersRequest,
    MarkerResult,
    TxnMarker,
    WriteTxnMarkersReply,
    WriteTxnMarkersRequest,
)
from oncelog.actors.protocol.messages.share import (
    DescribeShareGroupReply,
    DescribeShareGroupRequest,
    ShareAcknowledgeReply,
    ShareAcknowledgeRequest,
    ShareAcquireReply,
    ShareAcquireRequest,
    ShareGroupHeartbeatReply,
    ShareGroupHeartbeatRequest,
    TxnShareAcknowledgeRequest,
)
from oncelog.actors.replica.replica import Replica
from oncelog.actors.replica.replica_log import AppendOutcome
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    NO_COORDINATOR_EPOCH,
    TopicPartition,
    is_valid_group_id,
    shard_of,
)

EXPIRY_SCAN_MS: Final = 600_000
"""Interval of looking for unused offsets."""

DELETED_TOPICS_SCAN_MS: Final = 60_000
"""Interval of looking for offsets in deleted topics; also done at each load."""

PROCESS_SCAN_MS: Final = 250
"""Interval of looking for members whose process has ended, while any has named its process."""

LOAD_BATCHES_PER_TURN: Final = 256
"""Batches replayed per turn of the event loop."""

PRODUCER_ERRORS: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""Errors of a transactional batch that concern the producer; passed on unchanged."""

RequestT = TypeVar("RequestT", bound=Request[Any])

_logger = logging.getLogger(__name__)


def group_settings(config: ClusterConfig) -> GroupSettings:
    """The cluster's limits for groups."""
    return GroupSettings(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        share_session_timeout_ms=config.group_share_session_timeout_ms,
    )


def _if_available(
    method: Callable[[GroupCoordinator, RequestT], Awaitable[ReplyT]],
) -> Callable[[GroupCoordinator, RequestT], Coroutine[Any, Any, ReplyT]]:
    """Answer a request for a group with an error while the group cannot be served here."""

    @wraps(method)
    async def answer(self: GroupCoordinator, request: Any) -> Any:
        error = self._unavailable(request.group_id)
        if error is not ErrorCode.NONE:
            return request.failed(error)
        return await method(self, request)

    return answer


class GroupCoordinator:
    """Serves the groups of the shard whose log ``replica`` leads.

    Once the replica leads, ``load`` must run once; until then requests are told to retry.
    ``on_failure`` gets an exception outside a call, or of applying a committed record: a bug that
    leaves the shard unusable. Production ends the process, which then loads again.
    """

    def __init__(
        self,
        *,
        replica: Replica,
        transport: Transport,
        clock: Clock,
        random: Random,
        drivers: DriverWatch,
        settings: GroupSettings,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.replica = replica
        self._call_timeout_ms = timeout_ms = replica.config.cluster.internal_call_timeout_ms
        self._clock = clock
        self._random = random
        self._drivers = drivers
        self._settings = settings
        self._on_failure = on_failure
        self._epoch = NO_COORDINATOR_EPOCH
        self._call_count = 0
        self._calls: dict[int, tuple[Request[Any], asyncio.Future[Any]]] = {}
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._tasks = OwnTasks(self._break)
        self._transport = transport
        self._cluster = ClusterView(
            lambda request: transport.call(CONTROLLER_ACTOR, request, timeout_ms=timeout_ms),
            self._tasks.spawn,
        )
        self._topics = GroupTopics(self._cluster)
        self._scan: asyncio.Task[None] | None = None
        """The task that looks for members whose process has ended."""
        self._breakage: BaseException | None = None
        self._use(self._new_state())

    def _new_state(self) -> ShardState:
        return ShardState(self._settings, self._settle)

    def _use(self, state: ShardState) -> None:
        """Serve ``state`` from now on, in the present leader epoch."""
        self._machine = state.groups
        self._queue = ApplyQueue(replica=self.replica, state=state, on_failure=self._break)
        self._shares = ShareCoordinator(
            shares=state.shares,
            queue=self._queue,
            cluster=self._cluster,
            transport=self._transport,
            clock=self._clock,
            drivers=self._drivers,
            session_timeout_ms=self._settings.share_session_timeout_ms,
            call_timeout_ms=self._call_timeout_ms,
            spawn=self._tasks.spawn,
            committed=self._committed,
            unavailable=self._unavailable,
            is_plain=self._is_plain,
        )

    def _settle(self, group_ids: tuple[str, ...]) -> None:
        """A marker has ended something in share groups; ``begin`` looks for it after a load."""
        if self._epoch != NO_COORDINATOR_EPOCH:
            self._shares.settle(group_ids)

    # --- load and resign ------------------------------------------------------------------

    async def load(self) -> None:
        """Rebuild all groups from the log and start serving.

        Does nothing if the replica does not lead. Raises ``CorruptDataError`` or ``OSError`` when
        the log cannot be read; then this coordinator never serves.
        """
        if self.replica.availability() is not ErrorCode.NONE:
            return
        state = self._new_state()
        for count, batch in enumerate(self.replica.replay(), start=1):
            header = batch.header
            if batch.control is not None and batch.control.committed is not None:
                state.apply_marker(header.producer_id, committed=batch.control.committed)
            for record in batch.records:
                state.apply(
                    LogRecord(record.key, record.value),
                    record_offset=record.offset,
                    producer_id=header.producer_id,
                )
            if count % LOAD_BATCHES_PER_TURN == 0:
                await asyncio.sleep(0)
                if self.replica.availability() is not ErrorCode.NONE:
                    return  # Stopped meanwhile: nobody needs what was loaded.
        # A group or an offset that could be lost with this leader must not be shown to anybody.
        if await self.replica.all_committed() is not ErrorCode.NONE:
            return
        self._use(state)
        self._epoch = self.replica.leader_epoch
        self._run(self._machine.finish_load(self._clock.now_ms()))
        self._shares.begin()
        self._tasks.spawn(self._expire_for_ever())
        self._tasks.spawn(self._forget_deleted_topics_for_ever())

    async def stop(self) -> None:
        """Resign; call it before the replica stops."""
        self.resign()

    def gauges(self) -> Mapping[Metric, int]:
        """None: those of queues have tags of their own."""
        return {}

    def report_metrics(self, sink: MetricSink) -> None:
        """Report the backlog of each queue."""
        if self._epoch != NO_COORDINATOR_EPOCH:
            self._shares.report_metrics(sink)

    def resign(self) -> None:
        """Stop serving: parked calls are answered ``NOT_COORDINATOR``, timers are stopped."""
        self._epoch = NO_COORDINATOR_EPOCH
        self._queue.close()
        self._shares.close()
        self._use(self._new_state())
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
        self._tasks.cancel()
        self._scan = None
        calls, self._calls = self._calls, {}
        for request, reply in calls.values():
            if not reply.done():
                reply.set_result(request.failed(ErrorCode.NOT_COORDINATOR))

    def _check_leadership(self) -> ErrorCode:
        """The replica's availability; resigns if it no longer leads."""
        error = self.replica.availability()
        if error is not ErrorCode.NONE and self._epoch != NO_COORDINATOR_EPOCH:
            self.resign()
        return error

    def _unavailable(self, group_id: str | None) -> ErrorCode:
        """``NONE`` if a request for the group can be served here, else the error to answer."""
        if self._breakage is not None:
            raise self._breakage
        error = self._check_leadership()
        if error is not ErrorCode.NONE:
            return client_error_of_append(error)
        if self._epoch == NO_COORDINATOR_EPOCH:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if self._epoch != self.replica.leader_epoch:
            return ErrorCode.NOT_COORDINATOR
        if group_id is None:
            return ErrorCode.NONE
        if not is_valid_group_id(group_id):
            return ErrorCode.INVALID_GROUP_ID
        shard = shard_of(group_id, self.replica.leadership.offsets_partitions)
        is_ours = shard == self.replica.topic_partition.partition
        return ErrorCode.NONE if is_ours else ErrorCode.NOT_COORDINATOR

    # --- membership -----------------------------------------------------------------------

    @_if_available
    async def join_group(self, request: JoinGroupRequest) -> JoinGroupReply:
        """Join or rejoin; answered when the rebalance has collected its members."""
        if self._shares.is_share(request.group_id):
            return request.failed(*_of_a_queue(request.group_id))
        fresh_id = f"{self._random.getrandbits(128):032x}"
        self._watch(request)
        return await self._parked(request, partial(self._machine.join, fresh_id=fresh_id))

    @_if_available
    async def sync_group(self, request: SyncGroupRequest) -> SyncGroupReply:
        """Submit or wait for the assignment; it is durable when answered."""
        return await self._parked(request, self._machine.sync)

    @_if_available
    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Note that a member is alive."""
        reply, effects = self._machine.heartbeat(request, self._clock.now_ms())
        self._run(effects)
        self._watch(request)
        return reply

    @_if_available
    async def leave_group(self, request: LeaveGroupRequest) -> LeaveGroupReply:
        """Remove members at once."""
        reply, effects = self._machine.leave(request, self._clock.now_ms())
        self._run(effects)
        return reply

    def _watch(self, request: JoinGroupRequest | HeartbeatRequest) -> None:
        if request.process is not None and self._scan is None:
            self._scan = self._tasks.spawn(self._look_for_ends())

    async def _look_for_ends(self) -> None:
        """The task that has members leave whose process has ended, while any names its own."""
        has_any = True
        while has_any:
            await asyncio.sleep(PROCESS_SCAN_MS / 1_000)
            has_any = await self.remove_ended()
        self._scan = None

    async def remove_ended(self) -> bool:
        """Remove members whose process has ended, as if they had left; whether any is watched.

        If such news is wrong the member is told so by its next call, and joins again.
        """
        processes = [process for _, _, process in self._machine.processes()]
        ended = await ended_members(self._drivers, processes)
        is_led = self._check_leadership() is ErrorCode.NONE
        if not is_led or self._epoch != self.replica.leader_epoch:
            return False
        # As of now: members may have come and gone meanwhile.
        watched = self._machine.processes()
        for group_id, member_id, process in watched:
            if process not in ended:
                continue
            _logger.info(
                "process %d, of member %r of group %r, has ended: the member leaves",
                process.process_id,
                member_id,
                group_id,
            )
            leaving = (LeavingMember(member_id=member_id),)
            request = LeaveGroupRequest(group_id=group_id, members=leaving)
            _, effects = self._machine.leave(request, self._clock.now_ms())
            self._run(effects)
        return bool(watched)

    # --- positions ------------------------------------------------------------------------

    @_if_available
    async def offset_commit(
        self, request: OffsetCommitRequest | TxnOffsetCommitRequest
    ) -> OffsetCommitReply:
        """Commit offsets, durably; in a transaction they are pending until its marker.

        After the topics are looked up, the check and the append are one turn.
        """
        error, topic_ids = await self._topics.ids_named_by(request)
        if error is ErrorCode.NONE:
            error = self._unavailable(request.group_id)
        if error is not ErrorCode.NONE:
            return request.failed(error)
        if self._shares.is_share(request.group_id):
            return request.failed(*_of_a_queue(request.group_id))
        now_ms = self._clock.now_ms()
        error, effects = self._machine.admit_commit(request, now_ms)
        self._run(effects)
        if error is not ErrorCode.NONE:
            return request.failed(error)
        decision = self._machine.offsets.decide_commit(request, now_ms, topic_ids)
        if not decision.records:
            return decision.reply
        transaction = request if isinstance(request, TxnOffsetCommitRequest) else None
        outcome = self._queue.append(request.group_id, decision.records, now_ms, transaction)
        error = await self._committed(outcome)
        return decision.reply if error is ErrorCode.NONE else request.failed(error)

    txn_offset_commit = offset_commit

    @_if_available
    async def offset_fetch(self, request: OffsetFetchRequest) -> OffsetFetchReply:
        """Return the committed offsets, including all commits answered before the call."""
        error = await self.replica.confirm(self._call_timeout_ms)
        if error is not ErrorCode.NONE:
            self._check_leadership()
            return request.failed(client_error_of_append(error))
        error = self._unavailable(request.group_id)
        if error is not ErrorCode.NONE:
            return request.failed(error)
        self._queue.catch_up()
        return self._machine.offsets.fetch(request)

    # --- share groups ---------------------------------------------------------------------

    @_if_available
    async def share_group_heartbeat(
        self, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatReply:
        """Join a share group, live on in it, or leave it."""
        return await self._shares.heartbeat(request)

    @_if_available
    async def share_acquire(self, request: ShareAcquireRequest) -> ShareAcquireReply:
        """Acquire records of a share group, durably."""
        return await self._shares.acquire(request)

    @_if_available
    async def share_acknowledge(self, request: ShareAcknowledgeRequest) -> ShareAcknowledgeReply:
        """Acknowledge acquired records, durably."""
        return await self._shares.acknowledge(request)

    @_if_available
    async def txn_share_acknowledge(
        self, request: TxnShareAcknowledgeRequest
    ) -> ShareAcknowledgeReply:
        """Accept acquired records in a transaction: pending until its marker."""
        return await self._shares.txn_acknowledge(request)

    @_if_available
    async def describe_share_group(
        self, request: DescribeShareGroupRequest
    ) -> DescribeShareGroupReply:
        """Describe a share group, including all that was answered before the call."""
        error = await self.replica.confirm(self._call_timeout_ms)
        if error is not ErrorCode.NONE:
            self._check_leadership()
            return request.failed(client_error_of_append(error))
        return await self._shares.describe(request)

    def _is_plain(self, group_id: str) -> bool:
        """Whether the id is a consumer group's, or is about to be."""
        return self._machine.has_group(group_id) or group_id in self._queue.group_ids

    # --- markers --------------------------------------------------------------------------

    async def write_txn_markers(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersReply:
        """Write markers to the offsets log; a result is ``NONE`` once its marker is applied."""
        appended = [
            (marker, tp, self._append_marker(marker, tp, request.coordinator_epoch))
            for marker in request.markers
            for tp in marker.partitions
        ]
        results = []
        for marker, tp, outcome in appended:
            error = await self._queue.applied(outcome)
            results.append(
                MarkerResult(producer_id=marker.producer_id, topic_partition=tp, error=error)
            )
        return WriteTxnMarkersReply(results=tuple(results))

    def _append_marker(
        self, marker: TxnMarker, tp: TopicPartition, coordinator_epoch: int
    ) -> AppendOutcome:
        is_ours = tp == self.replica.topic_partition
        if not is_ours or self._unavailable(None) is not ErrorCode.NONE:
            return AppendOutcome(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._queue.append_marker(marker, coordinator_epoch, self._clock.now_ms())

    async def describe_producers(self, request: DescribeProducersRequest) -> DescribeProducersReply:
        """Describe the producers with state in the offsets log."""
        if request.topic_partition != self.replica.topic_partition:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        error = self.replica.availability()
        if error is not ErrorCode.NONE:
            return request.failed(error)
        producers = self.replica.machine.describe_producers(request.producer_ids)
        return DescribeProducersReply(producers=producers)

    async def abort_hanging(self, request: AbortHangingRequest) -> AbortHangingReply:
        """Abort the transaction that an operator names, if just that is open."""
        if request.topic_partition != self.replica.topic_partition:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        error = self._unavailable(None)
        if error is not ErrorCode.NONE:
            return request.failed(error)
        markers = self.replica.machine.markers_for(request)
        if markers is None:
            return request.failed(ErrorCode.INVALID_TXN_STATE)
        # No wait since the look: nothing else can have been opened.
        (result,) = (await self.write_txn_markers(markers)).results
        return AbortHangingReply(error=result.error)

    # --- description and removal ----------------------------------------------------------

    async def describe_groups(self, request: DescribeGroupsRequest) -> DescribeGroupsReply:
        """Describe groups of the shard."""
        error = self._unavailable(None)
        if error is not ErrorCode.NONE:
            return request.failed(error)
        self._queue.catch_up()
        described = self._machine.describe(request).groups
        shares = self._shares.descriptions(request.group_ids)
        return DescribeGroupsReply(
            groups=tuple(sorted((*described, *shares), key=lambda one: one.group_id))
        )

    @_if_available
    async def delete_group(self, request: DeleteGroupRequest) -> DeleteGroupReply:
        """Delete an empty group and its offsets, durably."""
        group_id = request.group_id
        if self._shares.is_share(group_id):
            return await self._shares.delete(request)
        self._queue.catch_up()
        error = self._machine.begin_delete(group_id, self._clock.now_ms())
        if error is not ErrorCode.NONE:
            return request.failed(error)
        try:
            # Commits in flight were admitted before the group closed: they must be known
            # before its offsets are enumerated.
            await self._queue.wait_until_applied(group_id)
            error = self._unavailable(group_id)
            if error is ErrorCode.NONE:
                tombstones = self._machine.tombstones(group_id)
                outcome = self._queue.append(group_id, tombstones, self._clock.now_ms())
                error = await self._committed(outcome)
        finally:
            # No effect if the deletion succeeded: then the group is gone.
            self._machine.reopen(group_id, self._clock.now_ms())
        return DeleteGroupReply(error=error)

    @_if_available
    async def delete_offsets(self, request: DeleteOffsetsRequest) -> DeleteOffsetsReply:
        """Delete positions of a group, durably."""
        self._queue.catch_up()
        decision = self._machine.decide_delete_offsets(request)
        if not decision.records:
            return decision.reply
        outcome = self._queue.append(request.group_id, decision.records, self._clock.now_ms())
        error = await self._committed(outcome)
        return decision.reply if error is ErrorCode.NONE else request.failed(error)

    async def expire_offsets(self) -> None:
        """Remove offsets unused for the retention time, durably."""
        if self._unavailable(None) is not ErrorCode.NONE:
            return
        self._queue.catch_up()
        now_ms = self._clock.now_ms()
        await self._append_all(self._machine.expired(now_ms, self._queue.group_ids), now_ms)

    async def _expire_for_ever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SCAN_MS / 1000)
            await self.expire_offsets()

    async def forget_deleted_topics(self) -> None:
        """Remove committed offsets in deleted topics, durably."""
        if self._unavailable(None) is not ErrorCode.NONE:
            return
        self._queue.catch_up()
        gone = await self._topics.gone(self._machine.offsets.topic_ids())
        if not gone or self._unavailable(None) is not ErrorCode.NONE:
            return
        self._queue.catch_up()
        removals = self._machine.of_deleted_topics(gone, self._queue.group_ids)
        await self._append_all(removals, self._clock.now_ms())

    async def _forget_deleted_topics_for_ever(self) -> None:
        while True:
            await self.forget_deleted_topics()
            await asyncio.sleep(DELETED_TOPICS_SCAN_MS / 1000)

    # --- log ------------------------------------------------------------------------------

    async def _append_all(
        self, batches: Iterable[tuple[str, Sequence[LogRecord]]], now_ms: int
    ) -> None:
        """Append records of groups, all in this turn, and wait until they are applied."""
        outcomes = [self._queue.append(group_id, records, now_ms) for group_id, records in batches]
        for outcome in outcomes:
            await self._committed(outcome)

    async def _committed(self, outcome: AppendOutcome) -> ErrorCode:
        """Wait until an append is durable and applied; return the client's error."""
        error = await self._queue.applied(outcome)
        if error is ErrorCode.NONE or error in PRODUCER_ERRORS:
            return error
        self._check_leadership()
        return client_error_of_append(error)

    # --- effects --------------------------------------------------------------------------

    def _run(self, effects: Iterable[Effect]) -> None:
        """Carry out effects, in order."""
        for effect in effects:
            match effect:
                case ReplyTo(call_id, reply):
                    parked = self._calls.pop(call_id, None)
                    if parked is not None and not parked[1].done():
                        parked[1].set_result(reply)
                case SetTimer(timer, delay_ms):
                    self._cancel_timer(timer)
                    self._timers[timer] = asyncio.get_running_loop().call_later(
                        delay_ms / 1000, self._timer_fired, timer
                    )
                case CancelTimer(timer):
                    self._cancel_timer(timer)
                case WriteGroup():
                    now_ms = self._clock.now_ms()
                    outcome = self._queue.append(effect.group_id, (effect.record,), now_ms)
                    self._tasks.spawn(self._finish_write(effect, outcome))

    async def _finish_write(self, write: WriteGroup, outcome: AppendOutcome) -> None:
        error = await self._committed(outcome)
        is_appended = outcome.error is ErrorCode.NONE
        now_ms = self._clock.now_ms()
        self._run(self._machine.written(write, error, now_ms, is_appended=is_appended))

    def _cancel_timer(self, timer: Timer) -> None:
        handle = self._timers.pop(timer, None)
        if handle is not None:
            handle.cancel()

    def _timer_fired(self, timer: Timer) -> None:
        self._timers.pop(timer, None)
        try:
            self._run(self._machine.timer_fired(timer, self._clock.now_ms()))
        except Exception as error:
            self._break(error)
            raise

    async def _parked(
        self, request: Request[ReplyT], step: Callable[[Any, int, int], Iterable[Effect]]
    ) -> ReplyT:
        """Give the machine a call that it answers with an effect, at once or later."""
        self._call_count += 1
        call_id = self._call_count
        reply: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = (request, reply)
        try:
            self._run(step(request, call_id, self._clock.now_ms()))
            return await reply
        finally:
            self._calls.pop(call_id, None)

    def _break(self, error: BaseException) -> None:
        """Make the shard unusable: every call raises ``error`` until the process has ended."""
        self._breakage = error
        self._shares.close(error)
        for _, reply in self._calls.values():
            if not reply.done():
                reply.set_exception(error)
        self._on_failure(error)


class GroupTopics:
    """The ids of existing topics, for checks of committed offsets.

    Names can be reused, ids never are. A topic that is deleted and created again begins at offset
    0, with new records. An offset in the old topic must neither count for the new one, nor replace
    one of it.
    """

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def ids_named_by(
        self, request: OffsetCommitRequest | TxnOffsetCommitRequest
    ) -> tuple[ErrorCode, dict[str, str]]:
        """The ids of those topics of a commit that exist, by name.

        The cache is used if it agrees with the caller; otherwise one of the two is out of date, and
        the controller is asked. So after an offset in a topic was accepted, none in an earlier
        topic of that name is. ``COORDINATOR_NOT_AVAILABLE`` if the controller does not answer.
        """
        names = {tp.topic for tp, _ in request.offsets}
        known = self._cluster.cached(names)
        is_agreed = all(
            tp.topic in known and position.topic_id == known[tp.topic].topic_id
            for tp, position in request.offsets
        )
        if not is_agreed:
            error, known = await self._cluster.topics(names, as_of_ms=_after_now_ms())
            if error is not ErrorCode.NONE:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE, {}
        return ErrorCode.NONE, {name: topic.topic_id for name, topic in known.items()}

    async def gone(self, named: Mapping[str, frozenset[str]]) -> frozenset[str]:
        """The ids in ``named`` (topic name → ids) whose topic is deleted; empty if in doubt.

        ``named`` is older than the question, so the controller knows every topic in it.
        """
        if not named:
            return frozenset()
        error, topics = await self._cluster.topics(named, as_of_ms=_after_now_ms())
        if error is not ErrorCode.NONE:
            return frozenset()
        current = {topic.topic_id for topic in topics.values()}
        return frozenset(topic_id for ids in named.values() for topic_id in ids - current)


def _of_a_queue(group_id: str) -> tuple[ErrorCode, str]:
    """Why a consumer may not join."""
    return (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        f"{group_id!r} is the group of a queue: give the consumer another group_id",
    )


def _after_now_ms() -> int:
    """The next millisecond: a reply from this one may be older than the question."""
    return loop_ms() + 1
