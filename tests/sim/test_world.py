"""The simulated world does what it promises to those who test in it."""

from __future__ import annotations

import asyncio

import pytest
from sim_world import SimulationError, World

from oncelog.storage.model import TopicPartition

FLIGHTS = TopicPartition("flights", 0)


@pytest.fixture
def world():
    with World(seed=1) as world:
        yield world


async def write(client, *, transactions=1, **settings):
    producer = client.producer(transactional_id="writer", **settings)
    await producer.init_transactions()
    for number in range(transactions):
        await producer.begin_transaction()
        await producer.send("flights", value=b"%d" % number)
        await producer.commit_transaction()


async def read(client, count):
    consumer = client.consumer()
    await consumer.assign(FLIGHTS)
    await consumer.seek_to_beginning()
    values = []
    while len(values) < count:
        values += [record.value for record in await consumer.poll(1_000)]
    return values


def test_a_transaction_is_committed_and_read(world):
    writer, reader = world.client("writer"), world.client("reader")
    world.run(writer.spawn(write(writer, transactions=3)))
    assert world.run(reader.spawn(read(reader, 3))) == [b"0", b"1", b"2"]


def test_what_is_never_done_is_told_with_the_story(world):
    with pytest.raises(SimulationError, match=r"seed 1.*not done within 5 s(.|\n)*incarnation"):
        world.run(asyncio.Event().wait(), limit_s=5)
