"""Bytes for a listener: good ones, damaged ones, and ones that claim more than they have.

An *input* is all that one connection sends, so it can be printed as hex and sent again. A proof
depends on the listener's nonce, which differs each time: an input has a mark in its place.
"""

from __future__ import annotations

import functools
from random import Random
from typing import Final

from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.partition import (
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from oncelog.actors.rpc.frames import HELLO, HELLO_ID
from oncelog.actors.rpc.handshake import NONCE_BYTES, PROOF_BYTES, SCRAM, caller_proof, server_proof
from oncelog.actors.rpc.message_codec import REQUESTS, encode
from oncelog.storage.model import TopicPartition

TOKEN: Final = b"t" * 32
SECRET: Final = b"s" * 32
CALLER_NONCE: Final = b"a nonce that is always the same."
PROOF_MARK: Final = b"<here is the proof of the token>"
SERVER_MARK: Final = b"<here is the proof of a server!>"

LENGTHS: Final = (0, 1, 8, 9, 1_023, 1_024, 1_025, 65_535, 65_536, 2**24, 2**28, 2**28 + 1)
LENGTHS_MAX: Final = (2**31 - 1, 2**31, 2**32 - 1)
EDGES: Final = (0x00, 0x01, 0x7F, 0x80, 0xC1, 0xFE, 0xFF)
CLAIMS: Final = (b"\xc6", b"\xc9", b"\xdb", b"\xdd", b"\xdf")
"""MessagePack's bytes, extension, text, list and map, each with a length of 32 bits."""

OPENERS: Final = (b"\x91", b"\x81\xa1a", b"\x92\x00", b"\xdd\x00\x00\x00\x01")
"""Each begins a list or map within another."""


def frame(number: int, method: str, message: bytes) -> bytes:
    """A frame to a listener."""
    return claimed(9 + len(method) + len(message), number, method, message)


def claimed(length: int, number: int, method: str, message: bytes) -> bytes:
    """A frame that claims to be of ``length``."""
    name = method.encode()
    head = length.to_bytes(4, "big") + number.to_bytes(8, "big") + bytes([len(name)])
    return head + name + message


HELLO_FRAME: Final = frame(HELLO_ID, HELLO, CALLER_NONCE + PROOF_MARK)
SERVER_HELLO_FRAME: Final = frame(HELLO_ID, HELLO, CALLER_NONCE + PROOF_MARK + SERVER_MARK)

CLIENT_HELLO: Final = bytes.fromhex(
    "16030100dc010000d8030317e717c406c7e27148d5d69480e31b36f7da5ff21ed3a0e945710710314b7115201a1f4d"
    "4c4009be20675dafcc6b13a840f7380a32683a4acbfd42db959f7fc928000813021303130100ff01000087000b0004"
    "03000102000a00160014001d0017001e0019001801000101010201030104002300000016000000170000000d001e00"
    "1c040305030603080708080809080a080b080408050806040105010601002b0003020304002d00020101003300260024"
    "001d0020ca5ddb7c96977f44c35bee6f69280a186d79d2082b5fb154b835a18796b6c874"
)
"""What TLS 1.3 of OpenSSL begins with, recorded; the secret of its key share is lost."""

LOGIN_FRAME: Final = frame(HELLO_ID, SCRAM, b"n,,n=alice,r=a-nonce-that-is-always-the-same")


def requests() -> tuple[Request, ...]:  # type: ignore[type-arg]
    """Good requests, of the types that the target answers."""
    place = TopicPartition("flights", 3)
    return (
        ProduceRequest(topic_partition=place, batch=b"b" * 300, ticket=b"t" * 40),
        FetchRequest(topic_partition=place, fetch_offset=17),
        ListOffsetsRequest(topic_partition=place, timestamp_ms=-1),
        MetadataRequest(topics=("flights", "airports")),
    )


@functools.cache
def good_calls() -> tuple[bytes, ...]:
    """The frames of these requests."""
    return tuple(
        frame(number, request.method, encode(request))
        for number, request in enumerate(requests(), 1)
    )


def filled(data: bytes, challenge: bytes) -> bytes:
    """``data`` with its proofs, for a connection that began with ``challenge``."""
    proof = caller_proof(TOKEN, challenge, CALLER_NONCE)
    second = server_proof(SECRET, challenge, CALLER_NONCE)
    return data.replace(PROOF_MARK, proof).replace(SERVER_MARK, second)


def proves(data: bytes) -> bool:
    """Whether a listener may take the sender of ``data`` for a caller: judged by its first frame.

    Written from the table of ``frames.py`` and the text of ``handshake.py``, not with their code.
    """
    length = int.from_bytes(data[:4], "big")
    body = data[4 : 4 + length]
    name = HELLO.encode()
    if not 9 < length <= 1_024 or len(body) < length or body[8] != len(name):
        return False
    message = body[9 + len(name) :]
    sizes = (NONCE_BYTES + PROOF_BYTES, NONCE_BYTES + 2 * PROOF_BYTES)
    is_good = message.startswith(CALLER_NONCE + PROOF_MARK) and len(message) in sizes
    return body[9:].startswith(name) and is_good


def proves_server(data: bytes) -> bool:
    """Whether a listener may also take the sender for a server."""
    length = int.from_bytes(data[:4], "big")
    return proves(data) and data[: 4 + length].endswith(PROOF_MARK + SERVER_MARK)


def is_tls_record(data: bytes) -> bool:
    """Whether ``data`` begins as a record of TLS does. Source: RFC 8446, section 5."""
    is_known = data[:1] in (b"\x14", b"\x15", b"\x16", b"\x17") and data[1:2] == b"\x03"
    return is_known and int.from_bytes(data[3:5], "big") <= 2**14 + 256


def mutated(chance: Random, data: bytes) -> bytes:
    """``data`` with one to four changes."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        size = chance.choice((1, 1, 2, 4, 30, 300))
        match chance.randrange(7):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << chance.randrange(8)
            case 1:
                changed[at : at + 1] = bytes([chance.choice(EDGES)])
            case 2:
                changed[at:at] = chance.randbytes(size)
            case 3:
                del changed[at : at + size]
            case 4:
                changed[at:at] = changed[at : at + size]
            case 5:
                length = chance.choice(LENGTHS + LENGTHS_MAX)
                changed[at : at + 4] = length.to_bytes(4, "big")
            case _:
                del changed[at:]
    return bytes(changed)


def hostile_message(chance: Random, method: str) -> bytes:
    """A message to ``method``: a field whose value claims a length that does not follow."""
    field = chance.choice(REQUESTS[method].__struct_fields__ or ("unknown",))
    name = chance.choice((field, field, field, "unknown")).encode()
    length = chance.choice((*LENGTHS_MAX, 2**24, 2**27, 1 + chance.randrange(2**32 - 1)))
    claim = chance.choice(CLAIMS) + length.to_bytes(4, "big") + chance.randbytes(3)
    match chance.randrange(5):
        case 0:
            # The map itself.
            return b"\xdf" + length.to_bytes(4, "big") + claim
        case 1:
            # Each list within another claims as much.
            nested = (b"\xdd" + length.to_bytes(4, "big")) * chance.randrange(1, 200)
            return b"\x81" + text(name) + nested + claim
        case 2:
            deep = chance.choice(OPENERS) * chance.choice((10, 1_000, 20_000))
            return b"\x81" + text(name) + deep
        case _:
            return b"\x81" + text(name) + claim


def text(name: bytes) -> bytes:
    """A short text in MessagePack."""
    return b"\xd9" + bytes([len(name)]) + name
