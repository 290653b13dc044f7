"""Options of a batch or stream read. The names are those of Kafka's source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta

from oncelog.api.config import ConsumerSettings
from oncelog.api.distributing.engine_connection import DEFAULT_ENDPOINT, Endpoint
from oncelog.api.distributing.read import Selection
from oncelog.api.session.login import login_of
from oncelog.spark_bridge.given_options import (
    DURATION,
    GivenOptions,
    OptionNames,
    check_topic,
    client_option,
)
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
from oncelog.storage.model import INT64_MAX, IsolationLevel, TopicPartition
from oncelog.storage.settings import Checked, declared

MAX_TRIGGER_DELAY_MS: Final = 900_000
BY_OFFSET: Final = 'earliest, latest, or JSON as {"topic": {"0": 23}}'
_BY_TIME: Final = 'JSON as {"topic": {"0": 1000}}'

_WHAT: Final = (
    declared(
        "subscribe",
        Annotated[
            str,
            Checked("topics with commas between"),
            'Read these topics; `load("t")` and `load(["t", "u"])` are short for it.',
        ],
        None,
    ),
    declared(
        "assign",
        Annotated[str, Checked('JSON as {"topic": [0, 1]}'), "Or: read these partitions."],
        None,
    ),
    declared(
        "subscribePattern",
        Annotated[
            str,
            Checked("a regular expression of Python's"),
            "Or: read topics whose whole name matches; new ones are found.",
        ],
        None,
    ),
)

_START: Final = (
    declared(
        "startingOffsets",
        Annotated[
            str,
            Checked(BY_OFFSET),
            "Where to start: by default batches at `earliest`, streams at `latest`; -2 means "
            "earliest, -1 latest. A stream uses it only in its first batch; partitions added later "
            "start at their first record.",
        ],
        None,
    ),
    declared(
        "startingTimestamp",
        Annotated[
            int,
            Meta(ge=0, le=INT64_MAX),
            "Start at this time, in ms since 1970; takes precedence over "
            "`startingOffsetsByTimestamp`, and that over `startingOffsets`.",
        ],
        None,
    ),
    declared(
        "startingOffsetsByTimestamp",
        Annotated[str, Checked(_BY_TIME), "The same, by partition."],
        None,
    ),
    declared(
        "startingOffsetsByTimestampStrategy",
        Annotated[Literal["error", "latest"], "What to do if no record is that late."],
        "error",
    ),
)

_END: Final = (
    declared(
        "endingOffsets",
        Annotated[
            str, Checked(BY_OFFSET), "Batches: where to end, exclusive; by default at `latest`."
        ],
        None,
    ),
    declared(
        "endingTimestamp",
        Annotated[int, Meta(ge=0, le=INT64_MAX), "Batches: end at this time, in ms since 1970."],
        None,
    ),
    declared(
        "endingOffsetsByTimestamp",
        Annotated[str, Checked(_BY_TIME), "Batches: the same, by partition."],
        None,
    ),
)

_HOW: Final = (
    declared(
        "failOnDataLoss",
        Annotated[
            bool,
            "Whether the read fails if records are gone; otherwise they are skipped, and a topic "
            "that was created again is read from its start.",
        ],
        True,
    ),
    declared(
        "minPartitions",
        Annotated[int, Meta(ge=1, le=1_000_000), "Split ranges for at least this many tasks."],
        1,
    ),
    declared(
        "maxRecordsPerPartition",
        Annotated[int, Meta(ge=1, le=INT64_MAX), "No task reads more offsets than this."],
        None,
    ),
    declared(
        "pushdown",
        Annotated[bool, 'Batches: let filters narrow the read; see SPARK, "Reading less".'],
        False,
    ),
    declared(
        "maxOffsetsPerTrigger",
        Annotated[
            int,
            Meta(ge=1, le=INT64_MAX),
            "Streams: read about this many offsets per batch; each partition gets its share, at "
            "least one.",
        ],
        None,
    ),
    declared(
        "minOffsetsPerTrigger",
        Annotated[int, Meta(ge=1, le=INT64_MAX), "Streams: a batch waits for this many offsets."],
        None,
    ),
    declared(
        "maxTriggerDelay",
        Annotated[str, Checked(DURATION), "Streams: but not longer than this after the last one."],
        "15m",
    ),
    declared("includeHeaders", Annotated[bool, "Read column `headers` too."], False),
    client_option(ConsumerSettings, "isolation_level", "isolation.level"),
    client_option(
        ConsumerSettings,
        "group_id",
        "kafka.group.id",
        sentence="Streams: commit the progress for this group, for monitoring; only the checkpoint "
        "counts.",
    ),
)

ADDRESS: Final = declared(
    "address",
    Annotated[
        str,
        Checked("addresses with commas between"),
        "The Ray cluster: the first that replies; by default that of `register`, else "
        "`RAY_ADDRESS`.",
    ],
    None,
)

USER: Final = declared(
    "user",
    Annotated[
        str,
        Checked("a name"),
        "Log in as this user; by default as that of `register`, else `ONCELOG_USER`, else as any "
        "program of the Ray cluster.",
    ],
    None,
)

PASSWORD_FILE: Final = declared(
    "password.file",
    Annotated[
        str,
        Checked("a path"),
        "The file with the user's password as its first line, on each node; else "
        "`ONCELOG_PASSWORD_FILE`.",
    ],
    None,
)

TOKEN_FILE: Final = declared(
    "token.file",
    Annotated[
        str,
        Checked("a path"),
        "Or: log in by the signed token in the first line of this file, on each node; else "
        "`ONCELOG_TOKEN_FILE`.",
    ],
    None,
)

CERT: Final = declared(
    "cert",
    Annotated[
        str,
        Checked("a path"),
        "Or: log in by the certificate in this PEM file, which has its key too, on each node; else "
        "`ONCELOG_CERT`.",
    ],
    None,
)

CONNECTION: Final = (ADDRESS, USER, PASSWORD_FILE, TOKEN_FILE, CERT)
"""Options of reads and writes alike; see ``endpoint_of``."""

READ_OPTIONS: Final = OptionNames(
    accepted=(*CONNECTION, *_WHAT, *_START, *_END, *_HOW),
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
"""Options that have no effect in a batch read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read. ``starting=None``: a batch starts at earliest, a stream at latest.

    ``ending=None``: at latest. ``offsets_max`` and ``offsets_min`` are those of one micro-batch;
    ``None`` for no limit. ``given_for_streams`` are the given options that only a stream can have.
    """

    selection: Selection
    endpoint: Endpoint = DEFAULT_ENDPOINT
    starting: Position | None = None
    ending: Position | None = None
    fails_on_data_loss: bool = True
    partitions_min: int = 1
    range_size_max: int = INT64_MAX
    pushes_filters: bool = False
    includes_headers: bool = False
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    offsets_max: int | None = None
    offsets_min: int = 0
    trigger_delay_max_ms: int = MAX_TRIGGER_DELAY_MS
    group_id: str | None = None
    given_for_streams: tuple[str, ...] = ()

    def check_batch(self) -> None:
        """Reject what makes no sense in a batch read, such as starting at the end."""
        if self.given_for_streams:
            raise InvalidSettingError(
                f"{self.given_for_streams[0]} is for streams",
                advice=(
                    "leave it out of a batch read, which ends where endingOffsets or "
                    "endingTimestamp say, and shows no progress"
                ),
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
        """Reject ending offsets: a stream has no end."""
        if self.ending is not None:
            raise InvalidSettingError(
                "endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batches",
                advice="leave them out; trigger(availableNow=True) reads what there is, and stops",
            )


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read; ``InvalidSettingError`` for an unknown or invalid one."""
    given = GivenOptions.of(options, READ_OPTIONS)
    offsets_max = given.value("maxOffsetsPerTrigger")
    offsets_min = given.value("minOffsetsPerTrigger")
    if offsets_max is not None and offsets_min is not None and offsets_min > offsets_max:
        raise given.refuse("minOffsetsPerTrigger", f"at most maxOffsetsPerTrigger={offsets_max}")
    return ReadOptions(
        selection=_selection(given),
        endpoint=endpoint_of(given),
        starting=_position(given, "starting"),
        ending=_position(given, "ending"),
        fails_on_data_loss=given.value("failOnDataLoss"),
        partitions_min=given.value("minPartitions"),
        range_size_max=given.value("maxRecordsPerPartition") or INT64_MAX,
        pushes_filters=given.value("pushdown"),
        includes_headers=given.value("includeHeaders"),
        isolation_level=given.value("isolation.level"),
        offsets_max=offsets_max,
        offsets_min=offsets_min or 0,
        trigger_delay_max_ms=given.duration_ms("maxTriggerDelay"),
        group_id=given.value("kafka.group.id"),
        given_for_streams=tuple(filter(given.has, STREAM_OPTIONS)),
    )


def endpoint_of(given: GivenOptions) -> Endpoint:
    """Where to connect, and as whom; without options the environment says it.

    It travels to the tasks, so these have the same user, whatever their environment is.
    """
    if given.has("user") != given.has("password.file"):
        raise InvalidSettingError(
            "user and password.file belong together", advice="give both or neither"
        )
    ways = [name for name in ("user", "token.file", "cert") if given.has(name)]
    if ways[1:]:
        raise InvalidSettingError(
            f"{' and '.join(ways)} are given", advice="log in by one of user, token.file and cert"
        )
    names = ("user", "password.file", "token.file", "cert")
    login = login_of(*map(given.text, names))
    return Endpoint(address=given.text("address"), login=login)


def _selection(given: GivenOptions) -> Selection:
    """What to read; ``load("t")`` is short for ``subscribe``."""
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
                "subscribePattern", f"a regular expression of Python's ({error})"
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
    """Where to start or end: one time takes precedence over times, and those over offsets."""
    fails = False
    if edge == "starting":
        fails = given.value(f"{edge}OffsetsByTimestampStrategy") == "error"
    timestamp_ms = given.value(f"{edge}Timestamp")
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
        raise given.refuse(name, BY_OFFSET)
    return parse_offsets(name, text)
