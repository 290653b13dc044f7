"""``df.write.format("oncelog")``: Spark's sink interface as steps of a ``DistributedWrite``.

A run is tied to Spark's driver: if the driver dies, the coordinator aborts the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from oncelog.actors.protocol.messages.transaction import Winner
from oncelog.api.distributing.options import WriteOptions
from oncelog.api.distributing.write import DistributedWrite
from oncelog.spark_bridge.connection import connect
from oncelog.spark_bridge.errors import one_line_errors
from oncelog.spark_bridge.schema import check_write_schema
from oncelog.storage.exceptions import InvalidSettingError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """What a task attempt wrote; ``winner`` is ``None`` if it had nothing to write."""

    winner: Winner | None


class BatchWriter(DataSourceArrowWriter):
    """The writer of one ``save()``; pickled into its tasks and back for the commit."""

    def __init__(self, write: DistributedWrite) -> None:
        self._write = write

    @classmethod
    def prepare(
        cls, options: WriteOptions, schema: StructType, *, is_overwrite: bool
    ) -> BatchWriter:
        """Check the schema of the rows, and plan the write."""
        if is_overwrite:
            raise InvalidSettingError(
                "mode overwrite: records of a log are not overwritten; use mode('append')"
            )
        check_write_schema(schema, options.topic)
        return cls(DistributedWrite.plan(connect, options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the rows of one task attempt."""
        with one_line_errors():
            return TaskReport(self._write.write(connect, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the run with the attempts that sent the messages, one per Spark partition."""
        reports = [message.winner for message in messages if isinstance(message, TaskReport)]
        with one_line_errors():
            self._write.commit(connect, reports)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Abort the run, unless it is committed. Never raises."""
        self._write.abort(connect)
