"""``Consumer`` and ``AsyncConsumer``: read records, alone or as a member of a group.

As in Kafka, only one thread (or task) may use a consumer at a time; another one gets
``ConcurrentModificationError``. Any thread may look up offsets, wake the consumer up, or close it,
which ends calls in progress with ``ClientClosedError``. Errors are raised as ``OncelogError``;
retriable ones are retried internally.

One file: the two are one interface, documented once, and deliver records in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import length_hint
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, overload

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.commits import CommitCallback
from oncelog.api.consuming.core import (
    CLOSE_TIMEOUT_MS,
    ConsumerCore,
    ConsumerRebalanceListener,
)
from oncelog.api.consuming.fetcher import Fetcher
from oncelog.api.records import (
    CommitPosition,
    ConsumerGroupMetadata,
    ConsumerRecord,
    OffsetAndTimestamp,
    as_committed,
    check_order,
    next_moment,
)
from oncelog.api.serializing import Serializers
from oncelog.api.session.committed_offsets import fetch_committed, lag_of, list_offsets
from oncelog.api.session.event_loop import (
    Blocking,
    LoopThread,
    ProcessBound,
    blocking,
    call_in_place,
    close_if_forgotten,
    current_user,
)
from oncelog.api.session.routing import Router
from oncelog.storage.exceptions import (
    ClientClosedError,
    ConcurrentModificationError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidTopicError,
    SerializationError,
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
"""How long one poll of an iteration waits; the iteration itself never times out."""

TakenT = TypeVar("TakenT")

Partitions: TypeAlias = TopicPartition | Iterable[TopicPartition]


class AsyncConsumer(ProcessBound):
    """``Consumer`` for asyncio, with the same methods. Belongs to one event loop.

    Make it with ``cluster.async_consumer(...)`` and close it. ``poll`` and ``poll_arrow`` return
    committed records only, unless ``isolation_level`` is read_uncommitted.
    """

    make_there = "pass its settings and make one there with cluster.consumer(...)"

    def __init__(
        self,
        router: Router,
        settings: ConsumerSettings,
        random: Random,
    ) -> None:
        self._core = ConsumerCore(router=router, settings=settings, random=random)
        self._handover = Handover()
        self._deserializers = Serializers(
            settings.key_deserializer, settings.value_deserializer, is_reading=True
        )

    @property
    def settings(self) -> ConsumerSettings:
        """The settings the consumer was made with."""
        return self._core.settings

    # --- what is read -------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Read ``topics`` as a member of the group; replaces the previous subscription.

        With a ``pattern`` instead, a regular expression, read the topics whose whole name it
        matches, but no internal ones. The group looks for such topics at each rebalance and every
        five minutes, and waits while there is none.

        Partitions are assigned during the following polls, which call the ``listener``. Topics that
        do not exist, or are deleted later, are left out with a warning until they are created; a
        poll raises ``UnknownTopicOrPartitionError`` if none exists.

        ``InvalidTopicError`` for an invalid name, ``InvalidRegularExpressionError`` for an invalid
        pattern; ``IllegalStateError`` without a ``group_id`` or after ``assign``.
        """
        if not isinstance(listener, ConsumerRebalanceListener | None):
            raise TypeError(f"listener must be a ConsumerRebalanceListener, not {listener!r}")
        self._core.check_not_in_listener("subscribe")
        names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
        for name in names:
            if not is_valid_topic_name(name):
                raise InvalidTopicError(f"{name!r} is not a topic name: {TOPIC_NAME_RULE}")
        if pattern is not None and names:
            raise InvalidRequestError(
                f"subscribe to topics {names} and to pattern={pattern!r}", advice="give one of them"
            )
        matcher = None if pattern is None else _compiled(pattern)
        with self._use("subscribe()"):
            if names or matcher is not None:
                self._core.subscribe(names, listener, matcher)
            else:
                await self._core.unsubscribe()

    async def unsubscribe(self) -> None:
        """Give up all topics or partitions; leave the group, after a last automatic commit."""
        self._core.check_not_in_listener("unsubscribe")
        with self._use("unsubscribe()"):
            await self._core.unsubscribe()

    async def assign(self, partitions: Partitions) -> None:
        """Read exactly ``partitions``, without rebalances; replaces the previous assignment.

        Partitions that stay assigned keep their position. Offsets can be committed only with a
        ``group_id``; an automatic commit covers partitions that are dropped now.
        ``IllegalStateError`` after ``subscribe``.
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
            records = taken or []
            self._handover.keep_offsets(records)
            if records and self._deserializers:
                records = self._deserialized(records)
            interceptors = self._core.commits.interceptors
            if not records or not interceptors:
                return records
            seen: list[list[ConsumerRecord]] = []
            await call_in_place(lambda: seen.append(interceptors.on_consume(records)))
            return seen[0]

    def _deserialized(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records up to the first that cannot be deserialized; with none, its error.

        The position goes back to what is not returned, so that the next poll begins there.
        """
        made: list[ConsumerRecord] = []
        for number, record in enumerate(records):
            place = f", partition {record.partition}, offset {record.offset},"
            try:
                value, key = self._deserializers.apply(
                    record.topic, record.value, record.key, record.headers, place=place
                )
            except SerializationError:
                for partition, position in self._handover.positions_before(
                    records[number:]
                ).items():
                    self._core.fetcher.seek(partition, position)
                if not made:
                    raise
                return made
            made.append(record._replace(value=value, key=key))
        return made

    def wakeup(self) -> None:
        """Let the poll in progress, or else the next one, raise ``WakeupError``.

        Nothing is lost: the poll after it continues. An iteration ends with the error, too. In
        asyncio only the consumer's event loop may call it.
        """
        self._core.wakeup()

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
        """Poll until an iteration can continue; return false once the consumer is closed."""
        with contextlib.suppress(ClientClosedError):
            while not self._core.is_closed:
                records = await self._poll_records(ITERATION_POLL_MS, None)
                self._handover.iterate_over(records)
                if records:
                    return True
        return False

    @contextmanager
    def _use(self, call: str) -> Iterator[None]:
        """Guard a ``call`` that moves positions: no other thread or task may make one meanwhile."""
        with self._handover.sole(call):
            self._return_undelivered()
            yield

    def _return_undelivered(self) -> None:
        """Take back records that the application did not get, before any position moves."""
        if not self._core.is_in_listener:  # Else the enclosing call has done so, and continues.
            self._handover.give_back(self._core.fetcher)

    # --- positions ----------------------------------------------------------------------------

    @overload
    async def position(self, partition: TopicPartition) -> int: ...

    @overload
    async def position(self, partition: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    async def position(self, partition: Partitions) -> int | dict[TopicPartition, int]:
        """Return the offset of the next record (inclusive) of an assigned partition.

        Of several partitions, a dictionary. Waits until the positions are known.
        """
        return await self._position(partition)

    async def _position(self, partition: Partitions) -> int | dict[TopicPartition, int]:
        with self._handover.sole("position()"):
            found = await self._positions_of(_flatten((partition,)))
        return found[partition] if isinstance(partition, TopicPartition) else found

    async def _positions_of(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        first_offsets = self._handover.first_offsets()
        return {
            tp: first_offsets[tp] if tp in first_offsets else await self._core.position(tp)
            for tp in partitions
        }

    def processing(self, timeout_ms: int) -> AbstractContextManager[None]:
        """Count the member as polling while the block runs, for at most ``timeout_ms``.

        For work that takes longer than ``max_poll_interval_ms``: otherwise the group gives the
        partitions to other members, who begin the same work. A rebalance still waits for the next
        poll, at most ``max_poll_interval_ms``.
        """
        self._core.check_open()
        if timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms={timeout_ms}", advice="give 0 or more")
        return self._core.processing(timeout_ms)

    async def positions(self) -> dict[TopicPartition, int]:
        """Return the known positions of the assigned partitions, without a call."""
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
        """Continue from the log start offset; of all assigned partitions if none is given."""
        self._reset(partitions, EARLIEST_TIMESTAMP)

    async def seek_to_end(self, *partitions: Partitions) -> None:
        """Continue from the end; of all assigned partitions if none is given.

        The end is the last stable offset with read_committed, else the high watermark.
        """
        self._reset(partitions, LATEST_TIMESTAMP)

    async def seek_to_committed(self, *partitions: Partitions) -> None:
        """Go back to the group's committed offsets, as after an aborted transaction.

        Without a committed offset ``auto_offset_reset`` applies. All assigned partitions if none is
        given.
        """
        self._core.group_id("seek_to_committed")
        self._reset(partitions, None)

    def _reset(self, partitions: tuple[Partitions, ...], timestamp: int | None) -> None:
        self._core.check_open()
        with self._use("a seek"):
            for topic_partition in _flatten(partitions) or list(self._core.fetcher.partitions):
                self._core.fetcher.reset(topic_partition, timestamp)

    async def pause(self, *partitions: Partitions) -> None:
        """Deliver no records of these partitions until ``resume``; they stay assigned.

        Prefetched records are kept, or fetched again if other partitions needed the memory.
        """
        with self._use("pause()"):
            for topic_partition in _flatten(partitions):
                self._core.fetcher.pause(topic_partition)

    async def resume(self, *partitions: Partitions) -> None:
        """Deliver records of these partitions again."""
        with self._handover.sole("resume()"):
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
        """Commit ``offsets`` (the next to read), by default the positions; durable on return.

        With ``enable_auto_offset_store=False`` the default are the stored offsets. Commits begun
        before end first, and their callbacks are called.

        After ``IllegalGenerationError``, ``UnknownMemberIdError`` or ``RebalanceInProgressError``
        the partitions may belong to another member; the next poll rejoins.
        """
        with self._handover.sole("commit()"):
            await self._core.commit(self._to_commit(offsets))

    async def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Begin to commit ``offsets``, as ``commit`` does, and return at once.

        Commits keep their order and are retried. The next ``poll``, ``commit``, ``commit_async`` or
        ``close`` after the end calls ``callback(offsets, error)`` in its own thread or task;
        ``error`` is ``None`` if the offsets are durable. What the callback raises, that call
        raises. Without a callback a failure is logged. Waits only if 1,000 commits are under way.
        """
        with self._handover.sole("commit_async()"):
            await self._core.commit_async(self._to_commit(offsets), callback)

    def _to_commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is not None:
            return self._checked(offsets)
        if not self.settings.enable_auto_offset_store:
            return self._core.commits.stored()
        positions = self._core.positions() | self._handover.first_offsets()
        return {tp: as_committed(offset) for tp, offset in positions.items()}

    def _checked(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets as they are committed; in commit order they must be positions."""
        positions = {tp: as_committed(offset) for tp, offset in offsets.items()}
        if self.settings.order == "commit":
            for tp, position in positions.items():
                check_order(position, tp)
        return positions

    async def store_offsets(
        self, offsets: ConsumerRecord | Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Let the next automatic commit, or ``commit()``, take ``offsets`` (the next to read).

        Of a record, the offset after it. Makes no call. Stored offsets go with their partition when
        it is given up, after a last automatic commit. Source: librdkafka.

        ``IllegalStateError`` for a partition that is not assigned, and unless the consumer was made
        with ``enable_auto_offset_store=False``.
        """
        self._core.check_open()
        chosen: Mapping[TopicPartition, int | OffsetAndMetadata] = (
            {offsets.topic_partition: offsets.offset + 1}
            if isinstance(offsets, ConsumerRecord)
            else offsets
        )
        self._core.commits.store(self._checked(chosen))

    @overload
    async def committed(self, partition: TopicPartition) -> int | None: ...

    @overload
    async def committed(
        self, partition: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]: ...

    async def committed(
        self, partition: Partitions
    ) -> int | dict[TopicPartition, int | None] | None:
        """Return the group's committed offset or ``None``; wait for open transactions (KIP-447).

        Of several partitions, a dictionary, from one call.
        """
        wanted = _flatten((partition,))
        found = await self._committed(wanted)
        offsets = {tp: found[tp].offset if tp in found else None for tp in wanted}
        return offsets[partition] if isinstance(partition, TopicPartition) else offsets

    async def committed_with_metadata(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """``committed`` with the metadata that was committed with the offset."""
        return (await self._committed([partition])).get(partition)

    async def _committed(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._core.check_open()
        return await fetch_committed(
            self._core.router,
            self._core.group_id("committed"),
            partitions,
            random=self._core.random,
            timeout_ms=self.settings.default_api_timeout_ms,
        )

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the log start offset (inclusive) of each partition."""
        found = await self._list(dict.fromkeys(_flatten((partitions,)), EARLIEST_TIMESTAMP))
        return {tp: item.offset for tp, item in found.items()}

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return each partition's end (exclusive): last stable offset or high watermark."""
        found = await self._list(dict.fromkeys(_flatten((partitions,)), LATEST_TIMESTAMP))
        return {tp: item.offset for tp, item in found.items()}

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Find the first record at or after each timestamp (ms); ``None`` if there is none."""
        for topic_partition, timestamp_ms in timestamps_ms.items():
            if timestamp_ms < 0:
                raise InvalidRequestError(f"{topic_partition}: time {timestamp_ms} is negative")
        found = await self._list(timestamps_ms)
        return {tp: item if item.offset >= 0 else None for tp, item in found.items()}

    async def lag(self, partition: TopicPartition | None = None) -> int:
        """Return how many offsets are left to read in one assigned partition, or in all."""
        partitions = self.assignment() if partition is None else (partition,)
        ends = await self.end_offsets(partitions)
        positions = await self._positions_of(ends)
        # Fetched records will be delivered, even if they have been deleted since.
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

    async def metrics(self) -> dict[str, float]:
        """Return what the consumer has counted since it was made; makes no call.

        The page of this reference has a table of the names. They are Kafka's, with underscores.
        """
        return self._core.counters.as_metrics(
            self._core.fetcher.partitions,
            now_s=asyncio.get_running_loop().time(),
            follower_partitions=len(self._core.fetcher.followers),
            interceptor_failures=self._core.commits.interceptors.failure_count,
        )

    # --- the end ------------------------------------------------------------------------------

    async def close(self, timeout_ms: float = CLOSE_TIMEOUT_MS) -> None:
        """Commit if commits are automatic, leave the group, and stop. Safe to repeat.

        Also lets commits in the background end and calls their callbacks. All that takes at most
        ``timeout_ms``, besides the time of callbacks and the listener. With 0 nothing is sent, and
        the group notices when the session times out. A static member (``group_instance_id``) stays
        in the group until then in any case.
        """
        self._core.check_not_in_listener("close")
        if timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms={timeout_ms}", advice="give 0 or more")
        self._return_undelivered()
        await self._core.close(timeout_ms)

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Consumer(Blocking[AsyncConsumer], ProcessBound):
    """Reads topics; only records of committed transactions by default (read_committed).

    Make it with ``cluster.consumer(...)``; use it as a context manager or ``close`` it. Iterating
    over it delivers records without end. Methods made with ``blocking`` are documented in
    ``AsyncConsumer``.
    """

    make_there = "pass its settings and make one there with cluster.consumer(...)"

    def __init__(
        self,
        router: Router,
        loop_thread: LoopThread,
        settings: ConsumerSettings,
        random: Random,
    ) -> None:
        super().__init__(loop_thread, AsyncConsumer(router, settings, random))
        loop_thread.call_when_closed(self._client._core._report.stop)
        close_if_forgotten(self, loop_thread, self._client._core)

    @property
    def settings(self) -> ConsumerSettings:
        """The settings the consumer was made with."""
        return self._client.settings

    # --- what is read -------------------------------------------------------------------------

    subscribe = blocking(AsyncConsumer.subscribe)
    unsubscribe = blocking(AsyncConsumer.unsubscribe)
    assign = blocking(AsyncConsumer.assign)

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to."""
        return self._client.subscription()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions assigned to this consumer now."""
        return self._client.assignment()

    # --- reading ------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return up to ``max_records`` records (default ``max_poll_records``), in offset order.

        Waits up to ``timeout_ms`` for the first one, then returns an empty list. Polling also joins
        and rejoins the group, so call it at intervals below ``max_poll_interval_ms``. Ctrl-C loses
        nothing: the next poll returns what an interrupted one had taken.

        ``CorruptRecordError`` says where to resume after damage. ``OffsetOutOfRangeError`` comes
        only with ``auto_offset_reset="none"``.
        """
        records = self._loop_thread.run(self._client._poll_records(timeout_ms, max_records))
        self._client._handover.before = None
        return records

    def poll_arrow(self, timeout_ms: float = 0, max_records: int | None = None) -> pa.Table:
        """Return prefetched records as one Arrow table; the fastest way to read.

        Columns: ``topic`` string, ``partition`` int32, ``offset`` int64, ``timestamp`` in ms UTC,
        ``key`` and ``value`` binary, ``headers`` ``list<struct<key: string, value: binary>>``.
        Waits up to ``timeout_ms`` for the first rows, then returns an empty table. Without
        ``max_records`` a table has at most about ``fetch_max_bytes``.
        """
        table = self._loop_thread.run(self._client._poll_table(timeout_ms, max_records))
        self._client._handover.before = None
        return table

    def wakeup(self) -> None:
        """Let the poll in progress, or else the next one, raise ``WakeupError``.

        Any thread may call it, and a signal handler. Nothing is lost: the poll after it continues.
        An iteration ends with the error, too.
        """
        self._loop_thread.call_soon(self._client.wakeup)

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> ConsumerRecord:
        # Records wait in the inner consumer, so that its thread is called once per poll.
        handover = self._client._handover
        for record in handover.pending:
            return record
        while self._loop_thread.run(self._client._iterate()):
            # Another thread may have been faster.
            for record in handover.pending:
                return record
        raise StopIteration

    # --- positions ----------------------------------------------------------------------------

    @overload
    def position(self, partition: TopicPartition) -> int: ...

    @overload
    def position(self, partition: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    def position(self, partition: Partitions) -> int | dict[TopicPartition, int]:
        """See ``AsyncConsumer.position``."""
        return self._loop_thread.run(self._client._position(partition))

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
    commit_async = blocking(AsyncConsumer.commit_async)
    store_offsets = blocking(AsyncConsumer.store_offsets)

    @overload
    def committed(self, partition: TopicPartition) -> int | None: ...

    @overload
    def committed(
        self, partition: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]: ...

    def committed(self, partition: Partitions) -> int | dict[TopicPartition, int | None] | None:
        """See ``AsyncConsumer.committed``."""
        return self._loop_thread.run(self._client.committed(partition))

    committed_with_metadata = blocking(AsyncConsumer.committed_with_metadata)
    beginning_offsets = blocking(AsyncConsumer.beginning_offsets)
    end_offsets = blocking(AsyncConsumer.end_offsets)
    offsets_for_times = blocking(AsyncConsumer.offsets_for_times)
    lag = blocking(AsyncConsumer.lag)
    metrics = blocking(AsyncConsumer.metrics)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """This member's identity, for ``Producer.send_offsets_to_transaction``."""
        return self._client.group_metadata()

    def processing(self, timeout_ms: int) -> AbstractContextManager[None]:
        """See ``AsyncConsumer.processing``; makes no call."""
        return self._client.processing(timeout_ms)

    # --- the end ------------------------------------------------------------------------------

    close = blocking(AsyncConsumer.close)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _compiled(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidRegularExpressionError(
            f"pattern={pattern!r} is no regular expression: {error}",
            advice=InvalidRegularExpressionError.advice,
        ) from None


def _flatten(partitions: Iterable[Partitions]) -> list[TopicPartition]:
    """Partitions given one by one, as collections, or both; each once."""
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

    Positions move when records are taken. The records then pass through an iteration, which
    delivers them one by one, and in a synchronous consumer from the loop's thread to the user's,
    where Ctrl-C may drop them. The next call first puts back those not delivered. The attributes
    are plain: two threads use them in turn.

    ``before`` holds the positions before the last poll took anything, until the caller has the
    result and sets it to ``None``. A synchronous caller does so by a plain store just before it
    returns: CPython raises ``KeyboardInterrupt`` only after calls and jumps, so never in between.
    ``records`` were polled by an iteration; it takes one after the other from ``pending``.

    Only one thread or task at a time may make calls that move positions: ``sole`` rejects the
    second. Queueing them instead would deliver records twice. ``pending`` may be shared: taking the
    next of a list, or all that are left, is one step for CPython.
    """

    def __init__(self) -> None:
        self._user: object = None
        self._call = ""
        self._depth = 0
        """The user's calls, nested: a listener's call, or one beside an interrupted call."""
        self.before: dict[TopicPartition, int] | None = None
        self.records: Sequence[ConsumerRecord] = ()
        self.pending: Iterator[ConsumerRecord] = iter(self.records)
        self._begun: Mapping[TopicPartition, int] = {}
        """The positions before ``records``."""
        self._taken: Sequence[ConsumerRecord] = ()
        self._turn = 0

    @contextmanager
    def sole(self, call: str) -> Iterator[None]:
        """Reject other threads and tasks while the block runs."""
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

        It takes nothing after ``give_back``: an interrupt may leave a poll running whose caller is
        gone, beside the next poll.
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
        """Deliver ``records``, which an iteration has polled, one by one."""
        self._begun = self.before or {}
        self.records, self.pending, self.before = records, iter(records), None

    def keep_offsets(self, records: Sequence[ConsumerRecord]) -> None:
        """Keep what a poll has taken, if positions are told by counting."""
        begun = next(iter((self.before or {}).values()), None)
        self._taken = records if isinstance(begun, CommitPosition) else ()

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The application's offset in each partition where it differs from the position."""
        return self._first_offsets(len(self.records) - length_hint(self.pending))

    def _first_offsets(self, delivered_count: int) -> dict[TopicPartition, int]:
        return self.positions_before(self.records[delivered_count:]) | (self.before or {})

    def positions_before(self, records: Sequence[ConsumerRecord]) -> dict[TopicPartition, int]:
        """The position before the first of these records of the last poll, per partition."""
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(record.topic_partition, record.offset)
        begun = self.before or self._begun
        for tp, offset in first.items():
            position = begun.get(tp)
            if isinstance(position, CommitPosition):
                # Offsets do not rise in commit order.
                offsets = [one.offset for one in self._taken if one.topic_partition == tp]
                first[tp] = position.advanced(offsets.index(offset))
        return first

    def give_back(self, fetcher: Fetcher) -> None:
        """Move partitions that are still assigned back to the application's offsets."""
        delivered_count = len(self.records) - len(list(self.pending))
        first_offsets = self._first_offsets(delivered_count)
        delivered = self.records[:delivered_count]
        for topic_partition in {record.topic_partition for record in delivered}:
            if (partition := fetcher.partitions.get(topic_partition)) is not None:
                # Their poll ended long ago; the iteration has delivered them since.
                partition.delivered_at = next_moment()
        self.iterate_over(())
        self._turn += 1
        for topic_partition, offset in first_offsets.items():
            partition = fetcher.partitions.get(topic_partition)
            if partition is not None and not partition.is_at(offset):
                fetcher.seek(topic_partition, offset)


def _used_twice(call: str, other: str) -> ConcurrentModificationError:
    return ConcurrentModificationError(
        f"{call} was called while another thread or task is in {other} of the same consumer",
        advice="give each a consumer of its own; only close() and wakeup() may be called from "
        "elsewhere",
    )
