"""Kafka's ListGroups in versions 0 to 5; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_string,
    get_strings,
    put_array,
    put_compact_array,
    put_compact_string,
    put_string,
    skip_tags,
)

_H = Form(">h")
_IH = Form(">ih")


class ListGroupsRequest(Struct, gc=False):
    """ListGroups, the request."""

    states_filter: list[str] = []
    types_filter: list[str] = []


class ListedGroup(Struct, gc=False):
    """One of ``groups`` of ``ListGroupsResponse``."""

    group_id: str = ""
    protocol_type: str = ""
    group_state: str = ""
    group_type: str = ""


class ListGroupsResponse(Struct, gc=False):
    """ListGroups, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    groups: list[ListedGroup] = []


def _decode_0(_view: memoryview, _position: int) -> ListGroupsRequest:
    return ListGroupsRequest()


def _decode_3(view: memoryview, position: int) -> ListGroupsRequest:
    position = skip_tags(view, position)
    return ListGroupsRequest()


def _decode_4(view: memoryview, position: int) -> ListGroupsRequest:
    count, position = get_compact_count(view, position, 1, "states_filter")
    states_filter, position = get_strings(
        view, position, count, get_compact_string, "states_filter"
    )
    position = skip_tags(view, position)
    return ListGroupsRequest(states_filter)


def _decode_5(view: memoryview, position: int) -> ListGroupsRequest:
    count, position = get_compact_count(view, position, 1, "states_filter")
    states_filter, position = get_strings(
        view, position, count, get_compact_string, "states_filter"
    )
    count, position = get_compact_count(view, position, 1, "types_filter")
    types_filter, position = get_strings(view, position, count, get_compact_string, "types_filter")
    position = skip_tags(view, position)
    return ListGroupsRequest(states_filter, types_filter)


def _put_listed_group_0(out: bytearray, item: ListedGroup) -> None:
    put_string(out, item.group_id)
    put_string(out, item.protocol_type)


def _encode_0(response: ListGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _H.pack(response.error_code)
    put_array(out, response.groups, _put_listed_group_0)
    return [out]


def _encode_1(response: ListGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_array(out, response.groups, _put_listed_group_0)
    return [out]


def _put_listed_group_3(out: bytearray, item: ListedGroup) -> None:
    put_compact_string(out, item.group_id)
    put_compact_string(out, item.protocol_type)
    out.append(0)


def _encode_3(response: ListGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_array(out, response.groups, _put_listed_group_3)
    out.append(0)
    return [out]


def _put_listed_group_4(out: bytearray, item: ListedGroup) -> None:
    put_compact_string(out, item.group_id)
    put_compact_string(out, item.protocol_type)
    put_compact_string(out, item.group_state)
    out.append(0)


def _encode_4(response: ListGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_array(out, response.groups, _put_listed_group_4)
    out.append(0)
    return [out]


def _put_listed_group_5(out: bytearray, item: ListedGroup) -> None:
    put_compact_string(out, item.group_id)
    put_compact_string(out, item.protocol_type)
    put_compact_string(out, item.group_state)
    put_compact_string(out, item.group_type)
    out.append(0)


def _encode_5(response: ListGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_array(out, response.groups, _put_listed_group_5)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(3), _decode_0), 3: _decode_3, 4: _decode_4, 5: _decode_5}
ENCODE: Final = {
    0: _encode_0,
    **dict.fromkeys(range(1, 3), _encode_1),
    3: _encode_3,
    4: _encode_4,
    5: _encode_5,
}
