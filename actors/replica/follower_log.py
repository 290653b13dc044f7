"""A replica in the follower role: it takes the leader's pushes, and acknowledges what is synced.

``protocol/partition/following`` decides what of a push to take. Decision and append are one turn of
the event loop. If there is something to cut, other pushes are rejected until that is done, as if it
were one turn.

The leader epoch is not written down here. A replica that starts takes no push before the controller
has told it the current epoch, which is not older than that of any push it took.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from oncelog.actors.process.background import resolve_future
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.following import FollowerReplication, ReplicateVerdict
from oncelog.actors.replica.opening import index_if_aborted
from oncelog.actors.replica.replica_log import ReplicaLog
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_OFFSET
from oncelog.storage.records.batch import iterate_batches
from oncelog.storage.records.control import decode_control

_logger = logging.getLogger(__name__)

NOT_NOW: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER
"""The answer to a push while the replica does not follow."""


class FollowerLog(ReplicaLog):
    """The follower's half of a replica; ``is_following`` between start and election."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._follower: FollowerReplication | None = None
        self._elected: asyncio.Future[BecomeLeaderReply] | None = None
        self._is_cutting = False
        self._kept_log_start = 0
        """The log start that is durable; one found at start may be only in the page cache."""
        self._last_refusal = ""
        """The last error logged, to log it once: the leader retries the same push."""

    @property
    def is_following(self) -> bool:
        """Whether it takes pushes of a leader."""
        return self._follower is not None and self.failure is None

    def upkeep_error(self) -> ErrorCode:
        """See ``ReplicaLog``; a follower maintains its log too."""
        return ErrorCode.NONE if self.is_following and not self._is_cutting else self.availability()

    # --- role -----------------------------------------------------------------------------

    async def _follow(self, leadership: BecomeLeaderReply) -> None:
        """Take pushes from now on. OSError."""
        # Drop epochs in which this replica led but wrote no batch.
        self.log.truncate_to(self.log.log_end_offset)
        self.machine.become_follower(max(leadership.leader_epoch, self.machine.leader_epoch))
        self.leadership = leadership
        if self._follower is None:
            self._follower = FollowerReplication(self.machine, leadership.topic_id)

    async def _election(self, timeout_ms: int | None) -> BecomeLeaderReply | None:
        """Wait until this replica is elected; ``None`` after ``timeout_ms`` or if stopped."""
        self._elected = asyncio.get_running_loop().create_future()
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        await asyncio.wait({self._elected}, timeout=timeout_s)
        elected, self._elected = self._elected, None
        return elected.result() if elected.done() and not elected.cancelled() else None

    def learn_leadership(self, leadership: BecomeLeaderReply) -> ErrorCode:
        """Take news of the current leader; it may be this replica."""
        follower = self._follower
        if follower is None or self._is_cutting or self.failure is not None:
            return NOT_NOW
        if leadership.topic_id != self.leadership.topic_id:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if leadership.leader_epoch <= follower.known_epoch:
            is_known = leadership.leader_epoch == follower.known_epoch
            is_other = is_known and leadership.leader != self.config.broker_id
            return ErrorCode.NONE if is_other else ErrorCode.FENCED_LEADER_EPOCH
        if leadership.leader == self.config.broker_id:
            if self._elected is None:
                return NOT_NOW
            # From here on take no push: the election was decided without it.
            self._end_following()
            resolve_future(self._elected, leadership)
        return ErrorCode.NONE

    def _end_following(self) -> None:
        self._follower = None
        self._sync_waiters.fail_all(NOT_NOW)

    # --- pushes ---------------------------------------------------------------------------

    async def replicate(self, request: ReplicateRequest) -> ReplicateReply:
        """Take a push; what is acknowledged is synced and equal to the leader's log."""
        follower = self._follower
        if follower is None or self._is_cutting or self.failure is not None:
            return ReplicateReply(error=NOT_NOW)
        verdict = follower.decide(request)
        if verdict.error is not ErrorCode.NONE:
            self._log_refusal(request, verdict)
            return follower.acknowledge(request, verdict, NO_OFFSET)
        try:
            if verdict.adopts_epoch:
                self.machine.become_follower(request.leader_epoch)
            if (verdict.truncate_offset, verdict.restart_offset) != (NO_OFFSET, NO_OFFSET):
                await self._cut(verdict)
                if self._follower is not follower:
                    return ReplicateReply(error=NOT_NOW)
            self._append_pushed(memoryview(request.batches)[verdict.append_position :])
        except CorruptDataError as damage:
            self._go_offline(f"cannot replicate to {self.directory.path}: {damage}")
            return ReplicateReply(error=ErrorCode.KAFKA_STORAGE_ERROR, detail=str(damage))
        except OSError as refused:
            ends_at = self.machine.log_end_offset + 1
            self.refusal.record(refused, ends_at=ends_at, now_ms=loop_ms())
            self._on_disk_refusal("replicate to", refused)
            return ReplicateReply(error=ErrorCode.KAFKA_STORAGE_ERROR, detail=str(refused))
        follower.done(request, verdict)
        error = await self._until_synced(self.machine.log_end_offset)
        if error is not ErrorCode.NONE:
            return ReplicateReply(error=error)
        self.check_ends()
        reply = follower.acknowledge(request, verdict, self._synced_offset)
        error = await self._keep_bounds()
        return reply if error is ErrorCode.NONE else ReplicateReply(error=error)

    def _append_pushed(self, batches: memoryview) -> None:
        """Append whole batches as they are. OSError: those before the failed one are appended."""
        size_bytes = 0
        try:
            for position, header in iterate_batches(batches):
                batch = batches[position : position + header.size_bytes]
                self._roll_if_needed(len(batch), header, header.max_timestamp_ms)
                self.log.append_as_is(batch, header)
                control = decode_control(batch, header) if header.is_control else None
                index_if_aborted(self.log, self.machine.apply(header, control))
                size_bytes += len(batch)
        finally:
            if size_bytes:
                self.counters.replicated_bytes += size_bytes
                self._sync.request(self.log, size_bytes, is_awaited=self.topic.flush != "os")

    async def _cut(self, verdict: ReplicateVerdict) -> None:
        """Cut the log and rebuild the machine from what is left, durably.

        OSError: the replica is offline until it has restarted.
        """
        log, epoch = self.log, self.machine.leader_epoch
        _logger.warning(
            "%s cuts its log at %d, which ended at %d: it conflicts with the leader's",
            self.topic_partition,
            max(verdict.restart_offset, verdict.truncate_offset),
            log.log_end_offset,
        )
        self.counters.follower_cuts += 1

        def cut() -> None:
            if verdict.restart_offset != NO_OFFSET:
                log.restart_at(verdict.restart_offset)
            if verdict.truncate_offset != NO_OFFSET:
                log.truncate_to(verdict.truncate_offset)
            self.directory.rebuild(log)

        self._is_cutting = True
        try:
            await self._sync.drain()
            self._sync_waiters.fail_all(NOT_NOW)
            # Nothing counts as synced until the cut is done.
            self._synced_offset = self._kept_log_start = 0
            await self.run_in_thread(cut)
        except OSError as error:
            # Log and machine may differ now: only a restart makes them equal again.
            self._on_disk_failure("cut", error)
            raise
        finally:
            self._is_cutting = False
        if self._log is log:
            self.machine.become_follower(epoch)
            self._sync.begin(log)

    async def _until_synced(self, offset: int) -> ErrorCode:
        """Wait until everything below ``offset`` (exclusive) is synced."""
        if self._synced_offset >= offset:
            return ErrorCode.NONE
        waiter: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._sync_waiters.when_committed(offset, lambda error: resolve_future(waiter, error))
        return await waiter

    async def _keep_bounds(self) -> ErrorCode:
        """Keep the leader's log start and high watermark for the next start.

        On ``NONE`` the log start is durable: records count as deleted once all in-sync replicas
        hide them, and none of these may lead with a lower log start after a power loss.
        """
        self.log.high_watermark = self.machine.high_watermark
        log_start_offset = self.machine.log_start_offset
        if log_start_offset <= self._kept_log_start:
            return ErrorCode.NONE
        error = await self.raise_log_start(log_start_offset)
        if error is ErrorCode.NONE and self.log.log_start_offset >= log_start_offset:
            self._kept_log_start = max(self._kept_log_start, log_start_offset)
        return error

    def _log_refusal(self, request: ReplicateRequest, verdict: ReplicateVerdict) -> None:
        if verdict.detail and verdict.detail != self._last_refusal:
            self._last_refusal = verdict.detail
            _logger.error(
                "%s refuses what %d pushes: %s",
                self.topic_partition,
                request.leader,
                verdict.detail,
            )
