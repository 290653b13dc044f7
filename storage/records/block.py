"""The records of one batch as one block of plain bytes, between header and codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import (
    BatchFields,
    BatchHeader,
    Buffer,
    batch_with,
    crc_matches,
    seal_in_place,
)
from oncelog.storage.records.compression import Codec, compress, decompress
from oncelog.storage.records.layout import CODEC_MASK, HEADER_BYTES, RECORD_BYTES_MIN

if TYPE_CHECKING:
    from typing_extensions import Unpack

BLOCK_BYTES_MAX: Final = 128 * 1024 * 1024
"""The most that the records of one batch may decompress to; more is refused as corrupt."""


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Encoded, uncompressed records, and what their header will say about them.

    ``data`` begins with ``HEAD_ROOM``, so that a batch need not be copied to get its header.
    """

    data: bytearray
    record_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int


def seal_block(
    block: RecordBlock, *, compression_level: int | None = None, **fields: Unpack[BatchFields]
) -> bytearray:
    """The whole batch around ``block``: its own bytes unless they are to be compressed.

    ``compression_level`` is as in ``compress``. Raises ``ValueError`` if the records are larger
    than ``BLOCK_BYTES_MAX``: no reader would accept the batch.
    """
    batch, codec = block.data, fields.get("codec", Codec.NONE)
    size_bytes = len(batch) - HEADER_BYTES
    if size_bytes > BLOCK_BYTES_MAX:
        raise ValueError(f"records exceed {BLOCK_BYTES_MAX} bytes: they take {size_bytes}")
    if codec is not Codec.NONE:
        batch = batch_with(
            compress(codec, memoryview(batch)[HEADER_BYTES:], level=compression_level)
        )
    seal_in_place(
        batch,
        record_count=block.record_count,
        base_timestamp_ms=block.base_timestamp_ms,
        max_timestamp_ms=block.max_timestamp_ms,
        **fields,
    )
    return batch


def open_block(
    buffer: Buffer, header: BatchHeader, position: int = 0, *, checks_crc: bool = True
) -> Buffer:
    """The uncompressed records of the batch at ``position``; a view of ``buffer`` if they were.

    Raises ``CorruptDataError`` if the batch is cut off, its CRC is wrong, its records do not
    decompress, or are too few bytes for their count.
    Without ``checks_crc`` the batch must be whole.
    """
    if checks_crc and not crc_matches(buffer, header, position):
        raise CorruptDataError(f"batch at offset {header.base_offset} is cut off or has a bad CRC")
    stored = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    data: Buffer = stored
    if header.attributes & CODEC_MASK or len(stored) > BLOCK_BYTES_MAX:
        try:
            data = decompress(header.codec, stored, limit_bytes=BLOCK_BYTES_MAX)
        except CorruptDataError as error:
            raise CorruptDataError(f"batch at offset {header.base_offset}: {error}") from error
    # The count is trusted for allocations from here on.
    if not 0 <= header.record_count * RECORD_BYTES_MIN <= len(data):
        raise CorruptDataError(
            f"batch at offset {header.base_offset}: {len(data)} bytes cannot hold "
            f"{header.record_count} records"
        )
    return data
