"""The records of one batch as one block of plain bytes: what stands between header and codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import (
    BatchHeader,
    Buffer,
    batch_with,
    crc_matches,
    seal_in_place,
)
from oncelog.storage.records.compression import Codec, compress, decompress
from oncelog.storage.records.layout import HEADER_BYTES, RECORD_BYTES_MIN

BLOCK_BYTES_MAX: Final = 128 * 1024 * 1024
"""The most that the records of one batch may decompress to; more is refused as corrupt."""


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Encoded, uncompressed records, and what their header will say of them.

    With head room ``data`` is a bytearray in which that many bytes before the records are free.
    """

    data: Buffer
    record_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    head_room_bytes: int = 0


def seal_block(
    block: RecordBlock,
    *,
    codec: Codec,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool,
) -> bytearray:
    """The whole batch around ``block``, compressed with ``codec``.

    Raises ``ValueError`` if the records are larger than ``BLOCK_BYTES_MAX``: nobody could read
    the batch.
    """
    size_bytes = len(block.data) - block.head_room_bytes
    if size_bytes > BLOCK_BYTES_MAX:
        raise ValueError(f"records exceed {BLOCK_BYTES_MAX} bytes: they take {size_bytes}")
    batch: bytearray
    if codec is Codec.NONE and block.head_room_bytes == HEADER_BYTES:
        batch = cast("bytearray", block.data)
    else:
        records: Buffer = memoryview(block.data)[block.head_room_bytes :]
        batch = batch_with(records if codec is Codec.NONE else compress(codec, records))
    seal_in_place(
        batch,
        codec=codec,
        record_count=block.record_count,
        base_timestamp_ms=block.base_timestamp_ms,
        max_timestamp_ms=block.max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )
    return batch


def open_block(buffer: Buffer, header: BatchHeader, position: int = 0) -> Buffer:
    """The uncompressed records of the batch at ``position``; a view of ``buffer`` if they were.

    Raises ``CorruptDataError`` if the batch is cut off, its CRC is wrong, its records do not
    decompress, or are too few bytes for their count.
    """
    if not crc_matches(buffer, header, position):
        raise CorruptDataError(f"batch at offset {header.base_offset} is cut off or has a bad CRC")
    stored = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
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
