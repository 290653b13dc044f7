"""Which records a distributed read covers, and what can be read. Pure.

A range is from its start (inclusive) to its end (exclusive). Control batches and aborted records
have offsets too, so a range may hold fewer records than offsets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from oncelog.storage.exceptions import UnknownTopicOrPartitionError
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """Offsets of one partition, from ``start_offset`` (inclusive) to ``end_offset`` (exclusive).

    ``topic_id`` is that of the topic when the read was planned: in another of its name the offsets
    mean nothing.
    """

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int
    topic_id: str = ""

    @property
    def size(self) -> int:
        """How many offsets the range has: at least as many as records."""
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What can be read of one partition now: from ``start_offset`` up to ``end_offset``."""

    start_offset: int
    end_offset: int
    topic_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is read: exactly one of topics by name, partitions, and topics by pattern."""

    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    pattern: str | None = None

    def choose(
        self, partition_counts: Mapping[str, int], *, lost: Collection[str] = ()
    ) -> list[TopicPartition]:
        """The chosen ones of the topics that exist, with their partition counts; in order.

        Raises ``UnknownTopicOrPartitionError`` for a topic or partition that does not exist,
        unless its topic is known to be ``lost``: then it is left out. A pattern may match nothing;
        it never matches an internal topic.
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
        raise UnknownTopicOrPartitionError(unknown_topic(topic, partition_counts))
    if not 0 <= partition < count:
        raise UnknownTopicOrPartitionError(
            f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}"
        )


def unknown_topic(topic: str, known: Iterable[str]) -> str:
    """One line for a topic that does not exist: which do, and how to make it."""
    names = sorted(name for name in known if name not in INTERNAL_TOPICS)
    there_are = f"there are {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
    return (
        f"there is no topic {topic!r} ({there_are if names else 'there are none yet'}): create it "
        f"with cluster.admin().create_topic({topic!r}, partitions=N)"
    )
