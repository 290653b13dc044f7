"""Producers: ``Producer`` for threads, ``AsyncProducer`` for asyncio.

Every producer is idempotent: a record is appended once and in order, however often it is retried.
With a ``transactional_id``, records and consumer offsets become visible together or not at all::

    producer.init_transactions()
    with producer.transaction():
        producer.send("flights", value=b"...", key=b"EWR")
        producer.send_offsets_to_transaction({partition: offset}, consumer.group_metadata())

After an ``abortable`` error call ``abort_transaction``; after a ``fatal`` one make a new producer.
A call that timed out may have taken effect: make the same call again. Source: KIP-98, KIP-360.

One file: members of distributed writes send as producers do, by the same steps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Final, TypeAlias

import pyarrow as pa

from oncelog.actors.protocol.messages.cluster import PartitionMetadata
from oncelog.api.batching.accumulator import Headers
from oncelog.api.batching.arrow_rows import ColumnBatch, as_table, highest_partition, split_table
from oncelog.api.batching.delivery import (
    BatchMetadata,
    OnDelivery,
    RecordFuture,
    RecordMetadata,
    TableDelivery,
)
from oncelog.api.batching.interceptors import InterceptorChain, ProducerRecord
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.arguments import (
    Bytes,
    Offsets,
    check_callback,
    checked_offsets,
    checked_record,
    checked_topic,
)
from oncelog.api.producing.core import IfAlive, ProducerCore, check_token
from oncelog.api.producing.record_buffer import RecordBuffer
from oncelog.api.producing.sender import Sender
from oncelog.api.records import QueueAcknowledgements
from oncelog.api.session.event_loop import LoopThread, ProcessBound, close_if_forgotten
from oncelog.api.session.routing import Router
from oncelog.api.session.tracing import LINKS_MAX, SendContext, Tracing
from oncelog.api.transacting.producer_transaction import PreparedTxnState
from oncelog.api.transacting.requests import AcknowledgingQueue, GroupMetadata
from oncelog.storage.exceptions import (
    OncelogError,
    SerializationError,
)

TableFuture: TypeAlias = "Future[tuple[BatchMetadata, ...]]"
"""The future of a table: the position of each of its batches."""

MAKE_THERE: Final = "pass its settings and make one there with cluster.producer(...)"


class SyncSending(ProcessBound):
    """Sending from any thread; the loop of ``loop_thread`` delivers the batches."""

    make_there = MAKE_THERE

    def __init__(self, sender: Sender, loop_thread: LoopThread) -> None:
        self._buffer = buffer = sender.buffer
        self._tracing = sender.tracing
        self._loop_thread = loop_thread
        loop_thread.call_when_forbidden(buffer.forbid)
        loop_thread.call_when_closed(sender.close)
        if not (buffer.interceptors or buffer.serializers):
            # The fast path: one call from the caller into a batch with room. Its fallback must
            # not refer to this object, which could then never be garbage-collected.
            slow = partial(_send, buffer, loop_thread)
            self.send = buffer.open_batches.sender(slow)  # type: ignore[method-assign]
            if sender.tracing is not None:
                self.send = sender.tracing.sending(self.send)  # type: ignore[method-assign]

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Send one record; return a future that resolves to its offset.

        Returns once the record is buffered; it is durable once the future resolves. It goes to
        ``partition``, else where ``partitioner`` says, else to a sticky partition (KIP-480).
        ``value`` and ``key`` are bytes, or what their serializers take. ``value=None`` is a
        tombstone. ``timestamp_ms`` is in ms since the epoch; ``None`` is now.
        Waits up to ``max_block_ms`` while ``buffer_memory`` is full, and some ms when this thread
        is far ahead of delivery.

        ``on_delivery(metadata, error)`` is called once the outcome is known; one of the two is
        ``None``. It runs on the producer's event loop, before a ``flush`` that waits for the record
        returns, so it must be short and must not block. What it raises is logged. It is not called
        if ``send`` raises.

        Raises ``TypeError`` for wrong types, ``MessageTooLargeError``,
        ``UnknownTopicOrPartitionError`` if the topic is still unknown after a few seconds, and
        ``IllegalStateError`` if the producer is transactional and no transaction is open.

        Once it has raised anything in a transaction, even ``KeyboardInterrupt``, that transaction
        can commit only with ``despite_refused_sends``. A call with a wrong signature does not
        count: Python rejects it before ``send`` begins. Neither does ``SerializationError``, raised
        when a serializer fails: nothing is sent, and the transaction goes on.
        """
        # One thing: every argument, to one road or the other.
        buffer, chain = self._buffer, self._buffer.interceptors
        context = None if self._tracing is None else self._tracing.sending_context()
        if context is not None:
            headers = context.added_to(headers)
        if not chain:
            value, key = buffer.serializers.apply(topic, value, key, headers)
            future = _send(
                buffer,
                self._loop_thread,
                topic,
                value,
                key,
                headers,
                timestamp_ms,
                partition,
                on_delivery,
            )
            if context is not None:
                future.carries(context, LINKS_MAX)
            return future
        try:
            sent = _intercepted(chain, topic, value, key, headers, timestamp_ms, partition)
            with _refusals_reported(chain):
                value, key = buffer.serializers.apply(
                    sent.topic, sent.value, sent.key, sent.headers
                )
                future = _send(
                    buffer,
                    self._loop_thread,
                    sent.topic,
                    value,
                    key,
                    sent.headers,
                    sent.timestamp_ms,
                    sent.partition,
                    on_delivery,
                )
            chain.watch(future)
            if context is not None:
                future.carries(context, LINKS_MAX)
        except SerializationError:
            raise  # Nothing was accepted, and the transaction lacks nothing that it had.
        except BaseException as error:
            buffer.record_refused(error)
            raise
        return future

    def send_arrow(self, topic: str, table: Any) -> TableFuture:
        """Send a pyarrow ``Table`` or ``RecordBatch``, one record per row, without Python objects.

        Columns: ``value`` (binary or string) and optionally ``key`` (the same), ``timestamp`` (ms
        since the epoch, or an Arrow timestamp), ``headers`` (``list<struct<key, value>>``) and
        ``partition`` (integer). Null means absent. Rows of a partition keep their order. Waits up
        to ``max_block_ms`` while ``buffer_memory`` is full.

        Returns one future for the table. It resolves to one ``BatchMetadata`` per batch, once all
        are durable, or raises the error of the first batch that failed. Raises as ``send`` does,
        and ``TypeError`` or ``ValueError`` for columns that records cannot have.
        """
        self._loop_thread.check()
        try:
            checked_topic(topic)
            table = as_table(table)
            table, context = _traced(self._tracing, table)
            partition = highest_partition(table)
            if not self._buffer.has_room(topic, partition):
                self._loop_thread.run(self._buffer.make_room(topic, partition))
            delivery = TableDelivery()
            for batch in _batches(self._buffer, topic, table):
                while not self._buffer.has_room(topic):
                    self._loop_thread.run(self._buffer.make_room(topic))
                appended = self._buffer.append_batch(batch, delivery)
                if context is not None:
                    appended.carries(context, LINKS_MAX)
            delivery.seal()
            return delivery.future
        except BaseException as error:
            self._buffer.record_refused(error)
            raise


