"""The sending half of a producer: accumulate records, enrol their partitions, send the batches.

Belongs to one event loop. Only the methods under "from any thread" may be called from other
threads; they take the accumulator's lock and wake the loop if needed.

One file: the tasks, timers and look-ups of a producer all lead to the next batch to send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from random import Random
from typing import Final

from oncelog.actors.process.clock import SystemClock
from oncelog.actors.process.freed_memory import keep_freed_memory
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.api.batching.accumulator import Accumulator, Headers, Wake, record_size_bytes
from oncelog.api.batching.arrow_rows import ColumnBatch
from oncelog.api.batching.delivery import RecordFuture, TableDelivery
from oncelog.api.batching.interceptors import InterceptorChain
from oncelog.api.batching.open_batches import OpenBatches
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.partition_sender import (
    PartitionSender,
    SendCounters,
    SenderContext,
    SenderTasks,
    UnreportedFailures,
)
from oncelog.api.session.event_loop import AFTER_FORK, cancelled_by_program
from oncelog.api.session.retry import Backoff, BackoffPolicy
from oncelog.api.session.routing import Router
from oncelog.api.transacting.enrolment import ProducerEnrolments
from oncelog.api.transacting.producer_transaction import (
    ProducerIdentity,
    ProducerTransaction,
    TransactionStatus,
    abort_after,
    error_of_others,
    severity,
    unanswered,
)
from oncelog.api.transacting.requests import (
    UNKNOWN_TOPIC_WAIT_MS,
    Fencing,
    PlainIdentities,
    TransactionRequests,
)
from oncelog.storage.errors import ErrorClass, ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    IllegalStateError,
    InvalidTopicError,
    MessageTooLargeError,
    OncelogError,
    RequestTimedOutError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
    exception_for,
)
from oncelog.storage.model import (
    INTERNAL_TOPICS,
    NO_PRODUCER_ID,
    TOPIC_NAME_RULE,
    TopicPartition,
    is_valid_topic_name,
)
from oncelog.storage.records.compression import Codec

ENROL_AFTER_S: Final = 0.001
"""How long the first record waits, so that more partitions are enrolled in the same call."""


class RecordSender:
    """Sends the records of one producer, in the transaction of ``state``, if any.

    ``loop`` is the event loop that runs its coroutines and calls the leaders.
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
    ) -> None:
        keep_freed_memory()
        self.router = router
        self.settings = settings
        self._loop = loop
        self._clock = router.clock
        self._requests = requests
        self._state = state
        self._tasks = SenderTasks(loop, self._crashed, self._cancelled)
        self.identities = PlainIdentities(requests, self._tasks.spawn_spare)
        self._fatal: OncelogError | None = None
        self.fencing = Fencing(state=state, requests=requests, loop=loop)
        self.interceptors = InterceptorChain(settings.interceptors)
        self._is_closed = self._is_forked = False
        self._topics = TopicFinder(router=router, settings=settings, random=random)
        self._progress = asyncio.Event()
        self._preparing: asyncio.Task[None] | None = None
        self._senders: dict[TopicPartition, PartitionSender] = {}
        self.open_batches = open_batches_for(settings, router)
        self._accumulator = Accumulator(
            open_batches=self.open_batches,
            batch_bytes=settings.batch_size,
            random=random,
            gate=self._check_send,
            on_done=self._progress.set,
            now=loop.time,
        )
        self.enrolment: ProducerEnrolments | None = None
        if state is None:
            self.open_batches.is_accepting = True
        else:
            state.on_accepting = self._accept
            self.enrolment = self._enrolment_of(state)
        self._context = SenderContext(
            router=router,
            settings=settings,
            random=random,
            accumulator=self._accumulator,
            codec=Codec[settings.compression_type.upper()],
            failures=UnreportedFailures(loop, is_reported=state is not None),
            tasks=self._tasks,
            identities=self.identities,
            fencing=self.fencing,
            on_batch_failed=self._batch_failed,
        )
        self._deadline = DeliveryDeadline(loop, settings, self._accumulator, self._expire)

    @property
    def counters(self) -> SendCounters:
        """What has been sent so far."""
        return self._context.counters

    @property
    def buffered_bytes(self) -> int:
        """Estimated bytes of records whose outcome is not yet known."""
        return self._accumulator.buffered_bytes

    @property
    def in_flight_count(self) -> int:
        """The number of batches in flight to their leaders."""
        return sum(sender.in_flight_count for sender in tuple(self._senders.values()))

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer id and epoch in use; ``None`` before there is one."""
        if self._state is None:
            return self.identities.current
        identity = self._state.identity
        return identity if identity.producer_id != NO_PRODUCER_ID else None

    def _enrolment_of(self, state: ProducerTransaction) -> ProducerEnrolments:
        return ProducerEnrolments(
            state=state,
            requests=self._requests,
            loop=self._loop,
            settings=self.settings,
            spawn=self._tasks.spawn_spare,
            is_known=lambda tp: self._topics.known(tp.topic, tp.partition) is not None,
        )

    # --- sending, from any thread -------------------------------------------------------------

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int | None,
        partition: int | None,
    ) -> RecordFuture | None:
        """Accept one type-checked record; ``None`` if ``make_room`` must be awaited first."""
        metadata = self._topics.known(topic, partition)
        if metadata is None or self._accumulator.buffered_bytes >= self.settings.buffer_memory:
            return None
        size = record_size_bytes(value, key, headers)
        if size > self.settings.max_request_size:
            raise MessageTooLargeError(
                f"the record takes {size} bytes, more than "
                f"max_request_size={self.settings.max_request_size}",
                advice="split it",
            )
        if timestamp_ms is None:
            timestamp_ms = self._clock.now_ms()
        future, wake = self._accumulator.append(
            topic,
            metadata,
            partition,
            (key, value, timestamp_ms, headers),
            size,
        )
        if wake is not Wake.NOTHING:
            self._loop.call_soon_threadsafe(self._woken, wake)
        return future

    def append_batch(self, batch: ColumnBatch, table: TableDelivery) -> None:
        """Accept one batch of a table; without ``has_room``, await ``make_room`` first."""
        delivery, wake = self._accumulator.append_rows(
            batch.topic_partition, batch.rows, batch.size_bytes
        )
        table.add(delivery)
        if wake is not Wake.NOTHING:
            self._loop.call_soon_threadsafe(self._woken, wake)

    def record_refused(self, error: BaseException) -> None:
        """Note that ``send`` raised ``error``: an open transaction lacks a record."""
        if self._state is not None:
            self._state.send_refused(error)

    def has_room(self, topic: str, partition: int | None = None) -> bool:
        """Whether ``topic`` and ``partition`` are known and ``buffer_memory`` is not full."""
        return (
            self._topics.known(topic, partition) is not None
            and self._accumulator.buffered_bytes < self.settings.buffer_memory
        )

    def partition_count(self, topic: str) -> int:
        """The partition count of a topic for which ``has_room`` was true."""
        return len(metadata.partitions) if (metadata := self._topics.known(topic)) else 0

    def sticky_partition(self, topic: str, partition_count: int) -> int:
        """Choose another partition, for a block of records without keys."""
        return self._accumulator.sticky_partition(topic, partition_count)

    def now_ms(self) -> int:
        """The timestamp of records that are sent without one."""
        return self._clock.now_ms()

    async def make_room(self, topic: str, partition: int | None = None) -> None:
        """Wait until ``topic`` and ``partition`` are known and there is memory.

        This may take ``max_block_ms``; see ``TopicFinder`` for topics that do not exist.
        """
        self._check_send()
        if not is_valid_topic_name(topic):
            raise InvalidTopicError(f"{topic!r:.80} is not a topic name: {TOPIC_NAME_RULE}")
        if topic in INTERNAL_TOPICS:
            raise InvalidTopicError(f"topic {topic!r} is internal; records cannot be sent to it")
        await self._topics.find(topic, partition)
        try:
            await asyncio.wait_for(
                self._until(self._has_memory), self.settings.max_block_ms / 1_000
            )
        except asyncio.TimeoutError:
            raise RequestTimedOutError(
                f"buffer_memory={self.settings.buffer_memory} stayed full of pending records "
                f"for max_block_ms={self.settings.max_block_ms}; is the topic's leader alive?"
            ) from None

    def _has_memory(self) -> bool:
        if self._accumulator.buffered_bytes < self.settings.buffer_memory:
            return True
        # Send lingering batches: no record can be accepted while memory is full.
        self._end_linger()
        return False

    # --- what the producer asks ---------------------------------------------------------------

    def unready_partitions(self) -> list[TopicPartition]:
        """Partitions with records that cannot be sent before enrolment or a producer id."""
        return [tp for tp in self._accumulator.waiting() if not self._is_ready(tp)]

    async def enrol(self, partitions: Collection[TopicPartition]) -> None:
        """Enrol partitions in the transaction and keep their tickets; ``state`` notes a failure."""
        state = self._state
        if state is None or self.enrolment is None or not state.is_sending:
            return
        # The coordinator may know of the transaction from the first attempt on, even without a
        # reply, so it must be ended there.
        state.has_work = True
        reply = await self.enrolment.enrol(partitions)
        if reply.error is not ErrorCode.NONE:
            self.failed("add_partitions_to_txn", reply)
            return
        # Records may have been waiting for this enrolment, whatever prompted it.
        self._send_due()

    async def deliver_all(self) -> None:
        """Send everything, and wait until each outcome is known; raise if closed meanwhile."""
        deliveries = self._accumulator.close_open()
        self._send_due()
        await self._until(lambda: self._accumulator.is_delivered(deliveries))
        if self._is_closed:
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
        self.fencing.forget()

    def stop(self, error: OncelogError) -> None:
        """Fail every record whose outcome is unknown; their futures raise ``error``."""
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            self._tasks.cancel_task(preparing)
        self.fencing.stop()
        for sender in self._senders.values():
            sender.stop(error)
        self._context.drop(error)
        self._progress.set()

    def fail_transaction(self, error: OncelogError, weight: ErrorClass) -> None:
        """The transaction cannot continue or, with a fatal ``weight``, the producer cannot."""
        if self._state is None:
            return
        self._state.fail(error, weight)
        is_fatal = self._state.status is TransactionStatus.FATAL_ERROR
        self.stop(error_of_others(error, is_fatal=is_fatal))

    def failed(self, method: str, reply: Reply, call_again: str = "") -> OncelogError:
        """The exception for a final ``reply``; the transaction's state notes its weight.

        A retriable code means that time ran out. With ``call_again`` the state stays as it is, and
        the application repeats the call; without it the transaction is spoilt.
        """
        weight = severity(method, reply.error)
        if weight is ErrorClass.RETRIABLE and call_again:
            return unanswered(call_again, reply, self.settings.max_block_ms)
        detail = f"{method}: {reply.detail or exception_for(reply.error)}"
        error = exception_for(reply.error, detail)
        self.fail_transaction(error, weight)
        is_over = self._state is None or self._state.status is not TransactionStatus.ABORTABLE_ERROR
        return error if is_over or error.abortable else abort_after(error)

    def forbid(self) -> None:
        """Accept nothing: this is the copy of a sender in a forked process."""
        self._is_closed = self._is_forked = True
        self._accept(False)

    def check_process(self) -> None:
        """``IllegalStateError`` in a forked process, where the event loop's copy never runs."""
        if self._is_forked:
            raise IllegalStateError(AFTER_FORK)

    def close(self) -> None:
        """Stop permanently."""
        self._is_closed = True
        self._accept(False)
        if self.enrolment is not None:
            self.enrolment.close()
        self._deadline.stop()
        self.stop(ClientClosedError("the producer was closed before the record was acknowledged"))
        self._context.failures.close()
        self._tasks.cancel()

    # --- sending ------------------------------------------------------------------------------

    def _accept(self, is_accepting: bool) -> None:
        self.open_batches.is_accepting = (
            is_accepting and not self._is_closed and self._fatal is None
        )

    def _check_send(self) -> None:
        self.check_process()
        if self._is_closed:
            raise ClientClosedError("the producer is closed", advice="make a new one")
        if self._fatal is not None:
            raise exception_for(self._fatal.code, str(self._fatal)) from self._fatal
        if self._state is not None:
            self._state.check_send()

    def _woken(self, wake: Wake) -> None:
        if self._is_closed:
            return
        self._deadline.watch()
        linger_s = self.settings.linger_ms / 1_000
        if wake is Wake.LINGER or self._accumulator.take_full_batches():
            self._loop.call_later(linger_s, self._end_linger)
        if wake is Wake.LINGER and self._is_enrolled_by_habit():
            self._prepare_early()
        elif wake is Wake.LINGER:
            self._loop.call_later(min(linger_s, ENROL_AFTER_S), self._prepare_early)
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
            self._batch_failed(error)

    def _batch_failed(self, error: OncelogError) -> None:
        """A batch failed for good: its transaction, if there is one, cannot commit."""
        self.fail_transaction(error, severity("produce", error.code))

    def _send_due(self) -> None:
        """Send what is full or due, after any producer id or enrolment that it needs."""
        if self._state is not None and not self._state.is_sending:
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
        is_wanted = self._state is None or self._state.is_sending
        if is_wanted and self._preparing is None and self.unready_partitions():
            self._preparing = self._tasks.spawn(self._prepare())

    def _is_enrolled_by_habit(self) -> bool:
        return self.enrolment is not None and bool(self.enrolment.expected())

    def _is_ready(self, topic_partition: TopicPartition) -> bool:
        if self._state is None:
            return self.identities.current is not None
        return topic_partition in self._state.tickets

    def _sender(self, topic_partition: TopicPartition) -> PartitionSender | None:
        """The sender of a partition, or ``None`` until the partition may be sent to."""
        if (sender := self._senders.get(topic_partition)) is not None:
            return sender
        identity, ticket = self.identities.current, None
        if self._state is not None:
            identity, ticket = self._state.identity, self._state.tickets.get(topic_partition)
            if ticket is None:
                return None
        if identity is None:
            return None
        sender = self._senders[topic_partition] = PartitionSender(
            topic_partition,
            context=self._context,
            identity=identity,
            transactional_id=self.settings.transactional_id,
            ticket=ticket,
        )
        return sender

    def _needs_preparing(self) -> bool:
        return self._accumulator.has_due() and bool(self.unready_partitions())

    async def _prepare(self) -> None:
        """Get the producer id, or enrol all new partitions with records, in one call."""
        try:
            while unready := self.unready_partitions():
                if self._state is None:
                    await self._get_identity()
                else:
                    await self.enrol(unready)
                    if not self._state.is_sending:
                        return
                self._send_due()
                if not self._needs_preparing():
                    return
        finally:
            if self._preparing is asyncio.current_task():
                self._preparing = None

    async def _get_identity(self) -> None:
        try:
            self.identities.current = await self.identities.fresh()
        except OncelogError as error:
            self._context.drop(error)  # Not permanent: the next record tries again.

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for ``condition``, which changes only when the outcome of a batch is known."""
        while not condition():
            self._progress.clear()
            await self._progress.wait()

    def _crashed(self, crash: OncelogError) -> None:
        self._fatal = crash
        self._accept(False)
        if self._state is not None:
            self._state.fail(crash, ErrorClass.FATAL)
        self.stop(crash)

    def _cancelled(self) -> None:
        """A task was cancelled, but not by this producer, so its work is lost.

        An abort takes that back. Without a transaction nothing does, since nobody knows what is in
        the log. In a transaction without records in flight, nothing is missing.
        """
        if self._state is None:
            self._crashed(cancelled_by_program("producer"))
        elif self.buffered_bytes:
            error = TransactionAbortableError(
                "a task of the producer was cancelled by the program, as frameworks cancel all "
                "tasks at shutdown",
                advice="call abort_transaction()",
            )
            self.fail_transaction(error, ErrorClass.ABORTABLE)


def open_batches_for(settings: ProducerSettings, router: Router) -> OpenBatches:
    """The open batches of a producer with these settings."""
    return OpenBatches(
        known_topics=router.known_topics,
        now_ms=router.clock.now_ms,
        is_system_time=isinstance(router.clock, SystemClock),
        batch_bytes=settings.batch_size,
        record_bytes_max=settings.max_request_size,
        buffer_bytes_max=settings.buffer_memory,
    )


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


# --- topics that are not known yet ----------------------------------------------------------------


class TopicFinder:
    """Looks up topics and partitions that a producer does not know yet, with retries.

    ``known`` may be called from any thread.
    """

    def __init__(self, *, router: Router, settings: ProducerSettings, random: Random) -> None:
        self._router = router
        self._settings = settings
        self._random = random

    def known(self, topic: str, partition: int | None = None) -> TopicMetadata | None:
        """Cached metadata of a topic that may be written to, if it has ``partition``."""
        metadata = self._router.known_topics.get(topic)
        if metadata is None or topic in INTERNAL_TOPICS:
            return None
        if partition is not None and partition >= len(metadata.partitions):
            return None
        return metadata

    async def find(self, topic: str, partition: int | None = None) -> None:
        """Wait until ``topic`` is known, up to ``max_block_ms``.

        A topic unknown to the controller is an error after a few seconds. A ``partition`` beyond
        the known ones may just have been added, so the controller is asked again. Raises
        ``UnknownTopicOrPartitionError``, or the reason why the controller does not reply.
        """
        await self._until_answered(lambda: self._router.partition_count(topic))
        if partition is None or self.known(topic, partition) is not None:
            return
        await self._until_answered(lambda: self._router.ask_for(topic))
        count = await self._router.partition_count(topic)
        if partition >= count:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}"
            )

    async def _until_answered(self, ask: Callable[[], Awaitable[object]]) -> None:
        backoff = Backoff(BackoffPolicy.of(self._settings), self._random)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while True:
            try:
                await ask()
                return
            except OncelogError as error:
                is_missing = isinstance(error, UnknownTopicOrPartitionError)
                limit_ms = (
                    min(UNKNOWN_TOPIC_WAIT_MS, self._settings.max_block_ms)
                    if is_missing
                    else self._settings.max_block_ms
                )
                delay_s = backoff.delay_ms(error.code) / 1_000
                waited_s = loop.time() - started_s
                if not error.retriable or (waited_s + delay_s) * 1_000 > limit_ms:
                    raise
                await asyncio.sleep(delay_s)
