"""Kafka's TxnOffsetCommit in versions 0 to 5; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    NO_UUID,
    Buffer,
    get_compact_count,
    get_compact_nullable_string,
    get_compact_string,
    get_count,
    get_fixed,
    get_nullable_string,
    get_string,
    get_structs,
    put_array,
    put_compact_array,
    put_compact_string,
    put_string,
    skip_tags,
)

_I = Form(">i")
_IH = Form(">ih")
_IQ = Form(">iq")
_IQI = Form(">iqi")
_QH = Form(">qh")
_QHI = Form(">qhi")


class TxnOffsetCommitRequestPartition(Struct, gc=False):
    """One of ``partitions`` of ``TxnOffsetCommitRequestTopic``."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""


class TxnOffsetCommitRequestTopic(Struct, gc=False):
    """One of ``topics`` of ``TxnOffsetCommitRequest``."""

    name: str = ""
    topic_id: bytes = NO_UUID
    partitions: list[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequest(Struct, gc=False):
    """TxnOffsetCommit, the request."""

    transactional_id: str = ""
    group_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Struct, gc=False):
    """One of ``partitions`` of ``TxnOffsetCommitResponseTopic``."""

    partition_index: int = 0
    error_code: int = 0


class TxnOffsetCommitResponseTopic(Struct, gc=False):
    """One of ``topics`` of ``TxnOffsetCommitResponse``."""

    name: str = ""
    topic_id: bytes = NO_UUID
    partitions: list[TxnOffsetCommitResponsePartition] = []


class TxnOffsetCommitResponse(Struct, gc=False):
    """TxnOffsetCommit, the response."""

    throttle_time_ms: int = 0
    topics: list[TxnOffsetCommitResponseTopic] = []


def _get_txn_offset_commit_request_partition_0(
    view: memoryview, position: int
) -> tuple[TxnOffsetCommitRequestPartition, int]:
    (partition_index, committed_offset), position = get_fixed(
        _IQ, view, position, "partition_index"
    )
    committed_metadata, position = get_nullable_string(view, position, "committed_metadata")
    item = TxnOffsetCommitRequestPartition(
        partition_index, committed_offset, -1, committed_metadata
    )
    return item, position


def _get_txn_offset_commit_request_topic_0(
    view: memoryview, position: int
) -> tuple[TxnOffsetCommitRequestTopic, int]:
    name, position = get_string(view, position, "name")
    count, position = get_count(view, position, 14, "partitions")
    partitions, position = get_structs(
        view, position, count, _get_txn_offset_commit_request_partition_0
    )
    return TxnOffsetCommitRequestTopic(name, NO_UUID, partitions), position


def _decode_0(view: memoryview, position: int) -> TxnOffsetCommitRequest:
    transactional_id, position = get_string(view, position, "transactional_id")
    group_id, position = get_string(view, position, "group_id")
    (producer_id, producer_epoch), position = get_fixed(_QH, view, position, "producer_id")
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_txn_offset_commit_request_topic_0)
    return TxnOffsetCommitRequest(
        transactional_id, group_id, producer_id, producer_epoch, -1, "", None, topics
    )


def _get_txn_offset_commit_request_partition_2(
    view: memoryview, position: int
) -> tuple[TxnOffsetCommitRequestPartition, int]:
    (partition_index, committed_offset, committed_leader_epoch), position = get_fixed(
        _IQI, view, position, "partition_index"
    )
    committed_metadata, position = get_nullable_string(view, position, "committed_metadata")
    item = TxnOffsetCommitRequestPartition(
        partition_index, committed_offset, committed_leader_epoch, committed_metadata
    )
    return item, position


def _get_txn_offset_commit_request_topic_2(
    view: memoryview, position: int
) -> tuple[TxnOffsetCommitRequestTopic, int]:
    name, position = get_string(view, position, "name")
    count, position = get_count(view, position, 18, "partitions")
    partitions, position = get_structs(
        view, position, count, _get_txn_offset_commit_request_partition_2
    )
    return TxnOffsetCommitRequestTopic(name, NO_UUID, partitions), position


