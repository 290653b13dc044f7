"""Topics deleted and created again under one name, and a group that reads each from the start.

The group must read every record of each topic of that name, whatever it committed in the
previous one. The group is a single consumer, so it may read twice, but never skips anything.
Positions are committed alone or in transactions, and some transactions outlive their topic.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from sim_history import REMADE_PREFIX, Remake
from sim_stage import Player

from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.producing.producer import AsyncProducer
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.storage.exceptions import (
    OncelogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

ATTEMPTS_MAX = 8
POLLS_MAX = 60
RECORDS_MAX = 25


async def remaker(player: Player) -> None:
    """Makes a topic, fills it, has it read and deletes it, again and again."""
    topic = f"{REMADE_PREFIX}{player.client.name}"
    consumer: AsyncConsumer | None = None
    committer = _Committer(player, topic)
    while player.is_on:
        remake = Remake(topic, f"{player.new_owner()}")
        try:
            await _make(player, topic)
            await _fill(player, remake)
            await committer.commit_what_is_late()
            if consumer is None:
                consumer = await _reader(player, topic)
            await _read(player, consumer, remake, committer)
            player.history.remakes.append(remake)
            player.stage.counts["topics remade"] += remake.has_reached_the_end
            if player.random.random() < 0.5:
                await consumer.close()
                consumer = None
        except OncelogError as error:
            player.stage.world.note(f"a remake was given up: {error!r}")
        await _remove(player, topic)
        await player.pause()


async def _make(player: Player, topic: str) -> None:
    """Create the topic; what an earlier life left of that name goes first."""
    admin = player.client.admin()
    for _ in range(ATTEMPTS_MAX):
        try:
            await admin.create_topic(topic, 1)
        except TopicAlreadyExistsError:
            await _remove(player, topic)
        else:
            return


async def _remove(player: Player, topic: str) -> None:
    admin = player.client.admin()
    for _ in range(ATTEMPTS_MAX):
        try:
            await admin.delete_topic(topic)
        except UnknownTopicOrPartitionError:
            return
        except OncelogError as error:
            player.stage.world.note(f"delete_topic failed: {error!r}")
            await asyncio.sleep(0.2)
        else:
            return


async def _fill(player: Player, remake: Remake) -> None:
    producer = player.client.producer(**player.producer_settings())
    try:
        for number in range(player.random.randint(1, RECORDS_MAX)):
            value = f"{remake.name}/{number}"
            future = await producer.send(remake.topic, value=value.encode(), partition=0)
            remake.offsets[value] = (await future).offset
    finally:
        await producer.close(timeout_ms=2_000)


async def _reader(player: Player, topic: str) -> AsyncConsumer:
    consumer = player.client.consumer(
        group_id=topic,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=3_000,
        heartbeat_interval_ms=500,
        default_api_timeout_ms=4_000,
        request_timeout_ms=player.stage.plan.request_timeout_ms + 500,
        retry_backoff_ms=20,
    )
    await consumer.subscribe(topic)
    return consumer


class _Committer:
    """Commits positions in transactions, some of them only when their topic is another one."""

    def __init__(self, player: Player, transactional_id: str) -> None:
        self._player = player
        self._transactional_id = transactional_id
        self._producer: AsyncProducer | None = None
        self._late: tuple[dict[TopicPartition, int], ConsumerGroupMetadata] | None = None
        self._is_open = False

    async def commit(
        self, positions: dict[TopicPartition, int], group: ConsumerGroupMetadata
    ) -> None:
        """Commit now, or leave the positions, or the transaction they are in, for later."""
        chance = self._player.random.random()
        if self._is_open or self._late is not None:
            await self.commit_what_is_late()
        if chance < 0.15:
            self._late = (positions, group)
            return
        await self._send(positions, group)
        if chance > 0.3:
            await self._end()

    async def commit_what_is_late(self) -> None:
        """Do what was left for later; what is refused is aborted."""
        late, self._late = self._late, None
        try:
            if late is not None:
                await self._send(*late)
            await self._end()
        except OncelogError as error:
            self._player.stage.world.note(f"a late commit failed: {error!r}")
            self._player.stage.counts["late positions refused"] += 1

    async def _send(
        self, positions: dict[TopicPartition, int], group: ConsumerGroupMetadata
    ) -> None:
        if self._producer is None:
            player = self._player
            self._producer = player.client.producer(
                transactional_id=self._transactional_id,
                transaction_timeout_ms=player.stage.plan.transaction_timeout_ms,
                **player.producer_settings(),
            )
            with self._done_with_on_errors():
                await self._producer.init_transactions()
        with self._done_with_on_errors():
            if not self._is_open:
                await self._producer.begin_transaction()
            self._is_open = True
            await self._producer.send_offsets_to_transaction(positions, group)

    async def _end(self) -> None:
        if self._producer is not None and self._is_open:
            with self._done_with_on_errors():
                await self._producer.commit_transaction()
            self._is_open = False

    @contextlib.contextmanager
    def _done_with_on_errors(self) -> Iterator[None]:
        """A producer that met an error is left alone: the next one aborts what it has open."""
        try:
            yield
        except OncelogError:
            self._producer, self._is_open = None, False
            raise


async def _read(
    player: Player, consumer: AsyncConsumer, remake: Remake, committer: _Committer
) -> None:
    """Poll until the last record was read, or for long enough; commit now and then."""
    topic_partition = TopicPartition(remake.topic, 0)
    for _ in range(POLLS_MAX):
        if remake.has_reached_the_end or not player.is_on:
            return
        try:
            records = await consumer.poll(200, player.random.randint(1, 10))
            remake.read += [record.value.decode() for record in records if record.value]
            if not records:
                continue
            positions = {topic_partition: records[-1].offset + 1}
            if player.random.random() < 0.4:
                await consumer.commit(positions)
            elif player.random.random() < 0.5:
                await committer.commit(positions, consumer.group_metadata())
        except OncelogError as error:
            player.stage.world.note(f"a remade topic was not read: {error!r}")
            await asyncio.sleep(0.2)
