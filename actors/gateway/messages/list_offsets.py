"""Kafka's ListOffsets in versions 1 to 10; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_string,
    get_count,
    get_fixed,
    get_string,
    get_structs,
    put_array,
    put_compact_array,
    put_compact_string,
    put_string,
    skip_tags,
)

_I = Form(">i")
_I2Q = Form(">iiq")
_IB = Form(">ib")
_IHQ2 = Form(">ihqq")
_IHQ2I = Form(">ihqqi")
_IQ = Form(">iq")


class ListOffsetsPartition(Struct, gc=False):
    """One of ``partitions`` of ``ListOffsetsTopic``."""

    partition_index: int = 0
    current_leader_epoch: int = -1
    timestamp: int = 0


class ListOffsetsTopic(Struct, gc=False):
    """One of ``topics`` of ``ListOffsetsRequest``."""

    name: str = ""
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsRequest(Struct, gc=False):
    """ListOffsets, the request."""

    replica_id: int = 0
    isolation_level: int = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: int = 0


class ListOffsetsPartitionResponse(Struct, gc=False):
    """One of ``partitions`` of ``ListOffsetsTopicResponse``."""

    partition_index: int = 0
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


class ListOffsetsTopicResponse(Struct, gc=False):
    """One of ``topics`` of ``ListOffsetsResponse``."""

    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = []


class ListOffsetsResponse(Struct, gc=False):
    """ListOffsets, the response."""

    throttle_time_ms: int = 0
    topics: list[ListOffsetsTopicResponse] = []


def _get_list_offsets_partition_1(
    view: memoryview, position: int
) -> tuple[ListOffsetsPartition, int]:
    (partition_index, timestamp), position = get_fixed(_IQ, view, position, "partition_index")
    return ListOffsetsPartition(partition_index, -1, timestamp), position


def _get_list_offsets_topic_1(view: memoryview, position: int) -> tuple[ListOffsetsTopic, int]:
    name, position = get_string(view, position, "name")
    count, position = get_count(view, position, 12, "partitions")
    partitions, position = get_structs(view, position, count, _get_list_offsets_partition_1)
    return ListOffsetsTopic(name, partitions), position


def _decode_1(view: memoryview, position: int) -> ListOffsetsRequest:
    (replica_id,), position = get_fixed(_I, view, position, "replica_id")
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_list_offsets_topic_1)
    return ListOffsetsRequest(replica_id, 0, topics)


def _decode_2(view: memoryview, position: int) -> ListOffsetsRequest:
    (replica_id, isolation_level), position = get_fixed(_IB, view, position, "replica_id")
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_list_offsets_topic_1)
    return ListOffsetsRequest(replica_id, isolation_level, topics)


def _get_list_offsets_partition_4(
    view: memoryview, position: int
) -> tuple[ListOffsetsPartition, int]:
    values, position = get_fixed(_I2Q, view, position, "partition_index")
    return ListOffsetsPartition(*values), position


def _get_list_offsets_topic_4(view: memoryview, position: int) -> tuple[ListOffsetsTopic, int]:
    name, position = get_string(view, position, "name")
    count, position = get_count(view, position, 16, "partitions")
    partitions, position = get_structs(view, position, count, _get_list_offsets_partition_4)
    return ListOffsetsTopic(name, partitions), position


def _decode_4(view: memoryview, position: int) -> ListOffsetsRequest:
    (replica_id, isolation_level), position = get_fixed(_IB, view, position, "replica_id")
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_list_offsets_topic_4)
    return ListOffsetsRequest(replica_id, isolation_level, topics)


def _get_list_offsets_partition_6(
    view: memoryview, position: int
) -> tuple[ListOffsetsPartition, int]:
    values, position = get_fixed(_I2Q, view, position, "partition_index")
    position = skip_tags(view, position)
    return ListOffsetsPartition(*values), position


def _get_list_offsets_topic_6(view: memoryview, position: int) -> tuple[ListOffsetsTopic, int]:
    name, position = get_compact_string(view, position, "name")
    count, position = get_compact_count(view, position, 17, "partitions")
    partitions, position = get_structs(view, position, count, _get_list_offsets_partition_6)
    position = skip_tags(view, position)
    return ListOffsetsTopic(name, partitions), position


def _decode_6(view: memoryview, position: int) -> ListOffsetsRequest:
    (replica_id, isolation_level), position = get_fixed(_IB, view, position, "replica_id")
    count, position = get_compact_count(view, position, 3, "topics")
    topics, position = get_structs(view, position, count, _get_list_offsets_topic_6)
    position = skip_tags(view, position)
    return ListOffsetsRequest(replica_id, isolation_level, topics)


def _decode_10(view: memoryview, position: int) -> ListOffsetsRequest:
    (replica_id, isolation_level), position = get_fixed(_IB, view, position, "replica_id")
    count, position = get_compact_count(view, position, 3, "topics")
    topics, position = get_structs(view, position, count, _get_list_offsets_topic_6)
    (timeout_ms,), position = get_fixed(_I, view, position, "timeout_ms")
    position = skip_tags(view, position)
    return ListOffsetsRequest(replica_id, isolation_level, topics, timeout_ms)


def _put_list_offsets_partition_response_1(
    out: bytearray, item: ListOffsetsPartitionResponse
) -> None:
    out += _IHQ2.pack(item.partition_index, item.error_code, item.timestamp, item.offset)


def _put_list_offsets_topic_response_1(out: bytearray, item: ListOffsetsTopicResponse) -> None:
    put_string(out, item.name)
    put_array(out, item.partitions, _put_list_offsets_partition_response_1)


def _encode_1(response: ListOffsetsResponse) -> list[Buffer]:
    out = bytearray()
    put_array(out, response.topics, _put_list_offsets_topic_response_1)
    return [out]


def _encode_2(response: ListOffsetsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.topics, _put_list_offsets_topic_response_1)
    return [out]


def _put_list_offsets_partition_response_4(
    out: bytearray, item: ListOffsetsPartitionResponse
) -> None:
    out += _IHQ2I.pack(
        item.partition_index, item.error_code, item.timestamp, item.offset, item.leader_epoch
    )


def _put_list_offsets_topic_response_4(out: bytearray, item: ListOffsetsTopicResponse) -> None:
    put_string(out, item.name)
    put_array(out, item.partitions, _put_list_offsets_partition_response_4)


def _encode_4(response: ListOffsetsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.topics, _put_list_offsets_topic_response_4)
    return [out]


def _put_list_offsets_partition_response_6(
    out: bytearray, item: ListOffsetsPartitionResponse
) -> None:
    out += _IHQ2I.pack(
        item.partition_index, item.error_code, item.timestamp, item.offset, item.leader_epoch
    )
    out.append(0)


def _put_list_offsets_topic_response_6(out: bytearray, item: ListOffsetsTopicResponse) -> None:
    put_compact_string(out, item.name)
    put_compact_array(out, item.partitions, _put_list_offsets_partition_response_6)
    out.append(0)


def _encode_6(response: ListOffsetsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.topics, _put_list_offsets_topic_response_6)
    out.append(0)
    return [out]


DECODE: Final = {
    1: _decode_1,
    **dict.fromkeys(range(2, 4), _decode_2),
    **dict.fromkeys(range(4, 6), _decode_4),
    **dict.fromkeys(range(6, 10), _decode_6),
    10: _decode_10,
}
ENCODE: Final = {
    1: _encode_1,
    **dict.fromkeys(range(2, 4), _encode_2),
    **dict.fromkeys(range(4, 6), _encode_4),
    **dict.fromkeys(range(6, 11), _encode_6),
}
