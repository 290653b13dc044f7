"""The Ray actors: their classes, and how actors are started, found and killed.

A class creates its server with production's ``Environment``, and receives its calls. A broken
invariant ends the process: Ray restarts it and it recovers from its log.

``launch_actor`` turns classes into named, detached, self-restarting Ray actors. The classes are not
decorated with ``ray.remote``, so a restarted actor runs the code installed by then.

One file: the controller's process starts all others, and a broker's process starts the
controller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hmac
import logging
import os
import random
import resource
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, TypeAlias

import ray
from ray.exceptions import RayError

from oncelog.actors.config import (
    CONNECTIONS,
    BrokerConfig,
    ClusterConfig,
    GatewayConfig,
    HostConfig,
    ReplicaConfig,
    own_directory,
)
from oncelog.actors.controller.broker_membership import BrokerNode
from oncelog.actors.controller.controller import Controller
from oncelog.actors.controller.replica_actors import FoundActor, MachineSize
from oncelog.actors.coordination.process_watch import ProcessWatch
from oncelog.actors.groups.group_coordinator import GroupCoordinator
from oncelog.actors.interfaces import (
    CONTROLLER_ACTOR,
    NAMESPACE,
    actor_of,
    broker_actor,
    gateway_actor,
    host_actor,
)
from oncelog.actors.launch.assembly import (
    Environment,
    PartitionShell,
    ReplicaServer,
    shell_of,
)
from oncelog.actors.launch.broker import Broker
from oncelog.actors.launch.cluster_location import ClusterLocation, write_location
from oncelog.actors.launch.controller_place import RayControllerPlace, is_on_head
from oncelog.actors.launch.controller_server import ControllerServer
from oncelog.actors.launch.gateway import Gateway
from oncelog.actors.launch.host import Host
from oncelog.actors.launch.listener_file import ListenerFile
from oncelog.actors.launch.server_metrics import CertificateMetrics, DiskMetrics
from oncelog.actors.pin import BY_LABEL, RACK_LABEL, Pin, broker_of
from oncelog.actors.process.audit import AuditLog
from oncelog.actors.process.background import (
    OPENING_THREADS_MAX,
    DiskThreads,
    OwnTasks,
    ThreadBackground,
)
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.process.metrics import NO_METRICS, MetricSink
from oncelog.actors.process.process_table import ProcessTable, boot_id
from oncelog.actors.process.ray_metrics import RayMetrics
from oncelog.actors.protocol.access import RAY, SERVER, Principal
from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR, Placement
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.rpc.actor_transport import ActorTransport
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.actors.rpc.certificates import Certificates
from oncelog.actors.rpc.dispatch import NO_AUDIT, Dispatch, read_answer
from oncelog.actors.rpc.door import Door, Naming
from oncelog.actors.rpc.handshake import (
    ProgramIdentity,
    connection_secret,
    server_proof_by_ray,
)
from oncelog.actors.rpc.listener import TOKEN_BYTES, Listener, ListenerAddress
from oncelog.actors.rpc.listener_directory import ListenerDirectory, NamedListener
from oncelog.actors.rpc.message_codec import REQUESTS, encode
from oncelog.actors.rpc.naming import ConfiguredNaming
from oncelog.actors.rpc.ray_transport import RayTransport, find_actor, ray_token
from oncelog.actors.rpc.signed_tokens import SignedTokens, TokenSettings
from oncelog.actors.transactions.transaction_coordinator import TransactionCoordinator
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

_logger = logging.getLogger(__name__)

EXIT_STATUS_OF_BUG: Final = 70
"""Exit status of a process after a bug of ours (EX_SOFTWARE of sysexits)."""

MAX_CONCURRENCY: Final = 100_000
"""Concurrent calls of one actor: most are long polls, which cost nothing while they wait."""

ACCESS_TIMEOUT_MS: Final = 5_000
"""Deadline of the question for users and ACLs."""

GATEWAY_RETRY_S: Final = 1.0
"""Interval of trying to start a gateway while Ray does not answer."""

StartConfig: TypeAlias = "ReplicaConfig | HostConfig | BrokerConfig | GatewayConfig"
"""What an actor is started with."""

_UNLIMITED_FILES: Final = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A process's report about itself, answered even while its data path is busy.

    ``answered_calls`` counts calls of the data path since the process began.
    """

    process_id: int
    is_serving: bool
    detail: str
    answered_calls: int


