"""``send`` and ``send_arrow``, for threads and coroutines; shared by producers and members."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa

from oncelog.api.batching.accumulator import Headers
from oncelog.api.batching.arrow_rows import ColumnBatch, as_table, highest_partition, split_table
from oncelog.api.batching.delivery import BatchMetadata, RecordFuture, RecordMetadata, TableDelivery
from oncelog.api.batching.interceptors import InterceptorChain, ProducerRecord
from oncelog.api.producing.record_sender import RecordSender
from oncelog.api.session.event_loop import LoopThread, ProcessBound
from oncelog.storage.model import utf8_bytes

Bytes: TypeAlias = "bytes | bytearray | memoryview"
TableFuture: TypeAlias = "Future[tuple[BatchMetadata, ...]]"
"""The future of a table: the position of each of its batches."""

MAKE_THERE: Final = "pass its settings and make one there with cluster.producer(...)"


class SyncSending(ProcessBound):
    """Sending from any thread; the loop of ``loop_thread`` delivers the batches."""

    make_there = MAKE_THERE

    def __init__(self, sender: RecordSender, loop_thread: LoopThread) -> None:
        self._sender = sender
        self._loop_thread = loop_thread
        loop_thread.call_when_forbidden(sender.forbid)
        loop_thread.call_when_closed(sender.close)
        if not sender.interceptors:
            # The fast path: one call from the caller into a batch with room. What it falls back to
            # must not refer to this object, which could never be forgotten.
            slow = partial(_send, sender, loop_thread)
            self.send = sender.open_batches.sender(slow)  # type: ignore[method-assign]

    def send(
        self,
        topic: str,
        value: Bytes | None = None,
        key: Bytes | None = None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordFuture:
        """Send one record; returns at once, and the future gives its offset.

        A record goes to ``partition``, else by the hash of its key, else to a sticky partition. A
        ``value`` of ``None`` is a tombstone. ``timestamp_ms`` ``None`` is now. Waits up to
        ``max_block_ms`` while ``buffer_memory`` is full, and some milliseconds when the thread
        is far ahead of what is sent. Raises ``TypeError`` for what is not bytes,
        ``UnknownTopicOrPartitionError`` if there is no such topic after a few seconds,
        ``MessageTooLargeError``, and ``IllegalStateError`` outside a transaction. A transaction in
        which it raised anything, even ``KeyboardInterrupt``, cannot be committed without
        ``despite_refused_sends``. Only a call that does not fit the signature goes unnoticed:
        Python refuses it before ``send`` begins.
        """
        chain = self._sender.interceptors
        if not chain:
            return _send(
                self._sender, self._loop_thread, topic, value, key, headers, timestamp_ms, partition
            )
        try:
            sent = _intercepted(chain, topic, value, key, headers, timestamp_ms, partition)
            with _refusals_reported(chain):
                future = _send(
                    self._sender,
                    self._loop_thread,
                    sent.topic,
                    sent.value,
                    sent.key,
                    sent.headers,
                    sent.timestamp_ms,
                    sent.partition,
                )
            chain.watch(future)
        except BaseException as error:
            self._sender.note_refused(error)
            raise
        return future

    def send_arrow(self, topic: str, table: Any) -> TableFuture:
        """Send a pyarrow ``Table`` or ``RecordBatch``, one record per row, without Python objects.

        Columns: ``value`` (binary or string) and, optionally, ``key`` (the same), ``timestamp``
        (milliseconds or an Arrow timestamp), ``headers`` (``list<struct<key, value>>``) and
        ``partition`` (integer); null counts as absent. Rows of a partition keep their order. Waits
        while ``buffer_memory`` is full.

        One future for the whole table: it resolves to one ``BatchMetadata`` per batch that was
        appended, or raises the error of the first batch that failed.
        """
        self._loop_thread.check()
        try:
            _checked_topic(topic)
            table = as_table(table)
            partition = highest_partition(table)
            if not self._sender.has_room(topic, partition):
                self._loop_thread.run(self._sender.make_room(topic, partition))
            delivery = TableDelivery()
            for batch in _batches(self._sender, topic, table):
                while not self._sender.has_room(topic):
                    self._loop_thread.run(self._sender.make_room(topic))
                self._sender.append_batch(batch, delivery)
            delivery.seal()
            return delivery.future
        except BaseException as error:
            self._sender.note_refused(error)
            raise


def _send(
    sender: RecordSender,
    loop_thread: LoopThread,
    topic: str,
    value: Bytes | None,
    key: Bytes | None,
    headers: Headers,
    timestamp_ms: int | None,
    partition: int | None,
) -> RecordFuture:
    """The slow path: checks everything, and waits if it must."""
    loop_thread.check()
    try:
        value, key, headers = _checked(topic, value, key, headers, timestamp_ms, partition)
        while True:
            future = sender.try_send(topic, value, key, headers, timestamp_ms, partition)
            if future is not None:
                return future
            loop_thread.run(sender.make_room(topic, partition))
    except BaseException as error:
        sender.note_refused(error)
        raise


class AsyncSending(ProcessBound):
    """Sending from coroutines of one event loop."""

    make_there = MAKE_THERE

    def __init__(self, sender: RecordSender) -> None:
        self._sender = sender
        self._add = sender.open_batches.add

    async def send(
        self,
        topic: str,
        value: Bytes | None = None,
        key: Bytes | None = None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """``Producer.send``: await it to have the record accepted, its result for the offset."""
        sender, chain = self._sender, self._sender.interceptors
        if not chain and (future := self._add(topic, value, key, headers, timestamp_ms, partition)):
            return future.awaitable()
        # The slow path: checks everything, and waits if it must.
        try:
            if chain:
                sent = _intercepted(chain, topic, value, key, headers, timestamp_ms, partition)
                topic, value, key, headers = sent.topic, sent.value, sent.key, sent.headers
                timestamp_ms, partition = sent.timestamp_ms, sent.partition
            with _refusals_reported(chain):
                value, key, headers = _checked(topic, value, key, headers, timestamp_ms, partition)
                record = (topic, value, key, headers, timestamp_ms, partition)
                while (future := sender.try_send(*record)) is None:
                    await sender.make_room(topic, partition)
            if chain:
                chain.watch(future)
        except BaseException as error:
            sender.note_refused(error)
            raise
        return future.awaitable()

    async def send_arrow(self, topic: str, table: Any) -> asyncio.Future[tuple[BatchMetadata, ...]]:
        """``Producer.send_arrow``; the future resolves to the position of each batch."""
        try:
            _checked_topic(topic)
            table = as_table(table)
            partition = highest_partition(table)
            if not self._sender.has_room(topic, partition):
                await self._sender.make_room(topic, partition)
            delivery = TableDelivery()
            for batch in _batches(self._sender, topic, table):
                while not self._sender.has_room(topic):
                    await self._sender.make_room(topic)
                self._sender.append_batch(batch, delivery)
            delivery.seal()
            return delivery.awaitable(asyncio.get_running_loop())
        except BaseException as error:
            self._sender.note_refused(error)
            raise

    def forbid(self) -> None:
        """Refuse every use: this is the copy in a forked process."""
        self._sender.forbid()


def _batches(sender: RecordSender, topic: str, table: pa.Table) -> Iterator[ColumnBatch]:
    count = sender.partition_count(topic)
    return split_table(
        table,
        topic=topic,
        partition_count=count,
        now_ms=sender.now_ms(),
        record_bytes_max=sender.settings.max_request_size,
        sticky_partition=lambda: sender.sticky_partition(topic, count),
    )


# --- interceptors -----------------------------------------------------------------------------


def _intercepted(
    chain: InterceptorChain,
    topic: str,
    value: Bytes | None,
    key: Bytes | None,
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
    """Interceptors also see the outcome of a record that is not accepted (KIP-42)."""
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        chain.on_acknowledgement(None, error)
        raise


# --- checks -----------------------------------------------------------------------------------


def _checked(
    topic: str,
    value: Bytes | None,
    key: Bytes | None,
    headers: Headers,
    timestamp_ms: int | None,
    partition: int | None,
) -> tuple[bytes | None, bytes | None, Headers]:
    """The arguments of ``send`` with plain bytes; ``TypeError`` names the one that is wrong."""
    if type(topic) is not str:
        _checked_topic(topic)
    if value is not None and type(value) is not bytes:
        value = _as_bytes("value", value)
    if key is not None and type(key) is not bytes:
        key = _as_bytes("key", key)
    if headers:
        headers = _checked_headers(headers)
    if timestamp_ms is not None:
        _check_integer("timestamp_ms", timestamp_ms, "milliseconds since 1970")
        if not -(2**63) <= timestamp_ms < 2**63:
            raise ValueError(f"timestamp_ms={timestamp_ms} does not fit into 64 bits")
    if partition is not None:
        _check_integer("partition", partition, "a partition number")
    return value, key, headers if headers else ()


def _checked_topic(topic: object) -> str:
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}")
    return topic


def _as_bytes(name: str, value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = "; encode it, for example with .encode()" if isinstance(value, str) else ""
    raise TypeError(f"{name} must be bytes or None, not {type(value).__name__}{hint}")


def _check_integer(name: str, value: object, meaning: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int ({meaning}) or None, not {type(value).__name__}")


_HEADERS_ARE: Final = "headers must be pairs (str, bytes or None), as in [('h', b'1')]"


def _checked_headers(headers: Headers) -> Headers:
    checked: list[tuple[str, bytes | None]] = []
    if not isinstance(headers, Iterable):
        raise TypeError(f"{_HEADERS_ARE}; got {headers!r}")
    for header in headers:
        if not isinstance(header, tuple) or len(header) != 2 or not isinstance(header[0], str):
            raise TypeError(f"{_HEADERS_ARE}; got {header!r}")
        name, value = header
        if utf8_bytes(name) is None:
            raise ValueError(f"header name {name!r} must be text that UTF-8 can encode")
        checked.append((name, None if value is None else _as_bytes(f"header {name!r}", value)))
    return tuple(checked)
