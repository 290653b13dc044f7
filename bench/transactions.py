"""What transactions cost, beside what they are made of: calls of actors and plain production.

``./run bench transactions [CASE ...] [--rounds N] [--transactions N]
[--profile]``. Comparators run
in the same process and in turn; what counts is their ratio, since a machine is never quiet. The
run is appended to ``bench/results/transactions.jsonl``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from measuring.report import ROUNDS, Report, save
from oncelog.actors.process.ray_environment import keep_output_clean

RESULTS: Final = Path(__file__).resolve().parent / "results" / "transactions.jsonl"
TRANSACTIONS: Final = 50_000

CASES: Final = ("latency", "throughput", "interval", "growth", "profile")


def _title(text: str | None) -> str:
    return (text or "").splitlines()[0]


def run_growth(report: Report, root: Path, transactions: int) -> None:
    """Cost per transaction after many of them and beside idle ids, in this process."""
    from cases.transaction_growth import bench_idle_ids, bench_shells, bench_transactions_done

    parts: tuple[tuple[str, Callable[[], object]], ...] = (
        ("done", lambda: bench_transactions_done(report, transactions)),
        ("idle ids", lambda: bench_idle_ids(report)),
        ("servers", lambda: bench_shells(report, root)),
    )
    for name, run in parts:
        print(f"growth, {name}", flush=True)
        run()


def run_on_cluster(report: Report, root: Path, cases: list[str]) -> None:
    """The cases that need actors, on one cluster, replication factor 1, every append synced."""
    import ray

    import oncelog
    from cases import transaction_load as load
    from cases.transaction_profile import bench_profile

    data = Path(tempfile.mkdtemp(dir=root))
    on_cluster: dict[str, Callable[..., None]] = {
        "latency": load.bench_latency,
        "throughput": load.bench_throughput,
        "interval": partial(load.bench_interval, data=data),
    }
    cluster = oncelog.init(data, num_cpus=2)
    try:
        for name, case in on_cluster.items():
            if name in cases:
                described = case.func if isinstance(case, partial) else case
                print(f"{name}: {_title(described.__doc__)}", flush=True)
                case(cluster, report)
        if "profile" in cases:
            print(f"profile: {_title(bench_profile.__doc__)}", flush=True)
            bench_profile(cluster, report, root)
    finally:
        cluster.shutdown()
        ray.shutdown()


def main() -> int:
    """Run the chosen cases and append what they found; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all but the last")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--transactions", type=int, default=TRANSACTIONS, help="of case growth")
    parser.add_argument("--profile", action="store_true", help="add the case profile")
    parser.add_argument("--directory", type=Path, help="on the disk to measure")
    options = parser.parse_args()
    for name in options.cases:
        if name not in CASES:
            parser.error(f"unknown case {name!r}: there are {', '.join(CASES)}")
    cases = list(options.cases or CASES[:-1])
    if options.profile and "profile" not in cases:
        cases.append("profile")
    # Before Ray is imported, which the cases do.
    keep_output_clean()
    report = Report(rounds=options.rounds)
    root = Path(tempfile.mkdtemp(prefix="oncelog-bench-", dir=options.directory))
    try:
        if set(cases) != {"growth"}:
            run_on_cluster(report, root, cases)
        if "growth" in cases:
            run_growth(report, root, options.transactions)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    save(RESULTS, "transactions", report)
    missed = [target["name"] for target in report.targets if not target["met"]]
    print(f"{len(report.targets) - len(missed)} targets met, missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
