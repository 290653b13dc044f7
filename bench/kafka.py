"""oncelog beside Apache Kafka 4: memory, idling, start, transactions, latency, throughput.

``./run bench kafka [--only ROW ...] [--rounds N] [--scale small] [--sides SIDE ...]``. Each round
runs every side in turn, every other round in the opposite order, each on a new cluster of its own
with the client in a process of its own. Sides: ``oncelog`` syncs before it acknowledges,
``oncelog-os`` does not; ``kafka`` acknowledges what is in the page cache, which is its default, and
``kafka-fsync`` syncs every append. Kafka is one broker in KRaft mode with its default heap, its
client librdkafka's for Python. Memory is what all processes of the servers take, Ray's included.
The run is appended to ``bench/results/kafka.jsonl`` and printed as a table: median, smallest and
largest of the rounds.

With ``--brokers 3`` each side has three brokers on this machine, which share its disk. Topics have
a copy on each, two of which must be in sync, and so have positions and the state of transactions.
Each node of Kafka is broker and controller, each of oncelog a Ray node. Only the load is measured.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from clusters.kafka_broker import why_not
from clusters.servers import why_not_several
from figures.kafka_rows import (
    BEYOND,
    BROKERS,
    PARTITIONS,
    ROWS,
    SCALES,
    Row,
    chosen,
    partitions_group,
)
from figures.table import beyond
from measuring.findings import Findings
from measuring.report import Report, save

RESULTS: Final = Path(__file__).resolve().parent / "results" / "kafka.jsonl"
ROUNDS: Final = 3
SIDES: Final = ("oncelog", "oncelog-os", "kafka", "kafka-fsync")
DEFAULT_SIDES: Final = ("oncelog", "kafka", "kafka-fsync")
EMPTY_RAY: Final = "empty Ray"
TIMEOUT_S: Final = 1_800.0


def run(
    findings: Findings,
    rows: Sequence[Row],
    sides: Sequence[str],
    rounds: int,
    scale: str,
    brokers: int,
) -> None:
    """All rounds; whoever comes second may find the machine different, so the order turns."""
    groups = {group: [row.name for row in found] for group, found in groupby(rows, _group_of)}
    for number in range(rounds):
        for group, names in groups.items():
            print(f"round {number + 1} of {rounds}: {group}", flush=True)
            has_ray = group == partitions_group(0) and "oncelog" in sides
            order = [*([EMPTY_RAY] if has_ray else []), *sides]
            for side in order[:: -1 if number % 2 else 1]:
                sample(findings, side, group, scale, brokers, names)


def sample(
    findings: Findings, side: str, group: str, scale: str, brokers: int, names: Sequence[str]
) -> None:
    """One cluster of one side, gone afterwards with its data."""
    directory = tempfile.mkdtemp(prefix="oncelog-bench-")
    arguments = (side, group, scale, brokers, directory, *names)
    try:
        findings.run(side, "samples/kafka.py", *arguments, timeout_s=TIMEOUT_S)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _group_of(row: Row) -> str:
    return row.group


def note_beyond(findings: Findings, sides: Sequence[str]) -> dict[str, str]:
    """Idle processors beyond those of an empty Ray cluster, as rows of their own; their titles."""
    base = findings.values.get(("idle-0", EMPTY_RAY))
    if not base:
        return {}
    titles = {}
    for name, title in BEYOND.items():
        for side in sides:
            values = findings.values.get((name, side))
            if values and side.startswith("oncelog"):
                findings.values[f"{name}-beyond", side] = beyond(values, base)
                titles[f"{name}-beyond"] = title
    return titles


def main() -> int:
    """Run, print and keep what was found; 1 if a row failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="ROW", help="or several at once, as send"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=DEFAULT_SIDES)
    parser.add_argument("--partitions-max", type=int, default=PARTITIONS[-1])
    parser.add_argument(
        "--brokers", type=int, choices=BROKERS, default=1, help="of each side, and copies of topics"
    )
    options = parser.parse_args()
    try:
        rows = chosen(options.only, options.partitions_max, brokers=options.brokers)
    except ValueError as error:
        parser.error(str(error))
    sides = list(options.sides)
    if any(side.startswith("kafka") for side in sides) and (reason := why_not()):
        print(f"skipped: {reason}")
        return 0
    has_nodes = options.brokers > 1 and any(side.startswith("oncelog") for side in sides)
    if has_nodes and (reason := why_not_several()):
        print(f"skipped: {reason}")
        return 0
    report = Report(rounds=options.rounds)
    findings = Findings()
    run(findings, rows, sides, options.rounds, options.scale, options.brokers)
    titles = {row.name: row.title for row in ROWS} | note_beyond(findings, sides)
    columns = [*sides, *([EMPTY_RAY] if ("idle-0", EMPTY_RAY) in findings.values else [])]
    if options.scale != "full":
        print("\na try: too little is done, and the JVM is not warm yet, for figures to mean much")
    print("\n" + findings.table("", columns, titles))
    findings.keep(report)
    report.figures["scale"] = options.scale
    report.figures["brokers"] = options.brokers
    save(RESULTS, "kafka", report)
    return int(bool(findings.failures))


if __name__ == "__main__":
    sys.exit(main())
