"""Data sources without a log behind them, for ``bench/spark.py``: what Spark takes for itself.

Its Python workers import this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from oncelog.spark_bridge.schema import arrow_schema, read_schema, to_spark
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import decode_columns, encode_records

PARTITIONS = 2
BATCH_BYTES = 900_000
"""Our reader yields what is in a batch of this size, which is what our sink writes."""


@dataclass(frozen=True)
class Counted(WriterCommitMessage):
    """How many rows a task got."""

    rows: int


def count(batches: Iterator[pa.RecordBatch]) -> Counted:
    """Look at every batch, and at nothing in it."""
    return Counted(sum(batch.num_rows for batch in batches))


class CountingWriter(DataSourceArrowWriter):
    """The sink of a batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Count."""
        return count(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do."""


class CountingStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Count."""
        return count(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do."""


class CountingSink(DataSource):
    """Format ``counting``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "counting"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        """The sink of a batch."""
        return CountingWriter()

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,  # noqa: ARG002
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamArrowWriter:
        """The sink of a micro-batch."""
        return CountingStreamWriter()


class MemoryReader(DataSourceReader):
    """Yields the same batch over and over, with the columns and sizes of our reader's."""

    def __init__(self, rows: int, size: int, schema: StructType) -> None:
        self._rows, self._size, self._schema = rows, size, schema

    def partitions(self) -> list[InputPartition]:
        """As many tasks as our topic has partitions."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        batch_rows = max(1, BATCH_BYTES // (self._size + 10))
        records = [(None, b"v" * self._size, number, ()) for number in range(batch_rows)]
        columns = decode_columns([encode_records(records)])
        place = TopicPartition("bench", partition.value)
        batch = to_spark(columns, place, arrow_schema(self._schema))
        left = self._rows // PARTITIONS
        while left > 0:
            yield batch.slice(0, left) if left < batch_rows else batch
            left -= batch_rows


class MemorySource(DataSource):
    """Format ``memory_batches``, with options ``rows`` and ``size``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "memory_batches"

    def schema(self) -> StructType:
        """The columns of our source."""
        return read_schema(includes_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch."""
        return MemoryReader(int(self.options["rows"]), int(self.options["size"]), schema)
