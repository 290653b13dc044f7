"""Kafka's JoinGroup in versions 0 to 9; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    NO_BYTES,
    Buffer,
    get_bytes,
    get_compact_bytes,
    get_compact_count,
    get_compact_nullable_string,
    get_compact_string,
    get_count,
    get_fixed,
    get_nullable_string,
    get_string,
    get_structs,
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

_HI = Form(">hi")
_I = Form(">i")
_I2 = Form(">ii")
_IHI = Form(">ihi")
_T = Form(">?")


class JoinGroupRequestProtocol(Struct, gc=False):
    """One of ``protocols`` of ``JoinGroupRequest``."""

    name: str = ""
    metadata: memoryview = NO_BYTES


class JoinGroupRequest(Struct, gc=False):
    """JoinGroup, the request."""

    group_id: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: str | None = None


class JoinGroupResponseMember(Struct, gc=False):
    """One of ``members`` of ``JoinGroupResponse``."""

    member_id: str = ""
    group_instance_id: str | None = None
    metadata: Buffer = b""


class JoinGroupResponse(Struct, gc=False):
    """JoinGroup, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = ""
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: list[JoinGroupResponseMember] = []


def _get_join_group_request_protocol_0(
    view: memoryview, position: int
) -> tuple[JoinGroupRequestProtocol, int]:
    name, position = get_string(view, position, "name")
    metadata, position = get_bytes(view, position, "metadata")
    return JoinGroupRequestProtocol(name, metadata), position


def _decode_0(view: memoryview, position: int) -> JoinGroupRequest:
    group_id, position = get_string(view, position, "group_id")
    (session_timeout_ms,), position = get_fixed(_I, view, position, "session_timeout_ms")
    member_id, position = get_string(view, position, "member_id")
    protocol_type, position = get_string(view, position, "protocol_type")
    count, position = get_count(view, position, 6, "protocols")
    protocols, position = get_structs(view, position, count, _get_join_group_request_protocol_0)
    return JoinGroupRequest(
        group_id, session_timeout_ms, -1, member_id, None, protocol_type, protocols
    )


def _decode_1(view: memoryview, position: int) -> JoinGroupRequest:
    group_id, position = get_string(view, position, "group_id")
    (session_timeout_ms, rebalance_timeout_ms), position = get_fixed(
        _I2, view, position, "session_timeout_ms"
    )
    member_id, position = get_string(view, position, "member_id")
    protocol_type, position = get_string(view, position, "protocol_type")
    count, position = get_count(view, position, 6, "protocols")
    protocols, position = get_structs(view, position, count, _get_join_group_request_protocol_0)
    return JoinGroupRequest(
        group_id,
        session_timeout_ms,
        rebalance_timeout_ms,
        member_id,
        None,
        protocol_type,
        protocols,
    )


def _decode_5(view: memoryview, position: int) -> JoinGroupRequest:
    group_id, position = get_string(view, position, "group_id")
    (session_timeout_ms, rebalance_timeout_ms), position = get_fixed(
        _I2, view, position, "session_timeout_ms"
    )
    member_id, position = get_string(view, position, "member_id")
    group_instance_id, position = get_nullable_string(view, position, "group_instance_id")
    protocol_type, position = get_string(view, position, "protocol_type")
    count, position = get_count(view, position, 6, "protocols")
    protocols, position = get_structs(view, position, count, _get_join_group_request_protocol_0)
    return JoinGroupRequest(
        group_id,
        session_timeout_ms,
        rebalance_timeout_ms,
        member_id,
        group_instance_id,
        protocol_type,
        protocols,
    )


def _get_join_group_request_protocol_6(
    view: memoryview, position: int
) -> tuple[JoinGroupRequestProtocol, int]:
    name, position = get_compact_string(view, position, "name")
    metadata, position = get_compact_bytes(view, position, "metadata")
    position = skip_tags(view, position)
    return JoinGroupRequestProtocol(name, metadata), position


def _decode_6(view: memoryview, position: int) -> JoinGroupRequest:
    group_id, position = get_compact_string(view, position, "group_id")
    (session_timeout_ms, rebalance_timeout_ms), position = get_fixed(
        _I2, view, position, "session_timeout_ms"
    )
    member_id, position = get_compact_string(view, position, "member_id")
    group_instance_id, position = get_compact_nullable_string(view, position, "group_instance_id")
    protocol_type, position = get_compact_string(view, position, "protocol_type")
    count, position = get_compact_count(view, position, 3, "protocols")
    protocols, position = get_structs(view, position, count, _get_join_group_request_protocol_6)
    position = skip_tags(view, position)
    return JoinGroupRequest(
        group_id,
        session_timeout_ms,
        rebalance_timeout_ms,
        member_id,
        group_instance_id,
        protocol_type,
        protocols,
    )


