"""Kafka's Metadata in versions 0 to 12; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    NO_UUID,
    Buffer,
    get_compact_nullable_count,
    get_compact_nullable_string,
    get_compact_string,
    get_count,
    get_fixed,
    get_nullable_count,
    get_string,
    get_structs,
    put_array,
    put_compact_array,
    put_compact_nullable_string,
    put_compact_numbers,
    put_compact_string,
    put_nullable_string,
    put_numbers,
    put_string,
    skip_tags,
)

_H = Form(">h")
_HI2 = Form(">hii")
_HI3 = Form(">hiii")
_I = Form(">i")
_T = Form(">?")
_T2 = Form(">??")
_T3 = Form(">???")
_U = Form(">16s")
_UT = Form(">16s?")


class MetadataRequestTopic(Struct, gc=False):
    """One of ``topics`` of ``MetadataRequest``."""

    topic_id: bytes = NO_UUID
    name: str | None = ""


class MetadataRequest(Struct, gc=False):
    """Metadata, the request."""

    topics: list[MetadataRequestTopic] | None = []
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


class MetadataResponseBroker(Struct, gc=False):
    """One of ``brokers`` of ``MetadataResponse``."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


class MetadataResponsePartition(Struct, gc=False):
    """One of ``partitions`` of ``MetadataResponseTopic``."""

    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: list[int] = []
    isr_nodes: list[int] = []
    offline_replicas: list[int] = []


class MetadataResponseTopic(Struct, gc=False):
    """One of ``topics`` of ``MetadataResponse``."""

    error_code: int = 0
    name: str | None = ""
    topic_id: bytes = NO_UUID
    is_internal: bool = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: int = -2147483648


class MetadataResponse(Struct, gc=False):
    """Metadata, the response."""

    throttle_time_ms: int = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: str | None = None
    controller_id: int = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: int = -2147483648
    error_code: int = 0


def _get_metadata_request_topic_0(
    view: memoryview, position: int
) -> tuple[MetadataRequestTopic, int]:
    name, position = get_string(view, position, "name")
    return MetadataRequestTopic(NO_UUID, name), position


def _decode_0(view: memoryview, position: int) -> MetadataRequest:
    count, position = get_count(view, position, 2, "topics")
    topics, position = get_structs(view, position, count, _get_metadata_request_topic_0)
    return MetadataRequest(topics)


def _decode_1(view: memoryview, position: int) -> MetadataRequest:
    count, position = get_nullable_count(view, position, 2, "topics")
    topics: list[MetadataRequestTopic] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_metadata_request_topic_0)
    return MetadataRequest(topics)


def _decode_4(view: memoryview, position: int) -> MetadataRequest:
    count, position = get_nullable_count(view, position, 2, "topics")
    topics: list[MetadataRequestTopic] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_metadata_request_topic_0)
    (allow_auto_topic_creation,), position = get_fixed(
        _T, view, position, "allow_auto_topic_creation"
    )
    return MetadataRequest(topics, allow_auto_topic_creation)


def _decode_8(view: memoryview, position: int) -> MetadataRequest:
    count, position = get_nullable_count(view, position, 2, "topics")
    topics: list[MetadataRequestTopic] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_metadata_request_topic_0)
    values: tuple[bool, bool, bool]
    values, position = get_fixed(_T3, view, position, "allow_auto_topic_creation")
    return MetadataRequest(topics, *values)


def _get_metadata_request_topic_9(
    view: memoryview, position: int
) -> tuple[MetadataRequestTopic, int]:
    name, position = get_compact_string(view, position, "name")
    position = skip_tags(view, position)
    return MetadataRequestTopic(NO_UUID, name), position


def _decode_9(view: memoryview, position: int) -> MetadataRequest:
    count, position = get_compact_nullable_count(view, position, 2, "topics")
    topics: list[MetadataRequestTopic] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_metadata_request_topic_9)
    values: tuple[bool, bool, bool]
    values, position = get_fixed(_T3, view, position, "allow_auto_topic_creation")
    position = skip_tags(view, position)
    return MetadataRequest(topics, *values)


def _get_metadata_request_topic_10(
    view: memoryview, position: int
) -> tuple[MetadataRequestTopic, int]:
    (topic_id,), position = get_fixed(_U, view, position, "topic_id")
    name, position = get_compact_nullable_string(view, position, "name")
    position = skip_tags(view, position)
    return MetadataRequestTopic(topic_id, name), position


