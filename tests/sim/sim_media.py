"""Damage to the files of a simulated disk, and the operator who restores a refused file.

A replica that finds damage either rebuilds what it needs or refuses to serve and says so. Only the
latter calls for an operator, who has a copy: the file is as it was, and the replica starts again.
A replica that comes back by itself keeps what it made of the damage. Records are different: nobody
can rebuild them, so each reader must be told; they are restored after the run, and all are there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from file_damage import SIDE_KINDS, Damage, DamagedKind, contents, damage
from sim_disk import SimDisk
from sim_history import COMPACTED_PREFIX

from oncelog.actors.config import ReplicaConfig, own_directory
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.storage.model import TopicPartition

if TYPE_CHECKING:
    from sim_world import World


METADATA_ACTORS = (CONTROLLER_ACTOR, "broker:")

RECORD_DAMAGES = (Damage.FLIPPED, Damage.ZEROED_PAGE, Damage.UNREADABLE, Damage.CUT, Damage.EMPTIED)
"""What becomes of records; the last two may be refused, and are put back then."""


@dataclass(frozen=True, slots=True)
class HarmedFile:
    """One file as it was before."""

    actor: str
    path: Path
    content: bytes
    incarnation: int
    """Of the last life that had it whole."""
    damaged: bytes | None = None
    """As it is since; ``None``: gone. Another content means that it has been rebuilt."""


class Media:
    """What has happened to the files of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._earlier: dict[tuple[str, Path], dict[str, bytes]] = {}
        self._harmed: list[HarmedFile] = []
        self._records: list[HarmedFile] = []
        self.broken: set[str] = set()
        """Actors whose disk has failed: if one is offline for it, an operator restarts it."""

    def harm(
        self,
        actor: str,
        random: Random,
        kinds: Sequence[DamagedKind] = SIDE_KINDS,
        ways: Sequence[Damage] = tuple(Damage),
        *,
        is_sealed: bool | None = None,
    ) -> HarmedFile | None:
        """The actor dies and finds a file damaged when it is back; ``None`` if it has none.

        Not a copy of the metadata log, where there are several: nobody would put it back once the
        controller is elsewhere.
        """
        world = self._world
        process = world.actor(actor)
        if len(world.node_numbers()) > 1 and actor.startswith(METADATA_ACTORS):
            return None
        if process is None or any(zombie.name == actor for zombie in world.zombies()):
            return None
        world.end_process(process, "killed, for its files")
        disk = self._disk(actor)
        directory = self._directory(actor, disk, random)
        before = contents(disk, directory) if disk.exists(directory) else {}
        found = None
        if before:
            kind, how = random.choice(kinds), random.choice(ways)
            older = self._earlier.get((actor, directory), {})
            found = damage(disk, directory, kind, how, random, older=older, is_sealed=is_sealed)
            self._earlier[actor, directory] = before
        if found is None:
            return None
        world.count("file_damage")
        world.tell(actor, f"* damaged: {found}")
        content = before[found.path.name]
        damaged = contents(disk, directory).get(found.path.name)
        harmed = HarmedFile(actor, found.path, content, process.incarnation, damaged)
        self._harmed.append(harmed)
        return harmed

    def harm_records(self, random: Random) -> None:
        """Some sealed segment of a topic that is not compacted is damaged."""
        world = self._world
        known = {harmed.actor for harmed in self._records}
        names = [
            name
            for name, config in sorted(world.configs.items())
            if name.startswith("partition:")
            and not config.topic.startswith(COMPACTED_PREFIX)
            and name not in known
        ]
        if names:
            ways = RECORD_DAMAGES
            name = random.choice(names)
            harmed = self.harm(name, random, (DamagedKind.LOG,), ways, is_sealed=True)
            if harmed is not None:
                self._world.count("record_damage")
                self._records.append(harmed)

    def damaged_records(self) -> list[TopicPartition]:
        """Partitions with records that nobody has put back."""
        configs = self._world.configs
        return [
            TopicPartition(configs[harmed.actor].topic, configs[harmed.actor].partition)
            for harmed in self._records
            if harmed.actor in configs
        ]

    def put_records_back(self) -> None:
        """Make whole what is still there of them."""
        for harmed in self._records:
            process = self._world.actor(harmed.actor)
            if process is not None:
                self._world.end_process(process, "ended, to put records back")
            if self._disk(harmed.actor).exists(harmed.path):
                self._put_back(harmed)
        self._records.clear()

    def forget(self, actors: Collection[str]) -> None:
        """Their disks are gone, and nobody can put anything back."""
        self._harmed = [one for one in self._harmed if one.actor not in actors]
        self._records = [one for one in self._records if one.actor not in actors]
        self.broken.difference_update(actors)

    def attend(self) -> None:
        """What an operator does: restart after a failed disk, put back what was refused.

        What was rebuilt is forgotten.
        """
        for name in sorted(self.broken):
            process = self._world.actor(name)
            if process is not None and process.needs_operator:
                process.disk.heal()
                self._world.end_process(process, "restarted, because its disk has failed")
                self.broken.discard(name)
        for harmed in list(self._harmed):
            if harmed.actor in self._world.away_disks:
                continue
            process = self._world.actor(harmed.actor)
            if process is None or process.incarnation <= harmed.incarnation:
                continue
            if process.is_refused and self._is_rebuilt(harmed):
                self._harmed.remove(harmed)
            elif process.is_refused:
                self._world.count("damage_refused")
                self._world.end_process(process, f"ended, to put {harmed.path.name} back")
                self._put_back(harmed)
                self._harmed.remove(harmed)
            elif self._world.is_ready(harmed.actor):
                self._harmed.remove(harmed)

    def _is_rebuilt(self, harmed: HarmedFile) -> bool:
        """Whether a start has made it anew: then what was there before is too old to put back."""
        disk, directory = self._disk(harmed.actor), harmed.path.parent
        found = contents(disk, directory) if disk.exists(directory) else {}
        return found.get(harmed.path.name) != harmed.damaged

    def _directory(self, actor: str, disk: SimDisk, random: Random) -> Path:
        """Of a host, that of one of its logs."""
        config = self._world.configs[actor]
        if isinstance(config, ReplicaConfig):
            return config.directory
        data_dir = own_directory(config.data_dir)
        logs = sorted({path.parent for path in disk.files() if path.parent != data_dir})
        return random.choice(logs) if logs else data_dir / "none"

    def _put_back(self, harmed: HarmedFile) -> None:
        disk = self._disk(harmed.actor)
        disk.capacity_bytes = None  # Whoever puts a file back has made room for it.
        handle = disk.open(harmed.path, create=True)
        handle.truncate(0)
        handle.append((harmed.content,))
        handle.datasync()
        handle.close()
        disk.sync_directory(harmed.path.parent)

    def _disk(self, actor: str) -> SimDisk:
        """The files of an actor that is dead, as an operator sees them."""
        return self._world.disks[self._world.disk_name(actor)].next_life()
