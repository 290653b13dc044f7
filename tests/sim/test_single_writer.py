"""A producer that is not to put out a living one, against real servers that die."""

from __future__ import annotations

import asyncio
from random import Random
from unittest import mock

import pytest
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.protocol.transaction.holders import Holders
from oncelog.storage.exceptions import OncelogError, TransactionalIdInUseError

BEAT_MS = 1_000
DEAD_AFTER_S = 3 * BEAT_MS / 1_000


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


def check_life_together(seed):
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
        assert world.now_s - died_s <= DEAD_AFTER_S + BEAT_MS / 1_000 + 1


@pytest.mark.parametrize("seed", range(4))
def test_a_living_holder_is_not_put_out_and_a_dead_one_is_replaced_in_time(seed):
    check_life_together(seed)


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
