"""A producer without transactions that is silent for so long that leaders forget it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.actors.config import PRODUCER_ID_EXPIRATION_MIN_MS
from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.api.producing.partition_sender import REMEMBERED_S
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError, OutOfOrderSequenceNumberError

DAY_S = 86_400.0


def places(leader: Any) -> list[tuple[int, int]]:
    return [(header.producer_epoch, header.base_sequence) for header in leader.headers]


def test_leaders_remember_longer_than_producers_rely_on() -> None:
    assert REMEMBERED_S * 1_000 < PRODUCER_ID_EXPIRATION_MIN_MS


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_after_a_day_the_next_batch_is_taken_at_once_under_the_next_epoch(
    cluster: Any, run: Any, is_forgotten: bool
) -> None:
    """1. Two batches. 2. A day of silence; the leader may have forgotten. 3. The reply to the next
    batch is lost, and its retry is known. 4. All but one call was needed.
    """
    (leader,) = cluster.create("t")

    async def story() -> None:
        async with cluster.producer() as producer:
            for value in (b"0", b"1"):
                await (await producer.send("t", value))
            await asyncio.sleep(DAY_S)
            if is_forgotten:
                leader.producers.clear()
            cluster.fault(ProduceRequest, "lose reply")
            for value in (b"2", b"3"):
                await (await producer.send("t", value))

    run(story())
    assert leader.values() == [b"0", b"1", b"2", b"3"]
    assert places(leader) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(cluster.requests(ProduceRequest)) == 5


def test_a_partition_that_was_not_idle_keeps_its_epoch(cluster: Any, run: Any) -> None:
    idle, busy = cluster.create("t", 2)

    async def story() -> None:
        async with cluster.producer() as producer:
            for partition in (0, 1):
                await (await producer.send("t", b"v", partition=partition))
            for _ in range(4):
                await asyncio.sleep(REMEMBERED_S / 2)
                await (await producer.send("t", b"v", partition=1))
            await (await producer.send("t", b"v", partition=0))

    run(story())
    assert places(idle) == [(0, 0), (1, 0)]
    assert places(busy) == [(0, n) for n in range(5)]


def test_a_producer_that_was_forgotten_sooner_loses_nothing(cluster: Any, run: Any) -> None:
    """The leader's clock may leap, or this machine may have slept. The batch is refused, and lands
    under the next epoch."""
    (leader,) = cluster.create("t")

    async def story() -> None:
        async with cluster.producer(retry_backoff_ms=10) as producer:
            await (await producer.send("t", b"0"))
            leader.producers.clear()
            await (await producer.send("t", b"1"))

    run(story())
    assert leader.values() == [b"0", b"1"]
    assert places(leader) == [(0, 0), (1, 0)]


def test_a_retry_that_its_leader_has_forgotten_is_not_written_again(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        async with cluster.producer(retry_backoff_ms=1_000) as producer:
            await (await producer.send("t", b"0"))
            cluster.fault(ProduceRequest, "lose reply")
            retried = await producer.send("t", b"1")
            await asyncio.sleep(0.5)
            leader.producers.clear()
            with pytest.raises(OutOfOrderSequenceNumberError, match="may or may not be in the log"):
                await retried
            await (await producer.send("t", b"2"))

    run(story())
    assert leader.values() == [b"0", b"1", b"2"]


def test_a_first_batch_without_an_answer_is_not_sent_again_once_it_may_be_forgotten(
    cluster: Any, run: Any
) -> None:
    """1. Batch 0 is appended, but cannot be replicated for a day. 2. The leader forgets it."""
    (leader,) = cluster.create("t")
    cluster.fault(ProduceRequest, "lose reply", *([ErrorCode.NOT_ENOUGH_REPLICAS] * 100_000))

    async def story() -> None:
        forever = {"delivery_timeout_ms": 2**31 - 1, "retry_backoff_max_ms": 60_000}
        async with cluster.producer(**forever) as producer:
            retried = await producer.send("t", b"0")
            await asyncio.sleep(REMEMBERED_S + 3_600)
            leader.producers.clear()
            cluster.faults.clear()
            with pytest.raises(OncelogError, match="may or may not be in the log"):
                await retried
            await (await producer.send("t", b"1"))

    run(story())
    assert leader.values() == [b"0", b"1"]
