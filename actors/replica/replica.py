"""One replica of a partition: how it starts, becomes leader or follower, and stops.

Every actor with a log has one. ``replica_log`` has the log itself, ``replicator`` the calls of a
leader, and ``follower`` the follower role.

One file: each step of a start depends on the steps before it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from oncelog.actors.config import ReplicaConfig, TopicConfig, internal_topic_config
from oncelog.actors.interfaces import Background, Clock
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.cluster.placement import min_insync_of
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.partition import NO_BROKER, DescribeReplicaReply
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.followers import Push
from oncelog.actors.protocol.partition.replication import ReplicationSettings
from oncelog.actors.protocol.tickets import NO_KEYS, ClusterKeys
from oncelog.actors.replica.data_directory import MissingLogError
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.actors.replica.follower import Follower
from oncelog.actors.replica.group_sync import DISK_RETRY_MS
from oncelog.actors.replica.opening import (
    EPOCH_RETRY_MAX_MS,
    LOCK_RETRY_MS,
    DirectoryRemovedError,
    ExpectedLog,
    ReplicaDirectory,
    ask_until_answered,
    is_leader,
    log_settings,
)
from oncelog.actors.replica.replica_log import NOT_NOW, ReplicaLog, ReplicaRole, assignment_of
from oncelog.actors.replica.replicator import Replicator
from oncelog.storage.disk.disk_errors import is_transient
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.partition import PartitionLog
from oncelog.storage.model import INTERNAL_TOPICS, NO_LEADER_EPOCH, NO_OFFSET
from oncelog.storage.records.batch import Buffer

_logger = logging.getLogger(__name__)

MISSING_LOG_RETRY_MS: Final = 1_000
"""Interval of checking whether a missing log is back."""

REMOVALS_MAX: Final = 10
"""How often one start may find that an earlier incarnation removed its directory.

There are few incarnations; more removals are another fault, which is reported.
"""

_NO_BEGINNING: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""The controller's answers that mean that the expected log is out of date."""

LEADERLESS_ASK_MS: Final = 500
"""Interval at which a follower without a leader asks whether it should lead."""

RACKS_INTERVAL_MS: Final = 5_000
"""How long a leader that does not know the rack of a broker waits before it asks again."""

START_RETRY_MAX_MS: Final = 10_000
"""Maximum back-off of a start after transient disk errors, such as a full disk."""


