"""Records by the kernel: what it takes of Arrow columns, and columns from what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import crc32c as _crc32c

from oncelog.storage.records import block as record_block
from oncelog.storage.records.batch import BatchHeader, Buffer, parse_header
from oncelog.storage.records.block import RecordBlock, open_block
from oncelog.storage.records.compiled import kernel as _kernel
from oncelog.storage.records.layout import HEADER_BYTES
from oncelog.storage.records.rows import RecordInput, Rows, RowT


def encode_rows(records: Sequence[RecordInput]) -> RecordBlock:
    """One block of ``records``, with offset deltas from 0 on; see ``codec.encode_records``."""
    batch, base_timestamp_ms, max_timestamp_ms = _kernel.encode_rows(
        records, HEADER_BYTES, record_block.BLOCK_BYTES_MAX
    )
    return RecordBlock(batch, len(records), base_timestamp_ms, max_timestamp_ms)


def rows_of(
    block: Buffer,
    header: BatchHeader,
    row_type: type[RowT],
    leading: tuple[str | int, ...],
    first_offset: int,
) -> Rows[RowT]:
    """The records of ``block``; see ``codec.decode_rows``."""
    return _kernel.Rows(
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


def encode(
    *,
    keys: Any | None,
    values: Any,
    timestamps_ms: Any,
    headers: Any | None,
) -> RecordBlock:
    """One block of the records in these columns; see ``codec.encode_columns``."""
    from oncelog.storage.records import arrow_columns

    values = arrow_columns.as_binary(values)
    keys = None if keys is None else arrow_columns.as_binary(keys)
    times = arrow_columns.as_milliseconds(timestamps_ms)
    headers = arrow_columns.as_headers(headers)
    arrow_columns.check_lengths(len(values), keys, times, headers)
    if keys is not None and keys.null_count == len(keys):
        keys = None
    batch, base_timestamp_ms, max_timestamp_ms = _kernel.encode_columns(
        len(values),
        None if keys is None else _strings(keys),
        _strings(values),
        times if isinstance(times, int) else memoryview(times.buffers()[1])[8 * times.offset :],
        None if headers is None else _headers(headers),
        HEADER_BYTES,
        record_block.BLOCK_BYTES_MAX,
    )
    return RecordBlock(batch, len(values), base_timestamp_ms, max_timestamp_ms)


def _strings(column: Any) -> _kernel.StringsIn:
    validity, offsets, data = column.buffers()
    return column.offset, validity, offsets, data


def _headers(column: Any) -> _kernel.HeadersIn:
    validity, offsets = column.buffers()[:2]
    # ``flatten`` would apply the list's own slice; its offsets count from the unsliced values.
    keys, values = column.values.flatten()
    return column.offset, validity, offsets, _strings(keys), _strings(values)


def decode(buffers: Sequence[Buffer]) -> Any:
    """The records of these whole batches; see ``codec.decode_columns``."""
    import pyarrow as pa

    from oncelog.storage.records import arrow_columns

    count, offsets, times, types, keys, values, ends, headers, is_exotic = _kernel.decode_columns(
        buffers,
        _crc32c.crc32c,
        _open,
        record_block.BLOCK_BYTES_MAX,
        arrow_columns.COLUMN_BYTES_MAX,
    )
    pairs = arrow_columns.NO_PAIRS if headers is None else _pairs(is_exotic, *headers)
    columns = [
        arrow_columns.number_column(pa.int64(), count, offsets),
        arrow_columns.number_column(pa.int64(), count, times),
        arrow_columns.number_column(pa.int32(), count, types),
        arrow_columns.binary_column(count, keys),
        arrow_columns.binary_column(count, values),
        pa.Array.from_buffers(
            arrow_columns.HEADERS_TYPE,
            count,
            [None, pa.py_buffer(ends)],
            null_count=0,
            children=[pairs],
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_columns.RECORD_SCHEMA)


def _pairs(
    is_exotic: bool, count: int, names: _kernel.StringsOut, contents: _kernel.StringsOut
) -> Any:
    from oncelog.storage.records import arrow_columns

    return arrow_columns.pairs_of(
        arrow_columns.as_text(arrow_columns.binary_column(count, names), is_exotic),
        arrow_columns.binary_column(count, contents),
    )


def _open(buffer: Buffer, position: int) -> Buffer:
    return open_block(buffer, parse_header(buffer, position), position)
