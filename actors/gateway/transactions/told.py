"""Requests of version 1 clients: the order in which they count, and the codes that they know.

Such a client names all its transactions by one pair of producer id and epoch, the one that it was
told. A late copy of its request would do to the next transaction what was meant for the one before.
So each request that changes something has a label (``connection_order.py``), and its coordinator
refuses a copy that comes too late. Four things are done here:

* Only the gateway where the coordinator leads asks it, and nobody else if it has moved meanwhile:
  the places of two gateways' connections are in no order.
* What the coordinator refuses by its label, and what has no answer, closes the connection. The
  client repeats it on another one, which has a later place.
* What a client gave up when it aborted a transaction may still be read from a connection that it
  has left. So librdkafka is told to take another pair for each abort (``takes_another_pair``). Of
  other clients nothing on a connection goes on after an abort until they have shown there that they
  live (``shows_life``).
* A connection on which nothing was answered yet has no place. Its first request is not passed on,
  only to be repeated: CONCURRENT_TRANSACTIONS.

Requests of one connection are handled one after the other (``listener.py``).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from msgspec import structs

from oncelog.actors.gateway.calls import Call, Client
from oncelog.actors.gateway.connection_order import ConnectionPlace
from oncelog.actors.gateway.errors import ReconnectError, of_coordinator
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.transactions.enrolments import (
    ABORTED,
    BUSY_RETRIES_MAX,
    BUSY_RETRY_MS,
)
from oncelog.actors.interfaces import leader_address
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.transaction import AddPartitionsToTxnReply, EndTxnReply
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TRANSACTION_STATE_TOPIC, TopicPartition

_FENCED_SINCE: Final = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""API → its first version whose clients know PRODUCER_FENCED (KIP-588)."""

_NEVER: Final = 2**15
"""Above every version."""

_UNANSWERED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""The coordinator has refused the label, or has moved, or whether it was asked is not known."""

COMMITTERS_MAX: Final = 10_000
"""Transactional ids, per principal, whose youngest commit of positions is remembered."""

LIVES_MAX: Final = 100
"""Told pairs of one connection whose client is known to live; beyond that the longest known are
forgotten, and have to show it again."""

REFUSED_MAX: Final = 100
"""Requests of a connection and a told pair that are remembered, to be repeated; then no other is.

One that comes again is enough. If none does, the client gives its batches up, and takes another
pair.
"""

_LIBRDKAFKA: Final = re.compile(
    r"^librdkafka v?(\d+)\.|-(?:lib)?rdkafka-v?(\d+)\.|^confluent-kafka-(?:go|dotnet) v?(\d+)\."
)
"""The release of librdkafka in what a client names itself: by "librdkafka 2.16.0", or as bindings
do: "confluent-kafka-python 2.16.1-rdkafka-2.16.0", or with its release for their own."""

_LIBRDKAFKA_RELEASE_MIN: Final = 2
"""The first release that is known to take another pair for an abort."""

_REMEMBERED: Final = "told"
"""The name of what a client's connection remembers."""

_ReplyT = TypeVar("_ReplyT", AddPartitionsToTxnReply, EndTxnReply)


def told_code(call: Call, api: ApiKey, error: ErrorCode) -> int:
    """What a coordinator's answer is for a version 1 client.

    A transaction that timed out, or that an operator aborted, has fenced it, as in Kafka.
    """
    if error in ABORTED:
        error = ErrorCode.PRODUCER_FENCED
    if error is ErrorCode.PRODUCER_FENCED and call.version < _FENCED_SINCE.get(api, _NEVER):
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return of_coordinator(error)


def takes_another_pair(client: Client) -> bool:
    """Whether its abort has succeeded once it is told UNKNOWN_PRODUCER_ID and has another pair.

    Then nothing that it has left on its way can be of its next transaction, and it need not show
    that it lives. Source: ``rd_kafka_txn_handle_EndTxn`` of librdkafka 2.0 and 2.16. For other
    clients the abort would have failed.
    """
    named = _LIBRDKAFKA.search(client.name)
    release = None if named is None else next(filter(None, named.groups()))
    return release is not None and int(release) >= _LIBRDKAFKA_RELEASE_MIN


