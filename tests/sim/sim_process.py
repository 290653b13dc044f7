"""A simulated process: its callbacks, its clock, its disk, and what runs in it."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn
from unittest import mock

from crash_disk import Crash
from sim_disk import DiskPace, SimBackground, SimDisk
from sim_loop import PROCESS, SimHandle
from sim_network import Exchange, SimTransport
from sim_wire import CalleeWire, CallerWire

from oncelog.actors.coordination.process_watch import ProcessWatch
from oncelog.actors.launch.assembly import DiskRefusedError, Environment, LeadershipLostError
from oncelog.actors.launch.broker import Broker
from oncelog.actors.launch.host import Host
from oncelog.actors.protocol.access import RAY, SERVER, Principal, Verdict
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.actors.rpc.door import Door
from oncelog.api.admin.admin import AsyncAdmin
from oncelog.api.config import ConsumerSettings, ProducerSettings, QueueSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.producing.member import (
    AsyncTransactionMember,
    Membership,
    RunEnd,
    begin_run,
    end_run,
)
from oncelog.api.producing.producer import AsyncProducer
from oncelog.api.queueing.queue import AsyncQueue
from oncelog.api.session.routing import Router

if TYPE_CHECKING:
    from sim_world import World

EPOCH_MS = 1_700_000_000_000
"""The wall clock at virtual time 0."""

ELSEWHERE = 0
"""Where clients and the driver are: a node of no broker, which never dies."""

QUICK_DISK_EVERY = 3
"""Every so many processes one syncs at once, as on a disk that is quicker than a thread."""


class SimClock:
    """``Clock`` of one machine: the world's virtual time, and an offset of its own."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def now_ms(self) -> int:
        """See ``Clock.now_ms``."""
        offset_ms = self._world.clock_offsets_ms.get(self._name, 0)
        return self._world.clock_base_ms + int(self._world.loop.time() * 1_000) + offset_ms


class SimSight:
    """``ProcessSight`` of a node. Programs that are on no node are seen from everywhere."""

    def __init__(self, world: World, node: int) -> None:
        self._world = world
        self._node = node

    def lives(self, process: DriverProcess) -> bool | None:
        """See ``ProcessSight.lives``."""
        world = self._world
        if process.machine not in (machine_of(world, ELSEWHERE), machine_of(world, self._node)):
            return None
        return world.lives(process.process_id)


@contextmanager
def false_news(seed: str, rate: float) -> Iterator[Counter[bool]]:
    """Of a process that lives it is told at this rate that it is gone; counts lies and truths."""
    real, random = SimSight.lives, Random(seed)
    told = Counter[bool]()

    def lives(self: SimSight, process: DriverProcess) -> bool | None:
        found = real(self, process)
        is_lie = bool(found) and random.random() < rate
        told[is_lie] += 1
        return False if is_lie else found

    with mock.patch.object(SimSight, "lives", lives):
        yield told


def machine_of(world: World, node: int) -> str:
    """Where the processes are that a node has now, in a ``DriverProcess``."""
    return f"boot {world.boots[node]} of {node}"


class Process:
    """One life of one process. ``incarnation`` counts the lives of its name, from 1."""

    principal = SERVER

    def __init__(
        self, world: World, name: str, incarnation: int, random: Random, node: int
    ) -> None:
        world.process_count += 1
        self.world = world
        self.name = name
        self.node = node
        self.number = world.process_count
        self.incarnation = incarnation
        self.is_dead = False
        self.is_paused = False
        self.ready: deque[SimHandle] = deque()
        self.tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        self.calls: dict[int, Exchange] = {}
        self.server: Any = None
        self.dispatch: Any = None
        self.caller_wire: CallerWire | None = None
        self.callee_wire: CalleeWire | None = None
        self.random = random
        self.clock = SimClock(world, name)
        self.transport: Any = SimTransport(world.network, self)
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"{self.name}#{self.incarnation}"

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in this process."""
        return self.context.copy().run(self.world.loop.create_task, coroutine)

    def soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call something in this process, in its turn."""
        self.world.loop.call_soon(callback, *args, context=self.context)

    def die_of_bug(self, error: BaseException) -> NoReturn:
        """The process is gone; after a broken invariant the simulation has failed as well."""
        if not isinstance(error, (LeadershipLostError, DiskRefusedError)):
            self.world.fail(error, f"{self.name} ends")
        self.world.end_process(self, f"ends: {error!r}")
        raise Crash(f"{self.name} ended itself")


class _Audit:
    """Tells the world by which rules a process judges each call."""

    def __init__(self, process: ActorProcess) -> None:
        self._process = process

    def judged(self, who: Principal, _host: str, method: str, _verdicts: list[Verdict]) -> None:
        for listener in self._process.world.on_judged:
            listener(who, method, self._process.dispatch.door.rules)

    def login_refused(self, *_: object) -> None:
        """Never: nobody logs in to a wire."""