def die_of_bug(error: BaseException) -> NoReturn:
    """End the process at once; Ray restarts it, and it recovers from its log."""
    _logger.critical(
        "this process ends: %r — nothing to do: Ray starts it again, and it recovers from its "
        "log; report an InvariantViolation with this log",
        error,
        exc_info=error,
    )
    logging.shutdown()
    os._exit(EXIT_STATUS_OF_BUG)


def call_reports(config: StartConfig) -> CallReports:
    """The meters of the calls that a process makes and answers."""
    return CallReports(RayMetrics(), config.cluster.metrics_interval_ms)


def actor_name(config: StartConfig) -> str:
    """The Ray name of the actor that is started with ``config``."""
    if isinstance(config, HostConfig):
        return host_actor(config.number, config.broker_id)
    if isinstance(config, BrokerConfig):
        return broker_actor(config.broker_id)
    if isinstance(config, GatewayConfig):
        return gateway_actor(config.number, config.broker_id)
    if config.topic == CLUSTER_METADATA_TOPIC:
        return CONTROLLER_ACTOR
    return actor_of(TopicPartition(config.topic, config.partition), config.broker_id)


def audit_log(config: StartConfig, metrics: MetricSink = NO_METRICS) -> AuditLog:
    """The audit log of a process, in its broker's own data directory."""
    return AuditLog(
        actor=actor_name(config),
        data_dir=own_directory(config.data_dir),
        filesystem=RealFileSystem(),
        # A thread of its own, begun by the first line: no log may wait for this file.
        background=ThreadBackground(DiskThreads(1)),
        clock=SystemClock(),
        on_bug=die_of_bug,
        has_allowed=config.cluster.audit_allowed,
        metrics=metrics,
        metrics_interval_ms=config.cluster.metrics_interval_ms,
    )


def production(config: StartConfig) -> Environment:
    """The environment of a Ray actor; also sets up logging."""
    metrics = RayMetrics()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    ray_calls = RayTransport(server_secret=config.server_secret)
    transport = ActorTransport(
        ray_calls, call_reports(config), ProgramIdentity(config.server_secret)
    )
    return Environment(
        filesystem=RealFileSystem(),
        clock=SystemClock(),
        new_background=functools.partial(ThreadBackground, DiskThreads()),
        new_opener=functools.partial(ThreadBackground, DiskThreads(OPENING_THREADS_MAX)),
        transport=transport,
        drivers=ProcessWatch(
            ProcessTable(ray.util.get_node_ip_address()), transport, on_failure=die_of_bug
        ),
        random=random.Random(secrets.randbits(64)),
        incarnation=secrets.token_hex(8),
        process_id=os.getpid(),
        metrics=metrics,
        disk_metrics=DiskMetrics(),
        audit=audit_log(config, metrics),
        certificate_metrics=CertificateMetrics(Certificates(SystemClock())),
        boot_id=boot_id(),
        door=Door(
            None,
            secret=config.server_secret or secrets.token_bytes(TOKEN_BYTES),
            naming=naming_of(config.cluster),
        ),
        directory=ListenerDirectory(ray_calls),
        die=die_of_bug,
    )


def naming_of(config: ClusterConfig) -> Naming:
    """By what rules certificates and tokens name users.

    What cannot be used on this node is told in the log: the constructor of an actor must not fail.
    """
    tokens = None
    if config.token_keys:
        try:
            settings = TokenSettings(
                issuer=config.token_issuer or "",
                audience=config.token_audience or "",
                keys=Path(config.token_keys),
                name_claim=config.token_name_claim,
            )
            tokens = SignedTokens(settings, SystemClock())
        except InvalidSettingError as error:
            _logger.error(
                "no token is accepted here: %s — put the file of token_keys on this node, then "
                "restart this process",
                error,
            )
    return ConfiguredNaming(config.certificate_name_rules, tokens)


