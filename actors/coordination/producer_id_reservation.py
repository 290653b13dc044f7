"""Keeps a coordinator supplied with blocks of producer ids from the controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from oncelog.actors.interfaces import CONTROLLER_ACTOR, Transport
from oncelog.actors.protocol.messages.cluster import AllocateProducerIdsRequest
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)

SPARE_PRODUCER_IDS: Final = 3
"""The most producer ids one decision can take."""


class ProducerIdReservation:
    """Requests the next block before the current one runs out, one at a time."""

    def __init__(
        self,
        *,
        producer_ids: ProducerIdBlocks,
        transport: Transport,
        broker_id: int,
        call_timeout_ms: int,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._producer_ids = producer_ids
        self._transport = transport
        self._broker_id = broker_id
        self._call_timeout_ms = call_timeout_ms
        self._spawn = spawn
        self._asking: asyncio.Task[None] | None = None

    async def ensure(self) -> None:
        """Request the next block in time; wait only if the remaining ids may not suffice."""
        if not self._producer_ids.needs_block:
            return
        if self._asking is None or self._asking.done():
            self._asking = self._spawn(self._ask())
        if self._producer_ids.remaining < SPARE_PRODUCER_IDS:
            await asyncio.wait({self._asking})

    async def _ask(self) -> None:
        request = AllocateProducerIdsRequest(broker_id=self._broker_id)
        reply = await self._transport.call(
            CONTROLLER_ACTOR, request, timeout_ms=self._call_timeout_ms
        )
        if reply.error is ErrorCode.NONE:
            self._producer_ids.add_block(reply.first_producer_id, reply.count)
        else:
            _logger.warning("no producer ids from the controller: %s", reply.error.name)
