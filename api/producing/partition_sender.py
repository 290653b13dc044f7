"""The in-flight batches of one partition: at most five, in order, each until its outcome is final.

Sequence numbers are assigned when a batch is first sent and kept by every retry, so that the leader
recognises duplicates. Calls of one producer may overtake each other. A batch that must be resent
waits until it is the oldest in flight.

Without a transaction, a batch that fails leaves a gap that the leader will not pass. The partition
then waits until nothing is in flight, and continues under the next producer epoch from sequence 0.
In a transaction any failure spoils the whole transaction, and its end brings the next epoch.

A leader forgets a producer that is silent for long, and then takes it at sequence 0 only. So a
partition that was idle for half a day continues under the next epoch too. And a batch at sequence 0
that has no answer for as long is not sent again: it would count as a new producer's.
Source: KIP-98, "Idempotent producer guarantees"; KIP-360.

One file: the outcome of a batch goes to its futures, counters and log where it is decided.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from oncelog.actors.protocol.messages.partition import ProduceReply, ProduceRequest
from oncelog.actors.protocol.tickets import TICKET_LIFETIME_MAX_MS
from oncelog.api.batching.accumulator import Accumulator, PendingBatch
from oncelog.api.batching.delivery import BatchDelivery
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.metrics import SendCounters
from oncelog.api.session.retry import Backoff, BackoffPolicy
from oncelog.api.session.routing import Router
from oncelog.api.session.tracing import Tracing
from oncelog.api.transacting.producer_transaction import ProducerIdentity
from oncelog.api.transacting.requests import UNKNOWN_TOPIC_WAIT_MS, Fencing, PlainIdentities
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    InvalidRecordError,
    OncelogError,
    OutOfOrderSequenceNumberError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    exception_for,
)
from oncelog.storage.model import PRODUCER_EPOCH_EXHAUSTED, TopicPartition, sequence_after
from oncelog.storage.records.compression import Codec

_logger = logging.getLogger("oncelog.producer")

REMEMBERED_S: Final = TICKET_LIFETIME_MAX_MS / 1_000
"""Every leader remembers a producer for longer: ``producer_id_expiration_ms`` allows no less."""

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

_NOT_APPENDED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)
"""Retriable errors that mean that the leader did not append. The others leave it open, even
``NOT_LEADER_OR_FOLLOWER``: a deposed leader also sends it to calls that wait for replication."""

_REFUSED_UNSEEN: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Not appended, but the leader would accept it under another epoch (idempotent only)."""


class _Gap(enum.Enum):
    """Why a partition's sequences no longer match what its leader expects."""

    REFUSED = "a batch was certainly not appended"
    UNKNOWN = "a batch may or may not have been appended"


@dataclass(slots=True, eq=False)
class _InFlight:
    """One batch in flight.

    ``base_position`` (inclusive) and ``end_position`` (exclusive) count the partition's records
    under the current epoch; a sequence number is a position that wraps.
    """

    batch: PendingBatch
    base_position: int
    end_position: int
    number: int
    """How many batches were begun before it."""
    is_retrying: bool = False
    may_be_in_log: bool = False
    """An earlier attempt may have been appended, although no reply said so."""
    last_error: ErrorCode = ErrorCode.NONE
    task: asyncio.Task[None] | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The order among the partition's batches; the parts of a split batch share its number."""
        return self.number, self.base_position