def _decode_8(view: memoryview, position: int) -> JoinGroupRequest:
    group_id, position = get_compact_string(view, position, "group_id")
    (session_timeout_ms, rebalance_timeout_ms), position = get_fixed(
        _I2, view, position, "session_timeout_ms"
    )
    member_id, position = get_compact_string(view, position, "member_id")
    group_instance_id, position = get_compact_nullable_string(view, position, "group_instance_id")
    protocol_type, position = get_compact_string(view, position, "protocol_type")
    count, position = get_compact_count(view, position, 3, "protocols")
    protocols, position = get_structs(view, position, count, _get_join_group_request_protocol_6)
    reason, position = get_compact_nullable_string(view, position, "reason")
    position = skip_tags(view, position)
    return JoinGroupRequest(
        group_id,
        session_timeout_ms,
        rebalance_timeout_ms,
        member_id,
        group_instance_id,
        protocol_type,
        protocols,
        reason,
    )


def _put_join_group_response_member_0(out: bytearray, item: JoinGroupResponseMember) -> None:
    put_string(out, item.member_id)
    put_bytes(out, item.metadata)


def _encode_0(response: JoinGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _HI.pack(response.error_code, response.generation_id)
    put_string(out, response.protocol_name or "")
    put_string(out, response.leader)
    put_string(out, response.member_id)
    put_array(out, response.members, _put_join_group_response_member_0)
    return [out]


def _encode_2(response: JoinGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _IHI.pack(response.throttle_time_ms, response.error_code, response.generation_id)
    put_string(out, response.protocol_name or "")
    put_string(out, response.leader)
    put_string(out, response.member_id)
    put_array(out, response.members, _put_join_group_response_member_0)
    return [out]


def _put_join_group_response_member_5(out: bytearray, item: JoinGroupResponseMember) -> None:
    put_string(out, item.member_id)
    put_nullable_string(out, item.group_instance_id)
    put_bytes(out, item.metadata)


def _encode_5(response: JoinGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _IHI.pack(response.throttle_time_ms, response.error_code, response.generation_id)
    put_string(out, response.protocol_name or "")
    put_string(out, response.leader)
    put_string(out, response.member_id)
    put_array(out, response.members, _put_join_group_response_member_5)
    return [out]


def _put_join_group_response_member_6(out: bytearray, item: JoinGroupResponseMember) -> None:
    put_compact_string(out, item.member_id)
    put_compact_nullable_string(out, item.group_instance_id)
    put_compact_bytes(out, item.metadata)
    out.append(0)


def _encode_6(response: JoinGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _IHI.pack(response.throttle_time_ms, response.error_code, response.generation_id)
    put_compact_string(out, response.protocol_name or "")
    put_compact_string(out, response.leader)
    put_compact_string(out, response.member_id)
    put_compact_array(out, response.members, _put_join_group_response_member_6)
    out.append(0)
    return [out]


def _encode_7(response: JoinGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _IHI.pack(response.throttle_time_ms, response.error_code, response.generation_id)
    put_compact_nullable_string(out, response.protocol_type)
    put_compact_nullable_string(out, response.protocol_name)
    put_compact_string(out, response.leader)
    put_compact_string(out, response.member_id)
    put_compact_array(out, response.members, _put_join_group_response_member_6)
    out.append(0)
    return [out]


def _encode_9(response: JoinGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _IHI.pack(response.throttle_time_ms, response.error_code, response.generation_id)
    put_compact_nullable_string(out, response.protocol_type)
    put_compact_nullable_string(out, response.protocol_name)
    put_compact_string(out, response.leader)
    out += _T.pack(response.skip_assignment)
    put_compact_string(out, response.member_id)
    put_compact_array(out, response.members, _put_join_group_response_member_6)
    out.append(0)
    return [out]


DECODE: Final = {
    0: _decode_0,
    **dict.fromkeys(range(1, 5), _decode_1),
    5: _decode_5,
    **dict.fromkeys(range(6, 8), _decode_6),
    **dict.fromkeys(range(8, 10), _decode_8),
}
ENCODE: Final = {
    **dict.fromkeys(range(2), _encode_0),
    **dict.fromkeys(range(2, 5), _encode_2),
    5: _encode_5,
    6: _encode_6,
    **dict.fromkeys(range(7, 9), _encode_7),
    9: _encode_9,
}
