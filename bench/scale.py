"""How far it goes: many partitions, topics, ids, groups, members and consumers, and long logs.

``./run bench scale [--only CASE ...] [--rounds N] [--partitions N] [--topics N] ...``. Each case
runs in a process of its own; a size is how many of what the case is named after:

* ``partitions``: of one topic; made, idle, one transaction over all, led after a clean stop and
  after ``kill -9`` of everything
* ``topics``: of one partition each; made, idle
* ``members``: of one group; joined, idle
* ``consumers``: without a group, waiting for records
* ``assigned``: partitions of one consumer, which waits for records of them all
* ``ids``, ``groups``: transactional ids, and groups, at one coordinator's machine
* ``aborted``: transactions in the aborted index of one segment
* ``changes``: of ISRs in the controller's log, with a hundredth as many topics; loaded
* ``sparse``: GiB of one log, nearly all of it holes in its files; opened and read

The last five need no Ray. The run is appended to ``bench/results/scale.jsonl``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from measuring.findings import Findings
from measuring.report import Report, save

RESULTS: Final = Path(__file__).resolve().parent / "results" / "scale.jsonl"
ROUNDS: Final = 1
TIMEOUT_S: Final = 3_600.0
SIDE: Final = "oncelog"

SIZES: Final = {
    "partitions": 1_000,
    "topics": 1_000,
    "members": 1_000,
    "consumers": 1_000,
    "assigned": 1_000,
    "ids": 100_000,
    "groups": 10_000,
    "aborted": 1_000_000,
    "changes": 1_000_000,
    "sparse": 1_024,
}


def _title(name: str, options: argparse.Namespace) -> str:
    case, colon, figure = name.partition(":")
    return f"{getattr(options, case):,} {case}{colon}{figure}" if colon else name


def main() -> int:
    """Run the chosen cases, print and keep what they found; 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SIZES, default=tuple(SIZES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--directory", type=Path, help="on the disk to measure")
    for case, size in SIZES.items():
        parser.add_argument(f"--{case}", type=int, default=size, metavar="N", help=f"{size:,}")
    options = parser.parse_args()
    report = Report(rounds=options.rounds)
    findings = Findings()
    for _ in range(options.rounds):
        for case in options.only:
            size = getattr(options, case)
            print(f"{case}: {size:,}", flush=True)
            directory = tempfile.mkdtemp(prefix="oncelog-bench-", dir=options.directory)
            try:
                findings.run(SIDE, "samples/scale.py", case, size, directory, timeout_s=TIMEOUT_S)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
    titles = {name: _title(name, options) for name in findings.names()}
    print("\n" + findings.table("", [SIDE], titles))
    findings.keep(report)
    report.figures["sizes"] = {case: getattr(options, case) for case in options.only}
    save(RESULTS, "scale", report)
    return int(bool(findings.failures))


if __name__ == "__main__":
    sys.exit(main())
