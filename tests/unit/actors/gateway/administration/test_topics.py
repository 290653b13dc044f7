"""Creating, growing and deleting topics for clients of Kafka, with a real controller."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka_admin
import pytest
from deadlines import until
from kafka_admin import AdminCluster, Story

from oncelog.actors.coordination.cluster_view import ANY_AGE_MS
from oncelog.actors.gateway.administration.brokers import (
    ANSWER_TIMEOUT_MS,
    CHANGES_AT_ONCE_MAX,
    PARTITIONS_AT_ONCE_MAX,
)
from oncelog.actors.gateway.administration.topics import LED_WAIT_MAX_MS
from oncelog.actors.gateway.calls import Call, Client
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from oncelog.actors.gateway.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from oncelog.actors.gateway.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.actors.gateway.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from oncelog.actors.gateway.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.actors.gateway.messages.primitives import NO_UUID
from oncelog.actors.gateway.metadata import LEADER_NOT_AVAILABLE, SHARED_MS, MetadataHandlers
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages import cluster
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.actors.protocol.messages.cluster import MetadataReply
from oncelog.actors.protocol.messages.partition import DeleteRecordsReply
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition

Play = Callable[[Story], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return lambda story: kafka_admin.play(tmp_path, story)


def new(name: str = "flights", partitions: int = 1, factor: int = 1, **fields: Any) -> Any:
    configs = [
        CreatableTopicConfig(name=key.replace("_", "."), value=value)
        for key, value in fields.pop("configs", {}).items()
    ]
    return CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, configs=configs, **fields
    )


async def create(world: AdminCluster, *topics: CreatableTopic, **fields: Any) -> Any:
    request = CreateTopicsRequest(topics=list(topics), **fields)
    response = await world.ask(ApiKey.CREATE_TOPICS, request)
    assert len(response.topics) == len({topic.name for topic in topics})
    return response.topics[0] if len(topics) == 1 else {one.name: one for one in response.topics}


async def grow(
    world: AdminCluster, name: str, count: int, *, validate_only: bool = False, **fields: Any
) -> CreatePartitionsTopicResult:
    topic = CreatePartitionsTopic(name=name, count=count, **fields)
    request = CreatePartitionsRequest([topic], 60_000, validate_only)
    (result,) = (await world.ask(ApiKey.CREATE_PARTITIONS, request)).results
    found: CreatePartitionsTopicResult = result
    return found


async def delete(world: AdminCluster, *topics: DeleteTopicState) -> list[DeletableTopicResult]:
    request = DeleteTopicsRequest(topics=list(topics), timeout_ms=30_000)
    response = await world.ask(ApiKey.DELETE_TOPICS, request)
    found: list[DeletableTopicResult] = response.responses
    return found


# --- creating ---------------------------------------------------------------------------------


async def seen(handlers: MetadataHandlers, world: AdminCluster, name: str) -> set[int | None]:
    """The errors of a topic's partition, to who asks for all topics and who asks by its name.

    ``None``: there is no such topic.
    """
    client = Client(principal=Principal("User:ann"), host="10.0.0.9")
    call = Call(cluster=world.cluster, client=client, version=12)
    named = MetadataRequest([MetadataRequestTopic(name=name)])
    found: set[int | None] = set()
    for request in (MetadataRequest(None), named):
        response = await handlers.metadata(call, request)
        topics = [one for one in response.topics if one.name == name and not one.error_code]
        found |= {one.partitions[0].error_code for one in topics} or {None}
    return found


def test_what_was_created_or_deleted_is_so_to_whoever_asks_next(play: Play) -> None:
    """Timeline: 1. a topic is being created 2. another client sees it without a leader 3. its
    creation is answered 4. it has one, though answers are shared for a while. And once more, with
    its deletion.
    """

    async def story(world: AdminCluster) -> None:
        world.lead_after_ms = SHARED_MS // 4
        config, bugs = kafka_admin.ACTORS_ALONE, list[BaseException]()
        handlers = MetadataHandlers(world.cluster, config, lambda: ("here", 1), bugs.append)
        creating = asyncio.create_task(create(world, new("flights")))
        await until(lambda: world.requests("create_topic"))
        await asyncio.sleep(0.001)
        assert await seen(handlers, world, "flights") == {LEADER_NOT_AVAILABLE}
        assert (await creating).error_code == 0
        assert loop_ms() < SHARED_MS
        assert await seen(handlers, world, "flights") == {0}
        await delete(world, DeleteTopicState(name="flights"))
        assert await seen(handlers, world, "flights") == {None}

    play(story)


def test_a_new_topic_has_what_was_asked_for_and_the_answer_tells_it(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        wanted = {"retention_ms": "5000", "cleanup_policy": "compact", "compression_type": None}
        wanted["segment_ms"] = "604800000"  # The default, which is not kept.
        result = await create(world, new(partitions=3, configs=wanted))
        topic = world.topic("flights")
        assert result.error_code == 0
        assert result.error_message is None
        assert dict(topic.settings) == {"retention_ms": "5000", "cleanup_policy": "compact"}
        assert result.topic_id == bytes.fromhex(topic.topic_id)
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        configs = {one.name: (one.value, one.config_source) for one in result.configs}
        assert configs["retention.ms"] == ("5000", 1)
        assert configs["segment.bytes"] == ("268435456", 5)

    play(story)


def test_a_topic_of_default_size_gets_the_defaults_of_the_cluster(tmp_path: Path) -> None:
    config = dataclasses.replace(kafka_admin.ACTORS_ALONE, kafka_num_partitions=4)

    async def story(world: AdminCluster) -> None:
        await world.join(2, 3)
        result = await create(world, new(partitions=-1, factor=-1))
        assert (result.num_partitions, result.replication_factor) == (4, 3)
        assert len(world.topic("flights").partitions) == 4
        minimum = next(one for one in result.configs if one.name == "min.insync.replicas")
        assert minimum.value == "2"

    kafka_admin.play(tmp_path, story, config)


def test_a_new_topic_is_led_before_the_answer(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        world.lead_after_ms = 700
        await create(world, new("flights", 2), new("delays", 1))
        for name in ("flights", "delays"):
            assert all(one.leader == 1 for one in world.topic(name).partitions)
        assert loop_ms() < LED_WAIT_MAX_MS

    play(story)


@pytest.mark.parametrize(
    ("timeout_ms", "waited_ms"), [(60_000, LED_WAIT_MAX_MS), (2_000, 2_000), (0, 0), (-1, 0)]
)
def test_a_topic_that_nobody_leads_holds_the_answer_up_so_long_and_is_created(
    play: Play, timeout_ms: int, waited_ms: int
) -> None:
    async def story(world: AdminCluster) -> None:
        world.lead_after_ms = None
        result = await create(world, new(), timeout_ms=timeout_ms)
        assert result.error_code == 0
        assert waited_ms - 1_000 <= loop_ms() <= waited_ms
        assert world.topic("flights")

    play(story)


def test_a_topic_that_is_gone_again_holds_the_answer_up_no_longer_than_others(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        world.answers[CONTROLLER_ACTOR, "metadata"] = MetadataReply()
        result = await create(world, new())
        assert (result.error_code, result.num_partitions) == (0, 1)
        assert loop_ms() <= LED_WAIT_MAX_MS

    play(story)


def test_what_is_only_validated_is_not_created_nor_waited_for(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        result = await create(world, new(partitions=2), validate_only=True)
        assert (result.error_code, result.topic_id) == (0, NO_UUID)
        assert world.controller.machine.metadata(["flights"]) == ()
        assert world.requests("metadata") == []
        wrong = await create(world, new(factor=2), validate_only=True)
        assert wrong.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert "replication_factor=2" in wrong.error_message

    play(story)


def test_one_topic_that_is_refused_holds_up_no_other(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await create(world, new("old"))
        given = [
            new("good"),
            new("old"),
            new("no/name"),
            new("none", 0),
            new("odd", configs={"retention_mss": "5"}),
            new("bad", configs={"retention_ms": "soon"}),
            new("lags", configs={"min_compaction_lag_ms": "5", "max_compaction_lag_ms": "3"}),
            new("insync", configs={"min_insync_replicas": "2"}),
            new("twice"),
            new("twice", 2),
        ]
        results = await create(world, *given)
        codes = {name: ErrorCode(one.error_code) for name, one in results.items()}
        assert codes == {
            "good": ErrorCode.NONE,
            "old": ErrorCode.TOPIC_ALREADY_EXISTS,
            "no/name": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "none": ErrorCode.INVALID_PARTITIONS,
            "odd": ErrorCode.INVALID_CONFIG,
            "bad": ErrorCode.INVALID_CONFIG,
            "lags": ErrorCode.INVALID_CONFIG,
            "insync": ErrorCode.INVALID_CONFIG,
            "twice": ErrorCode.INVALID_REQUEST,
        }
        assert "did you mean retention.ms?" in results["odd"].error_message
        assert "retention.ms='soon'" in results["bad"].error_message
        assert "min.compaction.lag.ms=5" in results["lags"].error_message
        assert "min.insync.replicas=2" in results["insync"].error_message
        assert world.controller.machine.metadata(["twice"]) == ()

    play(story)


def test_an_assignment_is_taken_only_if_it_is_the_only_one(play: Play) -> None:
    def assigned(*brokers: list[int], **fields: Any) -> CreatableTopic:
        rows = [CreatableReplicaAssignment(number, ids) for number, ids in enumerate(brokers)]
        return new(assignments=rows, **{"partitions": -1, "factor": -1, **fields})

    async def story(world: AdminCluster) -> None:
        gap = new(partitions=-1, factor=-1, assignments=[CreatableReplicaAssignment(1, [1])])
        for wrong in (assigned([2]), assigned([1], [1, 2]), gap):
            result = await create(world, wrong)
            assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert "partitions reassign" in result.error_message
        both = await create(world, assigned([1], partitions=1))
        assert both.error_code == ErrorCode.INVALID_REQUEST
        result = await create(world, assigned([1], [1]))
        assert (result.error_code, result.num_partitions) == (0, 2)
        await world.join(2)
        result = await create(world, assigned([1], name="delays"))
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    play(story)


def test_who_may_not_create_a_topic_is_told_so_and_another_is_created(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        who, kind = "User:ann", Resource.TOPIC
        world.allow(
            Acl(principal=who, resource=kind, name="flights", operation=Operation.CREATE),
        )
        results = await create(world, new("flights"), new("delays"))
        assert results["flights"].error_code == 0
        assert results["delays"].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "User:ann" in results["delays"].error_message
        assert len(world.requests("create_topic")) == 1

    play(story)


def test_a_controller_that_moves_is_asked_again_and_creates_one_topic(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        world.failing["create_topic"] = [ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_CONTROLLER]
        world.losing["create_topic"] = 1
        result = await create(world, new())
        assert result.error_code == 0
        assert len(world.requests("create_topic")) == 4

    play(story)


def test_a_controller_that_stays_away_is_told_as_one_to_look_for(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        world.failing["create_topic"] = [ErrorCode.NETWORK_EXCEPTION] * 1_000
        result = await create(world, new(), timeout_ms=9_000)
        timeouts_ms = [left_ms for _, left_ms in world.timeouts_ms]
        assert timeouts_ms[0] == 9_000
        assert timeouts_ms == sorted(timeouts_ms, reverse=True)
        assert timeouts_ms[-1] <= 2_000
        assert result.error_code == ErrorCode.NOT_CONTROLLER
        assert 7_000 < loop_ms() <= 9_000
        result = await create(world, new(), timeout_ms=600_000)
        assert result.error_code == ErrorCode.NOT_CONTROLLER
        assert loop_ms() <= 9_000 + ANSWER_TIMEOUT_MS

    play(story)


def test_so_many_topics_are_changed_at_once_and_no_more(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        names = [f"topic{number}" for number in range(3 * CHANGES_AT_ONCE_MAX)]
        await create(world, *map(new, names))
        assert world.busiest["create_topic"] == CHANGES_AT_ONCE_MAX

    play(story)


# --- partitions -------------------------------------------------------------------------------


def test_a_topic_grows_to_the_total_that_is_asked_for_and_is_led(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await create(world, new(partitions=2))
        world.lead_after_ms = 700
        result = await grow(world, "flights", 5)
        assert (result.error_code, result.error_message) == (0, None)
        assert [one.leader for one in world.topic("flights").partitions] == [1] * 5

    play(story)


def test_an_assignment_of_more_partitions_is_taken_only_if_it_is_the_only_one(play: Play) -> None:
    def assigned(*brokers: list[int]) -> dict[str, Any]:
        return {"assignments": [CreatePartitionsAssignment(ids) for ids in brokers]}

    async def story(world: AdminCluster) -> None:
        await create(world, new(partitions=2))
        for wrong in (assigned([1]), assigned([1], [2]), assigned([1], [1], [1])):
            result = await grow(world, "flights", 4, **wrong)
            assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert "partitions reassign" in (result.error_message or "")
        result = await grow(world, "flights", 4, **assigned([1], [1]))
        assert (result.error_code, len(world.topic("flights").partitions)) == (0, 4)
        fewer = await grow(world, "flights", 1, **assigned([1]))
        assert fewer.error_code == ErrorCode.INVALID_PARTITIONS
        await world.join(2)
        result = await grow(world, "flights", 5, **assigned([1]))
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    play(story)


def test_partitions_that_cannot_be_added_are_refused_as_in_kafka(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await create(world, new(partitions=2))
        same = await grow(world, "flights", 2)
        assert same.error_code == ErrorCode.INVALID_PARTITIONS
        assert "has 2 partitions already" in (same.error_message or "")
        fewer = await grow(world, "flights", 1)
        assert fewer.error_code == ErrorCode.INVALID_PARTITIONS
        unknown = await grow(world, "delays", 2)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        internal = await grow(world, CONSUMER_OFFSETS_TOPIC, 9)
        assert internal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        validated = await grow(world, "flights", 3, validate_only=True)
        assert validated.error_code == 0
        topics = [CreatePartitionsTopic("flights", 3), CreatePartitionsTopic("flights", 4)]
        twice = await world.ask(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(topics))
        assert [one.error_code for one in twice.results] == [ErrorCode.INVALID_REQUEST]
        assert len(world.topic("flights").partitions) == 2

    play(story)


def test_partitions_whose_first_answer_was_lost_are_added(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await create(world, new())
        world.losing["create_partitions"] = 1
        assert (await grow(world, "flights", 2)).error_code == 0

    play(story)


# --- deleting ---------------------------------------------------------------------------------


def test_topics_are_deleted_by_name_and_by_id(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        created = await create(world, new("flights"), new("delays"), new("kept"))
        by_id = DeleteTopicState(topic_id=created["delays"].topic_id)
        results = await delete(world, DeleteTopicState(name="flights"), by_id)
        assert [(one.name, one.error_code) for one in results] == [("flights", 0), ("delays", 0)]
        assert results[1].topic_id == by_id.topic_id
        left = {topic.name for topic in world.controller.machine.metadata(None)}
        assert left & set(created) == {"kept"}

    play(story)


def test_a_topic_that_has_taken_the_name_of_one_deleted_by_id_stays(play: Play) -> None:
    """Timeline: 1. a client asks for the deletion of an id 2. the controller tells its name
    3. another client deletes the topic and creates it again 4. the deletion arrives.
    """

    async def story(world: AdminCluster) -> None:
        created = await create(world, new())
        seen = await world.controller.metadata(cluster.MetadataRequest())
        await delete(world, DeleteTopicState(name="flights"))
        await create(world, new())
        world.answers[CONTROLLER_ACTOR, "metadata"] = seen
        by_id = DeleteTopicState(topic_id=created.topic_id)
        (result,) = await delete(world, by_id)
        assert result.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert world.topic("flights")

    play(story)


@pytest.mark.parametrize("is_by_id", [False, True])
def test_a_topic_whose_deletion_was_not_heard_of_is_deleted(play: Play, is_by_id: bool) -> None:
    async def story(world: AdminCluster) -> None:
        created = await create(world, new())
        named = DeleteTopicState(name="flights")
        world.losing["delete_topic"] = 1
        (result,) = await delete(
            world, DeleteTopicState(topic_id=created.topic_id) if is_by_id else named
        )
        assert result.error_code == 0
        assert len(world.requests("delete_topic")) == 2

    play(story)


def test_topics_are_deleted_by_name_in_the_old_form(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await create(world, new("flights"), new("delays"))
        request = DeleteTopicsRequest(topic_names=["flights", "delays"], timeout_ms=30_000)
        response = await world.ask(ApiKey.DELETE_TOPICS, request)
        assert [(one.name, one.error_code) for one in response.responses] == [
            ("flights", 0),
            ("delays", 0),
        ]
        assert world.controller.machine.metadata(["flights", "delays"]) == ()

    play(story)


def test_a_topic_that_cannot_be_deleted_is_refused_with_the_reason(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        created = await create(world, new())
        unknown_id = b"\x01" * 16
        results = await delete(
            world,
            DeleteTopicState(name="delays"),
            DeleteTopicState(topic_id=unknown_id),
            DeleteTopicState(name=CONSUMER_OFFSETS_TOPIC),
            DeleteTopicState(),
            DeleteTopicState(name="both", topic_id=unknown_id),
            DeleteTopicState(name="flights"),
            DeleteTopicState(topic_id=created.topic_id),
        )
        assert [ErrorCode(one.error_code) for one in results] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
        ]
        assert "'delays'" in (results[0].error_message or "")
        assert unknown_id.hex() in (results[1].error_message or "")
        assert world.topic("flights")

    play(story)


def test_a_topic_that_may_not_be_seen_has_no_id_that_could_be_deleted(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        created = await create(world, new())
        world.allow()
        results = await delete(
            world,
            DeleteTopicState(topic_id=created.topic_id),
            DeleteTopicState(name="flights"),
            DeleteTopicState(name="delays"),
        )
        forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert [one.error_code for one in results] == [
            ErrorCode.UNKNOWN_TOPIC_ID,
            forbidden,
            forbidden,
        ]
        assert results[0].name is None
        assert world.topic("flights")

    play(story)


def test_what_the_gateway_knew_of_a_topic_that_has_changed_is_asked_anew(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        view = world.cluster.view

        async def is_known_after(change: Any) -> bool:
            await view.topics(("flights",), as_of_ms=ANY_AGE_MS)
            await change
            return not view.unknown(("flights",), as_of_ms=ANY_AGE_MS)

        await create(world, new())
        assert not await is_known_after(grow(world, "flights", 2))
        assert not await is_known_after(delete(world, DeleteTopicState(name="flights")))
        await create(world, new())
        assert await is_known_after(create(world, new("delays")))

    play(story)


# --- records ----------------------------------------------------------------------------------


async def delete_records(world: AdminCluster, **offsets: list[int]) -> dict[str, list[Any]]:
    topics = [
        DeleteRecordsTopic(
            name=name,
            partitions=[DeleteRecordsPartition(number, one) for number, one in enumerate(each)],
        )
        for name, each in offsets.items()
    ]
    response = await world.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics, 30_000))
    return {
        topic.name: [(one.low_watermark, one.error_code) for one in topic.partitions]
        for topic in response.topics
    }


def test_leaders_delete_records_and_each_tells_its_own_error(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await create(world, new(partitions=4))
        beyond = DeleteRecordsReply(error=ErrorCode.OFFSET_OUT_OF_RANGE)
        policy = DeleteRecordsReply(error=ErrorCode.POLICY_VIOLATION)
        for number, reply in enumerate([DeleteRecordsReply(log_start_offset=7), beyond, policy]):
            world.answer(TopicPartition("flights", number), "delete_records", reply)
        found = await delete_records(world, flights=[-1, 9, 9, -2, 1], gone=[1])
        assert found == {
            "flights": [
                (7, 0),
                (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
                (-1, ErrorCode.POLICY_VIOLATION),
                (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
                (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ],
            "gone": [(-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
        }
        internal = await delete_records(world, **{CONSUMER_OFFSETS_TOPIC: [1]})
        assert internal == {CONSUMER_OFFSETS_TOPIC: [(-1, ErrorCode.INVALID_TOPIC_EXCEPTION)]}

    play(story)


def test_a_leader_that_has_moved_is_looked_for_once(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        tp = TopicPartition("flights", 0)
        await create(world, new())
        world.answer(tp, "delete_records", DeleteRecordsReply(log_start_offset=2))
        assert await delete_records(world, flights=[2]) == {"flights": [(2, 0)]}
        # No time passes: what is known is as new as it can be, and wrong.
        world.move(tp, 2)
        moved = DeleteRecordsReply(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        world.answer(tp, "delete_records", moved)
        world.answer(tp, "delete_records", DeleteRecordsReply(log_start_offset=3), 2)
        assert await delete_records(world, flights=[3]) == {"flights": [(3, 0)]}
        away = DeleteRecordsReply(error=ErrorCode.NETWORK_EXCEPTION)
        world.answer(tp, "delete_records", away, 2)
        before = len(world.requests("delete_records"))
        not_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await delete_records(world, flights=[3]) == {"flights": [(-1, not_leader)]}
        assert len(world.requests("delete_records")) == before + 2

    play(story)


def test_whether_a_topic_is_there_is_not_told_to_who_may_not_delete_from_it(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await create(world, new())
        world.allow()
        forbidden = [(-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
        found = await delete_records(world, flights=[1], gone=[1])
        assert found == {"flights": forbidden, "gone": forbidden}

    play(story)


def test_so_many_leaders_are_asked_at_once_and_no_more(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        count = PARTITIONS_AT_ONCE_MAX + 20
        await create(world, new(partitions=count))
        for number in range(count):
            tp = TopicPartition("flights", number)
            world.answer(tp, "delete_records", DeleteRecordsReply(log_start_offset=number))
        found = await delete_records(world, flights=[-1] * count)
        assert [low for low, _ in found["flights"]] == list(range(count))
        assert world.busiest["delete_records"] == PARTITIONS_AT_ONCE_MAX
        await asyncio.sleep(0)

    play(story)
