"""Kafka's OffsetDelete in version 0; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_count,
    get_fixed,
    get_string,
    get_structs,
    put_array,
    put_string,
)

_HI = Form(">hi")
_I = Form(">i")
_IH = Form(">ih")


class OffsetDeleteRequestPartition(Struct, gc=False):
    """One of ``partitions`` of ``OffsetDeleteRequestTopic``."""

    partition_index: int = 0


class OffsetDeleteRequestTopic(Struct, gc=False):
    """One of ``topics`` of ``OffsetDeleteRequest``."""

    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Struct, gc=False):
    """OffsetDelete, the request."""

    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Struct, gc=False):
    """One of ``partitions`` of ``OffsetDeleteResponseTopic``."""

    partition_index: int = 0
    error_code: int = 0


class OffsetDeleteResponseTopic(Struct, gc=False):
    """One of ``topics`` of ``OffsetDeleteResponse``."""

    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(Struct, gc=False):
    """OffsetDelete, the response."""

    error_code: int = 0
    throttle_time_ms: int = 0
    topics: list[OffsetDeleteResponseTopic] = []


def _get_offset_delete_request_partition_0(
    view: memoryview, position: int
) -> tuple[OffsetDeleteRequestPartition, int]:
    values, position = get_fixed(_I, view, position, "partition_index")
    return OffsetDeleteRequestPartition(*values), position


def _get_offset_delete_request_topic_0(
    view: memoryview, position: int
) -> tuple[OffsetDeleteRequestTopic, int]:
    name, position = get_string(view, position, "name")
    count, position = get_count(view, position, 4, "partitions")
    partitions, position = get_structs(
        view, position, count, _get_offset_delete_request_partition_0
    )
    return OffsetDeleteRequestTopic(name, partitions), position


def _decode_0(view: memoryview, position: int) -> OffsetDeleteRequest:
    group_id, position = get_string(view, position, "group_id")
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_offset_delete_request_topic_0)
    return OffsetDeleteRequest(group_id, topics)


def _put_offset_delete_response_partition_0(
    out: bytearray, item: OffsetDeleteResponsePartition
) -> None:
    out += _IH.pack(item.partition_index, item.error_code)


def _put_offset_delete_response_topic_0(out: bytearray, item: OffsetDeleteResponseTopic) -> None:
    put_string(out, item.name)
    put_array(out, item.partitions, _put_offset_delete_response_partition_0)


def _encode_0(response: OffsetDeleteResponse) -> list[Buffer]:
    out = bytearray()
    out += _HI.pack(response.error_code, response.throttle_time_ms)
    put_array(out, response.topics, _put_offset_delete_response_topic_0)
    return [out]


DECODE: Final = {0: _decode_0}
ENCODE: Final = {0: _encode_0}
