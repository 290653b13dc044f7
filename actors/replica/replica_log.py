"""One log and its machine in the leader role: append, wait until it is durable, read it back.

Rules: a batch is checked, written and applied in one turn of the event loop, with no wait in
between. The high watermark, and so every acknowledgement and every reader, covers only what is on
disk: see ``group_sync``. A failed write or sync takes the replica offline, unless it may pass by
itself (``storage.disk.disk_errors``): there is no guessing what reached the disk. ``replica`` has
how it comes to lead and how it stops.

One file: an append, those who wait for it, and what a reader then sees are one order of events.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
from bisect import insort
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from oncelog.actors.config import ReplicaConfig, TopicConfig
from oncelog.actors.interfaces import Background, ResultT
from oncelog.actors.process.background import resolve_future
from oncelog.actors.process.clock import loop_ms, monotonic_s
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.cluster import AlterIsrReply, BecomeLeaderReply
from oncelog.actors.protocol.messages.partition import TxnMarker
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.followers import IsrProposal
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
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
"""Of the log, decoded in one turn of the event loop: some milliseconds' worth."""

SendPush = Callable[[int, ReplicateRequest], Awaitable[ReplicateReply]]
"""Pushes to the follower on a broker."""

ProposeIsr = Callable[[IsrProposal], Awaitable[AlterIsrReply]]

_NEXT_OFFSET: Final = itemgetter(0)


class AppendOutcome(NamedTuple):
    """Where a batch stands; with an error nothing was written. A tuple: one is made per append."""

    error: ErrorCode
    base_offset: int = NO_OFFSET
    next_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    is_duplicate: bool = False
    """The batch was in the log already: its first copy has the outcome."""
    is_ticket_old: bool = False
    """Its producer should renew its plain ticket."""


