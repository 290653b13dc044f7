"""Records as Arrow columns: no Python object per record, except for records with headers.

Encoding computes all varints of a batch with numpy and lets Arrow join them with keys and values.
Decoding finds all fields of all batches at once (``record_scan``), describes keys and values as
views of the bytes, and has Arrow copy them into plain columns, which frees the fetched bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.storage.record_batch import BatchHeader, Buffer
from oncelog.storage.record_block import BLOCK_BYTES_MAX, RecordBlock, open_block
from oncelog.storage.record_rows import (
    COLUMNAR_RECORDS_MIN,
    INT64_MAX,
    INT64_MIN,
    Headers,
    RecordInput,
    encode_headers,
    encode_rows,
)
from oncelog.storage.record_scan import (
    PADDING,
    Int64s,
    RecordFields,
    headers_of,
    offsets_of,
    scan,
    timestamps_of,
)
from oncelog.storage.varint import encode_varlong

COLUMN_BYTES_MAX: Final = 2**30
"""The most that the batches of one call may decompress to: Arrow's offsets are int32."""

HEADER_TYPE: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
)
RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("timestamp_type", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("item", HEADER_TYPE)), nullable=False),
    ]
)
"""Of ``decode_columns``. ``timestamp_type`` is 0 for CreateTime, 1 for LogAppendTime."""

_GROUP_BITS: Final = 7
_GROUP: Final = 0x7F

_INLINE_BYTES: Final = 12
_VIEW_TYPE = np.dtype([("length", "<i4"), ("inline", f"V{_INLINE_BYTES}")])

_Uint64s: TypeAlias = npt.NDArray[np.uint64]


def encode(
    *,
    keys: Any | None,
    values: Any,
    timestamps_ms: Any,
    headers: Any | None,
) -> RecordBlock:
    """One block of the records in these columns; see ``record_codec.encode_columns``."""
    values = _as_binary(values)
    keys = None if keys is None else _as_binary(keys)
    times = _as_milliseconds(timestamps_ms, len(values))
    header_rows = _as_header_rows(headers)
    if any(
        column is not None and len(column) != len(values) for column in (keys, times, header_rows)
    ):
        raise ValueError("columns are of different lengths")
    if len(values) >= COLUMNAR_RECORDS_MIN:
        return _encode(keys, values, times, header_rows)
    return encode_rows(
        list(
            zip(
                repeat(None, len(values)) if keys is None else keys.to_pylist(),
                values.to_pylist(),
                times.tolist(),
                repeat((), len(values)) if header_rows is None else header_rows,
                strict=True,
            )
        )
    )


def encode_many_rows(records: Sequence[RecordInput]) -> RecordBlock:
    """What ``encode_rows`` makes of ``records``, several times faster if they are many."""
    keys, values, timestamps_ms, headers = zip(*records, strict=True)
    try:
        times: Int64s = np.array(timestamps_ms, dtype=np.int64)
    except OverflowError as error:
        raise ValueError("a timestamp does not fit into 64 bits") from error
    return _encode(
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        times,
        headers if any(headers) else None,
    )


def _encode(
    keys: Any | None, values: Any, times: Int64s, header_rows: Sequence[Headers] | None
) -> RecordBlock:
    base_timestamp_ms, max_timestamp_ms = int(times[0]), int(times.max())
    if not (
        int(times.min()) - base_timestamp_ms >= INT64_MIN
        and max_timestamp_ms - base_timestamp_ms <= INT64_MAX
    ):
        raise ValueError("timestamps are too far apart")
    suffixes = None
    if header_rows is not None:
        suffixes = pa.array([encode_headers(headers) for headers in header_rows], pa.binary())
    if keys is not None and keys.null_count == len(keys):
        keys = None
    data = _join(keys, values, suffixes, _zigzag(times - base_timestamp_ms))
    return RecordBlock(data, len(values), base_timestamp_ms, max_timestamp_ms)


