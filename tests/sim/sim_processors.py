"""Workers of ``cluster.process``: the real loop with the real synchronous clients, in a thread."""

from __future__ import annotations

import asyncio
from typing import Any

from inside import core_of
from sim_history import Claim, Outcome, SentRecord, Write
from sim_stage import COPY_SOURCE, PROCESS_GROUP, PROCESS_TARGET, Life, Player
from sim_threads import SimStop, SimThread

from oncelog.api.config import ConsumerSettings, ProducerSettings
from oncelog.api.consuming.consumer import Consumer, as_committed
from oncelog.api.processing.loop import Clients, ProcessLoop
from oncelog.api.processing.messages import ProcessConfig, WorkerState
from oncelog.api.producing.producer import Producer
from oncelog.api.records import ConsumerRecord
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

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
        max_worker_deaths=1_000_000,  # Here it is the nemesis, never the function.
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
    loop = ProcessLoop(config, worker.connect, clock=player.client.clock, stop=stop)
    worker.thread.start(loop.run)
    await worker.thread.ended
    player.stage.counts[f"processors {loop.progress.state.value}"] += 1
    player.stage.world.note(f"the worker ended: {loop.progress.reason}")
    if loop.progress.state is WorkerState.FAILED and not loop.progress.function_failures:
        raise AssertionError(loop.progress.reason)
    await player.pause(500)


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
        self._made += 1
        value = f"{self._owner}/{self._made}".encode()
        self.sources[value] = (record.topic_partition, record.offset)
        return value

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
    ) -> None:
        self._player = player
        self._producer = producer
        self._sources = sources
        self._owner = owner
        self._transactional_id = str(producer.settings.transactional_id)
        self._write: Write | None = None

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

    def send(self, topic: str, *, value: bytes, key: bytes | None, timestamp_ms: int) -> None:
        """The record, to a partition that is told: the history has to know it."""
        assert self._write is not None
        targets = [tp for tp in self._player.stage.partitions if tp.topic == topic]
        target = self._player.random.choice(targets)
        record = self._player.history.send(
            self._write, target, value.decode(), self._sources[value]
        )
        future = self._producer.send(
            topic, value=value, key=key, timestamp_ms=timestamp_ms, partition=target.partition
        )
        future.add_done_callback(lambda done: self._answered(record, done))

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
