"""Workers of ``cluster.process``: the real loop with the real synchronous clients, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from inside import core_of
from sim_history import Claim, Outcome, SentRecord, Write
from sim_stage import COPY_SOURCE, PROCESS_GROUP, PROCESS_TARGET, Life, Player
from sim_threads import SimStop, SimThread

from oncelog.api.admin.admin import AsyncAdmin
from oncelog.api.config import ConsumerSettings, ProducerSettings
from oncelog.api.consuming.consumer import Consumer, as_committed
from oncelog.api.processing.job import remove_workers
from oncelog.api.processing.left_out import LeftOut
from oncelog.api.processing.loop import Clients, ProcessLoop
from oncelog.api.processing.messages import ProcessConfig, WorkerState
from oncelog.api.producing.producer import Producer
from oncelog.api.records import ConsumerRecord
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

PREFIX = "__connect.errors."

MAX_POLL_INTERVAL_MS = 4_000


def processor(number: int) -> Life:
    """One worker of a job: its process dies and comes back as the same worker."""

    async def life(player: Player) -> None:
        while player.is_on:
            await _work(player, number)

    return life


async def _work(player: Player, number: int) -> None:
    """One loop, to its end: fenced by a later life of the same worker, or failed."""
    plan = player.stage.plan
    worker = _Worker(player)
    config = ProcessConfig(
        source=COPY_SOURCE,
        sink=PROCESS_TARGET,
        group_id=PROCESS_GROUP,
        worker_index=number,
        function=worker.output_of,
        batch_format="record",
        commit_interval_ms=_commit_interval_ms(player),
        max_poll_records=player.random.choice((1, 10, 100)),
        # A slow one is put out of its group for it.
        function_timeout_ms=MAX_POLL_INTERVAL_MS,
        on_error=plan.on_error,
        # Outputs and dead letters in one topic: each input has one of either.
        dead_letter_topic=PROCESS_TARGET if plan.on_error == "dead_letter" else None,
        retry_backoff_ms=20,
        retry_backoff_max_ms=500,
        # It is the nemesis, never the function. A dead letter of an innocent record is one too.
        max_worker_deaths=1 if plan.on_error == "dead_letter" else 1_000_000,
        producer_settings={
            **player.producer_settings(),
            "transaction_timeout_ms": plan.transaction_timeout_ms,
        },
        consumer_settings={
            "session_timeout_ms": 3_000,
            "max_poll_interval_ms": MAX_POLL_INTERVAL_MS,
            "request_timeout_ms": plan.request_timeout_ms + 500,
            "default_api_timeout_ms": 8_000,
            "retry_backoff_ms": 20,
        },
    )
    stop: Any = SimStop(worker.thread)
    is_surplus = plan.scalings > 0 and player.random.random() < plan.scalings
    if is_surplus:
        player.client.spawn(_stop_later(player, stop))
    loop = ProcessLoop(config, worker.connect, clock=player.client.clock, stop=stop)
    worker.thread.start(loop.run)
    await worker.thread.ended
    player.stage.counts[f"processors {loop.progress.state.value}"] += 1
    player.stage.world.note(f"the worker ended: {loop.progress.reason}")
    if loop.progress.state is WorkerState.FAILED and not loop.progress.function_failures:
        raise AssertionError(loop.progress.reason)
    if is_surplus and loop.progress.state is WorkerState.STOPPED:
        admin = AsyncAdmin(player.client.router(), random=player.random, timeout_ms=5_000)
        await remove_workers(admin, PROCESS_GROUP, [number])
        player.stage.counts["processors that left their job"] += 1
        await player.wait(1.0)
    await player.pause(500)


async def _stop_later(player: Player, stop: Any) -> None:
    await player.wait(3.0)
    stop.set()


def _commit_interval_ms(player: Player) -> int:
    drawn: int = player.random.choice((0, 100, 1_000))
    # A slow function then ends in the midst of a transaction.
    return 3 * MAX_POLL_INTERVAL_MS if player.stage.plan.slow_functions else drawn


class _Worker:
    """What one loop works with: its thread, its clients, and which input each output is of."""

    def __init__(self, player: Player) -> None:
        self.thread = SimThread(player.client)
        self.sources: dict[bytes, tuple[TopicPartition, int]] = {}
        self._player = player
        self._owner = ""
        self._made = 0

    def output_of(self, record: ConsumerRecord) -> bytes:
        """The user's function."""
        slow_functions = self._player.stage.plan.slow_functions
        if slow_functions and self._player.random.random() < slow_functions:
            self.thread.run(asyncio.sleep(1.2 * MAX_POLL_INTERVAL_MS / 1_000))
        self._fail_now_and_then(record)
        self._made += 1
        value = f"{self._owner}/{self._made}".encode()
        self.sources[value] = (record.topic_partition, record.offset)
        return value

    def _fail_now_and_then(self, record: ConsumerRecord) -> None:
        plan = self._player.stage.plan
        if not plan.bad_inputs:
            return
        if plan.on_error == "retry":
            if self._player.random.random() < plan.bad_inputs:
                raise LookupError("not yet")
        elif self._player.happens("bad_inputs", f"{record.topic_partition} {record.offset}"):
            if plan.on_error == "skip":
                self._player.history.refused_inputs.add((record.topic_partition, record.offset))
            raise LookupError("never")

    def connect(self, producer: ProducerSettings, consumer: ConsumerSettings) -> Clients:
        """New clients, as those of a process that joins the cluster."""
        player = self._player
        client = player.client
        self._owner = player.new_owner()
        noted: Any = NotedProducer(
            player,
            Producer(client.router(), self.thread, producer, random=client.random),
            self._owner,
            self.sources,
            self.thread,
        )
        reader = Consumer(client.router(), self.thread, consumer, client.random)
        return Clients(noted, reader)


