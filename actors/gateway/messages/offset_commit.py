"""Kafka's OffsetCommit in versions 2 to 9; generated, do not edit."""

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
_Q = Form(">q")


class OffsetCommitRequestPartition(Struct, gc=False):
    """One of ``partitions`` of ``OffsetCommitRequestTopic``."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""


class OffsetCommitRequestTopic(Struct, gc=False):
    """One of ``topics`` of ``OffsetCommitRequest``."""

    name: str = ""
    topic_id: bytes = NO_UUID
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Struct, gc=False):
    """OffsetCommit, the request."""

    group_id: str = ""
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Struct, gc=False):
    """One of ``partitions`` of ``OffsetCommitResponseTopic``."""

    partition_index: int = 0
    error_code: int = 0


class OffsetCommitResponseTopic(Struct, gc=False):
    """One of ``topics`` of ``OffsetCommitResponse``."""

    name: str = ""
    topic_id: bytes = NO_UUID
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(Struct, gc=False):
    """OffsetCommit, the response."""

    throttle_time_ms: int = 0
    topics: list[OffsetCommitResponseTopic] = []


def _get_offset_commit_request_partition_2(
    view: memoryview, position: int
) -> tuple[OffsetCommitRequestPartition, int]:
    (partition_index, committed_offset), position = get_fixed(
        _IQ, view, position, "partition_index"
    )
    committed_metadata, position = get_nullable_string(view, position, "committed_metadata")
    item = OffsetCommitRequestPartition(partition_index, committed_offset, -1, committed_metadata)
    return item, position


def _get_offset_commit_request_topic_2(
    view: memoryview, position: int
) -> tuple[OffsetCommitRequestTopic, int]:
    name, position = get_string(view, position, "name")
    count, position = get_count(view, position, 14, "partitions")
    partitions, position = get_structs(
        view, position, count, _get_offset_commit_request_partition_2
    )
    return OffsetCommitRequestTopic(name, NO_UUID, partitions), position


def _decode_2(view: memoryview, position: int) -> OffsetCommitRequest:
    group_id, position = get_string(view, position, "group_id")
    (generation_id_or_member_epoch,), position = get_fixed(
        _I, view, position, "generation_id_or_member_epoch"
    )
    member_id, position = get_string(view, position, "member_id")
    (retention_time_ms,), position = get_fixed(_Q, view, position, "retention_time_ms")
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_offset_commit_request_topic_2)
    return OffsetCommitRequest(
        group_id, generation_id_or_member_epoch, member_id, None, retention_time_ms, topics
    )


def _decode_5(view: memoryview, position: int) -> OffsetCommitRequest:
    group_id, position = get_string(view, position, "group_id")
    (generation_id_or_member_epoch,), position = get_fixed(
        _I, view, position, "generation_id_or_member_epoch"
    )
    member_id, position = get_string(view, position, "member_id")
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_offset_commit_request_topic_2)
    return OffsetCommitRequest(group_id, generation_id_or_member_epoch, member_id, None, -1, topics)


def _get_offset_commit_request_partition_6(
    view: memoryview, position: int
) -> tuple[OffsetCommitRequestPartition, int]:
    (partition_index, committed_offset, committed_leader_epoch), position = get_fixed(
        _IQI, view, position, "partition_index"
    )
    committed_metadata, position = get_nullable_string(view, position, "committed_metadata")
    item = OffsetCommitRequestPartition(
        partition_index, committed_offset, committed_leader_epoch, committed_metadata
    )
    return item, position


def _get_offset_commit_request_topic_6(
    view: memoryview, position: int
) -> tuple[OffsetCommitRequestTopic, int]:
    name, position = get_string(view, position, "name")
    count, position = get_count(view, position, 18, "partitions")
    partitions, position = get_structs(
        view, position, count, _get_offset_commit_request_partition_6
    )
    return OffsetCommitRequestTopic(name, NO_UUID, partitions), position


def _decode_6(view: memoryview, position: int) -> OffsetCommitRequest:
    group_id, position = get_string(view, position, "group_id")
    (generation_id_or_member_epoch,), position = get_fixed(
        _I, view, position, "generation_id_or_member_epoch"
    )
    member_id, position = get_string(view, position, "member_id")
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_offset_commit_request_topic_6)
    return OffsetCommitRequest(group_id, generation_id_or_member_epoch, member_id, None, -1, topics)


def _decode_7(view: memoryview, position: int) -> OffsetCommitRequest:
    group_id, position = get_string(view, position, "group_id")
    (generation_id_or_member_epoch,), position = get_fixed(
        _I, view, position, "generation_id_or_member_epoch"
    )
    member_id, position = get_string(view, position, "member_id")
    group_instance_id, position = get_nullable_string(view, position, "group_instance_id")
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_offset_commit_request_topic_6)
    return OffsetCommitRequest(
        group_id, generation_id_or_member_epoch, member_id, group_instance_id, -1, topics
    )


def _get_offset_commit_request_partition_8(
    view: memoryview, position: int
) -> tuple[OffsetCommitRequestPartition, int]:
    (partition_index, committed_offset, committed_leader_epoch), position = get_fixed(
        _IQI, view, position, "partition_index"
    )
    committed_metadata, position = get_compact_nullable_string(view, position, "committed_metadata")
    position = skip_tags(view, position)
    item = OffsetCommitRequestPartition(
        partition_index, committed_offset, committed_leader_epoch, committed_metadata
    )
    return item, position


def _get_offset_commit_request_topic_8(
    view: memoryview, position: int
) -> tuple[OffsetCommitRequestTopic, int]:
    name, position = get_compact_string(view, position, "name")
    count, position = get_compact_count(view, position, 18, "partitions")
    partitions, position = get_structs(
        view, position, count, _get_offset_commit_request_partition_8
    )
    position = skip_tags(view, position)
    return OffsetCommitRequestTopic(name, NO_UUID, partitions), position


def _decode_8(view: memoryview, position: int) -> OffsetCommitRequest:
    group_id, position = get_compact_string(view, position, "group_id")
    (generation_id_or_member_epoch,), position = get_fixed(
        _I, view, position, "generation_id_or_member_epoch"
    )
    member_id, position = get_compact_string(view, position, "member_id")
    group_instance_id, position = get_compact_nullable_string(view, position, "group_instance_id")
    count, position = get_compact_count(view, position, 3, "topics")
    topics, position = get_structs(view, position, count, _get_offset_commit_request_topic_8)
    position = skip_tags(view, position)
    return OffsetCommitRequest(
        group_id, generation_id_or_member_epoch, member_id, group_instance_id, -1, topics
    )


def _put_offset_commit_response_partition_2(
    out: bytearray, item: OffsetCommitResponsePartition
) -> None:
    out += _IH.pack(item.partition_index, item.error_code)


def _put_offset_commit_response_topic_2(out: bytearray, item: OffsetCommitResponseTopic) -> None:
    put_string(out, item.name)
    put_array(out, item.partitions, _put_offset_commit_response_partition_2)


def _encode_2(response: OffsetCommitResponse) -> list[Buffer]:
    out = bytearray()
    put_array(out, response.topics, _put_offset_commit_response_topic_2)
    return [out]


def _encode_3(response: OffsetCommitResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.topics, _put_offset_commit_response_topic_2)
    return [out]


def _put_offset_commit_response_partition_8(
    out: bytearray, item: OffsetCommitResponsePartition
) -> None:
    out += _IH.pack(item.partition_index, item.error_code)
    out.append(0)


def _put_offset_commit_response_topic_8(out: bytearray, item: OffsetCommitResponseTopic) -> None:
    put_compact_string(out, item.name)
    put_compact_array(out, item.partitions, _put_offset_commit_response_partition_8)
    out.append(0)


def _encode_8(response: OffsetCommitResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.topics, _put_offset_commit_response_topic_8)
    out.append(0)
    return [out]


DECODE: Final = {
    **dict.fromkeys(range(2, 5), _decode_2),
    5: _decode_5,
    6: _decode_6,
    7: _decode_7,
    **dict.fromkeys(range(8, 10), _decode_8),
}
ENCODE: Final = {
    2: _encode_2,
    **dict.fromkeys(range(3, 8), _encode_3),
    **dict.fromkeys(range(8, 10), _encode_8),
}
