"""Gateways in a simulated world, and the connections of Kafka's clients to them.

A gateway is production's, from its connections on: only the port and TCP are the simulator's. A
``Link`` keeps what TCP promises, order in one direction of one connection, and nothing else: what
was sent before it broke may be read long after, when its client talks to another gateway already.
A gateway that is paused accepts and reads later.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from sim_launcher import empty_disk
from sim_nemesis import FaultPlan
from sim_network import NetworkFaults
from sim_process import ActorProcess, Client
from sim_stage import WorkloadPlan
from sim_world import CLUSTER_ID, World

from oncelog.actors.config import GatewayConfig
from oncelog.actors.gateway.door import KafkaDoor
from oncelog.actors.gateway.listener import KafkaConnection, KafkaListener
from oncelog.actors.interfaces import gateway_actor
from oncelog.actors.launch.gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import Sequence

PORT = 9_092
LATENCY_S = (0.0001, 0.002)
RESTART_S = (0.05, 1.0)
"""How long a dead gateway stays dead."""

SEEN_SHARE = 0.5
"""How often a client notices that the machine behind a connection is gone."""

PAUSES_S = (0.2, 1.0, 4.0)
DELAY_MIN_MS = 50.0
STALL_MAX_S = 5.0
ANSWERS_SHARE = 0.3
"""How much rarer answers are late than requests."""

_OF_IDS = "transaction:"
_OF_HOSTS = "partitions:"

TRANSACTIONAL_CALLS = (
    "add_offsets_to_txn",
    "add_partitions_to_txn",
    "describe_producers",
    "end_txn",
    "init_producer_id",
    "produce",
    "txn_offset_commit",
    "verify_txn",
)


class GatewayProcess(ActorProcess):
    """The process of a gateway: an actor that holds no log."""

    @property
    def servers(self) -> dict[str, Any]:
        """None: see ``ActorProcess.servers``."""
        return {}


class Gateways:
    """One gateway per broker: they begin anew when they die, and their machine with them."""

    def __init__(self, world: World, plan: WorkloadPlan, faults: FaultPlan) -> None:
        self.world = world
        self.plan = plan
        self.faults = faults
        self.is_over = False
        self.links: dict[Link, None] = {}
        self._random = Random(f"gateways {world.seed}")
        self.link_random = Random(f"links {world.seed}")
        self._starts_s: dict[str, float] = {}
        self.stall_rate = plan.kafka_stalls or faults.delay
        if plan.kafka_delays:
            late = NetworkFaults(
                delay=plan.kafka_delays,
                delay_ms=(DELAY_MIN_MS, faults.delay_max_ms),
                duplicate=plan.kafka_repeats or faults.duplicate,
                break_off=faults.break_off,
            )
            for method in plan.kafka_delayed or TRANSACTIONAL_CALLS:
                world.network.set_faults(late, method=method, caller="gateway:*")

    # --- processes ------------------------------------------------------------------------

    async def keep(self) -> None:
        """Start whichever is not there, and strike some; to be run as the driver."""
        rates = {
            "kill": self.faults.kill,
            "pause": self.faults.pause + self.plan.kafka_pauses,
            "move": self.plan.kafka_moves,
        }
        next_strike_s = self._next_strike_s(sum(rates.values()))
        while not self.is_over:
            self._start_missing()
            self._break_links()
            if self.world.now_s >= next_strike_s:
                next_strike_s = self._next_strike_s(sum(rates.values()))
                self._strike(rates)
            await asyncio.sleep(self._random.uniform(0.01, 0.1))

    def end(self) -> None:
        """No gateway and no connection any more."""
        self.is_over = True
        for name in self._names():
            process = self.world.processes.get(name)
            if process is not None:
                self.world.end_process(process, "ends for good")
        self._break_links()

    def find(self, host: str) -> GatewayProcess | None:
        """The gateway at an address, if it takes connections."""
        process = self.world.processes.get(gateway_actor(0, int(host.removeprefix("broker-"))))
        is_there = isinstance(process, GatewayProcess) and process.server.listener.port
        return process if is_there else None  # type: ignore[return-value]

    def are_there(self) -> bool:
        """Whether each of them takes connections."""
        return all(self.find(host) is not None for host, _ in self.addresses())

    def addresses(self) -> list[tuple[str, int]]:
        """What clients have in their ``bootstrap.servers``."""
        return [(f"broker-{number}", PORT) for number in self.world.node_numbers()]

    def _names(self) -> list[str]:
        return [gateway_actor(0, number) for number in self.world.node_numbers()]

    def _start_missing(self) -> None:
        world = self.world
        for number, name in zip(world.node_numbers(), self._names(), strict=True):
            if name in world.processes or not world.can_start_on(number):
                self._starts_s.pop(name, None)
                continue
            at_s = self._starts_s.setdefault(name, world.now_s + self._random.uniform(*RESTART_S))
            if world.now_s >= at_s:
                self._start(name, number)

    def _start(self, name: str, number: int) -> None:
        world = self.world
        world.client_nodes[name] = number
        world._incarnations[name] += 1
        process = GatewayProcess(
            world, name, world._incarnations[name], self._split(), empty_disk(None), number
        )
        process.disk_name = name
        world.processes[name] = process
        world.tell(name, f"* starts, incarnation {process.incarnation}")
        process.context.run(self._build, process, number)

    def _build(self, process: GatewayProcess, number: int) -> None:
        config = GatewayConfig(
            number=0,
            broker_id=number,
            data_dir=self.world.settings.data_dir,
            cluster=self.world.settings.cluster,
            cluster_id=CLUSTER_ID,
        )
        gateway = Gateway(config, process.environment(), host=f"broker-{number}")
        listener, door = gateway.listener, gateway.listener.door
        listener.open = _opener(listener)  # type: ignore[method-assign]
        door._bug = self._bug_of(door, process)  # type: ignore[method-assign]
        process.answer_with(gateway)
        gateway.begin()

    def _bug_of(self, door: KafkaDoor, process: GatewayProcess) -> Callable[[str], Any]:
        tell = door._bug

        def bug(name: str) -> Any:
            error = sys.exc_info()[1]
            if not process.is_dead and isinstance(error, Exception):
                self.world.fail(error, f"{name} raised in {process.name}")
            return tell(name)

        return bug

    def _split(self) -> Random:
        return Random(self._random.getrandbits(64))

    # --- faults ---------------------------------------------------------------------------

    def _next_strike_s(self, rate: float) -> float:
        return self.world.now_s + self._random.expovariate(rate) if rate else float("inf")

    def _strike(self, rates: dict[str, float]) -> None:
        world, name = self.world, self._random.choice(self._names())
        (kind,) = self._random.choices(list(rates), list(rates.values()))
        if kind == "move":
            name = self._random.choice(self._coordinators())
        if kind != "pause":
            world.kill(name)
            return
        world.pause(name)
        world.loop.call_later(
            self._random.choice(PAUSES_S), world.resume, name, context=world.driver.context
        )

    def _coordinators(self) -> list[str]:
        """The actors that hold coordinators of transactions, or hosts, if those do."""
        names = list(self.world.configs)
        own = [name for name in names if name.startswith(_OF_IDS)]
        return own or [name for name in names if name.startswith(_OF_HOSTS)]

    def _break_links(self) -> None:
        """Whoever is at the other end of a dead process hears of it, mostly."""
        for link in list(self.links):
            if link.process.is_dead:
                is_told = link.process.node not in self.world.dead_nodes
                if is_told or self._random.random() < SEEN_SHARE:
                    link.reset()
                del self.links[link]
            elif link.client.is_dead:
                link.close()
                del self.links[link]


def _opener(listener: KafkaListener) -> Callable[[Sequence[str], int], Any]:
    async def open_port(hosts: Sequence[str], port: int) -> int:
        listener.port = PORT
        return PORT

    return open_port


# --- connections ------------------------------------------------------------------------------


class _Stream:
    """One direction of a connection: pieces arrive in order, some much later."""

    def __init__(self, link: Link, arrive: Callable[[bytes], None], share: float) -> None:
        self._link = link
        self._share = share
        """Of what is late by the plan."""
        self._arrive = arrive
        self._free_at_s = 0.0
        self._handles: list[Any] = []

    def put(self, piece: bytes) -> None:
        """Send a piece; an empty one is the end."""
        gateways = self._link.gateways
        world, random, faults = gateways.world, gateways.link_random, gateways.faults
        delay_s = random.uniform(*LATENCY_S)
        rate = 0.0 if gateways.is_over else gateways.stall_rate * self._share
        if rate and random.random() < rate:
            world.count("stalled connection")
            # Mostly longer than a client waits for an answer.
            delay_s += random.uniform(0.0, min(faults.delay_max_ms / 1_000, STALL_MAX_S))
        self._free_at_s = max(self._free_at_s, world.now_s + delay_s)
        self._handles = [one for one in self._handles if one.when() > world.now_s]
        self._handles.append(
            world.loop.call_at(self._free_at_s, self._arrive, piece, context=world.driver.context)
        )

    def hold(self, for_s: float) -> None:
        """Nothing that is sent from now on arrives before that time is over."""
        until_s = self._link.gateways.world.now_s + for_s
        self._free_at_s = max(self._free_at_s, until_s)

    def lose(self) -> None:
        """What is on its way never arrives."""
        for handle in self._handles:
            handle.cancel()


class Link:
    """A connection of a client to a gateway, by TCP as far as it matters.

    ``on_bytes`` and ``on_lost`` are called in the client's process.
    """

    def __init__(
        self,
        gateways: Gateways,
        client: Client,
        process: GatewayProcess,
        on_bytes: Callable[[bytes], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.gateways = gateways
        self.client = client
        self.process = process
        self._on_bytes = on_bytes
        self._on_lost = on_lost
        self._is_open = True
        """At the client's end."""
        self._up = _Stream(self, self._reaches_gateway, 1.0)
        self._down = _Stream(self, self._reaches_client, ANSWERS_SHARE)
        self._unread: list[bytes] = []
        """In the gateway's kernel: the process may not have accepted the connection yet."""
        self._protocol: KafkaConnection | None = None
        self.transport = _Transport(self)
        gateways.links[self] = None
        # The kernel answers for a process that does not run.
        gateways.world.loop.call_later(
            gateways.link_random.uniform(*LATENCY_S),
            self._connected,
            context=gateways.world.driver.context,
        )

    def _connected(self) -> None:
        if not self.process.is_dead:
            self.process.soon(self._accept)

    def _accept(self) -> None:
        self._protocol = KafkaConnection(self.process.server.listener)
        self._protocol.connection_made(self.transport)
        self._read()

    # --- the client's end -----------------------------------------------------------------

    def send(self, piece: bytes) -> None:
        """Send bytes, unless the connection is closed."""
        if self._is_open:
            self._up.put(piece)

    def hold(self, for_s: float) -> None:
        """Keep from the gateway what is sent from now on, for so long."""
        self.gateways.world.count("held connection")
        self._up.hold(for_s)

    def close(self) -> None:
        """Close it; what is on its way is lost, or is read before the end."""
        if self._is_open:
            self._is_open = False
            if self.gateways.link_random.random() >= self.gateways.plan.kafka_late:
                self._up.lose()
            self._up.put(b"")

    def reset(self) -> None:
        """The other end is gone."""
        if self._is_open:
            self._is_open = False
            self.client.soon(self._on_lost)

    def _reaches_client(self, piece: bytes) -> None:
        if not self._is_open or self.client.is_dead:
            return
        if piece:
            self.client.soon(self._on_bytes, piece)
        else:
            self.reset()

    # --- the gateway's end ----------------------------------------------------------------

    def _reaches_gateway(self, piece: bytes) -> None:
        if not self.process.is_dead:
            self._unread.append(piece)
            self.process.soon(self._read)

    def _read(self) -> None:
        protocol = self._protocol
        while self._unread and protocol is not None and self.transport.reads:
            piece = self._unread.pop(0)
            if not piece:
                self.transport.lose()
                return
            view = protocol.get_buffer(-1)
            size = min(len(view), len(piece))
            view[:size] = piece[:size]
            del view
            if size < len(piece):
                self._unread.insert(0, piece[size:])
            protocol.buffer_updated(size)

    def read_soon(self) -> None:
        """The gateway reads again."""
        self.process.soon(self._read)

    def answer(self, piece: bytes) -> None:
        """Bytes of the gateway; an empty piece closes the connection."""
        self._down.put(piece)

    def lost(self) -> None:
        """The gateway's connection is over."""
        if self._protocol is not None:
            self._protocol.connection_lost(None)
            self._protocol = None


class _Socket:
    """What a connection sets options of."""

    def setsockopt(self, *_: object) -> None:
        """No effect."""


class _Transport:
    """``asyncio.Transport`` of the gateway's end."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._extra = {"socket": _Socket(), "peername": ("client", 1)}
        self._is_closing = False
        self._is_paused = False

    @property
    def reads(self) -> bool:
        """Whether more may be read."""
        return not self._is_paused and not self._is_closing

    def get_extra_info(self, name: str) -> Any:
        return self._extra.get(name)

    def set_write_buffer_limits(self, high: int) -> None:
        """The network takes whatever is sent."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._link.answer(bytes(data))

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._link.read_soon()

    def abort(self) -> None:
        self.lose()

    def close(self) -> None:
        self.lose()

    def lose(self) -> None:
        """Close, as asyncio does: the connection hears of it in a later turn."""
        if not self._is_closing:
            self._is_closing = True
            self._link.answer(b"")
            self._link.process.soon(self._link.lost)
