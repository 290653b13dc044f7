"""Brokers register, live, are fenced and drained."""

from __future__ import annotations

import pytest
from cluster_worlds import CLUSTER_ID, TOPIC_ID, ClusterWorld
from msgspec import structs

from oncelog.actors.protocol.cluster.brokers import (
    BrokerSessions,
    decide_drain,
    decide_heartbeat,
    decide_register,
    fence,
)
from oncelog.actors.protocol.cluster.cluster_records import BrokerRegistered, TopicDeleted
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatReply,
    BrokerHeartbeatRequest,
    Disk,
    DrainBrokerReply,
    DrainBrokerRequest,
    RegisterBrokerReply,
    RegisterBrokerRequest,
)
from oncelog.actors.protocol.messages.cluster import BecomeLeaderRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition


@pytest.fixture
def world() -> ClusterWorld:
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.create((1, 2), (2, 1))
    world.lead(1, (1, 2))
    world.lead(2, (2,), 1)
    return world


def register(
    world: ClusterWorld, broker_id: int, directory_id: str | None = None, **fields: str | int
) -> RegisterBrokerReply:
    request = RegisterBrokerRequest(
        broker_id=broker_id,
        directory_id=f"directory {broker_id}" if directory_id is None else directory_id,
        data_dir=f"/d{broker_id}",
        cluster_id=CLUSTER_ID,
    )
    machine, request = world.machine, structs.replace(request, **fields)
    return world.run(decide_register(machine.topics, machine.broker_states, request, CLUSTER_ID))


def beat(
    world: ClusterWorld,
    broker_id: int,
    broker_epoch: int,
    silent: tuple[Placement, ...] = (),
    *,
    is_kept: bool = False,
) -> BrokerHeartbeatReply:
    request = BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=broker_epoch, is_kept=is_kept
    )
    machine = world.machine
    return world.run(decide_heartbeat(machine.topics, machine.broker_states, request, silent))


def test_a_fenced_broker_that_no_answer_reaches_stays_fenced(world: ClusterWorld) -> None:
    """It may be heard all the same: what it leads would acknowledge nothing."""
    lose(world, 2)
    request = BrokerHeartbeatRequest(broker_id=2, broker_epoch=2, unanswered_ms=60_000)
    machine = world.machine
    before = len(world.log)
    reply = world.run(
        decide_heartbeat(machine.topics, machine.broker_states, request, is_reached=False)
    )
    assert reply.error is ErrorCode.NONE
    assert machine.broker_states[2].is_fenced
    assert len(world.log) == before


def lose(world: ClusterWorld, broker_id: int) -> None:
    world.apply(fence(world.machine.topics, world.machine.broker_states, broker_id))


def drain(world: ClusterWorld, broker_id: int, draining: bool = True) -> DrainBrokerReply:
    request = DrainBrokerRequest(broker_id=broker_id, is_draining=draining)
    machine = world.machine
    return world.run(decide_drain(machine.topics, machine.broker_states, request))


def leaders(world: ClusterWorld) -> list[int]:
    return [partition.leader for partition in world.machine.topics["t"].partitions]


def test_a_new_broker_is_fenced_until_its_first_heartbeat(world: ClusterWorld) -> None:
    epoch = register(world, 4, rack="r").broker_epoch
    broker = world.machine.broker_states[4]
    assert (epoch, broker.rack, broker.data_dir, broker.is_fenced) == (4, "r", "/d4", True)
    assert beat(world, 4, epoch).error is ErrorCode.NONE
    assert not broker.is_fenced


def test_a_broker_that_was_fenced_gets_a_newer_epoch_and_leads_what_only_it_can(
    world: ClusterWorld,
) -> None:
    lose(world, 2)
    epoch = register(world, 2).broker_epoch
    assert epoch == 4
    assert world.machine.broker_states[2].is_fenced
    assert leaders(world) == [1, -1]
    assert world.machine.topics["t"].partitions[0].isr == (1,)
    assert beat(world, 2, 2).error is ErrorCode.STALE_BROKER_EPOCH
    assert beat(world, 2, epoch).error is ErrorCode.NONE
    assert leaders(world) == [1, 2]
    world.check()


