"""The Ray actor classes: each gives its server the surroundings of production, and takes its calls.

A broken invariant ends the process: Ray starts it again and it recovers from its log.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn

import ray

from oncelog.actors.config import CONNECTIONS, BrokerConfig, HostConfig, ReplicaConfig
from oncelog.actors.interfaces import host_actor
from oncelog.actors.launch.assembly import (
    GroupCoordinatorServer,
    PartitionServer,
    ReplicaServer,
    Surroundings,
    TransactionCoordinatorServer,
    server_of,
)
from oncelog.actors.launch.broker import Broker
from oncelog.actors.launch.controller_place import RayControllerPlace
from oncelog.actors.launch.figures import DiskFigures
from oncelog.actors.launch.host import Host
from oncelog.actors.process.background import (
    OPENING_THREADS_MAX,
    DiskThreads,
    ThreadBackground,
)
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.process.process_table import ProcessTable, boot_id
from oncelog.actors.process.ray_metrics import RayMetrics
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.rpc.actor_transport import ActorTransport, LocalTransport
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.actors.rpc.dispatch import Dispatch, read_answer
from oncelog.actors.rpc.listener import TOKEN_BYTES, Listener, ListenerAddress
from oncelog.actors.rpc.message_codec import REQUESTS, encode
from oncelog.actors.rpc.ray_transport import RayTransport
from oncelog.storage.disk.file_system import RealFileSystem

_logger = logging.getLogger(__name__)

EXIT_STATUS_OF_BUG: Final = 70
"""Exit status of a process that met a bug of ours (EX_SOFTWARE of sysexits)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a process reports of itself, even while its data path is busy.

    ``answered_calls`` counts calls of the data path since the process began.
    """

    process_id: int
    is_serving: bool
    detail: str
    answered_calls: int


def die_of_bug(error: BaseException) -> NoReturn:
    """End the process at once; Ray starts it again, and it recovers from its log."""
    _logger.critical("this process ends: %r", error, exc_info=error)
    logging.shutdown()
    os._exit(EXIT_STATUS_OF_BUG)


def call_reports(config: ReplicaConfig | HostConfig | BrokerConfig) -> CallReports:
    """Where the calls that a process makes and answers are counted."""
    return CallReports(RayMetrics(), config.cluster.metrics_interval_ms)


def production(config: ReplicaConfig | HostConfig | BrokerConfig) -> Surroundings:
    """The surroundings of a Ray actor; also sets up logging."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    return Surroundings(
        filesystem=RealFileSystem(),
        clock=SystemClock(),
        new_background=functools.partial(ThreadBackground, DiskThreads()),
        new_opener=functools.partial(ThreadBackground, DiskThreads(OPENING_THREADS_MAX)),
        transport=ActorTransport(RayTransport(), call_reports(config)),
        drivers=ProcessTable(ray.util.get_node_ip_address()),
        random=random.Random(secrets.randbits(64)),
        incarnation=secrets.token_hex(8),
        process_id=os.getpid(),
        metrics=RayMetrics(),
        disk_figures=DiskFigures(),
        boot_id=boot_id(),
        die=die_of_bug,
    )


def _ray_method(name: str) -> Callable[..., Awaitable[Any]]:
    """The method ``name`` of a Ray actor: for encoded requests, and for a handle's own.

    ``key`` is the replica it is for, of those that the actor holds; a handle's own request of a
    host says it by the partition, transactional id or group that it names.
    """

    async def method(process: ActorProcess, request: bytes | Request[Any], key: str = "") -> Any:
        if isinstance(request, bytes):
            return await process.answer(f"{name}/{key}" if key else name, request)
        key = key or process.key_for(request)
        answer = process.answer(f"{name}/{key}" if key else name, encode(request))
        return read_answer(request, *await answer)

    method.__name__ = name
    return method


