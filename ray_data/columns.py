"""The columns that a read gives to Ray Data, and those that a write takes from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from oncelog.api.batching.arrow_rows import COLUMNS, check_column_type
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.arrow_columns import HEADERS_TYPE

READ_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("headers", HEADERS_TYPE),
    ]
)
"""``timestamp`` in ms since the epoch; ``timestamp_type`` 0: the producer's, 1: the log's."""

WRITE_COLUMNS: Final = ("topic", *COLUMNS)


def read_schema(*, includes_headers: bool) -> pa.Schema:
    """The columns of a read."""
    return READ_SCHEMA if includes_headers else READ_SCHEMA.remove(len(READ_SCHEMA) - 1)


def to_block(columns: pa.RecordBatch, place: TopicPartition, schema: pa.Schema) -> pa.Table:
    """Fetched columns (schema of ``decode_columns``) as a block that shares their memory."""
    count = columns.num_rows
    made = {
        "topic": lambda: pa.repeat(pa.scalar(place.topic), count),
        "partition": lambda: pa.repeat(pa.scalar(place.partition, pa.int32()), count),
        "timestamp": lambda: columns["timestamp_ms"],
    }
    return pa.Table.from_arrays(
        [made[name]() if name in made else columns[name] for name in schema.names], schema=schema
    )


def check_names(names: Sequence[str], topic: str | None) -> None:
    """Reject rows that cannot become records; ``InvalidSettingError`` names the column."""
    for name in names:
        if name not in WRITE_COLUMNS:
            raise InvalidSettingError(
                f"column {name!r} cannot be written",
                advice=(
                    f"drop it with ds.drop_columns([{name!r}]), or rename it; a record is made of "
                    f"{', '.join(WRITE_COLUMNS)}"
                ),
            )
    if "value" not in names:
        raise InvalidSettingError(
            f"the dataset has no column 'value' (it has {', '.join(names) or 'no column'})",
            advice="make one, as with ds.rename_columns or ds.map_batches",
        )
    if topic is None and "topic" not in names:
        raise InvalidSettingError("no topic to write to: name one, or add a column 'topic'")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """How rows become records; by default a row has the columns of a record.

    ``is_json``: the value is the whole row as a JSON object. ``key_field``: the column with the
    key; bytes are used as they are, other types as text.
    """

    key_field: str | None = None
    is_json: bool = False

    def check(self, schema: pa.Schema, topic: str | None) -> None:
        """Reject rows that cannot become records, by their columns; see ``check_schema``."""
        if self.key_field is None and not self.is_json:
            check_schema(schema, topic)
            return
        self.check_names(schema.names, topic)

    def check_names(self, names: Sequence[str], topic: str | None) -> None:
        """Reject rows that cannot become records, by the names of their columns."""
        if self.key_field is not None and self.key_field not in names:
            raise InvalidSettingError(
                f"key_field={self.key_field!r} is no column: there are {', '.join(names) or 'none'}"
            )
        if self.is_json:
            return
        others = [name for name in names if name != self.key_field]
        if self.key_field is not None and "key" in others:
            raise InvalidSettingError(
                f"there is a column 'key' and key_field={self.key_field!r} as well",
                advice="drop one",
            )
        check_names(others, topic)

    def records(self, table: pa.Table) -> pa.Table:
        """``table`` with the columns of a record."""
        if self.key_field is None and not self.is_json:
            return table
        self.check_names(table.column_names, "")
        columns = {}
        if self.key_field is not None:
            columns["key"] = _as_keys(table[self.key_field])
        if self.is_json:
            columns["value"] = pa.array(_as_json(table), pa.binary())
        else:
            columns |= {name: table[name] for name in table.column_names if name != self.key_field}
        return pa.table(columns)


def _as_keys(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    try:
        check_column_type("key", column.type)
    except TypeError:
        texts = (None if value is None else str(value).encode() for value in column.to_pylist())
        return pa.array(list(texts), pa.binary())
    return column


def _as_json(table: pa.Table) -> list[bytes]:
    rows = table.to_pylist()
    try:
        return [json.dumps(row).encode() for row in rows]
    except TypeError as error:
        wrong = next(name for name in table.column_names if not _is_json(table[name]))
        raise InvalidSettingError(
            f"value_serializer='json': {error} (column {wrong!r}): convert it, as with "
            "ds.map_batches"
        ) from None


def _is_json(column: pa.ChunkedArray) -> bool:
    try:
        json.dumps(column.to_pylist())
    except TypeError:
        return False
    return True


def check_schema(schema: pa.Schema, topic: str | None) -> None:
    """``check_names``, and the types of the columns."""
    check_names(schema.names, topic)
    for field in schema:
        if field.name == "topic":
            is_text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
            problem = "" if is_text else f"column 'topic' must be string, not {field.type}"
        else:
            problem = _problem(field)
        if problem:
            raise InvalidSettingError(f"{problem}: cast it, as with ds.map_batches")


def _problem(field: pa.Field) -> str:
    try:
        check_column_type(field.name, field.type)
    except TypeError as error:
        return str(error)
    return ""
