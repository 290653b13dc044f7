"""What operators ask for, against real servers: elections, directories, offsets, dry runs."""

from __future__ import annotations

import pytest
from sim_world import World, WorldSettings

from oncelog.storage.exceptions import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    InvalidConfigError,
    InvalidReplicationFactorError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

T0, T1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


def ask(world, scenario):
    """Run ``scenario`` with an admin client."""
    client = world.client("operator")

    async def operate():
        return await scenario(client.admin(), client)

    return world.run(client.spawn(operate()))


def test_what_is_only_validated_is_not_done():
    async def scenario(admin, client):
        topic_id = await admin.create_topic("new", 3, validate_only=True)
        assert len(topic_id) == 32
        with pytest.raises(TopicAlreadyExistsError):
            await admin.create_topic("flights", validate_only=True)
        with pytest.raises(InvalidReplicationFactorError):
            await admin.create_topic("new", replication_factor=2, validate_only=True)
        await admin.create_partitions("flights", 4, validate_only=True)
        await admin.alter_topic("flights", retention_ms=5_000, validate_only=True)
        with pytest.raises(InvalidConfigError):
            await admin.alter_topic("flights", min_insync_replicas=2, validate_only=True)
        assert await admin.list_topics() == ["flights"]
        seen = await admin.describe_topic("flights")
        assert (len(seen.partitions), seen.settings) == (2, ())

    with World(seed=1, topics={"flights": 2}) as world:
        ask(world, scenario)


def test_a_member_of_a_list_is_appended_and_subtracted():
    async def scenario(admin, client):
        async def policy():
            return dict((await admin.describe_topic("flights")).settings).get("cleanup_policy")

        for _ in range(2):  # a repeated call changes nothing
            await admin.alter_topic("flights", append={"cleanup_policy": "compact"})
            assert await policy() == "compact,delete"
        await admin.alter_topic("flights", subtract={"cleanup_policy": "delete"})
        assert await policy() == "compact"
        for wrong, message in (
            ({"append": {"cleanup_policy": "shred"}}, "'shred' is not allowed; give one of"),
            ({"append": {"retention_ms": "5"}}, "give a setting that is a list: cleanup_policy"),
            ({"subtract": {"cleanup_policy": "compact"}}, "give at least one of compact, delete"),
        ):
            with pytest.raises(InvalidConfigError, match=message):
                await admin.alter_topic("flights", **wrong)
        assert await policy() == "compact"

    with World(seed=2, topics={"flights": 1}) as world:
        ask(world, scenario)


def test_offsets_of_topics_that_nobody_reads_are_deleted():
    async def scenario(admin, client):
        with pytest.raises(GroupIdNotFoundError):
            await admin.delete_group_offsets("readers", [T0])
        await admin.alter_group_offsets("readers", {T0: 5, T1: 6, TopicPartition("delays", 0): 7})
        await admin.delete_group_offsets("readers", [T0])
        await admin.delete_group_offsets("readers", [T0])
        found = await admin.list_group_offsets("readers")
        assert sorted(found) == [TopicPartition("delays", 0), T1]
        consumer = client.consumer(group_id="readers")
        await consumer.subscribe("flights")
        await consumer.poll(5_000)
        with pytest.raises(GroupSubscribedToTopicError, match="'readers': flights-1"):
            await admin.delete_group_offsets("readers", [T1, TopicPartition("delays", 0)])
        assert sorted(await admin.list_group_offsets("readers")) == [T1]
        await consumer.close()

    with World(seed=3, topics={"flights": 2, "delays": 1}) as world:
        ask(world, scenario)


def test_offsets_that_an_open_transaction_commits_are_deleted_after_it():
    """A tombstone before its marker would drop what it commits."""

    async def scenario(admin, client):
        from oncelog.api.records import ConsumerGroupMetadata

        group = ConsumerGroupMetadata(group_id="readers")
        await admin.alter_group_offsets("readers", {T0: 5})
        producer = client.producer(transactional_id="writer", transaction_timeout_ms=3_000)
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({T0: 9}, group)
        # Waits for the timeout, which aborts.
        await admin.delete_group_offsets("readers", [T0])
        assert await admin.list_group_offsets("readers") == {}

    with World(seed=4, topics={"flights": 2}) as world:
        ask(world, scenario)


def test_preferred_leaders_lead_again_when_an_operator_asks():
    settings = WorldSettings(brokers=3, replication_factor=3)
    with World(seed=5, topics={"flights": 2}, settings=settings) as world:

        async def prefer_another(admin, client):
            before = (await admin.describe_topic("flights")).partitions[0]
            leader, *others = before.replicas
            assert before.leader == leader
            await admin.reassign_partition("flights", 0, [*others, leader])
            assert (await admin.elect_leaders([T0])) == {T0: others[0]}
            assert (await admin.elect_leaders())[T0] == others[0]
            assert (await admin.describe_topic("flights")).partitions[0].leader == others[0]
            with pytest.raises(UnknownTopicOrPartitionError, match="not elected: flights-9"):
                await admin.elect_leaders([T0, TopicPartition("flights", 9)])
            producer = client.producer()
            await producer.send("flights", b"v", partition=0)
            await producer.close()

        ask(world, prefer_another)


def test_data_directories_are_shown_with_their_replicas():
    async def scenario(admin, client):
        producer = client.producer()
        await producer.send("flights", bytes(5_000), partition=0)
        await producer.close()
        (found,) = await admin.describe_log_dirs()
        assert (found.broker_id, found.disk_size_bytes) == (1, -1)
        sizes = {one.topic_partition: one.size_bytes for one in found.replicas}
        assert sizes[T0] > 5_000 > sizes[T1]
        assert all(one.offset_lag == 0 for one in found.replicas)
        assert await admin.describe_log_dirs([2]) == []
        return found.path

    with World(seed=6, topics={"flights": 2}) as world:
        assert ask(world, scenario) == world.settings.data_dir
