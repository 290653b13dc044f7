"""Arrow tables to batches: split by partition, cut to size, without a Python object per record.

A table has the column ``value`` and optionally ``key``, ``timestamp``, ``headers`` and
``partition``. It is processed in blocks of rows, so only one block at a time needs extra memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.api.batching.accumulator import HEADER_OVERHEAD_BYTES
from oncelog.api.batching.open_batches import RECORD_OVERHEAD_BYTES
from oncelog.api.batching.partitioner import Partitioner
from oncelog.api.batching.rows import BatchRows
from oncelog.storage.exceptions import (
    InvalidRecordError,
    MessageTooLargeError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import encode_columns

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oncelog.storage.records.batch import BatchOptions

COLUMN_BATCH_BYTES: Final = 900_000
"""Target size of a batch: few calls, and below a topic's limit of 1 MiB."""

BLOCK_BYTES: Final = 16_777_216
"""How many bytes of a table are split by partition at a time."""

COLUMNS: Final = ("key", "value", "timestamp", "headers", "partition")

_HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class ColumnRows:
    """Records as columns of equal length; slices share the table's memory."""

    columns: pa.RecordBatch

    @property
    def record_count(self) -> int:
        """The number of records."""
        return int(self.columns.num_rows)

    def encode(self, **options: Unpack[BatchOptions]) -> bytearray:
        """Encode the whole batch, checksum included."""
        names = self.columns.schema.names
        return encode_columns(
            keys=self.columns["key"] if "key" in names else None,
            values=self.columns["value"],
            timestamps_ms=self.columns["timestamp"],
            headers=self.columns["headers"] if "headers" in names else None,
            **options,
        )

    def split(self) -> tuple[BatchRows, BatchRows]:
        """Two halves, in order."""
        middle = self.record_count // 2
        return ColumnRows(self.columns.slice(0, middle)), ColumnRows(self.columns.slice(middle))


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Rows of one partition for one batch. ``size_bytes`` is an upper bound, uncompressed."""

    topic_partition: TopicPartition
    rows: ColumnRows
    size_bytes: int


def as_table(data: object) -> pa.Table:
    """Convert ``data`` to a table that can be sent; raise ``TypeError`` or ``ValueError``."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if not isinstance(data, pa.Table):
        raise TypeError(
            f"send_arrow takes a pyarrow Table or RecordBatch, not {type(data).__name__}"
        )
    names = data.schema.names
    unknown = [name for name in names if name not in COLUMNS]
    if "value" not in names or unknown or len(set(names)) != len(names):
        raise ValueError(
            f"send_arrow takes the column 'value' and optionally 'key', 'timestamp', 'headers' "
            f"and 'partition', each once; the table has {names}"
        )
    for name in names:
        check_column_type(name, data.schema.field(name).type)
    return data


def highest_partition(table: pa.Table) -> int | None:
    """The highest partition named in ``table`` (from ``as_table``), or ``None``."""
    if "partition" not in table.schema.names:
        return None
    highest: int | None = pc.max(table["partition"]).as_py()
    return highest


def split_table(
    table: pa.Table,
    *,
    topic: str,
    partition_count: int,
    now_ms: int,
    record_bytes_max: int,
    partitioner: Partitioner,
    sticky_partition: Callable[[], int],
) -> Iterator[ColumnBatch]:
    """Split ``table`` (from ``as_table``) into batches, in row order within each partition.

    A row without a partition goes where ``partitioner`` says, else to ``sticky_partition()``, which
    is called once per block. A missing timestamp becomes ``now_ms`` (ms since the epoch).

    Before it yields the first batch it raises ``MessageTooLargeError``, ``InvalidRecordError`` for
    a header without a key, or ``UnknownTopicOrPartitionError``.
    """
    _check_rows(table, topic, partition_count, record_bytes_max)
    for block in _blocks(table):
        partitions = _partitions(block, topic, partition_count, partitioner, sticky_partition)
        columns = _normalise(block, now_ms)
        sizes = _row_bytes(columns)
        for partition, rows in _by_partition(partitions):
            topic_partition = TopicPartition(topic, partition)
            order = slice(None) if rows is None else rows
            taken = columns if rows is None else columns.take(pa.array(rows))
            yield from _cut(topic_partition, taken, sizes[order], record_bytes_max)


# --- checks -----------------------------------------------------------------------------------


def _is_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_bytes(kind.value_type)
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_null(kind)
        or kind in (pa.binary_view(), pa.string_view())
    )


