"""``Consumer`` and ``AsyncConsumer``: read records, alone or as a member of a group.

A consumer is used by one thread (or task) at a time, as in Kafka; another gets
``IllegalStateError`` meanwhile, and may only close it, which ends the calls of the first with
``ClientClosedError``. Errors are raised as ``OncelogError``; retriable ones are retried internally.

One file: the two are one interface, documented once, and hand records over in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import length_hint
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.core import ConsumerCore, ConsumerRebalanceListener
from oncelog.api.consuming.fetcher import Fetcher
from oncelog.api.records import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    OffsetAndTimestamp,
    next_moment,
)
from oncelog.api.session.committed_offsets import fetch_committed, lag_of, list_offsets
from oncelog.api.session.event_loop import (
    Blocking,
    LoopThread,
    ProcessBound,
    blocking,
    close_if_forgotten,
    current_user,
)
from oncelog.api.session.routing import Router
from oncelog.storage.exceptions import (
    ClientClosedError,
    IllegalStateError,
    InvalidRequestError,
    InvalidTopicError,
)
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    TOPIC_NAME_RULE,
    TopicPartition,
    is_valid_topic_name,
)

if TYPE_CHECKING:
    import pyarrow as pa


ITERATION_POLL_MS: Final = 1_000
"""How long one poll of an iterating consumer waits; iteration itself never times out."""

TakenT = TypeVar("TakenT")

Partitions: TypeAlias = TopicPartition | Iterable[TopicPartition]


class AsyncConsumer(ProcessBound):
    """``Consumer`` for asyncio programs, with the same methods. Belongs to one event loop."""

    make_there = "pass its settings and make one there with cluster.consumer(...)"

    def __init__(
        self,
        router: Router,
        settings: ConsumerSettings,
        random: Random,
        reports: CallReports = NO_REPORTS,
    ) -> None:
        self._core = ConsumerCore(router=router, settings=settings, random=random, reports=reports)
        self._handover = Handover()

    @property
    def settings(self) -> ConsumerSettings:
        """What the consumer was made with."""
        return self._core.settings

    # --- what is read -------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: str | Iterable[str],
        *,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Read ``topics`` together with the other members of the group; replaces the last call.

        Partitions are assigned during the following polls, which tell the ``listener`` of them.
        Needs a ``group_id``. Topics that do not exist, or are deleted later, are left out with a
        warning until they are created; a poll raises ``UnknownTopicOrPartitionError`` if none
        exists.
        """
        if not isinstance(listener, ConsumerRebalanceListener | None):
            raise TypeError(f"listener must be a ConsumerRebalanceListener, not {listener!r}")
        self._core.check_not_in_listener("subscribe")
        names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
        for name in names:
            if not is_valid_topic_name(name):
                raise InvalidTopicError(f"{name!r} is not a topic name: {TOPIC_NAME_RULE}")
        with self._use("subscribe()"):
            if names:
                self._core.subscribe(names, listener)
            else:
                await self._core.unsubscribe()

    async def unsubscribe(self) -> None:
        """Give up topics or partitions. A group is left, after an automatic commit."""
        self._core.check_not_in_listener("unsubscribe")
        with self._use("unsubscribe()"):
            await self._core.unsubscribe()

    async def assign(self, partitions: Partitions) -> None:
        """Read exactly ``partitions``, without a group's rebalances; replaces the last call.

        Partitions that stay assigned keep their position. Offsets are committed only if there is
        a ``group_id``; of those that are dropped now, if commits are automatic.
        """
        self._core.check_not_in_listener("assign")
        with self._use("assign()"):
            await self._core.assign(_flatten((partitions,)))

    def subscription(self) -> frozenset[str]:
        """See ``Consumer.subscription``."""
        return self._core.subscription

    def assignment(self) -> frozenset[TopicPartition]:
        """See ``Consumer.assignment``."""
        return frozenset(self._core.fetcher.partitions)

    # --- reading ------------------------------------------------------------------------------

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """See ``Consumer.poll``."""
        records = await self._poll_records(timeout_ms, max_records)
        self._handover.before = None
        return records

    async def _poll_records(
        self, timeout_ms: float, max_records: int | None
    ) -> list[ConsumerRecord]:
        """``poll`` for a caller that confirms receipt of the records; see ``Handover``."""
        self._core.check_not_in_listener("poll")
        count_max = self.settings.max_poll_records if max_records is None else max_records
        _check_poll(timeout_ms, count_max)
        with self._use("poll()"):
            taken = await self._core.poll(
                self._handover.keeping_positions(lambda fetcher: fetcher.take_records(count_max)),
                timeout_ms=timeout_ms,
            )
        return taken or []

    async def poll_arrow(self, timeout_ms: float = 0, max_records: int | None = None) -> pa.Table:
        """See ``Consumer.poll_arrow``."""
        table = await self._poll_table(timeout_ms, max_records)
        self._handover.before = None
        return table

    async def _poll_table(self, timeout_ms: float, max_records: int | None) -> pa.Table:
        from oncelog.api.consuming.record_table import record_table

        self._core.check_not_in_listener("poll_arrow")
        _check_poll(timeout_ms, 1 if max_records is None else max_records)
        with self._use("poll_arrow()"):
            taken = await self._core.poll(
                self._handover.keeping_positions(lambda fetcher: fetcher.take_columns(max_records)),
                timeout_ms=timeout_ms,
            )
        return record_table(taken or ())

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> ConsumerRecord:
        for record in self._handover.pending:
            return record
        if not await self._iterate():
            raise StopAsyncIteration
        return next(self._handover.pending)

    async def _iterate(self) -> bool:
        """Poll until an iteration can continue; false once the consumer is closed."""
        with contextlib.suppress(ClientClosedError):
            while not self._core.is_closed:
                records = await self._poll_records(ITERATION_POLL_MS, None)
                self._handover.iterate_over(records)
                if records:
                    return True
        return False

    @contextmanager
    def _use(self, call: str) -> Iterator[None]:
        """For a ``call`` that moves positions: nobody else makes one meanwhile."""
        with self._handover.sole(call):
            self._return_undelivered()
            yield

    def _return_undelivered(self) -> None:
        """Give back what the application did not get, before any position moves."""
        if not self._core.is_in_listener:  # Else the call around it has done so, and goes on.
            self._handover.give_back(self._core.fetcher)

    # --- positions ----------------------------------------------------------------------------

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record of an assigned partition (inclusive)."""
        first_offsets = self._handover.first_offsets()
        if partition in first_offsets:
            return first_offsets[partition]
        return await self._core.position(partition)

    def processing(self, timeout_ms: int) -> AbstractContextManager[None]:
        """While its block runs the member counts as polling, for ``timeout_ms`` at most.

        For work that takes longer than ``max_poll_interval_ms``: without it the group gives the
        partitions to others, who begin the same work. A rebalance still waits for the next poll,
        for ``max_poll_interval_ms`` at most.
        """
        self._core.check_open()
        if timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms={timeout_ms}", advice="give 0 or more")
        return self._core.processing(timeout_ms)

    async def positions(self) -> dict[TopicPartition, int]:
        """The known positions of the assigned partitions; makes no call."""
        self._core.check_open()
        return self._core.positions() | self._handover.first_offsets()

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue from ``offset`` (inclusive) in an assigned partition."""
        self._core.check_open()
        if not isinstance(offset, int) or offset < 0:
            raise InvalidRequestError(
                f"seek to offset {offset!r}", advice="give a whole number from 0 on"
            )
        with self._use("seek()"):
            self._core.fetcher.seek(partition, offset)

    async def seek_to_beginning(self, *partitions: Partitions) -> None:
        """Continue from the log start; all assigned partitions if none is given."""
        self._reset(partitions, EARLIEST_TIMESTAMP)

    async def seek_to_end(self, *partitions: Partitions) -> None:
        """Continue from the end as the isolation level sees it; all assigned if none is given."""
        self._reset(partitions, LATEST_TIMESTAMP)

    async def seek_to_committed(self, *partitions: Partitions) -> None:
        """Go back to the group's committed offsets, as after an aborted transaction.

        Where nothing is committed the reset policy applies. All assigned if none is given.
        """
        self._core.group_id("seek_to_committed")
        self._reset(partitions, None)

    def _reset(self, partitions: tuple[Partitions, ...], timestamp: int | None) -> None:
        self._core.check_open()
        with self._use("a seek"):
            for topic_partition in _flatten(partitions) or list(self._core.fetcher.partitions):
                self._core.fetcher.reset(topic_partition, timestamp)

    async def pause(self, *partitions: Partitions) -> None:
        """Deliver nothing of these partitions until ``resume``; they stay assigned.

        What was prefetched for them is kept, or fetched again if others needed the memory.
        """
        with self._use("pause()"):
            for topic_partition in _flatten(partitions):
                self._core.fetcher.pause(topic_partition)

    async def resume(self, *partitions: Partitions) -> None:
        """Undo ``pause``."""
        for topic_partition in _flatten(partitions):
            self._core.fetcher.resume(topic_partition)

    def paused(self) -> frozenset[TopicPartition]:
        """See ``Consumer.paused``."""
        partitions = self._core.fetcher.partitions
        return frozenset(tp for tp, partition in partitions.items() if partition.is_paused)

    # --- offsets ------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> None:
        """Commit the positions, or ``offsets`` (the next to read); durable on return.

        ``IllegalGenerationError``, ``UnknownMemberIdError`` and ``RebalanceInProgressError`` mean
        that the partitions may now belong to another member; the next poll rejoins.
        """
        chosen: Mapping[TopicPartition, int | OffsetAndMetadata]
        if offsets is None:
            chosen = await self.positions()
        else:
            chosen = offsets
        await self._core.commit({tp: as_committed(offset) for tp, offset in chosen.items()})

    async def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset, ``None`` if there is none; waits for open transactions."""
        found = await self.committed_with_metadata(partition)
        return None if found is None else found.offset

    async def committed_with_metadata(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """``committed`` with what ``commit`` was given beside the offset."""
        self._core.check_open()
        found = await fetch_committed(
            self._core.router,
            self._core.group_id("committed"),
            (partition,),
            random=self._core.random,
            timeout_ms=self.settings.default_api_timeout_ms,
        )
        return found.get(partition)

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        found = await self._list(dict.fromkeys(_flatten((partitions,)), EARLIEST_TIMESTAMP))
        return {tp: item.offset for tp, item in found.items()}

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The end of each partition (exclusive), as the isolation level sees it."""
        found = await self._list(dict.fromkeys(_flatten((partitions,)), LATEST_TIMESTAMP))
        return {tp: item.offset for tp, item in found.items()}

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time, ``None`` if there is none."""
        for topic_partition, timestamp_ms in timestamps_ms.items():
            if timestamp_ms < 0:
                raise InvalidRequestError(f"{topic_partition}: time {timestamp_ms} is negative")
        found = await self._list(timestamps_ms)
        return {tp: item if item.offset >= 0 else None for tp, item in found.items()}

    async def lag(self, partition: TopicPartition | None = None) -> int:
        """How many offsets are left to read of an assigned partition, or of all in sum."""
        partitions = self.assignment() if partition is None else (partition,)
        ends = await self.end_offsets(partitions)
        positions = {tp: await self.position(tp) for tp in ends}
        # What was fetched is read, also if it has been deleted since.
        held = {tp for tp in ends if self._core.fetcher.partition(tp).has_pieces}
        held |= self._handover.first_offsets().keys()
        behind = [tp for tp in ends if positions[tp] < ends[tp] and tp not in held]
        starts = await self.beginning_offsets(behind)
        return sum(
            lag_of(positions[tp], start_offset=starts.get(tp, 0), end_offset=end)
            for tp, end in ends.items()
        )

    async def _list(
        self, targets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._core.check_open()
        replies = await list_offsets(
            self._core.router,
            targets,
            isolation_level=self.settings.isolation_level,
            random=self._core.random,
            timeout_ms=self.settings.default_api_timeout_ms,
        )
        return {
            tp: OffsetAndTimestamp(offset=reply.offset, timestamp_ms=reply.timestamp_ms)
            for tp, reply in replies.items()
        }

    def group_metadata(self) -> ConsumerGroupMetadata:
        """See ``Consumer.group_metadata``."""
        return self._core.group_metadata()

    # --- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Commit if commits are automatic, leave the group, stop. May be called again.

        A member with a ``group_instance_id`` stays in the group until its session ends.
        """
        self._core.check_not_in_listener("close")
        self._return_undelivered()
        await self._core.close()

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Consumer(Blocking[AsyncConsumer], ProcessBound):
    """Reads topics. read_committed by default: only data of committed transactions is seen.

    Use it as a context manager, or ``close`` it. Iterating delivers records without end. Methods
    made with ``blocking`` are those of ``AsyncConsumer``, documented there.
    """

    make_there = "pass its settings and make one there with cluster.consumer(...)"

    def __init__(
        self,
        router: Router,
        loop_thread: LoopThread,
        settings: ConsumerSettings,
        random: Random,
        reports: CallReports = NO_REPORTS,
    ) -> None:
        super().__init__(loop_thread, AsyncConsumer(router, settings, random, reports))
        close_if_forgotten(self, loop_thread, self._client._core)

    @property
    def settings(self) -> ConsumerSettings:
        """What the consumer was made with."""
        return self._client.settings

    # --- what is read -------------------------------------------------------------------------

    subscribe = blocking(AsyncConsumer.subscribe)
    unsubscribe = blocking(AsyncConsumer.unsubscribe)
    assign = blocking(AsyncConsumer.assign)

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to."""
        return self._client.subscription()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this consumer reads now."""
        return self._client.assignment()

    # --- reading ------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Up to ``max_records`` records (default ``max_poll_records``), waiting for the first.

        Records of one partition come in offset order. Empty after ``timeout_ms`` without any.
        Joins and rejoins the group, so call it at intervals below ``max_poll_interval_ms``.
        Interrupted by Ctrl-C it loses nothing: the next poll returns what it had taken.
        """
        records = self._loop_thread.run(self._client._poll_records(timeout_ms, max_records))
        self._client._handover.before = None
        return records

    def poll_arrow(self, timeout_ms: float = 0, max_records: int | None = None) -> pa.Table:
        """What was fetched ahead as one Arrow table, waiting for the first rows; the fast way.

        Columns ``topic`` string, ``partition`` int32, ``offset`` int64, ``timestamp`` in ms UTC,
        ``key`` and ``value`` binary, ``headers`` list<struct<key: string, value: binary>>. Without
        ``max_records`` it is bounded by ``fetch_max_bytes``. Without rows the table is empty.
        """
        table = self._loop_thread.run(self._client._poll_table(timeout_ms, max_records))
        self._client._handover.before = None
        return table

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> ConsumerRecord:
        # Records wait in the inner consumer, so that its thread is asked once per poll.
        handover = self._client._handover
        for record in handover.pending:
            return record
        while self._loop_thread.run(self._client._iterate()):
            # Another thread may have been faster.
            for record in handover.pending:
                return record
        raise StopIteration

    # --- positions ----------------------------------------------------------------------------

    position = blocking(AsyncConsumer.position)
    positions = blocking(AsyncConsumer.positions)
    seek = blocking(AsyncConsumer.seek)
    seek_to_beginning = blocking(AsyncConsumer.seek_to_beginning)
    seek_to_end = blocking(AsyncConsumer.seek_to_end)
    seek_to_committed = blocking(AsyncConsumer.seek_to_committed)
    pause = blocking(AsyncConsumer.pause)
    resume = blocking(AsyncConsumer.resume)

    def paused(self) -> frozenset[TopicPartition]:
        """The assigned partitions that are paused."""
        return self._client.paused()

    # --- offsets ------------------------------------------------------------------------------

    commit = blocking(AsyncConsumer.commit)
    committed = blocking(AsyncConsumer.committed)
    committed_with_metadata = blocking(AsyncConsumer.committed_with_metadata)
    beginning_offsets = blocking(AsyncConsumer.beginning_offsets)
    end_offsets = blocking(AsyncConsumer.end_offsets)
    offsets_for_times = blocking(AsyncConsumer.offsets_for_times)
    lag = blocking(AsyncConsumer.lag)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who this member is, for ``Producer.send_offsets_to_transaction``."""
        return self._client.group_metadata()

    def processing(self, timeout_ms: int) -> AbstractContextManager[None]:
        """See ``AsyncConsumer.processing``; takes no round trip."""
        return self._client.processing(timeout_ms)

    # --- the end ------------------------------------------------------------------------------

    close = blocking(AsyncConsumer.close)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def as_committed(offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """An offset as it is committed; a plain number has no metadata."""
    return offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset=offset)


