"""Batches that overtake their predecessors: how many of a producer may wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from deadlines import DEADLINE_S

from oncelog.actors.config import ClusterConfig
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import DUPLICATE_WINDOW_BATCHES


async def at_once(work: Callable[[], Any], **_: Any) -> Any:
    return work()


def test_one_that_is_given_up_leaves_the_others_to_wait(harness: Any) -> None:
    """1. Two batches came too early. 2. The caller of one goes away. 3. What the other waits for
    comes: it is woken.
    """
    harness.cluster = ClusterConfig(out_of_order_wait_ms=3_600_000)
    harness.background.run = at_once

    async def body() -> None:
        await harness.start()
        await harness.produce(harness.batch(b"x", pid=7, epoch=0, seq=0))
        second, third = (
            asyncio.create_task(harness.produce(harness.batch(b"x", pid=7, epoch=0, seq=sequence)))
            for sequence in (2, 3)
        )
        await asyncio.sleep(0)
        third.cancel()
        await asyncio.wait({third})
        await harness.produce(harness.batch(b"x", pid=7, epoch=0, seq=1))
        assert (await asyncio.wait_for(second, timeout=DEADLINE_S)).error is ErrorCode.NONE
        assert not harness.leader._early
        await harness.replica.stop()

    asyncio.run(body())


def test_one_more_than_a_producer_may_have_on_their_way_does_not_wait(harness: Any) -> None:
    harness.cluster = ClusterConfig(out_of_order_wait_ms=3_600_000)
    harness.background.run = at_once

    async def body() -> None:
        await harness.start()
        await harness.produce(harness.batch(b"x", pid=7, epoch=0, seq=0))
        waiting = []
        for sequence in range(2, DUPLICATE_WINDOW_BATCHES + 2):
            batch = harness.batch(b"x", pid=7, epoch=0, seq=sequence)
            waiting.append(asyncio.create_task(harness.produce(batch)))
        await asyncio.sleep(0)
        beyond = harness.batch(b"x", pid=7, epoch=0, seq=DUPLICATE_WINDOW_BATCHES + 2)
        refused = await asyncio.wait_for(harness.produce(beyond), timeout=DEADLINE_S)
        assert refused.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert not any(task.done() for task in waiting)
        await harness.produce(harness.batch(b"x", pid=7, epoch=0, seq=1))
        assert {reply.error for reply in await asyncio.gather(*waiting)} == {ErrorCode.NONE}
        await harness.replica.stop()

    asyncio.run(body())
