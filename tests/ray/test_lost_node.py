"""Two plain nodes without labels, each with a disk of its own; the one that has the data dies."""

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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog.actors.process.ray_environment import SYSTEM_CONFIG

pytestmark = pytest.mark.ray

DEADLINE_S = 120.0
NODE_ADDRESS = "127.0.0.2"
RECORDS = 1_000
ON_A_DISK_OF_ITS_OWN = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'

FOUNDER = """
import sys
import ray
ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], namespace="oncelog")
import oncelog
cluster = oncelog.init(sys.argv[3])
cluster.admin().create_topic("t", partitions=2)
with cluster.producer() as producer:
    for number in range(int(sys.argv[4])):
        producer.send("t", key=b"%d" % number, value=b"%d" % number)
    producer.flush()
cluster.close()
"""


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

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self.data.mkdir()
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

    def start_node(self) -> None:
        self.start("node", f"--address={self.address}", f"--node-ip-address={NODE_ADDRESS}")

    def kill_raylet_of_node(self) -> None:
        """kill -9, by its number; then the rest of that node goes by itself."""
        process = self.processes.pop("node")
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


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    if not can_unshare():
        pytest.skip("needs the right to give a process mounts of its own")
    found = Nodes(tmp_path)
    try:
        found.start_node()
        yield found
    finally:
        found.close()


def test_a_log_whose_node_is_away_is_unavailable_and_comes_back_whole(nodes: Nodes) -> None:
    """1. A log is founded on one of two plain nodes. 2. That node dies. 3. Nothing of it starts on
    the other node, and nothing is founded there. 4. The node is back, and so is every record.
    """
    data_dir = str(nodes.data / "log")
    subprocess.run(
        [sys.executable, "-c", FOUNDER, nodes.address, NODE_ADDRESS, data_dir, str(RECORDS)],
        check=True,
        timeout=2 * DEADLINE_S,
        env=nodes.environment,
    )
    assert (nodes.root / "node" / "log" / "meta.properties").exists()
    nodes.kill_raylet_of_node()
    wait_for(lambda: "is away" in nodes.run("topics", "list").stderr, "the news of its death")
    refused = nodes.run("start", "--data-dir", data_dir)
    assert refused.returncode == 1
    assert "No node has it there now" in refused.stderr
    assert nodes.run("consume", "t", "--from-beginning", "--timeout-ms", "1000").returncode == 1
    assert list((nodes.root / "head").iterdir()) == []
    nodes.start_node()
    wait_for(lambda: nodes.run("status").returncode == 0, "the log")
    arguments = ("--from-beginning", "--max-records", str(RECORDS))
    read = nodes.run("consume", "t", *arguments)
    assert (read.returncode, read.stderr) == (0, "")
    assert sorted(map(int, read.stdout.split())) == list(range(RECORDS))
    assert list((nodes.root / "head").iterdir()) == []
