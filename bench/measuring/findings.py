"""Samples: processes that each take some figures on a cluster of their own and tell them.

A sample prints a line of JSON per figure, or per figure that could not be had; whoever runs it
reads them at its end. So no sample finds what an earlier one has left in a process, and one that
fails or hangs takes nothing else with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

from figures.table import ABSENT, Summary, markdown
from measuring.processes import family, kill, spawn, tail
from measuring.report import Report

MARK: Final = "sample: "
BENCH: Final = Path(__file__).resolve().parents[1]

_PR_SET_CHILD_SUBREAPER: Final = 36


def tell(name: str, value: float, side: str | None = None) -> None:
    """Tell one figure; in a sample. ``side`` is needed by a sample of several sides."""
    print(MARK + json.dumps({"name": name, "value": value, "side": side}), flush=True)


def warm_up(work: Callable[[], object], seconds: float) -> None:
    """Repeat until that time is over."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        work()


def take(name: str, figure: Callable[[], float], side: str | None = None) -> None:
    """Take and tell one figure, or why it could not be had; in a sample."""
    try:
        value = figure()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip()
        print(MARK + json.dumps({"name": name, "error": reason, "side": side}), flush=True)
    else:
        tell(name, value, side)


class Findings:
    """Figures by name and side, a value per round, and what went wrong."""

    def __init__(self) -> None:
        self.values: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self.failures: dict[tuple[str, str], str] = {}

    def run(self, side: str, script: str, *arguments: object, timeout_s: float) -> None:
        """Run one sample to its end and note what it told under ``side``.

        ``script`` is a path in ``bench``.
        """
        # What a sample that crashed has left behind becomes ours, so that it can be found.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # In sessions of their own they would outlive a benchmark that is told to end.
        signal.signal(signal.SIGTERM, _end)
        with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as directory:
            log = Path(directory) / "log"
            process = spawn([sys.executable, BENCH / script, *arguments], log, _environment())
            try:
                status: int | None = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                kill(family(os.getpid())[1:])
            told = list(_told(log))
            for entry in told:
                self._note(side, entry)
            if status != 0:
                what = "took too long" if status is None else f"ended with {status}"
                self._fail(side, " ".join(map(str, (script, *arguments))), f"{what}: {tail(log)}")

    def _note(self, side: str, entry: dict[str, Any]) -> None:
        name, side = entry["name"], entry["side"] or side
        if "error" in entry:
            self._fail(side, name, entry["error"])
            return
        self.values[name, side].append(entry["value"])
        print(f"  {name:<44} {side:<12} {entry['value']:12,.3f}", flush=True)

    def _fail(self, side: str, name: str, reason: str) -> None:
        self.failures[name, side] = reason
        print(f"  {name:<44} {side:<12} failed: {reason}", flush=True)

    def names(self) -> list[str]:
        """Of all figures that there are or should be, in the order in which they came."""
        return list(dict.fromkeys(name for name, _ in (*self.values, *self.failures)))

    def keep(self, report: Report) -> None:
        """Put everything into a report: all rounds, and the failures."""
        for (name, side), values in self.values.items():
            report.figures[f"{name}, {side}"] = [round(value, 6) for value in values]
        for (name, side), reason in self.failures.items():
            report.figures[f"{name}, {side}, failed"] = reason

    def table(self, first: str, sides: Iterable[str], titles: dict[str, str]) -> str:
        """A row per title that has a figure, a column per side: median, smallest and largest."""
        sides = list(sides)
        rows = {
            title: [self.cell(name, side) for side in sides]
            for name, title in titles.items()
            if any((name, side) in self.values or (name, side) in self.failures for side in sides)
        }
        return markdown([first, *sides], rows)

    def cell(self, name: str, side: str) -> str:
        """One cell of the table."""
        values = self.values.get((name, side))
        if values:
            return str(Summary.of(values))
        return "failed" if (name, side) in self.failures else ABSENT


def _environment() -> dict[str, str]:
    """A sample, and the workers of Ray and Spark that it starts, import the rooms of ``bench``."""
    path = os.pathsep.join(filter(None, (str(BENCH), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path}


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _told(log: Path) -> Iterable[dict[str, Any]]:
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(MARK):
            yield json.loads(line.removeprefix(MARK))
