"""A host that boots again within its session: topics that do not sync may lack their tail there."""

from __future__ import annotations

import pytest
from cluster_worlds import CLUSTER_ID, TOPIC_ID, ClusterWorld

from oncelog.actors.protocol.cluster.brokers import decide_register, fence
from oncelog.actors.protocol.cluster.cluster_records import BrokerRegistered, TopicCreated
from oncelog.actors.protocol.messages.brokers import RegisterBrokerReply, RegisterBrokerRequest
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply, BecomeLeaderRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

T_0 = TopicPartition("t", 0)


def world_of(flush: str, *replicas: int) -> ClusterWorld:
    """Partition 0, led by the first of its replicas, all in sync and started."""
    world = ClusterWorld()
    for broker_id in (1, 2, 3):
        record = BrokerRegistered(
            broker_id=broker_id,
            data_dir=f"/d{broker_id}",
            directory_id=f"directory {broker_id}",
            broker_epoch=broker_id,
            boot_id="first",
        )
        world.apply([record])
    created = TopicCreated(
        name="t", topic_id=TOPIC_ID, replicas=(replicas,), settings=(("flush", flush),)
    )
    world.apply([created])
    for broker_id in replicas:
        world.start_replica(broker_id, T_0)
    return world


@pytest.fixture
def world() -> ClusterWorld:
    return world_of("os", 1, 2, 3)


def register(world: ClusterWorld, broker_id: int, boot_id: str) -> RegisterBrokerReply:
    request = RegisterBrokerRequest(
        broker_id=broker_id,
        directory_id=f"directory {broker_id}",
        data_dir=f"/d{broker_id}",
        cluster_id=CLUSTER_ID,
        boot_id=boot_id,
    )
    states = world.machine.broker_states
    reply = world.run(decide_register(world.machine.topics, states, request, CLUSTER_ID))
    assert reply.error is ErrorCode.NONE
    return reply


def state(world: ClusterWorld) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    world.check()
    now = world.machine.topics["t"].partitions[0]
    return now.leader, now.isr, now.elr


def start(world: ClusterWorld, broker_id: int, boot_id: str) -> BecomeLeaderReply:
    request = BecomeLeaderRequest(
        topic_partition=T_0,
        topic_id=TOPIC_ID,
        broker_id=broker_id,
        incarnation=f"after {boot_id}",
        expected_epoch=world.machine.topics["t"].partitions[0].leader_epoch,
        boot_id=boot_id,
    )
    return world.run(world.machine.decide_become_leader(request))


def lose(world: ClusterWorld, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        world.apply(fence(world.machine.topics, world.machine.broker_states, broker_id))


@pytest.mark.parametrize(
    ("broker_id", "expected"), [(1, (2, (2, 3), ())), (2, (1, (1, 3), ())), (3, (1, (1, 2), ()))]
)
def test_others_lead_and_it_copies_what_it_lacks(
    world: ClusterWorld, broker_id: int, expected: tuple[int, tuple[int, ...], tuple[int, ...]]
) -> None:
    register(world, broker_id, "second")
    assert state(world) == expected
    reply = start(world, broker_id, "second")
    assert (reply.error, reply.leader) == (ErrorCode.NONE, expected[0])


@pytest.mark.parametrize("boot_id", ["first", ""])
def test_without_another_boot_nothing_has_happened(world: ClusterWorld, boot_id: str) -> None:
    register(world, 1, boot_id)
    assert state(world) == (1, (1, 2, 3), ())


def test_what_syncs_has_all_after_a_boot() -> None:
    world = world_of("sync", 1, 2, 3)
    register(world, 1, "second")
    assert state(world) == (1, (1, 2, 3), ())


def test_its_replicas_wait_until_it_has_registered(world: ClusterWorld) -> None:
    """Else one would lead, without its tail, for as long as that takes."""
    reply = start(world, 1, "second")
    assert reply.error is ErrorCode.BROKER_NOT_AVAILABLE
    assert "broker 1 has not registered since its host booted" in reply.detail
    assert state(world) == (1, (1, 2, 3), ())
    register(world, 1, "second")
    assert start(world, 1, "second").error is ErrorCode.NONE


def test_a_boot_is_news_once(world: ClusterWorld) -> None:
    register(world, 1, "second")
    before = len(world.log)
    register(world, 1, "second")
    assert len(world.log) == before


def test_the_last_in_sync_gives_way_to_one_that_is_eligible(world: ClusterWorld) -> None:
    lose(world, 3, 2)
    assert state(world) == (1, (1,), (2,))
    register(world, 1, "second")
    assert state(world) == (-1, (2,), ())


def test_one_that_is_eligible_is_not_after_a_boot(world: ClusterWorld) -> None:
    lose(world, 3, 2)
    register(world, 2, "second")
    assert state(world) == (1, (1,), ())


def test_what_only_it_can_lead_it_leads() -> None:
    """``flush="os"`` promises no more."""
    world = world_of("os", 1)
    register(world, 1, "second")
    assert state(world) == (1, (1,), ())
