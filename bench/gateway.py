"""Clients of Kafka at oncelog's gateway beside the same clients at Apache Kafka 4.

``./run bench gateway [--only ROW ...] [--rounds N] [--scale small] [--sides SIDE ...]``. Each round
runs every side in turn, every other round in the opposite order, each on a new cluster of its own,
with librdkafka's client for Python in a process of its own. Sides: ``gateway`` is oncelog and
``kafka-fsync`` Kafka, which both sync before they acknowledge, so these two are compared; ``kafka``
acknowledges what is in the page cache, for information.

A ratio is that of speeds, above 1 if the gateway is faster. The run is appended to
``bench/results/gateway.jsonl`` and printed as a table: median, smallest and largest of the rounds.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clusters.kafka_broker import why_not
from measuring.findings import Findings
from measuring.report import Report, ratio, save

RESULTS: Final = Path(__file__).resolve().parent / "results" / "gateway.jsonl"
ROUNDS: Final = 3
OWN: Final = "gateway"
OTHER: Final = "kafka-fsync"
SIDES: Final = (OWN, OTHER, "kafka")
SCALES: Final = ("small", "full")
TIMEOUT_S: Final = 900.0

ROWS: Final = {
    "produce-100": "produce, 100 B, thousand/s",
    "fetch-100": "fetch, 100 B, thousand/s",
    "produce-1000": "produce, 1 KB, thousand/s",
    "fetch-1000": "fetch, 1 KB, thousand/s",
    "small-produce": "one produce of 100 B, p50, µs",
    "small-metadata": "one metadata request, p50, µs",
    "idle": "1,000 idle connections, % of a core",
}
CPU_ROWS: Final = {
    f"{name}-cpu": f"{name.partition('-')[0]}, {size}, gateway's CPU, ms/MB"
    for size, number in (("100 B", 100), ("1 KB", 1_000))
    for name in (f"produce-{number}", f"fetch-{number}")
}

RATIO_TARGETS: Final = {"produce-100": 0.9, "produce-1000": 0.8, "fetch-1000": 0.7}
"""At least so many of the records that Kafka takes or gives in a second."""

MORE_US_MAX: Final = 100.0
"""A small request may take so much longer than Kafka's."""

IDLE_PERCENT_MAX: Final = 2.0


def run(
    findings: Findings, rows: Sequence[str], sides: Sequence[str], rounds: int, scale: str
) -> None:
    """All rounds; whoever comes second may find the machine different, so the order turns."""
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        for side in sides[:: -1 if number % 2 else 1]:
            directory = tempfile.mkdtemp(prefix="oncelog-bench-")
            arguments = (side, scale, directory, *rows)
            try:
                findings.run(side, "samples/gateway.py", *arguments, timeout_s=TIMEOUT_S)
            finally:
                shutil.rmtree(directory, ignore_errors=True)


def judge(findings: Findings, report: Report) -> None:
    """The targets of all rows that both sides have in each round."""
    values = findings.values
    for name in ROWS:
        own, other = values.get((name, OWN)), values.get((name, OTHER))
        if name == "idle" and own:
            report.target(ROWS[name], statistics.median(own), IDLE_PERCENT_MAX, at_least=False)
        if not own or not other or len(own) != len(other):
            continue
        if name in RATIO_TARGETS:
            report.target(f"{name}, ratio", ratio(own, other), RATIO_TARGETS[name])
        elif name.startswith("fetch"):
            value = ratio(own, other)
            report.figure(f"{name}, ratio", value, f"{value:8.3f}")
        elif name.startswith("small"):
            more = statistics.median(a - b for a, b in zip(own, other, strict=True))
            report.target(f"{name}, µs more", more, MORE_US_MAX, at_least=False)


def keep(findings: Findings, report: Report) -> None:
    """Put everything into the report; of a failure its last line, without paths of this machine."""
    findings.failures = {
        (name.partition(" ")[0], side): re.sub(r"/\S*/", "", reason.splitlines()[-1])
        for (name, side), reason in findings.failures.items()
    }
    findings.keep(report)


def main() -> int:
    """Run, print and keep what was found; 1 if a row failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(ROWS), choices=ROWS, metavar="ROW")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    options = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    report = Report(rounds=options.rounds)
    findings = Findings()
    run(findings, options.only, options.sides, options.rounds, options.scale)
    if options.scale != "full":
        print("\na try: too little is done, and the JVM is not warm yet, for figures to mean much")
    print("\n" + findings.table("", options.sides, ROWS | CPU_ROWS) + "\n")
    judge(findings, report)
    keep(findings, report)
    report.figures["scale"] = options.scale
    save(RESULTS, "gateway", report)
    return int(bool(findings.failures))


if __name__ == "__main__":
    sys.exit(main())
