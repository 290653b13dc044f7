"""Bytes of the records of share groups in ``__consumer_offsets``; Kafka skips their keys.

===================  ==============================  ===============================================
record               key, after its version          value, after its version 0
===================  ==============================  ===============================================
share group          10000: group                    ``ShareGroupValue``: the epoch that the next
                                                     member gets, and the order of records
share member         10001: group, member id         ``ShareMember``
share partition      10002: group, topic, i32        ``SharePartitionValue``: all of its runs
                     partition
acknowledgement in   10003: group, topic, i32        ``PendingValue``: the offsets, pending from
a transaction        partition, i64 producer id,     here until the producer's marker; a tombstone
                     i32 sequence                    once a partition's record has the outcome
===================  ==============================  ===============================================

A key is in Kafka's primitive types. A value is int16 version and a msgpack array of the fields in
order. Compaction keeps what a reader needs: each record but the last kind replaces its former, and
those of the last kind have a key of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.messages.share import ShareOrder
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.actors.protocol.queue.share_partition import Run, SharePartition
from oncelog.actors.protocol.wire import WireReader, WireWriter
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import TopicPartition

GROUP_KEY_VERSION: Final = 10_000
MEMBER_KEY_VERSION: Final = 10_001
PARTITION_KEY_VERSION: Final = 10_002
PENDING_KEY_VERSION: Final = 10_003
VALUE_VERSION: Final = 0
_VERSION_BYTES: Final = 2


class ShareGroupKey(msgspec.Struct, frozen=True):
    """Which share group."""

    group_id: str


class ShareMemberKey(msgspec.Struct, frozen=True):
    """Which member of which share group."""

    group_id: str
    member_id: str


class SharePartitionKey(msgspec.Struct, frozen=True):
    """Which share group's state of which partition."""

    group_id: str
    topic_partition: TopicPartition


class PendingKey(msgspec.Struct, frozen=True):
    """Which acknowledgement of which transaction. ``sequence`` is that of its record."""

    group_id: str
    topic_partition: TopicPartition
    producer_id: int
    sequence: int


ShareKey = ShareGroupKey | ShareMemberKey | SharePartitionKey | PendingKey


class ShareGroupValue(msgspec.Struct, frozen=True, array_like=True):
    """A share group: ``next_epoch`` is above the epoch of every member it ever had."""

    next_epoch: int
    order: ShareOrder = ShareOrder.NONE


class ShareMember(msgspec.Struct, frozen=True, array_like=True):
    """A member. The sequences are those of its last calls; ``refused`` answers the last one."""

    epoch: int
    topics: tuple[str, ...]
    process: DriverProcess | None = None
    acquire_sequence: int = 0
    acknowledge_sequence: int = 0
    refused: tuple[int, ...] = ()


class SharePartitionValue(msgspec.Struct, frozen=True, array_like=True):
    """A share partition as a whole."""

    topic_id: str
    start_offset: int
    runs: list[Run]


class PendingValue(msgspec.Struct, frozen=True, array_like=True):
    """Offsets that a transaction accepts, as (first, last), both inclusive."""

    topic_id: str
    runs: tuple[tuple[int, int], ...]


_ValueT = TypeVar("_ValueT", ShareGroupValue, ShareMember, SharePartitionValue, PendingValue)

VALUES: Final[Mapping[type[Any], type[Any]]] = {
    ShareGroupKey: ShareGroupValue,
    ShareMemberKey: ShareMember,
    SharePartitionKey: SharePartitionValue,
    PendingKey: PendingValue,
}
"""Kind of key → kind of value."""

_encoder: Final = msgspec.msgpack.Encoder()


def encode_key(key: ShareKey) -> bytes:
    """The bytes of a key."""
    writer = WireWriter()
    if isinstance(key, ShareGroupKey):
        writer.int16(GROUP_KEY_VERSION)
        writer.string(key.group_id)
    elif isinstance(key, ShareMemberKey):
        writer.int16(MEMBER_KEY_VERSION)
        writer.string(key.group_id)
        writer.string(key.member_id)
    else:
        is_pending = isinstance(key, PendingKey)
        writer.int16(PENDING_KEY_VERSION if is_pending else PARTITION_KEY_VERSION)
        writer.string(key.group_id)
        writer.string(key.topic_partition.topic)
        writer.int32(key.topic_partition.partition)
        if isinstance(key, PendingKey):
            writer.int64(key.producer_id)
            writer.int32(key.sequence)
    return bytes(writer.buffer)


def decode_key(key: bytes) -> ShareKey | None:
    """Read a key; None if it is not of a share group. Raises ``CorruptDataError``."""
    reader = WireReader(key)
    version = reader.int16()
    if not GROUP_KEY_VERSION <= version <= PENDING_KEY_VERSION:
        return None
    group_id = reader.string()
    decoded: ShareKey
    if version == GROUP_KEY_VERSION:
        decoded = ShareGroupKey(group_id)
    elif version == MEMBER_KEY_VERSION:
        decoded = ShareMemberKey(group_id, reader.string())
    else:
        topic = reader.string()
        topic_partition = TopicPartition(topic, reader.int32())
        if version == PARTITION_KEY_VERSION:
            decoded = SharePartitionKey(group_id, topic_partition)
        else:
            producer_id = reader.int64()
            decoded = PendingKey(group_id, topic_partition, producer_id, reader.int32())
    reader.expect_end()
    return decoded


def encode_value(
    value: ShareGroupValue | ShareMember | SharePartitionValue | PendingValue,
) -> bytes:
    """The bytes of a value, with its version."""
    return VALUE_VERSION.to_bytes(_VERSION_BYTES, "big") + _encoder.encode(value)


def decode_value(value: bytes, kind: type[_ValueT]) -> _ValueT:
    """Read a value; raises ``CorruptDataError``."""
    version = int.from_bytes(value[:_VERSION_BYTES], "big")
    if len(value) < _VERSION_BYTES or version != VALUE_VERSION:
        raise CorruptDataError(f"value of version {version}, not {VALUE_VERSION}")
    try:
        return msgspec.msgpack.decode(value[_VERSION_BYTES:], type=kind)
    except msgspec.MsgspecError as error:
        raise CorruptDataError(f"not a {kind.__name__}: {error}") from error


def partition_record(group_id: str, tp: TopicPartition, partition: SharePartition) -> LogRecord:
    """The record of a share partition as it is now."""
    value = SharePartitionValue(partition.topic_id, partition.start_offset, partition.runs)
    return LogRecord(encode_key(SharePartitionKey(group_id, tp)), encode_value(value))


def tombstone(key: ShareKey) -> LogRecord:
    """The record that removes what ``key`` names."""
    return LogRecord(encode_key(key), None)
