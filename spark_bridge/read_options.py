"""Options of a read: of a batch or of a stream. The names are those of Kafka's source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from oncelog.api.distributing.read import Selection
from oncelog.spark_bridge.given_options import GivenOptions, OptionNames, check_topic
from oncelog.spark_bridge.offsets import (
    EARLIEST,
    LATEST,
    Position,
    Timestamps,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import GROUP_ID_MAX_BYTES, IsolationLevel, TopicPartition

MAX_TRIGGER_DELAY_MS: Final = 900_000
_INT64_MAX: Final = 2**63 - 1

READ_OPTIONS: Final = OptionNames(
    accepted=(
        "address",
        "subscribe",
        "assign",
        "subscribePattern",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "failOnDataLoss",
        "minPartitions",
        "maxRecordsPerPartition",
        "pushdown",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "includeHeaders",
        "isolation.level",
        "kafka.group.id",
    ),
    aliases={"kafka.bootstrap.servers": "address", "kafka.isolation.level": "isolation.level"},
    ignored=(
        "groupIdPrefix",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
    ),
    refused={
        "kafka.auto.offset.reset": "give startingOffsets",
        "kafka.enable.auto.commit": "the checkpoint has the offsets; kafka.group.id shows them",
        "kafka.key.deserializer": "cast column key",
        "kafka.value.deserializer": "cast column value",
        "kafka.interceptor.classes": "change the rows in the DataFrame",
    },
)

STREAM_OPTIONS: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "kafka.group.id",
)
"""What a batch read has no use for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A read. ``starting`` ``None``: a batch starts at earliest, a stream at latest.

    ``ending`` ``None``: at latest. ``address`` ``None`` stands for the default, of reads as of
    writes. ``offsets_max`` and ``offsets_min`` are those of one micro-batch, ``None`` for any
    number. ``given_for_streams`` are options that only a stream can have.
    """

    selection: Selection
    address: str | None = None
    starting: Position | None = None
    ending: Position | None = None
    fails_on_data_loss: bool = True
    partitions_min: int = 1
    range_size_max: int = _INT64_MAX
    pushes_filters: bool = False
    includes_headers: bool = False
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    offsets_max: int | None = None
    offsets_min: int = 0
    trigger_delay_max_ms: int = MAX_TRIGGER_DELAY_MS
    group_id: str | None = None
    given_for_streams: tuple[str, ...] = ()

    def check_batch(self) -> None:
        """Refuse what makes no sense in a batch read, such as starting at the end."""
        if self.given_for_streams:
            raise InvalidSettingError(
                f"{self.given_for_streams[0]} is for streams: leave it out of a batch read, which "
                "ends where endingOffsets or endingTimestamp say, and shows no progress"
            )
        for name, wanted, never, word in (
            ("startingOffsets", self.starting, LATEST, "latest"),
            ("endingOffsets", self.ending, EARLIEST, "earliest"),
        ):
            if wanted == never or (isinstance(wanted, Mapping) and never in wanted.values()):
                raise InvalidSettingError(
                    f"{name} may not be {word} ({never}) in a batch read: nothing could be read"
                )

    def check_stream(self) -> None:
        """Refuse an end, which a stream has not."""
        if self.ending is not None:
            raise InvalidSettingError(
                "endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batches: "
                "leave them out; trigger(availableNow=True) reads what there is, and stops"
            )


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read; ``InvalidSettingError`` for what is unknown or impossible."""
    given = GivenOptions.of(options, READ_OPTIONS)
    offsets_max = given.maybe_integer("maxOffsetsPerTrigger", low=1, high=_INT64_MAX)
    offsets_min = given.integer("minOffsetsPerTrigger", default=0, low=1, high=_INT64_MAX)
    if offsets_max is not None and offsets_min > offsets_max:
        raise given.refuse("minOffsetsPerTrigger", f"at most maxOffsetsPerTrigger={offsets_max}")
    group_id = given.text("kafka.group.id")
    if group_id is not None and len(group_id.encode()) > GROUP_ID_MAX_BYTES:
        raise given.refuse("kafka.group.id", f"at most {GROUP_ID_MAX_BYTES} bytes")
    return ReadOptions(
        selection=_selection(given),
        address=given.text("address"),
        starting=_position(given, "starting"),
        ending=_position(given, "ending"),
        fails_on_data_loss=given.boolean("failOnDataLoss", default=True),
        partitions_min=given.integer("minPartitions", default=1, low=1, high=1_000_000),
        range_size_max=given.integer(
            "maxRecordsPerPartition", default=_INT64_MAX, low=1, high=_INT64_MAX
        ),
        pushes_filters=given.boolean("pushdown", default=False),
        includes_headers=given.boolean("includeHeaders", default=False),
        isolation_level=_isolation_level(given),
        offsets_max=offsets_max,
        offsets_min=offsets_min,
        trigger_delay_max_ms=given.duration_ms("maxTriggerDelay", default=MAX_TRIGGER_DELAY_MS),
        group_id=group_id,
        given_for_streams=tuple(filter(given.has, STREAM_OPTIONS)),
    )


def _selection(given: GivenOptions) -> Selection:
    """What is read; ``load("t")`` is short for ``subscribe``."""
    by_path = given.paths or ((given.path,) if given.path is not None else ())
    ways = [name for name in ("subscribe", "assign", "subscribePattern") if given.has(name)]
    if len(ways) + bool(by_path) != 1:
        names = [*ways, "load(path)"] if by_path else ways
        raise InvalidSettingError(
            "exactly one of subscribe, assign and subscribePattern says what to read; given: "
            + (", ".join(names) or "none")
        )
    pattern = given.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise given.refuse(
                "subscribePattern", f"a regular expression is needed ({error})"
            ) from None
        return Selection(pattern=pattern)
    assigned = given.text("assign")
    partitions: tuple[TopicPartition, ...] = ()
    if assigned is not None:
        partitions = parse_assignment("assign", assigned)
    subscribed = given.text("subscribe")
    topics = by_path if subscribed is None else tuple(subscribed.split(","))
    topics = tuple(dict.fromkeys(topic.strip() for topic in topics))
    for topic in (*topics, *(item.topic for item in partitions)):
        check_topic("assign" if partitions else "subscribe", topic)
    return Selection(topics=topics, partitions=partitions)


def _position(given: GivenOptions, edge: str) -> Position | None:
    """Where to start, or to end: by one time, else by times, else by offsets, as in Kafka."""
    fails = False
    if edge == "starting":
        fails = given.choice(f"{edge}OffsetsByTimestampStrategy", "error", "latest") == "error"
    timestamp_ms = given.maybe_integer(f"{edge}Timestamp", low=0, high=_INT64_MAX)
    if timestamp_ms is not None:
        return Timestamps(wanted_ms=timestamp_ms, fails_without_match=fails)
    name = f"{edge}OffsetsByTimestamp"
    text = given.text(name)
    if text is not None:
        return Timestamps(wanted_ms=parse_timestamps(name, text), fails_without_match=fails)
    return _offsets(given, f"{edge}Offsets")


def _offsets(given: GivenOptions, name: str) -> Position | None:
    text = given.text(name)
    if text is None:
        return None
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    if not word.startswith("{"):
        raise given.refuse(name, 'earliest, latest, or JSON as {"topic": {"0": 23}}')
    return parse_offsets(name, text)


def _isolation_level(given: GivenOptions) -> IsolationLevel:
    return IsolationLevel(
        given.choice(
            "isolation.level",
            IsolationLevel.READ_COMMITTED.value,
            IsolationLevel.READ_UNCOMMITTED.value,
        )
    )
