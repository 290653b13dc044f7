"""What can be done to a simulated world, and how it is healed.

Everything here may be called at any time, even from a callback of the world. Kinds of faults
are counted in ``World.counts``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from crash_disk import DataLoss, NameLoss
from sim_disk import SimDisk
from sim_launcher import empty_disk
from sim_process import ActorProcess, Process

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.replica.data_directory import has_log

SERVING_LIMIT_S = 60.0
"""Virtual time after the last fault within which every replica serves again."""

ZOMBIE_LIFE_S = (0.0, 10.0)
"""How long a process may live beside its successor."""


class Faults:
    """The part of ``World`` that breaks things and mends them; mixed into it, never on its own."""

    # --- processes ----------------------------------------------------------------------------

    def kill(self, name: str) -> bool:
        """kill -9 of an actor or a client; its files stay as they are. False if it is dead."""
        process = self.processes.get(name)
        if process is None:
            return False
        self.count("kill")
        self.end_process(process, "killed")
        return True

    def kill_at_event(self, name: str, number: int) -> None:
        """Kill a process after the ``number``-th callback from now, of any process."""
        self._kill_at_event = (self.loop.event_count + number, name)

    def pause(self, name: str) -> None:
        """SIGSTOP: what it should do waits; calls to it are held, its locks and files too."""
        process = self.processes.get(name)
        if process is not None and not process.is_paused:
            self.count("pause")
            self.tell(name, "* paused")
            self.loop.pause(process)

    def resume(self, name: str) -> None:
        """SIGCONT, also of zombies of that name."""
        for process in self._lives_of(name):
            if process.is_paused:
                self.tell(name, "* resumed")
                self.loop.resume(process)

    def replace(self, name: str, *, life_s: tuple[float, float] | None = ZOMBIE_LIFE_S) -> bool:
        """A successor takes the name while the old process, now a zombie, lives on beside it.

        The zombie keeps its directory lock, and is killed after a time drawn from ``life_s``; of
        ``None`` it lives until ``heal`` or ``kill_zombies``. False if the actor is dead.
        """
        process = self.actor(name)
        if process is None:
            return False
        self.count("replace")
        self.tell(name, "* becomes a zombie")
        self._zombies.append(process)
        del self.processes[name]
        self._restart_later(name)
        if life_s is not None:
            self.loop.call_later(
                self.random.uniform(*life_s),
                self.end_process,
                process,
                "zombie killed",
                context=self.driver.context,
            )
        return True

    def zombies(self) -> list[Process]:
        """Processes that live on although a successor has their name."""
        return list(self._zombies)

    def kill_zombies(self) -> None:
        """kill -9 of all of them: their successors get the directories."""
        for process in self.zombies():
            self.end_process(process, "zombie killed")

    def _lives_of(self, name: str) -> Iterator[Process]:
        for process in [*self._zombies, *self.processes.values()]:
            if process.name == name:
                yield process

    # --- disks and clocks ---------------------------------------------------------------------

    def power_loss(
        self,
        names: Iterable[str] | None = None,
        *,
        data: DataLoss | None = None,
        entries: NameLoss | None = None,
    ) -> None:
        """The machine of these actors (of all) loses power: what was not synced may be lost.

        ``data`` and ``entries`` say how files and names suffer; drawn if they are ``None``.
        """
        self.count("power_loss")
        for name in dict.fromkeys(
            map(self.disk_name, self.actor_names() if names is None else names)
        ):
            for process in self._processes_with(name):
                self.end_process(process, "lost its power")
            if name in self.disks:
                self.disks[name] = self.disks[name].after_loss(
                    data or self.random.choice(list(DataLoss)),
                    entries or self.random.choice(list(NameLoss)),
                    self.random,
                )

    def crash_at_disk_operation(self, name: str, number: int, part: float | None = None) -> None:
        """The actor dies after its ``number``-th disk operation from now, or within it.

        Of a write within which it dies ``part``, 0 to 1, is in the file. An actor that is dead now
        dies in its next life, so in its recovery.
        """
        process = self.actor(name)
        if process is None:
            self._disk_stops[name] = (number, part)
        else:
            stop_disk(process.disk, number, part)

    def disk(self, name: str) -> SimDisk:
        """The disk of an actor's present or last life: for planned errors, bit flips, capacity.

        Errors that are planned (``fail``) are of that life only.
        """
        process = self.actor(name)
        return self.disks[self.disk_name(name)] if process is None else process.disk

    def slow_disk(self, name: str, factor: float) -> None:
        """Syncs take ``factor`` times as long from now on, in its next lives too."""
        self.count("slow_disk")
        self.tell(name, f"* disk slower by {factor}")
        self.slowness[name] = factor
        process = self.actor(name)
        if process is not None:
            process.pace.slowness = factor

    def hold_disk(self, name: str) -> None:
        """The actor's syncs and other work on files do not begin until ``release_disk``."""
        process = self.actor(name)
        if process is not None:
            self.tell(name, "* disk held")
            process.pace.hold()

    def release_disk(self, name: str) -> None:
        """Go on with what was held."""
        for process in self._lives_of(name):
            if isinstance(process, ActorProcess) and process.pace.is_held:
                self.tell(name, "* disk released")
                process.soon(process.pace.release)

    def jump_clock(self, name: str, offset_ms: int) -> None:
        """The clock of a process is off by this much from now on, its next lives included."""
        self.count("clock_jump")
        self.tell(name, f"* clock off by {offset_ms} ms")
        self.clock_offsets_ms[name] = offset_ms
        self._clock_lead_ms = max(self._clock_lead_ms, offset_ms)

    def move(self, name: str, *, is_of_cluster: bool) -> None:
        """The actor goes on with an empty disk, until ``move_back``.

        That of another node, or if it ``is_of_cluster`` the right one, that has lost the log. Not a
        host: partitions that nobody had led may be begun on the other disk beside those it misses.
        Nor the controller of several nodes, who has the disk of a broker.
        """
        if name == CONTROLLER_ACTOR and len(self.node_numbers()) > 1:
            return
        if name in self.away_disks or not isinstance(self.configs.get(name), ReplicaConfig):
            return
        self.count("move")
        self.tell(name, "* moved to an empty disk")
        self.away_disks[name] = self.disks[self.disk_name(name)]
        self._put_disk(name, empty_disk(self.configs[name] if is_of_cluster else None))

    def move_back(self, name: str) -> None:
        """The actor has its own disk again.

        Unless a partition that nobody had led before was begun on the other one: its own has no
        record, and to put it back would be to throw those away that were acknowledged since.
        """
        disk = self.away_disks.pop(name, None)
        strange = self.disks[self.disk_name(name)].next_life()
        if disk is not None and not has_log(strange, self.configs[name].directory):
            _mend(disk)
            self._put_disk(name, disk)
            config = self.configs[name]
            self.copy_identity(config.data_dir, config.broker_id, self.disk_name(name))

    def _put_disk(self, name: str, disk: SimDisk) -> None:
        for process in self._processes_with(self.disk_name(name)):
            self.end_process(process, "its disk is away")
        self.disks[self.disk_name(name)] = disk

    def _processes_with(self, disk_name: str) -> list[ActorProcess]:
        return [
            process
            for process in [*self._zombies, *self.processes.values()]
            if isinstance(process, ActorProcess) and process.disk_name == disk_name
        ]

    # --- peace --------------------------------------------------------------------------------

    def heal(self) -> None:
        """No faults from now on: network, nodes, disks, clocks, pauses, gates; zombies are killed.

        All clocks agree on the latest time that any of them has told: else what began on a clock
        that was ahead would have to wait for that time before it times out.
        """
        self.network.heal()
        self.tell_truth()
        self.clock_offsets_ms.clear()
        self.clock_base_ms += self._clock_lead_ms
        self._clock_lead_ms = 0
        self.slowness.clear()
        self._disk_stops.clear()
        self._kill_at_event = None
        self.kill_zombies()
        for name in list(self.away_disks):
            self.move_back(name)
        for number in self.node_numbers():
            self.start_node(number)
            self.cont_node(number)
        for disk in self.disks.values():
            # That of a dead actor too: its next life has what the disk is like.
            _mend(disk)
        for process in list(self.processes.values()):
            self.resume(process.name)
            if isinstance(process, ActorProcess):
                _mend(process.disk)
                process.pace.slowness = 1.0
                self.release_disk(process.name)

    def quiesce(self, *, limit_s: float = 300.0) -> None:
        """Heal, and run until every actor serves and no transaction is open or undecided.

        Every replica then has all that its leader has.

        Have the clients stop first: what they leave open is aborted when its time is over. An
        operator does what a fault calls for (``Media.attend``); all else has to serve by itself
        within ``SERVING_LIMIT_S``.
        """
        self.heal()
        self.tell("world", "* quiesce")
        self.run(self.until(self.is_serving), limit_s=SERVING_LIMIT_S)
        self.run(self.until(self._is_at_peace), limit_s=limit_s)

    def run_until(
        self, is_reached: Callable[[], object], *, limit_s: float = 120.0, look_s: float = 1.0
    ) -> None:
        """Let the world go on until that is so, and do nothing else."""
        end_s = self.now_s + limit_s
        while not is_reached():
            if self.now_s >= end_s:
                raise self._failed(f"it did not come to what is waited for within {limit_s} s")
            self.run_for(look_s)

    def _is_at_peace(self) -> bool:
        return self.is_serving() and self.is_quiet() and self.is_copied()

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Until that is so, while an operator does what is called for; for ``run``."""
        while not is_reached():
            self.media.attend()
            await asyncio.sleep(0.1)

    def is_quiet(self) -> bool:
        """Whether nothing is unstable in any partition and no transaction is open or undecided."""
        for name, server in self.servers().items():
            if not self.leads(server.replica):
                continue
            machine = server.replica.machine
            if machine.last_stable_offset != machine.log_end_offset:
                return False
            if name.startswith("transaction:") and not _is_at_rest(server.shell.machine):
                return False
        return True


def _mend(disk: SimDisk) -> None:
    """The disk has room and refuses nothing from now on."""
    disk.heal()
    disk.stop_after(0)
    disk.capacity_bytes = disk.descriptor_limit = None


def stop_disk(disk: SimDisk, number: int, part: float | None) -> None:
    """Let the disk die at an operation counted from now."""
    at = disk.operation_count + number
    if part is None:
        disk.stop_after(at)
    else:
        disk.stop_within(at, part)


def _is_at_rest(machine: Any) -> bool:
    return not machine.ids.not_at_rest()
