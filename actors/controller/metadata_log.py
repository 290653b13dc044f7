"""The metadata log as its controller sees it: who votes on it, and the snapshots it begins with.

``Voters`` tells who is to be one, and who lags.

A snapshot is records of the log itself (``protocol/cluster/cluster_records``), written in a turn in
which nothing else is in flight: so it gives what all before it gives. Only when all of it is
committed does the log start rise to its first record: whoever may lead has the whole snapshot then,
and all that follows. The voters raise theirs as they are told, and who lacks the first record is
restarted there, as every follower that is behind its leader's log start. If the controller ends
before that, its records are passed over, and a later snapshot is written when it is due.

Source: KIP-630, but for the place of a snapshot, which is a file there.
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
from oncelog.actors.replica.metadata_replica import MetadataReplica
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_OFFSET

_logger = logging.getLogger(__name__)

VOTERS_CHECK_MS: Final = 500
"""How often the controller looks whether another broker is to be a voter, or has caught up."""

SNAPSHOT_CHECK_MS: Final = 1_000
"""How often the controller looks whether a snapshot is due."""


class Voters:
    """``log`` is the controller's replica; without one, as in a test, it is the only voter."""

    def __init__(
        self,
        machine: ClusterMachine,
        log: MetadataReplica | None,
        *,
        clock: Clock,
        execute: Execute,
    ) -> None:
        self._machine = machine
        self._log = log
        self._clock = clock
        self._execute = execute
        self.leave: Callable[[], None] | None = None
        """Ends this controller for good, to be followed by another voter's, as soon as one can."""

    async def begin(self) -> bool:
        """Commit all that is in the log, by a first record of this epoch; whether that is done.

        It may take until a majority of the voters is there.
        """
        log = self._log
        if log is None or len(log.voters) == 1:
            return True
        elected = ControllerElected(broker_id=log.broker_id, epoch=log.leader_epoch)
        outcome = log.append([encode_cluster_record(elected)], now_ms=self._clock.now_ms())
        error = outcome.error
        if error is ErrorCode.NONE:
            error = await log.committed(outcome.next_offset)
        return error is ErrorCode.NONE

    async def is_current(self) -> bool:
        """Whether nobody else has become the controller before this call."""
        if self._log is None:
            return True
        timeout_ms = self._log.config.cluster.internal_call_timeout_ms
        return await self._log.confirm(timeout_ms) is ErrorCode.NONE

    async def watch(self) -> None:
        """Add voters, one at a time, and leave the rest to them if need be; a task of its own."""
        while True:
            await asyncio.sleep(VOTERS_CHECK_MS / 1000)
            if len(self._machine.broker_states) > 1:
                # The third follows the second at once: of two voters neither may be away.
                while await self.add_voter():
                    pass
                if self.leave is not None and self._may_leave():
                    self.leave()

    def _may_leave(self) -> bool:
        log = self._log
        if log is None or log.quorum is None or not log.quorum.may_change_voters:
            return False
        return may_leave(self._machine.voters, log.broker_id, log.quorum.caught_up())

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
                _logger.warning("nobody else is given a vote: %s", error)
                return False
        log.set_learners(learning)
        if self._wanted() is None:
            return False
        reply = await self._execute(MetadataRequest(topics=()), self._decide)
        if reply.error is ErrorCode.NONE:
            _logger.warning("the metadata log is on brokers %s now", self._machine.voters)
        return reply.error is ErrorCode.NONE

    async def _name_directory(self, log: MetadataReplica) -> None:
        """A founder of an earlier build has a directory without an id. OSError.

        With one it is known from an empty one that comes in its place.
        """
        own, directory = self._machine.broker_states[log.broker_id], log.directory
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
        """What takes the vote of a broker that has lost its disk; None if that cannot be now.

        What it voted, and what it acknowledged, is forgotten: it must not be counted any more.
        """
        if broker_id not in self._machine.voters:
            return ()
        left = voters_without(self._machine.voters, broker_id)
        may_change_voters = self._log is not None and self._log.may_change_voters
        return (VotersChanged(voters=left),) if left is not None and may_change_voters else None

    def _wanted(self) -> tuple[int, ...] | None:
        """The voters with the next one, if this is the moment to add it."""
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
        """Each voter, and whether it lacks something that is committed."""
        quorum = None if self._log is None else self._log.quorum
        own = None if self._log is None else self._log.broker_id
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
    """Writes them into the log of ``replica``, which leads it; ``machine`` is what it gives.

    ``execute`` decides when nothing that was logged is still to be applied.
    """

    def __init__(self, machine: ClusterMachine, replica: Replica, *, execute: Execute) -> None:
        self._machine = machine
        self._replica = replica
        self._execute = execute
        self._tried_offset = NO_OFFSET
        """Where the last attempt ended, which may have failed: the next is not made at once."""

    async def watch(self) -> None:
        """Write a snapshot whenever it is due; a task of its own."""
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
        # So what snapshots write is at most about what is written anyway.
        return count >= self._machine.size

    async def write(self) -> ErrorCode:
        """Write one, and drop what is before it, durably on ``NONE``."""
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
