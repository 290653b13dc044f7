"""Turns classes into named, detached, self-restarting Ray actors.

The classes are not decorated, so a restarted actor runs the code that is installed then.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import ray

from oncelog.actors.config import BrokerConfig, HostConfig, ReplicaConfig
from oncelog.actors.controller.membership import BrokerNode
from oncelog.actors.controller.replica_actors import FoundActor
from oncelog.actors.interfaces import NAMESPACE, actor_of, broker_actor, host_actor
from oncelog.actors.launch.processes import ActorProcess, BrokerProcess, HostProcess, process_of
from oncelog.actors.pin import BY_LABEL, RACK_LABEL, Pin, broker_of
from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR, Placement
from oncelog.actors.rpc.ray_transport import find_actor

MAX_CONCURRENCY: Final = 100_000
"""Calls one actor may hold at once: most are long polls, which cost nothing while they wait."""


def launch_actor(
    kind: type[ActorProcess], name: str, config: ReplicaConfig | HostConfig | BrokerConfig
) -> Any:
    """Start the actor ``name`` if it does not run yet, pinned to its broker's node.

    It outlives its creator. Ray restarts it on that node only, and never repeats a call by itself.
    """
    if config.pin is None:
        raise ValueError(f"{name} has to be pinned to the node of its data directory")
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


class RayLauncher:
    """``Launcher`` on Ray: an actor is on its broker's node; ``config`` is the controller's."""

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
        """Ensure that these brokers, where their nodes are alive, can vote for a controller."""
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
            )
            launch_actor(BrokerProcess, broker_actor(node.broker_id), config)
            self._begun_brokers.add(node.broker_id)

    def _pin_of(self, broker_id: int) -> Pin | None:
        """The controller's own node; of others, the one with their label, wherever that is."""
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
    """The living nodes of brokers. That of ``own`` needs no label if ``pin`` tells which it is."""
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
    """Kill actors for good, by name; a name nobody has is fine."""
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
