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

from msgspec import structs

from oncelog.actors.process.background import resolve_future
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.following import FollowerReplication, ReplicateVerdict
from oncelog.actors.replica.replica_log import NOT_NOW, ReplicaLog, ReplicaRole
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_OFFSET

_logger = logging.getLogger(__name__)


class Follower:
    """The follower role of a replica; ``is_following`` between start and election."""

    def __init__(self, log: ReplicaLog, role: ReplicaRole) -> None:
        self._log = log
        self._role = role
        self._replication: FollowerReplication | None = None
        self._elected: asyncio.Future[BecomeLeaderReply] | None = None
        self._last_refusal = ""
        """The last error logged, to log it once: the leader retries the same push."""

    @property
    def is_following(self) -> bool:
        """Whether it takes pushes of a leader."""
        return self._replication is not None and self._log.failure is None

    # --- role -----------------------------------------------------------------------------

    async def follow(self, leadership: BecomeLeaderReply) -> None:
        """Take pushes from now on. OSError."""
        # Drop epochs in which this replica led but wrote no batch.
        log, machine = self._log.log, self._log.machine
        log.truncate_to(log.log_end_offset)
        machine.become_follower(max(leadership.leader_epoch, machine.leader_epoch))
        self._log.leadership = leadership
        if self._replication is None:
            self._replication = FollowerReplication(machine, leadership.topic_id)
        self._role.follows()

    async def election(self, timeout_ms: int | None) -> BecomeLeaderReply | None:
        """Wait until this replica is elected; ``None`` after ``timeout_ms`` or if stopped."""
        self._elected = asyncio.get_running_loop().create_future()
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        await asyncio.wait({self._elected}, timeout=timeout_s)
        elected, self._elected = self._elected, None
        return elected.result() if elected.done() and not elected.cancelled() else None

    def learn_leadership(self, leadership: BecomeLeaderReply) -> ErrorCode:
        """Take news of the current leader; it may be this replica."""
        follower = self._replication
        if follower is None or self._log.is_cutting or self._log.failure is not None:
            return NOT_NOW
        if leadership.topic_id != self._log.leadership.topic_id:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if leadership.leader_epoch <= follower.known_epoch:
            is_known = leadership.leader_epoch == follower.known_epoch
            is_other = is_known and leadership.leader != self._log.config.broker_id
            return ErrorCode.NONE if is_other else ErrorCode.FENCED_LEADER_EPOCH
        if leadership.leader == self._log.config.broker_id:
            if self._elected is None:
                return NOT_NOW
            # From here on take no push: the election was decided without it.
            self.end()
            resolve_future(self._elected, leadership)
        return ErrorCode.NONE

    def end(self) -> None:
        """Take no push from now on."""
        self._replication = None
        self._log.refuse_pushes()

    def end_election(self) -> None:
        """Let ``election`` return: the replica stops."""
        if self._elected is not None:
            self._elected.cancel()

    # --- pushes ---------------------------------------------------------------------------

    async def replicate(self, request: ReplicateRequest) -> ReplicateReply:
        """Take a push; what is acknowledged is synced and equal to the leader's log."""
        follower = self._replication
        if follower is None or self._log.is_cutting or self._log.failure is not None:
            return ReplicateReply(error=NOT_NOW)
        verdict = follower.decide(request)
        if verdict.error is not ErrorCode.NONE:
            self._log_refusal(request, verdict)
            return follower.acknowledge(request, verdict, NO_OFFSET)
        try:
            if verdict.adopts_epoch:
                self._log.machine.become_follower(request.leader_epoch)
            if (verdict.truncate_offset, verdict.restart_offset) != (NO_OFFSET, NO_OFFSET):
                await self._cut(verdict)
                if self._replication is not follower:
                    return ReplicateReply(error=NOT_NOW)
            self._append(memoryview(request.batches)[verdict.append_position :])
        except CorruptDataError as damage:
            self._log.go_offline(f"cannot replicate to {self._log.directory.path}: {damage}")
            return ReplicateReply(error=ErrorCode.KAFKA_STORAGE_ERROR, detail=str(damage))
        except OSError as refused:
            ends_at = self._log.machine.log_end_offset + 1
            self._log.refusal.record(refused, ends_at=ends_at, now_ms=loop_ms())
            self._log.disk_refused("replicate to", refused)
            return ReplicateReply(error=ErrorCode.KAFKA_STORAGE_ERROR, detail=str(refused))
        follower.done(request, verdict)
        error = await self._log.until_synced(self._log.machine.log_end_offset)
        if error is not ErrorCode.NONE:
            return ReplicateReply(error=error)
        self._log.check_ends()
        reply = self._acknowledge(follower, request, verdict)
        error = await self._log.keep_bounds()
        return reply if error is ErrorCode.NONE else ReplicateReply(error=error)

    def _acknowledge(
        self, follower: FollowerReplication, request: ReplicateRequest, verdict: ReplicateVerdict
    ) -> ReplicateReply:
        """Take the leader's bounds, and wake the consumers who read here if they can see more."""
        log = self._log
        high_watermark, has_readers = log.machine.high_watermark, log.has_readers
        reply = follower.acknowledge(request, verdict, log.synced_offset)
        if has_readers and log.machine.high_watermark > high_watermark:
            log.wake_readers()
        return structs.replace(reply, has_readers=True) if has_readers else reply

    async def _cut(self, verdict: ReplicateVerdict) -> None:
        self._role.cut_begins()
        await self._log.cut(verdict)
        await self._role.cut_ended()

    def _append(self, batches: memoryview) -> None:
        try:
            self._log.append_pushed(batches)
        finally:
            self._role.pushed(batches)

    def _log_refusal(self, request: ReplicateRequest, verdict: ReplicateVerdict) -> None:
        if verdict.detail and verdict.detail != self._last_refusal:
            self._last_refusal = verdict.detail
            _logger.error(
                "%s refuses what broker %d pushes: %s — see the log of the leader there; until it "
                "is mended this replica is not in sync",
                *(self._log.topic_partition, request.leader, verdict.detail),
            )
