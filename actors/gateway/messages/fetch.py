"""Kafka's Fetch in versions 4 to 16; generated, do not edit.

One file: the structs and the bytes of one API.
"""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

import msgspec
from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    NO_UUID,
    SHORT_READS,
    Buffer,
    crowded,
    get_compact_count,
    get_compact_nullable_string,
    get_compact_string,
    get_count,
    get_fixed,
    get_numbers,
    get_string,
    get_structs,
    get_tags,
    get_varint,
    malformed,
    put_compact_array,
    put_compact_nullable_array,
    put_compact_nullable_string,
    put_compact_string,
    put_nullable_array,
    put_string,
    put_tags,
    put_varint,
    skip_tags,
)

_I = Form(">i")
_I2 = Form(">ii")
_I2Q2I = Form(">iiqqi")
_I2QIQI = Form(">iiqiqi")
_I3BI2 = Form(">iiibii")
_I4B = Form(">iiiib")
_I4BI2 = Form(">iiiibii")
_IHI = Form(">ihi")
_IHQ2 = Form(">ihqq")
_IHQ3 = Form(">ihqqq")
_IQ = Form(">iq")
_IQ2I = Form(">iqqi")
_IQI = Form(">iqi")
_Q2 = Form(">qq")
_QI = Form(">qi")
_U = Form(">16s")
_UC = Form(">16sB")


class ReplicaState(Struct, gc=False):
    """The ``replica_state`` of ``FetchRequest``."""

    replica_id: int = -1
    replica_epoch: int = -1


class FetchPartition(Struct, gc=False):
    """One of ``partitions`` of ``FetchTopic``."""

    partition: int = 0
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    partition_max_bytes: int = 0
    replica_directory_id: bytes = NO_UUID
    high_watermark: int = 9223372036854775807


class FetchTopic(Struct, gc=False):
    """One of ``topics`` of ``FetchRequest``."""

    topic: str = ""
    topic_id: bytes = NO_UUID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Struct, gc=False):
    """One of ``forgotten_topics_data`` of ``FetchRequest``."""

    topic: str = ""
    topic_id: bytes = NO_UUID
    partitions: list[int] = []


class FetchRequest(Struct, gc=False):
    """Fetch, the request."""

    cluster_id: str | None = None
    replica_id: int = -1
    replica_state: ReplicaState = msgspec.field(default_factory=ReplicaState)
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: list[ForgottenTopic] = []
    rack_id: str = ""


class EpochEndOffset(Struct, gc=False):
    """The ``diverging_epoch`` of ``PartitionData``."""

    epoch: int = -1
    end_offset: int = -1


class LeaderIdAndEpoch(Struct, gc=False):
    """The ``current_leader`` of ``PartitionData``."""

    leader_id: int = -1
    leader_epoch: int = -1


class SnapshotId(Struct, gc=False):
    """The ``snapshot_id`` of ``PartitionData``."""

    end_offset: int = -1
    epoch: int = -1


class AbortedTransaction(Struct, gc=False):
    """One of ``aborted_transactions`` of ``PartitionData``."""

    producer_id: int = 0
    first_offset: int = 0


class PartitionData(Struct, gc=False):
    """One of ``partitions`` of ``FetchableTopicResponse``."""

    partition_index: int = 0
    error_code: int = 0
    high_watermark: int = 0
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: EpochEndOffset | None = None
    current_leader: LeaderIdAndEpoch | None = None
    snapshot_id: SnapshotId | None = None
    aborted_transactions: list[AbortedTransaction] | None = []
    preferred_read_replica: int = -1
    records: Buffer | None = None


class FetchableTopicResponse(Struct, gc=False):
    """One of ``responses`` of ``FetchResponse``."""

    topic: str = ""
    topic_id: bytes = NO_UUID
    partitions: list[PartitionData] = []


class NodeEndpoint(Struct, gc=False):
    """One of ``node_endpoints`` of ``FetchResponse``."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


class FetchResponse(Struct, gc=False):
    """Fetch, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []


