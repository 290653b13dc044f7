"""Ids, sentinels, named limits and a few values that every layer shares.

Offsets are int64. Inclusive: ``base_offset``, ``first_offset``, ``last_offset``,
``log_start_offset``. Exclusive: ``log_end_offset``, ``next_offset``, ``high_watermark``,
``last_stable_offset``.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass, replace
from typing import Final

import msgspec

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1
NO_COORDINATOR_EPOCH: Final = -1
NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

SEQUENCE_MAX: Final = INT32_MAX
"""The last sequence number; the next one is 0."""

PRODUCER_EPOCH_MAX: Final = 32_767
"""Never given to a client: the coordinator uses it to fence an exhausted producer id."""

PRODUCER_EPOCH_EXHAUSTED: Final = PRODUCER_EPOCH_MAX - 1
"""From this epoch on, the next transaction gets a new producer id."""

DUPLICATE_WINDOW_BATCHES: Final = 5
"""Batches per producer in which a retry is recognised; equals the most requests in flight."""

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
"""Arguments of ``list_offsets`` that ask for a position rather than a time."""

MESSAGE_MAX_BYTES: Final = 1_048_588
MESSAGE_LIMIT_BYTES: Final = 134_217_728
"""Upper limit of every topic's batch size and of one fetch; well below what a call can carry."""

FETCH_MAX_BYTES: Final = 52_428_800
SEGMENT_BYTES: Final = 268_435_456
INDEX_INTERVAL_BYTES: Final = 4_096
TRANSACTIONAL_ID_MAX_BYTES: Final = 1_024
GROUP_ID_MAX_BYTES: Final = 1_024
COMMIT_TOKEN_MAX_BYTES: Final = 1_024
OFFSET_METADATA_MAX_BYTES: Final = 4_096
TOPIC_NAME_MAX_LENGTH: Final = 249
TOPIC_PARTITIONS_MAX: Final = 10_000

TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
INTERNAL_TOPICS: Final = frozenset(
    {TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC, CLUSTER_METADATA_TOPIC}
)

TOPIC_NAME_RULE: Final = "1 to 249 of letters, digits, '.', '_' and '-', not '.' or '..'"
"""What ``is_valid_topic_name`` allows, in words for error messages."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class IsolationLevel(enum.Enum):
    """What a reader may see: all replicated records, or no open and no aborted transactions."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class AppendOrigin(enum.Enum):
    """Who appends; decides how much of a batch is checked (KIP-98, KIP-890)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class TopicPartition(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class AbortedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """What a fetch tells a reader about an aborted transaction: skip from ``first_offset`` on."""

    producer_id: int
    first_offset: int


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """Where batches lie on this machine, for a process that reads them by itself.

    ``device`` and ``inode`` tell the file from another one of its path. ``next_offset`` is the
    offset after the last batch (exclusive).
    """

    path: str
    device: int
    inode: int
    position: int
    size_bytes: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSnapshotEntry:
    """What a log remembers of one producer at one offset.

    Its epoch, its newest batch and its open transaction. The partition's machine makes these
    entries; a producer snapshot has them as bytes.

    ``last_sequence``, ``last_offset`` (inclusive) and ``offset_delta`` are those of the newest data
    batch, -1, -1 and 0 if there is none; ``offset_delta`` is the batch's last offset minus its
    first. ``timestamp_ms`` is of the newest batch or marker. ``current_txn_first_offset`` is -1
    while no transaction is open. ``batch_epoch`` is the epoch of that batch where a marker has
    raised ``producer_epoch`` above it, else -1.

    Source: KIP-98, "Producer state"; the duplicate window is 1 batch right after a reload.
    """

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_sequence: int = NO_SEQUENCE
    last_offset: int = NO_OFFSET
    offset_delta: int = 0
    timestamp_ms: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    current_txn_first_offset: int = NO_OFFSET
    batch_epoch: int = NO_PRODUCER_EPOCH

    @property
    def has_batch(self) -> bool:
        """Whether the producer's newest data batch is known, for its duplicates and sequences."""
        return self.last_sequence != NO_SEQUENCE

    @property
    def has_open_transaction(self) -> bool:
        """Whether this producer has an open transaction."""
        return self.current_txn_first_offset != NO_OFFSET

    def without_batch(self) -> ProducerSnapshotEntry:
        """The entry as if its newest data batch were not known."""
        return replace(
            self,
            last_sequence=NO_SEQUENCE,
            last_offset=NO_OFFSET,
            offset_delta=0,
            batch_epoch=NO_PRODUCER_EPOCH,
        )


def is_valid_topic_name(name: str) -> bool:
    """Whether ``name`` may name a topic: 1 to 249 of ``[A-Za-z0-9._-]``, never ``.`` or ``..``."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}


def is_valid_group_id(group_id: str) -> bool:
    """Whether ``group_id`` may name a group: 1 to 1,024 bytes of UTF-8."""
    return has_utf8_bytes(group_id, 1, GROUP_ID_MAX_BYTES)


def utf8_bytes(text: str) -> int | None:
    """Length in UTF-8, or ``None`` when a lone surrogate makes it impossible."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def has_utf8_bytes(text: str, bytes_min: int, bytes_max: int) -> bool:
    """Whether ``text`` has ``bytes_min`` to ``bytes_max`` bytes of UTF-8, both inclusive."""
    size_bytes = utf8_bytes(text)
    return size_bytes is not None and bytes_min <= size_bytes <= bytes_max


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number ``count`` places after ``sequence``; 0 follows ``SEQUENCE_MAX``."""
    return (sequence + count) % (SEQUENCE_MAX + 1)


@functools.lru_cache(maxsize=10_000)
def shard_of(key: str, shard_count: int) -> int:
    """The coordinator shard of an id: the 31-polynomial int32 hash over UTF-16 units, mod count.

    The same shard that Kafka's coordinators choose for the same id and partition count.
    """
    hashed = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    signed = hashed - 2**32 if hashed >= 2**31 else hashed
    return (0 if signed == -(2**31) else abs(signed)) % shard_count