class ActorProcess(Process):
    """The process of an actor: it has a disk and serves calls by its name."""

    def __init__(
        self,
        world: World,
        name: str,
        incarnation: int,
        random: Random,
        disk: SimDisk,
        node: int,
    ) -> None:
        super().__init__(world, name, incarnation, random, node)
        self.disk = disk
        self.disk_name = name
        # By number and not by chance: a seed stays the run that it was.
        self._is_quick = self.number % QUICK_DISK_EVERY == 0
        self.pace = DiskPace()
        self.pace.slowness = world.slowness.get(name, 1.0)
        disk.on_death = self._disk_stopped

    def environment(self) -> Environment:
        """What the server of this process is made with."""
        return Environment(
            filesystem=self.disk,
            clock=self.clock,
            new_background=self._new_background,
            transport=self.transport,
            drivers=ProcessWatch(
                SimSight(self.world, self.node), self.transport, on_failure=self.die_of_bug
            ),
            random=self.random,
            incarnation=self.random.randbytes(8).hex(),
            process_id=self.number,
            boot_id=machine_of(self.world, self.node),
            door=Door(None) if self.world.settings.has_rules else Door(),
            die=self.die_of_bug,
        )

    def _new_background(self) -> SimBackground:
        delay_ms = self.world.settings.sync_ms
        return SimBackground(self.random, delay_ms, is_quick=self._is_quick, pace=self.pace)

    def answer_with(self, server: Any) -> None:
        """Serve calls with ``server``; a host also with the replicas that it holds."""
        self.server = server
        is_host = isinstance(server, Host)
        environment: Environment = server.environment
        self.dispatch = (
            server.dispatch
            if is_host
            else Dispatch(server, on_bug=self.die_of_bug, door=environment.door)
        )
        self.dispatch.audit = _Audit(self)

    @property
    def servers(self) -> dict[str, Any]:
        """What holds logs in this process, by the name of an actor that holds just that."""
        if isinstance(self.server, Host):
            return dict(sorted(self.server.servers.items()))
        if isinstance(self.server, Broker):
            return {}
        return {self.name: self.server}

    @property
    def is_refused(self) -> bool:
        """Whether a replica of it is offline."""
        return any(server.replica.failure is not None for server in self.servers.values())

    @property
    def needs_operator(self) -> bool:
        """Whether a replica of it is offline and will stay so."""
        replicas = [server.replica for server in self.servers.values()]
        return any(
            replica.failure is not None and not replica.restarts_itself for replica in replicas
        )

    def _disk_stopped(self, operation: str) -> None:
        self.world.count("disk_stop")
        self.world.end_process(self, f"crashed at disk operation {operation}")


class Client(Process):
    """The process of a program that uses the cluster.

    What it makes belongs to it, so make and use it in coroutines that run here (``spawn``): then
    ``world.kill`` and ``world.pause`` reach it.
    """

    principal = RAY

    def router(self) -> Router:
        """A view of the cluster of its own."""
        return Router(self.transport, self.clock, process=self.as_driver())

    def producer(self, **settings: Any) -> AsyncProducer:
        """An ``AsyncProducer``; ``settings`` are those of ``ProducerSettings``."""
        self._check_here()
        return AsyncProducer(
            self.router(), ProducerSettings.from_options(settings), random=self.random
        )

    def consumer(self, **settings: Any) -> AsyncConsumer:
        """An ``AsyncConsumer``; ``settings`` are those of ``ConsumerSettings``."""
        self._check_here()
        return AsyncConsumer(self.router(), ConsumerSettings.from_options(settings), self.random)

    def queue(self, topics: str, **settings: Any) -> AsyncQueue:
        """An ``AsyncQueue``; ``settings`` are those of ``QueueSettings``."""
        self._check_here()
        return AsyncQueue(
            self.router(),
            QueueSettings.from_options(settings),
            topics,
            self.random,
            call_soon=asyncio.get_running_loop().call_soon,
        )

    def admin(self, **options: Any) -> AsyncAdmin:
        """An ``AsyncAdmin``."""
        self._check_here()
        return AsyncAdmin(self.router(), random=self.random, **options)

    def member(self, membership: Membership, **settings: Any) -> AsyncTransactionMember:
        """One task attempt of a distributed write."""
        self._check_here()
        return AsyncTransactionMember(
            self.router(),
            ProducerSettings.from_options(settings),
            membership,
            random=self.random,
        )

    def as_driver(self) -> DriverProcess:
        """This process as that which a run ends with."""
        return DriverProcess(
            machine=machine_of(self.world, self.node), process_id=self.number, start_ticks=0
        )

    async def begin_run(
        self, transactional_id: str, *, is_tied: bool = True, **details: Any
    ) -> Membership:
        """Begin a run of a distributed write, which ends with this process if it ``is_tied``."""
        self._check_here()
        settings = details.pop("settings", {})
        return await begin_run(
            self.router(),
            ProducerSettings.from_options(settings),
            transactional_id,
            driver=self.as_driver() if is_tied else None,
            random=self.random,
            **details,
        )

    async def end_run(
        self, membership: Membership, *, committed: bool, winners: Any = (), **settings: Any
    ) -> RunEnd:
        """End a distributed write."""
        self._check_here()
        return await end_run(
            self.router(),
            ProducerSettings.from_options(settings),
            membership,
            committed=committed,
            winners=winners,
            random=self.random,
        )

    def _check_here(self) -> None:
        if PROCESS.get(None) is not self:
            raise AssertionError(
                f"make clients of {self.name} in a coroutine of its own: {self.name}.spawn(...)"
            )
