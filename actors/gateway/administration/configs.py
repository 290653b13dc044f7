"""Settings by Kafka's names: one table of those of topics, and what describes and alters them.

A setting of Kafka's is one of ours under another name, or has one fixed value here: then that value
is accepted and any other refused, with what is allowed. A setting of ours that Kafka lacks begins
with ``oncelog.``. Settings of brokers are those of the cluster, given when it is founded or begun;
they are shown and cannot be altered.

``flush.messages`` stands for our ``flush``: a sync for every message, before it is acknowledged, or
none that a writer waits for. ``min.insync.replicas`` is shown as the number that ``auto`` means.

Source: KIP-133, KIP-226, KIP-339, KIP-569.

One file: the table, and the three requests that are little more than looks into it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oncelog.actors.config import ClusterConfig, TopicConfig, internal_topic_config
from oncelog.actors.gateway.administration.brokers import (
    CHANGES_AT_ONCE_MAX,
    Handler,
    ask_controller,
    deadline_of,
    in_parallel,
    of_controller,
    repeated,
    text_of,
    throttle_of,
)
from oncelog.actors.gateway.calls import Call
from oncelog.actors.gateway.messages import alter_configs as altering
from oncelog.actors.gateway.messages import incremental_alter_configs as incremental
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from oncelog.actors.protocol.cluster.cluster_machine import LISTS
from oncelog.actors.protocol.cluster.placement import (
    MIN_INSYNC_REPLICAS,
    REPLICATION_FACTOR_DEFAULT,
    min_insync_of,
)
from oncelog.actors.protocol.messages.cluster import (
    AlterTopicReply,
    AlterTopicRequest,
    BrokerMetadata,
    MetadataReply,
    MetadataRequest,
    TopicMetadata,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import (
    INT32_MAX,
    INT64_MAX,
    INTERNAL_TOPICS,
    TOPIC_NAME_RULE,
    is_valid_topic_name,
)
from oncelog.storage.settings import (
    REFUSED,
    Choice,
    Flag,
    Number,
    Rule,
    describe,
    refused,
    settings_of,
    unknown,
)

TOPIC: Final = 2
BROKER: Final = 4
"""Kafka's numbers of the kinds of resources that have settings here."""

OWN_PREFIX: Final = "oncelog."
"""Begins the names of settings that Kafka lacks."""


