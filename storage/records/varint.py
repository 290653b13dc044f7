"""Variable-length integers of the record format: zig-zag, then 7 bits a byte, low group first.

The high bit of a byte says that another follows. A varint holds an int32 in at most 5 bytes, a
varlong an int64 in at most 10; anything longer is corrupt.
Source: KIP-98, "Message Format"; the same encoding as in Protocol Buffers.
"""

from __future__ import annotations

from typing import Final

from oncelog.storage.exceptions import CorruptDataError

VARINT_BYTES_MAX: Final = 5

_CONTINUES: Final = 0x80
_GROUP: Final = 0x7F


def encode_varlong(value: int) -> bytes:
    """``value``, an int64, in 1 to 10 bytes; an int32 never takes more than 5.

    Raises ``ValueError`` if ``value`` does not fit into 64 bits.
    """
    zigzag = (value << 1) ^ (value >> 63)
    if not 0 <= zigzag < 1 << 64:
        raise ValueError(f"{value} does not fit into 64 bits")
    encoded = bytearray()
    while zigzag > _GROUP:
        encoded.append(zigzag & _GROUP | _CONTINUES)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def read_varint(buffer: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """The int32 at ``position`` and the position after it; ``end`` is exclusive."""
    if position < end and (byte := buffer[position]) < _CONTINUES:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read(buffer, position, end, bits=32)


def read_varlong(buffer: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """The int64 at ``position`` and the position after it; ``end`` is exclusive."""
    if position < end and (byte := buffer[position]) < _CONTINUES:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read(buffer, position, end, bits=64)


def _read(buffer: bytes | memoryview, position: int, end: int, *, bits: int) -> tuple[int, int]:
    zigzag = 0
    shift = 0
    cursor = position
    while cursor < end:
        byte = buffer[cursor]
        cursor += 1
        zigzag |= (byte & _GROUP) << shift
        if byte < _CONTINUES:
            if zigzag >> bits:
                break
            return (zigzag >> 1) ^ -(zigzag & 1), cursor
        shift += 7
        if shift >= bits:
            break
    else:
        raise CorruptDataError(f"integer at byte {position} runs past byte {end}")
    raise CorruptDataError(f"integer at byte {position} is longer than {bits} bits")
