"""One controller on a real directory, whose own broker is 1; no actor runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from replicas import TOPIC_ID, leading, replica_of
from virtual_time import START_MS

from oncelog.actors.config import ClusterConfig
from oncelog.actors.controller.broker_membership import BrokerNode
from oncelog.actors.controller.controller import Controller
from oncelog.actors.controller.replica_actors import FoundActor
from oncelog.actors.interfaces import Background, holder_of
from oncelog.actors.process.background import ThreadBackground
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.brokers import BrokerHeartbeatRequest, RegisterBrokerRequest
from oncelog.actors.protocol.messages.cluster import (
    CreateTopicReply,
    CreateTopicRequest,
    DeleteTopicReply,
    DeleteTopicRequest,
    PartitionMetadata,
    ShutdownRequest,
)
from oncelog.actors.replica.data_directory import prepare
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, TopicPartition

CLUSTER_ID = "c" * 32
ACTORS_ALONE = ClusterConfig(replicas_per_actor=1)


class ControllerWorld:
    """Clock, transport and launcher of one controller, which note what it does; short ways to ask.

    ``away`` are actors that do not answer; all others answer with ``error``. ``joined`` are brokers
    whose nodes are seen. ``actors`` has by name which of all that were started runs now; a start
    keeps what is there. ``gates`` hold back what is about to happen: (event, actor) → until when.
    """

    def __init__(
        self, directory: Path, new_background: Callable[[], Background] = ThreadBackground
    ) -> None:
        self.directory = directory
        self.new_background = new_background
        self.calls: list[tuple[str, Any]] = []
        self.error = ErrorCode.NONE
        self.away: set[str] = set()
        self.started: list[Placement] = []
        self.ended: list[str] = []
        self.actors: dict[str, int] = {}
        self.events: list[tuple[str, str]] = []
        self.gates: dict[tuple[str, str], asyncio.Event] = {}
        self.joined: list[int] = []
        self.during_call: Callable[[Any], Awaitable[None]] | None = None
        self.controller: Controller
        self._serial = 0

    # --- what the controller is given --------------------------------------------------------

    def now_ms(self) -> int:
        return START_MS

    def token_bytes(self, count: int) -> bytes:
        self._serial += 1
        return bytes([self._serial]) * count

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        self.calls.append((actor, request))
        if actor in self.away:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        if self.during_call is not None:
            await self.during_call(request)
        if isinstance(request, ShutdownRequest):
            assert request.remove_data
            await self._happens("stop", actor)
        return Reply(error=self.error)

    async def start(self, placements: Sequence[Placement]) -> None:
        self.started += placements
        for actor in map(holder_of, placements):
            await self._happens("keep" if actor in self.actors else "start", actor)
            self.actors.setdefault(actor, len(self.events))

    async def find(self, actors: Collection[str]) -> list[FoundActor]:
        return [FoundActor(name, self.actors[name]) for name in actors if name in self.actors]

    async def end(self, actors: Sequence[FoundActor]) -> None:
        for name, handle in actors:
            await self._happens("end", name)
            self.ended.append(name)
            if self.actors.get(name) == handle:
                del self.actors[name]

    async def nodes(self) -> list[BrokerNode]:
        return [BrokerNode(broker_id=broker_id) for broker_id in self.joined]

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        pass

    async def running(self) -> list[str]:
        if gate := self.gates.get(("look", "all")):
            await gate.wait()
        return sorted(self.actors)

    async def _happens(self, event: str, actor: str) -> None:
        self.events.append((event, actor))
        if gate := self.gates.get((event, actor)):
            await gate.wait()

    # --- the controller ----------------------------------------------------------------------

    async def begin(self, config: ClusterConfig = ACTORS_ALONE) -> Controller:
        """Start a controller on what its log holds; the first one founds the cluster."""
        prepare(RealFileSystem(), self.directory, broker_id=1, new_cluster_id=CLUSTER_ID)
        replica = replica_of(
            TopicPartition(CLUSTER_METADATA_TOPIC, 0),
            self.directory,
            leading(""),
            environment={"clock": self, "background": self.new_background()},
        )
        self.controller = Controller(
            replica=replica,
            clock=self,
            transport=self,
            launcher=self,
            config=config,
            process_id=1,
            token_bytes=self.token_bytes,
            on_failure=[].append,
        )
        await replica.start()
        await self.controller.load()
        return self.controller

    async def stop(self) -> None:
        await self.controller.stop()
        await self.controller.replica.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.begin()

    # --- short ways to ask it ----------------------------------------------------------------

    def calls_of(self, kind: type) -> list[tuple[str, Any]]:
        return [(actor, request) for actor, request in self.calls if isinstance(request, kind)]

    async def join(self, *broker_ids: int) -> list[BrokerHeartbeatRequest]:
        """Brokers register and are heard; their next heartbeats."""
        beats = []
        for broker_id in broker_ids:
            registered = await self.controller.register_broker(
                RegisterBrokerRequest(
                    broker_id=broker_id,
                    directory_id=f"{broker_id:032x}",
                    data_dir="/data",
                    cluster_id=CLUSTER_ID,
                )
            )
            beat = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=registered.broker_epoch)
            assert (await self.controller.broker_heartbeat(beat)).error is ErrorCode.NONE
            self.joined.append(broker_id)
            beats.append(beat)
        return beats

    async def create(
        self, name: str = "flights", topic_id: str = TOPIC_ID, **fields: Any
    ) -> CreateTopicReply:
        """Create a topic, of one partition unless ``fields`` say otherwise."""
        request = CreateTopicRequest(name=name, topic_id=topic_id, **{"partitions": 1, **fields})
        return await self.controller.create_topic(request)

    async def delete(self, name: str) -> DeleteTopicReply:
        return await self.controller.delete_topic(DeleteTopicRequest(name=name))

    def partition(self, tp: TopicPartition) -> PartitionMetadata:
        (topic,) = self.controller.machine.metadata([tp.topic])
        return topic.partitions[tp.partition]
