"""Records as Arrow columns: what the kernel takes of them, and the schema of what is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import crc32c as _crc32c
import pyarrow as pa

from oncelog.storage.records import block as record_block
from oncelog.storage.records.batch import Buffer, parse_header
from oncelog.storage.records.block import RecordBlock, open_block
from oncelog.storage.records.compiled import kernel
from oncelog.storage.records.layout import HEADER_BYTES

COLUMN_BYTES_MAX: Final = 2**30
"""The most that the batches of one call may decompress to: Arrow's offsets are int32."""

HEADER_TYPE: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
)
HEADERS_TYPE: Final = pa.list_(pa.field("item", HEADER_TYPE))

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("timestamp_type", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
    ]
)
"""Of ``decode_columns``. ``timestamp_type`` is 0 for CreateTime, 1 for LogAppendTime."""


# Making a type costs as much as a call of the kernel for a small batch.
_INT64: Final = pa.int64()
_BINARY: Final = pa.binary()
_HEADER_FIELDS: Final = list(HEADER_TYPE)

_Strings: TypeAlias = tuple[bytes | None, bytes, bytes, int]
"""Validity bitmap or None, int32 offsets, data, number of nulls."""


# --- columns to records ---------------------------------------------------------------------------


def encode(
    *,
    keys: Any | None,
    values: Any,
    timestamps_ms: Any,
    headers: Any | None,
) -> RecordBlock:
    """One block of the records in these columns; see ``codec.encode_columns``."""
    values = _as_binary(values)
    keys = None if keys is None else _as_binary(keys)
    times = _as_milliseconds(timestamps_ms)
    headers = _as_headers(headers)
    _check_lengths(len(values), keys, times, headers)
    if keys is not None and keys.null_count == len(keys):
        keys = None
    batch, base_timestamp_ms, max_timestamp_ms = kernel.encode_columns(
        len(values),
        None if keys is None else _strings(keys),
        _strings(values),
        times if isinstance(times, int) else memoryview(times.buffers()[1])[8 * times.offset :],
        None if headers is None else _headers(headers),
        HEADER_BYTES,
        record_block.BLOCK_BYTES_MAX,
    )
    return RecordBlock(batch, len(values), base_timestamp_ms, max_timestamp_ms)


def _as_binary(column: Any) -> Any:
    """``column`` as one ``binary`` array; text becomes its UTF-8, a dictionary its values."""
    column = _one_array(column)
    return column if column.type == _BINARY else column.cast(_BINARY)


def _as_milliseconds(timestamps_ms: Any) -> Any:
    """One int, or an int64 array without nulls. Raises ``ValueError`` if there is a null."""
    if isinstance(timestamps_ms, int):
        return timestamps_ms
    column = _one_array(timestamps_ms)
    if column.null_count:
        raise ValueError("a timestamp is null")
    if column.type == _INT64:
        return column
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    return column.cast(_INT64)


def _as_headers(headers: Any | None) -> Any | None:
    """A ``list<struct<key: binary, value: binary>>`` array; None if no record has headers."""
    if headers is None:
        return None
    column = _one_array(headers)
    if column.null_count == len(column) or len(column.flatten()) == 0:
        return None
    if not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    pairs = column.values
    # A key is text, so bytes that are none are refused here.
    keys = _as_binary(_field(pairs, "key").cast(pa.string()))
    values = _as_binary(_field(pairs, "value"))
    validity, offsets = column.buffers()[:2]
    return pa.Array.from_buffers(
        pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])),
        len(column),
        [validity, offsets],
        offset=column.offset,
        children=[pa.StructArray.from_arrays([keys, values], ["key", "value"])],
    )


def _field(pairs: Any, name: str) -> Any:
    """A field of each pair, null where the pair is."""
    return pairs.flatten()[pairs.type.get_field_index(name)]


def _check_lengths(count: int, *columns: Any) -> None:
    """Raise ``ValueError`` unless all columns, where they are arrays, have ``count`` entries."""
    if any(
        column is not None and not isinstance(column, int) and len(column) != count
        for column in columns
    ):
        raise ValueError("columns are of different lengths")


def _one_array(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _strings(column: Any) -> kernel.StringsIn:
    validity, offsets, data = column.buffers()
    return column.offset, validity, offsets, data


def _headers(column: Any) -> kernel.HeadersIn:
    validity, offsets = column.buffers()[:2]
    # ``flatten`` would apply the list's own slice; its offsets count from the unsliced values.
    keys, values = column.values.flatten()
    return column.offset, validity, offsets, _strings(keys), _strings(values)


# --- records to columns ---------------------------------------------------------------------------


def decode(buffers: Sequence[Buffer]) -> Any:
    """The records of these whole batches; see ``codec.decode_columns``."""
    count, offsets, times, types, keys, values, ends, headers, is_exotic = kernel.decode_columns(
        buffers,
        _crc32c.crc32c,
        _open,
        record_block.BLOCK_BYTES_MAX,
        COLUMN_BYTES_MAX,
    )
    pairs = _NO_PAIRS if headers is None else _pairs(is_exotic, *headers)
    columns = [
        _number_column(pa.int64(), count, offsets),
        _number_column(pa.int64(), count, times),
        _number_column(pa.int32(), count, types),
        _binary_column(count, keys),
        _binary_column(count, values),
        pa.Array.from_buffers(
            HEADERS_TYPE,
            count,
            [None, pa.py_buffer(ends)],
            null_count=0,
            children=[pairs],
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def _open(buffer: Buffer, position: int) -> Buffer:
    return open_block(buffer, parse_header(buffer, position), position)


def _number_column(kind: pa.DataType, count: int, data: bytes) -> Any:
    """An array without nulls over ``data``."""
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)], null_count=0)


def _binary_column(count: int, strings: _Strings) -> Any:
    """A ``binary`` array over the parts of ``strings``."""
    validity, offsets, data, null_count = strings
    return pa.Array.from_buffers(
        _BINARY,
        count,
        [
            None if validity is None else pa.py_buffer(validity),
            pa.py_buffer(offsets),
            pa.py_buffer(data),
        ],
        null_count=null_count,
    )


def _as_text(column: Any, is_exotic: bool) -> Any:
    """``column`` as text. What is no UTF-8 gets replacement characters, as in Java.

    ``is_exotic`` says that not all bytes are ASCII.
    """
    if not is_exotic:
        return column.view(pa.string())
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [value.decode("utf-8", "replace") for value in column.to_pylist()], pa.string()
        )


def _pairs(is_exotic: bool, count: int, names: _Strings, contents: _Strings) -> Any:
    return _pairs_of(
        _as_text(_binary_column(count, names), is_exotic),
        _binary_column(count, contents),
    )


def _pairs_of(names: Any, contents: Any) -> Any:
    """Headers one after the other, as the lists of ``HEADERS_TYPE`` hold them."""
    return pa.StructArray.from_arrays([names, contents], fields=_HEADER_FIELDS)


_NO_PAIRS: Final = _pairs_of(pa.array([], pa.string()), pa.array([], pa.binary()))
