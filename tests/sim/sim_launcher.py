"""Starting and ending actors in a simulated world, and clusters founded beforehand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disk_image import Directory
from sim_disk import SimDisk, settle

from oncelog.actors.config import BrokerConfig, HostConfig, ReplicaConfig, data_directories
from oncelog.actors.controller.broker_membership import BrokerNode
from oncelog.actors.controller.replica_actors import FoundActor
from oncelog.actors.interfaces import broker_actor, holder_of
from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR, Placement
from oncelog.actors.protocol.cluster.quorum import VOTERS_MAX
from oncelog.actors.replica.data_directory import DirectoryIdentity, write_identity
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sim_process import Process
    from sim_world import World, WorldSettings

_FOUNDED: dict[str, dict[str, Directory]] = {}
"""Disks of clusters with their topics, by what they were founded with: most worlds begin alike."""


class SimLauncher:
    """``Launcher``: each request takes a drawn time, as a thread that asks Ray does."""

    def __init__(self, world: World, process: Process, config: ReplicaConfig) -> None:
        self._world = world
        self._process = process
        self._config = config

    async def start(self, placements: Sequence[Placement]) -> None:
        """See ``Launcher.start``."""
        for placement in placements:
            await self._pass_time(1 / max(len(placements), 1))
            tp, _, broker_id, number = placement
            host = HostConfig(
                number=number,
                broker_id=broker_id,
                data_dir=self._config.data_dir,
                cluster=self._config.cluster,
                cluster_id=self._config.cluster_id,
            )
            config = host.replica(tp.topic, tp.partition) if number == OWN_ACTOR else host
            self._world.driver.soon(self._world.start_actor, holder_of(placement), config)

    async def nodes(self) -> list[BrokerNode]:
        """See ``BrokerLauncher.nodes``; none is labelled where there is one broker only."""
        if self._world.settings.brokers == 1:
            return []
        await self._pass_time()
        return [
            BrokerNode(broker_id=number, rack=self._world.settings.rack_of(number))
            for number in self._world.living_nodes()
        ]

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        """See ``BrokerLauncher.start_brokers``."""
        await self._pass_time()
        for node in nodes:
            config = broker_config(self._config, node.broker_id, node.rack)
            self._world.driver.soon(self._world.start_actor, broker_actor(node.broker_id), config)

    async def find(self, actors: Collection[str]) -> list[FoundActor]:
        """See ``Launcher.find``; an actor is the same as long as its config is."""
        await self._pass_time()
        configs = self._world.configs
        return [FoundActor(name, configs[name]) for name in actors if name in configs]

    async def end(self, actors: Sequence[FoundActor]) -> None:
        """See ``Launcher.end``."""
        await self._pass_time()
        for found in actors:
            self._world.driver.soon(self._end, found)

    def _end(self, found: FoundActor) -> None:
        if self._world.configs.get(found.name) is found.handle:
            self._world.end_actor(found.name)

    async def running(self) -> list[str]:
        """See ``Launcher.running``."""
        await self._pass_time()
        return self._world.actor_names()

    async def _pass_time(self, share: float = 1.0) -> None:
        await self._world.until_ray_answers()
        delay_ms = self._process.random.uniform(*self._world.settings.launch_ms)
        await asyncio.sleep(delay_ms * share / 1_000)


def broker_config(config: ReplicaConfig, broker_id: int, rack: str = "") -> BrokerConfig:
    """What the actor of a broker is started with, in the cluster of ``config``."""
    return BrokerConfig(
        broker_id=broker_id,
        data_dir=config.data_dir,
        cluster=config.cluster,
        cluster_id=config.cluster_id,
        rack=rack,
    )


def new_disk(config: ReplicaConfig | HostConfig) -> SimDisk:
    """What an actor finds that was never there before: the data directory of its broker.

    Each actor has a disk of its own here; that of the controller is prepared for founding.
    """
    is_controller = isinstance(config, ReplicaConfig) and config.topic == CLUSTER_METADATA_TOPIC
    return empty_disk(config, is_founding=is_controller)


def empty_disk(config: ReplicaConfig | HostConfig | None, *, is_founding: bool = False) -> SimDisk:
    """A disk without a log: the data directory of a broker, or nothing at all."""
    disk = SimDisk(Directory(), set())
    if config is None:
        return disk
    own, *others = data_directories(config.data_dir)
    identity = DirectoryIdentity(
        cluster_id=config.cluster_id,
        broker_id=config.broker_id,
        is_founding=is_founding,
        further=tuple((f"{number:032x}", str(path)) for number, path in enumerate(others)),
    )
    disk.make_directory(own)
    write_identity(disk, own, identity)
    share_further(disk, identity)
    return SimDisk(settle(disk.root), set())


def share_further(disk: SimDisk, own: DirectoryIdentity) -> None:
    """The further directories of the broker are on this disk too."""
    for directory_id, path in own.further:
        further = DirectoryIdentity(
            cluster_id=own.cluster_id,
            broker_id=own.broker_id,
            directory_id=directory_id,
            is_further=True,
        )
        disk.make_directory(Path(path))
        write_identity(disk, Path(path), further)


def founded_disks(topics: Mapping[str, int], settings: WorldSettings) -> dict[str, Directory]:
    """The disks of a cluster that was founded and has its topics, everything on them durable."""
    key = repr(
        (
            sorted(topics.items()),
            settings.brokers,
            settings.data_dir,
            settings.replication_factor,
            settings.cluster,
            settings.topic_settings,
            settings.racks,
        )
    )
    if key not in _FOUNDED:
        _FOUNDED[key] = _found(topics, settings)
    return _FOUNDED[key]


def _found(topics: Mapping[str, int], settings: WorldSettings) -> dict[str, Directory]:
    from sim_world import World

    async def create(client: Any) -> None:
        admin = client.admin()
        for topic, partitions in topics.items():
            await admin.create_topic(
                topic,
                partitions,
                settings.replication_factor,
                **settings.topic_settings.get(topic, {}),
            )

    with World(-1, topics={}, settings=settings, is_founded=False) as world:
        while len(world.unfenced()) < settings.replication_factor:
            world.run_for(0.1)
        founder = world.client("founder")
        world.run(founder.spawn(create(founder)))
        while settings.brokers >= VOTERS_MAX and not world.has_three_voters():
            world.run_for(0.1)
        world.quiesce()
        return {name: settle(disk.root) for name, disk in world.disks.items()}
