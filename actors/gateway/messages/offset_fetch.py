"""Kafka's OffsetFetch in versions 1 to 9; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    NO_UUID,
    Buffer,
    get_compact_count,
    get_compact_nullable_count,
    get_compact_nullable_string,
    get_compact_string,
    get_count,
    get_fixed,
    get_nullable_count,
    get_numbers,
    get_string,
    get_structs,
    put_array,
    put_compact_array,
    put_compact_nullable_string,
    put_compact_string,
    put_nullable_string,
    put_string,
    skip_tags,
)

_H = Form(">h")
_I = Form(">i")
_IQ = Form(">iq")
_IQI = Form(">iqi")
_T = Form(">?")


class OffsetFetchRequestTopic(Struct, gc=False):
    """One of ``topics`` of ``OffsetFetchRequest``."""

    name: str = ""
    partition_indexes: list[int] = []


class OffsetFetchRequestTopics(Struct, gc=False):
    """One of ``topics`` of ``OffsetFetchRequestGroup``."""

    name: str = ""
    topic_id: bytes = NO_UUID
    partition_indexes: list[int] = []


class OffsetFetchRequestGroup(Struct, gc=False):
    """One of ``groups`` of ``OffsetFetchRequest``."""

    group_id: str = ""
    member_id: str | None = None
    member_epoch: int = -1
    topics: list[OffsetFetchRequestTopics] | None = []


class OffsetFetchRequest(Struct, gc=False):
    """OffsetFetch, the request."""

    group_id: str = ""
    topics: list[OffsetFetchRequestTopic] | None = []
    groups: list[OffsetFetchRequestGroup] = []
    require_stable: bool = False


class OffsetFetchResponsePartition(Struct, gc=False):
    """One of ``partitions`` of ``OffsetFetchResponseTopic``."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


