"""Messages as bytes: MessagePack, checked against the declared types when they are read.

Whoever may send a message can make nothing but a message of it: unlike ``pickle``, reading runs no
code of the sender. Fields travel by name, so a reader skips what it does not know and gives what
is missing its default.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final

import msgspec

from oncelog.actors.protocol import admin_messages, cluster_messages, group_messages, messages
from oncelog.actors.protocol.messages import Reply, Request

_MODULES: Final = (messages, group_messages, cluster_messages, admin_messages)
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}
_encoder = msgspec.msgpack.Encoder()


def _requests_of(module: ModuleType) -> dict[str, type[Request[Any]]]:
    return {
        kind.method: kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Request) and kind is not Request
    }


REQUESTS: Final[dict[str, type[Request[Any]]]] = functools.reduce(
    lambda known, module: known | _requests_of(module), _MODULES, {}
)
"""Every request an actor of the log answers, by its method."""


def answers_on_connections(request: Request[Any]) -> bool:
    """Whether ``request`` is one of ``REQUESTS``, and not of an actor with other messages."""
    return REQUESTS.get(request.method) is type(request)


def encode(message: Request[Any] | Reply) -> bytes:
    """``message`` as bytes; ``ValueError`` if a value is not of its type or beyond 64 bits."""
    try:
        return _encoder.encode(message)
    except (OverflowError, TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"{type(message).__name__} cannot be sent: {error}") from error


def decode_request(method: str, data: bytes | memoryview) -> Request[Any]:
    """The request to ``method``, one of ``REQUESTS``; ``ValueError`` if ``data`` is none."""
    request: Request[Any] = _decode(REQUESTS[method], data)
    return request


def decode_reply(method: str, data: bytes | memoryview) -> Reply:
    """The reply of ``method``, one of ``REQUESTS``; ``ValueError`` if ``data`` is none."""
    reply: Reply = _decode(REQUESTS[method].reply_type, data)
    return reply


def _decode(kind: type[Any], data: bytes | memoryview) -> Any:
    try:
        return _decoder(kind).decode(data)
    except RecursionError as error:
        raise ValueError(f"{kind.__name__} nested too deep") from error


def _decoder(kind: type[Any]) -> msgspec.msgpack.Decoder[Any]:
    """The decoder of ``kind``, made at its first use: there are many, and a process needs few."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decoder
