"""Where the time of a start goes: from ``oncelog.init`` to the first acknowledged record.

``./run bench start [--rounds N]``. Each round starts, in turn and in a process of its own, an empty
Ray cluster with the same settings and one with the log, on an empty data directory. Steps follow
one another unless the table says otherwise. Medians, smallest and largest are printed, and the run
is appended to ``bench/results/start.jsonl``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from measuring.findings import Findings
from measuring.report import ROUNDS, Report, save

RESULTS: Final = Path(__file__).resolve().parent / "results" / "start.jsonl"
SIDES: Final = ("oncelog", "empty Ray")
TIMEOUT_S: Final = 300.0

TITLES: Final = {
    "python": "Python itself",
    "import ray": "import of Ray",
    "import oncelog": "import of oncelog, beyond Ray",
    "ray": "init: Ray starts",
    "looked": "init: is there a log already",
    "directory": "init: data directory",
    "controller launched": "init: controller asked for",
    "controller": "init: controller answers",
    "coordinators": "init: coordinators lead",
    "rest": "init: everything else",
    "init": "init, all of it",
    "topic": "topic: made",
    "leader": "topic: its partition is led",
    "producer": "producer: made",
    "first record": "first record acknowledged",
    "second record": "another record acknowledged",
    "connections": "of all that, summed: actors found and connected to",
    "total": "init to first record",
}
"""Every step in its order, in seconds."""


def main() -> int:
    """Run, print and keep what was found; 1 if a start failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    report = Report(rounds=options.rounds)
    findings = Findings()
    for number in range(options.rounds):
        for side in SIDES[:: -1 if number % 2 else 1]:
            print(f"round {number + 1} of {options.rounds}: {side}", flush=True)
            directory = tempfile.mkdtemp(prefix="oncelog-bench-")
            try:
                findings.run(side, "samples/start.py", side, directory, timeout_s=TIMEOUT_S)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
    print("\n" + findings.table("seconds", SIDES, TITLES))
    findings.keep(report)
    save(RESULTS, "start", report)
    return int(bool(findings.failures))


if __name__ == "__main__":
    sys.exit(main())
