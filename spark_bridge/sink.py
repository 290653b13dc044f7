"""Writes a DataFrame as one transaction: all of its rows become visible together, or none does.

The planner begins one *run* per ``save()``. Each task attempt enlists as a *member* with its first
rows, writes them, and reports how many were acknowledged. ``commit`` runs in the planner, once,
with the report of one attempt per Spark partition: it ends the run with these winners, and the
transaction coordinator aborts every other member, be it a failed, a retried or a speculative
attempt, or one that still writes. No task ever commits anything.

With ``txnAppId`` and ``txnVersion`` a repeated ``save()`` of a committed version writes nothing:
its tasks leave their rows unread. Spark's driver is the process that a run ends with: should it
die, the coordinator aborts the run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from oncelog.actors.protocol.messages import Winner
from oncelog.api.member import Membership, TransactionMember
from oncelog.spark_bridge.connection import connect
from oncelog.spark_bridge.errors import one_line_errors
from oncelog.spark_bridge.offsets import unknown_topic
from oncelog.spark_bridge.options import WriteOptions
from oncelog.spark_bridge.schema import check_write_schema, rows_by_topic
from oncelog.storage.exceptions import InvalidSettingError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    import pyarrow as pa

SEND_BYTES: Final = 8_388_608
"""Rows are gathered up to this size, so that each partition gets few, large batches."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """What a task attempt wrote; ``winner`` is ``None`` if it had nothing to write."""

    winner: Winner | None


class BatchWriter(DataSourceArrowWriter):
    """The writer of one ``save()``; pickled into its tasks, and back for the end."""

    def __init__(self, options: WriteOptions, membership: Membership) -> None:
        self._options = options
        self._membership = membership

    @classmethod
    def prepare(
        cls, options: WriteOptions, schema: StructType, *, is_overwrite: bool
    ) -> BatchWriter:
        """Check what can be checked before any task starts, and begin a run.

        ``OutdatedVersionError`` for a ``txnVersion`` below the one committed last: the job was
        rolled back, or runs twice.
        """
        if is_overwrite:
            raise InvalidSettingError(
                "mode overwrite: records of a log are not overwritten; use mode('append')"
            )
        check_write_schema(schema, options.topic)
        connection = connect(options.address)
        if options.topic is not None:
            topics = connection.partition_counts()
            if options.topic not in topics:
                raise UnknownTopicOrPartitionError(unknown_topic(options.topic, topics))
        return cls(options, connection.begin_run(options))

    # --- in the tasks -------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the rows of one task attempt; all of them are acknowledged on return.

        Without rows, or when their version is committed already, no member takes part.
        """
        if self._membership.is_committed:
            return TaskReport(winner=None)
        with one_line_errors():
            tables = _gather(iterator)
            first = next(tables, None)
            if first is None:
                return TaskReport(winner=None)
            connection = connect(self._options.address)
            with connection.member(self._membership, self._options.compression_type) as member:
                if not member.enlist():
                    return TaskReport(winner=None)
                self._send(member, first)
                for table in tables:
                    self._send(member, table)
                member.flush()
                return TaskReport(winner=member.winner)

    def _send(self, member: TransactionMember, table: pa.Table) -> None:
        for topic, rows in rows_by_topic(table, self._options.topic):
            member.send_arrow(topic, rows)

    # --- at the end, in the planner -----------------------------------------------------------

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the run: commit what the messages tell of, and nothing else."""
        reports = [message for message in messages if isinstance(message, TaskReport)]
        with one_line_errors():
            end = connect(self._options.address).end_run(
                self._membership,
                committed=True,
                winners=[report.winner for report in reports if report.winner is not None],
            )
        if not end.visible:
            _logger.warning(
                "transaction %r is committed; some of its partitions do not show it yet",
                self._membership.transactional_id,
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Abort the run, unless it is committed; then nothing changes. Never raises.

        What cannot be aborted now is aborted by the next run, when Spark's driver ends, or by the
        transaction timeout.
        """
        try:
            connect(self._options.address).end_run(self._membership, committed=False)
        except Exception as error:
            _logger.warning(
                "transaction %r could not be aborted now: %s",
                self._membership.transactional_id,
                error,
            )


def _gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Consecutive batches as tables of about ``SEND_BYTES``, none of them empty."""
    import pyarrow as pa

    gathered: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if batch.num_rows:
            gathered.append(batch)
            size_bytes += batch.nbytes
        if size_bytes >= SEND_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, size_bytes = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)
