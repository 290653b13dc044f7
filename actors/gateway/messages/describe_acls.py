"""Kafka's DescribeAcls in versions 1 to 3; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_nullable_string,
    get_fixed,
    get_nullable_string,
    put_array,
    put_compact_array,
    put_compact_nullable_string,
    put_compact_string,
    put_nullable_string,
    put_string,
    skip_tags,
)

_B = Form(">b")
_B2 = Form(">bb")
_IH = Form(">ih")


class DescribeAclsRequest(Struct, gc=False):
    """DescribeAcls, the request."""

    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0


class AclDescription(Struct, gc=False):
    """One of ``acls`` of ``DescribeAclsResource``."""

    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class DescribeAclsResource(Struct, gc=False):
    """One of ``resources`` of ``DescribeAclsResponse``."""

    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    acls: list[AclDescription] = []


class DescribeAclsResponse(Struct, gc=False):
    """DescribeAcls, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    resources: list[DescribeAclsResource] = []


def _decode_1(view: memoryview, position: int) -> DescribeAclsRequest:
    (resource_type_filter,), position = get_fixed(_B, view, position, "resource_type_filter")
    resource_name_filter, position = get_nullable_string(view, position, "resource_name_filter")
    (pattern_type_filter,), position = get_fixed(_B, view, position, "pattern_type_filter")
    principal_filter, position = get_nullable_string(view, position, "principal_filter")
    host_filter, position = get_nullable_string(view, position, "host_filter")
    (operation, permission_type), position = get_fixed(_B2, view, position, "operation")
    return DescribeAclsRequest(
        resource_type_filter,
        resource_name_filter,
        pattern_type_filter,
        principal_filter,
        host_filter,
        operation,
        permission_type,
    )


def _decode_2(view: memoryview, position: int) -> DescribeAclsRequest:
    (resource_type_filter,), position = get_fixed(_B, view, position, "resource_type_filter")
    resource_name_filter, position = get_compact_nullable_string(
        view, position, "resource_name_filter"
    )
    (pattern_type_filter,), position = get_fixed(_B, view, position, "pattern_type_filter")
    principal_filter, position = get_compact_nullable_string(view, position, "principal_filter")
    host_filter, position = get_compact_nullable_string(view, position, "host_filter")
    (operation, permission_type), position = get_fixed(_B2, view, position, "operation")
    position = skip_tags(view, position)
    return DescribeAclsRequest(
        resource_type_filter,
        resource_name_filter,
        pattern_type_filter,
        principal_filter,
        host_filter,
        operation,
        permission_type,
    )


def _put_acl_description_1(out: bytearray, item: AclDescription) -> None:
    put_string(out, item.principal)
    put_string(out, item.host)
    out += _B2.pack(item.operation, item.permission_type)


def _put_describe_acls_resource_1(out: bytearray, item: DescribeAclsResource) -> None:
    out += _B.pack(item.resource_type)
    put_string(out, item.resource_name)
    out += _B.pack(item.pattern_type)
    put_array(out, item.acls, _put_acl_description_1)


def _encode_1(response: DescribeAclsResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_nullable_string(out, response.error_message)
    put_array(out, response.resources, _put_describe_acls_resource_1)
    return [out]


def _put_acl_description_2(out: bytearray, item: AclDescription) -> None:
    put_compact_string(out, item.principal)
    put_compact_string(out, item.host)
    out += _B2.pack(item.operation, item.permission_type)
    out.append(0)


def _put_describe_acls_resource_2(out: bytearray, item: DescribeAclsResource) -> None:
    out += _B.pack(item.resource_type)
    put_compact_string(out, item.resource_name)
    out += _B.pack(item.pattern_type)
    put_compact_array(out, item.acls, _put_acl_description_2)
    out.append(0)


def _encode_2(response: DescribeAclsResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_nullable_string(out, response.error_message)
    put_compact_array(out, response.resources, _put_describe_acls_resource_2)
    out.append(0)
    return [out]


DECODE: Final = {1: _decode_1, **dict.fromkeys(range(2, 4), _decode_2)}
ENCODE: Final = {1: _encode_1, **dict.fromkeys(range(2, 4), _encode_2)}
