"""Kafka's Heartbeat in versions 0 to 4; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_nullable_string,
    get_compact_string,
    get_fixed,
    get_nullable_string,
    get_string,
    skip_tags,
)

_H = Form(">h")
_I = Form(">i")
_IH = Form(">ih")


class HeartbeatRequest(Struct, gc=False):
    """Heartbeat, the request."""

    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None


class HeartbeatResponse(Struct, gc=False):
    """Heartbeat, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0


def _decode_0(view: memoryview, position: int) -> HeartbeatRequest:
    group_id, position = get_string(view, position, "group_id")
    (generation_id,), position = get_fixed(_I, view, position, "generation_id")
    member_id, position = get_string(view, position, "member_id")
    return HeartbeatRequest(group_id, generation_id, member_id)


def _decode_3(view: memoryview, position: int) -> HeartbeatRequest:
    group_id, position = get_string(view, position, "group_id")
    (generation_id,), position = get_fixed(_I, view, position, "generation_id")
    member_id, position = get_string(view, position, "member_id")
    group_instance_id, position = get_nullable_string(view, position, "group_instance_id")
    return HeartbeatRequest(group_id, generation_id, member_id, group_instance_id)


def _decode_4(view: memoryview, position: int) -> HeartbeatRequest:
    group_id, position = get_compact_string(view, position, "group_id")
    (generation_id,), position = get_fixed(_I, view, position, "generation_id")
    member_id, position = get_compact_string(view, position, "member_id")
    group_instance_id, position = get_compact_nullable_string(view, position, "group_instance_id")
    position = skip_tags(view, position)
    return HeartbeatRequest(group_id, generation_id, member_id, group_instance_id)


def _encode_0(response: HeartbeatResponse) -> list[Buffer]:
    out = bytearray()
    out += _H.pack(response.error_code)
    return [out]


def _encode_1(response: HeartbeatResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    return [out]


def _encode_4(response: HeartbeatResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(3), _decode_0), 3: _decode_3, 4: _decode_4}
ENCODE: Final = {0: _encode_0, **dict.fromkeys(range(1, 4), _encode_1), 4: _encode_4}
