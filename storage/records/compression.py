"""The codecs of record batches: compressing and decompressing the records of one batch.

A batch's records are compressed as one block; the header never is. Decompression is bounded: a
block that grows beyond the caller's limit is corrupt, so that a few bytes cannot fill the memory.
gzip comes from the standard library, the other codecs from pyarrow, which is imported at first
use: a process that only moves batches never loads it.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.varint import VARINT_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_READ_BYTES_MIN: Final = 64 * 1024
_READ_RATIO: Final = 8

# The framing of snappy-java: a header, then blocks of at most 32 KiB, each after its int32 size.
# Source: xerial/snappy-java, SnappyOutputStream; what Kafka's Java clients write and read.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_INT32 = struct.Struct(">i")


class Codec(enum.IntEnum):
    """How the records of a batch are compressed: bits 0 to 2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Levels(NamedTuple):
    """How hard a codec may try: both limits inclusive, the default what it does if not told."""

    low: int
    high: int
    default: int


LEVELS: Final[Mapping[Codec, Levels]] = MappingProxyType(
    {
        Codec.GZIP: Levels(1, 9, 6),
        Codec.LZ4: Levels(1, 12, 1),
        Codec.ZSTD: Levels(-131_072, 22, 1),
    }
)
"""The codecs that have levels; a higher one is slower and compresses better. Source: KIP-390."""


def compress(
    codec: Codec, data: bytes | bytearray | memoryview, *, level: int | None = None
) -> bytes:
    """``data`` as one compressed block; with ``Codec.NONE`` a plain copy.

    ``level`` is one of the codec's ``LEVELS``; ``None`` is its default. Others ignore it.
    """
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.SNAPPY:
        return _compress_xerial(data)
    if level is None:
        level = LEVELS[codec].default
    if codec is Codec.GZIP:
        compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)
        return compressor.compress(data) + compressor.flush()
    compressed: bytes = _arrow_codec(codec, level).compress(data, asbytes=True)
    return compressed


def decompress(
    codec: Codec, data: bytes | bytearray | memoryview, *, limit_bytes: int
) -> bytes | bytearray | memoryview:
    """What ``compress`` was given; with ``Codec.NONE`` the same object, not a copy.

    Raises ``CorruptDataError`` if ``data`` is not of this codec or grows beyond ``limit_bytes``.
    """
    if codec is Codec.NONE:
        if len(data) > limit_bytes:
            raise _too_large(limit_bytes)
        return data
    if codec is Codec.GZIP:
        return _decompress_gzip(data, limit_bytes)
    if codec is Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), limit_bytes)
    return _decompress_stream(codec, data, limit_bytes)


def _too_large(limit_bytes: int) -> CorruptDataError:
    return CorruptDataError(f"decompressed records exceed {limit_bytes} bytes")


def _arrow_codec(codec: Codec, level: int | None = None) -> pa.Codec:
    import pyarrow as pa

    return pa.Codec(codec.name.lower(), compression_level=level)


def _decompress_gzip(data: bytes | bytearray | memoryview, limit_bytes: int) -> bytes:
    """All members of a gzip file, one after the other (RFC 1952, section 2.2)."""
    parts: list[bytes] = []
    room = limit_bytes
    rest: bytes | bytearray | memoryview = data
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            # One byte more than there is room for tells "full" from "too large".
            part = member.decompress(rest, room + 1)
        except zlib.error as error:
            raise CorruptDataError(f"gzip records: {error}") from error
        if len(part) > room:
            raise _too_large(limit_bytes)
        if not member.eof:
            raise CorruptDataError("gzip records end too early")
        parts.append(part)
        room -= len(part)
        rest = member.unused_data
        if not rest:
            return b"".join(parts)


def _compress_xerial(data: bytes | bytearray | memoryview) -> bytes:
    snappy = _arrow_codec(Codec.SNAPPY)
    view = memoryview(data)
    framed = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block: bytes = snappy.compress(view[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        framed += (_INT32.pack(len(block)), block)
    return b"".join(framed)


def _decompress_snappy(data: memoryview, limit_bytes: int) -> bytes:
    """Both framings in use: Java writes xerial blocks, librdkafka one raw block."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, limit_bytes)
    parts: list[bytes] = []
    room = limit_bytes
    position = len(_XERIAL_HEADER)
    while position < len(data):
        start = position + _INT32.size
        if start > len(data):
            raise CorruptDataError(f"snappy block size is cut off at byte {position}")
        position = start + _INT32.unpack_from(data, start - _INT32.size)[0]
        if position <= start or position > len(data):
            raise CorruptDataError(f"snappy block at byte {start} has an impossible size")
        parts.append(_decompress_snappy_block(data[start:position], room))
        room -= len(parts[-1])
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, limit_bytes: int) -> bytes:
    """One raw block; it begins with its own decompressed size, which pyarrow must be given."""
    size = 0
    for index, byte in enumerate(block[:VARINT_BYTES_MAX]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    else:
        raise CorruptDataError("snappy records do not begin with their size")
    if size > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        decompressed: bytes = _arrow_codec(Codec.SNAPPY).decompress(block, size, asbytes=True)
    except (OSError, ValueError) as error:
        raise CorruptDataError(f"snappy records: {error}") from error
    if len(decompressed) != size:
        raise CorruptDataError("snappy records are shorter than they say")
    return decompressed


def _decompress_stream(
    codec: Codec, data: bytes | bytearray | memoryview, limit_bytes: int
) -> bytes:
    """Bounded by what is read, because the size that a frame declares may lie."""
    import pyarrow as pa

    name = codec.name.lower()
    parts: list[bytes] = []
    room = limit_bytes
    # pyarrow allocates what is asked for before it reads, so the first guess is not the limit.
    ask_bytes = max(_READ_BYTES_MIN, _READ_RATIO * len(data))
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
            while part := stream.read(min(ask_bytes, room + 1)):
                parts.append(part)
                room -= len(part)
                if room < 0:
                    raise _too_large(limit_bytes)
    except (OSError, ValueError) as error:
        raise CorruptDataError(f"{name} records: {error}") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)
