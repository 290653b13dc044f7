"""Kafka's DeleteAcls in versions 1 to 3; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_nullable_string,
    get_count,
    get_fixed,
    get_nullable_string,
    get_structs,
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
_H = Form(">h")
_I = Form(">i")


class DeleteAclsFilter(Struct, gc=False):
    """One of ``filters`` of ``DeleteAclsRequest``."""

    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0


class DeleteAclsRequest(Struct, gc=False):
    """DeleteAcls, the request."""

    filters: list[DeleteAclsFilter] = []


class DeleteAclsMatchingAcl(Struct, gc=False):
    """One of ``matching_acls`` of ``DeleteAclsFilterResult``."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class DeleteAclsFilterResult(Struct, gc=False):
    """One of ``filter_results`` of ``DeleteAclsResponse``."""

    error_code: int = 0
    error_message: str | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = []


class DeleteAclsResponse(Struct, gc=False):
    """DeleteAcls, the response."""

    throttle_time_ms: int = 0
    filter_results: list[DeleteAclsFilterResult] = []


def _get_delete_acls_filter_1(view: memoryview, position: int) -> tuple[DeleteAclsFilter, int]:
    (resource_type_filter,), position = get_fixed(_B, view, position, "resource_type_filter")
    resource_name_filter, position = get_nullable_string(view, position, "resource_name_filter")
    (pattern_type_filter,), position = get_fixed(_B, view, position, "pattern_type_filter")
    principal_filter, position = get_nullable_string(view, position, "principal_filter")
    host_filter, position = get_nullable_string(view, position, "host_filter")
    (operation, permission_type), position = get_fixed(_B2, view, position, "operation")
    item = DeleteAclsFilter(
        resource_type_filter,
        resource_name_filter,
        pattern_type_filter,
        principal_filter,
        host_filter,
        operation,
        permission_type,
    )
    return item, position


def _decode_1(view: memoryview, position: int) -> DeleteAclsRequest:
    count, position = get_count(view, position, 10, "filters")
    filters, position = get_structs(view, position, count, _get_delete_acls_filter_1)
    return DeleteAclsRequest(filters)


def _get_delete_acls_filter_2(view: memoryview, position: int) -> tuple[DeleteAclsFilter, int]:
    (resource_type_filter,), position = get_fixed(_B, view, position, "resource_type_filter")
    resource_name_filter, position = get_compact_nullable_string(
        view, position, "resource_name_filter"
    )
    (pattern_type_filter,), position = get_fixed(_B, view, position, "pattern_type_filter")
    principal_filter, position = get_compact_nullable_string(view, position, "principal_filter")
    host_filter, position = get_compact_nullable_string(view, position, "host_filter")
    (operation, permission_type), position = get_fixed(_B2, view, position, "operation")
    position = skip_tags(view, position)
    item = DeleteAclsFilter(
        resource_type_filter,
        resource_name_filter,
        pattern_type_filter,
        principal_filter,
        host_filter,
        operation,
        permission_type,
    )
    return item, position


def _decode_2(view: memoryview, position: int) -> DeleteAclsRequest:
    count, position = get_compact_count(view, position, 8, "filters")
    filters, position = get_structs(view, position, count, _get_delete_acls_filter_2)
    position = skip_tags(view, position)
    return DeleteAclsRequest(filters)


def _put_delete_acls_matching_acl_1(out: bytearray, item: DeleteAclsMatchingAcl) -> None:
    out += _H.pack(item.error_code)
    put_nullable_string(out, item.error_message)
    out += _B.pack(item.resource_type)
    put_string(out, item.resource_name)
    out += _B.pack(item.pattern_type)
    put_string(out, item.principal)
    put_string(out, item.host)
    out += _B2.pack(item.operation, item.permission_type)


def _put_delete_acls_filter_result_1(out: bytearray, item: DeleteAclsFilterResult) -> None:
    out += _H.pack(item.error_code)
    put_nullable_string(out, item.error_message)
    put_array(out, item.matching_acls, _put_delete_acls_matching_acl_1)


def _encode_1(response: DeleteAclsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.filter_results, _put_delete_acls_filter_result_1)
    return [out]


def _put_delete_acls_matching_acl_2(out: bytearray, item: DeleteAclsMatchingAcl) -> None:
    out += _H.pack(item.error_code)
    put_compact_nullable_string(out, item.error_message)
    out += _B.pack(item.resource_type)
    put_compact_string(out, item.resource_name)
    out += _B.pack(item.pattern_type)
    put_compact_string(out, item.principal)
    put_compact_string(out, item.host)
    out += _B2.pack(item.operation, item.permission_type)
    out.append(0)


def _put_delete_acls_filter_result_2(out: bytearray, item: DeleteAclsFilterResult) -> None:
    out += _H.pack(item.error_code)
    put_compact_nullable_string(out, item.error_message)
    put_compact_array(out, item.matching_acls, _put_delete_acls_matching_acl_2)
    out.append(0)


def _encode_2(response: DeleteAclsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.filter_results, _put_delete_acls_filter_result_2)
    out.append(0)
    return [out]


DECODE: Final = {1: _decode_1, **dict.fromkeys(range(2, 4), _decode_2)}
ENCODE: Final = {1: _encode_1, **dict.fromkeys(range(2, 4), _encode_2)}
