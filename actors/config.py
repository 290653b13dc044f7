"""Typed settings of the cluster and of topics, with units in their names.

An unknown or impossible setting is refused on construction, with its name, its value and what is
allowed. Client settings are in ``api/config.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, TypeVar, get_args

from oncelog.actors.pin import Pin
from oncelog.actors.protocol.cluster.hosts import AUTO, HOST_REPLICAS_MAX, ReplicasPerActor
from oncelog.actors.protocol.tickets import (
    TICKET_GRACE_MS,
    TICKET_LIFETIME_MAX_MS,
    TRANSACTION_TIMEOUT_LIMIT_MS,
)
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.log_settings import UNLIMITED, RetentionPolicy
from oncelog.storage.model import (
    CLUSTER_METADATA_TOPIC,
    INDEX_INTERVAL_BYTES,
    MESSAGE_LIMIT_BYTES,
    MESSAGE_MAX_BYTES,
    SEGMENT_BYTES,
    TRANSACTION_STATE_TOPIC,
)

SettingsT = TypeVar("SettingsT")

FlushPolicy = Literal["sync", "os"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
CleanupPolicy = Literal["delete", "compact", "compact,delete"]

Road = Literal["connections", "ray"]
"""How calls travel to an actor."""

CLUSTER: Final = "cluster"
"""Of a topic's setting: as the cluster has it."""

CONNECTIONS: Final = "connections"
RAY: Final = "ray"

INTERNAL_SEGMENT_BYTES: Final = 4_194_304
"""The active segment is never compacted, and a coordinator reads all of it when it starts:
this much is some 25,000 records, about a second. The rest, compacted, is one record per key."""

PRODUCER_ID_EXPIRATION_MIN_MS: Final = TICKET_LIFETIME_MAX_MS + TICKET_GRACE_MS
"""No producer is forgotten sooner: tickets live for 12 h, and clocks differ."""

DATA_DIR_SEPARATOR: Final = ","
"""Between the directories of one ``data_dir``, as between Kafka's ``log.dirs``."""

DATA_DIRECTORIES_MAX: Final = 64
"""Directories in one ``data_dir``: a replica that starts may look into each."""

FOUNDING_SETTINGS: Final = ("transaction_state_partitions", "offsets_partitions")
"""Of ``ClusterConfig``: fixed when the cluster is founded."""

_INT64_MAX: Final = 2**63 - 1
_NUMBERS: Final[Mapping[type, str]] = {int: "whole number", float: "number"}
_DURATIONS: Final = (
    "message_timestamp_before_max_ms",
    "message_timestamp_after_max_ms",
    "min_compaction_lag_ms",
    "max_compaction_lag_ms",
    "delete_retention_ms",
)
_INTERVALS: Final = (
    "log_retention_check_interval_ms",
    "log_checkpoint_interval_ms",
    "log_cleaner_backoff_ms",
    "producer_id_expiration_check_interval_ms",
    "transactional_id_expiration_check_interval_ms",
    "metrics_interval_ms",
    "broker_heartbeat_interval_ms",
    "replica_lag_time_max_ms",
    "leader_imbalance_check_interval_ms",
)


def check_range(name: str, value: object, minimum: int, maximum: int) -> None:
    """Refuse anything but an int between ``minimum`` and ``maximum``, both inclusive."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidSettingError(
            f"{name}={value!r} is not allowed: give a whole number from {minimum} to {maximum}"
        )


def check_ratio(name: str, value: object) -> None:
    """Refuse anything but a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidSettingError(f"{name}={value!r} is not allowed: give a number from 0 to 1")


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse anything but one of ``allowed``."""
    if value not in allowed:
        raise InvalidSettingError(
            f"{name}={value!r} is not allowed: give one of {', '.join(allowed)}"
        )


def build_settings(kind: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    """Build a settings dataclass from keywords; an unknown name is refused with the known ones."""
    for name, value in values.items():
        check_setting_name(kind, name, value)
    return kind(**values)


def check_setting_name(kind: type[Any], name: str, value: object = None) -> None:
    """Refuse what is not a setting of the dataclass ``kind``; the message lists those that are."""
    known = [field.name for field in dataclasses.fields(kind)]
    if name not in known:
        raise InvalidSettingError(
            f"{name}={value!r} is not a setting: known are {', '.join(sorted(known))}"
        )


def checked_replicas_per_actor(value: object, *others: str) -> Any:
    """A number from 1 to ``HOST_REPLICAS_MAX``, also as text, or one of ``others``."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if value in others:
        return value
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not 1 <= int(str(value)) <= HOST_REPLICAS_MAX:
        raise InvalidSettingError(
            f"replicas_per_actor={value!r} is not allowed: give a whole number from 1 to "
            f"{HOST_REPLICAS_MAX} or {' or '.join(repr(other) for other in others)}"
        )
    return value


