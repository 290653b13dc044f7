"""Hostile applications: copiers in transactions, a source, and who adds partitions meanwhile.

Each is a role on a ``Stage`` (``sim_stage``). A copier is right, so each input has one output; but
it is as careless as the clients allow: what an interrupted call leaves, they have to refuse.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sim_hostile import Caller, InterruptedCallError, Ledger, Reading, Transaction, drawn_habits
from sim_process import Client
from sim_stage import CALLS_AGAIN_MAX, Life, Player

from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.producing.producer import AsyncProducer
from oncelog.api.records import ConsumerGroupMetadata, ConsumerRecord
from oncelog.storage.exceptions import (
    FencedInstanceIdError,
    IllegalStateError,
    OncelogError,
    TopicAlreadyExistsError,
)
from oncelog.storage.model import TopicPartition

SOURCE = "in"
TARGET = "out"
GROUP = "copiers"
PARTITIONS_MAX = 4

REQUEST_TIMEOUT_MS = 1_000
DELIVERY_TIMEOUT_MS = 4_000
BLOCK_MS = 5_000
TRANSACTION_TIMEOUT_MS = 3_000
API_TIMEOUT_MS = 6_000
SESSION_TIMEOUT_MS = 2_000
POLL_INTERVAL_MS = 2_500
CLOSE_TIMEOUT_MS = 2_000
CONSUMER_CLOSE_MS = 6_000
"""What a close of a consumer may take: its last commit, and its farewell."""


def strategy_of(seed: int) -> str:
    """How the group of a run divides its partitions."""
    return ("range", "sticky", "cooperative-sticky", "roundrobin")[seed % 4]


# --- the copier -------------------------------------------------------------------------------


def hostile_copier(name: str, ledger: Ledger) -> Life:
    """One output of each input, in transactions, by a program that is as hostile as it may be."""

    async def life(player: Player) -> None:
        copier = _Copier(name, Caller(player, ledger, drawn_habits(player.random)))
        player.stage.world.note(f"lives by {copier.caller.habits}")
        ledger.counts["static members"] += copier.habits.is_static
        while player.is_on:
            await copier.use_a_consumer()

    return life


@dataclass(slots=True, eq=False)
class _Current:
    """The open transaction of a copier. ``is_ending``: its listener has begun to commit it."""

    producer: AsyncProducer
    transaction: Transaction
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    is_ending: bool = False
    end: tuple[bool, bool] | None = None


class _Copier:
    def __init__(self, name: str, caller: Caller) -> None:
        self.name = name
        self.caller = caller
        self.ledger = caller.ledger
        self.habits = caller.habits
        self._made = 0
        self._producer: AsyncProducer | None = None

    async def use_a_consumer(self) -> None:
        """From its first poll to its close, or until it is dropped."""
        caller = self.caller
        consumer = caller.player.client.consumer(**self._settings())
        self.ledger.made.append(consumer)
        reading = Reading(caller, consumer)
        listener = reading if self.habits.has_listener else None
        await consumer.subscribe(SOURCE, listener=listener)
        for _ in range(caller.random.randint(10, 60)):
            if not caller.player.is_on:
                return
            try:
                await self._step(reading)
            except FencedInstanceIdError:
                break
            except (OncelogError, InterruptedCallError) as error:
                caller.player.stage.world.note(f"step failed: {error!r}")
                await asyncio.sleep(0.05)
        if caller.happens(self.habits.drop_ratio):
            self.ledger.counts["consumers dropped"] += 1
            return
        try:
            if caller.happens(self.habits.twin_ratio):
                self.ledger.counts["closes while polling"] += 1
                await reading.close_while_polling(CONSUMER_CLOSE_MS)
            else:
                await caller.call("close of consumer", consumer.close, CONSUMER_CLOSE_MS)
        except (OncelogError, InterruptedCallError) as error:
            caller.player.stage.world.note(f"close failed: {error!r}")

    def _settings(self) -> dict[str, Any]:
        return {
            "group_id": GROUP,
            "group_instance_id": self.name if self.habits.is_static else None,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "partition_assignment_strategy": strategy_of(self.caller.player.stage.world.seed),
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": 500,
            "max_poll_interval_ms": POLL_INTERVAL_MS,
            "request_timeout_ms": REQUEST_TIMEOUT_MS + 500,
            "default_api_timeout_ms": API_TIMEOUT_MS,
            "retry_backoff_ms": 20,
        }

    async def _step(self, reading: Reading) -> None:
        """Read, and copy what was read; whatever fails, what it read is read again."""
        producer = self._producer or await self._new_producer()
        can_go_on = is_committed = False
        await reading.read()
        if reading.inbox and self.caller.happens(self.habits.gather_ratio):
            self.ledger.counts["transactions of several polls"] += 1
            for _ in range(self.caller.random.randint(1, 3)):
                await self.caller.think()
                await reading.read()
        if not reading.inbox:
            return
        try:
            can_go_on, is_committed = await self._copy(reading, producer)
        finally:
            if not can_go_on:
                await self._leave_producer(producer)
            if not is_committed:
                await reading.rewind()

    async def _copy(self, reading: Reading, producer: AsyncProducer) -> tuple[bool, bool]:
        """One transaction; whether the producer can go on, and whether it is committed."""
        caller = self.caller
        self._made += 1
        client = caller.player.client
        current = _Current(producer, Transaction(f"{client!r}.{self._made}"))
        self.ledger.transactions.append(current.transaction)
        if self.habits.commits_when_revoked and self.habits.has_listener:
            reading.commit_first = partial(self._commit_early, reading, current)
        try:
            await producer.begin_transaction()
            await self._fill(reading, current)
        except (OncelogError, InterruptedCallError) as error:
            client.world.note(f"{current.transaction.name} failed: {error!r}")
            if current.is_ending:
                return current.end or await self._commit(current)
            if str(error) not in ("send", "offsets") or caller.happens(0.5):
                return await self._abort(current), False
            # Careless: what was interrupted is forgotten, and the commit has to refuse.
        finally:
            reading.commit_first = None
        if current.is_ending:
            return current.end or await self._commit(current)
        if caller.happens(self.habits.abort_ratio):
            return await self._abort(current), False
        return await self._commit(current)

    async def _commit_early(self, reading: Reading, current: _Current) -> None:
        """The listener commits what is open, before its input is given up."""
        if current.is_ending or not current.positions:
            return
        self.ledger.counts["commits by listeners"] += 1
        try:
            await self._move(current, reading.consumer.group_metadata())
        except (OncelogError, InterruptedCallError) as error:
            self.caller.player.stage.world.note(f"the listener cannot commit: {error!r}")
            return
        current.is_ending = True
        current.end = await self._commit(current)

    async def _fill(self, reading: Reading, current: _Current) -> None:
        """Send a copy of what is read, by one poll or by several, and the positions after it."""
        caller = self.caller
        group = reading.consumer.group_metadata()
        is_stale = caller.happens(self.habits.stale_ratio)
        polls = 1
        if caller.happens(self.habits.span_ratio):
            self.ledger.counts["transactions that span polls"] += 1
            polls += caller.random.randint(1, 4)
        for number in range(polls):
            records, reading.inbox = reading.inbox, []
            await self._send_all(current, records)
            current.positions |= {one.topic_partition: one.offset + 1 for one in records}
            await caller.think()
            if number < polls - 1:
                await reading.read()
                if current.is_ending:
                    return  # By the listener; what was read since is of the next transaction.
        if caller.happens(0.2):
            await caller.call("flush", current.producer.flush, DELIVERY_TIMEOUT_MS)
        if not is_stale:
            group = reading.consumer.group_metadata()
        await self._move(current, group)
        await caller.think()

    async def _move(self, current: _Current, group: ConsumerGroupMetadata) -> None:
        """The positions are of the transaction; two tasks may both say so."""

        async def move() -> None:
            await current.producer.send_offsets_to_transaction(current.positions, group)

        if self.caller.happens(self.habits.twin_ratio):
            for error in await self.caller.twice("offsets", move, 2 * BLOCK_MS):
                if error is not None:
                    raise error
        else:
            await self.caller.call("offsets", move, BLOCK_MS)

    async def _send_all(self, current: _Current, records: list[ConsumerRecord]) -> None:
        """One after the other, or by as many tasks."""
        if not self.caller.happens(self.habits.twin_ratio):
            for record in records:
                await self._send(current, record)
            return
        sending = [
            asyncio.get_running_loop().create_task(self._send(current, record))
            for record in records
        ]
        for error in await asyncio.gather(*sending, return_exceptions=True):
            if error is not None:
                raise error

    async def _send(self, current: _Current, record: ConsumerRecord) -> None:
        value = f"{record.partition}:{record.offset} {current.transaction.name}"

        async def send() -> None:
            future = await current.producer.send(
                TARGET, value.encode(), partition=record.offset % 2
            )
            future.add_done_callback(lambda done: done.cancelled() or done.exception())

        current.transaction.values.append(value)
        await self.caller.call("send", send, BLOCK_MS)

    # --- the end of a transaction ---------------------------------------------------------------

    async def _commit(self, current: _Current) -> tuple[bool, bool]:
        """Commit, again while nothing is known."""
        was_interrupted = False
        for _ in range(CALLS_AGAIN_MAX):
            try:
                await self._commit_once(current.producer)
            except InterruptedCallError:
                was_interrupted = True
                if self.caller.happens(0.3):
                    break
            except IllegalStateError as error:
                if was_interrupted:
                    self.caller.complain(f"an interrupted commit cannot be repeated: {error}")
                break
            except OncelogError as error:
                if error.abortable:
                    return await self._abort(current), False
                if not error.retriable:
                    break
            else:
                self.ledger.end(current.transaction, "committed")
                return True, True
        return False, False

    async def _commit_once(self, producer: AsyncProducer) -> None:
        if not self.caller.happens(self.habits.twin_ratio):
            await self.caller.call("commit", producer.commit_transaction, BLOCK_MS)
            return
        results = await self.caller.twice("commit", producer.commit_transaction, BLOCK_MS)
        errors = [error for error in results if error is not None]
        if len(errors) == len(results):
            raise next((e for e in errors if not isinstance(e, IllegalStateError)), errors[0])

    async def _abort(self, current: _Current) -> bool:
        """Abort, again while nothing is known; whether the producer can go on."""
        for _ in range(CALLS_AGAIN_MAX):
            try:
                await self.caller.call("abort", current.producer.abort_transaction, BLOCK_MS)
            except InterruptedCallError:
                continue
            except OncelogError as error:
                if error.retriable:
                    continue
                return False
            self.ledger.end(current.transaction, "aborted")
            return True
        return False

    # --- producers ------------------------------------------------------------------------------

    async def _new_producer(self) -> AsyncProducer:
        settings = self.caller.player.producer_settings() | {
            "max_block_ms": BLOCK_MS,
            # So little that a record waits for those before it.
            "buffer_memory": self.caller.random.choice((100, 33_554_432)),
        }
        producer = self.caller.player.client.producer(
            transactional_id=self.name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, **settings
        )
        self.ledger.made.append(producer)
        for _ in range(CALLS_AGAIN_MAX):
            try:
                await self.caller.call("init", producer.init_transactions, BLOCK_MS)
            except InterruptedCallError:
                continue
            except OncelogError as error:
                if not error.retriable:
                    raise
                continue
            self._producer = producer
            return producer
        raise InterruptedCallError("init")

    async def _leave_producer(self, producer: AsyncProducer) -> None:
        self._producer = None
        if self.caller.happens(self.habits.drop_ratio):
            self.ledger.counts["producers dropped"] += 1
            return

        async def close() -> None:
            await producer.close(CLOSE_TIMEOUT_MS)

        try:
            await self.caller.call("close of producer", close, CLOSE_TIMEOUT_MS)
        except InterruptedCallError:
            self.ledger.counts["closes interrupted"] += 1


# --- input ------------------------------------------------------------------------------------


def hostile_source(ledger: Ledger) -> Life:
    """Writes the input without transactions; what is acknowledged is to be copied."""

    async def life(player: Player) -> None:
        caller = Caller(player, ledger, drawn_habits(player.random))
        while player.is_on:
            producer = player.client.producer(**player.producer_settings())
            ledger.made.append(producer)
            owner = player.new_owner()
            for number in range(player.random.randint(10, 60)):
                if not player.is_on:
                    break
                try:
                    await _write(caller, producer, f"{owner}/{number}")
                    if caller.happens(0.1):
                        await caller.call("flush", producer.flush, DELIVERY_TIMEOUT_MS)
                except (OncelogError, InterruptedCallError) as error:
                    player.stage.world.note(f"input failed: {error!r}")
                await player.pause(150)

    return life


async def _write(caller: Caller, producer: AsyncProducer, value: str) -> None:
    partition = caller.random.randrange(caller.player.stage.topics[SOURCE])
    tp = TopicPartition(SOURCE, partition)

    def note(done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and done.exception() is None:
            caller.ledger.acknowledged[value] = (tp, done.result().offset)

    async def send() -> None:
        future = await producer.send(SOURCE, value.encode(), partition=partition)
        future.add_done_callback(note)

    await caller.call("send of input", send, BLOCK_MS)


async def adds_partitions(player: Player) -> None:
    """The input gets another partition now and then."""
    while player.is_on:
        await player.wait(8.0)
        count = player.stage.topics[SOURCE] + 1
        if count > PARTITIONS_MAX:
            return
        try:
            await player.client.admin(timeout_ms=API_TIMEOUT_MS).create_partitions(SOURCE, count)
        except TopicAlreadyExistsError:
            continue
        except OncelogError as error:
            player.stage.world.note(f"no more partitions yet: {error!r}")
            continue
        player.stage.topics[SOURCE] = count


# --- the end ----------------------------------------------------------------------------------


async def copies_what_is_left(client: Client) -> None:
    """Copy until all is copied: a member as it is in the documentation."""
    consumer = client.consumer(
        group_id=GROUP,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        partition_assignment_strategy=strategy_of(client.world.seed),
    )
    await consumer.subscribe(SOURCE)
    producer = client.producer(transactional_id=client.name)
    await producer.init_transactions()
    # A source that nobody uses any more may deliver what it has, and a topic may still grow.
    look_s = client.world.now_s + DELIVERY_TIMEOUT_MS / 1_000 + 1.0
    while True:
        records = await consumer.poll(500)
        if records:
            await _copy_well(client, consumer, producer, records)
        elif client.world.now_s > look_s:
            topic = await client.admin().describe_topic(SOURCE)
            has_all = len(consumer.assignment()) == len(topic.partitions)
            if has_all and not await consumer.lag():
                return


async def _copy_well(
    client: Client, consumer: AsyncConsumer, producer: AsyncProducer, records: list[ConsumerRecord]
) -> None:
    try:
        async with producer.transaction():
            for record in records:
                value = f"{record.partition}:{record.offset} {client.name}"
                await producer.send(TARGET, value.encode(), partition=0)
            positions = {record.topic_partition: record.offset + 1 for record in records}
            await producer.send_offsets_to_transaction(positions, consumer.group_metadata())
    except OncelogError as error:
        client.world.note(f"{client.name} failed: {error!r}")
        await consumer.seek_to_committed()


async def all_of(client: Client, topic: str) -> dict[tuple[TopicPartition, int], str]:
    """All that is committed in a topic."""
    found: dict[tuple[TopicPartition, int], str] = {}
    consumer = client.consumer(auto_offset_reset="earliest")
    count = len((await client.admin().describe_topic(topic)).partitions)
    await consumer.assign(TopicPartition(topic, number) for number in range(count))
    while await consumer.lag():
        for record in await consumer.poll(500):
            assert record.value is not None
            found[record.topic_partition, record.offset] = record.value.decode()
    return found