class NotedProducer:
    """The synchronous producer, and what it did in the history."""

    def __init__(
        self,
        player: Player,
        producer: Producer,
        owner: str,
        sources: dict[bytes, tuple[TopicPartition, int]],
        thread: SimThread,
    ) -> None:
        self._player = player
        self._producer = producer
        self._sources = sources
        self._owner = owner
        self._transactional_id = str(producer.settings.transactional_id)
        self._write: Write | None = None
        self._letters = 0
        self._thread = thread

    def init_transactions(self) -> None:
        history = self._player.history
        started_at = history.tick()
        token = self._producer.init_transactions()
        identity = core_of(self._producer).sender.transaction.identity
        assert identity is not None
        history.claims.append(
            Claim(
                self._transactional_id,
                self._owner,
                started_at,
                history.tick(),
                identity.producer_id,
                identity.producer_epoch,
                tells_token=True,
                token=token,
            )
        )
        self._player.stage.counts["claims"] += 1

    def begin_transaction(self) -> None:
        self._producer.begin_transaction()
        self._write = self._player.history.begin(self._owner, self._transactional_id)

    def send(
        self,
        topic: str,
        *,
        value: bytes,
        key: bytes | None,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """The record, to a partition that is told: the history has to know it.

        A dead letter has the value of its input. It gets another, as the history tells records by
        their values.
        """
        assert self._write is not None
        if headers:
            value = self._named(headers)
        targets = [tp for tp in self._player.stage.partitions if tp.topic == topic]
        target = self._player.random.choice(targets)
        record = self._player.history.send(
            self._write, target, value.decode(), self._sources[value]
        )
        future = self._producer.send(
            topic,
            value=value,
            key=key,
            headers=headers,
            timestamp_ms=timestamp_ms,
            partition=target.partition,
        )
        future.add_done_callback(lambda done: self._answered(record, done))

    def _named(self, headers: Sequence[tuple[str, bytes | None]]) -> bytes:
        """A value for a dead letter; what it was made from is as its headers say."""
        told = {name.removeprefix(PREFIX): text or b"" for name, text in headers}
        source = TopicPartition(told["topic"].decode(), int(told["partition"]))
        self._letters += 1
        self._player.stage.counts["dead letters"] += 1
        is_deadly = told["exception.class.name"].endswith(b"WorkerDeathError")
        self._player.stage.counts["dead letters of processes that died"] += is_deadly
        value = f"{self._owner}/dead/{self._letters}".encode()
        self._sources[value] = (source, int(told["offset"]))
        return value

    def send_outside(self, letter: LeftOut, topic: str) -> None:
        """A dead letter outside of the transaction: what the product must not do."""
        player = self._player
        target = next(tp for tp in player.stage.partitions if tp.topic == topic)
        self._letters += 1
        value = f"{self._owner}/outside/{self._letters}"
        record = player.history.send_plain(self._owner, target, value)
        record.source = (letter.record.topic_partition, letter.record.offset)
        record.write.offsets = {(PROCESS_GROUP, letter.record.topic_partition): 0}
        with Producer(
            player.client.router(), self._thread, ProducerSettings(), random=player.random
        ) as outside:
            outside.send(topic, value=value.encode(), partition=target.partition)
            outside.flush()

    def _answered(self, record: SentRecord, done: Any) -> None:
        if not done.cancelled() and done.exception() is None:
            self._player.stage.counts["records acknowledged"] += 1
            self._player.history.acknowledge(record, done.result().offset)

    def send_offsets_to_transaction(self, offsets: Any, group: Any) -> None:
        assert self._write is not None
        self._write.offsets = {
            (PROCESS_GROUP, tp): as_committed(offset).offset for tp, offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(offsets, group)

    def commit_transaction(self) -> None:
        assert self._write is not None
        self._player.history.start_commit(self._write)
        is_visible = self._producer.commit_transaction()
        self._player.stage.counts["commits of processors"] += 1
        self._player.ended(self._write, Outcome.OK, is_visible=is_visible)

    def abort_transaction(self) -> None:
        self._producer.abort_transaction()
        assert self._write is not None
        self._player.ended(self._write, Outcome.FAIL)

    def close(self, timeout_ms: float) -> None:
        """What is open is left to the next owner."""
        try:
            self._producer.close(timeout_ms)
        except OncelogError as error:
            self._player.stage.world.note(f"close failed: {error!r}")
