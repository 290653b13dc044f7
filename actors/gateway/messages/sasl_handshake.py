"""Kafka's SaslHandshake in versions 0 to 1; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import Buffer, get_string, put_array, put_string

_H = Form(">h")


class SaslHandshakeRequest(Struct, gc=False):
    """SaslHandshake, the request."""

    mechanism: str = ""


class SaslHandshakeResponse(Struct, gc=False):
    """SaslHandshake, the response."""

    error_code: int = 0
    mechanisms: list[str] = []


def _decode_0(view: memoryview, position: int) -> SaslHandshakeRequest:
    mechanism, position = get_string(view, position, "mechanism")
    return SaslHandshakeRequest(mechanism)


def _encode_0(response: SaslHandshakeResponse) -> list[Buffer]:
    out = bytearray()
    out += _H.pack(response.error_code)
    put_array(out, response.mechanisms, put_string)
    return [out]


DECODE: Final = {**dict.fromkeys(range(2), _decode_0)}
ENCODE: Final = {**dict.fromkeys(range(2), _encode_0)}
