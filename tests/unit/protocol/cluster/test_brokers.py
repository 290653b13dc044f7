"""Brokers register, live, are fenced and drained."""

from __future__ import annotations

import pytest
from cluster_worlds import ClusterWorld

from oncelog.actors.protocol.cluster.brokers import (
    BrokerSessions,
    decide_drain,
    decide_heartbeat,
    decide_register,
    fence,
)
from oncelog.actors.protocol.cluster.log import BrokerRegistered
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatReply,
    BrokerHeartbeatRequest,
    DrainBrokerReply,
    DrainBrokerRequest,
    RegisterBrokerReply,
    RegisterBrokerRequest,
)
from oncelog.storage.errors import ErrorCode


@pytest.fixture
def world() -> ClusterWorld:
    world = ClusterWorld()
    world.register(1, 2, 3)
    world.create((1, 2), (2, 1))
    world.lead(1, (1, 2))
    world.lead(2, (2,), 1)
    return world


def register(world: ClusterWorld, broker_id: int, directory_id: str = "") -> RegisterBrokerReply:
    request = RegisterBrokerRequest(
        broker_id=broker_id,
        directory_id=directory_id or f"directory {broker_id}",
        data_dir="/new",
        rack="r",
    )
    machine = world.machine
    return world.run(decide_register(machine.topics, machine.broker_states, request))


def beat(world: ClusterWorld, broker_id: int, broker_epoch: int) -> BrokerHeartbeatReply:
    request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=broker_epoch)
    machine = world.machine
    return world.run(decide_heartbeat(machine.topics, machine.broker_states, request))


def drain(world: ClusterWorld, broker_id: int, draining: bool = True) -> DrainBrokerReply:
    request = DrainBrokerRequest(broker_id=broker_id, is_draining=draining)
    machine = world.machine
    return world.run(decide_drain(machine.topics, machine.broker_states, request))


def leaders(world: ClusterWorld) -> list[int]:
    return [partition.leader for partition in world.machine.topics["t"].partitions]


def test_a_new_broker_is_fenced_until_its_first_heartbeat(world: ClusterWorld) -> None:
    epoch = register(world, 4).broker_epoch
    broker = world.machine.broker_states[4]
    assert (epoch, broker.rack, broker.data_dir, broker.is_fenced) == (4, "r", "/new", True)
    assert beat(world, 4, epoch).error is ErrorCode.NONE
    assert not broker.is_fenced


def test_a_broker_that_starts_again_gets_a_newer_epoch_and_leads_what_only_it_can(
    world: ClusterWorld,
) -> None:
    epoch = register(world, 2).broker_epoch
    assert epoch == 4
    assert leaders(world) == [1, -1]
    assert world.machine.topics["t"].partitions[0].isr == (1,)
    world.check()
    assert beat(world, 2, epoch).error is ErrorCode.NONE
    assert leaders(world) == [1, 2]
    world.check()


def test_a_broker_of_an_old_record_takes_the_first_directory_id_it_is_given() -> None:
    world = ClusterWorld()
    world.apply([BrokerRegistered(broker_id=1, data_dir="/d")])
    world.create((1,))
    world.lead(1, (1,))
    assert register(world, 1, "x").error is ErrorCode.NONE
    assert world.machine.broker_states[1].directory_id == "x"


def test_another_directory_cannot_take_the_number_of_a_live_broker(world: ClusterWorld) -> None:
    reply = register(world, 3, "another")
    assert reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert reply.detail == "broker 3 has the directory '/d3' and is not fenced"


def test_another_directory_cannot_take_a_number_while_the_first_has_a_last_copy(
    world: ClusterWorld,
) -> None:
    world.apply(fence(world.machine.topics, world.machine.broker_states, 2))
    reply = register(world, 2, "another")
    assert reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "which has the last copy of t-1" in reply.detail


def test_a_new_disk_is_taken_once_nothing_counts_on_the_old_one(world: ClusterWorld) -> None:
    world.lead(1, (1,), 1)
    world.apply(fence(world.machine.topics, world.machine.broker_states, 2))
    assert register(world, 2, "another").error is ErrorCode.NONE
    assert world.machine.broker_states[2].directory_id == "another"


def test_a_broker_needs_a_directory_id(world: ClusterWorld) -> None:
    request = RegisterBrokerRequest(broker_id=4, directory_id="", data_dir="/d")
    decision = decide_register({}, world.machine.broker_states, request)
    assert decision.reply.error is ErrorCode.INVALID_REQUEST
    assert decision.records == ()


def test_heartbeats_of_strangers_and_of_earlier_starts_are_refused(world: ClusterWorld) -> None:
    assert beat(world, 9, 0).error is ErrorCode.BROKER_NOT_AVAILABLE
    reply = beat(world, 1, 0)
    assert (reply.error, reply.detail) == (ErrorCode.STALE_BROKER_EPOCH, "broker_epoch=0: it is 1")


def test_a_heartbeat_of_a_live_broker_logs_nothing(world: ClusterWorld) -> None:
    before = len(world.log)
    assert beat(world, 1, 1).error is ErrorCode.NONE
    assert len(world.log) == before


def test_a_session_ends_when_nothing_was_heard_for_its_length(world: ClusterWorld) -> None:
    brokers = world.machine.broker_states
    sessions = BrokerSessions(brokers, session_ms=9_000, now_ms=1_000)
    sessions.heard(1, 5_000)
    sessions.heard(1, 4_000)
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


def test_no_broker_is_drained_that_a_topic_needs(world: ClusterWorld) -> None:
    world.change(3, fenced=True)
    reply = drain(world, 1)
    assert reply.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reply.detail == (
        "broker 1 cannot be drained: topic 't' has 2 replicas, and 1 brokers would be left for them"
    )
    assert drain(world, 9).error is ErrorCode.BROKER_NOT_AVAILABLE
