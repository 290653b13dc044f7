"""``df.write`` and ``df.writeStream``: Spark's sink interface as steps of a distributed write.

A run is tied to Spark's driver: if the driver dies, the coordinator aborts the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from oncelog.actors.protocol.messages.transaction import Winner
from oncelog.api.distributing.write import DistributedWrite, WriteOptions
from oncelog.spark_bridge.connection import connect
from oncelog.spark_bridge.errors import one_line_errors
from oncelog.spark_bridge.micro_batch_write import (
    MicroBatch,
    MicroBatchReport,
    MicroBatchWrite,
)
from oncelog.spark_bridge.schema import check_write_schema, writable
from oncelog.spark_bridge.write_options import check_stream
from oncelog.storage.exceptions import IllegalStateError, InvalidSettingError

if TYPE_CHECKING:
    import pyarrow as pa


QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark gives to each task of a micro-batch."""


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """The report of a task attempt; ``winner`` is ``None`` if it had nothing to write."""

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
                "mode overwrite: records of a log are not overwritten", advice="use mode('append')"
            )
        check_write_schema(schema, options.topic)
        return cls(DistributedWrite.plan(connect, options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the rows of one task attempt."""
        with one_line_errors():
            return TaskReport(self._write.write(connect, _writable(iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the run with the attempts that sent the messages, one per Spark partition."""
        reports = [message.winner for message in messages if isinstance(message, TaskReport)]
        with one_line_errors():
            self._write.commit(connect, reports)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Abort the run; if it is committed, change nothing. Never raises."""
        self._write.abort(connect)


@dataclass(frozen=True)
class StreamTaskReport(WriterCommitMessage):
    """The report of a task attempt of a micro-batch: its run, and what it wrote."""

    report: MicroBatchReport


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch.

    Spark makes one to plan the batch, which is pickled into its tasks, and another one to commit or
    abort it. Output mode complete appends the whole result each time, as Kafka's sink does.
    """

    def __init__(self, write: MicroBatchWrite) -> None:
        self._write = write

    @classmethod
    def prepare(cls, options: WriteOptions, schema: StructType) -> StreamWriter:
        """Check the options and the schema of the rows, and plan the write."""
        check_stream(options)
        check_write_schema(schema, options.topic)
        return cls(MicroBatchWrite.plan(connect, options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamTaskReport:
        """Write the rows of one task attempt, unless their batch is committed already."""
        with one_line_errors():
            report = self._write.write(connect, _micro_batch(), _writable(iterator))
            return StreamTaskReport(report)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Commit the batch with the attempts that sent the messages, one per Spark partition."""
        with one_line_errors():
            self._write.commit(connect, _stream_reports(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Abort the batch; if it is committed, change nothing. Never raises."""
        self._write.abort(connect, _stream_reports(messages))


def _writable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a task; a generator, so that rows of a committed batch are not read."""
    for batch in batches:
        yield writable(batch)


def _stream_reports(messages: list[WriterCommitMessage | None]) -> list[MicroBatchReport]:
    return [message.report for message in messages if isinstance(message, StreamTaskReport)]


def _micro_batch() -> MicroBatch:
    """The micro-batch of the task that runs in this process."""
    context = TaskContext.get()
    query_id, batch_id = (
        context.getLocalProperty(name) if context is not None else None
        for name in (QUERY_ID, BATCH_ID)
    )
    if query_id is None or batch_id is None:
        raise IllegalStateError(
            f"this version of Spark does not give its tasks {QUERY_ID} and {BATCH_ID}, so a "
            "repeated batch would be written again",
            advice="write with foreachBatch, txnAppId and txnVersion",
        )
    return MicroBatch(query_id=query_id, batch_id=int(batch_id))
