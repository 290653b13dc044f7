"""A partition moves to other brokers step by step."""

from __future__ import annotations

import pytest
from cluster_worlds import TOPIC_ID, ClusterWorld

from oncelog.actors.protocol.cluster.cluster_records import IsrChanged
from oncelog.actors.protocol.cluster.cluster_state import PartitionState
from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR
from oncelog.actors.protocol.cluster.reassignment import (
    DRAIN_MOVES_MAX,
    complete,
    decide_reassign,
    drained,
)
from oncelog.actors.protocol.messages.brokers import (
    ReassignPartitionReply,
    ReassignPartitionRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition


@pytest.fixture
def world() -> ClusterWorld:
    """Partition 0 on 1 and 2, led by 1; brokers 3 and 4 are free."""
    world = ClusterWorld()
    world.register(1, 2, 3, 4)
    world.create((1, 2))
    world.lead(1, (1, 2))
    return world


def move(
    world: ClusterWorld, *replicas: int, minimum: int = 1, number: int = 0
) -> ReassignPartitionReply:
    machine = world.machine
    request = ReassignPartitionRequest(
        topic_partition=TopicPartition("t", number), replicas=replicas
    )
    reply = world.run(
        decide_reassign(
            machine.topics,
            machine.broker_states,
            request,
            min_insync_replicas=minimum,
            host_of=lambda broker_id: 10 + broker_id,
        )
    )
    world.check()
    return reply


def sync(world: ClusterWorld, *isr: int) -> None:
    partition = world.machine.topics["t"].partitions[0]
    record = IsrChanged(
        topic_id=TOPIC_ID, partition=0, partition_version=partition.version + 1, isr=isr
    )
    world.apply([record])


def finish(world: ClusterWorld) -> PartitionState:
    topic = world.machine.topics["t"]
    world.apply(complete(topic, 0, world.machine.broker_states))
    world.check()
    return topic.partitions[0]


def test_new_replicas_are_added_before_the_old_ones_go(world: ClusterWorld) -> None:
    assert move(world, 3, 1).error is ErrorCode.NONE
    partition = finish(world)
    assert partition.replicas == (3, 1, 2)
    assert partition.hosts == (13, 0, 0)
    assert (partition.adding, partition.removing, partition.target) == ((3,), (2,), (3, 1))
    assert (partition.leader, partition.isr) == (1, (1, 2))
    sync(world, 1, 2, 3)
    partition = finish(world)
    assert partition.replicas == (3, 1)
    assert partition.hosts == (13, 0)
    assert not partition.is_moving
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 0, (1, 3))
    assert complete(world.machine.topics["t"], 0, world.machine.broker_states) == ()


def test_a_leader_that_is_removed_gives_way_in_a_new_epoch(world: ClusterWorld) -> None:
    move(world, 3, 4)
    sync(world, 1, 2, 3, 4)
    world.change(3, fenced=True)
    partition = finish(world)
    assert (partition.replicas, partition.isr) == ((3, 4), (3, 4))
    assert (partition.leader, partition.leader_epoch) == (4, 1)


def test_old_replicas_stay_while_no_new_one_can_lead(world: ClusterWorld) -> None:
    move(world, 3)
    sync(world, 1, 3)
    world.change(3, fenced=True)
    assert finish(world).replicas == (3, 1, 2)


def test_fewer_replicas_stay_once_they_are_in_sync(world: ClusterWorld) -> None:
    sync(world, 1)
    move(world, 2)
    assert finish(world).replicas == (2, 1)
    sync(world, 1, 2)
    partition = finish(world)
    assert (partition.replicas, partition.leader, partition.isr) == ((2,), 2, (2,))


def test_another_order_is_another_preferred_leader_at_once(world: ClusterWorld) -> None:
    move(world, 2, 1)
    partition = world.machine.topics["t"].partitions[0]
    assert (partition.replicas, partition.is_moving, partition.leader) == ((2, 1), False, 1)


def test_a_repeated_request_logs_nothing(world: ClusterWorld) -> None:
    for replicas in ((1, 2), ()):
        before = len(world.log)
        assert move(world, *replicas).error is ErrorCode.NONE
        assert len(world.log) == before
    move(world, 3, 4)
    before = len(world.log)
    assert move(world, 3, 4).error is ErrorCode.NONE
    assert len(world.log) == before


def test_a_second_reassignment_waits_for_the_first(world: ClusterWorld) -> None:
    move(world, 3, 4)
    reply = move(world, 1, 4)
    assert reply.error is ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert "it is being moved to [3, 4]" in reply.detail


def test_a_cancelled_reassignment_leaves_what_there_was(world: ClusterWorld) -> None:
    move(world, 3, 2)
    sync(world, 1, 2, 3)
    assert move(world).error is ErrorCode.NONE
    partition = world.machine.topics["t"].partitions[0]
    assert set(partition.replicas) == {1, 2}
    assert (partition.is_moving, partition.leader, partition.isr) == (False, 1, (1, 2))


def test_a_leader_that_was_added_gives_way_when_the_reassignment_is_cancelled(
    world: ClusterWorld,
) -> None:
    move(world, 3, 4)
    sync(world, 1, 2, 3)
    world.lead(3, (2, 3))
    assert move(world).error is ErrorCode.NONE
    partition = world.machine.topics["t"].partitions[0]
    assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 2, (2,))


def test_what_only_added_replicas_have_cannot_be_given_up(world: ClusterWorld) -> None:
    move(world, 3, 4)
    sync(world, 1, 3)
    world.lead(3, (3,))
    reply = move(world)
    assert reply.error is ErrorCode.INELIGIBLE_REPLICA
    assert "none of the replicas [1, 2]" in reply.detail