class ActorProcess:
    """A Ray actor around one plain server, which both roads call through one ``Dispatch``."""

    server_class: ClassVar[type]
    held_classes: ClassVar[tuple[type, ...]] = ()
    """What else answers, by the key of a call."""

    def __init_subclass__(cls) -> None:
        """Give Ray a method for each request that the server, or what it holds, answers."""
        # Ray makes a subclass of its own, which has them: it is pickled whole, they are not.
        for name in REQUESTS:
            answering = (cls.server_class, *cls.held_classes)
            is_answered = any(hasattr(server_class, name) for server_class in answering)
            if is_answered and not hasattr(cls, name):
                setattr(cls, name, _ray_method(name))

    def __init__(
        self,
        server: Any,
        *,
        calls: str,
        reports: CallReports = NO_REPORTS,
        find: Callable[[str], object | None] | None = None,
    ) -> None:
        self.server = server
        self.dispatch = Dispatch(server, on_bug=die_of_bug, reports=reports, find=find)
        self.listener: Listener | None = None
        if calls == CONNECTIONS:
            # At the address by which Ray knows this node.
            host, token = ray.util.get_node_ip_address(), secrets.token_bytes(TOKEN_BYTES)
            self.listener = Listener(self.dispatch, host=host, token=token)

    def __repr__(self) -> str:
        return repr(self.server)

    async def listener_address(self) -> ListenerAddress | None:
        """Where this process takes calls over connections; ``None`` if only Ray carries them."""
        return None if self.listener is None else await self.listener.address()

    def key_for(self, request: Request[Any]) -> str:  # noqa: ARG002
        """Which of the replicas that the actor holds ``request`` is for; "" where it is alone."""
        return ""

    async def answer(self, name: str, message: bytes) -> tuple[int, bytes]:
        """Answer a call that Ray carried; see ``Dispatch.answer``."""
        outcome, body = await self.dispatch.answer(name, message)
        return int(outcome), b"".join(body)


class ReplicaProcess(ActorProcess):
    """The process of a server that holds a log."""

    server_class: ClassVar[type[ReplicaServer]] = ReplicaServer

    def __init__(self, config: ReplicaConfig) -> None:
        super().__init__(
            self.make_server(config), calls=config.cluster.calls, reports=call_reports(config)
        )

    def make_server(self, config: ReplicaConfig) -> ReplicaServer:
        """The server in the surroundings of production."""
        return self.server_class(config, production(config))

    @ray.method(concurrency_group="health")
    async def health(self) -> Health:
        """Tell whether this process serves; answered beside the data path."""
        server: ReplicaServer = self.server
        return Health(
            process_id=os.getpid(),
            is_serving=server.replica.is_following or server.is_serving(),
            detail=server.failure or server.replica.failure or "",
            answered_calls=self.dispatch.answered_calls,
        )


class PartitionProcess(ReplicaProcess):
    """The process of one partition replica."""

    server_class = PartitionServer


class TransactionCoordinatorProcess(ReplicaProcess):
    """The process of one shard of transactional ids."""

    server_class = TransactionCoordinatorServer


class GroupCoordinatorProcess(ReplicaProcess):
    """The process of one shard of consumer groups."""

    server_class = GroupCoordinatorServer


class HostProcess(ActorProcess):
    """The process of a host, which holds several replicas."""

    server_class = Host
    held_classes = (PartitionServer, TransactionCoordinatorServer, GroupCoordinatorServer)

    def __init__(self, config: HostConfig) -> None:
        surroundings = production(config)
        transport = LocalTransport(
            host_actor(config.number, config.broker_id), surroundings.transport
        )
        host = Host(config, dataclasses.replace(surroundings, transport=transport))
        super().__init__(
            host, calls=config.cluster.calls, reports=call_reports(config), find=host.find
        )
        transport.dispatch = self.dispatch
        host.begin()

    def key_for(self, request: Request[Any]) -> str:
        """See ``Host.key_for``."""
        host: Host = self.server
        return host.key_for(request)

    @ray.method(concurrency_group="health")
    async def health(self) -> Health:
        """Tell whether this process serves; answered beside the data path."""
        host: Host = self.server
        idle = [
            f"{name}: {server.failure or server.replica.failure or 'starting'}"
            for name, server in host.servers.items()
            if not (server.replica.is_following or server.is_serving())
        ]
        return Health(
            process_id=os.getpid(),
            is_serving=not idle,
            detail="; ".join(idle[:3]),
            answered_calls=self.dispatch.answered_calls,
        )


class BrokerProcess(ActorProcess):
    """The process by which a broker joins."""

    server_class = Broker

    def __init__(self, config: BrokerConfig) -> None:
        broker = Broker(config, production(config), RayControllerPlace(config))
        super().__init__(broker, calls=config.cluster.calls, reports=call_reports(config))
        broker.begin()

    @ray.method(concurrency_group="health")
    async def health(self) -> Health:
        """Tell whether the broker is registered."""
        broker: Broker = self.server
        return Health(
            process_id=os.getpid(),
            is_serving=broker.is_registered,
            detail=broker.problem,
            answered_calls=self.dispatch.answered_calls,
        )


_PROCESSES: Final = {
    kind.server_class: kind
    for kind in (PartitionProcess, TransactionCoordinatorProcess, GroupCoordinatorProcess)
}


def process_of(topic: str) -> type[ReplicaProcess]:
    """The class of the process that serves a partition of ``topic``; not for the metadata log."""
    return _PROCESSES[server_of(topic)]
