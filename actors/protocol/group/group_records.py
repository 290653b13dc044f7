"""Bytes of the records in ``__consumer_offsets``, exactly Kafka's.

================  =================================  ==============================================
record            key                                value
================  =================================  ==============================================
offset commit     version 1: group, topic, i32       version 4 (flexible): offset i64, leader_epoch
                  partition                          i32, metadata, commit timestamp i64; tag 0 the
                                                     topic's id, 16 bytes
group metadata    version 2: group                   version 3: protocol_type, generation i32,
                                                     protocol?, leader?, state timestamp i64,
                                                     members [member_id, group_instance_id?,
                                                     client_id, client_host, rebalance timeout i32,
                                                     session timeout i32, subscription bytes,
                                                     assignment bytes]
================  =================================  ==============================================

Both begin with their version as int16. A null value is a tombstone. Values of versions 0 to 4 are
read; keys of other versions belong to newer kinds of groups and are skipped.
Source: Kafka's ``OffsetCommitKey/Value`` and ``GroupMetadataKey/Value`` schemas; KIP-211 for the
state timestamp, KIP-345 for the instance id, KIP-915 for version 4, KIP-848 for the topic id.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.actors.protocol.wire import WireReader, WireWriter
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_LEADER_EPOCH, NO_TIMESTAMP, TopicPartition

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
VALUE_VERSION: Final = 3
FLEXIBLE_VALUE_VERSION: Final = 4
_TOPIC_ID_TAG: Final = 0
_TOPIC_ID_BYTES: Final = 16
NO_HOST: Final = "/ray"
"""Written as ``client_host`` if the caller's host is unknown: the field may not be null."""


class OffsetKey(msgspec.Struct, frozen=True):
    """Which group's offset in which partition."""

    group_id: str
    topic_partition: TopicPartition


class GroupKey(msgspec.Struct, frozen=True):
    """Which group's metadata."""

    group_id: str


class OffsetValue(msgspec.Struct, frozen=True, kw_only=True):
    """A committed offset; ``expire_timestamp_ms`` only in records of version 1, else -1.

    ``topic_id`` is "" in records without one, which older builds wrote.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: str = ""


class GroupMemberValue(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a stable group and what it was given; both byte strings are opaque."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes
    client_host: str = NO_HOST


class GroupValue(msgspec.Struct, frozen=True, kw_only=True):
    """A generation as it became stable, or an empty group. Members are in joining order."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader_id: str | None
    state_timestamp_ms: int
    members: tuple[GroupMemberValue, ...]


def offset_record(
    group_id: str, topic_partition: TopicPartition, position: OffsetAndMetadata, now_ms: int
) -> LogRecord:
    """The record of one committed offset; without a topic id its value has version 3."""
    writer = WireWriter()
    writer.int16(FLEXIBLE_VALUE_VERSION if position.topic_id else VALUE_VERSION)
    writer.int64(position.offset)
    writer.int32(position.leader_epoch)
    if position.topic_id:
        writer.compact_bytes(position.metadata.encode())
    else:
        writer.string(position.metadata)
    writer.int64(now_ms)
    if position.topic_id:
        writer.tagged_fields([(_TOPIC_ID_TAG, bytes.fromhex(position.topic_id))])
    return LogRecord(_offset_key(group_id, topic_partition), bytes(writer.buffer))


def offset_tombstone(group_id: str, topic_partition: TopicPartition) -> LogRecord:
    """The record that removes one committed offset."""
    return LogRecord(_offset_key(group_id, topic_partition), None)


