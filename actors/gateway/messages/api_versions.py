"""Kafka's ApiVersions in versions 0 to 4; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_string,
    put_array,
    put_compact_array,
    put_compact_string,
    put_tags,
    skip_tags,
)

_H = Form(">h")
_H2 = Form(">hh")
_H3 = Form(">hhh")
_I = Form(">i")
_Q = Form(">q")
_T = Form(">?")


class ApiVersionsRequest(Struct, gc=False):
    """ApiVersions, the request."""

    client_software_name: str = ""
    client_software_version: str = ""
    cluster_id: str | None = None
    node_id: int = -1


class ApiVersion(Struct, gc=False):
    """One of ``api_keys`` of ``ApiVersionsResponse``."""

    api_key: int = 0
    min_version: int = 0
    max_version: int = 0


class SupportedFeatureKey(Struct, gc=False):
    """One of ``supported_features`` of ``ApiVersionsResponse``."""

    name: str = ""
    min_version: int = 0
    max_version: int = 0


class FinalizedFeatureKey(Struct, gc=False):
    """One of ``finalized_features`` of ``ApiVersionsResponse``."""

    name: str = ""
    max_version_level: int = 0
    min_version_level: int = 0


class ApiVersionsResponse(Struct, gc=False):
    """ApiVersions, the response."""

    error_code: int = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: int = 0
    supported_features: list[SupportedFeatureKey] = []
    finalized_features_epoch: int = -1
    finalized_features: list[FinalizedFeatureKey] = []
    zk_migration_ready: bool = False


def _decode_0(_view: memoryview, _position: int) -> ApiVersionsRequest:
    return ApiVersionsRequest()


def _decode_3(view: memoryview, position: int) -> ApiVersionsRequest:
    client_software_name, position = get_compact_string(view, position, "client_software_name")
    client_software_version, position = get_compact_string(
        view, position, "client_software_version"
    )
    position = skip_tags(view, position)
    return ApiVersionsRequest(client_software_name, client_software_version)


def _put_api_version_0(out: bytearray, item: ApiVersion) -> None:
    out += _H3.pack(item.api_key, item.min_version, item.max_version)


def _encode_0(response: ApiVersionsResponse) -> list[Buffer]:
    out = bytearray()
    out += _H.pack(response.error_code)
    put_array(out, response.api_keys, _put_api_version_0)
    return [out]


def _encode_1(response: ApiVersionsResponse) -> list[Buffer]:
    out = bytearray()
    out += _H.pack(response.error_code)
    put_array(out, response.api_keys, _put_api_version_0)
    out += _I.pack(response.throttle_time_ms)
    return [out]


def _put_api_version_3(out: bytearray, item: ApiVersion) -> None:
    out += _H3.pack(item.api_key, item.min_version, item.max_version)
    out.append(0)


def _put_supported_feature_key_3(out: bytearray, item: SupportedFeatureKey) -> None:
    put_compact_string(out, item.name)
    out += _H2.pack(item.min_version, item.max_version)
    out.append(0)


def _put_finalized_feature_key_3(out: bytearray, item: FinalizedFeatureKey) -> None:
    put_compact_string(out, item.name)
    out += _H2.pack(item.max_version_level, item.min_version_level)
    out.append(0)


def _put_tags_of_api_versions_response_3(out: bytearray, item: ApiVersionsResponse) -> None:
    tags: list[tuple[int, Buffer]] = []
    if item.supported_features:
        part = bytearray()
        put_compact_array(part, item.supported_features, _put_supported_feature_key_3)
        tags.append((0, part))
    if item.finalized_features_epoch != -1:
        tags.append((1, _Q.pack(item.finalized_features_epoch)))
    if item.finalized_features:
        part = bytearray()
        put_compact_array(part, item.finalized_features, _put_finalized_feature_key_3)
        tags.append((2, part))
    if item.zk_migration_ready:
        tags.append((3, _T.pack(item.zk_migration_ready)))
    put_tags(out, tags)


def _encode_3(response: ApiVersionsResponse) -> list[Buffer]:
    out = bytearray()
    out += _H.pack(response.error_code)
    put_compact_array(out, response.api_keys, _put_api_version_3)
    out += _I.pack(response.throttle_time_ms)
    if (
        response.supported_features
        or response.finalized_features_epoch != -1
        or response.finalized_features
        or response.zk_migration_ready
    ):
        _put_tags_of_api_versions_response_3(out, response)
    else:
        out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(3), _decode_0), **dict.fromkeys(range(3, 5), _decode_3)}
ENCODE: Final = {
    0: _encode_0,
    **dict.fromkeys(range(1, 3), _encode_1),
    **dict.fromkeys(range(3, 5), _encode_3),
}
