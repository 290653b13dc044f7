"""The reads of a stream: where each micro-batch ends, and which ranges it reads.

Spark repeatedly asks where the next batch ends, given the end of the last one, and stores the reply
in the checkpoint before a task runs. Then it asks for the ranges in between. They follow from the
two offsets alone, so a batch that is repeated after a crash reads the same records. Nothing here
imports Spark.

In the checkpoint an offset is JSON as in Kafka's source: the next offset to read per partition. Two
more keys cannot be topic names:

    {"@start": {"t": {"0": 3}}, "@topicIds": {"t": "5e0c..."}, "t": {"0": 23, "1": 7}}

*Topic ids* tell a topic from another with its name, made later or in another cluster. *Start* has
the start offsets of partitions that the previous offset lacks: new ones and, in the first batch,
all. Spark stores nothing else about where a stream began, and asks again after a crash.
``StreamOffset`` and everything below it are pure.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.api.distributing.read import PartitionRange, ReadBounds
from oncelog.api.distributing.write import Connect
from oncelog.api.session.committed_offsets import lag_of
from oncelog.spark_bridge.offsets import (
    EARLIEST,
    LATEST,
    MARK,
    Offsets,
    plan,
    resolve,
    resolved,
    split,
)
from oncelog.spark_bridge.read_options import ReadOptions
from oncelog.storage.exceptions import (
    InvalidSettingError,
    OffsetOutOfRangeError,
    OncelogError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import EARLIEST_TIMESTAMP, TopicPartition

IDLE_WAIT_MS: Final = 20
"""How long a stream with nothing to read waits before it replies: Spark asks again at once.

