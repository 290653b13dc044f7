"""Where the controller of a simulated world runs, and what Ray knows of the actor of its name.

It has the disk of its node's broker, as both have one data directory. When its node dies, a voter
starts it on its own, as in production (``launch/metadata_voter.py``).
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, NoReturn

from crash_disk import Crash
from sim_process import ActorProcess, Process

from oncelog.actors.interfaces import CONTROLLER_ACTOR, broker_actor
from oncelog.actors.protocol.cluster.quorum import VOTERS_MAX
from oncelog.actors.protocol.messages.cluster import VoterMetadata

if TYPE_CHECKING:
    from sim_world import World


class Controllers:
    """The part of ``World`` that moves the controller; mixed into it, never on its own."""

    controller_node: int
    """Where it is, or was last."""

    is_misled: bool
    """Whether what Ray says of the controller's place is wrong at times, or missing."""

    head_node: int
    """Where Ray's head is: while that is dead no actor starts. ``ELSEWHERE`` never dies."""

    def disk_name(self, name: str) -> str:
        """By which name the disk of an actor is kept."""
        return broker_actor(self.controller_node) if name == CONTROLLER_ACTOR else name

    def is_controller_gone(self) -> bool:
        """Whether nobody has the name, or who has it waits for a node that is dead."""
        config = self.configs.get(CONTROLLER_ACTOR)
        return config is None or config.broker_id in self.dead_nodes

    def start_controller(self, number: int) -> None:
        """Ray starts it on another node."""
        self.configs.pop(CONTROLLER_ACTOR, None)
        self.start_actor(CONTROLLER_ACTOR, self._controller_config(number))

    def forget_controller(self) -> ActorProcess | None:
        """Ray takes the controller for dead, and its name is free: it lives on as a zombie.

        Until ``heal`` or ``kill_zombies``. ``None`` if it is dead, or if nobody could follow it.
        """
        process = self.actor(CONTROLLER_ACTOR)
        if process is None or len(self.voters()) < VOTERS_MAX:
            return None
        self.count("forget_controller")
        self.tell(CONTROLLER_ACTOR, "* becomes a zombie, and its name is free")
        self._zombies.append(process)
        del self.processes[CONTROLLER_ACTOR], self.configs[CONTROLLER_ACTOR]
        return process

    def has_three_voters(self) -> bool:
        """Whether the controller serves, and all three voters have all that is committed."""
        voters = self.voters()
        return len(voters) == VOTERS_MAX and not any(one.is_behind for one in voters)

    def voters(self) -> tuple[VoterMetadata, ...]:
        """The voters of the metadata log, as a controller that serves knows them; else nobody."""
        controller = self.server(CONTROLLER_ACTOR)
        if controller is None or not controller.shell.runtime.is_loaded:
            return ()
        described: tuple[VoterMetadata, ...] = controller.shell.voters.described()
        return described

    def mislead(self) -> None:
        """Ray answers wrongly or not at all where the controller is, until ``tell_truth``."""
        if not self.is_misled:
            self.count("mislead")
            self.tell("world", "* Ray does not know where the controller is")
            self.is_misled = True

    def tell_truth(self) -> None:
        """Ray knows it again."""
        self.is_misled = False

    def resign(self, process: Process) -> NoReturn:
        """A controller ends its own actor for good."""
        if self.processes.get(CONTROLLER_ACTOR) is process:
            self.end_actor(CONTROLLER_ACTOR)
        else:
            self.end_process(process, "resigns")
        raise Crash(f"{process.name} resigned")


class SimPlace:
    """``ControllerPlace`` of one broker."""

    def __init__(self, world: World, broker_id: int) -> None:
        self._world = world
        self._broker_id = broker_id
        # Of its own: what Ray takes to answer changes nothing else that a seed stands for.
        self._random = Random(f"place {world.seed} {broker_id}")

    async def is_gone(self) -> bool:
        """See ``ControllerPlace``."""
        await self._pass_time()
        if self._world.is_misled:
            return self._random.random() < 0.5
        return self._world.is_controller_gone()

    async def is_on_head(self) -> bool:
        """See ``ControllerPlace``."""
        return self._broker_id == self._world.head_node

    async def is_here(self) -> bool | None:
        """See ``ControllerPlace``."""
        if self._world.is_misled:
            return self._random.choice((True, False, None))
        config = self._world.configs.get(CONTROLLER_ACTOR)
        return config is not None and config.broker_id == self._broker_id

    async def start(self) -> None:
        """See ``ControllerPlace``."""
        await self._pass_time()
        if self._world.is_controller_gone():
            self._world.driver.soon(self._start)

    def _start(self) -> None:
        if self._world.is_controller_gone():
            self._world.start_controller(self._broker_id)

    async def kill_process(self) -> None:
        """See ``ControllerPlace``."""
        await self._pass_time()
        if await self.is_here():
            self._world.driver.soon(self._world.kill, CONTROLLER_ACTOR)

    async def _pass_time(self) -> None:
        await self._world.until_ray_answers()
        await asyncio.sleep(self._random.uniform(*self._world.settings.launch_ms) / 1_000)
