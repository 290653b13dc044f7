"""What the benchmarks share: rounds that alternate with a comparator, targets, kept results."""

from __future__ import annotations

import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROUNDS: Final = 5


@dataclass
class Report:
    """What one run found: raw figures by name, and the targets with their verdicts."""

    rounds: int
    started: float = field(default_factory=time.perf_counter)
    figures: dict[str, Any] = field(default_factory=dict)
    targets: list[dict[str, Any]] = field(default_factory=list)

    def figure(self, name: str, value: float, text: str) -> None:
        """Note and print one figure."""
        self.figures[name] = round(value, 6)
        print(f"  {name:<44} {text}", flush=True)

    def target(self, name: str, value: float, wanted: float, *, at_least: bool = True) -> None:
        """Note and print one target: ``value`` must be at least, or at most, ``wanted``."""
        is_met = value >= wanted if at_least else value <= wanted
        self.targets.append(
            {"name": name, "value": round(value, 4), "wanted": wanted, "met": is_met}
        )
        sign = ">=" if at_least else "<="
        verdict = "met" if is_met else "MISSED"
        print(f"  {name:<44} {value:8.3f}  target {sign} {wanted:g}: {verdict}", flush=True)


@contextmanager
def scratch(root: Path) -> Iterator[Path]:
    """A fresh directory that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(dir=root))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def alternate(rounds: int, *sides: Callable[[], float]) -> list[list[float]]:
    """Run all sides ``rounds`` times in turn; each returns its own seconds.

    Every other round in the opposite order: who comes second may find the machine different.
    """
    seconds: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        order = list(zip(sides, seconds, strict=True))
        for side, taken in order[:: -1 if number % 2 else 1]:
            gc.collect()
            taken.append(side())
    return seconds


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Median of the rounds' speed against the comparator's; above 1 is faster than it."""
    return statistics.median(other / own for other, own in zip(theirs, ours, strict=True))


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit that was measured, with a mark if files differ from it."""
    root = Path(__file__).resolve().parents[2]
    asked = ("git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12")
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def save(path: Path, benchmark: str, report: Report) -> None:
    """Append one run to a file of JSON lines."""
    entry = {
        "benchmark": benchmark,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "machine": machine(),
        "rounds": report.rounds,
        "seconds": round(time.perf_counter() - report.started, 1),
        "figures": report.figures,
        "targets": report.targets,
    }
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
