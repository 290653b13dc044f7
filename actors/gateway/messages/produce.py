"""Kafka's Produce in versions 3 to 12; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    NO_UUID,
    SHORT_READS,
    Buffer,
    crowded,
    get_compact_nullable_string,
    get_compact_string,
    get_fixed,
    get_nullable_string,
    get_string,
    get_varint,
    malformed,
    outside,
    put_array,
    put_compact_array,
    put_compact_nullable_string,
    put_compact_string,
    put_nullable_string,
    put_string,
    put_tags,
    put_varint,
    skip_tags,
)

_HI = Form(">hi")
_I = Form(">i")
_I2 = Form(">ii")
_IC = Form(">iB")
_IHQ2 = Form(">ihqq")
_IHQ3 = Form(">ihqqq")


class PartitionProduceData(Struct, gc=False):
    """One of ``partition_data`` of ``TopicProduceData``."""

    index: int = 0
    records: memoryview | None = None


class TopicProduceData(Struct, gc=False):
    """One of ``topic_data`` of ``ProduceRequest``."""

    name: str = ""
    topic_id: bytes = NO_UUID
    partition_data: list[PartitionProduceData] = []


class ProduceRequest(Struct, gc=False):
    """Produce, the request."""

    transactional_id: str | None = None
    acks: int = 0
    timeout_ms: int = 0
    topic_data: list[TopicProduceData] = []


class BatchIndexAndErrorMessage(Struct, gc=False):
    """One of ``record_errors`` of ``PartitionProduceResponse``."""

    batch_index: int = 0
    batch_index_error_message: str | None = None


class LeaderIdAndEpoch(Struct, gc=False):
    """The ``current_leader`` of ``PartitionProduceResponse``."""

    leader_id: int = -1
    leader_epoch: int = -1


class PartitionProduceResponse(Struct, gc=False):
    """One of ``partition_responses`` of ``TopicProduceResponse``."""

    index: int = 0
    error_code: int = 0
    base_offset: int = 0
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: list[BatchIndexAndErrorMessage] = []
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None


class TopicProduceResponse(Struct, gc=False):
    """One of ``responses`` of ``ProduceResponse``."""

    name: str = ""
    topic_id: bytes = NO_UUID
    partition_responses: list[PartitionProduceResponse] = []


class NodeEndpoint(Struct, gc=False):
    """One of ``node_endpoints`` of ``ProduceResponse``."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


class ProduceResponse(Struct, gc=False):
    """Produce, the response."""

    responses: list[TopicProduceResponse] = []
    throttle_time_ms: int = 0
    node_endpoints: list[NodeEndpoint] = []


def _get_topic_data_3(view: memoryview, position: int) -> tuple[list[TopicProduceData], int]:
    size = len(view)
    try:
        at = "topic_data"
        (length,) = _I.unpack_from(view, position)
        position += 4
        if not 0 <= length <= (size - position) // 6:
            raise crowded("topic_data", view, position, length)
        topic_data = []
        for _ in range(length):
            name, position = get_string(view, position, "name")
            at = "partition_data"
            (length,) = _I.unpack_from(view, position)
            position += 4
            if not 0 <= length <= (size - position) // 8:
                raise crowded("partition_data", view, position, length)
            partition_data = []
            for _ in range(length):
                at = "index"
                index, length = _I2.unpack_from(view, position)
                position += 8
                records = None
                if length != -1:
                    end = position + length
                    if not position <= end <= size:
                        raise outside("records", view, position, length)
                    records = view[position:end]
                    position = end
                partition_data.append(PartitionProduceData(index, records))
            topic_data.append(TopicProduceData(name, NO_UUID, partition_data))
    except SHORT_READS as wrong:
        raise malformed(at, position, wrong) from None
    return topic_data, position


def _decode_3(view: memoryview, position: int) -> ProduceRequest:
    transactional_id, position = get_nullable_string(view, position, "transactional_id")
    (acks, timeout_ms), position = get_fixed(_HI, view, position, "acks")
    topic_data, position = _get_topic_data_3(view, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topic_data)