class PartitionSender:
    """Sends one partition's batches: those of a transaction or, without one, all."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        context: SenderContext,
        identity: ProducerIdentity,
        transactional_id: str | None = None,
        ticket: bytes | None = None,
    ) -> None:
        self._topic_partition = topic_partition
        self._context = context
        self._identity = identity
        self._transactional_id = transactional_id
        self._ticket = ticket
        self._in_flight: list[_InFlight] = []
        self._begun_count = 0
        self._next_position = 0
        self._acknowledged_end = 0
        """The highest ``end_position`` acknowledged: the leader has everything before it."""
        self._begun_s = 0.0
        """When the newest batch was begun, by the loop's time."""
        self._gap: _Gap | None = None
        self._rewrites: list[_InFlight] = []
        self._unreported: list[tuple[_InFlight, ProduceReply]] = []
        """Appended batches behind an undecided one: futures resolve in offset order."""
        self._moved = asyncio.Event()
        self._is_stopped = False

    @property
    def in_flight_count(self) -> int:
        """The number of batches in flight."""
        return len(self._in_flight)

    def pump(self) -> None:
        """Send what is full or due, as far as the window allows."""
        while self.send_next():
            pass

    def send_next(self) -> bool:
        """Send one batch if one is full or due and the window allows; return whether it did."""
        if self._is_stopped or self._gap is not None:
            return False
        # New batches behind one that is being retried would only arrive too early.
        if any(entry.is_retrying for entry in self._in_flight):
            return False
        # A leader remembers only the last few batches. A window that counted what is in flight
        # could advance until the oldest is forgotten, and its retry would then be rejected.
        window = self._context.settings.max_in_flight_requests_per_connection
        if self._in_flight and self._begun_count - self._in_flight[0].number >= window:
            return False
        batch = self._context.accumulator.take(self._topic_partition)
        if batch is None:
            return False
        self._start(batch)
        return True

    def stop(self, error: OncelogError) -> None:
        """Fail everything in flight; later replies are ignored."""
        self._is_stopped = True
        entries, self._in_flight = self._in_flight, []
        rewrites, self._rewrites = self._rewrites, []
        self._go_on()
        for entry in entries:
            if entry.task is not None:
                self._context.tasks.cancel_task(entry.task)
            self._context.fail(entry.batch, error)
        for entry in rewrites:
            self._context.fail(entry.batch, error)

    def expire(self, begun_before_s: float) -> None:
        """Fail batches that were begun no later than ``begun_before_s``.

        Their calls may still append, so nothing more is sent under the same epoch.
        """
        for entry in tuple(self._in_flight):
            # Failing the first of a transaction fails the others.
            if entry.batch.created_s <= begun_before_s and entry in self._in_flight:
                if entry.task is not None:
                    self._context.tasks.cancel_task(entry.task)
                reason = "there was no reply"
                if entry.last_error is not ErrorCode.NONE:
                    reason = f"the last reply was {entry.last_error.name}"
                self._fail_entry(entry, self._expired(entry.batch, reason), _Gap.UNKNOWN)
        for entry in tuple(self._rewrites):
            if entry.batch.created_s <= begun_before_s:
                self._rewrites.remove(entry)
                self._lose(entry.batch, self._expired(entry.batch, "its leader rejected it"))

    # --- one batch ----------------------------------------------------------------------------

    def _start(self, batch: PendingBatch) -> None:
        now_s = asyncio.get_running_loop().time()
        is_idle = self._next_position > 0 and not self._in_flight
        if is_idle and self._transactional_id is None and now_s - self._begun_s >= REMEMBERED_S:
            self._take_next_epoch()
        self._begun_s = now_s
        entry = _InFlight(
            batch,
            self._next_position,
            self._next_position + batch.rows.record_count,
            self._begun_count,
        )
        self._begun_count += 1
        self._next_position = entry.end_position
        self._in_flight.append(entry)
        self._context.counters.batches_sent += 1
        self._context.counters.records_sent += batch.rows.record_count
        entry.task = self._context.tasks.spawn(self._deliver(entry))

    def _encode(self, entry: _InFlight) -> bytearray:
        identity = self._identity
        payload = entry.batch.rows.encode(
            codec=self._context.codec,
            compression_level=self._context.settings.compression_level,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=sequence_after(0, entry.base_position),
            is_transactional=self._transactional_id is not None,
        )
        self._context.counters.bytes_sent += len(payload)
        return payload

    async def _deliver(self, entry: _InFlight) -> None:
        """Call the leader until the outcome of ``entry`` is known; ``expire`` cancels this."""
        settings = self._context.settings
        loop = asyncio.get_running_loop()
        backoff = Backoff(BackoffPolicy.of(settings), self._context.random)
        missing_since: float | None = None
        try:
            payload = self._encode(entry)
        except (ValueError, TypeError, OverflowError) as error:
            invalid = InvalidRecordError(f"a record cannot be encoded: {error}")
            self._fail_entry(entry, invalid, _Gap.REFUSED)
            return
        await self._wait_for_turn(entry)
        while True:
            request = ProduceRequest(
                topic_partition=self._topic_partition,
                batch=payload,
                acks=settings.acks_count,
                transactional_id=self._transactional_id,
                ticket=self._ticket or self._context.identities.ticket_of(self._identity),
                timeout_ms=settings.request_timeout_ms,
            )
            reply = await self._context.router.call_leader(
                self._topic_partition, request, timeout_ms=settings.request_timeout_ms
            )
            self._context.counters.record_reply(reply.error)
            if reply.is_ticket_old:
                self._context.identities.renew_soon(self._identity)
            if reply.error is ErrorCode.INVALID_PRODUCER_EPOCH:
                reply = await self._context.fencing.explained(self._topic_partition, reply)
            if self._handle_reply(entry, reply):
                return
            if reply.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                missing_since = loop.time() if missing_since is None else missing_since
                if (loop.time() - missing_since) * 1_000 >= UNKNOWN_TOPIC_WAIT_MS:
                    self._fail_entry(entry, self._missing(reply), _Gap.UNKNOWN)
                    return
            else:
                missing_since = None
            entry.is_retrying = True
            entry.last_error = reply.error
            entry.may_be_in_log = entry.may_be_in_log or reply.error not in _NOT_APPENDED
            self._context.counters.batches_retried += 1
            await asyncio.sleep(backoff.delay_ms(reply.error) / 1_000)
            await self._wait_for_turn(entry)

    async def _wait_for_turn(self, entry: _InFlight) -> None:
        """A resent batch waits until the batches before it are final."""
        while entry.is_retrying and self._in_flight and self._in_flight[0] is not entry:
            self._moved.clear()
            await self._moved.wait()

    def _handle_reply(self, entry: _InFlight, reply: ProduceReply) -> bool:
        """Act on a reply; return whether it was final for this entry."""
        if entry not in self._in_flight:
            # It failed together with others while this reply was in flight.
            return True
        error = reply.error
        if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._acknowledged_end = max(self._acknowledged_end, entry.end_position)
            self._context.acknowledged(entry.batch)
            self._in_flight.remove(entry)
            self._unreported.append((entry, reply))
            self._unreported.sort(key=lambda appended: appended[0].place)
            self._go_on()
            return True
        if error in _TOO_LARGE and entry.batch.rows.record_count > 1:
            self._split(entry)
            return True
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._in_flight[0] is not entry:
            # An earlier batch is still missing; after that one, this one will fit.
            return False
        if error in _REFUSED_UNSEEN and self._transactional_id is None:
            if error is ErrorCode.UNKNOWN_PRODUCER_ID:
                self._context.identities.discard(self._identity)
            self._refused(entry)
            return True
        if error.retriable and not self._may_be_forgotten(entry):
            return False
        detail = f"{reply.detail or exception_for(error)} (partition {self._topic_partition})"
        gap = _Gap.REFUSED
        if entry.may_be_in_log:
            gap = _Gap.UNKNOWN
            detail += "; an earlier attempt got no reply: it may or may not be in the log"
        self._fail_entry(entry, exception_for(error, detail), gap, reply.refused_records)
        return True

    def _may_be_forgotten(self, entry: _InFlight) -> bool:
        """Whether a leader that had appended ``entry`` could now take it for a new producer's.

        Only at sequence 0: any other is refused by a leader that does not know its producer.
        """
        age_s = asyncio.get_running_loop().time() - entry.batch.created_s
        return (
            entry.may_be_in_log
            and age_s >= REMEMBERED_S
            and sequence_after(0, entry.base_position) == 0
            and self._transactional_id is None
        )

    def _split(self, entry: _InFlight) -> None:
        """Send a batch that is too large for its topic as two, which keep its sequences."""
        place = self._in_flight.index(entry)
        del self._in_flight[place]
        position = entry.base_position
        parts: list[_InFlight] = []
        for batch in entry.batch.split():
            end = position + batch.rows.record_count
            # Each waits its turn, so that no more are in flight than the leader remembers.
            part = _InFlight(
                batch,
                position,
                end,
                entry.number,
                is_retrying=True,
                may_be_in_log=entry.may_be_in_log,
            )
            parts.append(part)
            position = end
        self._in_flight[place:place] = parts
        for part in parts:
            part.task = self._context.tasks.spawn(self._deliver(part))
        self._moved.set()

    # --- failure ------------------------------------------------------------------------------

    def _fail_entry(
        self, entry: _InFlight, error: OncelogError, gap: _Gap, refused: tuple[int, ...] = ()
    ) -> None:
        """``entry`` has failed. ``gap`` says whether it may still be in the log.

        ``refused`` are the records that caused it, if the leader named them.
        """
        self._in_flight.remove(entry)
        if self._gap is not _Gap.UNKNOWN:
            self._gap = gap
        self._lose(entry.batch, error, refused)
        self._go_on()

    def _refused(self, entry: _InFlight) -> None:
        """The leader expects another sequence or epoch and did not append ``entry`` this time."""
        self._in_flight.remove(entry)
        if entry.may_be_in_log:
            # The leader may have appended it and forgotten, as after a failover, and would not
            # recognise it under another epoch. Source: KIP-360.
            self._gap = _Gap.UNKNOWN
            self._lose(
                entry.batch,
                OutOfOrderSequenceNumberError(
                    f"a batch for partition {self._topic_partition} got no reply, and its leader "
                    "does not know it: it may or may not be in the log"
                ),
            )
        elif self._gap is _Gap.UNKNOWN:
            # A late call of the batch before it could still let this one in too: sending it
            # again under another epoch might append it twice.
            self._lose(
                entry.batch,
                OutOfOrderSequenceNumberError(
                    f"an earlier batch for partition {self._topic_partition} timed out, so this "
                    "one could not be appended in order",
                    advice="send it again",
                ),
            )
        else:
            self._gap = _Gap.REFUSED
            self._rewrites.append(entry)
        self._go_on()

    def _go_on(self) -> None:
        """A batch left the window: resolve what waited behind it, in offset order; send more."""
        self._moved.set()
        while self._unreported:
            entry, reply = self._unreported[0]
            if self._in_flight and self._in_flight[0].place < entry.place:
                break
            del self._unreported[0]
            entry.batch.delivery.finish(reply.base_offset, reply.log_append_time_ms)
        if self._is_stopped:
            return
        if self._gap is not None and not self._in_flight:
            self._context.tasks.spawn(self._close_gap())
        else:
            self.pump()

    async def _close_gap(self) -> None:
        """Nothing is in flight: continue, under a new epoch unless the lost batch had arrived."""
        if self._rewrites:
            await asyncio.sleep(self._context.settings.retry_backoff_ms / 1_000)
        if self._rewrites or self._acknowledged_end != self._next_position:
            await self._take_next_identity()
        self._gap = None
        rewrites, self._rewrites = self._rewrites, []
        for entry in sorted(rewrites, key=lambda entry: entry.base_position):
            self._start(entry.batch)
        self.pump()

    def _begin(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self._next_position = 0
        self._acknowledged_end = 0

    def _take_next_epoch(self) -> bool:
        """Continue under the next epoch, unless this was the last, or the id is ours no longer."""
        identity = self._identity
        is_ours = self._context.identities.ticket_of(identity) is not None
        if not is_ours or identity.producer_epoch >= PRODUCER_EPOCH_EXHAUSTED:
            return False
        self._begin(
            ProducerIdentity(
                producer_id=identity.producer_id, producer_epoch=identity.producer_epoch + 1
            )
        )
        return True

    async def _take_next_identity(self) -> None:
        """Continue under the next epoch, which needs no call, or a new producer id.

        A new id follows the last epoch, or a leader's rejection of the id's ticket.
        """
        while not self._take_next_epoch():
            try:
                self._begin(await self._context.identities.fresh())
                return
            except OncelogError as error:
                # Fail what waits for the identity; later records try again.
                rewrites, self._rewrites = self._rewrites, []
                for entry in rewrites:
                    self._lose(entry.batch, error)
                await asyncio.sleep(self._context.settings.retry_backoff_max_ms / 1_000)

    def _lose(
        self, batch: PendingBatch, error: OncelogError, refused: tuple[int, ...] = ()
    ) -> None:
        self._context.fail(batch, error, refused)
        self._context.on_batch_failed(error)

    def _expired(self, batch: PendingBatch, reason: str) -> OncelogError:
        return expired(batch, self._context.settings.delivery_timeout_ms, reason)

    def _missing(self, reply: ProduceReply) -> OncelogError:
        topic = self._topic_partition.topic
        return UnknownTopicOrPartitionError(
            reply.detail
            or f"partition {self._topic_partition} does not exist; was topic {topic!r} deleted? "
            f"create it with admin.create_topic({topic!r}, partitions=N)"
        )


# --- what the partition senders of one producer share ---------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderContext:
    """What all partition senders of one producer share."""

    router: Router
    settings: ProducerSettings
    random: Random
    accumulator: Accumulator
    codec: Codec
    failures: UnreportedFailures
    tasks: SenderTasks
    identities: PlainIdentities
    """Producer ids and their tickets (idempotent only)."""
    fencing: Fencing
    """Finds out why a leader rejects the epoch of a transaction."""
    on_batch_failed: Callable[[OncelogError], None]
    """Called when a batch has failed: spoil the transaction, if there is one."""
    now_s: Callable[[], float]
    """The time of the event loop."""
    tracing: Tracing | None
    counters: SendCounters = field(default_factory=SendCounters)

    def acknowledged(self, batch: PendingBatch) -> None:
        """A batch is in the log; its futures are told once those before it are, too."""
        now_s = self.now_s()
        self.counters.records_acknowledged += batch.rows.record_count
        self.counters.acks.add(batch.created_s, now_s)
        if self.tracing is not None:
            self.tracing.batch_ended(batch, now_s)

    def fail(self, batch: PendingBatch, error: OncelogError, refused: tuple[int, ...] = ()) -> None:
        """Fail a batch. If the leader named records, the others' error names those."""
        self.counters.batches_failed += 1
        self.counters.records_failed += batch.rows.record_count
        if self.tracing is not None:
            self.tracing.batch_ended(batch, self.now_s(), error)
        neighbours = None
        if refused:
            neighbours = InvalidRecordError(
                "nothing is wrong with this record, but it was rejected with its batch, which is "
                f"appended or rejected as a whole: {error}"
            )
        batch.delivery.finish(error=error, refused=refused, neighbours=neighbours)
        self.failures.record(batch.delivery, batch.rows.record_count)

    def expire(self, begun_before_s: float) -> Iterator[OncelogError]:
        """Fail unsent batches that were begun at or before ``begun_before_s``; yield the errors."""
        for batch in self.accumulator.take_old(begun_before_s):
            error = expired(batch, self.settings.delivery_timeout_ms, "it was never sent")
            self.fail(batch, error)
            yield error

    def drop(self, error: OncelogError) -> None:
        """Fail every batch that no sender has taken."""
        for batch in self.accumulator.drop():
            self.fail(batch, error)


def expired(batch: PendingBatch, timeout_ms: int, reason: str) -> OncelogError:
    """The error of a batch whose delivery timed out."""
    return RequestTimedOutError(
        f"{batch.rows.record_count} records for partition {batch.delivery.topic_partition} were "
        f"not acknowledged within delivery_timeout_ms={timeout_ms}; {reason}"
    )


# --- tasks ----------------------------------------------------------------------------------------


class SenderTasks:
    """The tasks of one producer: none ends unseen, and none outlives it.

    Runs coroutines on ``loop``. An exception of one is a bug and goes to ``on_crash``.
    ``on_cancelled`` is called for a task that was not cancelled by ``cancel_task`` or ``cancel``,
    except for one that the producer can do without.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_crash: Callable[[OncelogError], None],
        on_cancelled: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._spare: set[asyncio.Task[None]] = set()
        self._on_crash = on_crash
        self._on_cancelled = on_cancelled
        # In start order, so that they are cancelled in that order too.
        self._tasks: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def spawn_spare(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """``spawn`` for work that anybody may cancel, because other tasks make up for it."""
        task = self.spawn(work)
        self._spare.add(task)
        return task

    def cancel_task(self, task: asyncio.Task[None]) -> None:
        """Cancel ``task``, which is no longer needed, unless it is the current one."""
        if task is not asyncio.current_task(self._loop):
            self._tasks.pop(task, None)
            task.cancel()

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in tuple(self._tasks):
            self._tasks.pop(task)
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        is_wanted = task in self._tasks and task not in self._spare
        self._tasks.pop(task, None)
        self._spare.discard(task)
        if task.cancelled():
            if is_wanted:
                self._on_cancelled()
            return
        if task.exception() is None:
            return
        crash = UnknownServerError(f"the producer stopped because of a bug: {task.exception()!r}")
        crash.__cause__ = task.exception()
        self._on_crash(crash)


# --- failures that nobody waits for ---------------------------------------------------------------


LINE_PERIOD_S: Final = 1.0
"""At most one line per period; it counts the records that it covers."""

UNREPORTED_MAX: Final = 100
"""``flush`` remembers this many failed batches and raises one; the counters count all."""


class UnreportedFailures:
    """Records of one producer that failed while nobody waited for them: never lost silently.

    In a transaction the commit fails, so with ``is_reported`` nothing is kept here. Outside, a
    caller that drops the future of ``send`` would never know: the failure is logged, and the next
    ``flush`` raises it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_reported: bool) -> None:
        self._loop = loop
        self._is_reported = is_reported
        self._failed: deque[BatchDelivery] = deque(maxlen=UNREPORTED_MAX)
        self._unlogged_count = 0
        self._last: BatchDelivery | None = None
        self._timer: asyncio.TimerHandle | None = None

    def record(self, delivery: BatchDelivery, record_count: int) -> None:
        """Record that a batch has failed."""
        if self._is_reported or delivery.is_observed:
            return
        self._failed.append(delivery)
        self._last = delivery
        self._unlogged_count += record_count
        if self._timer is None:
            self._log()
            self._timer = self._loop.call_later(LINE_PERIOD_S, self._on_period_end)

    def take(self) -> OncelogError | None:
        """The first failure that nobody has read, for ``flush`` to raise; returned once."""
        self._log()
        failed = [delivery for delivery in self._failed if not delivery.is_observed]
        self._failed.clear()
        return failed[0].error if failed else None

    def close(self) -> None:
        """Log what has not been logged yet."""
        self._log()
        if self._timer is not None:
            self._timer.cancel()

    def _on_period_end(self) -> None:
        self._timer = None
        if self._unlogged_count:
            self._log()
            self._timer = self._loop.call_later(LINE_PERIOD_S, self._on_period_end)

    def _log(self) -> None:
        count, self._unlogged_count = self._unlogged_count, 0
        if not count or self._last is None:
            return
        _logger.error(
            "%s not delivered, and no one was waiting for the outcome: %s — send them again if "
            "they are wanted, and wait for send()'s future, or call flush()",
            f"1 record for {self._last.topic_partition} was"
            if count == 1
            else f"{count} records, the last of them for {self._last.topic_partition}, were",
            self._last.error,
        )