def machine_size() -> MachineSize:
    """The processors, memory and open files that a process on this machine may use."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineSize(
        processor_count=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        files_max=_UNLIMITED_FILES if files_max == resource.RLIM_INFINITY else files_max,
    )


def _ray_method(name: str) -> Callable[..., Awaitable[Any]]:
    """The method ``name`` of a Ray actor, for encoded requests and for request objects.

    ``key`` is the replica in the actor. For a request object a host finds it by the partition,
    transactional id or group named there.
    """

    async def method(
        process: ActorProcess, request: bytes | Request[Any], key: str = "", proof: bytes = b""
    ) -> Any:
        principal = process.principal_of(name, proof)
        if isinstance(request, bytes):
            return await process.answer(f"{name}/{key}" if key else name, request, principal)
        key = key or process.key_for(request)
        answer = process.answer(f"{name}/{key}" if key else name, encode(request), principal)
        return read_answer(request, *await answer)

    method.__name__ = name
    return method


class ActorProcess:
    """A Ray actor around one plain server; Ray and connections call it through one ``Dispatch``."""

    answering: ClassVar[tuple[type, ...]]
    """The classes whose methods answer its requests: of the server, its shell, what it holds."""

    def __init_subclass__(cls) -> None:
        """Give Ray a method for each request that is answered."""
        # Ray derives a subclass, which inherits the methods: it is pickled by value, they are not.
        for name in REQUESTS:
            is_answered = any(hasattr(one, name) for one in (Door, *cls.answering))
            if is_answered and not hasattr(cls, name):
                setattr(cls, name, _ray_method(name))

    def __init__(
        self,
        server: Any,
        *,
        calls: str,
        name: str = "",
        server_secret: bytes = b"",
        reports: CallReports = NO_REPORTS,
        dispatch: Dispatch | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.server = server
        self._name = name
        door = audit = directory = None
        if environment is not None:
            door, audit = environment.door, environment.audit
            directory = environment.directory
            self._tasks = OwnTasks(die_of_bug)
            keeping = door.keep(environment.transport, timeout_ms=ACCESS_TIMEOUT_MS)
            self._tasks.spawn(keeping)
        self.dispatch = dispatch or Dispatch(
            server,
            on_bug=die_of_bug,
            reports=reports,
            door=door,
            audit=audit or NO_AUDIT,
            directory=directory,
        )
        self.listener: Listener | None = None
        self._server_secret = server_secret
        if calls == CONNECTIONS:
            # Listen at the address by which Ray knows this node.
            host = ray.util.get_node_ip_address()
            self.token = secrets.token_bytes(TOKEN_BYTES)
            secret = connection_secret(self.token, ray_token())
            self.listener = Listener(
                self.dispatch, host=host, token=secret, server_secret=server_secret
            )

    def __repr__(self) -> str:
        # Ray takes this once, as the actor begins: for its dashboard and its log files.
        return self._name or repr(self.server)

    async def listener_address(self) -> ListenerAddress | None:
        """Where this process listens for connections; ``None`` if only Ray carries calls."""
        return None if self.listener is None else self._told(await self.listener.address())

    def _told(self, address: ListenerAddress) -> ListenerAddress:
        """The address as callers are told it, who key the token themselves."""
        return dataclasses.replace(address, token=self.token, is_keyed=bool(ray_token()))

    def keep_listener_file(
        self, config: ReplicaConfig | BrokerConfig, environment: Environment
    ) -> None:
        """Name this process in its broker's data directory, if it listens."""
        listener = self.listener
        if listener is None:
            return
        processes = ProcessTable(ray.util.get_node_ip_address())

        async def describe() -> NamedListener:
            return NamedListener(
                cluster_id=config.cluster_id,
                broker_id=config.broker_id,
                actor=actor_name(config),
                address=self._told(await listener.address()),
                ray_address=str(ray.get_runtime_context().gcs_address),
                process=processes.process(os.getpid()),
            )

        file = ListenerFile(
            own_directory(config.data_dir),
            describe,
            filesystem=environment.filesystem,
            background=environment.new_background(),
            processes=processes,
        )
        self._tasks.spawn(file.keep())

    def key_for(self, request: Request[Any]) -> str:  # noqa: ARG002
        """The key of the replica that ``request`` is for; "" if the actor holds just one."""
        return ""

    def principal_of(self, method: str, proof: bytes) -> Principal:
        """Who calls ``method`` through Ray: a server if it proves so, or a program.

        Where this process has no secret, everybody passes for a server.
        """
        expected = server_proof_by_ray(self._server_secret, method)
        return SERVER if not expected or hmac.compare_digest(proof, expected) else RAY

    async def answer(self, name: str, message: bytes, principal: Principal) -> tuple[int, bytes]:
        """Answer a call that Ray carried; see ``Dispatch.answer``."""
        outcome, body = await self.dispatch.answer(name, message, principal)
        return int(outcome), b"".join(body)


