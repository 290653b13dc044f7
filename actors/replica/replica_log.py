"""A log and its machine in the leader role: append, wait until durable, read back.

Rules: a batch is checked, written and applied in one turn of the event loop, without a wait. The
high watermark, and so every acknowledgement and every read, covers only what is on disk: see
``group_sync``. A failed write or sync takes the replica offline, since it is unknown what reached
the disk, unless the error is transient (``storage.disk.disk_errors``). ``replica`` has start and
stop.

One file: appends, their waiters and the readers depend on one order of events.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
from bisect import insort
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from oncelog.actors.config import ReplicaConfig, TopicConfig
from oncelog.actors.interfaces import Background, ResultT
from oncelog.actors.process.background import resolve_future
from oncelog.actors.process.clock import loop_ms, monotonic_s
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.partition import TxnMarker
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.actors.replica.group_sync import DiskRefusal, GroupSync
from oncelog.actors.replica.observations import FoundDamage, ReplicaCounters
from oncelog.actors.replica.opening import (
    ReplayedBatch,
    ReplicaDirectory,
    index_if_aborted,
    read_back,
)
from oncelog.actors.replica.replicator import Replicator
from oncelog.storage.disk.disk_errors import is_transient
from oncelog.storage.errors import ErrorCode
from oncelog.storage.log.partition import PartitionLog
from oncelog.storage.model import (
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    AppendOrigin,
    TopicPartition,
)
from oncelog.storage.records.batch import BatchHeader, Buffer, parse_header
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.control import ControlRecord, encode_marker

_logger = logging.getLogger(__name__)

REPLAY_SLICE_BYTES: Final = 65_536
"""Bytes decoded in one turn of the event loop: some milliseconds."""

_NEXT_OFFSET: Final = itemgetter(0)


class AppendOutcome(NamedTuple):
    """The result of an append; with an error nothing was written. A tuple, for speed."""

    error: ErrorCode
    base_offset: int = NO_OFFSET
    next_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    is_duplicate: bool = False
    """Whether the batch was in the log already; the outcome is that of the original."""
    is_ticket_old: bool = False
    """Whether the producer should renew its plain ticket."""


class ReplicaLog:
    """The log of one partition, its machine, and those who wait for it.

    ``failure`` says why it is offline. Opening the log sets ``_log``, ``_is_leading`` and
    ``leadership``.
    """

    directory: ReplicaDirectory

    def __init__(
        self, *, config: ReplicaConfig, background: Background, events: ReplicaEvents
    ) -> None:
        self.config = config
        self.events = events
        self.topic_partition = TopicPartition(config.topic, config.partition)
        self.machine = PartitionMachine(self.topic_partition)
        self.topic = TopicConfig()
        self.leadership = BecomeLeaderReply()
        self.failure: str | None = None
        self.damage = FoundDamage(self.topic_partition)
        self.refusal = DiskRefusal()
        self.counters = ReplicaCounters()
        self.restarts_itself = False
        self._background = background
        self._log: PartitionLog | None = None
        self._is_leading = False
        self._waiters = ReplicaWaiters()
        self._sync_waiters = ReplicaWaiters()
        """Pushes that wait for a sync before they are answered."""
        self.replicator: Replicator | None = None
        """The replication to its followers, while it leads."""
        self._synced_offset = 0
        """Exclusive."""
        self._sync = GroupSync(
            machine=self.machine,
            background=background,
            log=self,
            events=events,
            durations=self.counters.sync_durations,
            refusal=self.refusal,
        )

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
        """``NONE`` if this replica leads, else the error to answer requests with."""
        if self.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE if self._is_leading else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def upkeep_error(self) -> ErrorCode:
        """``NONE`` if maintenance may work on the log, in any role."""
        return self.availability()

    def _go_offline(self, reason: str) -> None:
        _logger.error("%s is offline: %s", self.topic_partition, reason)
        self.failure = reason
        self._end_leading(ErrorCode.KAFKA_STORAGE_ERROR)

    def _end_leading(self, error: ErrorCode) -> None:
        """Stop leading; answer all waiters with ``error``."""
        self._is_leading = False
        if self.replicator is not None:
            self.replicator.stop()
            self.replicator = None
        self._waiters.fail_all(error)
        self._sync_waiters.fail_all(error)

    def _on_disk_failure(self, doing: str, error: OSError) -> None:
        """Go offline after a disk error; request a restart if that can help."""
        if self.failure is not None:
            return
        self._go_offline(f"cannot {doing} {self.directory.path}: {error}")
        if is_transient(error):
            self.restarts_itself = True
            self.events.restart_later(f"cannot {doing} {self.directory.path}: {error}")

    def _on_disk_refusal(self, doing: str, error: OSError) -> None:
        """Log a disk error of work that is retried; give up only if the log is offline."""
        if self._log is None or self._log.failure is not None or not is_transient(error):
            self._on_disk_failure(doing, error)
        else:
            _logger.warning(
                "%s: cannot %s %s: %s", self.topic_partition, doing, self.directory.path, error
            )

    # --- append ---------------------------------------------------------------------------

    def check_append(self) -> ErrorCode:
        """Whether a batch with acks -1 may be appended now; see ``availability``.

        ``NOT_ENOUGH_REPLICAS``: fewer replicas are in sync than ``min_insync_replicas``.
        """
        error = self.availability()
        if error is ErrorCode.NONE and self.replicator is not None:
            return self.replicator.replication.check_append()
        return error

    def append(
        self,
        records: Sequence[LogRecord],
        *,
        now_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional_id: str | None = None,
        ticket: bytes | None = None,
        is_awaited: bool = True,
    ) -> AppendOutcome:
        """Append records of a coordinator as one batch; transactional if it has a producer id.

        On return it is in the log and not yet durable: wait with ``committed``, or pass
        ``is_awaited`` false. With a sequence, a duplicate is not appended again.
        """
        error = self.check_append()
        if error is not ErrorCode.NONE:
            return AppendOutcome(error=error)
        batch = encode_records(
            [(record.key, record.value, now_ms, ()) for record in records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
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
        if verdict.needs_keys:
            self.events.refresh_keys_soon()
        if verdict.error is not ErrorCode.NONE:
            return AppendOutcome(error=verdict.error)
        if verdict.duplicate_base_offset is not None:
            return AppendOutcome(
                error=ErrorCode.NONE,
                base_offset=verdict.duplicate_base_offset,
                next_offset=verdict.duplicate_next_offset,
                is_duplicate=True,
            )
        return self.write(batch, header, None, now_ms=now_ms, is_awaited=is_awaited)

    def append_marker(
        self, marker: TxnMarker, coordinator_epoch: int, now_ms: int
    ) -> AppendOutcome:
        """Append the marker of one producer's transaction (KIP-98, strict epochs of KIP-890)."""
        error = self.check_append()
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
        return self.write(batch, parse_header(batch), control, now_ms=now_ms)

    def write(
        self,
        batch: Buffer,
        header: BatchHeader,
        control: ControlRecord | None,
        *,
        now_ms: int,
        is_awaited: bool = True,
    ) -> AppendOutcome:
        """Assign a checked batch its offset, write it, apply it and request a sync. Never waits.

        ``batch`` is not changed: its bytes are written as they are, except for what a leader
        assigns.

        A transient disk error, such as a full disk, rejects the batch and leaves the replica as it
        was; any other takes it offline.
        """
        log, machine = self._log or self.log, self.machine
        base_offset = machine.log_end_offset
        header = header.with_offset(base_offset, self.leadership.leader_epoch)
        try:
            self._roll_if_needed(len(batch), header, now_ms)
            log.append(batch, header)
            completed = machine.apply(header, control)
            if completed is not None:
                index_if_aborted(log, completed)
        except OSError as error:
            if log.failure is not None:
                self._on_disk_failure("write to", error)
            else:
                self.refusal.record(error, ends_at=base_offset + 1, now_ms=loop_ms())
            return AppendOutcome(error=ErrorCode.KAFKA_STORAGE_ERROR)
        if self.replicator is not None:
            self.replicator.appended()
        counters = self.counters
        counters.appended_bytes += len(batch)
        counters.appended_records += header.record_count
        if is_awaited:
            self._sync.request(
                log,
                len(batch),
                is_awaited=self.topic.flush != "os",
                is_pushed=self.replicator is not None and self.replicator.is_pushing,
            )
        else:
            self._sync.request_later(log, len(batch))
        return AppendOutcome(ErrorCode.NONE, base_offset, log.log_end_offset)

    def _roll_if_needed(self, size_bytes: int, header: BatchHeader, now_ms: int) -> None:
        """Begin a new segment for a batch that the active one cannot take. OSError."""
        log = self.log
        # On a follower the batch may begin beyond the log end: compaction has left a gap.
        delta = header.base_offset + header.last_offset_delta - log.log_end_offset
        if log.needs_roll(size_bytes, header.max_timestamp_ms, now_ms, last_offset_delta=delta):
            log.roll(self.machine.snapshot())

    # --- group sync -----------------------------------------------------------------------

    def synced(self, offset: int) -> None:
        """Everything below ``offset`` (exclusive) is synced."""
        self._synced_offset = max(self._synced_offset, offset)
        self._sync_waiters.release(offset)
        if self.replicator is not None:
            self.replicator.synced(offset)

    def sync_failed(self, error: OSError) -> None:
        """Go offline: a sync has failed."""
        self._on_disk_failure("sync", error)

    def high_watermark_rose(self) -> None:
        """Answer waiters and wake readers."""
        high_watermark = self.machine.high_watermark
        if self._log is not None:
            self._log.high_watermark = high_watermark
        self._waiters.release(high_watermark)
        if self._has_too_few():
            self._waiters.fail_impatient_waiters(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def _has_too_few(self) -> bool:
        return self.replicator is not None and self.replicator.replication.has_too_few

    def committed(self, next_offset: int) -> asyncio.Future[ErrorCode]:
        """Wait until everything below ``next_offset`` is durable on every in-sync replica.

        ``NOT_ENOUGH_REPLICAS_AFTER_APPEND``: fewer replicas are in sync now than
        ``min_insync_replicas``; the batch is in the log, and a retry is recognised. With any other
        error the outcome is unknown.
        """
        waiter: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        done = functools.partial(resolve_future, waiter)
        error = self.availability()
        if self.machine.high_watermark >= next_offset:
            done(ErrorCode.NONE)
        elif error is ErrorCode.NONE and self._has_too_few():
            done(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        elif error is not ErrorCode.NONE:
            done(error)
        else:
            self._waiters.when_committed(next_offset, done, is_patient=False)
        return waiter

    def when_committed(self, next_offset: int, done: Callable[[ErrorCode], None]) -> None:
        """Like ``committed``, but call ``done``, in the same turn in which the outcome is known.

        It waits as long as this replica leads: coordinators cannot retry a record that may be in
        the log already.
        """
        if self.machine.high_watermark >= next_offset:
            done(ErrorCode.NONE)
            return
        error = self.availability()
        if error is not ErrorCode.NONE:
            done(error)
        else:
            self._waiters.when_committed(next_offset, done)

    async def all_committed(self) -> ErrorCode:
        """Wait, as long as this replica leads, until all that is in the log now is committed.

        Records that its predecessor appended and did not commit may be lost with this leader. So
        nothing may be done or answered based on them before.
        """
        waiter: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.when_committed(self.machine.log_end_offset, functools.partial(resolve_future, waiter))
        error = await waiter
        return error if error is not ErrorCode.NONE else self.availability()

    async def progress(self, timeout_ms: int) -> None:
        """Wait until a reader can see more, the role changes, or the time is over."""
        await self._waiters.progress(timeout_ms)

    async def sync_all(self) -> ErrorCode:
        """Make all that is unsynced now durable, the checkpoint included, and wait for it.

        ``KAFKA_STORAGE_ERROR`` also for a transient error: then the replica still serves.
        """
        error = self.upkeep_error()
        if error is not ErrorCode.NONE:
            return error
        log = self.log
        try:
            log.record_checkpoint()
            point = log.sync_point()
            began_s = monotonic_s()
            await self._background.run(point.run)
            self.counters.sync_durations.observe(1_000 * (monotonic_s() - began_s))
            if self._log is not log:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            log.mark_synced(point)
        except OSError as failure:
            self._on_disk_refusal("sync", failure)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return self.upkeep_error()

    async def raise_log_start(self, offset: int) -> ErrorCode:
        """Hide what lies below ``offset`` (at most what is synced), durably on ``NONE``.

        An offset below the log start changes nothing. Producers are not forgotten.
        """
        if offset > self.log.recovery_point:
            # Only with ``flush="os"``: readers may be ahead of the disk, the log start may not.
            error = await self.sync_all()
            if error is not ErrorCode.NONE:
                return error
        error = self.advance_log_start(offset)
        return error if error is not ErrorCode.NONE else await self.sync_all()

    def advance_log_start(self, offset: int) -> ErrorCode:
        """Hide what lies below ``offset`` from readers; durable after ``sync_all``.

        At most the recovery point; an offset below the log start changes nothing. On an error
        nothing has changed.
        """
        try:
            if not self.log.advance_log_start(offset):
                return ErrorCode.NONE
        except OSError as error:
            self._on_disk_refusal("write to", error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.machine.advance_log_start(offset)
        # The last stable offset may have risen: a transaction may have lost its first batches.
        self._waiters.wake_readers()
        return ErrorCode.NONE

    def check_ends(self) -> None:
        """Check I-26: machine and log end at the same offset."""
        machine_end, log_end = self.machine.log_end_offset, self.log.log_end_offset
        invariant(
            machine_end == log_end,
            "I-26",
            f"{self.topic_partition}: the machine ends at {machine_end}, the log at {log_end}",
        )

    def check_log(self) -> None:
        """Go offline if the log is: background work has met a disk error."""
        if self._log is not None and self._log.failure is not None and self.failure is None:
            self._on_disk_failure("use", self._log.failure)

    async def run_in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """Run file work beside the event loop; return its result or raise its error."""
        return await self._background.run(work)

    # --- reload ---------------------------------------------------------------------------

    def replay(self) -> Iterator[ReplayedBatch]:
        """Read the whole log back, decoded, in offset order: how a coordinator loads."""
        return read_back(self.log)

    async def replay_in_slices(self) -> AsyncIterator[ReplayedBatch]:
        """Like ``replay``, but yields to the event loop in between.

        The log must not be cut meanwhile. OSError if the replica goes offline or stops.
        """
        size_bytes, log = 0, self._log
        for batch in self.replay():
            yield batch
            size_bytes += batch.header.size_bytes
            if size_bytes >= REPLAY_SLICE_BYTES:
                size_bytes = 0
                await asyncio.sleep(0)
                if self._log is not log or self.failure is not None:
                    raise OSError(errno.EBADF, "the log is closed")


class ReplicaWaiters:
    """The waiters of one replica: appends for the high watermark, readers for something new.

    It belongs to one event loop.
    """

    def __init__(self) -> None:
        self._commits: deque[tuple[int, Callable[[ErrorCode], None], bool]] = deque()
        """Sorted by offset, then by arrival."""
        self._readers: dict[asyncio.Future[None], None] = {}
        """A dict, so that they are woken in order of arrival."""

    def when_committed(
        self, next_offset: int, done: Callable[[ErrorCode], None], *, is_patient: bool = True
    ) -> None:
        """Call ``done`` when ``release`` reaches ``next_offset``, or on ``fail_all``.

        Unless ``is_patient``, also on ``fail_impatient_waiters``.
        """
        commits, waiter = self._commits, (next_offset, done, is_patient)
        if commits and next_offset < commits[-1][0]:
            # A retry of a batch that is in the log already; all others arrive in order.
            insort(commits, waiter, key=_NEXT_OFFSET)
        else:
            commits.append(waiter)

    async def progress(self, timeout_ms: int) -> None:
        """Wait for ``wake_readers``, or until the time is over."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers[waiter] = None
        try:
            await asyncio.wait({waiter}, timeout=timeout_ms / 1000)
        finally:
            self._readers.pop(waiter, None)

    def release(self, high_watermark: int) -> None:
        """Answer the appends that the high watermark covers now, and wake all readers."""
        none = ErrorCode.NONE
        # Looked up each time: an answer may call ``fail_all``, which empties it.
        while self._commits and self._commits[0][0] <= high_watermark:
            self._commits.popleft()[1](none)
        if self._readers:
            self.wake_readers()

    def fail_all(self, error: ErrorCode) -> None:
        """Answer every append with ``error``, and wake all readers."""
        failed, self._commits = self._commits, deque()
        for _, done, _ in failed:
            done(error)
        self.wake_readers()

    def fail_impatient_waiters(self, error: ErrorCode) -> None:
        """Answer the appends of callers that would rather retry than wait."""
        commits, self._commits = self._commits, deque()
        self._commits.extend(waiter for waiter in commits if waiter[2])
        for _, done, is_patient in commits:
            if not is_patient:
                done(error)

    def wake_readers(self) -> None:
        """Let every reader look again."""
        readers, self._readers = self._readers, {}
        for waiter in readers:
            if not waiter.done():
                waiter.set_result(None)
