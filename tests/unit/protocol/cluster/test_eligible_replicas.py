"""Who left an ISR of fewer than ``min_insync_replicas`` has all that is committed, and may lead."""

from __future__ import annotations

import pytest
from cluster_worlds import CLUSTER_ID, TOPIC_ID, ClusterWorld

from oncelog.actors.protocol.cluster.brokers import decide_heartbeat, decide_register, fence
from oncelog.actors.protocol.cluster.cluster_records import TopicConfigured
from oncelog.actors.protocol.cluster.cluster_state import PartitionState
from oncelog.actors.protocol.cluster.elections import decide_alter_isr, elect
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.cluster.reassignment import decide_reassign
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatRequest,
    ReassignPartitionRequest,
    RegisterBrokerReply,
    RegisterBrokerRequest,
)
from oncelog.actors.protocol.messages.cluster import (
    AlterIsrRequest,
    BecomeLeaderReply,
    BecomeLeaderRequest,
)
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.model import TopicPartition

T_0 = TopicPartition("t", 0)


@pytest.fixture
def world() -> ClusterWorld:
    """Partition 0 of replicas 1, 2, 3, led by 1, all in sync and started; the minimum is 2."""
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.create((1, 2, 3))
    for broker_id in (1, 2, 3):
        world.start_replica(broker_id, T_0)
    assert partition(world).unstarted == ()
    return world


def partition(world: ClusterWorld) -> PartitionState:
    return world.machine.topics["t"].partitions[0]


def state(world: ClusterWorld) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    world.check()
    now = partition(world)
    return now.leader, now.isr, now.elr


def lose(world: ClusterWorld, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        states = world.machine.broker_states
        world.apply(fence(world.machine.topics, states, broker_id))


def beat(world: ClusterWorld, broker_id: int, *, is_silent: bool = False) -> None:
    epoch = world.machine.broker_states[broker_id].broker_epoch
    request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch)
    held = [Placement(T_0, TOPIC_ID, broker_id, 0)] if is_silent else []
    states = world.machine.broker_states
    reply = world.run(decide_heartbeat(world.machine.topics, states, request, held))
    assert reply.error is ErrorCode.NONE


def register(world: ClusterWorld, broker_id: int, directory_id: str) -> RegisterBrokerReply:
    request = RegisterBrokerRequest(
        broker_id=broker_id, directory_id=directory_id, data_dir="/d", cluster_id=CLUSTER_ID
    )
    states = world.machine.broker_states
    return world.run(decide_register(world.machine.topics, states, request, CLUSTER_ID))


def propose(world: ClusterWorld, *isr: int) -> None:
    now = partition(world)
    request = AlterIsrRequest(
        topic_partition=T_0,
        topic_id=TOPIC_ID,
        broker_id=now.leader,
        leader_epoch=now.leader_epoch,
        partition_version=now.version,
        isr=isr,
    )
    reply = world.run(decide_alter_isr(world.machine.topics, world.machine.broker_states, request))
    assert reply.error is ErrorCode.NONE


def configure(world: ClusterWorld, minimum: int) -> None:
    settings = (("min_insync_replicas", str(minimum)),)
    world.apply([TopicConfigured(topic_id=TOPIC_ID, settings=settings)])


def without_log(world: ClusterWorld, broker_id: int) -> BecomeLeaderReply:
    request = BecomeLeaderRequest(
        topic_partition=T_0,
        topic_id=TOPIC_ID,
        broker_id=broker_id,
        incarnation="anew",
        expected_epoch=partition(world).leader_epoch,
        has_log=False,
    )
    return world.run(world.machine.decide_become_leader(request))


def test_who_leaves_an_isr_of_enough_is_not_eligible(world: ClusterWorld) -> None:
    lose(world, 3)
    assert state(world) == (1, (1, 2), ())


@pytest.mark.parametrize("is_proposed", [False, True])
def test_who_leaves_an_isr_of_too_few_is_eligible_until_there_are_enough(
    world: ClusterWorld, is_proposed: bool
) -> None:
    if is_proposed:
        propose(world, 1, 2)
        propose(world, 1)
    else:
        lose(world, 3, 2)
    assert state(world) == (1, (1,), (2,))
    beat(world, 3)
    propose(world, 1, 3)
    assert state(world) == (1, (1, 3), ())


def test_one_that_is_eligible_leads_when_nobody_in_sync_can(world: ClusterWorld) -> None:
    lose(world, 3)
    propose(world, 1)
    lose(world, 1)
    assert state(world) == (2, (2,), (1,))
    lose(world, 2)
    assert state(world) == (-1, (2,), (1,))
    beat(world, 3)
    assert state(world) == (-1, (2,), (1,))
    beat(world, 1)
    assert state(world) == (1, (1,), (2,))


def test_one_that_is_eligible_leads_when_its_replica_starts(world: ClusterWorld) -> None:
    lose(world, 3)
    propose(world, 1)
    world.change(2, fenced=True)
    lose(world, 1)
    world.change(2)
    assert world.start_replica(3, T_0).leader == -1
    reply = world.start_replica(2, T_0)
    assert (reply.leader, reply.isr) == (2, (2,))
    assert state(world) == (2, (2,), (1,))


