"""The columns that a read gives to Spark, and those that a write takes from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from oncelog.spark_bridge.errors import warn_once
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import INT64_MAX, TopicPartition

# --- reading ----------------------------------------------------------------------------------

HEADERS_TYPE: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
READ_SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS_TYPE),
    ]
)
"""The columns of a read, as in Kafka's source; ``timestampType`` 0 is the producer's time."""

_MICROSECONDS: Final = 1_000
_MILLISECONDS_MAX: Final = INT64_MAX // _MICROSECONDS


def read_schema(*, includes_headers: bool) -> StructType:
    """The schema of a read without chosen columns."""
    return READ_SCHEMA if includes_headers else StructType(READ_SCHEMA.fields[:-1])


def check_read_schema(schema: StructType) -> None:
    """Reject a user's schema unless it is some of the columns, with their types."""
    known = {column.name: column.dataType for column in READ_SCHEMA}
    for column in schema:
        if column.name not in known:
            raise InvalidSettingError(
                f"schema: there is no column {column.name!r}; there are {', '.join(known)}"
            )
        if column.dataType != known[column.name]:
            raise InvalidSettingError(
                f"schema: column {column.name!r} is {known[column.name].simpleString()}, not "
                f"{column.dataType.simpleString()}"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """``schema`` as Spark requires it of a data source: every timestamp is in UTC."""
    return to_arrow_schema(schema, timezone="UTC")


def to_spark(
    columns: pa.RecordBatch, topic_partition: TopicPartition, schema: pa.Schema
) -> pa.RecordBatch:
    """Fetched columns (schema of ``decode_columns``) as the columns of ``schema``."""
    return pa.RecordBatch.from_arrays(
        [
            _READ_COLUMNS[column.name](columns, topic_partition).cast(column.type)
            for column in schema
        ],
        schema=schema,
    )


def _timestamps(columns: pa.RecordBatch) -> pa.Array:
    """Milliseconds as microseconds; a producer's time beyond their range becomes the nearest."""
    milliseconds = columns["timestamp_ms"].to_numpy()
    clipped = np.clip(milliseconds, -_MILLISECONDS_MAX, _MILLISECONDS_MAX) * _MICROSECONDS
    return pa.array(clipped).cast(pa.timestamp("us", tz="UTC"))


_READ_COLUMNS: Final[dict[str, Callable[[pa.RecordBatch, TopicPartition], Any]]] = {
    "key": lambda columns, _: columns["key"],
    "value": lambda columns, _: columns["value"],
    "topic": lambda columns, place: pa.repeat(pa.scalar(place.topic), columns.num_rows),
    "partition": lambda columns, place: pa.repeat(
        pa.scalar(place.partition, pa.int32()), columns.num_rows
    ),
    "offset": lambda columns, _: columns["offset"],
    "timestamp": lambda columns, _: _timestamps(columns),
    "timestampType": lambda columns, _: columns["timestamp_type"],
    "headers": lambda columns, _: columns["headers"],
}


# --- writing ----------------------------------------------------------------------------------

_BYTES: Final = (StringType, BinaryType, NullType)
_WHOLE: Final = (IntegerType, LongType, ShortType, ByteType, NullType)
_WRITE_COLUMNS: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "key": (_BYTES, "string or binary"),
    "value": (_BYTES, "string or binary"),
    "topic": ((StringType,), "string"),
    "partition": (_WHOLE, "an integer"),
    "timestamp": ((TimestampType, NullType), "timestamp"),
    "headers": ((ArrayType, NullType), HEADERS_TYPE.simpleString()),
}
"""Column → (allowed types, their text in errors)."""

_GIVEN_BY_THE_LOG: Final = {column.name.lower() for column in READ_SCHEMA} - _WRITE_COLUMNS.keys()
"""Columns of a read that a record cannot take; Kafka's sink ignores them too."""


def check_write_schema(schema: StructType, topic: str | None) -> None:
    """Reject a DataFrame that cannot be written; ``InvalidSettingError`` names the column.

    Column ``value`` is required, and ``topic`` unless the option is given. Names are compared
    regardless of case. Columns that only a read has are ignored.
    """
    names = [name.lower() for name in schema.fieldNames()]
    shown = ", ".join(schema.fieldNames()) or "no column"
    if "value" not in names:
        raise InvalidSettingError(
            f"the DataFrame has no column 'value' (it has {shown})",
            advice="make one, as with df.selectExpr('to_json(struct(*)) AS value')",
        )
    given = [name for name in schema.fieldNames() if name.lower() in _GIVEN_BY_THE_LOG]
    if given:
        warn_once(f"columns {', '.join(given)} are not written: the log sets them for each record")
    for column in schema:
        if column.name in given:
            continue
        if column.name.lower() not in _WRITE_COLUMNS:
            raise InvalidSettingError(
                f"column {column.name!r} cannot be written",
                advice=f"drop it; a record is made of {', '.join(_WRITE_COLUMNS)}",
            )
        if names.count(column.name.lower()) > 1:
            raise InvalidSettingError(f"the DataFrame has two columns {column.name.lower()!r}")
        allowed, wanted = _WRITE_COLUMNS[column.name.lower()]
        if not isinstance(column.dataType, allowed) or not _is_headers(column):
            raise InvalidSettingError(
                f"column {column.name!r} is {column.dataType.simpleString()}: cast it to {wanted}"
            )
    if topic is None and "topic" not in names:
        raise InvalidSettingError(
            "no topic to write to", advice="give option('topic', ...), or a column 'topic'"
        )


def writable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of ``batch``, with its schema checked, that make up a record."""
    names = [name for name in batch.schema.names if name.lower() in _WRITE_COLUMNS]
    return batch if len(names) == batch.num_columns else batch.select(names)


def _is_headers(column: StructField) -> bool:
    """Whether an array column holds headers; columns of other types are not checked."""
    if not isinstance(column.dataType, ArrayType):
        return True
    item = column.dataType.elementType
    return isinstance(item, StructType) and {
        (part.name, part.dataType.simpleString()) for part in item
    } == {("key", "string"), ("value", "binary")}
