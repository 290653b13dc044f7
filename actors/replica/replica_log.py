"""A log and its machine: append, wait until durable, cut, read back.

Rules: a batch is checked, written and applied in one turn of the event loop, without a wait. The
high watermark, and so every acknowledgement and every read, covers only what is on disk: see
``group_sync``. A failed write or sync takes the replica offline, since it is unknown what reached
the disk, unless the error is transient (``storage.disk.disk_errors``). ``replica`` has start and
stop, and ``ReplicaRole`` what a kind of log adds.

One file: appends, cuts, their waiters and the readers depend on one order of events.
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
from oncelog.actors.process.background import resolve_future, wait_until_done
from oncelog.actors.process.clock import loop_ms, monotonic_s
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.partition import TxnMarker
from oncelog.actors.protocol.partition.following import ReplicateVerdict
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.protocol.partition.replication import (
    LeaderReplication,
    PartitionAssignment,
    ReplicationSettings,
)
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
from oncelog.storage.records.batch import BatchHeader, Buffer, iterate_batches, parse_header
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.control import ControlRecord, decode_control, encode_marker

_logger = logging.getLogger(__name__)

NOT_NOW: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER
"""The answer to a push while the replica does not follow."""

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


class ReplicaRole:
    """What a kind of log adds to leading and following; these defaults are a partition's."""

    def replication(self, log: ReplicaLog, settings: ReplicationSettings) -> LeaderReplication:
        """Replication to followers, in the epoch in which ``log`` begins to lead."""
        broker_id = log.config.broker_id
        assignment = assignment_of(log.leadership, broker_id)
        return LeaderReplication(
            log.machine,
            assignment,
            broker_id=broker_id,
            synced_end_offset=log.synced_offset,
            settings=settings,
            # The time matters only for followers.
            now_ms=loop_ms() if len(assignment.replicas) > 1 else 0,
        )

    def appended(self, records: Sequence[LogRecord]) -> None:
        """A leader has appended records of a coordinator."""

    def follows(self) -> None:
        """The replica follows from now on."""

    def pushed(self, batches: memoryview) -> None:
        """A follower has appended these batches, or those before a failed one."""

    def cut_begins(self) -> None:
        """A follower is about to cut its log."""

    async def cut_ended(self) -> None:
        """A follower has cut its log. OSError, CorruptDataError: it takes no push."""