class ReplicaProcess(ActorProcess):
    """The process of a server that holds a log."""

    answering: ClassVar[tuple[type, ...]] = (ReplicaServer,)

    def __init__(self, config: ReplicaConfig) -> None:
        server = self.make_server(config)
        super().__init__(
            server,
            calls=config.cluster.calls,
            name=actor_name(config),
            server_secret=config.server_secret,
            reports=call_reports(config),
            environment=server.environment,
        )

    def make_server(self, config: ReplicaConfig) -> ReplicaServer:
        """Create the server with production's ``Environment``."""
        return ReplicaServer(config, production(config), shell_of)

    @ray.method(concurrency_group="health")
    async def health(self) -> Health:
        """Report whether this process serves; answered beside the data path."""
        server: ReplicaServer = self.server
        return Health(
            process_id=os.getpid(),
            is_serving=server.replica.is_following or server.is_serving(),
            detail=server.failure or server.replica.failure or "",
            answered_calls=self.dispatch.answered_calls,
        )


class PartitionProcess(ReplicaProcess):
    """The process of one partition replica."""

    answering = (ReplicaServer, PartitionShell)


class TransactionCoordinatorProcess(ReplicaProcess):
    """The process of one shard of transactional ids."""

    answering = (ReplicaServer, TransactionCoordinator, PartitionShell)


class GroupCoordinatorProcess(ReplicaProcess):
    """The process of one shard of consumer groups."""

    answering = (ReplicaServer, GroupCoordinator, PartitionShell)


class HostProcess(ActorProcess):
    """The process of a host, which holds several replicas."""

    answering = (Host, ReplicaServer, PartitionShell, TransactionCoordinator, GroupCoordinator)

    def __init__(self, config: HostConfig) -> None:
        host = Host(config, production(config), call_reports(config))
        super().__init__(
            host,
            calls=config.cluster.calls,
            name=actor_name(config),
            server_secret=config.server_secret,
            dispatch=host.dispatch,
            environment=host.environment,
        )
        host.begin()

    def key_for(self, request: Request[Any]) -> str:
        """See ``Host.key_for``."""
        host: Host = self.server
        return host.key_for(request)

    @ray.method(concurrency_group="health")
    async def health(self) -> Health:
        """Report whether this process serves; answered beside the data path."""
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
    """The process of a broker's own actor."""

    answering = (Broker,)

    def __init__(self, config: BrokerConfig) -> None:
        place = RayControllerPlace(config, launch_controller)
        broker = Broker(config, production(config), place)
        super().__init__(
            broker,
            calls=config.cluster.calls,
            name=actor_name(config),
            server_secret=config.server_secret,
            reports=call_reports(config),
            environment=broker.environment,
        )
        self.keep_listener_file(config, broker.environment)
        self._tasks.spawn(start_gateway(config))
        broker.begin()

    @ray.method(concurrency_group="health")
    async def health(self) -> Health:
        """Report whether the broker is registered."""
        broker: Broker = self.server
        return Health(
            process_id=os.getpid(),
            is_serving=broker.is_registered,
            detail=broker.problem,
            answered_calls=self.dispatch.answered_calls,
        )


class GatewayProcess(ActorProcess):
    """The process that clients of Kafka connect to."""

    answering = (Gateway,)

    def __init__(self, config: GatewayConfig) -> None:
        reports = call_reports(config)
        host = ray.util.get_node_ip_address()
        gateway = Gateway(config, production(config), host=host, reports=reports)
        super().__init__(
            gateway,
            calls=config.cluster.calls,
            name=actor_name(config),
            server_secret=config.server_secret,
            reports=reports,
            environment=gateway.environment,
        )
        gateway.begin()

    @ray.method(concurrency_group="health")
    async def health(self) -> Health:
        """Report whether clients can connect."""
        gateway: Gateway = self.server
        return Health(
            process_id=os.getpid(),
            is_serving=not gateway.problem,
            detail=gateway.problem,
            answered_calls=self.dispatch.answered_calls,
        )


