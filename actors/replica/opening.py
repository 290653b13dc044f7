"""Open the log of a replica: check the owner of its files, lock its directory, and recover.

The order is ``check_owner``, ``find``, ``lock``, ``claim``, ``open``; at the end ``close`` and
``release``, with ``forget`` and ``remove`` between them if the replica is removed. ``claim``,
``open``, ``close`` and ``remove`` may block for long: the caller runs them beside the event loop.

The log of an in-sync replica cannot be empty; if it is not there, it is missing: the directory has
the topic id, durably, before its replica asks the controller for its role. Replicas that have never
asked are in sync without a log, since the partition was created that way: nothing is committed
before they have acknowledged. A directory without the topic id is on another disk, or has lost its
files.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from oncelog.actors.config import ReplicaConfig, TopicConfig, own_directory
from oncelog.actors.interfaces import Clock
from oncelog.actors.protocol.messages.brokers import NO_DISK, Disk
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.partition.partition_machine import (
    CompletedTransaction,
    PartitionMachine,
    Role,
)
from oncelog.actors.replica.data_directory import (
    LOG_SUFFIX,
    DirectoryIdentity,
    MissingLogError,
    owned,
    read_identity,
    write_identity,
)
from oncelog.actors.replica.log_directories import LogDirectories
from oncelog.storage.disk.disk_errors import is_unreadable
from oncelog.storage.disk.file_system import DirectoryLockedError, FileSystem, Lock
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.loader import TailCut
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.log.side_files import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_FILE,
    TOPIC_ID_FILE,
    read_topic_id,
    write_topic_id,
)
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.codec import Record, decode_records
from oncelog.storage.records.control import ControlRecord, decode_control

_logger = logging.getLogger(__name__)

DecisionT = TypeVar("DecisionT")

HISTORY_BYTES_MAX: Final = 16 * 1024 * 1024
"""How far a start reads back before the snapshot: about 16 batches of the largest size."""

LOCK_RETRY_MS: Final = 50
"""Interval of checking whether an earlier incarnation has released the lock."""

EPOCH_RETRY_MAX_MS: Final = 1_000
"""Maximum back-off between requests for an epoch."""


class DirectoryRemovedError(FileNotFoundError):
    """An earlier incarnation, whose topic was deleted, removed the directory before our lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedLog:
    """The controller's knowledge of the log of a partition.

    ``is_in_sync``: the replica is in the ISR, so it must have files of ``topic_id``. Other replicas
    may copy everything.
    """

    topic_id: str
    is_in_sync: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedBatch:
    """One batch of the log, decoded for a coordinator."""

    header: BatchHeader
    records: Sequence[Record]
    control: ControlRecord | None


