"""The producer ids of a producer without transactions, and the tickets that prove them.

A ticket lasts as long as its key. A leader that sees one under a replaced key says so; the ticket
is then renewed in the background, and the id stays. A producer that was idle for too long is
refused and starts over with a new id: it has nothing in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from oncelog.api.transacting.requests import TransactionRequests
from oncelog.api.transacting.state import ProducerIdentity
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import exception_for


class PlainIdentities:
    """Gets producer ids. ``current`` is the one that new partitions start with.

    Remembers one ticket per id, so at most one more than the producer has partitions.
    """

    def __init__(
        self,
        requests: TransactionRequests,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._requests = requests
        self._spawn = spawn
        self._tickets: dict[int, bytes] = {}
        self._renewing: dict[int, asyncio.Task[None]] = {}
        self.current: ProducerIdentity | None = None

    async def fresh(self) -> ProducerIdentity:
        """A new producer id; ``OncelogError`` if none can be obtained."""
        reply = await self._requests.init_producer_id(None)
        if reply.error is not ErrorCode.NONE:
            raise exception_for(reply.error, reply.detail or "no producer id could be obtained")
        self._tickets[reply.producer_id] = reply.ticket
        return ProducerIdentity(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)

    def ticket_of(self, identity: ProducerIdentity) -> bytes | None:
        """What proves that the producer id is ours."""
        return self._tickets.get(identity.producer_id)

    def renew_soon(self, identity: ProducerIdentity) -> None:
        """Ask for a ticket under the current key; if that fails, the next hint asks again."""
        task = self._renewing.get(identity.producer_id)
        ticket = self._tickets.get(identity.producer_id)
        if ticket is not None and (task is None or task.done()):
            self._renewing[identity.producer_id] = self._spawn(self._renew(identity, ticket))

    def give_up(self, identity: ProducerIdentity) -> None:
        """A leader refused our ticket: start nothing new with this id."""
        self._tickets.pop(identity.producer_id, None)
        if self.current is not None and self.current.producer_id == identity.producer_id:
            self.current = None

    async def _renew(self, identity: ProducerIdentity, ticket: bytes) -> None:
        producer_id = identity.producer_id
        reply = await self._requests.renew_ticket(identity, ticket)
        if reply.error is ErrorCode.NONE and producer_id in self._tickets:
            self._tickets[producer_id] = reply.ticket
        del self._renewing[producer_id]