class Source(enum.IntEnum):
    """Where a value is from, in Kafka's numbers."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class Kind(enum.IntEnum):
    """Of what type a value is, in Kafka's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Change(enum.IntEnum):
    """What an incremental request does to a setting, in Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# --- the table --------------------------------------------------------------------------------

_OURS: Final[Mapping[str, tuple[str, str, Kind]]] = {
    "cleanup.policy": ("cleanup_policy", "log.cleanup.policy", Kind.LIST),
    "delete.retention.ms": ("delete_retention_ms", "log.cleaner.delete.retention.ms", Kind.LONG),
    "flush.messages": ("flush", "log.flush.interval.messages", Kind.LONG),
    "index.interval.bytes": ("index_interval_bytes", "log.index.interval.bytes", Kind.INT),
    "max.compaction.lag.ms": (
        *("max_compaction_lag_ms", "log.cleaner.max.compaction.lag.ms"),
        Kind.LONG,
    ),
    "max.message.bytes": ("max_message_bytes", "message.max.bytes", Kind.INT),
    "message.timestamp.after.max.ms": (
        *("message_timestamp_after_max_ms", "log.message.timestamp.after.max.ms"),
        Kind.LONG,
    ),
    "message.timestamp.before.max.ms": (
        *("message_timestamp_before_max_ms", "log.message.timestamp.before.max.ms"),
        Kind.LONG,
    ),
    "message.timestamp.type": (
        *("message_timestamp_type", "log.message.timestamp.type"),
        Kind.STRING,
    ),
    "min.cleanable.dirty.ratio": (
        *("min_cleanable_dirty_ratio", "log.cleaner.min.cleanable.ratio"),
        Kind.DOUBLE,
    ),
    "min.compaction.lag.ms": (
        *("min_compaction_lag_ms", "log.cleaner.min.compaction.lag.ms"),
        Kind.LONG,
    ),
    "min.insync.replicas": ("min_insync_replicas", "min.insync.replicas", Kind.INT),
    "retention.bytes": ("retention_bytes", "log.retention.bytes", Kind.LONG),
    "retention.ms": ("retention_ms", "log.retention.ms", Kind.LONG),
    "segment.bytes": ("segment_bytes", "log.segment.bytes", Kind.INT),
    "segment.ms": ("segment_ms", "log.roll.ms", Kind.LONG),
    OWN_PREFIX + "replicas.per.actor": ("replicas_per_actor", "", Kind.STRING),
}
"""Kafka's name → ours, the broker's setting that it defaults to in Kafka, and its type."""

_NO_TIER: Final = "There is no second tier of storage."
_AS_PRODUCED: Final = "Batches stay as their producer compressed them."
_NO_THROTTLE: Final = "Moves of replicas are not throttled."
_NO_DEAD_LETTERS: Final = "No queue writes dead letters."

_FIXED: Final[Mapping[str, tuple[str, str, Kind, str]]] = {
    "compression.gzip.level": ("-1", "compression.gzip.level", Kind.INT, _AS_PRODUCED),
    "compression.lz4.level": ("9", "compression.lz4.level", Kind.INT, _AS_PRODUCED),
    "compression.type": ("producer", "compression.type", Kind.STRING, _AS_PRODUCED),
    "compression.zstd.level": ("3", "compression.zstd.level", Kind.INT, _AS_PRODUCED),
    "errors.deadletterqueue.group.enable": ("false", "", Kind.BOOLEAN, _NO_DEAD_LETTERS),
    "file.delete.delay.ms": (
        *("0", "log.segment.delete.delay.ms", Kind.LONG),
        "Files of segments are deleted at once.",
    ),
    "flush.ms": (
        *(str(INT64_MAX), "log.flush.interval.ms", Kind.LONG),
        "No time makes a log sync: see flush.messages.",
    ),
    "follower.replication.throttled.replicas": ("", "", Kind.LIST, _NO_THROTTLE),
    "leader.replication.throttled.replicas": ("", "", Kind.LIST, _NO_THROTTLE),
    "local.retention.bytes": ("-2", "log.local.retention.bytes", Kind.LONG, _NO_TIER),
    "local.retention.ms": ("-2", "log.local.retention.ms", Kind.LONG, _NO_TIER),
    "max.decompressed.message.bytes": (
        *("2147483639", "max.decompressed.message.bytes", Kind.INT),
        "Leaders decompress nothing.",
    ),
    "preallocate": (
        *("false", "log.preallocate", Kind.BOOLEAN),
        "Files of segments grow as they are written.",
    ),
    "remote.copy.lag.bytes": ("-1", "log.remote.copy.lag.bytes", Kind.LONG, _NO_TIER),
    "remote.copy.lag.ms": ("0", "log.remote.copy.lag.ms", Kind.LONG, _NO_TIER),
    "remote.log.copy.disable": ("false", "", Kind.BOOLEAN, _NO_TIER),
    "remote.log.delete.on.disable": ("false", "", Kind.BOOLEAN, _NO_TIER),
    "remote.storage.enable": ("false", "", Kind.BOOLEAN, _NO_TIER),
    "segment.index.bytes": (
        *("10485760", "log.index.size.max.bytes", Kind.INT),
        "The largest index of a segment.",
    ),
    "segment.jitter.ms": (
        *("0", "log.roll.jitter.ms", Kind.LONG),
        "Segments begin when segment.ms says.",
    ),
    "unclean.leader.election.enable": (
        *("false", "unclean.leader.election.enable", Kind.BOOLEAN),
        "Only a replica that has all that is committed may lead.",
    ),
}
"""Kafka's name → the one value it has here, the broker's setting, its type, and why."""

_FLUSHES: Final[Mapping[str, str]] = {"1": "sync", str(INT64_MAX): "os"}
"""Values of ``flush.messages``, and of ours."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
"""A whole number as Kafka's clients write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting:
    """A setting of topics by Kafka's name. ``ours`` is "" if it has one value, ``default``, here.

    ``synonym`` is the broker's setting that Kafka takes the default from, "" if there is none.
    """

    name: str
    ours: str
    synonym: str
    kind: Kind
    default: str
    sentence: str

    def take(self, given: str) -> str:
        """The value as text of ours; ``InvalidSettingError`` says what is allowed instead."""
        text = given.strip()
        if not self.ours:
            text = text.lower() if self.kind is Kind.BOOLEAN else text
            if text != self.default:
                raise refused(self.name, given, f"{self.default!r}, the only value")
            return text
        if self.ours == "flush":
            if text not in _FLUSHES:
                allowed = " or ".join(_FLUSHES)
                raise refused(self.name, given, f"{allowed}: to sync before each answer, or not")
            return _FLUSHES[text]
        if self.kind is Kind.LIST:
            return self._joined(given)
        rule = settings_of(TopicConfig)[self.ours].rule
        taken = rule.take(_read(rule, text))
        if taken is REFUSED:
            raise refused(self.name, given, rule.allowed)
        return str(taken)

    def members(self, given: str) -> tuple[str, ...]:
        """The members of a list, each as it is stored; see ``take``."""
        if self.kind is not Kind.LIST:
            raise InvalidSettingError(f"{self.name} is not a list", advice="set its value")
        names = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
        for name in names:
            if name not in LISTS.get(self.ours, ()):
                allowed = LISTS.get(self.ours, ())
                raise refused(self.name, name, f"one of {', '.join(allowed)}" if allowed else "''")
        return names

    def _joined(self, given: str) -> str:
        """A list with its members in the order in which they are stored."""
        names = self.members(given)
        return ",".join(name for name in LISTS[self.ours] if name in names)

    def shown(self, text: str) -> str:
        """A value of ours as Kafka's clients know it."""
        if self.ours == "flush":
            return next(theirs for theirs, ours in _FLUSHES.items() if ours == text)
        return text


