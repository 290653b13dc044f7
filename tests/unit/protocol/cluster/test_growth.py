"""Topics that have fewer replicas than they are to have are given more as brokers join."""

from __future__ import annotations

import pytest
from cluster_worlds import TOPIC_ID, ClusterWorld

from oncelog.actors.protocol.cluster.cluster_records import ReplicasChanged, TopicCreated
from oncelog.actors.protocol.cluster.reassignment import (
    GROWING_MAX,
    complete,
    decide_reassign,
    grown,
)
from oncelog.actors.protocol.messages.brokers import ReassignPartitionRequest
from oncelog.actors.protocol.messages.cluster import (
    CreatePartitionsRequest,
    CreateTopicRequest,
    PartitionMetadata,
)
from oncelog.storage.errors import ErrorCode
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


def test_a_few_partitions_grow_at_a_time() -> None:
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


# --- topics of users ------------------------------------------------------------------------------

TP = TopicPartition("t", 0)


@pytest.fixture
def owned() -> ClusterWorld:
    """A topic of two partitions, made with two replicas each as broker 3 was away."""
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.change(3, fenced=True)
    create(world)
    for partition in world.machine.topics["t"].partitions:
        assert set(partition.replicas) == {1, 2}
    return world


def create(world: ClusterWorld, replication_factor: int = -1) -> None:
    request = CreateTopicRequest(
        name="t", topic_id=TOPIC_ID, partitions=2, replication_factor=replication_factor
    )
    assert world.run(world.machine.decide_create_topic(request)).error is ErrorCode.NONE


def of_users(world: ClusterWorld) -> list[tuple[int, ...]]:
    found = grown(world.machine.topics, world.machine.broker_states)
    return [move.replicas for move in found if move.topic_partition.topic == "t"]


def reassign(world: ClusterWorld, *replicas: int, is_own: bool = False) -> None:
    """Begin, or cancel without replicas."""
    machine = world.machine
    request = ReassignPartitionRequest(topic_partition=TP, replicas=replicas)
    decided = decide_reassign(machine.topics, machine.broker_states, request, keeps_factor=is_own)
    assert world.run(decided).error is ErrorCode.NONE


def described(world: ClusterWorld) -> PartitionMetadata:
    (topic,) = world.machine.metadata(["t"])
    return topic.partitions[0]


def test_a_topic_made_while_a_broker_is_away_has_three_replicas_once_it_is_back(
    owned: ClusterWorld,
) -> None:
    assert of_users(owned) == []
    assert (described(owned).replication_factor, described(owned).is_under_replicated) == (3, True)
    owned.change(3)
    assert of_users(owned) == [(1, 2, 3), (2, 1, 3)]
    owned.lead(1, (1, 2))
    reassign(owned, 1, 2, 3, is_own=True)
    assert of_users(owned) == [(2, 1, 3)]
    topic = owned.machine.topics["t"]
    owned.lead(1, (1, 2, 3))
    owned.apply(complete(topic, 0, owned.machine.broker_states))
    assert topic.partitions[0].replicas == (1, 2, 3)
    assert of_users(owned) == [(2, 1, 3)]
    assert not described(owned).is_under_replicated
    assert owned.replayed().topics == owned.machine.topics


def test_more_partitions_of_it_grow_like_those_there_are(owned: ClusterWorld) -> None:
    more = CreatePartitionsRequest(name="t", partitions=3)
    assert owned.run(owned.machine.decide_create_partitions(more)).error is ErrorCode.NONE
    owned.change(3)
    assert len(of_users(owned)) == 3


def test_without_another_broker_nothing_is_missing() -> None:
    world = ClusterWorld()
    world.register(1)
    create(world)
    assert (described(world).replication_factor, described(world).is_under_replicated) == (1, False)
    world.register(2)
    assert described(world).is_under_replicated
    assert of_users(world) == [(1, 2), (1, 2)]
    world.change(2, draining=True)
    assert (described(world).is_under_replicated, of_users(world)) == (False, [])


def test_a_topic_whose_replicas_were_counted_stays_as_it_was_made() -> None:
    world = ClusterWorld()
    world.register(1, 2, 3)
    create(world, 2)
    earlier = TopicCreated(name="u", topic_id="b" * 32, replicas=((1, 2),), settings=())
    world.apply([earlier])
    assert grown(world.machine.topics, world.machine.broker_states) == ()
    assert not described(world).is_under_replicated


def test_who_moves_a_partition_says_how_many_replicas_it_is_to_have(owned: ClusterWorld) -> None:
    owned.change(3)
    owned.lead(1, (1, 2))
    partition = owned.machine.topics["t"].partitions[0]
    version = partition.version
    reassign(owned, 1, 2)
    assert (partition.version, partition.replication_factor) == (version + 1, 2)
    reassign(owned, 1, 2)
    assert partition.version == version + 1
    assert of_users(owned) == [(2, 1, 3)]
    assert owned.replayed().topics == owned.machine.topics


def test_whoever_cancels_the_growth_of_a_partition_wants_no_more(owned: ClusterWorld) -> None:
    owned.change(3)
    owned.lead(1, (1, 2))
    reassign(owned, 1, 2, 3, is_own=True)
    reassign(owned)
    assert owned.machine.topics["t"].partitions[0].replicas == (1, 2)
    assert of_users(owned) == [(2, 1, 3)]


def test_a_drain_keeps_how_many_replicas_there_are_to_be(owned: ClusterWorld) -> None:
    owned.register(4)
    owned.change(2, draining=True)
    owned.lead(1, (1, 2))
    reassign(owned, 1, 4, is_own=True)
    owned.lead(1, (1, 2, 4))
    topic = owned.machine.topics["t"]
    owned.apply(complete(topic, 0, owned.machine.broker_states))
    assert (topic.partitions[0].replicas, topic.partitions[0].replication_factor) == ((1, 4), 3)
    owned.change(3)
    assert of_users(owned) == [(1, 4, 3)]
