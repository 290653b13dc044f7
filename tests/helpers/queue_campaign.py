"""A queue on real Ray, whose workers and coordinators are killed: each result is there once.

    ./run python tests/helpers/queue_campaign.py --tasks 100000 --workers 6 --seed 1

Starts a cluster of its own in a temporary directory. Prints one line at the end; its status is 1 if
a result is missing or there twice.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from typing import Any

import ray

import oncelog

TASKS, RESULTS, GROUP = "queue-tasks", "queue-results", "queue-workers"
TAKEN = 50
KILL_EVERY_S = (0.5, 3.0)
TRANSACTION_TIMEOUT_MS = 10_000
LIMIT_S = 3_600.0
END_LIMIT_S = 120.0


class Worker:
    """Takes tasks and writes a result for each, until it is killed."""

    def __init__(self, number: int) -> None:
        self._number = number

    def work(self) -> None:
        """Never returns. A client that fails for good is made anew."""
        cluster = oncelog.connect()
        while True:
            with contextlib.suppress(oncelog.OncelogError):
                self._work(cluster)

    def _work(self, cluster: Any) -> None:
        name = f"queue-worker-{self._number}"
        with (
            cluster.producer(
                transactional_id=name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
            ) as producer,
            cluster.queue(TASKS, group_id=GROUP) as queue,
        ):
            producer.init_transactions()
            while True:
                records = queue.take(TAKEN)
                if not records:
                    continue
                try:
                    with producer.transaction():
                        for record in records:
                            producer.send(RESULTS, value=record.value)
                        producer.send_acknowledgements_to_transaction(records, queue)
                except oncelog.OncelogError as error:
                    if not error.abortable:
                        raise


def campaign(cluster: Any, *, tasks: int, workers: int, seed: int) -> Counter[str]:
    """Play it on ``cluster``; return how often each task has a result, and what was killed."""
    chance = random.Random(seed)
    admin = cluster.admin()
    for topic in (TASKS, RESULTS):
        admin.create_topic(topic, partitions=2)
    with cluster.producer() as producer:
        for number in range(tasks):
            producer.send(TASKS, value=str(number).encode())
        producer.flush()
    # Workers cannot import this module.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    make = ray.remote(num_cpus=0)(Worker)
    crew = [make.remote(number) for number in range(workers)]
    for one in crew:
        one.work.remote()
    counts: Counter[str] = Counter()
    began_s, next_s = time.monotonic(), chance.uniform(*KILL_EVERY_S)
    with cluster.queue(TASKS, group_id=GROUP) as queue:
        while (backlog := _backlog(queue)) is None or backlog.total or not backlog.workers:
            passed_s = time.monotonic() - began_s
            if passed_s > LIMIT_S:
                raise AssertionError(f"not done within {LIMIT_S} s: {backlog}, {counts}")
            if passed_s >= next_s:
                next_s = passed_s + chance.uniform(*KILL_EVERY_S)
                counts[_kill(cluster, make, crew, chance)] += 1
            time.sleep(0.2)
    for one in crew:
        ray.kill(one)
    counts["seconds"] = int(time.monotonic() - began_s)
    results = _results(cluster)
    wanted = Counter(str(number) for number in range(tasks))
    counts["missing"] = sum((wanted - results).values())
    counts["twice"] = sum((results - wanted).values())
    return counts


def _backlog(queue: Any) -> Any:
    """The backlog; None while its coordinator is away."""
    try:
        return queue.backlog()
    except oncelog.OncelogError:
        return None


def _kill(cluster: Any, make: Any, crew: list[Any], chance: random.Random) -> str:
    if chance.random() < 0.6:
        number = chance.randrange(len(crew))
        ray.kill(crew[number])
        crew[number] = make.remote(number)
        crew[number].work.remote()
        return "workers killed"
    try:
        if chance.random() < 0.6:
            ray.kill(cluster.group_coordinator(GROUP), no_restart=False)
        else:
            coordinator = cluster.transaction_coordinator("queue-worker-0")
            ray.kill(coordinator, no_restart=False)
    except (oncelog.OncelogError, ValueError):
        return "coordinators away"
    return "coordinators killed"


def _results(cluster: Any) -> Counter[str]:
    """How often each task has a result; waits for transactions that a killed worker left open."""
    found: Counter[str] = Counter()
    partitions = [oncelog.TopicPartition(RESULTS, number) for number in range(2)]
    with (
        cluster.consumer(isolation_level="read_uncommitted") as everything,
        cluster.consumer(auto_offset_reset="earliest") as consumer,
    ):
        ends = everything.end_offsets(partitions)
        consumer.assign(partitions)
        limit_s = time.monotonic() + END_LIMIT_S
        while any(consumer.position(one) < ends[one] for one in partitions):
            if time.monotonic() > limit_s:
                raise AssertionError(f"results cannot be read to {ends} within {END_LIMIT_S} s")
            records = consumer.poll(timeout_ms=1_000, max_records=10_000)
            found.update(record.value.decode() for record in records)
    return found


def main(arguments: list[str]) -> int:
    """Run a campaign on a cluster of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, oncelog.init(data_dir=directory) as cluster:
        try:
            counts = campaign(cluster, tasks=given.tasks, workers=given.workers, seed=given.seed)
        finally:
            cluster.shutdown()
    sys.stdout.write(f"seed {given.seed}, {given.tasks} tasks: {dict(counts)}\n")
    return 1 if counts["missing"] or counts["twice"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
