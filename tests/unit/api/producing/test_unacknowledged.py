"""What a producer tells a leader of its batches that have no answer yet."""

from __future__ import annotations

import asyncio
from typing import Any

from oncelog.actors.protocol.messages.partition import ProduceRequest


def test_a_batch_tells_whether_one_before_it_has_no_answer_yet(cluster: Any, run: Any) -> None:
    """Three batches are sent at once, and a fourth after their answers."""
    cluster.create("t")

    async def story() -> None:
        async with cluster.producer(batch_size=64) as producer:
            for numbers in (range(3), range(3, 4)):
                sent = [await producer.send("t", b"%d" % n + b"." * 60) for n in numbers]
                await asyncio.gather(*sent)

    run(story())
    told = [request.follows_unacknowledged for request in cluster.requests(ProduceRequest)]
    assert told == [False, True, True, False]