The batches of other sources of the query wait this long for each idle source.
"""

TOPICS_AGE_MS: Final = 1_000
"""How often a stream with nothing to read looks for new topics and partitions."""

Stored = Mapping[str, Any]
"""An offset in the checkpoint; empty before the first batch."""

_logger = logging.getLogger(__name__)


class MicroBatchReads:
    """One stream, as long as its query runs. Belongs to one thread."""

    def __init__(self, connect: Connect, options: ReadOptions) -> None:
        self._connect = connect
        self._options = options
        self._is_ending = False
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._last_batch_ms: float | None = None
        self._shown: Stored | None = None
        self._topics: Mapping[str, TopicMetadata] = {}
        self._topics_until_ms: float | None = None
        """Until when the known topics are used, while there is nothing to read."""

    def end_here(self) -> None:
        """Stop at the end at the next call, in as many batches as it takes."""
        self._is_ending, self._target = True, None

    def following(self, stored: Stored, *, offsets_max: int | None, offsets_min: int = 0) -> Stored:
        """Return the end of the batch after ``stored``, or ``stored`` if there is nothing to read.

        Waits up to ``maxTriggerDelay`` between batches for ``offsets_min``. Records that are gone
        raise as in ``check_topics`` and ``check_not_before``, unless ``failOnDataLoss=false``.
        ``UnknownTopicOrPartitionError`` for a topic that never existed.
        """
        connection = self._connect(self._options.endpoint)
        start = StreamOffset.parse(stored)
        now_ms = connection.now_ms()
        topic_ids, chosen = self._chosen(start, now_ms)
        known = {tp: start.positions[tp] for tp in chosen if start.has(tp, topic_ids)}
        starts = self._starts([tp for tp in chosen if tp not in known], is_first=not stored)
        read_ids = {tp.topic: topic_ids[tp.topic] for tp in chosen}
        positions = known | starts
        ends = self._ends(positions)
        positions = {tp: min(position, ends[tp]) for tp, position in positions.items()}
        end = StreamOffset(
            positions=limited(positions, ends, offsets_max), topic_ids=read_ids, starts=starts
        )
        is_new = (end.positions, end.topic_ids) != (start.positions, start.topic_ids)
        if not stored or (
            is_new
            and (self._is_ending or self._is_due(now_ms) or self._has(offsets_min, positions, ends))
        ):
            self._last_batch_ms, self._topics_until_ms = now_ms, None
            return end.to_json()
        if not self._is_ending:
            connection.wait(IDLE_WAIT_MS)
        return stored

    def _has(self, offsets_min: int, positions: Offsets, ends: Offsets) -> bool:
        """Whether there are ``offsets_min`` offsets to read; deleted records do not count."""
        if sum(ends.values()) - sum(positions.values()) < offsets_min:
            return False
        if not offsets_min:
            return True
        starts = self._connect(self._options.endpoint).offsets_at(
            dict.fromkeys(positions, EARLIEST_TIMESTAMP), self._options.isolation_level
        )
        lags = (
            lag_of(position, start_offset=starts[tp], end_offset=ends[tp])
            for tp, position in positions.items()
        )
        return sum(lags) >= offsets_min

    def _is_due(self, now_ms: float) -> bool:
        """Whether the last batch is so long ago that ``offsets_min`` no longer counts."""
        last_ms = self._last_batch_ms
        return last_ms is None or now_ms - last_ms >= self._options.trigger_delay_max_ms

    def _chosen(self, start: StreamOffset, now_ms: float) -> tuple[TopicIds, list[TopicPartition]]:
        """The ids of all topics, and the selected partitions."""
        if self._topics_until_ms is None or now_ms >= self._topics_until_ms:
            self._topics = self._connect(self._options.endpoint).topics(start.topic_ids)
            self._topics_until_ms = now_ms + TOPICS_AGE_MS
        topics = self._topics
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        lost = start.lost_topics(topic_ids)
        if lost and self._options.fails_on_data_loss:
            check_topics(start, topic_ids)
        for topic in lost:
            _logger.warning(
                "topic %r, which the stream has read, was deleted or replaced — nothing to do, if "
                "somebody meant it: it is read as a new topic",
                topic,
            )
        counts = {name: len(topic.partitions) for name, topic in topics.items()}
        return topic_ids, self._options.selection.choose(
            counts, lost=[topic for topic in lost if topic not in counts]
        )

    def _starts(self, new: list[TopicPartition], *, is_first: bool) -> dict[TopicPartition, int]:
        """Where partitions start that were not read before: later ones at their first record."""
        if not new:
            return {}
        connection = self._connect(self._options.endpoint)
        starting = self._options.starting if is_first else EARLIEST
        wanted = resolve(
            "startingOffsets",
            LATEST if starting is None else starting,
            new,
            lambda times: connection.offsets_at(times, self._options.isolation_level),
        )
        return resolved("startingOffsets", wanted, self._bounds(new))

    def _ends(self, positions: Offsets) -> dict[TopicPartition, int]:
        """How far each partition may be read now."""
        connection = self._connect(self._options.endpoint)
        ends = connection.ends(list(positions), self._options.isolation_level)
        self._latest = ends
        if self._options.fails_on_data_loss:
            check_not_before(positions, ends)
        if not self._is_ending:
            return ends
        if self._target is None:
            self._target = ends
        # A partition that was added later is left to the next query.
        return {tp: min(end, self._target.get(tp, positions[tp])) for tp, end in ends.items()}

    def latest(self) -> Stored | None:
        """The readable ends at the last call; ``None`` before the first."""
        return None if self._latest is None else nested(self._latest)

    def ranges(self, stored_start: Stored, stored_end: Stored) -> list[PartitionRange]:
        """Return the ranges between two offsets, the second of which followed from the first.

        Raises as ``following``, and ``OffsetOutOfRangeError`` for records that were deleted.
        """
        connection = self._connect(self._options.endpoint)
        start, end = StreamOffset.parse(stored_start), StreamOffset.parse(stored_end)
        topics = connection.topics(end.topic_ids)
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        if self._options.fails_on_data_loss:
            check_topics(end, topic_ids)
        ends = {tp: offset for tp, offset in end.positions.items() if end.has(tp, topic_ids)}
        starts = {
            tp: start.positions[tp]
            if start.has(tp, end.topic_ids)
            else end.starts.get(tp, EARLIEST)
            for tp in ends
        }
        ranges = plan(
            self._bounds(list(ends)),
            starting=starts,
            ending=ends,
            fails_on_data_loss=self._options.fails_on_data_loss,
        )
        # From the checkpoint: a topic that is created again meanwhile has other records.
        ranges = [
            replace(item, topic_id=end.topic_ids[item.topic_partition.topic]) for item in ranges
        ]
        return split(ranges, self._options.partitions_min, self._options.range_size_max)

    def _bounds(self, partitions: list[TopicPartition]) -> dict[TopicPartition, ReadBounds]:
        connection = self._connect(self._options.endpoint)
        return connection.bounds(partitions, self._options.isolation_level)

    def show(self, stored: Stored) -> None:
        """Commit the query's progress for its group, if it has one, to make its lag visible.

        Only the checkpoint counts: a failed commit is logged, and the next one makes up for it.
        """
        if self._options.group_id is None or stored == self._shown:
            return
        self._shown = stored
        reached = StreamOffset.parse(stored)
        try:
            self._connect(self._options.endpoint).show_progress(
                self._options.group_id, reached.positions, reached.topic_ids
            )
        except OncelogError as error:
            _logger.warning(
                "the progress of group %r cannot be committed: %s — see the group's rights if this "
                "repeats; the stream has its own checkpoint",
                *(self._options.group_id, error),
            )


# --- offsets of the checkpoint ----------------------------------------------------------------

START: Final = f"{MARK}start"
TOPIC_IDS: Final = f"{MARK}topicIds"

TopicIds = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """How far a stream has read: the next offset of each partition, and the topic ids.

    ``starts`` are those of partitions that the previous offset lacks.
    """

    positions: Offsets = field(default_factory=dict)
    topic_ids: TopicIds = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)

    @classmethod
    def parse(cls, stored: Mapping[str, Any]) -> StreamOffset:
        """Parse what ``to_json`` returned; ``InvalidSettingError`` for anything else."""
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
                f"the checkpoint has {stored!r} as an offset, which is not one of oncelog's: does "
                "it belong to another source?",
                advice="give the query a checkpoint of its own",
            )
        return parsed

    def to_json(self) -> dict[str, Any]:
        """The offset for the checkpoint. Spark compares it as text, so its order is fixed."""
        stored: dict[str, Any] = {TOPIC_IDS: dict(sorted(self.topic_ids.items()))}
        if self.starts:
            stored = {START: nested(self.starts), **stored}
        return {**stored, **nested(self.positions)}

    def has(self, topic_partition: TopicPartition, topic_ids: TopicIds) -> bool:
        """Whether the partition was read before, and its topic is still the same one."""
        topic = topic_partition.topic
        return topic_partition in self.positions and self.topic_ids[topic] == topic_ids.get(topic)

    def lost_topics(self, topic_ids: TopicIds) -> list[str]:
        """Topics that were read and then deleted, even if a new one has the name now."""
        return sorted(
            topic for topic, item in self.topic_ids.items() if topic_ids.get(topic) != item
        )


def nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    """``offsets`` as JSON, sorted."""
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
    """Raise if a topic that was read was deleted: its records cannot be read any more."""
    for topic in offset.lost_topics(topic_ids):
        advice = "start a new query with a new checkpoint, or give failOnDataLoss=false to read "
        if topic not in topic_ids:
            raise UnknownTopicOrPartitionError(
                f"there is no topic {topic!r} any more: it was deleted, or this is not the cluster "
                "of the checkpoint",
                advice=f"{advice}without it",
            )
        raise UnknownTopicIdError(
            f"topic {topic!r} has the id {topic_ids[topic]}, but in the checkpoint "
            f"{offset.topic_ids[topic]}: it was deleted and created again, or this is another "
            "cluster",
            advice=f"{advice}the new topic from its start",
        )


def check_not_before(positions: Offsets, ends: Offsets) -> None:
    """Raise if a partition ends before what was read of it."""
    for topic_partition, position in sorted(positions.items()):
        if ends[topic_partition] < position:
            raise OffsetOutOfRangeError(
                f"{topic_partition} is to be read from offset {position}, but ends at "
                f"{ends[topic_partition]}: records were lost, or startingOffsets is beyond the "
                "end",
                advice=(
                    "give a new checkpoint or another start, or failOnDataLoss=false to continue "
                    "from there"
                ),
            )


# --- how far ----------------------------------------------------------------------------------


def limited(
    positions: Offsets, ends: Offsets, offsets_max: int | None
) -> dict[TopicPartition, int]:
    """Where a batch of about ``offsets_max`` offsets ends, from ``positions`` towards ``ends``.

    Each partition gets a share in proportion to what there is to read, and at least one offset.
    It never goes back. Source: ``maxOffsetsPerTrigger`` of Kafka's source.
    """
    sizes = {tp: max(ends[tp] - position, 0) for tp, position in positions.items()}
    total = sum(sizes.values())
    if offsets_max is None or total <= offsets_max:
        return {tp: position + sizes[tp] for tp, position in positions.items()}
    return {
        tp: position + (max(sizes[tp] * offsets_max // total, 1) if sizes[tp] else 0)
        for tp, position in positions.items()
    }
