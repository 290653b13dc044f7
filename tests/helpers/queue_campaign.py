"""A queue on real Ray, whose workers and coordinators are killed: each result is there once.

    ./run python tests/helpers/queue_campaign.py --tasks 100000 --workers 6 --seed 1

Starts a cluster of its own in a temporary directory. With ``--brokers 3`` each broker has a Ray
node of its own on this machine, with a disk of its own, and nodes are killed too. Prints one line
at the end; its status is 1 if a result is missing or there twice.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from faults.several_brokers import several_brokers
from faults.struck_nodes import name_of, start_node

import oncelog

TASKS, RESULTS, GROUP = "queue-tasks", "queue-results", "queue-workers"
TAKEN = 50
KILL_EVERY_S = (0.5, 3.0)
NODE_SHARE = 0.25
"""How many of the kills are of a node, where nodes can be killed."""
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


class Crew:
    """The workers; one whose process has ended is replaced."""

    def __init__(self, size: int) -> None:
        self._make = ray.remote(num_cpus=0)(Worker)
        self._all = [self._begun(number) for number in range(size)]

    def _begun(self, number: int) -> tuple[Any, Any]:
        worker = self._make.remote(number)
        return worker, worker.work.remote()

    def replace_dead(self) -> None:
        """Begin those anew that died with their node; raise what ends a worker by itself."""
        ended, _ = ray.wait([run for _, run in self._all], num_returns=len(self._all), timeout=0)
        for number, (_, run) in enumerate(self._all):
            if run in ended:
                with contextlib.suppress(ray.exceptions.RayActorError):
                    ray.get(run)
                self._all[number] = self._begun(number)

    def kill_one(self, chance: random.Random) -> None:
        """Kill any of them and begin it anew."""
        number = chance.randrange(len(self._all))
        ray.kill(self._all[number][0])
        self._all[number] = self._begun(number)

    def end(self) -> None:
        """Kill them all."""
        for worker, _ in self._all:
            ray.kill(worker)


def campaign(
    cluster: Any,
    *,
    tasks: int,
    workers: int,
    seed: int,
    kill_node: Callable[[random.Random], str] | None = None,
) -> Counter[str]:
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
    crew = Crew(workers)
    counts: Counter[str] = Counter()
    began_s, next_s = time.monotonic(), chance.uniform(*KILL_EVERY_S)
    with cluster.queue(TASKS, group_id=GROUP) as queue:
        while (backlog := _backlog(queue)) is None or backlog.total:
            passed_s = time.monotonic() - began_s
            if passed_s > LIMIT_S:
                raise AssertionError(f"not done within {LIMIT_S} s: {backlog}, {counts}")
            crew.replace_dead()
            if passed_s >= next_s:
                is_node = kill_node is not None and chance.random() < NODE_SHARE
                killed = kill_node(chance) if is_node else _kill(cluster, crew, chance)
                counts[killed] += 1
                next_s = time.monotonic() - began_s + chance.uniform(*KILL_EVERY_S)
            time.sleep(0.2)
    crew.end()
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


def _kill(cluster: Any, crew: Crew, chance: random.Random) -> str:
    if chance.random() < 0.6:
        crew.kill_one(chance)
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


@contextlib.contextmanager
def _one_broker(directory: Path) -> Iterator[tuple[Any, None]]:
    with oncelog.init(data_dir=directory) as cluster:
        try:
            yield cluster, None
        finally:
            cluster.shutdown()


@contextlib.contextmanager
def _brokers(directory: Path, count: int) -> Iterator[tuple[Any, Callable[[random.Random], str]]]:
    """A cluster of that many, and what kills one's node and has it come back at once."""
    with several_brokers(directory, brokers=count, replication=count, settings={}) as several:

        def kill_node(chance: random.Random) -> str:
            broker_id = chance.choice(several.broker_ids)
            several.nodes.kill_raylet_of(name_of(broker_id))
            start_node(several.nodes, broker_id)
            return "nodes killed"

        yield several.cluster, kill_node


def main(arguments: list[str]) -> int:
    """Run a campaign on a cluster of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", type=int, default=1)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        is_one = given.brokers == 1
        begun = _one_broker(directory) if is_one else _brokers(directory, given.brokers)
        with begun as (cluster, kill_node):
            counts = campaign(
                cluster,
                tasks=given.tasks,
                workers=given.workers,
                seed=given.seed,
                kill_node=kill_node,
            )
    sys.stdout.write(f"seed {given.seed}, {given.tasks} tasks: {dict(counts)}\n")
    return 1 if counts["missing"] or counts["twice"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
