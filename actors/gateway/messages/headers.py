"""What stands before each message: the header of a request, and that of a response.

Request: int16 API key, int16 version, int32 correlation id, the client id as a nullable string in
its old form; then tagged fields, if the version is flexible. Response: the correlation id, then
tagged fields, if the version is flexible. The response to ApiVersions never has them, since its
reader may not know the version that it gets.
Source: KIP-482; KIP-511.
"""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.primitives import get_fixed, get_nullable_string, skip_tags

_REQUEST: Final = Form(">hhi")
_RESPONSE: Final = Form(">i")


class RequestHeader(Struct, frozen=True, gc=False):
    """What a request says of itself; neither the key nor the version need be known."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def is_flexible(api_key: int, version: int) -> bool:
    """Whether the version has compact forms and tagged fields; ``False`` for an unknown API."""
    api = APIS.get(api_key)
    return api is not None and version >= api.flexible_from


def decode_request_header(view: memoryview, position: int = 0) -> tuple[RequestHeader, int]:
    """The header at ``position``, and where the request begins; raises ``MalformedError``.

    The header of an unknown API is read as that of one without flexible versions.
    """
    (api_key, version, correlation_id), position = get_fixed(_REQUEST, view, position, "header")
    client_id, position = get_nullable_string(view, position, "client_id")
    if is_flexible(api_key, version):
        position = skip_tags(view, position)
    return RequestHeader(api_key, version, correlation_id, client_id), position


def encode_response_header(header: RequestHeader) -> bytes:
    """The header of the response to the request with this ``header``."""
    correlation_id = _RESPONSE.pack(header.correlation_id)
    if header.api_key != ApiKey.API_VERSIONS and is_flexible(header.api_key, header.api_version):
        return correlation_id + b"\x00"
    return correlation_id