def _get_topics_4(view: memoryview, position: int) -> tuple[list[FetchTopic], int]:
    size = len(view)
    try:
        at = "topics"
        (length,) = _I.unpack_from(view, position)
        position += 4
        if not 0 <= length <= (size - position) // 6:
            raise crowded("topics", view, position, length)
        topics = []
        for _ in range(length):
            topic, position = get_string(view, position, "topic")
            at = "partitions"
            (length,) = _I.unpack_from(view, position)
            position += 4
            if not 0 <= length <= (size - position) // 16:
                raise crowded("partitions", view, position, length)
            partitions = []
            for _ in range(length):
                at = "partition"
                partition, fetch_offset, partition_max_bytes = _IQI.unpack_from(view, position)
                position += 16
                partitions.append(
                    FetchPartition(partition, -1, fetch_offset, -1, -1, partition_max_bytes)
                )
            topics.append(FetchTopic(topic, NO_UUID, partitions))
    except SHORT_READS as wrong:
        raise malformed(at, position, wrong) from None
    return topics, position


def _decode_4(view: memoryview, position: int) -> FetchRequest:
    (replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level), position = get_fixed(
        _I4B, view, position, "replica_id"
    )
    topics, position = _get_topics_4(view, position)
    return FetchRequest(
        None,
        replica_id,
        ReplicaState(),
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        0,
        -1,
        topics,
    )


def _get_topics_5(view: memoryview, position: int) -> tuple[list[FetchTopic], int]:
    size = len(view)
    try:
        at = "topics"
        (length,) = _I.unpack_from(view, position)
        position += 4
        if not 0 <= length <= (size - position) // 6:
            raise crowded("topics", view, position, length)
        topics = []
        for _ in range(length):
            topic, position = get_string(view, position, "topic")
            at = "partitions"
            (length,) = _I.unpack_from(view, position)
            position += 4
            if not 0 <= length <= (size - position) // 24:
                raise crowded("partitions", view, position, length)
            partitions = []
            for _ in range(length):
                at = "partition"
                (partition, fetch_offset, log_start_offset, partition_max_bytes) = (
                    _IQ2I.unpack_from(view, position)
                )
                position += 24
                partitions.append(
                    FetchPartition(
                        partition, -1, fetch_offset, -1, log_start_offset, partition_max_bytes
                    )
                )
            topics.append(FetchTopic(topic, NO_UUID, partitions))
    except SHORT_READS as wrong:
        raise malformed(at, position, wrong) from None
    return topics, position


def _decode_5(view: memoryview, position: int) -> FetchRequest:
    (replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level), position = get_fixed(
        _I4B, view, position, "replica_id"
    )
    topics, position = _get_topics_5(view, position)
    return FetchRequest(
        None,
        replica_id,
        ReplicaState(),
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        0,
        -1,
        topics,
    )


def _get_forgotten_topic_7(view: memoryview, position: int) -> tuple[ForgottenTopic, int]:
    topic, position = get_string(view, position, "topic")
    count, position = get_count(view, position, 4, "partitions")
    partitions, position = get_numbers(view, position, count, "i", 4)
    return ForgottenTopic(topic, NO_UUID, partitions), position


def _decode_7(view: memoryview, position: int) -> FetchRequest:
    values: tuple[int, int, int, int, int, int, int]
    values, position = get_fixed(_I4BI2, view, position, "replica_id")
    topics, position = _get_topics_5(view, position)
    count, position = get_count(view, position, 6, "forgotten_topics_data")
    forgotten_topics_data, position = get_structs(view, position, count, _get_forgotten_topic_7)
    return FetchRequest(None, values[0], ReplicaState(), *values[1:], topics, forgotten_topics_data)


def _get_topics_9(view: memoryview, position: int) -> tuple[list[FetchTopic], int]:
    size = len(view)
    try:
        at = "topics"
        (length,) = _I.unpack_from(view, position)
        position += 4
        if not 0 <= length <= (size - position) // 6:
            raise crowded("topics", view, position, length)
        topics = []
        for _ in range(length):
            topic, position = get_string(view, position, "topic")
            at = "partitions"
            (length,) = _I.unpack_from(view, position)
            position += 4
            if not 0 <= length <= (size - position) // 28:
                raise crowded("partitions", view, position, length)
            partitions = []
            for _ in range(length):
                at = "partition"
                (
                    partition,
                    current_leader_epoch,
                    fetch_offset,
                    log_start_offset,
                    partition_max_bytes,
                ) = _I2Q2I.unpack_from(view, position)
                position += 28
                partitions.append(
                    FetchPartition(
                        partition,
                        current_leader_epoch,
                        fetch_offset,
                        -1,
                        log_start_offset,
                        partition_max_bytes,
                    )
                )
            topics.append(FetchTopic(topic, NO_UUID, partitions))
    except SHORT_READS as wrong:
        raise malformed(at, position, wrong) from None
    return topics, position


