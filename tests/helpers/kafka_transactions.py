"""Transactions of Kafka's clients: a real coordinator, real leaders and groups, any gateways."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from coordinator_world import CoordinatorWorld

from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.gateway.calls import Call, Client, Cluster
from oncelog.actors.gateway.records.handlers import RecordHandlers
from oncelog.actors.gateway.transactions.enrolments import Enrolments
from oncelog.actors.gateway.transactions.requests import Transactions
from oncelog.actors.groups.group_coordinator import GroupCoordinator, group_settings
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.group import OffsetFetchRequest
from oncelog.actors.protocol.messages.partition import FetchRequest
from oncelog.actors.protocol.messages.transaction import AbortTransactionRequest
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, IsolationLevel, TopicPartition

FLIGHTS = TopicPartition("flights", 0)
DELAYS = TopicPartition("delays", 0)
GROUP = "billing"
NAME = "loader"
TIMEOUT_MS = 60_000
JAVA = "apache-kafka-java 4.4.0"

Play = Callable[[Callable[["Kafka"], Awaitable[None]]], None]


class Gateway:
    """One gateway, with nothing in memory that another has."""

    def __init__(self, world: CoordinatorWorld, door: Door) -> None:
        self.enrolments = Enrolments()
        self.transactions = Transactions(self.enrolments)
        self.handlers = self.transactions.handlers
        self.cluster = Cluster(
            transport=world,
            door=door,
            view=ClusterView(
                lambda request: world.call(CONTROLLER_ACTOR, request, timeout_ms=5_000),
                asyncio.create_task,
            ),
            clock=world,
            random=random.Random(1),
            broker_id=1,
        )
        world.next_incarnation += 1
        self.cluster.order.incarnation = world.next_incarnation
        self.records = RecordHandlers(
            self.cluster,
            enrolments=self.enrolments,
            init_transactional=self.transactions.init_producer_id,
        )

    def call(self, version: int, client: Client | None = None) -> Call:
        client = client or Client(principal=Principal("User:ANONYMOUS"), host="h", name=JAVA)
        return Call(cluster=self.cluster, client=client, version=version, client_id="app")


class Kafka:
    """A world with two topics and two groups' shards, and any number of gateways."""

    def __init__(self, world: CoordinatorWorld) -> None:
        self.world = world
        self.door = Door()
        self.leaders: dict[TopicPartition, Any] = {}
        self.groups: dict[int, GroupCoordinator] = {}

    async def start(self) -> None:
        for tp in (FLIGHTS, DELAYS):
            self.leaders[tp] = await self.world.partition(tp)
        for shard in range(2):
            replica = self.world.replica(TopicPartition(CONSUMER_OFFSETS_TOPIC, shard))
            coordinator = GroupCoordinator(
                replica=replica,
                transport=self.world,
                clock=self.world,
                random=random.Random(1),
                drivers=self.world,
                settings=group_settings(self.world.config),
                on_failure=self._failed,
            )
            await replica.start()
            await coordinator.load()
            self.world.running += [replica, coordinator]
            self.world.actors[f"group:{shard}@1"] = coordinator
            self.groups[shard] = coordinator
        self.coordinator = await self.world.coordinator()

    def _failed(self, error: BaseException) -> None:
        raise AssertionError from error

    def gateway(self) -> Gateway:
        return Gateway(self.world, self.door)

    def state(self) -> str:
        (description,) = self.coordinator.machine.operations.describe([NAME])
        return str(description.state)

    def enrolled(self) -> set[TopicPartition]:
        (description,) = self.coordinator.machine.operations.describe([NAME])
        return set(description.partitions)

    async def committed(self, tp: TopicPartition) -> int:
        """How many records there are for who reads only what is committed."""
        reply = await self.leaders[tp].fetch(
            FetchRequest(
                topic_partition=tp,
                fetch_offset=0,
                isolation_level=IsolationLevel.READ_COMMITTED,
                max_wait_ms=0,
            )
        )
        return int(reply.last_stable_offset) if not reply.aborted_transactions else 0

    async def position(self) -> int | ErrorCode:
        for coordinator in self.groups.values():
            reply = await coordinator.offset_fetch(
                OffsetFetchRequest(group_id=GROUP, partitions=(FLIGHTS,))
            )
            if reply.error is ErrorCode.NONE:
                (one,) = reply.offsets
                return one.offset if one.error is ErrorCode.NONE else one.error
        raise AssertionError("nobody coordinates the group")

    def hold(self, actor: str, method: str) -> Held:
        """Delay the next call of a method."""
        held = Held(self.world.actors[actor], method)
        self.world.actors[actor] = held
        return held


class Held:
    """An actor, of which one call is delayed until ``go`` is set; ``has_come`` says that it is."""

    def __init__(self, actor: Any, method: str) -> None:
        self._actor = actor
        self._method = method
        self.has_come = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        handler = getattr(self._actor, name)
        if name != self._method or self.has_come.is_set():
            return handler

        async def later(request: Any) -> Any:
            self.has_come.set()
            await self.go.wait()
            return await handler(request)

        return later


async def abort_as_operator(kafka: Kafka) -> None:
    """Have the coordinator abort the open transaction, as ``oncelog transactions abort`` does."""
    (description,) = kafka.coordinator.machine.operations.describe([NAME])
    request = AbortTransactionRequest(
        transactional_id=NAME,
        producer_id=description.producer_id,
        producer_epoch=description.producer_epoch,
    )
    assert (await kafka.coordinator.abort_transaction(request)).error is ErrorCode.NONE


def play_with(world: CoordinatorWorld) -> Play:
    """Run a scenario in a world."""

    def run(scenario: Callable[[Kafka], Awaitable[None]]) -> None:
        async def body() -> None:
            kafka = Kafka(world)
            await kafka.start()
            await scenario(kafka)

        world.run(body)

    return run
