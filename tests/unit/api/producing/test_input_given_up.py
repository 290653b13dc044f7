"""Transactions that span polls, and rebalances that take their input away, in virtual time."""

from __future__ import annotations

import pickle
from collections import Counter
from random import Random
from typing import Any

import pytest
from inside import core_of

from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.consuming.core import ConsumerRebalanceListener
from oncelog.api.records import ConsumerGroupMetadata, GivenUpInput
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import TransactionAbortableError
from oncelog.storage.model import TopicPartition


class Copy:
    """A program that copies the source to a sink, and the two clusters in memory it works on.

    Its rebalances are eager: each takes everything, and may give it back.
    """

    def __init__(self, source: Any, sink: Any, strategy: str = "range") -> None:
        self.source, self.sink = source, sink
        (self.log,) = source.create("t")
        sink.create("copies")
        self.consumer = AsyncConsumer(
            source.router(),
            ConsumerSettings(
                group_id="g",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                heartbeat_interval_ms=1_000,
                retry_backoff_ms=1,
                partition_assignment_strategy=strategy,
            ),
            source.random,
        )
        self.producer = sink.producer("copier", linger_ms=0)

    async def start(self, *values: bytes, listener: Any = None) -> None:
        """Become a member, then put ``values`` into the source."""
        await self.consumer.subscribe("t", listener=listener)
        await self.consumer.poll(1_000)
        if values:
            self.log.append(*values)

    async def poll(self, count: int = 2) -> list[bytes]:
        return [record.value for record in await self.consumer.poll(1_000, max_records=count)]

    async def copy(self, values: list[bytes]) -> None:
        for value in values:
            await self.producer.send("copies", value)

    def rebalance(self) -> None:
        """The group rebalances at the next poll, which gives back what it takes."""
        core_of(self.consumer)._membership._on_group_error(ErrorCode.REBALANCE_IN_PROGRESS)

    async def commit(self) -> None:
        positions = await self.consumer.positions()
        group = self.consumer.group_metadata()
        await self.producer.send_offsets_to_transaction(positions, group)
        await self.producer.commit_transaction()
        self.source.committed |= self.sink.offsets

    async def abort(self) -> None:
        await self.producer.abort_transaction()
        await self.consumer.seek_to_committed()

    async def __aenter__(self) -> Copy:
        await self.producer.init_transactions()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.consumer.close()
        await self.producer.close()

    def committed(self) -> list[bytes]:
        (sink,) = self.sink.leaders.values()
        return sink.committed_values()


@pytest.fixture
def copy(fake_cluster: Any, cluster: Any) -> Any:
    return lambda **settings: Copy(fake_cluster, cluster, **settings)


def test_input_that_a_rebalance_gave_away_and_back_does_not_count_twice(copy, run):
    """1. A transaction sends what a poll read. 2. A rebalance takes the partition, and gives it
    back: it is read again, and sent again. 3. The positions are refused, by its name.
    """

    async def scenario():
        async with copy() as world:
            await world.start(b"0", b"1")
            read = await world.poll()
            await world.producer.begin_transaction()
            await world.copy(read)
            world.rebalance()
            again = await world.poll()
            await world.copy(again)
            with pytest.raises(TransactionAbortableError, match="has taken t-0 since"):
                await world.commit()
            with pytest.raises(TransactionAbortableError):
                await world.producer.commit_transaction()
            await world.abort()
            await world.producer.begin_transaction()
            await world.copy(await world.poll())
            await world.commit()
            return read, again, world.committed()

    assert run(scenario()) == ([b"0", b"1"], [b"0", b"1"], [b"0", b"1"])


def test_input_that_a_cooperative_rebalance_leaves_counts_in_the_transaction_that_read_it(
    copy, run
):
    async def scenario():
        async with copy(strategy="cooperative-sticky") as world:
            await world.start(b"0", b"1")
            read = await world.poll(1)
            await world.producer.begin_transaction()
            await world.copy(read)
            world.rebalance()
            while world.source.generation_id < 2:
                read += (more := await world.poll())
                await world.copy(more)
            await world.commit()
            return read, world.committed(), dict(world.source.committed)

    values = [b"0", b"1"]
    assert run(scenario()) == (values, values, {TopicPartition("t", 0): 2})


def test_input_that_a_rebalance_gave_back_before_the_transaction_began_does_not_count_twice(
    copy, run
):
    """1. A program reads by several polls what its next transaction is to copy. 2. Between them a
    rebalance takes the partition, and gives it back. 3. The positions are refused, by its name; the
    next transaction goes on.
    """

    async def scenario():
        async with copy() as world:
            await world.start(b"0", b"1")
            read = await world.poll()
            world.rebalance()
            read += await world.poll()
            await world.producer.begin_transaction()
            await world.copy(read)
            with pytest.raises(TransactionAbortableError, match="has taken t-0 since it was read"):
                await world.commit()
            await world.abort()
            again = await world.poll()
            await world.producer.begin_transaction()
            await world.copy(again)
            await world.commit()
            return read, world.committed()

    assert run(scenario()) == ([b"0", b"1", b"0", b"1"], [b"0", b"1"])


