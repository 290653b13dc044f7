"""A whole cluster in this process and on its event loop: real files and syncs, and no Ray.

What a transaction costs here is Python and disk; what it costs more on Ray is the calls.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from oncelog.actors.config import ClusterConfig, ReplicaConfig
from oncelog.actors.controller.broker_membership import BrokerNode
from oncelog.actors.controller.replica_actors import FoundActor
from oncelog.actors.coordination.process_watch import ProcessWatch
from oncelog.actors.interfaces import CONTROLLER_ACTOR, Transport, actor_of
from oncelog.actors.launch.assembly import Environment, ReplicaServer, shell_of
from oncelog.actors.launch.controller_server import ControllerServer
from oncelog.actors.process.background import ThreadBackground
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.replica.data_directory import prepare
from oncelog.api.admin.admin import AsyncAdmin
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.producer import AsyncProducer
from oncelog.api.session.cluster_connection import wait_until_ready
from oncelog.api.session.routing import Router
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, TopicPartition


class TimedTransport:
    """Passes calls on and keeps how long each took, in milliseconds, by method."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.milliseconds: defaultdict[str, list[float]] = defaultdict(list)

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        """See ``Transport.call``."""
        started = time.perf_counter()
        reply = await self._transport.call(actor, request, timeout_ms=timeout_ms)
        self.milliseconds[request.method].append(1e3 * (time.perf_counter() - started))
        return reply


class _Switchboard:
    """``Transport`` to the servers of one process."""

    def __init__(self) -> None:
        self.servers: dict[str, Any] = {}

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:  # noqa: ARG002
        server = self.servers.get(actor)
        if server is None:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        return await getattr(server, request.method)(request)


CLUSTER_ID = "c" * 32


class TimedBackground:
    """``Background`` that keeps the milliseconds of the work and of the way there and back."""

    def __init__(self) -> None:
        self._background = ThreadBackground()
        self.work: list[float] = []
        self.way: list[float] = []

    def run(self, work: Callable[[], Any], *, is_small: bool = False) -> asyncio.Future[Any]:
        """See ``Background.run``; what is done at once has no way to go."""

        def timed() -> Any:
            begun = time.perf_counter()
            try:
                return work()
            finally:
                self.work.append(1e3 * (time.perf_counter() - begun))

        def ended(_: object = None) -> None:
            self.way.append(1e3 * (time.perf_counter() - started) - self.work[-1])

        started = time.perf_counter()
        future = self._background.run(timed, is_small=is_small)
        if future.done():
            ended()
        else:
            future.add_done_callback(ended)
        return future


class _Launcher:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    async def start(self, placements: Sequence[Placement]) -> None:
        for placement in placements:
            self._cluster.start_replica(placement.topic_partition, placement.broker_id)

    async def find(self, actors: Collection[str]) -> list[FoundActor]:
        servers = self._cluster.board.servers
        return [FoundActor(name, servers[name]) for name in actors if name in servers]

    async def end(self, actors: Sequence[FoundActor]) -> None:
        for name, _ in actors:
            self._cluster.board.servers.pop(name, None)

    async def running(self) -> list[str]:
        return list(self._cluster.board.servers)

    async def nodes(self) -> Sequence[BrokerNode]:
        return ()

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        """There are none."""


class LocalCluster:
    """Its controller, coordinators and leaders; make it on the event loop it lives on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._config = ClusterConfig(replicas_per_actor=1)
        self.board = _Switchboard()
        self.transport = TimedTransport(self.board)
        self.background = TimedBackground()
        self._random = random.Random(1)

    async def start(self) -> None:
        """Start everything and wait until it serves."""
        prepare(RealFileSystem(), self._directory, broker_id=1, new_cluster_id=CLUSTER_ID)
        config = self._replica_config(TopicPartition(CLUSTER_METADATA_TOPIC, 0), 1)
        self.board.servers[CONTROLLER_ACTOR] = ControllerServer(
            config, self._environment(), launcher=_Launcher(self), token_bytes=secrets.token_bytes
        )
        await wait_until_ready(self.board)

    def start_replica(self, tp: TopicPartition, broker_id: int) -> None:
        """Start the server of one partition unless it runs."""
        name = actor_of(tp, broker_id)
        if name not in self.board.servers:
            self.board.servers[name] = ReplicaServer(
                self._replica_config(tp, broker_id), self._environment(), shell_of
            )

    async def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic."""
        admin = AsyncAdmin(Router(self.board, SystemClock()), random=self._random)
        await admin.create_topic(name, partitions=partitions)

    def producer(self, transactional_id: str) -> AsyncProducer:
        """A transactional producer whose calls ``transport`` times."""
        return timed_producer(self.transport, transactional_id, self._random)

    async def stop(self) -> None:
        """Stop what runs; the files are the caller's to remove."""
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _replica_config(self, tp: TopicPartition, broker_id: int) -> ReplicaConfig:
        return ReplicaConfig(
            topic=tp.topic,
            partition=tp.partition,
            broker_id=broker_id,
            data_dir=str(self._directory),
            cluster=self._config,
            cluster_id=CLUSTER_ID,
        )

    def _environment(self) -> Environment:
        return Environment(
            filesystem=RealFileSystem(),
            clock=SystemClock(),
            new_background=lambda: self.background,
            transport=self.transport,
            drivers=ProcessWatch(ProcessTable("here"), self.transport, on_failure=_die),
            random=self._random,
            incarnation=secrets.token_hex(8),
            process_id=os.getpid(),
            die=_die,
        )


def timed_producer(
    transport: Transport, transactional_id: str, chance: random.Random
) -> AsyncProducer:
    """A producer for the running event loop that calls through ``transport``."""
    settings = ProducerSettings.from_options({"transactional_id": transactional_id})
    return AsyncProducer(Router(transport, SystemClock()), settings, random=chance)


def _die(error: BaseException) -> None:
    raise SystemExit(f"a bug: {error!r}")
