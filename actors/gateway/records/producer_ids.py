"""Ids of Kafka's idempotent producers, and the tickets with which leaders take their batches.

A client of Kafka sends no ticket with a batch (``protocol/tickets.py``): the gateway makes it. So
that it need not remember which ids are whose, those of Kafka's idempotent producers have a range of
their own: a producer id of the controller's, plus 2**62. The controller counts up from 0, so no
other id is ever there, and none of it is ever used for transactions: a coordinator knows only ids
that it took from its own blocks. Any gateway may therefore give any id of that range its plain
ticket, and gives none to others.

As in Kafka, whoever may write to a topic could write there in the name of another idempotent
producer, if he guesses its id.

A ticket has no time of issue and so is the same from each gateway and after each restart. It is
valid as long as its key, so a leader that says ``is_ticket_old`` has the keys asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from oncelog.actors.gateway.calls import CALL_TIMEOUT_MS, Call, Cluster
from oncelog.actors.gateway.errors import kafkas
from oncelog.actors.gateway.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages import transaction
from oncelog.actors.protocol.messages.cluster import ClusterKeysRequest
from oncelog.actors.protocol.tickets import NO_KEYS, ClusterKeys, issue_plain_ticket
from oncelog.actors.protocol.transaction.producer_ids import (
    NONE_LEFT,
    NoProducerIdError,
    ProducerIdBlocks,
)
from oncelog.actors.transactions.producer_ids import ProducerIdReservation
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_EPOCH

Handler: TypeAlias = Callable[[Call, Any], Coroutine[Any, Any, Any]]
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

FIRST_KAFKA_ID: Final = 2**62
"""The ids from here on are those of Kafka's idempotent producers, and of nobody else."""

TICKETS_MAX: Final = 10_000
"""Tickets that are remembered; beyond that all are made anew."""

KEYS_AGAIN_MS: Final = 1_000
"""Time between questions for the keys, however often a leader refuses a ticket."""

UNSUPPORTED_VERSION: Final = 35

_ANY_TIME_MS: Final = 0
"""When a ticket was issued: see above."""


class PlainTickets:
    """The tickets of idempotent producers, under the newest key that this gateway knows."""

    def __init__(self, cluster: Cluster, spawn: Spawn) -> None:
        self._cluster = cluster
        self._spawn = spawn
        self._keys: ClusterKeys = NO_KEYS
        self._tickets: dict[int, bytes] = {}
        self._asking: asyncio.Task[None] | None = None
        self._asked_ms = -KEYS_AGAIN_MS

    def find(self, producer_id: int) -> bytes | None:
        """The ticket of an id in Kafka's range; ``None`` while the keys are not known."""
        ticket = self._tickets.get(producer_id)
        if ticket is not None or not self._keys.current:
            return ticket
        if len(self._tickets) >= TICKETS_MAX:
            self._tickets.clear()
        ticket = self._tickets[producer_id] = issue_plain_ticket(
            cluster_key=self._keys.current,
            key_version=self._keys.version,
            producer_id=producer_id,
            issued_ms=_ANY_TIME_MS,
        )
        return ticket

    async def refresh(self) -> bool:
        """Ask for the keys, unless that was done a moment ago; whether there are newer ones now."""
        known = self._keys
        self.refresh_soon()
        if self._asking is not None:
            # Others wait for the same answer.
            await asyncio.wait((self._asking,))
        return self._keys is not known

    def refresh_soon(self) -> None:
        """The same, without waiting for the answer."""
        is_asking = self._asking is not None and not self._asking.done()
        if not is_asking and loop_ms() - self._asked_ms >= KEYS_AGAIN_MS:
            self._asked_ms = loop_ms()
            self._asking = self._spawn(self._ask())

    async def _ask(self) -> None:
        reply = await self._cluster.transport.call(
            CONTROLLER_ACTOR, ClusterKeysRequest(), timeout_ms=CALL_TIMEOUT_MS
        )
        is_newer = reply.keys.version > self._keys.version or not self._keys.current
        if reply.error is ErrorCode.NONE and is_newer and reply.keys.current:
            self._keys = reply.keys
            self._tickets.clear()


class ProducerIds:
    """Answers InitProducerId; with a transactional id as ``init_transactional`` does."""

    def __init__(
        self, cluster: Cluster, spawn: Spawn, init_transactional: Handler | None = None
    ) -> None:
        self._init_transactional = init_transactional
        self._blocks = ProducerIdBlocks()
        self._reservation = ProducerIdReservation(
            producer_ids=self._blocks,
            transport=cluster.transport,
            broker_id=cluster.broker_id,
            call_timeout_ms=CALL_TIMEOUT_MS,
            spawn=spawn,
        )

    async def handle(self, call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """A new id and epoch 0 for an idempotent producer, also if it has one already: as Kafka."""
        if request.transactional_id is not None:
            if self._init_transactional is None:
                return _refused(UNSUPPORTED_VERSION)
            response: InitProducerIdResponse = await self._init_transactional(call, request)
            return response
        # Asks nobody, for there is no actor to ask; it only says whether the client may.
        asked = transaction.InitProducerIdRequest(transactional_id=None)
        error = (await call.ask(None, asked)).error
        if error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            # The code that clients of Kafka know for it.
            return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if error is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return _refused(_RETRIED if error.retriable else kafkas(error))
        await self._reservation.ensure()
        try:
            producer_id = FIRST_KAFKA_ID + self._blocks.take()
        except NoProducerIdError:
            return _refused(_RETRIED)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


_RETRIED: Final = NONE_LEFT[0]
"""For what passes by itself: clients ask again."""


def _refused(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=int(code), producer_epoch=NO_PRODUCER_EPOCH)