class ReplicaLog:
    """The log of one partition, its machine, and those who wait for it.

    ``failure`` says why it is offline. Opening the log sets ``_log``, ``_is_leading`` and
    ``leadership``.
    """

    directory: ReplicaDirectory
    role: ReplicaRole

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
        self.is_cutting = False
        self._waiters = ReplicaWaiters()
        self._sync_waiters = ReplicaWaiters()
        """Pushes that wait for a sync before they are answered."""
        self.replicator: Replicator | None = None
        """The replication to its followers, while it leads."""
        self.synced_offset = 0
        """Exclusive."""
        self._kept_log_start = 0
        """The log start that is durable; one found at start may be only in the page cache."""
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

    def go_offline(self, reason: str) -> None:
        """Accept nothing from now on, as the log is not what it should be; answer all waiters."""
        _logger.error(
            "%s is offline: %s — repair what it names, then end this process if `oncelog status` "
            "still shows it offline",
            *(self.topic_partition, reason),
        )
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

    def disk_failed(self, doing: str, error: OSError) -> None:
        """Go offline after a disk error; request a restart if that can help."""
        if self.failure is not None:
            return
        self.go_offline(f"cannot {doing} {self.directory.path}: {error}")
        if is_transient(error):
            self.restarts_itself = True
            self.events.restart_later(f"cannot {doing} {self.directory.path}: {error}")

    def disk_refused(self, doing: str, error: OSError) -> None:
        """Log a disk error of work that is retried; give up only if the log is offline."""
        if self._log is None or self._log.failure is not None or not is_transient(error):
            self.disk_failed(doing, error)
        else:
            _logger.warning(
                "%s: cannot %s %s: %s — make room on its disk; it is tried again",
                *(self.topic_partition, doing, self.directory.path, error),
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
        outcome = self.write(batch, header, None, now_ms=now_ms, is_awaited=is_awaited)
        if outcome.error is ErrorCode.NONE:
            self.role.appended(records)
        return outcome

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
                self.disk_failed("write to", error)
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

    # --- pushes of a leader ---------------------------------------------------------------

    def append_pushed(self, batches: memoryview) -> None:
        """Append whole batches as they are. OSError: those before the failed one are appended."""
        size_bytes = 0
        try:
            for position, header in iterate_batches(batches):
                batch = batches[position : position + header.size_bytes]
                self._roll_if_needed(len(batch), header, header.max_timestamp_ms)
                self.log.append_as_is(batch, header)
                control = decode_control(batch, header) if header.is_control else None
                index_if_aborted(self.log, self.machine.apply(header, control))
                size_bytes += len(batch)
        finally:
            if size_bytes:
                self.counters.replicated_bytes += size_bytes
                self._sync.request(self.log, size_bytes, is_awaited=self.topic.flush != "os")

    async def cut(self, verdict: ReplicateVerdict) -> None:
        """Cut the log and rebuild the machine from what is left, durably.

        OSError: the replica is offline until it has restarted.
        """
        log, epoch = self.log, self.machine.leader_epoch
        _logger.info(
            "%s cuts its log at %d, which ended at %d: it conflicts with the leader's",
            self.topic_partition,
            max(verdict.restart_offset, verdict.truncate_offset),
            log.log_end_offset,
        )
        self.counters.follower_cuts += 1

        def cut() -> None:
            if verdict.restart_offset != NO_OFFSET:
                log.restart_at(verdict.restart_offset)
            if verdict.truncate_offset != NO_OFFSET:
                log.truncate_to(verdict.truncate_offset)
            self.directory.rebuild(log)

        self.is_cutting = True
        try:
            await self._sync.drain()
            self.refuse_pushes()
            # Nothing counts as synced until the cut is done.
            self.synced_offset = self._kept_log_start = 0
            await self.run_in_thread(cut)
        except OSError as error:
            # Log and machine may differ now: only a restart makes them equal again.
            self.disk_failed("cut", error)
            raise
        finally:
            self.is_cutting = False
        if self._log is log:
            self.machine.become_follower(epoch)
            self._sync.begin(log)

    async def until_synced(self, offset: int) -> ErrorCode:
        """Wait until everything below ``offset`` (exclusive) is synced."""
        if self.synced_offset >= offset:
            return ErrorCode.NONE
        waiter: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._sync_waiters.when_committed(offset, lambda error: resolve_future(waiter, error))
        return await waiter

    async def keep_bounds(self) -> ErrorCode:
        """Keep the leader's log start and high watermark for the next start.

        On ``NONE`` the log start is durable: records count as deleted once all in-sync replicas
        hide them, and none of these may lead with a lower log start after a power loss.
        """
        self.log.high_watermark = self.machine.high_watermark
        log_start_offset = self.machine.log_start_offset
        if log_start_offset <= self._kept_log_start:
            return ErrorCode.NONE
        error = await self.raise_log_start(log_start_offset)
        if error is ErrorCode.NONE and self.log.log_start_offset >= log_start_offset:
            self._kept_log_start = max(self._kept_log_start, log_start_offset)
        return error

    def refuse_pushes(self) -> None:
        """Answer the pushes that wait for a sync: this replica does not follow now."""
        self._sync_waiters.fail_all(NOT_NOW)

    # --- group sync -----------------------------------------------------------------------

    def synced(self, offset: int) -> None:
        """Everything below ``offset`` (exclusive) is synced."""
        self.synced_offset = max(self.synced_offset, offset)
        self._sync_waiters.release(offset)
        if self.replicator is not None:
            self.replicator.synced(offset)

    def sync_failed(self, error: OSError) -> None:
        """Go offline: a sync has failed."""
        self.disk_failed("sync", error)

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

    @property
    def has_readers(self) -> bool:
        """Whether anybody waits in ``progress``."""
        return self._waiters.has_readers

    def wake_readers(self) -> None:
        """Let all who wait in ``progress`` look again."""
        self._waiters.wake_readers()

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
            self.disk_refused("sync", failure)
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
            self.disk_refused("write to", error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.machine.advance_log_start(offset)
        # The last stable offset may have risen: a transaction may have lost its first batches.
        self.wake_readers()
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
            self.disk_failed("use", self._log.failure)

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


def assignment_of(leadership: BecomeLeaderReply, broker_id: int) -> PartitionAssignment:
    """What ``leadership`` says of replicas; the only one is that of ``broker_id``."""
    return PartitionAssignment(
        leader_epoch=leadership.leader_epoch,
        partition_version=leadership.partition_version,
        replicas=leadership.replicas or (broker_id,),
        isr=leadership.isr or (broker_id,),
    )


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
            await wait_until_done(waiter, timeout_ms / 1000)
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

    @property
    def has_readers(self) -> bool:
        """Whether a reader waits."""
        return bool(self._readers)

    def wake_readers(self) -> None:
        """Let every reader look again."""
        readers, self._readers = self._readers, {}
        for waiter in readers:
            if not waiter.done():
                waiter.set_result(None)
