"""Kills processes while the job runs; one seed determines which ones and when.

Every fault is a ``kill -9`` by process id, of a process that is serving at that moment. With
several brokers the node of one is killed once too, and comes back.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import ray

from oncelog.api.client import Cluster
from oncelog.examples.flights.brokers import Brokers

KILLS_PER_ROLE: Final = 3
NODE: Final = "node"
NODE_MOMENT: Final = 0.5
FIRST_MOMENT: Final = 0.04
LAST_MOMENT: Final = 0.92
HEALTH_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.02
JITTER_MAX_S: Final = 0.3
"""A random delay before each kill, so that it can hit any step of a transaction."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A planned kill: the share of the work done when it is due, the role and the victim."""

    moment: float
    role: str
    victim: int


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill that has happened."""

    role: str
    name: str
    process_id: int


def plan_faults(seed: int, *, workers: int, partitions: int) -> list[Fault]:
    """Choose the faults: each role three times, in random order, at random moments."""
    chance = random.Random(seed)
    roles = ["worker", "partition leader", "transaction coordinator"] * KILLS_PER_ROLE
    chance.shuffle(roles)
    moments = sorted(chance.uniform(FIRST_MOMENT, LAST_MOMENT) for _ in roles)
    choices = {
        "worker": workers,
        "partition leader": partitions,
        "transaction coordinator": workers,
    }
    return [
        Fault(moment, role, chance.randrange(choices[role]))
        for moment, role in zip(moments, roles, strict=True)
    ]


def with_node_fault(faults: list[Fault], broker: int) -> list[Fault]:
    """The same faults, plus a broker's node in the middle of the work."""
    return sorted([*faults, Fault(NODE_MOMENT, NODE, broker)], key=lambda fault: fault.moment)


class FaultInjector:
    """Carries out planned faults in its own thread, following the job's progress."""

    def __init__(
        self,
        cluster: Cluster,
        job: Any,
        faults: list[Fault],
        *,
        progress: Callable[[], float],
        on_kill: Callable[[Kill], None],
        seed: int,
        brokers: Brokers | None = None,
    ) -> None:
        self.kills: list[Kill] = []
        self._cluster = cluster
        self._job = job
        self._faults = faults
        self._progress = progress
        self._on_kill = on_kill
        self._brokers = brokers
        self._chance = random.Random(seed + 1)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)

    def start(self) -> None:
        """Start to follow the job's progress."""
        self._thread.start()

    def stop(self) -> None:
        """Carry out no more faults, and wait for one in progress."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        for fault in self._faults:
            while self._progress() < fault.moment:
                if self._is_over.wait(POLL_S):
                    return
            if self._is_over.wait(self._chance.uniform(0.0, JITTER_MAX_S)):
                return
            self._kill(fault)

    def _kill(self, fault: Fault) -> None:
        if fault.role == NODE:
            self._kill_node(fault.victim)
            return
        name, handle = self._victim(fault)
        process_id = self._serving_process(handle)
        if process_id is None:
            return
        os.kill(process_id, signal.SIGKILL)
        self._killed(Kill(fault.role, name, process_id))

    def _kill_node(self, broker: int) -> None:
        if self._brokers is None:
            raise ValueError("one node is all there is")
        process_id = self._brokers.kill(broker)
        self._killed(Kill(NODE, f"of broker {broker}", process_id))
        self._brokers.bring_back(broker)

    def _killed(self, kill: Kill) -> None:
        self.kills.append(kill)
        self._on_kill(kill)

    def _victim(self, fault: Fault) -> tuple[str, Any]:
        if fault.role == "worker":
            return str(fault.victim), self._job.worker(fault.victim)
        if fault.role == "partition leader":
            return f"delays-{fault.victim}", self._cluster.partition("delays", fault.victim)
        transactional_id = f"{self._job.group_id}-{fault.victim}"
        return (
            f"of {transactional_id}",
            self._cluster.transaction_coordinator(transactional_id),
        )

    def _serving_process(self, handle: Any) -> int | None:
        """Wait until the victim serves, so that a kill interrupts work; return its process id."""
        while not self._is_over.is_set():
            try:
                health = ray.get(handle.health.remote(), timeout=HEALTH_TIMEOUT_S)
            except ray.exceptions.RayError:
                time.sleep(POLL_S)  # It is still restarting after an earlier kill.
                continue
            if health.is_serving:
                return int(health.process_id)
            time.sleep(POLL_S)
        return None