def _decode_9(view: memoryview, position: int) -> FetchRequest:
    values: tuple[int, int, int, int, int, int, int]
    values, position = get_fixed(_I4BI2, view, position, "replica_id")
    topics, position = _get_topics_9(view, position)
    count, position = get_count(view, position, 6, "forgotten_topics_data")
    forgotten_topics_data, position = get_structs(view, position, count, _get_forgotten_topic_7)
    return FetchRequest(None, values[0], ReplicaState(), *values[1:], topics, forgotten_topics_data)


def _decode_11(view: memoryview, position: int) -> FetchRequest:
    values: tuple[int, int, int, int, int, int, int]
    values, position = get_fixed(_I4BI2, view, position, "replica_id")
    topics, position = _get_topics_9(view, position)
    count, position = get_count(view, position, 6, "forgotten_topics_data")
    forgotten_topics_data, position = get_structs(view, position, count, _get_forgotten_topic_7)
    rack_id, position = get_string(view, position, "rack_id")
    return FetchRequest(
        None, values[0], ReplicaState(), *values[1:], topics, forgotten_topics_data, rack_id
    )


def _get_topics_12(view: memoryview, position: int) -> tuple[list[FetchTopic], int]:
    size = len(view)
    try:
        at = "topics"
        length = view[position]
        position += 1
        if length > 0x7F:
            length, position = get_varint(view, position - 1, "topics")
        if not 0 <= length - 1 <= (size - position) // 3:
            raise crowded("topics", view, position, length - 1)
        topics = []
        for _ in range(length - 1):
            topic, position = get_compact_string(view, position, "topic")
            at = "partitions"
            length = view[position]
            position += 1
            if length > 0x7F:
                length, position = get_varint(view, position - 1, "partitions")
            if not 0 <= length - 1 <= (size - position) // 33:
                raise crowded("partitions", view, position, length - 1)
            partitions = []
            for _ in range(length - 1):
                at = "partition"
                values = _I2QIQI.unpack_from(view, position)
                position += 32
                at = "tagged fields"
                length = view[position]
                position += 1
                if length:
                    position = skip_tags(view, position - 1)
                partitions.append(FetchPartition(*values))
            at = "tagged fields"
            length = view[position]
            position += 1
            if length:
                position = skip_tags(view, position - 1)
            topics.append(FetchTopic(topic, NO_UUID, partitions))
    except SHORT_READS as wrong:
        raise malformed(at, position, wrong) from None
    return topics, position


def _get_forgotten_topic_12(view: memoryview, position: int) -> tuple[ForgottenTopic, int]:
    topic, position = get_compact_string(view, position, "topic")
    count, position = get_compact_count(view, position, 4, "partitions")
    partitions, position = get_numbers(view, position, count, "i", 4)
    position = skip_tags(view, position)
    return ForgottenTopic(topic, NO_UUID, partitions), position


def _decode_12(view: memoryview, position: int) -> FetchRequest:
    values: tuple[int, int, int, int, int, int, int]
    values, position = get_fixed(_I4BI2, view, position, "replica_id")
    topics, position = _get_topics_12(view, position)
    count, position = get_compact_count(view, position, 3, "forgotten_topics_data")
    forgotten_topics_data, position = get_structs(view, position, count, _get_forgotten_topic_12)
    rack_id, position = get_compact_string(view, position, "rack_id")
    cluster_id: str | None = None
    tagged, position = get_tags(view, position, (0,))
    if 0 in tagged:
        value = tagged[0]
        cluster_id, _ = get_compact_nullable_string(value, 0, "cluster_id")
    return FetchRequest(
        cluster_id, values[0], ReplicaState(), *values[1:], topics, forgotten_topics_data, rack_id
    )


