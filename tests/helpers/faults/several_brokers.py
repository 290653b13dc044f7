"""A Ray cluster of several nodes of this machine for a campaign, one broker on each."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from faults.client import repeat
from faults.fault_plan import LINKED_ROLES, SEVERAL_BROKERS_ROLES
from faults.struck_nodes import start_node
from faults.victims import HEAD_BROKER
from links import HAS_OWN_NETWORK, Links
from ray_nodes import Nodes, can_unshare, wait_for

import oncelog

LOGS: Final = "ray-logs"


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
    def struck_brokers(self) -> tuple[int, ...]:
        """The brokers whose nodes may be killed."""
        return tuple(n for n in range(1, self.brokers + 1) if n != HEAD_BROKER)

    @property
    def data_dirs(self) -> dict[int, Path]:
        """Where this process finds the data directory of each broker."""
        names = {HEAD_BROKER: "head"} | {n: f"node-{n}" for n in self.struck_brokers}
        return {n: self.nodes.root / name / "log" for n, name in names.items()}


@contextlib.contextmanager
def several_brokers(
    directory: Path, *, brokers: int, replication: int, settings: dict[str, str]
) -> Iterator[SeveralBrokers]:
    """Start them below ``directory``; at the end the logs of their processes are there too."""
    if not can_unshare():
        raise OSError("several brokers need the right to give a process mounts of its own")
    root = directory / "nodes"
    root.mkdir()
    others = range(HEAD_BROKER + 1, brokers + 1)
    links = Links(others) if HAS_OWN_NETWORK in os.environ else None
    nodes = Nodes(root, head_labels=f"broker={HEAD_BROKER}", links=links)
    try:
        options = [word for pair in settings.items() for word in ("--config", "=".join(pair))]
        started = nodes.run("start", "--data-dir", str(nodes.data / "log"), *options)
        if started.returncode:
            raise OSError(f"the log did not start: {started.stdout} {started.stderr}")
        for broker_id in others:
            start_node(nodes, broker_id)
        cluster = oncelog.connect(nodes.address)
        wait_for(lambda: _live_count(cluster) == brokers, f"{brokers} brokers")
        try:
            yield SeveralBrokers(nodes, cluster, brokers, replication)
        finally:
            try:
                repeat(cluster.shutdown, 60.0)
            finally:
                ray.shutdown()
    finally:
        logs = nodes.temporary / "session_latest" / "logs"
        if logs.is_dir():
            shutil.copytree(logs, directory / LOGS, ignore=shutil.ignore_patterns("old"))
        nodes.close()
        if links is not None:
            links.close()


def _live_count(cluster: Any) -> int:
    return sum(broker.is_live and not broker.problem for broker in cluster.describe().brokers)
