"""Transactions that are committed together with another system: in both of them, or in neither.

The other system is a table that one statement changes, rows and prepared transaction together, as
a database does. Programs die between any two steps, and so do servers; clocks run on.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from random import Random
from unittest import mock

import pytest
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.protocol.transaction.checks import BUSY
from oncelog.actors.protocol.transaction.ids import TransactionalIds
from oncelog.actors.protocol.transaction.transaction_machine import Upkeep
from oncelog.actors.protocol.transaction.transaction_state import OPEN, aborted
from oncelog.api.transacting.producer_transaction import PreparedTxnState
from oncelog.storage.exceptions import (
    InvalidTxnStateError,
    OncelogError,
    PolicyViolationError,
    TransactionAbortableError,
)
from oncelog.storage.model import TopicPartition

TOPICS = {"flights": 1, "delays": 1}
ALLOWED = WorldSettings(
    cluster=ClusterConfig(replicas_per_actor=1, transaction_two_phase_commit_enable=True)
)
TIMEOUT_MS = 2_000


@dataclass
class Database:
    """The other system: what it has committed, and with which transaction, at once."""

    rows: list[bytes] = field(default_factory=list)
    prepared: str = ""

    def commit(self, row: bytes, prepared: str) -> None:
        self.rows.append(row)
        self.prepared = prepared


def new_producer(client):
    return client.producer(
        transactional_id="writer",
        transaction_timeout_ms=TIMEOUT_MS,
        max_block_ms=20_000,
        enrol_ahead_ms=100,
    )


async def take_over(client, database):
    """What a program does first: end what its predecessor prepared, as the database says."""
    producer = new_producer(client)
    await producer.init_transactions(keep_prepared=True)
    known = database.prepared
    await producer.complete_transaction(PreparedTxnState.parse(known) if known else None)
    return producer


async def write(producer, database, row, *, dies_at=None, waits_s=0.0):
    """One row in both systems; the program may die at a step."""
    await producer.begin_transaction()
    for topic in TOPICS:
        await producer.send(topic, row)
    if dies_at == "before prepare":
        return False
    prepared = await producer.prepare_transaction()
    if dies_at == "prepared":
        return False
    await asyncio.sleep(waits_s)
    database.commit(row, str(prepared))
    if dies_at == "committed":
        return False
    assert await producer.complete_transaction(prepared)
    return True


async def program(client, database, random, rows):
    """A program, and its successors, until all rows are written."""
    number = 0
    while number < rows:
        try:
            producer = await take_over(client, database)
            while number < rows:
                dies_at = random.choice([None, None, "before prepare", "prepared", "committed"])
                waits_s = random.choice([0, 0, 3 * TIMEOUT_MS / 1_000])
                number += 1
                row = b"%d" % number
                if not await write(producer, database, row, dies_at=dies_at, waits_s=waits_s):
                    # Its successor may take long to come.
                    await asyncio.sleep(random.choice([0, 5 * TIMEOUT_MS / 1_000]))
                    break
        except OncelogError:
            await asyncio.sleep(0.5)
    while True:
        with contextlib.suppress(OncelogError):
            producer = await take_over(client, database)
            await producer.close()
            return


async def read(client, topic):
    consumer = client.consumer()
    await consumer.assign(TopicPartition(topic, 0))
    await consumer.seek_to_beginning()
    values, empty_polls = [], 0
    while empty_polls < 2:
        records = await consumer.poll(2_000)
        empty_polls += not records
        values += [record.value for record in records]
    await consumer.close()
    return values


def disturb(world, random):
    """Kill servers, now and then, while programs run."""
    names = ["controller", *world.actor_names()]

    async def life():
        while True:
            await asyncio.sleep(random.uniform(1, 8))
            world.kill(random.choice(names))

    return life()


def run_together(seed, rows=25):
    """The table, and what each topic's readers see in the end."""
    random = Random(f"two phases {seed}")
    database = Database()
    with World(seed=seed, topics=TOPICS, settings=ALLOWED) as world:
        client, nemesis = world.client("writer"), world.client("nemesis")
        trouble = nemesis.spawn(disturb(world, random))
        world.run(client.spawn(program(client, database, random, rows)), limit_s=4_000)
        trouble.cancel()
        world.run_for(30)
        reader = world.client("reader")
        return database, [world.run(reader.spawn(read(reader, topic))) for topic in TOPICS]


@pytest.mark.parametrize("seed", range(6))
def test_a_row_is_in_both_systems_or_in_neither(seed):
    database, seen = run_together(seed)
    assert database.rows
    assert seen == [database.rows] * len(TOPICS)


def test_a_timeout_that_aborts_what_is_prepared_is_noticed():
    """A saboteur: without the rule, some row is in the database alone."""

    def is_expired(self, metadata, now_ms):
        is_free = not self.ids.is_pending(metadata.transactional_id)
        return metadata.state in OPEN and is_free and self._deadline_ms(metadata) < now_ms

    with mock.patch.object(Upkeep, "_is_expired", is_expired):
        outcomes = [run_together(seed) for seed in range(3)]
    assert any(seen != [database.rows] * len(TOPICS) for database, seen in outcomes)