def test_a_lower_minimum_ends_eligibility_before_its_leader_hears_of_it(
    world: ClusterWorld,
) -> None:
    lose(world, 3, 2)
    configure(world, 1)
    assert state(world) == (1, (1,), ())


def test_a_higher_minimum_counts_from_the_next_election_on(world: ClusterWorld) -> None:
    """Until then its leader may go by the lower one, and commit alone."""
    configure(world, 1)
    configure(world, 2)
    lose(world, 3)
    propose(world, 1)
    assert state(world) == (1, (1,), ())
    propose(world, 1, 2)
    lose(world, 1)
    beat(world, 1)
    propose(world, 2, 1)
    propose(world, 2)
    assert state(world) == (2, (2,), (1,))


def test_one_that_has_never_started_is_not_eligible() -> None:
    """It has no log, so it would be taken for one that has lost it."""
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.create((1, 2, 3))
    world.start_replica(1, T_0)
    lose(world, 3, 2)
    assert state(world) == (1, (1,), ())


@pytest.mark.parametrize("is_led", [False, True])
def test_one_that_begins_without_a_log_is_not_eligible(world: ClusterWorld, is_led: bool) -> None:
    lose(world, 3, 2)
    if not is_led:
        lose(world, 1)
    assert partition(world).elr == (2,)
    version = partition(world).version
    assert without_log(world, 2).error is ErrorCode.NONE
    assert state(world) == (1 if is_led else -1, (1,), ())
    assert partition(world).version == version + 1
    # Once more, as its answer was lost: without a leader nobody has to hear of it.
    without_log(world, 2)
    assert partition(world).version == version + 1 + is_led


@pytest.mark.parametrize("is_back", [False, True])
def test_the_last_in_sync_may_lose_its_disk_if_another_is_eligible(
    world: ClusterWorld, is_back: bool
) -> None:
    """Whether that one is back or not, when the new disk comes."""
    lose(world, 3, 2, 1)
    assert state(world) == (-1, (1,), (2,))
    if is_back:
        world.change(2)
    assert register(world, 1, "another").error is ErrorCode.NONE
    assert state(world) == ((2 if is_back else -1), (2,), ())
    beat(world, 1)
    beat(world, 2)
    assert state(world) == (2, (2,), ())
    assert without_log(world, 1).error is ErrorCode.NONE


def test_the_last_that_can_lead_must_not_lose_its_disk(world: ClusterWorld) -> None:
    lose(world, 3, 2, 1)
    assert register(world, 2, "another").error is ErrorCode.NONE
    assert state(world) == (-1, (1,), ())
    reply = register(world, 1, "another")
    assert reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "last copy of t-0" in reply.detail


def test_of_two_that_are_silent_none_is_elected_in_turn(world: ClusterWorld) -> None:
    """The first may lack what it had, for all that is known; the other stays."""
    lose(world, 3)
    propose(world, 1)
    beat(world, 1, is_silent=True)
    assert state(world) == (2, (2,), ())
    beat(world, 2, is_silent=True)
    beat(world, 1, is_silent=True)
    assert state(world) == (2, (2,), ())


def test_who_moves_away_is_not_eligible(world: ClusterWorld) -> None:
    lose(world, 3, 2)
    request = ReassignPartitionRequest(topic_partition=T_0, replicas=(1,))
    states = world.machine.broker_states
    reply = world.run(decide_reassign(world.machine.topics, states, request))
    assert reply.error is ErrorCode.NONE
    assert state(world) == (1, (1,), (2,))
    assert partition(world).is_moving


def test_an_election_of_another_is_a_broken_rule(world: ClusterWorld) -> None:
    lose(world, 3)
    propose(world, 1)
    with pytest.raises(InvariantViolation, match="I-22: 3 is to lead"):
        world.apply([elect(world.machine.topics["t"], 0, 3)])


def raised(world: ClusterWorld) -> BecomeLeaderReply:
    """What the leader is told once the minimum is 2 that was 1 at its election."""
    configure(world, 1)
    world.apply([elect(world.machine.topics["t"], 0, 1)])
    configure(world, 2)
    told = world.machine.leadership(T_0)
    assert told is not None
    assert told.min_insync_replicas == 2
    return told


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_higher_minimum_counts_once_the_leader_has_taken_it(
    world: ClusterWorld, is_taken: bool
) -> None:
    """Until then it may commit alone, and who has left lacks that."""
    told = raised(world)
    if is_taken:
        world.run(world.machine.decide_taken(T_0, told))
    propose(world, 1)
    assert state(world) == (1, (1,), (2, 3) if is_taken else ())


def test_what_a_leader_has_taken_counts_only_while_it_is_so(world: ClusterWorld) -> None:
    told = raised(world)
    assert world.machine.decide_taken(T_0, told).records
    configure(world, 2)
    assert not world.machine.decide_taken(T_0, told).records
    told = world.machine.leadership(T_0)
    propose(world, 1, 2)
    assert not world.machine.decide_taken(T_0, told).records
    told = world.machine.leadership(T_0)
    world.apply([elect(world.machine.topics["t"], 0, 1)])
    assert not world.machine.decide_taken(T_0, told).records


def test_what_a_leader_goes_by_already_is_not_logged_again(world: ClusterWorld) -> None:
    told = raised(world)
    world.run(world.machine.decide_taken(T_0, told))
    assert not world.machine.decide_taken(T_0, world.machine.leadership(T_0)).records
