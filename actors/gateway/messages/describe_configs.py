"""Kafka's DescribeConfigs in versions 1 to 4; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_nullable_count,
    get_compact_string,
    get_count,
    get_fixed,
    get_nullable_count,
    get_string,
    get_strings,
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
_T2 = Form(">??")
_TBT = Form(">?b?")


class DescribeConfigsResource(Struct, gc=False):
    """One of ``resources`` of ``DescribeConfigsRequest``."""

    resource_type: int = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = []


class DescribeConfigsRequest(Struct, gc=False):
    """DescribeConfigs, the request."""

    resources: list[DescribeConfigsResource] = []
    include_synonyms: bool = False
    include_documentation: bool = False


class DescribeConfigsSynonym(Struct, gc=False):
    """One of ``synonyms`` of ``DescribeConfigsResourceResult``."""

    name: str = ""
    value: str | None = ""
    source: int = 0


class DescribeConfigsResourceResult(Struct, gc=False):
    """One of ``configs`` of ``DescribeConfigsResult``."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: int = 0
    documentation: str | None = ""


class DescribeConfigsResult(Struct, gc=False):
    """One of ``results`` of ``DescribeConfigsResponse``."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Struct, gc=False):
    """DescribeConfigs, the response."""

    throttle_time_ms: int = 0
    results: list[DescribeConfigsResult] = []


def _get_describe_configs_resource_1(
    view: memoryview, position: int
) -> tuple[DescribeConfigsResource, int]:
    (resource_type,), position = get_fixed(_B, view, position, "resource_type")
    resource_name, position = get_string(view, position, "resource_name")
    count, position = get_nullable_count(view, position, 2, "configuration_keys")
    configuration_keys: list[str] | None = None
    if count >= 0:
        configuration_keys, position = get_strings(
            view, position, count, get_string, "configuration_keys"
        )
    return DescribeConfigsResource(resource_type, resource_name, configuration_keys), position


def _decode_1(view: memoryview, position: int) -> DescribeConfigsRequest:
    count, position = get_count(view, position, 7, "resources")
    resources, position = get_structs(view, position, count, _get_describe_configs_resource_1)
    (include_synonyms,), position = get_fixed(_T, view, position, "include_synonyms")
    return DescribeConfigsRequest(resources, include_synonyms)


def _decode_3(view: memoryview, position: int) -> DescribeConfigsRequest:
    count, position = get_count(view, position, 7, "resources")
    resources, position = get_structs(view, position, count, _get_describe_configs_resource_1)
    (include_synonyms, include_documentation), position = get_fixed(
        _T2, view, position, "include_synonyms"
    )
    return DescribeConfigsRequest(resources, include_synonyms, include_documentation)


def _get_describe_configs_resource_4(
    view: memoryview, position: int
) -> tuple[DescribeConfigsResource, int]:
    (resource_type,), position = get_fixed(_B, view, position, "resource_type")
    resource_name, position = get_compact_string(view, position, "resource_name")
    count, position = get_compact_nullable_count(view, position, 1, "configuration_keys")
    configuration_keys: list[str] | None = None
    if count >= 0:
        configuration_keys, position = get_strings(
            view, position, count, get_compact_string, "configuration_keys"
        )
    position = skip_tags(view, position)
    return DescribeConfigsResource(resource_type, resource_name, configuration_keys), position


def _decode_4(view: memoryview, position: int) -> DescribeConfigsRequest:
    count, position = get_compact_count(view, position, 4, "resources")
    resources, position = get_structs(view, position, count, _get_describe_configs_resource_4)
    (include_synonyms, include_documentation), position = get_fixed(
        _T2, view, position, "include_synonyms"
    )
    position = skip_tags(view, position)
    return DescribeConfigsRequest(resources, include_synonyms, include_documentation)


def _put_describe_configs_synonym_1(out: bytearray, item: DescribeConfigsSynonym) -> None:
    put_string(out, item.name)
    put_nullable_string(out, item.value)
    out += _B.pack(item.source)


def _put_describe_configs_resource_result_1(
    out: bytearray, item: DescribeConfigsResourceResult
) -> None:
    put_string(out, item.name)
    put_nullable_string(out, item.value)
    out += _TBT.pack(item.read_only, item.config_source, item.is_sensitive)
    put_array(out, item.synonyms, _put_describe_configs_synonym_1)


def _put_describe_configs_result_1(out: bytearray, item: DescribeConfigsResult) -> None:
    out += _H.pack(item.error_code)
    put_nullable_string(out, item.error_message)
    out += _B.pack(item.resource_type)
    put_string(out, item.resource_name)
    put_array(out, item.configs, _put_describe_configs_resource_result_1)


def _encode_1(response: DescribeConfigsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.results, _put_describe_configs_result_1)
    return [out]


def _put_describe_configs_resource_result_3(
    out: bytearray, item: DescribeConfigsResourceResult
) -> None:
    put_string(out, item.name)
    put_nullable_string(out, item.value)
    out += _TBT.pack(item.read_only, item.config_source, item.is_sensitive)
    put_array(out, item.synonyms, _put_describe_configs_synonym_1)
    out += _B.pack(item.config_type)
    put_nullable_string(out, item.documentation)


def _put_describe_configs_result_3(out: bytearray, item: DescribeConfigsResult) -> None:
    out += _H.pack(item.error_code)
    put_nullable_string(out, item.error_message)
    out += _B.pack(item.resource_type)
    put_string(out, item.resource_name)
    put_array(out, item.configs, _put_describe_configs_resource_result_3)


def _encode_3(response: DescribeConfigsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(out, response.results, _put_describe_configs_result_3)
    return [out]


def _put_describe_configs_synonym_4(out: bytearray, item: DescribeConfigsSynonym) -> None:
    put_compact_string(out, item.name)
    put_compact_nullable_string(out, item.value)
    out += _B.pack(item.source)
    out.append(0)


def _put_describe_configs_resource_result_4(
    out: bytearray, item: DescribeConfigsResourceResult
) -> None:
    put_compact_string(out, item.name)
    put_compact_nullable_string(out, item.value)
    out += _TBT.pack(item.read_only, item.config_source, item.is_sensitive)
    put_compact_array(out, item.synonyms, _put_describe_configs_synonym_4)
    out += _B.pack(item.config_type)
    put_compact_nullable_string(out, item.documentation)
    out.append(0)


def _put_describe_configs_result_4(out: bytearray, item: DescribeConfigsResult) -> None:
    out += _H.pack(item.error_code)
    put_compact_nullable_string(out, item.error_message)
    out += _B.pack(item.resource_type)
    put_compact_string(out, item.resource_name)
    put_compact_array(out, item.configs, _put_describe_configs_resource_result_4)
    out.append(0)


def _encode_4(response: DescribeConfigsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.results, _put_describe_configs_result_4)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(1, 3), _decode_1), 3: _decode_3, 4: _decode_4}
ENCODE: Final = {**dict.fromkeys(range(1, 3), _encode_1), 3: _encode_3, 4: _encode_4}