def _read(rule: Rule, text: str) -> object:
    """A number that is meant by text; text if none is."""
    if not isinstance(rule, Number):
        return text
    if rule.kind is int:
        return int(text) if _WHOLE.fullmatch(text) else text
    try:
        return float(text)
    except ValueError:
        return text


def _table() -> Iterator[TopicSetting]:
    declared = settings_of(TopicConfig)
    for name, (ours, synonym, kind) in _OURS.items():
        setting = TopicSetting(
            name=name,
            ours=ours,
            synonym=synonym,
            kind=kind,
            default=str(declared[ours].default),
            sentence=declared[ours].sentence,
        )
        yield setting
    for name, (value, synonym, kind, why) in _FIXED.items():
        yield TopicSetting(
            name=name, ours="", synonym=synonym, kind=kind, default=value, sentence=why
        )


TOPIC_SETTINGS: Final[Mapping[str, TopicSetting]] = {one.name: one for one in _table()}
"""All settings of topics, by Kafka's name."""

_NAMES: Final = {one.ours: name for name, one in TOPIC_SETTINGS.items() if one.ours}
"""Our names → Kafka's."""

_OUR_NAME: Final = re.compile(
    r"\b(" + "|".join(sorted(_NAMES, key=len, reverse=True)) + r")\b(?==)"
)


def find(name: str) -> TopicSetting:
    """The setting of Kafka's ``name``; ``InvalidSettingError`` if there is none."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise unknown(name, name, TOPIC_SETTINGS)
    return setting


def ours_of(given: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Our settings, as text, of a new topic's by Kafka's names; ``None`` is the default.

    ``InvalidSettingError`` names the first that is unknown or not allowed.
    """
    settings = {}
    for name, text in given:
        setting = find(name)
        taken = None if text is None else setting.take(text)
        if setting.ours and taken is not None:
            settings[setting.ours] = taken
    return settings


