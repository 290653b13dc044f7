"""The controller moves replicas: when it is asked to, and by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from controller_world import CLUSTER_ID, ControllerWorld
from deadlines import to_its_end, until

from oncelog.actors.config import ClusterConfig
from oncelog.actors.controller import moves as controller_moves
from oncelog.actors.controller.controller import Controller
from oncelog.actors.controller.moves import LeavingReplicas
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatRequest,
    DrainBrokerRequest,
    ReassignPartitionReply,
    ReassignPartitionRequest,
    RegisterBrokerRequest,
)
from oncelog.actors.protocol.messages.cluster import (
    ANY_REPLICATION,
    AlterIsrRequest,
    BecomeLeaderRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    HostedReplicasRequest,
    MetadataRequest,
    PartitionMetadata,
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
TOPIC_ID = "a" * 32


class MovingCluster:
    """A controller with brokers that have joined, and short ways to use it."""

    def __init__(self, world: ControllerWorld) -> None:
        self.world = world

    @property
    def controller(self) -> Controller:
        return self.world.controller

    def shutdowns(self) -> list[tuple[str, ShutdownRequest]]:
        return self.world.calls_of(ShutdownRequest)

    async def join(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            registered = await self.controller.register_broker(
                RegisterBrokerRequest(
                    broker_id=broker_id,
                    directory_id=f"{broker_id:032x}",
                    data_dir="/data",
                    cluster_id=CLUSTER_ID,
                )
            )
            beat = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=registered.broker_epoch)
            assert (await self.controller.broker_heartbeat(beat)).error is ErrorCode.NONE
            self.world.joined.append(broker_id)

    async def create(self, replication_factor: int = 1, **settings: str) -> None:
        request = CreateTopicRequest(
            name=TP.topic,
            topic_id=TOPIC_ID,
            partitions=1,
            replication_factor=replication_factor,
            settings=tuple(settings.items()),
        )
        assert (await self.controller.create_topic(request)).error is ErrorCode.NONE
        await self.lead(TP, self.partition(TP).replicas[0])

    async def lead(self, tp: TopicPartition, broker_id: int) -> None:
        request = BecomeLeaderRequest(
            topic_partition=tp,
            topic_id=self.controller.machine.topics[tp.topic].topic_id,
            broker_id=broker_id,
            incarnation=f"{tp}@{broker_id}",
            expected_epoch=self.partition(tp).leader_epoch,
        )
        assert (await self.controller.become_leader(request)).error is ErrorCode.NONE

    def partition(self, tp: TopicPartition) -> PartitionMetadata:
        (topic,) = self.controller.machine.metadata([tp.topic])
        return topic.partitions[tp.partition]

    async def sync(self, tp: TopicPartition, *isr: int) -> None:
        """What the leader says once these are in sync."""
        state = self.controller.machine.topics[tp.topic].partitions[tp.partition]
        request = AlterIsrRequest(
            topic_partition=tp,
            topic_id=self.controller.machine.topics[tp.topic].topic_id,
            broker_id=state.leader,
            leader_epoch=state.leader_epoch,
            partition_version=state.version,
            isr=isr,
        )
        assert (await self.controller.alter_isr(request)).error is ErrorCode.NONE

    async def reassign(self, *replicas: int, tp: TopicPartition = TP) -> ReassignPartitionReply:
        request = ReassignPartitionRequest(topic_partition=tp, replicas=replicas)
        return await self.controller.reassign_partition(request)

    async def grow(self) -> None:
        """Have everything copied that a look of the controller begins to copy, as often as it does.

        Leaders of internal topics are elected first.
        """
        for _ in range(3):
            await self.controller.moves.move_on()
            for topic in self.controller.machine.topics.values():
                for number, partition in enumerate(topic.partitions):
                    tp = TopicPartition(topic.name, number)
                    if partition.leader < 0:
                        await self.lead(tp, partition.isr[0])
                    if partition.is_moving:
                        await self.sync(tp, *partition.replicas)

    def leaving(self) -> LeavingReplicas:
        return self.controller.moves.leaving

    async def settled(self) -> None:
        """Until nothing is left to be removed."""
        await until(lambda: not len(self.leaving()))

    async def stop(self) -> None:
        await self.controller.stop()
        await self.controller.replica.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.world.begin()


Scenario = Callable[[MovingCluster], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a scenario with a controller whose own broker is 1; its periodic passes do not help."""
    monkeypatch.setattr(controller_moves, "MOVES_CHECK_MS", 3_600_000)
    monkeypatch.setattr(controller_moves, "REMOVAL_RETRY_MS", 3_600_000)

    def run(scenario: Scenario, replicas_per_actor: int = 1) -> None:
        async def body() -> None:
            world = ControllerWorld(tmp_path)
            cluster = MovingCluster(world)
            await world.begin(ClusterConfig(replicas_per_actor=replicas_per_actor))
            await scenario(cluster)
            await cluster.stop()

        to_its_end(body())

    return run


