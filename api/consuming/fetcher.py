"""Reads ahead for a consumer: one long poll at a time per assigned partition.

One task per partition calls its leader, filters the reply and buffers it until it is taken. Fetches
of partitions that share a host process travel together (``shared_fetches``), but for those that
give much. A partition buffers at most two replies: one being taken from, one fetched ahead. No
fetch starts while all replies together have ``fetch_max_bytes``. So memory stays below that plus
one reply per partition. A seek cancels the fetch in flight and drops its reply.

A retriable error is retried after a wait, at the leader that the router then finds. Any other
error, or a damaged batch, waits until everything before it is taken; the consumer then raises it.

A deposed leader that does not know it has no new records and returns no error, and a follower that
is cut off has none either. So idle partitions, and those read from followers, are looked up again
every ``IDLE_CHECK_MS``, and a fetch that waits elsewhere is begun anew (``read_replicas``).

One file: what is assigned, taken or fetched wakes the tasks of the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec import structs

from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.partition import NO_BROKER, FetchReply, FetchRequest
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.commit_order import CommitOrderPartition
from oncelog.api.consuming.fetch_buffer import AssignedPartition
from oncelog.api.consuming.metrics import ConsumerCounters
from oncelog.api.consuming.read_replicas import ReadReplicas
from oncelog.api.consuming.shared_fetches import SharedFetches
from oncelog.api.records import ConsumerRecord, next_moment
from oncelog.api.session.committed_offsets import consumer_backoff, is_retriable
from oncelog.api.session.event_loop import cancelled_by_program
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    CorruptDataError,
    IllegalStateError,
    OncelogError,
    SpillFailedError,
    exception_for,
)
from oncelog.storage.model import NO_OFFSET, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

IDLE_CHECK_MS: Final = 20_000

ALONE_MIN_BYTES: Final = 262_144
"""A reply with so many bytes of records is worth a call of its own.

