"""The data source ``oncelog`` as Spark sees it, and its batch reader.

Spark calls each hook in a Python process of its own choice: ``schema``, ``reader`` and
``partitions`` in planner workers, ``read`` in an executor, for each task attempt on a fresh copy.
So these objects hold only parsed options, and each hook uses the connection of its own process.
The plan of ``partitions`` is frozen in the DataFrame: ``load()`` again to see newer records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from oncelog.spark_bridge.connection import connect
from oncelog.spark_bridge.errors import one_line_errors
from oncelog.spark_bridge.offsets import PartitionRange, plan, split
from oncelog.spark_bridge.options import ReadOptions, parse_read_options, parse_write_options
from oncelog.spark_bridge.schema import arrow_schema, check_read_schema, read_schema, to_spark
from oncelog.spark_bridge.sink import BatchWriter, StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa


class OncelogDataSource(DataSource):
    """``spark.read.format("oncelog")`` and ``df.write.format("oncelog")``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "oncelog"

    def schema(self) -> StructType:
        """The columns of a read; refuses wrong options as soon as the read is defined."""
        with one_line_errors():
            options = parse_read_options(self.options)
            return read_schema(includes_headers=options.includes_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch; ``schema`` may have only some of the columns."""
        with one_line_errors():
            options = parse_read_options(self.options)
            options.check_batch()
            check_read_schema(schema)
            return BatchReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of one ``save()``, which is one run of one transaction."""
        with one_line_errors():
            return BatchWriter.prepare(
                parse_write_options(self.options), schema, is_overwrite=overwrite
            )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Refused: there is no streaming source yet."""
        raise ValueError("oncelog: streaming is not built yet: read in batches, with spark.read")

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamWriter:
        """The writer of one micro-batch: made to plan it, and again to commit or abort it."""
        with one_line_errors():
            return StreamWriter.prepare(parse_write_options(self.options), schema)


class RangePartition(InputPartition):
    """One task of a read. ``value`` is its range."""

    value: PartitionRange


class BatchReader(DataSourceReader):
    """Reads what there is when the read is planned, one task per range."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The ranges from the start up to the last stable offset, or the high watermark."""
        options = self._options
        with one_line_errors():
            connection = connect(options.address)
            chosen = options.selection.choose(connection.partition_counts())
            ranges = plan(
                connection.bounds(chosen, options.isolation_level),
                starting=options.starting,
                ending=options.ending,
                fails_on_data_loss=options.fails_on_data_loss,
            )
            return [RangePartition(item) for item in split(ranges, options.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range. Spark makes up a partition ``None`` when there is no other."""
        wanted = partition.value
        if wanted is None:
            return
        schema = arrow_schema(self._schema)
        with one_line_errors():
            connection = connect(self._options.address)
            for columns in connection.read(wanted, self._options.isolation_level):
                yield to_spark(columns, wanted.topic_partition, schema)
