"""What the Spark source and sink take beside Spark itself, and beside its connector to Kafka.

``./run bench spark [--only PART ...] [--sizes BYTES ...] [--megabytes N] [--rounds N] [--beside
SIDE ...]``. Parts: ``write`` a batch, ``stream-write`` micro-batches, ``read`` a batch, ``empty`` a
micro-batch without rows. Each side has a Spark session of its own, with one executor of two cores;
topics have two partitions. Each round runs every side in turn, every other round in the opposite
order, after three that do not count. With Kafka it needs 16 GiB. ``Spark alone`` is a sink that
only counts the Arrow batches it gets, a reader that yields such batches from memory as ours does,
and for ``empty`` a sink that does nothing. oncelog writes transactions, synced; Kafka's sink writes
at least once, its broker to the page cache, and both have their defaults. The run is appended to
``bench/results/spark.jsonl`` and printed as a table.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from clusters.kafka_broker import why_not
from figures.spark_parts import (
    BASE,
    KAFKA,
    OURS,
    PARTS,
    SHARE_OF_BASE,
    SIDES,
    SIZES,
    shares,
    titles,
    wanted_share,
)
from measuring.findings import Findings
from measuring.report import Report, save

RESULTS: Final = Path(__file__).resolve().parent / "results" / "spark.jsonl"
ROUNDS: Final = 5
MEGABYTES: Final = 200
TIMEOUT_S: Final = 3_600.0


def report_shares(findings: Findings, report: Report) -> None:
    """Note how our speed compares, and whether it is what it should be."""
    for name, share in shares(findings.values, BASE).items():
        report.target(f"{name}, share of {BASE}", share, SHARE_OF_BASE)
    for name, share in shares(findings.values, KAFKA).items():
        wanted = wanted_share(name)
        if wanted is None:
            report.figure(f"{name}, share of {KAFKA}", share, f"{share:.2f}")
        else:
            report.target(f"{name}, share of {KAFKA}", share, wanted)


def main() -> int:
    """Run, print and keep what was found; 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--sizes", nargs="+", type=int, choices=SIZES, default=SIZES)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of values per figure")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--beside", nargs="*", choices=SIDES[1:], default=SIDES[1:])
    options = parser.parse_args()
    sides = [side for side in SIDES if side == OURS or side in options.beside]
    if KAFKA in sides and (reason := why_not()):
        print(f"without Kafka: {reason}")
        sides.remove(KAFKA)
    report, findings = Report(rounds=options.rounds), Findings()
    for size in options.sizes:
        print(f"rows of {size} bytes", flush=True)
        directory = tempfile.mkdtemp(prefix="oncelog-bench-")
        rows = options.megabytes * 1_000_000 // size
        arguments = (size, rows, options.rounds, directory, ",".join(sides), *options.only)
        try:
            findings.run(OURS, "samples/spark.py", *arguments, timeout_s=TIMEOUT_S)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    print("\n" + findings.table("", sides, titles()))
    report_shares(findings, report)
    findings.keep(report)
    report.figures["megabytes"] = options.megabytes
    save(RESULTS, "spark", report)
    return int(bool(findings.failures))


if __name__ == "__main__":
    sys.exit(main())