class AsyncSending(ProcessBound):
    """Sending from coroutines of one event loop."""

    make_there = MAKE_THERE

    def __init__(self, sender: Sender) -> None:
        self._buffer = sender.buffer
        self._tracing = sender.tracing
        self._add = sender.buffer.open_batches.add

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """``Producer.send``: await it to buffer the record, and its result for the offset."""
        buffer, chain = self._buffer, self._buffer.interceptors
        context = None if self._tracing is None else self._tracing.sending_context()
        if context is not None:
            headers = context.added_to(headers)
        is_plain = not (chain or buffer.serializers) and on_delivery is None
        if is_plain and (future := self._add(topic, value, key, headers, timestamp_ms, partition)):
            return future.awaitable()
        # The slow path: checks everything, and waits if it must.
        try:
            if chain:
                sent = _intercepted(chain, topic, value, key, headers, timestamp_ms, partition)
                topic, value, key, headers = sent.topic, sent.value, sent.key, sent.headers
                timestamp_ms, partition = sent.timestamp_ms, sent.partition
            with _refusals_reported(chain):
                check_callback(on_delivery)
                value, key = buffer.serializers.apply(topic, value, key, headers)
                value, key, headers = checked_record(
                    topic, value, key, headers, timestamp_ms, partition
                )
                record = (topic, value, key, headers, timestamp_ms, partition)
                while (future := buffer.try_send(*record)) is None:
                    await buffer.make_room(topic, partition)
            if chain:
                chain.watch(future)
            if context is not None:
                future.carries(context, LINKS_MAX)
            if on_delivery is not None:
                future.tell(on_delivery, asyncio.get_running_loop())
        except SerializationError:
            raise
        except BaseException as error:
            buffer.record_refused(error)
            raise
        return future.awaitable()

    async def send_arrow(self, topic: str, table: Any) -> asyncio.Future[tuple[BatchMetadata, ...]]:
        """``Producer.send_arrow``; the future resolves to the position of each batch."""
        try:
            checked_topic(topic)
            table = as_table(table)
            table, context = _traced(self._tracing, table)
            partition = highest_partition(table)
            if not self._buffer.has_room(topic, partition):
                await self._buffer.make_room(topic, partition)
            delivery = TableDelivery()
            for batch in _batches(self._buffer, topic, table):
                while not self._buffer.has_room(topic):
                    await self._buffer.make_room(topic)
                appended = self._buffer.append_batch(batch, delivery)
                if context is not None:
                    appended.carries(context, LINKS_MAX)
            delivery.seal()
            return delivery.awaitable(asyncio.get_running_loop())
        except BaseException as error:
            self._buffer.record_refused(error)
            raise

    def forbid(self) -> None:
        """Reject every use: this is the copy in a forked process."""
        self._buffer.forbid()