def test_what_a_rebalance_took_before_the_producer_was_there_is_not_of_its_transactions(copy, run):
    async def scenario():
        async with copy() as world:
            await world.start(b"0", b"1")
            await world.poll()
            world.rebalance()
            read = await world.poll()
            world.producer = world.sink.producer("successor", linger_ms=0)
            await world.producer.init_transactions()
            await world.producer.begin_transaction()
            await world.copy(read)
            await world.commit()
            return world.committed()

    assert run(scenario()) == [b"0", b"1"]


def test_positions_of_nothing_are_refused_too_once_the_input_is_given_up(copy, run):
    async def scenario():
        async with copy() as world:
            await world.start(b"0")
            await world.producer.begin_transaction()
            await world.copy(await world.poll())
            world.rebalance()
            await world.poll()
            group = world.consumer.group_metadata()
            with pytest.raises(TransactionAbortableError, match="t-0"):
                await world.producer.send_offsets_to_transaction({}, group)
            await world.abort()

    run(scenario())


@pytest.mark.parametrize("is_begun_first", [True, False])
def test_what_earlier_transactions_read_may_be_given_up_in_a_later_one(copy, run, is_begun_first):
    async def scenario():
        async with copy() as world:
            await world.start(b"0", b"1", b"2", b"3")
            if is_begun_first:
                await world.producer.begin_transaction()
            read = await world.poll()
            if not is_begun_first:
                await world.producer.begin_transaction()
            await world.copy(read)
            await world.commit()
            await world.producer.begin_transaction()
            world.rebalance()
            await world.copy(await world.poll())
            await world.commit()
            return world.committed()

    assert run(scenario()) == [b"0", b"1", b"2", b"3"]


def test_what_an_iteration_delivered_counts_from_its_delivery(copy, run):
    """1. A poll of an iteration brings two records. 2. The first is a transaction of its own. 3.
    The second is of another, which the next poll gives up.
    """

    async def scenario():
        async with copy() as world:
            await world.start(b"0", b"1", b"2")
            for _ in range(2):
                await world.producer.begin_transaction()
                await world.copy([(await anext(world.consumer)).value])
                if world.sink.offsets:
                    break
                await world.commit()
            world.rebalance()
            await world.consumer.poll(1_000)
            with pytest.raises(TransactionAbortableError, match="t-0"):
                await world.commit()
            await world.abort()

    run(scenario())


def test_a_listener_commits_before_its_partitions_are_given_up(copy, run):
    """What it commits is not read again, and the next transaction may go on."""

    class Committing(ConsumerRebalanceListener):
        def __init__(self, world: Copy) -> None:
            self.world = world

        async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            await self.world.commit()

    async def scenario():
        async with copy() as world:
            await world.start(b"0", b"1", b"2", listener=Committing(world))
            await world.producer.begin_transaction()
            await world.copy(await world.poll())
            world.rebalance()
            rest = await world.poll()
            await world.producer.begin_transaction()
            await world.copy(rest)
            await world.commit()
            await world.producer.begin_transaction()
            return world.committed()

    assert run(scenario()) == [b"0", b"1", b"2"]


def test_what_another_process_says_was_given_up_is_not_compared_with_moments_of_this_one(run, copy):
    given_up = {TopicPartition("t", 0): GivenUpInput(given_up_at=2**60, delivered_at=2**60)}
    group = ConsumerGroupMetadata(group_id="g", given_up=given_up)

    async def scenario():
        async with copy() as world:
            await world.producer.begin_transaction()
            positions = {TopicPartition("t", 0): 1}
            elsewhere = pickle.loads(pickle.dumps(group))
            await world.producer.send_offsets_to_transaction(positions, elsewhere)
            with pytest.raises(TransactionAbortableError, match="t-0"):
                await world.producer.send_offsets_to_transaction(positions, group)
            await world.producer.abort_transaction()

    run(scenario())


@pytest.mark.parametrize("seed", range(10))
def test_programs_of_polls_rebalances_and_transactions_copy_each_record_once(copy, run, seed):
    """A generated program that takes an abortable error for what it is: abort, read again."""
    random = Random(seed)
    steps = ["append", "poll", "poll", "begin", "rebalance", "commit", "abort"]

    async def scenario():
        async with copy() as world:
            await world.start()
            count, is_open = 0, False
            for step in random.choices(steps, k=60):
                if step == "append":
                    world.log.append(b"%d" % count)
                    count += 1
                elif step == "rebalance":
                    world.rebalance()
                elif step == "begin" and not is_open:
                    await world.producer.begin_transaction()
                    is_open = True
                elif step == "poll" and is_open:
                    await world.copy(await world.poll(random.randint(1, 3)))
                elif step == "commit" and is_open:
                    try:
                        await world.commit()
                    except TransactionAbortableError:
                        await world.abort()
                    is_open = False
                elif step == "abort" and is_open:
                    await world.abort()
                    is_open = False
            return Counter(world.committed())

    assert set(run(scenario()).values()) <= {1}
