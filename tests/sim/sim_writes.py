"""The steps of a distributed write in simulated processes, and what they did in the history.

They are production's, as Spark calls them: each in a thread of its process, on its own connection,
with an object that has been pickled.
"""

from __future__ import annotations

import itertools
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from inside import core_of
from sim_history import Claim, SentRecord, Write, key_of
from sim_process import Client
from sim_stage import Player
from sim_threads import SimThread

from oncelog.actors.protocol.messages.transaction import DriverProcess, Winner
from oncelog.api.config import ProducerSettings
from oncelog.api.distributing.engine_connection import (
    Endpoint,
    EngineConnection,
    PlannedRun,
    WritingSettings,
)
from oncelog.api.distributing.write import GATHER_BYTES, Connect, DistributedWrite, WriteOptions
from oncelog.api.producing.member import Membership, TransactionMember
from oncelog.api.session.routing import ClientContext
from oncelog.spark_bridge.connection import driver_process
from oncelog.spark_bridge.micro_batch_write import MicroBatch, MicroBatchReport, MicroBatchWrite
from oncelog.storage.model import TopicPartition

BATCHES_MAX = 2
BATCH_ROWS = (0, 1, 2, 3)
FAILING_RATIO = 0.05
LATE_RATIO = 0.1

StepT = TypeVar("StepT")


class RowsFailedError(Exception):
    """What the rows are computed from has failed, in the midst of them."""


class _Processes:
    """``ProcessTable`` of a hook: Spark's driver is the simulated process that it runs in."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def ancestor(self, command: str) -> DriverProcess:
        return self._client.as_driver()


def _context(player: Player, thread: SimThread) -> ClientContext:
    client = player.client
    processes: Any = _Processes(client)
    return ClientContext(
        router=client.router(), loop_thread=thread, random=client.random, processes=processes
    )


def _settings(player: Player) -> WritingSettings:
    """Of a hasty program, as everybody's here."""
    producer = ProducerSettings.from_options(player.producer_settings())
    return WritingSettings(
        producer=producer,
        plan_timeout_ms=producer.max_block_ms,
        end_timeout_ms=producer.max_block_ms,
    )


async def hook(player: Player, step: Callable[[Connect], StepT]) -> StepT:
    """One hook of the driver: to plan, to commit or to abort."""
    thread = SimThread(player.client)
    connection = EngineConnection(_context(player, thread), driver_process, _settings(player))
    thread.start(lambda: step(lambda _: connection))
    result: StepT = await thread.ended
    return result


async def write_rows(
    task: Player,
    pickled: bytes,
    part: Write,
    batch: MicroBatch | None = None,
    *,
    is_sound: bool = False,
) -> Winner | MicroBatchReport | None:
    """One task attempt: what it tells the driver. Its records are noted as those of ``part``.

    Of one that ``is_sound`` there is a row, at once. ``batch`` is that of a query, if it is one.
    """
    thread = SimThread(task.client)
    write: DistributedWrite | MicroBatchWrite = pickle.loads(pickled)
    rows = Rows(task, thread, write, part)
    batches = rows.one() if is_sound else rows.batches()
    connection = NotedConnection(task, thread, rows)
    gather_bytes = task.random.choice((1, GATHER_BYTES, GATHER_BYTES))

    def written() -> bytes:
        if isinstance(write, DistributedWrite):
            return pickle.dumps(write.write(connect, batches, gather_bytes=gather_bytes))
        assert batch is not None
        return pickle.dumps(write.write(connect, batch, batches, gather_bytes=gather_bytes))

    def connect(_: Endpoint) -> EngineConnection:
        return connection

    thread.start(written)
    told: Winner | MicroBatchReport | None = pickle.loads(await thread.ended)
    return told


def owner_in(name: str, membership: Membership) -> str:
    """Who writes a batch of a query: a run that begins anew after another is another one."""
    return f"{name} as number {membership.run.number}"