def _flatten(partitions: Iterable[Partitions]) -> list[TopicPartition]:
    """Partitions given one by one, as a collection, or both, each once."""
    flat: dict[TopicPartition, None] = {}
    for item in partitions:
        flat.update(dict.fromkeys([item] if isinstance(item, TopicPartition) else item))
    for item in flat:
        if not isinstance(item, TopicPartition):
            raise TypeError(f"{item!r} is no partition: give TopicPartition(topic, number)")
    return list(flat)


def _check_poll(timeout_ms: float, max_records: int) -> None:
    if timeout_ms < 0:
        raise InvalidRequestError(f"timeout_ms={timeout_ms}", advice="give 0 or more")
    if max_records < 1:
        raise InvalidRequestError(f"max_records={max_records}", advice="give 1 or more")


# --- records on their way to the application ------------------------------------------------------


class Handover:
    """Records taken from a consumer's partitions that the application does not have yet.

    Positions move when records are taken. They then pass through an iteration, which delivers the
    records of a poll one by one, and in a synchronous consumer from the loop's thread to the
    user's, where Ctrl-C drops them. The next call first puts them back. Plain attributes: two
    threads use them in turn.

    ``before`` are the positions before the last poll took anything, until its caller has the result
    and sets it to ``None``. A synchronous caller does that by a plain store just before it returns:
    CPython raises ``KeyboardInterrupt`` after calls and jumps only, so never between the two.
    ``records`` were polled by an iteration; it takes one after the other from ``pending``.

    One thread or task at a time may make calls that move positions: ``sole`` refuses the second. To
    give each its turn would hand out records twice. What is ``pending`` they may share: taking the
    next of a list is one step for CPython, and so is taking all that are left.
    """

    def __init__(self) -> None:
        self._user: object = None
        self._call = ""
        self._depth = 0
        """Calls of the user, one in another: of a listener, or beside one that was interrupted."""
        self.before: dict[TopicPartition, int] | None = None
        self.records: Sequence[ConsumerRecord] = ()
        self.pending: Iterator[ConsumerRecord] = iter(self.records)
        self._turn = 0

    @contextmanager
    def sole(self, call: str) -> Iterator[None]:
        """While its block runs, other threads and tasks are refused."""
        user = current_user()
        if self._depth and user != self._user:
            raise _used_twice(call, self._call)
        if not self._depth:
            self._user, self._call = user, call
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def keeping_positions(
        self, take: Callable[[Fetcher], TakenT]
    ) -> Callable[[Fetcher], TakenT | None]:
        """``take``, with the positions before it kept if it takes anything.

        It takes nothing once ``give_back`` was called: an interrupt may leave a poll running whose
        caller is gone, beside the next one.
        """
        turn = self._turn

        def taking(fetcher: Fetcher) -> TakenT | None:
            if turn != self._turn:
                return None
            before = {
                partition.topic_partition: partition.position
                for partition in fetcher.partitions.values()
                if partition.position is not None
            }
            taken = take(fetcher)
            if taken:
                self.before = before
            return taken

        return taking

    def iterate_over(self, records: Sequence[ConsumerRecord]) -> None:
        """An iteration has polled ``records`` and delivers them next."""
        self.records, self.pending, self.before = records, iter(records), None

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The application's offset in each partition where it differs from the position."""
        delivered_count = len(self.records) - length_hint(self.pending)
        return self._first_offsets(self.records[delivered_count:])

    def _first_offsets(self, pending: Sequence[ConsumerRecord]) -> dict[TopicPartition, int]:
        first: dict[TopicPartition, int] = {}
        for record in pending:
            first.setdefault(record.topic_partition, record.offset)
        return first | (self.before or {})

    def give_back(self, fetcher: Fetcher) -> None:
        """Move partitions that are still assigned back to where the application is."""
        pending = list(self.pending)
        first_offsets = self._first_offsets(pending)
        delivered = self.records[: len(self.records) - len(pending)]
        for topic_partition in {record.topic_partition for record in delivered}:
            if (partition := fetcher.partitions.get(topic_partition)) is not None:
                # Their poll has ended long ago; the iteration delivered them since.
                partition.delivered_at = next_moment()
        self.iterate_over(())
        self._turn += 1
        for topic_partition, offset in first_offsets.items():
            partition = fetcher.partitions.get(topic_partition)
            if partition is not None and partition.position != offset:
                fetcher.seek(topic_partition, offset)


def _used_twice(call: str, other: str) -> IllegalStateError:
    return IllegalStateError(
        f"{call} was called while another thread or task is in {other} of the same consumer",
        advice="give each a consumer of its own; only close() may be called from elsewhere",
    )
