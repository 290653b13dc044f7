"""The producer id of a producer without transactions: its ticket, and the changes of the key."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from deadlines import until

from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import InitProducerIdReply, InitProducerIdRequest
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.producer import AsyncProducer
from oncelog.api.transacting.requests import PlainIdentities
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OutOfOrderSequenceNumberError


def plain(cluster: Any) -> AsyncProducer:
    settings = ProducerSettings(linger_ms=0, request_timeout_ms=500, retry_backoff_ms=10)
    return AsyncProducer(cluster.router(), settings, random=Random(3))


def ids_of(leader: Any) -> list[tuple[int, int]]:
    return [(header.producer_id, header.producer_epoch) for header in leader.headers]


async def send(producer: AsyncProducer, *values: bytes) -> None:
    for value in values:
        await (await producer.send("t", value))


def test_a_busy_producer_keeps_its_id_over_any_number_of_changes_of_the_key(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = plain(cluster)
        await send(producer, b"0")
        for version in range(1, 4):
            cluster.take_keys(version - 1, version)
            await send(producer, b"told")
            await asyncio.sleep(0.1)
            cluster.take_keys(version)
            await send(producer, b"after")
        await producer.close()

    run(story())
    assert len(leader.records) == 7
    assert len(set(ids_of(leader))) == 1
    assert len(cluster.requests(InitProducerIdRequest)) == 1 + 3


def test_a_renewal_that_fails_is_asked_for_again_with_the_next_batch(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = plain(cluster)
        await send(producer, b"0")
        cluster.take_keys(0, 1)
        cluster.fault(InitProducerIdRequest, ErrorCode.UNKNOWN_SERVER_ERROR)
        await send(producer, b"1")
        await asyncio.sleep(0.1)
        await send(producer, b"2")
        await asyncio.sleep(0.1)
        cluster.take_keys(1)
        await send(producer, b"3")
        await producer.close()

    run(story())
    assert len(set(ids_of(leader))) == 1


def test_a_producer_that_was_idle_for_too_long_goes_on_with_a_new_id_and_loses_nothing(
    cluster: Any, run: Any
) -> None:
    leaders = cluster.create("t", 2)

    async def story() -> None:
        producer = plain(cluster)
        await (await producer.send("t", b"0", partition=0))
        cluster.take_keys(7)
        sent = [
            await producer.send("t", b"%d" % number, partition=number % 2)
            for number in range(1, 20)
        ]
        await asyncio.gather(*sent)
        await producer.close()

    run(story())
    values = sorted(int(value) for leader in leaders for value in leader.values())
    assert values == list(range(20))
    for leader in leaders:
        assert leader.values() == sorted(leader.values(), key=int)
    assert {epoch for leader in leaders for _, epoch in ids_of(leader)} == {0}


def test_a_batch_whose_fate_is_not_known_is_not_sent_again_under_a_new_id(
    cluster: Any, run: Any
) -> None:
    """1. A batch is appended, its reply lost. 2. The key is given up at once; the leader does not
    know the batch any more. 3. Its retry is refused: it is told, not written again.
    """
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = plain(cluster)
        await send(producer, b"0")
        cluster.fault(ProduceRequest, "lose reply")
        sent = await producer.send("t", b"1")
        await until(lambda: leader.values()[1:], look_s=0.001)
        cluster.take_keys(7)
        leader.producers.clear()
        with pytest.raises(OutOfOrderSequenceNumberError, match="may or may not be in the log"):
            await sent
        await send(producer, b"2")
        await producer.close()

    run(story())
    assert leader.values() == [b"0", b"1", b"2"]


class Coordinator:
    async def init_producer_id(self, _transactional_id):
        return InitProducerIdReply(producer_id=1, producer_epoch=0, ticket=b"old")

    async def renew_ticket(self, identity, ticket):
        assert ticket == b"old"
        return InitProducerIdReply(producer_id=identity.producer_id, ticket=b"new")


def test_an_id_given_up_before_its_renewal_begins_stays_given_up():
    """1. A leader says that the key is old. 2. Before the renewal has its turn, another refuses
    the ticket: the id is given up. 3. The renewal neither fails nor brings the id back.
    """

    async def scenario():
        tasks = []

        def spawn(work):
            tasks.append(asyncio.create_task(work))
            return tasks[-1]

        identities = PlainIdentities(Coordinator(), spawn)
        identity = await identities.fresh()
        identities.renew_soon(identity)
        identities.discard(identity)
        await asyncio.gather(*tasks)
        return identities.ticket_of(identity)

    assert asyncio.run(scenario()) is None
