"""Kafka's DeleteRecords in versions 0 to 2; generated, do not edit."""

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
_IQ = Form(">iq")
_IQH = Form(">iqh")


class DeleteRecordsPartition(Struct, gc=False):
    """One of ``partitions`` of ``DeleteRecordsTopic``."""

    partition_index: int = 0
    offset: int = 0


class DeleteRecordsTopic(Struct, gc=False):
    """One of ``topics`` of ``DeleteRecordsRequest``."""

    name: str = ""
    partitions: list[DeleteRecordsPartition] = []


class DeleteRecordsRequest(Struct, gc=False):
    """DeleteRecords, the request."""

    topics: list[DeleteRecordsTopic] = []
    timeout_ms: int = 0


class DeleteRecordsPartitionResult(Struct, gc=False):
    """One of ``partitions`` of ``DeleteRecordsTopicResult``."""

    partition_index: int = 0
    low_watermark: int = 0
    error_code: int = 0


class DeleteRecordsTopicResult(Struct, gc=False):
    """One of ``topics`` of ``DeleteRecordsResponse``."""

    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = []


class DeleteRecordsResponse(Struct, gc=False):
    """DeleteRecords, the response."""

    throttle_time_ms: int = 0
    topics: list[DeleteRecordsTopicResult] = []


def _get_delete_records_partition_0(
    view: memoryview, position: int
) -> tuple[DeleteRecordsPartition, int]:
    values, position = get_fixed(_IQ, view, position, "partition_index")
    return DeleteRecordsPartition(*values), position


def _get_delete_records_topic_0(view: memoryview, position: int) -> tuple[DeleteRecordsTopic, int]:
    name, position = get_string(view, position, "name")
    count, position = get_count(view, position, 12, "partitions")
    partitions, position = get_structs(view, position, count, _get_delete_records_partition_0)
    return DeleteRecordsTopic(name, partitions), position


def _decode_0(view: memoryview, position: int) -> DeleteRecordsRequest:
    count, position = get_count(view, position, 6, "topics")
    topics, position = get_structs(view, position, count, _get_delete_records_topic_0)
    (timeout_ms,), position = get_fixed(_I, view, position, "timeout_ms")
    return DeleteRecordsRequest(topics, timeout_ms)


def _get_delete_records_partition_2(
    view: memoryview, position: int
) -> tuple[DeleteRecordsPartition, int]:
    values, position = get_fixed(_IQ, view, position, "partition_index")
    position = skip_tags(view, position)
    return DeleteRecordsPartition(*values), position


def _get_delete_records_topic_2(view: memoryview, position: int) -> tuple[DeleteRecordsTopic, int]:
    name, position = get_compact_string(view, position, "name")
    count, position = get_compact_count(view, position, 13, "partitions")
    partitions, position = get_structs(view, position, count, _get_delete_records_partition_2)
    position = skip_tags(view, position)
    return DeleteRecordsTopic(name, partitions), position


def _decode_2(view: memoryview, position: int) -> DeleteRecordsRequest:
    count, position = get_compact_count(view, position, 3, "topics")
    topics, position = get_structs(view, position, count, _get_delete_records_topic_2)
    (timeout_ms,), position = get_fixed(_I, view, position, "timeout_ms")
    position = skip_tags(view, position)
    return DeleteRecordsRequest(topics, timeout_ms)


def _put_delete_records_partition_result_0(
    out: bytearray, item: DeleteRecordsPartitionResult
) -> None:
    out += _IQH.pack(item.partition_index, item.low_watermark, item.error_code)


def _put_delete_records_topic_result_0(out: bytearray, item: DeleteRecordsTopicResult) -> None:
    put_string(out, item.name)
    put_array(out, item.partitions, _put_delete_records_partition_result_0)


def _encode_0(response: DeleteRecordsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.topics, _put_delete_records_topic_result_0)
    return [out]


def _put_delete_records_partition_result_2(
    out: bytearray, item: DeleteRecordsPartitionResult
) -> None:
    out += _IQH.pack(item.partition_index, item.low_watermark, item.error_code)
    out.append(0)


def _put_delete_records_topic_result_2(out: bytearray, item: DeleteRecordsTopicResult) -> None:
    put_compact_string(out, item.name)
    put_compact_array(out, item.partitions, _put_delete_records_partition_result_2)
    out.append(0)


def _encode_2(response: DeleteRecordsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.topics, _put_delete_records_topic_result_2)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(2), _decode_0), 2: _decode_2}
ENCODE: Final = {**dict.fromkeys(range(2), _encode_0), 2: _encode_2}
