"""Kafka's DescribeGroups in versions 0 to 6; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_string,
    get_count,
    get_fixed,
    get_string,
    get_strings,
    put_array,
    put_bytes,
    put_compact_array,
    put_compact_bytes,
    put_compact_nullable_string,
    put_compact_string,
    put_nullable_string,
    put_string,
    skip_tags,
)

_H = Form(">h")
_I = Form(">i")
_T = Form(">?")


class DescribeGroupsRequest(Struct, gc=False):
    """DescribeGroups, the request."""

    groups: list[str] = []
    include_authorized_operations: bool = False


class DescribedGroupMember(Struct, gc=False):
    """One of ``members`` of ``DescribedGroup``."""

    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: Buffer = b""
    member_assignment: Buffer = b""


class DescribedGroup(Struct, gc=False):
    """One of ``groups`` of ``DescribeGroupsResponse``."""

    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: int = -2147483648


class DescribeGroupsResponse(Struct, gc=False):
    """DescribeGroups, the response."""

    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = []


def _decode_0(view: memoryview, position: int) -> DescribeGroupsRequest:
    count, position = get_count(view, position, 2, "groups")
    groups, position = get_strings(view, position, count, get_string, "groups")
    return DescribeGroupsRequest(groups)


def _decode_3(view: memoryview, position: int) -> DescribeGroupsRequest:
    count, position = get_count(view, position, 2, "groups")
    groups, position = get_strings(view, position, count, get_string, "groups")
    (include_authorized_operations,), position = get_fixed(
        _T, view, position, "include_authorized_operations"
    )
    return DescribeGroupsRequest(groups, include_authorized_operations)


def _decode_5(view: memoryview, position: int) -> DescribeGroupsRequest:
    count, position = get_compact_count(view, position, 1, "groups")
    groups, position = get_strings(view, position, count, get_compact_string, "groups")
    (include_authorized_operations,), position = get_fixed(
        _T, view, position, "include_authorized_operations"
    )
    position = skip_tags(view, position)
    return DescribeGroupsRequest(groups, include_authorized_operations)


def _put_described_group_member_0(out: bytearray, item: DescribedGroupMember) -> None:
    put_string(out, item.member_id)
    put_string(out, item.client_id)
    put_string(out, item.client_host)
    put_bytes(out, item.member_metadata)
    put_bytes(out, item.member_assignment)


def _put_described_group_0(out: bytearray, item: DescribedGroup) -> None:
    out += _H.pack(item.error_code)
    put_string(out, item.group_id)
    put_string(out, item.group_state)
    put_string(out, item.protocol_type)
    put_string(out, item.protocol_data)
    put_array(out, item.members, _put_described_group_member_0)


def _encode_0(response: DescribeGroupsResponse) -> list[Buffer]:
    out = bytearray()
    put_array(out, response.groups, _put_described_group_0)
    return [out]


def _encode_1(response: DescribeGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.groups, _put_described_group_0)
    return [out]


def _put_described_group_3(out: bytearray, item: DescribedGroup) -> None:
    out += _H.pack(item.error_code)
    put_string(out, item.group_id)
    put_string(out, item.group_state)
    put_string(out, item.protocol_type)
    put_string(out, item.protocol_data)
    put_array(out, item.members, _put_described_group_member_0)
    out += _I.pack(item.authorized_operations)


def _encode_3(response: DescribeGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.groups, _put_described_group_3)
    return [out]


def _put_described_group_member_4(out: bytearray, item: DescribedGroupMember) -> None:
    put_string(out, item.member_id)
    put_nullable_string(out, item.group_instance_id)
    put_string(out, item.client_id)
    put_string(out, item.client_host)
    put_bytes(out, item.member_metadata)
    put_bytes(out, item.member_assignment)


def _put_described_group_4(out: bytearray, item: DescribedGroup) -> None:
    out += _H.pack(item.error_code)
    put_string(out, item.group_id)
    put_string(out, item.group_state)
    put_string(out, item.protocol_type)
    put_string(out, item.protocol_data)
    put_array(out, item.members, _put_described_group_member_4)
    out += _I.pack(item.authorized_operations)


def _encode_4(response: DescribeGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.groups, _put_described_group_4)
    return [out]


def _put_described_group_member_5(out: bytearray, item: DescribedGroupMember) -> None:
    put_compact_string(out, item.member_id)
    put_compact_nullable_string(out, item.group_instance_id)
    put_compact_string(out, item.client_id)
    put_compact_string(out, item.client_host)
    put_compact_bytes(out, item.member_metadata)
    put_compact_bytes(out, item.member_assignment)
    out.append(0)


def _put_described_group_5(out: bytearray, item: DescribedGroup) -> None:
    out += _H.pack(item.error_code)
    put_compact_string(out, item.group_id)
    put_compact_string(out, item.group_state)
    put_compact_string(out, item.protocol_type)
    put_compact_string(out, item.protocol_data)
    put_compact_array(out, item.members, _put_described_group_member_5)
    out += _I.pack(item.authorized_operations)
    out.append(0)


def _encode_5(response: DescribeGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.groups, _put_described_group_5)
    out.append(0)
    return [out]


def _put_described_group_6(out: bytearray, item: DescribedGroup) -> None:
    out += _H.pack(item.error_code)
    put_compact_nullable_string(out, item.error_message)
    put_compact_string(out, item.group_id)
    put_compact_string(out, item.group_state)
    put_compact_string(out, item.protocol_type)
    put_compact_string(out, item.protocol_data)
    put_compact_array(out, item.members, _put_described_group_member_5)
    out += _I.pack(item.authorized_operations)
    out.append(0)


def _encode_6(response: DescribeGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.groups, _put_described_group_6)
    out.append(0)
    return [out]


DECODE: Final = {
    **dict.fromkeys(range(3), _decode_0),
    **dict.fromkeys(range(3, 5), _decode_3),
    **dict.fromkeys(range(5, 7), _decode_5),
}
ENCODE: Final = {
    0: _encode_0,
    **dict.fromkeys(range(1, 3), _encode_1),
    3: _encode_3,
    4: _encode_4,
    5: _encode_5,
    6: _encode_6,
}
