"""Clusters that a sample starts beside itself: oncelog as ``oncelog start`` does, or bare Ray.

Several brokers are Ray nodes of this machine, each with a directory of its own at the same path.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import oncelog
from measuring.processes import kill_family, spawn, stop, wait_for
from oncelog.actors.protocol.messages.cluster import MetadataReply
from oncelog.api.admin.admin import Admin
from oncelog.api.cli import head
from oncelog.api.session import cluster_connection
from oncelog.storage.model import TopicPartition

CPUS: Final = 2
"""That Ray is told to have, on any machine."""

START_TIMEOUT_S: Final = 300.0
STOP_TIMEOUT_S: Final = 300.0
LOOK_S: Final = 0.2
HELPERS: Final = Path(__file__).resolve().parents[2] / "tests" / "helpers"
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
        self.begin()
        self.wait_until_up()

    def begin(self) -> None:
        """Start it."""
        self._process = spawn(self.command(), self.log)

    def wait_until_up(self) -> None:
        """Wait until it serves; RuntimeError with the end of its log if it does not."""
        wait_for(self.is_up, self.process, self.log, START_TIMEOUT_S)

    def stop(self) -> None:
        """Stop it as its operator would."""
        if self._process is not None:
            stop(self._process, STOP_TIMEOUT_S)

    def kill(self) -> None:
        """``kill -9`` all of it at once."""
        if self._process is not None:
            kill_family(self._process)


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


class OncelogNodes:
    """The log on a Ray cluster of several nodes, a broker on each; the first is Ray's head."""

    def __init__(self, directory: Path, brokers: int) -> None:
        self._directory = directory
        self._brokers = brokers
        self._nodes: Any = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that all others of the first node stem from."""
        found: subprocess.Popen[bytes] = self._nodes.processes["head"]
        return found

    def start(self) -> None:
        """Start the nodes, then the log; RuntimeError says why it does not start."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._nodes = _ray_nodes().Nodes(self._directory, head_labels="broker=1")
        os.environ.update(self._nodes.environment)  # Its token, for who connects.
        for number in range(2, self._brokers + 1):
            labels = f"broker={number}"
            self._nodes.start_node(f"node-{number}", f"127.0.0.{number}", labels=labels)
        started = self._nodes.start_log()
        if started.returncode:
            raise RuntimeError(f"the log does not start: {started.stdout} {started.stderr}")

    def settle(self, cluster: oncelog.Cluster) -> None:
        """Wait until each log has a copy on every broker, and have its first replica lead it."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            found = _described(cluster)
            if found is not None and set(_counts(found).values()) == {self._brokers}:
                break
            if time.monotonic() > deadline:
                there = "nothing" if found is None else _counts(found)
                raise TimeoutError(f"{self._brokers} of each are wanted, not {there}")
            time.sleep(LOOK_S)
        cluster.admin().elect_leaders(
            TopicPartition(topic.name, partition.partition)
            for topic in found.topics
            for partition in topic.partitions
        )

    def stop(self) -> None:
        """End every process of it at once."""
        if self._nodes is not None:
            self._nodes.close()

    def address(self) -> str:
        """Where Ray is, to connect to."""
        return str(self._nodes.address)


def _described(cluster: oncelog.Cluster) -> MetadataReply | None:
    """What the controller says; None while it moves."""
    try:
        return cluster.describe()
    except oncelog.OncelogError as error:
        if not error.retriable:
            raise
        return None


def _counts(found: MetadataReply) -> dict[str, int]:
    """Brokers that live, voters in sync, and started copies of each log in sync."""
    copies = {
        f"{topic.name}-{each.partition}": len(set(each.isr) - set(each.unstarted))
        for topic in found.topics
        for each in topic.partitions
    }
    return {
        "brokers": sum(broker.is_live and not broker.problem for broker in found.brokers),
        "voters": sum(not voter.is_behind for voter in found.voters),
        **copies,
    }


def why_not_several() -> str:
    """Why there can be no several brokers of oncelog here; empty if there can."""
    if _ray_nodes().can_unshare():
        return ""
    return "several brokers need the right to give a process mounts of its own"


def _ray_nodes() -> Any:
    if str(HELPERS) not in sys.path:
        sys.path.append(str(HELPERS))
    return importlib.import_module("ray_nodes")


def min_insync_of(brokers: int) -> int:
    """How many copies of a record must be there, of one on each broker, before it counts."""
    return min(brokers, 2)


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