def test_an_actor_that_registers_a_broker_again_while_it_lives_changes_nothing(
    world: ClusterWorld,
) -> None:
    """Its replicas are in other actors, which serve on."""
    before = len(world.log)
    assert register(world, 2) == RegisterBrokerReply(broker_epoch=2)
    assert len(world.log) == before
    assert leaders(world) == [1, 2]


@pytest.mark.parametrize("changes", [{"rack": "r2"}, {"data_dir": "/elsewhere"}])
def test_another_rack_or_path_is_followed_and_fences_nobody(
    world: ClusterWorld, changes: dict[str, str]
) -> None:
    epoch = register(world, 2, **changes).broker_epoch
    broker = world.machine.broker_states[2]
    assert (epoch, broker.broker_epoch, broker.is_fenced) == (4, 4, False)
    assert {"rack": broker.rack, "data_dir": broker.data_dir}.items() >= changes.items()
    assert leaders(world) == [1, 2]
    assert world.machine.topics["t"].partitions[0].isr == (1, 2)


def test_a_broker_of_an_old_record_takes_the_first_directory_id_it_is_given() -> None:
    world = ClusterWorld()
    world.apply([BrokerRegistered(broker_id=1, data_dir="/d")])
    world.create((1,))
    world.lead(1, (1,))
    assert register(world, 1, "x").error is ErrorCode.NONE
    broker = world.machine.broker_states[1]
    assert (broker.directory_id, broker.is_fenced) == ("x", True)
    assert leaders(world) == [-1]
    assert beat(world, 1, broker.broker_epoch).error is ErrorCode.NONE
    assert leaders(world) == [1]
    assert register(world, 1, "y").error is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_another_directory_cannot_take_the_number_of_a_live_broker(world: ClusterWorld) -> None:
    reply = register(world, 3, "another")
    assert reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    for words in ("broker 3", "directory 3", "'/d3'", "another", "The first is not fenced"):
        assert words in reply.detail
    assert world.machine.broker_states[3].directory_id == "directory 3"


def test_another_directory_cannot_take_a_number_while_the_first_has_a_last_copy(
    world: ClusterWorld,
) -> None:
    lose(world, 2)
    reply = register(world, 2, "another")
    assert reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "The first has the last copy of t-1" in reply.detail


def test_a_new_disk_is_taken_once_nothing_counts_on_the_old_one(world: ClusterWorld) -> None:
    world.lead(1, (1,), 1)
    lose(world, 2)
    assert register(world, 2, "another").error is ErrorCode.NONE
    broker = world.machine.broker_states[2]
    assert (broker.directory_id, broker.is_fenced) == ("another", True)


def test_a_new_disk_is_taken_for_one_that_was_lost_before_the_first_record() -> None:
    """All replicas begin in sync, so the others lead on; and nothing counts on one never begun."""
    world = ClusterWorld()
    world.register(1, 2)
    world.create((1, 2), (1,))
    world.start_replica(1, TopicPartition("t", 0))
    lose(world, 1)
    assert register(world, 1, "another").error is ErrorCode.NONE
    partition = world.machine.topics["t"].partitions[0]
    assert (partition.leader, partition.isr) == (2, (2,))
    assert not partition.has_log(1)


@pytest.mark.parametrize("changes", [{"directory_id": ""}, {"cluster_id": "e" * 32}])
def test_a_broker_needs_a_directory_of_this_cluster(
    world: ClusterWorld, changes: dict[str, str]
) -> None:
    before = len(world.log)
    reply = register(world, 4, **changes)
    assert reply.error is ErrorCode.INVALID_REQUEST
    for words in ("broker 4", CLUSTER_ID, *map(repr, changes.values())):
        assert words in reply.detail
    assert len(world.log) == before


