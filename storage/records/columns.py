"""Records as Arrow columns: no Python object per record, except for records with headers.

Encoding computes all varints of a batch with numpy and lets Arrow join them with keys and values.
Decoding finds all fields of all batches at once (``records.scan``), describes keys and values as
views of the bytes, and has Arrow copy them into plain columns, which frees the fetched bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.storage.records import arrow_columns
from oncelog.storage.records.arrow_columns import (
    HEADERS_TYPE,
    RECORD_SCHEMA,
    as_binary,
    as_headers,
    as_milliseconds,
    check_lengths,
    pairs_of,
)
from oncelog.storage.records.batch import (
    HEAD_ROOM,
    BatchHeader,
    Buffer,
    batch_with,
    parse_header,
)
from oncelog.storage.records.block import BLOCK_BYTES_MAX, RecordBlock, open_block
from oncelog.storage.records.rows import (
    COLUMNAR_RECORDS_MIN,
    INT64_MAX,
    INT64_MIN,
    Headers,
    RecordInput,
    encode_headers,
    encode_rows,
)
from oncelog.storage.records.scan import (
    PADDING,
    Int64s,
    RecordFields,
    headers_of,
    offsets_of,
    scan,
    timestamps_of,
)
from oncelog.storage.records.varint import encode_varlong

_GROUP_BITS: Final = 7
_GROUP: Final = 0x7F
_GOES_ON: Final = 0x80
_NARROW_GROUPS: Final = 4
"""The number of groups that fit into 32 bits."""

_RUNS_MAX: Final = 4
"""At most this many runs of equally long numbers are written one by one; more do not pay."""

_INLINE_BYTES: Final = 12
_VIEW_TYPE = np.dtype([("length", "<i4"), ("inline", f"V{_INLINE_BYTES}")])

_Uint64s: TypeAlias = npt.NDArray[np.uint64]
_Varints: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]
"""The parts of a ``binary`` array: offsets and bytes."""


def encode(
    *,
    keys: Any | None,
    values: Any,
    timestamps_ms: Any,
    headers: Any | None,
) -> RecordBlock:
    """One block of the records in these columns; see ``codec.encode_columns``."""
    values = as_binary(values)
    keys = None if keys is None else as_binary(keys)
    timestamps_ms = as_milliseconds(timestamps_ms)
    headers = as_headers(headers)
    check_lengths(len(values), keys, timestamps_ms, headers)
    times: Int64s = (
        np.full(len(values), timestamps_ms, dtype=np.int64)
        if isinstance(timestamps_ms, int)
        else timestamps_ms.to_numpy(zero_copy_only=False)
    )
    header_rows = None if headers is None else _header_rows(headers)
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
    data = _join(keys, values, suffixes, times - base_timestamp_ms)
    return RecordBlock(data, len(values), base_timestamp_ms, max_timestamp_ms)


def _header_rows(headers: Any) -> list[Headers]:
    """Each record's headers as (key, value) pairs."""
    rows = headers.to_pylist()
    if any(header["key"] is None for row in rows for header in row or ()):
        raise ValueError("a header has no key")
    return [[(header["key"].decode(), header["value"]) for header in row or ()] for row in rows]


def _join(keys: Any | None, values: Any, suffixes: Any | None, time_deltas: Int64s) -> Any:
    """All records, one after the other, in one bytearray with room for the header.

    What is constant or precedes a key or value is merged into one piece per record, since the
    join costs the same for each piece whatever its size. The header count of a record without
    headers, one zero byte, therefore goes to the front of the next record's first piece.
    """
    count = len(values)
    fields = [_Numbers.of(time_deltas), _Numbers.range(count)]
    sizes: Any = 1 + fields[0].sizes + fields[1].sizes
    for column in (keys, values):
        if column is None:
            fields.append(_Numbers.constant(-1))
        else:
            lengths = _lengths(column)
            fields.append(_Numbers.of(lengths))
            sizes = sizes + (np.maximum(lengths, 0) if column.null_count else lengths)
        sizes = sizes + fields[-1].sizes
    sizes = sizes + (1 if suffixes is None else _lengths(suffixes))
    if sizes.sum() > BLOCK_BYTES_MAX:
        raise ValueError(f"records of {sizes.sum()} bytes exceed {BLOCK_BYTES_MAX} bytes")
    zero = _Numbers.constant(0)
    first = [_Numbers.of(sizes), zero, *fields[:3]]
    if suffixes is None:
        first.insert(0, zero)
    if keys is None:
        pieces = [_varints([*first, fields[3]], count)]
    else:
        pieces = [_varints(first, count), keys, _varints(fields[3:], count)]
    pieces.append(values)
    if suffixes is not None:
        pieces.append(suffixes)
    joined = pc.binary_join_element_wise(
        *pieces, b"", null_handling="replace", null_replacement=b""
    )
    _, offsets, data = joined.buffers()
    start, end = np.frombuffer(offsets, np.int32)[[joined.offset, joined.offset + count]]
    if suffixes is not None:
        return batch_with(memoryview(data)[start:end])
    return bytearray().join((HEAD_ROOM, memoryview(data)[start + 1 : end], b"\x00"))


