"""What replication costs: three brokers on this machine, topics with one replica and with three.

``./run bench replication [--rounds N]``. Needs mount namespaces, as each node has a disk of its own
at one path; all are on the disk of the machine. Rounds alternate between the factors. The run is
appended to ``bench/results/replication.jsonl``.

Targets: with three replicas 35 % of the throughput of one at batches of 1 MiB, and at most 0.6 ms
more until a record is acknowledged; a copy catches up with 100 MB/s.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from measuring.report import Report, alternate, save

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "bench" / "results" / "replication.jsonl"
ROUNDS: Final = 3
FACTORS: Final = (1, 3)
RECORD_BYTES: Final = 100_000
RECORD_COUNT: Final = 1_500
BATCH_BYTES: Final = 1_048_576
SINGLE_COUNT: Final = 300
NODES: Final = (("two", "127.0.0.2", "broker=2"), ("three", "127.0.0.3", "broker=3"))


@contextlib.contextmanager
def three_brokers(root: Path) -> Iterator[Any]:
    """A Ray cluster of three nodes on which the log runs; gives the nodes."""
    sys.path.append(str(ROOT / "tests" / "helpers"))
    ray_nodes = importlib.import_module("ray_nodes")
    nodes = ray_nodes.Nodes(root, head_labels="broker=1")
    try:
        started = nodes.run("start", "--data-dir", str(nodes.data / "log"))
        if started.returncode:
            raise RuntimeError(started.stderr)
        for name, address, labels in NODES:
            nodes.start_node(name, address, labels=labels)
        yield nodes
    finally:
        nodes.close()


def topic_of(factor: int) -> str:
    """The topic with so many replicas."""
    return f"with-{factor}"


def send_large(cluster: Any, factor: int) -> float:
    """Seconds until large batches are acknowledged; all partitions on one leader each."""
    value = b"x" * RECORD_BYTES
    with cluster.producer(batch_size=BATCH_BYTES, linger_ms=5) as producer:
        producer.send(topic_of(factor), value, partition=0).result(60)
        begun = time.perf_counter()
        for _ in range(RECORD_COUNT):
            producer.send(topic_of(factor), value, partition=0)
        producer.flush()
        return time.perf_counter() - begun


def send_singly(cluster: Any, factor: int) -> float:
    """The median of the seconds that a record takes to be acknowledged, each alone."""
    taken = []
    with cluster.producer(linger_ms=0) as producer:
        for _ in range(SINGLE_COUNT):
            begun = time.perf_counter()
            producer.send(topic_of(factor), b"x" * 100, partition=0).result(60)
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def catch_up(cluster: Any, report: Report) -> None:
    """How fast the replicas are made that one more copy of a topic needs."""
    admin = cluster.admin()
    name = topic_of(1)
    (partition,) = admin.describe_topic(name).partitions
    target = [*partition.replicas, *({1, 2, 3} - set(partition.replicas))][:2]
    size = cluster_size(admin, name)
    begun = time.perf_counter()
    admin.reassign_partition(name, 0, target)
    while set(admin.describe_topic(name).partitions[0].isr) != set(target):
        time.sleep(0.05)
    taken = time.perf_counter() - begun
    report.target("a copy catches up, MB/s", size / taken / 1e6, 100.0)


def cluster_size(admin: Any, name: str) -> int:
    """Bytes of the topic's one partition."""
    from oncelog.storage.model import TopicPartition

    return int(admin.describe_replica(TopicPartition(name, 0)).size_bytes)


def main() -> int:
    """Run, print and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    report = Report(rounds=options.rounds)
    with (
        tempfile.TemporaryDirectory(prefix="oncelog-bench-") as root,
        three_brokers(Path(root)) as nodes,
        contextlib.ExitStack() as stack,
    ):
        os.environ.update(nodes.environment)  # Its token, before Ray is imported.
        import oncelog

        # Before the nodes end: Ray would wait for them, and then end this process.
        cluster = stack.enter_context(contextlib.closing(oncelog.connect(nodes.address)))
        admin = cluster.admin()
        while sum(one.is_live for one in admin.describe_cluster().brokers) < len(FACTORS) + 1:
            time.sleep(0.2)
        for factor in FACTORS:
            admin.create_topic(topic_of(factor), 1, factor)
        for name, measure, scale in (
            ("1 MiB batches, s", send_large, 1.0),
            ("one record acknowledged, ms", send_singly, 1e3),
        ):
            one, three = alternate(
                options.rounds,
                partial(measure, cluster, 1),
                partial(measure, cluster, 3),
            )
            medians = [scale * statistics.median(found) for found in (one, three)]
            for factor, median in zip(FACTORS, medians, strict=True):
                report.figure(f"{name}, {factor} replicas", median, f"{median:.2f}")
            if measure is send_large:
                report.target("throughput of three to one", medians[0] / medians[1], 0.35)
            else:
                added = medians[1] - medians[0]
                report.target("added by two more, ms", added, 0.6, at_least=False)
        catch_up(cluster, report)
    save(RESULTS, "replication", report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