class Producer(SyncSending):
    """Sends records from any thread. Make it with ``cluster.producer(...)`` and close it.

    Every producer is idempotent. With a ``transactional_id`` it is transactional. Source: KIP-98.
    """

    def __init__(
        self,
        router: Router,
        loop_thread: LoopThread,
        settings: ProducerSettings,
        *,
        random: Random,
    ) -> None:
        self.settings = settings
        self._core = ProducerCore(
            router=router, settings=settings, random=random, loop=loop_thread.loop
        )
        super().__init__(self._core.sender, loop_thread)
        loop_thread.call_when_closed(self._core._report.stop)
        close_if_forgotten(self, loop_thread, self._core)

    def init_transactions(
        self, *, keep_prepared: bool = False, if_alive: IfAlive = "replace"
    ) -> bytes | None:
        """Take over the transactional id: fence older producers and abort what they left open.

        What an older producer has prepared is never aborted. With ``keep_prepared`` this producer
        takes it over: ``prepared_transaction`` names it, and ``complete_transaction`` ends it.
        Otherwise ``InvalidTxnStateError`` says that there is one.

        With ``if_alive="refuse"`` a single writer: ``TransactionalIdInUseError`` while another
        producer that was made so lives, and it is not put out. It counts as dead after three
        ``producer_heartbeat_interval_ms`` without a call, or once it is closed. Call again later.
        ``"replace"`` always takes over.

        Returns the commit token of the id's last committed transaction, or ``None`` if it had none;
        it tells a restarted program what is done. ``RequestTimedOutError`` after ``max_block_ms``:
        call again.
        """
        return self._loop_thread.run(
            self._core.init_transactions(keep_prepared=keep_prepared, if_alive=if_alive)
        )

    def begin_transaction(self) -> None:
        """Open a transaction. Makes no call: the coordinator learns of it with the first record."""
        self._loop_thread.check()
        self._core.begin_transaction()

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit a consumer group's next offsets to read as part of the transaction (KIP-447).

        ``group`` is ``consumer.group_metadata()``; at most 10,000 offsets per call. An invalid
        argument is named by ``TypeError``, ``InvalidRequestError``, ``InvalidTopicError``,
        ``InvalidGroupIdError`` or ``OffsetMetadataTooLargeError`` before anything is sent.

        Raises an abortable error for a member that has been replaced, and after a rebalance has
        taken a partition that was read for this transaction: its records are read again. Offsets of
        a topic that was deleted and created again are rejected. After a deletion alone, offsets are
        rejected once the coordinator knows, within minutes; until then they are accepted, and are
        deleted with the topic.

        Once this raises anything, even ``KeyboardInterrupt``, the transaction can only be aborted.
        """
        try:
            self._loop_thread.run(self._core.send_offsets(checked_offsets(offsets, group), group))
        except BaseException as error:
            self._core.offsets_refused(error)
            raise

    def send_acknowledgements_to_transaction(self, records: Any, queue: AcknowledgingQueue) -> None:
        """Accept a queue's records as part of the transaction, together with what was sent in it.

        ``records`` are one or more that ``queue.take`` returned, and that the worker still holds. A
        commit finishes them; after an abort they are delivered again. Source: KIP-1289.

        ``InvalidRecordStateError`` if the worker does not hold one of them: it was acknowledged, or
        its lock has ended. Once this raises anything, the transaction can only be aborted.
        """
        try:
            given = queue.acknowledgements(records)
            with _returned_unless_sent(queue, given):
                self._loop_thread.run(self._core.send_acknowledgements(given))
        except BaseException as error:
            self._core.offsets_refused(error)
            raise

    def commit_transaction(
        self,
        token: bytes | None = None,
        *,
        despite_refused_sends: bool = False,
        timeout_ms: int | None = None,
    ) -> bool:
        """Deliver what is buffered and commit; on return the commit is decided and durable.

        Returns whether all of it is already readable; ``False`` if a partition was unreachable.
        ``token``, at most 1,024 bytes, is stored with the decision and returned by
        ``init_transactions``.

        Raises an abortable error if a record failed, or if ``send`` raised in the transaction; with
        ``despite_refused_sends`` it commits without records that ``send`` rejected. After
        ``RequestTimedOutError``, within ``timeout_ms`` or else ``max_block_ms``, records may still
        be in flight and the transaction is as it was: call it again with the same token. An id
        whose last token names an application's version commits only later versions of it; anything
        else raises an abortable error.
        """
        return self._loop_thread.run(
            self._core.commit_transaction(
                token, despite_refused_sends=despite_refused_sends, timeout_ms=timeout_ms
            )
        )

    def prepare_transaction(self, timeout_ms: int | None = None) -> PreparedTxnState:
        """Deliver what is buffered and keep the transaction for a decision in another system.

        Durable on return: from then on neither ``transaction_timeout_ms`` nor a newer producer ends
        it, and read_committed readers wait for it. Store the result in the other system, in the
        same transaction as what belongs together; then call ``complete_transaction``.

        ``PolicyViolationError``, which is abortable here, unless the cluster's
        ``transaction_two_phase_commit_enable`` is on. After ``RequestTimedOutError``, within
        ``timeout_ms`` or else ``max_block_ms``, call it again, or abort. Source: KIP-939.
        """
        return self._loop_thread.run(self._core.prepare_transaction(timeout_ms))

    def complete_transaction(
        self,
        state: PreparedTxnState | None,
        token: bytes | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> bool:
        """Commit the prepared transaction if it is ``state``, else abort it; durable on return.

        ``state`` is what the other system has committed, ``None`` if it has nothing. Returns
        whether this committed; without a prepared transaction it does nothing, since that one has
        ended. ``token`` is as in ``commit_transaction``. After ``RequestTimedOutError`` call it
        again as before. Source: KIP-939.
        """
        return self._loop_thread.run(self._core.complete_transaction(state, token, timeout_ms))

    @property
    def prepared_transaction(self) -> PreparedTxnState | None:
        """The transaction that is prepared, by this producer or one before it, if there is one."""
        return self._core.prepared

    def abort_transaction(self, timeout_ms: int | None = None) -> None:
        """Abort the transaction, durably.

        After ``RequestTimedOutError``, within ``timeout_ms`` or else ``max_block_ms``, call it
        again.
        """
        self._loop_thread.run(self._core.abort_transaction(timeout_ms))

    @contextlib.contextmanager
    def transaction(self, token: bytes | None = None) -> Iterator[Producer]:
        """Run a block as a transaction: commit at its end, abort if it raises."""
        check_token(token)
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            # The error of the block matters more than a failed abort.
            with contextlib.suppress(OncelogError):
                self.abort_transaction()
            raise
        try:
            self.commit_transaction(token)
        except OncelogError as error:
            if error.abortable:
                with contextlib.suppress(OncelogError):
                    self.abort_transaction()
            raise

    def flush(self, timeout_ms: int | None = None) -> None:
        """Send what is buffered and wait until the outcome of every record sent so far is known.

        Raises the first failure of the transaction. Outside transactions it raises, once, a failure
        whose future nobody has read; others are logged and counted in ``metrics()``. Raises
        ``RequestTimedOutError`` after ``timeout_ms``, if given: the records are still being sent,
        and the call may be repeated.
        """
        self._loop_thread.run(self._core.flush(timeout_ms))

    def partitions_for(self, topic: str) -> tuple[PartitionMetadata, ...]:
        """Return the partitions of ``topic`` in order, with leaders and replicas.

        From the producer's cache, which is at most minutes old; else asked for, up to
        ``max_block_ms``. ``UnknownTopicOrPartitionError`` if the topic is still unknown after a few
        seconds.
        """
        return self._loop_thread.run(self._core.partitions_for(topic))

    def metrics(self) -> dict[str, float]:
        """Return the producer's totals and current values, by name; makes no call.

        Totals and times are since the producer was made. The page of this class lists the names.
        """
        return self._core.metrics()

    def close(self, timeout_ms: int | None = None) -> None:
        """Deliver what is buffered, or abort an open transaction, within ``timeout_ms``; then stop.

        A commit that another thread waits for finishes first. Safe to repeat. What is not done in
        time is left to the transaction timeout.
        """
        self._loop_thread.run(self._core.close(timeout_ms))

    def __enter__(self) -> Producer:
        """Return the producer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the producer, then raise what ``flush`` would unless the block raised."""
        self.close()
        if kind is None:
            self._core.raise_unreported()


class AsyncProducer(AsyncSending):
    """``Producer`` for asyncio, on the event loop that it is made on.

    Make it with ``cluster.async_producer(...)`` and close it.
    """

    def __init__(self, router: Router, settings: ProducerSettings, *, random: Random) -> None:
        self.settings = settings
        self._core = ProducerCore(
            router=router, settings=settings, random=random, loop=asyncio.get_running_loop()
        )
        super().__init__(self._core.sender)

    async def init_transactions(
        self, *, keep_prepared: bool = False, if_alive: IfAlive = "replace"
    ) -> bytes | None:
        """See ``Producer.init_transactions``."""
        return await self._core.init_transactions(keep_prepared=keep_prepared, if_alive=if_alive)

    async def begin_transaction(self) -> None:
        """See ``Producer.begin_transaction``."""
        self._core.begin_transaction()

    async def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata) -> None:
        """See ``Producer.send_offsets_to_transaction``."""
        try:
            await self._core.send_offsets(checked_offsets(offsets, group), group)
        except BaseException as error:
            self._core.offsets_refused(error)
            raise

    async def send_acknowledgements_to_transaction(
        self, records: Any, queue: AcknowledgingQueue
    ) -> None:
        """See ``Producer.send_acknowledgements_to_transaction``."""
        try:
            given = queue.acknowledgements(records)
            with _returned_unless_sent(queue, given):
                await self._core.send_acknowledgements(given)
        except BaseException as error:
            self._core.offsets_refused(error)
            raise

    async def commit_transaction(
        self,
        token: bytes | None = None,
        *,
        despite_refused_sends: bool = False,
        timeout_ms: int | None = None,
    ) -> bool:
        """See ``Producer.commit_transaction``."""
        return await self._core.commit_transaction(
            token, despite_refused_sends=despite_refused_sends, timeout_ms=timeout_ms
        )

    async def prepare_transaction(self, timeout_ms: int | None = None) -> PreparedTxnState:
        """See ``Producer.prepare_transaction``."""
        return await self._core.prepare_transaction(timeout_ms)

    async def complete_transaction(
        self,
        state: PreparedTxnState | None,
        token: bytes | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> bool:
        """See ``Producer.complete_transaction``."""
        return await self._core.complete_transaction(state, token, timeout_ms)

    @property
    def prepared_transaction(self) -> PreparedTxnState | None:
        """See ``Producer.prepared_transaction``."""
        return self._core.prepared

    async def abort_transaction(self, timeout_ms: int | None = None) -> None:
        """See ``Producer.abort_transaction``."""
        await self._core.abort_transaction(timeout_ms)

    @contextlib.asynccontextmanager
    async def transaction(self, token: bytes | None = None) -> AsyncIterator[AsyncProducer]:
        """See ``Producer.transaction``."""
        check_token(token)
        await self.begin_transaction()
        try:
            yield self
        except BaseException:
            with contextlib.suppress(OncelogError):
                await self.abort_transaction()
            raise
        try:
            await self.commit_transaction(token)
        except OncelogError as error:
            if error.abortable:
                with contextlib.suppress(OncelogError):
                    await self.abort_transaction()
            raise

    async def flush(self, timeout_ms: int | None = None) -> None:
        """See ``Producer.flush``."""
        await self._core.flush(timeout_ms)

    async def partitions_for(self, topic: str) -> tuple[PartitionMetadata, ...]:
        """See ``Producer.partitions_for``."""
        return await self._core.partitions_for(topic)

    def metrics(self) -> dict[str, float]:
        """See ``Producer.metrics``."""
        return self._core.metrics()

    async def close(self, timeout_ms: int | None = None) -> None:
        """See ``Producer.close``."""
        await self._core.close(timeout_ms)

    async def __aenter__(self) -> AsyncProducer:
        """Return the producer itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the producer, then raise what ``flush`` would unless the block raised."""
        await self.close()
        if kind is None:
            self._core.raise_unreported()


# --- a send ---------------------------------------------------------------------------------------


def _send(
    buffer: RecordBuffer,
    loop_thread: LoopThread,
    topic: str,
    value: Bytes | None,
    key: Bytes | None,
    headers: Headers,
    timestamp_ms: int | None,
    partition: int | None,
    on_delivery: OnDelivery | None,
) -> RecordFuture:
    """The slow path: checks everything, and waits if it must."""
    loop_thread.check()
    try:
        check_callback(on_delivery)
        value, key, headers = checked_record(topic, value, key, headers, timestamp_ms, partition)
        while True:
            future = buffer.try_send(topic, value, key, headers, timestamp_ms, partition)
            if future is not None:
                if on_delivery is not None:
                    future.tell(on_delivery, loop_thread.loop)
                return future
            loop_thread.run(buffer.make_room(topic, partition))
    except BaseException as error:
        buffer.record_refused(error)
        raise


def _traced(tracing: Tracing | None, table: pa.Table) -> tuple[pa.Table, SendContext | None]:
    return (table, None) if tracing is None else tracing.table(table)


def _batches(buffer: RecordBuffer, topic: str, table: pa.Table) -> Iterator[ColumnBatch]:
    count = buffer.partition_count(topic)
    return split_table(
        table,
        topic=topic,
        partition_count=count,
        now_ms=buffer.now_ms(),
        record_bytes_max=buffer.settings.max_request_size,
        partitioner=buffer.partitioner,
        sticky_partition=lambda: buffer.sticky_partition(topic, count),
    )


def _intercepted(
    chain: InterceptorChain,
    topic: str,
    value: Any,
    key: Any,
    headers: Headers,
    timestamp_ms: int | None,
    partition: int | None,
) -> ProducerRecord:
    record = ProducerRecord(
        topic=topic,
        value=value,
        key=key,
        headers=headers,
        timestamp_ms=timestamp_ms,
        partition=partition,
    )
    return chain.on_send(record)


@contextlib.contextmanager
def _refusals_reported(chain: InterceptorChain) -> Iterator[None]:
    """Report also records that are not accepted to interceptors (KIP-42)."""
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        chain.on_acknowledgement(None, error)
        raise


@contextlib.contextmanager
def _returned_unless_sent(
    queue: AcknowledgingQueue, given: QueueAcknowledgements
) -> Iterator[None]:
    """If the block raises, tell the queue that the transaction did not accept its records."""
    try:
        yield
    except BaseException:
        queue.unsent(given)
        raise
