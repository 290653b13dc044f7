"""What the records of internal logs say, as plain values for people and programs.

Chosen by the topic of the directory. The cluster key is never shown.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from oncelog.actors.protocol.cluster.log import SnapshotPart, decode_cluster_record
from oncelog.actors.protocol.group import log as group_log
from oncelog.actors.protocol.group.consumer_protocol import decode_assignment, decode_subscription
from oncelog.actors.protocol.transaction import log as transaction_log
from oncelog.actors.protocol.transaction.state import TransactionMetadata
from oncelog.api.cli.terminal import bytes_as_json
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from oncelog.storage.records.codec import Record

_SECRETS: Final = frozenset({"cluster_key", "previous_key"})


def record_fields(topic: str, record: Record) -> dict[str, Any]:
    """A record as values that JSON knows, decoded if ``topic`` is internal.

    An internal record that cannot be decoded is shown as its bytes, with ``undecoded`` saying why.
    """
    fields: dict[str, Any] = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
    decoder = _DECODERS.get(topic)
    if decoder is not None:
        try:
            decoded = decoder(record)
        except CorruptDataError as error:
            fields["undecoded"] = str(error)
        else:
            if decoded is not None:
                return fields | decoded
            fields["undecoded"] = "a key or value of another version"
    fields["key"] = bytes_as_json(record.key)
    fields["value"] = bytes_as_json(record.value)
    if record.headers:
        fields["headers"] = [[name, bytes_as_json(value)] for name, value in record.headers]
    return fields


def _transaction(record: Record) -> dict[str, Any] | None:
    transactional_id = transaction_log.decode_key(record.key or b"")
    if transactional_id is None:
        return _member(record)
    if record.value is None:
        return {"transactional_id": transactional_id, "is_tombstone": True}
    metadata = transaction_log.decode_value(transactional_id, record.value)
    return None if metadata is None else _metadata_fields(metadata)


def _member(record: Record) -> dict[str, Any] | None:
    """A member of an open run, or the end of one."""
    key = transaction_log.decode_member_key(record.key or b"")
    if key is None:
        return None
    named = {"transactional_id": key.transactional_id, "member_producer_id": key.producer_id}
    if record.value is None:
        return {**named, "is_tombstone": True}
    value = transaction_log.decode_member_value(key.producer_id, record.value)
    return None if value is None else {**named, **_plain(value)}


def _metadata_fields(metadata: TransactionMetadata) -> dict[str, Any]:
    """The fields, without those that have nothing to say."""
    fields: dict[str, Any] = _plain(metadata)
    fields["members"] = list(fields["members"].values())
    for name in ("previous_producer_id", "next_producer_id", "last_producer_epoch"):
        if fields[name] == -1:
            del fields[name]
    for name in ("commit_token", "run", "members"):
        if not fields[name]:
            del fields[name]
    if metadata.run is None:
        del fields["is_run_current"]
    return fields


def _offsets(record: Record) -> dict[str, Any] | None:
    key = group_log.decode_key(record.key or b"")
    if key is None:
        return None
    if isinstance(key, group_log.OffsetKey):
        named = {"group_id": key.group_id, "topic_partition": str(key.topic_partition)}
        if record.value is None:
            return {**named, "is_tombstone": True}
        # ``offset`` is already that of the record.
        value: dict[str, Any] = _plain(group_log.decode_offset_value(record.value))
        value["committed_offset"] = value.pop("offset")
        if value["expire_timestamp_ms"] == -1:
            del value["expire_timestamp_ms"]
        return {**named, **value}
    if record.value is None:
        return {"group_id": key.group_id, "is_tombstone": True}
    group = group_log.decode_group_value(record.value)
    fields = _plain(group)
    if group.protocol_type == "consumer":
        for member, shown in zip(group.members, fields["members"], strict=True):
            shown["subscription"] = list(decode_subscription(member.subscription).topics)
            shown["assignment"] = _plain(decode_assignment(member.assignment).partitions)
    return {"group_id": key.group_id, **fields}


def _cluster(record: Record) -> dict[str, Any]:
    return _cluster_fields(record.value or b"")


def _cluster_fields(value: bytes) -> dict[str, Any]:
    decoded = decode_cluster_record(value)
    fields = {name: each for name, each in _plain(decoded).items() if name not in _SECRETS}
    if isinstance(decoded, SnapshotPart):
        fields["records"] = [_cluster_fields(one) for one in decoded.records]
    return {"kind": type(decoded).__name__, **fields}


_DECODERS: Final = {
    TRANSACTION_STATE_TOPIC: _transaction,
    CONSUMER_OFFSETS_TOPIC: _offsets,
    CLUSTER_METADATA_TOPIC: _cluster,
}


def _plain(value: Any) -> Any:
    """Structs, enums, sets and bytes as what JSON has."""
    if isinstance(value, TopicPartition):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return {name: _plain(each) for name, each in structs.asdict(value).items()}
    if isinstance(value, enum.Enum):
        return value.name if isinstance(value.value, int) else value.value
    if isinstance(value, bytes):
        return bytes_as_json(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value