def _get_topics_13(view: memoryview, position: int) -> tuple[list[FetchTopic], int]:
    size = len(view)
    try:
        at = "topics"
        length = view[position]
        position += 1
        if length > 0x7F:
            length, position = get_varint(view, position - 1, "topics")
        if not 0 <= length - 1 <= (size - position) // 18:
            raise crowded("topics", view, position, length - 1)
        topics = []
        for _ in range(length - 1):
            at = "topic_id"
            topic_id, length = _UC.unpack_from(view, position)
            position += 17
            if length > 0x7F:
                length, position = get_varint(view, position - 1, "partitions")
            if not 0 <= length - 1 <= (size - position) // 33:
                raise crowded("partitions", view, position, length - 1)
            partitions = []
            for _ in range(length - 1):
                at = "partition"
                values = _I2QIQI.unpack_from(view, position)
                position += 32
                at = "tagged fields"
                length = view[position]
                position += 1
                if length:
                    position = skip_tags(view, position - 1)
                partitions.append(FetchPartition(*values))
            at = "tagged fields"
            length = view[position]
            position += 1
            if length:
                position = skip_tags(view, position - 1)
            topics.append(FetchTopic("", topic_id, partitions))
    except SHORT_READS as wrong:
        raise malformed(at, position, wrong) from None
    return topics, position


def _get_forgotten_topic_13(view: memoryview, position: int) -> tuple[ForgottenTopic, int]:
    (topic_id,), position = get_fixed(_U, view, position, "topic_id")
    count, position = get_compact_count(view, position, 4, "partitions")
    partitions, position = get_numbers(view, position, count, "i", 4)
    position = skip_tags(view, position)
    return ForgottenTopic("", topic_id, partitions), position


def _decode_13(view: memoryview, position: int) -> FetchRequest:
    values: tuple[int, int, int, int, int, int, int]
    values, position = get_fixed(_I4BI2, view, position, "replica_id")
    topics, position = _get_topics_13(view, position)
    count, position = get_compact_count(view, position, 18, "forgotten_topics_data")
    forgotten_topics_data, position = get_structs(view, position, count, _get_forgotten_topic_13)
    rack_id, position = get_compact_string(view, position, "rack_id")
    cluster_id: str | None = None
    tagged, position = get_tags(view, position, (0,))
    if 0 in tagged:
        value = tagged[0]
        cluster_id, _ = get_compact_nullable_string(value, 0, "cluster_id")
    return FetchRequest(
        cluster_id, values[0], ReplicaState(), *values[1:], topics, forgotten_topics_data, rack_id
    )


def _get_replica_state_15(view: memoryview, position: int) -> tuple[ReplicaState, int]:
    values, position = get_fixed(_IQ, view, position, "replica_id")
    position = skip_tags(view, position)
    return ReplicaState(*values), position


def _decode_15(view: memoryview, position: int) -> FetchRequest:
    values: tuple[int, int, int, int, int, int]
    values, position = get_fixed(_I3BI2, view, position, "max_wait_ms")
    topics, position = _get_topics_13(view, position)
    count, position = get_compact_count(view, position, 18, "forgotten_topics_data")
    forgotten_topics_data, position = get_structs(view, position, count, _get_forgotten_topic_13)
    rack_id, position = get_compact_string(view, position, "rack_id")
    cluster_id: str | None = None
    replica_state: ReplicaState = ReplicaState()
    tagged, position = get_tags(view, position, (0, 1))
    if 0 in tagged:
        value = tagged[0]
        cluster_id, _ = get_compact_nullable_string(value, 0, "cluster_id")
    if 1 in tagged:
        value = tagged[1]
        replica_state, _ = _get_replica_state_15(value, 0)
    return FetchRequest(
        cluster_id, -1, replica_state, *values, topics, forgotten_topics_data, rack_id
    )


def _put_aborted_transaction_4(out: bytearray, item: AbortedTransaction) -> None:
    out += _Q2.pack(item.producer_id, item.first_offset)


