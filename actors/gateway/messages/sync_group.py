"""Kafka's SyncGroup in versions 0 to 5; generated, do not edit."""

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
    put_bytes,
    put_compact_bytes,
    put_compact_nullable_string,
    skip_tags,
)

_H = Form(">h")
_I = Form(">i")
_IH = Form(">ih")


class SyncGroupRequestAssignment(Struct, gc=False):
    """One of ``assignments`` of ``SyncGroupRequest``."""

    member_id: str = ""
    assignment: memoryview = NO_BYTES


class SyncGroupRequest(Struct, gc=False):
    """SyncGroup, the request."""

    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Struct, gc=False):
    """SyncGroup, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: Buffer = b""


def _get_sync_group_request_assignment_0(
    view: memoryview, position: int
) -> tuple[SyncGroupRequestAssignment, int]:
    member_id, position = get_string(view, position, "member_id")
    assignment, position = get_bytes(view, position, "assignment")
    return SyncGroupRequestAssignment(member_id, assignment), position


def _decode_0(view: memoryview, position: int) -> SyncGroupRequest:
    group_id, position = get_string(view, position, "group_id")
    (generation_id,), position = get_fixed(_I, view, position, "generation_id")
    member_id, position = get_string(view, position, "member_id")
    count, position = get_count(view, position, 6, "assignments")
    assignments, position = get_structs(view, position, count, _get_sync_group_request_assignment_0)
    return SyncGroupRequest(group_id, generation_id, member_id, None, None, None, assignments)


def _decode_3(view: memoryview, position: int) -> SyncGroupRequest:
    group_id, position = get_string(view, position, "group_id")
    (generation_id,), position = get_fixed(_I, view, position, "generation_id")
    member_id, position = get_string(view, position, "member_id")
    group_instance_id, position = get_nullable_string(view, position, "group_instance_id")
    count, position = get_count(view, position, 6, "assignments")
    assignments, position = get_structs(view, position, count, _get_sync_group_request_assignment_0)
    return SyncGroupRequest(
        group_id, generation_id, member_id, group_instance_id, None, None, assignments
    )


def _get_sync_group_request_assignment_4(
    view: memoryview, position: int
) -> tuple[SyncGroupRequestAssignment, int]:
    member_id, position = get_compact_string(view, position, "member_id")
    assignment, position = get_compact_bytes(view, position, "assignment")
    position = skip_tags(view, position)
    return SyncGroupRequestAssignment(member_id, assignment), position


def _decode_4(view: memoryview, position: int) -> SyncGroupRequest:
    group_id, position = get_compact_string(view, position, "group_id")
    (generation_id,), position = get_fixed(_I, view, position, "generation_id")
    member_id, position = get_compact_string(view, position, "member_id")
    group_instance_id, position = get_compact_nullable_string(view, position, "group_instance_id")
    count, position = get_compact_count(view, position, 3, "assignments")
    assignments, position = get_structs(view, position, count, _get_sync_group_request_assignment_4)
    position = skip_tags(view, position)
    return SyncGroupRequest(
        group_id, generation_id, member_id, group_instance_id, None, None, assignments
    )


def _decode_5(view: memoryview, position: int) -> SyncGroupRequest:
    group_id, position = get_compact_string(view, position, "group_id")
    (generation_id,), position = get_fixed(_I, view, position, "generation_id")
    member_id, position = get_compact_string(view, position, "member_id")
    group_instance_id, position = get_compact_nullable_string(view, position, "group_instance_id")
    protocol_type, position = get_compact_nullable_string(view, position, "protocol_type")
    protocol_name, position = get_compact_nullable_string(view, position, "protocol_name")
    count, position = get_compact_count(view, position, 3, "assignments")
    assignments, position = get_structs(view, position, count, _get_sync_group_request_assignment_4)
    position = skip_tags(view, position)
    return SyncGroupRequest(
        group_id,
        generation_id,
        member_id,
        group_instance_id,
        protocol_type,
        protocol_name,
        assignments,
    )


def _encode_0(response: SyncGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _H.pack(response.error_code)
    put_bytes(out, response.assignment)
    return [out]


def _encode_1(response: SyncGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_bytes(out, response.assignment)
    return [out]


def _encode_4(response: SyncGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_bytes(out, response.assignment)
    out.append(0)
    return [out]


def _encode_5(response: SyncGroupResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_nullable_string(out, response.protocol_type)
    put_compact_nullable_string(out, response.protocol_name)
    put_compact_bytes(out, response.assignment)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(3), _decode_0), 3: _decode_3, 4: _decode_4, 5: _decode_5}
ENCODE: Final = {0: _encode_0, **dict.fromkeys(range(1, 4), _encode_1), 4: _encode_4, 5: _encode_5}
