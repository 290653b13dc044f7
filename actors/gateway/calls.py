"""One request of one Kafka client: who asks, and whom of the cluster he may ask.

A handler never calls an actor by itself. ``Call.ask`` judges each question as the door of its actor
would (``protocol/access.py``): the gateway is a server, which may do everything, but who asks is a
client of Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from oncelog.actors.coordination.cluster_view import ANY_AGE_MS, ClusterView, Location
from oncelog.actors.gateway.connection_order import ConnectionOrder, ConnectionPlace
from oncelog.actors.interfaces import Clock, Transport
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.access import SERVER, Principal, Split, Verdict
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.rpc.dispatch import NO_AUDIT, Audit
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    TopicPartition,
    shard_of,
)

CALL_TIMEOUT_MS: Final = 30_000
"""Deadline of a question whose request names none."""

FRESH_MS: Final = 5_000
"""How long what the controller said of a topic is used without asking again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What all calls of a gateway share: the way to the actors, the rules, and what is known."""

    transport: Transport
    door: Door
    view: ClusterView
    clock: Clock
    random: Random
    broker_id: int
    """The broker whose gateway this is: its number as a node of Kafka."""
    cluster_id: str = ""
    audit: Audit = NO_AUDIT
    order: ConnectionOrder = field(default_factory=ConnectionOrder)


@dataclass(slots=True, kw_only=True)
class Client:
    """One connection: who calls, and what handlers remember of it until it ends."""

    principal: Principal
    host: str
    name: str = ""
    """The ``client.software.name`` and version that it told by ApiVersions, "" if none."""
    remembered: dict[str, Any] = field(default_factory=dict)
    """By the name of the handler's module; each bounds what it keeps."""
    place: ConnectionPlace | None = None
    """Among all connections; ``None`` until an answer has been given on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request: its API version, the client id in its header, its client and the cluster."""

    cluster: Cluster
    client: Client
    version: int
    client_id: str | None = None

    def refusal(self, request: Request[Any]) -> ErrorCode:
        """Why the client may not ask this, ``NONE`` if he may: for what the gateway asks for him.

        Only of a request that is about one topic: it is not split.
        """
        asked = self._judged(request)
        return asked if isinstance(asked, ErrorCode) else ErrorCode.NONE

    def of_gateway(self) -> Call:
        """The same call in the name of the gateway, which may ask everything."""
        return replace(self, client=Client(principal=SERVER, host=self.client.host))

    def _judged(self, request: Request[Any]) -> Split | ErrorCode:
        cluster, client = self.cluster, self.client
        verdicts: list[Verdict] = []
        asked = cluster.door.judge(request, client.principal, client.host, verdicts)
        cluster.audit.judged(client.principal, client.host, request.method, verdicts)
        return asked

    async def ask(
        self, actor: str | None, request: Request[ReplyT], *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> ReplyT:
        """Ask ``actor`` in the client's name: what he may not is refused here, without a call.

        ``actor`` ``None``: nobody leads there now, which is ``NOT_LEADER_OR_FOLLOWER``.
        """
        asked = self._judged(request)
        if isinstance(asked, ErrorCode):
            who = self.client.principal.name
            return request.failed(asked, f"{who} may not call {request.method!r}")
        if asked.request is None:
            reply: ReplyT = request.reply_type()
        elif actor is None:
            reply = request.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            reply = await self.cluster.transport.call(actor, asked.request, timeout_ms=timeout_ms)
        joined: ReplyT = asked.join(reply)
        return joined

    async def leader(self, tp: TopicPartition, *, is_new: bool = False) -> Location:
        """The leader of a partition; ``is_new``: as the controller says from now on."""
        as_of_ms = loop_ms() if is_new else loop_ms() - FRESH_MS
        return await self.cluster.view.locate(tp, as_of_ms=as_of_ms)

    async def shard(self, topic: str, key: str) -> TopicPartition | None:
        """The partition of an internal topic that has ``key``; ``None`` if it is not known."""
        view = self.cluster.view
        _, topics = await view.topics((topic,), as_of_ms=ANY_AGE_MS)
        found = topics.get(topic)
        if found is None or not found.partitions:
            return None
        return TopicPartition(topic, shard_of(key, len(found.partitions)))

    def forget(self, *topics: str) -> None:
        """Ask the controller about these topics before they are next used: a leader was wrong."""
        self.cluster.view.invalidate(*topics)

    def tell_change(self, *topics: str) -> None:
        """These topics are created, grown or deleted: nobody is told now what was so before."""
        self.cluster.view.invalidate(*topics)
        # Not what was asked within this millisecond either.
        self.cluster.view.changed_ms = loop_ms() + 1
