"""Positions of Kafka's clients: committed, fetched and deleted, with real coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import kafka_groups
import pytest
from deadlines import until
from kafka_groups import GROUP, OTHER_GROUP, GroupCluster, KafkaClient

from oncelog.actors.gateway.groups import membership, offsets
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.join_group import JoinGroupRequestProtocol
from oncelog.actors.gateway.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.actors.gateway.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from oncelog.actors.gateway.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from oncelog.actors.gateway.messages.txn_offset_commit import (
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.actors.protocol.group.consumer_protocol import Subscription, encode_subscription
from oncelog.actors.protocol.messages import group
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.actors.protocol.messages.group import (
    FetchedOffset,
    OffsetAndMetadata,
    OffsetCommitReply,
    OffsetFetchReply,
    PartitionResult,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import OFFSET_METADATA_MAX_BYTES, TopicPartition

Story = Callable[[GroupCluster], Awaitable[None]]
Play = Callable[[Story], None]

TP = TopicPartition("flights", 0)
NONE_FETCHED = (-1, -1, "", ErrorCode.NONE)
"""What is answered where there is no position."""


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return lambda story: kafka_groups.play(tmp_path, story)


async def commit(
    client: KafkaClient,
    topics: dict[str, list[OffsetCommitRequestPartition]],
    version: int = 9,
    **fields: Any,
) -> dict[str, list[tuple[int, int]]]:
    """The partitions and error codes of the response, by topic."""
    request = OffsetCommitRequest(
        topics=[OffsetCommitRequestTopic(name=name, partitions=of) for name, of in topics.items()],
        **{"group_id": GROUP, **fields},
    )
    response = await client.ask(ApiKey.OFFSET_COMMIT, version, request)
    return {
        topic.name: [(one.partition_index, one.error_code) for one in topic.partitions]
        for topic in response.topics
    }


async def committed(client: KafkaClient, offset: int, **fields: Any) -> None:
    position = {"flights": [OffsetCommitRequestPartition(0, offset)]}
    assert await commit(client, position, **fields) == {"flights": [(0, ErrorCode.NONE)]}


async def fetch(
    client: KafkaClient,
    version: int,
    topics: dict[str, list[int]] | None,
    *,
    group_id: str = GROUP,
    **fields: Any,
) -> OffsetFetchResponse:
    """Ask for the positions of one group, in either form."""
    if version < offsets.GROUPS_VERSION:
        named = topics and [OffsetFetchRequestTopic(*item) for item in topics.items()]
        request = OffsetFetchRequest(group_id=group_id, topics=named, **fields)
    else:
        of_group = topics and [
            OffsetFetchRequestTopics(name=name, partition_indexes=of) for name, of in topics.items()
        ]
        asked = OffsetFetchRequestGroup(group_id, topics=of_group)
        request = OffsetFetchRequest(groups=[asked], **fields)
    response: OffsetFetchResponse = await client.ask(ApiKey.OFFSET_FETCH, version, request)
    return response


def told(response: OffsetFetchResponse) -> Any:
    """The error of the only group, and of each partition offset, epoch, metadata and error."""
    (of,) = response.groups or [response]
    return of.error_code, {
        (topic.name, one.partition_index): (
            one.committed_offset,
            one.committed_leader_epoch,
            one.metadata,
            one.error_code,
        )
        for topic in of.topics
        for one in topic.partitions
    }


async def found(client: KafkaClient, **fields: Any) -> tuple[int, int]:
    """Offset and error code of the position in ``TP``."""
    error, positions = told(await fetch(client, 9, {"flights": [0]}, **fields))
    assert error == ErrorCode.NONE
    offset, _, _, code = positions["flights", 0]
    return offset, code


async def delete(client: KafkaClient, *names: str, group_id: str = GROUP) -> OffsetDeleteResponse:
    topics = [OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(0)]) for name in names]
    request = OffsetDeleteRequest(group_id, topics)
    response: OffsetDeleteResponse = await client.ask(ApiKey.OFFSET_DELETE, 0, request)
    return response


# --- commit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 10))
def test_a_consumer_without_a_group_commits(play: Play, version: int) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        positions = {
            "flights": [
                OffsetCommitRequestPartition(1, 7, 3, "half way"),
                OffsetCommitRequestPartition(0, 5, -1, None),
            ],
            "delays": [OffsetCommitRequestPartition(0, 2)],
        }
        # Retention counts no more, whatever a client says.
        assert await commit(client, positions, version, retention_time_ms=1) == {
            "flights": [(1, ErrorCode.NONE), (0, ErrorCode.NONE)],
            "delays": [(0, ErrorCode.NONE)],
        }
        world.clock.time_ms += 3_600_000
        await world.coordinator_of(GROUP).expire_offsets()
        assert told(await fetch(client, 9, None)) == (
            ErrorCode.NONE,
            {
                ("delays", 0): (2, -1, "", ErrorCode.NONE),
                ("flights", 0): (5, -1, "", ErrorCode.NONE),
                ("flights", 1): (7, 3, "half way", ErrorCode.NONE),
            },
        )

    play(story)


def test_each_position_of_a_commit_has_its_own_result(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        limit = OFFSET_METADATA_MAX_BYTES
        positions = {
            "flights": [
                OffsetCommitRequestPartition(0, 5, -1, "m" * (limit + 1)),
                OffsetCommitRequestPartition(1, 5, -1, "m" * limit),
            ],
            "unknown": [OffsetCommitRequestPartition(0, 1)],
            "no name": [OffsetCommitRequestPartition(0, 1)],
            "delays": [OffsetCommitRequestPartition(0, -1), OffsetCommitRequestPartition(-1, 1)],
        }
        assert await commit(client, positions) == {
            "flights": [(0, ErrorCode.OFFSET_METADATA_TOO_LARGE), (1, ErrorCode.NONE)],
            "unknown": [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
            "no name": [(0, ErrorCode.INVALID_TOPIC_EXCEPTION)],
            "delays": [(0, ErrorCode.INVALID_REQUEST), (-1, ErrorCode.INVALID_REQUEST)],
        }
        _, positions_now = told(await fetch(client, 9, None))
        assert list(positions_now) == [("flights", 1)]

    play(story)


def test_a_commit_is_one_of_the_generation_that_it_names(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter(group_instance_id="i1")
        await client.sync(joined, {joined.member_id: b"all"}, group_instance_id="i1")

        async def code(generation: int, member_id: str, instance_id: str | None = None) -> int:
            position = {"flights": [OffsetCommitRequestPartition(0, 1)]}
            answered = await commit(
                client,
                position,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                group_instance_id=instance_id,
            )
            return answered["flights"][0][1]

        generation, member_id = joined.generation_id, joined.member_id
        assert await code(-1, "") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code(generation + 1, member_id) == ErrorCode.ILLEGAL_GENERATION
        assert await code(generation, "another") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code(generation, "another", "i1") == ErrorCode.FENCED_INSTANCE_ID
        assert await code(generation, member_id, "i1") == ErrorCode.NONE

    play(story)


def test_an_error_of_the_whole_commit_is_that_of_each_position(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        world.failing["offset_commit"] = [ErrorCode.REQUEST_TIMED_OUT]
        positions = {name: [OffsetCommitRequestPartition(0, 1)] for name in ("flights", "delays")}
        assert await commit(client, positions) == {
            "flights": [(0, ErrorCode.COORDINATOR_NOT_AVAILABLE)],
            "delays": [(0, ErrorCode.COORDINATOR_NOT_AVAILABLE)],
        }

    play(story)


def test_what_a_coordinator_does_not_mention_is_not_committed() -> None:
    topics = [
        TxnOffsetCommitRequestTopic("flights", partitions=[TxnOffsetCommitRequestPartition(0, 1)]),
        TxnOffsetCommitRequestTopic("delays", partitions=[TxnOffsetCommitRequestPartition(2, 1)]),
    ]
    mentioned = [PartitionResult(topic_partition=TP, error=ErrorCode.NONE)]
    forms = {"of_topic": lambda *topic: topic, "of_partition": lambda *partition: partition}
    results = offsets.results_by_topic(topics, ErrorCode.NONE, mentioned, **forms)
    assert results == [
        ("flights", [(0, ErrorCode.NONE)]),
        ("delays", [(2, ErrorCode.UNKNOWN_SERVER_ERROR)]),
    ]


def test_positions_in_a_transaction_are_converted_too() -> None:
    partition = TxnOffsetCommitRequestPartition(3, 9, 2, None)
    topics = [TxnOffsetCommitRequestTopic("flights", partitions=[partition])]
    position = OffsetAndMetadata(offset=9, leader_epoch=2, metadata="", topic_id="")
    assert offsets.positions_of(topics) == ((TopicPartition("flights", 3), position),)


def test_a_lost_commit_is_repeated(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        world.losing["offset_commit"] = 1
        await committed(client, 4)
        assert len(world.asked("offset_commit")) == 2
        assert await found(client) == (4, ErrorCode.NONE)

    play(story)


def test_no_position_of_a_queue_is_committed(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        request = kafka_groups.queue_member(GROUP)
        await world.coordinator_of(GROUP).share_group_heartbeat(request)
        position = {"flights": [OffsetCommitRequestPartition(0, 1)]}
        assert await commit(world.client(), position) == {
            "flights": [(0, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]
        }

    play(story)


# --- fetch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 10))
def test_named_positions_are_fetched_in_the_order_asked(play: Play, version: int) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        await commit(client, {"flights": [OffsetCommitRequestPartition(1, 7, 3, "half way")]})
        asked = {"unknown": [0], "flights": [1, 0]}
        error, positions = told(await fetch(client, version, asked))
        assert error == ErrorCode.NONE
        assert list(positions.items()) == [
            (("unknown", 0), NONE_FETCHED),
            (("flights", 1), (7, 3, "half way", ErrorCode.NONE)),
            (("flights", 0), NONE_FETCHED),
        ]

    play(story)


@pytest.mark.parametrize("version", range(2, 10))
def test_all_positions_are_fetched_where_no_topic_is_named(play: Play, version: int) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        assert told(await fetch(client, version, None)) == (ErrorCode.NONE, {})
        await committed(client, 7)
        all_of_them = (ErrorCode.NONE, {("flights", 0): (7, -1, "", ErrorCode.NONE)})
        assert told(await fetch(client, version, None)) == all_of_them
        # No topics are not all topics.
        assert told(await fetch(client, version, {})) == (ErrorCode.NONE, {})
        assert world.asked("offset_fetch")[-1].partitions == ()

    play(story)


def test_a_position_that_a_transaction_may_replace_is_withheld_if_asked(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        await committed(client, 1)
        pending = (TP, OffsetAndMetadata(offset=9))
        assert await world.txn_commit(GROUP, pending) is ErrorCode.NONE
        for version in (7, 8, 9):
            stable = await fetch(client, version, {"flights": [0]}, require_stable=True)
            assert told(stable) == (
                ErrorCode.NONE,
                {("flights", 0): (-1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)},
            )
        for version in range(1, 10):
            unstable = await fetch(client, version, {"flights": [0]})
            assert told(unstable)[1]["flights", 0] == (1, -1, "", ErrorCode.NONE)
        await world.end_transaction(GROUP, committed=True)
        assert await found(client, require_stable=True) == (9, ErrorCode.NONE)

    play(story)


def test_an_error_of_the_whole_is_told_where_the_version_has_a_place(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        for version in range(1, 10):
            world.failing["offset_fetch"] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
            response = await fetch(client, version, {"flights": [0, 1]})
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if version == 1:
                assert told(response)[1] == {
                    ("flights", 0): (-1, -1, "", code),
                    ("flights", 1): (-1, -1, "", code),
                }
            else:
                assert told(response) == (code, {})

    play(story)


def test_positions_of_several_groups_are_fetched_at_a_time(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        await committed(client, 1)
        await committed(client, 2, group_id=OTHER_GROUP)
        held = world.holding["offset_fetch"] = asyncio.Event()
        topic = OffsetFetchRequestTopics(name="flights", partition_indexes=[0])
        names = (OTHER_GROUP, GROUP, "")
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(name, topics=[topic]) for name in names]
        )
        for version in (8, 9):
            held.clear()
            world.calls.clear()
            fetching = client.begin(ApiKey.OFFSET_FETCH, version, request)
            await until(lambda: len(world.asked("offset_fetch")) == 2)
            held.set()
            answered = (await fetching).groups
            assert [one.group_id for one in answered] == list(names)
            assert [one.error_code for one in answered] == [0, 0, ErrorCode.INVALID_GROUP_ID]
            positions = [one.topics[0].partitions[0].committed_offset for one in answered[:2]]
            assert positions == [2, 1]

    play(story)


def test_a_fetch_names_so_many_groups(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: GroupCluster) -> None:
        monkeypatch.setattr(offsets, "GROUPS_PER_REQUEST_MAX", 2)
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(name, topics=None) for name in "abc"]
        )
        response = await world.client().ask(ApiKey.OFFSET_FETCH, 9, request)
        assert [(one.group_id, one.error_code) for one in response.groups] == [
            ("a", ErrorCode.NONE),
            ("b", ErrorCode.NONE),
            ("c", ErrorCode.INVALID_REQUEST),
        ]
        assert len(world.asked("offset_fetch")) == 2

    play(story)


def test_a_position_that_a_coordinator_does_not_mention_is_not_taken_for_none(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        async def call(_actor: str, request: Any, *, timeout_ms: int) -> Any:
            return OffsetFetchReply(offsets=(FetchedOffset(topic_partition=TP, offset=3),))

        world.call = call
        _, positions = told(await fetch(world.client(), 9, {"flights": [0, 1]}))
        assert positions["flights", 0][3] == ErrorCode.NONE
        assert positions["flights", 1] == (-1, -1, "", ErrorCode.UNKNOWN_SERVER_ERROR)

    play(story)


# --- topics that are deleted -----------------------------------------------------------------


def test_a_position_in_a_deleted_topic_is_none_in_a_new_one_of_its_name(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        await committed(client, 7)
        assert await found(client) == (7, ErrorCode.NONE)
        del world.topic_ids["flights"]
        world.cluster = world.new_cluster()
        assert await found(client) == (-1, ErrorCode.NONE)
        assert told(await fetch(client, 9, None)) == (ErrorCode.NONE, {})
        world.topic_ids["flights"] = "f2" * 16
        world.cluster = world.new_cluster()
        assert await found(client) == (-1, ErrorCode.NONE)
        await committed(client, 2)
        assert await found(client) == (2, ErrorCode.NONE)

    play(story)


def test_a_position_in_a_topic_newer_than_what_is_known_counts(play: Play) -> None:
    """The gateway has seen the topic before it was deleted and created again."""

    async def story(world: GroupCluster) -> None:
        client = world.client()
        await committed(client, 7)
        assert await found(client) == (7, ErrorCode.NONE)
        world.topic_ids["flights"] = "f2" * 16
        own = group.OffsetCommitRequest(
            group_id=GROUP, offsets=((TP, OffsetAndMetadata(offset=2, topic_id="f2" * 16)),)
        )
        reply: OffsetCommitReply = await world.coordinator_of(GROUP).offset_commit(own)
        assert reply.results[0].error is ErrorCode.NONE
        assert world.cluster.view.known["flights"].topic_id == "f1" * 16
        assert await found(client) == (2, ErrorCode.NONE)

    play(story)


def test_without_a_controller_no_position_is_taken_for_that_of_a_deleted_topic(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        await committed(client, 7)
        world.cluster = world.new_cluster()
        assert await found(client, group_id=OTHER_GROUP) == (-1, ErrorCode.NONE)
        world.is_controller_away = True
        response = await fetch(client, 9, {"flights": [0]})
        assert told(response) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, {})

    play(story)


# --- oncelog's own clients -------------------------------------------------------------------


def test_positions_of_oncelogs_own_clients_are_the_same(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client, own = world.client(), world.coordinator_of(GROUP)
        position = OffsetAndMetadata(
            offset=5, leader_epoch=2, metadata="mine", topic_id=world.topic_ids["flights"]
        )
        reply = await own.offset_commit(
            group.OffsetCommitRequest(group_id=GROUP, offsets=((TP, position),))
        )
        assert reply.results[0].error is ErrorCode.NONE
        _, positions = told(await fetch(client, 9, {"flights": [0]}))
        assert positions["flights", 0] == (5, 2, "mine", ErrorCode.NONE)

        await commit(client, {"flights": [OffsetCommitRequestPartition(0, 6, 3, "Kafka's")]})
        fetched = await own.offset_fetch(group.OffsetFetchRequest(group_id=GROUP))
        assert fetched.offsets == (
            FetchedOffset(
                topic_partition=TP,
                offset=6,
                leader_epoch=3,
                metadata="Kafka's",
                topic_id=world.topic_ids["flights"],
            ),
        )

    play(story)


# --- rights ----------------------------------------------------------------------------------


def test_topics_that_a_client_may_not_read_are_refused_one_by_one(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        for name in ("flights", "delays"):
            positions = {name: [OffsetCommitRequestPartition(0, 1)]}
            assert await commit(world.client(), positions) == {name: [(0, ErrorCode.NONE)]}
        rights = {"principal": "User:bob", "operation": Operation.READ}
        may_delete = {**rights, "operation": Operation.DELETE}
        world.allow(
            Acl(resource=Resource.GROUP, name=GROUP, **rights),
            Acl(resource=Resource.GROUP, name=GROUP, **may_delete),
            Acl(resource=Resource.TOPIC, name="flights", **rights),
        )
        client, refused = world.client("User:bob"), ErrorCode.TOPIC_AUTHORIZATION_FAILED
        both = {name: [OffsetCommitRequestPartition(0, 5)] for name in ("delays", "flights")}
        assert await commit(client, both) == {
            "delays": [(0, refused)],
            "flights": [(0, ErrorCode.NONE)],
        }
        assert await commit(client, {"delays": both["delays"]}) == {"delays": [(0, refused)]}
        _, positions = told(await fetch(client, 9, {"delays": [0], "flights": [0]}))
        assert positions == {
            ("delays", 0): (-1, -1, "", refused),
            ("flights", 0): (5, -1, "", ErrorCode.NONE),
        }
        _, positions = told(await fetch(client, 9, None))
        assert list(positions) == [("flights", 0)]
        deleted = await delete(client, "delays", "flights")
        codes = [topic.partitions[0].error_code for topic in deleted.topics]
        assert codes == [refused, ErrorCode.NONE]
        error, positions = told(await fetch(client, 9, {"flights": [0]}, group_id=OTHER_GROUP))
        assert (error, positions) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, {})

    play(story)


# --- delete ----------------------------------------------------------------------------------


def test_positions_are_deleted_unless_members_read_their_topic(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        positions = {name: [OffsetCommitRequestPartition(0, 1)] for name in ("flights", "delays")}
        await commit(client, positions)
        subscription = encode_subscription(Subscription(topics=("flights",)))
        await client.enter(protocols=[JoinGroupRequestProtocol("range", memoryview(subscription))])
        response = await delete(client, "flights", "delays")
        assert response.error_code == ErrorCode.NONE
        assert [(one.name, one.partitions[0].error_code) for one in response.topics] == [
            ("flights", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
            ("delays", ErrorCode.NONE),
        ]
        _, left = told(await fetch(client, 9, None))
        assert list(left) == [("flights", 0)]

    play(story)


def test_of_an_unknown_group_nothing_is_deleted(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        response = await delete(world.client(), "flights", group_id="nobody")
        assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])

    play(story)


def test_a_deletion_waits_for_the_commits_before(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        await committed(client, 1)
        held = world.holding["offset_commit"] = asyncio.Event()
        committing = asyncio.create_task(committed(client, 2))
        await until(lambda: len(world.asked("offset_commit")) == 2)
        deleting = asyncio.create_task(delete(client, "flights"))
        deleting_all = asyncio.create_task(kafka_groups.delete_group(client, GROUP))
        assert await found(world.client()) == (1, ErrorCode.NONE)
        assert world.asked("delete_offsets") == world.asked("delete_group") == []
        held.set()
        await committing
        assert (await deleting).topics[0].partitions[0].error_code == ErrorCode.NONE
        await deleting_all
        assert await found(client) == (-1, ErrorCode.NONE)
        assert client.connection.remembered[membership.__name__].turns == {}

    play(story)
