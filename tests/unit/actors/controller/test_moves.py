"""The controller moves replicas: when it is asked to, and by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from controller_world import ControllerWorld
from deadlines import to_its_end, until
from inside import names_of
from replicas import TOPIC_ID

from oncelog.actors.config import ClusterConfig
from oncelog.actors.controller import moves as controller_moves
from oncelog.actors.controller.moves import LeavingReplicas
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.brokers import (
    DrainBrokerRequest,
    ReassignPartitionReply,
    ReassignPartitionRequest,
)
from oncelog.actors.protocol.messages.cluster import (
    ANY_REPLICATION,
    AlterIsrRequest,
    BecomeLeaderRequest,
    HostedReplicasRequest,
    MetadataRequest,
    ShutdownRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

TP = TopicPartition("flights", 0)


def shutdowns(world: ControllerWorld) -> list[tuple[str, ShutdownRequest]]:
    return world.calls_of(ShutdownRequest)


async def create_led(world: ControllerWorld, replication_factor: int = 1, **settings: str) -> None:
    reply = await world.create(
        replication_factor=replication_factor, settings=tuple(settings.items())
    )
    assert reply.error is ErrorCode.NONE
    await lead(world, TP, world.partition(TP).replicas[0])


async def lead(world: ControllerWorld, tp: TopicPartition, broker_id: int) -> None:
    request = BecomeLeaderRequest(
        topic_partition=tp,
        topic_id=world.controller.machine.topics[tp.topic].topic_id,
        broker_id=broker_id,
        incarnation=f"{tp}@{broker_id}",
        expected_epoch=world.partition(tp).leader_epoch,
    )
    assert (await world.controller.become_leader(request)).error is ErrorCode.NONE


async def sync(world: ControllerWorld, tp: TopicPartition, *isr: int) -> None:
    """What the leader says once these are in sync."""
    topic = world.controller.machine.topics[tp.topic]
    state = topic.partitions[tp.partition]
    request = AlterIsrRequest(
        topic_partition=tp,
        topic_id=topic.topic_id,
        broker_id=state.leader,
        leader_epoch=state.leader_epoch,
        partition_version=state.version,
        isr=isr,
    )
    assert (await world.controller.alter_isr(request)).error is ErrorCode.NONE


async def reassign(
    world: ControllerWorld, *replicas: int, tp: TopicPartition = TP
) -> ReassignPartitionReply:
    request = ReassignPartitionRequest(topic_partition=tp, replicas=replicas)
    return await world.controller.reassign_partition(request)


async def grow(world: ControllerWorld) -> None:
    """Have everything copied that a look of the controller begins to copy, as often as it does.

    Leaders of internal topics are elected first.
    """
    for _ in range(3):
        await world.controller.moves.move_on()
        for topic in world.controller.machine.topics.values():
            for number, partition in enumerate(topic.partitions):
                tp = TopicPartition(topic.name, number)
                if partition.leader < 0:
                    await lead(world, tp, partition.isr[0])
                if partition.is_moving:
                    await sync(world, tp, *partition.replicas)


def leaving(world: ControllerWorld) -> LeavingReplicas:
    return world.controller.moves.leaving


async def settled(world: ControllerWorld) -> None:
    """Until nothing is left to be removed."""
    await until(lambda: not len(leaving(world)))


Scenario = Callable[[ControllerWorld], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a scenario with a controller whose own broker is 1; its periodic passes do not help."""
    monkeypatch.setattr(controller_moves, "MOVES_CHECK_MS", 3_600_000)
    monkeypatch.setattr(controller_moves, "REMOVAL_RETRY_MS", 3_600_000)

    def run(scenario: Scenario, replicas_per_actor: int = 1) -> None:
        async def body() -> None:
            world = ControllerWorld(tmp_path)
            await world.begin(ClusterConfig(replicas_per_actor=replicas_per_actor))
            await scenario(world)
            await world.stop()

        to_its_end(body())

    return run


def test_a_partition_moves_and_its_old_replica_removes_its_files(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world)
        world.started.clear()
        assert (await reassign(world, 2)).error is ErrorCode.NONE
        moving = world.partition(TP)
        assert (moving.replicas, moving.adding, moving.removing) == ((2, 1), (2,), (1,))
        assert Placement(TP, TOPIC_ID, 2) in world.started
        assert shutdowns(world) == []
        await sync(world, TP, 1, 2)
        await until(lambda: world.partition(TP).replicas == (2,))
        await settled(world)
        moved = world.partition(TP)
        assert (moved.leader, moved.isr, moved.adding, moved.removing) == (2, (2,), (), ())
        assert shutdowns(world) == [
            (
                "partition:flights-0@1",
                ShutdownRequest(remove_data=True, topic_id=TOPIC_ID, is_moved=True),
            )
        ]
        await until(lambda: world.ended == ["partition:flights-0@1"])

    play(scenario)


