"""One log and its machine in the leader role: what every log-holding actor is made of.

Rules: a batch is checked, written and applied in one turn of the event loop, with no wait in
between. The high watermark, and so every acknowledgement and every reader, covers only what is on
disk: all appends that arrive while a sync runs share the next one. A failed write or sync takes
the replica offline; nobody guesses what reached the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from oncelog.actors.config import ReplicaConfig, TopicConfig, internal_topic_config
from oncelog.actors.interfaces import Background, Clock, ResultT
from oncelog.actors.protocol.cluster_messages import BecomeLeaderReply
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.messages import DescribeReplicaReply, TxnMarker
from oncelog.actors.protocol.partition import CompletedTransaction, PartitionMachine
from oncelog.actors.replica_waiters import ReplicaWaiters
from oncelog.storage.control_record import ControlRecord, decode_control, encode_marker
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.fs import DirectoryLockedError, FileSystem, Lock
from oncelog.storage.model import (
    INTERNAL_TOPICS,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    AppendOrigin,
    TopicPartition,
)
from oncelog.storage.partition_log import LogSettings, PartitionLog
from oncelog.storage.record_batch import BatchHeader, Buffer, parse_header
from oncelog.storage.record_codec import Record, decode_records, encode_records

_logger = logging.getLogger(__name__)

LOCK_FILE: Final = ".lock"
METADATA_FILE: Final = "partition.metadata"
"""Whose files these are: the topic id, in the form that Kafka keeps it."""

LOCK_RETRY_MS: Final = 50
"""How often a starting replica looks whether a process of an earlier incarnation let go."""

DISK_FULL_RETRY_MS: Final = 1_000
"""How often a starting replica looks whether a full disk has room again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOutcome:
    """Where a batch stands; with an error nothing was written."""

    error: ErrorCode
    base_offset: int = NO_OFFSET
    next_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedBatch:
    """One batch of the log as a coordinator reads it back."""

    header: BatchHeader
    records: Sequence[Record]
    control: ControlRecord | None


