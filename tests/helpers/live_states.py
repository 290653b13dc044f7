"""Two live states equal one: what a machine decides and logs is what decoding its log gives.

Machines change live by what they decode of a record, partitions by the header of a batch. Whoever
encodes one is compared here with its own decoder, so that no field is lost between a decision and
the state that it leads to, whoever applies it: this process, or the next one that loads the log.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from oncelog.actors.protocol.cluster import cluster_records
from oncelog.actors.protocol.cluster.cluster_records import ClusterRecord, decode_cluster_record
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group import group_offsets
from oncelog.actors.protocol.group import rebalance as group_rebalance
from oncelog.actors.protocol.group.group_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.actors.protocol.transaction import ids as transactional_ids
from oncelog.actors.protocol.transaction.members import RunMember
from oncelog.actors.protocol.transaction.transaction_records import (
    RunMemberValue,
    decode_member_value,
    decode_value,
)
from oncelog.actors.protocol.transaction.transaction_state import TransactionMetadata
from oncelog.storage.log.partition import PartitionLog
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import HEADER_BYTES, BatchHeader, parse_header

Compare = Callable[..., tuple[Any, Any]]
"""What an encoder was given, and what decoding its answer gives; arguments, then the answer."""


def _transaction(metadata: TransactionMetadata, value: bytes) -> tuple[Any, Any]:
    return metadata, decode_value(metadata.transactional_id, value)


def _member(
    metadata: TransactionMetadata, member: RunMember, now_ms: int, value: bytes
) -> tuple[Any, Any]:
    meant = RunMemberValue(
        owner_producer_id=metadata.producer_id,
        owner_epoch=metadata.producer_epoch,
        member=member,
        last_update_ms=now_ms,
    )
    return meant, decode_member_value(member.producer_id, value)


def _group(group_id: str, value: GroupValue, record: LogRecord) -> tuple[Any, Any]:
    decoded = decode_key(record.key or b""), decode_group_value(record.value or b"")
    return (GroupKey(group_id), value), decoded


def _position(
    group_id: str, tp: TopicPartition, position: OffsetAndMetadata, now_ms: int, record: LogRecord
) -> tuple[Any, Any]:
    meant = OffsetValue(
        offset=position.offset,
        leader_epoch=position.leader_epoch,
        metadata=position.metadata,
        commit_timestamp_ms=now_ms,
        topic_id=position.topic_id,
    )
    decoded = decode_key(record.key or b""), decode_offset_value(record.value or b"")
    return (OffsetKey(group_id, tp), meant), decoded


def _cluster(meant: ClusterRecord, record: LogRecord) -> tuple[Any, Any]:
    return meant, decode_cluster_record(record.value or b"")


def _batch(_log: PartitionLog, batch: Any, header: BatchHeader, _none: None) -> tuple[Any, Any]:
    placement = header.placement()
    return header, parse_header(placement + bytes(batch[len(placement) : HEADER_BYTES]))


_ENCODERS: tuple[tuple[Any, str, Compare], ...] = (
    (transactional_ids, "encode_value", _transaction),
    (transactional_ids, "encode_member_value", _member),
    (group_rebalance, "group_record", _group),
    (group_offsets, "offset_record", _position),
    (cluster_records, "encode_cluster_record", _cluster),
    (PartitionLog, "append", _batch),
)


@contextmanager
def compared(found: Callable[[str], None]) -> Iterator[None]:
    """Tell ``found`` of each difference until the block ends; an inner block takes its place."""
    with ExitStack() as stack:
        for owner, name, compare in _ENCODERS:
            present = getattr(owner, name)
            real = getattr(present, "__wrapped__", present)
            stack.enter_context(mock.patch.object(owner, name, _watched(real, compare, found)))
        yield


def _watched(
    real: Callable[..., Any], compare: Compare, found: Callable[[str], None]
) -> Callable[..., Any]:
    @functools.wraps(real)
    def encode(*arguments: Any) -> Any:
        answer = real(*arguments)
        meant, decoded = compare(*arguments, answer)
        if meant != decoded:
            found(f"{real.__name__}: {meant} is read back as {decoded}")
        return answer

    return encode
