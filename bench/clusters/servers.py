"""Clusters that a sample starts beside itself: oncelog as ``oncelog start`` does, or bare Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import oncelog
from measuring.processes import kill_family, spawn, stop, wait_for
from oncelog.api.admin.admin import Admin
from oncelog.api.cli import head
from oncelog.api.session import cluster_connection

CPUS: Final = 2
"""That Ray is told to have, on any machine."""

START_TIMEOUT_S: Final = 300.0
STOP_TIMEOUT_S: Final = 300.0
ADMIN_TIMEOUT_MS: Final = 1_500_000


class Server:
    """A process that serves, with everything below it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that all others stem from."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    def command(self) -> list[object]:
        """What to run."""
        raise NotImplementedError

    def is_up(self) -> bool:
        """Whether it serves."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it serves."""
        self._process = spawn(self.command(), self.log)
        wait_for(self.is_up, self.process, self.log, START_TIMEOUT_S)

    def stop(self) -> None:
        """Stop it as its operator would."""
        if self._process is not None:
            stop(self._process, STOP_TIMEOUT_S)

    def kill(self) -> None:
        """``kill -9`` all of it at once."""
        kill_family(self.process)


class OncelogServer(Server):
    """A Ray cluster of its own with the log."""

    def command(self) -> list[object]:
        """The process behind ``oncelog start``."""
        data = ("--data-dir", self.directory / "data")
        return [sys.executable, "-m", head.MODULE, *data, "--num-cpus", CPUS]

    def is_up(self) -> bool:
        """It announces itself when every coordinator is led."""
        found = cluster_connection.read_discovery(self.directory / "data")
        return found is not None and found.process_id == self.process.pid

    def address(self) -> str:
        """Where Ray is, to connect to."""
        found = cluster_connection.read_discovery(self.directory / "data")
        if found is None:
            raise RuntimeError("does not run")
        return found.address


def patient_admin(cluster: oncelog.Cluster) -> Admin:
    """An admin that waits for very many partitions to be led."""
    context = cluster.context
    return Admin(
        context.router, context.loop_thread, random=context.random, timeout_ms=ADMIN_TIMEOUT_MS
    )


class EmptyRay(Server):
    """A Ray cluster started as oncelog starts its own, with nothing in it."""

    def command(self) -> list[object]:
        """Start it and wait for a signal."""
        script = Path(__file__).resolve().parent / "empty_ray.py"
        return [sys.executable, script, self._mark, CPUS]

    def is_up(self) -> bool:
        """It leaves a file when it is."""
        return self._mark.exists()

    @property
    def _mark(self) -> Path:
        return self.directory / "is-up"
