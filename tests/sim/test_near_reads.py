"""Consumers that read from the follower in their rack, while it dies, is cut off and is elected."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from inside import core_of
from sim_replica_stage import isr, leader, replicated, write
from sim_world import World

from oncelog.storage.model import TopicPartition

TP = TopicPartition("a", 0)
RACKS = ("a", "b", "c")


class NearReader:
    """A consumer in the rack of a broker, and what it has read."""

    def __init__(self, world: World, broker: int, level: str = "read_committed") -> None:
        self.client = world.client(f"near-{broker}-{world.process_count}")
        self.world = world
        self.read: list[str] = []
        self.consumer = world.run(self.client.spawn(self._open(RACKS[broker - 1], level)))

    async def _open(self, rack: str, level: str) -> Any:
        consumer = self.client.consumer(
            client_rack=rack, auto_offset_reset="earliest", isolation_level=level
        )
        await consumer.assign(TP)
        return consumer

    def poll_until(self, count: int, limit_s: float, follower: int | None = None) -> None:
        """Until it has read so many, and reads from that ``follower`` if one is given."""

        async def poll() -> None:
            while len(self.read) < count or follower not in (None, self.follower):
                self.read += [record.value.decode() for record in await self.consumer.poll(500)]

        self.world.run(self.client.spawn(poll()), limit_s=limit_s)

    @property
    def follower(self) -> int | None:
        """The broker of the follower that it reads."""
        return core_of(self.consumer).fetcher.followers.get(TP)


def racked(replicas_per_actor: int) -> World:
    settings = dataclasses.replace(replicated(replicas_per_actor), racks=RACKS)
    return World(7, topics={"a": 1}, settings=settings)


def a_follower(world: World) -> int:
    """One in sync that does not lead, and is not the controller's."""
    return next(n for n in sorted(isr(world)) if n not in {leader(world), world.controller_node})


def texts(first: int, end: int) -> list[str]:
    return [f"record {number}" for number in range(first, end)]


async def end_one(client: Any, text: str, is_committed: bool) -> None:
    producer = client.producer(transactional_id="t")
    await producer.init_transactions()
    await producer.begin_transaction()
    await producer.send("a", text.encode(), partition=0)
    await (producer.commit_transaction() if is_committed else producer.abort_transaction())
    await producer.close()


def end_transaction(world: World, text: str, *, is_committed: bool) -> None:
    client = world.client(f"writer-{world.process_count}")
    world.run(client.spawn(end_one(client, text, is_committed)))


@pytest.mark.parametrize("replicas_per_actor", [1, 3])
def test_a_consumer_reads_from_its_rack_and_goes_on_when_that_replica_dies(
    replicas_per_actor: int,
):
    """1. The follower gives what is committed. 2. Its node dies: the leader is read. 3. It is back,
    and read again.
    """
    with racked(replicas_per_actor) as world:
        near = a_follower(world)
        reader = NearReader(world, near)
        reader.poll_until(0, limit_s=45, follower=near)
        assert all(write(world, texts(0, 5)))
        end_transaction(world, "aborted", is_committed=False)
        end_transaction(world, "record 5", is_committed=True)
        reader.poll_until(6, limit_s=10)
        assert reader.follower == near
        world.kill_node(near)
        assert all(write(world, texts(6, 12)))
        reader.poll_until(12, limit_s=10)
        assert reader.follower is None
        world.start_node(near)
        world.quiesce()
        world.run_for(60)
        reader.poll_until(12, limit_s=45, follower=near)
        assert all(write(world, texts(12, 18)))
        reader.poll_until(18, limit_s=45, follower=near)
        assert reader.read == texts(0, 18)


@pytest.mark.parametrize("replicas_per_actor", [1, 3])
def test_a_follower_that_only_its_consumer_can_reach_does_not_hold_it_up(replicas_per_actor: int):
    """It gives no more than it knows to be committed, and the consumer learns that it is cut off.

    The consumer looks up whom it reads every twenty seconds.
    """
    with racked(replicas_per_actor) as world:
        near = a_follower(world)
        reader = NearReader(world, near)
        assert all(write(world, texts(0, 5)))
        reader.poll_until(5, limit_s=45, follower=near)
        for other in world.node_numbers():
            if other != near:
                world.cut(near, other)
        world.run_for(5)
        assert near not in isr(world)
        assert all(write(world, texts(5, 10)))
        reader.poll_until(10, limit_s=45)
        assert (reader.read, reader.follower) == (texts(0, 10), None)


def test_a_consumer_reads_on_from_its_rack_when_another_follower_is_elected():
    with racked(1) as world:
        first = leader(world)
        near = a_follower(world)
        reader = NearReader(world, near)
        assert all(write(world, texts(0, 5)))
        reader.poll_until(5, limit_s=10)
        world.kill_node(first)
        world.run_for(15)
        assert leader(world) not in {-1, first}
        world.start_node(first)
        world.quiesce()
        assert all(write(world, texts(5, 10)))
        reader.poll_until(10, limit_s=45)
        assert reader.read == texts(0, 10)


def test_a_consumer_that_waits_at_a_follower_gets_a_record_at_once():
    """The follower is told of the new high watermark, not half a second later."""
    with racked(1) as world:
        near = a_follower(world)
        reader = NearReader(world, near)
        reader.poll_until(0, limit_s=45, follower=near)
        took = []
        for number in range(10):
            began_s = world.now_s
            waiting = reader.client.spawn(reader.consumer.poll(10_000))
            assert all(write(world, texts(number, number + 1)))
            assert world.run(waiting)
            took.append(world.now_s - began_s)
        assert sorted(took)[5] < 0.2, took
