"""Kafka's CreatePartitions in versions 0 to 3; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_nullable_count,
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
_IT = Form(">i?")


class CreatePartitionsAssignment(Struct, gc=False):
    """One of ``assignments`` of ``CreatePartitionsTopic``."""

    broker_ids: list[int] = []


class CreatePartitionsTopic(Struct, gc=False):
    """One of ``topics`` of ``CreatePartitionsRequest``."""

    name: str = ""
    count: int = 0
    assignments: list[CreatePartitionsAssignment] | None = []


class CreatePartitionsRequest(Struct, gc=False):
    """CreatePartitions, the request."""

    topics: list[CreatePartitionsTopic] = []
    timeout_ms: int = 0
    validate_only: bool = False


class CreatePartitionsTopicResult(Struct, gc=False):
    """One of ``results`` of ``CreatePartitionsResponse``."""

    name: str = ""
    error_code: int = 0
    error_message: str | None = None


class CreatePartitionsResponse(Struct, gc=False):
    """CreatePartitions, the response."""

    throttle_time_ms: int = 0
    results: list[CreatePartitionsTopicResult] = []


def _get_create_partitions_assignment_0(
    view: memoryview, position: int
) -> tuple[CreatePartitionsAssignment, int]:
    count, position = get_count(view, position, 4, "broker_ids")
    broker_ids, position = get_numbers(view, position, count, "i", 4)
    return CreatePartitionsAssignment(broker_ids), position


def _get_create_partitions_topic_0(
    view: memoryview, position: int
) -> tuple[CreatePartitionsTopic, int]:
    name, position = get_string(view, position, "name")
    (count_,), position = get_fixed(_I, view, position, "count")
    count, position = get_nullable_count(view, position, 4, "assignments")
    assignments: list[CreatePartitionsAssignment] | None = None
    if count >= 0:
        assignments, position = get_structs(
            view, position, count, _get_create_partitions_assignment_0
        )
    return CreatePartitionsTopic(name, count_, assignments), position


def _decode_0(view: memoryview, position: int) -> CreatePartitionsRequest:
    count, position = get_count(view, position, 10, "topics")
    topics, position = get_structs(view, position, count, _get_create_partitions_topic_0)
    (timeout_ms, validate_only), position = get_fixed(_IT, view, position, "timeout_ms")
    return CreatePartitionsRequest(topics, timeout_ms, validate_only)


def _get_create_partitions_assignment_2(
    view: memoryview, position: int
) -> tuple[CreatePartitionsAssignment, int]:
    count, position = get_compact_count(view, position, 4, "broker_ids")
    broker_ids, position = get_numbers(view, position, count, "i", 4)
    position = skip_tags(view, position)
    return CreatePartitionsAssignment(broker_ids), position


def _get_create_partitions_topic_2(
    view: memoryview, position: int
) -> tuple[CreatePartitionsTopic, int]:
    name, position = get_compact_string(view, position, "name")
    (count_,), position = get_fixed(_I, view, position, "count")
    count, position = get_compact_nullable_count(view, position, 2, "assignments")
    assignments: list[CreatePartitionsAssignment] | None = None
    if count >= 0:
        assignments, position = get_structs(
            view, position, count, _get_create_partitions_assignment_2
        )
    position = skip_tags(view, position)
    return CreatePartitionsTopic(name, count_, assignments), position


def _decode_2(view: memoryview, position: int) -> CreatePartitionsRequest:
    count, position = get_compact_count(view, position, 7, "topics")
    topics, position = get_structs(view, position, count, _get_create_partitions_topic_2)
    (timeout_ms, validate_only), position = get_fixed(_IT, view, position, "timeout_ms")
    position = skip_tags(view, position)
    return CreatePartitionsRequest(topics, timeout_ms, validate_only)


def _put_create_partitions_topic_result_0(
    out: bytearray, item: CreatePartitionsTopicResult
) -> None:
    put_string(out, item.name)
    out += _H.pack(item.error_code)
    put_nullable_string(out, item.error_message)


def _encode_0(response: CreatePartitionsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.results, _put_create_partitions_topic_result_0)
    return [out]


def _put_create_partitions_topic_result_2(
    out: bytearray, item: CreatePartitionsTopicResult
) -> None:
    put_compact_string(out, item.name)
    out += _H.pack(item.error_code)
    put_compact_nullable_string(out, item.error_message)
    out.append(0)


def _encode_2(response: CreatePartitionsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.results, _put_create_partitions_topic_result_2)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(2), _decode_0), **dict.fromkeys(range(2, 4), _decode_2)}
ENCODE: Final = {**dict.fromkeys(range(2), _encode_0), **dict.fromkeys(range(2, 4), _encode_2)}
