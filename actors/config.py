"""Settings of the cluster and of topics, each declared once, with units in their names.

Construction rejects an unknown or invalid setting, and names it, its value and what is allowed.
Client settings are in ``api/config.py``; ``docs/SETTINGS.md`` shows all of them.

One file: mostly the two tables of settings, and the start arguments that carry them to processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta

from oncelog.actors.pin import Pin
from oncelog.actors.protocol.certificate_names import DEFAULT as DEFAULT_RULES
from oncelog.actors.protocol.certificate_names import CertificateNames
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
    INT32_MAX,
    INT64_MAX,
    MESSAGE_LIMIT_BYTES,
    MESSAGE_MAX_BYTES,
    SEGMENT_BYTES,
    TOPIC_PARTITIONS_MAX,
    TRANSACTION_STATE_TOPIC,
)
from oncelog.storage.settings import build, check, refused, settings_of

FlushPolicy = Literal["sync", "os"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
CleanupPolicy = Literal["delete", "compact", "compact,delete"]

CallTransport = Literal["connections", "ray"]
"""How calls travel to an actor."""

CLUSTER: Final = "cluster"
"""Value of a topic's setting: use the cluster's."""

CONNECTIONS: Final = "connections"
RAY: Final = "ray"

SEGMENT_MIN_BYTES: Final = 4_096
"""Minimum segment size: smaller segments would be too many files."""

INTERNAL_SEGMENT_BYTES: Final = 4_194_304
"""Segment size of internal logs: some 25,000 records, which a coordinator reads in about a second.

The active segment is never compacted, and a coordinator reads all of it when it starts. The rest,
once compacted, has one record per key.
"""

PRODUCER_ID_EXPIRATION_MIN_MS: Final = TICKET_LIFETIME_MAX_MS + TICKET_GRACE_MS
"""Minimum time before a producer is forgotten: tickets are valid for 12 h, and clocks differ."""

DATA_DIR_SEPARATOR: Final = ","
"""Separates the directories of one ``data_dir``, as in Kafka's ``log.dirs``."""

DATA_DIRECTORIES_MAX: Final = 64
"""Maximum directories in one ``data_dir``: a replica that starts may look into each."""

FOUNDING_SETTINGS: Final = ("transaction_state_partitions", "offsets_partitions")
"""Settings in ``ClusterConfig`` that are fixed when the cluster is founded."""


_KindT = TypeVar("_KindT", bound=type[Any])


def _lasting(kind: _KindT) -> _KindT:
    """Let later builds read a pickled one: Ray restarts actors with what started them.

    A new field goes last and has a default, which those of an earlier build get.
    """
    kind.__setstate__ = _set_state
    return kind


