"""Producer ids: blocks from the controller, and ids for producers without transactions.

The latter come with a plain ticket, which proves their owner; nothing is logged. An id is taken
from a reserved block, so it never belongs to a transactional id: that is what a plain ticket
proves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from oncelog.actors.interfaces import CONTROLLER_ACTOR, Clock, Transport
from oncelog.actors.protocol.messages.cluster import AllocateProducerIdsRequest
from oncelog.actors.protocol.messages.transaction import InitProducerIdReply, InitProducerIdRequest
from oncelog.actors.protocol.tickets import (
    TicketVerdict,
    check_plain_ticket,
    issue_plain_ticket,
)
from oncelog.actors.protocol.transaction.producer_ids import (
    NONE_LEFT,
    NoProducerIdError,
    ProducerIdBlocks,
)
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_ID

_logger = logging.getLogger(__name__)

SPARE_PRODUCER_IDS: Final = 3
"""Maximum producer ids that one decision can take."""


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
        """Request the next block early; wait only if the remaining ids may not suffice."""
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
            _logger.info("no producer ids from the controller yet: %s", reply.error.name)


class PlainProducers:
    """Serves the producers without transactions at one coordinator."""

    def __init__(
        self,
        replica: Replica,
        clock: Clock,
        producer_ids: ProducerIdBlocks,
        reservation: ProducerIdReservation,
    ) -> None:
        self._replica = replica
        self._clock = clock
        self._producer_ids = producer_ids
        self._reservation = reservation

    async def identity(self, request: InitProducerIdRequest) -> InitProducerIdReply:
        """A new producer id for deduplication only, or a newer ticket for one."""
        if request.producer_id != NO_PRODUCER_ID:
            return self._renewed(request)
        await self._reservation.ensure()
        try:
            producer_id = self._producer_ids.take()
        except NoProducerIdError:
            return request.failed(*NONE_LEFT)
        return InitProducerIdReply(
            producer_id=producer_id, producer_epoch=0, ticket=self._ticket(producer_id)
        )

    def _renewed(self, request: InitProducerIdRequest) -> InitProducerIdReply:
        """A ticket under the current key, for a caller with a valid one."""
        verdict = check_plain_ticket(
            request.ticket,
            keys=self._replica.keys,
            producer_id=request.producer_id,
            now_ms=self._clock.now_ms(),
        )
        if verdict is TicketVerdict.NEWER_KEY:
            self._replica.events.refresh_keys_soon()
            return request.failed(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the key of the ticket is not known yet"
            )
        if verdict is TicketVerdict.INVALID:
            return request.failed(
                ErrorCode.UNKNOWN_PRODUCER_ID, f"no valid ticket of producer {request.producer_id}"
            )
        return InitProducerIdReply(
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            ticket=self._ticket(request.producer_id),
        )

    def _ticket(self, producer_id: int) -> bytes:
        keys = self._replica.keys
        return issue_plain_ticket(
            cluster_key=keys.current,
            key_version=keys.version,
            producer_id=producer_id,
            issued_ms=self._clock.now_ms(),
        )