def _get_topic_data_9(view: memoryview, position: int) -> tuple[list[TopicProduceData], int]:
    size = len(view)
    try:
        at = "topic_data"
        length = view[position]
        position += 1
        if length > 0x7F:
            length, position = get_varint(view, position - 1, "topic_data")
        if not 0 <= length - 1 <= (size - position) // 3:
            raise crowded("topic_data", view, position, length - 1)
        topic_data = []
        for _ in range(length - 1):
            name, position = get_compact_string(view, position, "name")
            at = "partition_data"
            length = view[position]
            position += 1
            if length > 0x7F:
                length, position = get_varint(view, position - 1, "partition_data")
            if not 0 <= length - 1 <= (size - position) // 6:
                raise crowded("partition_data", view, position, length - 1)
            partition_data = []
            for _ in range(length - 1):
                at = "index"
                index, length = _IC.unpack_from(view, position)
                position += 5
                if length > 0x7F:
                    length, position = get_varint(view, position - 1, "records")
                records = None
                if length:
                    end = position + length - 1
                    if not position <= end <= size:
                        raise outside("records", view, position, length - 1)
                    records = view[position:end]
                    position = end
                at = "tagged fields"
                length = view[position]
                position += 1
                if length:
                    position = skip_tags(view, position - 1)
                partition_data.append(PartitionProduceData(index, records))
            at = "tagged fields"
            length = view[position]
            position += 1
            if length:
                position = skip_tags(view, position - 1)
            topic_data.append(TopicProduceData(name, NO_UUID, partition_data))
    except SHORT_READS as wrong:
        raise malformed(at, position, wrong) from None
    return topic_data, position


def _decode_9(view: memoryview, position: int) -> ProduceRequest:
    transactional_id, position = get_compact_nullable_string(view, position, "transactional_id")
    (acks, timeout_ms), position = get_fixed(_HI, view, position, "acks")
    topic_data, position = _get_topic_data_9(view, position)
    position = skip_tags(view, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topic_data)


def _put_responses_3(out: bytearray, items: list[TopicProduceResponse]) -> None:
    out += _I.pack(len(items))
    for topic in items:
        put_string(out, topic.name)
        out += _I.pack(len(topic.partition_responses))
        for partition in topic.partition_responses:
            out += _IHQ2.pack(
                partition.index,
                partition.error_code,
                partition.base_offset,
                partition.log_append_time_ms,
            )


def _encode_3(response: ProduceResponse) -> list[Buffer]:
    out = bytearray()
    _put_responses_3(out, response.responses)
    out += _I.pack(response.throttle_time_ms)
    return [out]


def _put_responses_5(out: bytearray, items: list[TopicProduceResponse]) -> None:
    out += _I.pack(len(items))
    for topic in items:
        put_string(out, topic.name)
        out += _I.pack(len(topic.partition_responses))
        for partition in topic.partition_responses:
            out += _IHQ3.pack(
                partition.index,
                partition.error_code,
                partition.base_offset,
                partition.log_append_time_ms,
                partition.log_start_offset,
            )


def _encode_5(response: ProduceResponse) -> list[Buffer]:
    out = bytearray()
    _put_responses_5(out, response.responses)
    out += _I.pack(response.throttle_time_ms)
    return [out]


def _put_batch_index_and_error_message_8(out: bytearray, item: BatchIndexAndErrorMessage) -> None:
    out += _I.pack(item.batch_index)
    put_nullable_string(out, item.batch_index_error_message)


def _put_responses_8(out: bytearray, items: list[TopicProduceResponse]) -> None:
    out += _I.pack(len(items))
    for topic in items:
        put_string(out, topic.name)
        out += _I.pack(len(topic.partition_responses))
        for partition in topic.partition_responses:
            out += _IHQ3.pack(
                partition.index,
                partition.error_code,
                partition.base_offset,
                partition.log_append_time_ms,
                partition.log_start_offset,
            )
            put_array(out, partition.record_errors, _put_batch_index_and_error_message_8)
            put_nullable_string(out, partition.error_message)


