"""How a replica comes by its log: whose files they are, the lock on its directory, and recovery.

``check_owner``, ``find``, ``lock``, ``claim``, ``open``; ``close`` and ``release`` at the end, with
``forget`` and ``remove`` between them if nothing is to stay. ``claim``, ``open``, ``close`` and
``remove`` may block for long: the caller runs them beside the event loop.

A log that is in sync and is not there is missing, never empty: the directory bears the id of its
topic, durably, before its replica asks the controller for its role. Those that have never asked are
in sync, as the partition was made, without a log: nothing is committed that they have not
acknowledged. Where the directory does not bear the id, it is another disk's, or has lost its files.
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
"""How far a start looks back behind the snapshot: about 16 batches of the largest size."""

LOCK_RETRY_MS: Final = 50
"""How often a starting replica looks whether a process of an earlier incarnation let go."""

EPOCH_RETRY_MAX_MS: Final = 1_000
"""The longest pause between two questions for an epoch."""


class DirectoryRemovedError(FileNotFoundError):
    """An earlier incarnation, whose topic was deleted, removed the directory before we had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedLog:
    """What the controller knows of the log of a partition.

    ``is_in_sync``: the replica is, so that there are files that bear ``topic_id``. Others copy all.
    """

    topic_id: str
    is_in_sync: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedBatch:
    """One batch of the log as a coordinator reads it back."""

    header: BatchHeader
    records: Sequence[Record]
    control: ControlRecord | None


