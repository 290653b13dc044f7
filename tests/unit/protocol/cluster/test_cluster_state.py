"""Records applied to brokers and partitions; an impossible one stops the controller."""

from __future__ import annotations

import pytest
from cluster_worlds import TOPIC_ID, ClusterWorld

from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerChanged,
    BrokerRegistered,
    ClusterRecord,
    IsrChanged,
    ReplicasChanged,
    TopicDeleted,
)
from oncelog.storage.errors import InvariantViolation


@pytest.fixture
def world() -> ClusterWorld:
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.create((1, 2, 3))
    world.lead(1, (1, 2))
    return world


def isr(members: tuple[int, ...], version: int = 2) -> IsrChanged:
    return IsrChanged(topic_id=TOPIC_ID, partition=0, partition_version=version, isr=members)


def replicas(ids: tuple[int, ...], members: tuple[int, ...]) -> ReplicasChanged:
    return ReplicasChanged(
        topic_id=TOPIC_ID,
        partition=0,
        partition_version=2,
        replicas=ids,
        hosts=(0,) * len(ids),
        isr=members,
    )


def test_each_record_of_a_partition_raises_its_version(world: ClusterWorld) -> None:
    partition = world.machine.topics["t"].partitions[0]
    assert partition.version == 1
    world.apply([isr((1, 2, 3))])
    assert (partition.version, partition.isr) == (2, (1, 2, 3))
    world.lead(2, (2,))
    assert (partition.version, partition.leader, partition.isr) == (3, 2, (2,))


@pytest.mark.parametrize(
    "record",
    [
        isr((1, 2), version=1),
        isr((1, 2), version=3),
        isr((2, 3)),
        isr((1, 4)),
        replicas((1, 2, 2), (1, 2)),
        replicas((2, 3), (2,)),
        replicas((1, 3), (1, 2)),
    ],
)
def test_an_impossible_record_is_a_broken_invariant(
    world: ClusterWorld, record: ClusterRecord
) -> None:
    with pytest.raises(InvariantViolation, match="I-22"):
        world.apply([record])


@pytest.mark.parametrize(("leader", "members"), [(3, (1, 2)), (4, (4, 1))])
def test_a_leader_is_one_of_the_isr_and_the_replicas(
    world: ClusterWorld, leader: int, members: tuple[int, ...]
) -> None:
    with pytest.raises(InvariantViolation, match="I-22"):
        world.lead(leader, members)


def test_a_partition_may_have_no_leader(world: ClusterWorld) -> None:
    partition = world.lead(-1, (1,))
    assert (partition.leader, partition.leader_epoch, partition.isr) == (-1, 1, (1,))


def test_a_record_of_a_deleted_topic_changes_nothing(world: ClusterWorld) -> None:
    world.apply([TopicDeleted(topic_id=TOPIC_ID), isr((1,))])
    assert not world.machine.topics


def test_a_record_about_an_earlier_registration_changes_nothing(world: ClusterWorld) -> None:
    world.apply([BrokerChanged(broker_id=1, broker_epoch=0, is_fenced=True, is_draining=True)])
    broker = world.machine.broker_states[1]
    assert (broker.is_fenced, broker.is_draining) == (False, False)


def test_a_drain_outlasts_a_start_of_the_broker(world: ClusterWorld) -> None:
    world.change(1, draining=True)
    world.apply([BrokerRegistered(broker_id=1, data_dir="/d", broker_epoch=9)])
    assert world.machine.broker_states[1].is_draining