def _as_binary(column: Any) -> Any:
    """``column`` as one ``binary`` array; text becomes its UTF-8, a dictionary its values."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _as_milliseconds(timestamps_ms: Any, count: int) -> Int64s:
    if isinstance(timestamps_ms, int):
        return np.full(count, timestamps_ms, dtype=np.int64)
    if isinstance(timestamps_ms, pa.ChunkedArray):
        timestamps_ms = timestamps_ms.combine_chunks()
    if pa.types.is_timestamp(timestamps_ms.type):
        timestamps_ms = timestamps_ms.cast(pa.timestamp("ms", timestamps_ms.type.tz), safe=False)
    if timestamps_ms.null_count:
        raise ValueError("a timestamp is null")
    times: Int64s = timestamps_ms.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return times


def _as_header_rows(headers: Any | None) -> list[Any] | None:
    """Each record's headers as (key, value) pairs; None if no record has any."""
    if headers is None:
        return None
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    if headers.null_count == len(headers) or len(headers.flatten()) == 0:
        return None
    return [
        [(header["key"], header["value"]) for header in row or ()] for row in headers.to_pylist()
    ]


def _join(keys: Any | None, values: Any, suffixes: Any | None, timestamp_zigzags: _Uint64s) -> Any:
    """All records, one after the other, in one buffer.

    What is constant or precedes a key or value is merged into one piece per record, since the
    join costs the same for each piece whatever its size. The header count of a record without
    headers, one zero byte, therefore goes to the front of the next record's first piece.
    """
    count = len(values)
    value_lengths = _lengths(values)
    fields = [timestamp_zigzags, _zigzag(np.arange(count, dtype=np.int64))]
    sizes = 1 + _varint_sizes(fields[0]) + _varint_sizes(fields[1])
    key_lengths = np.full(count, -1, dtype=np.int64) if keys is None else _lengths(keys)
    for lengths in (key_lengths, value_lengths):
        fields.append(_zigzag(lengths))
        sizes += _varint_sizes(fields[-1]) + np.maximum(lengths, 0)
    sizes += 1 if suffixes is None else _lengths(suffixes)
    if sizes.sum() > BLOCK_BYTES_MAX:
        raise ValueError(f"records of {sizes.sum()} bytes exceed {BLOCK_BYTES_MAX} bytes")
    attributes = np.zeros(count, dtype=np.uint64)
    first: list[_Uint64s] = [_zigzag(sizes), attributes, *fields[:3]]
    if suffixes is None:
        first.insert(0, attributes)
    pieces = [_varints([*first, fields[3]])] if keys is None else [_varints(first), keys]
    if keys is not None:
        pieces.append(_varints(fields[3:]))
    pieces.append(values)
    if suffixes is not None:
        pieces.append(suffixes)
    joined = pc.binary_join_element_wise(
        *pieces, b"", null_handling="replace", null_replacement=b""
    )
    _, offsets, data = joined.buffers()
    start, end = np.frombuffer(offsets, np.int32)[[joined.offset, joined.offset + count]]
    if suffixes is not None:
        return memoryview(data)[start:end]
    return b"".join((memoryview(data)[start + 1 : end], b"\x00"))


