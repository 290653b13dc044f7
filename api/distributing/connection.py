"""What planners and tasks of a distributed read or write need of a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from oncelog.actors.protocol.messages.transaction import Winner
from oncelog.api.config import ProducerSettings
from oncelog.api.distributing.options import WriteOptions
from oncelog.api.distributing.range_reader import read_range
from oncelog.api.distributing.ranges import Bounds, PartitionRange
from oncelog.api.producing.member import (
    Membership,
    RunEnd,
    TransactionMember,
    begin_run,
    end_run,
    new_run_id,
)
from oncelog.api.session.offsets import list_offsets
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.api.session.context import ClientContext

DRIVER_COMMAND: Final = "java"
"""What Spark's driver runs; its Python processes are its children."""

PLAN_TIMEOUT_MS: Final = 60_000
END_TIMEOUT_MS: Final = 300_000
"""How long to retry the end of a write: a failure makes Spark fail the whole job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingSettings:
    """Timeouts of a write's clients; ``producer`` holds the settings they all start from."""

    producer: ProducerSettings = field(default_factory=ProducerSettings)
    plan_timeout_ms: int = PLAN_TIMEOUT_MS
    end_timeout_ms: int = END_TIMEOUT_MS


class Connection:
    """What the hooks of the data source need of a cluster; any method may raise OncelogError."""

    def __init__(self, context: ClientContext, settings: WritingSettings | None = None) -> None:
        self._router = context.router
        self._loop_thread = context.loop_thread
        self._random = context.random
        self._processes = context.processes
        self._settings = settings or WritingSettings()

    # --- planning -----------------------------------------------------------------------------

    def partition_counts(self) -> dict[str, int]:
        """How many partitions each topic has, internal topics too."""
        topics = self._loop_thread.run(self._router.all_topics())
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def bounds(
        self, partitions: Sequence[TopicPartition], isolation_level: IsolationLevel
    ) -> dict[TopicPartition, Bounds]:
        """What can be read now: from the log start to the last stable offset or high watermark."""

        def listed(timestamp: int) -> Mapping[TopicPartition, Any]:
            return self._loop_thread.run(
                list_offsets(
                    self._router,
                    dict.fromkeys(partitions, timestamp),
                    isolation_level=isolation_level,
                    random=self._random,
                    timeout_ms=PLAN_TIMEOUT_MS,
                )
            )

        starts, ends = listed(EARLIEST_TIMESTAMP), listed(LATEST_TIMESTAMP)
        return {
            topic_partition: Bounds(
                start_offset=starts[topic_partition].offset,
                end_offset=ends[topic_partition].offset,
            )
            for topic_partition in partitions
        }

    # --- reading ------------------------------------------------------------------------------

    def read(
        self, wanted: PartitionRange, isolation_level: IsolationLevel
    ) -> Iterator[pa.RecordBatch]:
        """The records of a range, in offset order; see ``read_range``."""
        batches = read_range(
            self._router, wanted, isolation_level=isolation_level, random=self._random
        )
        try:
            while True:
                batch = self._loop_thread.run(_next(batches))
                if batch is None:
                    return
                yield batch
        finally:
            self._loop_thread.run(batches.aclose())

    # --- writing ------------------------------------------------------------------------------

    def begin_run(self, options: WriteOptions) -> Membership:
        """Begin a new attempt at a whole write, which fences earlier ones.

        It is tied to Spark's driver, the Java ancestor of this planner process.
        """
        run_id = new_run_id(self._random)
        transactional_id, token = options.identity(run_id)
        return self._loop_thread.run(
            begin_run(
                self._router,
                self._producer_settings(max_block_ms=self._settings.plan_timeout_ms),
                transactional_id,
                token=token,
                transaction_timeout_ms=options.transaction_timeout_ms,
                run_id=run_id,
                driver=self._processes.ancestor(DRIVER_COMMAND),
                random=self._random,
            )
        )

    def member(self, membership: Membership, compression_type: str) -> TransactionMember:
        """A member of a write for one task attempt, not enlisted yet."""
        return TransactionMember(
            self._router,
            self._loop_thread,
            self._producer_settings(compression_type=compression_type),
            membership,
            random=self._random,
        )

    def end_run(
        self, membership: Membership, *, committed: bool, winners: Sequence[Winner] = ()
    ) -> RunEnd:
        """Commit ``winners`` and abort all other members, or abort all; see ``api.member``."""
        return self._loop_thread.run(
            end_run(
                self._router,
                self._producer_settings(max_block_ms=self._settings.end_timeout_ms),
                membership,
                committed=committed,
                winners=winners,
                random=self._random,
            )
        )

    def _producer_settings(self, **settings: Any) -> ProducerSettings:
        return dataclasses.replace(self._settings.producer, **settings)


async def _next(batches: Any) -> Any:
    """The next batch, or ``None`` after the last: StopAsyncIteration may not leave a coroutine."""
    return await anext(batches, None)
