"""What many replicas cost: 300 partitions on one broker, and on three with three replicas of each.

``./run bench replicas``. Memory is what the log's processes have for themselves and their share of
the rest (PSS), processor time what they use while nobody calls. Needs mount namespaces, as
``bench replication``. The run is appended to ``bench/results/replicas.jsonl``.

Targets: 900 replicas on three brokers take at most 2.5 times the memory of 300 on one, and 0.3
cores while they idle.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from measuring.processes import family
from measuring.report import Report, save

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "bench" / "results" / "replicas.jsonl"
TOPIC: Final = "many"
PARTITIONS: Final = 300
SETTLE_S: Final = 20.0
"""What was started settles: replicas are in sync, leaders balanced, voters chosen."""

IDLE_S: Final = 60.0
POLL_S: Final = 0.5
OTHERS: Final = (("two", "127.0.0.2", "broker=2"), ("three", "127.0.0.3", "broker=3"))
LOG_PROCESS: Final = re.compile(rb"^ray::[A-Za-z]*Process")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def log_processes(nodes: Any) -> list[Path]:
    """The log's processes on these nodes, under ``/proc``."""
    found = []
    for node in nodes.processes.values():
        for life in family(node.pid):
            process = Path(f"/proc/{life.process_id}")
            if LOG_PROCESS.match((process / "cmdline").read_bytes()):
                found.append(process)
    return found


def memory_mb(processes: list[Path]) -> float:
    """Their proportional share of memory."""
    text = "".join((process / "smaps_rollup").read_text() for process in processes)
    return sum(map(int, re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE))) / 1e3


def busy_s(processes: list[Path]) -> float:
    """The processor time they have used."""
    stats = [(one / "stat").read_text().rpartition(")")[2].split() for one in processes]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / TICKS_PER_S


def until(is_true: Callable[[], bool]) -> None:
    """Look again and again."""
    while not is_true():
        time.sleep(POLL_S)


def measured(brokers: int) -> tuple[float, float]:
    """Megabytes, and cores while idle, of a cluster with so many brokers and replicas."""
    sys.path.append(str(ROOT / "tests" / "helpers"))
    ray_nodes: Any = importlib.import_module("ray_nodes")
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as root:
        nodes = ray_nodes.Nodes(Path(root), head_labels="broker=1")
        try:
            done = nodes.run("start", "--data-dir", str(nodes.data / "log"))
            if done.returncode:
                raise RuntimeError(done.stderr)
            for name, address, labels in OTHERS[: brokers - 1]:
                nodes.start_node(name, address, labels=labels)
            fill(nodes, brokers)
            time.sleep(SETTLE_S)
            processes = log_processes(nodes)
            before_s = busy_s(processes)
            time.sleep(IDLE_S)
            return memory_mb(processes), (busy_s(processes) - before_s) / IDLE_S
        finally:
            nodes.close()


def fill(nodes: Any, brokers: int) -> None:
    """Create the topic, once all brokers are there, and wait until it is whole."""
    until(lambda: nodes.run("status", "--json").stdout.count('"state": "alive"') >= brokers)
    command = ("topics", "create", TOPIC, "--partitions", str(PARTITIONS))
    done = nodes.run(*command, "--replication-factor", str(brokers))
    if done.returncode:
        raise RuntimeError(done.stderr)
    until(lambda: nodes.run("status").returncode == 0)


def main() -> int:
    """Run, print and keep what was found."""
    report = Report(rounds=1)
    found = {brokers: measured(brokers) for brokers in (1, 3)}
    for brokers, (megabytes, cores) in found.items():
        name = f"{PARTITIONS * brokers} replicas on {brokers}"
        report.figure(f"{name}, MB", megabytes, f"{megabytes:.0f}")
        report.figure(f"{name}, cores while idle", cores, f"{cores:.3f}")
    report.target("memory of three to one", found[3][0] / found[1][0], 2.5, at_least=False)
    report.target("idle cores of three", found[3][1], 0.3, at_least=False)
    save(RESULTS, "replicas", report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
