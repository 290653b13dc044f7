"""How far a stream has read, as its checkpoint has it, and how far its next batch may. Pure.

In the checkpoint it is JSON as of Kafka's source, the next offset to read of each partition, and
two more keys, which no topic can have as its name:

    {"@start": {"t": {"0": 3}}, "@topicIds": {"t": "5e0c..."}, "t": {"0": 23, "1": 7}}

*Topic ids* tell a topic from another of its name: one that was made later, or in another cluster.
*Start* has where those partitions begin that the offset before does not have, new ones and, in the
first batch, all: Spark keeps no other record of where a stream began, and asks anew after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from oncelog.spark_bridge.offsets import MARK, Offsets
from oncelog.storage.exceptions import (
    InvalidSettingError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

START: Final = f"{MARK}start"
TOPIC_IDS: Final = f"{MARK}topicIds"

TopicIds = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """How far a stream has read: the next offset of each partition, and the ids of the topics.

    ``starts`` are those of partitions that the offset before lacks.
    """

    positions: Offsets = field(default_factory=dict)
    topic_ids: TopicIds = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)

    @classmethod
    def parse(cls, stored: Mapping[str, Any]) -> StreamOffset:
        """What ``to_json`` gave, after a journey as text; ``InvalidSettingError`` for others."""
        try:
            topics = {name: item for name, item in stored.items() if not name.startswith(MARK)}
            topic_ids = {str(name): str(item) for name, item in stored.get(TOPIC_IDS, {}).items()}
            parsed = cls(
                positions=_flat(topics), topic_ids=topic_ids, starts=_flat(stored.get(START, {}))
            )
        except (AttributeError, TypeError, ValueError):
            parsed = None
        if parsed is None or not {tp.topic for tp in parsed.positions} <= parsed.topic_ids.keys():
            raise InvalidSettingError(
                f"the checkpoint has {stored!r} as an offset, which is not one of oncelog's: is it "
                "that of another source? Give the query a checkpoint of its own"
            )
        return parsed

    def to_json(self) -> dict[str, Any]:
        """For the checkpoint: Spark compares it as text, so its order is always the same."""
        stored: dict[str, Any] = {TOPIC_IDS: dict(sorted(self.topic_ids.items()))}
        if self.starts:
            stored = {START: nested(self.starts), **stored}
        return {**stored, **nested(self.positions)}

    def has(self, topic_partition: TopicPartition, topic_ids: TopicIds) -> bool:
        """Whether the partition was read before, and its topic is still the same one."""
        topic = topic_partition.topic
        return topic_partition in self.positions and self.topic_ids[topic] == topic_ids.get(topic)

    def lost_topics(self, topic_ids: TopicIds) -> list[str]:
        """The topics that were read and are gone, also if there is another of the name now."""
        return sorted(
            topic for topic, item in self.topic_ids.items() if topic_ids.get(topic) != item
        )


def nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    """``offsets`` as JSON, in order."""
    topics: dict[str, dict[str, int]] = {}
    for topic_partition, offset in sorted(offsets.items()):
        topics.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offset
    return topics


def _flat(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


# --- data loss --------------------------------------------------------------------------------


def check_topics(offset: StreamOffset, topic_ids: TopicIds) -> None:
    """Refuse to go on if a topic that was read is gone: its records cannot be read any more."""
    for topic in offset.lost_topics(topic_ids):
        advice = "start a new query with a new checkpoint, or give failOnDataLoss=false to "
        if topic not in topic_ids:
            raise UnknownTopicOrPartitionError(
                f"there is no topic {topic!r} any more: it was deleted, or this is not the cluster "
                f"of the checkpoint; {advice}read without it"
            )
        raise UnknownTopicIdError(
            f"topic {topic!r} has the id {topic_ids[topic]}, in the checkpoint it has "
            f"{offset.topic_ids[topic]}: it was deleted and made again, or this is another "
            f"cluster; {advice}read the one that there is from its start"
        )


def check_not_before(positions: Offsets, ends: Offsets) -> None:
    """Refuse to go on if a partition ends before what was read of it."""
    for topic_partition, position in sorted(positions.items()):
        if ends[topic_partition] < position:
            raise OffsetOutOfRangeError(
                f"{topic_partition} is to be read from offset {position}, but ends at "
                f"{ends[topic_partition]}: records were lost, or startingOffsets is beyond the "
                "end; give a new checkpoint or another start, or failOnDataLoss=false to go on "
                "from there"
            )


# --- how far ----------------------------------------------------------------------------------


def limited(
    positions: Offsets, ends: Offsets, offsets_max: int | None
) -> dict[TopicPartition, int]:
    """How far a batch of about ``offsets_max`` offsets goes from ``positions``, towards ``ends``.

    Each partition gets its share of what is there to read, and at least one offset. It never goes
    back. Source: ``maxOffsetsPerTrigger`` of Kafka's source.
    """
    sizes = {tp: max(ends[tp] - position, 0) for tp, position in positions.items()}
    total = sum(sizes.values())
    if offsets_max is None or total <= offsets_max:
        return {tp: position + sizes[tp] for tp, position in positions.items()}
    return {
        tp: position + (max(sizes[tp] * offsets_max // total, 1) if sizes[tp] else 0)
        for tp, position in positions.items()
    }
