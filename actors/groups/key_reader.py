"""Reads the keys of records for share groups in the order of keys, from the leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final
from zlib import crc32

from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.interfaces import Transport, leader_address
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.partition import FetchReply, FetchRequest, ListOffsetsRequest
from oncelog.actors.protocol.messages.share import ShareOrder
from oncelog.actors.protocol.queue.share_groups import ReadableRange, ShareGroups
from oncelog.actors.protocol.queue.share_keys import NO_KEY, KnownKeys
from oncelog.actors.protocol.queue.share_partition import SharePartition
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import EARLIEST_TIMESTAMP, IsolationLevel, TopicPartition
from oncelog.storage.records.batch import Buffer, crc_matches, iterate_batches
from oncelog.storage.records.codec import Record, decode_rows

FETCH_BYTES: Final = 262_144
"""How much of a partition is fetched at a time; a larger batch is fetched alone."""

METADATA_AGE_MS: Final = 10_000
"""How old the known leader of a partition may be."""

_ROWS_AT_A_TIME: Final = 1_000


class KeyReader:
    """The known keys of the groups of one shard, in one leader epoch."""

    def __init__(
        self,
        *,
        shares: ShareGroups,
        cluster: ClusterView,
        transport: Transport,
        call_timeout_ms: int,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    ) -> None:
        self._shares = shares
        self._cluster = cluster
        self._transport = transport
        self._call_timeout_ms = call_timeout_ms
        self._spawn = spawn
        self._keys: dict[str, dict[TopicPartition, KnownKeys]] = {}
        self._reads: dict[str, asyncio.Task[bool]] = {}

    def known(self, group_id: str) -> Mapping[TopicPartition, KnownKeys]:
        """What is known of the keys of a group's partitions."""
        return self._keys.get(group_id, {})

    def forget(self, group_id: str) -> None:
        """The group is deleted."""
        self._keys.pop(group_id, None)

    def read(
        self, group_id: str, ranges: Mapping[TopicPartition, ReadableRange]
    ) -> asyncio.Task[bool] | None:
        """Read the keys of what the group may acquire of ``ranges``; callers share one read.

        The result says whether all are known: false while a leader is away. None if all are.
        """
        task = self._reads.get(group_id)
        if task is not None:
            return task
        group = self._shares.find(group_id)
        if group is None or group.order is ShareOrder.NONE:
            self.forget(group_id)
        elif any(self._first_unknown(group_id, *one) is not None for one in ranges.items()):
            task = self._reads[group_id] = self._spawn(self._read_all(group_id, ranges))
            task.add_done_callback(lambda _: self._reads.pop(group_id, None))
        return task

    async def _read_all(
        self, group_id: str, ranges: Mapping[TopicPartition, ReadableRange]
    ) -> bool:
        known = self._keys.setdefault(group_id, {})
        for tp in known.keys() - ranges.keys():
            del known[tp]
        told = await asyncio.gather(*(self._read(group_id, *one) for one in ranges.items()))
        return all(told)

    async def _read(self, group_id: str, tp: TopicPartition, known: ReadableRange) -> bool:
        while True:
            offset = self._first_unknown(group_id, tp, known)
            if offset is None:
                return True
            keys = self._keys_of(group_id, tp, known.topic_id)
            keys.keep(self._partition(group_id, tp, known).spans(known.end_offset))
            if not await self._learn(tp, keys, offset):
                self._cluster.invalidate(tp.topic)
                return False

    def _first_unknown(self, group_id: str, tp: TopicPartition, known: ReadableRange) -> int | None:
        needed = self._partition(group_id, tp, known).spans(known.end_offset)
        return self._keys_of(group_id, tp, known.topic_id).first_unknown(needed)

    def _partition(self, group_id: str, tp: TopicPartition, known: ReadableRange) -> SharePartition:
        """What the group has of a partition: nothing yet, if the topic is new."""
        group = self._shares.find(group_id)
        partition = None if group is None else group.partitions.get(tp)
        if partition is None or partition.topic_id != known.topic_id:
            partition = SharePartition(known.topic_id, known.start_offset)
        return partition

    def _keys_of(self, group_id: str, tp: TopicPartition, topic_id: str) -> KnownKeys:
        known = self._keys.setdefault(group_id, {})
        if tp not in known or known[tp].topic_id != topic_id:
            known[tp] = KnownKeys(topic_id)
        return known[tp]

    async def _learn(self, tp: TopicPartition, keys: KnownKeys, offset: int) -> bool:
        """Learn what the log has from ``offset`` on; whether that was anything."""
        for is_checked in (False, True):
            reply = await self._fetch(tp, keys.topic_id, offset, is_checked=is_checked)
            if reply.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                start = await self._log_start(tp)
                keys.learn(offset, start, {})
                return start > offset
            if reply.error is ErrorCode.CORRUPT_MESSAGE:
                # The worker that acquires what cannot be read rejects it.
                keys.learn_unreadable(offset, max(reply.resume_offset, offset + 1))
                return True
            if reply.error is not ErrorCode.NONE:
                return False
            try:
                end, found = key_hashes(reply.records, offset)
            except CorruptDataError:
                # Damaged on its way, or the leader must look.
                continue
            keys.learn(offset, end, found)
            return end > offset
        keys.learn_unreadable(offset, offset + 1)
        return True

    async def _fetch(
        self, tp: TopicPartition, topic_id: str, offset: int, *, is_checked: bool
    ) -> FetchReply:
        request = FetchRequest(
            topic_partition=tp,
            fetch_offset=offset,
            isolation_level=IsolationLevel.READ_COMMITTED,
            max_wait_ms=0,
            max_bytes=FETCH_BYTES,
            topic_id=topic_id,
            is_checked=is_checked,
        )
        leader = await self._leader(tp)
        if leader is None:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        return await self._transport.call(leader, request, timeout_ms=self._call_timeout_ms)

    async def _log_start(self, tp: TopicPartition) -> int:
        """Where the log begins; -1 if its leader does not tell it."""
        request = ListOffsetsRequest(topic_partition=tp, timestamp_ms=EARLIEST_TIMESTAMP)
        leader = await self._leader(tp)
        if leader is None:
            return -1
        reply = await self._transport.call(leader, request, timeout_ms=self._call_timeout_ms)
        return reply.offset if reply.error is ErrorCode.NONE else -1

    async def _leader(self, tp: TopicPartition) -> str | None:
        as_of_ms = int(loop_ms()) - METADATA_AGE_MS
        _, topics = await self._cluster.topics((tp.topic,), as_of_ms=as_of_ms)
        topic = topics.get(tp.topic)
        partition = None if topic is None else topic.find(tp.partition)
        if topic is None or partition is None:
            return None
        return leader_address(topic, partition)


def key_hashes(records: Buffer, first: int) -> tuple[int, dict[int, int]]:
    """The end (exclusive) of a fetch from ``first``, and offset → hash of a key in it.

    ``NO_KEY`` stands for a record without one, and for each offset of a marker. Aborted records
    count as others do: the worker that acquires one finds nothing there. Raises
    ``CorruptDataError`` if the first batch is damaged; the result ends before a later one that is.
    """
    end, found = first, dict[int, int]()
    try:
        for position, header in iterate_batches(records):
            if not crc_matches(records, header, position):
                raise CorruptDataError(f"batch at offset {header.base_offset} fails its CRC check")
            if header.is_control:
                control = range(max(header.base_offset, first), header.next_offset)
                found |= dict.fromkeys(control, NO_KEY)
            else:
                rows = decode_rows(
                    records,
                    header,
                    position,
                    row_type=Record,
                    first_offset=first,
                    checks_crc=False,
                )
                while rows.left:
                    for record in rows.take(_ROWS_AT_A_TIME):
                        found[record.offset] = NO_KEY if record.key is None else crc32(record.key)
            end = max(end, header.next_offset)
    except CorruptDataError:
        if end == first:
            raise
    return end, found
