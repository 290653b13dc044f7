"""What a queue costs beside a consumer: records taken and accepted, one by one and by batch.

``./run bench queues [--rounds N]``. Both read the same topic on one cluster, in turn. The run is
appended to ``bench/results/queues.jsonl``.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from measuring.report import ROUNDS, Report, save
from oncelog.actors.process.ray_environment import keep_output_clean

RESULTS: Final = Path(__file__).resolve().parent / "results" / "queues.jsonl"
TOPIC: Final = "bench"
PARTITIONS: Final = 2
RECORDS: Final = 200_000
SINGLES: Final = 100_000
TRANSACTIONS: Final = 200
RECORD: Final = b"r" * 100
TAKEN: Final = 5_000
SINGLES_AT_LEAST: Final = 20_000.0
BATCH_AT_LEAST: Final = 0.5

_runs: Final = itertools.count()


def _consumed_per_s(cluster: Any) -> float:
    """By a member of a group, as the workers of a queue are."""
    with cluster.consumer(
        group_id=f"consumers-{next(_runs)}", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(TOPIC)
        count = 0
        while not count:
            count = len(consumer.poll(timeout_ms=1_000, max_records=1))
        count, started = 0, time.perf_counter()
        while count < RECORDS - 1:
            count += len(consumer.poll(timeout_ms=1_000, max_records=TAKEN))
        consumer.commit()
        return count / (time.perf_counter() - started)


def _accepted_per_s(cluster: Any) -> float:
    """A whole batch at a time."""
    with cluster.queue(TOPIC, group_id=f"workers-{next(_runs)}") as queue:
        queue.accept(queue.take(1, timeout_ms=10_000))
        count, started = 0, time.perf_counter()
        while count < RECORDS - 1:
            records = queue.take(TAKEN)
            queue.accept(records)
            count += len(records)
        queue.flush()
        return count / (time.perf_counter() - started)


def _singles_per_s(cluster: Any) -> float:
    """A call of ``accept`` for each record."""
    with cluster.queue(TOPIC, group_id=f"workers-{next(_runs)}") as queue:
        queue.accept(queue.take(1, timeout_ms=10_000))
        count, started = 0, time.perf_counter()
        while count < SINGLES:
            for record in queue.take():
                queue.accept(record)
                count += 1
        queue.flush()
        return count / (time.perf_counter() - started)


def _transactions_per_s(cluster: Any) -> float:
    """A record, its result and its acknowledgement in a transaction."""
    name = f"workers-{next(_runs)}"
    with (
        cluster.queue(TOPIC, group_id=name) as queue,
        cluster.producer(transactional_id=name) as producer,
    ):
        producer.init_transactions()
        records = queue.take(TRANSACTIONS, timeout_ms=10_000)
        started = time.perf_counter()
        for record in records:
            with producer.transaction():
                producer.send("results", value=record.value)
                producer.send_acknowledgements_to_transaction(record, queue)
        return len(records) / (time.perf_counter() - started)


MEASURED: Final[dict[str, Callable[[Any], float]]] = {
    "records consumed": _consumed_per_s,
    "records accepted by batch": _accepted_per_s,
    "records accepted one by one": _singles_per_s,
    "transactions": _transactions_per_s,
}


def _measure(report: Report, cluster: Any) -> None:
    for run in MEASURED.values():
        run(cluster)
    rates: dict[str, list[float]] = {what: [] for what in MEASURED}
    for _ in range(report.rounds):
        for what, run in MEASURED.items():
            rates[what].append(run(cluster))
    for what, samples in rates.items():
        rate = statistics.median(samples)
        report.figure(what.replace(" ", "_"), rate, f"{rate:10.0f} {what}/s")
    pairs = zip(rates["records accepted by batch"], rates["records consumed"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    report.target("accepted_by_batch_of_consumed", ratio, BATCH_AT_LEAST)
    singles = statistics.median(rates["records accepted one by one"])
    report.target("accepted_one_by_one_per_s", singles, SINGLES_AT_LEAST)


def main() -> int:
    """Measure, and append what was found; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    # Before Ray is imported.
    keep_output_clean()
    import oncelog

    report = Report(rounds=options.rounds)
    with tempfile.TemporaryDirectory() as directory:
        cluster = oncelog.init(Path(directory) / "data", num_cpus=2)
        try:
            admin = cluster.admin()
            admin.create_topic(TOPIC, partitions=PARTITIONS)
            admin.create_topic("results", partitions=1)
            with cluster.producer() as producer:
                for _ in range(RECORDS):
                    producer.send(TOPIC, value=RECORD)
                producer.flush()
            _measure(report, cluster)
        finally:
            cluster.shutdown()
    save(RESULTS, "queues", report)
    return int(not all(target["met"] for target in report.targets))


if __name__ == "__main__":
    sys.exit(main())
