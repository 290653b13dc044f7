"""Requests to partition leaders and to every replica, and their replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET, UnsetType

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_TIMESTAMP,
    AbortedTransaction,
    FilePart,
    IsolationLevel,
    TopicPartition,
)

if TYPE_CHECKING:
    from oncelog.storage.records.batch import Buffer as Batch
else:
    # Decoded as a view of the input, not a copy.
    Batch = memoryview

NO_BROKER: Final = -1


class ProduceReply(Reply, frozen=True, kw_only=True):
    """``base_offset`` is the batch's offset; for a duplicate, that of the original.

    On ``NONE`` with acks -1 the batch is durable on every in-sync replica. ``log_append_time_ms``
    is -1 if the topic keeps the client's timestamps. ``is_ticket_old``: the key of the plain ticket
    is not the current one; a producer that renews the ticket in time keeps its id. A batch is
    rejected as a whole; ``refused_records`` are the indexes (from 0) of the records that caused it,
    empty if unknown (KIP-467).
    """

    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    is_ticket_old: bool = False
    refused_records: tuple[int, ...] = ()


class ProduceRequest(Request[ProduceReply], frozen=True, kw_only=True):
    """Append one record batch v2 (with base offset 0) to one partition.

    ``ticket`` proves that the partition is enrolled in the transaction or, outside of one, that the
    producer id is the sender's; every batch with a producer id needs it. Safe to retry with the
    same bytes: the sequence numbers deduplicate. ``batch`` never changes. From a connection of our
    own it is a view, which can be neither hashed nor pickled.
    """

    method = "produce"
    reply_type = ProduceReply

    topic_partition: TopicPartition
    acks: int = -1
    transactional_id: str | None = None
    ticket: bytes | None = None
    leader_epoch: int = NO_LEADER_EPOCH
    timeout_ms: int = 30_000
    batch: Batch


class FetchReply(Reply, frozen=True, kw_only=True):
    """Raw batches, starting with the one that holds ``fetch_offset``, and the log's bounds.

    ``aborted_transactions`` is ``None`` for read_uncommitted. ``records`` holds whole batches; from
    a connection of our own it is a view, which can be neither hashed nor pickled. With
    ``CORRUPT_MESSAGE`` the records from ``fetch_offset`` to ``resume_offset`` (exclusive) cannot be
    read; -1 if the leader cannot tell. The bounds are those that the replica knows: a follower's
    are a little behind. ``preferred_read_replica`` is the broker id of a follower in the consumer's
    rack: fetch there; -1 for none. Such a reply has no records.

    Instead of records a reply may have ``file_part``, for a caller that reads files: where they
    are, as of ``told_ms`` of the machine's monotonic clock. Both are ``UNSET`` in most replies.
    """

    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    resume_offset: int = NO_OFFSET
    preferred_read_replica: int = NO_BROKER
    file_part: FilePart | UnsetType = UNSET
    told_ms: int | UnsetType = UNSET
    records: Batch = b""


class FetchRequest(Request[FetchReply], frozen=True, kw_only=True):
    """Read from ``fetch_offset`` (inclusive); waits up to ``max_wait_ms`` for ``min_bytes``.

    A leader may answer sooner with less, or with nothing: it waits for no more than 30 s.
    At least one batch is returned if one is readable, even beyond ``max_bytes``. A leader does not
    recheck CRCs of what it wrote itself, unless ``is_checked`` is set. If ``topic_id`` is not the
    leader's nothing is read: the offset is from a deleted topic.

    A consumer tells the leader its ``client_rack``, "" if it wants no other replica (KIP-392). The
    leader may name a follower there, and that one is asked with ``from_follower`` and the leader
    epoch that the consumer knows. A follower answers no other fetch.

    Who can read the files of a broker, a gateway, names it as ``reads_files_of``, -1 for none. Its
    replicas then only tell where many records are.
    """

    method = "fetch"
    reply_type = FetchReply

    topic_partition: TopicPartition
    fetch_offset: int
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1_048_576
    leader_epoch: int = NO_LEADER_EPOCH
    is_checked: bool = False
    topic_id: str = ""
    client_rack: str = ""
    from_follower: bool = False
    reads_files_of: int = NO_BROKER


class SharedFetch(msgspec.Struct, frozen=True, kw_only=True):
    """A fetch of the replica ``key`` of a host; ``number`` is the caller's name for it."""

    number: int
    key: str
    fetch: FetchRequest


