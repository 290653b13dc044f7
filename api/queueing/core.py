"""What both faces of a queue do: join, acquire, read, acknowledge, live on.

Acknowledgements are sent by one task, one call at a time: those that come while a call is on its
way go with the next one. Each call has the next sequence number, and is repeated until its outcome
is known or the worker is fenced; so is each acquisition.

Records that the worker *holds* are those taken and not acknowledged. When its session has ended it
holds nothing, and joins anew.

One file: all of it changes what the worker holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from msgspec import structs

from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.partition import FetchRequest
from oncelog.actors.protocol.messages.share import (
    JOIN_EPOCH,
    AcknowledgedRun,
    AcknowledgeType,
    AcquiredRun,
    DescribeShareGroupRequest,
    PartitionAcknowledgements,
    ShareAcknowledgeReply,
    ShareAcknowledgeRequest,
    ShareAcquireReply,
    ShareAcquireRequest,
    ShareGroupHeartbeatRequest,
    ShareOrder,
    SharePartitionDescription,
)
from oncelog.api.config import ProducerSettings, QueueSettings
from oncelog.api.producing.producer import AsyncProducer
from oncelog.api.queueing.acquired import ReadRuns, read_runs
from oncelog.api.queueing.held import HeldRun, HeldRuns, offsets_by_partition, runs_of
from oncelog.api.records import QueueAcknowledgements, QueueBacklog, QueueRecord
from oncelog.api.session.committed_offsets import list_offsets
from oncelog.api.session.retry import Backoff, BackoffPolicy, call_with_retries
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    CorruptRecordError,
    InconsistentGroupProtocolError,
    InvalidRecordStateError,
    OncelogError,
    RequestTimedOutError,
    exception_for,
)
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)
from oncelog.storage.records.batch import iterate_batches

RUNS_PER_CALL_MAX: Final = 5_000
"""Runs in one acknowledgement; the others go with the next call."""

WAIT_PER_CALL_MS: Final = 5_000
"""How long one call waits at the coordinator for records."""

HEARTBEATS_PER_SESSION: Final = 4
LEAVE_TIMEOUT_MS: Final = 4_000

RETRY: Final = BackoffPolicy(initial_ms=20, max_ms=500)

_LOST: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_NAMED_MAX: Final = 3

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Held:
    """What the worker holds of a partition."""

    topic_partition: TopicPartition
    topic_id: str
    runs: HeldRuns = field(default_factory=HeldRuns)


class Acknowledged(NamedTuple):
    """Acknowledged offsets on their way to the coordinator, both ends inclusive."""

    topic_partition: TopicPartition
    topic_id: str
    first: int
    last: int
    type: AcknowledgeType


class QueueCore:
    """The implementation of ``Queue`` and ``AsyncQueue``. Belongs to one event loop.

    ``accept`` and the like may be called from another thread; ``call_soon`` gets work to the loop
    from there.
    """

    def __init__(
        self,
        *,
        router: Router,
        settings: QueueSettings,
        topics: Sequence[str],
        random: Random,
        call_soon: Callable[[Callable[[], object]], object],
    ) -> None:
        self.settings = settings
        self.topics = tuple(topics)
        self._router = router
        self._random = random
        self._process = router.process
        self._call_soon = call_soon
        self._member_id = f"{random.getrandbits(128):032x}"
        self._epoch = JOIN_EPOCH
        self._session_timeout_ms = 0
        self._acquire_sequence = self._acknowledge_sequence = 0
        self._lock = threading.Lock()
        """Guards what follows, which other threads change too."""
        self._held: dict[tuple[str, int], Held] = {}
        self._waiting: list[Acknowledged] = []
        self._sending: list[Acknowledged] = []
        self._is_woken = False
        self._unread: list[AcquiredRun] = []
        """Acquired, and read by the next calls of ``take``."""
        self._unread_until_ms = 0.0
        self._sender: asyncio.Task[None] | None = None
        self._heart: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()
        """Set when there is something to send."""
        self._drained = asyncio.Event()
        """Set when all is sent."""
        self._undelivered: list[QueueRecord] = []
        self._burier: AsyncProducer | None = None
        self._refused: list[Acknowledged] = []
        self._failure: OncelogError | None = None
        self._tasks = OwnTasks(self._on_failure)
        self._taking = asyncio.Lock()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    def check_open(self) -> None:
        """Raise ``ClientClosedError`` once the queue is closed."""
        if self._is_closed:
            raise ClientClosedError

    def _on_failure(self, error: BaseException) -> None:
        self._failure = OncelogError(f"the queue cannot go on: {error!r}")
        self._drained.set()

    # --- take ---------------------------------------------------------------------------------

    async def take(self, max_records: int, timeout_ms: float) -> list[QueueRecord]:
        """Acquire records and read them; an empty list after ``timeout_ms``.

        Until ``delivered`` is called the next call returns the same: the caller may be gone.
        """
        self.check_open()
        async with self._taking:
            deadline_ms = loop_ms() + timeout_ms
            backoff = Backoff(RETRY, self._random)
            while not self._undelivered:
                self.check_open()
                self._raise_failure()
                if self._epoch == JOIN_EPOCH:
                    await self._join()
                if not self._unread:
                    left_ms = max(deadline_ms - loop_ms(), 0)
                    self._unread = await self._acquire(max_records, left_ms)
                    self._unread_until_ms = loop_ms() + self.settings.record_lock_duration_ms
                records = await self._read(max_records)
                try:
                    self._undelivered = await self._without_dead(records)
                except BaseException:
                    # Their caller gets none of them.
                    self._release(records)
                    raise
                if self._unread and not self._undelivered:
                    await asyncio.sleep(backoff.delay_ms(ErrorCode.NONE) / 1_000)
                if loop_ms() >= deadline_ms:
                    break
            return self._undelivered

    def delivered(self) -> None:
        """The caller has what ``take`` returned."""
        self._undelivered = []

    async def _without_dead(self, records: list[QueueRecord]) -> list[QueueRecord]:
        """Bury records that were delivered too often; return the others."""
        topic, count_max = self.settings.dead_letter_topic, self.settings.max_delivery_count
        if topic is None or all(record.delivery_count <= count_max for record in records):
            return records
        await self._bury(topic, [one for one in records if one.delivery_count > count_max])
        return [one for one in records if one.delivery_count <= count_max]

    async def _bury(self, topic: str, dead: Sequence[QueueRecord]) -> None:
        """Copy records to the dead-letter topic and accept them, in one transaction."""
        try:
            producer = self._burier
            if producer is None:
                transactional_id = f"{self.settings.group_id}-dead-letters-{self._member_id}"
                settings = ProducerSettings(transactional_id=transactional_id)
                producer = AsyncProducer(self._router, settings, random=self._random)
                self._burier = producer
                await producer.init_transactions()
            async with producer.transaction():
                for record in dead:
                    await producer.send(
                        topic,
                        key=record.key,
                        value=record.value,
                        headers=(*record.headers, *_burial(record)),
                    )
                await producer.send_acknowledgements_to_transaction(dead, self)
        except OncelogError:
            # The next take makes another producer; the records are delivered again.
            await self._end_burier()
            raise

    async def _end_burier(self) -> None:
        producer, self._burier = self._burier, None
        if producer is not None:
            with contextlib.suppress(OncelogError):
                await producer.close()

    async def _join(self) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=self.settings.group_id,
            member_id=self._member_id,
            topics=self.topics,
            process=self._process,
            order=ShareOrder[self.settings.order.upper()],
        )
        # A topic that does not exist is named now: nobody could tell why the queue stays empty.
        for topic in self.topics:
            await self._router.partition_count(topic)
        reply = await call_with_retries(
            lambda left_ms: self._router.call_group_coordinator(
                self.settings.group_id,
                request,
                timeout_ms=min(left_ms, self.settings.request_timeout_ms),
            ),
            random=self._random,
            timeout_ms=self.settings.default_api_timeout_ms,
            policy=RETRY,
        )
        if reply.error is not ErrorCode.NONE:
            raise exception_for(reply.error, reply.detail)
        if reply.order is not request.order:
            raise InconsistentGroupProtocolError(
                f"order={self.settings.order!r}: the coordinator of {self.settings.group_id!r} is "
                "of a version without it",
                advice="upgrade all brokers first",
            )
        self._epoch = reply.member_epoch
        self._session_timeout_ms = reply.session_timeout_ms
        self._acquire_sequence = self._acknowledge_sequence = 0
        if self._heart is None:
            self._heart = self._tasks.spawn(self._beat())
            self._sender = self._tasks.spawn(self._send())

    async def _acquire(self, max_records: int, timeout_ms: float) -> list[AcquiredRun]:
        """Acquire, once; nothing if nothing is available or the coordinator is away.

        Without a reply the next call has the same sequence number, and gets what this one got.
        """
        epoch = self._epoch
        request = ShareAcquireRequest(
            group_id=self.settings.group_id,
            member_id=self._member_id,
            member_epoch=epoch,
            topics=self.topics,
            sequence=self._acquire_sequence + 1,
            max_records=max_records,
            max_wait_ms=int(min(timeout_ms, WAIT_PER_CALL_MS)),
        )
        reply: ShareAcquireReply = await self._router.call_group_coordinator(
            self.settings.group_id,
            request,
            timeout_ms=request.max_wait_ms + self.settings.request_timeout_ms,
        )
        if reply.error in _LOST:
            self._lose(epoch)
            return []
        if reply.error is not ErrorCode.NONE:
            if not reply.error.retriable:
                raise exception_for(reply.error, reply.detail)
            await asyncio.sleep(RETRY.initial_ms / 1_000)
            return []
        if epoch != self._epoch:
            return []
        if reply.acquired:
            self._acquire_sequence += 1
        return sorted(reply.acquired, key=lambda run: (run.topic_partition, run.first_offset))

    async def _read(self, max_records: int) -> list[QueueRecord]:
        """Read what was acquired; the worker holds what is returned."""
        (runs, later), epoch = _first(self._unread, max_records), self._epoch
        if not runs:
            return []
        by_partition: dict[TopicPartition, list[AcquiredRun]] = {}
        for run in runs:
            by_partition.setdefault(run.topic_partition, []).append(run)
        try:
            reads = await asyncio.gather(
                *(
                    read_runs(
                        self._router,
                        tp,
                        its_runs,
                        self.settings,
                        random=self._random,
                        bytes_max=self.settings.fetch_max_bytes,
                    )
                    for tp, its_runs in by_partition.items()
                )
            )
        except CorruptRecordError as damage:
            if epoch == self._epoch:
                self._reject_damaged(damage)
            raise
        if epoch != self._epoch:
            return []
        self._unread = [*(run for read in reads for run in read.unread), *later]
        records = self._hold(by_partition, reads)
        if not records and any(read.released for read in reads):
            # The coordinator gives them again, until it knows that the topic is another one.
            await asyncio.sleep(RETRY.max_ms / 1_000)
        return records

    def _reject_damaged(self, damage: CorruptRecordError) -> None:
        """Drop what nobody can read: it would be delivered for ever. ``take`` raises it, once."""
        damaged: list[Acknowledged] = []
        unread: list[AcquiredRun] = []
        for run in self._unread:
            first = max(run.first_offset, damage.offset)
            last = min(run.last_offset, damage.next_offset - 1)
            if run.topic_partition != damage.topic_partition or first > last:
                unread.append(run)
                continue
            damaged.append(
                Acknowledged(run.topic_partition, run.topic_id, first, last, AcknowledgeType.REJECT)
            )
            if run.first_offset < first:
                unread.append(structs.replace(run, last_offset=first - 1))
            if last < run.last_offset:
                unread.append(structs.replace(run, first_offset=last + 1))
        self._unread = unread
        with self._lock:
            self._waiting += damaged
        self._wake()

    def _hold(
        self, runs: Mapping[TopicPartition, Sequence[AcquiredRun]], reads: Sequence[ReadRuns]
    ) -> list[QueueRecord]:
        records: list[QueueRecord] = []
        deadline_ms = loop_ms() + self.settings.record_lock_duration_ms
        with self._lock:
            for (tp, its_runs), read in zip(runs.items(), reads, strict=True):
                topic_id = its_runs[0].topic_id
                held = self._held.get((tp.topic, tp.partition))
                if held is None or held.topic_id != topic_id:
                    # What was held of a topic that is gone is of no use.
                    held = self._held[tp.topic, tp.partition] = Held(tp, topic_id)
                held.runs.hold(runs_of([one.offset for one in read.records]), deadline_ms)
                self._waiting += [
                    Acknowledged(tp, topic_id, first, last, AcknowledgeType.GAP)
                    for first, last in runs_of(read.gaps)
                ]
                self._waiting += map(_release_of, read.released)
                records += read.records
        self._wake()
        return records

    # --- acknowledge --------------------------------------------------------------------------

    def acknowledge(
        self, records: QueueRecord | Iterable[QueueRecord], kind: AcknowledgeType
    ) -> None:
        """Give up records with what became of them; sent soon. From any thread."""
        self.check_open()
        given = (records,) if isinstance(records, QueueRecord) else _several(records)
        with self._lock:
            self._append(self._give_up(given, kind))
            if self._is_woken:
                return
            self._is_woken = True
        self._call_soon(self._sent.set)

    def _append(self, runs: Sequence[Acknowledged]) -> None:
        """Have runs sent; one that continues the last is joined to it. The lock is held."""
        waiting = self._waiting
        for run in runs:
            former = waiting[-1] if waiting else None
            if (
                former is not None
                and former.last + 1 == run.first
                and former.type is run.type
                and former.topic_partition == run.topic_partition
                and former.topic_id == run.topic_id
            ):
                waiting[-1] = former._replace(last=run.last)
            else:
                waiting.append(run)

    def _give_up(self, records: Sequence[QueueRecord], kind: AcknowledgeType) -> list[Acknowledged]:
        """Drop records from those held; all or none. The lock is held."""
        given: list[Acknowledged] = []
        former: list[tuple[Held, list[HeldRun]]] = []
        for key, offsets in offsets_by_partition(records).items():
            held = self._held.get(key)
            for first, last in runs_of(offsets):
                runs = None if held is None else held.runs.give_up(first, last)
                if held is None or runs is None:
                    for one, its_runs in former:
                        one.runs.restore(its_runs)
                    raise self._not_held(records)
                former.append((held, runs))
                given.append(Acknowledged(held.topic_partition, held.topic_id, first, last, kind))
        return given

    def _not_held(self, records: Sequence[QueueRecord]) -> InvalidRecordStateError:
        """The error for the first of ``records`` that is not held, or is given twice."""
        seen: set[tuple[TopicPartition, int]] = set()
        for record in records:
            held = self._held.get((record.topic, record.partition))
            if held is None or not held.runs.has(record.offset):
                break
            if (record.topic_partition, record.offset) in seen:
                break
            seen.add((record.topic_partition, record.offset))
        return InvalidRecordStateError(
            f"{record.topic_partition} at offset {record.offset} is not held by this worker: it "
            "was acknowledged already, its lock has ended, or another worker took it"
        )

    def renew(self, records: QueueRecord | Iterable[QueueRecord]) -> None:
        """Work on records for as long again. From any thread."""
        self.check_open()
        given = (records,) if isinstance(records, QueueRecord) else _several(records)
        deadline_ms = loop_ms() + self.settings.record_lock_duration_ms
        with self._lock:
            for run in self._give_up(given, AcknowledgeType.RELEASE):
                held = self._held[run.topic_partition.topic, run.topic_partition.partition]
                held.runs.hold([(run.first, run.last)], deadline_ms)

    def acknowledgements(
        self, records: QueueRecord | Iterable[QueueRecord]
    ) -> QueueAcknowledgements:
        """Give up records to a transaction, which accepts them if it commits. From any thread."""
        self.check_open()
        given = (records,) if isinstance(records, QueueRecord) else _several(records)
        with self._lock:
            accepted = self._give_up(given, AcknowledgeType.ACCEPT)
        return QueueAcknowledgements(
            group_id=self.settings.group_id,
            member_id=self._member_id,
            member_epoch=self._epoch,
            acknowledgements=tuple(_parts(accepted)),
        )

    def unsent(self, given: QueueAcknowledgements) -> None:
        """A transaction could not accept these: what of it is still held is released."""
        with self._lock:
            self._waiting += [
                Acknowledged(
                    part.topic_partition,
                    part.topic_id,
                    run.first_offset,
                    run.last_offset,
                    AcknowledgeType.RELEASE,
                )
                for part in given.acknowledgements
                for run in part.runs
            ]
            self._is_woken = True
        self._call_soon(self._sent.set)

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until all that was acknowledged is durable; raise what was refused."""
        limit_ms = self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = loop_ms() + limit_ms
        while self._failure is None and self._is_sending:
            self._drained.clear()
            left_s = (deadline_ms - loop_ms()) / 1_000
            try:
                await asyncio.wait_for(self._drained.wait(), left_s)
            except asyncio.TimeoutError:
                raise RequestTimedOutError(
                    f"acknowledgements are not known to be durable within {limit_ms} ms; they are "
                    "still being sent",
                    advice="call flush() again",
                ) from None
        self._raise_failure()

    @property
    def _is_sending(self) -> bool:
        return bool(self._is_woken or self._waiting or self._sending)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        refused, self._refused = self._refused, []
        if refused:
            offsets = [(one, n) for one in refused for n in range(one.first, one.last + 1)]
            named = [f"{one.topic_partition} at offset {n}" for one, n in offsets[:_NAMED_MAX]]
            more = f" and {len(offsets) - _NAMED_MAX} more" if len(offsets) > _NAMED_MAX else ""
            raise InvalidRecordStateError(
                f"the locks of {', '.join(named)}{more} had ended: they are delivered again"
            )

    def _wake(self) -> None:
        with self._lock:
            self._is_woken = self._is_woken or bool(self._waiting)
            if not self._is_woken:
                return
        self._sent.set()

    async def _send(self) -> None:
        """The task that sends acknowledgements."""
        while True:
            await self._sent.wait()
            self._sent.clear()
            while True:
                with self._lock:
                    self._sending = self._waiting[:RUNS_PER_CALL_MAX]
                    del self._waiting[:RUNS_PER_CALL_MAX]
                    if not self._sending:
                        self._is_woken = False
                        self._drained.set()
                        break
                await self._send_once(self._sending)

    async def _send_once(self, batch: Sequence[Acknowledged]) -> None:
        """Send one call until its outcome is known."""
        parts = list(_parts(batch))
        epoch = self._epoch
        request = ShareAcknowledgeRequest(
            group_id=self.settings.group_id,
            member_id=self._member_id,
            member_epoch=epoch,
            sequence=self._acknowledge_sequence + 1,
            acknowledgements=tuple(parts),
        )
        backoff = Backoff(RETRY, self._random)
        while True:
            reply: ShareAcknowledgeReply = await self._router.call_group_coordinator(
                self.settings.group_id, request, timeout_ms=self.settings.request_timeout_ms
            )
            if epoch != self._epoch or not reply.error.retriable:
                break
            await asyncio.sleep(backoff.delay_ms(reply.error) / 1_000)
        if epoch != self._epoch or reply.error in _LOST:
            self._lose(epoch)
            self._refuse(batch)
        elif reply.error is not ErrorCode.NONE:
            self._failure = exception_for(reply.error, reply.detail)
        else:
            self._acknowledge_sequence += 1
            self._refuse(_of_runs(parts, reply.refused))

    def _refuse(self, refused: Iterable[Acknowledged]) -> None:
        """Note for the next call what the program would otherwise believe to be done."""
        self._refused += [
            one for one in refused if one.type in (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)
        ]

    # --- live ---------------------------------------------------------------------------------

    def _lose(self, epoch: int) -> None:
        """The session of ``epoch`` has ended, and all locks with it."""
        if epoch != self._epoch or epoch == JOIN_EPOCH:
            return
        self._epoch = JOIN_EPOCH
        self._unread = []
        self._undelivered = []
        with self._lock:
            count = sum(held.runs.count for held in self._held.values())
            self._held.clear()
            # Under the next epoch they would be about records that are delivered again.
            waiting, self._waiting = self._waiting, []
            self._refuse(waiting)
        _log.warning(
            "the session of this worker of %r has ended: its %d records are delivered again",
            self.settings.group_id,
            count,
        )

    async def _beat(self) -> None:
        """The task of heartbeats; it also releases what is worked on for too long."""
        while True:
            await asyncio.sleep(self._session_timeout_ms / HEARTBEATS_PER_SESSION / 1_000)
            self._release_overdue()
            epoch = self._epoch
            if epoch == JOIN_EPOCH:
                continue
            request = ShareGroupHeartbeatRequest(
                group_id=self.settings.group_id,
                member_id=self._member_id,
                member_epoch=epoch,
                topics=self.topics,
                process=self._process,
            )
            reply = await self._router.call_group_coordinator(
                self.settings.group_id,
                request,
                timeout_ms=self._session_timeout_ms // HEARTBEATS_PER_SESSION,
            )
            if reply.error in _LOST:
                self._lose(epoch)

    def _release(self, records: Sequence[QueueRecord]) -> None:
        """Give back those that are still held."""
        with self._lock:
            for record in records:
                with contextlib.suppress(InvalidRecordStateError):
                    self._append(self._give_up((record,), AcknowledgeType.RELEASE))
        self._wake()

    def _release_overdue(self) -> None:
        now_ms, count = loop_ms(), 0
        with self._lock:
            if now_ms >= self._unread_until_ms and not self._taking.locked():
                # Nobody takes any more, and others may.
                unread, self._unread = self._unread, []
                self._waiting += map(_release_of, unread)
                count += _count(unread)
            for held in self._held.values():
                for run in held.runs.take_overdue(now_ms):
                    count += run.last - run.first + 1
                    self._waiting.append(
                        Acknowledged(
                            held.topic_partition,
                            held.topic_id,
                            run.first,
                            run.last,
                            AcknowledgeType.RELEASE,
                        )
                    )
        if count:
            _log.warning(
                "%d records were held for longer than record_lock_duration_ms=%d, and are released",
                count,
                self.settings.record_lock_duration_ms,
            )
            self._wake()

    # --- backlog ------------------------------------------------------------------------------

    async def backlog(self) -> QueueBacklog:
        """What is not finished, as of now, also before the first worker has joined."""
        self.check_open()
        request = DescribeShareGroupRequest(group_id=self.settings.group_id)
        reply = await call_with_retries(
            lambda left_ms: self._router.call_group_coordinator(
                self.settings.group_id,
                request,
                timeout_ms=min(left_ms, self.settings.request_timeout_ms),
            ),
            random=self._random,
            timeout_ms=self.settings.default_api_timeout_ms,
            policy=RETRY,
        )
        if reply.error not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            raise exception_for(reply.error, reply.detail)
        known = {one.topic_partition for one in reply.partitions}
        partitions = (*reply.partitions, *await self._untouched(known))
        ages = await asyncio.gather(*(self._age_ms(one) for one in partitions))
        return QueueBacklog(
            available=sum(one.available_count for one in partitions),
            acquired=sum(one.acquired_count for one in partitions),
            pending=sum(one.pending_count for one in partitions),
            age_ms=max(ages, default=0),
            workers=reply.member_count,
        )

    async def _untouched(self, known: Set[TopicPartition]) -> list[SharePartitionDescription]:
        """The partitions of our topics that no worker of the group has asked for: all of each."""
        counts = {topic: await self._router.partition_count(topic) for topic in self.topics}
        places = {TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)}
        places -= known
        starts, ends = await asyncio.gather(
            *(
                list_offsets(
                    self._router,
                    dict.fromkeys(places, timestamp),
                    isolation_level=IsolationLevel.READ_COMMITTED,
                    random=self._random,
                    timeout_ms=self.settings.default_api_timeout_ms,
                )
                for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
            )
        )
        return [
            SharePartitionDescription(
                topic_partition=tp,
                start_offset=starts[tp].offset,
                next_offset=starts[tp].offset,
                end_offset=ends[tp].offset,
                available_count=max(ends[tp].offset - starts[tp].offset, 0),
            )
            for tp in sorted(places)
        ]

    async def _age_ms(self, partition: SharePartitionDescription) -> int:
        """The age of the first record that is not finished; 0 if it is unknown."""
        if partition.start_offset >= partition.end_offset:
            return 0
        request = FetchRequest(
            topic_partition=partition.topic_partition,
            fetch_offset=partition.start_offset,
            max_wait_ms=0,
            max_bytes=1,
        )
        reply = await self._router.call_leader(
            partition.topic_partition, request, timeout_ms=self.settings.request_timeout_ms
        )
        headers = [header for _, header in itertools.islice(iterate_batches(reply.records), 1)]
        now_ms = self._router.clock.now_ms()
        return max((now_ms - header.base_timestamp_ms for header in headers), default=0)

    # --- the end ------------------------------------------------------------------------------

    async def abandon(self) -> None:
        """Leave without a flush: what was processed is unknown, and all is delivered again."""
        await self._leave()

    async def close(self) -> None:
        """Send what was acknowledged, release the rest, and leave. Safe to repeat."""
        if self._is_closed:
            return
        try:
            if self._epoch != JOIN_EPOCH:
                await self.flush(self.settings.default_api_timeout_ms)
            else:
                self._raise_failure()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        epoch, self._epoch = self._epoch, JOIN_EPOCH
        self._tasks.cancel()
        await self._end_burier()
        with self._lock:
            self._held.clear()
        if epoch == JOIN_EPOCH:
            return
        request = ShareGroupHeartbeatRequest(
            group_id=self.settings.group_id,
            member_id=self._member_id,
            member_epoch=epoch,
            is_leaving=True,
            topics=self.topics,
        )
        reply = await call_with_retries(
            lambda left_ms: self._router.call_group_coordinator(
                self.settings.group_id, request, timeout_ms=left_ms
            ),
            random=self._random,
            timeout_ms=LEAVE_TIMEOUT_MS,
            policy=RETRY,
        )
        if reply.error not in (ErrorCode.NONE, *_LOST):
            _log.warning(
                "this worker could not leave %r: %s; its records are released once its session "
                "has ended",
                self.settings.group_id,
                reply.error.name,
            )


