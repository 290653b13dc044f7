"""Groups whose topics go, and whose members go: the others read on at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from sim_group_mutants import GROUP_MUTANTS, SLOW_COPIES
from sim_process import false_news
from sim_swarm import drawn_scenario, founded, run_scenario
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.coordination.process_watch import ProcessWatch
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

    def __init__(
        self, world: World, number: int, *topics: str, is_static: bool = False, node: int = 0
    ) -> None:
        self.world = world
        self.read: list[str] = []
        self.is_open = True
        self.assignment: frozenset[TopicPartition] = frozenset()
        self._identity = {"group_instance_id": f"g-{number}"} if is_static else {}
        self._topics = topics
        client = world.client(f"member-{number}-{world.process_count}", node=node)
        self.name = client.name
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


THREE_NODES = WorldSettings(
    brokers=3, replication_factor=3, cluster=ClusterConfig(replicas_per_actor=1)
)
SEEN_S = 3.0
"""A death is seen within a second; then the others hear of it with a heartbeat, and join again."""


def _inheritance(node: int, *, after_s: float = SEEN_S, is_static: bool = False) -> int:
    """How many partitions a member has, of two, so long after the other died on that node."""
    with World(seed=4, topics={"a": 2}, settings=THREE_NODES) as world:
        heir = Member(world, 0, "a", is_static=is_static)
        world.run_for(SOON_S)
        other = Member(world, 1, "a", is_static=is_static, node=node)
        world.run_for(SOON_S)
        assert [len(member.assignment) for member in (heir, other)] == [1, 1]
        world.kill(other.name)
        world.run_for(after_s)
        return len(heir.assignment)


@pytest.mark.parametrize("node", [1, 2, 3])
def test_what_a_member_had_that_dies_on_any_node_is_the_others_within_seconds(node: int) -> None:
    assert _inheritance(node) == 2


def test_the_place_of_a_static_member_that_dies_is_kept_until_its_session_ends() -> None:
    assert _inheritance(1, is_static=True) == 1
    assert _inheritance(1, is_static=True, after_s=60.0) == 2


def test_without_answers_of_brokers_a_distant_death_is_noticed_by_the_session_only() -> None:
    """A saboteur: nobody asks the broker of the member's machine."""
    with mock.patch.object(ProcessWatch, "_ask", return_value=None):
        found = [_inheritance(node) for node in (1, 2, 3)]
    # The coordinator's own machine needs no answer.
    assert sorted(found) == [1, 1, 2]


def _copies_under_false_news(seed: int) -> set[str]:
    """Who speaks after copiers, whose processes are now and then wrongly said to have ended."""
    scenario = drawn_scenario(seed).changed({"duration_s": 10.0, "brokers": 1} | SLOW_COPIES)
    founded(scenario)
    with false_news(f"lies {seed}", 0.1) as told:
        violations = run_scenario(scenario).violations
    assert told[True]
    return {found.checker.partition(":")[0] for found in violations}


@pytest.mark.parametrize("seed", range(2))
def test_a_platform_that_takes_living_members_for_dead_has_no_input_processed_twice(
    seed: int,
) -> None:
    assert _copies_under_false_news(seed) == set()


def test_false_news_are_harmless_only_because_commits_name_their_generation() -> None:
    """A saboteur: a transaction's positions count whoever is a member by then."""
    mutant = next(one for one in GROUP_MUTANTS if one.name == "generations in transactions")
    with mutant.sabotage():
        found = any("DoubleProcessing" in _copies_under_false_news(seed) for seed in range(8))
    assert found


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
