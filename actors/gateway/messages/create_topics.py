"""Kafka's CreateTopics in versions 2 to 7; generated, do not edit."""

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
    get_numbers,
    get_string,
    get_structs,
    put_array,
    put_compact_array,
    put_compact_nullable_array,
    put_compact_nullable_string,
    put_compact_string,
    put_nullable_string,
    put_string,
    put_tags,
    skip_tags,
)

_H = Form(">h")
_I = Form(">i")
_IH = Form(">ih")
_IT = Form(">i?")
_TBT = Form(">?b?")
_UH = Form(">16sh")


class CreatableReplicaAssignment(Struct, gc=False):
    """One of ``assignments`` of ``CreatableTopic``."""

    partition_index: int = 0
    broker_ids: list[int] = []


class CreatableTopicConfig(Struct, gc=False):
    """One of ``configs`` of ``CreatableTopic``."""

    name: str = ""
    value: str | None = ""


class CreatableTopic(Struct, gc=False):
    """One of ``topics`` of ``CreateTopicsRequest``."""

    name: str = ""
    num_partitions: int = 0
    replication_factor: int = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreateTopicsRequest(Struct, gc=False):
    """CreateTopics, the request."""

    topics: list[CreatableTopic] = []
    timeout_ms: int = 60000
    validate_only: bool = False


