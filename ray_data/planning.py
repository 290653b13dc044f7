"""The ranges that a read covers, and how its tasks share them. Pure.

A start is inclusive, an end exclusive. Each is an offset, a time or a word for all partitions, or
``{topic: {partition: ...}}``, as in ``ray.data.read_kafka``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final, TypeAlias

from oncelog.api.distributing.read import PartitionRange, ReadBounds
from oncelog.storage.exceptions import InvalidSettingError, OffsetOutOfRangeError
from oncelog.storage.model import NO_OFFSET, TopicPartition
from oncelog.storage.settings import refused

Position: TypeAlias = int | str | datetime
"""An offset, a time (UTC if it has no zone), or "earliest" or "latest"."""

Positions: TypeAlias = Position | Mapping[str, Mapping[int, Position]]

ROW_OVERHEAD_BYTES: Final = 48
"""A row's memory in Arrow beyond its bytes in the log, with the name of its topic."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The start or end of a read: the argument's name, and the one word that it may be."""

    name: str
    word: str

    def check(self, given: object) -> None:
        """Reject what can never be a position, with ``InvalidSettingError``; makes no call."""
        if not isinstance(given, Mapping):
            self._check_one(given, self.name)
            return
        for topic, partitions in given.items():
            where = f"{self.name}[{topic!r}]"
            if not isinstance(topic, str) or not isinstance(partitions, Mapping):
                raise refused(where, partitions, "{topic: {partition: offset}}")
            for partition, position in partitions.items():
                if not _is_whole(partition):
                    raise InvalidSettingError(
                        f"{where}: {partition!r} is no partition number", advice="give 0 or more"
                    )
                self._check_one(position, f"{where}[{partition}]")

    def _check_one(self, position: object, where: str) -> None:
        if isinstance(position, datetime) or position == self.word or _is_whole(position):
            return
        raise refused(where, position, position_text(self.word))

    def positions(
        self, given: Positions, chosen: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """The position of each chosen partition; for one that is not named, the word's."""
        if not isinstance(given, Mapping):
            return dict.fromkeys(chosen, given)
        named = {
            TopicPartition(topic, partition): position
            for topic, partitions in given.items()
            for partition, position in partitions.items()
        }
        others = sorted(named.keys() - set(chosen))
        if others:
            read = ", ".join(map(str, sorted(chosen)[:10]))
            raise InvalidSettingError(f"{self.name} names {others[0]}, but what is read is {read}")
        return dict.fromkeys(chosen, self.word) | named


def position_text(word: str) -> str:
    """The allowed values of a start or end, as text for errors."""
    return f"an offset, a datetime, {word!r}, or, for all, {{topic: {{partition: one of these}}}}"


START: Final = Side(name="start_offset", word="earliest")
END: Final = Side(name="end_offset", word="latest")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def times_ms(positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    """The positions that are times, in ms since the epoch, rounded up: at or after is meant."""
    found = {}
    for topic_partition, position in positions.items():
        if isinstance(position, datetime):
            moment = position if position.tzinfo else position.replace(tzinfo=timezone.utc)
            # Negative values have special meanings.
            found[topic_partition] = max(0, -((_EPOCH - moment) // timedelta(milliseconds=1)))
    return found


def plan(
    starts: Mapping[TopicPartition, Position],
    ends: Mapping[TopicPartition, Position],
    *,
    bounds: Mapping[TopicPartition, ReadBounds],
    start_times: Mapping[TopicPartition, int],
    end_times: Mapping[TopicPartition, int],
) -> list[PartitionRange]:
    """Return the ranges to read; partitions without offsets are left out.

    ``start_times`` and ``end_times`` are the offsets of positions that are times, -1 where no
    record is that late. An end beyond what can be read is lowered to it. ``OffsetOutOfRangeError``
    for a start whose records are deleted or not there yet; ``InvalidSettingError`` for a start
    after the end.
    """
    ranges = []
    for topic_partition, readable in sorted(bounds.items()):
        start, end = starts[topic_partition], ends[topic_partition]
        if isinstance(start, int) and isinstance(end, int) and start > end:
            raise InvalidSettingError(
                f"start_offset={start} is after end_offset={end} in {topic_partition}"
            )
        first = _offset(start, start_times.get(topic_partition, NO_OFFSET), readable)
        last = _offset(end, end_times.get(topic_partition, NO_OFFSET), readable)
        if not readable.start_offset <= first <= readable.end_offset:
            raise OffsetOutOfRangeError(
                f"start_offset={start} of {topic_partition}",
                advice=(
                    f"only {readable.start_offset} to {readable.end_offset} can be read; give one "
                    "of these, 'earliest', or {topic: {partition: offset}}"
                ),
            )
        last = min(last, readable.end_offset)
        if first < last:
            ranges.append(
                PartitionRange(
                    topic_partition=topic_partition,
                    start_offset=first,
                    end_offset=last,
                    topic_id=readable.topic_id,
                )
            )
    return ranges


def _offset(position: Position, offset_of_time: int, readable: ReadBounds) -> int:
    if isinstance(position, int):
        return position
    if isinstance(position, datetime):
        if offset_of_time == NO_OFFSET:
            return readable.end_offset
        return min(max(offset_of_time, readable.start_offset), readable.end_offset)
    return readable.start_offset if position == START.word else readable.end_offset


def rows_bytes(
    ranges: Sequence[PartitionRange], bytes_per_offset: Mapping[TopicPartition, int]
) -> int:
    """Estimate the rows' memory in bytes; it is more if logs are compressed."""
    return sum(
        item.size * (bytes_per_offset[item.topic_partition] + ROW_OVERHEAD_BYTES) for item in ranges
    )


def shares(
    ranges: Sequence[PartitionRange],
    bytes_per_offset: Mapping[TopicPartition, int],
    count_max: int,
) -> list[tuple[PartitionRange, ...]]:
    """Cut ``ranges``, in order, into at most ``count_max`` shares of similar bytes.

    A large partition is cut; small ones share a task. There are fewer shares only if there are too
    few offsets. No share is empty.
    """
    total_bytes = sum(item.size * bytes_per_offset[item.topic_partition] for item in ranges)
    cut: list[list[PartitionRange]] = [[] for _ in range(count_max)]
    number, position_bytes = 0, 0
    for item in ranges:
        each_bytes = bytes_per_offset[item.topic_partition]
        start = item.start_offset
        while start < item.end_offset:
            taken = item.end_offset - start
            if number < count_max - 1:
                room_bytes = total_bytes * (number + 1) // count_max - position_bytes
                taken = min(taken, room_bytes // each_bytes)
            if taken <= 0:
                number += 1
                continue
            cut[number].append(replace(item, start_offset=start, end_offset=start + taken))
            start += taken
            position_bytes += taken * each_bytes
    return [tuple(share) for share in cut if share]