def in_kafkas_words(text: str | None) -> str | None:
    """What the controller says of our settings, with Kafka's names of them."""
    if text is None:
        return None
    return _OUR_NAME.sub(lambda found: _NAMES[found[1]], text)


# --- what there is ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One setting of a topic or broker, and where its value is from.

    ``synonyms`` are the names and values that it may have got its value from, strongest first.
    """

    name: str
    value: str | None
    source: Source
    kind: Kind
    sentence: str
    is_read_only: bool
    synonyms: tuple[tuple[str, str | None, Source], ...]


def topic_entries(settings: Mapping[str, str], replication_factor: int) -> Iterator[Entry]:
    """All settings of a topic with these of ours that differ from the defaults."""
    for setting in TOPIC_SETTINGS.values():
        default = setting.shown(_default(setting, replication_factor))
        given = settings.get(setting.ours) if setting.ours else None
        synonyms: list[tuple[str, str | None, Source]] = []
        if given is not None:
            synonyms.append((setting.name, setting.shown(given), Source.TOPIC))
        if setting.synonym:
            synonyms.append((setting.synonym, default, Source.DEFAULT))
        yield Entry(
            name=setting.name,
            value=default if given is None else setting.shown(given),
            source=Source.DEFAULT if given is None else Source.TOPIC,
            kind=setting.kind,
            sentence=setting.sentence,
            is_read_only=not setting.ours,
            synonyms=tuple(synonyms),
        )


def _default(setting: TopicSetting, replication_factor: int) -> str:
    if setting.ours == MIN_INSYNC_REPLICAS:
        return str(min_insync_of((), replication_factor))
    return setting.default


def replication_factor_of(topic: TopicMetadata) -> int:
    """The replicas that each partition has, but for those that move away."""
    first = topic.partitions[0]
    return len(set(first.replicas) - set(first.removing))


def is_usable(broker: BrokerMetadata) -> bool:
    """Whether a broker may be given replicas."""
    return not (broker.is_fenced or broker.is_draining or broker.problem)


def _settings_of_topic(topic: TopicMetadata, known: MetadataReply) -> Mapping[str, str]:
    """Those of an internal topic, of which the cluster says only its segments' size, are fixed."""
    if topic.name not in INTERNAL_TOPICS:
        return dict(topic.settings)
    declared = settings_of(ClusterConfig)
    sizes = {
        name: declared[name].of_text(text)
        for name, text in known.settings
        if name.endswith("_segment_bytes") and name in declared
    }
    return dict(internal_topic_config(topic.name, ClusterConfig(**sizes)).to_text())


_CLUSTER_NAMES: Final[Mapping[str, str]] = {
    "certificate_name_rules": "ssl.principal.mapping.rules",
    "kafka_auto_create_topics": "auto.create.topics.enable",
    "kafka_num_partitions": "num.partitions",
    "offsets_partitions": "offsets.topic.num.partitions",
    "transaction_abort_scan_ms": "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    "transaction_state_partitions": "transaction.state.log.num.partitions",
    "transactional_id_expiration_check_interval_ms": (
        "transaction.remove.expired.transaction.cleanup.interval.ms"
    ),
}
"""Settings of the cluster with another name in Kafka."""

_SAME_NAMES: Final = frozenset(
    {
        "broker_heartbeat_interval_ms",
        "broker_session_timeout_ms",
        "group_initial_rebalance_delay_ms",
        "group_max_session_timeout_ms",
        "group_min_session_timeout_ms",
        "log_cleaner_backoff_ms",
        "log_retention_check_interval_ms",
        "metadata_log_segment_bytes",
        "offsets_topic_segment_bytes",
        "producer_id_expiration_check_interval_ms",
        "producer_id_expiration_ms",
        "replica_lag_time_max_ms",
        "transaction_max_timeout_ms",
        "transaction_state_log_segment_bytes",
        "transaction_two_phase_commit_enable",
        "transactional_id_expiration_ms",
    }
)
"""Settings of the cluster that Kafka's brokers have under the same name, but for the dots."""


