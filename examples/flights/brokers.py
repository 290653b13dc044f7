"""More brokers for the demo, on this machine: Ray nodes, each with a disk of its own.

All brokers keep their files at the same path. So each further node runs in a mount namespace where
another directory is mounted at that path.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from oncelog.api.client import Cluster
from oncelog.storage.exceptions import ConnectionFailedError

FIRST: Final = 2
"""Broker 1 is on the node that the cluster started with."""

DEADLINE_S: Final = 90.0
POLL_S: Final = 0.1
END_S: Final = 20.0
STORE_BYTES: Final = 100_000_000
OWN_MOUNTS: Final = ("unshare", "--mount")
WITH_A_DISK_OF_ITS_OWN: Final = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


def why_not() -> str:
    """Why nodes cannot have disks of their own here; "" if they can."""
    try:
        tried = subprocess.run(  # noqa: S603
            [*OWN_MOUNTS, "mount", "--bind", "/", "/"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return str(error)
    return tried.stderr.strip() if tried.returncode else ""


class Brokers:
    """Brokers 2 to ``count`` of a cluster started here; they are stopped with the block."""

    def __init__(self, cluster: Cluster, directory: Path, count: int) -> None:
        self._cluster = cluster
        self._directory = directory
        self._numbers = range(FIRST, count + 1)
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start them one by one: Ray gives up on a node that takes long to start."""
        for number in self._numbers:
            self._start(number)
            self._wait_until_alive(number)

    def __enter__(self) -> Brokers:
        """Start nothing yet; see ``start``."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop those that run."""
        self._end()

    def kill(self, number: int) -> int:
        """``kill -9`` a broker's node with all that runs there; return its process id."""
        node = self._nodes[number]
        (raylet,) = (pid for pid in _descendants(node.pid) if _name(pid) == "raylet")
        os.kill(raylet, signal.SIGKILL)
        return raylet

    def bring_back(self, number: int) -> None:
        """Start the node of a killed broker again, with the same disk."""
        self._nodes.pop(number).wait(timeout=DEADLINE_S)
        self._start(number)

    def wait_until_in_sync(self, topics: tuple[str, ...]) -> int:
        """Wait until every replica of these topics is in sync; return the replication factor."""
        admin = self._cluster.admin()

        def counts() -> set[int]:
            partitions = [one for topic in topics for one in admin.describe_topic(topic).partitions]
            return {len(one.isr) if len(one.isr) == len(one.replicas) else 0 for one in partitions}

        self._wait_until(lambda: 0 not in counts(), "all replicas to be in sync")
        return min(counts())

    def _start(self, number: int) -> None:
        disk = self._directory.with_name(f"{self._directory.name}-broker-{number}")
        disk.mkdir(exist_ok=True)
        ray = [str(Path(sys.executable).with_name("ray")), "start", "--block"]
        ray += [f"--address={self._cluster.address}", f"--node-ip-address=127.0.0.{number}"]
        # Without CPUs, so that Spark does not run there.
        ray += [f"--labels=broker={number}", "--num-cpus=0"]
        ray += [f"--object-store-memory={STORE_BYTES}"]
        command = [*OWN_MOUNTS, "sh", "-c", WITH_A_DISK_OF_ITS_OWN, "sh"]
        with (disk / "node.out").open("ab") as output:
            self._nodes[number] = subprocess.Popen(  # noqa: S603
                [*command, str(disk), str(self._directory), *ray],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "RAY_AUTH_MODE": "token"},
                start_new_session=True,
            )

    def _alive(self) -> set[int]:
        found = self._cluster.admin().describe_cluster().brokers
        return {one.broker_id for one in found if one.is_live and not one.is_fenced}

    def _wait_until_alive(self, number: int) -> None:
        self._wait_until(lambda: number in self._alive(), f"broker {number}")

    def _wait_until(self, is_true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_true():
            for number, node in self._nodes.items():
                if node.poll() is not None:
                    raise ConnectionFailedError(f"the node of broker {number} ended by itself")
            if time.monotonic() > deadline:
                raise ConnectionFailedError(f"waited {DEADLINE_S:.0f} s for {what}")
            time.sleep(POLL_S)

    def _end(self) -> None:
        for node in self._nodes.values():
            node.terminate()
        for node in self._nodes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(timeout=END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
        self._nodes.clear()


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [ancestor]
    for process_id in found:
        found += children.get(process_id, [])
    return found


def _name(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/comm").read_text().strip()
    except FileNotFoundError:
        return ""
