"""Transactions that are committed together with another system: in both of them, or in neither.

The other system is a table that one statement changes, rows and prepared transaction together, as
a database does. Random worlds have such programs too.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from unittest import mock

import pytest
from sim_saboteurs import ALONE
from sim_swarm import drawn_scenario, founded, run_scenario
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.protocol.transaction.checks import BUSY
from oncelog.actors.protocol.transaction.ids import TransactionalIds
from oncelog.actors.protocol.transaction.transaction_state import aborted
from oncelog.api.transacting.producer_transaction import PreparedTxnState
from oncelog.storage.exceptions import (
    InvalidTxnStateError,
    PolicyViolationError,
    TransactionAbortableError,
)
from oncelog.storage.model import TopicPartition

TOPICS = {"flights": 1}
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


async def write_and_die(producer, database, row):
    """One row in both systems, by a program that dies before it completes the transaction."""
    await producer.begin_transaction()
    await producer.send("flights", row)
    prepared = await producer.prepare_transaction()
    database.commit(row, str(prepared))


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


@pytest.mark.parametrize("seed", range(4))
def test_in_random_worlds_a_write_is_in_both_systems_or_in_neither(seed):
    """Under all faults, by the checkers of all writes; see ``sim_prepared``."""
    scenario = drawn_scenario(seed).changed(ALONE | {"preparers": 3, "duration_s": 20.0})
    founded(scenario)
    result = run_scenario(scenario)
    assert result.violations == []
    assert result.counts["writes in two systems"]
    assert result.counts["prepared, then taken over"]


def test_a_successor_that_aborts_what_is_prepared_is_noticed():
    """A saboteur: a takeover without ``keep_prepared`` ends a prepared transaction in passing."""

    def abort_ongoing(self, request, metadata, cause, now_ms, producer_ids, *_):
        following = aborted(metadata, cause, now_ms, producer_ids.spare(metadata))
        return self.move(request.failed(*BUSY), following)

    async def scenario(client):
        database = Database()
        producer = await take_over(client, database)
        await write_and_die(producer, database, b"row")
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
