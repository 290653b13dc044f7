"""A Ray cluster of several nodes of this machine for a campaign, one broker on each.

Ray's head is a node more, without a broker and never struck: nothing replaces it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from deadlines import wait_for
from faults.client import repeat
from faults.fault_plan import LINKED_ROLES, SEVERAL_BROKERS_ROLES
from faults.struck_nodes import name_of, start_node
from links import HAS_OWN_NETWORK, Links
from ray_nodes import Nodes, can_unshare

import oncelog

LOGS: Final = "ray-logs"
LIMITED_DISK_BYTES: Final = 1 << 30
"""The disk of the last broker, where it may have one of its own; what a campaign writes is less."""
FOUNDER: Final = 1
"""The broker on which the controller is at first."""
VOTERS: Final = 3
"""How many brokers have the controller's log, if there are so many; else one has it."""


@dataclass(frozen=True, slots=True)
class SeveralBrokers:
    """The nodes, the connection to them, and what clients have to expect of topics."""

    nodes: Nodes
    cluster: Any
    brokers: int
    replication: int

    @property
    def roles(self) -> Mapping[str, int]:
        """The roles of victims."""
        return SEVERAL_BROKERS_ROLES if self.nodes.links is None else LINKED_ROLES

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """All brokers; the node of each may be struck."""
        return tuple(range(FOUNDER, FOUNDER + self.brokers))

    @property
    def data_dirs(self) -> dict[int, Path]:
        """Where this process finds the data directory of each broker."""
        return {n: self.nodes.root / name_of(n) / "log" for n in self.broker_ids}


@contextlib.contextmanager
def several_brokers(
    directory: Path, *, brokers: int, replication: int, settings: dict[str, str]
) -> Iterator[SeveralBrokers]:
    """Start them below ``directory``; at the end the logs of their processes are there too."""
    if not can_unshare():
        raise OSError("several brokers need the right to give a process mounts of its own")
    root = directory / "nodes"
    root.mkdir()
    broker_ids = range(FOUNDER, FOUNDER + brokers)
    links = Links(broker_ids) if HAS_OWN_NETWORK in os.environ else None
    nodes = Nodes(root, links=links)
    limited = root / name_of(broker_ids[-1])
    if links is not None:
        _mount_limited(limited)
    token = "RAY_AUTH_TOKEN"
    os.environ[token] = nodes.environment[token]  # For this process and the clients.
    try:
        for broker_id in broker_ids:
            start_node(nodes, broker_id)
        options = [word for pair in settings.items() for word in ("--config", "=".join(pair))]
        started = nodes.start_log(*options)
        if started.returncode:
            raise OSError(f"the log did not start: {started.stdout} {started.stderr}")
        cluster = oncelog.connect(nodes.address)
        wait_for(lambda: _live_count(cluster) == brokers, f"{brokers} brokers")
        voters = VOTERS if brokers >= VOTERS else 1
        wait_for(lambda: _voters_in_sync(cluster) == voters, f"{voters} voters")
        try:
            yield SeveralBrokers(nodes, cluster, brokers, replication)
        finally:
            try:
                repeat(cluster.shutdown, 60.0)
            finally:
                ray.shutdown()
    finally:
        # Each start of Ray's head begins a session.
        for logs in nodes.temporary.glob("session_2*/logs"):
            kept = directory / LOGS / logs.parent.name
            shutil.copytree(logs, kept, ignore=shutil.ignore_patterns("old"))
        nodes.close()
        if links is not None:
            links.close()
            _keep_files_of(limited)


def _mount_limited(disk: Path) -> None:
    """Make it a disk that a fault can fill; it goes with the mounts of this process."""
    disk.mkdir()
    size = f"size={LIMITED_DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], check=True)


def _keep_files_of(disk: Path) -> None:
    """Put what is on such a disk where others look for it after this process."""
    kept = disk.with_name(f"{disk.name}.kept")
    shutil.copytree(disk, kept)
    subprocess.run(["umount", "--lazy", disk], check=True)
    disk.rmdir()
    kept.rename(disk)


def _voters_in_sync(cluster: Any) -> int:
    return sum(not voter.is_behind for voter in cluster.describe().voters)


def _live_count(cluster: Any) -> int:
    return sum(broker.is_live and not broker.problem for broker in cluster.describe().brokers)
