"""Groups whose topics go, and whose members go: the others read on at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sim_world import World

from oncelog.api.processing.job import remove_former_workers, remove_workers
from oncelog.storage.model import TopicPartition

SOON_S = 10.0
"""A heartbeat, a rebalance, and the back-off of clients; far less than the session of a member."""


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=3, topics={"a": 2, "b": 2}) as world:
        yield world


class Member:
    """Reads ``topics`` in the group "g" until it is closed; notes what it gets. Errors end it."""

    def __init__(self, world: World, number: int, *topics: str, is_static: bool = False) -> None:
        self.world = world
        self.read: list[str] = []
        self.is_open = True
        self.assignment: frozenset[TopicPartition] = frozenset()
        self._identity = {"group_instance_id": f"g-{number}"} if is_static else {}
        self._topics = topics
        client = world.client(f"member-{number}-{world.process_count}")
        self._reading = client.spawn(self._read(client))

    async def _read(self, client: Any) -> None:
        consumer = client.consumer(
            group_id="g", auto_offset_reset="earliest", heartbeat_interval_ms=500, **self._identity
        )
        await consumer.subscribe(self._topics)
        while self.is_open:
            self.read += [record.value.decode() for record in await consumer.poll(200)]
            self.assignment = consumer.assignment()
        await consumer.close()

    def close(self) -> None:
        self.is_open = False
        self.world.run(self._reading)


def written(world: World, topic: str, *values: str) -> None:
    """Records that are acknowledged, on both partitions in turn."""

    async def write(client: Any) -> None:
        producer = client.producer()
        for number, value in enumerate(values):
            await (await producer.send(topic, value=value.encode(), partition=number % 2))
        await producer.close()

    client = world.client(f"writer-{world.process_count}")
    world.run(client.spawn(write(client)))


def administered(world: World, work: Any) -> None:
    async def administer(client: Any) -> None:
        await work(client.admin())

    client = world.client(f"operator-{world.process_count}")
    world.run(client.spawn(administer(client)))


def read_by(members: list[Member]) -> list[str]:
    return sorted(value for member in members for value in member.read)


def test_a_group_reads_on_when_one_of_its_topics_is_deleted_and_that_too_once_it_is_back(
    world: World,
) -> None:
    members = [Member(world, number, "a", "b") for number in range(2)]
    written(world, "a", "a0", "a1")
    written(world, "b", "b0", "b1")
    world.run_for(SOON_S)
    assert read_by(members) == ["a0", "a1", "b0", "b1"]

    administered(world, lambda admin: admin.delete_topic("b"))
    world.run_for(SOON_S)
    assert [{tp.topic for tp in member.assignment} for member in members] == [{"a"}, {"a"}]
    written(world, "a", "a2", "a3")
    world.run_for(SOON_S)
    assert read_by(members) == ["a0", "a1", "a2", "a3", "b0", "b1"]

    administered(world, lambda admin: admin.create_topic("b", 2))
    written(world, "b", "b2", "b3")
    world.run_for(SOON_S)
    assert read_by(members) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]
    for member in members:
        member.close()


@pytest.mark.parametrize("leaving", ["as it stops", "as the next one starts", "never"])
def test_a_job_of_fewer_workers_reads_at_once_what_the_others_had(
    world: World, leaving: str
) -> None:
    """1. Both workers, static members, have a partition each. 2. The job ends. 3. The next one has
    one worker: until the other's session ends, its partition is nobody's, unless its place is
    given up.
    """
    former = [Member(world, number, "a", is_static=True) for number in range(2)]
    world.run_for(SOON_S)
    assert [len(member.assignment) for member in former] == [1, 1]
    for member in former:
        member.close()
    if leaving == "as it stops":
        administered(world, lambda admin: remove_workers(admin, "g", range(2)))

    written(world, "a", "a0", "a1")
    worker = Member(world, 0, "a", is_static=True)
    if leaving == "as the next one starts":
        administered(world, lambda admin: remove_former_workers(admin, "g", worker_count=1))
    world.run_for(SOON_S)
    assert len(worker.read) == (1 if leaving == "never" else 2)
    worker.close()


def test_members_of_both_kinds_are_put_out_of_a_group(world: World) -> None:
    members = [Member(world, number, "a", is_static=number == 0) for number in range(2)]
    world.run_for(SOON_S)
    assert [len(member.assignment) for member in members] == [1, 1]
    for member in members:
        member.is_open = False

    async def put_out(admin: Any) -> None:
        # The dynamic one leaves by itself.
        await asyncio.sleep(SOON_S)
        left = (await admin.describe_group("g")).members
        assert [member.group_instance_id for member in left] == ["g-0"]
        await admin.remove_members_from_group("g")
        assert (await admin.describe_group("g")).members == ()
        await admin.remove_members_from_group("g")

    administered(world, put_out)