class EndedFetch(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to fetch ``number``, without its records."""

    number: int
    reply: FetchReply


class FetchTogetherReply(Reply, frozen=True, kw_only=True):
    """The fetches that have ended since the last reply, perhaps none; ``records`` are theirs.

    ``is_new``: the host did not know the session, and so no fetch of an earlier call.
    """

    is_new: bool = False
    ended: tuple[EndedFetch, ...] = ()
    records: tuple[Batch, ...] = ()


class FetchTogetherRequest(Request[FetchTogetherReply], frozen=True, kw_only=True):
    """Begin ``fetches`` at a host, and wait up to ``max_wait_ms`` until one of the session ends.

    Each fetch waits at the host until it ends by itself, so a call names new ones only. A newer
    call of the session ends the wait of an older one. A reply may be lost, and with it the fetches
    in it: its caller begins all of them anew. ``max_bytes`` bounds a reply once it has one fetch.
    """

    method = "fetch_together"
    reply_type = FetchTogetherReply

    session_id: str
    fetches: tuple[SharedFetch, ...] = ()
    max_wait_ms: int = 500
    max_bytes: int = 1_048_576


class ListOffsetsReply(Reply, frozen=True, kw_only=True):
    """The offset found and the timestamp of its record; both -1 if nothing matches."""

    offset: int = NO_OFFSET
    timestamp_ms: int = NO_TIMESTAMP


class ListOffsetsRequest(Request[ListOffsetsReply], frozen=True, kw_only=True):
    """First offset with a timestamp at or after ``timestamp_ms``; -1 latest, -2 earliest, -3 max.

    "Latest" is the last stable offset for read_committed and the high watermark otherwise.
    """

    method = "list_offsets"
    reply_type = ListOffsetsReply

    topic_partition: TopicPartition
    timestamp_ms: int
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    leader_epoch: int = NO_LEADER_EPOCH


class TxnMarker(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one producer's transaction, for some partitions of one leader.

    ``producer_epoch`` is the epoch of the *next* transaction: one above that of the data.
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: tuple[TopicPartition, ...]


class MarkerResult(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's answer to one marker."""

    producer_id: int
    topic_partition: TopicPartition
    error: ErrorCode


class WriteTxnMarkersReply(Reply, frozen=True, kw_only=True):
    """One result for each (marker, partition); durable and replicated where it says ``NONE``."""

    results: tuple[MarkerResult, ...] = ()


class WriteTxnMarkersRequest(Request[WriteTxnMarkersReply], frozen=True, kw_only=True):
    """Write markers to the partitions one actor leads. Repeating it is harmless."""

    method = "write_txn_markers"
    reply_type = WriteTxnMarkersReply

    coordinator_epoch: int
    markers: tuple[TxnMarker, ...]


class AbortHangingReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the abort marker is committed; on ``INVALID_TXN_STATE`` nothing is open there."""


class AbortHangingRequest(Request[AbortHangingReply], frozen=True, kw_only=True):
    """An operator has the leader abort a transaction that no coordinator will end.

    Only the transaction of this producer that is open from ``start_offset`` on: a late call does
    not end the next one. Whether a coordinator may still end it, the caller must have asked.
    Source: KIP-664, where the operator's program writes the marker.
    """

    method = "abort_hanging"
    reply_type = AbortHangingReply

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int


class ProducerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader knows about one producer. ``open_record_count`` counts its open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_txn_first_offset: int = NO_OFFSET
    open_record_count: int = 0


class DescribeProducersReply(Reply, frozen=True, kw_only=True):
    """The partition's live producers, those requested or all."""

    producers: tuple[ProducerDescription, ...] = ()


class DescribeProducersRequest(Request[DescribeProducersReply], frozen=True, kw_only=True):
    """Describe the producers with state at a leader; ``producer_ids`` ``None`` means all."""

    method = "describe_producers"
    reply_type = DescribeProducersReply

    topic_partition: TopicPartition
    producer_ids: tuple[int, ...] | None = None


class DescribeReplicaReply(Reply, frozen=True, kw_only=True):
    """A replica's bounds, role and process, for people, metrics and fault tests.

    ``isr`` is what a leader knows. ``active_transactional_id_count`` is ``None`` except for
    transaction coordinators. ``damaged_offset`` is the first offset known to be unreadable, -1 if
    none. At start this process cut ``cut_bytes`` from the log, from ``cut_offset`` on: a torn tail,
    or a cut that an operator accepted. -1: it cut nothing. ``directory`` is the data directory that
    the log is in, with the bytes of its disk; -1: not known.
    """

    topic_partition: TopicPartition | None = None
    process_id: int = -1
    is_leader: bool = False
    is_following: bool = False
    isr: tuple[int, ...] = ()
    min_insync_replicas: int = 1
    leader_epoch: int = NO_LEADER_EPOCH
    log_start_offset: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    high_watermark: int = NO_OFFSET
    log_end_offset: int = NO_OFFSET
    size_bytes: int = 0
    producer_count: int = 0
    open_transaction_count: int = 0
    late_transaction_count: int = 0
    oldest_open_transaction_age_ms: int = 0
    active_transactional_id_count: int | None = None
    segment_count: int = 0
    damaged_offset: int = NO_OFFSET
    damaged_place_count: int = 0
    cut_offset: int = NO_OFFSET
    cut_bytes: int = 0
    refusal: str = ""
    refused_ms: int = 0
    directory: str = ""
    disk_size_bytes: int = -1
    disk_free_bytes: int = -1

    @property
    def takes_writes(self) -> bool:
        """Whether it leads, with enough replicas in sync for ``acks="all"``."""
        return self.is_leader and len(self.isr) >= self.min_insync_replicas


class DescribeReplicaRequest(Request[DescribeReplicaReply], frozen=True, kw_only=True):
    """Describe the replica of a partition or of a coordinator's internal log.

    If ``topic_partition`` is given it must be that one's; then who may see the topic may ask.
    """

    method = "describe_replica"
    reply_type = DescribeReplicaReply

    topic_partition: TopicPartition | None = None


class DeleteRecordsReply(Reply, frozen=True, kw_only=True):
    """Records below ``log_start_offset`` are durably hidden from readers of in-sync replicas."""

    log_start_offset: int = NO_OFFSET


class DeleteRecordsRequest(Request[DeleteRecordsReply], frozen=True, kw_only=True):
    """Delete records below ``offset`` (exclusive); -1 means the high watermark.

    Source: KIP-107. Repeating it is harmless: the log start never goes back.
    """

    method = "delete_records"
    reply_type = DeleteRecordsReply

    topic_partition: TopicPartition
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH


class ConfigureReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the replica uses these settings, or newer ones that it already knew."""


class ConfigureRequest(Request[ConfigureReply], frozen=True, kw_only=True):
    """The controller sends a replica all settings of its topic, as text values.

    ``settings_version`` increases with each change, so calls may overtake each other.
    """

    method = "configure"
    reply_type = ConfigureReply

    topic_partition: TopicPartition
    topic_id: str
    settings: tuple[tuple[str, str], ...]
    settings_version: int