def test_a_move_that_is_cancelled_removes_what_it_had_added(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world)
        await reassign(world, 2)
        assert (await reassign(world)).error is ErrorCode.NONE
        await settled(world)
        assert world.partition(TP).replicas == (1,)
        assert [actor for actor, _ in shutdowns(world)] == ["partition:flights-0@2"]

    play(scenario)


def test_a_new_replica_joins_a_host_of_its_broker(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world)
        await reassign(world, 1, 2)
        assert world.partition(TP).hosts == (1, 1)
        hosted = await world.controller.hosted_replicas(HostedReplicasRequest(broker_id=2, host=1))
        assert TP in [one.topic_partition for one in hosted.replicas]

    play(scenario, replicas_per_actor=8)


def test_a_host_holds_a_replica_until_it_has_removed_its_files(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world)
        await reassign(world, 2)
        listed: list[bool] = []

        async def look(asked: Any = None) -> None:
            if not isinstance(asked, ShutdownRequest | None):
                return
            request = HostedReplicasRequest(broker_id=1, host=1)
            reply = await world.controller.hosted_replicas(request)
            listed.extend(one.is_leaving for one in reply.replicas if one.topic_partition == TP)

        world.during_call = look
        await sync(world, TP, 1, 2)
        await until(lambda: bool(listed))
        await settled(world)
        assert listed == [True]
        world.during_call = None
        await look()
        assert listed == [True]

    play(scenario, replicas_per_actor=8)


async def is_followed() -> bool:
    return False


def test_a_replica_that_cannot_be_told_is_told_again_and_is_not_ended(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world)
        world.away.add("partition:flights-0@1")
        await reassign(world, 2)
        await sync(world, TP, 1, 2)
        await until(lambda: len(shutdowns(world)) == 1)
        await until(lambda: not len(names_of(world.controller)))
        assert (len(leaving(world)), world.ended) == (1, [])
        world.away.clear()
        left = leaving(world)
        confirm, left.is_current = left.is_current, is_followed
        await left.remove()
        assert (len(left), world.ended) == (1, [])
        left.is_current = confirm
        await left.remove()
        assert (len(left), world.ended) == (0, ["partition:flights-0@1"])

    play(scenario)


def test_a_replica_on_a_fenced_broker_is_removed_when_that_is_back(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2, 3)
        await create_led(world, 2)
        leader, gone = world.partition(TP).replicas
        kept = (leader,)
        (added,) = {1, 2, 3} - {leader, gone}
        await world.controller.members._fence(gone)
        assert (await reassign(world, *kept, added)).error is ErrorCode.NONE
        await sync(world, TP, *kept, added)
        await until(lambda: len(leaving(world)) == 1)
        await leaving(world).remove()
        assert shutdowns(world) == []
        await world.join(gone)
        await leaving(world).remove()
        assert [actor for actor, _ in shutdowns(world)] == [f"partition:flights-0@{gone}"]

    play(scenario)


def test_a_replica_that_comes_back_before_it_has_gone_is_not_removed(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world)
        world.away.add("partition:flights-0@1")
        await reassign(world, 2)
        await sync(world, TP, 1, 2)
        await until(lambda: len(shutdowns(world)) == 1)
        assert (await reassign(world, 2, 1)).error is ErrorCode.NONE
        assert len(leaving(world)) == 0
        world.away.clear()
        await leaving(world).remove()
        assert (len(shutdowns(world)), world.ended) == (1, [])

    play(scenario)


def test_a_controller_that_starts_goes_on_with_moves(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world)
        await reassign(world, 2)
        world.controller.moves.on_changed = lambda _partitions: None
        await sync(world, TP, 1, 2)
        world.started.clear()
        await world.restart()
        assert Placement(TP, TOPIC_ID, 2) in world.started
        await until(lambda: world.partition(TP).replicas == (2,))
        await settled(world)

    play(scenario)


def test_what_an_earlier_controller_left_to_be_removed_is_removed(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world)
        world.actors |= {"partition:flights-0@2": -1, "partition:gone-0@1": -2, "controller": -3}
        await world.restart()
        assert world.ended == ["partition:gone-0@1"]
        await settled(world)
        await until(lambda: len(world.ended) == 2)
        assert [actor for actor, _ in shutdowns(world)] == ["partition:flights-0@2"]

    play(scenario)


def test_a_deleted_topic_takes_what_has_moved_away_with_it(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world)
        world.away.add("partition:flights-0@1")
        await reassign(world, 2)
        await sync(world, TP, 1, 2)
        await until(lambda: len(shutdowns(world)) == 1)
        await world.delete("flights")
        assert len(leaving(world)) == 0
        assert sorted(world.ended) == ["partition:flights-0@1", "partition:flights-0@2"]

    play(scenario)


