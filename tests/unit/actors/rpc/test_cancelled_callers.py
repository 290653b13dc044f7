"""A caller that is cancelled while it waits leaves nothing behind at the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from oncelog.storage.errors import ErrorCode

Play = Callable[[Any], None]


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_readers_that_give_up_are_forgotten(play: Play) -> None:
    async def scenario(h: Any) -> None:
        request = h.fetch_request(0, min_bytes=1, max_wait_ms=60_000)
        await cancel(*(asyncio.create_task(h.leader.fetch(request)) for _ in range(20)))
        assert not h.replica._waiters._readers

    play(scenario)


def test_early_batches_whose_callers_gave_up_take_no_place_among_those_that_wait(
    play: Play,
) -> None:
    async def scenario(h: Any) -> None:
        def early() -> asyncio.Task[Any]:
            return asyncio.create_task(h.produce(h.batch(b"2", pid=7, epoch=0, seq=2)))

        await h.produce(h.batch(b"0", pid=7, epoch=0, seq=0))
        await cancel(*(early() for _ in range(5)))
        waiting = early()
        await asyncio.sleep(0)
        assert not waiting.done()
        assert (await h.produce(h.batch(b"1", pid=7, epoch=0, seq=1))).base_offset == 1
        reply = await waiting
        assert (reply.error, reply.base_offset) == (ErrorCode.NONE, 2)

    play(scenario)
