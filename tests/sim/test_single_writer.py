"""A producer that is not to put out a living one, against real servers that die."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from random import Random
from unittest import mock

import pytest
from sim_process import SimSight, false_news
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.coordination.process_watch import ProcessWatch
from oncelog.actors.protocol.transaction.holders import Holders
from oncelog.storage.exceptions import OncelogError, TransactionalIdInUseError
from oncelog.storage.model import TopicPartition

BEAT_MS = 1_000
DEAD_AFTER_S = 3 * BEAT_MS / 1_000
SEEN_AFTER_S = 0.5


def new_producer(client):
    return client.producer(
        transactional_id="writer", producer_heartbeat_interval_ms=BEAT_MS, max_block_ms=20_000
    )


async def commit(producer):
    await producer.begin_transaction()
    await producer.send("flights", b"v")
    await producer.commit_transaction()


async def hold(client, rounds):
    """Hold the id, mostly idle; whatever takes it away fails a commit."""
    producer = new_producer(client)
    await producer.init_transactions(if_alive="refuse")
    for _ in range(rounds):
        await asyncio.sleep(20)
        await commit(producer)
    return producer


async def covet(client, refused):
    """Try to have the id, again and again; return the producer that got it."""
    while True:
        producer = new_producer(client)
        try:
            await producer.init_transactions(if_alive="refuse")
        except TransactionalIdInUseError as error:
            refused.append(str(error))
            await asyncio.sleep(0.7)
        except OncelogError:
            await asyncio.sleep(0.7)
        else:
            return producer


def kill_coordinators(world, random):
    async def life():
        while True:
            await asyncio.sleep(random.uniform(2, 15))
            world.kill(random.choice([n for n in world.actor_names() if "transaction" in n]))

    return life()


def check_life_together(seed, *, within_s=DEAD_AFTER_S):
    """The holder's commits succeed while another covets its id; then it dies, and is replaced."""
    with World(seed=seed) as world:
        holder, other = world.client("holder"), world.client("other")
        held = holder.spawn(hold(holder, rounds=10))
        world.run_for(5)
        refused: list[str] = []
        trouble = world.client("nemesis").spawn(kill_coordinators(world, Random(seed)))
        coveted = other.spawn(covet(other, refused))
        world.run(held, limit_s=2_000)
        assert not coveted.done()
        assert refused
        trouble.cancel()
        world.run_for(10)
        world.kill(holder.name)
        died_s = world.now_s
        world.run(coveted, limit_s=100)
        assert world.now_s - died_s <= within_s + BEAT_MS / 1_000 + 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_living_holder_is_not_put_out_and_a_dead_one_is_replaced_in_time(seed, is_seen):
    with _unseen() if not is_seen else nullcontext():
        check_life_together(seed, within_s=SEEN_AFTER_S if is_seen else DEAD_AFTER_S)


def _unseen():
    """Nobody sees the processes of programs, as on a host without a broker."""
    return mock.patch.object(SimSight, "lives", return_value=None)


@pytest.mark.parametrize("node", [1, 2, 3])
def test_a_holder_that_dies_on_any_node_with_a_broker_is_replaced_at_once(node):
    assert _inheritance_s(node) <= SEEN_AFTER_S + 1


def test_without_answers_of_brokers_a_distant_death_is_known_by_silence_only():
    """A saboteur: nobody asks the broker of the holder's machine."""
    with mock.patch.object(ProcessWatch, "_ask", return_value=None):
        waits = [_inheritance_s(node) for node in (1, 2, 3)]
    # The coordinator's own machine needs no answer.
    assert [wait_s <= SEEN_AFTER_S + 1 for wait_s in waits].count(True) == 1


def _inheritance_s(node):
    """How long another producer waits for the id of one that dies on that node."""
    three = WorldSettings(
        brokers=3, replication_factor=3, cluster=ClusterConfig(replicas_per_actor=1)
    )
    with World(seed=11, settings=three) as world:
        holder, other = world.client("holder", node=node), world.client("other")
        world.run(holder.spawn(hold(holder, rounds=1)))
        world.kill(holder.name)
        died_s = world.now_s
        world.run(other.spawn(covet(other, [])), limit_s=100)
        return world.now_s - died_s


def test_a_platform_that_takes_the_living_for_dead_costs_no_record():
    """Now and then a living holder is replaced, as by who does not ask: what counts is there."""
    written = []

    async def rival(client, name):
        number = 0
        while number < 12:
            producer = new_producer(client)
            try:
                await producer.init_transactions(if_alive="refuse")
                while number < 12:
                    await producer.begin_transaction()
                    await producer.send("flights", f"{name} {number}".encode())
                    await producer.commit_transaction()
                    written.append(f"{name} {number}")
                    number += 1
                    await asyncio.sleep(0.5)
            except OncelogError:
                await asyncio.sleep(0.3)
            await producer.close()

    async def read(client):
        consumer = client.consumer(auto_offset_reset="earliest")
        await consumer.assign([TopicPartition("flights", 0)])
        return [one.value.decode() for _ in range(20) for one in await consumer.poll(200)]

    with false_news("lies", 0.1) as told, World(seed=12) as world:
        clients = [world.client(name) for name in ("a", "b")]
        for rivals in [client.spawn(rival(client, client.name)) for client in clients]:
            world.run(rivals, limit_s=1_000)
        reader = world.client("reader")
        found = world.run(reader.spawn(read(reader)))
    assert told[True]
    assert sorted(found) == sorted(written)


def test_a_coordinator_that_takes_the_unheard_for_dead_is_noticed():
    """A saboteur: after its start it has heard nobody, and puts out a living holder."""
    noticed = 0
    with mock.patch.object(Holders, "started", autospec=True):
        for seed in range(4):
            try:
                check_life_together(seed)
            except (OncelogError, AssertionError):
                noticed += 1
    assert noticed


def test_who_closes_is_replaced_at_once_and_who_may_be_replaced_is():
    async def scenario(client):
        first = new_producer(client)
        await first.init_transactions(if_alive="refuse")
        second = new_producer(client)
        with pytest.raises(TransactionalIdInUseError, match=r"another producer of 'writer' lives"):
            await second.init_transactions(if_alive="refuse")
        await first.close()
        await second.init_transactions(if_alive="refuse")  # the same producer, again
        await commit(second)
        third = new_producer(client)
        await third.init_transactions()
        await commit(third)
        with pytest.raises(OncelogError):
            await commit(second)

    with World(seed=9) as world:
        client = world.client("writer")
        world.run(client.spawn(scenario(client)))


def test_an_id_does_not_expire_while_its_producer_is_idle():
    expiring = ClusterConfig(
        replicas_per_actor=1,
        transactional_id_expiration_ms=7_200_000,
        transactional_id_expiration_check_interval_ms=600_000,
    )

    async def idle(client, hours):
        producer = client.producer(transactional_id="idle")
        await producer.init_transactions()
        await asyncio.sleep(hours * 3_600)
        (seen,) = await client.admin().list_transactions()
        assert seen.transactional_id == "idle"
        await commit(producer)

    with World(seed=10, settings=WorldSettings(cluster=expiring)) as world:
        client = world.client("writer")
        world.run(client.spawn(idle(client, hours=7)), limit_s=10 * 3_600)
