"""One connection to the cluster per Python process of Spark, made by the first hook that needs it.

Planner and executor workers are forked by a daemon of Spark and reused, so most hooks find the
connection of the one before. It is never made in the daemon itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from oncelog.actors.protocol.admin_messages import DescribeTransactionsRequest
from oncelog.actors.protocol.messages import Run, Winner
from oncelog.actors.ray_environment import prepare_to_join
from oncelog.api.config import ProducerSettings
from oncelog.api.member import Membership, RunEnd, TransactionMember, end_run_and_wait
from oncelog.api.offsets import list_offsets
from oncelog.api.retry import call_with_retries
from oncelog.spark_bridge.offsets import Bounds, PartitionRange
from oncelog.spark_bridge.range_reader import read_range
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import exception_for
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.api.client import Cluster

ADDRESS_VARIABLE: Final = "ONCELOG_ADDRESS"
"""The default of option ``address``, which a session gives to all its Python processes."""

PLAN_TIMEOUT_MS: Final = 60_000
END_TIMEOUT_MS: Final = 300_000
"""How long the end of a write is asked for: a failure makes Spark fail the whole job."""


def default_address() -> str:
    """Where to connect without option ``address``."""
    return os.environ.get(ADDRESS_VARIABLE) or os.environ.get("RAY_ADDRESS") or "auto"


class Connection:
    """What the hooks of the data source ask of a cluster; every method may raise OncelogError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        context = cluster.context
        self._router = context.router
        self._loop_thread = context.loop_thread
        self._clock = context.clock
        self._random = context.random

    def close(self) -> None:
        """Detach from the cluster."""
        self._cluster.close()

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

    def new_run(self) -> Run:
        """A new attempt at a whole write, which fences those before."""
        return Run(
            started_ns=self._clock.now_ms() * 1_000_000,
            id=f"{self._random.getrandbits(128):032x}",
        )

    def last_token(self, transactional_id: str) -> bytes | None:
        """The commit token of the last committed transaction of the id, if there is one."""
        request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
        reply = self._loop_thread.run(
            call_with_retries(
                lambda: self._router.call_transaction_coordinator(
                    transactional_id, request, timeout_ms=PLAN_TIMEOUT_MS
                ),
                random=self._random,
                timeout_ms=PLAN_TIMEOUT_MS,
            )
        )
        if reply.error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        if reply.error is not ErrorCode.NONE:
            raise exception_for(reply.error, reply.detail)
        return reply.transactions[0].commit_token

    def member(self, membership: Membership, compression_type: str) -> TransactionMember:
        """A member of a write for one task attempt, not enlisted yet."""
        return TransactionMember(
            self._router,
            self._loop_thread,
            ProducerSettings(compression_type=compression_type),
            membership,
            random=self._random,
        )

    def end_run(
        self, membership: Membership, *, committed: bool, winners: Sequence[Winner] = ()
    ) -> RunEnd:
        """Commit ``winners`` and abort all other members, or abort all; see ``api.member``."""
        return end_run_and_wait(
            self._router,
            self._loop_thread,
            ProducerSettings(max_block_ms=END_TIMEOUT_MS),
            membership,
            committed=committed,
            winners=winners,
            random=self._random,
        )


async def _next(batches: Any) -> Any:
    """The next batch, or ``None`` after the last: StopAsyncIteration may not leave a coroutine."""
    return await anext(batches, None)


class _Cache:
    """The connection of this process, if it has one, and the address it was made with."""

    address: str = ""
    connection: Connection | None = None


def connect(address: str | None) -> Connection:
    """This process's connection to the cluster at ``address``; the default one for ``None``.

    A process can be in one Ray cluster at a time: another address takes the place of the last.
    Raises ``ConnectionFailedError`` if there is no cluster.
    """
    wanted = address or default_address()
    if _Cache.connection is not None and _Cache.address == wanted:
        return _Cache.connection
    # Ray reads its authentication mode when it is imported, which the client does below.
    prepare_to_join()
    from oncelog.api import client

    if _Cache.connection is not None:
        import ray

        _Cache.connection.close()
        _Cache.connection = None
        ray.shutdown()
    _Cache.connection = Connection(client.connect(wanted))
    _Cache.address = wanted
    return _Cache.connection