def _decode_2(view: memoryview, position: int) -> TxnOffsetCommitRequest:
    transactional_id, position = get_string(view, position, "transactional_id")
    group_id, position = get_string(view, position, "group_id")
    (producer_id, producer_epoch), position = get_fixed(_QH, view, position, "producer_id")
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_txn_offset_commit_request_topic_2)
    return TxnOffsetCommitRequest(
        transactional_id, group_id, producer_id, producer_epoch, -1, "", None, topics
    )


def _get_txn_offset_commit_request_partition_3(
    view: memoryview, position: int
) -> tuple[TxnOffsetCommitRequestPartition, int]:
    (partition_index, committed_offset, committed_leader_epoch), position = get_fixed(
        _IQI, view, position, "partition_index"
    )
    committed_metadata, position = get_compact_nullable_string(view, position, "committed_metadata")
    position = skip_tags(view, position)
    item = TxnOffsetCommitRequestPartition(
        partition_index, committed_offset, committed_leader_epoch, committed_metadata
    )
    return item, position


def _get_txn_offset_commit_request_topic_3(
    view: memoryview, position: int
) -> tuple[TxnOffsetCommitRequestTopic, int]:
    name, position = get_compact_string(view, position, "name")
    count, position = get_compact_count(view, position, 18, "partitions")
    partitions, position = get_structs(
        view, position, count, _get_txn_offset_commit_request_partition_3
    )
    position = skip_tags(view, position)
    return TxnOffsetCommitRequestTopic(name, NO_UUID, partitions), position


def _decode_3(view: memoryview, position: int) -> TxnOffsetCommitRequest:
    transactional_id, position = get_compact_string(view, position, "transactional_id")
    group_id, position = get_compact_string(view, position, "group_id")
    (producer_id, producer_epoch, generation_id_or_member_epoch), position = get_fixed(
        _QHI, view, position, "producer_id"
    )
    member_id, position = get_compact_string(view, position, "member_id")
    group_instance_id, position = get_compact_nullable_string(view, position, "group_instance_id")
    count, position = get_compact_count(view, position, 3, "topics")
    topics, position = get_structs(view, position, count, _get_txn_offset_commit_request_topic_3)
    position = skip_tags(view, position)
    return TxnOffsetCommitRequest(
        transactional_id,
        group_id,
        producer_id,
        producer_epoch,
        generation_id_or_member_epoch,
        member_id,
        group_instance_id,
        topics,
    )


def _put_txn_offset_commit_response_partition_0(
    out: bytearray, item: TxnOffsetCommitResponsePartition
) -> None:
    out += _IH.pack(item.partition_index, item.error_code)


def _put_txn_offset_commit_response_topic_0(
    out: bytearray, item: TxnOffsetCommitResponseTopic
) -> None:
    put_string(out, item.name)
    put_array(out, item.partitions, _put_txn_offset_commit_response_partition_0)


def _encode_0(response: TxnOffsetCommitResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.topics, _put_txn_offset_commit_response_topic_0)
    return [out]


def _put_txn_offset_commit_response_partition_3(
    out: bytearray, item: TxnOffsetCommitResponsePartition
) -> None:
    out += _IH.pack(item.partition_index, item.error_code)
    out.append(0)


def _put_txn_offset_commit_response_topic_3(
    out: bytearray, item: TxnOffsetCommitResponseTopic
) -> None:
    put_compact_string(out, item.name)
    put_compact_array(out, item.partitions, _put_txn_offset_commit_response_partition_3)
    out.append(0)


def _encode_3(response: TxnOffsetCommitResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.topics, _put_txn_offset_commit_response_topic_3)
    out.append(0)
    return [out]


DECODE: Final = {
    **dict.fromkeys(range(2), _decode_0),
    2: _decode_2,
    **dict.fromkeys(range(3, 6), _decode_3),
}
ENCODE: Final = {**dict.fromkeys(range(3), _encode_0), **dict.fromkeys(range(3, 6), _encode_3)}
