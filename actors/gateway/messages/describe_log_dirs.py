"""Kafka's DescribeLogDirs in versions 1 to 5; generated, do not edit."""

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
    get_nullable_count,
    get_numbers,
    get_string,
    get_structs,
    put_array,
    put_compact_array,
    put_compact_string,
    put_string,
    skip_tags,
)

_H = Form(">h")
_I = Form(">i")
_IH = Form(">ih")
_IQ2T = Form(">iqq?")
_Q2 = Form(">qq")
_Q2T = Form(">qq?")


class DescribableLogDirTopic(Struct, gc=False):
    """One of ``topics`` of ``DescribeLogDirsRequest``."""

    topic: str = ""
    partitions: list[int] = []


class DescribeLogDirsRequest(Struct, gc=False):
    """DescribeLogDirs, the request."""

    topics: list[DescribableLogDirTopic] | None = []


class DescribeLogDirsPartition(Struct, gc=False):
    """One of ``partitions`` of ``DescribeLogDirsTopic``."""

    partition_index: int = 0
    partition_size: int = 0
    offset_lag: int = 0
    is_future_key: bool = False


class DescribeLogDirsTopic(Struct, gc=False):
    """One of ``topics`` of ``DescribeLogDirsResult``."""

    name: str = ""
    partitions: list[DescribeLogDirsPartition] = []


class DescribeLogDirsResult(Struct, gc=False):
    """One of ``results`` of ``DescribeLogDirsResponse``."""

    error_code: int = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: int = -1
    usable_bytes: int = -1
    is_cordoned: bool = False


class DescribeLogDirsResponse(Struct, gc=False):
    """DescribeLogDirs, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    results: list[DescribeLogDirsResult] = []


def _get_describable_log_dir_topic_1(
    view: memoryview, position: int
) -> tuple[DescribableLogDirTopic, int]:
    topic, position = get_string(view, position, "topic")
    count, position = get_count(view, position, 4, "partitions")
    partitions, position = get_numbers(view, position, count, "i", 4)
    return DescribableLogDirTopic(topic, partitions), position


def _decode_1(view: memoryview, position: int) -> DescribeLogDirsRequest:
    count, position = get_nullable_count(view, position, 6, "topics")
    topics: list[DescribableLogDirTopic] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_describable_log_dir_topic_1)
    return DescribeLogDirsRequest(topics)


def _get_describable_log_dir_topic_2(
    view: memoryview, position: int
) -> tuple[DescribableLogDirTopic, int]:
    topic, position = get_compact_string(view, position, "topic")
    count, position = get_compact_count(view, position, 4, "partitions")
    partitions, position = get_numbers(view, position, count, "i", 4)
    position = skip_tags(view, position)
    return DescribableLogDirTopic(topic, partitions), position


def _decode_2(view: memoryview, position: int) -> DescribeLogDirsRequest:
    count, position = get_compact_nullable_count(view, position, 3, "topics")
    topics: list[DescribableLogDirTopic] | None = None
    if count >= 0:
        topics, position = get_structs(view, position, count, _get_describable_log_dir_topic_2)
    position = skip_tags(view, position)
    return DescribeLogDirsRequest(topics)


def _put_describe_log_dirs_partition_1(out: bytearray, item: DescribeLogDirsPartition) -> None:
    out += _IQ2T.pack(
        item.partition_index, item.partition_size, item.offset_lag, item.is_future_key
    )


def _put_describe_log_dirs_topic_1(out: bytearray, item: DescribeLogDirsTopic) -> None:
    put_string(out, item.name)
    put_array(out, item.partitions, _put_describe_log_dirs_partition_1)


def _put_describe_log_dirs_result_1(out: bytearray, item: DescribeLogDirsResult) -> None:
    out += _H.pack(item.error_code)
    put_string(out, item.log_dir)
    put_array(out, item.topics, _put_describe_log_dirs_topic_1)


def _encode_1(response: DescribeLogDirsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.results, _put_describe_log_dirs_result_1)
    return [out]


def _put_describe_log_dirs_partition_2(out: bytearray, item: DescribeLogDirsPartition) -> None:
    out += _IQ2T.pack(
        item.partition_index, item.partition_size, item.offset_lag, item.is_future_key
    )
    out.append(0)


def _put_describe_log_dirs_topic_2(out: bytearray, item: DescribeLogDirsTopic) -> None:
    put_compact_string(out, item.name)
    put_compact_array(out, item.partitions, _put_describe_log_dirs_partition_2)
    out.append(0)


def _put_describe_log_dirs_result_2(out: bytearray, item: DescribeLogDirsResult) -> None:
    out += _H.pack(item.error_code)
    put_compact_string(out, item.log_dir)
    put_compact_array(out, item.topics, _put_describe_log_dirs_topic_2)
    out.append(0)


def _encode_2(response: DescribeLogDirsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.results, _put_describe_log_dirs_result_2)
    out.append(0)
    return [out]


def _encode_3(response: DescribeLogDirsResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_array(out, response.results, _put_describe_log_dirs_result_2)
    out.append(0)
    return [out]


def _put_describe_log_dirs_result_4(out: bytearray, item: DescribeLogDirsResult) -> None:
    out += _H.pack(item.error_code)
    put_compact_string(out, item.log_dir)
    put_compact_array(out, item.topics, _put_describe_log_dirs_topic_2)
    out += _Q2.pack(item.total_bytes, item.usable_bytes)
    out.append(0)


def _encode_4(response: DescribeLogDirsResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_array(out, response.results, _put_describe_log_dirs_result_4)
    out.append(0)
    return [out]


def _put_describe_log_dirs_result_5(out: bytearray, item: DescribeLogDirsResult) -> None:
    out += _H.pack(item.error_code)
    put_compact_string(out, item.log_dir)
    put_compact_array(out, item.topics, _put_describe_log_dirs_topic_2)
    out += _Q2T.pack(item.total_bytes, item.usable_bytes, item.is_cordoned)
    out.append(0)


def _encode_5(response: DescribeLogDirsResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_array(out, response.results, _put_describe_log_dirs_result_5)
    out.append(0)
    return [out]


DECODE: Final = {1: _decode_1, **dict.fromkeys(range(2, 6), _decode_2)}
ENCODE: Final = {1: _encode_1, 2: _encode_2, 3: _encode_3, 4: _encode_4, 5: _encode_5}
