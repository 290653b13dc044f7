"""Elections and data directories, as administrators among Kafka's clients ask for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka_admin
import pytest
from kafka_admin import AdminCluster, Story
from msgspec import structs
from topics import topic_of

from oncelog.actors.gateway.administration.brokers import (
    ELECTION_NOT_NEEDED,
    PARTITIONS_AT_ONCE_MAX,
    of_controller,
    repeated,
    throttle_of,
)
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from oncelog.actors.gateway.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.protocol.messages import brokers
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.cluster import MetadataReply, TopicMetadata
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

Play = Callable[[Story], None]

UNAVAILABLE = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return lambda story: kafka_admin.play(tmp_path, story)


def test_what_is_said_of_an_absent_controller_has_clients_look_for_it() -> None:
    assert of_controller(ErrorCode.NETWORK_EXCEPTION) == ErrorCode.NOT_CONTROLLER
    assert of_controller(ErrorCode.POLICY_VIOLATION) == ErrorCode.POLICY_VIOLATION
    assert of_controller(ErrorCode.REPLICA_OFFLINE) == ErrorCode.KAFKA_STORAGE_ERROR


def test_the_longest_throttle_of_several_answers_counts() -> None:
    assert throttle_of() == throttle_of(Reply()) == 0
    assert throttle_of(Reply(throttle_ms=5), Reply(), Reply(throttle_ms=9)) == 9


def test_what_is_there_more_than_once_is_found() -> None:
    assert repeated(["a", "b", "a", "c", "c", "c"]) == {"a", "c"}


# --- elections --------------------------------------------------------------------------------


async def elect(
    world: AdminCluster, *named: TopicPartition, election_type: int = 0
) -> ElectLeadersResponse:
    topics = [TopicPartitions(tp.topic, [tp.partition]) for tp in named]
    request = ElectLeadersRequest(election_type, topics or None)
    response: ElectLeadersResponse = await world.ask(ApiKey.ELECT_LEADERS, request)
    return response


def elected(response: ElectLeadersResponse) -> dict[TopicPartition, int]:
    assert response.error_code == 0
    found = [
        (TopicPartition(topic.topic, one.partition_id), one.error_code, one.error_message)
        for topic in response.replica_election_results
        for one in topic.partition_result
    ]
    assert all(bool(code) == bool(text) for _, code, text in found)
    assert len({tp for tp, _, _ in found}) == len(found)
    return {tp: code for tp, code, _ in found}


def test_only_who_has_to_is_elected_and_the_others_are_told_as_in_kafka(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        led, movable, stuck, gone = (TopicPartition("flights", number) for number in range(4))
        first, other = (topic_of("flights", 1, 2, 2), topic_of("delays", 1))
        known = MetadataReply(topics=(preferring(first, 1), preferring(other, 1)))
        world.answers[CONTROLLER_ACTOR, "metadata"] = known
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answers = {movable: ErrorCode.NONE, stuck: UNAVAILABLE, gone: unknown}

        def answer(request: brokers.ElectLeadersRequest) -> brokers.ElectLeadersReply:
            wanted = request.topic_partitions
            named = (led, movable, stuck) if wanted is None else wanted
            elections = (
                brokers.PartitionElection(
                    topic_partition=tp, leader=1, error=answers.get(tp, ErrorCode.NONE)
                )
                for tp in named
            )
            return brokers.ElectLeadersReply(elections=tuple(elections))

        world.answers[CONTROLLER_ACTOR, "elect_leaders"] = answer
        every = elected(await elect(world))
        assert every == {movable: 0, stuck: UNAVAILABLE}
        named = elected(await elect(world, led, movable, stuck, gone))
        assert named == {led: ELECTION_NOT_NEEDED, movable: 0, stuck: UNAVAILABLE, gone: unknown}
        asked = [one.topic_partitions for one in world.requests("elect_leaders")]
        assert asked == [None, (movable, stuck, gone)]

    play(story)


def preferring(topic: TopicMetadata, broker_id: int) -> TopicMetadata:
    """The topic with ``broker_id`` as the first replica that stays; broker 3 goes."""
    partitions = tuple(
        structs.replace(one, replicas=(3, broker_id, 2), removing=(3,), hosts=())
        for one in topic.partitions
    )
    return structs.replace(topic, partitions=partitions)


def test_a_preferred_leader_that_can_lead_leads_again(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        world.lead_after_ms = None
        await world.join(2, 3)
        await world.create("flights", replication_factor=2)
        tp = TopicPartition("flights", 0)
        preferred, other = world.partition(tp).replicas
        await world.lead(tp, preferred)
        await world.lead(tp, other)
        for is_draining in (True, False):
            drained = brokers.DrainBrokerRequest(broker_id=preferred, is_draining=is_draining)
            assert (await world.controller.drain_broker(drained)).error is ErrorCode.NONE
        assert world.partition(tp).leader == other
        assert elected(await elect(world)) == {tp: 0}
        assert world.partition(tp).leader == preferred
        assert elected(await elect(world)) == {}
        assert elected(await elect(world, tp)) == {tp: ELECTION_NOT_NEEDED}

    play(story)


def test_unclean_elections_are_refused(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        tp = TopicPartition("flights", 0)
        assert elected(await elect(world, tp, election_type=1)) == {tp: ErrorCode.INVALID_REQUEST}
        every = await elect(world, election_type=1)
        assert every.error_code == ErrorCode.INVALID_REQUEST
        assert world.asked == []

    play(story)


def test_who_may_not_alter_the_cluster_has_nobody_elected(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        world.allow()
        response = await elect(world, TopicPartition("flights", 0))
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert world.requests("elect_leaders") == []

    play(story)


# --- directories ------------------------------------------------------------------------------


async def log_dirs(
    world: AdminCluster, topics: list[DescribableLogDirTopic] | None = None
) -> DescribeLogDirsResponse:
    request = DescribeLogDirsRequest(topics)
    response: DescribeLogDirsResponse = await world.ask(ApiKey.DESCRIBE_LOG_DIRS, request)
    return response


def sizes(response: DescribeLogDirsResponse) -> dict[str, dict[TopicPartition, tuple[int, int]]]:
    return {
        directory.log_dir: {
            TopicPartition(topic.name, one.partition_index): (one.partition_size, one.offset_lag)
            for topic in directory.topics
            for one in topic.partitions
        }
        for directory in response.results
    }


def replica(**fields: Any) -> DescribeReplicaReply:
    given = {"directory": "/disk", "disk_size_bytes": 1_000, "disk_free_bytes": 300}
    return DescribeReplicaReply(**{**given, **fields})


def test_a_broker_tells_of_its_own_directories(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.join(2)
        await world.create("flights", partitions=3, replication_factor=2)
        follower = replica(size_bytes=5, high_watermark=9, log_end_offset=7)
        elsewhere = replica(size_bytes=6, directory="/more", high_watermark=3, log_end_offset=8)
        for number, reply in enumerate((follower, elsewhere)):
            world.answer(TopicPartition("flights", number), "describe_replica", reply)
        for topic in (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC):
            for number in range(2):
                tp = TopicPartition(topic, number)
                world.answer(tp, "describe_replica", replica(size_bytes=1))
        response = await log_dirs(world)
        assert response.error_code == 0
        found = sizes(response)
        assert found["/disk"].pop(TopicPartition("flights", 0)) == (5, 2)
        assert set(found.pop("/disk").values()) == {(1, 0)}
        assert found.pop("/more") == {TopicPartition("flights", 1): (6, 0)}
        assert found.pop("") == {TopicPartition("flights", 2): (0, 0)}
        (own,) = found.items()
        assert own == (str(world.directory), {})
        by_path = {one.log_dir: one for one in response.results}
        assert by_path[""].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert by_path["/disk"].error_code == 0
        assert (by_path["/disk"].total_bytes, by_path["/disk"].usable_bytes) == (1_000, 300)
        assert (by_path[own[0]].total_bytes, by_path[own[0]].error_code) == (-1, 0)
        assert all(actor.endswith("@1") for actor, one in world.asked if is_replicas(one))

    play(story)


def is_replicas(request: Any) -> bool:
    return bool(request.method == "describe_replica")


def test_only_the_partitions_that_are_named_are_asked(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create("flights", partitions=3)
        world.answer(TopicPartition("flights", 1), "describe_replica", replica(size_bytes=5))
        topics = [DescribableLogDirTopic("flights", [1]), DescribableLogDirTopic("gone", [0])]
        found = sizes(await log_dirs(world, topics))
        assert found["/disk"] == {TopicPartition("flights", 1): (5, 0)}
        assert len(world.requests("describe_replica")) == 1

    play(story)


def test_who_may_not_see_the_cluster_sees_no_directory(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create()
        world.allow()
        response = await log_dirs(world)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert response.results == []
        assert world.asked == []
        seen = Acl(
            principal="User:ann",
            resource=Resource.CLUSTER,
            name="oncelog",
            operation=Operation.DESCRIBE,
        )
        world.allow(seen)
        assert (await log_dirs(world)).error_code == 0

    play(story)


def test_so_many_replicas_are_asked_at_once_and_no_more(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create(partitions=PARTITIONS_AT_ONCE_MAX + 20)
        await log_dirs(world)
        assert world.busiest["describe_replica"] == PARTITIONS_AT_ONCE_MAX

    play(story)