def check_column_type(name: str, kind: pa.DataType) -> None:
    """Reject a column type that records cannot take; the ``TypeError`` names those they can."""
    if name in ("key", "value"):
        is_right, wanted = _is_bytes(kind), "binary or string"
    elif name == "timestamp":
        is_right = (
            pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_null(kind)
        )
        wanted = "a timestamp, or an integer of milliseconds since the epoch"
    elif name == "partition":
        is_right, wanted = pa.types.is_integer(kind) or pa.types.is_null(kind), "an integer"
    else:
        is_right = (
            pa.types.is_map(kind)
            or pa.types.is_null(kind)
            or (
                (pa.types.is_list(kind) or pa.types.is_large_list(kind))
                and pa.types.is_struct(kind.value_type)
                and {field.name for field in kind.value_type} == {"key", "value"}
            )
        )
        wanted = "list<struct<key: string, value: binary>>"
    if not is_right:
        raise TypeError(f"column {name!r} must be {wanted}, not {kind}")


def _check_rows(table: pa.Table, topic: str, partition_count: int, record_bytes_max: int) -> None:
    if "partition" in table.schema.names and table.num_rows:
        bounds = pc.min_max(table["partition"]).as_py()
        low, high = bounds["min"], bounds["max"]
        if low is not None and (low < 0 or high >= partition_count):
            wrong = low if low < 0 else high
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has partitions 0 to {partition_count - 1}, not {wrong}"
            )
    position = 0
    for block in _blocks(table):
        columns = _normalise(block, 0)
        if "headers" in columns.schema.names:
            _check_headers(columns["headers"], position)
        sizes = _row_bytes(columns)
        if int(sizes.max()) > record_bytes_max:
            row = int(sizes.argmax())
            raise MessageTooLargeError(
                f"row {position + row} takes {int(sizes[row])} bytes, more than "
                f"max_request_size={record_bytes_max}; nothing of the table was sent"
            )
        position += len(sizes)


def _check_headers(headers: pa.Array, position: int) -> None:
    """Reject a header without a key; ``position`` is the number of the first row."""
    # A null header's key is null too, whatever its buffer holds.
    keys = pc.struct_field(headers.flatten(), "key")
    if keys.null_count:
        place = pc.index(pc.is_null(keys), True).as_py()
        row = pc.list_parent_indices(headers)[place].as_py()
        raise InvalidRecordError(
            f"row {position + row} has a header that is null or has no key",
            advice="leave it out, or give it one; nothing of the table was sent",
        )


def _blocks(table: pa.Table) -> Iterator[pa.Table]:
    """Yield non-empty slices of about ``BLOCK_BYTES``."""
    row_bytes = max(1, table.nbytes // max(1, table.num_rows))
    block_rows = max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, table.num_rows, block_rows):
        yield table.slice(start, block_rows)