def test_heartbeats_of_strangers_and_of_earlier_starts_are_refused(world: ClusterWorld) -> None:
    assert beat(world, 9, 0).error is ErrorCode.BROKER_NOT_AVAILABLE
    reply = beat(world, 1, 0)
    assert (reply.error, reply.detail) == (ErrorCode.STALE_BROKER_EPOCH, "broker_epoch=0: it is 1")


def test_a_heartbeat_of_a_live_broker_logs_nothing(world: ClusterWorld) -> None:
    before = len(world.log)
    assert beat(world, 1, 1).error is ErrorCode.NONE
    assert len(world.log) == before


def test_others_lead_what_the_silent_actors_of_a_live_broker_led(world: ClusterWorld) -> None:
    held = tuple(Placement(TopicPartition("t", number), TOPIC_ID, 1, 0) for number in (0, 1))
    assert beat(world, 1, 1, held[1:]).error is ErrorCode.NONE
    assert leaders(world) == [1, 2]
    assert beat(world, 1, 0, held).error is ErrorCode.STALE_BROKER_EPOCH
    assert leaders(world) == [1, 2]
    assert beat(world, 1, 1, held).error is ErrorCode.NONE
    assert leaders(world) == [2, 2]
    assert world.machine.topics["t"].partitions[0].isr == (2,)
    assert not world.machine.broker_states[1].is_fenced
    world.check()


def test_a_session_ends_when_nothing_was_heard_for_its_length(world: ClusterWorld) -> None:
    brokers = world.machine.broker_states
    sessions = BrokerSessions(brokers, session_ms=9_000, now_ms=1_000)
    sessions.record_contact(1, 5_000)
    sessions.record_contact(1, 4_000)
    assert sessions.expired(brokers, 9_999) == ()
    assert sessions.wake_ms(brokers, 9_999) == 10_000
    assert sessions.expired(brokers, 10_000) == (2, 3)
    for broker_id in (2, 3):
        world.apply(fence(world.machine.topics, brokers, broker_id))
    assert sessions.expired(brokers, 13_999) == ()
    assert sessions.wake_ms(brokers, 13_999) == 14_000
    assert sessions.expired(brokers, 14_000) == (1,)
    world.apply(fence(world.machine.topics, brokers, 1))
    assert sessions.wake_ms(brokers, 14_000) is None
    world.check()


def test_a_broker_that_sessions_learn_of_late_has_a_whole_one(world: ClusterWorld) -> None:
    brokers = world.machine.broker_states
    sessions = BrokerSessions({}, session_ms=9_000, now_ms=0)
    assert sessions.expired(brokers, 50_000) == ()
    assert sessions.expired(brokers, 59_000) == (1, 2, 3)


def test_leaders_move_off_a_broker_that_drains(world: ClusterWorld) -> None:
    assert drain(world, 1).error is ErrorCode.NONE
    assert leaders(world) == [2, 2]
    assert world.machine.broker_states[1].is_draining
    before = len(world.log)
    assert drain(world, 1).error is ErrorCode.NONE
    assert len(world.log) == before
    assert drain(world, 1, False).error is ErrorCode.NONE
    assert not world.machine.broker_states[1].is_draining


def test_internal_topics_keep_a_broker_from_draining_only_if_it_is_the_last(
    world: ClusterWorld,
) -> None:
    world.create((1, 2, 3), name=CONSUMER_OFFSETS_TOPIC, topic_id="b" * 32)
    assert drain(world, 3).error is ErrorCode.NONE
    world.apply([TopicDeleted(topic_id=TOPIC_ID)])
    assert drain(world, 2).error is ErrorCode.NONE
    reply = drain(world, 1)
    assert reply.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert f"{CONSUMER_OFFSETS_TOPIC!r} has 3 replicas, and 0 brokers would be left" in reply.detail