class Rows:
    """What one task attempt has to write; it comes in batches, some of them late, or never."""

    def __init__(
        self,
        task: Player,
        thread: SimThread,
        write: DistributedWrite | MicroBatchWrite,
        part: Write,
    ) -> None:
        self.part = part
        self._task = task
        self._thread = thread
        self._topic = write.options.topic
        self.is_committed = isinstance(write, DistributedWrite) and write.membership.is_committed
        self._records: dict[tuple[str, str], SentRecord] = {}
        """By topic and value."""
        self._numbers = itertools.count()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, as Spark gives them to a task."""
        if self.is_committed:
            raise AssertionError("a task has read its rows although their version is committed")
        chance = self._task.random
        kind = chance.random()
        for _ in range(chance.randint(0, BATCHES_MAX)):
            yield self._batch(chance.choice(BATCH_ROWS))
            self._thread.run(self._task.pause())
        if kind < FAILING_RATIO:
            raise RowsFailedError
        if kind < FAILING_RATIO + LATE_RATIO:
            for _ in range(chance.randint(1, 5)):
                self._thread.run(self._task.wait(0.5))
                yield self._batch(1)

    def one(self) -> Iterator[pa.RecordBatch]:
        """One row."""
        yield self._batch(1)

    def _batch(self, count: int) -> pa.RecordBatch:
        records = [self._record() for _ in range(count)]
        keys = [key_of(record.topic_partition, record.value) for record in records]
        places = [record.topic_partition for record in records]
        columns = {
            "key": pa.array(keys, pa.string()),
            "value": pa.array([record.value for record in records], pa.string()),
            "partition": pa.array([place.partition for place in places], pa.int32()),
        }
        if self._topic is None:
            columns["topic"] = pa.array([place.topic for place in places], pa.string())
        return pa.RecordBatch.from_pydict(columns)

    def _record(self) -> SentRecord:
        task = self._task
        targets = [place for place in task.stage.targets() if self._topic in (None, place.topic)]
        place = task.random.choice(targets)
        value = f"{self.part.owner} {self.part.name}/{next(self._numbers)}"
        record = task.history.send(self.part, place, value)
        self._records[place.topic, record.value] = record
        return record

    def records_of(self, topic: str, table: pa.Table) -> list[SentRecord]:
        """The records that the rows of a table are."""
        return [self._records[topic, value] for value in table["value"].to_pylist()]


class NotedConnection(EngineConnection):
    """The connection of a task, whose member notes what it does."""

    def __init__(self, task: Player, thread: SimThread, rows: Rows) -> None:
        super().__init__(_context(task, thread), driver_process, _settings(task))
        self._task = task
        self._rows = rows

    def begin_run(self, options: WriteOptions, planned: PlannedRun) -> Membership:
        """See ``EngineConnection.begin_run``; it is a task of a query that begins here."""
        membership = super().begin_run(options, planned)
        self._rows.is_committed = membership.is_committed
        self._rows.part.owner = owner_in(self._rows.part.owner, membership)
        return membership

    def member(
        self, membership: Membership, producer_settings: Mapping[str, Any]
    ) -> TransactionMember:
        """See ``EngineConnection.member``."""
        noted: Any = _NotedMember(
            self._task, self._rows, membership, super().member(membership, producer_settings)
        )
        return noted  # type: ignore[no-any-return]


class _NotedMember:
    """A member, and its claim and its records in the history."""

    def __init__(
        self, task: Player, rows: Rows, membership: Membership, member: TransactionMember
    ) -> None:
        self._task = task
        self._rows = rows
        self._membership = membership
        self._member = member

    def __enter__(self) -> _NotedMember:
        return self

    def __exit__(self, *error: Any) -> None:
        self._member.__exit__(*error)

    def enlist(self) -> bool:
        history = self._task.history
        started_at = history.tick()
        if not self._member.enlist():
            return False
        identity = core_of(self._member).sender.transaction.identity
        assert identity is not None
        history.claims.append(
            Claim(
                self._membership.transactional_id,
                self._rows.part.owner,
                started_at,
                history.tick(),
                identity.producer_id,
                identity.producer_epoch,
            )
        )
        return True

    def send_arrow(self, topic: str, table: pa.Table) -> None:
        records = self._rows.records_of(topic, table)
        future = self._member.send_arrow(topic, table)
        future.add_done_callback(lambda done: self._answered(records, done))
        self._task.expect(records, future, self._member._buffer.settings)

    def _answered(self, records: list[SentRecord], done: Any) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        waiting: dict[TopicPartition, Iterator[SentRecord]] = defaultdict(lambda: iter(()))
        for record in records:
            place = record.topic_partition
            waiting[place] = itertools.chain(waiting[place], (record,))
        for batch in done.result():
            found = waiting[TopicPartition(batch.topic, batch.partition)]
            for number, record in enumerate(itertools.islice(found, batch.record_count)):
                offset = -1 if batch.base_offset < 0 else batch.base_offset + number
                self._task.acknowledged(record, offset)

    def flush(self) -> None:
        self._member.flush()

    @property
    def winner(self) -> Winner:
        return self._member.winner
