"""Ray nodes of one machine, each with a disk of its own at the same path, that can die."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from oncelog.actors.process.ray_environment import SYSTEM_CONFIG

DEADLINE_S = 120.0
ON_A_DISK_OF_ITS_OWN = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


def can_unshare() -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    return False


def wait_for(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, f"{what} did not come within {DEADLINE_S} s"


class Nodes:
    """A Ray cluster of this machine whose nodes see different files under ``data``."""

    def __init__(self, root: Path, *, head_labels: str = "") -> None:
        self.root = root
        self.data = root / "data"
        self.data.mkdir(exist_ok=True)
        self.environment = {**os.environ, "RAY_AUTH_MODE": "token"}
        self.environment.pop("RAY_ADDRESS", None)
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        host = socket.gethostbyname(socket.gethostname())
        self.address = f"{host}:{port}"
        # A socket's path must be short, and pytest's directories are long.
        self.temporary = Path(tempfile.mkdtemp(prefix="oncelog-"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start(
            "head",
            "--head",
            f"--port={port}",
            f"--temp-dir={self.temporary}",
            "--include-dashboard=false",
            f"--system-config={json.dumps(SYSTEM_CONFIG)}",
            *([f"--labels={head_labels}"] if head_labels else []),
        )

    def start(self, name: str, *arguments: str) -> None:
        disk = self.root / name
        disk.mkdir(exist_ok=True)
        log = (self.root / f"{name}.log").open("wb")
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block"]
        command += ["--num-cpus=1", "--object-store-memory=100000000", *arguments]
        self.processes[name] = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", ON_A_DISK_OF_ITS_OWN, "sh", disk, self.data, *command],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )
        log_path = self.root / f"{name}.log"
        wait_for(lambda: b"Ray runtime started" in log_path.read_bytes(), f"node {name}")

    def start_node(self, name: str, node_address: str, *, labels: str = "") -> None:
        """One node more; a ``name`` that was used before comes back with its disk."""
        options = [f"--labels={labels}"] if labels else []
        address = f"--node-ip-address={node_address}"
        self.start(name, f"--address={self.address}", address, *options)

    def kill_raylet_of(self, name: str) -> None:
        """kill -9, by its number; then the rest of that node goes by itself."""
        process = self.processes.pop(name)
        (raylet,) = (pid for pid in children_of(process.pid) if is_raylet(pid))
        os.kill(raylet, signal.SIGKILL)
        process.wait(timeout=DEADLINE_S)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One oncelog command on this cluster."""
        return subprocess.run(
            [sys.executable, "-m", "oncelog.api.cli.main", *arguments, "--address", self.address],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
            env=self.environment,
        )

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(self.temporary, ignore_errors=True)


def children_of(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def is_raylet(process_id: int) -> bool:
    return Path(f"/proc/{process_id}/comm").read_text().strip() == "raylet"
