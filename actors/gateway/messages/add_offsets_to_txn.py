"""Kafka's AddOffsetsToTxn in versions 0 to 4; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_string,
    get_fixed,
    get_string,
    skip_tags,
)

_IH = Form(">ih")
_QH = Form(">qh")


class AddOffsetsToTxnRequest(Struct, gc=False):
    """AddOffsetsToTxn, the request."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    group_id: str = ""


class AddOffsetsToTxnResponse(Struct, gc=False):
    """AddOffsetsToTxn, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0


def _decode_0(view: memoryview, position: int) -> AddOffsetsToTxnRequest:
    transactional_id, position = get_string(view, position, "transactional_id")
    (producer_id, producer_epoch), position = get_fixed(_QH, view, position, "producer_id")
    group_id, position = get_string(view, position, "group_id")
    return AddOffsetsToTxnRequest(transactional_id, producer_id, producer_epoch, group_id)


def _decode_3(view: memoryview, position: int) -> AddOffsetsToTxnRequest:
    transactional_id, position = get_compact_string(view, position, "transactional_id")
    (producer_id, producer_epoch), position = get_fixed(_QH, view, position, "producer_id")
    group_id, position = get_compact_string(view, position, "group_id")
    position = skip_tags(view, position)
    return AddOffsetsToTxnRequest(transactional_id, producer_id, producer_epoch, group_id)


def _encode_0(response: AddOffsetsToTxnResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    return [out]


def _encode_3(response: AddOffsetsToTxnResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(3), _decode_0), **dict.fromkeys(range(3, 5), _decode_3)}
ENCODE: Final = {**dict.fromkeys(range(3), _encode_0), **dict.fromkeys(range(3, 5), _encode_3)}
