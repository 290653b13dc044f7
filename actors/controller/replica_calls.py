"""What the controller tells replicas, once each: a failure is only logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from oncelog.actors.interfaces import Transport, address_of
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.cluster import ShutdownRequest
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_MS: Final = 20_000


class ReplicaCalls:
    """Calls of replicas, all of them at the same time."""

    def __init__(self, transport: Transport, *, timeout_ms: int) -> None:
        self._transport = transport
        self._timeout_ms = timeout_ms

    async def tell(
        self, messages: Mapping[str, Request[Any]], *, timeout_ms: int | None = None
    ) -> dict[str, Reply]:
        """Send each actor its message, and return what they answer."""
        limit_ms = timeout_ms or self._timeout_ms
        replies = await asyncio.gather(
            *(
                self._transport.call(actor, message, timeout_ms=limit_ms)
                for actor, message in messages.items()
            )
        )
        for (actor, message), reply in zip(messages.items(), replies, strict=True):
            if reply.error is not ErrorCode.NONE:
                _logger.warning("%s missed %s: %s", actor, message.method, reply.error.name)
        return dict(zip(messages, replies, strict=True))

    async def shut_down(
        self, placements: Sequence[Placement], *, remove_data: bool, is_moved: bool = False
    ) -> list[Placement]:
        """Stop replicas, each only if it still belongs to its topic; those that have ended."""
        replies = await self.tell(
            {
                address_of(placement): ShutdownRequest(
                    remove_data=remove_data, topic_id=placement.topic_id, is_moved=is_moved
                )
                for placement in placements
            },
            timeout_ms=SHUTDOWN_TIMEOUT_MS,
        )
        ended = {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID}
        return [one for one in placements if replies[address_of(one)].error in ended]
