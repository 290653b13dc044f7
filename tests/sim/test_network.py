"""Calls in the simulated world: what ``Transport`` promises, faults, and gates."""

from __future__ import annotations

import pytest
import sim_wire
from sim_network import NetworkFaults
from sim_world import World

from oncelog.actors.protocol.messages.cluster import MetadataReply, MetadataRequest
from oncelog.actors.protocol.messages.partition import (
    DescribeReplicaRequest,
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import parse_header
from oncelog.storage.records.codec import decode_records, encode_records

FLIGHTS = TopicPartition("flights", 0)
LEADER = "partition:flights-0@1"


@pytest.fixture
def world():
    with World(seed=2) as world:
        yield world


def call(world, request, actor=LEADER, timeout_ms=1_000):
    """The task of a call by the world itself."""
    return world.driver.spawn(world.driver.transport.call(actor, request, timeout_ms=timeout_ms))


def produce():
    batch = bytes(encode_records([(None, b"v", 0, ())]))
    return ProduceRequest(topic_partition=FLIGHTS, batch=batch)


def log_end(world):
    return world.replicas()[LEADER].machine.log_end_offset


# --- what a transport promises ----------------------------------------------------------------


def test_a_call_is_answered(world):
    reply = world.run(call(world, DescribeReplicaRequest()))
    assert (reply.topic_partition, reply.is_leader) == (FLIGHTS, True)


def test_a_name_that_nobody_has_is_a_network_error(world):
    reply = world.run(call(world, DescribeReplicaRequest(), "partition:none-0@1"))
    assert reply.error is ErrorCode.NETWORK_EXCEPTION


def test_an_actor_that_is_dead_is_a_network_error(world):
    world.kill(LEADER)
    assert world.run(call(world, produce())).error is ErrorCode.NETWORK_EXCEPTION


def test_an_actor_that_dies_during_the_call_is_a_network_error_though_it_ran(world):
    world.hold_disk(LEADER)
    waiting = call(world, produce(), timeout_ms=60_000)
    world.run_for(0.01)
    world.kill(LEADER)
    assert world.run(waiting, limit_s=1).error is ErrorCode.NETWORK_EXCEPTION
    world.quiesce()
    assert log_end(world) == 1


def test_a_method_that_there_is_not_is_refused(world):
    reply = world.run(call(world, MetadataRequest()))
    assert reply.error is ErrorCode.INVALID_REQUEST
    assert "metadata" in reply.detail


def test_a_call_that_is_given_up_on_still_runs(world):
    world.network.faults = NetworkFaults(delay=1.0, delay_ms=(2_000, 2_001))
    reply = world.run(call(world, produce(), timeout_ms=1_000))
    assert reply.error is ErrorCode.REQUEST_TIMED_OUT
    assert log_end(world) == 0
    world.run_for(2)
    assert log_end(world) == 1


def test_a_caller_that_is_cancelled_does_not_take_its_call_back(world):
    task = call(world, produce())
    world.loop.call_soon(task.cancel, context=world.driver.context)
    world.run_for(1)
    assert task.cancelled()
    assert log_end(world) == 1


def test_nothing_is_shared_between_caller_and_callee(world):
    kept = []

    async def keep(request):
        kept.append(request)
        return MetadataReply()

    world.server("controller").metadata = keep
    request = MetadataRequest(topics=("flights",))
    reply = world.run(call(world, request, "controller"))
    assert kept == [request]
    assert kept[0] is not request
    assert isinstance(reply, MetadataReply)


def test_calls_overtake_each_other(world):
    arrived = []
    world.network.watchers.append(
        lambda exchange, _, is_reply: is_reply or arrived.append(exchange.number)
    )
    for task in [call(world, DescribeReplicaRequest()) for _ in range(20)]:
        world.run(task)
    assert sorted(arrived) != arrived
    assert len(arrived) == 20


# --- faults -----------------------------------------------------------------------------------


def test_a_request_that_is_lost_never_runs(world):
    world.network.faults = NetworkFaults(drop_request=1.0)
    codes = {world.run(call(world, produce())).error for _ in range(20)}
    world.run_for(60)
    assert codes == {ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT}
    assert log_end(world) == 0
    assert world.counts["drop_request"] == 20


def test_a_reply_that_is_lost_leaves_the_effect(world):
    world.network.faults = NetworkFaults(drop_reply=1.0)
    codes = {world.run(call(world, produce())).error for _ in range(20)}
    assert codes == {ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT}
    assert log_end(world) == 20


def test_a_repeated_request_runs_twice(world):
    world.network.faults = NetworkFaults(duplicate=1.0, delay_ms=(1_000, 2_000))
    assert world.run(call(world, produce())).error is ErrorCode.NONE
    assert log_end(world) == 1
    world.run_for(3)
    assert log_end(world) == 2


def test_a_connection_that_breaks_hides_what_the_call_does(world):
    rule = NetworkFaults(break_off=1.0, delay=1.0, delay_ms=(100, 200))
    world.network.set_faults(rule, method="produce", callee="partition:*")
    assert world.run(call(world, produce())).error is ErrorCode.NETWORK_EXCEPTION
    assert log_end(world) == 0
    world.run_for(1)
    assert log_end(world) == 1


def test_rules_hold_for_what_they_name_until_they_are_healed(world):
    world.network.partition("world", "partition:*")
    assert world.run(call(world, produce())).error is not ErrorCode.NONE
    other = call(world, MetadataRequest(), "controller")
    assert world.run(other).error is ErrorCode.NONE
    world.network.heal()
    assert world.run(call(world, produce())).error is ErrorCode.NONE


def test_a_late_call_reaches_the_next_life_of_its_actor(world):
    world.network.faults = NetworkFaults(delay=1.0, delay_ms=(30_000, 30_001))
    call(world, produce())
    world.run_for(0)
    world.network.heal()
    world.kill(LEADER)
    world.run_for(29)
    assert (world.actor(LEADER).incarnation, log_end(world)) == (2, 0)
    world.run_for(2)
    assert log_end(world) == 1


# --- gates ------------------------------------------------------------------------------------


def test_a_gate_holds_a_request_until_it_is_released(world):
    gate = world.network.hold("produce", caller="world", callee=LEADER)
    waiting = call(world, produce(), timeout_ms=60_000)
    world.run(gate.wait_held())
    world.run_for(10)
    assert (log_end(world), waiting.done()) == (0, False)
    gate.release()
    assert world.run(waiting).error is ErrorCode.NONE


def test_a_held_reply_leaves_the_effect(world):
    gate = world.network.hold("produce", reply=True, when=lambda reply: reply.base_offset == 0)
    waiting = call(world, produce(), timeout_ms=60_000)
    world.run(gate.wait_held())
    assert (log_end(world), waiting.done()) == (1, False)
    assert world.run(call(world, produce())).base_offset == 1
    gate.release_all()
    assert world.run(waiting).base_offset == 0


def test_a_held_request_can_be_repeated_dropped_and_sent_after_its_caller_gave_up(world):
    gate = world.network.hold("produce")
    replies = [call(world, produce()) for _ in range(2)]
    world.run(gate.wait_held(2))
    gate.release(0, times=2, keep=True)
    world.run_for(0.1)
    assert log_end(world) == 2
    gate.drop(1)
    codes = {world.run(reply).error for reply in replies}
    assert codes == {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT}
    gate.release(0)
    world.run_for(1)
    assert log_end(world) == 3
    assert gate.held == []


def test_a_gate_can_leave_the_first_ones_alone_and_end_after_some(world):
    gate = world.network.hold("produce", skip=1, limit=2)
    replies = [call(world, produce(), timeout_ms=60_000) for _ in range(4)]
    world.run(gate.wait_held(2))
    world.run_for(10)
    assert sum(reply.done() for reply in replies) == 2
    assert len(gate.held) == 2


def test_healing_opens_every_gate(world):
    gate = world.network.hold("produce")
    waiting = call(world, produce(), timeout_ms=60_000)
    world.run(gate.wait_held())
    world.heal()
    assert world.run(waiting).error is ErrorCode.NONE
    assert world.run(call(world, produce())).error is ErrorCode.NONE


# --- bytes ------------------------------------------------------------------------------------


def test_messages_that_come_torn_and_together_are_read_whole(world, monkeypatch):
    monkeypatch.setattr(sim_wire, "TORN", 1.0)
    replies = [call(world, DescribeReplicaRequest()) for _ in range(50)]
    assert {world.run(reply).topic_partition for reply in replies} == {FLIGHTS}


@pytest.mark.parametrize("torn", [0.0, 1.0])
def test_a_message_longer_than_a_buffer_is_read_whole(world, monkeypatch, torn):
    monkeypatch.setattr(sim_wire, "TORN", torn)
    value = b"".join(bytes([number % 251]) * 1_000 for number in range(300))
    batch = bytes(encode_records([(None, value, 0, ())]))
    assert world.run(call(world, ProduceRequest(topic_partition=FLIGHTS, batch=batch))).error == 0
    fetch = FetchRequest(topic_partition=FLIGHTS, fetch_offset=0, max_bytes=1_000_000)
    found = world.run(call(world, fetch)).records
    assert [record.value for record in decode_records(found, parse_header(found), 0)] == [value]


def test_a_message_that_the_codec_refuses_is_answered_as_in_production(world):
    odd = ListOffsetsRequest(topic_partition=FLIGHTS, timestamp_ms=1 << 70)
    assert world.run(call(world, odd)).error is ErrorCode.INVALID_REQUEST
