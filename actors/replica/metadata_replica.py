"""The controller's replica of the metadata log, and the copies on other brokers.

The rules are in ``protocol/cluster/quorum`` and ``protocol/partition/quorum_replication``. A
broker's copy handles one vote or push at a time, so that its epoch is written down before any
answer that relies on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import structs

from oncelog.actors.config import ReplicaConfig, own_directory
from oncelog.actors.interfaces import Background, Clock
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.cluster.cluster_records import (
    ClusterRecord,
    VotersChanged,
    decode_cluster_record,
)
from oncelog.actors.protocol.cluster.quorum import (
    Disks,
    Electorate,
    LogPosition,
    VoterState,
    decide_vote,
    disks_of,
    electorate_in,
    with_epoch,
)
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.messages.brokers import NO_DISK
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.replication import (
    ReplicateReply,
    ReplicateRequest,
    VoteReply,
    VoteRequest,
)
from oncelog.actors.protocol.partition.quorum_replication import QuorumReplication
from oncelog.actors.protocol.partition.replication import LeaderReplication, ReplicationSettings
from oncelog.actors.replica.data_directory import read_voter_state, write_voter_state
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.actors.replica.maintenance import Maintenance
from oncelog.actors.replica.opening import ExpectedLog
from oncelog.actors.replica.replica import Replica
from oncelog.actors.replica.replica_log import NOT_NOW, ReplicaLog, ReplicaRole
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_LEADER_EPOCH
from oncelog.storage.records.batch import iterate_batches
from oncelog.storage.records.codec import decode_records
from oncelog.storage.segments.leader_epochs import epoch_span

_logger = logging.getLogger(__name__)

ROOM_BYTES: Final = 1 << 20
"""Free space below which a voter's disk counts as full: a controller there would resign again."""

_ROOM_FILE: Final = "quorum-room"

_ANOTHER: Final = 0
"""Placeholder for the leader at a copy: no broker has this number; a push names the real one."""


class MetadataRole(ReplicaRole):
    """The metadata log, at the controller or a copy; ``state`` is in the voter file."""

    def __init__(self, replica: Replica, filesystem: FileSystem) -> None:
        self.replica = replica
        self._filesystem = filesystem
        self._data_dir = own_directory(replica.config.data_dir)

    def position(self) -> LogPosition:
        """The end and last epoch of the log, by which voters compare logs."""
        machine = self.replica.machine
        epoch = epoch_span(machine.leader_epochs.entries, machine.log_end_offset - 1)[0]
        return LogPosition(NO_LEADER_EPOCH if epoch is None else epoch, machine.log_end_offset)

    async def electorate_in_log(self) -> Electorate:
        """The voters and disks in the log; none without a cluster. OSError, CorruptDataError."""
        found = Electorate()
        async for batch in self.replica.replay_in_slices():
            found = electorate_in((record.value for record in batch.records), found)
        return found

    def load_state(self) -> VoterState:
        """The state in the voter file, or the initial one. OSError, CorruptDataError."""
        found = read_voter_state(self._filesystem, self._data_dir)
        return VoterState() if found is None else found

    async def can_write(self) -> bool:
        """Whether the disk accepts writes: tries to write ``ROOM_BYTES``."""
        path = self._data_dir / _ROOM_FILE

        def attempt() -> None:
            self._filesystem.write_atomically(path, bytes(ROOM_BYTES))
            self._filesystem.remove(path)

        try:
            await self.replica.run_in_thread(attempt)
        except OSError as error:
            _logger.warning(
                "%s cannot be written to: %s — make room on its disk, or repair it; until then "
                "this broker cannot be the controller",
                *(self._data_dir, error),
            )
            return False
        return True

    async def write_state(self, state: VoterState) -> None:
        """Write the voter file, durably. OSError."""
        await self.replica.run_in_thread(
            lambda: write_voter_state(self._filesystem, self._data_dir, state)
        )