class Replica(ReplicaLog):
    """The log of one partition with its directory and its role.

    ``epoch_source`` asks for the replica's role, given the newest epoch that it knows; it is asked
    until it answers ``NONE``. ``log_source`` asks the controller what log to expect; it gives
    ``None`` if there is no answer, and is None itself for a log that no controller knows.
    ``beginning_source`` asks whether the replica may begin a log for a topic id. ``opener`` runs
    work that may take minutes, so that it does not delay syncs of other logs. ``new_role`` makes
    what the kind of log adds.
    """

    def __init__(
        self,
        *,
        config: ReplicaConfig,
        filesystem: FileSystem,
        clock: Clock,
        background: Background,
        events: ReplicaEvents,
        epoch_source: Callable[[int], Awaitable[BecomeLeaderReply]],
        log_source: Callable[[], Awaitable[ExpectedLog | None]] | None = None,
        beginning_source: Callable[[str], Awaitable[BecomeLeaderReply]] | None = None,
        opener: Background | None = None,
        new_role: Callable[[Replica], ReplicaRole] = lambda _replica: ReplicaRole(),
    ) -> None:
        super().__init__(config=config, background=background, events=events)
        self._opener = opener or background
        self.broker_id = config.broker_id
        self.directory = ReplicaDirectory(
            config=config, filesystem=filesystem, clock=clock, machine=self.machine
        )
        self.keys = NO_KEYS
        self.role = new_role(self)
        self.follower = Follower(self, self.role)
        self._epoch_source = epoch_source
        self._log_source = log_source
        self._beginning_source = beginning_source
        self.waits_for = ""
        """The disk error that a start is currently retrying after."""
        self._is_stopped = False
        self._expected_topic_id = ""
        self._opening = asyncio.Lock()
        self._settings: tuple[tuple[str, str], ...] = ()
        self._settings_version = 0
        self.racks: dict[int, str] = {}
        """By broker; as of the last answer with settings, so at most a check of retention old."""
        self._racks_asked_ms = -float(RACKS_INTERVAL_MS)

    # --- state ----------------------------------------------------------------------------

    @property
    def is_following(self) -> bool:
        """Whether it takes pushes of a leader."""
        return self.follower.is_following

    def upkeep_error(self) -> ErrorCode:
        """See ``ReplicaLog``; a follower maintains its log too."""
        return ErrorCode.NONE if self.is_following and not self.is_cutting else self.availability()

    def describe(self, process_id: int) -> DescribeReplicaReply:
        """Describe bounds, role and process, for people, metrics and fault tests."""
        log, machine = self._log, self.machine
        reason = self.failure or self.waits_for
        damaged = self.damage.places(machine.log_start_offset)
        cut = self.directory.cut
        return DescribeReplicaReply(
            error=ErrorCode.KAFKA_STORAGE_ERROR if reason else ErrorCode.NONE,
            detail=reason,
            topic_partition=self.topic_partition,
            process_id=process_id,
            is_leader=self._is_leading,
            is_following=self.is_following,
            isr=() if self.replicator is None else self.replicator.isr,
            min_insync_replicas=self._min_insync_replicas,
            leader_epoch=self.leader_epoch,
            log_start_offset=machine.log_start_offset,
            last_stable_offset=machine.last_stable_offset,
            high_watermark=machine.high_watermark,
            log_end_offset=machine.log_end_offset,
            size_bytes=log.size_bytes if log else 0,
            producer_count=machine.producer_count,
            open_transaction_count=machine.open_transaction_count,
            segment_count=log.segment_count if log else 0,
            damaged_offset=damaged[0][0] if damaged else NO_OFFSET,
            damaged_place_count=len(damaged),
            cut_offset=NO_OFFSET if cut is None else cut.offset,
            cut_bytes=0 if cut is None else cut.cut_bytes,
        )

    def known_topic_id(self) -> str:
        """The id of the topic it leads or, before it leads, of the topic it should have a log of.

        Until it has been told that, the topic id of its files. These may be of a deleted topic of
        this name, whose shutdown does not concern this replica.
        """
        return self.leadership.topic_id or self._expected_topic_id or self.directory.topic_id()

    # --- start and stop -------------------------------------------------------------------

    async def start(self) -> None:
        """Lock the directory, recover and sync the log, follow until elected, and lead.

        Never raises for the disk: transient errors are retried with back-off, and any other leaves
        the replica offline with a reason. A replica whose log is missing is offline until it is
        back. ``stop`` ends a start early, once no file of the log is in use.
        """
        if not await self._manage("open", self._open):
            return
        await self._until_elected()
        self.follower.end()
        self._check_epoch()
        if not await self._manage("write the leader epoch in", self._begin_epoch):
            return
        self.learn_keys(self.leadership.keys)
        self.machine.become_leader(self.leader_epoch, self.leadership.topic_id, self.keys)
        self.configure(self.leadership.settings, self.leadership.settings_version)
        self._is_leading = True
        self._begin_replication()

    async def _until_elected(self) -> None:
        """Ask for a role, and follow until elected."""
        while self._may_go_on():
            told = await ask_until_answered(
                self._epoch_source, self._newest_epoch(), is_wanted=self._may_go_on
            )
            if self.is_following and told.leader_epoch < self._newest_epoch():
                # Another has been elected meanwhile and has pushed.
                await asyncio.sleep(LEADERLESS_ASK_MS / 1000)
                continue
            self.leadership = told
            if is_leader(told, self.broker_id) or not self._may_go_on():
                self.follower.end()
                return
            if told.leader_epoch < self._newest_epoch():
                return
            follow = functools.partial(self.follower.follow, self.leadership)
            if not await self._manage("follow a leader in", follow):
                return
            self.configure(self.leadership.settings, self.leadership.settings_version)
            self.events.start_upkeep()
            # If there is a leader, the controller announces the next one; if not, ask again.
            has_leader = self.leadership.leader >= 0
            elected = await self.follower.election(None if has_leader else LEADERLESS_ASK_MS)
            if elected is not None:
                self.leadership = elected
                return

    # --- leading --------------------------------------------------------------------------

    def _newest_epoch(self) -> int:
        """The newest leader epoch that this replica knows."""
        entries = self.log.leader_epochs
        in_log = entries[-1][0] if entries else NO_LEADER_EPOCH
        return max(in_log, self.machine.leader_epoch)

    def _begin_replication(self) -> None:
        """Replicate to followers from now on, if there are any; commit what is synced."""
        replication = self.role.replication(self, self._replication_settings())
        self.replicator = Replicator(replication, log=self, events=self.events)
        self.high_watermark_rose()
        self.replicator.appended()

    @property
    def _min_insync_replicas(self) -> int:
        """``min_insync_replicas`` by the newest known settings and replicas."""
        known = self.leadership
        replication_factor = known.replication_factor or len(known.replicas) or 1
        return min_insync_of(self._settings, replication_factor)

    def _replication_settings(self) -> ReplicationSettings:
        return ReplicationSettings(
            min_insync_replicas=self._min_insync_replicas,
            lag_max_ms=self.config.cluster.replica_lag_time_max_ms,
        )

    def request_of(self, push: Push) -> ReplicateRequest | None:
        """A push with its batches; ``None`` if they cannot be read now."""
        batches: Buffer = b""
        log_end_offset = self.machine.log_end_offset
        if push.bytes_max and push.previous_end_offset < log_end_offset:
            try:
                batches = self.log.fetch(
                    push.previous_end_offset,
                    max_bytes=push.bytes_max,
                    upper_offset=log_end_offset,
                ).records
            except (OSError, CorruptDataError) as error:
                _logger.error(
                    "%s cannot be copied to broker %d: %s",
                    self.topic_partition,
                    push.broker_id,
                    error,
                )
                return None
        return ReplicateRequest(
            topic_partition=self.topic_partition,
            topic_id=self.leadership.topic_id,
            leader=self.broker_id,
            leader_epoch=push.leader_epoch,
            epoch_start_offset=push.epoch_start_offset,
            previous_end_offset=push.previous_end_offset,
            previous_leader_epoch=push.previous_leader_epoch,
            high_watermark=push.bounds.high_watermark,
            log_start_offset=push.bounds.log_start_offset,
            settings_version=self._settings_version,
            batches=batches,
        )

    async def replicate(self, request: ReplicateRequest) -> ReplicateReply:
        """Take a push of the leader; one of a newer epoch deposes this replica."""
        if self.replicator is None:
            if request.settings_version > self._settings_version:
                self.events.refresh_settings_soon()
            return await self.follower.replicate(request)
        is_ours = request.topic_id == self.leadership.topic_id
        if is_ours and request.leader_epoch > self.leader_epoch:
            self.lose_leadership()
        return ReplicateReply(error=NOT_NOW)

    def learn_leadership(self, leadership: BecomeLeaderReply) -> ErrorCode:
        """Take the controller's news of leader and ISR."""
        replicator = self.replicator
        if replicator is None:
            return self.follower.learn_leadership(leadership)
        if leadership.topic_id != self.leadership.topic_id:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if leadership.leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        is_newer = leadership.partition_version > self.leadership.partition_version
        if is_newer and leadership.leader_epoch == self.leader_epoch:
            self.leadership = leadership
        if leadership.leader_epoch == self.leader_epoch:
            self.configure(leadership.settings, leadership.settings_version)
        replicator.learn(assignment_of(leadership, self.broker_id))
        return ErrorCode.NONE

    async def confirm(self, timeout_ms: int) -> ErrorCode:
        """``NONE`` if this was still the newest leader at the time of the call; asks followers.

        A process that was stalled believes that it leads until it is told otherwise. So an answer
        from memory alone, of which nothing is logged, must be confirmed before it is read.
        ``NOT_ENOUGH_REPLICAS`` if a replica outside the ISR may lead.
        """
        replicator = self.replicator
        error = self.availability()
        if error is not ErrorCode.NONE or replicator is None:
            return error if error is not ErrorCode.NONE else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if replicator.replication.has_too_few:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        try:
            is_confirmed = await asyncio.wait_for(replicator.confirm(), timeout_ms / 1000)
        except asyncio.TimeoutError:
            is_confirmed = False
        return ErrorCode.NONE if is_confirmed else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def preferred_read_replica(self, client_rack: str, fetch_offset: int) -> int:
        """The broker that a consumer in ``client_rack`` should fetch from; -1: this one.

        The racks are asked for when they are first needed, and again every ``RACKS_INTERVAL_MS``
        while one is unknown.
        """
        replicator = self.replicator
        if not client_rack or replicator is None or not replicator.replication.has_followers:
            return NO_BROKER
        is_due = loop_ms() - self._racks_asked_ms >= RACKS_INTERVAL_MS
        if is_due and not replicator.replication.in_sync.isr <= self.racks.keys():
            self._racks_asked_ms = loop_ms()
            self.events.refresh_settings_soon()
        near = {broker_id for broker_id, rack in self.racks.items() if rack == client_rack}
        return replicator.replication.preferred_read_replica(near, fetch_offset)

    def learn_racks(self, racks: Mapping[int, str]) -> None:
        """Know the rack of each broker, as the controller has just told it."""
        self.racks = dict(racks)

    def lose_leadership(self) -> None:
        """Another leads, or may: answer all waiters and restart."""
        epoch = self.leader_epoch
        self._end_leading(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.events.end_for_another(
            f"{self.topic_partition} was led in epoch {epoch}, and a newer one was given"
        )

    async def _manage(self, doing: str, attempt: Callable[[], Awaitable[None]]) -> bool:
        """Retry ``attempt`` until it succeeds; false if the replica goes offline or is stopped."""
        delay_ms = DISK_RETRY_MS
        while self._may_go_on():
            try:
                await attempt()
                self.waits_for = ""
                return self._may_go_on()
            except CorruptDataError as error:
                self.go_offline(f"cannot {doing} {self.directory.path}: {error}")
            except OSError as error:
                log = self._log
                is_lost = log is not None and log.failure is not None
                if is_lost or not is_transient(error):
                    self.disk_failed(doing, error)
                    continue
                self.failure = None
                self.waits_for = f"cannot {doing} {self.directory.path} yet: {error}"
                _logger.warning("%s %s", self.topic_partition, self.waits_for)
                await asyncio.sleep(delay_ms / 1000)
                delay_ms = min(2 * delay_ms, START_RETRY_MAX_MS)
        return False

    async def _open(self) -> None:
        await self._take_directory()
        await self._use(lambda: self.directory.open(self.topic))

    async def _take_directory(self) -> None:
        """Lock the directory and claim it for this topic, once the log is known to be there.

        Nothing is created in a directory that may be another's, or on an unmounted disk.
        """
        removals = 0
        while not self._is_stopped:
            delay_ms = MISSING_LOG_RETRY_MS
            try:
                self.directory.check_owner()
                expected = await self._expected_log()
                if expected is not None:
                    self._expected_topic_id = expected.topic_id
                    await self.directory.find(expected, is_wanted=lambda: not self._is_stopped)
                    self.directory.check_log(expected)
                await self.directory.lock(is_wanted=lambda: not self._is_stopped)
                if expected is not None:
                    await self._confirm(expected)
                    await self._claim(expected)
                self.failure = None
                return
            except MissingLogError as missing:
                self.directory.release()
                if self.failure != str(missing):
                    self.go_offline(str(missing))
            except DirectoryRemovedError as removed:
                removals += 1
                if removals > REMOVALS_MAX:
                    raise
                _logger.warning("%s was removed, begin anew: %s", self.directory.path, removed)
                delay_ms = LOCK_RETRY_MS
            await asyncio.sleep(delay_ms / 1000)

    async def _expected_log(self) -> ExpectedLog | None:
        """The controller's knowledge of the log; ``None`` for a log that no controller knows."""
        delay_ms = LOCK_RETRY_MS
        while self._log_source is not None and not self._is_stopped:
            expected = await self._log_source()
            if expected is not None:
                return expected
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(2 * delay_ms, EPOCH_RETRY_MAX_MS)
        return None

    async def _confirm(self, expected: ExpectedLog) -> None:
        """Ask whether to begin a log, now that the directory is locked.

        ``expected`` may be out of date. The topic may have been deleted and created again elsewhere
        while this replica waited for the directory. Or acknowledgements of an earlier process have
        brought the replica into the ISR. MissingLogError: then no file may be created or removed.
        OSError.
        """
        delay_ms = LOCK_RETRY_MS
        while self._beginning_source is not None and not self._is_stopped:
            if self.directory.has_log(expected):
                return
            reply = await self._beginning_source(expected.topic_id)
            if reply.error is ErrorCode.NONE:
                return
            if reply.error in _NO_BEGINNING:
                raise MissingLogError(
                    f"the log is missing: {self.directory.path} has none of topic id "
                    f"{expected.topic_id}, and may not begin one: {reply.detail or reply.error}"
                )
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(2 * delay_ms, EPOCH_RETRY_MAX_MS)

    async def _claim(self, expected: ExpectedLog) -> None:
        async with self._opening:
            if not self._is_stopped:
                await self._background.run(lambda: self.directory.claim(expected))

    def _check_epoch(self) -> None:
        """Go offline if the log has a newer epoch than the controller gave."""
        if not self._may_go_on():
            return
        newest = self._newest_epoch()
        if self.leader_epoch <= newest:
            self.go_offline(
                f"{self.directory.path} was led in epoch {newest}, and the controller gave "
                f"{self.leader_epoch}: its metadata log is an older copy, or another cluster's"
            )

    async def _begin_epoch(self) -> None:
        """Make the start of the epoch durable."""
        self.check_ends()
        self.log.assign_leader_epoch(self.leader_epoch, self.machine.log_end_offset)

    def learn_keys(self, keys: ClusterKeys) -> None:
        """Issue and check tickets with these keys from now on, unless newer ones are known."""
        if keys.version >= self.keys.version:
            self.keys = keys
            self.machine.learn_keys(keys)

    def configure(self, settings: Sequence[tuple[str, str]], version: int) -> None:
        """Use these settings of the topic, unless newer ones than ``version`` are known."""
        if version >= self._settings_version:
            self._settings, self._settings_version = tuple(settings), version
            if self.config.topic in INTERNAL_TOPICS:
                self.topic = internal_topic_config(self.config.topic, self.config.cluster)
            else:
                self.topic = TopicConfig.from_text(dict(settings))
            self.log.settings = log_settings(self.topic)
        if self.replicator is not None:
            # The number of replicas may be newer even if the settings are not.
            self.replicator.configure(self._replication_settings())

    async def _use(self, opened: Callable[[], PartitionLog]) -> None:
        """Open a log beside the event loop and use it; all of it is durable."""
        async with self._opening:
            if not self._is_stopped:
                self._log = await self._opener.run(opened)
                self._sync.begin(self._log)

    def _may_go_on(self) -> bool:
        return self.failure is None and not self._is_stopped

    def halt(self) -> None:
        """Stop leading and following: accept nothing from now on, and end ``start`` early."""
        self._is_stopped = True
        self.follower.end()
        self._end_leading(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.follower.end_election()

    async def stop(self, *, remove_data: bool = False) -> None:
        """Stop leading, flush, write the snapshot and the clean-shutdown file, release the lock.

        ``remove_data`` deletes the directory afterwards: its topic is gone. Waits while ``start``
        is working on files.
        """
        self.halt()
        await self._sync.drain()
        async with self._opening:
            log, self._log = self._log, None
            is_sound = self.failure is None
            try:
                # Not on the opener: other logs may occupy it for minutes.
                await self._background.run(
                    lambda: self.directory.close(log, is_sound=is_sound, remove_data=remove_data)
                )
                if remove_data:
                    await self.directory.forget()
                    await self._background.run(self.directory.remove)
            except (OSError, CorruptDataError) as error:
                self.go_offline(f"cannot close {self.directory.path}: {error}")
            self.directory.release()
