"""Kills and pauses processes of a campaign, most of them in the middle of a commit.

One seed decides what happens; the clients decide when: each announces by datagram that its commit
request is about to leave, and the nemesis strikes a process involved in that commit a few
milliseconds later. A paused process resumes after 1 to 10 s; several faults may overlap.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import queue
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from faults.client import GROUP
from faults.history import NEMESIS, HistoryWriter

LEADER: Final = "partition leader"
TRANSACTIONS: Final = "transaction coordinator"
GROUPS: Final = "group coordinator"
CONTROLLER: Final = "controller"
CLIENT: Final = "client"
EVERYTHING: Final = "every actor"
ROLES: Final = {LEADER: 6, TRANSACTIONS: 6, GROUPS: 3, CONTROLLER: 2, CLIENT: 5, EVERYTHING: 1}
"""Roles of victims, and how often each is chosen. ``EVERYTHING`` is all actors, killed at once."""

KILL_SHARE: Final = 0.6
BURST_SHARE: Final = 0.15
AIMED_SHARE: Final = 0.9
LONG_SHARE: Final = 0.4
SHORT_PAUSE_S: Final = (1.0, 3.0)
LONG_PAUSE_S: Final = (5.0, 10.0)
STRIKE_DELAY_MAX_S: Final = 0.06
NOTICE_WAIT_S: Final = 4.0
PAUSED_MAX: Final = 2
HEALTH_TIMEOUT_S: Final = 4.0
NOTICE_BYTES_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault. ``pause_s`` is 0 for a kill; ``delay_s`` follows the commit's notice.

    One that is ``at_once`` follows the fault before it without waiting for anything.
    """

    role: str
    pause_s: float
    delay_s: float
    is_aimed: bool
    at_once: bool