# --- columns ----------------------------------------------------------------------------------


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        # A block with one chunk shares the table's memory; combining would copy it.
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _plain_bytes(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type == pa.string_view():
        array = array.cast(pa.string())
    return array.cast(pa.binary())


def _normalise(block: pa.Table, now_ms: int) -> pa.RecordBatch:
    """Columns value, timestamp and, if present, key and headers, each of one plain type."""
    columns = {"value": _plain_bytes(_one_array(block["value"]))}
    names = block.schema.names
    if "key" in names:
        columns["key"] = _plain_bytes(_one_array(block["key"]))
    if "timestamp" in names:
        stamps = _one_array(block["timestamp"])
        if pa.types.is_timestamp(stamps.type):
            stamps = stamps.cast(pa.timestamp("ms", stamps.type.tz), safe=False)
        columns["timestamp"] = stamps.cast(pa.int64()).fill_null(now_ms)
    else:
        columns["timestamp"] = pa.array(np.full(block.num_rows, now_ms, dtype=np.int64))
    if "headers" in names:
        headers = _one_array(block["headers"])
        if not pa.types.is_null(headers.type):
            columns["headers"] = headers.cast(_HEADERS_TYPE)
    return pa.RecordBatch.from_pydict(columns)


def _row_bytes(columns: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Upper bound of each row's encoded size."""
    sizes: npt.NDArray[Any] = np.full(columns.num_rows, RECORD_OVERHEAD_BYTES, dtype=np.int64)
    names = columns.schema.names
    for name in ("key", "value"):
        if name in names:
            sizes += pc.binary_length(columns[name]).fill_null(0).to_numpy(zero_copy_only=False)
    if "headers" in names:
        headers = columns["headers"]
        parents = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
        flat = headers.flatten()
        lengths = HEADER_OVERHEAD_BYTES + sum(
            pc.binary_length(part).fill_null(0).to_numpy(zero_copy_only=False)
            for part in flat.flatten()
        )
        np.add.at(sizes, parents, lengths)
    return sizes


# --- headers ----------------------------------------------------------------------------------


def with_headers(table: pa.Table, added: Sequence[tuple[str, bytes]]) -> pa.Table:
    """``table`` (from ``as_table``) with these headers in each row, instead of those so named."""
    count, row_count = len(added), table.num_rows
    pairs = [{"key": name, "value": value} for name, value in added]
    new = pa.array(pairs, _HEADERS_TYPE.value_type)
    place = table.schema.get_field_index("headers")
    is_new = place < 0 or pa.types.is_null(table.schema.field(place).type)
    if is_new:
        lengths: npt.NDArray[np.int64] = np.zeros(row_count, dtype=np.int64)
        former = new.slice(0, 0)
    else:
        headers = _one_array(table["headers"]).cast(_HEADERS_TYPE)
        parents = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
        former = headers.flatten()
        names = pa.array([name for name, _ in added])
        is_kept = pc.invert(pc.is_in(pc.struct_field(former, "key"), value_set=names))
        former = former.filter(is_kept)
        kept = parents[is_kept.to_numpy(zero_copy_only=False)]
        lengths = np.bincount(kept, minlength=row_count).astype(np.int64)
    ends = np.cumsum(lengths)
    # After the last header of each row come the new ones, which follow all former ones in memory.
    places = np.tile(len(former) + np.arange(count), row_count)
    order = np.insert(np.arange(len(former)), np.repeat(ends, count), places)
    offsets = np.concatenate([[0], np.cumsum(lengths + count)]).astype(np.int32)
    column = pa.ListArray.from_arrays(
        pa.array(offsets), pa.concat_arrays([former, new]).take(pa.array(order))
    )
    if place < 0:
        return table.append_column("headers", column)
    return table.set_column(place, "headers", column)


def first_headers(
    columns: Iterable[pa.Array], names: Iterable[str], count_max: int
) -> Iterator[list[tuple[str, bytes | None]]]:
    """The rows of headers columns that have a header of one of ``names``, without repetitions.

    At most ``count_max``; of each row only those headers, in order.
    """
    seen: set[tuple[tuple[str, bytes | None], ...]] = set()
    wanted = pa.array(sorted(names), pa.string())
    for headers in columns:
        flat = headers.flatten()
        is_named = pc.is_in(pc.struct_field(flat, "key").cast(pa.string()), value_set=wanted)
        named = pa.table(
            {
                "row": pc.list_parent_indices(headers).filter(is_named),
                "header": flat.filter(is_named),
            }
        )
        for _, group in itertools.groupby(
            zip(_values(named["row"]), _values(named["header"]), strict=True), itemgetter(0)
        ):
            row = [(header["key"], header["value"]) for _, header in group]
            if tuple(row) not in seen:
                seen.add(tuple(row))
                yield row
                if len(seen) >= count_max:
                    return


def _values(column: pa.ChunkedArray) -> Iterator[Any]:
    """Its values, made one by one: who iterates may stop early."""
    return (value.as_py() for value in column)


# --- partitions -------------------------------------------------------------------------------


def _partitions(
    block: pa.Table,
    topic: str,
    partition_count: int,
    partitioner: Partitioner,
    sticky_partition: Callable[[], int],
) -> npt.NDArray[np.int64]:
    names = block.schema.names
    chosen = np.full(block.num_rows, -1, dtype=np.int64)
    if "partition" in names:
        given = _one_array(block["partition"]).cast(pa.int64()).fill_null(-1)
        chosen = given.to_numpy().copy()
    is_open = chosen < 0
    if "key" in names:
        keys = _one_array(block["key"])
        if not pa.types.is_dictionary(keys.type):
            keys = _plain_bytes(keys)
        keys = keys.filter(pa.array(is_open))
        chosen[is_open] = partitioner.of_column(topic, keys, partition_count)
    elif partitioner.is_function:
        keys = pa.nulls(int(is_open.sum()), pa.binary())
        chosen[is_open] = partitioner.of_column(topic, keys, partition_count)
    if (chosen < 0).any():
        chosen = np.where(chosen < 0, sticky_partition(), chosen)
    return chosen


def _by_partition(
    partitions: npt.NDArray[np.int64],
) -> Iterator[tuple[int, npt.NDArray[np.int64] | None]]:
    """Yield each partition with its row numbers in order; ``None`` means all rows."""
    first = int(partitions[0])
    if (partitions == first).all():
        yield first, None
        return
    order = np.argsort(partitions, kind="stable")
    counts = np.bincount(partitions)
    ends = np.cumsum(counts)
    for partition in np.flatnonzero(counts).tolist():
        yield partition, order[ends[partition] - counts[partition] : ends[partition]]


def _cut(
    topic_partition: TopicPartition,
    columns: pa.RecordBatch,
    sizes: npt.NDArray[np.int64],
    record_bytes_max: int,
) -> Iterator[ColumnBatch]:
    """Cut one partition's rows into batches of at most ``COLUMN_BATCH_BYTES``, or one row each."""
    limit = min(COLUMN_BATCH_BYTES, record_bytes_max)
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield ColumnBatch(
            topic_partition,
            ColumnRows(columns.slice(start, end - start)),
            int(ends[end - 1]) - before,
        )
        start = end
