"""What goes wrong in a simulated world, and how often: drawn per seed, often not at all."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from sim_disk import SimDisk
from sim_history import REMADE_PREFIX
from sim_liveness import LASTING_FAULTS
from sim_network import Exchange, NetworkFaults
from sim_process import Client
from sim_stage import Stage
from sim_world import World

from oncelog.storage.errors import ErrorCode

CLOCK_JUMP_MAX_MS = 3_600_000
DISK_OPERATIONS_AHEAD_MAX = 40
EVENTS_AHEAD_MAX = 2_000
TURNING_POINTS = (
    "write_txn_markers",
    "end_txn",
    "add_partitions_to_txn",
    "init_producer_id",
    "txn_offset_commit",
    "produce",
)
"""Calls around which a death is worst."""

GROUP_ROLES = ("copier-", "processor-")
"""How the names of clients begin that are members of one group."""
REFUSED_CALLS = ("append", "write_at", "create", "truncate", "datasync", "sync_directory", "open")
REFUSED_FILES = ("", "", ".log", ".txnindex", ".txnindex", ".index", "checkpoint")
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
REFUSALS_OF_A_DIRECTORY = (*REFUSALS, errno.EMFILE)
"""Errors that pass by themselves; ``storage.disk.disk_errors`` says what each leads to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Faults that strike by themselves, in times per virtual second, and those of each call.

    The kinds from ``delay`` on are probabilities per call; ``delay_max_ms`` bounds the delay.
    """

    kill: float = 0.0
    kill_client: float = 0.0
    kill_at_event: float = 0.0
    kill_at_message: float = 0.0
    crash_at_disk: float = 0.0
    power_loss: float = 0.0
    power_loss_at_disk: float = 0.0
    pause: float = 0.0
    pause_client: float = 0.0
    replace: float = 0.0
    clock_jump: float = 0.0
    slow_disk: float = 0.0
    disk_error: float = 0.0
    disk_full: float = 0.0
    file_damage: float = 0.0
    isolate: float = 0.0
    move: float = 0.0
    delay: float = 0.0
    delay_max_ms: float = 10_000.0
    duplicate: float = 0.0
    drop_request: float = 0.0
    drop_reply: float = 0.0
    break_off: float = 0.0
    peace: float = 0.25
    """Share of the time in which nothing strikes, so that recovery is tried as well."""

    disk_refusal: float = field(default=0.0, repr=False)
    """Not shown, so that what is drawn by the rest of the plan stays what it was."""

    kill_group: float = field(default=0.0, repr=False)
    kill_node: float = field(default=0.0, repr=False)
    cut_node: float = field(default=0.0, repr=False)
    stop_node: float = field(default=0.0, repr=False)
    """The last three only where there are several nodes."""

    lose_node: float = field(default=0.0, repr=False)
    """Only where there are several replicas."""

    forget_controller: float = field(default=0.0, repr=False)
    mislead: float = field(default=0.0, repr=False)
    """These two only where there are several nodes."""

    lasts: str = field(default="", repr=False)
    """What of one node stays broken when all else is healed, of ``LASTING_FAULTS``; only where
    there are several replicas."""


RATES = {
    "kill": 0.5,
    "kill_client": 0.3,
    "kill_at_event": 0.4,
    "crash_at_disk": 0.5,
    "power_loss": 0.1,
    "power_loss_at_disk": 0.4,
    "pause": 0.3,
    "pause_client": 0.2,
    "replace": 0.15,
    "clock_jump": 0.1,
    "slow_disk": 0.1,
    "disk_error": 0.1,
    "disk_full": 0.1,
    "isolate": 0.1,
    "delay": 0.05,
    "duplicate": 0.05,
    "drop_request": 0.03,
    "drop_reply": 0.05,
    "break_off": 0.03,
}
"""The highest rate of each kind, per second or per call."""

FREQUENT = ("kill", "crash_at_disk", "pause", "delay", "duplicate", "drop_request", "drop_reply")
"""Kinds that strike within a few seconds when they are on."""

FREQUENT_MIN = 4
"""So many of them are on in every run."""


def drawn_faults(random: Random) -> FaultPlan:
    """A plan: each kind is on with its own chance, and then more or less often.

    Of a few kinds that are often there some are on in any case: a run of little says little.
    """
    share = random.choice((0.2, 0.5, 0.8))
    rates = {
        kind: round(rate * random.uniform(0.1, 1.0), 4) if random.random() < share else 0.0
        for kind, rate in RATES.items()
    }
    for kind in Random(repr(rates)).sample(FREQUENT, FREQUENT_MIN):
        rates[kind] = rates[kind] or RATES[kind] / 4
    plan = FaultPlan(delay_max_ms=random.choice((200.0, 5_000.0, 60_000.0)), **rates)
    # Of its own, so that the seeds kept for regressions draw the rest as they did.
    return replace(
        plan,
        kill_at_message=Random(repr(plan)).choice((0.0, 0.0, 0.3)),
        move=Random(f"move {plan}").choice((0.0, 0.0, 0.1)),
        file_damage=Random(f"damage {plan}").choice((0.0, 0.1, 0.3)),
        disk_refusal=Random(f"refusal {plan}").choice((0.0, 0.1, 0.5)),
        kill_group=Random(f"group {plan}").choice((0.0, 0.0, 0.2)),
        kill_node=Random(f"kill node {plan}").choice((0.0, 0.1, 0.3)),
        cut_node=Random(f"cut node {plan}").choice((0.0, 0.1, 0.3)),
        stop_node=Random(f"stop node {plan}").choice((0.0, 0.1, 0.2)),
        lose_node=Random(f"lose node {plan}").choice((0.0, 0.1, 0.2)),
        forget_controller=Random(f"forget {plan}").choice((0.0, 0.1)),
        mislead=Random(f"mislead {plan}").choice((0.0, 0.1, 0.3)),
        lasts=Random(f"lasts {plan}").choice(("", *LASTING_FAULTS)),
    )


class Nemesis:
    """Carries a plan out. ``heal`` of the world ends what lasts when the stage is over."""

    def __init__(self, stage: Stage, plan: FaultPlan, random: Random) -> None:
        self._stage = stage
        self._world = stage.world
        self._plan = plan
        self._random = random
        self._strikes: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "kill_client": self._kill_client,
            "kill_group": self._kill_group,
            "kill_at_event": self._kill_at_event,
            "kill_at_message": self._kill_at_message,
            "crash_at_disk": self._crash_at_disk,
            "power_loss": self._power_loss,
            "power_loss_at_disk": self._power_loss_at_disk,
            "pause": self._pause,
            "pause_client": self._pause_client,
            "replace": self._replace,
            "clock_jump": self._clock_jump,
            "slow_disk": self._slow_disk,
            "disk_error": self._disk_error,
            "disk_full": self._disk_full,
            "disk_refusal": self._disk_refusal,
            "isolate": self._isolate,
            "move": self._move,
            "file_damage": self._file_damage,
        }
        if len(self._world.node_numbers()) > 1:
            self._strikes |= {
                "kill_node": self._kill_node,
                "cut_node": self._cut_node,
                "stop_node": self._stop_node,
                "forget_controller": self._forget_controller,
                "mislead": self._mislead,
            }
        if self._world.settings.replication_factor > 1:
            self._strikes["lose_node"] = self._lose_node

    async def rage(self) -> None:
        """Strike until the stage is over; to be run as the driver."""
        rates = {kind: getattr(self._plan, kind) for kind in self._strikes}
        total = sum(rates.values())
        began_s = self._world.now_s
        while not self._stage.is_over:
            is_peace = self._random.random() < self._plan.peace and self._world.now_s > began_s
            self._set_network(is_peace=is_peace)
            period_end_s = self._world.now_s + self._random.uniform(1.0, 8.0)
            while self._world.now_s < period_end_s and not self._stage.is_over:
                left_s = period_end_s - self._world.now_s
                if is_peace or not total:
                    await asyncio.sleep(left_s)
                    break
                await asyncio.sleep(min(self._random.expovariate(total), left_s))
                if self._world.now_s < period_end_s and not self._stage.is_over:
                    kinds = list(rates)
                    (kind,) = self._random.choices(kinds, [rates[name] for name in kinds])
                    self._strikes[kind]()

    def _set_network(self, *, is_peace: bool) -> None:
        plan = self._plan
        faults = NetworkFaults()
        if not is_peace:
            faults = NetworkFaults(
                delay=plan.delay,
                delay_ms=(1.0, plan.delay_max_ms),
                duplicate=plan.duplicate,
                drop_request=plan.drop_request,
                drop_reply=plan.drop_reply,
                break_off=plan.break_off,
            )
        self._world.network.faults = faults

    # --- strikes ------------------------------------------------------------------------------

    def _actor(self) -> str:
        """One that has a disk: the node of one that is new may be down."""
        return self._random.choice(sorted(self._world.lived_actors()))

    def _client(self) -> str | None:
        clients = [
            process.name
            for process in self._world.processes.values()
            if isinstance(process, Client)
        ]
        return self._random.choice(sorted(clients)) if clients else None

    def _kill(self) -> None:
        count = self._random.choice((1, 1, 1, 2, len(self._world.actor_names())))
        for name in self._random.sample(sorted(self._world.actor_names()), count):
            self._world.kill(name)

    def _kill_client(self) -> None:
        name = self._client()
        if name is not None:
            self._world.kill(name)

    def _kill_group(self) -> None:
        """All members of a group die at once, and so they come back together, in one rebalance.

        Mostly their coordinator dies too, as it has told them who they are.
        """
        clients = sorted(self._world.processes)
        groups = [[name for name in clients if name.startswith(role)] for role in GROUP_ROLES]
        if not any(groups):
            return
        for name in self._random.choice([members for members in groups if members]):
            self._world.kill(name)
        if self._random.random() < 0.7:
            self._kill_at(_tells_member, is_caller=False)

    def _kill_at_event(self) -> None:
        name = self._client() if self._random.random() < 0.3 else self._actor()
        if name is not None:
            self._world.kill_at_event(name, self._random.randint(1, EVENTS_AHEAD_MAX))

    def _kill_at_message(self) -> None:
        """Who sent the next message of some kind dies as it arrives, or who is to get it."""
        method = self._random.choice(TURNING_POINTS)
        is_reply, is_sender = self._random.random() < 0.5, self._random.random() < 0.5

        def fits(exchange: Exchange, _: object, is_reply_now: bool) -> bool:
            return exchange.method == method and is_reply_now is is_reply

        self._kill_at(fits, is_caller=is_sender is not is_reply)

    def _kill_at(self, fits: Callable[[Exchange, Any, bool], bool], *, is_caller: bool) -> None:
        """Kill the caller or the callee as the first message arrives that ``fits``."""
        watchers = self._world.network.watchers

        def watch(exchange: Exchange, message: object, is_reply: bool) -> None:
            if self._stage.is_over:
                watchers.remove(watch)
            elif fits(exchange, message, is_reply):
                watchers.remove(watch)
                self._world.kill(exchange.caller.name if is_caller else exchange.callee)

        watchers.append(watch)

    def _crash_at_disk(self) -> None:
        part = self._random.choice((None, self._random.random()))
        number = self._random.randint(1, DISK_OPERATIONS_AHEAD_MAX)
        self._world.crash_at_disk_operation(self._actor(), number, part)

    def _power_loss(self) -> None:
        names = sorted(self._world.actor_names())
        if self._random.random() < 0.5:
            names = self._random.sample(names, self._random.randint(1, len(names)))
        self._world.power_loss(names)

    def _power_loss_at_disk(self) -> None:
        """Power fails right at an operation: what is written and not synced then is in danger."""
        world, name = self._world, self._actor()
        process = world.actor(name)
        if process is None or process.disk.on_death is None:
            return
        dies = process.disk.on_death

        def lose_power(operation: str) -> None:
            dies(operation)
            world.power_loss([name])

        process.disk.on_death = lose_power
        number = self._random.randint(1, DISK_OPERATIONS_AHEAD_MAX)
        # Mostly before the operation has any effect: a sync that never was.
        part = self._random.choice((0.0, 0.0, self._random.random(), None))
        world.crash_at_disk_operation(name, number, part)

    def _pause(self) -> None:
        self._pause_for_a_while(self._actor())

    def _pause_client(self) -> None:
        name = self._client()
        if name is not None:
            self._pause_for_a_while(name)

    def _pause_for_a_while(self, name: str) -> None:
        self._world.pause(name)
        self._later(self._random.choice((0.2, 2.0, 8.0)), lambda: self._world.resume(name))

    def _replace(self) -> None:
        """A zombie beside its successor: paused, then awake, then dead."""
        world, name = self._world, self._actor()
        zombie = world.actor(name)
        if zombie is None or zombie.is_paused:
            return
        if self._random.random() < 0.5:
            world.pause(name)
            self._later(4.0, lambda: world.resume(name))
        world.replace(name)
        self._later(8.0, lambda: world.end_process(zombie, "the zombie is killed"))

    def _clock_jump(self) -> None:
        offset_ms = self._random.randint(-CLOCK_JUMP_MAX_MS, CLOCK_JUMP_MAX_MS)
        name = self._client() if self._random.random() < 0.3 else self._actor()
        if name is not None:
            self._world.jump_clock(name, self._random.choice((0, offset_ms, offset_ms // 1_000)))

    def _slow_disk(self) -> None:
        name = self._actor()
        self._world.slow_disk(name, self._random.choice((10.0, 100.0)))
        self._later(5.0, lambda: self._world.slow_disk(name, 1.0))

    def _disk_error(self) -> None:
        """One write, read or sync fails: an operator has to restart what it took offline."""
        world, name = self._world, self._actor()
        call = self._random.choice(("append", "append", "read", "datasync", "sync_directory"))
        world.disk(name).fail(call, "", errno.EIO, times=1, written=self._random.random())
        world.media.broken.add(name)
        world.count("disk_error")
        world.tell(name, f"* the next {call} fails")
        self._later(4.0, world.media.attend)

    def _disk_full(self) -> None:
        world, name = self._world, self._actor()
        disk = world.disk(name)
        used = sum(len(content) for content in disk.files().values())
        disk.capacity_bytes = used + self._random.randint(0, 2_000)
        world.count("disk_full")
        world.tell(name, f"* disk full at {disk.capacity_bytes}")
        self._later(4.0, lambda: self._make_room(name))

    def _disk_refusal(self) -> None:
        """Calls are refused for want of something, syncs too, until there is some again.

        Nobody restarts anything: what the disk refused for a while comes back by itself.
        """
        world, name, random = self._world, self._actor(), self._random
        disk = world.disk(name)
        call = random.choice(("descriptors", *REFUSED_CALLS))
        if call == "descriptors":
            disk.descriptor_limit = disk.open_handles + random.randint(0, 3)
        else:
            of_directory = call == "sync_directory"
            number = random.choice(REFUSALS_OF_A_DIRECTORY if of_directory else REFUSALS)
            suffix = random.choice(REFUSED_FILES)
            disk.fail(call, suffix, number, times=random.randint(1, 30), written=random.random())
        world.count("disk_refusal")
        world.tell(name, f"* the disk refuses: {call}")
        self._later(3.0, lambda: self._allow(disk))

    def _file_damage(self) -> None:
        """A file beside a log is lost, older or damaged while its process is down."""
        media = self._world.media
        if self._random.random() < 0.3:
            media.harm_records(self._random)
        else:
            media.harm(self._actor(), self._random)
        self._later(4.0, media.attend)

    def _isolate(self) -> None:
        """Nothing that one process sends arrives, or nothing that is sent to it."""
        name = self._actor()
        patterns = self._random.choice(((name, "*"), ("*", name)))
        self._world.network.partition(*patterns)
        self._world.count("isolate")
        self._world.tell(name, f"* isolated: {patterns}")
        self._later(5.0, self._world.network.forget_rules)

    def _move(self) -> None:
        """An actor comes back on an empty disk; some time later it has its own again.

        Not one of a topic that may be made anew meanwhile: the new one would begin on the strange
        disk, and be taken away with it.
        """
        name = self._actor()
        if REMADE_PREFIX in name:
            return
        self._world.move(name, is_of_cluster=self._random.random() < 0.5)
        self._later(3.0, lambda: self._world.move_back(name))

    # --- nodes --------------------------------------------------------------------------------

    def _node(self) -> int:
        return self._random.choice(self._world.node_numbers())

    def _kill_node(self) -> None:
        """A machine is gone, by power loss or not, and comes back after a while."""
        number = self._node()
        self._world.kill_node(number, is_power_lost=self._random.random() < 0.5)
        self._later(3.0, lambda: self._world.start_node(number))

    def _cut_node(self) -> None:
        """A node loses one neighbour, in both directions or one, or all of them."""
        world, random, number = self._world, self._random, self._node()
        if random.random() < 0.3:
            world.isolate_node(number)
        else:
            pair = [number, random.choice(world.places_beside(number))]
            random.shuffle(pair)
            world.cut(*pair, both=random.random() < 0.5)
        self._later(4.0, lambda: world.rejoin_node(number))

    def _stop_node(self) -> None:
        number = self._node()
        self._world.stop_node(number)
        delay_s = self._random.choice((0.2, 2.0, 8.0))
        self._later(delay_s, lambda: self._world.cont_node(number))

    def _lose_node(self) -> None:
        """A machine is gone and comes back without its disks, once no log counts on them."""
        world, number = self._world, self._node()
        if number in world.dead_nodes:
            return
        world.kill_node(number)
        session_ms = world.settings.cluster.broker_session_timeout_ms

        def come_back() -> None:
            is_dead = number in world.dead_nodes and number != world.controller_node
            if is_dead and world.is_spare(number):
                world.lose_node_disks(number)
            world.start_node(number)

        self._later(2 * session_ms / 1_000, come_back)

    def _forget_controller(self) -> None:
        """Ray takes a controller for dead that lives on: hung, cut off, or as before."""
        world, random = self._world, self._random
        zombie = world.forget_controller()
        if zombie is None:
            return
        how = random.choice(("hung", "cut off", "as before"))
        if how == "hung":
            world.loop.pause(zombie)
            self._later(6.0, lambda: world.loop.resume(zombie))
        elif how == "cut off":
            world.isolate_node(zombie.node)
            self._later(6.0, lambda: world.rejoin_node(zombie.node))
        world.tell(zombie.name, f"* {how}")
        self._later(12.0, lambda: world.end_process(zombie, "the zombie is killed"))

    def _mislead(self) -> None:
        """What Ray says of the controller's place is wrong, or missing, for a while."""
        self._world.mislead()
        self._later(4.0, self._world.tell_truth)

    # --- the end of what lasts ----------------------------------------------------------------

    def _make_room(self, name: str) -> None:
        disk = self._world.disk(name)
        disk.capacity_bytes = None

    def _allow(self, disk: SimDisk) -> None:
        disk.descriptor_limit = None
        disk.heal()

    def _later(self, mean_s: float, action: Callable[[], None]) -> None:
        """End a fault after a while; once the stage is over a lasting one may be in its place."""

        def act() -> None:
            if not self._stage.is_over:
                action()

        delay_s = self._random.expovariate(1 / mean_s)
        self._world.loop.call_later(delay_s, act, context=self._world.driver.context)


def _tells_member(exchange: Exchange, message: Any, is_reply: bool) -> bool:
    """A join succeeds: its member knows its id and its generation."""
    return exchange.method == "join_group" and is_reply and message.error is ErrorCode.NONE


def all_faults(world: World) -> int:
    """How many faults the world has suffered."""
    return sum(world.counts.values())
