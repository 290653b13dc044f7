"""What a new topic gets when its creator leaves it open, and which brokers get its replicas."""

from __future__ import annotations

from collections import Counter

import pytest
from cluster_worlds import ClusterWorld

from oncelog.actors.protocol.cluster.brokers import fence
from oncelog.actors.protocol.cluster.placement import (
    MIN_INSYNC_REPLICAS_DEFAULT,
    REPLICATION_FACTOR_DEFAULT,
    min_insync_of,
)
from oncelog.actors.protocol.messages.cluster import (
    AlterTopicRequest,
    CreatePartitionsRequest,
    CreateTopicReply,
    CreateTopicRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition


def cluster(count: int, racks: str = "") -> ClusterWorld:
    world = ClusterWorld()
    world.register(*range(1, count + 1), racks=racks)
    return world


def create(
    world: ClusterWorld, name: str = "t", partitions: int = 1, **fields: object
) -> CreateTopicReply:
    topic_id = f"{len(world.log):032x}"
    request = CreateTopicRequest(name=name, topic_id=topic_id, partitions=partitions, **fields)
    return world.run(world.machine.decide_create_topic(request))


def replicas(world: ClusterWorld, name: str = "t") -> list[tuple[int, ...]]:
    return [partition.replicas for partition in world.machine.topics[name].partitions]


def min_insync(world: ClusterWorld, name: str = "t") -> int:
    told = world.machine.leadership(TopicPartition(name, 0))
    assert told is not None
    return told.min_insync_replicas


@pytest.mark.parametrize(
    ("brokers", "factor", "minimum"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)]
)
def test_an_open_factor_is_three_or_what_there_is(brokers: int, factor: int, minimum: int) -> None:
    world = cluster(brokers)
    assert create(world).error is ErrorCode.NONE
    assert len(replicas(world)[0]) == factor <= REPLICATION_FACTOR_DEFAULT
    assert min_insync(world) == minimum <= MIN_INSYNC_REPLICAS_DEFAULT


def test_fenced_and_draining_brokers_do_not_count_and_get_nothing() -> None:
    world = cluster(4)
    world.change(2, fenced=True)
    world.change(3, draining=True)
    assert create(world, partitions=4).error is ErrorCode.NONE
    assert {frozenset(ids) for ids in replicas(world)} == {frozenset({1, 4})}
    assert Counter(ids[0] for ids in replicas(world)) == {1: 2, 4: 2}
    reply = create(world, "u", replication_factor=3)
    assert reply.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "replication_factor=3: give 1 to 2" in reply.detail
    assert "u" not in world.machine.topics


def test_without_a_usable_broker_no_topic_is_made() -> None:
    world = cluster(1)
    world.apply(fence(world.machine.topics, world.machine.broker_states, 1))
    assert create(world).error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_replicas_are_on_racks_of_their_own() -> None:
    world = cluster(4, racks="aabb")
    create(world, partitions=6, replication_factor=2)
    for ids in replicas(world):
        assert {"aabb"[broker_id - 1] for broker_id in ids} == {"a", "b"}


@pytest.mark.parametrize("factor", [0, 4])
def test_a_factor_that_cannot_be_is_refused_with_its_value(factor: int) -> None:
    world = cluster(3)
    reply = create(world, replication_factor=factor)
    assert reply.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert f"replication_factor={factor}" in reply.detail


@pytest.mark.parametrize(
    ("text", "factor", "minimum"),
    [(None, 1, 1), (None, 3, 2), ("auto", 2, 1), ("auto", 1, 1), ("1", 3, 1), ("3", 3, 3)],
)
def test_the_minimum_in_sync_is_two_where_one_can_be_spared_unless_it_is_set(
    text: str | None, factor: int, minimum: int
) -> None:
    settings = () if text is None else (("min_insync_replicas", text),)
    assert min_insync_of(settings, factor) == minimum


@pytest.mark.parametrize("minimum", ["0", "3"])
def test_a_minimum_in_sync_that_cannot_be_is_refused(minimum: str) -> None:
    world = cluster(3)
    settings = (("min_insync_replicas", minimum),)
    reply = create(world, replication_factor=2, settings=settings)
    assert reply.error is ErrorCode.INVALID_CONFIG
    assert f"min_insync_replicas={minimum}: give 1 to 2" in reply.detail


def test_a_minimum_in_sync_is_not_raised_above_the_factor() -> None:
    world = cluster(3)
    create(world, replication_factor=2)

    def alter(minimum: str) -> ErrorCode:
        changes = (("min_insync_replicas", minimum),)
        request = AlterTopicRequest(name="t", changes=changes)
        decision = world.machine.decide_alter_topic(request, lambda text: tuple(text.items()))
        return world.run(decision).error

    assert alter("3") is ErrorCode.INVALID_CONFIG
    assert min_insync(world) == 1
    assert alter("2") is ErrorCode.NONE
    assert min_insync(world) == 2


def test_more_partitions_have_the_factor_of_those_there_are() -> None:
    world = cluster(3)
    create(world, partitions=2, replication_factor=2)
    world.change(1, draining=True)
    more = CreatePartitionsRequest(name="t", partitions=4)
    assert world.run(world.machine.decide_create_partitions(more)).error is ErrorCode.NONE
    assert [set(ids) for ids in replicas(world)[2:]] == [{2, 3}, {2, 3}]
    world.change(2, fenced=True)
    more = CreatePartitionsRequest(name="t", partitions=5)
    reply = world.run(world.machine.decide_create_partitions(more))
    assert reply.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert len(replicas(world)) == 4


def test_internal_topics_are_no_load() -> None:
    world = cluster(2)
    world.create((1,), (1,), (1,), name="__consumer_offsets", topic_id="b" * 32)
    create(world, partitions=2, replication_factor=1)
    assert replicas(world) == [(1,), (2,)]
