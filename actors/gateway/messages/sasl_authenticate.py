"""Kafka's SaslAuthenticate in versions 0 to 2; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    NO_BYTES,
    Buffer,
    get_bytes,
    get_compact_bytes,
    put_bytes,
    put_compact_bytes,
    put_compact_nullable_string,
    put_nullable_string,
    skip_tags,
)

_H = Form(">h")
_Q = Form(">q")


class SaslAuthenticateRequest(Struct, gc=False):
    """SaslAuthenticate, the request."""

    auth_bytes: memoryview = NO_BYTES


class SaslAuthenticateResponse(Struct, gc=False):
    """SaslAuthenticate, the response."""

    error_code: int = 0
    error_message: str | None = ""
    auth_bytes: Buffer = b""
    session_lifetime_ms: int = 0


def _decode_0(view: memoryview, position: int) -> SaslAuthenticateRequest:
    auth_bytes, position = get_bytes(view, position, "auth_bytes")
    return SaslAuthenticateRequest(auth_bytes)


def _decode_2(view: memoryview, position: int) -> SaslAuthenticateRequest:
    auth_bytes, position = get_compact_bytes(view, position, "auth_bytes")
    position = skip_tags(view, position)
    return SaslAuthenticateRequest(auth_bytes)


def _encode_0(response: SaslAuthenticateResponse) -> list[Buffer]:
    out = bytearray()
    out += _H.pack(response.error_code)
    put_nullable_string(out, response.error_message)
    put_bytes(out, response.auth_bytes)
    return [out]


def _encode_1(response: SaslAuthenticateResponse) -> list[Buffer]:
    out = bytearray()
    out += _H.pack(response.error_code)
    put_nullable_string(out, response.error_message)
    put_bytes(out, response.auth_bytes)
    out += _Q.pack(response.session_lifetime_ms)
    return [out]


def _encode_2(response: SaslAuthenticateResponse) -> list[Buffer]:
    out = bytearray()
    out += _H.pack(response.error_code)
    put_compact_nullable_string(out, response.error_message)
    put_compact_bytes(out, response.auth_bytes)
    out += _Q.pack(response.session_lifetime_ms)
    out.append(0)
    return [out]


DECODE: Final = {**dict.fromkeys(range(2), _decode_0), 2: _decode_2}
ENCODE: Final = {0: _encode_0, 1: _encode_1, 2: _encode_2}
