"""Coroutines that wait for records: settled batch by batch, on their own loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.api.batching.delivery import BatchDelivery, RecordFuture
from oncelog.storage.exceptions import InvalidRecordError
from oncelog.storage.model import TopicPartition

T0 = TopicPartition("t", 0)


def awaitables(delivery: BatchDelivery, count: int) -> list[Any]:
    return [RecordFuture(delivery, index, 100).awaitable() for index in range(count)]


def test_each_gets_its_offset_in_order_as_soon_as_the_batch_is_done() -> None:
    async def story() -> list[int]:
        delivery = BatchDelivery(T0, 3)
        waiting = awaitables(delivery, 3)
        order: list[int] = []
        for future in waiting:
            future.add_done_callback(lambda done: order.append(done.result().offset))
        await asyncio.sleep(0)
        assert not any(future.done() for future in waiting)
        delivery.finish(7, -1)
        assert all(future.done() for future in waiting)
        await asyncio.sleep(0)
        return order

    assert asyncio.run(story()) == [7, 8, 9]


def test_one_that_was_cancelled_keeps_the_others_from_nothing() -> None:
    async def story() -> int:
        delivery = BatchDelivery(T0, 3)
        first, second, third = awaitables(delivery, 3)
        first.cancel()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(second, 0)
        delivery.finish(7, -1)
        assert [first.cancelled(), second.cancelled()] == [True, True]
        return int((await third).offset)

    assert asyncio.run(story()) == 9


def test_one_that_comes_after_the_batch_is_done_has_its_outcome_at_once() -> None:
    async def story() -> list[int]:
        delivery = BatchDelivery(T0, 2)
        early = awaitables(delivery, 1)
        delivery.finish(7, -1)
        return [future.result().offset for future in early + awaitables(delivery, 2)]

    assert asyncio.run(story()) == [7, 7, 8]


def test_the_parts_of_a_split_batch_settle_their_own_records() -> None:
    async def story() -> None:
        delivery = BatchDelivery(T0, 2)
        good, bad = awaitables(delivery, 2)
        first, second = delivery.split((1, 1))
        first.finish(3, -1)
        second.finish(error=InvalidRecordError("bad"))
        assert (await good).offset == 3
        with pytest.raises(InvalidRecordError, match="bad"):
            await bad

    asyncio.run(story())


def test_asyncio_does_not_complain_of_a_failure_that_the_producer_tells_of() -> None:
    complaints: list[str] = []

    async def story() -> BatchDelivery:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
        delivery = BatchDelivery(T0, 1)
        waiting = awaitables(delivery, 1)
        delivery.finish(error=InvalidRecordError("bad"))
        assert waiting[0].done()
        waiting.clear()
        gc.collect()
        return delivery

    assert not asyncio.run(story()).is_observed
    assert not complaints


@pytest.mark.parametrize("look", ["await", "wait", "gather", "result", "exception"])
def test_whoever_awaits_a_record_or_looks_at_it_is_noticed(look: str) -> None:
    async def story() -> None:
        delivery = BatchDelivery(T0, 1)
        (future,) = awaitables(delivery, 1)
        delivery.finish(error=InvalidRecordError("bad"))
        assert not delivery.is_observed
        looks: dict[str, Callable[[], Any]] = {
            "await": lambda: future,
            "gather": lambda: asyncio.gather(future),
            "wait": lambda: asyncio.wait({future}),
            "result": lambda: asyncio.to_thread(future.result),
            "exception": lambda: asyncio.to_thread(future.exception),
        }
        with contextlib.suppress(InvalidRecordError):
            await looks[look]()
        assert delivery.is_observed

    asyncio.run(story())
