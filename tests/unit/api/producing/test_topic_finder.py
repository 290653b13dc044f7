"""Partitions that were added while a producer runs are found when a record is to go there."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from oncelog.actors.protocol.messages.cluster import MetadataReply, MetadataRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import TopicAuthorizationFailedError, UnknownTopicOrPartitionError


def asked_about(cluster: Any, topic: str) -> int:
    return sum(topic in request.topics for request in cluster.requests(MetadataRequest))


def test_a_partition_that_another_program_added_is_used_at_once(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)

    async def story() -> Any:
        async with cluster.producer() as producer:
            await producer.send("t", b"before", partition=1)
            cluster.create("t", 3)
            placed = await (await producer.send("t", b"after", partition=2))
            await (await producer.send("t", b"again", partition=2))
            return placed

    assert run(story()).partition == 2
    assert asked_about(cluster, "t") == 2


def test_a_table_may_name_a_partition_that_was_just_added(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)
    table = pa.table({"value": [b"a", b"b"], "partition": [2, 0]})

    async def story() -> Any:
        async with cluster.producer() as producer:
            await producer.send("t", b"before", partition=1)
            cluster.create("t", 3)
            return await (await producer.send_arrow("t", table))

    assert {batch.partition for batch in run(story())} == {0, 2}


def test_a_partition_is_not_denied_before_the_controller_has_answered(
    cluster: Any, run: Any
) -> None:
    cluster.create("t", 1)

    async def story() -> Any:
        async with cluster.producer() as producer:
            await producer.send("t", b"before")
            cluster.create("t", 2)
            cluster.fault(MetadataRequest, ErrorCode.NETWORK_EXCEPTION)
            return await (await producer.send("t", b"after", partition=1))

    assert run(story()).partition == 1


def test_a_partition_that_is_not_there_is_asked_for_once_and_refused(
    cluster: Any, run: Any
) -> None:
    cluster.create("t", 2)
    table = pa.table({"value": [b"v"], "partition": [7]})

    async def story() -> None:
        async with cluster.producer() as producer:
            await producer.send("t", b"v", partition=1)
            with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 1, not 2"):
                await producer.send("t", b"v", partition=2)
            with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 1, not 7"):
                await producer.send_arrow("t", table)
            with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 1, not -1"):
                await producer.send("t", b"v", partition=-1)

    run(story())
    assert asked_about(cluster, "t") == 3


def test_a_topic_that_was_deleted_meanwhile_is_named(cluster: Any, run: Any) -> None:
    cluster.create("t", 2)

    async def story() -> None:
        async with cluster.producer() as producer:
            await (await producer.send("t", b"v", partition=1))
            del cluster.counts["t"]
            with pytest.raises(UnknownTopicOrPartitionError, match="there is no topic 't'"):
                await producer.send("t", b"v", partition=2)

    run(story())


def test_a_topic_that_may_not_be_seen_is_told_at_once(cluster: Any, run: Any) -> None:
    """No retry helps, and none is made."""
    cluster.create("t", 2)
    cluster.fault(MetadataRequest, MetadataReply(refused=("t",)))

    async def story() -> None:
        async with cluster.producer() as producer:
            with pytest.raises(TopicAuthorizationFailedError, match="may not Describe topic 't'"):
                await producer.send("t", b"v")

    run(story())
    assert asked_about(cluster, "t") == 1
