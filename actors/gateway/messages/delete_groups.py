"""Kafka's DeleteGroups in versions 0 to 2; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_string,
    get_count,
    get_string,
    get_strings,
    put_array,
    put_compact_array,
    put_compact_string,
    put_string,
    skip_tags,
)

_H = Form(">h")
_I = Form(">i")


class DeleteGroupsRequest(Struct, gc=False):
    """DeleteGroups, the request."""

    groups_names: list[str] = []


class DeletableGroupResult(Struct, gc=False):
    """One of ``results`` of ``DeleteGroupsResponse``."""

    group_id: str = ""
    error_code: int = 0
    error_message: str | None = None


class DeleteGroupsResponse(Struct, gc=False):
    """DeleteGroups, the response."""

    throttle_time_ms: int = 0
    results: list[DeletableGroupResult] = []


def _decode_0(view: memoryview, position: int) -> DeleteGroupsRequest:
    count, position = get_count(view, position, 2, "groups_names")
    groups_names, position = get_strings(view, position, count, get_string, "groups_names")
    return DeleteGroupsRequest(groups_names)


def _decode_2(view: memoryview, position: int) -> DeleteGroupsRequest:
    count, position = get_compact_count(view, position, 1, "groups_names")
    groups_names, position = get_strings(view, position, count, get_compact_string, "groups_names")
    position = skip_tags(view, position)
    return DeleteGroupsRequest(groups_names)


def _put_deletable_group_result_0(out: bytearray, item: DeletableGroupResult) -> None:
    put_string(out, item.group_id)
    out += _H.pack(item.error_code)


def _encode_0(response: DeleteGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.results, _put_deletable_group_result_0)
    return [out]


def _put_deletable_group_result_2(out: bytearray, item: DeletableGroupResult) -> None:
    put_compact_string(out, item.group_id)
    out += _H.pack(item.error_code)
    out.append(0)


def _encode_2(response: DeleteGroupsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.results, _put_deletable_group_result_2)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(2), _decode_0), 2: _decode_2}
ENCODE: Final = {**dict.fromkeys(range(2), _encode_0), 2: _encode_2}
