"""Producer ids are asked for before they run out, once at a time, and no sooner."""

from __future__ import annotations

import asyncio
from typing import Any

from virtual_time import give_turns

from oncelog.actors.protocol.messages.cluster import AllocateProducerIdsReply
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.transactions.producer_ids import ProducerIdReservation


class Controller:
    """Gives a block of 100 ids per call, while its gate is open."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        self.calls += 1
        first = 1_000 * self.calls
        await self.gate.wait()
        return AllocateProducerIdsReply(first_producer_id=first, count=100)


def test_the_next_block_is_asked_for_once_few_ids_are_left_and_not_before() -> None:
    async def body() -> None:
        controller, blocks = Controller(), ProducerIdBlocks()
        reservation = ProducerIdReservation(
            producer_ids=blocks,
            transport=controller,
            broker_id=1,
            call_timeout_ms=1_000,
            spawn=asyncio.get_running_loop().create_task,
        )
        await reservation.ensure()
        for _ in range(5):
            await reservation.ensure()
        await give_turns()
        assert (controller.calls, blocks.remaining) == (1, 100)
        controller.gate.clear()
        while not blocks.needs_block:
            blocks.take()
        for _ in range(5):
            await reservation.ensure()
        await give_turns()
        assert controller.calls == 2
        controller.gate.set()
        await give_turns()
        assert not blocks.needs_block

    asyncio.run(body())