def _put_responses_4(
    parts: list[Buffer], out: bytearray, items: list[FetchableTopicResponse]
) -> bytearray:
    out += _I.pack(len(items))
    for topic in items:
        put_string(out, topic.topic)
        out += _I.pack(len(topic.partitions))
        for partition in topic.partitions:
            out += _IHQ2.pack(
                partition.partition_index,
                partition.error_code,
                partition.high_watermark,
                partition.last_stable_offset,
            )
            put_nullable_array(out, partition.aborted_transactions, _put_aborted_transaction_4)
            records = partition.records
            if records is None:
                out += _I.pack(-1)
            else:
                out += _I.pack(len(records))
                if records:
                    parts += (out, records)
                    out = bytearray()
    return out


def _encode_4(response: FetchResponse) -> list[Buffer]:
    parts: list[Buffer] = []
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    out = _put_responses_4(parts, out, response.responses)
    return [*parts, out]


def _put_responses_5(
    parts: list[Buffer], out: bytearray, items: list[FetchableTopicResponse]
) -> bytearray:
    out += _I.pack(len(items))
    for topic in items:
        put_string(out, topic.topic)
        out += _I.pack(len(topic.partitions))
        for partition in topic.partitions:
            out += _IHQ3.pack(
                partition.partition_index,
                partition.error_code,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.log_start_offset,
            )
            put_nullable_array(out, partition.aborted_transactions, _put_aborted_transaction_4)
            records = partition.records
            if records is None:
                out += _I.pack(-1)
            else:
                out += _I.pack(len(records))
                if records:
                    parts += (out, records)
                    out = bytearray()
    return out


def _encode_5(response: FetchResponse) -> list[Buffer]:
    parts: list[Buffer] = []
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    out = _put_responses_5(parts, out, response.responses)
    return [*parts, out]


def _encode_7(response: FetchResponse) -> list[Buffer]:
    parts: list[Buffer] = []
    out = bytearray()
    out += _IHI.pack(response.throttle_time_ms, response.error_code, response.session_id)
    out = _put_responses_5(parts, out, response.responses)
    return [*parts, out]


def _put_responses_11(
    parts: list[Buffer], out: bytearray, items: list[FetchableTopicResponse]
) -> bytearray:
    out += _I.pack(len(items))
    for topic in items:
        put_string(out, topic.topic)
        out += _I.pack(len(topic.partitions))
        for partition in topic.partitions:
            out += _IHQ3.pack(
                partition.partition_index,
                partition.error_code,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.log_start_offset,
            )
            put_nullable_array(out, partition.aborted_transactions, _put_aborted_transaction_4)
            out += _I.pack(partition.preferred_read_replica)
            records = partition.records
            if records is None:
                out += _I.pack(-1)
            else:
                out += _I.pack(len(records))
                if records:
                    parts += (out, records)
                    out = bytearray()
    return out


def _encode_11(response: FetchResponse) -> list[Buffer]:
    parts: list[Buffer] = []
    out = bytearray()
    out += _IHI.pack(response.throttle_time_ms, response.error_code, response.session_id)
    out = _put_responses_11(parts, out, response.responses)
    return [*parts, out]


def _put_aborted_transaction_12(out: bytearray, item: AbortedTransaction) -> None:
    out += _Q2.pack(item.producer_id, item.first_offset)
    out.append(0)


def _put_epoch_end_offset_12(out: bytearray, item: EpochEndOffset) -> None:
    out += _IQ.pack(item.epoch, item.end_offset)
    out.append(0)


def _put_leader_id_and_epoch_12(out: bytearray, item: LeaderIdAndEpoch) -> None:
    out += _I2.pack(item.leader_id, item.leader_epoch)
    out.append(0)


def _put_snapshot_id_12(out: bytearray, item: SnapshotId) -> None:
    out += _QI.pack(item.end_offset, item.epoch)
    out.append(0)


def _put_tags_of_partition_data_12(out: bytearray, item: PartitionData) -> None:
    tags: list[tuple[int, Buffer]] = []
    if item.diverging_epoch:
        part = bytearray()
        _put_epoch_end_offset_12(part, item.diverging_epoch)
        tags.append((0, part))
    if item.current_leader:
        part = bytearray()
        _put_leader_id_and_epoch_12(part, item.current_leader)
        tags.append((1, part))
    if item.snapshot_id:
        part = bytearray()
        _put_snapshot_id_12(part, item.snapshot_id)
        tags.append((2, part))
    put_tags(out, tags)