def _set_state(instance: Any, state: Sequence[Any]) -> None:
    fields = dataclasses.fields(instance)
    for field, value in zip(fields, state, strict=False):
        object.__setattr__(instance, field.name, value)
    for field in fields[len(state) :]:
        make = field.default_factory
        default = make() if callable(make) else field.default
        object.__setattr__(instance, field.name, default)


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
    """Settings of one topic."""

    max_message_bytes: Annotated[
        int,
        Meta(ge=62, le=MESSAGE_LIMIT_BYTES),
        "The largest batch of records that a partition takes.",
    ] = MESSAGE_MAX_BYTES
    segment_bytes: Annotated[
        int,
        Meta(ge=SEGMENT_MIN_BYTES, le=INT32_MAX),
        "Begin a new segment before one grows larger than this.",
    ] = SEGMENT_BYTES
    segment_ms: Annotated[
        int,
        Meta(ge=1, le=INT64_MAX),
        "Begin a new segment once the first record of one is this old.",
    ] = 604_800_000
    index_interval_bytes: Annotated[
        int,
        Meta(ge=0, le=INT32_MAX),
        "Add an entry to the indexes of a segment after so many bytes of batches.",
    ] = INDEX_INTERVAL_BYTES
    flush: Annotated[
        FlushPolicy,
        "When a write is acknowledged: `sync` once it is on disk, `os` before, as Kafka does.",
    ] = "sync"
    message_timestamp_type: Annotated[
        TimestampType,
        "Whose time a record has: its producer's, or that at which the leader appended it.",
    ] = "CreateTime"
    message_timestamp_before_max_ms: Annotated[
        int,
        Meta(ge=0, le=INT64_MAX),
        "Refuse records whose producer's time is further in the past.",
    ] = INT64_MAX
    message_timestamp_after_max_ms: Annotated[
        int,
        Meta(ge=0, le=INT64_MAX),
        "Refuse records whose producer's time is further in the future.",
    ] = 3_600_000
    cleanup_policy: Annotated[
        CleanupPolicy,
        "Remove old segments, or keep the newest record of each key, or both. To compact, records "
        "must have keys.",
    ] = "delete"
    retention_ms: Annotated[
        int,
        Meta(ge=UNLIMITED, le=INT64_MAX),
        "With `delete`: remove segments whose newest record is older than this; -1 keeps all.",
    ] = 604_800_000
    retention_bytes: Annotated[
        int,
        Meta(ge=UNLIMITED, le=INT64_MAX),
        "With `delete`: remove the oldest segments of a partition beyond this size; -1 keeps all.",
    ] = UNLIMITED
    min_compaction_lag_ms: Annotated[
        int,
        Meta(ge=0, le=INT64_MAX),
        "With `compact`: leave records alone until they are this old.",
    ] = 0
    max_compaction_lag_ms: Annotated[
        int,
        Meta(ge=0, le=INT64_MAX),
        "With `compact`: compact a record at the latest when it is this old.",
    ] = INT64_MAX
    min_cleanable_dirty_ratio: Annotated[
        float,
        Meta(ge=0, le=1),
        "With `compact`: wait until so much of the log, as a share of its bytes, has not been "
        "compacted yet.",
    ] = 0.5
    delete_retention_ms: Annotated[
        int,
        Meta(ge=0, le=INT64_MAX),
        "With `compact`: keep a record that deletes its key for so long, for readers that are "
        "behind.",
    ] = 86_400_000
    replicas_per_actor: Annotated[
        ReplicasPerActor | Literal["cluster"],
        Meta(ge=1, le=HOST_REPLICAS_MAX),
        "How many replicas share a Ray actor: as in the cluster's setting. It counts when "
        "partitions are created.",
    ] = CLUSTER
    min_insync_replicas: Annotated[
        int | Literal["auto"],
        Meta(ge=1),
        "So many replicas must be in sync for a write with `acks=all`; `auto` is 2, or 1 with one "
        "or two replicas.",
    ] = AUTO

    def __post_init__(self) -> None:
        check(self)
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidSettingError(
                f"min_compaction_lag_ms={self.min_compaction_lag_ms} is above "
                f"max_compaction_lag_ms={self.max_compaction_lag_ms}",
                advice="give at most as much",
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
        known = settings_of(cls)
        values: dict[str, Any] = {
            name: known[name].of_text(text) if name in known else text
            for name, text in settings.items()
        }
        return build(cls, values)


@_lasting
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig(_Settings):
    """Settings of a cluster; the two partition counts are fixed when it is founded."""

    transaction_state_partitions: Annotated[
        int,
        Meta(ge=1, le=1_000),
        "Shards of the transaction coordinator. Fixed when the cluster is founded.",
    ] = 2
    offsets_partitions: Annotated[
        int,
        Meta(ge=1, le=1_000),
        "Shards of the group coordinator. Fixed when the cluster is founded.",
    ] = 2
    transaction_max_timeout_ms: Annotated[
        int,
        Meta(ge=1, le=TRANSACTION_TIMEOUT_LIMIT_MS),
        "The longest transaction timeout that a producer may ask for.",
    ] = 900_000
    distributed_write_max_ms: Annotated[
        int,
        Meta(ge=1, le=TRANSACTION_TIMEOUT_LIMIT_MS),
        "Abort a write of Spark or Ray Data that takes longer, even if its tasks live.",
    ] = TRANSACTION_TIMEOUT_LIMIT_MS
    transaction_visibility_wait_ms: Annotated[
        int,
        Meta(ge=0, le=INT32_MAX),
        "How long a commit or abort waits until readers see it, before it returns all the same.",
    ] = 1_000
    transaction_abort_scan_ms: Annotated[
        int,
        Meta(ge=0, le=INT32_MAX),
        "How often a coordinator looks for transactions that are open for too long, or whose "
        "program is gone.",
    ] = 1_000
    transactional_id_expiration_ms: Annotated[
        int,
        Meta(ge=0, le=INT32_MAX),
        "Forget a transactional id that has not been used for so long.",
    ] = 604_800_000
    producer_id_expiration_ms: Annotated[
        int,
        Meta(ge=PRODUCER_ID_EXPIRATION_MIN_MS, le=INT32_MAX),
        "Forget a producer that has not written to a partition for so long.",
    ] = 86_400_000
    group_min_session_timeout_ms: Annotated[
        int, Meta(ge=0, le=INT32_MAX), "The shortest session timeout that a consumer may ask for."
    ] = 6_000
    group_max_session_timeout_ms: Annotated[
        int, Meta(ge=0, le=INT32_MAX), "The longest session timeout that a consumer may ask for."
    ] = 1_800_000
    group_initial_rebalance_delay_ms: Annotated[
        int,
        Meta(ge=0, le=INT32_MAX),
        "How long the first rebalance of an empty group waits for more members.",
    ] = 0
    group_share_session_timeout_ms: Annotated[
        int,
        Meta(ge=1_000, le=INT32_MAX),
        "How long a queue's silent worker keeps its records; one on a host without a broker is "
        "missed only by this.",
    ] = 10_000
    out_of_order_wait_ms: Annotated[
        int,
        Meta(ge=0, le=INT32_MAX),
        "How long a batch that overtook another one of its producer waits for it at the leader.",
    ] = 1_000
    log_retention_check_interval_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How often a replica looks for segments to remove, and for settings that it has missed.",
    ] = 300_000
    log_checkpoint_interval_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How often a replica notes up to where its log need not be read when it starts again.",
    ] = 1_000
    log_cleaner_backoff_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How often a replica of a compacted topic looks for something to compact.",
    ] = 15_000
    producer_id_expiration_check_interval_ms: Annotated[
        int, Meta(ge=1, le=INT32_MAX), "How often a replica looks for producers to forget."
    ] = 600_000
    transactional_id_expiration_check_interval_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How often a coordinator looks for transactional ids to forget.",
    ] = 3_600_000
    metrics_interval_ms: Annotated[
        int, Meta(ge=1, le=INT32_MAX), "How often a process reports its metrics to Ray."
    ] = 10_000
    internal_call_timeout_ms: Annotated[
        int, Meta(ge=0, le=INT32_MAX), "How long an actor waits for the answer of another."
    ] = 5_000
    broker_heartbeat_interval_ms: Annotated[
        int, Meta(ge=1, le=INT32_MAX), "How often a broker tells the controller that it lives."
    ] = 1_000
    broker_session_timeout_ms: Annotated[
        int,
        Meta(ge=2, le=INT32_MAX),
        "Fence a broker that has not been heard for so long; at least two heartbeat intervals.",
    ] = 4_500
    controller_session_timeout_ms: Annotated[
        int,
        Meta(ge=0, le=INT32_MAX),
        "How long the controller may not answer before it runs on another broker.",
    ] = 3_000
    replica_lag_time_max_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "A follower that is behind for longer leaves the in-sync replicas.",
    ] = 8_000
    disk_refusal_time_max_ms: Annotated[
        int,
        Meta(ge=0, le=INT32_MAX),
        "A leader whose disk refuses writes for longer, as a full one does, gives way to another "
        "replica.",
    ] = 3_000
    leader_imbalance_check_interval_ms: Annotated[
        int, Meta(ge=1, le=INT32_MAX), "How often preferred leaders that are in sync lead again."
    ] = 300_000
    transaction_state_log_segment_bytes: Annotated[
        int,
        Meta(ge=SEGMENT_MIN_BYTES, le=INT32_MAX),
        "Size of the segments of the transaction coordinator's log.",
    ] = INTERNAL_SEGMENT_BYTES
    offsets_topic_segment_bytes: Annotated[
        int,
        Meta(ge=SEGMENT_MIN_BYTES, le=INT32_MAX),
        "Size of the segments of the group coordinator's log.",
    ] = INTERNAL_SEGMENT_BYTES
    metadata_log_segment_bytes: Annotated[
        int,
        Meta(ge=SEGMENT_MIN_BYTES, le=INT32_MAX),
        "Size of the segments of the controller's log.",
    ] = INTERNAL_SEGMENT_BYTES
    metadata_log_max_record_count_between_snapshots: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "After so many records, or as many as there are partitions if these are more, the "
        "controller writes a snapshot and drops what is before it.",
    ] = 50_000
    calls: Annotated[
        CallTransport,
        "How calls travel to an actor: over connections of oncelog's own, or as calls of Ray, "
        "which are slower.",
    ] = CONNECTIONS
    replicas_per_actor: Annotated[
        ReplicasPerActor,
        Meta(ge=1, le=HOST_REPLICAS_MAX),
        "How many replicas share a Ray actor: `auto` gives each its own while the machine has "
        "processors and memory for them. It counts when partitions are created.",
    ] = AUTO
    audit_allowed: Annotated[
        bool,
        "Whether the audit log has the calls that were allowed too; refused ones it always has.",
    ] = False
    certificate_name_rules: Annotated[
        str,
        "How the subject of a caller's certificate becomes a user's name: Kafka's "
        "`ssl.principal.mapping.rules`.",
    ] = DEFAULT_RULES
    token_keys: Annotated[
        str | None,
        "A file on each node with the public keys of signed tokens, as JWKS or PEM; without one no "
        "tokens are accepted.",
    ] = None
    token_issuer: Annotated[str | None, "Who must have issued a token (`iss`)."] = None
    token_audience: Annotated[str | None, "Whom a token must be for (`aud`)."] = None
    token_name_claim: Annotated[str, "The claim of a token that has the user's name."] = "sub"  # noqa: S105
    transaction_two_phase_commit_enable: Annotated[
        bool,
        "Whether producers may prepare transactions, which then wait for a decision in another "
        "system, however long it takes: they hold read_committed readers back meanwhile.",
    ] = False
    kafka_port: Annotated[
        int,
        Meta(ge=0, le=65_535),
        "The port on which each broker serves clients of Kafka; 0 serves none.",
    ] = 0
    kafka_num_partitions: Annotated[
        int,
        Meta(ge=1, le=TOPIC_PARTITIONS_MAX),
        "Partitions of a topic whose creation by a client of Kafka names no number.",
    ] = 1
    kafka_auto_create_topics: Annotated[
        bool,
        "Whether a topic that a client of Kafka asks about is created if there is none.",
    ] = False

    def __post_init__(self) -> None:
        check(self)
        self._check_naming()
        shortest_ms = 2 * self.broker_heartbeat_interval_ms
        if self.broker_session_timeout_ms < shortest_ms:
            raise refused(
                "broker_session_timeout_ms",
                self.broker_session_timeout_ms,
                f"at least 2 * broker_heartbeat_interval_ms = {shortest_ms}",
            )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidSettingError(
                f"group_min_session_timeout_ms={self.group_min_session_timeout_ms} is above "
                f"group_max_session_timeout_ms={self.group_max_session_timeout_ms}",
                advice="give at most as much",
            )

    def _check_naming(self) -> None:
        """Reject rules that are none, and half of what tokens need."""
        try:
            CertificateNames(self.certificate_name_rules)
        except ValueError as error:
            raise InvalidSettingError(f"certificate_name_rules: {error}") from None
        given = (self.token_keys, self.token_issuer, self.token_audience)
        if any(given) and not all(given):
            raise InvalidSettingError(
                f"token_keys={self.token_keys!r}, token_issuer={self.token_issuer!r} and "
                f"token_audience={self.token_audience!r}",
                advice="give all three, or none",
            )


