"""Columns on both sides: what a read gives to Ray Data, and what a write takes from it."""

from __future__ import annotations

from collections.abc import Sequence
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
"""``timestamp`` in ms since 1970; ``timestamp_type`` 0 is the producer's time, 1 the log's."""

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
    """Refuse rows that make no record: ``InvalidSettingError`` names the column."""
    for name in names:
        if name not in WRITE_COLUMNS:
            raise InvalidSettingError(
                f"column {name!r} cannot be written: drop it with ds.drop_columns([{name!r}]), or "
                f"rename it; a record is made of {', '.join(WRITE_COLUMNS)}"
            )
    if "value" not in names:
        raise InvalidSettingError(
            f"the dataset has no column 'value' (it has {', '.join(names) or 'no column'}): make "
            "one, as with ds.rename_columns or ds.map_batches"
        )
    if topic is None and "topic" not in names:
        raise InvalidSettingError("no topic to write to: name one, or add a column 'topic'")


def check_schema(schema: pa.Schema, topic: str | None) -> None:
    """``check_names``, and the columns' types."""
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
