"""The client processes of a campaign: started, replaced when they were killed, asked to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from faults.facts import Anomaly

OWN_KINDS: Final = {
    "t0": "transactor",
    "t1": "transactor",
    "t2": "transactor",
    "hijacker": "hijacker",
    "sender": "sender",
    "c0": "copier",
    "c1": "copier",
    "reader": "reader",
    "uncommitted": "reader",
}
"""The name and the kind of each client, where all are our own."""

WRITERS: Final = ("transactor", "hijacker", "sender", "kafka-transactor", "kafka-sender")
"""The kinds that stop first, so that what follows them can catch up."""


def kafka_kinds(*, has_transactions: bool) -> dict[str, str]:
    """The same with clients of Kafka among them. They have transactions if the cluster takes them;
    those of our own, which share topics and groups' positions with them, always have.
    """
    return {
        "t0": "transactor",
        "t1": "kafka-transactor" if has_transactions else "transactor",
        "hijacker": "hijacker",
        "s0": "kafka-sender",
        "s1": "kafka-sender",
        "c0": "copier",
        "c1": "copier",
        "m0": "kafka-member",
        "m1": "kafka-member",
        "reader": "kafka-reader",
        "uncommitted": "kafka-reader",
    }


STATIC: Final = ("c0", "m0")
"""The clients that are static members of their group."""

LOG_LINES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What all clients are told. The counts are those of the two topics' partitions."""

    directory: Path
    address: str
    seed: int
    partitions: int
    copies: int
    kinds: Mapping[str, str] = field(default_factory=lambda: OWN_KINDS)
    """The name and the kind of each client."""
    bootstrap: str = ""
    """Where clients of Kafka connect to, if there are any."""

    @property
    def of_kafka(self) -> list[str]:
        """The names of clients of Kafka."""
        return [name for name, kind in self.kinds.items() if kind.startswith("kafka-")]


@dataclass(slots=True)
class Crew:
    """Every client by name. A client that ends before it was asked to is a finding."""

    plan: Plan
    crashes: list[Anomaly] = field(default_factory=list)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)
    _port: int = 0

    @property
    def writer_ids(self) -> list[str]:
        """Transactional ids of the clients that stop first."""
        return [f"id-{name}" for name, kind in self._kinds.items() if "transactor" in kind]

    @property
    def transactional_ids(self) -> list[str]:
        """Every transactional id in use."""
        copiers = [f"id-{name}" for name, kind in self._kinds.items() if kind == "copier"]
        return self.writer_ids + copiers

    def start(self, port: int) -> None:
        """Start every client; notices of commits go to ``port``."""
        self._port = port
        for name in self._kinds:
            self._launch(name)

    def process_ids(self) -> dict[str, int]:
        """The processes of the clients that write, of this moment."""
        return {
            name: process.pid
            for name, process in list(self._processes.items())
            if process.poll() is None and "reader" not in self._kinds[name]
        }

    def tend(self) -> None:
        """Replace clients that were killed, and note those that failed."""
        for name, process in list(self._processes.items()):
            code = process.poll()
            if code is None or name in self._ended:
                continue
            if code == 0 and self._until(name).exists():
                self._ended.add(name)
                continue
            if code != -signal.SIGKILL:
                self.crashes.append(Anomaly("client-crash", f"{name}: {code}: {self._tail(name)}"))
            self._launch(name)

    def stop(self, who: str) -> None:
        """Ask the ``writers``, or ``all``, to end."""
        for name in self._names(who):
            self._until(name).touch()

    def alive_text(self, who: str) -> Callable[[], str]:
        """Names those that were asked to end and have not."""
        names = self._names(who)
        return lambda: ", ".join(name for name in names if name not in self._ended)

    def kill(self) -> None:
        """End every client that still runs."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    @property
    def _kinds(self) -> Mapping[str, str]:
        return self.plan.kinds

    def _names(self, who: str) -> list[str]:
        return [n for n, kind in self._kinds.items() if who == "all" or kind in WRITERS]

    def _until(self, name: str) -> Path:
        is_writer = self._kinds[name] in WRITERS
        return self.plan.directory / ("stop-writers" if is_writer else "stop-all")

    def _log(self, name: str) -> Path:
        return self.plan.directory / f"{name}.log"

    def _tail(self, name: str) -> str:
        lines = self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-LOG_LINES_SHOWN:])

    def _launch(self, name: str) -> None:
        plan = self.plan
        victims = ",".join(n for n, kind in self._kinds.items() if kind == "transactor")
        options = {
            "kind": self._kinds[name],
            "name": name,
            "address": plan.address,
            "bootstrap": plan.bootstrap,
            "history": plan.directory,
            "seed": plan.seed,
            "until": self._until(name),
            "notices": self._port,
            "partitions": plan.partitions,
            "copies": plan.copies,
            "victims": victims,
            "isolation": "read_uncommitted" if name == "uncommitted" else "read_committed",
        }
        command = [sys.executable, "-m", "faults.clients"]
        command += [word for key, value in options.items() for word in (f"--{key}", str(value))]
        if name in STATIC:
            command.append("--static")
        with self._log(name).open("ab") as log:
            log.write(f"--- started at {time.monotonic_ns()}\n".encode())
            log.flush()
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )


def _environment() -> dict[str, str]:
    """Ours, and the place of these modules."""
    places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(place for place in places if place)}
