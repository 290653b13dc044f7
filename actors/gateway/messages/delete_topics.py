"""Kafka's DeleteTopics in versions 1 to 6; generated, do not edit."""

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
    get_string,
    get_strings,
    get_structs,
    put_array,
    put_compact_array,
    put_compact_nullable_string,
    put_compact_string,
    put_string,
    skip_tags,
)

_H = Form(">h")
_I = Form(">i")
_U = Form(">16s")
_UH = Form(">16sh")


class DeleteTopicState(Struct, gc=False):
    """One of ``topics`` of ``DeleteTopicsRequest``."""

    name: str | None = None
    topic_id: bytes = NO_UUID


class DeleteTopicsRequest(Struct, gc=False):
    """DeleteTopics, the request."""

    topics: list[DeleteTopicState] = []
    topic_names: list[str] = []
    timeout_ms: int = 0


class DeletableTopicResult(Struct, gc=False):
    """One of ``responses`` of ``DeleteTopicsResponse``."""

    name: str | None = ""
    topic_id: bytes = NO_UUID
    error_code: int = 0
    error_message: str | None = None


class DeleteTopicsResponse(Struct, gc=False):
    """DeleteTopics, the response."""

    throttle_time_ms: int = 0
    responses: list[DeletableTopicResult] = []


def _decode_1(view: memoryview, position: int) -> DeleteTopicsRequest:
    count, position = get_count(view, position, 2, "topic_names")
    topic_names, position = get_strings(view, position, count, get_string, "topic_names")
    (timeout_ms,), position = get_fixed(_I, view, position, "timeout_ms")
    return DeleteTopicsRequest([], topic_names, timeout_ms)


def _decode_4(view: memoryview, position: int) -> DeleteTopicsRequest:
    count, position = get_compact_count(view, position, 1, "topic_names")
    topic_names, position = get_strings(view, position, count, get_compact_string, "topic_names")
    (timeout_ms,), position = get_fixed(_I, view, position, "timeout_ms")
    position = skip_tags(view, position)
    return DeleteTopicsRequest([], topic_names, timeout_ms)


def _get_delete_topic_state_6(view: memoryview, position: int) -> tuple[DeleteTopicState, int]:
    name, position = get_compact_nullable_string(view, position, "name")
    (topic_id,), position = get_fixed(_U, view, position, "topic_id")
    position = skip_tags(view, position)
    return DeleteTopicState(name, topic_id), position


def _decode_6(view: memoryview, position: int) -> DeleteTopicsRequest:
    count, position = get_compact_count(view, position, 18, "topics")
    topics, position = get_structs(view, position, count, _get_delete_topic_state_6)
    (timeout_ms,), position = get_fixed(_I, view, position, "timeout_ms")
    position = skip_tags(view, position)
    return DeleteTopicsRequest(topics, [], timeout_ms)


def _put_deletable_topic_result_1(out: bytearray, item: DeletableTopicResult) -> None:
    put_string(out, item.name or "")
    out += _H.pack(item.error_code)


def _encode_1(response: DeleteTopicsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.responses, _put_deletable_topic_result_1)
    return [out]


def _put_deletable_topic_result_4(out: bytearray, item: DeletableTopicResult) -> None:
    put_compact_string(out, item.name or "")
    out += _H.pack(item.error_code)
    out.append(0)


def _encode_4(response: DeleteTopicsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.responses, _put_deletable_topic_result_4)
    out.append(0)
    return [out]


def _put_deletable_topic_result_5(out: bytearray, item: DeletableTopicResult) -> None:
    put_compact_string(out, item.name or "")
    out += _H.pack(item.error_code)
    put_compact_nullable_string(out, item.error_message)
    out.append(0)


def _encode_5(response: DeleteTopicsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.responses, _put_deletable_topic_result_5)
    out.append(0)
    return [out]


def _put_deletable_topic_result_6(out: bytearray, item: DeletableTopicResult) -> None:
    put_compact_nullable_string(out, item.name)
    out += _UH.pack(item.topic_id, item.error_code)
    put_compact_nullable_string(out, item.error_message)
    out.append(0)


def _encode_6(response: DeleteTopicsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.responses, _put_deletable_topic_result_6)
    out.append(0)
    return [out]


DECODE: Final = {
    **dict.fromkeys(range(1, 4), _decode_1),
    **dict.fromkeys(range(4, 6), _decode_4),
    6: _decode_6,
}
ENCODE: Final = {**dict.fromkeys(range(1, 4), _encode_1), 4: _encode_4, 5: _encode_5, 6: _encode_6}
