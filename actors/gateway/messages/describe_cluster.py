"""Kafka's DescribeCluster in versions 0 to 2; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_fixed,
    put_compact_array,
    put_compact_nullable_string,
    put_compact_string,
    skip_tags,
)

_B = Form(">b")
_I = Form(">i")
_IH = Form(">ih")
_T = Form(">?")
_TB = Form(">?b")
_TBT = Form(">?b?")


class DescribeClusterRequest(Struct, gc=False):
    """DescribeCluster, the request."""

    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1
    include_fenced_brokers: bool = False


class DescribeClusterBroker(Struct, gc=False):
    """One of ``brokers`` of ``DescribeClusterResponse``."""

    broker_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_fenced: bool = False


class DescribeClusterResponse(Struct, gc=False):
    """DescribeCluster, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1
    cluster_id: str = ""
    controller_id: int = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: int = -2147483648


def _decode_0(view: memoryview, position: int) -> DescribeClusterRequest:
    (include_cluster_authorized_operations,), position = get_fixed(
        _T, view, position, "include_cluster_authorized_operations"
    )
    position = skip_tags(view, position)
    return DescribeClusterRequest(include_cluster_authorized_operations)


def _decode_1(view: memoryview, position: int) -> DescribeClusterRequest:
    (include_cluster_authorized_operations, endpoint_type), position = get_fixed(
        _TB, view, position, "include_cluster_authorized_operations"
    )
    position = skip_tags(view, position)
    return DescribeClusterRequest(include_cluster_authorized_operations, endpoint_type)


def _decode_2(view: memoryview, position: int) -> DescribeClusterRequest:
    values: tuple[bool, int, bool]
    values, position = get_fixed(_TBT, view, position, "include_cluster_authorized_operations")
    position = skip_tags(view, position)
    return DescribeClusterRequest(*values)


def _put_describe_cluster_broker_0(out: bytearray, item: DescribeClusterBroker) -> None:
    out += _I.pack(item.broker_id)
    put_compact_string(out, item.host)
    out += _I.pack(item.port)
    put_compact_nullable_string(out, item.rack)
    out.append(0)


def _encode_0(response: DescribeClusterResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_nullable_string(out, response.error_message)
    put_compact_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_compact_array(out, response.brokers, _put_describe_cluster_broker_0)
    out += _I.pack(response.cluster_authorized_operations)
    out.append(0)
    return [out]


def _encode_1(response: DescribeClusterResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_nullable_string(out, response.error_message)
    out += _B.pack(response.endpoint_type)
    put_compact_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_compact_array(out, response.brokers, _put_describe_cluster_broker_0)
    out += _I.pack(response.cluster_authorized_operations)
    out.append(0)
    return [out]


def _put_describe_cluster_broker_2(out: bytearray, item: DescribeClusterBroker) -> None:
    out += _I.pack(item.broker_id)
    put_compact_string(out, item.host)
    out += _I.pack(item.port)
    put_compact_nullable_string(out, item.rack)
    out += _T.pack(item.is_fenced)
    out.append(0)


def _encode_2(response: DescribeClusterResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_nullable_string(out, response.error_message)
    out += _B.pack(response.endpoint_type)
    put_compact_string(out, response.cluster_id)
    out += _I.pack(response.controller_id)
    put_compact_array(out, response.brokers, _put_describe_cluster_broker_2)
    out += _I.pack(response.cluster_authorized_operations)
    out.append(0)
    return [out]


DECODE: Final = {0: _decode_0, 1: _decode_1, 2: _decode_2}
ENCODE: Final = {0: _encode_0, 1: _encode_1, 2: _encode_2}
