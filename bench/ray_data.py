"""Ray Data into a topic and out of it, beside ``write_kafka`` and ``read_kafka`` of Ray Data.

``./run bench ray_data [--rounds N] [--rows N] [--sides SIDE ...]``. Each round runs every side in
turn, every other round in the opposite order, each on a new cluster with a Ray of its own. Rows are
values of 100 bytes, in blocks that Ray Data makes while it writes. oncelog writes them as one
transaction, synced; ``write_kafka`` is neither, and makes JSON of each row. ``memory`` is the
largest that a process of a task had for itself, without what is shared: it must not grow with
``--rows``. The run is appended to ``bench/results/ray_data.jsonl`` and printed as a table.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from clusters.kafka_broker import why_not
from measuring.findings import Findings
from measuring.report import Report, save

RESULTS: Final = Path(__file__).resolve().parent / "results" / "ray_data.jsonl"
ROUNDS: Final = 3
ROWS: Final = 2_000_000
SIDES: Final = ("oncelog", "kafka")
TITLES: Final = {
    "write": "rows written, thousand/s",
    "write-memory": "memory of a writing task, MB",
    "read": "rows read, thousand/s",
    "read-memory": "memory of a reading task, MB",
}
TIMEOUT_S: Final = 3_600.0


def sample(findings: Findings, side: str, rows: int) -> None:
    """One cluster of one side, gone afterwards with its data."""
    directory = tempfile.mkdtemp(prefix="oncelog-bench-")
    try:
        findings.run(side, "samples/ray_data.py", side, rows, directory, timeout_s=TIMEOUT_S)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    """Run, print and keep what was found; 1 if a row failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    options = parser.parse_args()
    sides = list(options.sides)
    if "kafka" in sides and (reason := why_not()):
        print(f"without Kafka: {reason}")
        sides.remove("kafka")
    report, findings = Report(rounds=options.rounds), Findings()
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        for side in sides[:: -1 if number % 2 else 1]:
            sample(findings, side, options.rows)
    print("\n" + findings.table("", sides, TITLES))
    findings.keep(report)
    report.figures["rows"] = options.rows
    save(RESULTS, "ray_data", report)
    return int(bool(findings.failures))


if __name__ == "__main__":
    sys.exit(main())
