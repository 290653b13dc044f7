"""The ticket key is rotated while transactions run, and the announcement is lost."""

from __future__ import annotations

import pytest
from sim_network import NetworkFaults
from sim_world import World

from oncelog.actors.config import ClusterConfig
from oncelog.storage.model import TopicPartition

ROTATIONS = 3
HEARD_WITHIN_S = ClusterConfig().log_retention_check_interval_ms / 1_000 + 1
"""When an actor that asks the controller by itself, and is not told, has the newest key."""

TOPICS = {"flights": 1, "delays": 1}


async def commit(producer, number):
    """One transaction on two partitions; nothing of it may fail."""
    await producer.begin_transaction()
    await producer.send("flights", value=b"%d" % number)
    await producer.send("delays", value=b"%d" % number)
    await producer.commit_transaction()


async def read(client, topic, count):
    consumer = client.consumer()
    await consumer.assign(TopicPartition(topic, 0))
    await consumer.seek_to_beginning()
    values = []
    while len(values) < count:
        values += [record.value for record in await consumer.poll(1_000)]
    return values


@pytest.mark.parametrize("deaf", ["nobody", "transaction:*", "partition:*", "*"])
def test_no_transaction_fails_though_actors_hear_of_the_key_late(deaf):
    """Each transaction after a change is met by actors that did not get the controller's call."""

    async def scenario(client):
        producer = client.producer(transactional_id="writer")
        await producer.init_transactions()
        admin = client.admin()
        for number in range(ROTATIONS):
            await commit(producer, 2 * number)
            assert await admin.rotate_ticket_key() == number + 1
            await commit(producer, 2 * number + 1)

    with World(seed=3, topics=TOPICS) as world:
        lost = NetworkFaults(drop_request=1.0)
        world.network.set_faults(lost, method="learn_keys", callee=deaf)
        client = world.client("writer")
        world.run(client.spawn(scenario(client)))
        expected = [b"%d" % number for number in range(2 * ROTATIONS)]
        reader = world.client("reader")
        for topic in TOPICS:
            assert world.run(reader.spawn(read(reader, topic, len(expected)))) == expected
        world.run_for(HEARD_WITHIN_S)
        versions = {name: replica.keys.version for name, replica in world.replicas().items()}
        assert versions["partition:flights-0@1"] == ROTATIONS


def test_an_open_transaction_goes_on_over_the_change_and_over_failovers():
    async def begin(producer):
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("flights", value=b"before")

    async def rotate(client):
        return await client.admin().rotate_ticket_key()

    async def end(producer):
        await producer.send("delays", value=b"after")
        await producer.commit_transaction()

    with World(seed=4, topics=TOPICS) as world:
        client, operator = world.client("writer"), world.client("operator")
        producers = []

        async def make():
            producers.append(client.producer(transactional_id="writer"))
            await begin(producers[0])

        world.run(client.spawn(make()))
        assert world.run(operator.spawn(rotate(operator))) == 1
        world.kill("partition:delays-0@1")
        world.kill("controller")
        world.run(client.spawn(end(producers[0])))
        reader = world.client("reader")
        assert world.run(reader.spawn(read(reader, "flights", 1))) == [b"before"]
        assert world.run(reader.spawn(read(reader, "delays", 1))) == [b"after"]