class ReplicaDirectory:
    """The directory of one replica; ``open`` rebuilds ``machine`` from it."""

    def __init__(
        self,
        *,
        config: ReplicaConfig,
        filesystem: FileSystem,
        clock: Clock,
        machine: PartitionMachine,
    ) -> None:
        self._config = config
        self._own = own_directory(config.data_dir)
        self._path = config.directory
        self._directories = LogDirectories(config, filesystem)
        self._filesystem = filesystem
        self._clock = clock
        self._machine = machine
        self._lock: Lock | None = None
        self._owner: DirectoryIdentity | None = None
        self.claimed_topic_id = ""
        """The topic that the files were claimed for; set by ``claim``."""
        self.cut: TailCut | None = None
        """What attempts to open the log have cut from its end."""

    @property
    def path(self) -> Path:
        """The replica's directory; until it is known, in the broker's own data directory."""
        return self._path

    def identity(self) -> DirectoryIdentity | None:
        """The identity of the broker's own data directory. OSError, CorruptDataError."""
        return read_identity(self._filesystem, self._own)

    def disk(self) -> Disk:
        """The broker's own data directory as told to other actors. OSError, CorruptDataError."""
        identity = self.identity()
        return NO_DISK if identity is None else identity.disk

    def finish_founding(self, identity: DirectoryIdentity) -> None:
        """Remove the founding mark, which lets a metadata log begin, durably. OSError."""
        self.write_identity(replace(identity, is_founding=False))

    def write_identity(self, identity: DirectoryIdentity) -> None:
        """Write the identity of the data directory, durably. OSError."""
        write_identity(self._filesystem, self._own, identity)

    def check_owner(self) -> None:
        """MissingLogError unless the data directory is our cluster's and broker's. OSError."""
        if self._config.cluster_id:
            self._owner = owned(
                self._filesystem,
                self._own,
                cluster_id=self._config.cluster_id,
                broker_id=self._config.broker_id,
            )

    async def find(self, expected: ExpectedLog, *, is_wanted: Callable[[], bool]) -> None:
        """Find the data directory that has the files or should get them; after ``check_owner``.

        MissingLogError if the directory is away, or if files should exist and do not; OSError,
        CorruptDataError.
        """
        owner = self._owner
        if owner is None or not self._directories.has_several(owner):
            return
        place = functools.partial(
            self._directories.place, owner, expected.topic_id, is_in_sync=expected.is_in_sync
        )
        path = await self._decide_alone(place, is_wanted=is_wanted)
        if path is not None and path != self._path:
            self.release()
            self._path = path

    async def _decide_alone(
        self, decide: Callable[[], DecisionT], *, is_wanted: Callable[[], bool]
    ) -> DecisionT | None:
        """Decide under the broker's lock; ``None`` if the replica is no longer wanted."""
        while is_wanted():
            try:
                turn = self._directories.lock()
            except DirectoryLockedError:
                await asyncio.sleep(LOCK_RETRY_MS / 1000)
                continue
            try:
                return decide()
            finally:
                turn.release()
        return None

    def check_log(self, expected: ExpectedLog) -> None:
        """Raise MissingLogError if the replica is in sync and these are not its files. OSError."""
        found = read_topic_id(self._filesystem, self._path)
        if expected.is_in_sync and found != expected.topic_id:
            what = "has no log" if found is None else f"has the log of another topic ({found})"
            raise MissingLogError(
                f"the log is missing: {self._path} {what}, and there was one (topic id "
                f"{expected.topic_id or 'none'}). Mount its disk or put its files back"
            )

    def has_log(self, expected: ExpectedLog) -> bool:
        """Whether the files have the topic's id; if not, ``claim`` begins a new log."""
        return self.topic_id() == expected.topic_id

    async def lock(self, *, is_wanted: Callable[[], bool]) -> None:
        """Lock the directory for this process; wait until an earlier incarnation releases it.

        DirectoryRemovedError if that one removed it: then the knowledge of the log is out of date,
        and the start must find out again whether and where to create a directory. OSError,
        CorruptDataError.
        """
        self._filesystem.make_directory(self._path)
        while self._lock is None and is_wanted():
            try:
                self._lock = self._filesystem.lock(self._path / LOCK_FILE)
            except DirectoryLockedError:
                await asyncio.sleep(LOCK_RETRY_MS / 1000)
            except FileNotFoundError as error:
                raise DirectoryRemovedError(*error.args, str(self._path)) from error
        if self._lock is not None and not self._directories.is_in_assigned_directory():
            # The assignment was removed, or a successor was placed elsewhere, before this directory
            # was created: no file says that we are here.
            self.release()
            raise DirectoryRemovedError(errno.ENOENT, "no longer assigned", str(self._path))

    def release(self) -> None:
        """Release the lock; the end of the process does that too."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def open(self, topic: TopicConfig) -> PartitionLog:
        """Recover the log and rebuild the machine from it. The whole log is durable on return.

        The machine's high watermark is the one in the log's checkpoint.
        """
        log = PartitionLog.open(
            filesystem=self._filesystem,
            directory=self._path,
            settings=log_settings(topic),
            now_ms=self._clock.now_ms(),
            on_cut=self._record_cut,
        )
        try:
            self._restore(log)
            self._machine.advance_high_watermark(log.high_watermark)
        except BaseException:
            log.close(None)
            raise
        return log

    def _record_cut(self, cut: TailCut) -> None:
        """Keep the cut of the first attempt: later ones, after a failure half-way, find less."""
        if self.cut is None or cut.cut_bytes > self.cut.cut_bytes:
            self.cut = cut

    def rebuild(self, log: PartitionLog) -> None:
        """Rebuild the machine in one turn, after the log was cut or restarted.

        The whole log is durable on return. A follower stays in its epoch, and its high watermark
        stays, unless the log now ends below it. CorruptDataError and OSError as for ``open``: then
        the machine is only usable for another attempt.
        """
        machine = self._machine
        role, high_watermark = machine.role, machine.high_watermark
        self._restore(log)
        if role is Role.FOLLOWER:
            machine.become_follower(machine.leader_epoch)
        machine.advance_high_watermark(min(high_watermark, log.log_end_offset))

    def _restore(self, log: PartitionLog) -> None:
        """Rebuild the machine, and the parts of the log that a load does not trust; sync it all."""
        machine = self._machine
        snapshot_offset, entries = log.latest_snapshot()
        # A snapshot below the log start needs the batches between the two.
        first_offset = min(log.log_start_offset, snapshot_offset)
        machine.load(first_offset, snapshot_offset, entries, leader_epochs=log.leader_epochs)
        # A snapshot has one batch per producer, even after a clean stop. The batches before it
        # restore the other four, so that a retry of any batch in flight is recognised.
        history_from = min(
            machine.replay_from, log.offset_before(snapshot_offset, HISTORY_BYTES_MAX)
        )
        log.begin_restore()
        try:
            batches = log.replay_state(
                history_from, snapshot_offset=snapshot_offset, history_end=machine.replay_from
            )
            self._replay(log, batches)
        except (CorruptDataError, OSError) as damage:
            is_lost = isinstance(damage, CorruptDataError) or is_unreadable(damage)
            if not is_lost or history_from == snapshot_offset:
                raise
            # Damage before the snapshot only costs the recognition of retries of these batches, and
            # their part in an open transaction's record count. Readers get an error.
            _logger.error(
                "%s: batches before the last snapshot are damaged: %s — check the disk; the "
                "replica serves, and readers can skip the damage",
                *(self._path, damage),
            )
            machine.load(first_offset, snapshot_offset, entries, leader_epochs=log.leader_epochs)
            log.begin_restore()
            self._replay(log, log.replay_sound(history_from, snapshot_offset))
            if snapshot_offset < log.log_end_offset:
                batches = log.replay_state(snapshot_offset, snapshot_offset=snapshot_offset)
                self._replay(log, batches)
        machine.advance_log_start(log.log_start_offset)
        log.end_restore()
        point = log.sync_point()
        point.run()
        log.mark_synced(point)

    def _replay(self, log: PartitionLog, batches: Iterable[tuple[BatchHeader, memoryview]]) -> None:
        for header, batch in batches:
            control = decode_control(batch, header) if header.is_control else None
            index_if_aborted(log, self._machine.apply(header, control))

    def claim(self, expected: ExpectedLog) -> None:
        """Make the files this topic's, durably, before the log is opened.

        Files of a deleted topic of this name are removed. MissingLogError: see ``check_log``.
        """
        self.check_log(expected)
        found = read_topic_id(self._filesystem, self._path)
        if found is None:
            self._refuse_unnamed_records()
        elif found != expected.topic_id:
            _logger.info("%s: removing the log of a deleted topic of this name", self._path)
            self._remove_files()
        # An earlier start may have created the directory and failed to sync its name.
        self._filesystem.sync_directory(self._path.parent)
        write_topic_id(self._filesystem, self._path, expected.topic_id)
        self.claimed_topic_id = expected.topic_id

    def _refuse_unnamed_records(self) -> None:
        """Raise if a new partition's directory has records without a topic id: keep these."""
        for name in self._filesystem.list_directory(self._path):
            path = self._path / name
            if path.suffix == LOG_SUFFIX and self._filesystem.file_size(path):
                raise MissingLogError(
                    f"{path} has records, but {PARTITION_METADATA_FILE}, which says of which "
                    f"topic, is missing: put it back, or move the files away"
                )

    def topic_id(self) -> str:
        """The topic id of the files; "" if there is none or it is unreadable."""
        try:
            return read_topic_id(self._filesystem, self._path) or ""
        except (OSError, CorruptDataError) as error:
            _logger.warning(
                "%s: these files have no readable topic id: %s — check the disk",
                *(self._path, error),
            )
            return ""

    def close(self, log: PartitionLog | None, *, is_sound: bool, remove_data: bool) -> None:
        """Flush and write the clean-shutdown file, unless the log failed; or remove the files.

        A removal is durable on return. Without the lock nothing is touched. OSError: the shutdown
        is not clean.
        """
        if log is not None:
            log.close(self._machine.snapshot() if is_sound else None)
        if remove_data and self._lock is not None:
            self._remove_files()

    async def forget(self) -> None:
        """Remove the replica's assignment, durably, after its files were removed.

        After the files: a further directory may be away at times, and its replicas must be known
        without it. Before the directory: a successor that has locked it relies on its own
        assignment. OSError, CorruptDataError.
        """
        if self._lock is not None and self._directories.is_in_further:
            await self._decide_alone(self._directories.forget, is_wanted=lambda: True)

    def remove(self) -> None:
        """Remove the directory and its lock file, if the lock is held. OSError.

        Once the lock file is removed a successor may create its own: then the directory stays,
        which is an OSError too.
        """
        if self._lock is not None:
            self._filesystem.remove_tree(self._path)

    def _remove_files(self) -> None:
        """Remove all files but the lock; after a crash in between, the rest can still be opened.

        In three steps, each durable before the next, since a power loss may bring back any file of
        the current step. First the files that say how much there must be; then the log, oldest
        segment first; last the topic id, since records without one would be rejected.
        """
        sized = (RECOVERY_FILE, LOG_START_FILE, CLEAN_SHUTDOWN_FILE)
        named = (TOPIC_ID_FILE, PARTITION_METADATA_FILE)
        found = self._filesystem.list_directory(self._path)
        others = [name for name in found if name not in (*sized, *named, LOCK_FILE)]
        for names in (sized, others, named):
            for name in names:
                self._filesystem.remove(self._path / name)
            self._filesystem.sync_directory(self._path)