def _several(records: Iterable[QueueRecord]) -> tuple[QueueRecord, ...]:
    """Records that a program gives back; ``TypeError`` for anything else, before it has effect."""
    given = tuple(records) if isinstance(records, Iterable) else (records,)
    for one in given:
        if not isinstance(one, QueueRecord):
            raise TypeError(f"{one!r:.80} is not a record of take(); give one of them, or several")
    return given


def _burial(record: QueueRecord) -> tuple[tuple[str, bytes], ...]:
    """Headers that tell where a dead letter comes from."""
    return (
        ("oncelog.topic", record.topic.encode()),
        ("oncelog.partition", str(record.partition).encode()),
        ("oncelog.offset", str(record.offset).encode()),
        ("oncelog.delivery_count", str(record.delivery_count - 1).encode()),
    )


def _release_of(run: AcquiredRun) -> Acknowledged:
    return Acknowledged(
        run.topic_partition,
        run.topic_id,
        run.first_offset,
        run.last_offset,
        AcknowledgeType.RELEASE,
    )


def _count(runs: Iterable[AcquiredRun]) -> int:
    return sum(run.last_offset - run.first_offset + 1 for run in runs)


def _first(
    runs: Sequence[AcquiredRun], count_max: int
) -> tuple[list[AcquiredRun], list[AcquiredRun]]:
    """The first ``count_max`` offsets of ``runs``, and the others."""
    left = count_max
    for place, run in enumerate(runs):
        if _count((run,)) > left:
            end = run.first_offset + left
            begun = [structs.replace(run, last_offset=end - 1)] if left else []
            later = [structs.replace(run, first_offset=end), *runs[place + 1 :]]
            return [*runs[:place], *begun], later
        left -= _count((run,))
    return list(runs), []