def default_partitions(known: MetadataReply) -> int:
    """The partitions of a topic that is created without saying how many."""
    declared = settings_of(ClusterConfig)["kafka_num_partitions"]
    given = dict(known.settings).get(declared.name)
    return int(declared.default if given is None else given)


def cluster_name_of(setting: str) -> str:
    """Kafka's name of one of the cluster's settings, or ours behind ``oncelog.``."""
    dotted = setting.replace("_", ".")
    return _CLUSTER_NAMES.get(setting) or (
        dotted if setting in _SAME_NAMES else OWN_PREFIX + dotted
    )


def broker_entries(known: MetadataReply, broker: BrokerMetadata) -> Iterator[Entry]:
    """The settings of a broker: the cluster's, its own place, and what topics default to."""
    given = dict(known.settings)
    shown = set()
    for setting in describe(ClusterConfig):
        default = None if setting.default is None else _cluster_text(str(setting.default))
        value = _cluster_text(given[setting.name]) if setting.name in given else default
        name = cluster_name_of(setting.name)
        shown.add(name)
        source = Source.STATIC_BROKER if setting.name in given else Source.DEFAULT
        yield _broker_entry(
            name, value, source, _kind_of(setting.rule), setting.sentence, default=default
        )
    usable_count = sum(map(is_usable, known.brokers))
    replication_factor = max(1, min(REPLICATION_FACTOR_DEFAULT, usable_count))
    for one in TOPIC_SETTINGS.values():
        if one.synonym and one.synonym not in shown:
            value = one.shown(_default(one, replication_factor))
            yield _broker_entry(one.synonym, value, Source.DEFAULT, one.kind, one.sentence)
    for name, value, kind, sentence in (
        ("auto.leader.rebalance.enable", "true", Kind.BOOLEAN, "Preferred leaders lead again."),
        (
            *("default.replication.factor", str(replication_factor), Kind.INT),
            "Replicas of each partition of a topic that is created without saying how many.",
        ),
        ("delete.topic.enable", "true", Kind.BOOLEAN, "Topics can be deleted."),
        (
            *("group.coordinator.rebalance.protocols", "classic", Kind.LIST),
            "How the members of a group share its partitions.",
        ),
    ):
        yield _broker_entry(name, value, Source.DEFAULT, kind, sentence)
    yield from _place_entries(broker)


def _place_entries(broker: BrokerMetadata) -> Iterator[Entry]:
    number = str(broker.broker_id)
    for name, value, kind, sentence in (
        ("broker.id", number, Kind.INT, "The broker's number."),
        ("broker.rack", broker.rack or None, Kind.STRING, "Brokers of a rack may fail together."),
        ("log.dirs", broker.data_dir, Kind.LIST, "Its data directories."),
        ("node.id", number, Kind.INT, "The broker's number."),
    ):
        yield _broker_entry(name, value, Source.STATIC_BROKER, kind, sentence)


def _broker_entry(
    name: str,
    value: str | None,
    source: Source,
    kind: Kind,
    sentence: str,
    default: str | None = None,
) -> Entry:
    synonyms = [(name, value, source)]
    if source is not Source.DEFAULT and default is not None:
        synonyms.append((name, default, Source.DEFAULT))
    return Entry(
        name=name,
        value=value,
        source=source,
        kind=kind,
        sentence=sentence,
        is_read_only=True,
        synonyms=tuple(synonyms),
    )


def _cluster_text(text: str) -> str:
    """Text of ours; True and False as Kafka writes them."""
    return text.lower() if text in ("True", "False") else text


def _kind_of(rule: Rule) -> Kind:
    if isinstance(rule, Number):
        if rule.kind is float:
            return Kind.DOUBLE
        return Kind.INT if rule.high is not None and rule.high <= INT32_MAX else Kind.LONG
    return Kind.BOOLEAN if isinstance(rule, Flag) else Kind.STRING