def _lengths(column: Any) -> Int64s:
    """The length in bytes of each entry, -1 where it is null."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    lengths = np.diff(offsets[column.offset : column.offset + len(column) + 1]).astype(np.int64)
    if column.null_count:
        # A null entry may have bytes behind it, so only the validity counts.
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


@dataclass(frozen=True, slots=True)
class _Numbers:
    """One zig-zag number per record and the largest of them; None if all are the same.

    ``sizes``: how many bytes each takes; one number if that is the same for all.
    """

    zigzags: _Uint64s | None
    high: int
    sizes: Int64s | int

    @classmethod
    def of(cls, values: Int64s) -> _Numbers:
        """These numbers, at least one."""
        zigzags = ((values << 1) ^ (values >> 63)).view(np.uint64)
        low, high = int(zigzags.min()), int(zigzags.max())
        if low == high:
            return cls(None, high, _groups(high))
        return cls(zigzags, high, _sizes(zigzags, low, high))

    @classmethod
    def range(cls, count: int) -> _Numbers:
        """The numbers from 0 to ``count``, exclusive."""
        zigzags = np.arange(0, 2 * count, 2, dtype=np.uint64)
        return cls(zigzags, 2 * (count - 1), _sizes(zigzags, 0, 2 * (count - 1)))

    @classmethod
    def constant(cls, value: int) -> _Numbers:
        """The same number, of 32 bits, for every record."""
        zigzag = (value << 1) ^ (value >> 63)
        return cls(None, zigzag, _groups(zigzag))

    @property
    def constant_bytes(self) -> bytes:
        """What they all are, or would be if they were all the largest."""
        return encode_varlong((self.high >> 1) ^ -(self.high & 1))

    def fill(
        self, grid: npt.NDArray[np.uint8], present: npt.NDArray[np.bool_], column: int
    ) -> None:
        """Write them into as many columns from ``column`` on as the longest takes."""
        groups = _groups(self.high)
        if self.zigzags is None:
            grid[:, column : column + groups] = np.frombuffer(self.constant_bytes, np.uint8)
            return
        # Half the width is nearly half the time.
        is_narrow = self.high < 1 << 32
        rest: npt.NDArray[Any] = self.zigzags.astype(np.uint32) if is_narrow else self.zigzags
        for group in range(groups):
            byte = rest.astype(np.uint8)
            if group + 1 < groups:
                byte &= _GROUP
                goes_on = rest >= 1 << _GROUP_BITS
                byte |= goes_on.view(np.uint8) << _GROUP_BITS
                present[:, column + group + 1] = goes_on
                rest = rest >> _GROUP_BITS
            grid[:, column + group] = byte

    def fill_run(self, grid: npt.NDArray[np.uint8], column: int, first: int) -> None:
        """Write those from ``first`` on, which take equally many bytes and are not all the same."""
        assert self.zigzags is not None
        groups = self.size_at(first)
        rest: npt.NDArray[Any] = self.zigzags[first : first + len(grid)]
        if groups <= _NARROW_GROUPS:
            rest = rest.astype(np.uint32)
        for group in range(groups - 1):
            grid[:, column + group] = rest.astype(np.uint8) | _GOES_ON
            rest = rest >> _GROUP_BITS
        grid[:, column + groups - 1] = rest

    def size_at(self, record: int) -> int:
        """How many bytes the number of one record takes."""
        return self.sizes if isinstance(self.sizes, int) else int(self.sizes[record])


def _groups(zigzag: int) -> int:
    """How many bytes a number takes."""
    return max(1, -(-zigzag.bit_length() // _GROUP_BITS))


def _sizes(zigzags: _Uint64s, low: int, high: int) -> Int64s | int:
    """How many bytes each number takes; one number if that is the same for all."""
    groups = _groups(high)
    if low >= 1 << _GROUP_BITS * (groups - 1):
        return groups
    sizes = np.ones(len(zigzags), dtype=np.int64)
    for group in range(1, groups):
        sizes += zigzags >= np.uint64(1 << _GROUP_BITS * group)
    return sizes


def _run_ends(fields: Sequence[_Numbers], count: int) -> list[int] | None:
    """Where runs of records end whose numbers take equally many bytes; None if they are many.

    Offsets and times mostly rise and lengths are mostly of one size, so there are a few runs.
    """
    ends = {count}
    for field in fields:
        if not isinstance(field.sizes, int):
            changes = np.flatnonzero(np.diff(field.sizes)) + 1
            if len(changes) > _RUNS_MAX:
                return None
            ends.update(changes.tolist())
    return sorted(ends) if len(ends) <= _RUNS_MAX else None


def _varints(fields: Sequence[_Numbers], count: int) -> Any:
    """A ``binary`` array: for each record its number from each of ``fields``, as varints.

    If all of them are the same, one scalar of that type, which a join takes as well.
    """
    if all(field.zigzags is None for field in fields):
        return pa.scalar(b"".join(field.constant_bytes for field in fields), pa.binary())
    ends = _run_ends(fields, count)
    if ends is None:
        offsets, data = _masked_varints(fields, count)
    else:
        offsets, data = _runs_of_varints(fields, ends)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0
    )


def _runs_of_varints(fields: Sequence[_Numbers], ends: Sequence[int]) -> _Varints:
    """The numbers of all records, run by run."""
    offsets = np.empty(ends[-1] + 1, dtype=np.int32)
    pieces: list[npt.NDArray[np.uint8]] = []
    at = 0
    for first, end in pairwise((0, *ends)):
        sizes = [field.size_at(first) for field in fields]
        row = b"".join(
            bytes(size) if field.zigzags is not None else field.constant_bytes
            for field, size in zip(fields, sizes, strict=True)
        )
        grid = np.frombuffer(bytearray(row) * (end - first), np.uint8).reshape(end - first, -1)
        column = 0
        for field, size in zip(fields, sizes, strict=True):
            if field.zigzags is not None:
                field.fill_run(grid, column, first)
            column += size
        pieces.append(grid.ravel())
        next_at = at + grid.size
        offsets[first:end] = np.arange(at, next_at, column, dtype=np.int32)
        at = next_at
    offsets[-1] = at
    return offsets, pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _masked_varints(fields: Sequence[_Numbers], count: int) -> _Varints:
    """The same, whatever each takes: all as long as the longest, and then without their gaps."""
    grid = np.empty((count, sum(_groups(field.high) for field in fields)), dtype=np.uint8)
    present = np.ones(grid.shape, dtype=np.bool_)
    column = 0
    for field in fields:
        field.fill(grid, present, column)
        column += _groups(field.high)
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(sum(field.sizes for field in fields), out=offsets[1:])
    return offsets, grid.ravel()[present.ravel()]


def decode(buffers: Sequence[Buffer]) -> Any:
    """The records of these whole batches; see ``codec.decode_columns``."""
    headers: list[BatchHeader] = []
    blocks: list[Buffer] = []
    for buffer in buffers:
        position = 0
        while position < len(buffer):
            headers.append(parse_header(buffer, position))
            blocks.append(open_block(buffer, headers[-1], position))
            position += headers[-1].size_bytes
    block_sizes = np.array([len(block) for block in blocks], dtype=np.int64)
    limit = arrow_columns.COLUMN_BYTES_MAX
    if block_sizes.sum() > limit:
        raise ValueError(f"batches decompress to more than {limit} bytes; pass fewer")
    counts = np.array([header.record_count for header in headers], dtype=np.int64)
    data = b"".join((*blocks, PADDING))
    fields = scan(data, block_sizes, counts)
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
    pairs = pairs_of(pa.array(keys, pa.string()), pa.array(values, pa.binary()))
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=HEADERS_TYPE)
