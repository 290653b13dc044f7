"""Kafka's LeaveGroup in versions 0 to 5; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_nullable_string,
    get_compact_string,
    get_count,
    get_nullable_string,
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

_H = Form(">h")
_IH = Form(">ih")


class MemberIdentity(Struct, gc=False):
    """One of ``members`` of ``LeaveGroupRequest``."""

    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveGroupRequest(Struct, gc=False):
    """LeaveGroup, the request."""

    group_id: str = ""
    member_id: str = ""
    members: list[MemberIdentity] = []


class MemberResponse(Struct, gc=False):
    """One of ``members`` of ``LeaveGroupResponse``."""

    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: int = 0


class LeaveGroupResponse(Struct, gc=False):
    """LeaveGroup, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    members: list[MemberResponse] = []


def _decode_0(view: memoryview, position: int) -> LeaveGroupRequest:
    group_id, position = get_string(view, position, "group_id")
    member_id, position = get_string(view, position, "member_id")
    return LeaveGroupRequest(group_id, member_id)


def _get_member_identity_3(view: memoryview, position: int) -> tuple[MemberIdentity, int]:
    member_id, position = get_string(view, position, "member_id")
    group_instance_id, position = get_nullable_string(view, position, "group_instance_id")
    return MemberIdentity(member_id, group_instance_id), position


def _decode_3(view: memoryview, position: int) -> LeaveGroupRequest:
    group_id, position = get_string(view, position, "group_id")
    count, position = get_count(view, position, 4, "members")
    members, position = get_structs(view, position, count, _get_member_identity_3)
    return LeaveGroupRequest(group_id, "", members)


def _get_member_identity_4(view: memoryview, position: int) -> tuple[MemberIdentity, int]:
    member_id, position = get_compact_string(view, position, "member_id")
    group_instance_id, position = get_compact_nullable_string(view, position, "group_instance_id")
    position = skip_tags(view, position)
    return MemberIdentity(member_id, group_instance_id), position


def _decode_4(view: memoryview, position: int) -> LeaveGroupRequest:
    group_id, position = get_compact_string(view, position, "group_id")
    count, position = get_compact_count(view, position, 3, "members")
    members, position = get_structs(view, position, count, _get_member_identity_4)
    position = skip_tags(view, position)
    return LeaveGroupRequest(group_id, "", members)


def _get_member_identity_5(view: memoryview, position: int) -> tuple[MemberIdentity, int]:
    member_id, position = get_compact_string(view, position, "member_id")
    group_instance_id, position = get_compact_nullable_string(view, position, "group_instance_id")
    reason, position = get_compact_nullable_string(view, position, "reason")
    position = skip_tags(view, position)
    return MemberIdentity(member_id, group_instance_id, reason), position


def _decode_5(view: memoryview, position: int) -> LeaveGroupRequest:
    group_id, position = get_compact_string(view, position, "group_id")
    count, position = get_compact_count(view, position, 4, "members")
    members, position = get_structs(view, position, count, _get_member_identity_5)
    position = skip_tags(view, position)
    return LeaveGroupRequest(group_id, "", members)


def _encode_0(response: LeaveGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _H.pack(response.error_code)
    return [out]


def _encode_1(response: LeaveGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    return [out]


def _put_member_response_3(out: bytearray, item: MemberResponse) -> None:
    put_string(out, item.member_id)
    put_nullable_string(out, item.group_instance_id)
    out += _H.pack(item.error_code)


def _encode_3(response: LeaveGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_array(out, response.members, _put_member_response_3)
    return [out]


def _put_member_response_4(out: bytearray, item: MemberResponse) -> None:
    put_compact_string(out, item.member_id)
    put_compact_nullable_string(out, item.group_instance_id)
    out += _H.pack(item.error_code)
    out.append(0)


def _encode_4(response: LeaveGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_array(out, response.members, _put_member_response_4)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(3), _decode_0), 3: _decode_3, 4: _decode_4, 5: _decode_5}
ENCODE: Final = {
    0: _encode_0,
    **dict.fromkeys(range(1, 3), _encode_1),
    3: _encode_3,
    **dict.fromkeys(range(4, 6), _encode_4),
}