class OffsetFetchResponseTopic(Struct, gc=False):
    """One of ``topics`` of ``OffsetFetchResponse``."""

    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponsePartitions(Struct, gc=False):
    """One of ``partitions`` of ``OffsetFetchResponseTopics``."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


class OffsetFetchResponseTopics(Struct, gc=False):
    """One of ``topics`` of ``OffsetFetchResponseGroup``."""

    name: str = ""
    topic_id: bytes = NO_UUID
    partitions: list[OffsetFetchResponsePartitions] = []


class OffsetFetchResponseGroup(Struct, gc=False):
    """One of ``groups`` of ``OffsetFetchResponse``."""

    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: int = 0


class OffsetFetchResponse(Struct, gc=False):
    """OffsetFetch, the response."""

    throttle_time_ms: int = 0
    topics: list[OffsetFetchResponseTopic] = []
    error_code: int = 0
    groups: list[OffsetFetchResponseGroup] = []


def _get_offset_fetch_request_topic_1(
    view: memoryview, position: int
) -> tuple[OffsetFetchRequestTopic, int]:
    name, position = get_string(view, position, "name")
    count, position = get_count(view, position, 4, "partition_indexes")
    partition_indexes, position = get_numbers(view, position, count, "i", 4)
    return OffsetFetchRequestTopic(name, partition_indexes), position


def _decode_1(view: memoryview, position: int) -> OffsetFetchRequest:
    group_id, position = get_string(view, position, "group_id")
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_offset_fetch_request_topic_1)
    return OffsetFetchRequest(group_id, topics)


def _decode_2(view: memoryview, position: int) -> OffsetFetchRequest:
    group_id, position = get_string(view, position, "group_id")
    count, position = get_nullable_count(view, position, 6, "topics")
    topics: list[OffsetFetchRequestTopic] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_offset_fetch_request_topic_1)
    return OffsetFetchRequest(group_id, topics)


def _get_offset_fetch_request_topic_6(
    view: memoryview, position: int
) -> tuple[OffsetFetchRequestTopic, int]:
    name, position = get_compact_string(view, position, "name")
    count, position = get_compact_count(view, position, 4, "partition_indexes")
    partition_indexes, position = get_numbers(view, position, count, "i", 4)
    position = skip_tags(view, position)
    return OffsetFetchRequestTopic(name, partition_indexes), position


def _decode_6(view: memoryview, position: int) -> OffsetFetchRequest:
    group_id, position = get_compact_string(view, position, "group_id")
    count, position = get_compact_nullable_count(view, position, 3, "topics")
    topics: list[OffsetFetchRequestTopic] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_offset_fetch_request_topic_6)
    position = skip_tags(view, position)
    return OffsetFetchRequest(group_id, topics)


def _decode_7(view: memoryview, position: int) -> OffsetFetchRequest:
    group_id, position = get_compact_string(view, position, "group_id")
    count, position = get_compact_nullable_count(view, position, 3, "topics")
    topics: list[OffsetFetchRequestTopic] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_offset_fetch_request_topic_6)
    (require_stable,), position = get_fixed(_T, view, position, "require_stable")
    position = skip_tags(view, position)
    return OffsetFetchRequest(group_id, topics, [], require_stable)


def _get_offset_fetch_request_topics_8(
    view: memoryview, position: int
) -> tuple[OffsetFetchRequestTopics, int]:
    name, position = get_compact_string(view, position, "name")
    count, position = get_compact_count(view, position, 4, "partition_indexes")
    partition_indexes, position = get_numbers(view, position, count, "i", 4)
    position = skip_tags(view, position)
    return OffsetFetchRequestTopics(name, NO_UUID, partition_indexes), position


def _get_offset_fetch_request_group_8(
    view: memoryview, position: int
) -> tuple[OffsetFetchRequestGroup, int]:
    group_id, position = get_compact_string(view, position, "group_id")
    count, position = get_compact_nullable_count(view, position, 3, "topics")
    topics: list[OffsetFetchRequestTopics] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_offset_fetch_request_topics_8)
    position = skip_tags(view, position)
    return OffsetFetchRequestGroup(group_id, None, -1, topics), position


def _decode_8(view: memoryview, position: int) -> OffsetFetchRequest:
    count, position = get_compact_count(view, position, 3, "groups")
    groups, position = get_structs(view, position, count, _get_offset_fetch_request_group_8)
    (require_stable,), position = get_fixed(_T, view, position, "require_stable")
    position = skip_tags(view, position)
    return OffsetFetchRequest("", [], groups, require_stable)


def _get_offset_fetch_request_group_9(
    view: memoryview, position: int
) -> tuple[OffsetFetchRequestGroup, int]:
    group_id, position = get_compact_string(view, position, "group_id")
    member_id, position = get_compact_nullable_string(view, position, "member_id")
    (member_epoch,), position = get_fixed(_I, view, position, "member_epoch")
    count, position = get_compact_nullable_count(view, position, 3, "topics")
    topics: list[OffsetFetchRequestTopics] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_offset_fetch_request_topics_8)
    position = skip_tags(view, position)
    return OffsetFetchRequestGroup(group_id, member_id, member_epoch, topics), position


def _decode_9(view: memoryview, position: int) -> OffsetFetchRequest:
    count, position = get_compact_count(view, position, 8, "groups")
    groups, position = get_structs(view, position, count, _get_offset_fetch_request_group_9)
    (require_stable,), position = get_fixed(_T, view, position, "require_stable")
    position = skip_tags(view, position)
    return OffsetFetchRequest("", [], groups, require_stable)


def _put_offset_fetch_response_partition_1(
    out: bytearray, item: OffsetFetchResponsePartition
) -> None:
    out += _IQ.pack(item.partition_index, item.committed_offset)
    put_nullable_string(out, item.metadata)
    out += _H.pack(item.error_code)


def _put_offset_fetch_response_topic_1(out: bytearray, item: OffsetFetchResponseTopic) -> None:
    put_string(out, item.name)
    put_array(out, item.partitions, _put_offset_fetch_response_partition_1)


def _encode_1(response: OffsetFetchResponse) -> list[Buffer]:
    out = bytearray()
    put_array(out, response.topics, _put_offset_fetch_response_topic_1)
    return [out]


def _encode_2(response: OffsetFetchResponse) -> list[Buffer]:
    out = bytearray()
    put_array(out, response.topics, _put_offset_fetch_response_topic_1)
    out += _H.pack(response.error_code)
    return [out]


def _encode_3(response: OffsetFetchResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.topics, _put_offset_fetch_response_topic_1)
    out += _H.pack(response.error_code)
    return [out]


def _put_offset_fetch_response_partition_5(
    out: bytearray, item: OffsetFetchResponsePartition
) -> None:
    out += _IQI.pack(item.partition_index, item.committed_offset, item.committed_leader_epoch)
    put_nullable_string(out, item.metadata)
    out += _H.pack(item.error_code)


def _put_offset_fetch_response_topic_5(out: bytearray, item: OffsetFetchResponseTopic) -> None:
    put_string(out, item.name)
    put_array(out, item.partitions, _put_offset_fetch_response_partition_5)


def _encode_5(response: OffsetFetchResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.topics, _put_offset_fetch_response_topic_5)
    out += _H.pack(response.error_code)
    return [out]


def _put_offset_fetch_response_partition_6(
    out: bytearray, item: OffsetFetchResponsePartition
) -> None:
    out += _IQI.pack(item.partition_index, item.committed_offset, item.committed_leader_epoch)
    put_compact_nullable_string(out, item.metadata)
    out += _H.pack(item.error_code)
    out.append(0)


def _put_offset_fetch_response_topic_6(out: bytearray, item: OffsetFetchResponseTopic) -> None:
    put_compact_string(out, item.name)
    put_compact_array(out, item.partitions, _put_offset_fetch_response_partition_6)
    out.append(0)


def _encode_6(response: OffsetFetchResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.topics, _put_offset_fetch_response_topic_6)
    out += _H.pack(response.error_code)
    out.append(0)
    return [out]


def _put_offset_fetch_response_partitions_8(
    out: bytearray, item: OffsetFetchResponsePartitions
) -> None:
    out += _IQI.pack(item.partition_index, item.committed_offset, item.committed_leader_epoch)
    put_compact_nullable_string(out, item.metadata)
    out += _H.pack(item.error_code)
    out.append(0)


def _put_offset_fetch_response_topics_8(out: bytearray, item: OffsetFetchResponseTopics) -> None:
    put_compact_string(out, item.name)
    put_compact_array(out, item.partitions, _put_offset_fetch_response_partitions_8)
    out.append(0)


def _put_offset_fetch_response_group_8(out: bytearray, item: OffsetFetchResponseGroup) -> None:
    put_compact_string(out, item.group_id)
    put_compact_array(out, item.topics, _put_offset_fetch_response_topics_8)
    out += _H.pack(item.error_code)
    out.append(0)


def _encode_8(response: OffsetFetchResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.groups, _put_offset_fetch_response_group_8)
    out.append(0)
    return [out]


DECODE: Final = {
    1: _decode_1,
    **dict.fromkeys(range(2, 6), _decode_2),
    6: _decode_6,
    7: _decode_7,
    8: _decode_8,
    9: _decode_9,
}
ENCODE: Final = {
    1: _encode_1,
    2: _encode_2,
    **dict.fromkeys(range(3, 5), _encode_3),
    5: _encode_5,
    **dict.fromkeys(range(6, 8), _encode_6),
    **dict.fromkeys(range(8, 10), _encode_8),
}