def _put_responses_12(
    parts: list[Buffer], out: bytearray, items: list[FetchableTopicResponse]
) -> bytearray:
    put_varint(out, len(items) + 1)
    for topic in items:
        put_compact_string(out, topic.topic)
        put_varint(out, len(topic.partitions) + 1)
        for partition in topic.partitions:
            out += _IHQ3.pack(
                partition.partition_index,
                partition.error_code,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.log_start_offset,
            )
            put_compact_nullable_array(
                out, partition.aborted_transactions, _put_aborted_transaction_12
            )
            out += _I.pack(partition.preferred_read_replica)
            records = partition.records
            if records is None:
                out.append(0)
            else:
                put_varint(out, len(records) + 1)
                if records:
                    parts += (out, records)
                    out = bytearray()
            if partition.diverging_epoch or partition.current_leader or partition.snapshot_id:
                _put_tags_of_partition_data_12(out, partition)
            else:
                out.append(0)
        out.append(0)
    return out


def _encode_12(response: FetchResponse) -> list[Buffer]:
    parts: list[Buffer] = []
    out = bytearray()
    out += _IHI.pack(response.throttle_time_ms, response.error_code, response.session_id)
    out = _put_responses_12(parts, out, response.responses)
    out.append(0)
    return [*parts, out]


def _put_responses_13(
    parts: list[Buffer], out: bytearray, items: list[FetchableTopicResponse]
) -> bytearray:
    put_varint(out, len(items) + 1)
    for topic in items:
        out += _U.pack(topic.topic_id)
        put_varint(out, len(topic.partitions) + 1)
        for partition in topic.partitions:
            out += _IHQ3.pack(
                partition.partition_index,
                partition.error_code,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.log_start_offset,
            )
            put_compact_nullable_array(
                out, partition.aborted_transactions, _put_aborted_transaction_12
            )
            out += _I.pack(partition.preferred_read_replica)
            records = partition.records
            if records is None:
                out.append(0)
            else:
                put_varint(out, len(records) + 1)
                if records:
                    parts += (out, records)
                    out = bytearray()
            if partition.diverging_epoch or partition.current_leader or partition.snapshot_id:
                _put_tags_of_partition_data_12(out, partition)
            else:
                out.append(0)
        out.append(0)
    return out


def _encode_13(response: FetchResponse) -> list[Buffer]:
    parts: list[Buffer] = []
    out = bytearray()
    out += _IHI.pack(response.throttle_time_ms, response.error_code, response.session_id)
    out = _put_responses_13(parts, out, response.responses)
    out.append(0)
    return [*parts, out]


def _put_node_endpoint_16(out: bytearray, item: NodeEndpoint) -> None:
    out += _I.pack(item.node_id)
    put_compact_string(out, item.host)
    out += _I.pack(item.port)
    put_compact_nullable_string(out, item.rack)
    out.append(0)


def _put_tags_of_fetch_response_16(out: bytearray, item: FetchResponse) -> None:
    tags: list[tuple[int, Buffer]] = []
    if item.node_endpoints:
        part = bytearray()
        put_compact_array(part, item.node_endpoints, _put_node_endpoint_16)
        tags.append((0, part))
    put_tags(out, tags)


def _encode_16(response: FetchResponse) -> list[Buffer]:
    parts: list[Buffer] = []
    out = bytearray()
    out += _IHI.pack(response.throttle_time_ms, response.error_code, response.session_id)
    out = _put_responses_13(parts, out, response.responses)
    if response.node_endpoints:
        _put_tags_of_fetch_response_16(out, response)
    else:
        out.append(0)
    return [*parts, out]


DECODE: Final = {
    4: _decode_4,
    **dict.fromkeys(range(5, 7), _decode_5),
    **dict.fromkeys(range(7, 9), _decode_7),
    **dict.fromkeys(range(9, 11), _decode_9),
    11: _decode_11,
    12: _decode_12,
    **dict.fromkeys(range(13, 15), _decode_13),
    **dict.fromkeys(range(15, 17), _decode_15),
}
ENCODE: Final = {
    4: _encode_4,
    **dict.fromkeys(range(5, 7), _encode_5),
    **dict.fromkeys(range(7, 11), _encode_7),
    11: _encode_11,
    12: _encode_12,
    **dict.fromkeys(range(13, 16), _encode_13),
    16: _encode_16,
}
