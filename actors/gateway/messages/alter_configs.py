"""Kafka's AlterConfigs in versions 0 to 2; generated, do not edit."""

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
    get_fixed,
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

_B = Form(">b")
_H = Form(">h")
_I = Form(">i")
_T = Form(">?")


class AlterableConfig(Struct, gc=False):
    """One of ``configs`` of ``AlterConfigsResource``."""

    name: str = ""
    value: str | None = ""


class AlterConfigsResource(Struct, gc=False):
    """One of ``resources`` of ``AlterConfigsRequest``."""

    resource_type: int = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []


class AlterConfigsRequest(Struct, gc=False):
    """AlterConfigs, the request."""

    resources: list[AlterConfigsResource] = []
    validate_only: bool = False


class AlterConfigsResourceResponse(Struct, gc=False):
    """One of ``responses`` of ``AlterConfigsResponse``."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""


class AlterConfigsResponse(Struct, gc=False):
    """AlterConfigs, the response."""

    throttle_time_ms: int = 0
    responses: list[AlterConfigsResourceResponse] = []


def _get_alterable_config_0(view: memoryview, position: int) -> tuple[AlterableConfig, int]:
    name, position = get_string(view, position, "name")
    value_, position = get_nullable_string(view, position, "value")
    return AlterableConfig(name, value_), position


def _get_alter_configs_resource_0(
    view: memoryview, position: int
) -> tuple[AlterConfigsResource, int]:
    (resource_type,), position = get_fixed(_B, view, position, "resource_type")
    resource_name, position = get_string(view, position, "resource_name")
    count, position = get_count(view, position, 4, "configs")
    configs, position = get_structs(view, position, count, _get_alterable_config_0)
    return AlterConfigsResource(resource_type, resource_name, configs), position


def _decode_0(view: memoryview, position: int) -> AlterConfigsRequest:
    count, position = get_count(view, position, 7, "resources")
    resources, position = get_structs(view, position, count, _get_alter_configs_resource_0)
    (validate_only,), position = get_fixed(_T, view, position, "validate_only")
    return AlterConfigsRequest(resources, validate_only)


def _get_alterable_config_2(view: memoryview, position: int) -> tuple[AlterableConfig, int]:
    name, position = get_compact_string(view, position, "name")
    value_, position = get_compact_nullable_string(view, position, "value")
    position = skip_tags(view, position)
    return AlterableConfig(name, value_), position


def _get_alter_configs_resource_2(
    view: memoryview, position: int
) -> tuple[AlterConfigsResource, int]:
    (resource_type,), position = get_fixed(_B, view, position, "resource_type")
    resource_name, position = get_compact_string(view, position, "resource_name")
    count, position = get_compact_count(view, position, 3, "configs")
    configs, position = get_structs(view, position, count, _get_alterable_config_2)
    position = skip_tags(view, position)
    return AlterConfigsResource(resource_type, resource_name, configs), position


def _decode_2(view: memoryview, position: int) -> AlterConfigsRequest:
    count, position = get_compact_count(view, position, 4, "resources")
    resources, position = get_structs(view, position, count, _get_alter_configs_resource_2)
    (validate_only,), position = get_fixed(_T, view, position, "validate_only")
    position = skip_tags(view, position)
    return AlterConfigsRequest(resources, validate_only)


def _put_alter_configs_resource_response_0(
    out: bytearray, item: AlterConfigsResourceResponse
) -> None:
    out += _H.pack(item.error_code)
    put_nullable_string(out, item.error_message)
    out += _B.pack(item.resource_type)
    put_string(out, item.resource_name)


def _encode_0(response: AlterConfigsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.responses, _put_alter_configs_resource_response_0)
    return [out]


def _put_alter_configs_resource_response_2(
    out: bytearray, item: AlterConfigsResourceResponse
) -> None:
    out += _H.pack(item.error_code)
    put_compact_nullable_string(out, item.error_message)
    out += _B.pack(item.resource_type)
    put_compact_string(out, item.resource_name)
    out.append(0)


def _encode_2(response: AlterConfigsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.responses, _put_alter_configs_resource_response_2)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(2), _decode_0), 2: _decode_2}
ENCODE: Final = {**dict.fromkeys(range(2), _encode_0), 2: _encode_2}