def _checked_minimum(value: object) -> Any:
    """A number from 1 on, also as text, or ``"auto"``."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value != AUTO and not (is_number and int(str(value)) >= 1):
        raise InvalidSettingError(
            f"min_insync_replicas={value!r} is not allowed: give a whole number from 1 to the "
            "replication factor, or 'auto'"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    def to_text(self) -> tuple[tuple[str, str], ...]:
        """Every setting that differs from its default, by name, with its value as text."""
        return tuple(
            (field.name, str(getattr(self, field.name)))
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig(_Settings):
    """Settings of one topic. ``flush="os"`` acknowledges before data is on disk, as Kafka does.

    Retention, for a policy with "delete", removes whole segments: -1 in ``retention_ms`` or
    ``retention_bytes`` (per partition) keeps all. The settings from ``min_compaction_lag_ms`` on
    are for a policy with "compact", whose records must have keys.
    ``message_timestamp_before_max_ms`` and ``after_max_ms`` bound how far a client's timestamp
    may lie in the past and in the future. ``replicas_per_actor`` is the cluster's unless set; it
    counts when partitions are created. ``min_insync_replicas``: so many replicas must be in sync
    for a write with ``acks="all"``; ``"auto"`` is 2, or 1 with one or two replicas.
    """

    max_message_bytes: int = MESSAGE_MAX_BYTES
    segment_bytes: int = SEGMENT_BYTES
    segment_ms: int = 604_800_000
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    flush: FlushPolicy = "sync"
    message_timestamp_type: TimestampType = "CreateTime"
    message_timestamp_before_max_ms: int = _INT64_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: CleanupPolicy = "delete"
    retention_ms: int = 604_800_000
    retention_bytes: int = UNLIMITED
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _INT64_MAX
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = 86_400_000
    replicas_per_actor: ReplicasPerActor | Literal["cluster"] = CLUSTER
    min_insync_replicas: int | Literal["auto"] = AUTO

    def __post_init__(self) -> None:
        per_actor = checked_replicas_per_actor(self.replicas_per_actor, AUTO, CLUSTER)
        object.__setattr__(self, "replicas_per_actor", per_actor)
        object.__setattr__(self, "min_insync_replicas", _checked_minimum(self.min_insync_replicas))
        check_range("max_message_bytes", self.max_message_bytes, 62, MESSAGE_LIMIT_BYTES)
        check_range("segment_bytes", self.segment_bytes, 4_096, 2**31 - 1)
        check_range("segment_ms", self.segment_ms, 1, _INT64_MAX)
        check_range("index_interval_bytes", self.index_interval_bytes, 0, 2**31 - 1)
        check_choice("flush", self.flush, get_args(FlushPolicy))
        check_choice("message_timestamp_type", self.message_timestamp_type, get_args(TimestampType))
        check_choice("cleanup_policy", self.cleanup_policy, get_args(CleanupPolicy))
        check_range("retention_ms", self.retention_ms, UNLIMITED, _INT64_MAX)
        check_range("retention_bytes", self.retention_bytes, UNLIMITED, _INT64_MAX)
        for name in _DURATIONS:
            check_range(name, getattr(self, name), 0, _INT64_MAX)
        check_ratio("min_cleanable_dirty_ratio", self.min_cleanable_dirty_ratio)
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidSettingError(
                f"min_compaction_lag_ms={self.min_compaction_lag_ms} is above "
                f"max_compaction_lag_ms={self.max_compaction_lag_ms}"
            )

    @property
    def is_compacted(self) -> bool:
        """Whether newer values of a key replace older ones."""
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether records are removed by age, size or request."""
        return "delete" in self.cleanup_policy

    @property
    def retention(self) -> RetentionPolicy:
        """What the log keeps; everything for a topic that is only compacted."""
        if not self.is_deleted:
            return RetentionPolicy()
        return RetentionPolicy(time_ms=self.retention_ms, size_bytes=self.retention_bytes)

    @classmethod
    def from_text(cls, settings: Mapping[str, str]) -> TopicConfig:
        """Build from names and text values, as stored in the metadata log."""
        defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name, text in settings.items():
            kind: type[Any] = type(defaults.get(name, text))
            try:
                values[name] = kind(text)
            except ValueError:
                raise InvalidSettingError(
                    f"{name}={text!r} is not allowed: give a {_NUMBERS[kind]}"
                ) from None
        return build_settings(cls, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig(_Settings):
    """Settings of a cluster; the two partition counts are fixed when it is founded.

    With ``calls="ray"`` every call is a call of a Ray actor's method and no actor listens for
    connections. ``replicas_per_actor``: ``"auto"`` gives each replica an actor of its own while the
    machine has processors and memory for them, and then shares; 1 never shares. It counts when
    partitions are created. Each ``leader_imbalance_check_interval_ms`` preferred leaders that are
    in sync lead again. A leader whose disk refuses appends for ``disk_refusal_time_max_ms``, as a
    full one does, gives way to a replica in sync whose disk does not.
    A distributed write whose tasks live is not over before ``distributed_write_max_ms``.
    ``metadata_log_max_record_count_between_snapshots``: so many records make
    the controller write a snapshot and drop what is before it, or as many as the state has
    partitions, if these are more.
    """

    transaction_state_partitions: int = 2
    offsets_partitions: int = 2
    transaction_max_timeout_ms: int = 900_000
    distributed_write_max_ms: int = TRANSACTION_TIMEOUT_LIMIT_MS
    transaction_visibility_wait_ms: int = 1_000
    transaction_abort_scan_ms: int = 1_000
    transactional_id_expiration_ms: int = 604_800_000
    producer_id_expiration_ms: int = 86_400_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0
    out_of_order_wait_ms: int = 1_000
    log_retention_check_interval_ms: int = 300_000
    log_checkpoint_interval_ms: int = 1_000
    log_cleaner_backoff_ms: int = 15_000
    producer_id_expiration_check_interval_ms: int = 600_000
    transactional_id_expiration_check_interval_ms: int = 3_600_000
    metrics_interval_ms: int = 10_000
    internal_call_timeout_ms: int = 5_000
    broker_heartbeat_interval_ms: int = 1_000
    broker_session_timeout_ms: int = 4_500
    controller_session_timeout_ms: int = 3_000
    replica_lag_time_max_ms: int = 8_000
    disk_refusal_time_max_ms: int = 3_000
    leader_imbalance_check_interval_ms: int = 300_000
    transaction_state_log_segment_bytes: int = INTERNAL_SEGMENT_BYTES
    offsets_topic_segment_bytes: int = INTERNAL_SEGMENT_BYTES
    metadata_log_segment_bytes: int = INTERNAL_SEGMENT_BYTES
    metadata_log_max_record_count_between_snapshots: int = 50_000
    calls: Road = CONNECTIONS
    replicas_per_actor: ReplicasPerActor = AUTO

    def __post_init__(self) -> None:
        per_actor = checked_replicas_per_actor(self.replicas_per_actor, AUTO)
        object.__setattr__(self, "replicas_per_actor", per_actor)
        check_range("transaction_state_partitions", self.transaction_state_partitions, 1, 1_000)
        check_range("offsets_partitions", self.offsets_partitions, 1, 1_000)
        for field in dataclasses.fields(self):
            if field.name.endswith("_ms"):
                check_range(field.name, getattr(self, field.name), 0, 2**31 - 1)
            elif field.name.endswith("_segment_bytes"):
                check_range(field.name, getattr(self, field.name), 4_096, 2**31 - 1)
        check_range(
            "metadata_log_max_record_count_between_snapshots",
            self.metadata_log_max_record_count_between_snapshots,
            1,
            2**31 - 1,
        )
        check_choice("calls", self.calls, get_args(Road))
        for name in ("transaction_max_timeout_ms", "distributed_write_max_ms"):
            check_range(name, getattr(self, name), 1, TRANSACTION_TIMEOUT_LIMIT_MS)
        # An old ticket must have expired before the leader forgets the epoch that refuses it.
        check_range(
            "producer_id_expiration_ms",
            self.producer_id_expiration_ms,
            PRODUCER_ID_EXPIRATION_MIN_MS,
            2**31 - 1,
        )
        for name in _INTERVALS:
            check_range(name, getattr(self, name), 1, 2**31 - 1)
        minimum_ms = 2 * self.broker_heartbeat_interval_ms
        check_range(
            "broker_session_timeout_ms", self.broker_session_timeout_ms, minimum_ms, 2**31 - 1
        )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidSettingError(
                f"group_min_session_timeout_ms={self.group_min_session_timeout_ms} is above "
                f"group_max_session_timeout_ms={self.group_max_session_timeout_ms}"
            )


class TopicOptions(TypedDict, total=False):
    """``TopicConfig`` as keywords; ``None`` stands for the default."""

    max_message_bytes: int | None
    segment_bytes: int | None
    segment_ms: int | None
    index_interval_bytes: int | None
    flush: FlushPolicy | None
    message_timestamp_type: TimestampType | None
    message_timestamp_before_max_ms: int | None
    message_timestamp_after_max_ms: int | None
    cleanup_policy: CleanupPolicy | None
    retention_ms: int | None
    retention_bytes: int | None
    min_compaction_lag_ms: int | None
    max_compaction_lag_ms: int | None
    min_cleanable_dirty_ratio: float | None
    delete_retention_ms: int | None
    replicas_per_actor: ReplicasPerActor | Literal["cluster"] | None
    min_insync_replicas: int | Literal["auto"] | None


class ClusterOptions(TypedDict, total=False):
    """``ClusterConfig`` as keywords."""

    transaction_state_partitions: int
    offsets_partitions: int
    transaction_max_timeout_ms: int
    distributed_write_max_ms: int
    transaction_visibility_wait_ms: int
    transaction_abort_scan_ms: int
    transactional_id_expiration_ms: int
    producer_id_expiration_ms: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    out_of_order_wait_ms: int
    log_retention_check_interval_ms: int
    log_checkpoint_interval_ms: int
    log_cleaner_backoff_ms: int
    producer_id_expiration_check_interval_ms: int
    transactional_id_expiration_check_interval_ms: int
    metrics_interval_ms: int
    internal_call_timeout_ms: int
    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    controller_session_timeout_ms: int
    replica_lag_time_max_ms: int
    disk_refusal_time_max_ms: int
    leader_imbalance_check_interval_ms: int
    transaction_state_log_segment_bytes: int
    offsets_topic_segment_bytes: int
    metadata_log_segment_bytes: int
    metadata_log_max_record_count_between_snapshots: int
    calls: Road
    replicas_per_actor: ReplicasPerActor


def internal_topic_config(topic: str, cluster: ClusterConfig) -> TopicConfig:
    """Initial settings of a coordinator's log: it needs only the newest state of each key.

    The records of the metadata log build on each other: what is before a snapshot goes, no other.
    """
    if topic == CLUSTER_METADATA_TOPIC:
        return TopicConfig(retention_ms=UNLIMITED, segment_bytes=cluster.metadata_log_segment_bytes)
    is_transactions = topic == TRANSACTION_STATE_TOPIC
    return TopicConfig(
        cleanup_policy="compact",
        segment_bytes=cluster.transaction_state_log_segment_bytes
        if is_transactions
        else cluster.offsets_topic_segment_bytes,
    )


def data_directories(data_dir: str) -> tuple[Path, ...]:
    """The directories that ``data_dir`` names, separated by commas; the broker's own is first."""
    return tuple(Path(path) for path in data_dir.split(DATA_DIR_SEPARATOR))


def own_directory(data_dir: str) -> Path:
    """The first of them: the broker's own."""
    return data_directories(data_dir)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """What a replica's process is started with; it learns the rest from the controller.

    ``data_dir`` names the broker's own data directory and, after commas, further ones.

    ``cluster_id`` is the cluster the data directory must belong to; empty for a log of no cluster.
    ``pin`` is the node that every actor of the broker runs on; only Ray needs it.
    """

    topic: str
    partition: int
    broker_id: int
    data_dir: str
    cluster: ClusterConfig = dataclasses.field(default_factory=ClusterConfig)
    cluster_id: str = ""
    pin: Pin | None = None

    @property
    def directory_name(self) -> str:
        """What the replica's directory is called, in whichever data directory it is."""
        return f"{self.topic}-{self.partition}"

    @property
    def directory(self) -> Path:
        """Where the replica keeps its files, if it has them in the broker's own data directory."""
        return own_directory(self.data_dir) / self.directory_name


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """What a host is started with; which replicas it holds the controller tells it."""

    number: int
    broker_id: int
    data_dir: str
    cluster: ClusterConfig = dataclasses.field(default_factory=ClusterConfig)
    cluster_id: str = ""
    pin: Pin | None = None

    def replica(self, topic: str, partition: int) -> ReplicaConfig:
        """The configuration of one of its replicas."""
        return ReplicaConfig(
            topic=topic,
            partition=partition,
            broker_id=self.broker_id,
            data_dir=self.data_dir,
            cluster=self.cluster,
            cluster_id=self.cluster_id,
            pin=self.pin,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """What the actor by which a broker joins is started with."""

    broker_id: int
    data_dir: str
    cluster: ClusterConfig = dataclasses.field(default_factory=ClusterConfig)
    cluster_id: str = ""
    rack: str = ""
    pin: Pin | None = None
