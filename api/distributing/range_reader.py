"""Reads one range of one partition as Arrow batches, fetching ahead while its task consumes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from random import Random
from typing import TYPE_CHECKING, Final

from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.fetch_buffer import AssignedPartition
from oncelog.api.consuming.fetcher import Fetcher
from oncelog.api.distributing.ranges import PartitionRange
from oncelog.api.session.offsets import list_offsets
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError, RequestTimedOutError
from oncelog.storage.model import EARLIEST_TIMESTAMP, IsolationLevel

if TYPE_CHECKING:
    import pyarrow as pa

STALL_TIMEOUT_MS: Final = 120_000
"""How long a read may stall before it fails, for the engine to retry the task."""

PARTITION_FETCH_BYTES: Final = 1_900_000
"""One reply; a larger one would go through the object store, not inside the actor call."""

_logger = logging.getLogger(__name__)


async def read_range(
    router: Router,
    wanted: PartitionRange,
    *,
    isolation_level: IsolationLevel,
    random: Random,
    skips_lost: bool = False,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The records of ``wanted``, in offset order, as batches of ``decode_columns``'s schema.

    Raises ``OffsetOutOfRangeError`` when the range is no longer in the log, and
    ``UnknownTopicOrPartitionError`` or ``UnknownTopicIdError`` when the topic is gone, unless it
    ``skips_lost``: then a warning names the offsets. ``RequestTimedOutError`` when its leader sends
    nothing for ``STALL_TIMEOUT_MS``.
    """
    changed = asyncio.Event()
    fetcher = Fetcher(
        router=router,
        settings=ConsumerSettings(
            isolation_level=isolation_level, max_partition_fetch_bytes=PARTITION_FETCH_BYTES
        ),
        random=random,
        on_change=changed.set,
    )
    topic_partition = wanted.topic_partition
    try:
        fetcher.assign((topic_partition,))
        fetcher.seek(topic_partition, wanted.start_offset)
        partition = fetcher.partition(topic_partition)
        partition.topic_id = wanted.topic_id
        while (partition.position or 0) < wanted.end_offset:
            changed.clear()
            for _, batches in fetcher.take_columns(None):
                for batch in batches:
                    within = _below(batch, wanted.end_offset)
                    if within.num_rows:
                        yield within
            failure = fetcher.take_failure()
            if failure is not None and not skips_lost:
                raise failure[1]
            if failure is not None:
                after = await _after_lost(router, wanted, *failure, random=random)
                fetcher.seek(topic_partition, after)
            if not fetcher.has_data and (partition.position or 0) < wanted.end_offset:
                await _wait(changed, wanted)
    finally:
        await fetcher.close()


async def _after_lost(
    router: Router,
    wanted: PartitionRange,
    partition: AssignedPartition,
    failure: OncelogError,
    *,
    random: Random,
) -> int:
    """Where ``wanted`` goes on after records that are gone: its end, if all the rest is.

    Any other ``failure`` is raised, also that of a leader which alone knows of no such topic.
    """
    lost, position = wanted.topic_partition, partition.position or 0
    after = wanted.end_offset
    if failure.code is ErrorCode.OFFSET_OUT_OF_RANGE:
        replies = await list_offsets(
            router,
            {lost: EARLIEST_TIMESTAMP},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            random=random,
            timeout_ms=STALL_TIMEOUT_MS,
        )
        if replies[lost].offset > position:
            after = min(after, replies[lost].offset)
    elif failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        known = (await router.metadata((lost.topic,), refresh=True)).get(lost.topic)
        if known is not None and known.topic_id == wanted.topic_id:
            raise failure
    elif failure.code is not ErrorCode.UNKNOWN_TOPIC_ID:
        raise failure
    _logger.warning("offsets %d to %d of %s are gone: they are skipped", position, after - 1, lost)
    return after


def _below(batch: pa.RecordBatch, end_offset: int) -> pa.RecordBatch:
    """The rows of ``batch`` with offsets below ``end_offset`` (exclusive)."""
    import pyarrow.compute as pc

    offsets = batch.column("offset")
    if not len(offsets) or offsets[-1].as_py() < end_offset:
        return batch
    return batch.filter(pc.less(offsets, end_offset))


async def _wait(changed: asyncio.Event, wanted: PartitionRange) -> None:
    try:
        await asyncio.wait_for(changed.wait(), STALL_TIMEOUT_MS / 1_000)
    except asyncio.TimeoutError:
        raise RequestTimedOutError(
            f"the leader of {wanted.topic_partition} gave nothing for "
            f"{STALL_TIMEOUT_MS // 1_000} s before offset {wanted.end_offset}; is it alive?"
        ) from None
