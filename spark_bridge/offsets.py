"""The records that a read covers: options resolved to existing offsets. Pure.

Offsets in options are those of Kafka's Spark source: the next offset to read, as JSON
``{"topic": {"0": 23, "1": -2}}``, with -2 for earliest and -1 for latest.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from oncelog.api.distributing.read import PartitionRange, ReadBounds
from oncelog.storage.exceptions import InvalidSettingError, OffsetOutOfRangeError
from oncelog.storage.model import NO_OFFSET, TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2

MARK: Final = "@"
"""The prefix of keys that a stream adds to its offsets; no topic name can have it."""

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timestamps:
    """Where to start or end by time: at the first record at or after it.

    ``wanted_ms`` is the time of all partitions, or of each one. A partition without such a record
    starts, or ends, at its end, unless ``fails_without_match``.
    """

    wanted_ms: int | Mapping[TopicPartition, int]
    fails_without_match: bool

    def of(
        self, option: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """The time for each of ``partitions``, all of which must have one."""
        if isinstance(self.wanted_ms, int):
            return dict.fromkeys(partitions, self.wanted_ms)
        _check_complete(f"{option}ByTimestamp", self.wanted_ms, partitions)
        return self.wanted_ms

    def matched(self, option: str, found: Mapping[TopicPartition, int | None]) -> Offsets:
        """The offsets found; ``OffsetOutOfRangeError`` if one is missing and must not be."""
        missing = sorted(tp for tp, offset in found.items() if offset is None)
        if missing and self.fails_without_match:
            raise OffsetOutOfRangeError(
                f"{option}: no record of {_names(missing)} is as late as that",
                advice=(
                    f"give an earlier time, or {option}ByTimestampStrategy=latest to take the end"
                ),
            )
        return {tp: LATEST if offset is None else offset for tp, offset in found.items()}


Position = int | Offsets | Timestamps
"""``EARLIEST`` or ``LATEST`` of all partitions, an offset of each, or times."""


def resolve(
    option: str,
    wanted: Position,
    partitions: Collection[TopicPartition],
    offsets_at: Callable[[Mapping[TopicPartition, int]], Offsets],
) -> int | Offsets:
    """Resolve the times in a position; ``option`` is the option that gave it.

    ``offsets_at`` returns the first offset at or after a time in each partition, -1 for none.
    """
    if not isinstance(wanted, Timestamps):
        return wanted
    found = offsets_at(wanted.of(option, partitions))
    return wanted.matched(
        option, {tp: None if offset == NO_OFFSET else offset for tp, offset in found.items()}
    )


# --- JSON -------------------------------------------------------------------------------------


def parse_offsets(option: str, text: str) -> dict[TopicPartition, int]:
    """Offsets from JSON; ``InvalidSettingError`` names ``option`` and what is wrong with it."""
    offsets = _parse_numbers(option, text)
    for offset in offsets.values():
        if offset < EARLIEST:
            raise _refuse(option, text, f"{offset!r} is not an offset, -1 (latest), -2 (earliest)")
    return offsets


def parse_timestamps(option: str, text: str) -> dict[TopicPartition, int]:
    """Times in ms since the epoch, from JSON of the same form."""
    timestamps = _parse_numbers(option, text)
    for timestamp_ms in timestamps.values():
        if timestamp_ms < 0:
            raise _refuse(option, text, f"{timestamp_ms} is not a time in milliseconds")
    return timestamps


def _parse_numbers(option: str, text: str) -> dict[TopicPartition, int]:
    numbers = {}
    for topic, partitions in _parse_object(option, text).items():
        if topic.startswith(MARK):
            # The offsets of a stream's checkpoint may be given as they are.
            continue
        if not isinstance(partitions, dict):
            raise _refuse(option, text, f"topic {topic!r} needs an object of partitions")
        for partition, number in partitions.items():
            if not isinstance(number, int) or isinstance(number, bool):
                raise _refuse(option, text, f"{number!r} is not an offset or a time")
            numbers[_topic_partition(option, text, topic, partition)] = number
    return numbers


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Partitions from JSON ``{"topic": [0, 1]}``; ``InvalidSettingError`` for anything else."""
    chosen: set[TopicPartition] = set()
    for topic, partitions in _parse_object(option, text).items():
        if not isinstance(partitions, list) or not partitions:
            raise _refuse(option, text, f"topic {topic!r} needs a list of partitions")
        chosen.update(_topic_partition(option, text, topic, str(item)) for item in partitions)
    return tuple(sorted(chosen))


def _parse_object(option: str, text: str) -> dict[str, object]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict) or not parsed:
        raise _refuse(option, text, "give a JSON object with at least one topic")
    return parsed


def _topic_partition(option: str, text: str, topic: str, partition: str) -> TopicPartition:
    if not re.fullmatch(r"[0-9]{1,9}", partition):
        raise _refuse(option, text, f"{partition!r} is not a partition of topic {topic!r}")
    return TopicPartition(topic, int(partition))


