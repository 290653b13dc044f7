"""The data source ``oncelog`` as Spark sees it, and its readers of batches and streams.

Spark calls each hook in a Python process of its choice: ``schema``, ``reader`` and ``partitions``
in planner workers, ``read`` in an executor, on a new copy for each task attempt. So these objects
hold only parsed options, and each hook uses the connection of its own process. The plan of a batch
is frozen in the DataFrame: ``load()`` again to see newer records. If Spark pushes filters, all
queries of a DataFrame use the plan of its last query with filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        Filter,
        InputPartition,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    raise ImportError(
        f"the source oncelog needs Spark 4.2 or newer, this is {pyspark.__version__}: filters and "
        "batches of a bounded size came to Python sources with 4.1 and 4.2"
    ) from error

from oncelog.api.distributing.read import PartitionRange
from oncelog.spark_bridge.connection import connect
from oncelog.spark_bridge.errors import one_line_errors
from oncelog.spark_bridge.micro_batch_read import MicroBatchReads
from oncelog.spark_bridge.offsets import EARLIEST, LATEST, Offsets, plan, resolve, split
from oncelog.spark_bridge.pushdown import Narrowing, push
from oncelog.spark_bridge.read_options import ReadOptions, parse_read_options
from oncelog.spark_bridge.schema import arrow_schema, check_read_schema, read_schema, to_spark
from oncelog.spark_bridge.sink import BatchWriter, StreamWriter
from oncelog.spark_bridge.write_options import parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa


class OncelogDataSource(DataSource):
    """Format ``oncelog`` of ``read``, ``write``, ``readStream`` and ``writeStream``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "oncelog"

    def schema(self) -> StructType:
        """The columns of a read; rejects wrong options as soon as the read is defined."""
        with one_line_errors():
            options = parse_read_options(self.options)
            return read_schema(includes_headers=options.includes_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch; ``schema`` may have only some of the columns."""
        with one_line_errors():
            options = parse_read_options(self.options)
            options.check_batch()
            check_read_schema(schema)
            # Spark rejects a reader with filter pushdown unless it is configured to push filters.
            kind = FilteredBatchReader if options.pushes_filters else BatchReader
            return kind(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of one ``save()``, which is one run of one transaction."""
        with one_line_errors():
            return BatchWriter.prepare(
                parse_write_options(self.options), schema, is_overwrite=overwrite
            )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of a stream; ``schema`` may have only some of the columns."""
        with one_line_errors():
            options = parse_read_options(self.options)
            options.check_stream()
            check_read_schema(schema)
            return StreamReader(options, schema)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamWriter:
        """The writer of one micro-batch: made to plan it, and again to commit or abort it."""
        # Output mode complete, which is ``overwrite``, appends its result as in Kafka's sink.
        with one_line_errors():
            return StreamWriter.prepare(parse_write_options(self.options), schema)


class RangePartition(InputPartition):
    """One task of a read; ``value`` is its range."""

    value: PartitionRange


class BatchReader(DataSourceReader):
    """Reads what there is when the read is planned, one task per range."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """The ranges from the start to the last stable offset or high watermark."""
        options = self._options
        with one_line_errors():
            connection = connect(options.endpoint)
            chosen = options.selection.choose(connection.partition_counts())
            starting = EARLIEST if options.starting is None else options.starting
            ending = LATEST if options.ending is None else options.ending

            def offsets_at(times: Offsets) -> Offsets:
                return connection.offsets_at(times, options.isolation_level)

            ranges = plan(
                connection.bounds(chosen, options.isolation_level),
                starting=resolve("startingOffsets", starting, chosen, offsets_at),
                ending=resolve("endingOffsets", ending, chosen, offsets_at),
                fails_on_data_loss=options.fails_on_data_loss,
            )
            ranges = self._narrowing.cut(ranges, offsets_at)
            ranges = split(ranges, options.partitions_min, options.range_size_max)
            return [RangePartition(item) for item in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range. Spark adds a partition ``None`` if there is no other."""
        yield from _read(self._options, self._schema, partition)


class FilteredBatchReader(BatchReader):
    """Reads only what the filters of its query need, as far as they tell; see ``pushdown``."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802
        """Use the filters that reduce the read; return those that Spark must evaluate."""
        self._narrowing, left = push(filters)
        return left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches, each as far as the checkpoint says.

    All hooks except ``read`` are called on one object, as long as the query runs; ``read`` on
    copies in the executors.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._reads = MicroBatchReads(connect, options)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop at the current end."""
        self._reads.end_here()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of ``maxOffsetsPerTrigger``, or ``minOffsetsPerTrigger`` alone."""
        if self._options.offsets_max is not None:
            return ReadMaxRows(self._options.offsets_max)
        if self._options.offsets_min:
            return ReadMinRows(self._options.offsets_min)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Empty: the first ``latestOffset``, which Spark stores, says where the stream starts."""
        return {}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the batch after ``start``, or ``start`` if there is nothing to read.

        A trigger that reads all available data ignores the limits.
        """
        is_limited = not isinstance(limit, ReadAllAvailable)
        with one_line_errors():
            end = self._reads.following(
                start,
                offsets_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
                offsets_min=self._options.offsets_min if is_limited else 0,
            )
            if start and end == start:
                # Everything before it is done; Spark tells only when there is a next batch.
                self._reads.show(start)
            return dict(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The readable end at the last call, for ``lastProgress``."""
        latest = self._reads.latest()
        return None if latest is None else dict(latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges of one batch, from offsets in the checkpoint."""
        with one_line_errors():
            return [RangePartition(item) for item in self._reads.ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        yield from _read(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the progress for the group, if there is one: the batch up to ``end`` is done."""
        with one_line_errors():
            self._reads.show(end)


def _read(
    options: ReadOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    wanted = partition.value
    if wanted is None:
        return
    columns_schema = arrow_schema(schema)
    with one_line_errors():
        for columns in connect(options.endpoint).read(
            wanted, options.isolation_level, skips_lost=not options.fails_on_data_loss
        ):
            yield to_spark(columns, wanted.topic_partition, columns_schema)