class ReplicaDirectory:
    """The directory of one replica; opening rebuilds ``machine`` from what is in it."""

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
        """The topic whose files these were made, once they are."""
        self.cut: TailCut | None = None
        """What the attempts to open the log have cut from its end."""

    @property
    def path(self) -> Path:
        """Where the files are, once that is known; until then, in the broker's own directory."""
        return self._path

    def identity(self) -> DirectoryIdentity | None:
        """Whose the broker's own data directory is. OSError, CorruptDataError."""
        return read_identity(self._filesystem, self._own)

    def disk(self) -> Disk:
        """What is told to others of the broker's own data directory. OSError, CorruptDataError."""
        identity = self.identity()
        return NO_DISK if identity is None else identity.disk

    def finish_founding(self, identity: DirectoryIdentity) -> None:
        """Take the mark away that lets a metadata log be begun, durably. OSError."""
        self.write_identity(replace(identity, is_founding=False))

    def write_identity(self, identity: DirectoryIdentity) -> None:
        """Say whose the data directory is, durably. OSError."""
        write_identity(self._filesystem, self._own, identity)

    def check_owner(self) -> None:
        """MissingLogError if the data directory is not that of our cluster and broker. OSError."""
        if self._config.cluster_id:
            self._owner = owned(
                self._filesystem,
                self._own,
                cluster_id=self._config.cluster_id,
                broker_id=self._config.broker_id,
            )

    async def find(self, expected: ExpectedLog, *, is_wanted: Callable[[], bool]) -> None:
        """Know in which data directory the files are, or are to be made; after ``check_owner``.

        MissingLogError if that is away, or there are none and they should be; OSError,
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
        """Decide as the one replica of the broker that does so; ``None`` if wanted no more."""
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
        """MissingLogError if the replica is in sync and these are not its files. OSError."""
        found = read_topic_id(self._filesystem, self._path)
        if expected.is_in_sync and found != expected.topic_id:
            what = "has no log" if found is None else f"has the log of another topic ({found})"
            raise MissingLogError(
                f"the log is missing: {self._path} {what}, and there was one (topic id "
                f"{expected.topic_id or 'none'}). Mount its disk or put its files back"
            )

    def has_log(self, expected: ExpectedLog) -> bool:
        """Whether the files bear the topic's id; else to ``claim`` them is to begin a log."""
        return self.topic_id() == expected.topic_id

    async def lock(self, *, is_wanted: Callable[[], bool]) -> None:
        """Take the directory for this process, waiting until an earlier incarnation let go.

        DirectoryRemovedError if that one removed it: then what is known of the log is old, and
        whether to make a directory, and where, is to be found out anew. OSError, CorruptDataError.
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
            # Before it was made here it was forgotten, or a successor was sent elsewhere: nothing
            # says that we are here.
            self.release()
            raise DirectoryRemovedError(errno.ENOENT, "no longer assigned", str(self._path))

    def release(self) -> None:
        """Let the directory go; also what the end of the process does."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def open(self, topic: TopicConfig) -> PartitionLog:
        """Recover the log and rebuild the machine from it. Durable to its end on return.

        The machine's high watermark is the one that the log remembers.
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
        """Of attempts that failed half-way the first one met the most."""
        if self.cut is None or cut.cut_bytes > self.cut.cut_bytes:
            self.cut = cut

    def rebuild(self, log: PartitionLog) -> None:
        """The log was cut or restarted: rebuild the machine from what is left, in one turn.

        Durable to its end on return. A follower still follows in its epoch, and its high
        watermark stays, unless the log now ends below it. CorruptDataError and OSError as for
        ``open``: the machine is then good for nothing but another attempt.
        """
        machine = self._machine
        role, high_watermark = machine.role, machine.high_watermark
        self._restore(log)
        if role is Role.FOLLOWER:
            machine.become_follower(machine.leader_epoch)
        machine.advance_high_watermark(min(high_watermark, log.log_end_offset))

    def _restore(self, log: PartitionLog) -> None:
        """Rebuild the machine and what of the log a load does not trust; make it all durable."""
        machine = self._machine
        snapshot_offset, entries = log.latest_snapshot()
        # A snapshot below the log start needs the batches between the two.
        first_offset = min(log.log_start_offset, snapshot_offset)
        machine.load(first_offset, snapshot_offset, entries, leader_epochs=log.leader_epochs)
        # A snapshot remembers one batch per producer, also that of a clean stop; the batches
        # before it restore the other four, so that the retry of any that was in flight is known.
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
            # Before the snapshot only this is missing, and readers get an error for it: retries
            # of these batches, and their records in the count of a transaction that is open.
            _logger.error(
                "%s: batches before the last snapshot are damaged: %s", self._path, damage
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
        """Make sure that the files are those of this topic, durably, before the log is opened.

        Those of a deleted topic of its name go. MissingLogError: see ``check_log``.
        """
        self.check_log(expected)
        found = read_topic_id(self._filesystem, self._path)
        if found is None:
            self._refuse_unnamed_records()
        elif found != expected.topic_id:
            _logger.warning("%s: removing the log of a deleted topic of this name", self._path)
            self._remove_files()
        # The directory may have been made by a start that then failed to sync its name.
        self._filesystem.sync_directory(self._path.parent)
        write_topic_id(self._filesystem, self._path, expected.topic_id)
        self.claimed_topic_id = expected.topic_id

    def _refuse_unnamed_records(self) -> None:
        """A new partition begins with nothing; records that say no topic are not thrown away."""
        for name in self._filesystem.list_directory(self._path):
            path = self._path / name
            if path.suffix == LOG_SUFFIX and self._filesystem.file_size(path):
                raise MissingLogError(
                    f"{path} has records, but {PARTITION_METADATA_FILE}, which says of which "
                    f"topic, is missing: put it back, or move the files away"
                )

    def topic_id(self) -> str:
        """The id of the topic whose files these are; "" if they have none or it is unreadable."""
        try:
            return read_topic_id(self._filesystem, self._path) or ""
        except (OSError, CorruptDataError) as error:
            _logger.warning("%s: these files name no topic: %s", self._path, error)
            return ""

    def close(self, log: PartitionLog | None, *, is_sound: bool, remove_data: bool) -> None:
        """Flush and write the clean-shutdown mark, unless the log failed; or remove the files.

        They are gone for good on return. Without the lock nothing is touched. OSError: the shutdown
        is not a clean one.
        """
        if log is not None:
            log.close(self._machine.snapshot() if is_sound else None)
        if remove_data and self._lock is not None:
            self._remove_files()

    async def forget(self) -> None:
        """Let nothing say any more that the replica is here, durably; its files are removed.

        After them, as a further directory is not to be had at times: what is in it must be known
        without it. Before the directory, as a successor that has locked it relies on what it was
        assigned. OSError, CorruptDataError.
        """
        if self._lock is not None and self._directories.is_in_further:
            await self._decide_alone(self._directories.forget, is_wanted=lambda: True)

    def remove(self) -> None:
        """Remove the directory and its lock file, if that is held. OSError.

        Once the lock file is gone a successor may make its own: then the directory stays, and that
        is an error too.
        """
        if self._lock is not None:
            self._filesystem.remove_tree(self._path)

    def _remove_files(self) -> None:
        """Remove all but the lock; what is left if the process dies meanwhile can be opened.

        In three steps, each gone for good before the next: what says how much there must be; the
        log, its oldest segment first; what says of which topic they are, as lost power may bring
        back any file of a step, and nobody's records would be refused.
        """
        sized = (RECOVERY_FILE, CLEAN_SHUTDOWN_FILE)
        named = (TOPIC_ID_FILE, PARTITION_METADATA_FILE)
        found = self._filesystem.list_directory(self._path)
        others = [name for name in found if name not in (*sized, *named, LOCK_FILE)]
        for names in (sized, others, named):
            for name in names:
                self._filesystem.remove(self._path / name)
            self._filesystem.sync_directory(self._path)


def index_if_aborted(log: PartitionLog, completed: CompletedTransaction | None) -> None:
    """Enter a transaction in the aborted index, if that is how it ended."""
    if completed is not None and completed.is_aborted:
        log.append_aborted(
            producer_id=completed.producer_id,
            first_offset=completed.first_offset,
            last_offset=completed.last_offset,
            last_stable_offset=completed.last_stable_offset,
        )


def log_settings(topic: TopicConfig) -> LogSettings:
    """What the log itself needs to know of its topic's settings."""
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
    """Whether the replica on ``broker_id`` is to lead."""
    return not leadership.replicas or leadership.leader == broker_id


async def ask_until_answered(
    epoch_source: Callable[[int], Awaitable[BecomeLeaderReply]],
    last_epoch: int,
    *,
    is_wanted: Callable[[], bool],
) -> BecomeLeaderReply:
    """Ask for the epoch to lead with, ever less often, until it is given or no longer wanted.

    Another epoch than the log's last one may be current: one that was given to an earlier start,
    which died before it wrote it down, or that of a new topic beside the log of a deleted one.
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
