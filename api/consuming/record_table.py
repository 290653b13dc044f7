"""Fetched columns as the table that ``poll_arrow`` returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from oncelog.storage.model import TopicPartition
from oncelog.storage.records.arrow_columns import RECORD_SCHEMA as FETCHED_SCHEMA

RECORD_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", FETCHED_SCHEMA.field("headers").type),
    ]
)
"""The columns of ``poll_arrow``, in this order, with or without rows."""


def record_table(fetched: Iterable[tuple[TopicPartition, list[pa.RecordBatch]]]) -> pa.Table:
    """One table of all rows, partition by partition, in offset order within each.

    The columns share memory with the batches, which have the schema of
    ``record_codec.decode_columns``.
    """
    return pa.Table.from_batches(
        [
            _with_place(topic_partition, batch)
            for topic_partition, part in fetched
            for batch in part
        ],
        schema=RECORD_SCHEMA,
    )


def _with_place(topic_partition: TopicPartition, batch: pa.RecordBatch) -> pa.RecordBatch:
    row_count = batch.num_rows
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(topic_partition.topic, pa.string()), row_count),
            pa.repeat(pa.scalar(topic_partition.partition, pa.int32()), row_count),
            batch.column("offset"),
            batch.column("timestamp_ms").cast(RECORD_SCHEMA.field("timestamp").type),
            batch.column("key"),
            batch.column("value"),
            batch.column("headers"),
        ],
        schema=RECORD_SCHEMA,
    )