def test_no_broker_is_drained_that_a_topic_needs(world: ClusterWorld) -> None:
    world.change(3, fenced=True)
    reply = drain(world, 1)
    assert reply.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reply.detail == (
        "broker 1 cannot be drained: topic 't' has 2 replicas, and 1 brokers would be left for them"
    )
    assert drain(world, 9).error is ErrorCode.BROKER_NOT_AVAILABLE


def test_a_broker_whose_epoch_is_on_its_disk_gets_another_with_each_start(
    world: ClusterWorld,
) -> None:
    first = register(world, 2).broker_epoch
    for _ in range(2):  # Until it is written down a repeated call changes nothing.
        assert register(world, 2).broker_epoch == first
    before = len(world.log)
    for _ in range(2):
        beat(world, 2, first, is_kept=True)
    assert len(world.log) == before + 1
    broker = world.machine.broker_states[2]
    assert (broker.disk_epoch, broker.is_fenced) == (first, False)
    second = register(world, 2, directory_epoch=first).broker_epoch
    assert second > first
    assert world.machine.broker_states[2].disk == Disk(
        directory_id="directory 2", broker_epoch=first
    )
    assert leaders(world) == [1, 2]


def test_an_older_copy_of_a_directory_is_another_one(world: ClusterWorld) -> None:
    """1. A copy is made of a disk. 2. Its broker starts again. 3. It has the old copy back."""
    first = register(world, 3).broker_epoch
    beat(world, 3, first, is_kept=True)
    second = register(world, 3, directory_epoch=first).broker_epoch
    beat(world, 3, second, is_kept=True)
    for what in ("not fenced", "fenced"):
        reply = register(world, 3, directory_epoch=first)
        is_refused = reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert is_refused is (what == "not fenced")
        if is_refused:
            assert "older copy" in reply.detail
            lose(world, 3)
    assert world.machine.broker_states[3].disk_epoch == first


def test_an_older_copy_is_refused_where_the_newer_one_has_the_last_of_a_partition(
    world: ClusterWorld,
) -> None:
    first = register(world, 2).broker_epoch
    beat(world, 2, first, is_kept=True)
    beat(world, 2, register(world, 2, directory_epoch=first).broker_epoch, is_kept=True)
    lose(world, 2)
    reply = register(world, 2, directory_epoch=first)
    assert reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "last copy of t-1" in reply.detail
    assert register(world, 2, directory_epoch=first + 10).error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("found", "may_be"),
    [
        (Disk(directory_id="a", broker_epoch=7), True),
        (Disk(directory_id="a", broker_epoch=8), True),
        (Disk(directory_id="a", broker_epoch=6), False),
        (Disk(directory_id="a"), False),
        (Disk(directory_id="b", broker_epoch=7), False),
        (Disk(), True),
    ],
)
def test_which_disk_may_be_the_one_that_is_known(found: Disk, may_be: bool) -> None:
    assert found.may_be(Disk(directory_id="a", broker_epoch=7)) is may_be
    assert found.may_be(Disk())


def test_a_replica_on_another_disk_than_its_brokers_has_no_role(world: ClusterWorld) -> None:
    epoch = register(world, 2).broker_epoch
    beat(world, 2, epoch, is_kept=True)
    before = len(world.log)
    for disk, error in (
        (Disk(directory_id="directory 2", broker_epoch=epoch - 1), ErrorCode.KAFKA_STORAGE_ERROR),
        (Disk(directory_id="another", broker_epoch=epoch), ErrorCode.KAFKA_STORAGE_ERROR),
        (Disk(directory_id="directory 2", broker_epoch=epoch), ErrorCode.NONE),
    ):
        request = BecomeLeaderRequest(
            topic_partition=TopicPartition("t", 1),
            topic_id=TOPIC_ID,
            broker_id=2,
            incarnation="i",
            expected_epoch=0,
            disk=disk,
        )
        reply = world.run(world.machine.decide_become_leader(request))
        assert reply.error is error
        assert (len(world.log) > before) is (error is ErrorCode.NONE)
