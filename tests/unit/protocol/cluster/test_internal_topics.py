"""The coordinators' topics are given replicas as brokers join."""

from __future__ import annotations

import pytest
from cluster_worlds import TOPIC_ID, ClusterWorld

from oncelog.actors.protocol.cluster.internal_topics import GROWING_MAX, grown
from oncelog.actors.protocol.cluster.log import ReplicasChanged
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition


@pytest.fixture
def world() -> ClusterWorld:
    """Three partitions of an internal topic and one of a user's, all of them on broker 1."""
    world = ClusterWorld()
    world.register(1)
    world.create((1,), (1,), (1,), name=CONSUMER_OFFSETS_TOPIC, topic_id="b" * 32)
    world.create((1,))
    return world


def moves(world: ClusterWorld) -> dict[int, tuple[int, ...]]:
    found = grown(world.machine.topics, world.machine.broker_states)
    assert {move.topic_partition.topic for move in found} <= {CONSUMER_OFFSETS_TOPIC}
    return {move.topic_partition.partition: move.replicas for move in found}


def change(
    world: ClusterWorld, number: int, replicas: tuple[int, ...], adding: tuple[int, ...] = ()
) -> None:
    topic = world.machine.topics[CONSUMER_OFFSETS_TOPIC]
    record = ReplicasChanged(
        topic_id=topic.topic_id,
        partition=number,
        partition_version=topic.partitions[number].version + 1,
        replicas=replicas,
        hosts=(0,) * len(replicas),
        isr=(),
        adding=adding,
    )
    world.apply([record])


def test_alone_they_stay_as_they_are(world: ClusterWorld) -> None:
    assert moves(world) == {}


def test_with_a_second_broker_each_has_two_replicas_and_leaders_take_turns(
    world: ClusterWorld,
) -> None:
    world.register(2)
    assert moves(world) == {0: (1, 2), 1: (2, 1), 2: (1, 2)}


def test_three_are_enough_whatever_brokers_there_are(world: ClusterWorld) -> None:
    world.register(2, 3, 4, 5)
    found = moves(world)
    assert [replicas[0] for replicas in found.values()] == [1, 2, 3]
    assert all(len(set(replicas)) == 3 and 1 in replicas for replicas in found.values())


def test_what_has_enough_stays_where_it_is(world: ClusterWorld) -> None:
    world.register(2, 3, 4)
    change(world, 1, (4, 3, 1))
    assert set(moves(world)) == {0, 2}


def test_they_are_not_made_fewer_when_a_broker_is_fenced(world: ClusterWorld) -> None:
    world.register(2, 3)
    for number in range(3):
        change(world, number, (1, 2, 3))
    world.change(3, fenced=True)
    assert moves(world) == {}


def test_what_moves_or_is_on_a_broker_that_drains_waits(world: ClusterWorld) -> None:
    world.register(2, 3, 4)
    change(world, 0, (1, 2), adding=(2,))
    change(world, 1, (4,))
    world.change(4, draining=True)
    assert set(moves(world)) == {2}


def test_what_a_drain_has_made_fewer_grows_again_when_the_broker_is_used_again(
    world: ClusterWorld,
) -> None:
    world.register(2, 3)
    for number in range(3):
        change(world, number, (1, 2))
    world.change(3, draining=True)
    assert moves(world) == {}
    world.change(3)
    assert moves(world) == {0: (1, 2, 3), 1: (2, 1, 3), 2: (3, 1, 2)}


def test_brokers_that_are_fenced_or_drain_are_given_none(world: ClusterWorld) -> None:
    world.register(2, 3)
    world.change(2, fenced=True)
    world.change(3, draining=True)
    assert moves(world) == {}


def test_internal_topics_grow_a_few_partitions_at_a_time() -> None:
    world = ClusterWorld()
    world.register(1, 2)
    many = ((1,),) * (GROWING_MAX + 3)
    world.create(*many, name=CONSUMER_OFFSETS_TOPIC, topic_id=TOPIC_ID)
    assert len(moves(world)) == GROWING_MAX
    change(world, 0, (1, 2), adding=(2,))
    assert set(moves(world)) == set(range(1, GROWING_MAX))
    change(world, 0, (1, 2))
    assert set(moves(world)) == set(range(1, GROWING_MAX + 1))


def test_extra_replicas_are_spread_over_brokers() -> None:
    world = ClusterWorld()
    world.register(1, 2, 3, 4)
    world.create((1,), (1,), (1,), (1,), name=CONSUMER_OFFSETS_TOPIC)
    found = grown(world.machine.topics, world.machine.broker_states)
    counts = [sum(n in move.replicas for move in found) for n in (2, 3, 4)]
    assert max(counts) - min(counts) <= 1
    assert found[0].topic_partition == TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