def _decode_10(view: memoryview, position: int) -> MetadataRequest:
    count, position = get_compact_nullable_count(view, position, 18, "topics")
    topics: list[MetadataRequestTopic] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_metadata_request_topic_10)
    values: tuple[bool, bool, bool]
    values, position = get_fixed(_T3, view, position, "allow_auto_topic_creation")
    position = skip_tags(view, position)
    return MetadataRequest(topics, *values)


def _decode_11(view: memoryview, position: int) -> MetadataRequest:
    count, position = get_compact_nullable_count(view, position, 18, "topics")
    topics: list[MetadataRequestTopic] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_metadata_request_topic_10)
    (allow_auto_topic_creation, include_topic_authorized_operations), position = get_fixed(
        _T2, view, position, "allow_auto_topic_creation"
    )
    position = skip_tags(view, position)
    return MetadataRequest(
        topics, allow_auto_topic_creation, False, include_topic_authorized_operations
    )


def _put_metadata_response_broker_0(out: bytearray, item: MetadataResponseBroker) -> None:
    out += _I.pack(item.node_id)
    put_string(out, item.host)
    out += _I.pack(item.port)


def _put_metadata_response_partition_0(out: bytearray, item: MetadataResponsePartition) -> None:
    out += _HI2.pack(item.error_code, item.partition_index, item.leader_id)
    put_numbers(out, item.replica_nodes, "i")
    put_numbers(out, item.isr_nodes, "i")


def _put_metadata_response_topic_0(out: bytearray, item: MetadataResponseTopic) -> None:
    out += _H.pack(item.error_code)
    put_string(out, item.name or "")
    put_array(out, item.partitions, _put_metadata_response_partition_0)


def _encode_0(response: MetadataResponse) -> list[Buffer]:
    out = bytearray()
    put_array(out, response.brokers, _put_metadata_response_broker_0)
    put_array(out, response.topics, _put_metadata_response_topic_0)
    return [out]


def _put_metadata_response_broker_1(out: bytearray, item: MetadataResponseBroker) -> None:
    out += _I.pack(item.node_id)
    put_string(out, item.host)
    out += _I.pack(item.port)
    put_nullable_string(out, item.rack)


def _put_metadata_response_topic_1(out: bytearray, item: MetadataResponseTopic) -> None:
    out += _H.pack(item.error_code)
    put_string(out, item.name or "")
    out += _T.pack(item.is_internal)
    put_array(out, item.partitions, _put_metadata_response_partition_0)


def _encode_1(response: MetadataResponse) -> list[Buffer]:
    out = bytearray()
    put_array(out, response.brokers, _put_metadata_response_broker_1)
    out += _I.pack(response.controller_id)
    put_array(out, response.topics, _put_metadata_response_topic_1)
    return [out]


def _encode_2(response: MetadataResponse) -> list[Buffer]:
    out = bytearray()
    put_array(out, response.brokers, _put_metadata_response_broker_1)
    put_nullable_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_array(out, response.topics, _put_metadata_response_topic_1)
    return [out]


def _encode_3(response: MetadataResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.brokers, _put_metadata_response_broker_1)
    put_nullable_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_array(out, response.topics, _put_metadata_response_topic_1)
    return [out]


def _put_metadata_response_partition_5(out: bytearray, item: MetadataResponsePartition) -> None:
    out += _HI2.pack(item.error_code, item.partition_index, item.leader_id)
    put_numbers(out, item.replica_nodes, "i")
    put_numbers(out, item.isr_nodes, "i")
    put_numbers(out, item.offline_replicas, "i")


def _put_metadata_response_topic_5(out: bytearray, item: MetadataResponseTopic) -> None:
    out += _H.pack(item.error_code)
    put_string(out, item.name or "")
    out += _T.pack(item.is_internal)
    put_array(out, item.partitions, _put_metadata_response_partition_5)


def _encode_5(response: MetadataResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.brokers, _put_metadata_response_broker_1)
    put_nullable_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_array(out, response.topics, _put_metadata_response_topic_5)
    return [out]


def _put_metadata_response_partition_7(out: bytearray, item: MetadataResponsePartition) -> None:
    out += _HI3.pack(item.error_code, item.partition_index, item.leader_id, item.leader_epoch)
    put_numbers(out, item.replica_nodes, "i")
    put_numbers(out, item.isr_nodes, "i")
    put_numbers(out, item.offline_replicas, "i")


def _put_metadata_response_topic_7(out: bytearray, item: MetadataResponseTopic) -> None:
    out += _H.pack(item.error_code)
    put_string(out, item.name or "")
    out += _T.pack(item.is_internal)
    put_array(out, item.partitions, _put_metadata_response_partition_7)