async def coordinator_here(call: Call, shard: TopicPartition) -> str | None:
    """The coordinator of a shard, if it leads on the broker of this gateway."""
    view = call.cluster.view
    for is_new in (False, True):
        await call.leader(shard, is_new=is_new)
        topic = view.known.get(shard.topic)
        partition = None if topic is None else topic.find(shard.partition)
        if topic is None or partition is None:
            continue
        if partition.leader == call.cluster.broker_id:
            return leader_address(topic, partition)
    return None


async def ask_in_order(call: Call, transactional_id: str, request: Request[_ReplyT]) -> _ReplyT:
    """Ask the coordinator of an id what changes its transaction, with the label of its connection.

    While the id is changing state it is asked again for a moment. ``ReconnectError`` if only a new
    connection helps.
    """
    shard = await call.shard(TRANSACTION_STATE_TOPIC, transactional_id)
    if shard is None:
        return request.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    actor = await coordinator_here(call, shard)
    if actor is None:
        return request.failed(ErrorCode.NOT_COORDINATOR)
    place = call.client.place
    if place is None:
        call.client.place = call.cluster.order.take()
        return request.failed(ErrorCode.CONCURRENT_TRANSACTIONS)
    label = place.label(shard.partition, transactional_id)
    request = structs.replace(request, label=label)
    reply = await call.ask(actor, request)
    for _ in range(BUSY_RETRIES_MAX):
        if reply.error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            break
        await asyncio.sleep(BUSY_RETRY_MS / 1_000)
        reply = await call.ask(actor, request)
    if reply.error is ErrorCode.NONE and reply.coordinator_epoch < 0:
        # It is of a build that knows no version 1, so what it has done is of no use.
        return request.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    call.cluster.order.learn(shard.partition, reply.coordinator_epoch)
    if reply.error in _UNANSWERED:
        call.forget(TRANSACTION_STATE_TOPIC)
        raise ReconnectError(f"{reply.error.name} of the coordinator of {transactional_id!r}")
    return reply


@dataclass(slots=True)
class _Life:
    """What is known of a told pair's client on one connection."""

    proved: int = 0
    """It lives after that many aborts."""
    aborts: int = 0
    refused: set[Hashable] = field(default_factory=set)
    """What came after ``aborts`` and was to be repeated; at most ``REFUSED_MAX``."""


def shows_life(
    client: Client, transactional_id: str, pair: tuple[int, int], aborts: int, request: Hashable
) -> bool:
    """Whether ``request`` was sent after the last abort of its client, so it is no late copy.

    ``aborts`` are those under the told pair, as the coordinator says, and ``request`` is what a
    repeat has in common with what it repeats. If not, the client must be told to send it again. It
    does so only if it has not given it up; then all that follows on this connection is new as well.
    """
    lives: dict[Hashable, _Life] = client.remembered.setdefault(_REMEMBERED, {})
    key = client.principal, transactional_id, pair
    life = lives.get(key)
    if aborts <= (0 if life is None else life.proved):
        return True
    if life is None:
        if len(lives) >= LIVES_MAX:
            del lives[next(iter(lives))]
        life = lives[key] = _Life()
    if life.aborts != aborts:
        life.aborts, life.refused = aborts, set()
    if request in life.refused:
        life.proved, life.refused = aborts, set()
        return True
    if len(life.refused) < REFUSED_MAX:
        life.refused.add(request)
    return False


class CommitOrder:
    """The youngest connections on which positions were committed here in transactions.

    Beyond ``COMMITTERS_MAX`` ids the longest unused are forgotten. Then a late copy of a commit may
    count as the newest, as in Kafka.
    """

    def __init__(self) -> None:
        self._youngest: dict[tuple[Principal, str], int] = {}

    def enter(self, principal: Principal, transactional_id: str, place: ConnectionPlace) -> None:
        """A commit of an id begins; ``ReconnectError`` if one has begun on a younger connection."""
        key = principal, transactional_id
        youngest = self._youngest.pop(key, 0)
        self._youngest[key] = max(youngest, place.number)
        if len(self._youngest) > COMMITTERS_MAX:
            del self._youngest[next(iter(self._youngest))]
        if place.number < youngest:
            raise ReconnectError(f"positions of {transactional_id!r} came on a younger connection")
