"""The controller on a real directory: settings of topics, and who is told of them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from controller_world import ControllerWorld
from inside import names_of
from msgspec import structs
from virtual_time import give_turns

from oncelog.actors.config import ClusterConfig
from oncelog.actors.controller.controller import Controller
from oncelog.actors.coordination import runtime as coordinator_runtime
from oncelog.actors.interfaces import address_of, holder_of
from oncelog.actors.protocol.messages.access import (
    AccessRequest,
    Acl,
    AlterAclsRequest,
    AlterAuthorizationRequest,
    AlterUsersRequest,
    DescribeAccessRequest,
    LearnAccessRequest,
    Operation,
    Resource,
    Rules,
    User,
    UserDescription,
)
from oncelog.actors.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AlterIsrRequest,
    AlterTopicRequest,
    BecomeLeaderRequest,
    ClusterKeysRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    LeaderAndIsrRequest,
    LearnKeysRequest,
    MetadataRequest,
    RotateClusterKeyRequest,
)
from oncelog.actors.protocol.scram import ITERATIONS_MIN, make_credential
from oncelog.actors.protocol.tickets import NO_KEYS
from oncelog.actors.replica.data_directory import (
    DirectoryIdentity,
    read_identity,
    write_identity,
)
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Any], None]:
    """Run a scenario with a controller that knows a topic of two partitions."""

    def run(scenario: Any) -> None:
        async def body() -> None:
            world = ControllerWorld(tmp_path)
            controller = await world.begin()
            settings = (("min_compaction_lag_ms", "5"), ("flush", "os"))
            created = await world.create(partitions=2, settings=settings)
            assert created.error is ErrorCode.NONE
            await scenario(world, controller)

        asyncio.run(body())

    return run


def alter(**changes: str | None) -> AlterTopicRequest:
    return AlterTopicRequest(name="flights", changes=tuple(changes.items()))


async def settings_of(controller: Controller) -> dict[str, str]:
    reply = await controller.metadata(MetadataRequest(topics=("flights",)))
    return dict(reply.topics[0].settings)


def test_an_altered_topic_tells_every_leader(play: Any) -> None:
    async def scenario(world: ControllerWorld, controller: Controller) -> None:
        reply = await controller.alter_topic(alter(retention_ms="7", flush=None))
        assert reply.error is ErrorCode.NONE
        expected = {"min_compaction_lag_ms": "5", "retention_ms": "7"}
        assert await settings_of(controller) == expected
        assert [actor for actor, _ in world.calls] == [
            "partition:flights-0@1",
            "partition:flights-1@1",
        ]
        for _, request in world.calls:
            assert (dict(request.settings), request.settings_version) == (expected, 1)
            assert request.topic_id == "a" * 32
        await controller.replica.stop()

    play(scenario)


def test_added_partitions_are_started_and_survive_a_restart(play: Any) -> None:
    async def scenario(world: ControllerWorld, controller: Controller) -> None:
        request = CreatePartitionsRequest(name="flights", partitions=3)
        assert (await controller.create_partitions(request)).error is ErrorCode.NONE
        await controller.replica.stop()
        controller = await world.begin()
        assert [one[0].partition for one in controller.machine.placements("flights")] == [0, 1, 2]
        await controller.replica.stop()

    play(scenario)


def test_no_producer_id_is_given_twice_not_by_the_next_controller_either(play: Any) -> None:
    async def scenario(world: ControllerWorld, controller: Controller) -> None:
        request = AllocateProducerIdsRequest(broker_id=1)
        first = await controller.allocate_producer_ids(request)
        second = await controller.allocate_producer_ids(request)
        await controller.replica.stop()
        controller = await world.begin()
        third = await controller.allocate_producer_ids(request)
        assert {one.error for one in (first, second, third)} == {ErrorCode.NONE}
        assert first.first_producer_id + first.count <= second.first_producer_id
        assert second.first_producer_id + second.count <= third.first_producer_id
        await controller.replica.stop()

    play(scenario)


def test_a_leader_that_cannot_be_told_does_not_undo_the_change(play: Any) -> None:
    async def scenario(world: ControllerWorld, controller: Controller) -> None:
        world.error = ErrorCode.NETWORK_EXCEPTION
        assert (await controller.alter_topic(alter(retention_ms="7"))).error is ErrorCode.NONE
        assert (await settings_of(controller))["retention_ms"] == "7"
        await controller.replica.stop()

    play(scenario)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"colour": "red"}, "colour"),
        ({"retention_ms": "-2"}, "retention_ms=-2"),
        ({"max_compaction_lag_ms": "4"}, "min_compaction_lag_ms=5 is above"),
    ],
)
def test_an_impossible_setting_changes_nothing(
    play: Any, changes: dict[str, str], text: str
) -> None:
    async def scenario(world: ControllerWorld, controller: Controller) -> None:
        before = await settings_of(controller)
        reply = await controller.alter_topic(alter(**changes))
        assert reply.error is ErrorCode.INVALID_CONFIG
        assert text in reply.detail
        assert (await settings_of(controller), world.calls) == (before, [])
        await controller.replica.stop()

    play(scenario)


def test_altered_settings_survive_a_restart(play: Any) -> None:
    async def scenario(world: ControllerWorld, controller: Controller) -> None:
        await controller.alter_topic(alter(retention_ms="7"))
        await controller.replica.stop()
        controller = await world.begin()
        assert (await settings_of(controller))["retention_ms"] == "7"
        request = BecomeLeaderRequest(
            topic_partition=TopicPartition("flights", 0),
            topic_id=controller.machine.metadata(["flights"])[0].topic_id,
            broker_id=1,
            incarnation="i",
            expected_epoch=-1,
        )
        led = await controller.become_leader(request)
        assert (dict(led.settings)["retention_ms"], led.settings_version) == ("7", 1)
        await controller.replica.stop()

    play(scenario)


def test_a_new_key_is_told_to_every_actor_and_kept(play: Any) -> None:
    async def scenario(world: ControllerWorld, controller: Controller) -> None:
        before = controller.machine.keys
        world.calls.clear()
        reply = await controller.rotate_cluster_key(RotateClusterKeyRequest(key_version=0))
        assert (reply.error, reply.key_version) == (ErrorCode.NONE, 1)
        keys = (await controller.cluster_keys(ClusterKeysRequest())).keys
        assert (keys.version, keys.previous) == (1, before.current)
        assert keys.current != before.current
        placements = controller.machine.placements()
        assert {actor for actor, _ in world.calls} == {address_of(one) for one in placements}
        assert all(request == LearnKeysRequest(keys=keys) for _, request in world.calls)
        assert (await controller.metadata(MetadataRequest())).cluster_key_version == 1
        again = await controller.rotate_cluster_key(RotateClusterKeyRequest(key_version=0))
        assert (again.error, again.key_version) == (ErrorCode.NONE, 1)
        await controller.replica.stop()
        restarted = await world.begin()
        assert restarted.machine.keys == keys
        await restarted.replica.stop()
        late = await restarted.cluster_keys(ClusterKeysRequest())
        assert (late.error, late.keys) == (ErrorCode.NOT_CONTROLLER, NO_KEYS)

    play(scenario)


def test_a_controller_founds_once_and_never_where_the_metadata_log_is_gone(tmp_path: Path) -> None:
    async def body() -> None:
        world = ControllerWorld(tmp_path)
        controller = await world.begin()
        cluster_id = (await controller.metadata(MetadataRequest())).cluster_id
        await controller.replica.stop()
        identity = read_identity(RealFileSystem(), tmp_path)
        assert identity == DirectoryIdentity(
            cluster_id=cluster_id, broker_id=1, directory_id=cluster_id
        )
        again = await world.begin()
        assert (await again.metadata(MetadataRequest())).cluster_id == cluster_id
        await again.replica.stop()
        log = tmp_path / "__cluster_metadata-0"
        log.rename(tmp_path / "away")
        empty = await world.begin()
        reply = await empty.metadata(MetadataRequest())
        assert reply.error is ErrorCode.NOT_CONTROLLER
        assert f"should be of cluster {cluster_id}" in reply.detail
        await empty.replica.stop()
        shutil.rmtree(log)
        (tmp_path / "away").rename(log)
        write_identity(RealFileSystem(), tmp_path, replace(identity, cluster_id="d" * 32))
        stranger = await world.begin()
        assert "and is of cluster" in (await stranger.metadata(MetadataRequest())).detail
        await stranger.replica.stop()

    asyncio.run(body())


def test_the_settings_told_are_those_in_force(tmp_path: Path) -> None:
    """The founding fixes some: what a later start asks for is not what there is."""

    async def body() -> None:
        world = ControllerWorld(tmp_path)
        controller = await world.begin()
        assert (await controller.metadata(MetadataRequest())).settings == (
            ("replicas_per_actor", "1"),
        )
        await controller.replica.stop()
        later = ClusterConfig(offsets_partitions=7, metrics_interval_ms=5, replicas_per_actor=1)
        again = await world.begin(later)
        told = (await again.metadata(MetadataRequest())).settings
        assert told == (("metrics_interval_ms", "5"), ("replicas_per_actor", "1"))
        await again.replica.stop()

    asyncio.run(body())


def test_a_name_that_nobody_waits_for_any_more_is_forgotten(play):
    async def scenario(_world: ControllerWorld, controller: Controller) -> None:
        for name in ("flights", "a name that/is none", "t"):
            requests = [
                CreateTopicRequest(name=name, topic_id="b" * 32, partitions=1) for _ in range(3)
            ]
            await asyncio.gather(*map(controller.create_topic, requests))
        assert len(names_of(controller)) == 0

    play(scenario)


def test_topics_of_a_name_are_made_one_after_the_other(play):
    async def scenario(world: ControllerWorld, controller: Controller) -> None:
        starting: list[str] = []

        async def start(_replicas: Any) -> None:
            assert len(names_of(controller)) == 1
            starting.append("begun")
            assert len(starting) % 2 == 1
            await asyncio.sleep(0)
            starting.append("ended")

        world.start = start  # type: ignore[method-assign]
        requests = [
            CreatePartitionsRequest(name="flights", partitions=count) for count in (3, 4, 5)
        ]
        replies = await asyncio.gather(*map(controller.create_partitions, requests))
        assert {reply.error for reply in replies} == {ErrorCode.NONE}
        assert len(starting) == 6

    play(scenario)


def test_beyond_those_that_may_wait_a_request_is_to_come_again(play, monkeypatch):
    monkeypatch.setattr(coordinator_runtime, "WAITING_PER_KEY_MAX", 1)

    async def scenario(_world: ControllerWorld, controller: Controller) -> None:
        replies = await asyncio.gather(*(controller.alter_topic(alter(flush=None)) for _ in "1234"))
        assert {reply.error for reply in replies[2:]} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert {reply.error for reply in replies[:2]} == {ErrorCode.NONE}

    play(scenario)


# --- replicated partitions -----------------------------------------------------------------------

FLIGHT = TopicPartition("flights", 0)


def started(broker_id: int, incarnation: str, expected_epoch: int) -> BecomeLeaderRequest:
    return BecomeLeaderRequest(
        topic_partition=FLIGHT,
        topic_id="a" * 32,
        broker_id=broker_id,
        incarnation=incarnation,
        expected_epoch=expected_epoch,
    )


def partition_of(controller: Controller) -> Any:
    return controller.machine.topics["flights"].partitions[0]


def test_a_leader_changes_its_isr_and_who_is_in_it_leads_after_it(tmp_path: Path) -> None:
    """1. A topic of two replicas; both start, and 2 leads. 2. It proposes that 1 is not in sync,
    then that it is. 3. Its actor is silent: 1 leads. Each time the leader is told, and a restart
    knows all of it.
    """

    async def body() -> None:
        world = ControllerWorld(tmp_path)
        controller = await world.begin()
        (beat,) = await world.join(2)
        for name, topic_id in (("other", "b" * 32), ("flights", "a" * 32)):
            assert (await world.create(name, topic_id)).error is ErrorCode.NONE
        assert partition_of(controller).replicas == (2, 1)
        led = await controller.become_leader(started(2, "one", -1))
        assert (led.leader, led.leader_epoch, led.isr) == (2, 0, (2, 1))
        follows = await controller.become_leader(started(1, "two", 0))
        assert (follows.leader, follows.leader_epoch) == (2, 0)
        proposal = AlterIsrRequest(
            topic_partition=FLIGHT,
            topic_id="a" * 32,
            broker_id=2,
            leader_epoch=0,
            partition_version=follows.partition_version,
            isr=(2,),
        )
        altered = await controller.alter_isr(proposal)
        assert (altered.error, altered.isr) == (ErrorCode.NONE, (2,))
        wider = structs.replace(proposal, isr=(2, 1), partition_version=altered.partition_version)
        altered = await controller.alter_isr(wider)
        assert (altered.error, altered.isr) == (ErrorCode.NONE, (2, 1))
        again = await controller.alter_isr(wider)
        assert again.error is ErrorCode.INVALID_UPDATE_VERSION
        await give_turns()
        told = world.calls_of(LeaderAndIsrRequest)
        assert told[-1][0] == "partition:flights-0@2"
        assert told[-1][1].leadership == controller.machine.leadership(FLIGHT)
        silent = structs.replace(beat, silent_actors=("partition:flights-0@2",))
        controller.members._started_ms.clear()  # As if a session had passed since its start.
        assert (await controller.broker_heartbeat(silent)).error is ErrorCode.NONE
        before = partition_of(controller)
        assert (before.leader, before.leader_epoch, before.isr) == (1, 1, (1,))
        await give_turns()
        assert world.calls[-1][0] == "partition:flights-0@1"
        await controller.replica.stop()
        world.calls = []
        controller = await world.begin()
        assert partition_of(controller) == before
        await give_turns()
        last = world.calls[-1]
        assert last[0] == "partition:flights-0@1"
        assert last[1].leadership == controller.machine.leadership(FLIGHT)
        await controller.replica.stop()

    asyncio.run(body())


def test_a_controller_that_does_not_lead_its_log_changes_nothing(play: Any) -> None:
    async def scenario(world: ControllerWorld, controller: Controller) -> None:
        (beat,) = await world.join(2)
        await controller.replica.stop()
        not_now = ErrorCode.NOT_CONTROLLER
        assert (await controller.broker_heartbeat(beat)).error is not_now
        assert (await controller.become_leader(started(1, "one", -1))).error is not_now
        request = AlterIsrRequest(
            topic_partition=FLIGHT,
            topic_id="a" * 32,
            broker_id=1,
            leader_epoch=0,
            partition_version=1,
            isr=(1,),
        )
        assert (await controller.alter_isr(request)).error is not_now

    play(scenario)


@pytest.mark.parametrize("kafka_port", [0, 9_092])
def test_gateways_are_told_of_users_if_there_are_any(tmp_path: Path, kafka_port: int) -> None:
    async def body() -> None:
        world = ControllerWorld(tmp_path)
        controller = await world.begin(ClusterConfig(kafka_port=kafka_port))
        await world.join(2)
        await controller.alter_authorization(AlterAuthorizationRequest(is_on=True))
        told = {actor for actor, _ in world.calls_of(LearnAccessRequest)}
        gateways = {actor for actor in told if actor.startswith("gateway:")}
        assert gateways == ({"gateway:0@1", "gateway:0@2"} if kafka_port else set())
        await world.stop()

    asyncio.run(body())


def test_users_and_acls_are_durable_and_told_to_every_actor(play: Any) -> None:
    async def scenario(world: ControllerWorld, controller: Controller) -> None:
        user = User(name="alice", credential=make_credential("word", b"s" * 16, ITERATIONS_MIN))
        acl = Acl(
            principal="User:alice",
            resource=Resource.TOPIC,
            name="flights",
            operation=Operation.READ,
        )
        await world.join(2)
        world.calls.clear()
        adding = AlterAclsRequest(added=(acl,))
        switching = AlterAuthorizationRequest(is_on=True, super_users=("User:root",))
        users = await controller.alter_users(AlterUsersRequest(put=(user,)))
        acls = await controller.alter_acls(adding)
        switched = await controller.alter_authorization(switching)
        assert {users.error, acls.error, switched.error} == {ErrorCode.NONE}
        actors = {holder_of(placement) for placement in controller.machine.placements()}
        told = [(actor, one.access.rules.version) for actor, one in world.calls]
        assert sorted(told) == sorted((one, n) for one in {*actors, "broker:2"} for n in (1, 2, 3))

        # A retry logs nothing, and tells nobody.
        assert (await controller.alter_acls(adding)).error is ErrorCode.NONE
        assert len(world.calls) == len(told)
        world.calls.clear()
        await world.restart()
        controller = world.controller
        reply = await controller.access(AccessRequest())
        assert reply.access is not None
        assert reply.access.users == (user,)
        assert reply.access.rules == Rules(
            version=3, is_on=True, super_users=frozenset({"User:root"}), acls=(acl,)
        )
        assert (await controller.access(AccessRequest(known_version=3))).access is None
        described = await controller.describe_access(DescribeAccessRequest())
        assert described.users == (UserDescription(name="alice", iterations=ITERATIONS_MIN),)
        await give_turns()
        # The controller before may not have reached all.
        assert {actor for actor, _ in world.calls_of(LearnAccessRequest)} == {*actors, "broker:2"}
        await world.stop()

    play(scenario)