def _lengths(column: Any) -> Int64s:
    """The length in bytes of each entry, -1 where it is null."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    lengths = np.diff(offsets[column.offset : column.offset + len(column) + 1]).astype(np.int64)
    if column.null_count:
        # A null entry may have bytes behind it, so only the validity counts.
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


def _zigzag(values: Int64s) -> _Uint64s:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _varint_sizes(zigzags: _Uint64s) -> Int64s:
    sizes = np.ones(len(zigzags), dtype=np.int64)
    for group in range(1, _groups(zigzags)):
        sizes += zigzags >= np.uint64(1 << _GROUP_BITS * group)
    return sizes


def _groups(zigzags: _Uint64s) -> int:
    """How many bytes the longest of these varints takes."""
    return max(1, -(-int(zigzags.max()).bit_length() // _GROUP_BITS))


def _varints(fields: Sequence[_Uint64s]) -> Any:
    """A ``binary`` array: for each record its number from each of ``fields``, as varints."""
    count = len(fields[0])
    width = sum(_groups(field) for field in fields)
    grid = np.empty((count, width), dtype=np.uint8)
    present = np.ones(grid.shape, dtype=np.bool_)
    column = 0
    for field in fields:
        column = _fill_grid(grid, present, column, field)
    if present.all():
        offsets = np.arange(0, grid.size + 1, width, dtype=np.int32)
        data = grid.ravel()
    else:
        offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(present.sum(axis=1), out=offsets[1:])
        data = grid[present]
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0
    )


def _fill_grid(
    grid: npt.NDArray[np.uint8], present: npt.NDArray[np.bool_], column: int, field: _Uint64s
) -> int:
    """Write ``field`` into the columns from ``column`` on; returns the column after them."""
    groups = _groups(field)
    low, high = int(field.min()), int(field.max())
    if low == high:
        constant = encode_varlong((high >> 1) ^ -(high & 1))
        grid[:, column : column + groups] = np.frombuffer(constant, np.uint8)
        return column + groups
    # Half the width is nearly half the time.
    rest: npt.NDArray[Any] = field.astype(np.uint32) if high < 1 << 32 else field
    for group in range(groups):
        byte = rest.astype(np.uint8)
        if group + 1 < groups:
            byte &= _GROUP
            goes_on = rest >= 1 << _GROUP_BITS
            byte |= goes_on.view(np.uint8) << _GROUP_BITS
            present[:, column + group + 1] = goes_on
            rest = rest >> _GROUP_BITS
        grid[:, column + group] = byte
    return column + groups


def decode(batches: Sequence[tuple[BatchHeader, Buffer]]) -> Any:
    """The records of these whole batches; see ``record_codec.decode_columns``."""
    blocks = [open_block(buffer, header) for header, buffer in batches]
    block_sizes = np.array([len(block) for block in blocks], dtype=np.int64)
    if block_sizes.sum() > COLUMN_BYTES_MAX:
        raise ValueError(f"batches decompress to more than {COLUMN_BYTES_MAX} bytes; pass fewer")
    counts = np.array([header.record_count for header, _ in batches], dtype=np.int64)
    data = b"".join((*blocks, PADDING))
    fields = scan(data, block_sizes, counts)
    headers = [header for header, _ in batches]
    offsets = offsets_of(headers, counts, fields)
    times = timestamps_of(headers, counts, fields)
    types = np.array([header.is_log_append_time for header in headers], dtype=np.int32)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets),
            pa.array(times),
            pa.array(np.repeat(types, counts)),
            _binary_column(data, fields.key_starts, fields.key_lengths),
            _binary_column(data, fields.value_starts, fields.value_lengths),
            _header_column(data, fields),
        ],
        schema=RECORD_SCHEMA,
    )


def _binary_column(data: bytes, starts: Int64s, lengths: Int64s) -> Any:
    """A ``binary`` array of copies. Arrow's cast from views is by far the fastest gather there is.

    The views name up to 12 bytes inline and else a position; they never leave this function, so
    the prefix that a long view repeats, which only comparisons use, may stay zero.
    """
    count = len(starts)
    is_null = lengths < 0
    null_count = int(is_null.sum())
    if null_count == count:
        return pa.nulls(count, pa.binary())
    views = np.zeros((count, 4), dtype="<i4")
    views[:, 0] = np.maximum(lengths, 0)
    views[:, 3] = starts
    is_short = lengths <= _INLINE_BYTES
    if is_short.any():
        windows = np.ndarray(
            (len(data) - _INLINE_BYTES + 1,), f"V{_INLINE_BYTES}", buffer=data, strides=(1,)
        )
        views.view(_VIEW_TYPE)[:, 0]["inline"][is_short] = windows[starts[is_short]]
    validity = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if null_count else None
    column = pa.Array.from_buffers(
        pa.binary_view(),
        count,
        [validity, pa.py_buffer(views), pa.py_buffer(data)],
        null_count=null_count,
    )
    return column.cast(pa.binary())


def _header_column(data: bytes, fields: RecordFields) -> Any:
    """The headers of each record."""
    count = len(fields.header_counts)
    keys: list[str] = []
    values: list[bytes | None] = []
    for _, headers in headers_of(data, fields):
        keys += [key for key, _ in headers]
        values += [value for _, value in headers]
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(fields.header_counts, out=offsets[1:])
    pairs = pa.StructArray.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.binary())], fields=list(HEADER_TYPE)
    )
    return pa.ListArray.from_arrays(
        pa.array(offsets), pairs, type=RECORD_SCHEMA.field("headers").type
    )