def _refuse(option: str, text: str, reason: str) -> InvalidSettingError:
    return InvalidSettingError(f"{option}={text!r}: {reason}")


# --- planning ---------------------------------------------------------------------------------


def plan(
    bounds: Mapping[TopicPartition, ReadBounds],
    *,
    starting: int | Offsets,
    ending: int | Offsets,
    fails_on_data_loss: bool,
) -> list[PartitionRange]:
    """Return the ranges to read, for partitions with ``bounds``; empty ones are left out.

    ``starting`` and ``ending`` are ``EARLIEST`` or ``LATEST`` for all partitions, or an offset for
    each. Raises ``InvalidSettingError`` if they name other partitions. If a wanted offset is
    deleted or not there yet, raises ``OffsetOutOfRangeError`` with ``fails_on_data_loss``;
    otherwise the range is reduced to what can be read.
    """
    starts = resolved("startingOffsets", starting, bounds)
    ends = resolved("endingOffsets", ending, bounds)
    ranges = []
    for topic_partition, readable in sorted(bounds.items()):
        start_offset, end_offset = starts[topic_partition], ends[topic_partition]
        if fails_on_data_loss:
            _check_readable(topic_partition, start_offset, end_offset, readable)
        start_offset = max(start_offset, readable.start_offset)
        end_offset = min(end_offset, readable.end_offset)
        if start_offset < end_offset:
            ranges.append(
                PartitionRange(
                    topic_partition=topic_partition,
                    start_offset=start_offset,
                    end_offset=end_offset,
                    topic_id=readable.topic_id,
                )
            )
    return ranges


def split(
    ranges: list[PartitionRange], ranges_min: int, size_max: int = 2**63
) -> list[PartitionRange]:
    """Cut ``ranges`` into at least ``ranges_min`` of the same offsets, if there are enough.

    None has more than ``size_max`` offsets. A range is cut in proportion to its share of all
    offsets, so that the pieces have similar sizes.
    """
    total = sum(item.size for item in ranges)
    wanted = ranges_min if len(ranges) < ranges_min else 0
    pieces: list[PartitionRange] = []
    for item in ranges:
        # Rounded up: a few more than the minimum are fine, fewer are not.
        count = min(item.size, -(-item.size * wanted // total))
        count = max(count, -(-item.size // size_max))
        cuts = [item.start_offset + item.size * place // count for place in range(count + 1)]
        pieces += [
            replace(item, start_offset=start, end_offset=end)
            for start, end in itertools.pairwise(cuts)
        ]
    return pieces


def resolved(
    option: str, wanted: int | Offsets, bounds: Mapping[TopicPartition, ReadBounds]
) -> dict[TopicPartition, int]:
    """The offset of each partition, also for earliest or latest; ``wanted`` must name all."""
    _check_complete(option, wanted, bounds.keys())
    return {tp: _resolve(tp, wanted, readable) for tp, readable in bounds.items()}


def _check_complete(
    option: str, wanted: int | Offsets, partitions: Collection[TopicPartition]
) -> None:
    if isinstance(wanted, int):
        return
    missing = sorted(set(partitions) - wanted.keys())
    others = sorted(wanted.keys() - set(partitions))
    if missing:
        raise InvalidSettingError(
            f"{option} has no offset for {_names(missing)}",
            advice="give one for each partition that is read, -2 for earliest, -1 for latest",
        )
    if others:
        raise InvalidSettingError(f"{option} names {_names(others)}, which is not read: remove it")


def _names(topic_partitions: list[TopicPartition]) -> str:
    names = ", ".join(map(str, topic_partitions[:5]))
    return names + (", ..." if len(topic_partitions) > 5 else "")


def _resolve(topic_partition: TopicPartition, wanted: int | Offsets, readable: ReadBounds) -> int:
    offset = wanted if isinstance(wanted, int) else wanted[topic_partition]
    if offset == EARLIEST:
        return readable.start_offset
    return readable.end_offset if offset == LATEST else offset


def _check_readable(
    topic_partition: TopicPartition, start_offset: int, end_offset: int, readable: ReadBounds
) -> None:
    asked_and_there = (
        (start_offset < readable.start_offset, "start", start_offset),
        (start_offset > readable.end_offset, "start", start_offset),
        (end_offset > readable.end_offset, "end", end_offset),
    )
    for is_outside, word, offset in asked_and_there:
        if is_outside:
            raise OffsetOutOfRangeError(
                f"the read of {topic_partition} is to {word} at offset {offset}, but only "
                f"{readable.start_offset} to {readable.end_offset} can be read",
                advice=(
                    "give other offsets (a stream: a new checkpoint), or failOnDataLoss=false to "
                    "read what there is"
                ),
            )