def internal_topic_config(topic: str, cluster: ClusterConfig) -> TopicConfig:
    """Initial settings of a coordinator's log: it needs only the newest state of each key.

    The metadata log is not compacted: its records build on each other, and only what precedes a
    snapshot is removed.
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
    """The broker's own directory: the first that ``data_dir`` names."""
    return data_directories(data_dir)[0]


@_lasting
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """Start arguments of a replica's process; it learns the rest from the controller.

    ``data_dir`` names the broker's own data directory and, after commas, further ones.

    ``cluster_id`` is the cluster the data directory must belong to; empty for a log of no cluster.
    ``pin`` is the node that every actor of the broker runs on; only Ray needs it.
    ``server_secret`` is what the cluster's servers prove to each other that they know; b"" if the
    build that started the cluster gave them none.
    """

    topic: str
    partition: int
    broker_id: int
    data_dir: str
    cluster: ClusterConfig = dataclasses.field(default_factory=ClusterConfig)
    cluster_id: str = ""
    pin: Pin | None = None
    server_secret: bytes = dataclasses.field(default=b"", repr=False)

    @property
    def directory_name(self) -> str:
        """The name of the replica's directory, in any data directory."""
        return f"{self.topic}-{self.partition}"

    @property
    def directory(self) -> Path:
        """The replica's directory, if it is in the broker's own data directory."""
        return own_directory(self.data_dir) / self.directory_name


@_lasting
@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """Start arguments of a host; the controller tells it which replicas to hold."""

    number: int
    broker_id: int
    data_dir: str
    cluster: ClusterConfig = dataclasses.field(default_factory=ClusterConfig)
    cluster_id: str = ""
    pin: Pin | None = None
    server_secret: bytes = dataclasses.field(default=b"", repr=False)

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
            server_secret=self.server_secret,
        )


@_lasting
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Start arguments of a broker's own actor, which registers it."""

    broker_id: int
    data_dir: str
    cluster: ClusterConfig = dataclasses.field(default_factory=ClusterConfig)
    cluster_id: str = ""
    rack: str = ""
    pin: Pin | None = None
    server_secret: bytes = dataclasses.field(default=b"", repr=False)


@_lasting
@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Start arguments of an actor of a broker that Kafka's clients connect to."""

    number: int
    broker_id: int
    data_dir: str
    cluster: ClusterConfig = dataclasses.field(default_factory=ClusterConfig)
    cluster_id: str = ""
    pin: Pin | None = None
    server_secret: bytes = dataclasses.field(default=b"", repr=False)
