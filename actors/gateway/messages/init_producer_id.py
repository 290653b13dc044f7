"""Kafka's InitProducerId in versions 0 to 5; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_nullable_string,
    get_fixed,
    get_nullable_string,
    skip_tags,
)

_I = Form(">i")
_IHQH = Form(">ihqh")
_IQH = Form(">iqh")


class InitProducerIdRequest(Struct, gc=False):
    """InitProducerId, the request."""

    transactional_id: str | None = ""
    transaction_timeout_ms: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    enable2_pc: bool = False
    keep_prepared_txn: bool = False


class InitProducerIdResponse(Struct, gc=False):
    """InitProducerId, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = 0
    ongoing_txn_producer_id: int = -1
    ongoing_txn_producer_epoch: int = -1


def _decode_0(view: memoryview, position: int) -> InitProducerIdRequest:
    transactional_id, position = get_nullable_string(view, position, "transactional_id")
    (transaction_timeout_ms,), position = get_fixed(_I, view, position, "transaction_timeout_ms")
    return InitProducerIdRequest(transactional_id, transaction_timeout_ms)


def _decode_2(view: memoryview, position: int) -> InitProducerIdRequest:
    transactional_id, position = get_compact_nullable_string(view, position, "transactional_id")
    (transaction_timeout_ms,), position = get_fixed(_I, view, position, "transaction_timeout_ms")
    position = skip_tags(view, position)
    return InitProducerIdRequest(transactional_id, transaction_timeout_ms)


def _decode_3(view: memoryview, position: int) -> InitProducerIdRequest:
    transactional_id, position = get_compact_nullable_string(view, position, "transactional_id")
    (transaction_timeout_ms, producer_id, producer_epoch), position = get_fixed(
        _IQH, view, position, "transaction_timeout_ms"
    )
    position = skip_tags(view, position)
    return InitProducerIdRequest(
        transactional_id, transaction_timeout_ms, producer_id, producer_epoch
    )


def _encode_0(response: InitProducerIdResponse) -> list[Buffer]:
    out = bytearray()
    out += _IHQH.pack(
        response.throttle_time_ms,
        response.error_code,
        response.producer_id,
        response.producer_epoch,
    )
    return [out]


def _encode_2(response: InitProducerIdResponse) -> list[Buffer]:
    out = bytearray()
    out += _IHQH.pack(
        response.throttle_time_ms,
        response.error_code,
        response.producer_id,
        response.producer_epoch,
    )
    out.append(0)
    return [out]


DECODE: Final = {
    **dict.fromkeys(range(2), _decode_0),
    2: _decode_2,
    **dict.fromkeys(range(3, 6), _decode_3),
}
ENCODE: Final = {**dict.fromkeys(range(2), _encode_0), **dict.fromkeys(range(2, 6), _encode_2)}
