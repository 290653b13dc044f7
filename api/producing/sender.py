"""The sending half of a producer: enrol the partitions of its records, and send their batches.

Belongs to one event loop. What is sent is in the ``RecordBuffer``, and what it needs for that the
``TransactionManager`` has; a ``PartitionSender`` sends to one leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from random import Random
from typing import Final

from oncelog.actors.process.freed_memory import keep_freed_memory
from oncelog.api.batching.accumulator import Accumulator, Wake
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.metrics import SendCounters
from oncelog.api.producing.partition_sender import (
    PartitionSender,
    SenderContext,
    SenderTasks,
    UnreportedFailures,
)
from oncelog.api.producing.record_buffer import RecordBuffer
from oncelog.api.session.event_loop import cancelled_by_program
from oncelog.api.session.routing import Router
from oncelog.api.session.tracing import Tracing
from oncelog.api.transacting.producer_transaction import ProducerTransaction
from oncelog.api.transacting.requests import TransactionRequests
from oncelog.api.transacting.transaction_manager import TransactionManager
from oncelog.storage.errors import ErrorClass
from oncelog.storage.exceptions import ClientClosedError, OncelogError, TransactionAbortableError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.compression import Codec

ENROL_AFTER_S: Final = 0.001
"""How long the first record waits, so that more partitions are enrolled in the same call."""


class Sender:
    """Sends the records of one producer, in the transaction of ``state``, if any.

    ``loop`` is the event loop that runs its coroutines and calls the leaders; it calls
    ``on_first_record`` once.
    """

    def __init__(
        self,
        *,
        router: Router,
        settings: ProducerSettings,
        random: Random,
        loop: asyncio.AbstractEventLoop,
        requests: TransactionRequests,
        state: ProducerTransaction | None,
        on_first_record: Callable[[], None] = lambda: None,
        tracing: Tracing | None = None,
    ) -> None:
        keep_freed_memory()
        self._on_first_record = on_first_record
        self._has_records = False
        self._loop = loop
        self._linger_s = settings.linger_ms / 1_000
        self._tasks = SenderTasks(loop, self._crashed, self._cancelled)
        self._preparing: asyncio.Task[None] | None = None
        self._senders: dict[TopicPartition, PartitionSender] = {}
        self.buffer = RecordBuffer(
            router=router,
            settings=settings,
            random=random,
            loop=loop,
            state=state,
            on_wake=self._woken,
            on_full=self._end_linger,
            is_staying=lambda: self.transaction.follows_closely(),
        )
        topics = self.buffer.topics
        self.transaction = TransactionManager(
            requests=requests,
            state=state,
            settings=settings,
            loop=loop,
            spawn=self._tasks.spawn_spare,
            is_known=lambda tp: topics.known(tp.topic, tp.partition) is not None,
            on_failed=self.stop,
        )
        self._accumulator = self.buffer.accumulator
        self.tracing = tracing
        self._context = SenderContext(
            router=router,
            settings=settings,
            random=random,
            accumulator=self._accumulator,
            codec=Codec[settings.compression_type.upper()],
            failures=UnreportedFailures(loop, is_reported=state is not None),
            tasks=self._tasks,
            identities=self.transaction.identities,
            fencing=self.transaction.fencing,
            on_batch_failed=self.transaction.batch_failed,
            now_s=loop.time,
            tracing=tracing,
        )
        self._deadline = DeliveryDeadline(loop, settings, self._accumulator, self._expire)

    @property
    def counters(self) -> SendCounters:
        """What has been sent so far."""
        return self._context.counters

    @property
    def in_flight_count(self) -> int:
        """The number of batches in flight to their leaders."""
        return sum(sender.in_flight_count for sender in tuple(self._senders.values()))

    # --- what the producer asks ---------------------------------------------------------------

    def unready_partitions(self) -> list[TopicPartition]:
        """Partitions with records that cannot be sent before enrolment or a producer id."""
        is_ready = self.transaction.is_ready
        return [tp for tp in self._accumulator.waiting() if not is_ready(tp)]

    async def enrol(self, partitions: Collection[TopicPartition]) -> None:
        """Enrol partitions in the transaction; its state notes a failure."""
        if await self.transaction.enrol(partitions):
            # Records may have been waiting for this enrolment, whatever prompted it.
            self._send_due()

    async def deliver_all(self) -> None:
        """Send everything, and wait until each outcome is known; raise if closed meanwhile."""
        deliveries = self._accumulator.close_open()
        self._send_due()
        await self.buffer.wait_until(lambda: self._accumulator.is_delivered(deliveries))
        if self.buffer.is_closed:
            # Undelivered records were dropped; nothing may be committed without them.
            raise ClientClosedError("the producer was closed before everything was delivered")

    def take_failure(self) -> OncelogError | None:
        """A failure outside transactions that nobody has read; each is returned once."""
        return self._context.failures.take()

    @property
    def written_partitions(self) -> frozenset[TopicPartition]:
        """The partitions that the open transaction has sent records to."""
        return frozenset(self._senders)

    def forget_partitions(self) -> None:
        """The transaction has ended: the sequences of the next one start at 0."""
        self._senders.clear()
        self.transaction.fencing.forget()

    def stop(self, error: OncelogError) -> None:
        """Fail every record whose outcome is unknown; their futures raise ``error``."""
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            self._tasks.cancel_task(preparing)
        self.transaction.fencing.stop()
        for sender in self._senders.values():
            sender.stop(error)
        self._context.drop(error)
        self.buffer.wake_waiters()

    def close(self) -> None:
        """Stop permanently."""
        self.buffer.close()
        self.transaction.close()
        self._deadline.stop()
        self.stop(ClientClosedError("the producer was closed before the record was acknowledged"))
        self._context.failures.close()
        self._tasks.cancel()

    # --- sending ------------------------------------------------------------------------------

    def _woken(self, wake: Wake) -> None:
        if self.buffer.is_closed:
            return
        if not self._has_records:
            self._has_records = True
            self._on_first_record()
        if wake is Wake.LINGER and not self._linger_s:
            self._end_linger()
            return
        self._deadline.watch()
        if wake is Wake.LINGER or self._accumulator.take_full_batches():
            self._loop.call_later(self._linger_s, self._end_linger)
        if wake is Wake.LINGER and self.transaction.is_enrolled_by_habit():
            self._prepare_early()
        elif wake is Wake.LINGER:
            self._loop.call_later(min(self._linger_s, ENROL_AFTER_S), self._prepare_early)
        else:
            self._send_due()

    def _end_linger(self) -> None:
        self._accumulator.end_linger()
        self._deadline.watch()
        self._send_due()

    def _expire(self, begun_before_s: float) -> None:
        for sender in tuple(self._senders.values()):
            sender.expire(begun_before_s)
        for error in self._context.expire(begun_before_s):
            self.transaction.batch_failed(error)

    def _send_due(self) -> None:
        """Send what is full or due, after any producer id or enrolment that it needs."""
        if not self.transaction.is_sending:
            return
        # In rounds of one batch per partition, so that all leaders get work at once.
        found = (self._sender(topic_partition) for topic_partition in self._accumulator.waiting())
        senders = [sender for sender in found if sender is not None]
        while senders:
            senders = [sender for sender in senders if sender.send_next()]
        if self._needs_preparing():
            self._prepare_early()

    def _prepare_early(self) -> None:
        """Prepare for accumulated records, due or not, so that they need not wait later."""
        is_wanted = self.transaction.is_sending and self._preparing is None
        if is_wanted and self.unready_partitions():
            self._preparing = self._tasks.spawn(self._prepare())

    def _sender(self, topic_partition: TopicPartition) -> PartitionSender | None:
        """The sender of a partition, or ``None`` until the partition may be sent to."""
        if (sender := self._senders.get(topic_partition)) is not None:
            return sender
        if (credentials := self.transaction.credentials(topic_partition)) is None:
            return None
        identity, ticket = credentials
        sender = self._senders[topic_partition] = PartitionSender(
            topic_partition,
            context=self._context,
            identity=identity,
            transactional_id=self._context.settings.transactional_id,
            ticket=ticket,
        )
        return sender

    def _needs_preparing(self) -> bool:
        return self._accumulator.has_due() and bool(self.unready_partitions())

    async def _prepare(self) -> None:
        """Get the producer id, or enrol all new partitions with records, in one call."""
        try:
            while unready := self.unready_partitions():
                if self.transaction.is_transactional:
                    await self.transaction.enrol(unready)
                else:
                    await self._get_identity()
                if not self.transaction.is_sending:
                    return
                self._send_due()
                if not self._needs_preparing():
                    return
        finally:
            if self._preparing is asyncio.current_task():
                self._preparing = None

    async def _get_identity(self) -> None:
        try:
            await self.transaction.get_identity()
        except OncelogError as error:
            self._context.drop(error)  # Not permanent: the next record tries again.

    # --- ends that nobody asked for -------------------------------------------------------------

    def _crashed(self, crash: OncelogError) -> None:
        self.buffer.crashed(crash)
        self.transaction.crashed(crash)
        self.stop(crash)

    def _cancelled(self) -> None:
        """A task was cancelled, but not by this producer, so its work is lost.

        An abort takes that back. Without a transaction nothing does, since nobody knows what is in
        the log. In a transaction without records in flight, nothing is missing.
        """
        if not self.transaction.is_transactional:
            self._crashed(cancelled_by_program("producer"))
        elif self.buffer.buffered_bytes:
            error = TransactionAbortableError(
                "a task of the producer was cancelled by the program, as frameworks cancel all "
                "tasks at shutdown",
                advice="call abort_transaction()",
            )
            self.transaction.fail(error, ErrorClass.ABORTABLE)


# --- the delivery timeout -------------------------------------------------------------------------


RESOLUTION_S: Final = 0.001
"""Batches due within this are due now: a timer may fire early by the clock's resolution."""