def test_what_waits_to_be_removed_has_a_bound(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_moves, "LEAVING_MAX", 2)

    async def scenario(world: ControllerWorld) -> None:
        placements = [Placement(TopicPartition("t", n), TOPIC_ID, 9) for n in range(3)]
        leaving(world).add(placements)
        assert leaving(world).of_topic("t") == placements[1:]

    play(scenario)


# --- brokers that drain ---------------------------------------------------------------------


def test_partitions_move_off_a_broker_that_drains(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world)
        reply = await world.controller.drain_broker(DrainBrokerRequest(broker_id=1))
        assert reply.error is ErrorCode.NONE
        await until(lambda: world.partition(TP).adding == (2,))
        await sync(world, TP, 1, 2)
        await until(lambda: world.partition(TP).replicas == (2,))
        described = (await world.controller.metadata(MetadataRequest())).brokers
        assert [(one.broker_id, one.is_draining) for one in described] == [(1, True), (2, False)]
        resume = DrainBrokerRequest(broker_id=1, is_draining=False)
        assert (await world.controller.drain_broker(resume)).error is ErrorCode.NONE
        assert world.partition(TP).replicas == (2,)

    play(scenario)


def test_a_broker_that_is_needed_is_not_drained(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world, 2)
        reply = await world.controller.drain_broker(DrainBrokerRequest(broker_id=2))
        assert reply.error is ErrorCode.INVALID_REPLICATION_FACTOR
        assert "'flights' has 2 replicas, and 1 brokers" in reply.detail

    play(scenario)


# --- internal topics and balance --------------------------------------------------------------


def internal(world: ControllerWorld) -> dict[TopicPartition, tuple[int, ...]]:
    return {
        TopicPartition(name, n): world.partition(TopicPartition(name, n)).replicas
        for name in sorted(INTERNAL_TOPICS & world.controller.machine.topics.keys())
        for n in range(2)
    }


def test_internal_topics_grow_and_their_leaders_are_spread(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        assert set(internal(world).values()) == {(1,)}
        await world.join(2, 3)
        await world.controller.moves.move_on()
        replicas = internal(world)
        assert {tp: (one[0], sorted(one)) for tp, one in replicas.items()} == {
            TopicPartition(name, number): (number + 1, [1, 2, 3])
            for name in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
            for number in (0, 1)
        }

    play(scenario)


def test_a_topic_grows_with_each_broker_that_joins_up_to_the_default(play: Any) -> None:
    """What the controller moves by itself says nothing of how many replicas there are to be."""

    async def scenario(world: ControllerWorld) -> None:
        await create_led(world, ANY_REPLICATION)
        assert world.partition(TP).replicas == (1,)
        for broker_id, known in ((2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 3))):
            await world.join(broker_id)
            await grow(world)
            assert world.partition(TP).replicas == known

    play(scenario)


def test_preferred_leaders_that_are_in_sync_lead_again(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world)
        await reassign(world, 2, 1)
        await world.controller.moves.balance()
        assert world.partition(TP).leader == 1
        await sync(world, TP, 1, 2)
        await until(lambda: world.partition(TP).adding == ())
        await world.controller.moves.balance()
        assert (world.partition(TP).leader, world.partition(TP).replicas) == (2, (2, 1))

    play(scenario)


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "error", "text"),
    [
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "replicas=[1, 1]: give each broker once"),
        ((9,), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "replicas=[9]: [9] cannot be given, but [1"),
        ((1,), ErrorCode.INVALID_CONFIG, "replicas=[1]: give 2 or more"),
    ],
)
def test_impossible_moves_are_refused_with_the_value_and_what_is_allowed(
    play: Any, replicas: tuple[int, ...], error: ErrorCode, text: str
) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2)
        await create_led(world, 2, min_insync_replicas="2")
        reply = await reassign(world, *replicas)
        assert reply.error is error
        assert text in reply.detail

    play(scenario)


def test_a_second_move_is_refused_while_one_is_in_progress(play: Any) -> None:
    async def scenario(world: ControllerWorld) -> None:
        await world.join(2, 3)
        await create_led(world)
        first = world.partition(TP).replicas[0]
        others = [n for n in (1, 2, 3) if n != first]
        await reassign(world, others[0])
        assert (await reassign(world, others[0])).error is ErrorCode.NONE
        reply = await reassign(world, others[1])
        assert reply.error is ErrorCode.REASSIGNMENT_IN_PROGRESS
        assert f"moved to [{others[0]}]" in reply.detail
        unknown = await reassign(world, 1, tp=TopicPartition("flights", 7))
        assert unknown.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    play(scenario)
