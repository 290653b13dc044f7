"""Client settings, each declared once, under Kafka's names written with underscores.

An unknown setting or a value out of range is rejected when a client is made; the error names the
setting, its value and what is allowed. Times are in milliseconds, sizes in bytes.
``option_types.py`` has the same settings as keywords, ``docs/SETTINGS.md`` as a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, get_args

from msgspec import Meta, ValidationError, convert

from oncelog.api.batching.interceptors import ConsumerInterceptor, ProducerInterceptor
from oncelog.api.serializing import SerializerFunction, SerializerName
from oncelog.storage.model import (
    DUPLICATE_WINDOW_BATCHES,
    FETCH_MAX_BYTES,
    GROUP_ID_MAX_BYTES,
    INT32_MAX,
    INT64_MAX,
    MESSAGE_MAX_BYTES,
    TRANSACTIONAL_ID_MAX_BYTES,
    IsolationLevel,
)
from oncelog.storage.records.compression import LEVELS, Codec
from oncelog.storage.settings import Checked, Text, Unit, build, check, refused, settings_of

ACKS_ALL: Final = -1
Acks = Literal["all", -1, 0, 1]
CompressionType = Literal["none", "gzip", "snappy", "lz4", "zstd"]
PartitionerName = Literal["murmur2", "consistent_random"]
PartitionFunction = Callable[[str, bytes | None, int], int | None]
"""Gets topic, key and partition count; gives a partition, or ``None`` for the sticky one."""

DeliveryOrder = Literal["offset", "commit"]
QueueOrder = Literal["none", "key"]
AssignmentStrategy = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]
AssignmentStrategies = AssignmentStrategy | Sequence[AssignmentStrategy]
COMPRESSION_TYPES: Final[tuple[str, ...]] = get_args(CompressionType)

OFFSET_RESETS: Final = ("earliest", "latest", "none")
BY_DURATION: Final = "by_duration:"
"""Before the ISO 8601 duration of an ``auto_offset_reset`` by age. Source: KIP-1106."""

BUFFER_MEMORY_MAX: Final = 2**40
"""More memory than any machine has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer batches, retries and gives up. Every producer is idempotent (KIP-98).

    With ``enrol_ahead_ms`` a commit may begin the next transaction at the coordinator as well, with
    the same partitions. It does so if the current transaction's first record came within that time
    of the previous end. The new transaction is aborted if no record comes within that time. A
    transaction timeout below ten times ``enrol_ahead_ms`` turns this off too.
    """

    transactional_id: Annotated[
        str | None,
        Text(TRANSACTIONAL_ID_MAX_BYTES),
        "The id under which the producer writes transactions; a newer producer with the same id "
        "fences this one.",
    ] = None
    transaction_timeout_ms: Annotated[
        int, Meta(ge=1, le=INT32_MAX), "Abort a transaction that is open for longer."
    ] = 60_000
    client_id: Annotated[
        str | None,
        Text(TRANSACTIONAL_ID_MAX_BYTES),
        "The name of this client in metrics and traces; several may share it.",
    ] = "oncelog"
    producer_heartbeat_interval_ms: Annotated[
        int,
        Meta(ge=100, le=1_200_000),
        'How often a producer with `init_transactions(if_alive="refuse")` says that it lives, '
        "unless it calls its coordinator anyway; after three times as long without a call it may "
        "be replaced.",
    ] = 10_000
    acks: Annotated[
        Acks,
        "Which replicas must have a record before it is acknowledged: `all` in sync (also -1), the "
        "leader alone (1), or none (0). Transactions need `all`.",
    ] = ACKS_ALL
    batch_size: Annotated[
        int, Meta(ge=1, le=MESSAGE_MAX_BYTES), Unit("bytes"), "Send a batch once it has this size."
    ] = 262_144
    linger_ms: Annotated[
        int, Meta(ge=0, le=INT32_MAX), "How long a batch waits for more records."
    ] = 5
    enrol_ahead_ms: Annotated[
        int,
        Meta(ge=0, le=INT32_MAX),
        "If the next transaction begins within this time, its partitions are enrolled by the "
        "previous commit; 0 turns this off.",
    ] = 100
    max_in_flight_requests_per_connection: Annotated[
        int,
        Meta(ge=1, le=DUPLICATE_WINDOW_BATCHES),
        "How many batches of a partition may be in flight; their order is kept in any case.",
    ] = DUPLICATE_WINDOW_BATCHES
    delivery_timeout_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "Give up a record that is not acknowledged after this time; at least `linger_ms` plus "
        "`request_timeout_ms`.",
    ] = 120_000
    request_timeout_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How long to wait for a reply before a request is sent again.",
    ] = 30_000
    max_block_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How long `send` waits for memory or for a topic's metadata, and how long each "
        "transaction call may take.",
    ] = 60_000
    buffer_memory: Annotated[
        int,
        Meta(ge=1, le=BUFFER_MEMORY_MAX),
        Unit("bytes"),
        "How many bytes may be unacknowledged; beyond that `send` waits.",
    ] = 33_554_432
    max_request_size: Annotated[
        int, Meta(ge=100, le=INT32_MAX), Unit("bytes"), "The largest record, and the largest batch."
    ] = 1_048_576
    partitioner: Annotated[
        PartitionerName | PartitionFunction,
        "Where a record without `partition` goes: by its key as Kafka's Java client (`murmur2`) or "
        "librdkafka (`consistent_random`) places it; or a function of topic, key and partition "
        "count.",
    ] = "murmur2"
    key_serializer: Annotated[
        SerializerName | SerializerFunction | None,
        "How keys become bytes: `str`, `json`, `msgpack`, `arrow`, or a function of the key and a "
        "`SerializationContext`; None is `bytes`.",
    ] = None
    value_serializer: Annotated[
        SerializerName | SerializerFunction | None, "The same of values."
    ] = None
    compression_type: Annotated[CompressionType, "How batches are compressed."] = "none"
    compression_level: Annotated[
        int | None,
        Meta(ge=-131_072, le=22),
        "How hard `compression_type` tries: gzip 1 to 9 (6), lz4 1 to 12 (1), zstd -131072 to 22 "
        "(1); None is its default. The others have no levels.",
    ] = None
    retry_backoff_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How long to wait before the first retry; later retries wait longer.",
    ] = 100
    retry_backoff_max_ms: Annotated[
        int, Meta(ge=1, le=INT32_MAX), "The longest wait before a retry."
    ] = 1_000
    tracing: Annotated[
        bool | None,
        "Make spans, and carry their context in headers of records; needs `oncelog[traces]`. "
        "`None`: if the program has set a tracer provider.",
    ] = None
    interceptors: Annotated[
        Sequence[ProducerInterceptor],
        "Objects that see each record before it is sent, and its outcome.",
    ] = ()

    def __post_init__(self) -> None:
        """Check each setting and their relations; ``InvalidSettingError`` names the first error."""
        check(self)
        if self.acks == "all":
            object.__setattr__(self, "acks", ACKS_ALL)
        shortest_ms = self.linger_ms + self.request_timeout_ms
        if self.delivery_timeout_ms < shortest_ms:
            raise refused(
                "delivery_timeout_ms",
                self.delivery_timeout_ms,
                f"at least linger_ms + request_timeout_ms = {shortest_ms}",
            )
        if self.transactional_id is not None and self.acks != ACKS_ALL:
            raise refused("acks", self.acks, "'all' to a transactional producer")
        self._check_compression_level()

    def _check_compression_level(self) -> None:
        level, name = self.compression_level, self.compression_type
        if level is None:
            return
        levels = LEVELS.get(Codec[name.upper()])
        if levels is None:
            raise refused("compression_level", level, f"None with compression_type={name!r}")
        if not levels.low <= level <= levels.high:
            allowed = f"{levels.low} to {levels.high} with compression_type={name!r}"
            raise refused("compression_level", level, allowed)

    @property
    def acks_count(self) -> int:
        """``acks`` as the number in requests: -1, 0 or 1."""
        return int(self.acks)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ProducerSettings:
        """Settings from a user's keywords; the error for an unknown name suggests the nearest."""
        return build(cls, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer fetches, commits and takes part in its group.

    ``isolation_level`` may be given as text. Of several strategies, the group uses one that all its
    members have.
    """

    group_id: Annotated[
        str | None,
        Text(GROUP_ID_MAX_BYTES),
        "The group that shares the partitions and stores the committed offsets; without one, "
        "nothing is committed.",
    ] = None
    group_instance_id: Annotated[
        str | None,
        Text(GROUP_ID_MAX_BYTES),
        "Makes the consumer a static member: if it rejoins before its session times out, there is "
        "no rebalance. Needs `group_id`.",
    ] = None
    client_id: Annotated[
        str,
        Text(GROUP_ID_MAX_BYTES),
        "The name of this client in metrics and traces; several may share it.",
    ] = "oncelog"
    key_deserializer: Annotated[
        SerializerName | SerializerFunction | None,
        "What `poll` makes of the bytes of keys: `str`, `json`, `msgpack`, `arrow`, or a function "
        "of the bytes and a `SerializationContext`; None is `bytes`.",
    ] = None
    value_deserializer: Annotated[
        SerializerName | SerializerFunction | None, "The same of values."
    ] = None
    isolation_level: Annotated[
        IsolationLevel, "Read committed records only, or all records that are replicated."
    ] = IsolationLevel.READ_COMMITTED
    auto_offset_reset: Annotated[
        str,
        Checked(
            "'earliest', 'latest', 'none', or 'by_duration:' and an ISO 8601 duration like PT1H30M"
        ),
        "Where to start without a committed offset: at the first record, at the next new record, "
        "with an error, or at the first record of the last hour (`by_duration:PT1H`).",
    ] = "latest"
    enable_auto_commit: Annotated[
        bool, "Commit the polled positions every `auto_commit_interval_ms` and on `close`."
    ] = True
    enable_auto_offset_store: Annotated[
        bool,
        "Commit what was polled. If `False`, automatic commits, and `commit` without offsets, "
        "commit what the program has given to `store_offsets`.",
    ] = True
    auto_commit_interval_ms: Annotated[
        int, Meta(ge=1, le=INT32_MAX), "How often `enable_auto_commit` commits."
    ] = 5_000
    session_timeout_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "The group gives a member's partitions to others after this time without its heartbeats.",
    ] = 45_000
    heartbeat_interval_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How often the consumer sends a heartbeat to its group, and learns of a rebalance; less "
        "than `session_timeout_ms`.",
    ] = 3_000
    max_poll_interval_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "Leave the group if `poll` is not called for this long; also how long a rebalance waits "
        "for a member.",
    ] = 300_000
    metadata_max_age_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How often a group looks for new topics that match a pattern, and for new partitions of "
        "its topics; not more often than it sends heartbeats.",
    ] = 300_000
    max_poll_records: Annotated[
        int, Meta(ge=1, le=INT32_MAX), "The most records that one `poll` returns."
    ] = 500
    partition_assignment_strategy: Annotated[
        AssignmentStrategies,
        "How the group shares its partitions, the best first. Rebalances are cooperative if it is "
        "`cooperative-sticky` alone, else eager. To change it, first give every member the new "
        "strategy and then the old one; in a second round, leave out the old one.",
    ] = ("cooperative-sticky",)
    fetch_min_bytes: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "A leader replies once it has this much, or after `fetch_max_wait_ms`.",
    ] = 1
    fetch_max_bytes: Annotated[
        int, Meta(ge=1, le=INT32_MAX), "How much is fetched ahead, over all partitions."
    ] = FETCH_MAX_BYTES
    max_partition_fetch_bytes: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How much of one partition is fetched at a time; a larger batch is fetched alone.",
    ] = 1_048_576
    fetch_max_wait_ms: Annotated[
        int,
        Meta(ge=0, le=INT32_MAX),
        "How long a leader waits for `fetch_min_bytes`: at most 30 s.",
    ] = 500
    client_rack: Annotated[
        str | None,
        Text(GROUP_ID_MAX_BYTES),
        "The rack that the program is in, as in the label `rack` of Ray nodes. What has an "
        "in-sync replica there, and not its leader, is read from that replica.",
    ] = None
    order: Annotated[
        DeliveryOrder,
        "Deliver the records of a partition by their offsets, or those of a transaction when it "
        "commits. Needs read_committed, and a topic that is not compacted.",
    ] = "offset"
    commit_order_buffer_bytes: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "With `order='commit'`: how much of open transactions stays in memory, per partition; "
        "more is written to a file.",
    ] = 16 * 1024 * 1024
    spill_directory: Annotated[
        str | None,
        "With `order='commit'`: where that file is; by default where temporary files are.",
    ] = None
    spill_max_bytes: Annotated[
        int,
        Meta(ge=0, le=INT64_MAX),
        "With `order='commit'`: the most that is in the file of one partition. Beyond it `poll` "
        "raises `SpillFailedError`, until a transaction ends.",
    ] = 1024 * 1024 * 1024
    check_crcs: Annotated[bool, "Check the checksum of each batch."] = True
    request_timeout_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How long to wait for a reply before a request is sent again.",
    ] = 30_000
    default_api_timeout_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How long a call such as `commit` or `committed` is retried.",
    ] = 60_000
    retry_backoff_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How long to wait before the first retry; later retries wait longer.",
    ] = 100
    retry_backoff_max_ms: Annotated[
        int, Meta(ge=1, le=INT32_MAX), "The longest wait before a retry."
    ] = 1_000
    tracing: Annotated[
        bool | None,
        "Make spans, and carry their context in headers of records; needs `oncelog[traces]`. "
        "`None`: if the program has set a tracer provider.",
    ] = None
    interceptors: Annotated[
        Sequence[ConsumerInterceptor],
        "Objects that see records before `poll` returns them, and offsets once they are committed.",
    ] = ()

    def __post_init__(self) -> None:
        """Check each setting and their relations; ``InvalidSettingError`` names the first error."""
        check(self)
        if self.auto_offset_reset not in OFFSET_RESETS:
            _reset_duration(self.auto_offset_reset)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise refused(
                "heartbeat_interval_ms",
                self.heartbeat_interval_ms,
                f"less than session_timeout_ms={self.session_timeout_ms}",
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise refused("group_instance_id", self.group_instance_id, "it only with a group_id")
        if self.order == "commit" and self.isolation_level is not IsolationLevel.READ_COMMITTED:
            raise refused("order", self.order, "'offset' with isolation_level='read_uncommitted'")
        if self.order == "commit" and self.interceptors:
            # They may leave records out, by whose number a position in commit order is told.
            raise refused("interceptors", self.interceptors, "none with order='commit'")

    @property
    def reset_age_ms(self) -> int | None:
        """How far back ``auto_offset_reset`` by duration goes; ``None`` for the other policies."""
        if self.auto_offset_reset in OFFSET_RESETS:
            return None
        return int(_reset_duration(self.auto_offset_reset).total_seconds() * 1_000)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ConsumerSettings:
        """Settings from a user's keywords; the error for an unknown name suggests the nearest."""
        return build(cls, options)


def _reset_duration(given: object) -> timedelta:
    """The duration of an ``auto_offset_reset`` by age, as Java's ``Duration`` reads it."""
    allowed = settings_of(ConsumerSettings)["auto_offset_reset"].rule.allowed
    if not isinstance(given, str) or not given.startswith(BY_DURATION):
        raise refused("auto_offset_reset", given, allowed)
    try:
        duration = convert(given.removeprefix(BY_DURATION), timedelta)
    except ValidationError:
        raise refused("auto_offset_reset", given, allowed) from None
    if duration < timedelta(0):
        raise refused("auto_offset_reset", given, "a duration that is not negative")
    return duration


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How a queue's worker acquires, reads and acknowledges records."""

    group_id: Annotated[
        str, Text(GROUP_ID_MAX_BYTES), "The group whose workers share the records, each to one."
    ]
    max_poll_records: Annotated[
        int, Meta(ge=1, le=10_000), "The most records that one `take` returns."
    ] = 500
    order: Annotated[
        QueueOrder,
        "`key`: a record is delivered once all records of its key before it are finished; the same "
        "for all workers. Records without a key have no order.",
    ] = "none"
    max_delivery_count: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "A record that was delivered this often and not finished goes to `dead_letter_topic`; the "
        "same for all workers. No effect without that topic.",
    ] = 5
    dead_letter_topic: Annotated[
        str | None,
        Text(249),
        "Where records go that were delivered `max_delivery_count` times; without one they are "
        "delivered until they are finished.",
    ] = None
    record_lock_duration_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How long a record may be worked on before it is released, unless `renew` is called; the "
        "locks of a worker that dies end sooner.",
    ] = 1_800_000
    max_partition_fetch_bytes: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How much of one partition is fetched at a time; a larger batch is fetched alone.",
    ] = 1_048_576
    fetch_max_bytes: Annotated[
        int, Meta(ge=1, le=INT32_MAX), "About how much one `take` fetches from a partition."
    ] = FETCH_MAX_BYTES
    request_timeout_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How long to wait for a reply before a request is sent again.",
    ] = 30_000
    default_api_timeout_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "How long a call such as `flush` or `backlog` is retried.",
    ] = 60_000
    tracing: Annotated[
        bool | None,
        "Make spans of what is taken; needs `oncelog[traces]`. `None`: if the program has set a "
        "tracer provider.",
    ] = None

    def __post_init__(self) -> None:
        """Check each setting; ``InvalidSettingError`` names the first error."""
        check(self)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> QueueSettings:
        """Settings from a user's keywords; the error for an unknown name suggests the nearest."""
        return build(cls, options)
