"""How a replica comes by its log: the lock on its directory, recovery, and whose files they are.

``lock``, ``open``, then with the epoch ``claim``; ``close`` and ``release`` at the end. Blocking
but for ``lock``: the caller runs the others beside the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from oncelog.actors.config import ReplicaConfig, TopicConfig
from oncelog.actors.interfaces import Clock
from oncelog.actors.protocol.cluster_messages import BecomeLeaderReply
from oncelog.actors.protocol.partition import CompletedTransaction, PartitionMachine
from oncelog.storage.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_FILE,
)
from oncelog.storage.control_record import ControlRecord, decode_control
from oncelog.storage.errors import ErrorCode
from oncelog.storage.fs import DirectoryLockedError, FileSystem, Lock
from oncelog.storage.partition_log import LogSettings, PartitionLog
from oncelog.storage.record_batch import BatchHeader
from oncelog.storage.record_codec import Record, decode_records

_logger = logging.getLogger(__name__)


HISTORY_BYTES_MAX: Final = 16 * 1024 * 1024
"""How far a start looks back behind the snapshot: about 16 batches of the largest size."""

LOCK_RETRY_MS: Final = 50
"""How often a starting replica looks whether a process of an earlier incarnation let go."""

EPOCH_RETRY_MAX_MS: Final = 1_000
"""The longest pause between two questions for an epoch."""


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
        self._path = config.directory
        self._filesystem = filesystem
        self._clock = clock
        self._machine = machine
        self._lock: Lock | None = None

    async def lock(self, *, is_wanted: Callable[[], bool]) -> None:
        """Take the directory for this process, waiting until an earlier incarnation let go."""
        self._filesystem.make_directory(self._path)
        while self._lock is None and is_wanted():
            try:
                self._lock = self._filesystem.lock(self._path / LOCK_FILE)
            except DirectoryLockedError:
                await asyncio.sleep(LOCK_RETRY_MS / 1000)

    def release(self) -> None:
        """Let the directory go; also what the end of the process does."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def open(self, topic: TopicConfig) -> PartitionLog:
        """Recover the log and rebuild the machine from it. Durable to its end on return."""
        log = PartitionLog.open(
            filesystem=self._filesystem,
            directory=self._path,
            settings=log_settings(topic),
            now_ms=self._clock.now_ms(),
        )
        try:
            self._restore(log)
        except BaseException:
            log.close(None)
            raise
        return log

    def _restore(self, log: PartitionLog) -> None:
        """Rebuild the machine and what of the log a load does not trust; make it all durable."""
        machine = self._machine
        snapshot_offset, entries = log.latest_snapshot()
        # A snapshot below the log start tells of producers by what stands between the two.
        first_offset = min(log.log_start_offset, snapshot_offset)
        machine.load(first_offset, snapshot_offset, entries, leader_epochs=log.leader_epochs)
        replay_from = machine.replay_from
        # A snapshot remembers one batch per producer, also that of a clean stop; the batches
        # before it restore the other four, so that the retry of any that was in flight is known.
        replay_from = min(replay_from, log.offset_before(snapshot_offset, HISTORY_BYTES_MAX))
        for header, batch in log.replay_state(replay_from):
            control = decode_control(batch, header) if header.is_control else None
            index_if_aborted(log, machine.apply(header, control))
        machine.advance_log_start(log.log_start_offset)
        point = log.sync_point()
        point.run()
        log.mark_synced(point)

    def claim(self, log: PartitionLog, topic_id: str, topic: TopicConfig) -> PartitionLog:
        """Make sure that the files are those of this topic, not of a deleted one of its name.

        Returns the log to use: ``log``, or a new one in the place of the deleted topic's.
        """
        filesystem, path = self._filesystem, self._path / PARTITION_METADATA_FILE
        claim = f"version: 0\ntopic_id: {topic_id}\n".encode()
        if filesystem.exists(path) and filesystem.read_whole(path) != claim:
            _logger.warning("%s: removing the log of a deleted topic of this name", self._path)
            log.close(None)
            self._remove_files()
            log = self.open(topic)
        if not filesystem.exists(path):
            filesystem.write_atomically(path, claim)
        return log

    def close(self, log: PartitionLog | None, *, is_sound: bool, remove_data: bool) -> None:
        """Flush and write the clean-shutdown mark, unless the log failed; remove all if asked to.

        Without the lock nothing is touched. OSError: the shutdown is not a clean one.
        """
        if log is not None:
            log.close(self._machine.snapshot() if is_sound else None)
        if remove_data and self._lock is not None:
            self._remove_files()
            self._filesystem.remove_tree(self._path)

    def _remove_files(self) -> None:
        """Remove all but the lock; what is left if the process dies meanwhile can be opened.

        What says how much there must be goes first, and is gone for good; then the oldest segment.
        """
        for name in (RECOVERY_FILE, CLEAN_SHUTDOWN_FILE):
            self._filesystem.remove(self._path / name)
        self._filesystem.sync_directory(self._path)
        for name in self._filesystem.list_directory(self._path):
            if name != LOCK_FILE:
                self._filesystem.remove(self._path / name)


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


async def ask_until_told(
    epoch_source: Callable[[int], Awaitable[BecomeLeaderReply]],
    last_epoch: int,
    *,
    is_wanted: Callable[[], bool],
) -> BecomeLeaderReply:
    """Ask for the epoch to lead with, ever less often, until it is told or not wanted any more."""
    delay_ms = LOCK_RETRY_MS
    while True:
        reply = await epoch_source(last_epoch)
        if reply.error is ErrorCode.NONE or not is_wanted():
            return reply
        await asyncio.sleep(delay_ms / 1000)
        delay_ms = min(2 * delay_ms, EPOCH_RETRY_MAX_MS)
