"""The controller's side of the metadata log: its voters, and the snapshots it begins with.

``Voters`` adds and removes voters; ``Snapshots`` writes snapshots.

A snapshot consists of records of the log itself (``protocol/cluster/cluster_records``), written in
one turn while nothing else is in flight. So it has the same state as everything before it. Only
once all of it is committed does the log start rise to its first record: then every possible leader
has the whole snapshot. The voters raise their log start when told. A voter that lacks the first
record restarts its log there, like any follower behind its leader's log start. If the controller
ends before that, readers skip the snapshot, and another is written when it is due.

Source: KIP-630, where a snapshot is a file instead.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Final

from oncelog.actors.controller.broker_membership import Execute
from oncelog.actors.interfaces import Clock
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerRegistered,
    ClusterRecord,
    ControllerElected,
    VotersChanged,
    decision,
    encode_cluster_record,
    snapshot_parts,
)
from oncelog.actors.protocol.cluster.quorum import (
    learners,
    may_leave,
    next_voters,
    voters_without,
)
from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.cluster import MetadataReply, MetadataRequest, VoterMetadata
from oncelog.actors.replica.data_directory import founders_directory
from oncelog.actors.replica.metadata_replica import MetadataLeader
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_OFFSET

_logger = logging.getLogger(__name__)

VOTERS_CHECK_MS: Final = 500
"""Interval of checking whether a voter is missing or a learner has caught up."""

SNAPSHOT_CHECK_MS: Final = 1_000
"""Interval of checking whether a snapshot is due."""


class Voters:
    """Manages the voters.

    ``log`` is the controller's role; None: it is the only voter. ``leave`` ends this controller
    for good once another voter can take over; None: it stays.
    """

    def __init__(
        self,
        machine: ClusterMachine,
        log: MetadataLeader | None,
        *,
        clock: Clock,
        execute: Execute,
        leave: Callable[[], None] | None,
    ) -> None:
        self._machine = machine
        self._log = log
        self._clock = clock
        self._execute = execute
        self._leave = leave

    async def begin(self) -> bool:
        """Commit the whole log with a first record of this epoch; return whether that succeeded.

        It waits until a majority of the voters is up.
        """
        log = self._log
        if log is None or len(log.voters) == 1:
            return True
        elected = ControllerElected(broker_id=log.replica.broker_id, epoch=log.replica.leader_epoch)
        outcome = log.replica.append([encode_cluster_record(elected)], now_ms=self._clock.now_ms())
        error = outcome.error
        if error is ErrorCode.NONE:
            error = await log.replica.committed(outcome.next_offset)
        return error is ErrorCode.NONE

    async def is_current(self) -> bool:
        """Whether this was still the controller at the time of the call."""
        if self._log is None:
            return True
        timeout_ms = self._log.replica.config.cluster.internal_call_timeout_ms
        return await self._log.replica.confirm(timeout_ms) is ErrorCode.NONE

    async def watch(self) -> None:
        """Add voters one at a time, and hand over if that is wanted; run it in its own task."""
        while True:
            await asyncio.sleep(VOTERS_CHECK_MS / 1000)
            if len(self._machine.broker_states) > 1:
                # The third follows the second at once: of two voters neither may be away.
                while await self.add_voter():
                    pass
                if self._leave is not None and self._may_leave():
                    self._leave()

    def _may_leave(self) -> bool:
        log = self._log
        if log is None or log.quorum is None or not log.quorum.may_change_voters:
            return False
        return may_leave(self._machine.voters, log.replica.broker_id, log.quorum.caught_up())

    async def add_voter(self) -> bool:
        """Have copies made where voters are wanted; add one that has caught up, if there is one."""
        log = self._log
        if log is None or log.quorum is None:
            return False
        learning = learners(self._machine.voters, self._machine.broker_states)
        if learning:
            try:
                await self._name_directory(log)
                await log.keep_state()
            except OSError as error:
                _logger.warning(
                    "could not add a voter now: %s — make room on the controller's disk, or repair "
                    "it; it is tried again",
                    error,
                )
                return False
        log.set_learners(learning)
        if self._wanted() is None:
            return False
        reply = await self._execute(MetadataRequest(topics=()), self._decide)
        if reply.error is ErrorCode.NONE:
            _logger.info("the metadata log is on brokers %s now", self._machine.voters)
        return reply.error is ErrorCode.NONE

    async def _name_directory(self, log: MetadataLeader) -> None:
        """Give an id to the founder's directory of an earlier build, which has none. OSError.

        The id tells it from an empty directory that replaces it.
        """
        own, directory = self._machine.broker_states[log.replica.broker_id], log.replica.directory
        identity = directory.identity()
        if own.directory_id or identity is None:
            return
        if not identity.directory_id:
            directory_id = founders_directory(identity.cluster_id)
            identity = dataclasses.replace(identity, directory_id=directory_id)
            directory.write_identity(identity)
        named = BrokerRegistered(
            broker_id=own.broker_id,
            data_dir=own.data_dir,
            directory_id=identity.directory_id,
            rack=own.rack,
            broker_epoch=own.broker_epoch,
            is_fenced=own.is_fenced,
            disk_epoch=own.disk_epoch,
            boot_id=own.boot_id,
        )
        await self._execute(
            MetadataRequest(topics=()), lambda _now_ms: decision(MetadataReply(), named)
        )

    def without(self, broker_id: int) -> tuple[ClusterRecord, ...] | None:
        """Records that remove the vote of a broker that lost its disk; None if not possible now.

        It has forgotten its votes and acknowledgements, so they must no longer count.
        """
        if broker_id not in self._machine.voters:
            return ()
        left = voters_without(self._machine.voters, broker_id)
        may_change_voters = self._log is not None and self._log.may_change_voters
        return (VotersChanged(voters=left),) if left is not None and may_change_voters else None

    def _wanted(self) -> tuple[int, ...] | None:
        """The voters plus the next one, if it may be added now."""
        quorum = None if self._log is None else self._log.quorum
        if quorum is None or not quorum.may_change_voters:
            return None
        voters = self._machine.voters
        learning = learners(voters, self._machine.broker_states)
        return next_voters(voters, learning, quorum.caught_up())

    def _decide(self, _now_ms: int) -> Decision[MetadataReply]:
        wanted = self._wanted()
        if wanted is None:
            return Decision(reply=MetadataReply())
        return decision(MetadataReply(), VotersChanged(voters=wanted))

    def described(self) -> tuple[VoterMetadata, ...]:
        """Each voter, and whether it lacks committed records."""
        quorum = None if self._log is None else self._log.quorum
        own = None if self._log is None else self._log.replica.broker_id
        caught_up = frozenset() if quorum is None else quorum.caught_up()
        return tuple(
            VoterMetadata(
                broker_id=voter,
                is_controller=voter == own,
                is_behind=voter != own and voter not in caught_up,
            )
            for voter in self._machine.voters
        )


class Snapshots:
    """Writes snapshots of ``machine`` into the log that ``replica`` leads.

    ``execute`` decides at a moment when every logged record is applied.
    """

    def __init__(self, machine: ClusterMachine, replica: Replica, *, execute: Execute) -> None:
        self._machine = machine
        self._replica = replica
        self._execute = execute
        self._tried_offset = NO_OFFSET
        """End offset of the last attempt, even a failed one; the next one waits for more."""

    async def watch(self) -> None:
        """Write a snapshot whenever it is due; run it in its own task."""
        while True:
            await asyncio.sleep(SNAPSHOT_CHECK_MS / 1000)
            if self._is_due():
                await self.write()

    def _is_due(self) -> bool:
        log = self._replica.machine
        cluster = self._replica.config.cluster
        count = log.log_end_offset - max(log.log_start_offset, self._tried_offset)
        if count < cluster.metadata_log_max_record_count_between_snapshots:
            return False
        # So snapshots at most about double what is written.
        return count >= self._machine.size

    async def write(self) -> ErrorCode:
        """Write a snapshot, and drop what is before it; durable on ``NONE``."""
        replica = self._replica
        appended: list[tuple[int, int]] = []

        def append(now_ms: int) -> Decision[MetadataReply]:
            for part in snapshot_parts(self._machine.snapshot()):
                outcome = replica.append([part], now_ms=now_ms)
                if outcome.error is not ErrorCode.NONE:
                    appended.clear()
                    break
                appended.append((outcome.base_offset, outcome.next_offset))
            self._tried_offset = replica.machine.log_end_offset
            return Decision(reply=MetadataReply())

        await self._execute(MetadataRequest(topics=()), append)
        if not appended:
            return ErrorCode.KAFKA_STORAGE_ERROR
        (begins_at, _), (_, ends_at) = appended[0], appended[-1]
        error = await replica.committed(ends_at)
        if error is ErrorCode.NONE:
            error = await replica.raise_log_start(begins_at)
        if error is ErrorCode.NONE:
            _logger.info("the metadata log begins with a snapshot at %d now", begins_at)
        return error