class ControllerProcess(ReplicaProcess):
    """The process of the controller."""

    answering = (ControllerServer, Controller)

    def __init__(self, config: ReplicaConfig) -> None:
        super().__init__(config)
        self.keep_listener_file(config, self.server.environment)
        # The founder's broker has no actor of its own while it is alone.
        self._tasks.spawn(start_gateway(config))

    def make_server(self, config: ReplicaConfig) -> ControllerServer:
        """The controller, which also starts the actors of replicas."""
        remember_location(config)
        return ControllerServer(
            config,
            production(config),
            launcher=RayLauncher(config),
            token_bytes=secrets.token_bytes,
            machine_size=machine_size(),
            resign=resign,
            is_on_head=is_on_head(),
        )


def remember_location(config: ReplicaConfig) -> None:
    """Remember where the log is: if several brokers start the controller, only one succeeds."""
    if config.pin is None:
        return
    location = ClusterLocation(
        cluster_id=config.cluster_id,
        broker_id=config.broker_id,
        data_dir=config.data_dir,
        pin=config.pin,
    )
    try:
        write_location(location)
    except (RayError, RuntimeError, OSError) as error:
        # Not worth a constructor's failure, which would end the actor for good.
        _logger.warning(
            "Ray does not remember that this is %s: %s — see that Ray's head is up; the next "
            "start of the controller does it",
            *(location, error),
        )


def resign() -> None:
    """End this actor for good, so that the name is free for another broker's controller.

    If Ray cannot be reached, it will soon consider the node dead, which frees the name too.
    """
    try:
        ray.kill(ray.get_runtime_context().current_actor)
    except (RayError, RuntimeError) as error:
        die_of_bug(error)


_PROCESSES: Final[Mapping[str, type[ReplicaProcess]]] = {
    TRANSACTION_STATE_TOPIC: TransactionCoordinatorProcess,
    CONSUMER_OFFSETS_TOPIC: GroupCoordinatorProcess,
}


def process_of(topic: str) -> type[ReplicaProcess]:
    """The class of the process that serves a partition of ``topic``; not for the metadata log."""
    return _PROCESSES.get(topic, PartitionProcess)


def launch_actor(kind: type[ActorProcess], name: str, config: StartConfig) -> Any:
    """Start the actor ``name`` if it does not run yet, pinned to its broker's node.

    It outlives its creator. Ray restarts it only on that node, and never retries a call by itself.
    """
    if config.pin is None:
        raise ValueError(f"{name} must be pinned to the node of its data directory")
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        **config.pin.options(),
    }
    make_remote: Any = ray.remote
    remote_class = make_remote(
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=MAX_CONCURRENCY,
        concurrency_groups={"health": 10},
    )(kind)
    return remote_class.options(**options).remote(config)


def launch_controller(config: ReplicaConfig, voters: Collection[int] = ()) -> None:
    """Start the controller if it does not run yet; it starts everything else.

    The ``voters``, which it asks for its epoch, are started first.
    """
    RayLauncher(config).start_voters([one for one in voters if one != config.broker_id])
    launch_actor(ControllerProcess, CONTROLLER_ACTOR, config)


async def start_gateway(config: ReplicaConfig | BrokerConfig) -> None:
    """Start the gateway of a broker, if the cluster has any; it stays if it runs already."""
    while config.cluster.kafka_port:
        try:
            await asyncio.to_thread(_launch_gateway, config)
        except (RayError, OSError, RuntimeError) as error:
            _logger.warning(
                "the gateway for clients of Kafka cannot be started: %s — see that Ray's head is "
                "up; it is tried again",
                error,
            )
            await asyncio.sleep(GATEWAY_RETRY_S)
        else:
            return


def _launch_gateway(config: ReplicaConfig | BrokerConfig) -> None:
    gateway = GatewayConfig(
        number=0,
        broker_id=config.broker_id,
        data_dir=config.data_dir,
        cluster=config.cluster,
        cluster_id=config.cluster_id,
        pin=config.pin,
        server_secret=config.server_secret,
    )
    launch_actor(GatewayProcess, actor_name(gateway), gateway)


