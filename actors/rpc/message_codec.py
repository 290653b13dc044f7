"""Messages as bytes: MessagePack, validated against the declared types when decoded.

Unlike with ``pickle``, decoding runs no code of the sender. Fields are sent by name, so a reader
skips unknown fields and uses the defaults of missing ones.
"""

from __future__ import annotations

import functools
import struct
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec import structs

from oncelog.actors.protocol.messages import (
    access,
    brokers,
    cluster,
    group,
    partition,
    replication,
    share,
    transaction,
)
from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.partition import (
    FetchReply,
    FetchTogetherReply,
    ProduceRequest,
)
from oncelog.actors.protocol.messages.replication import ReplicateRequest

if TYPE_CHECKING:
    from oncelog.storage.records.batch import Buffer

_MODULES: Final = (
    partition,
    replication,
    transaction,
    group,
    share,
    cluster,
    brokers,
    access,
)
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}
_encoder = msgspec.msgpack.Encoder()


LONG_BYTES: Final = 16_384
"""A last field longer than this becomes a separate part."""

_LAST_FIELDS: Final[dict[type[Any], str]] = {
    ProduceRequest: "batch",
    ReplicateRequest: "batches",
    FetchReply: "records",
}
"""Messages that carry batches, in their last field: fields are written in order of declaration."""

_BIN32: Final = struct.Struct(">BI")
_BIN32_TAG: Final = 0xC6
_EMPTY_BIN: Final = b"\xc4\x00"
_ARRAY32: Final = struct.Struct(">BI")
_ARRAY32_TAG: Final = 0xDD
_EMPTY_ARRAY: Final = b"\x90"


def _requests_of(module: ModuleType) -> dict[str, type[Request[Any]]]:
    return {
        kind.method: kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Request) and kind is not Request
    }


REQUESTS: Final[dict[str, type[Request[Any]]]] = functools.reduce(
    lambda known, module: known | _requests_of(module), _MODULES, {}
)
"""Method → request, for all requests to actors of the log."""


def answers_on_connections(request: Request[Any]) -> bool:
    """Whether ``request`` is in ``REQUESTS``; other actors have other messages."""
    return REQUESTS.get(request.method) is type(request)


def encode(message: Request[Any] | Reply) -> bytes:
    """``message`` as bytes; ``ValueError`` if a value is not of its type or beyond 64 bits."""
    try:
        return _encoder.encode(message)
    except (OverflowError, TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"{type(message).__name__} cannot be sent: {error}") from error


def encode_in_parts(message: Request[Any] | Reply) -> tuple[Buffer, ...]:
    """Like ``encode``, but batches are separate parts, which are not copied.

    The parts refer to the batches, which must not change until they are sent.
    """
    if isinstance(message, FetchTogetherReply):
        return _with_records(message)
    name = _LAST_FIELDS.get(type(message), "")
    content = getattr(message, name, None)
    if not isinstance(content, bytes | bytearray | memoryview) or len(content) <= LONG_BYTES:
        return (encode(message),)
    head = encode(structs.replace(cast("Any", message), **{name: b""}))
    return head.removesuffix(_EMPTY_BIN) + _BIN32.pack(_BIN32_TAG, len(content)), content


def _with_records(message: FetchTogetherReply) -> tuple[Buffer, ...]:
    """A reply that ends with several batches, each long one a part."""
    if sum(map(len, message.records)) <= LONG_BYTES:
        return (encode(message),)
    head = encode(structs.replace(message, records=())).removesuffix(_EMPTY_ARRAY)
    parts: list[Buffer] = [head + _ARRAY32.pack(_ARRAY32_TAG, len(message.records))]
    for batch in message.records:
        parts += (_BIN32.pack(_BIN32_TAG, len(batch)), batch)
    return tuple(parts)


def decode_request(method: str, data: bytes | memoryview) -> Request[Any]:
    """The request to ``method``, one of ``REQUESTS``; ``ValueError`` if ``data`` is none.

    A batch in it is a view of ``data``, which must not change afterwards.
    """
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
    """The decoder of ``kind``, created on first use: a process needs few of them."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decoder
