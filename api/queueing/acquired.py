"""Reads the records that a worker has acquired, from the leaders of their partitions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec import structs

from oncelog.actors.protocol.messages.partition import FetchReply, FetchRequest
from oncelog.actors.protocol.messages.share import AcquiredRun
from oncelog.api.consuming.fetch_buffer import VisibleBatches, visible_batches
from oncelog.api.records import QueueRecord
from oncelog.api.session.committed_offsets import is_retriable, list_offsets
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    CorruptDataError,
    CorruptRecordError,
    OncelogError,
    exception_for,
)
from oncelog.storage.model import EARLIEST_TIMESTAMP, IsolationLevel, TopicPartition
from oncelog.storage.records.codec import decode_rows

if TYPE_CHECKING:
    from random import Random

    from oncelog.api.config import QueueSettings
    from oncelog.api.session.routing import Router
    from oncelog.storage.records.batch import Buffer


_offset_of: Final = attrgetter("offset")


@dataclass(slots=True)
class ReadRuns:
    """What reading acquired runs of a partition gave.

    ``gaps`` are acquired offsets at which there is no record to see. ``unread`` are the runs that
    must be read again later: their leader is away or out of date, or has said enough for now.
    ``released`` are of a topic that was deleted, and another has its name.
    """

    records: list[QueueRecord] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    unread: list[AcquiredRun] = field(default_factory=list)
    released: list[AcquiredRun] = field(default_factory=list)
    size_bytes: int = 0


async def read_runs(
    router: Router,
    topic_partition: TopicPartition,
    runs: Sequence[AcquiredRun],
    settings: QueueSettings,
    *,
    random: Random,
    bytes_max: int,
) -> ReadRuns:
    """Read ``runs`` of one partition, ascending, up to about ``bytes_max``.

    ``CorruptRecordError`` for a damaged batch before which nothing was read. Another error that no
    retry helps is raised too.
    """
    read = ReadRuns()
    left = list(runs)
    position = 0
    while left and read.size_bytes < bytes_max:
        position = max(position, left[0].first_offset)
        try:
            reply, visible = await _visible_at(
                router, topic_partition, left[0].topic_id, position, settings
            )
            if reply.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                start = await _log_start(router, topic_partition, random, settings)
                if start <= position:
                    break
                # Retention has removed them.
                position = _pass(read, left, start, [])
                continue
            if reply.error is ErrorCode.UNKNOWN_TOPIC_ID:
                # Released, they count as delivered: not while only the leader is out of date. No
                # gaps: the metadata, too, may be older than the runs.
                if await _is_remade(router, topic_partition.topic, left[0].topic_id):
                    read.released, left = left, []
                break
            if reply.error is not ErrorCode.NONE:
                if is_retriable(reply.error):
                    break
                raise exception_for(reply.error, reply.detail)
            if visible.next_offset <= position:
                # This leader does not have them yet, or some of its followers do not.
                break
            records, end = _taken(left, reply.records, visible, topic_partition)
        except CorruptRecordError:
            if read.records or read.gaps:
                break  # The next read begins there.
            raise
        read.size_bytes += len(reply.records)
        position = _pass(read, left, end, records)
    read.unread = left
    # Runs of different delivery counts were read one after another.
    read.records.sort(key=_offset_of)
    return read


async def _is_remade(router: Router, topic: str, topic_id: str) -> bool:
    """Whether another topic than that of ``topic_id`` has the name now; false if unknown."""
    try:
        known = await router.metadata((topic,), refresh=True)
    except OncelogError:
        return False
    return topic in known and known[topic].topic_id != topic_id


async def _visible_at(
    router: Router,
    topic_partition: TopicPartition,
    topic_id: str,
    offset: int,
    settings: QueueSettings,
) -> tuple[FetchReply, VisibleBatches]:
    """A reply of the leader, and what is visible in it; ``CorruptRecordError`` for damage.

    If the reply is damaged the leader looks whether its log is, and where the damage ends.
    """
    for is_checked in (False, True):
        reply = await _fetch(router, topic_partition, topic_id, offset, settings, is_checked)
        if reply.error is ErrorCode.CORRUPT_MESSAGE:
            raise _corrupt(topic_partition, offset, reply.resume_offset, reply.detail)
        try:
            visible = visible_batches(
                reply.records, fetch_offset=offset, aborted_transactions=reply.aborted_transactions
            )
        except CorruptDataError as error:
            damage = error
        else:
            return reply, visible
    raise _corrupt(topic_partition, offset, offset + 1, str(damage)) from damage


async def _fetch(
    router: Router,
    topic_partition: TopicPartition,
    topic_id: str,
    offset: int,
    settings: QueueSettings,
    is_checked: bool,
) -> FetchReply:
    request = FetchRequest(
        topic_partition=topic_partition,
        fetch_offset=offset,
        isolation_level=IsolationLevel.READ_COMMITTED,
        max_wait_ms=0,
        max_bytes=settings.max_partition_fetch_bytes,
        topic_id=topic_id,
        is_checked=is_checked,
    )
    return await router.call_leader(
        topic_partition, request, timeout_ms=settings.request_timeout_ms
    )


async def _log_start(
    router: Router, topic_partition: TopicPartition, random: Random, settings: QueueSettings
) -> int:
    found = await list_offsets(
        router,
        {topic_partition: EARLIEST_TIMESTAMP},
        isolation_level=IsolationLevel.READ_COMMITTED,
        random=random,
        timeout_ms=settings.request_timeout_ms,
    )
    return found[topic_partition].offset


def _corrupt(
    topic_partition: TopicPartition, offset: int, next_offset: int, detail: str
) -> CorruptRecordError:
    return CorruptRecordError(
        f"{topic_partition} at offset {offset}: {detail}",
        topic_partition=topic_partition,
        offset=offset,
        next_offset=max(next_offset, offset + 1),
    )


def _taken(
    runs: Sequence[AcquiredRun],
    records: Buffer,
    visible: VisibleBatches,
    topic_partition: TopicPartition,
) -> tuple[list[QueueRecord], int]:
    """The records of ``runs`` in a reply, and their end (exclusive).

    Each batch is decoded once per delivery count. They end before one that cannot be decoded;
    ``CorruptRecordError`` if that is the first.
    """
    taken: list[QueueRecord] = []
    end, place = visible.next_offset, 0
    for batch in visible.batches:
        first, last = batch.header.base_offset, batch.header.last_offset
        while place < len(runs) and runs[place].last_offset < first:
            place += 1
        wanted: dict[int, list[AcquiredRun]] = {}
        for run in runs[place:]:
            if run.first_offset > min(last, end):
                break
            wanted.setdefault(run.delivery_count, []).append(run)
        for delivery_count, its_runs in wanted.items():
            leading = (topic_partition.topic, topic_partition.partition, delivery_count)
            try:
                rows = decode_rows(
                    records,
                    batch.header,
                    batch.position,
                    row_type=QueueRecord,
                    leading=leading,
                    first_offset=its_runs[0].first_offset,
                    checks_crc=False,
                )
            except CorruptDataError as error:
                if taken:
                    return [one for one in taken if one.offset < first], first
                raise _corrupt(topic_partition, first, last + 1, str(error)) from error
            span = its_runs[-1].last_offset - its_runs[0].first_offset + 1
            taken += _selected(rows.take(span), its_runs)
    return taken, end


def _selected(rows: list[QueueRecord], runs: list[AcquiredRun]) -> list[QueueRecord]:
    """Those of ``rows``, ascending, that are in ``runs``."""
    if len(runs) == 1:
        return rows[: bisect_right(rows, runs[0].last_offset, key=_offset_of)]
    selected: list[QueueRecord] = []
    place = 0
    for row in rows:
        while place < len(runs) and runs[place].last_offset < row.offset:
            place += 1
        if place == len(runs):
            break
        if runs[place].first_offset <= row.offset:
            selected.append(row)
    return selected


def _pass(read: ReadRuns, runs: list[AcquiredRun], end: int, records: list[QueueRecord]) -> int:
    """Drop from ``runs`` what is below ``end``; what of it is not in ``records`` are gaps."""
    read.records += records
    passed: list[tuple[int, int]] = []
    while runs and runs[0].first_offset < end:
        run = runs.pop(0)
        passed.append((run.first_offset, min(run.last_offset, end - 1)))
        if run.last_offset >= end:
            runs.insert(0, structs.replace(run, first_offset=end))
    if sum(last - first + 1 for first, last in passed) > len(records):
        found = {record.offset for record in records}
        read.gaps += [
            offset
            for first, last in passed
            for offset in range(first, last + 1)
            if offset not in found
        ]
    return end