class ReplicaLog:
    """The log of one partition and everything that is known about it.

    ``failure`` says why it is offline. ``on_bug`` ends the process; ``on_restart`` too, when the
    replica is offline for something that may pass, and ``on_loss`` when another leads.
    ``send_push`` and ``propose_isr`` make calls, and never raise for one that is lost. Opening the
    log sets ``_log``, ``_is_leading`` and ``leadership``.
    """

    directory: ReplicaDirectory

    def __init__(self, *, config: ReplicaConfig, background: Background) -> None:
        self.config = config
        self.topic_partition = TopicPartition(config.topic, config.partition)
        self.machine = PartitionMachine(self.topic_partition)
        self.topic = TopicConfig()
        self.leadership = BecomeLeaderReply()
        self.failure: str | None = None
        self.damage = FoundDamage(self.topic_partition)
        self.refusal = DiskRefusal()
        self.counters = ReplicaCounters()
        self.on_newer_keys: Callable[[], None] = lambda: None
        self.on_newer_settings: Callable[[], None] = lambda: None
        self.on_bug: Callable[[BaseException], None] = _raise
        self.on_restart: Callable[[str], None] = lambda _reason: None
        self.on_loss: Callable[[str], None] = lambda _reason: None
        self.on_following: Callable[[], None] = lambda: None
        self.send_push: SendPush = _refuse_push
        self.propose_isr: ProposeIsr = _change_nothing
        self.restarts_itself = False
        self._background = background
        self._log: PartitionLog | None = None
        self._is_leading = False
        self._waiters = ReplicaWaiters()
        self._sync_waiters = ReplicaWaiters()
        """Pushes that are answered once they are synced."""
        self.replicator: Replicator | None = None
        """What it does for its followers, while it leads."""
        self._synced_offset = 0
        """Exclusive."""
        self._sync = GroupSync(
            machine=self.machine,
            background=background,
            on_synced=self._on_synced,
            durations=self.counters.sync_durations,
            refusal=self.refusal,
            on_failure=functools.partial(self._on_disk_failure, "sync"),
            on_bug=lambda bug: self.on_bug(bug),
            is_offline=lambda: self.failure is not None,
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
        """``NONE`` when this replica leads, else what to answer requests with."""
        if self.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE if self._is_leading else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def upkeep_error(self) -> ErrorCode:
        """``NONE`` when the log may be worked on beside serving, whatever the role."""
        return self.availability()

    def _go_offline(self, reason: str) -> None:
        _logger.error("%s is offline: %s", self.topic_partition, reason)
        self.failure = reason
        self._end_leading(ErrorCode.KAFKA_STORAGE_ERROR)

    def _end_leading(self, error: ErrorCode) -> None:
        """Lead no longer; whoever waits is answered with ``error``."""
        self._is_leading = False
        if self.replicator is not None:
            self.replicator.stop()
            self.replicator = None
        self._waiters.fail_all(error)
        self._sync_waiters.fail_all(error)

    def _on_disk_failure(self, doing: str, error: OSError) -> None:
        """Go offline for an error of the disk: until a restart, which it asks for if that helps."""
        if self.failure is not None:
            return
        self._go_offline(f"cannot {doing} {self.directory.path}: {error}")
        if is_transient(error):
            self.restarts_itself = True
            self.on_restart(f"cannot {doing} {self.directory.path}: {error}")

    def _on_disk_refusal(self, doing: str, error: OSError) -> None:
        """The disk refused something that is done again when it is due: give up only if it must."""
        if self._log is None or self._log.failure is not None or not is_transient(error):
            self._on_disk_failure(doing, error)
        else:
            _logger.warning(
                "%s: cannot %s %s: %s", self.topic_partition, doing, self.directory.path, error
            )

    # --- append ---------------------------------------------------------------------------

    def check_append(self) -> ErrorCode:
        """Whether what must be on all in-sync replicas may be appended now; see ``availability``.

        ``NOT_ENOUGH_REPLICAS``: there are fewer of them than ``min_insync_replicas``.
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
        """Append records of a coordinator as one batch; transactional iff it names a producer.

        In the log, not yet durable, on return: wait with ``committed``, or say that nobody will
        (not ``is_awaited``). With a sequence a batch that is there already is not appended again.
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
            self.on_newer_keys()
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
        """Append the verdict on one producer's transaction (KIP-98, strict epochs of KIP-890)."""
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
        """Give a checked batch its offset, write it, apply it and ask for a sync. Never waits.

        ``batch`` is not changed: its bytes go to the disk as they are, but for what a leader sets.

        An error of the disk that may pass, as a full one, refuses the batch and leaves the replica
        as it was; any other takes it offline.
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
        # On a follower it may begin beyond the log end: compaction has left a gap there.
        delta = header.base_offset + header.last_offset_delta - log.log_end_offset
        if log.needs_roll(size_bytes, header.max_timestamp_ms, now_ms, last_offset_delta=delta):
            log.roll(self.machine.snapshot())

    # --- group sync -----------------------------------------------------------------------

    def _on_synced(self, offset: int) -> None:
        self._synced_offset = max(self._synced_offset, offset)
        self._sync_waiters.release(offset)
        if self.replicator is not None:
            self.replicator.synced(offset)

    def _on_rise(self) -> None:
        """Readers and waiters may have what lies below the high watermark."""
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

        ``NOT_ENOUGH_REPLICAS_AFTER_APPEND``: these have become fewer than ``min_insync_replicas``;
        it is in the log, and a retry is recognised. Anything else but ``NONE`` means that the
        outcome is unknown to this replica.
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
        """As ``committed``, but call ``done``, in the very turn in which the answer is known.

        It waits as long as this replica leads: whoever knows only what is in the log cannot try
        again what may be in it already.
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
        """Wait, for as long as this replica leads, until all that is in the log now is committed.

        What its predecessor had appended and not committed is lost if this leader is, so nothing
        may be done, or answered, on the strength of it before.
        """
        waiter: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.when_committed(self.machine.log_end_offset, functools.partial(resolve_future, waiter))
        error = await waiter
        return error if error is not ErrorCode.NONE else self.availability()

    async def progress(self, timeout_ms: int) -> None:
        """Wait until a reader may see more than now, the role changes or the time is over."""
        await self._waiters.progress(timeout_ms)

    async def sync_all(self) -> ErrorCode:
        """Make all that is unsynced now durable, the checkpoint included, and wait for it.

        ``KAFKA_STORAGE_ERROR`` also for what may pass: the replica serves on then.
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

        A lower offset than the log start changes nothing. Producers are remembered all the same.
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

        At most the recovery point; a lower one than now changes nothing. With an error nothing
        has changed.
        """
        try:
            if not self.log.advance_log_start(offset):
                return ErrorCode.NONE
        except OSError as error:
            self._on_disk_refusal("write to", error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.machine.advance_log_start(offset)
        # The last stable offset may have risen over a transaction whose first records are gone.
        self._waiters.wake_readers()
        return ErrorCode.NONE

    def check_ends(self) -> None:
        """What is acknowledged, or led, by the machine is what is in the log."""
        machine_end, log_end = self.machine.log_end_offset, self.log.log_end_offset
        invariant(
            machine_end == log_end,
            "I-26",
            f"{self.topic_partition}: the machine ends at {machine_end}, the log at {log_end}",
        )

    def check_log(self) -> None:
        """Go offline if the log went: work beside appends has met an error of the disk."""
        if self._log is not None and self._log.failure is not None and self.failure is None:
            self._on_disk_failure("use", self._log.failure)

    async def run_in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """Run work with files beside the event loop; its result and its errors are the caller's."""
        return await self._background.run(work)

    # --- reload ---------------------------------------------------------------------------

    def replay(self) -> Iterator[ReplayedBatch]:
        """Read the whole log back, decoded, in offset order: how a coordinator loads."""
        return read_back(self.log)

    async def replay_in_slices(self) -> AsyncIterator[ReplayedBatch]:
        """As ``replay``; others have their turns of the event loop meanwhile.

        Nobody may cut the log before the end. OSError if the replica goes offline or stops.
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


def _raise(bug: BaseException) -> None:
    raise bug


async def _refuse_push(_broker_id: int, _request: ReplicateRequest) -> ReplicateReply:
    return ReplicateReply(error=ErrorCode.NETWORK_EXCEPTION)


async def _change_nothing(_proposal: IsrProposal) -> AlterIsrReply:
    return AlterIsrReply(error=ErrorCode.NETWORK_EXCEPTION)


class ReplicaWaiters:
    """Who waits at one replica: appends for the high watermark, readers for something new.

    It belongs to one event loop.
    """

    def __init__(self) -> None:
        self._commits: deque[tuple[int, Callable[[ErrorCode], None], bool]] = deque()
        """By offset, and in the order they came."""
        self._readers: dict[asyncio.Future[None], None] = {}
        """A dict, so that they are woken in the order they came."""

    def when_committed(
        self, next_offset: int, done: Callable[[ErrorCode], None], *, is_patient: bool = True
    ) -> None:
        """Call ``done`` when ``release`` reaches ``next_offset``, or ``fail_all`` is called.

        Unless ``is_patient``, also by ``fail_impatient_waiters``.
        """
        commits, waiter = self._commits, (next_offset, done, is_patient)
        if commits and next_offset < commits[-1][0]:
            # A retry of a batch that is in the log already: all others come in order.
            insort(commits, waiter, key=_NEXT_OFFSET)
        else:
            commits.append(waiter)

    async def progress(self, timeout_ms: int) -> None:
        """Wait until ``wake_readers``, or until the time is over."""
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
        """Answer the appends of callers that rather try again than wait."""
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