class Replica:
    """The log of one partition and everything that is known about it.

    ``epoch_source`` asks for the epoch to lead with, given the last epoch found in the log; it is
    asked again until it answers ``NONE``.
    """

    def __init__(
        self,
        *,
        config: ReplicaConfig,
        filesystem: FileSystem,
        clock: Clock,
        background: Background,
        epoch_source: Callable[[int], Awaitable[BecomeLeaderReply]],
    ) -> None:
        self.config = config
        self.topic_partition = TopicPartition(config.topic, config.partition)
        self.broker_id = config.broker_id
        self.machine = PartitionMachine(self.topic_partition)
        self.topic = TopicConfig()
        self.leadership = BecomeLeaderReply()
        self.failure: str | None = None
        self._filesystem = filesystem
        self._clock = clock
        self._background = background
        self._epoch_source = epoch_source
        self._lock: Lock | None = None
        self._log: PartitionLog | None = None
        self._is_leading = False
        self._synced_offset = 0
        self._settings_version = 0
        self._sync_task: asyncio.Task[None] | None = None
        self._waiters = ReplicaWaiters()

    # --- state ----------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """The epoch this replica leads with; -1 before it leads."""
        return self.leadership.leader_epoch

    @property
    def log(self) -> PartitionLog:
        """The open log; only to be used while ``availability()`` is ``NONE``."""
        if self._log is None:
            raise RuntimeError(f"the log of {self.topic_partition} is not open")
        return self._log

    def availability(self) -> ErrorCode:
        """``NONE`` when this replica leads, else what to answer requests with."""
        if self.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE if self._is_leading else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def describe(self, process_id: int) -> DescribeReplicaReply:
        """Describe bounds, role and process, for people, metrics and fault tests."""
        log, machine = self._log, self.machine
        return DescribeReplicaReply(
            error=ErrorCode.NONE if self.failure is None else ErrorCode.KAFKA_STORAGE_ERROR,
            detail=self.failure or "",
            topic_partition=self.topic_partition,
            process_id=process_id,
            is_leader=self._is_leading,
            leader_epoch=self.leader_epoch,
            log_start_offset=machine.log_start_offset,
            last_stable_offset=machine.last_stable_offset,
            high_watermark=machine.high_watermark,
            log_end_offset=machine.log_end_offset,
            size_bytes=log.size_bytes if log else 0,
            producer_count=machine.producer_count,
            open_transaction_count=machine.open_transaction_count,
            segment_count=log.segment_count if log else 0,
        )

    # --- start and stop -------------------------------------------------------------------

    async def start(self) -> None:
        """Take the directory, recover the log, sync it, get an epoch and lead.

        Never raises for the disk: a failure leaves the replica offline with its reason.
        """
        try:
            await self._take_lock()
            await self._background.run(self._open)
            self.machine.advance_high_watermark(self.machine.log_end_offset)
        except (OSError, CorruptDataError) as error:
            self._go_offline(f"cannot open {self.config.directory}: {error}")
            return
        self.leadership = await self._leadership()
        try:
            await self._background.run(self._claim_directory)
            self.machine.advance_high_watermark(self.machine.log_end_offset)
        except (OSError, CorruptDataError) as error:
            self._go_offline(f"cannot take over {self.config.directory}: {error}")
            return
        while not self._begin_epoch():
            if self.failure is not None:
                return
            await asyncio.sleep(DISK_FULL_RETRY_MS / 1000)
        self.machine.become_leader(
            self.leader_epoch, self.leadership.topic_id, self.leadership.cluster_key
        )
        self.configure(self.leadership.settings, self.leadership.settings_version)
        self._is_leading = True

    def _begin_epoch(self) -> bool:
        """Make the start of the epoch durable; false while the disk is full, or when offline."""
        try:
            self.log.assign_leader_epoch(self.leader_epoch, self.machine.log_end_offset)
        except OSError as error:
            reason = f"cannot write the leader epoch in {self.config.directory}: {error}"
            if self.log.failure is not None:
                self._go_offline(reason)
            else:
                _logger.warning("%s waits for room: %s", self.topic_partition, reason)
            return False
        return True

    def configure(self, settings: Sequence[tuple[str, str]], version: int) -> None:
        """Follow the settings of the topic, unless newer ones than ``version`` are known."""
        if version < self._settings_version:
            return
        self._settings_version = version
        if self.config.topic in INTERNAL_TOPICS:
            self.topic = internal_topic_config(self.config.topic)
        else:
            self.topic = TopicConfig.from_text(dict(settings))
        self.log.settings = _log_settings(self.topic)

    async def _take_lock(self) -> None:
        self._filesystem.make_directory(self.config.directory)
        while self._lock is None:
            try:
                self._lock = self._filesystem.lock(self.config.directory / LOCK_FILE)
            except DirectoryLockedError:
                await asyncio.sleep(LOCK_RETRY_MS / 1000)

    def _open(self) -> None:
        """Recover the log and rebuild the machine from it. Durable to its end on return."""
        log = PartitionLog.open(
            filesystem=self._filesystem,
            directory=self.config.directory,
            settings=_log_settings(self.topic),
            now_ms=self._clock.now_ms(),
        )
        machine = self.machine
        snapshot_offset, entries = log.latest_snapshot()
        # A snapshot below the log start tells of producers by what stands between the two.
        first_offset = min(log.log_start_offset, snapshot_offset)
        machine.load(first_offset, snapshot_offset, entries, leader_epochs=log.leader_epochs)
        replay_from = machine.replay_from
        if not log.was_clean and replay_from > log.head.first_base_offset:
            # A snapshot remembers one batch per producer; the segment before it restores the
            # other four, so that a retry of any batch that was in flight is recognised.
            replay_from = log.base_offset_of(replay_from - 1)
        for header, batch in log.replay(replay_from):
            control = decode_control(batch, header) if header.is_control else None
            self._index_if_aborted(log, machine.apply(header, control))
        machine.advance_log_start(log.log_start_offset)
        point = log.sync_point()
        point.run()
        log.mark_synced(point)
        self._synced_offset = point.log_end_offset
        self._log = log

    def _claim_directory(self) -> None:
        """Make sure that the files are those of this topic, not of a deleted one of its name."""
        filesystem, directory = self._filesystem, self.config.directory
        path = directory / METADATA_FILE
        claim = f"version: 0\ntopic_id: {self.leadership.topic_id}\n".encode()
        if filesystem.exists(path) and filesystem.read_whole(path) != claim:
            _logger.warning("%s: removing the log of a deleted topic of this name", directory)
            self.log.close(None)
            for name in filesystem.list_directory(directory):
                if name != LOCK_FILE:
                    filesystem.remove(directory / name)
            self._open()
        if not filesystem.exists(path):
            filesystem.write_atomically(path, claim)

    async def _leadership(self) -> BecomeLeaderReply:
        last_epoch = self.log.leader_epochs[-1][0] if self.log.leader_epochs else -1
        delay_ms = LOCK_RETRY_MS
        while True:
            reply = await self._epoch_source(last_epoch)
            if reply.error is ErrorCode.NONE:
                return reply
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(2 * delay_ms, 1_000)

    async def stop(self, *, remove_data: bool = False) -> None:
        """Stop leading, flush, write the snapshot and the clean-shutdown mark, release the lock.

        ``remove_data`` deletes the directory afterwards: its topic is gone.
        """
        self._is_leading = False
        self._waiters.send_away(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._sync_task is not None:
            await self._sync_task
        if self._log is not None:
            log, self._log = self._log, None
            try:
                log.close(self.machine.snapshot() if self.failure is None else None)
                if remove_data:
                    self._filesystem.remove_tree(self.config.directory)
            except OSError as error:
                self._go_offline(f"cannot close {self.config.directory}: {error}")
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _go_offline(self, reason: str) -> None:
        _logger.error("%s is offline: %s", self.topic_partition, reason)
        self.failure = reason
        self._is_leading = False
        self._waiters.send_away(ErrorCode.KAFKA_STORAGE_ERROR)

    # --- append ---------------------------------------------------------------------------

    def append(
        self,
        records: Sequence[LogRecord],
        *,
        now_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        transactional_id: str | None = None,
        ticket: bytes | None = None,
    ) -> AppendOutcome:
        """Append records of a coordinator as one batch; transactional iff it names a producer.

        In the log, not yet durable, on return: wait with ``committed``.
        """
        error = self.availability()
        if error is not ErrorCode.NONE:
            return AppendOutcome(error=error)
        batch = encode_records(
            [(record.key, record.value, now_ms, ()) for record in records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=producer_id != NO_PRODUCER_ID,
        )
        header = parse_header(batch)
        verdict = self.machine.decide_append(
            header,
            origin=AppendOrigin.COORDINATOR,
            transactional_id=transactional_id,
            ticket=ticket,
            now_ms=now_ms,
        )
        if verdict.error is not ErrorCode.NONE:
            return AppendOutcome(error=verdict.error)
        return self.write(batch, header, None)

    def append_marker(
        self, marker: TxnMarker, coordinator_epoch: int, now_ms: int
    ) -> AppendOutcome:
        """Append the verdict on one producer's transaction (KIP-98, strict epochs of KIP-890)."""
        error = self.availability()
        if error is ErrorCode.NONE:
            error = self.machine.decide_marker(
                marker.producer_id, marker.producer_epoch, coordinator_epoch
            )
        if error is not ErrorCode.NONE:
            return AppendOutcome(error=error)
        batch = encode_marker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            committed=marker.committed,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=now_ms,
        )
        control = ControlRecord(committed=marker.committed, coordinator_epoch=coordinator_epoch)
        return self.write(batch, parse_header(batch), control)

    def write(
        self, batch: Buffer, header: BatchHeader, control: ControlRecord | None
    ) -> AppendOutcome:
        """Give a checked batch its offset, write it, apply it and ask for a sync. Never waits.

        ``batch`` is not changed: its bytes go to the disk as they are, but for what a leader sets.

        A full disk refuses the batch and leaves the replica as it was; any other error of the
        disk takes it offline.
        """
        log, machine = self.log, self.machine
        base_offset = machine.log_end_offset
        header = header.with_offset(base_offset, self.leader_epoch)
        try:
            if log.needs_roll(
                len(batch),
                header.max_timestamp_ms,
                self._clock.now_ms(),
                last_offset_delta=header.last_offset_delta,
            ):
                log.roll(machine.snapshot())
            log.append(batch, header)
            self._index_if_aborted(log, machine.apply(header, control))
        except OSError as error:
            if log.failure is not None:
                self._go_offline(f"cannot write to {self.config.directory}: {error}")
            return AppendOutcome(error=ErrorCode.KAFKA_STORAGE_ERROR)
        self._request_sync()
        return AppendOutcome(
            error=ErrorCode.NONE, base_offset=base_offset, next_offset=header.next_offset
        )

    @staticmethod
    def _index_if_aborted(log: PartitionLog, completed: CompletedTransaction | None) -> None:
        if completed is not None and completed.is_aborted:
            log.append_aborted(
                producer_id=completed.producer_id,
                first_offset=completed.first_offset,
                last_offset=completed.last_offset,
                last_stable_offset=completed.last_stable_offset,
            )

    # --- group sync -----------------------------------------------------------------------

    async def committed(self, next_offset: int) -> ErrorCode:
        """Wait until everything below ``next_offset`` is durable on every in-sync replica.

        Anything but ``NONE`` means that the outcome is unknown to this replica.
        """
        if self.machine.high_watermark >= next_offset:
            return ErrorCode.NONE
        error = self.availability()
        if error is not ErrorCode.NONE:
            return error
        return await self._waiters.committed(next_offset)

    async def progress(self, timeout_ms: int) -> None:
        """Wait until a reader may see more than now, the role changes or the time is over."""
        await self._waiters.progress(timeout_ms)

    def _request_sync(self) -> None:
        if self.topic.flush == "os":
            # The sync goes on behind, so that a restart has little to scan; nobody waits for it.
            self.machine.advance_high_watermark(self.machine.log_end_offset)
            self._waiters.release(self.machine.high_watermark)
        if self._sync_task is None:
            self._sync_task = asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self) -> None:
        """Sync until nothing is unsynced: appends made meanwhile share the next round."""
        try:
            while self._synced_offset < self.machine.log_end_offset:
                point = self.log.sync_point()
                await self._background.run(point.run)
                if self.failure is not None:
                    return
                self.log.mark_synced(point)
                self._synced_offset = point.log_end_offset
                self.machine.advance_high_watermark(point.log_end_offset)
                self._waiters.release(self.machine.high_watermark)
        except OSError as error:
            self._go_offline(f"cannot sync {self.config.directory}: {error}")
        finally:
            self._sync_task = None

    async def sync_all(self) -> ErrorCode:
        """Make all that is unsynced now durable, the checkpoint included, and wait for it."""
        error = self.availability()
        if error is not ErrorCode.NONE:
            return error
        log = self.log
        try:
            log.note_checkpoint()
            point = log.sync_point()
            await self._background.run(point.run)
            if self._log is not log:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            log.mark_synced(point)
        except OSError as error:
            self._go_offline(f"cannot sync {self.config.directory}: {error}")
        return self.availability()

    def advance_log_start(self, offset: int) -> bool:
        """Hide what lies below ``offset`` from readers; durable after ``sync_all``.

        At most the recovery point. Returns whether the log start moved.
        """
        try:
            if not self.log.advance_log_start(offset):
                return False
        except OSError as error:
            self._go_offline(f"cannot write to {self.config.directory}: {error}")
            return False
        self.machine.advance_log_start(offset)
        # The last stable offset may have risen over a transaction that lost its head.
        self._waiters.wake_readers()
        return True

    def check_log(self) -> None:
        """Go offline if the log went: work beside appends has met an error of the disk."""
        if self._log is not None and self._log.failure is not None and self.failure is None:
            self._go_offline(f"cannot use {self.config.directory}: {self._log.failure}")

    async def run_beside(self, work: Callable[[], ResultT]) -> ResultT:
        """Run work with files beside the event loop; its result and its errors are the caller's."""
        return await self._background.run(work)

    # --- reload ---------------------------------------------------------------------------

    def replay(self) -> Iterator[ReplayedBatch]:
        """Read the whole log back, decoded, in offset order: how a coordinator loads."""
        for header, batch in self.log.replay(self.log.log_start_offset):
            if header.is_control:
                yield ReplayedBatch(
                    header=header, records=(), control=decode_control(batch, header)
                )
            else:
                yield ReplayedBatch(
                    header=header, records=decode_records(batch, header), control=None
                )


def _log_settings(topic: TopicConfig) -> LogSettings:
    return LogSettings(
        segment_bytes=topic.segment_bytes,
        segment_ms=topic.segment_ms,
        index_interval_bytes=topic.index_interval_bytes,
    )
