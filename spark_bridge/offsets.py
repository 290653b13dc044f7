"""Which records a read covers: what was asked for, in offsets that exist. Pure.

Offsets in options are those of Kafka's Spark source: the next offset to read, as JSON
``{"topic": {"0": 23, "1": -2}}``, with -2 for earliest and -1 for latest.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from oncelog.api.distributing.ranges import Bounds, PartitionRange
from oncelog.storage.exceptions import InvalidSettingError, OffsetOutOfRangeError
from oncelog.storage.model import TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2

Offsets = Mapping[TopicPartition, int]


# --- JSON -------------------------------------------------------------------------------------


def parse_offsets(option: str, text: str) -> dict[TopicPartition, int]:
    """Offsets from JSON; ``InvalidSettingError`` names ``option`` and what is wrong with it."""
    offsets = {}
    for topic, partitions in _parse_object(option, text).items():
        if not isinstance(partitions, dict):
            raise _refuse(option, text, f"topic {topic!r} needs an object of partitions")
        for partition, offset in partitions.items():
            is_number = isinstance(offset, int) and not isinstance(offset, bool)
            if not is_number or offset < EARLIEST:
                raise _refuse(option, text, f"{offset!r} is no offset, -1 (latest), -2 (earliest)")
            offsets[_topic_partition(option, text, topic, partition)] = offset
    return offsets


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
        raise _refuse(option, text, "a JSON object with a topic or more is needed")
    return parsed


def _topic_partition(option: str, text: str, topic: str, partition: str) -> TopicPartition:
    if not re.fullmatch(r"[0-9]{1,9}", partition):
        raise _refuse(option, text, f"{partition!r} is no partition of topic {topic!r}")
    return TopicPartition(topic, int(partition))


def _refuse(option: str, text: str, reason: str) -> InvalidSettingError:
    return InvalidSettingError(f"{option}={text!r}: {reason}")


# --- planning ---------------------------------------------------------------------------------


def plan(
    bounds: Mapping[TopicPartition, Bounds],
    *,
    starting: int | Offsets,
    ending: int | Offsets,
    fails_on_data_loss: bool,
) -> list[PartitionRange]:
    """The ranges to read of partitions that have ``bounds`` now; those without offsets left out.

    ``starting`` and ``ending`` are ``EARLIEST`` or ``LATEST`` for all partitions, or an offset for
    each of them. Raises ``InvalidSettingError`` when they name other partitions, and
    ``OffsetOutOfRangeError`` when an offset asked for cannot be read (any more, or yet) and
    ``fails_on_data_loss``; otherwise the range is cut to what can be read.
    """
    _check_complete("startingOffsets", starting, bounds.keys())
    _check_complete("endingOffsets", ending, bounds.keys())
    ranges = []
    for topic_partition, readable in sorted(bounds.items()):
        start_offset = _resolve(topic_partition, starting, readable)
        end_offset = _resolve(topic_partition, ending, readable)
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


def split(ranges: list[PartitionRange], ranges_min: int) -> list[PartitionRange]:
    """Cut ``ranges`` into at least ``ranges_min``, if there are offsets enough; same offsets.

    A range is cut into as many pieces as its share of all offsets calls for, so that the pieces
    are about equally large.
    """
    if len(ranges) >= ranges_min:
        return ranges
    total = sum(item.size for item in ranges)
    pieces: list[PartitionRange] = []
    for item in ranges:
        # Rounded up: a few more than the minimum are fine, fewer are not.
        count = min(item.size, -(-item.size * ranges_min // total))
        cuts = [item.start_offset + item.size * place // count for place in range(count + 1)]
        pieces += [
            replace(item, start_offset=start, end_offset=end)
            for start, end in itertools.pairwise(cuts)
        ]
    return pieces


def _check_complete(
    option: str, wanted: int | Offsets, partitions: Collection[TopicPartition]
) -> None:
    if isinstance(wanted, int):
        return
    missing = sorted(set(partitions) - wanted.keys())
    others = sorted(wanted.keys() - set(partitions))
    if missing:
        raise InvalidSettingError(
            f"{option} has no offset for {_names(missing)}: give one for each partition that is "
            "read, -2 for earliest, -1 for latest"
        )
    if others:
        raise InvalidSettingError(f"{option} names {_names(others)}, which is not read: remove it")


def _names(topic_partitions: list[TopicPartition]) -> str:
    names = ", ".join(map(str, topic_partitions[:5]))
    return names + (", ..." if len(topic_partitions) > 5 else "")


def _resolve(topic_partition: TopicPartition, wanted: int | Offsets, readable: Bounds) -> int:
    offset = wanted if isinstance(wanted, int) else wanted[topic_partition]
    if offset == EARLIEST:
        return readable.start_offset
    return readable.end_offset if offset == LATEST else offset


def _check_readable(
    topic_partition: TopicPartition, start_offset: int, end_offset: int, readable: Bounds
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
                f"{readable.start_offset} to {readable.end_offset} can be read: give other "
                "offsets, or failOnDataLoss=false to read what there is"
            )