def plan_faults(seed: int, count: int) -> list[Fault]:
    """Choose ``count`` faults; the same seed gives the same ones."""
    chance = random.Random(seed)
    faults = []
    for _ in range(count):
        role = chance.choices(list(ROLES), list(ROLES.values()))[0]
        is_kill = chance.random() < KILL_SHARE or role == EVERYTHING
        span = LONG_PAUSE_S if chance.random() < LONG_SHARE else SHORT_PAUSE_S
        pause_s = 0.0 if is_kill else chance.uniform(*span)
        delay_s = chance.uniform(0.0, STRIKE_DELAY_MAX_S)
        at_once = chance.random() < BURST_SHARE
        is_aimed = not at_once and chance.random() < AIMED_SHARE
        faults.append(Fault(role, pause_s, delay_s, is_aimed, at_once))
    return faults


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that may be struck, and what a client needs it for."""

    name: str
    process_id: int
    serves: tuple[str, ...]


class Actors:
    """The actors of the log by role, and the processes that they are just now."""

    def __init__(self, cluster: Any, keys: list[str], transactional_ids: list[str]) -> None:
        self._handles: dict[str, dict[str, Any]] = {
            LEADER: {},
            TRANSACTIONS: {},
            GROUPS: {},
            CONTROLLER: {"controller": cluster.controller},
        }
        self._serves: dict[str, list[str]] = {"controller": [CONTROLLER]}
        for key in keys:
            topic, _, number = key.rpartition("-")
            self._add(LEADER, f"leader of {key}", cluster.partition(topic, int(number)), key)
        for name in transactional_ids:
            handle = cluster.transaction_coordinator(name)
            self._add(TRANSACTIONS, _coordinator_name(handle), handle, name)
        handle = cluster.group_coordinator(GROUP)
        self._add(GROUPS, _coordinator_name(handle), handle, GROUP)

    def _add(self, role: str, name: str, handle: Any, serves: str) -> None:
        self._handles[role][name] = handle
        self._serves.setdefault(name, []).append(serves)

    def serving(self, role: str) -> list[Victim]:
        """The processes of a role, or of every one, that serve now."""
        roles = list(self._handles) if role == EVERYTHING else [role]
        asked = {
            name: handle.health.remote()
            for one in roles
            for name, handle in self._handles[one].items()
        }
        done, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=HEALTH_TIMEOUT_S)
        found = []
        for name, reference in asked.items():
            if reference not in done:
                continue
            with contextlib.suppress(ray.exceptions.RayError):  # Not back from the last kill.
                health = ray.get(reference)
                if health.is_serving:
                    found.append(Victim(name, health.process_id, tuple(self._serves[name])))
        return found


def _coordinator_name(handle: Any) -> str:
    return f"coordinator {handle._actor_id.hex()[:8]}"


class Nemesis:
    """Carries out planned faults. ``clients`` tells the process of each client of this moment."""

    def __init__(
        self,
        directory: Path,
        actors: Actors,
        clients: Callable[[], dict[str, int]],
        *,
        faults: list[Fault],
        seed: int,
    ) -> None:
        self.done = 0
        self.aimed = 0
        self._faults = faults
        self._actors = actors
        self._clients = clients
        self._chance = random.Random(seed + 1)
        self._writer = HistoryWriter(directory, NEMESIS)
        self._paused: list[tuple[float, int, int, str]] = []
        self._answers: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._notices = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._notices.bind(("127.0.0.1", 0))

    @property
    def port(self) -> int:
        """Where clients send their notices."""
        return int(self._notices.getsockname()[1])

    def run(self, until: Callable[[], bool], span_s: float) -> None:
        """Carry the faults out, spread over ``span_s`` seconds; in the end all processes run."""
        begin = time.monotonic()
        try:
            for number, fault in enumerate(self._faults):
                due = begin + span_s * number / len(self._faults)
                while not until() and self._must_wait(fault, due):
                    self._rest(0.1)
                while not until() and not self._carry_out(number, fault):
                    self._rest(0.5)
                if until():
                    break
            while self._paused and not until():
                self._rest(0.1)
        finally:
            self.heal()

    def _must_wait(self, fault: Fault, due: float) -> bool:
        if fault.pause_s and len(self._paused) >= PAUSED_MAX:
            return True
        return not fault.at_once and time.monotonic() < due

    def heal(self) -> None:
        """Let every paused process go on."""
        for _, number, process_id, name in self._paused:
            self._resume(number, process_id, name)
        self._paused = []

    def _rest(self, seconds: float) -> None:
        time.sleep(seconds)
        while self._paused and self._paused[0][0] <= time.monotonic():
            _, number, process_id, name = heapq.heappop(self._paused)
            self._resume(number, process_id, name)
        while not self._answers.empty():
            number, time_ns = self._answers.get()
            self._writer.note("answered", fault=number, time=time_ns)

    def _resume(self, number: int, process_id: int, name: str) -> None:
        # A process that was killed while it was paused has nothing left to go on with.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGCONT)
        self._writer.note("resume", fault=number, target=name)

    def _probe(self, number: int, former_process_id: int) -> None:
        """Find out in the background when the controller serves again: no client needs it."""

        def ask() -> None:
            victim = None
            while victim is None or victim.process_id == former_process_id:
                victim = next(iter(self._actors.serving(CONTROLLER)), None)
            self._answers.put((number, time.monotonic_ns()))

        threading.Thread(target=ask, daemon=True).start()

    # --- striking -----------------------------------------------------------------------------

    def _carry_out(self, number: int, fault: Fault) -> bool:
        """Strike once; ``False`` if nobody of the role serves now."""
        victims = self._victims(fault.role)
        self._rest(0.0)
        if not victims:
            return False
        victim = self._aim(victims) if fault.is_aimed else None
        is_aimed = victim is not None
        if is_aimed:
            time.sleep(fault.delay_s)
        struck = victims if fault.role == EVERYTHING else [victim or self._chance.choice(victims)]
        struck = [one for one in struck if _is_ours(one.process_id)]
        if not struck:
            return False
        self._writer.note(
            "pause" if fault.pause_s else "kill",
            fault=number,
            role=fault.role,
            target=", ".join(one.name for one in struck),
            serves=sorted({name for one in struck for name in one.serves}),
            process_ids=[one.process_id for one in struck],
            pause_ms=round(fault.pause_s * 1_000),
            aimed=is_aimed,
        )
        for one in struck:
            self._strike(number, fault, one)
        self.done += 1
        self.aimed += is_aimed
        return True

    def _strike(self, number: int, fault: Fault, victim: Victim) -> None:
        try:
            os.kill(victim.process_id, signal.SIGSTOP if fault.pause_s else signal.SIGKILL)
        except ProcessLookupError:
            self._writer.note("missed", fault=number)
            return
        if fault.role == CONTROLLER:
            self._probe(number, 0 if fault.pause_s else victim.process_id)
        if fault.pause_s:
            until = time.monotonic() + fault.pause_s
            heapq.heappush(self._paused, (until, number, victim.process_id, victim.name))

    def _victims(self, role: str) -> list[Victim]:
        paused = {process_id for _, _, process_id, _ in self._paused}
        if role == CLIENT:
            found = [Victim(name, pid, (name,)) for name, pid in self._clients().items()]
        else:
            found = self._actors.serving(role)
        return [victim for victim in found if victim.process_id not in paused]

    def _aim(self, victims: list[Victim]) -> Victim | None:
        """Wait for a commit that one of the victims is part of; ``None`` if there is none."""
        self._drop_notices()
        deadline = time.monotonic() + NOTICE_WAIT_S
        while time.monotonic() < deadline:
            self._rest(0.0)
            self._notices.settimeout(0.2)
            try:
                notice = json.loads(self._notices.recv(NOTICE_BYTES_MAX))
            except TimeoutError:
                continue
            concerned = {notice["name"], notice["txn_id"], notice["group"], *notice["keys"]}
            concerned.add(CONTROLLER)
            chosen = [victim for victim in victims if concerned & set(victim.serves)]
            if chosen:
                return self._chance.choice(chosen)
        return None

    def _drop_notices(self) -> None:
        """Forget the notices of commits that are over."""
        self._notices.settimeout(0.0)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._notices.recv(NOTICE_BYTES_MAX)


def _is_ours(process_id: int) -> bool:
    """Whether the process still is an actor or a client, and not another of the same number."""
    try:
        command = Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return False
    return command.startswith(b"ray::") or b"faults.clients" in command