def _encode_7(response: MetadataResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.brokers, _put_metadata_response_broker_1)
    put_nullable_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_array(out, response.topics, _put_metadata_response_topic_7)
    return [out]


def _put_metadata_response_topic_8(out: bytearray, item: MetadataResponseTopic) -> None:
    out += _H.pack(item.error_code)
    put_string(out, item.name or "")
    out += _T.pack(item.is_internal)
    put_array(out, item.partitions, _put_metadata_response_partition_7)
    out += _I.pack(item.topic_authorized_operations)


def _encode_8(response: MetadataResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.brokers, _put_metadata_response_broker_1)
    put_nullable_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_array(out, response.topics, _put_metadata_response_topic_8)
    out += _I.pack(response.cluster_authorized_operations)
    return [out]


def _put_metadata_response_broker_9(out: bytearray, item: MetadataResponseBroker) -> None:
    out += _I.pack(item.node_id)
    put_compact_string(out, item.host)
    out += _I.pack(item.port)
    put_compact_nullable_string(out, item.rack)
    out.append(0)


def _put_metadata_response_partition_9(out: bytearray, item: MetadataResponsePartition) -> None:
    out += _HI3.pack(item.error_code, item.partition_index, item.leader_id, item.leader_epoch)
    put_compact_numbers(out, item.replica_nodes, "i")
    put_compact_numbers(out, item.isr_nodes, "i")
    put_compact_numbers(out, item.offline_replicas, "i")
    out.append(0)


def _put_metadata_response_topic_9(out: bytearray, item: MetadataResponseTopic) -> None:
    out += _H.pack(item.error_code)
    put_compact_string(out, item.name or "")
    out += _T.pack(item.is_internal)
    put_compact_array(out, item.partitions, _put_metadata_response_partition_9)
    out += _I.pack(item.topic_authorized_operations)
    out.append(0)


def _encode_9(response: MetadataResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.brokers, _put_metadata_response_broker_9)
    put_compact_nullable_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_compact_array(out, response.topics, _put_metadata_response_topic_9)
    out += _I.pack(response.cluster_authorized_operations)
    out.append(0)
    return [out]


def _put_metadata_response_topic_10(out: bytearray, item: MetadataResponseTopic) -> None:
    out += _H.pack(item.error_code)
    put_compact_string(out, item.name or "")
    out += _UT.pack(item.topic_id, item.is_internal)
    put_compact_array(out, item.partitions, _put_metadata_response_partition_9)
    out += _I.pack(item.topic_authorized_operations)
    out.append(0)


def _encode_10(response: MetadataResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.brokers, _put_metadata_response_broker_9)
    put_compact_nullable_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_compact_array(out, response.topics, _put_metadata_response_topic_10)
    out += _I.pack(response.cluster_authorized_operations)
    out.append(0)
    return [out]


def _encode_11(response: MetadataResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.brokers, _put_metadata_response_broker_9)
    put_compact_nullable_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_compact_array(out, response.topics, _put_metadata_response_topic_10)
    out.append(0)
    return [out]


def _put_metadata_response_topic_12(out: bytearray, item: MetadataResponseTopic) -> None:
    out += _H.pack(item.error_code)
    put_compact_nullable_string(out, item.name)
    out += _UT.pack(item.topic_id, item.is_internal)
    put_compact_array(out, item.partitions, _put_metadata_response_partition_9)
    out += _I.pack(item.topic_authorized_operations)
    out.append(0)


def _encode_12(response: MetadataResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.brokers, _put_metadata_response_broker_9)
    put_compact_nullable_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_compact_array(out, response.topics, _put_metadata_response_topic_12)
    out.append(0)
    return [out]


DECODE: Final = {
    0: _decode_0,
    **dict.fromkeys(range(1, 4), _decode_1),
    **dict.fromkeys(range(4, 8), _decode_4),
    8: _decode_8,
    9: _decode_9,
    10: _decode_10,
    **dict.fromkeys(range(11, 13), _decode_11),
}
ENCODE: Final = {
    0: _encode_0,
    1: _encode_1,
    2: _encode_2,
    **dict.fromkeys(range(3, 5), _encode_3),
    **dict.fromkeys(range(5, 7), _encode_5),
    7: _encode_7,
    8: _encode_8,
    9: _encode_9,
    10: _encode_10,
    11: _encode_11,
    12: _encode_12,
}