AGAIN_AFTER_S: Final = 0.1
"""The minimum interval between checks while an overdue batch cannot be expired yet."""


class DeliveryDeadline:
    """``delivery_timeout_ms``: a batch's outcome is known by then, wherever the batch is.

    Calls ``expire`` with a time; batches begun at or before it are overdue. ``accumulator`` knows
    when the oldest was begun, by the time of ``loop``. One timer serves all batches and is set for
    the oldest. All have the same timeout, so it is reset only when it fires: a healthy producer
    pays nothing per batch.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: ProducerSettings,
        accumulator: Accumulator,
        expire: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._timeout_s = settings.delivery_timeout_ms / 1_000
        self._oldest_s = accumulator.oldest_s
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Set the timer if a batch is open; call it on the loop after the first one was begun."""
        if self._timer is None and (oldest_s := self._oldest_s()) is not None:
            self._timer = self._loop.call_at(oldest_s + self._timeout_s, self._on_timer)

    def stop(self) -> None:
        """Cancel the timer: no more batches will be begun."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        self._expire(now_s - self._timeout_s + RESOLUTION_S)
        if (oldest_s := self._oldest_s()) is not None:
            due_s = max(oldest_s + self._timeout_s, now_s + AGAIN_AFTER_S)
            self._timer = self._loop.call_at(due_s, self._on_timer)
