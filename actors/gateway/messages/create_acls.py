"""Kafka's CreateAcls in versions 1 to 3; generated, do not edit."""

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
    get_structs,
    put_array,
    put_compact_array,
    put_compact_nullable_string,
    put_nullable_string,
    skip_tags,
)

_B = Form(">b")
_B2 = Form(">bb")
_H = Form(">h")
_I = Form(">i")


class AclCreation(Struct, gc=False):
    """One of ``creations`` of ``CreateAclsRequest``."""

    resource_type: int = 0
    resource_name: str = ""
    resource_pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class CreateAclsRequest(Struct, gc=False):
    """CreateAcls, the request."""

    creations: list[AclCreation] = []


class AclCreationResult(Struct, gc=False):
    """One of ``results`` of ``CreateAclsResponse``."""

    error_code: int = 0
    error_message: str | None = ""


class CreateAclsResponse(Struct, gc=False):
    """CreateAcls, the response."""

    throttle_time_ms: int = 0
    results: list[AclCreationResult] = []


def _get_acl_creation_1(view: memoryview, position: int) -> tuple[AclCreation, int]:
    (resource_type,), position = get_fixed(_B, view, position, "resource_type")
    resource_name, position = get_string(view, position, "resource_name")
    (resource_pattern_type,), position = get_fixed(_B, view, position, "resource_pattern_type")
    principal, position = get_string(view, position, "principal")
    host, position = get_string(view, position, "host")
    (operation, permission_type), position = get_fixed(_B2, view, position, "operation")
    item = AclCreation(
        resource_type,
        resource_name,
        resource_pattern_type,
        principal,
        host,
        operation,
        permission_type,
    )
    return item, position


def _decode_1(view: memoryview, position: int) -> CreateAclsRequest:
    count, position = get_count(view, position, 10, "creations")
    creations, position = get_structs(view, position, count, _get_acl_creation_1)
    return CreateAclsRequest(creations)


def _get_acl_creation_2(view: memoryview, position: int) -> tuple[AclCreation, int]:
    (resource_type,), position = get_fixed(_B, view, position, "resource_type")
    resource_name, position = get_compact_string(view, position, "resource_name")
    (resource_pattern_type,), position = get_fixed(_B, view, position, "resource_pattern_type")
    principal, position = get_compact_string(view, position, "principal")
    host, position = get_compact_string(view, position, "host")
    (operation, permission_type), position = get_fixed(_B2, view, position, "operation")
    position = skip_tags(view, position)
    item = AclCreation(
        resource_type,
        resource_name,
        resource_pattern_type,
        principal,
        host,
        operation,
        permission_type,
    )
    return item, position


def _decode_2(view: memoryview, position: int) -> CreateAclsRequest:
    count, position = get_compact_count(view, position, 8, "creations")
    creations, position = get_structs(view, position, count, _get_acl_creation_2)
    position = skip_tags(view, position)
    return CreateAclsRequest(creations)


def _put_acl_creation_result_1(out: bytearray, item: AclCreationResult) -> None:
    out += _H.pack(item.error_code)
    put_nullable_string(out, item.error_message)


def _encode_1(response: CreateAclsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.results, _put_acl_creation_result_1)
    return [out]


def _put_acl_creation_result_2(out: bytearray, item: AclCreationResult) -> None:
    out += _H.pack(item.error_code)
    put_compact_nullable_string(out, item.error_message)
    out.append(0)


def _encode_2(response: CreateAclsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.results, _put_acl_creation_result_2)
    out.append(0)
    return [out]


DECODE: Final = {1: _decode_1, **dict.fromkeys(range(2, 4), _decode_2)}
ENCODE: Final = {1: _encode_1, **dict.fromkeys(range(2, 4), _encode_2)}
