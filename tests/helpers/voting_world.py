"""Controllers and brokers of several nodes in one process: real directories, calls by name.

No actor of a replica runs: what is shown is who holds the metadata log, and who leads it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from actor_environment import InlineBackground
from inside import copy_of, tasks_of
from replicas import surroundings_of
from virtual_time import run_virtually

from oncelog.actors.config import BrokerConfig, ClusterConfig, ReplicaConfig
from oncelog.actors.controller.broker_membership import BrokerNode
from oncelog.actors.interfaces import CONTROLLER_ACTOR, broker_actor
from oncelog.actors.launch.assembly import Environment
from oncelog.actors.launch.broker import Broker
from oncelog.actors.launch.controller_server import ControllerServer
from oncelog.actors.protocol.messages.cluster import (
    CreateTopicRequest,
    HoldReplicasReply,
    HoldReplicasRequest,
    MetadataReply,
    MetadataRequest,
)
from oncelog.actors.replica.data_directory import prepare
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

CLUSTER_ID = "c" * 32
CLUSTER = ClusterConfig(
    replicas_per_actor=100, broker_heartbeat_interval_ms=500, internal_call_timeout_ms=1_000
)


class Node:
    """One node: its directory, and what Ray would run on it."""

    def __init__(self, world: VotingWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.is_up = True
        self.is_isolated = False
        self.is_head = False
        self.is_told = True
        """Whether Ray says where the controller is."""
        self.controller: ControllerServer | None = None
        self.broker: Broker | None = None
        self.data_dir = world.root / str(number)

    # --- Transport, Launcher and ControllerPlace ---------------------------------------------

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        await asyncio.sleep(0.001)
        if isinstance(request, HoldReplicasRequest):
            return HoldReplicasReply()
        found = self.world.find(actor)
        if found is None and self.is_up and not self.is_isolated:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        is_reached = found is not None and (
            found is self or not (self.is_isolated or found.is_isolated)
        )
        if not self.is_up or not is_reached:
            await asyncio.sleep(timeout_ms / 1_000)
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)
        server = found.controller if actor == CONTROLLER_ACTOR else found.broker
        if server in self.world.hung:
            await asyncio.sleep(timeout_ms / 1_000)
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)
        method = getattr(server, request.method, None)
        return await method(request)

    async def start(self, placements: Sequence[Any] | None = None) -> None:
        if placements is None and await self.is_gone():
            self.start_controller()

    async def find(self, actors: Any) -> list[Any]:
        return []

    async def end(self, actors: Sequence[Any]) -> None:
        assert not actors

    async def running(self) -> list[str]:
        return [broker_actor(n) for n, node in self.world.nodes.items() if node.broker]

    async def nodes(self) -> list[BrokerNode]:
        return [BrokerNode(broker_id=n) for n, node in self.world.nodes.items() if node.is_up]

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        for node in nodes:
            self.world.nodes[node.broker_id].start_broker()

    async def is_gone(self) -> bool:
        holder = self.world.holder
        return holder is None or not holder.is_up

    async def is_on_head(self) -> bool:
        return self.is_head

    async def is_here(self) -> bool | None:
        return self.world.holder is self if self.is_told else None

    async def kill_process(self) -> None:
        """Ray starts it again at once."""
        self.world.killed.append(self.number)
        self.end_controller(None)
        self.start_controller()

    # --- processes ---------------------------------------------------------------------------

    def environment(self, die: Callable[[BaseException], None]) -> Environment:
        return surroundings_of(
            self,
            asyncio.get_running_loop(),
            die,
            new_background=InlineBackground,
            random=random.Random(self.number),
            incarnation=str(self.number),
            process_id=self.number,
        )

    def start_controller(self) -> None:
        """What Ray does with the one actor of that name."""
        self.world.holder = self
        self.world.starts.append(self.number)
        config = ReplicaConfig(
            topic=CLUSTER_METADATA_TOPIC,
            partition=0,
            broker_id=self.number,
            data_dir=str(self.data_dir),
            cluster=self.world.cluster,
            cluster_id=CLUSTER_ID,
        )
        self.controller = ControllerServer(
            config,
            self.environment(self.end_controller),
            launcher=self,
            token_bytes=random.Random(self.number).randbytes,
            resign=self.resign,
            is_on_head=self.is_head,
        )

    def start_broker(self) -> None:
        if self.broker is None:
            config = BrokerConfig(
                broker_id=self.number,
                data_dir=str(self.data_dir),
                cluster=self.world.cluster,
                cluster_id=CLUSTER_ID,
            )
            self.broker = Broker(config, self.environment(self.world.failures.append), self)
            self.broker.begin()

    def resign(self) -> None:
        """The actor is ended for good: its name is free."""
        self.world.resigned.append(self.number)
        self.end_controller(None)

    def end_controller(self, _reason: BaseException | None) -> None:
        """The process is gone; nobody starts it again here."""
        controller, self.controller = self.controller, None
        if controller is None:
            return
        if self.world.holder is self and self.is_up:
            self.world.holder = None
        controller.is_stopped = True
        controller.metrics.stop()
        for tasks in map(tasks_of, (controller, controller.shell)):
            tasks.cancel()
        controller.replica.halt()
        controller.replica.directory.release()

    def kill(self) -> None:
        """The node is gone with all that runs there; Ray knows."""
        self.is_up = False
        self.end_controller(None)
        broker, self.broker = self.broker, None
        if broker is not None:
            tasks_of(broker).cancel()
            copy = copy_of(broker)
            if copy is not None:
                copy.replica.halt()
                copy.replica.directory.release()


class VotingWorld:
    """``holder`` is the node on which Ray has the actor ``controller``."""

    def __init__(self, root: Path, count: int, cluster: ClusterConfig = CLUSTER) -> None:
        self.root = root
        self.cluster = cluster
        self.failures: list[BaseException] = []
        self.holder: Node | None = None
        self.starts: list[int] = []
        self.resigned: list[int] = []
        self.killed: list[int] = []
        self.hung: set[ControllerServer] = set()
        self.nodes = {number: Node(self, number) for number in range(1, count + 1)}
        self.client = Node(self, 0)

    def find(self, actor: str) -> Node | None:
        """The node on which an actor lives."""
        if actor == CONTROLLER_ACTOR:
            return self.holder if self.holder is not None and self.holder.controller else None
        found = [n for n, node in self.nodes.items() if broker_actor(n) == actor and node.broker]
        return self.nodes[found[0]] if found else None

    async def metadata(self) -> MetadataReply:
        """What a client is told by whoever is the controller."""
        return await self.client.call(
            CONTROLLER_ACTOR, MetadataRequest(), timeout_ms=CLUSTER.internal_call_timeout_ms
        )

    async def create(self, name: str) -> ErrorCode:
        request = CreateTopicRequest(name=name, topic_id=name * 32, partitions=1)
        reply = await self.client.call(CONTROLLER_ACTOR, request, timeout_ms=1_000)
        return reply.error

    async def until_voters(self, *voters: int) -> None:
        """Until these are the voters, and none is behind."""
        while True:
            told = (await self.metadata()).voters
            if {one.broker_id: one.is_behind for one in told} == dict.fromkeys(voters, False):
                return
            await asyncio.sleep(0.5)

    async def until_serving(self) -> int:
        """The broker on which a controller serves."""
        while True:
            reply = await self.metadata()
            if reply.error is ErrorCode.NONE:
                return reply.process_id
            await asyncio.sleep(0.5)


def play(
    root: Path,
    scenario: Callable[[VotingWorld], Coroutine[Any, Any, None]],
    *,
    count: int = 3,
    head: int = 0,
    cluster: ClusterConfig = CLUSTER,
) -> None:
    """A scenario in a cluster that broker 1 founds; all others join. ``head`` is on Ray's head."""

    async def body() -> None:
        world = VotingWorld(root, count, cluster)
        one = world.nodes[1]
        if head:
            world.nodes[head].is_head = True
        prepare(RealFileSystem(), one.data_dir, broker_id=1, new_cluster_id=CLUSTER_ID)
        one.start_controller()
        await world.until_serving()
        await asyncio.wait_for(scenario(world), 600)
        assert world.failures == []
        for node in world.nodes.values():
            node.kill()

    run_virtually(body())
