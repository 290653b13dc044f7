"""One controller on a real directory, whose own broker is 1; no actor runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from replicas import leading, replica_of
from virtual_time import START_MS

from oncelog.actors.config import ClusterConfig
from oncelog.actors.controller.broker_membership import BrokerNode
from oncelog.actors.controller.controller import Controller
from oncelog.actors.controller.replica_actors import FoundActor
from oncelog.actors.interfaces import Background
from oncelog.actors.process.background import ThreadBackground
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.replica.data_directory import prepare
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, TopicPartition

CLUSTER_ID = "c" * 32
ACTORS_ALONE = ClusterConfig(replicas_per_actor=1)


class ControllerWorld:
    """Clock, transport and launcher of one controller, which note what it does.

    ``away`` are actors that do not answer; all others answer with ``error``. ``alive`` are actors
    that run, ``joined`` brokers whose nodes are seen.
    """

    new_background: Callable[[], Background] = ThreadBackground

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.calls: list[tuple[str, Any]] = []
        self.error = ErrorCode.NONE
        self.away: set[str] = set()
        self.started: list[Placement] = []
        self.ended: list[str] = []
        self.alive: list[str] = []
        self.joined: list[int] = []
        self.during_call: Callable[[Any], Awaitable[None]] | None = None
        self.controller: Controller
        self._serial = 0

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
        return Reply(error=self.error)

    def calls_of(self, kind: type) -> list[tuple[str, Any]]:
        return [(actor, request) for actor, request in self.calls if isinstance(request, kind)]

    async def start(self, placements: Sequence[Placement]) -> None:
        self.started += placements

    async def find(self, actors: Collection[str]) -> list[FoundActor]:
        return [FoundActor(name, name) for name in actors]

    async def end(self, actors: Sequence[FoundActor]) -> None:
        self.ended += [one.name for one in actors]

    async def nodes(self) -> list[BrokerNode]:
        return [BrokerNode(broker_id=broker_id) for broker_id in self.joined]

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        pass

    async def running(self) -> list[str]:
        return self.alive

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
