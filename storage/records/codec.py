"""Records to and from the bytes of a batch: row by row, or as Arrow columns, by the kernel.

The columnar functions load pyarrow when first called, the others never do, so that a process which
only keeps its own small log stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncelog.storage.records import block as record_block
from oncelog.storage.records.batch import BatchHeader, BatchOptions, Buffer, parse_header
from oncelog.storage.records.block import RecordBlock, open_block, seal_block
from oncelog.storage.records.compiled import kernel
from oncelog.storage.records.layout import HEADER_BYTES
from oncelog.storage.records.rows import INT64_MIN, Headers, Record, RecordInput, Rows, RowT

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

__all__ = [
    "Headers",
    "Record",
    "RecordInput",
    "Rows",
    "decode_columns",
    "decode_records",
    "decode_rows",
    "encode_columns",
    "encode_records",
]


def encode_records(records: Sequence[RecordInput], **options: Unpack[BatchOptions]) -> bytearray:
    """One whole batch of ``records``, at least one, as a client sends it: base offset 0.

    Raises ``ValueError`` if there are no records, too many bytes, or a timestamp is no int64.
    """
    batch, base_timestamp_ms, max_timestamp_ms = kernel.encode_rows(
        records, HEADER_BYTES, record_block.BLOCK_BYTES_MAX
    )
    block = RecordBlock(batch, len(records), base_timestamp_ms, max_timestamp_ms)
    return seal_block(block, **options)


def encode_columns(
    *,
    keys: pa.Array | pa.ChunkedArray | None,
    values: pa.Array | pa.ChunkedArray,
    timestamps_ms: pa.Array | pa.ChunkedArray | int,
    headers: pa.Array | pa.ChunkedArray | None,
    **options: Unpack[BatchOptions],
) -> bytearray:
    """The batch that ``encode_records`` makes of the same records, from columns of equal length.

    Keys and values are of any binary or text type; null is null. ``timestamps_ms`` are integers,
    Arrow timestamps, or one int for all. Headers are ``list<struct<key, value>>``.
    Raises ``ValueError`` (``ArrowInvalid`` among it) for columns of other types or lengths.
    """
    from oncelog.storage.records import arrow_columns

    block = arrow_columns.encode(
        keys=keys, values=values, timestamps_ms=timestamps_ms, headers=headers
    )
    return seal_block(block, **options)


def decode_records(
    buffer: Buffer, header: BatchHeader | None = None, position: int = 0
) -> list[Record]:
    """The records of the batch at ``position``, its CRC checked; bytes after it are ignored.

    Control batches decode too; it is the caller who must not show them to users.
    Raises ``CorruptDataError`` if anything in the batch breaks the format.
    """
    if header is None:
        header = parse_header(buffer, position)
    return decode_rows(buffer, header, position, row_type=Record).take(header.record_count)


def decode_rows(
    buffer: Buffer,
    header: BatchHeader,
    position: int,
    *,
    row_type: type[RowT],
    leading: tuple[str | int, ...] = (),
    first_offset: int = INT64_MIN,
    checks_crc: bool = True,
) -> Rows[RowT]:
    """``decode_records``, but each is made when it is taken, as a named tuple of ``row_type``.

    Its fields are ``leading``, then those of a ``Record``. Records before ``first_offset`` are
    checked like the others and left out. Without ``checks_crc`` the batch must be whole.
    """
    block = open_block(buffer, header, position, checks_crc=checks_crc)
    return kernel.Rows(
        block,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        header.is_log_append_time,
        row_type,
        leading,
        first_offset,
    )


def decode_columns(buffers: Sequence[Buffer]) -> pa.RecordBatch:
    """The records of ``buffers``, as one Arrow batch of copies.

    Each buffer holds whole batches, one after the other; the batches of a buffer, or of many, are
    decoded together, since the cost of a call exceeds that of a small batch.
    Columns: offset int64, timestamp_ms int64, timestamp_type int32 (0 CreateTime,
    1 LogAppendTime), key binary, value binary, headers ``list<struct<key: string, value:
    binary>>``. Control and aborted batches are to be left out by the caller.
    Raises ``CorruptDataError`` if anything in a batch breaks the format, ``ValueError`` if
    together they decompress to more than 1 GiB.
    """
    from oncelog.storage.records import arrow_columns

    return arrow_columns.decode(buffers)
