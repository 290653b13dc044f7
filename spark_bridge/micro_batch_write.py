"""The writes of a stream: each micro-batch is one distributed write, and one version of the query.

The application id is the query's, the version is the batch id. So a batch that is repeated after
its commit is not written again: Spark stores its own commit only after ours. Both ids are known
only in the tasks. Therefore the planner of a batch only *plans* its run. Each task begins it before
it reads a row, which is the same run for all of them, and reports the run to the driver. The commit
runs in a process that knows only these reports.

| the batch is | in the tasks | at the commit |
|---|---|---|
| the next | its run begins, and fences every other | its winners and the version, as one |
| the last committed | rows are not read | succeeds, changes nothing |
| an earlier one | ``OutdatedVersionError`` | - |

Of two drivers with one checkpoint, the one that began last can commit, and only if no task of the
other begins in between: all reports of a batch must be of one run. Nothing here imports Spark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncelog.actors.protocol.messages.transaction import Winner
from oncelog.api.distributing.engine_connection import PlannedRun
from oncelog.api.distributing.write import (
    GATHER_BYTES,
    Connect,
    DistributedWrite,
    WriteOptions,
    refuse_missing,
)
from oncelog.api.producing.member import Membership, RunEnd
from oncelog.storage.exceptions import (
    IllegalStateError,
    OutdatedVersionError,
    ProducerFencedError,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A batch of a query; both ids are the same when it is repeated, even after a restart."""

    query_id: str
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchReport:
    """The report of a task attempt: its run, and what it wrote there, if anything."""

    membership: Membership
    winner: Winner | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchWrite:
    """One attempt at one micro-batch; pickled into its tasks, but not into its commit."""

    options: WriteOptions
    run: PlannedRun

    @classmethod
    def plan(cls, connect: Connect, options: WriteOptions) -> MicroBatchWrite:
        """Check what can be checked before any task starts. Changes nothing in the cluster.

        The process that commits plans too, needlessly. So only a topic that is known to be missing
        is an error here; what cannot be checked now is left to the tasks.
        """
        connection = connect(options.endpoint)
        if options.topic is not None:
            refuse_missing(connection, options.topic)
        return cls(options=options, run=connection.plan_run())

    def write(
        self,
        connect: Connect,
        batch: MicroBatch,
        batches: Iterable[pa.RecordBatch],
        *,
        gather_bytes: int = GATHER_BYTES,
    ) -> MicroBatchReport:
        """Write the rows of one task attempt; all are acknowledged on return.

        ``OutdatedVersionError`` if a later batch of the query is committed.
        """
        options = dataclasses.replace(
            self.options, txn_app_id=batch.query_id, txn_version=batch.batch_id
        )
        try:
            membership = connect(options.endpoint).begin_run(options, self.run)
        except OutdatedVersionError as error:
            raise OutdatedVersionError(
                f"batch {batch.batch_id} of query {batch.query_id} is older than what is "
                f"committed: {error}. Its checkpoint was rolled back, or is used twice: continue "
                "with the newest copy of it, or with a new checkpoint as a new query, which "
                "writes again what this one has written"
            ) from error
        write = DistributedWrite(options=options, membership=membership)
        winner = write.write(connect, batches, gather_bytes=gather_bytes)
        return MicroBatchReport(membership=membership, winner=winner)

    def commit(self, connect: Connect, reports: Sequence[MicroBatchReport]) -> RunEnd:
        """Commit the members in the reports, one per task, and the version of their batch.

        Durable on return, and safe to repeat. ``ProducerFencedError`` if they are not all of one
        run: another driver has begun the batch meanwhile.
        """
        if not reports:
            raise IllegalStateError("a micro-batch without a report of any task has no identity")
        memberships = _memberships(reports)
        committed = [membership for membership in memberships if membership.is_committed]
        if not committed and len(memberships) > 1:
            raise ProducerFencedError(
                "another driver writes the same batch of the same query: let only one query use "
                "a checkpoint at a time"
            )
        (membership, *_) = committed or memberships
        write = DistributedWrite(options=self.options, membership=membership)
        return write.commit(connect, [report.winner for report in reports])

    def abort(self, connect: Connect, reports: Sequence[MicroBatchReport]) -> None:
        """Abort the batch; if it is committed, change nothing. Never raises.

        Without a report it is unknown what to abort; see ``DistributedWrite.abort``.
        """
        for membership in _memberships(reports):
            if not membership.is_committed:
                DistributedWrite(options=self.options, membership=membership).abort(connect)


def _memberships(reports: Sequence[MicroBatchReport]) -> list[Membership]:
    return list(dict.fromkeys(report.membership for report in reports))