@pytest.mark.parametrize(
    ("replicas", "minimum", "error", "text"),
    [
        ((3, 3), 1, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "give each broker once"),
        ((3, 9), 1, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "[9] cannot be given, but [1, 2, 3]"),
        ((4, 1), 1, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "[4] cannot be given, but [1, 2, 3]"),
        ((3,), 2, ErrorCode.INVALID_CONFIG, "replicas=[3]: give 2 or more"),
    ],
)
def test_an_impossible_target_is_refused_with_what_may_be(
    world: ClusterWorld, replicas: tuple[int, ...], minimum: int, error: ErrorCode, text: str
) -> None:
    world.change(4, draining=True)
    reply = move(world, *replicas, minimum=minimum)
    assert reply.error is error
    assert text in reply.detail


def test_an_unknown_partition_is_refused(world: ClusterWorld) -> None:
    assert move(world, 1, number=1).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_new_replica_has_an_actor_of_its_own_unless_a_host_is_chosen(world: ClusterWorld) -> None:
    machine = world.machine
    request = ReassignPartitionRequest(topic_partition=TopicPartition("t", 0), replicas=(1, 3))
    world.run(decide_reassign(machine.topics, machine.broker_states, request))
    partition = machine.topics["t"].partitions[0]
    assert (partition.replicas, partition.hosts) == ((1, 3, 2), (OWN_ACTOR,) * 3)


# --- drained -------------------------------------------------------------------------------------


def test_partitions_move_off_a_broker_that_drains_a_few_at_a_time() -> None:
    world = ClusterWorld()
    world.register(1, 2, 3)
    count = DRAIN_MOVES_MAX + 2
    world.create(*[(1, 2)] * count, (2, 3))
    for number in range(count):
        world.lead(2, (1, 2), number)
    world.change(1, draining=True)
    machine = world.machine
    moves = drained(machine.topics, machine.broker_states)
    assert [item.replicas for item in moves] == [(2, 3)] * DRAIN_MOVES_MAX
    for item in moves[:4]:
        assert move(world, *item.replicas, number=item.topic_partition.partition).error == 0
    rest = drained(machine.topics, machine.broker_states)
    assert len(rest) == DRAIN_MOVES_MAX - 4
    assert not {item.topic_partition for item in rest} & {m.topic_partition for m in moves[:4]}


def test_what_has_nowhere_to_go_stays(world: ClusterWorld) -> None:
    world.change(3, fenced=True)
    world.change(4, fenced=True)
    world.change(1, draining=True)
    assert drained(world.machine.topics, world.machine.broker_states) == ()


def test_internal_topics_have_fewer_replicas_where_there_is_no_other_broker() -> None:
    """Those of users have not, and what still counts on a broker that is down waits for it."""
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.create((1, 2, 3), (3, 1), (3,), name=CONSUMER_OFFSETS_TOPIC, topic_id="b" * 32)
    world.create((1, 2, 3))
    world.change(3, draining=True)
    machine = world.machine
    moves = drained(machine.topics, machine.broker_states)
    assert {item.topic_partition.topic for item in moves} == {CONSUMER_OFFSETS_TOPIC}
    assert [item.replicas for item in moves] == [(1, 2), (1, 2), (2,)]
    world.change(2, fenced=True)
    moves = drained(machine.topics, machine.broker_states)
    assert [(item.topic_partition.partition, item.replicas) for item in moves] == [
        (1, (1,)),
        (2, (1,)),
    ]
    world.change(1, draining=True)
    assert drained(machine.topics, machine.broker_states) == ()


def test_a_partition_that_is_being_moved_is_not_moved_again(world: ClusterWorld) -> None:
    move(world, 1, 3)
    world.change(3, draining=True)
    assert drained(world.machine.topics, world.machine.broker_states) == ()


def test_a_leader_that_stays_is_counted_once() -> None:
    """Brokers 1 and 2 lead one partition each and hold two; the next goes to the first of them."""
    world = ClusterWorld()
    world.register(1, 2, 4)
    world.create((1, 4), (2, 1), (4,))
    world.change(4, draining=True)
    moves = drained(world.machine.topics, world.machine.broker_states)
    assert [item.replicas for item in moves] == [(1, 2), (1,)]


def test_new_leaders_are_counted_as_they_are_placed() -> None:
    """All of 1, 2 and 3 hold one replica after the first move; of these only 2 leads nothing."""
    world = ClusterWorld()
    world.register(1, 2, 3, 4)
    world.create((3, 2), (4,), (4,))
    world.change(4, draining=True)
    moves = drained(world.machine.topics, world.machine.broker_states)
    assert [item.replicas for item in moves] == [(1,), (2,)]


def test_a_move_that_could_not_end_is_not_begun(world: ClusterWorld) -> None:
    world.change(1, draining=True)
    world.change(2, fenced=True)
    assert drained(world.machine.topics, world.machine.broker_states) == ()


def test_a_replica_that_is_there_may_stay_on_a_broker_that_gets_no_new_ones(
    world: ClusterWorld,
) -> None:
    world.change(2, draining=True)
    assert move(world, 2, 3).error is ErrorCode.NONE


def test_all_replicas_of_a_partition_may_drain(world: ClusterWorld) -> None:
    world.change(1, draining=True)
    world.change(2, draining=True)
    (only,) = drained(world.machine.topics, world.machine.broker_states)
    assert only.replicas == (3, 4)
