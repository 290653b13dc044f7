"""A whole cluster and its clients in one process, under virtual time; one seed decides everything.

The shells, machines, storage and clients are production's; only transport, clock, disk,
background and event loop are the simulator's::

    with World(seed=7, topics={"flights": 2}) as world:
        async def write(client):
            producer = client.producer(transactional_id="t")
            await producer.init_transactions()
            ...
        client = world.client("writer")
        world.run(client.spawn(write(client)))
        world.kill("partition:flights-0@1")
        world.quiesce()
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from crash_disk import Crash
from disk_image import walk
from sim_controllers import Controllers, SimPlace
from sim_disk import SimDisk
from sim_faults import Faults, stop_disk
from sim_launcher import SimLauncher, broker_config, founded_disks
from sim_loop import PROCESS, Runnable, SimLoop, StuckError
from sim_media import Media
from sim_network import Network
from sim_nodes import ELSEWHERE, FOUNDER_NODE, Nodes
from sim_noise import no_noise
from sim_process import EPOCH_MS, ActorProcess, Client, Process
from sim_readiness import Readiness
from sim_story import Story, StoryHandler

from oncelog.actors.config import BrokerConfig, ClusterConfig, HostConfig, ReplicaConfig
from oncelog.actors.interfaces import CONTROLLER_ACTOR, broker_actor
from oncelog.actors.launch.assembly import ReplicaServer, shell_of
from oncelog.actors.launch.broker import Broker
from oncelog.actors.launch.controller_server import ControllerServer
from oncelog.actors.launch.host import Host
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.access import Rules
from oncelog.actors.replica.replica import Replica
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

ActorConfig = ReplicaConfig | HostConfig | BrokerConfig

DATA_DIR = "/data"
CLUSTER_ID = "c" * 32
BOOT_LIMIT_S = 60.0

JOIN_S = 0.1
"""How often it is looked whether the data directory of an actor is there."""


class SimulationError(AssertionError):
    """The simulated world met a bug; the text has the seed and the end of the story."""


ASKED_MS = 1_000
"""How long a process waits when it asks for users and ACLs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    """What a world is like in peace. Times in milliseconds, drawn between both bounds."""

    brokers: int = 1
    head_node: int = ELSEWHERE
    data_dir: str = DATA_DIR
    replication_factor: int = 1
    cluster: ClusterConfig = field(default_factory=lambda: ClusterConfig(replicas_per_actor=1))
    topic_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sync_ms: tuple[float, float] = (0.2, 3.0)
    restart_ms: tuple[float, float] = (100.0, 2_000.0)
    launch_ms: tuple[float, float] = (1.0, 50.0)
    racks: tuple[str, ...] = ()
    """The rack of each broker, by number; without any all are in one rack."""
    has_rules: bool = False
    """Whether processes ask who may do what; else they let everybody in, and no call is spent."""

    def rack_of(self, broker_id: int) -> str:
        """The rack of a broker."""
        return self.racks[broker_id - 1] if self.racks else ""