def _parts(batch: Iterable[Acknowledged]) -> Iterable[PartitionAcknowledgements]:
    """Runs by partition and topic id, each in order; neighbours of one type are joined."""
    by_partition: dict[tuple[TopicPartition, str], list[Acknowledged]] = {}
    for one in batch:
        by_partition.setdefault((one.topic_partition, one.topic_id), []).append(one)
    for (tp, topic_id), given in by_partition.items():
        runs: list[AcknowledgedRun] = []
        for one in sorted(given):
            former = runs[-1] if runs else None
            if (
                former is not None
                and former.last_offset + 1 == one.first
                and former.type is one.type
            ):
                runs[-1] = structs.replace(former, last_offset=one.last)
            else:
                runs.append(AcknowledgedRun(one.first, one.last, one.type))
        yield PartitionAcknowledgements(topic_partition=tp, topic_id=topic_id, runs=tuple(runs))


def _of_runs(
    parts: Sequence[PartitionAcknowledgements], indexes: Sequence[int]
) -> Iterable[Acknowledged]:
    """The runs with these indexes."""
    runs = [(part, run) for part in parts for run in part.runs]
    for index in indexes:
        part, run = runs[index]
        yield Acknowledged(
            part.topic_partition, part.topic_id, run.first_offset, run.last_offset, run.type
        )
