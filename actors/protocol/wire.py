"""Kafka's primitive types as bytes, for the records of internal logs.

Big-endian. ``string``: int16 length and UTF-8; ``bytes``: int32 length; ``array``: int32 count;
length -1 is null. The *compact* forms of flexible versions carry length + 1 as an unsigned varint,
0 for null, and close each structure with its tagged fields.
Source: the Kafka protocol guide, "Protocol Primitive Types"; KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from oncelog.storage.exceptions import CorruptDataError

ItemT = TypeVar("ItemT")

STRING_BYTES_MAX: Final = 32_767
"""The longest string, in UTF-8 bytes, that an int16 length can express."""

_VARINT_BITS_MAX: Final = 35
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class WireWriter:
    """Appends primitive values to a buffer; ``bytes(writer.buffer)`` is the result."""

    __slots__ = ("buffer",)

    def __init__(self) -> None:
        self.buffer = bytearray()

    def int8(self, value: int) -> None:
        """One byte."""
        self.buffer.append(value & 0xFF)

    def int16(self, value: int) -> None:
        """Two bytes."""
        self.buffer += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """Four bytes."""
        self.buffer += _INT32.pack(value)

    def int64(self, value: int) -> None:
        """Eight bytes."""
        self.buffer += _INT64.pack(value)

    def string(self, value: str | None) -> None:
        """Length (int16, -1 for null) and UTF-8; ``struct.error`` beyond 32,767 bytes."""
        if value is None:
            self.int16(-1)
            return
        encoded = value.encode()
        self.int16(len(encoded))
        self.buffer += encoded

    def blob(self, value: bytes | None) -> None:
        """Length (int32, -1 for null) and the bytes."""
        if value is None:
            self.int32(-1)
            return
        self.int32(len(value))
        self.buffer += value

    def unsigned_varint(self, value: int) -> None:
        """Seven bits a byte, low ones first."""
        while value >= 0x80:
            self.buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self.buffer.append(value)

    def compact_bytes(self, value: bytes) -> None:
        """Length + 1 (unsigned varint) and the bytes; a compact string is its UTF-8."""
        self.unsigned_varint(len(value) + 1)
        self.buffer += value

    def tagged_fields(self, fields: Sequence[tuple[int, bytes]]) -> None:
        """The tagged fields that end a structure; ``fields`` are sorted by tag."""
        self.unsigned_varint(len(fields))
        for tag, value in fields:
            self.unsigned_varint(tag)
            self.unsigned_varint(len(value))
            self.buffer += value

    def array(self, items: Sequence[ItemT], write: Callable[[ItemT], None]) -> None:
        """Count (int32), then each item with ``write``."""
        self.int32(len(items))
        for item in items:
            write(item)


class WireReader:
    """Reads primitive values in turn; every read is checked against the end of the buffer.

    With ``flexible`` strings, byte strings and arrays are read in compact form; set it once the
    version is known. Raises ``CorruptDataError`` for anything that does not fit.
    """

    __slots__ = ("_buffer", "_position", "flexible")

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self._position = 0
        self.flexible = False

    @property
    def remaining(self) -> int:
        """Bytes not yet read."""
        return len(self._buffer) - self._position

    def int8(self) -> int:
        """One byte, without a sign."""
        return self._take(1)[0]

    def int16(self) -> int:
        """Two bytes."""
        value: int = _INT16.unpack(self._take(2))[0]
        return value

    def int32(self) -> int:
        """Four bytes."""
        value: int = _INT32.unpack(self._take(4))[0]
        return value

    def int64(self) -> int:
        """Eight bytes."""
        value: int = _INT64.unpack(self._take(8))[0]
        return value

    def nullable_string(self) -> str | None:
        """A string or null."""
        length = self._unsigned_varint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        encoded = self._take(length)
        try:
            return encoded.decode()
        except UnicodeDecodeError:
            raise CorruptDataError(f"string before byte {self._position} is not UTF-8") from None

    def string(self) -> str:
        """A string that may not be null."""
        value = self.nullable_string()
        if value is None:
            raise CorruptDataError(f"string before byte {self._position} is null")
        return value

    def nullable_blob(self) -> bytes | None:
        """A byte string or null."""
        length = self._unsigned_varint() - 1 if self.flexible else self.int32()
        return None if length == -1 else self._take(length)

    def blob(self) -> bytes:
        """A byte string that may not be null."""
        value = self.nullable_blob()
        if value is None:
            raise CorruptDataError(f"byte string before byte {self._position} is null")
        return value

    def array(self, read: Callable[[], ItemT]) -> list[ItemT]:
        """The items of an array, each read with ``read``; every item takes at least a byte."""
        count = self._unsigned_varint() - 1 if self.flexible else self.int32()
        if not 0 <= count <= self.remaining:
            raise CorruptDataError(
                f"array of {count} items before byte {self._position}: "
                f"{self.remaining} bytes are left"
            )
        return [read() for _ in range(count)]

    def tagged_fields(self) -> dict[int, bytes]:
        """The tagged fields that end a structure of a flexible version, by tag (KIP-482)."""
        fields: dict[int, bytes] = {}
        if self.flexible:
            for _ in range(self._unsigned_varint()):
                tag = self._unsigned_varint()
                fields[tag] = self._take(self._unsigned_varint())
        return fields

    def skip_tagged_fields(self) -> None:
        """Skip the tagged fields that end a structure of a flexible version."""
        self.tagged_fields()

    def expect_end(self) -> None:
        """Raise if bytes follow the last field."""
        if self.remaining:
            raise CorruptDataError(f"{self.remaining} bytes follow the last field")

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._buffer):
            raise CorruptDataError(
                f"{size} bytes wanted at byte {self._position} of {len(self._buffer)}"
            )
        taken = self._buffer[self._position : end]
        self._position = end
        return taken

    def _unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, _VARINT_BITS_MAX, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptDataError(f"varint before byte {self._position} is longer than 5 bytes")