class RayLauncher:
    """``Launcher`` on Ray: each actor runs on its broker's node; ``config`` is the controller's."""

    def __init__(self, config: ReplicaConfig) -> None:
        self._config = config
        self._begun_brokers: set[int] = set()

    async def start(self, placements: Sequence[Placement]) -> None:
        """See ``Launcher.start``."""
        await asyncio.to_thread(self._start, placements)

    def _start(self, placements: Sequence[Placement]) -> None:
        hosts = {(placement.host, placement.broker_id) for placement in placements}
        for number, broker_id in sorted(hosts):
            if number != OWN_ACTOR:
                name = host_actor(number, broker_id)
                launch_actor(HostProcess, name, self._host_config(number, broker_id))
        for tp, _, broker_id, host in placements:
            if host == OWN_ACTOR:
                config = dataclasses.replace(
                    self._config,
                    topic=tp.topic,
                    partition=tp.partition,
                    broker_id=broker_id,
                    pin=self._pin_of(broker_id),
                )
                launch_actor(process_of(tp.topic), actor_of(tp, broker_id), config)

    def _host_config(self, number: int, broker_id: int) -> HostConfig:
        return HostConfig(
            number=number,
            broker_id=broker_id,
            data_dir=self._config.data_dir,
            cluster=self._config.cluster,
            cluster_id=self._config.cluster_id,
            pin=self._pin_of(broker_id),
            server_secret=self._config.server_secret,
        )

    async def nodes(self) -> list[BrokerNode]:
        """See ``BrokerLauncher.nodes``."""
        nodes = await asyncio.to_thread(ray.nodes)
        return broker_nodes(nodes, own=self._config.broker_id, pin=self._config.pin)

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        """See ``BrokerLauncher.start_brokers``."""
        new = [node for node in nodes if node.broker_id not in self._begun_brokers]
        if new:
            await asyncio.to_thread(self._start_brokers, new)

    def start_voters(self, broker_ids: Collection[int]) -> None:
        """Start the actors of these brokers, where their nodes are alive, so that they can vote."""
        self._start_brokers(
            [
                BrokerNode(broker_id=number, rack=node["Labels"].get(RACK_LABEL, ""))
                for node in ray.nodes()
                if node["Alive"]
                and (number := broker_of(node)) in broker_ids
                and number is not None
            ]
        )

    def _start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        for node in nodes:
            config = BrokerConfig(
                broker_id=node.broker_id,
                data_dir=self._config.data_dir,
                cluster=self._config.cluster,
                cluster_id=self._config.cluster_id,
                rack=node.rack,
                pin=self._pin_of(node.broker_id),
                server_secret=self._config.server_secret,
            )
            launch_actor(BrokerProcess, broker_actor(node.broker_id), config)
            self._begun_brokers.add(node.broker_id)

    def _pin_of(self, broker_id: int) -> Pin | None:
        """The pin of a broker: the controller's own node, or the node with the broker's label."""
        if broker_id == self._config.broker_id:
            return self._config.pin
        return Pin(BY_LABEL, str(broker_id))

    async def find(self, actors: Collection[str]) -> Sequence[FoundActor]:
        """See ``Launcher.find``."""
        return await asyncio.to_thread(_find_actors, actors)

    async def end(self, actors: Sequence[FoundActor]) -> None:
        """See ``Launcher.end``."""
        await asyncio.to_thread(_end_found, actors)

    async def running(self) -> list[str]:
        """Names of all actors in our namespace."""
        return await asyncio.to_thread(running_actors)


def broker_nodes(
    nodes: Sequence[Mapping[str, Any]], *, own: int, pin: Pin | None
) -> list[BrokerNode]:
    """The live nodes of brokers. That of ``own`` needs no label if ``pin`` identifies it."""
    numbers = [(broker_of(node), node) for node in nodes if node["Alive"]]
    if pin is not None and own not in [number for number, _ in numbers]:
        pinned = [node for number, node in numbers if number is None and pin.is_at(node)]
        numbers += [(own, node) for node in pinned if len(pinned) == 1]
    return [
        BrokerNode(broker_id=number, rack=node["Labels"].get(RACK_LABEL, ""))
        for number, node in numbers
        if number is not None
    ]


def running_actors() -> list[str]:
    """Names of all actors in our namespace."""
    actors: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]


def end_actors(actors: Collection[str]) -> None:
    """Kill actors for good, by name; an unknown name is ignored."""
    _end_found(_find_actors(actors))


def _find_actors(actors: Collection[str]) -> list[FoundActor]:
    found = []
    for name in actors:
        with contextlib.suppress(ValueError):
            found.append(FoundActor(name, find_actor(name)))
    return found


def _end_found(actors: Sequence[FoundActor]) -> None:
    for _, handle in actors:
        ray.kill(handle)