class MetadataLeader(MetadataRole):
    """The controller's role; ``voters`` are known before it begins to lead."""

    def __init__(self, replica: Replica, filesystem: FileSystem) -> None:
        super().__init__(replica, filesystem)
        self.voters: tuple[int, ...] = ()
        self.disks: Disks = {}
        """Broker → disk, by the log: answers from other disks do not count."""
        self._learners: tuple[int, ...] = ()

    @property
    def quorum(self) -> QuorumReplication | None:
        """The replication of the current epoch, while it leads."""
        replicator = self.replica.replicator
        found = None if replicator is None else replicator.replication
        return found if isinstance(found, QuorumReplication) else None

    def replication(self, log: ReplicaLog, _settings: ReplicationSettings) -> LeaderReplication:
        """See ``ReplicaRole``; if the log names no voters yet, its founder is the only one."""
        broker_id = log.config.broker_id
        self.voters = self.voters or (broker_id,)
        return QuorumReplication(
            log.machine,
            voters=self.voters,
            leader_epoch=log.leader_epoch,
            broker_id=broker_id,
            synced_end_offset=log.synced_offset,
            now_ms=loop_ms(),
            disks=self.disks,
        )

    def appended(self, records: Sequence[LogRecord]) -> None:
        """See ``ReplicaRole``; new voters are in force as soon as they are appended."""
        for record in records:
            changed = decode_cluster_record(record.value or b"")
            self._record_disks(changed)
            if isinstance(changed, VotersChanged):
                self.voters = changed.voters
                self._recount()

    def _record_disks(self, record: ClusterRecord) -> None:
        before = dict(self.disks)
        self.disks.update(disks_of([record], before))
        for broker_id, disk in before.items():
            if self.quorum is not None and not self.disks[broker_id].may_be(disk):
                self.quorum.has_other_disk(broker_id)

    @property
    def may_change_voters(self) -> bool:
        """Whether the voters may change now."""
        return self.quorum is not None and self.quorum.may_change_voters

    async def keep_state(self) -> None:
        """Write down the epoch in which it leads, for the time when others have copies. OSError."""
        state, replica = self.load_state(), self.replica
        if state.epoch < replica.leader_epoch:
            state = with_epoch(state, replica.leader_epoch)
            await self.write_state(structs.replace(state, voted_for=replica.broker_id))

    def set_learners(self, learners: Iterable[int]) -> None:
        """Push to these as well, who have no vote yet."""
        wanted = tuple(learners)
        if wanted != self._learners:
            self._learners = wanted
            self._recount()

    def _recount(self) -> None:
        quorum, replicator = self.quorum, self.replica.replicator
        if quorum is not None and replicator is not None:
            learners = [one for one in self._learners if one not in self.voters]
            if quorum.set_voters(self.voters, learners, loop_ms()):
                self.replica.high_watermark_rose()
            replicator.appended()