def test_a_successor_that_aborts_what_is_prepared_is_noticed():
    """A saboteur: a takeover without ``keep_prepared`` ends a prepared transaction in passing."""

    def abort_ongoing(self, request, metadata, cause, now_ms, producer_ids):
        following = aborted(metadata, cause, now_ms, producer_ids.spare(metadata))
        return self.move(request.failed(*BUSY), following)

    async def scenario(client):
        database = Database()
        producer = await take_over(client, database)
        await write(producer, database, b"row", dies_at="committed")
        with contextlib.suppress(InvalidTxnStateError):
            await new_producer(client).init_transactions()
        await take_over(client, database)
        return database

    for is_sabotaged in (False, True):
        with contextlib.ExitStack() as stack:
            if is_sabotaged:
                patch = mock.patch.object(TransactionalIds, "abort_ongoing", abort_ongoing)
                stack.enter_context(patch)
            world = stack.enter_context(World(seed=1, topics=TOPICS, settings=ALLOWED))
            client, reader = world.client("writer"), world.client("reader")
            database = world.run(client.spawn(scenario(client)))
            seen = world.run(reader.spawn(read(reader, "flights")))
            assert (seen == database.rows) is not is_sabotaged


def test_what_is_prepared_outlives_its_program_its_coordinator_and_its_time():
    async def prepare(client):
        producer = new_producer(client)
        await producer.init_transactions(keep_prepared=True)
        assert producer.prepared_transaction is None
        await producer.begin_transaction()
        await producer.send("flights", b"row")
        prepared = await producer.prepare_transaction()
        assert producer.prepared_transaction == prepared
        await producer.close()
        return prepared

    async def plain_successor(client):
        with pytest.raises(InvalidTxnStateError, match=r"init_transactions\(keep_prepared=True\)"):
            await new_producer(client).init_transactions()

    async def successor(client, prepared):
        producer = new_producer(client)
        await producer.init_transactions(keep_prepared=True)
        assert producer.prepared_transaction == prepared
        assert await producer.complete_transaction(prepared)
        assert producer.prepared_transaction is None
        assert not await producer.complete_transaction(prepared)
        await producer.begin_transaction()
        await producer.send("flights", b"next")
        await producer.commit_transaction()

    with World(seed=5, topics=TOPICS, settings=ALLOWED) as world:
        client, reader = world.client("writer"), world.client("reader")
        prepared = world.run(client.spawn(prepare(client)))
        world.run_for(1_000)
        for name in world.actor_names():
            world.kill(name)
        world.run_for(1_000)
        assert world.run(reader.spawn(read(reader, "flights"))) == []
        world.run(client.spawn(plain_successor(client)))
        world.run(client.spawn(successor(client, prepared)))
        assert world.run(reader.spawn(read(reader, "flights"))) == [b"row", b"next"]


@pytest.mark.parametrize("committed", [True, False])
def test_an_operator_finds_it_and_ends_it(committed):
    async def prepare(client):
        producer = new_producer(client)
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("flights", b"row")
        await producer.prepare_transaction()
        await take_over_only(client)

    async def take_over_only(client):
        await new_producer(client).init_transactions(keep_prepared=True)

    async def operate(client):
        admin = client.admin()
        (seen,) = await admin.list_transactions(states=["Prepared"])
        assert (seen.transactional_id, seen.prepared.producer_epoch) == ("writer", 0)
        assert await admin.find_hanging_transactions(older_than_ms=0) == []
        with pytest.raises(InvalidTxnStateError):
            await admin.abort_transaction("writer")
        with pytest.raises(InvalidTxnStateError, match="complete_prepared_transaction"):
            await admin.abort_hanging_transaction(TopicPartition("flights", 0), start_offset=0)
        await admin.complete_prepared_transaction("writer", committed=committed)
        assert await admin.list_transactions(states=["Prepared"]) == []

    with World(seed=6, topics=TOPICS, settings=ALLOWED) as world:
        client, reader = world.client("writer"), world.client("reader")
        world.run(client.spawn(prepare(client)))
        world.run_for(60)
        world.run(client.spawn(operate(client)))
        world.run_for(5)
        assert world.run(reader.spawn(read(reader, "flights"))) == ([b"row"] if committed else [])


def test_a_cluster_that_does_not_prepare_says_so_and_the_transaction_can_be_aborted():
    async def scenario(client):
        producer = new_producer(client)
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("flights", b"row")
        with pytest.raises(TransactionAbortableError, match="transaction_two_phase_commit_enable"):
            await producer.prepare_transaction()
        await producer.abort_transaction()
        with pytest.raises(PolicyViolationError, match="transaction_two_phase_commit_enable"):
            await new_producer(client).init_transactions(keep_prepared=True)

    with World(seed=7, topics=TOPICS) as world:
        client = world.client("writer")
        world.run(client.spawn(scenario(client)))