def _encode_8(response: ProduceResponse) -> list[Buffer]:
    out = bytearray()
    _put_responses_8(out, response.responses)
    out += _I.pack(response.throttle_time_ms)
    return [out]


def _put_batch_index_and_error_message_9(out: bytearray, item: BatchIndexAndErrorMessage) -> None:
    out += _I.pack(item.batch_index)
    put_compact_nullable_string(out, item.batch_index_error_message)
    out.append(0)


def _put_responses_9(out: bytearray, items: list[TopicProduceResponse]) -> None:
    put_varint(out, len(items) + 1)
    for topic in items:
        put_compact_string(out, topic.name)
        put_varint(out, len(topic.partition_responses) + 1)
        for partition in topic.partition_responses:
            out += _IHQ3.pack(
                partition.index,
                partition.error_code,
                partition.base_offset,
                partition.log_append_time_ms,
                partition.log_start_offset,
            )
            put_compact_array(out, partition.record_errors, _put_batch_index_and_error_message_9)
            put_compact_nullable_string(out, partition.error_message)
            out.append(0)
        out.append(0)


def _encode_9(response: ProduceResponse) -> list[Buffer]:
    out = bytearray()
    _put_responses_9(out, response.responses)
    out += _I.pack(response.throttle_time_ms)
    out.append(0)
    return [out]


def _put_leader_id_and_epoch_10(out: bytearray, item: LeaderIdAndEpoch) -> None:
    out += _I2.pack(item.leader_id, item.leader_epoch)
    out.append(0)


def _put_tags_of_partition_produce_response_10(
    out: bytearray, item: PartitionProduceResponse
) -> None:
    tags: list[tuple[int, Buffer]] = []
    if item.current_leader:
        part = bytearray()
        _put_leader_id_and_epoch_10(part, item.current_leader)
        tags.append((0, part))
    put_tags(out, tags)


def _put_responses_10(out: bytearray, items: list[TopicProduceResponse]) -> None:
    put_varint(out, len(items) + 1)
    for topic in items:
        put_compact_string(out, topic.name)
        put_varint(out, len(topic.partition_responses) + 1)
        for partition in topic.partition_responses:
            out += _IHQ3.pack(
                partition.index,
                partition.error_code,
                partition.base_offset,
                partition.log_append_time_ms,
                partition.log_start_offset,
            )
            put_compact_array(out, partition.record_errors, _put_batch_index_and_error_message_9)
            put_compact_nullable_string(out, partition.error_message)
            if partition.current_leader:
                _put_tags_of_partition_produce_response_10(out, partition)
            else:
                out.append(0)
        out.append(0)


def _put_node_endpoint_10(out: bytearray, item: NodeEndpoint) -> None:
    out += _I.pack(item.node_id)
    put_compact_string(out, item.host)
    out += _I.pack(item.port)
    put_compact_nullable_string(out, item.rack)
    out.append(0)


def _put_tags_of_produce_response_10(out: bytearray, item: ProduceResponse) -> None:
    tags: list[tuple[int, Buffer]] = []
    if item.node_endpoints:
        part = bytearray()
        put_compact_array(part, item.node_endpoints, _put_node_endpoint_10)
        tags.append((0, part))
    put_tags(out, tags)


def _encode_10(response: ProduceResponse) -> list[Buffer]:
    out = bytearray()
    _put_responses_10(out, response.responses)
    out += _I.pack(response.throttle_time_ms)
    if response.node_endpoints:
        _put_tags_of_produce_response_10(out, response)
    else:
        out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(3, 9), _decode_3), **dict.fromkeys(range(9, 13), _decode_9)}
ENCODE: Final = {
    **dict.fromkeys(range(3, 5), _encode_3),
    **dict.fromkeys(range(5, 8), _encode_5),
    8: _encode_8,
    9: _encode_9,
    **dict.fromkeys(range(10, 13), _encode_10),
}
