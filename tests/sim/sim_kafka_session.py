"""What a simulated client of Kafka knows of the cluster, and its connections to gateways.

As Kafka's clients do it: a connection per node; who names himself first and then asks; a request
that is not answered in time ends its connection, and all that was under way on it is unknown.
Messages are those of kafka-python.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from sim_gateways import Gateways, Link
from sim_process import Client

from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

BACKOFF_S = (0.02, 0.1)
HOLD_TIMEOUTS = (1.0, 3.0)
"""How long a batch stays on its connection, in times that its client waits for an answer."""

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators in FindCoordinator."""

Address = tuple[str, int]


class _Wire:
    """One connection: requests in order, and answers by correlation id."""

    def __init__(self, session: Session, address: Address) -> None:
        self._session = session
        self._waiting: dict[int, tuple[asyncio.Future[Any], Any, int]] = {}
        self._arrived = bytearray()
        self._count = 0
        self.is_lost = False
        gateway = session.gateways.find(address[0])
        self._link = (
            None
            if gateway is None
            else Link(session.gateways, session.client, gateway, self._bytes, self.lost)
        )

    async def begin(self) -> bool:
        """Tell who this is, as the first request of each connection; whether it is served."""
        if self._link is None:
            return False
        name, version = self._session.software
        hello = ApiVersionsRequest[3](client_software_name=name, client_software_version=version)
        return await self.ask(hello, ApiVersionsResponse) is not None

    async def ask(self, message: Any, response: Any, hold_s: float = 0.0) -> Any:
        """The answer; ``None`` if the connection was lost before, or was not answered in time.

        The gateway reads the message, and what follows, after ``hold_s``.
        """
        if self.is_lost or self._link is None:
            return None
        if hold_s:
            self._link.hold(hold_s)
        self._count += 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting[self._count] = (future, response, message.API_VERSION)
        message.with_header(correlation_id=self._count, client_id=self._session.client.name)
        self._link.send(bytes(message.encode(header=True, framed=True)))
        timer = loop.call_later(self._session.timeout_s, self.lost)
        try:
            return await future
        finally:
            timer.cancel()

    def lost(self) -> None:
        """Close the connection: what becomes of the requests on it nobody knows."""
        self.is_lost = True
        if self._link is not None:
            self._link.close()
        for future, _, _ in self._waiting.values():
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def _bytes(self, piece: bytes) -> None:
        if self.is_lost:
            # A process that was paused closes it first, and then is given what came before.
            return
        self._arrived += piece
        while len(self._arrived) >= 4:
            end = 4 + int.from_bytes(self._arrived[:4], "big")
            if len(self._arrived) < end:
                return
            frame = bytes(self._arrived[4:end])
            del self._arrived[:end]
            future, response, version = self._waiting.pop(int.from_bytes(frame[:4], "big"))
            if not future.done():
                future.set_result(response.decode(frame, version=version, header=True))


class Session:
    """A client's view of the cluster. ``software`` is how it names itself, with its version."""

    def __init__(
        self,
        gateways: Gateways,
        client: Client,
        random: Random,
        software: tuple[str, str],
        timeout_ms: int,
    ) -> None:
        self.gateways = gateways
        self.client = client
        self.random = random
        self.software = software
        self.timeout_s = timeout_ms / 1_000
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._wires: dict[Address, _Wire] = {}
        self._opening: dict[Address, asyncio.Lock] = {}

    def close(self) -> None:
        """End all connections."""
        for wire in list(self._wires.values()):
            wire.lost()

    async def ask(
        self, address: Address, message: Any, response: Any, *, may_be_held: bool = False
    ) -> Any:
        """Ask a node; ``None`` if there is no answer."""
        wire = await self._wire(address)
        if wire is None:
            return None
        share = self.gateways.plan.kafka_holds if may_be_held else 0.0
        is_held = share and self.random.random() < share
        hold_s = self.random.uniform(*HOLD_TIMEOUTS) * self.timeout_s if is_held else 0.0
        return await wire.ask(message, response, hold_s)

    async def back_off(self) -> None:
        """Wait before something is tried again."""
        await asyncio.sleep(self.random.uniform(*BACKOFF_S))

    async def leader(self, tp: TopicPartition) -> Address | None:
        """The node to send a partition's batches to, asked for if it is not known."""
        if tp not in self._leaders:
            await self._learn(tp.topic)
        return self._nodes.get(self._leaders.get(tp, -1))

    def forget(self, tp: TopicPartition) -> None:
        """A leader was wrong, or did not answer."""
        self._leaders.pop(tp, None)

    async def coordinate(
        self,
        kind: int,
        key: str,
        new_message: Callable[[], Any],
        response: Any,
        error_of: Callable[[Any], int],
        *,
        until_s: float,
    ) -> Any:
        """Ask the coordinator of ``key`` until it answers; ``None`` if it has not by ``until_s``.

        Moves and what passes by itself are asked again about, on another connection if need be.
        """
        while asyncio.get_running_loop().time() < until_s:
            address = await self._coordinator(kind, key)
            answer = None if address is None else await self.ask(address, new_message(), response)
            error = -1 if answer is None else error_of(answer)
            if error in _PASSES:
                await self.back_off()
            elif error == -1 or error in _MOVED:
                self._coordinators.pop((kind, key), None)
                await self.back_off()
            else:
                return answer
        return None

    # --- inside ---------------------------------------------------------------------------

    async def _wire(self, address: Address) -> _Wire | None:
        async with self._opening.setdefault(address, asyncio.Lock()):
            wire = self._wires.get(address)
            if wire is None or wire.is_lost:
                wire = self._wires[address] = _Wire(self, address)
                if not await wire.begin():
                    wire.lost()
                    return None
        return wire

    def _any_node(self) -> Address:
        return self.random.choice(self.gateways.addresses())

    async def _learn(self, topic: str) -> None:
        topics = [MetadataRequest.MetadataRequestTopic(name=topic)]
        message = MetadataRequest[8](topics=topics, allow_auto_topic_creation=False)
        answer = await self.ask(self._any_node(), message, MetadataResponse)
        if answer is None:
            await self.back_off()
            return
        self._nodes |= {one.node_id: (one.host, one.port) for one in answer.brokers}
        for one in answer.topics:
            for partition in one.partitions:
                tp = TopicPartition(one.name, partition.partition_index)
                if not partition.error_code:
                    self._leaders[tp] = partition.leader_id

    async def _coordinator(self, kind: int, key: str) -> Address | None:
        if self.random.random() < self.gateways.plan.kafka_wanders:
            # As it does if the coordinator's gateway does not answer.
            return self._any_node()
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        message = FindCoordinatorRequest[3](key=key, key_type=kind)
        answer = await self.ask(self._any_node(), message, FindCoordinatorResponse)
        if answer is None or answer.error_code:
            return None
        found = self._coordinators[kind, key] = (answer.host, answer.port)
        return found


_PASSES = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
_MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