def test_a_partition_moves_and_its_old_replica_removes_its_files(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create()
        cluster.world.started.clear()
        assert (await cluster.reassign(2)).error is ErrorCode.NONE
        moving = cluster.partition(TP)
        assert (moving.replicas, moving.adding, moving.removing) == ((2, 1), (2,), (1,))
        assert Placement(TP, TOPIC_ID, 2) in cluster.world.started
        assert cluster.shutdowns() == []
        await cluster.sync(TP, 1, 2)
        await until(lambda: cluster.partition(TP).replicas == (2,))
        await cluster.settled()
        moved = cluster.partition(TP)
        assert (moved.leader, moved.isr, moved.adding, moved.removing) == (2, (2,), (), ())
        assert cluster.shutdowns() == [
            (
                "partition:flights-0@1",
                ShutdownRequest(remove_data=True, topic_id=TOPIC_ID, is_moved=True),
            )
        ]
        await until(lambda: cluster.world.ended == ["partition:flights-0@1"])

    play(scenario)


def test_a_move_that_is_cancelled_removes_what_it_had_added(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create()
        await cluster.reassign(2)
        assert (await cluster.reassign()).error is ErrorCode.NONE
        await cluster.settled()
        assert cluster.partition(TP).replicas == (1,)
        assert [actor for actor, _ in cluster.shutdowns()] == ["partition:flights-0@2"]

    play(scenario)


def test_a_new_replica_joins_a_host_of_its_broker(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create()
        await cluster.reassign(1, 2)
        assert cluster.partition(TP).hosts == (1, 1)
        hosted = await cluster.controller.hosted_replicas(
            HostedReplicasRequest(broker_id=2, host=1)
        )
        assert TP in [one.topic_partition for one in hosted.replicas]

    play(scenario, replicas_per_actor=8)


def test_a_host_holds_a_replica_until_it_has_removed_its_files(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create()
        await cluster.reassign(2)
        listed: list[bool] = []

        async def look(asked: Any = None) -> None:
            if not isinstance(asked, ShutdownRequest | None):
                return
            request = HostedReplicasRequest(broker_id=1, host=1)
            reply = await cluster.controller.hosted_replicas(request)
            listed.extend(one.is_leaving for one in reply.replicas if one.topic_partition == TP)

        cluster.world.during_call = look
        await cluster.sync(TP, 1, 2)
        await until(lambda: bool(listed))
        await cluster.settled()
        assert listed == [True]
        cluster.world.during_call = None
        await look()
        assert listed == [True]

    play(scenario, replicas_per_actor=8)


async def is_followed() -> bool:
    return False


def test_a_replica_that_cannot_be_told_is_told_again_and_is_not_ended(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create()
        cluster.world.away.add("partition:flights-0@1")
        await cluster.reassign(2)
        await cluster.sync(TP, 1, 2)
        await until(lambda: len(cluster.shutdowns()) == 1)
        await until(lambda: not len(cluster.controller._names))
        assert (len(cluster.leaving()), cluster.world.ended) == (1, [])
        cluster.world.away.clear()
        leaving = cluster.leaving()
        confirm, leaving.is_current = leaving.is_current, is_followed
        await leaving.remove()
        assert (len(leaving), cluster.world.ended) == (1, [])
        leaving.is_current = confirm
        await leaving.remove()
        assert (len(leaving), cluster.world.ended) == (0, ["partition:flights-0@1"])

    play(scenario)


def test_a_replica_on_a_fenced_broker_is_removed_when_that_is_back(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2, 3)
        await cluster.create(2)
        leader, gone = cluster.partition(TP).replicas
        kept = (leader,)
        (added,) = {1, 2, 3} - {leader, gone}
        await cluster.controller.members._fence(gone)
        assert (await cluster.reassign(*kept, added)).error is ErrorCode.NONE
        await cluster.sync(TP, *kept, added)
        await until(lambda: len(cluster.leaving()) == 1)
        await cluster.leaving().remove()
        assert cluster.shutdowns() == []
        await cluster.join(gone)
        await cluster.leaving().remove()
        assert [actor for actor, _ in cluster.shutdowns()] == [f"partition:flights-0@{gone}"]

    play(scenario)


def test_a_replica_that_comes_back_before_it_has_gone_is_not_removed(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create()
        cluster.world.away.add("partition:flights-0@1")
        await cluster.reassign(2)
        await cluster.sync(TP, 1, 2)
        await until(lambda: len(cluster.shutdowns()) == 1)
        assert (await cluster.reassign(2, 1)).error is ErrorCode.NONE
        assert len(cluster.leaving()) == 0
        cluster.world.away.clear()
        await cluster.leaving().remove()
        assert (len(cluster.shutdowns()), cluster.world.ended) == (1, [])

    play(scenario)


def test_a_controller_that_starts_goes_on_with_moves(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create()
        await cluster.reassign(2)
        cluster.controller.moves.on_changed = lambda _partitions: None
        await cluster.sync(TP, 1, 2)
        cluster.world.started.clear()
        await cluster.restart()
        assert Placement(TP, TOPIC_ID, 2) in cluster.world.started
        await until(lambda: cluster.partition(TP).replicas == (2,))
        await cluster.settled()

    play(scenario)


def test_what_an_earlier_controller_left_to_be_removed_is_removed(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create()
        cluster.world.alive = ["partition:flights-0@2", "partition:gone-0@1", "controller"]
        await cluster.restart()
        assert cluster.world.ended == ["partition:gone-0@1"]
        await cluster.settled()
        await until(lambda: len(cluster.world.ended) == 2)
        assert [actor for actor, _ in cluster.shutdowns()] == ["partition:flights-0@2"]

    play(scenario)


def test_a_deleted_topic_takes_what_has_moved_away_with_it(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create()
        cluster.world.away.add("partition:flights-0@1")
        await cluster.reassign(2)
        await cluster.sync(TP, 1, 2)
        await until(lambda: len(cluster.shutdowns()) == 1)
        await cluster.controller.delete_topic(DeleteTopicRequest(name="flights"))
        assert len(cluster.leaving()) == 0
        assert sorted(cluster.world.ended) == ["partition:flights-0@1", "partition:flights-0@2"]

    play(scenario)


def test_what_waits_to_be_removed_has_a_bound(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_moves, "LEAVING_MAX", 2)

    async def scenario(cluster: MovingCluster) -> None:
        placements = [Placement(TopicPartition("t", n), TOPIC_ID, 9) for n in range(3)]
        cluster.leaving().add(placements)
        assert cluster.leaving().of_topic("t") == placements[1:]

    play(scenario)


# --- brokers that drain ---------------------------------------------------------------------


def test_partitions_move_off_a_broker_that_drains(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create()
        reply = await cluster.controller.drain_broker(DrainBrokerRequest(broker_id=1))
        assert reply.error is ErrorCode.NONE
        await until(lambda: cluster.partition(TP).adding == (2,))
        await cluster.sync(TP, 1, 2)
        await until(lambda: cluster.partition(TP).replicas == (2,))
        described = (await cluster.controller.metadata(MetadataRequest())).brokers
        assert [(one.broker_id, one.is_draining) for one in described] == [(1, True), (2, False)]
        resume = DrainBrokerRequest(broker_id=1, is_draining=False)
        assert (await cluster.controller.drain_broker(resume)).error is ErrorCode.NONE
        assert cluster.partition(TP).replicas == (2,)

    play(scenario)


def test_a_broker_that_is_needed_is_not_drained(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create(2)
        reply = await cluster.controller.drain_broker(DrainBrokerRequest(broker_id=2))
        assert reply.error is ErrorCode.INVALID_REPLICATION_FACTOR
        assert "'flights' has 2 replicas, and 1 brokers" in reply.detail

    play(scenario)


# --- internal topics and balance --------------------------------------------------------------


def internal(cluster: MovingCluster) -> dict[TopicPartition, tuple[int, ...]]:
    return {
        TopicPartition(name, n): cluster.partition(TopicPartition(name, n)).replicas
        for name in sorted(INTERNAL_TOPICS & cluster.controller.machine.topics.keys())
        for n in range(2)
    }


def test_internal_topics_grow_and_their_leaders_are_spread(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        assert set(internal(cluster).values()) == {(1,)}
        await cluster.join(2, 3)
        await cluster.controller.moves.move_on()
        replicas = internal(cluster)
        assert {tp: (one[0], sorted(one)) for tp, one in replicas.items()} == {
            TopicPartition(name, number): (number + 1, [1, 2, 3])
            for name in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
            for number in (0, 1)
        }

    play(scenario)


def test_a_topic_grows_with_each_broker_that_joins_up_to_the_default(play: Any) -> None:
    """What the controller moves by itself says nothing of how many replicas there are to be."""

    async def scenario(cluster: MovingCluster) -> None:
        await cluster.create(ANY_REPLICATION)
        assert cluster.partition(TP).replicas == (1,)
        for broker_id, known in ((2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 3))):
            await cluster.join(broker_id)
            await cluster.grow()
            assert cluster.partition(TP).replicas == known

    play(scenario)


def test_preferred_leaders_that_are_in_sync_lead_again(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create()
        await cluster.reassign(2, 1)
        await cluster.controller.moves.balance()
        assert cluster.partition(TP).leader == 1
        await cluster.sync(TP, 1, 2)
        await until(lambda: cluster.partition(TP).adding == ())
        await cluster.controller.moves.balance()
        assert (cluster.partition(TP).leader, cluster.partition(TP).replicas) == (2, (2, 1))

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
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2)
        await cluster.create(2, min_insync_replicas="2")
        reply = await cluster.reassign(*replicas)
        assert reply.error is error
        assert text in reply.detail

    play(scenario)


def test_a_second_move_is_refused_while_one_is_in_progress(play: Any) -> None:
    async def scenario(cluster: MovingCluster) -> None:
        await cluster.join(2, 3)
        await cluster.create()
        first = cluster.partition(TP).replicas[0]
        others = [n for n in (1, 2, 3) if n != first]
        await cluster.reassign(others[0])
        assert (await cluster.reassign(others[0])).error is ErrorCode.NONE
        reply = await cluster.reassign(others[1])
        assert reply.error is ErrorCode.REASSIGNMENT_IN_PROGRESS
        assert f"moved to [{others[0]}]" in reply.detail
        unknown = await cluster.reassign(1, tp=TopicPartition("flights", 7))
        assert unknown.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    play(scenario)
