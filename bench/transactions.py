"""What a transaction costs, beside an empty call of an asynchronous actor in the same run.

``./run bench transactions [--rounds N]``. Prints medians and their ratio, and appends them to
``bench/results/transactions.jsonl``. Ratios are what counts: the machine is shared and noisy.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

import oncelog

RESULTS = Path(__file__).resolve().parent / "results" / "transactions.jsonl"
RECORDS = 100
VALUE = b"x" * 1024
PARTITIONS = 4


class Empty:
    """An asynchronous actor that does nothing."""

    async def nothing(self) -> None:
        """Return at once."""


def median_ms(action: Callable[[], Any], rounds: int) -> float:
    """Median duration of ``action`` over ``rounds``, after a tenth of them to warm up."""
    durations = []
    for number in range(rounds + rounds // 10):
        started = time.perf_counter()
        action()
        if number >= rounds // 10:
            durations.append(1e3 * (time.perf_counter() - started))
    return statistics.median(durations)


def measure(cluster: oncelog.Cluster, rounds: int) -> dict[str, float]:
    """Medians in milliseconds: the empty call, and transactions of one and of 100 records."""
    cluster.admin().create_topic("bench", partitions=PARTITIONS)
    empty = ray.remote(num_cpus=0)(Empty).remote()
    figures = {}
    with cluster.producer(transactional_id="bench") as producer:
        producer.init_transactions()

        def transaction(count: int) -> None:
            producer.begin_transaction()
            for number in range(count):
                producer.send("bench", VALUE, partition=number % PARTITIONS)
            producer.commit_transaction()

        figures["empty call"] = median_ms(lambda: ray.get(empty.nothing.remote()), rounds)
        figures["1 record"] = median_ms(lambda: transaction(1), rounds)
        figures["100 records on 4 partitions"] = median_ms(lambda: transaction(RECORDS), rounds)
    return figures


def main() -> None:
    """Run, print and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster = oncelog.init(directory, num_cpus=2)
        try:
            figures = measure(cluster, args.rounds)
        finally:
            cluster.shutdown()
            ray.shutdown()
    for name, value in figures.items():
        print(f"{name:30} {value:8.2f} ms  {value / figures['empty call']:6.1f} x an empty call")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        line = {"commit": commit, "machine": platform.platform(), "median_ms": figures}
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
