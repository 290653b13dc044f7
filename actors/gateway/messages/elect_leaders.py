"""Kafka's ElectLeaders in versions 0 to 2; generated, do not edit."""

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

_B = Form(">b")
_I = Form(">i")
_IH = Form(">ih")


class TopicPartitions(Struct, gc=False):
    """One of ``topic_partitions`` of ``ElectLeadersRequest``."""

    topic: str = ""
    partitions: list[int] = []


class ElectLeadersRequest(Struct, gc=False):
    """ElectLeaders, the request."""

    election_type: int = 0
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: int = 60000


class PartitionResult(Struct, gc=False):
    """One of ``partition_result`` of ``ReplicaElectionResult``."""

    partition_id: int = 0
    error_code: int = 0
    error_message: str | None = ""


class ReplicaElectionResult(Struct, gc=False):
    """One of ``replica_election_results`` of ``ElectLeadersResponse``."""

    topic: str = ""
    partition_result: list[PartitionResult] = []


class ElectLeadersResponse(Struct, gc=False):
    """ElectLeaders, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    replica_election_results: list[ReplicaElectionResult] = []


def _get_topic_partitions_0(view: memoryview, position: int) -> tuple[TopicPartitions, int]:
    topic, position = get_string(view, position, "topic")
    count, position = get_count(view, position, 4, "partitions")
    partitions, position = get_numbers(view, position, count, "i", 4)
    return TopicPartitions(topic, partitions), position


def _decode_0(view: memoryview, position: int) -> ElectLeadersRequest:
    count, position = get_nullable_count(view, position, 6, "topic_partitions")
    topic_partitions: list[TopicPartitions] | None = None
    if count >= 0:
        topic_partitions, position = get_structs(view, position, count, _get_topic_partitions_0)
    (timeout_ms,), position = get_fixed(_I, view, position, "timeout_ms")
    return ElectLeadersRequest(0, topic_partitions, timeout_ms)


def _decode_1(view: memoryview, position: int) -> ElectLeadersRequest:
    (election_type,), position = get_fixed(_B, view, position, "election_type")
    count, position = get_nullable_count(view, position, 6, "topic_partitions")
    topic_partitions: list[TopicPartitions] | None = None
    if count >= 0:
        topic_partitions, position = get_structs(view, position, count, _get_topic_partitions_0)
    (timeout_ms,), position = get_fixed(_I, view, position, "timeout_ms")
    return ElectLeadersRequest(election_type, topic_partitions, timeout_ms)


def _get_topic_partitions_2(view: memoryview, position: int) -> tuple[TopicPartitions, int]:
    topic, position = get_compact_string(view, position, "topic")
    count, position = get_compact_count(view, position, 4, "partitions")
    partitions, position = get_numbers(view, position, count, "i", 4)
    position = skip_tags(view, position)
    return TopicPartitions(topic, partitions), position


def _decode_2(view: memoryview, position: int) -> ElectLeadersRequest:
    (election_type,), position = get_fixed(_B, view, position, "election_type")
    count, position = get_compact_nullable_count(view, position, 3, "topic_partitions")
    topic_partitions: list[TopicPartitions] | None = None
    if count >= 0:
        topic_partitions, position = get_structs(view, position, count, _get_topic_partitions_2)
    (timeout_ms,), position = get_fixed(_I, view, position, "timeout_ms")
    position = skip_tags(view, position)
    return ElectLeadersRequest(election_type, topic_partitions, timeout_ms)


def _put_partition_result_0(out: bytearray, item: PartitionResult) -> None:
    out += _IH.pack(item.partition_id, item.error_code)
    put_nullable_string(out, item.error_message)


def _put_replica_election_result_0(out: bytearray, item: ReplicaElectionResult) -> None:
    put_string(out, item.topic)
    put_array(out, item.partition_result, _put_partition_result_0)


def _encode_0(response: ElectLeadersResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.replica_election_results, _put_replica_election_result_0)
    return [out]


def _encode_1(response: ElectLeadersResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_array(out, response.replica_election_results, _put_replica_election_result_0)
    return [out]


def _put_partition_result_2(out: bytearray, item: PartitionResult) -> None:
    out += _IH.pack(item.partition_id, item.error_code)
    put_compact_nullable_string(out, item.error_message)
    out.append(0)


def _put_replica_election_result_2(out: bytearray, item: ReplicaElectionResult) -> None:
    put_compact_string(out, item.topic)
    put_compact_array(out, item.partition_result, _put_partition_result_2)
    out.append(0)


def _encode_2(response: ElectLeadersResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_array(out, response.replica_election_results, _put_replica_election_result_2)
    out.append(0)
    return [out]


DECODE: Final = {0: _decode_0, 1: _decode_1, 2: _decode_2}
ENCODE: Final = {0: _encode_0, 1: _encode_1, 2: _encode_2}
