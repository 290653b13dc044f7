"""Brokers register and send heartbeats; silent ones are fenced, silent actors lead no more."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from cluster_worlds import CLUSTER_ID, TOPIC_ID, ClusterWorld
from msgspec import structs
from virtual_time import run_virtually

from oncelog.actors.config import ClusterConfig
from oncelog.actors.controller.broker_membership import BrokerMembership, BrokerNode
from oncelog.actors.interfaces import holder_of
from oncelog.actors.protocol.cluster.cluster_records import TopicCreated
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatRequest,
    OfflineReplica,
    PingReply,
    PingRequest,
    RegisterBrokerRequest,
)
from oncelog.actors.protocol.messages.cluster import BecomeLeaderRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

CONFIG = ClusterConfig(broker_session_timeout_ms=9_000, broker_heartbeat_interval_ms=1_000)
ALONE, HOSTED = TopicPartition("t", 0), TopicPartition("t", 1)
SESSION_S = CONFIG.broker_session_timeout_ms / 1000


class Members:
    """The controller on broker 1, and brokers 2 and 3; partitions are on 1 and 2, led by 1."""

    def __init__(self) -> None:
        self.world = ClusterWorld()
        self.world.register(1, 2, 3)
        record = TopicCreated(
            name="t",
            topic_id=TOPIC_ID,
            replicas=((1, 2), (1, 2)),
            hosts=((0, 0), (4, 4)),
            settings=(),
        )
        self.world.apply([record])
        for number in (0, 1):
            self.world.lead(1, (1, 2), number)
        self.nodes_alive = [2, 3]
        self.rack = ""
        self.is_serving = True
        self.silent = {held(2), held(2, HOSTED)}
        """Actors that do not answer the controller; those of broker 2 unless a test says more."""
        self.offline: tuple[OfflineReplica, ...] = ()
        self.refusing: tuple[OfflineReplica, ...] = ()
        self.pinged: set[str] = set()
        self.membership = BrokerMembership(
            machine=self.world.machine,
            launcher=self,
            transport=self,
            own=1,
            data_dir="/own",
            config=CONFIG,
            execute=self.execute,
            without_vote=lambda _broker_id: (),
            is_current=self.is_current,
        )

    async def is_current(self) -> bool:
        return True

    async def execute(self, request: Any, decide: Callable[[int], Decision[Any]]) -> Any:
        if not self.is_serving:
            return request.failed(ErrorCode.NOT_CONTROLLER)
        return self.world.run(decide(0))

    async def nodes(self) -> Sequence[BrokerNode]:
        return [BrokerNode(broker_id=number, rack=self.rack) for number in self.nodes_alive]

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        pass

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        assert isinstance(request, PingRequest)
        assert timeout_ms > 0
        self.pinged.add(actor)
        if actor in self.silent:
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)
        return PingReply(offline_replicas=self.offline, refusing_replicas=self.refusing)

    async def beat(
        self,
        broker_id: int,
        *silent: str,
        broker_epoch: int | None = None,
        offline: tuple[OfflineReplica, ...] = (),
        refusing: tuple[OfflineReplica, ...] = (),
    ) -> tuple[ErrorCode, tuple[str, ...]]:
        states = self.world.machine.broker_states
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=states[broker_id].broker_epoch if broker_epoch is None else broker_epoch,
            silent_actors=silent,
            offline_replicas=offline,
            refusing_replicas=refusing,
        )
        reply = await self.membership.heartbeat(request)
        return reply.error, reply.actors

    async def beat_for(self, seconds: float, *broker_ids: int) -> None:
        for _ in range(int(seconds)):
            for broker_id in broker_ids:
                await self.beat(broker_id)
            await asyncio.sleep(1)

    @property
    def fenced(self) -> list[int]:
        states = self.world.machine.broker_states.values()
        return [broker.broker_id for broker in states if broker.is_fenced]

    @property
    def leaders(self) -> list[int]:
        return [partition.leader for partition in self.world.machine.topics["t"].partitions]


def play(
    scenario: Callable[[Members], Coroutine[Any, Any, None]], *, is_watching: bool = True
) -> None:
    async def body() -> None:
        members = Members()
        watches = members.membership.watches()
        tasks = [asyncio.ensure_future(work) for work in watches]
        if not is_watching:
            for task in tasks:
                task.cancel()
        await asyncio.sleep(0)
        await scenario(members)
        members.world.check()
        for task in tasks:
            assert not task.done() or task.cancelled()
            task.cancel()

    run_virtually(body())


def offline(tp: TopicPartition) -> OfflineReplica:
    return OfflineReplica(topic_partition=tp, topic_id=TOPIC_ID)


def held(broker_id: int, tp: TopicPartition = ALONE) -> str:
    """The actor that holds a replica."""
    return holder_of(Placement(tp, TOPIC_ID, broker_id, 0 if tp == ALONE else 4))


# --- register ------------------------------------------------------------------------------------

NEW = RegisterBrokerRequest(
    broker_id=4, directory_id="directory 4", data_dir="/d4", cluster_id=CLUSTER_ID
)


def test_a_broker_registers_and_has_a_session_from_then_on():
    async def scenario(members: Members) -> None:
        members.nodes_alive.append(4)
        await members.membership.brokers.check_nodes()
        reply = await members.membership.register(NEW)
        assert (reply.error, reply.broker_epoch) == (ErrorCode.NONE, 4)
        assert members.fenced == [4]
        assert await members.beat(4) == (ErrorCode.NONE, ())
        assert members.fenced == []
        await members.beat_for(SESSION_S + 1, 2, 3)
        assert members.fenced == [4]

    play(scenario)


def test_a_broker_that_registers_again_while_it_lives_has_a_whole_session():
    async def scenario(members: Members) -> None:
        await members.beat_for(SESSION_S - 1, 3)
        again = structs.replace(NEW, broker_id=2, directory_id="directory 2", data_dir="/d2")
        assert (await members.membership.register(again)).broker_epoch == 2
        await members.beat_for(SESSION_S - 1, 3)
        assert members.fenced == []
        await members.beat_for(2, 3)
        assert members.fenced == [2]

    play(scenario)


def test_what_keeps_a_broker_away_is_described_until_it_registers():
    async def scenario(members: Members) -> None:
        members.nodes_alive.append(4)
        membership = members.membership
        await membership.brokers.check_nodes()

        def problem() -> str:
            return {one.broker_id: one.problem for one in membership.brokers.described()}[4]

        before = len(members.world.log)
        await membership.register(structs.replace(NEW, problem="the disk is not mounted"))
        assert problem() == "the disk is not mounted"
        assert len(members.world.log) == before
        other = structs.replace(NEW, cluster_id="e" * 32)
        assert (await membership.register(other)).error is ErrorCode.INVALID_REQUEST
        assert "e" * 32 in problem()
        members.is_serving = False
        assert (await membership.register(NEW)).error is ErrorCode.NOT_CONTROLLER
        assert "e" * 32 in problem()
        members.is_serving = True
        assert (await membership.register(NEW)).error is ErrorCode.NONE
        assert problem() == ""
        second = structs.replace(NEW, directory_id="another")
        assert (await membership.register(second)).error is ErrorCode.NONE
        await members.beat(4)
        third = structs.replace(NEW, directory_id="a third")
        refused = await membership.register(third)
        assert refused.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert problem() == refused.detail

    play(scenario)


# --- heartbeats ----------------------------------------------------------------------------------


def test_a_heartbeat_is_answered_with_the_actors_to_watch():
    async def scenario(members: Members) -> None:
        assert await members.beat(2) == (ErrorCode.NONE, (held(2), held(2, HOSTED)))
        assert await members.beat(3) == (ErrorCode.NONE, ())
        assert await members.beat(2, broker_epoch=1) == (ErrorCode.STALE_BROKER_EPOCH, ())

    play(scenario)


def test_others_lead_once_a_broker_is_not_heard_and_it_is_back_with_its_heartbeat():
    async def scenario(members: Members) -> None:
        members.world.lead(2, (1, 2))
        await members.beat_for(SESSION_S + 1, 3)
        assert (members.fenced, members.leaders) == ([2], [1, 1])
        await members.beat(2)
        assert (members.fenced, members.leaders) == ([], [1, 1])

    play(scenario)


def test_a_broker_whose_own_actor_is_away_is_fenced_only_if_another_does_not_answer():
    async def scenario(members: Members) -> None:
        for number in (0, 1):
            members.world.lead(2, (1, 2), number)
        members.silent = set()
        await members.beat_for(4 * SESSION_S, 3)
        assert (members.fenced, members.leaders) == ([], [2, 2])
        members.silent = {held(2, HOSTED)}
        await members.beat_for(SESSION_S + 1, 3)
        assert (members.fenced, members.leaders) == ([2], [1, 1])

    play(scenario)


def test_a_broker_without_a_heartbeat_is_fenced_if_a_replica_is_offline_or_it_has_no_actors():
    async def scenario(members: Members) -> None:
        members.silent = set()
        members.offline = (offline(HOSTED),)
        await members.beat_for(SESSION_S + 1, 1)
        assert members.fenced == [2, 3]

    play(scenario)


def test_a_heartbeat_of_an_earlier_epoch_makes_no_session_longer():
    async def scenario(members: Members) -> None:
        for _ in range(int(SESSION_S) + 1):
            await members.beat(2, broker_epoch=1)
            await members.beat(3)
            await asyncio.sleep(1)
        assert members.fenced == [2]

    play(scenario)


def test_a_broker_whose_node_is_gone_is_fenced_before_its_session_is_over():
    async def scenario(members: Members) -> None:
        members.world.lead(2, (1, 2))
        await members.beat_for(1, 2, 3)
        members.nodes_alive.remove(2)
        await members.beat_for(1, 2, 3)
        assert members.leaders == [1, 1]
        isr = [partition.isr for partition in members.world.machine.topics["t"].partitions]
        assert isr == [(1,), (1,)]

    play(scenario)


def test_a_broker_that_beats_on_after_its_node_was_given_up_stays_fenced_until_it_has_one():
    """1. A node stands still, and Ray gives it up. 2. Its processes go on, until Ray ends them."""

    async def scenario(members: Members) -> None:
        await members.beat_for(1, 2, 3)
        members.nodes_alive.remove(2)
        await members.beat_for(2, 2, 3)
        assert members.fenced == [2]
        members.nodes_alive.append(2)
        await members.beat_for(2, 2, 3)
        assert members.fenced == []

    play(scenario)


def test_a_controller_that_cannot_serve_fences_nobody_and_does_it_later():
    async def scenario(members: Members) -> None:
        members.is_serving = False
        await asyncio.sleep(SESSION_S + 2)
        assert members.fenced == []
        members.is_serving = True
        await asyncio.sleep(1)
        assert members.fenced == [2, 3]

    play(scenario)


def test_the_controllers_own_broker_has_the_rack_of_its_node_recorded_once():
    async def scenario(members: Members) -> None:
        members.nodes_alive, members.rack = [1, 2, 3], "r"
        members.world.change(1, draining=True)
        before = members.world.machine.broker_states[1]
        log_length = len(members.world.log)
        for _ in range(3):
            await members.membership.brokers.check_nodes()
        assert len(members.world.log) == log_length + 1
        known = members.world.machine.broker_states[1]
        expected = dataclasses.replace(before, rack="r", data_dir="/own")
        assert known == expected
        assert known.is_draining
        assert members.world.machine.broker_states[2].rack == ""

    play(scenario, is_watching=False)


# --- silent actors -------------------------------------------------------------------------------


def test_others_lead_what_a_brokers_silent_actors_led():
    async def scenario(members: Members) -> None:
        for number in (0, 1):
            members.world.lead(2, (1, 2), number)
        await members.beat(2, held(2, HOSTED), held(1), "partition:gone-0@2")
        assert members.leaders == [2, 1]
        assert members.fenced == []

    play(scenario, is_watching=False)


def test_others_lead_what_the_controllers_own_silent_actors_led():
    async def scenario(members: Members) -> None:
        await members.beat_for(SESSION_S, 2, 3)
        assert members.leaders == [1, 1]
        assert members.pinged == {held(1), held(1, HOSTED)}
        members.silent = {held(1)}
        await members.beat_for(SESSION_S - 2, 2, 3)
        assert members.leaders == [1, 1]
        await members.beat_for(4, 2, 3)
        assert members.leaders == [2, 1]
        assert members.fenced == []

    play(scenario)


def test_others_lead_what_replicas_led_that_are_offline():
    """Of another topic of the name nothing; one that does not know its topic is what it is."""

    async def scenario(members: Members) -> None:
        for number in (0, 1):
            members.world.lead(2, (1, 2), number)
        other = OfflineReplica(topic_partition=ALONE, topic_id="9" * 32)
        await members.beat(2, offline=(other, offline(HOSTED)))
        assert members.leaders == [2, 1]
        await members.beat(2, offline=(OfflineReplica(topic_partition=ALONE, topic_id=""),))
        assert members.leaders == [1, 1]
        await members.beat(1, offline=(offline(ALONE), offline(HOSTED)))
        assert members.leaders == [1, 1]
        assert members.fenced == []

    play(scenario, is_watching=False)


def test_a_follower_that_is_offline_is_not_in_sync():
    async def scenario(members: Members) -> None:
        await members.beat(2, offline=(offline(ALONE),))
        partitions = members.world.machine.topics["t"].partitions
        assert [partition.isr for partition in partitions] == [(1,), (1, 2)]
        assert members.leaders == [1, 1]

    play(scenario, is_watching=False)


def test_others_lead_what_offline_replicas_of_the_controllers_node_led():
    async def scenario(members: Members) -> None:
        await members.beat_for(3, 2, 3)
        assert members.leaders == [1, 1]
        members.offline = (offline(HOSTED),)
        await members.beat_for(2, 2, 3)
        assert members.leaders == [1, 2]

    play(scenario)


def test_others_lead_what_replicas_led_whose_disk_refuses_as_long_as_it_is_said():
    async def scenario(members: Members) -> None:
        machine = members.world.machine
        for number in (0, 1):
            members.world.lead(2, (1, 2), number)
        await members.beat(2, refusing=(offline(ALONE),))
        assert members.leaders == [1, 2]
        assert machine.broker_states[2].is_refusing
        (told,) = (one for one in members.membership.brokers.described() if one.broker_id == 2)
        assert told.is_refusing
        # Nor does it lead anything more, while another can.
        members.world.lead(1, (1, 2), 0)
        await members.beat(2, refusing=(offline(ALONE),))
        assert members.leaders == [1, 2]
        await members.beat(2)
        assert not machine.broker_states[2].is_refusing

    play(scenario, is_watching=False)


def test_others_lead_what_replicas_of_the_controllers_node_led_whose_disk_refuses():
    async def scenario(members: Members) -> None:
        members.refusing = (offline(HOSTED),)
        await members.beat_for(2, 2, 3)
        assert members.leaders == [1, 2]
        assert members.world.machine.broker_states[1].is_refusing

    play(scenario)


def test_what_is_said_of_a_disk_may_be_of_the_process_before():
    async def scenario(members: Members) -> None:
        members.world.lead(2, (1, 2), 0)
        members.membership.record_start(start_of(2))
        await members.beat(2, refusing=(offline(ALONE),))
        assert members.leaders == [2, 1]
        assert not members.world.machine.broker_states[2].is_refusing

    play(scenario, is_watching=False)


def test_an_actor_that_answers_in_time_keeps_what_it_leads():
    async def scenario(members: Members) -> None:
        for _ in range(3):
            members.silent = {held(1)}
            await members.beat_for(SESSION_S - 3, 2, 3)
            members.silent = set()
            await members.beat_for(2, 2, 3)
        assert members.leaders == [1, 1]

    play(scenario)


def start_of(broker_id: int, tp: TopicPartition = ALONE) -> BecomeLeaderRequest:
    """What a replica asks for when it has started."""
    return BecomeLeaderRequest(
        topic_partition=tp,
        topic_id=TOPIC_ID,
        broker_id=broker_id,
        incarnation="new",
        expected_epoch=0,
    )


def test_an_actor_that_was_silent_and_started_again_keeps_what_it_leads():
    """1. An actor dies, and is silent for a session. 2. It starts again, and is elected. 3. The
    broker tells of the silence; a second later it knows better.
    """

    async def scenario(members: Members) -> None:
        for number in (0, 1):
            members.world.lead(2, (1, 2), number)
        members.membership.record_start(start_of(2))
        await members.beat(2, held(2), held(2, HOSTED))
        assert members.leaders == [2, 1]
        await asyncio.sleep(SESSION_S + 1)
        await members.beat(2, held(2))
        assert members.leaders == [1, 1]

    play(scenario, is_watching=False)


def test_the_controllers_own_actor_that_started_again_keeps_what_it_leads():
    async def scenario(members: Members) -> None:
        await members.beat_for(2, 2, 3)
        members.silent = {held(1), held(1, HOSTED)}
        await members.beat_for(SESSION_S - 1, 2, 3)
        members.membership.record_start(start_of(1, HOSTED))
        await members.beat_for(4, 2, 3)
        assert members.leaders == [2, 1]
        await members.beat_for(SESSION_S, 2, 3)
        assert members.leaders == [2, 2]

    play(scenario)


def test_without_other_brokers_no_start_is_remembered():
    async def scenario(members: Members) -> None:
        for broker_id in (2, 3):
            del members.world.machine._brokers[broker_id]
        members.membership.record_start(start_of(1))
        assert members.membership._started_ms == {}

    play(scenario, is_watching=False)


def test_a_controller_without_other_brokers_asks_no_actor():
    async def scenario(members: Members) -> None:
        for broker_id in (2, 3):
            del members.world.machine._brokers[broker_id]
        members.silent = {held(1)}
        await asyncio.sleep(3 * SESSION_S)
        assert (members.pinged, members.leaders) == (set(), [1, 1])

    play(scenario)


@pytest.mark.parametrize("broker_id", [2, 9])
def test_who_is_fenced_already_or_unknown_is_not_fenced_again(broker_id: int):
    async def scenario(members: Members) -> None:
        members.world.change(2, fenced=True)
        before = len(members.world.log)
        await members.membership._fence(broker_id)
        assert len(members.world.log) == before

    play(scenario)
