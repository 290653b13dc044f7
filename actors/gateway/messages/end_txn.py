"""Kafka's EndTxn in versions 0 to 5; generated, do not edit."""

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
_IHQH = Form(">ihqh")
_QHT = Form(">qh?")


class EndTxnRequest(Struct, gc=False):
    """EndTxn, the request."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    committed: bool = False


class EndTxnResponse(Struct, gc=False):
    """EndTxn, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = -1


def _decode_0(view: memoryview, position: int) -> EndTxnRequest:
    transactional_id, position = get_string(view, position, "transactional_id")
    (producer_id, producer_epoch, committed), position = get_fixed(
        _QHT, view, position, "producer_id"
    )
    return EndTxnRequest(transactional_id, producer_id, producer_epoch, committed)


def _decode_3(view: memoryview, position: int) -> EndTxnRequest:
    transactional_id, position = get_compact_string(view, position, "transactional_id")
    (producer_id, producer_epoch, committed), position = get_fixed(
        _QHT, view, position, "producer_id"
    )
    position = skip_tags(view, position)
    return EndTxnRequest(transactional_id, producer_id, producer_epoch, committed)


def _encode_0(response: EndTxnResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    return [out]


def _encode_3(response: EndTxnResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    out.append(0)
    return [out]


def _encode_5(response: EndTxnResponse) -> list[Buffer]:
    out = bytearray()
    out += _IHQH.pack(
        response.throttle_time_ms,
        response.error_code,
        response.producer_id,
        response.producer_epoch,
    )
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(3), _decode_0), **dict.fromkeys(range(3, 6), _decode_3)}
ENCODE: Final = {
    **dict.fromkeys(range(3), _encode_0),
    **dict.fromkeys(range(3, 5), _encode_3),
    5: _encode_5,
}
