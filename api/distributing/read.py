"""A distributed read: the records it covers, and how each task reads its range of offsets.

A range includes its start and excludes its end. Control batches and aborted records have offsets
too, so a range may hold fewer records than offsets.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.fetch_buffer import AssignedPartition
from oncelog.api.consuming.fetcher import Fetcher
from oncelog.api.consuming.metrics import ConsumerCounters, readings
from oncelog.api.session.client_metrics import ClientReport
from oncelog.api.session.committed_offsets import list_offsets
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    OncelogError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    INTERNAL_TOPICS,
    IsolationLevel,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa


TASK_CLIENT: Final = "task"
"""The name in metrics of what tasks of Spark and Ray Data read and write."""

STALL_TIMEOUT_MS: Final = 120_000
"""How long a read may stall before it fails, so that the engine retries the task."""

PARTITION_FETCH_BYTES: Final = 1_900_000
"""Size of one reply; a larger one would go through the object store, not in the actor call."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """Offsets of one partition, from ``start_offset`` (inclusive) to ``end_offset`` (exclusive).

    ``topic_id`` is that of the topic when the read was planned. In another topic of the same name
    the offsets mean nothing.
    """

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int
    topic_id: str = ""

    @property
    def size(self) -> int:
        """The number of offsets, at least the number of records."""
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBounds:
    """What can be read of one partition now: from ``start_offset`` up to ``end_offset``."""

    start_offset: int
    end_offset: int
    topic_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to read: exactly one of topics by name, partitions, or topics by pattern."""

    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    pattern: str | None = None

    def choose(
        self, partition_counts: Mapping[str, int], *, lost: Collection[str] = ()
    ) -> list[TopicPartition]:
        """Return the selected partitions of existing topics, sorted.

        Raises ``UnknownTopicOrPartitionError`` for a topic or partition that does not exist; a
        topic known to be ``lost`` is left out instead. A pattern may match nothing; it never
        matches an internal topic.
        """
        if self.partitions:
            there = [item for item in self.partitions if item.topic not in lost]
            for topic_partition in there:
                _check_exists(topic_partition, partition_counts)
            return sorted(there)
        topics: Iterable[str] = self.topics
        if self.pattern is not None:
            matches = re.compile(self.pattern).fullmatch
            topics = [
                name for name in partition_counts if name not in INTERNAL_TOPICS and matches(name)
            ]
        chosen = []
        for topic in sorted(set(topics) - set(lost)):
            _check_exists(TopicPartition(topic, 0), partition_counts)
            chosen += [TopicPartition(topic, place) for place in range(partition_counts[topic])]
        return chosen


def _check_exists(topic_partition: TopicPartition, partition_counts: Mapping[str, int]) -> None:
    topic, partition = topic_partition.topic, topic_partition.partition
    count = partition_counts.get(topic)
    if count is None:
        raise unknown_topic(topic, partition_counts)
    if not 0 <= partition < count:
        raise UnknownTopicOrPartitionError(
            f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}"
        )


def unknown_topic(topic: str, known: Iterable[str]) -> UnknownTopicOrPartitionError:
    """The error for a topic that does not exist, or is hidden: which do, and how to make it."""
    names = sorted(name for name in known if name not in INTERNAL_TOPICS)
    there_are = f"there are {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
    return UnknownTopicOrPartitionError(
        f"there is no topic {topic!r} ({there_are if names else 'there are none yet'})",
        advice=f"create it with cluster.admin().create_topic({topic!r}, partitions=N), or, if "
        "others see it, ask an operator for an ACL",
    )


# --- reading a range ------------------------------------------------------------------------------


async def read_range(
    router: Router,
    wanted: PartitionRange,
    *,
    isolation_level: IsolationLevel,
    random: Random,
    skips_lost: bool = False,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the records of ``wanted`` in offset order, with the schema of ``decode_columns``.

    Fetches ahead while its task consumes. ``OffsetOutOfRangeError`` if the range is no longer in
    the log; ``UnknownTopicOrPartitionError`` or ``UnknownTopicIdError`` if the topic was deleted.
    With ``skips_lost`` a warning names the offsets instead. ``TopicAuthorizationFailedError`` if
    the topic may not be read or seen, and ``RequestTimedOutError`` if the leader sends nothing for
    ``STALL_TIMEOUT_MS``.
    """
    changed, counters = asyncio.Event(), ConsumerCounters()
    fetcher = Fetcher(
        router=router,
        settings=ConsumerSettings(
            isolation_level=isolation_level, max_partition_fetch_bytes=PARTITION_FETCH_BYTES
        ),
        random=random,
        on_change=changed.set,
        counters=counters,
    )
    report = ClientReport(
        router.reports,
        lambda: readings(counters, fetcher.partitions, client=TASK_CLIENT, group_id=None),
    )
    report.begin()
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
        report.stop()
        await fetcher.close()


async def _after_lost(
    router: Router,
    wanted: PartitionRange,
    partition: AssignedPartition,
    failure: OncelogError,
    *,
    random: Random,
) -> int:
    """The offset to continue at after deleted records: the end of ``wanted`` if all are.

    Raises any other ``failure``, also if only the leader does not know the topic, and
    ``TopicAuthorizationFailedError`` if the controller does not show it.
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
    _logger.warning(
        "skipping offsets %d to %d of %s, which are gone — keep records for longer (retention_ms) "
        "if they must not be missed",
        *(position, after - 1, lost),
    )
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
            f"the leader of {wanted.topic_partition} sent nothing for "
            f"{STALL_TIMEOUT_MS // 1_000} s before offset {wanted.end_offset}; is it alive?"
        ) from None
