"""Kafka's DescribeProducers in version 0; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_string,
    get_numbers,
    get_structs,
    put_compact_array,
    put_compact_nullable_string,
    put_compact_string,
    skip_tags,
)

_I = Form(">i")
_IH = Form(">ih")
_QI2QIQ = Form(">qiiqiq")


class TopicRequest(Struct, gc=False):
    """One of ``topics`` of ``DescribeProducersRequest``."""

    name: str = ""
    partition_indexes: list[int] = []


class DescribeProducersRequest(Struct, gc=False):
    """DescribeProducers, the request."""

    topics: list[TopicRequest] = []


class ProducerState(Struct, gc=False):
    """One of ``active_producers`` of ``PartitionResponse``."""

    producer_id: int = 0
    producer_epoch: int = 0
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = 0
    current_txn_start_offset: int = -1


class PartitionResponse(Struct, gc=False):
    """One of ``partitions`` of ``TopicResponse``."""

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = []


class TopicResponse(Struct, gc=False):
    """One of ``topics`` of ``DescribeProducersResponse``."""

    name: str = ""
    partitions: list[PartitionResponse] = []


class DescribeProducersResponse(Struct, gc=False):
    """DescribeProducers, the response."""

    throttle_time_ms: int = 0
    topics: list[TopicResponse] = []


def _get_topic_request_0(view: memoryview, position: int) -> tuple[TopicRequest, int]:
    name, position = get_compact_string(view, position, "name")
    count, position = get_compact_count(view, position, 4, "partition_indexes")
    partition_indexes, position = get_numbers(view, position, count, "i", 4)
    position = skip_tags(view, position)
    return TopicRequest(name, partition_indexes), position


def _decode_0(view: memoryview, position: int) -> DescribeProducersRequest:
    count, position = get_compact_count(view, position, 3, "topics")
    topics, position = get_structs(view, position, count, _get_topic_request_0)
    position = skip_tags(view, position)
    return DescribeProducersRequest(topics)


def _put_producer_state_0(out: bytearray, item: ProducerState) -> None:
    out += _QI2QIQ.pack(
        item.producer_id,
        item.producer_epoch,
        item.last_sequence,
        item.last_timestamp,
        item.coordinator_epoch,
        item.current_txn_start_offset,
    )
    out.append(0)


def _put_partition_response_0(out: bytearray, item: PartitionResponse) -> None:
    out += _IH.pack(item.partition_index, item.error_code)
    put_compact_nullable_string(out, item.error_message)
    put_compact_array(out, item.active_producers, _put_producer_state_0)
    out.append(0)


def _put_topic_response_0(out: bytearray, item: TopicResponse) -> None:
    put_compact_string(out, item.name)
    put_compact_array(out, item.partitions, _put_partition_response_0)
    out.append(0)


def _encode_0(response: DescribeProducersResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.topics, _put_topic_response_0)
    out.append(0)
    return [out]


DECODE: Final = {0: _decode_0}
ENCODE: Final = {0: _encode_0}
