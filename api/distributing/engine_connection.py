"""The cluster access of planners and tasks of a distributed read or write."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.actors.protocol.messages.partition import DescribeReplicaRequest
from oncelog.actors.protocol.messages.transaction import (
    DescribeTransactionsRequest,
    DriverProcess,
    Winner,
)
from oncelog.api.config import ProducerSettings
from oncelog.api.distributing.read import (
    TASK_CLIENT,
    PartitionRange,
    ReadBounds,
    read_range,
    unknown_topic,
)
from oncelog.api.producing.member import (
    Membership,
    RunEnd,
    TransactionMember,
    begin_run,
    end_run,
    new_run_id,
)
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.api.session.committed_offsets import (
    REQUEST_TIMEOUT_MS,
    commit_offsets,
    is_retriable,
    list_offsets,
)
from oncelog.api.session.login import NOBODY, Login
from oncelog.api.session.retry import DEFAULT_BACKOFF, Backoff, call_with_retries
from oncelog.api.session.rights import needing
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    OncelogError,
    exception_for,
)
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    TRANSACTION_STATE_TOPIC,
    IsolationLevel,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.api.client import Cluster
    from oncelog.api.distributing.write import WriteOptions
    from oncelog.api.session.routing import ClientContext

PLAN_TIMEOUT_MS: Final = 60_000

PROGRESS_TIMEOUT_MS: Final = 2_000
"""How long a stream tries to commit its progress, which only monitoring reads."""

END_TIMEOUT_MS: Final = 300_000
"""How long to retry the end of a write: if it fails, the engine fails the whole job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the processes of an engine connect to, and as whom; travels to all of them.

    ``address`` ``None`` is the default of each process. Each reads the login's file on its node.
    """

    address: str | None = None
    login: Login = NOBODY


DEFAULT_ENDPOINT: Final = Endpoint()
"""The default cluster of each process, as any program of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingSettings:
    """Timeouts of a write's clients; ``producer`` holds the settings that they start from."""

    producer: ProducerSettings = field(default_factory=ProducerSettings)
    plan_timeout_ms: int = PLAN_TIMEOUT_MS
    end_timeout_ms: int = END_TIMEOUT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run to begin: its id, and the process that it ends with, if known."""

    run_id: str
    driver: DriverProcess | None


class EngineConnection:
    """What a process of an engine needs of a cluster; any method may raise ``OncelogError``."""

    def __init__(
        self,
        context: ClientContext,
        driver: Callable[[ProcessTable], DriverProcess | None],
        settings: WritingSettings | None = None,
    ) -> None:
        """``driver`` finds the process that a write ends with; called where it is planned."""
        self._driver = driver
        self._router = context.router
        self._loop_thread = context.loop_thread
        self._random = context.random
        self._processes = context.processes
        self._settings = settings or WritingSettings()

    # --- planning -----------------------------------------------------------------------------

    def topics(self, known: Iterable[str] = ()) -> Mapping[str, TopicMetadata]:
        """Return every topic that may be seen, internal ones included.

        ``known`` were there before. ``TopicAuthorizationFailedError`` for one of them that may not
        be seen any more: in a list of all topics it only lacks.
        """
        with needing(topic="Read on each topic that is read"):
            return self._loop_thread.run(self._all_topics(frozenset(known)))

    async def _all_topics(self, known: frozenset[str] = frozenset()) -> Mapping[str, TopicMetadata]:
        """Retries until the controller replies; it may be restarting."""
        backoff, loop = Backoff(DEFAULT_BACKOFF, self._random), asyncio.get_running_loop()
        deadline_s = loop.time() + PLAN_TIMEOUT_MS / 1_000
        while True:
            try:
                topics = await self._router.all_topics()
                lacking = known - topics.keys()
                by_name = await self._router.metadata(lacking, refresh=True) if lacking else {}
                return {**topics, **by_name}
            except OncelogError as error:
                delay_s = backoff.delay_ms(error.code) / 1_000
                if not error.retriable or loop.time() + delay_s > deadline_s:
                    raise
            await asyncio.sleep(delay_s)

    def partition_counts(self) -> dict[str, int]:
        """Return the partition count of each topic, internal ones included."""
        return {name: len(topic.partitions) for name, topic in self.topics().items()}

    def check_topic(self, topic: str) -> None:
        """Raise an error if ``topic`` cannot be written to.

        ``UnknownTopicOrPartitionError``, listing the topics, if it is unknown, and
        ``TopicAuthorizationFailedError`` if it may not be seen.
        """
        with needing(topic=f"Write on topic {topic!r}"):
            found = self._loop_thread.run(self._router.metadata((topic,)))
        if topic not in found:
            topics = self.topics()
            if topic not in topics:
                raise unknown_topic(topic, topics)

    def bounds(
        self, partitions: Sequence[TopicPartition], isolation_level: IsolationLevel
    ) -> dict[TopicPartition, ReadBounds]:
        """What can be read now: from the log start to the last stable offset or high watermark."""
        topics = self._loop_thread.run(self._router.metadata({tp.topic for tp in partitions}))
        starts = self.offsets_at(dict.fromkeys(partitions, EARLIEST_TIMESTAMP), isolation_level)
        ends = self.ends(partitions, isolation_level)
        return {
            topic_partition: ReadBounds(
                start_offset=starts[topic_partition],
                end_offset=ends[topic_partition],
                topic_id=topics[topic_partition.topic].topic_id,
            )
            for topic_partition in partitions
        }

    def ends(
        self, partitions: Sequence[TopicPartition], isolation_level: IsolationLevel
    ) -> dict[TopicPartition, int]:
        """Return the end of what is readable in each partition, exclusive."""
        return self.offsets_at(dict.fromkeys(partitions, LATEST_TIMESTAMP), isolation_level)

    def offsets_at(
        self, timestamps: Mapping[TopicPartition, int], isolation_level: IsolationLevel
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after each time (ms since the epoch); -1 if none yet."""
        replies = self._loop_thread.run(
            list_offsets(
                self._router,
                timestamps,
                isolation_level=isolation_level,
                random=self._random,
                timeout_ms=PLAN_TIMEOUT_MS,
            )
        )
        return {topic_partition: reply.offset for topic_partition, reply in replies.items()}

    def bytes_per_offset(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the average log bytes per offset of each partition, at least 1."""

        async def ask(topic_partition: TopicPartition) -> int:
            request = DescribeReplicaRequest(topic_partition=topic_partition)
            with needing(topic=f"Describe on topic {topic_partition.topic!r}"):
                reply = await self._ask_leader(topic_partition, request)
            offsets = max(1, reply.log_end_offset - reply.log_start_offset)
            return max(1, reply.size_bytes // offsets)

        async def ask_all() -> list[int]:
            return await asyncio.gather(*map(ask, partitions))

        return dict(zip(partitions, self._loop_thread.run(ask_all()), strict=True))

    async def _ask_leader(
        self, topic_partition: TopicPartition, request: Request[ReplyT]
    ) -> ReplyT:
        """Call a partition's leader and raise its error once that is final."""
        reply = await call_with_retries(
            lambda left_ms: self._router.call_leader(
                topic_partition, request, timeout_ms=min(left_ms, REQUEST_TIMEOUT_MS)
            ),
            random=self._random,
            timeout_ms=self._settings.plan_timeout_ms,
            is_retriable=is_retriable,
        )
        if reply.error is not ErrorCode.NONE:
            raise exception_for(
                reply.error, reply.detail or f"{request.method} of {topic_partition}"
            )
        return reply

    def now_ms(self) -> float:
        """Monotonic time in ms."""
        return self._loop_thread.run(_now_ms())

    def wait(self, delay_ms: float) -> None:
        """Sleep for ``delay_ms``."""
        self._loop_thread.run(asyncio.sleep(delay_ms / 1_000))

    # --- progress -----------------------------------------------------------------------------

    def show_progress(
        self,
        group_id: str,
        positions: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str],
    ) -> None:
        """Commit ``positions`` for a group without members, so that its lag can be monitored."""
        offsets = {
            tp: OffsetAndMetadata(offset=offset, topic_id=topic_ids[tp.topic])
            for tp, offset in positions.items()
        }
        with needing(group=f"Read on group {group_id!r}", topic="Read on its topics"):
            self._loop_thread.run(
                commit_offsets(
                    self._router,
                    ConsumerGroupMetadata(group_id=group_id),
                    offsets,
                    random=self._random,
                    timeout_ms=PROGRESS_TIMEOUT_MS,
                )
            )

    # --- reading ------------------------------------------------------------------------------

    def read(
        self,
        wanted: PartitionRange,
        isolation_level: IsolationLevel,
        *,
        skips_lost: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range, in offset order; see ``read_range``."""
        batches = read_range(
            self._router,
            wanted,
            isolation_level=isolation_level,
            random=self._random,
            skips_lost=skips_lost,
        )
        right = f"Read on topic {wanted.topic_partition.topic!r}"
        try:
            while True:
                with needing(topic=right):
                    batch = self._loop_thread.run(_next(batches))
                if batch is None:
                    return
                yield batch
        finally:
            self._loop_thread.run(batches.aclose())

    # --- writing ------------------------------------------------------------------------------

    def plan_run(self) -> PlannedRun:
        """Plan a new attempt at a whole write, which ends with its driver; makes no call."""
        return PlannedRun(run_id=new_run_id(self._random), driver=self._driver(self._processes))

    def begin_run(self, options: WriteOptions, planned: PlannedRun) -> Membership:
        """Begin a planned run, which fences earlier ones; a repeat begins the same run.

        If an application has no committed version yet, a former oncelog may have some under an id
        that began with ``transactional.id``. Its commits count, and its writers are fenced.
        """
        transactional_id, token = options.identity(planned.run_id)
        begun = self._begun(options, planned, transactional_id, token)
        if options.txn_app_id is None or begun.is_committed:
            return begun
        if options.is_remembered(begun.last_token):
            return begun
        for former_id in self._loop_thread.run(self._former_ids(options)):
            earlier = self._begun(options, planned, former_id, token)
            if earlier.is_committed:
                return earlier
        return begun

    def _begun(
        self, options: WriteOptions, planned: PlannedRun, transactional_id: str, token: bytes
    ) -> Membership:
        with needing(transactional_id=right_to_write(transactional_id)):
            return self._loop_thread.run(
                begin_run(
                    self._router,
                    self._producer_settings(max_block_ms=self._settings.plan_timeout_ms),
                    transactional_id,
                    token=token,
                    transaction_timeout_ms=options.transaction_timeout_ms,
                    run_id=planned.run_id,
                    driver=planned.driver,
                    random=self._random,
                )
            )

    async def _former_ids(self, options: WriteOptions) -> list[str]:
        """The other ids with versions of the application; calls every shard."""
        request = DescribeTransactionsRequest(app_id=options.txn_app_id or "")
        count = len((await self._all_topics())[TRANSACTION_STATE_TOPIC].partitions)
        shards = [TopicPartition(TRANSACTION_STATE_TOPIC, shard) for shard in range(count)]
        replies = await asyncio.gather(*(self._ask_leader(shard, request) for shard in shards))
        found = {options.prefixed_id} if options.prefixed_id else set()
        found |= {
            known.transactional_id
            for reply in replies
            for known in reply.transactions
            # A coordinator of an earlier version returns all ids.
            if options.is_remembered(known.commit_token)
        }
        return sorted(filter(options.is_former_id, found))

    def member(
        self, membership: Membership, producer_settings: Mapping[str, Any]
    ) -> TransactionMember:
        """Make a member of a write for one task attempt, not yet enlisted."""
        return TransactionMember(
            self._router,
            self._loop_thread,
            self._producer_settings(**{"client_id": TASK_CLIENT, **producer_settings}),
            membership,
            random=self._random,
        )

    def end_run(
        self, membership: Membership, *, committed: bool, winners: Sequence[Winner] = ()
    ) -> RunEnd:
        """Commit ``winners`` and abort all other members, or abort all; see ``member.end_run``."""
        with needing(transactional_id=right_to_write(membership.transactional_id)):
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


class ProcessConnection:
    """The one connection of a process of an engine, and what it was made for: its ``key``.

    A process can be in only one Ray cluster at a time, and its tasks are of one user at a time. So
    another key replaces the last. With a login the key has the ``version`` of its file: a process
    may outlive the password. The engine joins and leaves Ray itself: Spark leaves the last
    cluster, Ray Data is the program's guest.
    """

    def __init__(self, driver: Callable[[ProcessTable], DriverProcess | None]) -> None:
        self._driver = driver
        self._made: tuple[object, Cluster, EngineConnection] | None = None

    def find(self, key: object) -> EngineConnection | None:
        """Return the connection if it was made for ``key``."""
        return self._made[2] if self._made is not None and self._made[0] == key else None

    def close(self) -> bool:
        """Close the connection; return whether there was one."""
        if self._made is None:
            return False
        self._made[1].close()
        self._made = None
        return True

    def keep(self, key: object, cluster: Cluster) -> EngineConnection:
        """Use ``cluster`` for ``key`` from now on."""
        connection = EngineConnection(cluster.context, self._driver)
        self._made = (key, cluster, connection)
        return connection


def right_to_write(transactional_id: str) -> str:
    """The right that each call of a transaction takes."""
    return f"Write on transactional id {transactional_id!r}"


async def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1_000


async def _next(batches: Any) -> Any:
    """The next batch, or ``None`` after the last: a coroutine may not raise StopAsyncIteration."""
    return await anext(batches, None)