def index_if_aborted(log: PartitionLog, completed: CompletedTransaction | None) -> None:
    """Add a transaction to the aborted index if it was aborted."""
    if completed is not None and completed.is_aborted:
        log.append_aborted(
            producer_id=completed.producer_id,
            first_offset=completed.first_offset,
            last_offset=completed.last_offset,
            last_stable_offset=completed.last_stable_offset,
        )


def log_settings(topic: TopicConfig) -> LogSettings:
    """The settings of the log, from those of its topic."""
    return LogSettings(
        segment_bytes=topic.segment_bytes,
        segment_ms=topic.segment_ms,
        index_interval_bytes=topic.index_interval_bytes,
    )


def read_back(log: PartitionLog) -> Iterator[ReplayedBatch]:
    """Read a whole log, decoded, in offset order: how a coordinator loads."""
    for header, batch in log.replay(log.log_start_offset):
        if header.is_control:
            yield ReplayedBatch(header=header, records=(), control=decode_control(batch, header))
        else:
            yield ReplayedBatch(header=header, records=decode_records(batch, header), control=None)


def is_leader(leadership: BecomeLeaderReply, broker_id: int) -> bool:
    """Whether ``leadership`` makes the replica on ``broker_id`` the leader."""
    return not leadership.replicas or leadership.leader == broker_id


async def ask_until_answered(
    epoch_source: Callable[[int], Awaitable[BecomeLeaderReply]],
    last_epoch: int,
    *,
    is_wanted: Callable[[], bool],
) -> BecomeLeaderReply:
    """Ask for the role, with back-off, until it is given or no longer wanted.

    The current epoch may differ from the log's last one: an earlier start may have got one and died
    before it wrote it down, or this is the log of a deleted topic.
    """
    delay_ms = LOCK_RETRY_MS
    while True:
        reply = await epoch_source(last_epoch)
        if reply.error is ErrorCode.NONE or not is_wanted():
            return reply
        if reply.error is ErrorCode.FENCED_LEADER_EPOCH and reply.leader_epoch != last_epoch:
            last_epoch = reply.leader_epoch
            continue
        await asyncio.sleep(delay_ms / 1000)
        delay_ms = min(2 * delay_ms, EPOCH_RETRY_MAX_MS)
