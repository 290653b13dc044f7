"""Which actor is called, and when it is looked up again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from deadlines import DEADLINE_S
from topics import topic_of
from virtual_time import give_turns

from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    MetadataRequest,
)
from oncelog.actors.protocol.messages.group import OffsetFetchRequest
from oncelog.actors.protocol.messages.partition import DescribeReplicaRequest
from oncelog.actors.protocol.messages.transaction import InitProducerIdRequest
from oncelog.api.session.routing import METADATA_AGE_MAX_MS
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    BrokerNotAvailableError,
    CoordinatorNotAvailableError,
    NetworkError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TopicPartition,
    shard_of,
)

T0 = TopicPartition("t", 0)


def asked(cluster: Any) -> list[tuple[str, ...] | None]:
    return [request.topics for request in cluster.requests(MetadataRequest)]


def led_by(*leaders: int) -> MetadataReply:
    return MetadataReply(
        topics=(topic_of("t", *leaders, leader_epoch=4),),
        transaction_state_partitions=2,
        offsets_partitions=2,
    )


def test_a_leader_is_asked_for_once(fake_cluster: Any, run: Any) -> None:
    fake_cluster.create("t", 2)
    router = fake_cluster.router()

    async def story() -> None:
        assert await router.leader(T0) == ("partition:t-0@1", 0)
        assert await router.leader(TopicPartition("t", 1)) == ("partition:t-1@1", 0)

    run(story())
    assert asked(fake_cluster) == [("t",)]


def test_callers_that_want_the_same_share_one_question(fake_cluster: Any, run: Any) -> None:
    fake_cluster.create("t", 2)
    router = fake_cluster.router()

    async def story() -> None:
        await asyncio.gather(*(router.leader(T0) for _ in range(5)))

    run(story())
    assert asked(fake_cluster) == [("t",)]


@pytest.mark.parametrize("turns", [1, 2])
def test_a_look_up_that_is_cancelled_is_made_again_for_all_who_wait(
    fake_cluster: Any, run: Any, turns: int
) -> None:
    """As frameworks do when they shut down: even before the first step of its task."""
    fake_cluster.create("t")
    router = fake_cluster.router()

    async def story() -> None:
        callers = [asyncio.ensure_future(router.leader(T0)) for _ in range(3)]
        await give_turns(turns)
        for task in asyncio.all_tasks() - {asyncio.current_task(), *callers}:
            task.cancel()
        answers = await asyncio.wait_for(asyncio.gather(*callers), DEADLINE_S)
        assert answers == [("partition:t-0@1", 0)] * 3
        assert await router.leader(T0) == ("partition:t-0@1", 0)

    run(story())


def test_a_caller_that_is_cancelled_takes_no_look_up_from_the_others(
    fake_cluster: Any, run: Any
) -> None:
    fake_cluster.create("t")
    router = fake_cluster.router()

    async def story() -> None:
        first, second = (asyncio.ensure_future(router.leader(T0)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == ("partition:t-0@1", 0)
        assert first.cancelled()

    run(story())
    assert asked(fake_cluster) == [("t",)]


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NETWORK_EXCEPTION])
def test_a_leader_that_moved_or_is_gone_is_looked_up_again(
    fake_cluster: Any, run: Any, error: ErrorCode
) -> None:
    fake_cluster.create("t")
    fake_cluster.fail(DescribeReplicaRequest, error)
    router = fake_cluster.router()

    async def story() -> None:
        await router.call_leader(T0, DescribeReplicaRequest(), timeout_ms=100)
        await router.leader(T0)

    run(story())
    assert asked(fake_cluster) == [("t",), ("t",)]


def test_an_old_hint_serves_while_the_controller_is_away(fake_cluster: Any, run: Any) -> None:
    fake_cluster.create("t")
    router = fake_cluster.router()

    async def story() -> None:
        await router.leader(T0)
        router.invalidate(T0)
        fake_cluster.fail(MetadataRequest, ErrorCode.NETWORK_EXCEPTION)
        assert await router.leader(T0) == ("partition:t-0@1", 0)

    run(story())


def test_an_unknown_leader_and_no_controller_is_an_error(fake_cluster: Any, run: Any) -> None:
    fake_cluster.fail(MetadataRequest, ErrorCode.NETWORK_EXCEPTION)

    async def story() -> None:
        with pytest.raises(NetworkError):
            await fake_cluster.router().leader(T0)

    run(story())


def test_a_topic_that_may_not_be_seen_is_not_taken_for_one_that_does_not_exist(
    fake_cluster: Any, run: Any
) -> None:
    """Not even while it is known from before, and whether it exists or not."""
    fake_cluster.create("t")
    router = fake_cluster.router()

    async def story() -> None:
        await router.leader(T0)
        fake_cluster.hidden = {"t", "absent"}
        for topic in ("t", "absent"):
            text = f"may not Describe topic '{topic}', .*; ask an operator for an ACL$"
            with pytest.raises(TopicAuthorizationFailedError, match=text):
                await router.metadata((topic,), refresh=True)
            with pytest.raises(TopicAuthorizationFailedError, match=text):
                await router.leader(TopicPartition(topic, 0))
            with pytest.raises(TopicAuthorizationFailedError, match=text):
                await router.ask_for(topic)
        assert await router.all_topics() == await router.metadata(INTERNAL_TOPICS)
        fake_cluster.hidden = set()
        assert await router.leader(T0) == ("partition:t-0@1", 0)

    run(story())


def test_who_asks_for_another_topic_is_not_told_of_one_that_may_not_be_seen(
    fake_cluster: Any, run: Any
) -> None:
    """Two callers share a look-up."""
    fake_cluster.create("t")
    fake_cluster.hidden = {"u"}
    router = fake_cluster.router()

    async def story() -> None:
        both = asyncio.ensure_future(router.metadata(("t", "u")))
        await asyncio.sleep(0)
        assert await router.leader(T0) == ("partition:t-0@1", 0)
        with pytest.raises(TopicAuthorizationFailedError):
            await both

    run(story())


def test_a_missing_topic_is_named_with_how_to_create_it(fake_cluster: Any, run: Any) -> None:
    async def story() -> None:
        with pytest.raises(UnknownTopicOrPartitionError, match=r"admin\.create_topic\('t'"):
            await fake_cluster.router().leader(T0)

    run(story())


def test_a_missing_partition_is_named(fake_cluster: Any, run: Any) -> None:
    fake_cluster.create("t", 2)

    async def story() -> None:
        with pytest.raises(UnknownTopicOrPartitionError, match="0 to 1, not 2"):
            await fake_cluster.router().leader(TopicPartition("t", 2))

    run(story())


def test_a_partition_without_leader_is_asked_for_again(fake_cluster: Any, run: Any) -> None:
    leaders = [led_by(-1), led_by(2)]
    fake_cluster.hooks[MetadataRequest] = lambda request: leaders.pop(0)
    router = fake_cluster.router()

    async def story() -> None:
        with pytest.raises(BrokerNotAvailableError):
            await router.leader(T0)
        assert await router.leader(T0) == ("partition:t-0@2", 4)

    run(story())


def test_a_failed_look_up_is_a_reply_with_its_code(fake_cluster: Any, run: Any) -> None:
    async def story() -> None:
        reply = await fake_cluster.router().call_leader(
            T0, DescribeReplicaRequest(), timeout_ms=100
        )
        assert reply.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "create" in reply.detail

    run(story())


def test_coordinators_are_those_of_the_ids_shard(fake_cluster: Any, run: Any) -> None:
    router = fake_cluster.router()

    async def story() -> None:
        await router.start()
        for name in ("a", "b", "loader", "billing"):
            shard = shard_of(name, 2)
            assert router.transaction_coordinator(name) == f"transaction:{shard}@1"
            assert router.group_coordinator(name) == f"group:{shard}@1"
            assert router.offsets_partition(name) == TopicPartition(CONSUMER_OFFSETS_TOPIC, shard)

    run(story())


def test_coordinators_are_not_known_before_start(fake_cluster: Any) -> None:
    with pytest.raises(CoordinatorNotAvailableError):
        fake_cluster.router().transaction_coordinator("loader")


@pytest.mark.parametrize("error", [ErrorCode.NOT_COORDINATOR, ErrorCode.NETWORK_EXCEPTION])
def test_a_coordinator_that_moved_or_is_gone_is_looked_up_again(
    fake_cluster: Any, run: Any, error: ErrorCode
) -> None:
    fake_cluster.fail(InitProducerIdRequest, error)
    router = fake_cluster.router()

    async def story() -> None:
        for _ in range(2):
            await router.call_transaction_coordinator(
                "loader", InitProducerIdRequest(transactional_id="loader"), timeout_ms=100
            )

    run(story())
    assert len(asked(fake_cluster)) == 2


def test_a_group_is_called_at_its_own_coordinator(fake_cluster: Any, run: Any) -> None:
    router = fake_cluster.router()

    async def story() -> None:
        request = OffsetFetchRequest(group_id="billing")
        await router.call_group_coordinator("billing", request, timeout_ms=100)

    run(story())
    assert fake_cluster.calls[-1][0] == f"group:{shard_of('billing', 2)}@1"


def test_the_offsets_log_is_led_by_its_group_coordinator(fake_cluster: Any, run: Any) -> None:
    async def story() -> None:
        partition = TopicPartition(CONSUMER_OFFSETS_TOPIC, 1)
        assert (await fake_cluster.router().leader(partition))[0] == "group:1@1"

    run(story())


def test_a_topic_is_asked_for_again_when_it_may_have_more_partitions(
    fake_cluster: Any, run: Any
) -> None:
    fake_cluster.create("t", 1)
    router = fake_cluster.router()

    async def story() -> None:
        assert await router.partition_count("t") == 1
        fake_cluster.create("t", 2)
        await asyncio.sleep(METADATA_AGE_MAX_MS / 1_000 - 1)
        assert await router.partition_count("t") == 1
        await asyncio.sleep(2)
        assert await router.partition_count("t") == 2

    run(story())
    assert len(asked(fake_cluster)) == 2


def test_what_is_old_serves_on_while_the_controller_is_away(fake_cluster: Any, run: Any) -> None:
    fake_cluster.create("t", 1)
    router = fake_cluster.router()

    async def story() -> None:
        await router.leader(T0)
        fake_cluster.answers[MetadataRequest] = lambda request: request.failed(
            ErrorCode.REQUEST_TIMED_OUT
        )
        await asyncio.sleep(METADATA_AGE_MAX_MS / 1_000 + 1)
        for _ in range(3):
            assert await router.leader(T0) == ("partition:t-0@1", 0)

    run(story())
    assert len(asked(fake_cluster)) == 2


def test_a_deleted_topic_is_forgotten(fake_cluster: Any, run: Any) -> None:
    fake_cluster.create("t")
    router = fake_cluster.router()

    async def story() -> None:
        assert "t" in await router.all_topics()
        fake_cluster.counts.clear()
        assert "t" not in await router.all_topics()
        assert "t" not in router.known_topics

    run(story())
