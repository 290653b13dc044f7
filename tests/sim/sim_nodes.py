"""The nodes of a simulated world, one per broker: how they die, stop and lose sight of each other.

The controller begins on the first; clients and the driver are elsewhere, unless told. Here each
replica has a disk of its own, so what is one file of a node, whose its data directory is, is
copied.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from pathlib import Path

from sim_disk import SimDisk
from sim_launcher import empty_disk, new_disk, share_further
from sim_process import ELSEWHERE, Process

from oncelog.actors.config import BrokerConfig, HostConfig, ReplicaConfig, own_directory
from oncelog.actors.interfaces import CONTROLLER_ACTOR, LOG_ACTORS, broker_actor
from oncelog.actors.replica.data_directory import read_identity, write_identity

FOUNDER_NODE = 1

LOOK_FOR_HEAD_S = 0.5


class Nodes:
    """The part of ``World`` that knows of nodes; mixed into it, never on its own."""

    def node_of(self, name: str) -> int:
        """The node of a process, dead ones included."""
        if name == CONTROLLER_ACTOR:
            return self.controller_node
        if name.startswith(LOG_ACTORS):
            return int(name.replace("broker:", "@").rpartition("@")[2])
        return self.client_nodes.get(name, ELSEWHERE)

    def node_numbers(self) -> list[int]:
        """Every broker's node, dead or alive."""
        return list(range(1, self.settings.brokers + 1))

    def living_nodes(self) -> list[int]:
        """Every broker's node that is up, stopped ones included: nobody knows better."""
        return [number for number in self.node_numbers() if number not in self.dead_nodes]

    def actors_on(self, number: int) -> list[str]:
        """The actors of a node, dead ones that are to be restarted included."""
        return [name for name in self.actor_names() if self.node_of(name) == number]

    def processes_on(self, number: int) -> list[Process]:
        """What lives on a node, zombies and clients included."""
        processes = [*self._zombies, *self.processes.values()]
        return [process for process in processes if process.node == number]

    def can_start_on(self, number: int) -> bool:
        """Whether a process can begin there now: none of Ray's while its head is dead."""
        needed = {number, self.head_node} if number != ELSEWHERE else {number}
        return not needed & self.dead_nodes and number not in self.stopped_nodes

    async def until_ray_answers(self) -> None:
        """Return once Ray's head lives: it answers nobody before."""
        while self.head_node in self.dead_nodes:
            await asyncio.sleep(LOOK_FOR_HEAD_S)

    # --- death and stops ----------------------------------------------------------------------

    def kill_node(self, number: int, *, is_power_lost: bool = False) -> None:
        """Everything on the node is gone until ``start_node``; files stay, or what was synced."""
        self._check_node(number)
        if number in self.dead_nodes:
            return
        self.count("kill_node")
        self.tell("world", f"* node {number} dies")
        self.dead_nodes.add(number)
        self.stopped_nodes.discard(number)
        for process in self.processes_on(number):
            self.end_process(process, "killed with its node")
        if is_power_lost:
            self.boots[number] += 1
            self.power_loss(self.disks_on(number))

    def start_node(self, number: int) -> None:
        """A dead node is back, and its actors come back by themselves."""
        if number in self.dead_nodes:
            self.tell("world", f"* node {number} starts")
            self.dead_nodes.remove(number)
            for one in self.living_nodes() if number == self.head_node else (number,):
                self._start_missing(one)

    def stop_node(self, number: int) -> None:
        """SIGSTOP of everything on the node; what dies meanwhile stays dead until ``cont_node``."""
        self._check_node(number)
        if self.can_start_on(number):
            self.count("stop_node")
            self.tell("world", f"* node {number} stops")
            self.stopped_nodes.add(number)
            for process in self.processes_on(number):
                self.loop.pause(process)

    def cont_node(self, number: int) -> None:
        """SIGCONT of everything on the node."""
        if number in self.stopped_nodes:
            self.tell("world", f"* node {number} goes on")
            self.stopped_nodes.remove(number)
            for process in self.processes_on(number):
                self.resume(process.name)
            self._start_missing(number)

    def _start_missing(self, number: int) -> None:
        for name in self.actors_on(number):
            if self.actor(name) is None:
                self._restart_later(name)

    def _check_node(self, number: int) -> None:
        if number not in self.node_numbers():
            raise AssertionError(f"there is no node {number} among {self.node_numbers()}")

    # --- the links between them ---------------------------------------------------------------

    def cut(self, one: int, other: int, *, both: bool = True) -> None:
        """Nothing that ``one`` sends arrives at ``other``, nor, if ``both``, the other way.

        A node may be ``ELSEWHERE``, that of the clients.
        """
        self.count("cut" if both else "one_way_cut")
        self.tell("world", f"* {one} is cut off from {other}{'' if both else ', one way'}")
        self.network.cuts.add((one, other))
        if both:
            self.network.cuts.add((other, one))

    def mend(self, one: int, other: int) -> None:
        """Both hear each other again."""
        self.network.cuts -= {(one, other), (other, one)}
        self.tell("world", f"* {one} and {other} hear each other")

    def isolate_node(self, number: int) -> None:
        """Nothing leaves or reaches the node; it lives on."""
        for other in self.places_beside(number):
            self.cut(number, other)

    def rejoin_node(self, number: int) -> None:
        """The node hears everybody again, and is heard."""
        for other in self.places_beside(number):
            self.mend(number, other)

    def places_beside(self, number: int) -> list[int]:
        """Whom a node can be cut off from."""
        return [other for other in (ELSEWHERE, *self.node_numbers()) if other != number]

    # --- disks --------------------------------------------------------------------------------

    def disks_on(self, number: int) -> list[str]:
        """The names of all disks of a node."""
        return [name for name in self.disks if self.node_of(name) == number]

    def lose_node_disks(self, number: int, *, is_copied: bool = False) -> None:
        """The node dies for good: what ``start_node`` starts under its number has empty disks.

        ``is_copied``: others have all that is committed of the metadata log.
        """
        self._check_node(number)
        if number == self.controller_node and not is_copied:
            raise AssertionError("this may be the only copy of the metadata log: nobody took over")
        self.kill_node(number)
        self.count("disk_loss")
        self.lost_nodes.add(number)
        names = self.disks_on(number)
        for name in names:
            self.disks[name] = empty_disk(None)
            self.away_disks.pop(name, None)
            self._disk_stops.pop(name, None)
        self.media.forget(names)
        self.tell("world", f"* node {number} has lost its disks")

    def fail_disk(self, number: int, path: str) -> None:
        """One of the node's disks fails, until ``mend_disk``; what is mounted elsewhere works."""
        self._check_node(number)
        self.count("fail_disk")
        self.tell("world", f"* the disk of node {number} in {path} fails")
        self.failed_directories.setdefault(number, set()).add(Path(path))

    def mend_disk(self, number: int, path: str) -> None:
        """It works again, with all that was on it."""
        self.tell("world", f"* the disk of node {number} in {path} works again")
        self.failed_directories[number].discard(Path(path))

    def disk_of_next_life(
        self, name: str, config: ReplicaConfig | HostConfig | BrokerConfig
    ) -> SimDisk:
        """The files that an actor finds when it starts."""
        disk = self._disk_found(name, config)
        if isinstance(config, BrokerConfig):
            disk.on_identity = functools.partial(
                self.copy_identity, config.data_dir, config.broker_id
            )
        disk.failed_directories = self.failed_directories.setdefault(config.broker_id, set())
        return disk

    def _disk_found(self, name: str, config: ReplicaConfig | HostConfig | BrokerConfig) -> SimDisk:
        disk = self.disks.get(name)
        if self._is_founders(config.broker_id):
            if disk is None:
                disk = self.disks[name] = new_disk(config)
                # An actor that begins later finds what the broker has written to the directory.
                self.copy_identity(config.data_dir, config.broker_id, name)
            return disk.next_life()
        if disk is None:
            disk = empty_disk(None)
        if not isinstance(config, BrokerConfig) and name not in self.away_disks:
            self._share_identity(disk, config)
        return disk.next_life()

    def has_data_directory(self, name: str, config: ReplicaConfig | HostConfig) -> bool:
        """Whether the data directory that the actor finds, good or bad, is there by now.

        Where a node has lost its disks, that is once its broker has joined.
        """
        if self._is_founders(config.broker_id) or name in self.away_disks:
            return True
        known = (self.disks.get(name), self.disks.get(broker_actor(config.broker_id)))
        data_dir = own_directory(config.data_dir)
        return any(
            disk is not None and read_identity(disk.next_life(), data_dir) is not None
            for disk in known
        )

    def _is_founders(self, number: int) -> bool:
        """Whether the data directory was there before the cluster."""
        return number == FOUNDER_NODE and number not in self.lost_nodes

    def copy_identity(self, data_dir: str, number: int, *names: str) -> None:
        """``meta.properties`` is one file of a node, and its broker has written to it.

        ``names``: the actors whose disks were not there then; else all that have a disk are meant.
        """
        path, broker = own_directory(data_dir), broker_actor(number)
        written = (
            read_identity(self.disks[broker].next_life(), path) if broker in self.disks else None
        )
        for name in names or self.disks_on(number):
            disk = self.disks[name].next_life()
            known = read_identity(disk, path)
            if written is None or known is None or name in (broker, *self.away_disks):
                continue
            disk.capacity_bytes = None
            changed = replace(
                known, directory_id=written.directory_id, broker_epoch=written.broker_epoch
            )
            write_identity(disk, path, changed)

    def _share_identity(self, disk: SimDisk, config: ReplicaConfig | HostConfig) -> None:
        """The data directories are those of the broker once this has joined."""
        brokers = self.disks.get(broker_actor(config.broker_id))
        data_dir = own_directory(config.data_dir)
        if brokers is None or read_identity(disk.next_life(), data_dir) is not None:
            return
        identity = read_identity(brokers.next_life(), data_dir)
        if identity is not None:
            disk = disk.next_life()
            disk.capacity_bytes = None
            disk.make_directory(data_dir)
            disk.sync_directory(data_dir.parent)
            write_identity(disk, data_dir, identity)
            share_further(disk, identity)