class CreatableTopicConfigs(Struct, gc=False):
    """One of ``configs`` of ``CreatableTopicResult``."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False


class CreatableTopicResult(Struct, gc=False):
    """One of ``topics`` of ``CreateTopicsResponse``."""

    name: str = ""
    topic_id: bytes = NO_UUID
    error_code: int = 0
    error_message: str | None = ""
    topic_config_error_code: int = 0
    num_partitions: int = -1
    replication_factor: int = -1
    configs: list[CreatableTopicConfigs] | None = []


class CreateTopicsResponse(Struct, gc=False):
    """CreateTopics, the response."""

    throttle_time_ms: int = 0
    topics: list[CreatableTopicResult] = []


def _get_creatable_replica_assignment_2(
    view: memoryview, position: int
) -> tuple[CreatableReplicaAssignment, int]:
    (partition_index,), position = get_fixed(_I, view, position, "partition_index")
    count, position = get_count(view, position, 4, "broker_ids")
    broker_ids, position = get_numbers(view, position, count, "i", 4)
    return CreatableReplicaAssignment(partition_index, broker_ids), position


def _get_creatable_topic_config_2(
    view: memoryview, position: int
) -> tuple[CreatableTopicConfig, int]:
    name, position = get_string(view, position, "name")
    value_, position = get_nullable_string(view, position, "value")
    return CreatableTopicConfig(name, value_), position


def _get_creatable_topic_2(view: memoryview, position: int) -> tuple[CreatableTopic, int]:
    name, position = get_string(view, position, "name")
    (num_partitions, replication_factor), position = get_fixed(
        _IH, view, position, "num_partitions"
    )
    count, position = get_count(view, position, 8, "assignments")
    assignments, position = get_structs(view, position, count, _get_creatable_replica_assignment_2)
    count, position = get_count(view, position, 4, "configs")
    configs, position = get_structs(view, position, count, _get_creatable_topic_config_2)
    return CreatableTopic(name, num_partitions, replication_factor, assignments, configs), position


def _decode_2(view: memoryview, position: int) -> CreateTopicsRequest:
    count, position = get_count(view, position, 16, "topics")
    topics, position = get_structs(view, position, count, _get_creatable_topic_2)
    (timeout_ms, validate_only), position = get_fixed(_IT, view, position, "timeout_ms")
    return CreateTopicsRequest(topics, timeout_ms, validate_only)


def _get_creatable_replica_assignment_5(
    view: memoryview, position: int
) -> tuple[CreatableReplicaAssignment, int]:
    (partition_index,), position = get_fixed(_I, view, position, "partition_index")
    count, position = get_compact_count(view, position, 4, "broker_ids")
    broker_ids, position = get_numbers(view, position, count, "i", 4)
    position = skip_tags(view, position)
    return CreatableReplicaAssignment(partition_index, broker_ids), position


def _get_creatable_topic_config_5(
    view: memoryview, position: int
) -> tuple[CreatableTopicConfig, int]:
    name, position = get_compact_string(view, position, "name")
    value_, position = get_compact_nullable_string(view, position, "value")
    position = skip_tags(view, position)
    return CreatableTopicConfig(name, value_), position


def _get_creatable_topic_5(view: memoryview, position: int) -> tuple[CreatableTopic, int]:
    name, position = get_compact_string(view, position, "name")
    (num_partitions, replication_factor), position = get_fixed(
        _IH, view, position, "num_partitions"
    )
    count, position = get_compact_count(view, position, 6, "assignments")
    assignments, position = get_structs(view, position, count, _get_creatable_replica_assignment_5)
    count, position = get_compact_count(view, position, 3, "configs")
    configs, position = get_structs(view, position, count, _get_creatable_topic_config_5)
    position = skip_tags(view, position)
    return CreatableTopic(name, num_partitions, replication_factor, assignments, configs), position


def _decode_5(view: memoryview, position: int) -> CreateTopicsRequest:
    count, position = get_compact_count(view, position, 10, "topics")
    topics, position = get_structs(view, position, count, _get_creatable_topic_5)
    (timeout_ms, validate_only), position = get_fixed(_IT, view, position, "timeout_ms")
    position = skip_tags(view, position)
    return CreateTopicsRequest(topics, timeout_ms, validate_only)


def _put_creatable_topic_result_2(out: bytearray, item: CreatableTopicResult) -> None:
    put_string(out, item.name)
    out += _H.pack(item.error_code)
    put_nullable_string(out, item.error_message)


def _encode_2(response: CreateTopicsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.topics, _put_creatable_topic_result_2)
    return [out]


def _put_creatable_topic_configs_5(out: bytearray, item: CreatableTopicConfigs) -> None:
    put_compact_string(out, item.name)
    put_compact_nullable_string(out, item.value)
    out += _TBT.pack(item.read_only, item.config_source, item.is_sensitive)
    out.append(0)


def _put_tags_of_creatable_topic_result_5(out: bytearray, item: CreatableTopicResult) -> None:
    tags: list[tuple[int, Buffer]] = []
    if item.topic_config_error_code:
        tags.append((0, _H.pack(item.topic_config_error_code)))
    put_tags(out, tags)


def _put_creatable_topic_result_5(out: bytearray, item: CreatableTopicResult) -> None:
    put_compact_string(out, item.name)
    out += _H.pack(item.error_code)
    put_compact_nullable_string(out, item.error_message)
    out += _IH.pack(item.num_partitions, item.replication_factor)
    put_compact_nullable_array(out, item.configs, _put_creatable_topic_configs_5)
    if item.topic_config_error_code:
        _put_tags_of_creatable_topic_result_5(out, item)
    else:
        out.append(0)


def _encode_5(response: CreateTopicsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.topics, _put_creatable_topic_result_5)
    out.append(0)
    return [out]


def _put_creatable_topic_result_7(out: bytearray, item: CreatableTopicResult) -> None:
    put_compact_string(out, item.name)
    out += _UH.pack(item.topic_id, item.error_code)
    put_compact_nullable_string(out, item.error_message)
    out += _IH.pack(item.num_partitions, item.replication_factor)
    put_compact_nullable_array(out, item.configs, _put_creatable_topic_configs_5)
    if item.topic_config_error_code:
        _put_tags_of_creatable_topic_result_5(out, item)
    else:
        out.append(0)


def _encode_7(response: CreateTopicsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.topics, _put_creatable_topic_result_7)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(2, 5), _decode_2), **dict.fromkeys(range(5, 8), _decode_5)}
ENCODE: Final = {
    **dict.fromkeys(range(2, 5), _encode_2),
    **dict.fromkeys(range(5, 7), _encode_5),
    7: _encode_7,
}
