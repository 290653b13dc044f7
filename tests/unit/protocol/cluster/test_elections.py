"""Who leads after what, and which changes of the ISR are accepted."""

from __future__ import annotations

import pytest
from cluster_worlds import TOPIC_ID, ClusterWorld
from msgspec import structs

from oncelog.actors.protocol.cluster.elections import (
    BALANCE_ELECTIONS_MAX,
    after_draining,
    after_fencing,
    after_new_directory,
    after_refusal,
    after_return,
    after_silence,
    after_unfencing,
    balance,
    decide_alter_isr,
    decide_elect,
)
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.brokers import ElectLeadersRequest
from oncelog.actors.protocol.messages.cluster import (
    AlterIsrReply,
    AlterIsrRequest,
    BecomeLeaderRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition


@pytest.fixture
def world() -> ClusterWorld:
    """Partition 0 of replicas 1, 2, 3, led by 1, all in sync."""
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.create((1, 2, 3))
    world.lead(1, (1, 2, 3))
    return world


def fence(world: ClusterWorld, broker_id: int) -> None:
    machine = world.machine
    records = after_fencing(machine.topics.values(), broker_id, machine.broker_states)
    world.change(broker_id, fenced=True)
    world.apply(records)
    world.check()


def unfence(world: ClusterWorld, broker_id: int) -> None:
    world.change(broker_id)
    world.apply(after_unfencing(world.machine.topics.values(), broker_id))
    world.check()


def state(world: ClusterWorld, number: int = 0) -> tuple[int, int, tuple[int, ...]]:
    partition = world.machine.topics["t"].partitions[number]
    return partition.leader, partition.leader_epoch, partition.isr


def test_the_first_live_member_of_the_isr_follows_a_fenced_leader(world: ClusterWorld) -> None:
    fence(world, 1)
    assert state(world) == (2, 1, (2, 3))


def test_a_replica_that_starts_out_of_sync_voids_what_rests_on_its_earlier_life(
    world: ClusterWorld,
) -> None:
    world.lead(1, (1, 2))
    topic = world.machine.topics["t"]
    before = topic.partitions[0].version
    assert after_return(topic, 0, 1) is None
    assert after_return(topic, 0, 2) is None
    returned = after_return(topic, 0, 3)
    assert returned is not None
    world.apply([returned])
    assert topic.partitions[0].version == before + 1
    assert state(world) == (1, 1, (1, 2))
    fence(world, 1)
    fence(world, 2)
    assert after_return(topic, 0, 3) is None


def begin_log(world: ClusterWorld, broker_id: int) -> ErrorCode:
    request = BecomeLeaderRequest(
        topic_partition=TopicPartition("t", 0),
        topic_id=TOPIC_ID,
        broker_id=broker_id,
        incarnation="i",
        expected_epoch=-1,
        has_log=False,
    )
    decided = world.machine.decide_become_leader(request)
    for record in decided.records:
        world.machine.apply(record)
    return decided.reply.error


def test_a_replica_may_begin_a_log_only_out_of_sync_and_nothing_it_said_counts(
    world: ClusterWorld,
) -> None:
    """1. It is out of sync, and its leader proposes that it joins. 2. It has lost its log. 3. It
    begins one, or the proposal is accepted: never both.
    """
    for broker_id in (2, 3):
        world.start_replica(broker_id, TopicPartition("t", 0))
    world.lead(1, (1, 2))
    proposed = {"leader_epoch": 1, "isr": (1, 2, 3)}
    topic = world.machine.topics["t"]
    version = topic.partitions[0].version
    assert begin_log(world, 3) is ErrorCode.NONE
    late = alter(world, partition_version=version, **proposed)
    assert late.error is ErrorCode.INVALID_UPDATE_VERSION
    joined = alter(world, partition_version=late.partition_version, **proposed)
    assert joined.error is ErrorCode.NONE
    for broker_id in (1, 2, 3):
        assert begin_log(world, broker_id) is ErrorCode.KAFKA_STORAGE_ERROR
    assert topic.partitions[0].version == joined.partition_version
    assert state(world)[2] == (1, 2, 3)


def test_a_replica_that_has_never_started_may_begin_a_log_though_it_is_in_sync() -> None:
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.create((1, 2, 3))
    assert begin_log(world, 2) is ErrorCode.NONE
    assert begin_log(world, 1) is ErrorCode.NONE
    assert state(world) == (-1, -1, (1, 2, 3))


def test_a_new_directory_voids_what_rests_on_the_former_one(world: ClusterWorld) -> None:
    world.lead(1, (1, 2))
    version = world.machine.topics["t"].partitions[0].version
    for broker_id, expected in ((2, ()), (3, (version + 1,)), (9, ())):
        states = world.machine.broker_states
        records = after_new_directory(world.machine.topics.values(), broker_id, states)
        assert tuple(record.partition_version for record in records) == expected


def test_nobody_outside_the_isr_is_elected(world: ClusterWorld) -> None:
    world.lead(1, (1, 3))
    fence(world, 1)
    assert state(world) == (3, 2, (3,))


def test_a_fenced_follower_leaves_the_isr_under_the_same_leader(world: ClusterWorld) -> None:
    fence(world, 2)
    assert state(world) == (1, 0, (1, 3))
    fence(world, 2)
    assert state(world) == (1, 0, (1, 3))


def test_the_last_member_stays_in_the_isr_and_leads_when_it_is_back(world: ClusterWorld) -> None:
    fence(world, 2)
    fence(world, 3)
    fence(world, 1)
    assert state(world) == (-1, 1, (1,))
    unfence(world, 2)
    unfence(world, 3)
    assert state(world) == (-1, 1, (1,))
    fence(world, 1)
    assert state(world) == (-1, 1, (1,))
    unfence(world, 1)
    assert state(world) == (1, 2, (1,))


def test_a_member_that_is_back_does_not_lead_what_another_leads(world: ClusterWorld) -> None:
    fence(world, 1)
    unfence(world, 1)
    assert state(world) == (2, 1, (2, 3))


def test_leaders_learn_by_the_version_that_a_broker_may_join_again(world: ClusterWorld) -> None:
    fence(world, 3)
    before = world.machine.topics["t"].partitions[0].version
    unfence(world, 3)
    partition = world.machine.topics["t"].partitions[0]
    assert (partition.version, partition.isr) == (before + 1, (1, 2))
    assert state(world) == (1, 0, (1, 2))


def test_a_proposal_that_was_refused_for_a_fenced_member_is_never_accepted(
    world: ClusterWorld,
) -> None:
    """Its leader does not count on that member any more."""
    fence(world, 3)
    late = {"partition_version": 2, "isr": (1, 2, 3)}
    assert alter(world, **late).error is ErrorCode.INELIGIBLE_REPLICA
    unfence(world, 3)
    assert alter(world, **late).error is ErrorCode.INVALID_UPDATE_VERSION


def test_a_member_leads_only_what_nobody_leads(world: ClusterWorld) -> None:
    assert after_unfencing(world.machine.topics.values(), 2) == ()


def test_a_member_that_is_fenced_already_is_not_elected(world: ClusterWorld) -> None:
    world.change(2, fenced=True)
    fence(world, 1)
    assert state(world) == (3, 1, (2, 3))
    world.change(1)
    world.lead(1, (1, 2))
    fence(world, 1)
    assert state(world) == (-1, 3, (2,))


def test_a_broker_that_drains_is_elected_last(world: ClusterWorld) -> None:
    world.change(2, draining=True)
    fence(world, 1)
    assert state(world) == (3, 1, (2, 3))
    fence(world, 3)
    assert state(world) == (2, 2, (2,))


# --- a replica starts ----------------------------------------------------------------------------


def start(world: ClusterWorld, broker_id: int, number: int = 0) -> tuple[int, int, tuple[int, ...]]:
    """Who leads then, as the replica is told."""
    reply = world.start_replica(broker_id, TopicPartition("t", number))
    assert reply.error is ErrorCode.NONE
    told = reply.leader, reply.leader_epoch, reply.isr
    assert told == state(world, number)
    world.check()
    return told


def test_a_leader_that_starts_again_gets_another_epoch(world: ClusterWorld) -> None:
    assert start(world, 1) == (1, 1, (1, 2, 3))
    assert start(world, 1) == (1, 2, (1, 2, 3))


def test_a_follower_that_starts_follows(world: ClusterWorld) -> None:
    """It is noted the first time: from then on it must have a log."""
    partition = world.machine.topics["t"].partitions[0]
    version = partition.version
    assert not partition.has_log(2)
    assert start(world, 2) == (1, 0, (1, 2, 3))
    assert (partition.has_log(2), partition.has_log(3), partition.version) == (
        True,
        False,
        version + 1,
    )
    before = len(world.log)
    assert start(world, 2) == (1, 0, (1, 2, 3))
    assert len(world.log) == before


def test_who_starts_leads_what_nobody_leads_if_it_is_in_sync_and_live(world: ClusterWorld) -> None:
    world.lead(-1, (2,))
    assert start(world, 1) == (-1, 1, (2,))
    world.change(2, fenced=True)
    assert start(world, 2) == (-1, 1, (2,))
    world.change(2)
    assert start(world, 2) == (2, 2, (2,))


def unled() -> ClusterWorld:
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.create((1, 2, 3))
    return world


ALL = (1, 2, 3)


def test_what_was_never_led_is_led_by_its_preferred_replica_and_all_are_in_sync() -> None:
    world = unled()
    assert start(world, 2) == (-1, -1, ALL)
    assert start(world, 3) == (-1, -1, ALL)
    assert start(world, 1) == (1, 0, ALL)
    assert start(world, 2) == (1, 0, ALL)


def test_what_was_never_led_is_led_by_another_while_the_preferred_broker_is_fenced() -> None:
    """Who is fenced at the first election is not in sync."""
    world = unled()
    fence(world, 1)
    assert start(world, 1) == (-1, -1, ALL)
    fence(world, 3)
    assert start(world, 3) == (-1, -1, ALL)
    assert start(world, 2) == (2, 0, (2,))
    unfence(world, 1)
    assert start(world, 1) == (2, 0, (2,))


def test_a_broker_that_comes_back_leads_what_was_never_led_only_once_it_has_started() -> None:
    world = unled()
    for broker_id in ALL:
        fence(world, broker_id)
    for broker_id in (3, 1):
        unfence(world, broker_id)
    assert state(world) == (-1, -1, ALL)
    assert start(world, 3) == (-1, -1, ALL)
    assert start(world, 1) == (1, 0, (1, 3))


def test_an_empty_partition_is_led_by_another_when_its_first_leader_dies_at_once() -> None:
    """Even by one that has not started: nothing was committed without it."""
    world = unled()
    assert start(world, 1) == (1, 0, ALL)
    fence(world, 1)
    assert state(world) == (2, 1, (2, 3))
    assert not world.machine.topics["t"].partitions[0].has_log(2)
    assert start(world, 2) == (2, 2, (2, 3))
    assert world.machine.topics["t"].partitions[0].has_log(2)


def test_one_that_has_started_is_elected_before_one_that_has_not() -> None:
    world = unled()
    start(world, 1)
    start(world, 3)
    fence(world, 1)
    assert state(world) == (3, 1, (2, 3))


def test_nobody_waits_for_a_preferred_leader_whose_actor_is_silent() -> None:
    """Unless all are: actors that are being started are silent for a while."""
    world = unled()
    silence(world, 1, 0)
    assert state(world) == (-1, -1, ALL)
    assert start(world, 2) == (-1, -1, ALL)
    silence(world, 1, 0)
    assert state(world) == (-1, -1, (2, 3))
    assert start(world, 2) == (2, 0, (2, 3))
    assert start(world, 1) == (2, 0, (2, 3))


def test_what_was_never_led_is_led_by_whoever_lives() -> None:
    world = unled()
    start(world, 2)
    silence(world, 1, 0)
    fence(world, 2)
    fence(world, 3)
    assert start(world, 1) == (1, 0, (1,))


def test_a_log_that_tells_of_an_isr_of_one_is_read_as_it_was() -> None:
    """Earlier versions began with the first leader alone; who joined had started."""
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.create((1, 2, 3))
    partition = world.lead(1, (1,))
    assert (partition.isr, partition.unstarted) == ((1,), ())
    assert alter(world, isr=(1, 2)).error is ErrorCode.NONE
    assert [partition.has_log(broker_id) for broker_id in ALL] == [True, True, False]
    topic = world.machine.topics["t"]
    assert world.replayed().topics["t"] == topic


def test_a_replica_whose_broker_nobody_knows_is_not_elected() -> None:
    world = ClusterWorld()
    world.register(1)
    world.create((9, 1))
    assert start(world, 9) == (-1, -1, (9, 1))
    assert start(world, 1) == (1, 0, (1,))


# --- an actor is silent --------------------------------------------------------------------------


def silence(world: ClusterWorld, broker_id: int, *numbers: int, topic_id: str = TOPIC_ID) -> None:
    held = [Placement(TopicPartition("t", number), topic_id, broker_id, 0) for number in numbers]
    machine = world.machine
    world.apply(after_silence(machine.topics.values(), held, machine.broker_states))
    world.check()


def test_others_lead_what_a_silent_actor_led_and_nothing_else() -> None:
    world = ClusterWorld()
    world.register(1, 2)
    world.create((1, 2), (1, 2), (2, 1))
    for number, leader in enumerate((1, 1, 2)):
        world.lead(leader, (1, 2), number)
    silence(world, 1, 0, 2)
    assert [state(world, number) for number in range(3)] == [
        (2, 1, (2,)),
        (1, 0, (1, 2)),
        (2, 0, (2,)),
    ]
    silence(world, 1, 0, 2)
    assert state(world) == (2, 1, (2,))


def test_a_silent_actor_keeps_what_no_other_can_lead(world: ClusterWorld) -> None:
    world.change(2, fenced=True)
    world.lead(1, (1, 2))
    silence(world, 1, 0)
    assert state(world) == (1, 1, (1, 2))
    world.lead(1, (1,))
    silence(world, 1, 0)
    assert state(world) == (1, 2, (1,))


def test_a_silent_actor_of_an_earlier_topic_says_nothing(world: ClusterWorld) -> None:
    silence(world, 1, 0, topic_id="b" * 32)
    assert state(world) == (1, 0, (1, 2, 3))
    machine = world.machine
    gone = [Placement(TopicPartition("gone", 0), TOPIC_ID, 1, 0)]
    assert after_silence(machine.topics.values(), gone, machine.broker_states) == ()


# --- a disk refuses appends ----------------------------------------------------------------------


def refuse(world: ClusterWorld, broker_id: int, *, topic_id: str = TOPIC_ID) -> None:
    """A broker tells that its disk refuses, to what it leads for too long."""
    machine = world.machine
    machine.record_refusing(broker_id, is_refusing=True)
    held = [Placement(TopicPartition("t", 0), topic_id, broker_id, 0)]
    world.apply(after_refusal(machine.topics.values(), held, machine.broker_states))
    world.check()


def test_a_leader_whose_disk_refuses_gives_way_to_one_whose_disk_does_not(
    world: ClusterWorld,
) -> None:
    world.machine.record_refusing(2, is_refusing=True)
    refuse(world, 1, topic_id="b" * 32)
    assert state(world) == (1, 0, (1, 2, 3))
    refuse(world, 1)
    assert state(world) == (3, 1, (2, 3))
    refuse(world, 1)
    assert state(world) == (3, 1, (2, 3))


def test_a_follower_whose_disk_refuses_is_for_its_leader_to_judge(world: ClusterWorld) -> None:
    refuse(world, 2)
    assert state(world) == (1, 0, (1, 2, 3))


def test_nobody_gives_way_to_one_whose_disk_refuses_too(world: ClusterWorld) -> None:
    for broker_id in (2, 3, 1):
        refuse(world, broker_id)
    assert state(world) == (1, 0, (1, 2, 3))
    world.machine.record_refusing(3, is_refusing=False)
    refuse(world, 1)
    assert state(world) == (3, 1, (2, 3))


def test_whose_disk_refuses_is_elected_only_if_nobody_else_can_be(world: ClusterWorld) -> None:
    world.machine.record_refusing(2, is_refusing=True)
    fence(world, 1)
    assert state(world) == (3, 1, (2, 3))
    fence(world, 3)
    assert state(world) == (2, 2, (2,))


def test_balance_moves_no_leader_to_a_disk_that_refuses(world: ClusterWorld) -> None:
    machine = world.machine
    world.lead(2, (1, 2, 3))
    machine.record_refusing(1, is_refusing=True)
    assert balance(machine.topics.values(), machine.broker_states) == ()
    machine.record_refusing(1, is_refusing=False)
    world.apply(balance(machine.topics.values(), machine.broker_states))
    assert state(world) == (1, 2, (1, 2, 3))


# --- leaders move --------------------------------------------------------------------------------


def test_preferred_leaders_lead_again_where_they_are_in_sync(world: ClusterWorld) -> None:
    machine = world.machine
    world.lead(2, (2, 3))
    assert balance(machine.topics.values(), machine.broker_states) == ()
    world.lead(2, (1, 2, 3))
    world.change(1, draining=True)
    assert balance(machine.topics.values(), machine.broker_states) == ()
    world.change(1)
    world.apply(balance(machine.topics.values(), machine.broker_states))
    assert state(world) == (1, 3, (1, 2, 3))
    assert balance(machine.topics.values(), machine.broker_states) == ()
    world.lead(-1, (1,))
    assert balance(machine.topics.values(), machine.broker_states) == ()


def test_one_pass_of_balancing_moves_no_more_leaders_than_the_bound() -> None:
    world = ClusterWorld()
    world.register(1, 2)
    count = BALANCE_ELECTIONS_MAX + 5
    world.create(*[(1, 2)] * count)
    for number in range(count):
        world.lead(2, (1, 2), number)
    machine = world.machine
    first = balance(machine.topics.values(), machine.broker_states)
    assert len(first) == BALANCE_ELECTIONS_MAX
    world.apply(first)
    assert len(balance(machine.topics.values(), machine.broker_states)) == 5


def test_leaders_move_off_a_broker_that_drains_if_another_may_lead(world: ClusterWorld) -> None:
    machine = world.machine
    world.change(2, draining=True)
    world.apply(after_draining(machine.topics.values(), 1, machine.broker_states))
    assert state(world) == (3, 1, (1, 2, 3))
    world.lead(1, (1, 2))
    assert after_draining(machine.topics.values(), 1, machine.broker_states) == ()


# --- alter_isr -----------------------------------------------------------------------------------

REQUEST = AlterIsrRequest(
    topic_partition=TopicPartition("t", 0),
    topic_id=TOPIC_ID,
    broker_id=1,
    leader_epoch=0,
    partition_version=1,
    isr=(1, 2),
)


def alter(world: ClusterWorld, **fields: object) -> AlterIsrReply:
    request = structs.replace(REQUEST, **fields)
    machine = world.machine
    return world.run(decide_alter_isr(machine.topics, machine.broker_states, request))


def test_a_change_that_names_what_is_current_is_recorded(world: ClusterWorld) -> None:
    reply = alter(world)
    assert reply == AlterIsrReply(
        leader_epoch=0, partition_version=2, replicas=(1, 2, 3), isr=(1, 2)
    )
    assert state(world) == (1, 0, (1, 2))
    assert alter(world, partition_version=2, isr=(1, 2, 3)).error is ErrorCode.NONE


def test_a_change_of_nothing_raises_the_version(world: ClusterWorld) -> None:
    assert alter(world, isr=(1, 2, 3)).partition_version == 2


def test_a_repeated_change_is_refused_and_told_what_there_is(world: ClusterWorld) -> None:
    alter(world)
    again = alter(world)
    assert again.error is ErrorCode.INVALID_UPDATE_VERSION
    assert (again.partition_version, again.isr) == (2, (1, 2))
    assert again.detail == "partition_version=1: it is 2"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic_partition": TopicPartition("x", 0)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_partition": TopicPartition("t", 1)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": "b" * 32}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"broker_id": 2, "isr": (1, 2)}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"partition_version": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"partition_version": 2}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"isr": ()}, ErrorCode.INVALID_REQUEST),
        ({"isr": (2, 3)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 2, 2)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 4)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_alter_isr_refuses(world: ClusterWorld, fields: dict, error: ErrorCode) -> None:
    reply = alter(world, **fields)
    assert reply.error is error
    assert state(world) == (1, 0, (1, 2, 3))


def test_a_fenced_broker_joins_no_isr_but_may_stay_in_one(world: ClusterWorld) -> None:
    world.lead(1, (1, 2))
    world.change(3, fenced=True)
    reply = alter(world, leader_epoch=1, partition_version=2, isr=(1, 2, 3))
    assert reply.error is ErrorCode.INELIGIBLE_REPLICA
    assert reply.detail == "brokers [3] are fenced"
    assert reply.ineligible == (3,)
    world.change(2, fenced=True)
    reply = alter(world, leader_epoch=1, partition_version=2, isr=(1, 2))
    assert reply.error is ErrorCode.NONE


def elected(world: ClusterWorld, *numbers: int) -> list[tuple[int, str]]:
    """Who leads the partitions of the topic after an election of all, or of these."""
    wanted = tuple(TopicPartition("t", number) for number in numbers) or None
    machine = world.machine
    decided = decide_elect(
        machine.topics, machine.broker_states, ElectLeadersRequest(topic_partitions=wanted)
    )
    for record in decided.records:
        machine.apply(record)
    return [(one.leader, one.error.name) for one in decided.reply.elections]


def test_an_operator_has_the_preferred_leader_lead_again(world: ClusterWorld) -> None:
    assert elected(world) == [(1, "NONE")]
    fence(world, 1)
    assert elected(world, 0) == [(2, "PREFERRED_LEADER_NOT_AVAILABLE")]
    unfence(world, 1)
    assert elected(world, 0) == [(2, "PREFERRED_LEADER_NOT_AVAILABLE")]  # it is not in sync yet
    world.lead(2, (1, 2, 3))
    epoch = state(world)[1]
    assert elected(world, 0, 7, 0) == [(1, "NONE"), (-1, "UNKNOWN_TOPIC_OR_PARTITION")]
    assert state(world) == (1, epoch + 1, (1, 2, 3))
    assert elected(world) == [(1, "NONE")]
    assert state(world)[1] == epoch + 1


def test_a_preferred_leader_that_drains_is_not_elected(world: ClusterWorld) -> None:
    world.lead(2, (1, 2, 3))
    world.change(1, draining=True)
    assert elected(world) == [(2, "PREFERRED_LEADER_NOT_AVAILABLE")]