class World(Faults, Nodes, Controllers, Readiness):
    """One simulated world. Use it as a context manager, or ``close`` it.

    ``failure`` is the first bug it met. ``after_event`` are called with (world, process) after each
    callback of an actor's process; what they raise is the failure. ``counts`` tells how many faults
    of each kind were injected.
    """

    def __init__(
        self,
        seed: int,
        *,
        topics: Mapping[str, int] | None = None,
        settings: WorldSettings | None = None,
        is_founded: bool = True,
    ) -> None:
        self.seed = seed
        self.settings = settings or WorldSettings()
        self.topics = dict({"flights": 1} if topics is None else topics)
        self.random = Random(f"oncelog {seed}")
        self.story = Story()
        self.failure: SimulationError | None = None
        self.after_event: list[Callable[[World, Process], None]] = []
        self.on_judged: list[Callable[[Principal, str, Rules | None], None]] = []
        """Called with each call that a process judges, and the rules by which it does."""
        self.at_close: list[Callable[[], None]] = []
        self.clock_base_ms = EPOCH_MS
        self.clock_offsets_ms: dict[str, int] = {}
        self.slowness: dict[str, float] = {}
        self.process_count = 0
        self.client_nodes: dict[str, int] = {}
        self.dead_nodes: set[int] = set()
        self.stopped_nodes: set[int] = set()
        self.boots: Counter[int] = Counter()
        """By node: how often it has lost its power."""
        self.failed_directories: dict[int, set[Path]] = {}
        self.lost_nodes: set[int] = set()
        self.controller_node = FOUNDER_NODE
        self.head_node = self.settings.head_node
        self.is_misled = False
        self.disks: dict[str, SimDisk] = {}
        """By ``disk_name``."""
        self.away_disks: dict[str, SimDisk] = {}
        self._message_trace = 0
        self._counts: Counter[str] = Counter()
        self.processes: dict[str, Process] = {}
        self._zombies: list[Process] = []
        self._incarnations: Counter[str] = Counter()
        self.configs: dict[str, ActorConfig] = {}
        self._disk_stops: dict[str, tuple[int, float | None]] = {}
        self._clock_lead_ms = 0
        self._kill_at_event: tuple[int, str] | None = None
        self._logging = StoryHandler(self._tell_log)
        self.loop = SimLoop(self._split_random(), self._callback_failed)
        self.network = Network(self, self._split_random())
        self.media = Media(self)
        self.driver = Process(self, "world", 1, self._split_random(), ELSEWHERE)
        self.loop.after_event = self._after_event
        self._logging.install()
        self._noise = contextlib.ExitStack()
        self._noise.enter_context(no_noise(self.fail))
        try:
            self._boot(is_founded)
        except BaseException:
            self.close()
            raise

    def _split_random(self) -> Random:
        return Random(self.random.getrandbits(64))

    # --- boot ---------------------------------------------------------------------------------

    def _boot(self, is_founded: bool) -> None:
        if is_founded:
            for name, root in founded_disks(self.topics, self.settings).items():
                self.disks[name] = SimDisk.of(root)
        config = self._controller_config(FOUNDER_NODE)
        self.start_actor(CONTROLLER_ACTOR, config)
        for number in self.node_numbers()[1:]:
            # A controller that begins again may need their votes before it starts anything.
            if broker_actor(number) in self.disks:
                rack = self.settings.rack_of(number)
                self.start_actor(broker_actor(number), broker_config(config, number, rack))
        self.run(self.until_world_serves(), limit_s=BOOT_LIMIT_S)

    async def until_world_serves(self) -> None:
        while not self.is_serving():
            await asyncio.sleep(0.01)

    def _controller_config(self, number: int) -> ReplicaConfig:
        return ReplicaConfig(
            topic=CLUSTER_METADATA_TOPIC,
            partition=0,
            broker_id=number,
            data_dir=self.settings.data_dir,
            cluster=self.settings.cluster,
            cluster_id=CLUSTER_ID,
        )

    # --- running ------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Virtual time since the boot began."""
        return self.loop.time()

    def run(
        self, work: Coroutine[Any, Any, Any] | asyncio.Task[Any], *, limit_s: float = 600
    ) -> Any:
        """Run until ``work`` is done and return its result; ``SimulationError`` after ``limit_s``.

        A coroutine runs as the driver of the world, which nothing kills; a task where it is.
        """
        task = work if isinstance(work, asyncio.Task) else self.driver.spawn(work)
        if not task.done():
            task.add_done_callback(self.loop.stop, context=self.driver.context)
            is_done = self._run(limit_s)
            task.remove_done_callback(self.loop.stop)
            if not is_done:
                raise self._failed(
                    f"{task!r} was not done within {limit_s} s of virtual time; not serving: "
                    f"{', '.join(self.unready()) or 'nobody'}"
                )
        return task.result()

    def run_for(self, seconds: float) -> None:
        """Let the world go on for this long."""
        self._run(seconds)

    def _run(self, limit_s: float) -> bool:
        """Run until the loop is stopped; false if the time was over before."""
        if self.failure is not None:
            raise self.failure
        try:
            is_stopped = self.loop.run(self.now_s + limit_s)
        except StuckError as error:
            raise self._failed(str(error)) from error
        if self.failure is not None:
            raise self.failure
        return is_stopped

    # --- actors -------------------------------------------------------------------------------

    def actor(self, name: str) -> ActorProcess | None:
        """The living process that has the name of an actor now."""
        process = self.processes.get(name)
        return process if isinstance(process, ActorProcess) else None

    def actors(self) -> list[ActorProcess]:
        """Every living actor, zombies left out."""
        return [found for found in self.processes.values() if isinstance(found, ActorProcess)]

    def server(self, name: str) -> Any:
        """What runs in an actor, or for a replica in its host; ``None`` while it is dead."""
        process = self.actor(name)
        return self.servers().get(name) if process is None else process.server

    def servers(self) -> dict[str, Any]:
        """All that holds a log, by the name of an actor that holds just that."""
        return {
            name: server for process in self.actors() for name, server in process.servers.items()
        }

    def replicas(self) -> dict[str, Replica]:
        """Every replica in a living actor, by the name of an actor that holds just that."""
        return {name: server.replica for name, server in self.servers().items()}

    def actor_names(self) -> list[str]:
        """Every actor that there is, dead ones that are to be restarted included."""
        return list(self.configs)

    def lived_actors(self) -> list[str]:
        """Those of them that have started at least once, and so have a disk."""
        return [name for name in self.configs if self._incarnations[name]]

    def start_actor(self, name: str, config: ActorConfig) -> None:
        """Start an actor; does nothing if it runs or is about to be restarted."""
        if name not in self.configs:
            self.configs[name] = config
            if name == CONTROLLER_ACTOR:
                self.controller_node = config.broker_id
            self._start_life(name)

    def end_actor(self, name: str) -> None:
        """Kill an actor for good."""
        if self.configs.pop(name, None) is not None and (process := self.processes.get(name)):
            self.end_process(process, "ended for good")

    def _start_life(self, name: str) -> None:
        config = self.configs.get(name)
        if config is None or name in self.processes:
            return
        if not self.can_start_on(config.broker_id):
            return
        if not isinstance(config, BrokerConfig) and not self.has_data_directory(name, config):
            self.loop.call_later(JOIN_S, self._start_life, name, context=self.driver.context)
            return
        disk_name = self.disk_name(name)
        disk = self.disks[disk_name] = self.disk_of_next_life(disk_name, config)
        if name in self._disk_stops:
            stop_disk(disk, *self._disk_stops.pop(name))
        self._incarnations[name] += 1
        process = ActorProcess(
            self, name, self._incarnations[name], self._split_random(), disk, config.broker_id
        )
        process.disk_name = disk_name
        self.processes[name] = process
        self.tell(name, f"* starts, incarnation {process.incarnation}")
        process.context.run(self._build, process, config)

    def _build(self, process: ActorProcess, config: ActorConfig) -> None:
        asyncio._set_running_loop(self.loop)
        if isinstance(config, HostConfig):
            host = Host(config, process.environment())
            process.answer_with(host)
            host.begin()
        elif isinstance(config, BrokerConfig):
            place = SimPlace(self, config.broker_id)
            broker = Broker(config, process.environment(), place)
            process.answer_with(broker)
            broker.begin()
        elif config.topic == CLUSTER_METADATA_TOPIC:
            controller = ControllerServer(
                config,
                process.environment(),
                launcher=SimLauncher(self, process, config),
                token_bytes=process.random.randbytes,
                resign=lambda: self.resign(process),
                is_on_head=config.broker_id == self.head_node,
            )
            process.answer_with(controller)
        else:
            process.answer_with(ReplicaServer(config, process.environment(), shell_of))
        if self.settings.has_rules:
            process.spawn(process.dispatch.door.keep(process.transport, timeout_ms=ASKED_MS))
        if not self.loop.is_running():
            asyncio._set_running_loop(None)

    # --- death ---------------------------------------------------------------------------------

    def end_process(self, process: Process, reason: str) -> None:
        """The process is gone at once, as by kill -9; an actor comes back by itself."""
        if process.is_dead:
            return
        self.tell(process.name, f"* {reason}")
        self.loop.bury(process)
        if isinstance(process, ActorProcess):
            process.disk.kill()
        for exchange in process.calls.values():
            self.network.callee_died(exchange, process.node)
        process.calls.clear()
        if process in self._zombies:
            self._zombies.remove(process)
        elif self.processes.get(process.name) is process:
            del self.processes[process.name]
            self._restart_later(process.name)

    def _restart_later(self, name: str) -> None:
        if name in self.configs:
            delay_s = self.random.uniform(*self.settings.restart_ms) / 1_000
            self.loop.call_later(delay_s, self._start_life, name, context=self.driver.context)

    # --- clients ------------------------------------------------------------------------------

    def client(self, name: str, *, node: int = ELSEWHERE) -> Client:
        """A new process of a program; a name may be used again once its last process is dead."""
        if name in self.processes:
            raise AssertionError(f"{name} runs already")
        if not self.can_start_on(node):
            raise AssertionError(f"node {node} is dead or stopped")
        self.client_nodes[name] = node
        self._incarnations[name] += 1
        client = Client(self, name, self._incarnations[name], self._split_random(), node)
        self.processes[name] = client
        return client

    def lives(self, number: int) -> bool:
        """Whether the process of that number lives, zombies included."""
        processes = [*self._zombies, *self.processes.values()]
        return any(process.number == number for process in processes)

    # --- telling ------------------------------------------------------------------------------

    def tell(self, process: str, what: str, about: Any = None) -> None:
        """Add to the story and to the trace."""
        self._message_trace = zlib.crc32(f"{process} {what}".encode(), self._message_trace)
        self.story.add(self.loop.time(), process, what, about)

    def note(self, text: str, about: Any = None) -> None:
        """What a workload has to say; told as by the process that says it."""
        process = PROCESS.get(self.driver)
        self.tell(process.name, f"* {text}", about)

    def _tell_log(self, text: str) -> None:
        self.story.add(self.loop.time(), PROCESS.get(self.driver).name, text)

    def count(self, kind: str) -> None:
        """One more injected fault."""
        self._counts[kind] += 1

    @property
    def counts(self) -> Counter[str]:
        """Injected faults by kind, those of the network included."""
        return self._counts + self.network.counts

    def trace_hash(self) -> str:
        """Two runs of a seed are the same if this is: schedule, messages, and all bytes on disk."""
        files = 0
        for name in sorted(self.disks):
            for path, content in sorted(walk(self.disks[name].root, Path("/"))):
                files = zlib.crc32(content, zlib.crc32(f"{name} {path}".encode(), files))
        return f"{self.loop.trace:012x}-{self._message_trace:08x}-{files:08x}"

    def fail(self, error: BaseException, text: str) -> None:
        """The simulation has met a bug: the first is raised out of ``run``.

        While the world is thrown away there is none: what is unwound reaches nobody.
        """
        if self.failure is None and not self.loop.is_closed():
            self.tell("world", f"* FAILED: {text}: {error!r}")
            self.failure = self._failed(f"{text}: {error!r}")
            self.failure.__cause__ = error
            self.loop.stop()

    def _failed(self, text: str) -> SimulationError:
        return SimulationError(
            f"seed {self.seed}, virtual time {self.now_s:.6f} s: {text}\n"
            f"--- the last of the story:\n{self.story.text()}"
        )

    # --- inside -------------------------------------------------------------------------------

    def _callback_failed(self, process: Runnable | None, error: BaseException) -> None:
        is_dead = process is not None and process.is_dead
        if not is_dead and not isinstance(error, (Crash, asyncio.CancelledError)):
            name = "somebody" if process is None else process.name
            self.fail(error, f"unhandled in {name}")

    def _after_event(self, process: Runnable) -> None:
        plan = self._kill_at_event
        if plan is not None and self.loop.event_count >= plan[0]:
            self._kill_at_event = None
            self.kill(plan[1])
        if self.after_event and isinstance(process, ActorProcess) and not process.is_dead:
            for check in self.after_event:
                try:
                    check(self, process)
                except Exception as error:
                    self.fail(error, f"a check after a callback of {process.name}")

    def close(self) -> None:
        """Throw the world away."""
        for end in self.at_close:
            end()
        self._logging.remove()
        self.loop.close()
        self._noise.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