Together such replies would wait for each other, and be too long for the processor's cache.
"""

_log = logging.getLogger(__name__)


class _Wait:
    """A fetch that waits in a host at ``address``; ``follower`` as in ``_fetch``."""

    def __init__(self, address: str, follower: int | None) -> None:
        self.address = address
        self.follower = follower


class Fetcher:
    """The assigned partitions and the tasks that fetch for them. Belongs to one event loop.

    ``on_change`` is called whenever a waiting poll may find something new: data, a moved position
    or a failure.
    """

    def __init__(
        self,
        *,
        router: Router,
        settings: ConsumerSettings,
        random: Random,
        on_change: Callable[[], None],
        counters: ConsumerCounters | None = None,
    ) -> None:
        self._router = router
        self._counters = counters or ConsumerCounters()
        self._settings = settings
        self._random = random
        self._on_change = on_change
        self._isolation_level = settings.isolation_level
        # In commit order the reader itself keeps what is open.
        is_whole = settings.order == "commit"
        self._fetched_level = (
            IsolationLevel.READ_UNCOMMITTED if is_whole else settings.isolation_level
        )
        self._partitions: dict[TopicPartition, AssignedPartition] = {}
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._room: dict[TopicPartition, asyncio.Event] = {}
        self._turn = 0
        self._idle: set[TopicPartition] = set()
        """Partitions whose leader had nothing new the last time."""
        self._idle_check: asyncio.Task[None] | None = None
        self._crash: BaseException | None = None
        self._shared = SharedFetches(router, settings, random, self._on_bug)
        self._waits_at: dict[TopicPartition, _Wait] = {}
        """The fetches that travel with others and have not ended."""
        self._read_replicas = ReadReplicas(settings.client_rack or "")

    # --- assignment ---------------------------------------------------------------------------

    @property
    def partitions(self) -> Mapping[TopicPartition, AssignedPartition]:
        """The assigned partitions, for reading their positions and bounds.

        A new assignment is a new mapping, so any thread may iterate over this one.
        """
        return self._partitions

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Fetch exactly ``topic_partitions``; those kept keep position, pause and data."""
        wanted = dict.fromkeys(topic_partitions)
        former = self._partitions
        self._partitions = {tp: partition for tp, partition in former.items() if tp in wanted} | {
            tp: self._new_partition(tp) for tp in wanted if tp not in former
        }
        for topic_partition in former.keys() - wanted.keys():
            self._stop(topic_partition)
            former[topic_partition].release()
            del self._room[topic_partition]
            self._read_replicas.forget(topic_partition)
        for topic_partition in wanted:
            if topic_partition not in former:
                self._room[topic_partition] = asyncio.Event()
                self._start(topic_partition)
        self._idle &= wanted.keys()
        if wanted and self._idle_check is None:
            self._idle_check = asyncio.get_running_loop().create_task(self._check_leaders())
            self._idle_check.add_done_callback(
                partial(self._ended, lambda task: task is self._idle_check)
            )
        elif not wanted and self._idle_check is not None:
            idle_check, self._idle_check = self._idle_check, None
            idle_check.cancel()

    def _new_partition(self, topic_partition: TopicPartition) -> AssignedPartition:
        if self._settings.order == "offset":
            return AssignedPartition(topic_partition)
        return CommitOrderPartition(
            topic_partition,
            buffer_bytes=self._settings.commit_order_buffer_bytes,
            spill_directory=self._settings.spill_directory,
            spill_max_bytes=self._settings.spill_max_bytes,
        )

    def partition(self, topic_partition: TopicPartition) -> AssignedPartition:
        """The state of one assigned partition; ``IllegalStateError`` if it is not assigned."""
        try:
            return self._partitions[topic_partition]
        except KeyError:
            raise IllegalStateError(
                f"partition {topic_partition} is not assigned to this consumer; assigned: "
                f"{', '.join(map(str, self._partitions)) or 'none'}"
            ) from None

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Continue from ``offset`` (inclusive); prefetched data is dropped."""
        self.partition(topic_partition).seek(offset)
        # The follower may not have that offset yet; the leader knows.
        self._read_replicas.leave(topic_partition)
        self._restart(topic_partition)

    def reset(self, topic_partition: TopicPartition, timestamp: int | None) -> None:
        """Make the position unknown and stop fetching; ``timestamp`` says how to find it."""
        self.partition(topic_partition).reset(timestamp)
        self._restart(topic_partition)

    def pause(self, topic_partition: TopicPartition) -> None:
        """Deliver nothing of the partition and start no fetch.

        Buffered data is kept while it leaves room for other partitions.
        """
        self.partition(topic_partition).is_paused = True
        self._make_room()

    def resume(self, topic_partition: TopicPartition) -> None:
        """Deliver and fetch the partition again."""
        self.partition(topic_partition).is_paused = False
        self._make_room()
        self._on_change()

    def withhold(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Deliver and fetch no more of these: they are about to be given up."""
        for topic_partition in topic_partitions:
            self._partitions[topic_partition].is_withheld = True

    async def close(self) -> None:
        """Stop fetching and drop the assignment."""
        tasks = [*self._tasks.values(), *filter(None, [self._idle_check])]
        self.assign(())
        self._shared.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def followers(self) -> Mapping[TopicPartition, int]:
        """The partitions that are read from a follower now, with its broker."""
        return self._read_replicas.followers

    # --- taking -------------------------------------------------------------------------------

    @property
    def has_data(self) -> bool:
        """Whether taking would move a position or deliver a record."""
        return any(p.has_pieces and p.is_readable for p in self._partitions.values())

    def take_failure(self) -> tuple[AssignedPartition, OncelogError] | None:
        """Take a failure once everything before it is taken; fetching then resumes."""
        if self._crash is not None:
            raise self._crash
        for partition in self._partitions.values():
            failure = partition.failure
            if failure is not None and not partition.has_pieces and partition.is_readable:
                partition.failure = None
                self._room[partition.topic_partition].set()
                return partition, failure
        return None

    def take_records(self, count_max: int) -> list[ConsumerRecord]:
        """Take up to ``count_max`` records, from one partition after another, round robin.

        Raises ``CorruptRecordError`` if the first record to take cannot be decoded.
        """
        taken: list[ConsumerRecord] = []
        for partition in self._ready():
            if len(taken) >= count_max:
                break
            try:
                records = partition.take_records(count_max - len(taken))
            except CorruptDataError:
                if not taken:
                    raise
                continue
            if records:
                partition.delivered_at = next_moment()
                taken += records
        self._counters.records += len(taken)
        self._make_room()
        return taken

    def take_columns(
        self, count_max: int | None
    ) -> list[tuple[TopicPartition, list[pa.RecordBatch]]]:
        """Take all that is buffered, or up to ``count_max`` rows, as columns per partition."""
        taken: list[tuple[TopicPartition, list[pa.RecordBatch]]] = []
        left = count_max
        for partition in self._ready():
            if left is not None and left <= 0:
                break
            try:
                batches = partition.take_columns(left)
            except CorruptDataError:
                if not taken:
                    raise
                continue
            if batches:
                partition.delivered_at = next_moment()
                taken.append((partition.topic_partition, batches))
                row_count = sum(batch.num_rows for batch in batches)
                self._counters.records += row_count
                if left is not None:
                    left -= row_count
        self._make_room()
        return taken

    def _ready(self) -> list[AssignedPartition]:
        """Partitions to take from, in an order that rotates by one per call that finds any.

        Not per call: a poll may look twice, and would always begin with the same of two.
        """
        partitions = [p for p in self._partitions.values() if p.has_pieces and p.is_readable]
        if not partitions:
            return []
        self._turn += 1
        first = self._turn % len(partitions)
        return partitions[first:] + partitions[:first]

    def _make_room(self) -> None:
        """Wake only the tasks that may fetch now; waking all would cost as much as a poll."""
        for topic_partition, event in self._room.items():
            if self._may_fetch(self._partitions[topic_partition]):
                event.set()

    # --- fetching -----------------------------------------------------------------------------

    def _start(self, topic_partition: TopicPartition) -> None:
        task = asyncio.get_running_loop().create_task(
            self._run(self._partitions[topic_partition], self._room[topic_partition])
        )
        self._tasks[topic_partition] = task
        task.add_done_callback(
            partial(self._ended, lambda task: task is self._tasks.get(topic_partition))
        )

    def _ended(
        self, is_wanted: Callable[[asyncio.Task[None]], bool], task: asyncio.Task[None]
    ) -> None:
        """A task ends only when it is released and cancelled; else poll must report its error."""
        crash: BaseException | None = None
        if not task.cancelled():
            crash = task.exception()
        elif is_wanted(task):
            crash = cancelled_by_program("consumer")
        if crash is not None:
            self._on_bug(crash)

    def _on_bug(self, bug: BaseException) -> None:
        self._crash = bug
        self._on_change()

    def _stop(self, topic_partition: TopicPartition) -> None:
        self._tasks.pop(topic_partition).cancel()

    def _restart(self, topic_partition: TopicPartition) -> None:
        self._stop(topic_partition)
        self._start(topic_partition)
        self._make_room()
        self._on_change()

    async def _run(self, partition: AssignedPartition, room: asyncio.Event) -> None:
        """The task of one partition: fetch whenever there is a position and room."""
        backoff = consumer_backoff(self._settings, self._random)
        while True:
            while not (self._may_fetch(partition) and self._has_bytes_left()):
                room.clear()
                await room.wait()
            asked_from = partition.fetch_offset
            began_s = asyncio.get_running_loop().time()
            follower = self._read_replicas.follower(partition.topic_partition, loop_ms())
            reply = await self._fetch(partition, follower)
            self._count(reply, began_s, follower)
            if asyncio.current_task() is not self._tasks.get(partition.topic_partition):
                return
            if partition.fetch_offset != asked_from:
                # The consumer has moved to another position in the meantime.
                continue
            if reply.error is ErrorCode.NONE:
                backoff.reset()
                self._take_reply(partition, reply, follower)
            elif follower is not None:
                self._read_replicas.failed(partition.topic_partition, reply.error, loop_ms())
                await asyncio.sleep(backoff.delay_ms(reply.error) / 1_000)
            elif is_retriable(reply.error) or await self._is_leader_older(partition, reply.error):
                await asyncio.sleep(backoff.delay_ms(reply.error) / 1_000)
            else:
                # A topic that the controller does not know is reported too: it was deleted or
                # never created, and waiting silently would hide a misspelt name.
                self._fail(partition, reply)
                await asyncio.sleep(backoff.delay_ms(reply.error) / 1_000)

    def _take_reply(
        self, partition: AssignedPartition, reply: FetchReply, follower: int | None
    ) -> None:
        """Take a reply of the leader, which may name a follower, or of that ``follower``."""
        tp = partition.topic_partition
        if reply.preferred_read_replica != NO_BROKER:
            self._read_replicas.take(tp, reply.preferred_read_replica, loop_ms())
            return
        self._record_idle(tp, is_idle=not reply.records)
        self._receive(partition, reply, follower)

    def _count(self, reply: FetchReply, began_s: float, follower: int | None) -> None:
        counters = self._counters
        counters.fetches.add(began_s, asyncio.get_running_loop().time())
        counters.follower_fetches += follower is not None and reply.error is ErrorCode.NONE
        counters.failed_fetches += reply.error is not ErrorCode.NONE
        counters.bytes += len(reply.records)

    def _record_idle(self, topic_partition: TopicPartition, *, is_idle: bool) -> None:
        if is_idle:
            self._idle.add(topic_partition)
        else:
            self._idle.discard(topic_partition)

    async def _check_leaders(self) -> None:
        """A task that looks up who leads and follows idle partitions, beside the fetches."""
        while True:
            await asyncio.sleep(IDLE_CHECK_MS / 1_000)
            topics = {tp.topic for tp in (*self._idle, *self._waits_at, *self.followers)}
            if not topics:
                continue
            try:
                await self._router.metadata(topics, refresh=True)
                moved = [
                    (tp, wait)
                    for tp, wait in tuple(self._waits_at.items())
                    if await self._router.address(tp, wait.follower) != wait.address
                ]
            except OncelogError as error:
                _log.info("the leaders of %s are unknown: %s", ", ".join(sorted(topics)), error)
                continue
            for topic_partition, wait in moved:
                if self._waits_at.get(topic_partition) is wait:
                    self._stop(topic_partition)
                    self._start(topic_partition)

    async def _is_leader_older(self, partition: AssignedPartition, error: ErrorCode) -> bool:
        """Whether the leader still has a deleted topic that the consumer no longer reads."""
        if error is not ErrorCode.UNKNOWN_TOPIC_ID:
            return False
        return await self._topic_id(partition) in ("", partition.topic_id)

    def _may_fetch(self, partition: AssignedPartition) -> bool:
        return (
            partition.fetch_offset is not None
            and partition.failure is None
            and partition.has_room
            and partition.is_readable
        )

    def _has_bytes_left(self) -> bool:
        """Whether there is room in the buffer, after dropping paused partitions if need be."""
        if self._buffered_bytes() >= self._settings.fetch_max_bytes:
            for partition in self._partitions.values():
                if partition.is_paused:
                    partition.drop_ahead()
        return self._buffered_bytes() < self._settings.fetch_max_bytes

    def _buffered_bytes(self) -> int:
        return sum(partition.buffered_bytes for partition in self._partitions.values())

    async def _fetch(self, partition: AssignedPartition, follower: int | None) -> FetchReply:
        """The reply of the follower on that broker, or of the leader."""
        settings = self._settings
        fetch_offset = partition.fetch_offset
        assert fetch_offset is not None
        if not partition.topic_id:
            partition.topic_id = await self._topic_id(partition)
        tp = partition.topic_partition
        request = FetchRequest(
            topic_partition=tp,
            fetch_offset=fetch_offset,
            isolation_level=self._fetched_level,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=min(settings.max_partition_fetch_bytes, settings.fetch_max_bytes),
            is_checked=partition.is_suspicious,
            topic_id=partition.topic_id,
        )
        timeout_ms = settings.fetch_max_wait_ms + settings.request_timeout_ms
        if follower is not None:
            return await self._router.call_follower(
                tp,
                follower,
                request,
                timeout_ms=timeout_ms,
                call_hosted=partial(self._fetch_with_others, follower),
            )
        rack = self._read_replicas.rack_for(tp, loop_ms())
        if rack:
            request = structs.replace(request, client_rack=rack)
        return await self._router.call_leader(
            tp,
            request,
            timeout_ms=timeout_ms,
            call_hosted=None
            if partition.is_read_alone
            else lambda address: self._fetch_with_others(None, address, request),
        )

    async def _fetch_with_others(
        self, follower: int | None, address: str, request: FetchRequest
    ) -> FetchReply:
        tp = request.topic_partition
        wait = self._waits_at[tp] = _Wait(address, follower)
        try:
            return await self._shared.fetch(address, request, follower=follower)
        finally:
            if self._waits_at.get(tp) is wait:
                del self._waits_at[tp]

    async def _topic_id(self, partition: AssignedPartition) -> str:
        """The id of the partition's topic, or "" if unknown."""
        name = partition.topic_partition.topic
        try:
            known = await self._router.metadata((name,))
        except OncelogError:
            return ""
        return known[name].topic_id if name in known else ""

    def _receive(
        self, partition: AssignedPartition, reply: FetchReply, follower: int | None
    ) -> None:
        is_committed = self._isolation_level is IsolationLevel.READ_COMMITTED
        partition.readable_end = reply.last_stable_offset if is_committed else reply.high_watermark
        partition.log_start_offset = reply.log_start_offset
        partition.is_read_alone = len(reply.records) >= ALONE_MIN_BYTES
        fetch_offset = partition.fetch_offset
        assert fetch_offset is not None
        try:
            partition.receive(
                reply.records,
                reply.aborted_transactions if is_committed else None,
                checks_crc=self._settings.check_crcs,
            )
        except SpillFailedError as error:
            partition.failure = error  # The next fetch asks for the same reply again.
        except CorruptDataError as error:
            if follower is not None:
                # The leader has another copy.
                self._read_replicas.failed(
                    partition.topic_partition, ErrorCode.CORRUPT_MESSAGE, loop_ms()
                )
                return
            if partition.is_suspicious:
                partition.failure = partition.corrupt(str(error), fetch_offset, NO_OFFSET)
            # Else the leader must check whether its log is damaged, and where the damage ends.
            partition.is_suspicious = not partition.is_suspicious
        else:
            partition.is_suspicious = False
            if follower is not None:
                self._read_replicas.succeeded(partition.topic_partition)
        self._on_change()

    def _fail(self, partition: AssignedPartition, reply: FetchReply) -> None:
        detail = reply.detail or (
            f"fetch of {partition.topic_partition} at offset {partition.fetch_offset}"
        )
        if reply.error is ErrorCode.CORRUPT_MESSAGE:
            fetch_offset = partition.fetch_offset or 0
            partition.failure = partition.corrupt(detail, fetch_offset, reply.resume_offset)
        else:
            partition.failure = exception_for(reply.error, detail)
        self._on_change()
