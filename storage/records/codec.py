"""Records to and from the bytes of a batch: row by row, or as Arrow columns.

Two backends do the work: a compiled kernel where it could be built, and Python with numpy. Which
one is chosen when this module is imported; ``ONCELOG_CODEC=python`` in the environment refuses the
kernel. Both give the same bytes, the same records and errors of the same types.

The columnar functions load pyarrow when first called; the others never do for small batches, or
with the kernel for any, so that a process which only keeps its own small log stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from oncelog.storage.records import compiled
from oncelog.storage.records.batch import BatchHeader, BatchOptions, Buffer, parse_header
from oncelog.storage.records.block import open_block, seal_block
from oncelog.storage.records.rows import (
    COLUMNAR_RECORDS_MIN,
    INT64_MIN,
    Headers,
    PlainRows,
    Record,
    RecordInput,
    Rows,
    RowT,
    encode_rows,
)
from oncelog.storage.records.rows import decode_rows as decode_few_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

__all__ = [
    "CODEC_BACKEND",
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

if compiled.kernel is not None:
    from oncelog.storage.records import kernel as record_kernel
else:
    record_kernel = None

CODEC_BACKEND: Final = "python" if record_kernel is None else "kernel"
"""What encodes and decodes records in this process: ``"kernel"`` or ``"python"``."""


def encode_records(records: Sequence[RecordInput], **options: Unpack[BatchOptions]) -> bytearray:
    """One whole batch of ``records``, at least one, as a client sends it: base offset 0.

    Raises ``ValueError`` if there are no records, too many bytes, or a timestamp is no int64.
    """
    if record_kernel is not None:
        block = record_kernel.encode_rows(records)
    elif len(records) < COLUMNAR_RECORDS_MIN:
        block = encode_rows(records)
    else:
        from oncelog.storage.records import columns as record_columns

        block = record_columns.encode_many_rows(records)
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
    if record_kernel is not None:
        encode = record_kernel.encode
    else:
        from oncelog.storage.records.columns import encode

    return seal_block(
        encode(keys=keys, values=values, timestamps_ms=timestamps_ms, headers=headers),
        **options,
    )


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
    if record_kernel is not None:
        return record_kernel.rows_of(block, header, row_type, leading, first_offset)
    if header.record_count < COLUMNAR_RECORDS_MIN:
        decoded = decode_few_rows(bytes(block), header)
    else:
        from oncelog.storage.records.scan import decode_many_rows

        decoded = decode_many_rows(block, header)
    if first_offset > header.base_offset:
        decoded = [row for row in decoded if row[0] >= first_offset]
    return PlainRows(decoded, row_type, leading)


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
    if record_kernel is not None:
        return record_kernel.decode(buffers)
    from oncelog.storage.records import columns as record_columns

    return record_columns.decode(buffers)