# --- describing -------------------------------------------------------------------------------


async def describe_configs(call: Call, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """The settings of topics and brokers, as one answer of the controller has them."""
    names = {one.resource_name for one in request.resources if one.resource_type == TOPIC}
    asked = MetadataRequest(topics=tuple(sorted(names)))
    known = await ask_controller(call, asked, deadline_ms=deadline_of(0))
    results = []
    for resource in request.resources:
        error, text, entries = _described(resource, known)
        wanted = set(resource.configuration_keys or ())
        result = DescribeConfigsResult(
            error_code=error,
            error_message=text,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[
                _as_result(one, request) for one in entries if not wanted or one.name in wanted
            ],
        )
        results.append(result)
    return DescribeConfigsResponse(throttle_time_ms=throttle_of(known), results=results)


def _described(
    resource: DescribeConfigsResource, known: MetadataReply
) -> tuple[int, str | None, Iterable[Entry]]:
    """Kafka's error code, its text, and the settings of one resource."""
    name = resource.resource_name
    if known.error is not ErrorCode.NONE:
        return of_controller(known.error), text_of(known), ()
    if resource.resource_type == TOPIC:
        topic = next((one for one in known.topics if one.name == name), None)
        if topic is not None:
            settings = _settings_of_topic(topic, known)
            return 0, None, topic_entries(settings, replication_factor_of(topic))
        error, text = _why_no_topic(name, known)
        return int(error), text, ()
    if resource.resource_type == BROKER:
        if name == "":
            return 0, None, ()  # What all brokers share and may change: nothing.
        broker = next((one for one in known.brokers if str(one.broker_id) == name), None)
        if broker is not None:
            return 0, None, broker_entries(known, broker)
        numbers = ", ".join(str(one.broker_id) for one in known.brokers)
        return int(ErrorCode.INVALID_REQUEST), f"broker {name!r}: there are {numbers}", ()
    return int(ErrorCode.INVALID_REQUEST), _why_no_kind(resource.resource_type), ()


def _why_no_topic(name: str, known: MetadataReply) -> tuple[ErrorCode, str]:
    if name in known.refused:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"topic {name!r} may not be described"
    if not is_valid_topic_name(name):
        wrong = f"topic name {name!r} is not allowed: give {TOPIC_NAME_RULE}"
        return ErrorCode.INVALID_TOPIC_EXCEPTION, wrong
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"


def _why_no_kind(kind: int) -> str:
    return f"resource type {kind}: give {TOPIC}, a topic, or {BROKER}, a broker"


def _as_result(entry: Entry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=False,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in entry.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=entry.kind,
        documentation=entry.sentence if request.include_documentation else None,
    )


# --- altering ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Changes:
    """What a request does to the settings of one topic, by our names."""

    changed: dict[str, str | None] = field(default_factory=dict)
    appended: list[tuple[str, str]] = field(default_factory=list)
    subtracted: list[tuple[str, str]] = field(default_factory=list)


class _RefusedRequestError(ValueError):
    """What is asked is not a setting's fault; the text says what is."""


async def alter_configs(
    call: Call, request: altering.AlterConfigsRequest
) -> altering.AlterConfigsResponse:
    """Replace all settings of topics: those that are not given return to their defaults."""
    outcomes, throttle_ms = await _alter(call, request, _replacement)
    return altering.AlterConfigsResponse(
        throttle_time_ms=throttle_ms,
        responses=[
            altering.AlterConfigsResourceResponse(
                error_code=error,
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, (error, text) in outcomes
        ],
    )


async def incremental_alter_configs(
    call: Call, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    """Change some settings of topics, and leave the others."""
    outcomes, throttle_ms = await _alter(call, request, _increments)
    return incremental.IncrementalAlterConfigsResponse(
        throttle_time_ms=throttle_ms,
        responses=[
            incremental.AlterConfigsResourceResponse(
                error_code=error,
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, (error, text) in outcomes
        ],
    )


async def _alter(
    call: Call, request: Any, changes_of: Callable[[Any], _Changes]
) -> tuple[list[tuple[Any, tuple[int, str | None]]], int]:
    """Each resource of a request with its error code and text, and how long the client waits."""
    deadline_ms = deadline_of(0)
    twice = repeated((one.resource_type, one.resource_name) for one in request.resources)
    throttles = [0]

    async def alter(resource: Any) -> tuple[int, str | None]:
        name = resource.resource_name
        if (resource.resource_type, name) in twice:
            return int(ErrorCode.INVALID_REQUEST), f"{name!r} is there twice: give it once"
        try:
            changes = changes_of(resource)
        except InvalidSettingError as refusal:
            return int(ErrorCode.INVALID_CONFIG), str(refusal)
        except _RefusedRequestError as refusal:
            return int(ErrorCode.INVALID_REQUEST), str(refusal)
        asked = AlterTopicRequest(
            name=name,
            changes=tuple(changes.changed.items()),
            appended=tuple(changes.appended),
            subtracted=tuple(changes.subtracted),
            validate_only=request.validate_only,
        )
        reply = await ask_controller(call, asked, deadline_ms=deadline_ms)
        throttles.append(throttle_of(reply))
        return of_controller(reply.error), in_kafkas_words(text_of(reply, _why_not(reply, name)))

    outcomes = await in_parallel(request.resources, alter, at_once_max=CHANGES_AT_ONCE_MAX)
    return list(zip(request.resources, outcomes, strict=True)), max(throttles)


def _why_not(reply: AlterTopicReply, name: str) -> str:
    if reply.error is ErrorCode.INVALID_TOPIC_EXCEPTION:
        return f"{name!r} is an internal topic, whose settings are fixed"
    if reply.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"there is no topic {name!r}"
    return ""


def _check_resource(resource: Any, configs: Sequence[Any]) -> None:
    """Reject what is no topic, and a setting that is given twice."""
    if resource.resource_type == BROKER:
        raise _RefusedRequestError(
            "settings of brokers are those of the cluster: give them when it is started"
        )
    if resource.resource_type != TOPIC:
        raise _RefusedRequestError(_why_no_kind(resource.resource_type))
    if resource.resource_name == "":
        raise _RefusedRequestError("settings of all topics cannot be altered: name one")
    if twice := repeated(one.name for one in configs):
        raise _RefusedRequestError(f"{', '.join(sorted(twice))}: given twice, give it once")


def _replacement(resource: Any) -> _Changes:
    """All of our settings: the value that is given, or none."""
    _check_resource(resource, resource.configs)
    for config in resource.configs:
        _check_value(config)
    given = ours_of((one.name, one.value) for one in resource.configs)
    return _Changes(changed={ours: given.get(ours) for ours in _NAMES})


def _increments(resource: Any) -> _Changes:
    _check_resource(resource, resource.configs)
    changes = _Changes()
    for config in resource.configs:
        setting = find(config.name)
        operation = config.config_operation
        if operation == Change.DELETE:
            if setting.ours:
                changes.changed[setting.ours] = None
            continue
        _check_value(config)
        if operation == Change.SET:
            taken = setting.take(config.value)
            if setting.ours:
                changes.changed[setting.ours] = taken
        elif operation == Change.APPEND:
            changes.appended += [(setting.ours, one) for one in setting.members(config.value)]
        elif operation == Change.SUBTRACT:
            changes.subtracted += [(setting.ours, one) for one in setting.members(config.value)]
        else:
            allowed = Choice(tuple(map(int, Change))).allowed
            raise _RefusedRequestError(f"{config.name}: operation {operation}: give {allowed}")
    return changes


def _check_value(config: Any) -> None:
    if config.value is None:
        raise _RefusedRequestError(f"{config.name}: null is no value; delete the setting instead")


HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
}