def group_record(group_id: str, value: GroupValue) -> LogRecord:
    """The record of a group's generation."""
    writer = WireWriter()
    writer.int16(VALUE_VERSION)
    writer.string(value.protocol_type)
    writer.int32(value.generation_id)
    writer.string(value.protocol_name)
    writer.string(value.leader_id)
    writer.int64(value.state_timestamp_ms)

    def write_member(member: GroupMemberValue) -> None:
        writer.string(member.member_id)
        writer.string(member.group_instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        writer.int32(member.rebalance_timeout_ms)
        writer.int32(member.session_timeout_ms)
        writer.blob(member.subscription)
        writer.blob(member.assignment)

    writer.array(value.members, write_member)
    return LogRecord(_group_key(group_id), bytes(writer.buffer))


def group_tombstone(group_id: str) -> LogRecord:
    """The record that removes a group."""
    return LogRecord(_group_key(group_id), None)


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """Read a key; None for an unknown kind of record. Raises ``CorruptDataError``."""
    reader = WireReader(key)
    version = reader.int16()
    decoded: OffsetKey | GroupKey
    if 0 <= version <= OFFSET_KEY_VERSION:
        group_id, topic = reader.string(), reader.string()
        decoded = OffsetKey(group_id, TopicPartition(topic, reader.int32()))
    elif version == GROUP_KEY_VERSION:
        decoded = GroupKey(reader.string())
    else:
        return None
    reader.expect_end()
    return decoded


def decode_offset_value(value: bytes) -> OffsetValue:
    """Read a committed offset of version 0 to 4; raises ``CorruptDataError``."""
    reader, version = _value_reader(value)
    decoded = OffsetValue(
        offset=reader.int64(),
        leader_epoch=reader.int32() if version >= 3 else NO_LEADER_EPOCH,
        metadata=reader.string(),
        commit_timestamp_ms=reader.int64(),
        expire_timestamp_ms=reader.int64() if version == 1 else NO_TIMESTAMP,
        topic_id=_topic_id(reader.tagged_fields()),
    )
    reader.expect_end()
    return decoded


def _topic_id(tags: dict[int, bytes]) -> str:
    topic_id = tags.get(_TOPIC_ID_TAG, b"")
    if len(topic_id) not in (0, _TOPIC_ID_BYTES):
        raise CorruptDataError(f"topic id of {len(topic_id)} bytes, must be {_TOPIC_ID_BYTES}")
    return topic_id.hex()


def decode_group_value(value: bytes) -> GroupValue:
    """Read a group's generation of version 0 to 4; raises ``CorruptDataError``."""
    reader, version = _value_reader(value)

    def read_member() -> GroupMemberValue:
        member_id = reader.string()
        group_instance_id = reader.nullable_string() if version >= 3 else None
        client_id, client_host = reader.string(), reader.string()
        rebalance_timeout_ms = reader.int32() if version >= 1 else None
        session_timeout_ms = reader.int32()
        member = GroupMemberValue(
            member_id=member_id,
            group_instance_id=group_instance_id,
            client_id=client_id,
            client_host=client_host,
            # Before version 1 one timeout served both purposes.
            rebalance_timeout_ms=(
                session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms
            ),
            session_timeout_ms=session_timeout_ms,
            subscription=reader.blob(),
            assignment=reader.blob(),
        )
        reader.skip_tagged_fields()
        return member

    decoded = GroupValue(
        protocol_type=reader.string(),
        generation_id=reader.int32(),
        protocol_name=reader.nullable_string(),
        leader_id=reader.nullable_string(),
        state_timestamp_ms=reader.int64() if version >= 2 else NO_TIMESTAMP,
        members=tuple(reader.array(read_member)),
    )
    reader.skip_tagged_fields()
    reader.expect_end()
    return decoded


def _offset_key(group_id: str, topic_partition: TopicPartition) -> bytes:
    writer = WireWriter()
    writer.int16(OFFSET_KEY_VERSION)
    writer.string(group_id)
    writer.string(topic_partition.topic)
    writer.int32(topic_partition.partition)
    return bytes(writer.buffer)


def _group_key(group_id: str) -> bytes:
    writer = WireWriter()
    writer.int16(GROUP_KEY_VERSION)
    writer.string(group_id)
    return bytes(writer.buffer)


def _value_reader(value: bytes) -> tuple[WireReader, int]:
    reader = WireReader(value)
    version = reader.int16()
    if not 0 <= version <= FLEXIBLE_VALUE_VERSION:
        raise CorruptDataError(f"value of version {version}, not one of 0 to 4")
    reader.flexible = version == FLEXIBLE_VALUE_VERSION
    return reader, version
