"""Kafka's FindCoordinator in versions 0 to 6; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_string,
    get_fixed,
    get_string,
    get_strings,
    put_compact_array,
    put_compact_nullable_string,
    put_compact_string,
    put_nullable_string,
    put_string,
    skip_tags,
)

_B = Form(">b")
_HI = Form(">hi")
_I = Form(">i")
_IH = Form(">ih")


class FindCoordinatorRequest(Struct, gc=False):
    """FindCoordinator, the request."""

    key: str = ""
    key_type: int = 0
    coordinator_keys: list[str] = []


class Coordinator(Struct, gc=False):
    """One of ``coordinators`` of ``FindCoordinatorResponse``."""

    key: str = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    error_code: int = 0
    error_message: str | None = ""


class FindCoordinatorResponse(Struct, gc=False):
    """FindCoordinator, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    coordinators: list[Coordinator] = []


def _decode_0(view: memoryview, position: int) -> FindCoordinatorRequest:
    key, position = get_string(view, position, "key")
    return FindCoordinatorRequest(key)


def _decode_1(view: memoryview, position: int) -> FindCoordinatorRequest:
    key, position = get_string(view, position, "key")
    (key_type,), position = get_fixed(_B, view, position, "key_type")
    return FindCoordinatorRequest(key, key_type)


def _decode_3(view: memoryview, position: int) -> FindCoordinatorRequest:
    key, position = get_compact_string(view, position, "key")
    (key_type,), position = get_fixed(_B, view, position, "key_type")
    position = skip_tags(view, position)
    return FindCoordinatorRequest(key, key_type)


def _decode_4(view: memoryview, position: int) -> FindCoordinatorRequest:
    (key_type,), position = get_fixed(_B, view, position, "key_type")
    count, position = get_compact_count(view, position, 1, "coordinator_keys")
    coordinator_keys, position = get_strings(
        view, position, count, get_compact_string, "coordinator_keys"
    )
    position = skip_tags(view, position)
    return FindCoordinatorRequest("", key_type, coordinator_keys)


def _encode_0(response: FindCoordinatorResponse) -> list[Buffer]:
    out = bytearray()
    out += _HI.pack(response.error_code, response.node_id)
    put_string(out, response.host)
    out += _I.pack(response.port)
    return [out]


def _encode_1(response: FindCoordinatorResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_nullable_string(out, response.error_message)
    out += _I.pack(response.node_id)
    put_string(out, response.host)
    out += _I.pack(response.port)
    return [out]


def _encode_3(response: FindCoordinatorResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_nullable_string(out, response.error_message)
    out += _I.pack(response.node_id)
    put_compact_string(out, response.host)
    out += _I.pack(response.port)
    out.append(0)
    return [out]


def _put_coordinator_4(out: bytearray, item: Coordinator) -> None:
    put_compact_string(out, item.key)
    out += _I.pack(item.node_id)
    put_compact_string(out, item.host)
    out += _IH.pack(item.port, item.error_code)
    put_compact_nullable_string(out, item.error_message)
    out.append(0)


def _encode_4(response: FindCoordinatorResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.coordinators, _put_coordinator_4)
    out.append(0)
    return [out]


DECODE: Final = {
    0: _decode_0,
    **dict.fromkeys(range(1, 3), _decode_1),
    3: _decode_3,
    **dict.fromkeys(range(4, 7), _decode_4),
}
ENCODE: Final = {
    0: _encode_0,
    **dict.fromkeys(range(1, 3), _encode_1),
    3: _encode_3,
    **dict.fromkeys(range(4, 7), _encode_4),
}