class MetadataCopy(MetadataRole):
    """A broker's copy, and the role of its replica: it follows and votes.

    It stops before a controller starts there.
    """

    def __init__(
        self,
        *,
        config: ReplicaConfig,
        filesystem: FileSystem,
        clock: Clock,
        background: Background,
        events: ReplicaEvents,
    ) -> None:
        replica = Replica(
            config=config,
            filesystem=filesystem,
            clock=clock,
            background=background,
            events=events,
            epoch_source=self._known_epoch,
            log_source=self._expected,
            new_role=lambda _replica: self,
        )
        super().__init__(replica, filesystem)
        self.state = VoterState()
        self.disk = NO_DISK
        """The identity of its disk; the broker keeps it up to date."""
        self.electorate = Electorate()
        """The voters and disks in its log; empty while unknown."""
        self._turn = asyncio.Lock()
        self._maintenance = Maintenance(replica=replica, clock=clock, on_failure=events.on_bug)

    async def _expected(self) -> ExpectedLog:
        """A copy that knows any epoch must have a log."""
        state = self.load_state()
        return ExpectedLog(topic_id="", is_in_sync=state.epoch != NO_LEADER_EPOCH)

    async def _known_epoch(self, last_epoch: int) -> BecomeLeaderReply:
        """Follow, with the epoch in the voter file."""
        try:
            found = read_voter_state(self._filesystem, self._data_dir)
            if found is None:
                # Without a file the log is the founder's, or empty.
                found = VoterState(is_copied=self.replica.log.log_end_offset == 0)
                await self.write_state(found)
            self.disk = self.replica.directory.disk()
            self.electorate = await self.electorate_in_log()
        except (OSError, CorruptDataError) as error:
            self.replica.go_offline(
                f"cannot tell what {self._data_dir} voted, and who else may: {error}"
            )
            return BecomeLeaderReply(error=ErrorCode.KAFKA_STORAGE_ERROR)
        self.state = found
        return BecomeLeaderReply(
            leader_epoch=max(found.epoch, last_epoch),
            leader=_ANOTHER,
            replicas=(_ANOTHER,),
            hosts=(0,),
            isr=(_ANOTHER,),
        )

    async def vote(self, request: VoteRequest) -> VoteReply:
        """Answer a candidate."""
        async with self._turn:
            if not self.replica.is_following or self.replica.is_cutting:
                return request.failed(NOT_NOW)
            cluster_id = self.replica.config.cluster_id
            disk = self.electorate.disks.get(request.candidate, NO_DISK)
            vote = decide_vote(
                self.state, self.position(), request, cluster_id=cluster_id, disk=disk
            )
            if not await self._is_remembered(vote.state):
                return request.failed(ErrorCode.KAFKA_STORAGE_ERROR)
            return structs.replace(vote.reply, disk=self.disk)

    async def replicate(self, request: ReplicateRequest) -> ReplicateReply:
        """Take a push; a new epoch is written down first."""
        async with self._turn:
            if not self.replica.is_following or self.replica.is_cutting:
                return ReplicateReply(error=NOT_NOW)
            if not await self._is_remembered(with_epoch(self.state, request.leader_epoch)):
                return ReplicateReply(error=ErrorCode.KAFKA_STORAGE_ERROR)
            return structs.replace(await self.replica.replicate(request), disk=self.disk)

    def follows(self) -> None:
        """See ``ReplicaRole``."""
        self._maintenance.start()

    def pushed(self, batches: memoryview) -> None:
        """See ``ReplicaRole``; new voters are in force as soon as they are appended."""
        for position, header in iterate_batches(batches):
            batch = batches[position : position + header.size_bytes]
            is_there = header.next_offset <= self.replica.machine.log_end_offset
            if is_there and not header.is_control:
                values = (record.value for record in decode_records(batch, header))
                self.electorate = electorate_in(values, self.electorate)

    def cut_begins(self) -> None:
        """See ``ReplicaRole``; the voters are not known until the cut has ended."""
        self.electorate = Electorate()

    async def cut_ended(self) -> None:
        """See ``ReplicaRole``; read the voters from what is left."""
        try:
            self.electorate = await self.electorate_in_log()
        except OSError as error:
            self.replica.disk_failed("read the voters in", error)
            raise

    async def start(self) -> None:
        """See ``Replica``."""
        await self.replica.start()

    async def stop(self) -> None:
        """See ``Replica``."""
        await self._maintenance.stop()
        await self.replica.stop()

    async def _is_remembered(self, state: VoterState) -> bool:
        """Write down a new state; false on a disk error, and then nothing may be promised."""
        if state == self.state:
            return True
        try:
            await self.write_state(state)
        except OSError as error:
            self.replica.disk_failed("write the vote in", error)
            return False
        if not self.replica.is_following:
            return False
        if state.epoch > self.replica.machine.leader_epoch:
            self.replica.machine.become_follower(state.epoch)
        self.state = state
        return True
