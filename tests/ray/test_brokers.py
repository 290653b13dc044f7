"""Labelled nodes with a disk each join by themselves and share the partitions; one dies."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from deadlines import DEADLINE_S, wait_for
from ray_nodes import Nodes, can_unshare

pytestmark = [pytest.mark.ray, pytest.mark.nodes]

WRITER = """
import sys, oncelog
cluster = oncelog.connect(sys.argv[1])
first, last = int(sys.argv[2]), int(sys.argv[3])
partitions = [int(number) for number in sys.argv[4].split(",")]
with cluster.producer(transactional_id="writer") as producer:
    producer.init_transactions()
    with producer.transaction():
        for number in range(first, last):
            partition = partitions[number % len(partitions)]
            producer.send("t", b"%d" % number, partition=partition)
cluster.close()
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    if not can_unshare():
        pytest.skip("needs the right to give a process mounts of its own")
    found = Nodes(tmp_path, head_labels="broker=1")
    try:
        yield found
    finally:
        found.close()


def write(nodes: Nodes, first: int, last: int, partitions: Iterable[int] = range(6)) -> None:
    """One transaction of the numbers from ``first`` to ``last``, exclusive."""
    chosen = ",".join(map(str, partitions))
    command = [sys.executable, "-c", WRITER, nodes.address, str(first), str(last), chosen]
    subprocess.run(command, check=True, timeout=2 * DEADLINE_S, env=nodes.environment)


def read(nodes: Nodes, count: int) -> list[int]:
    done = nodes.run("consume", "t", "--from-beginning", "--max-records", str(count))
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(map(int, done.stdout.split()))


def test_nodes_that_are_labelled_join_and_one_that_dies_takes_only_its_own(nodes: Nodes) -> None:
    """1. A log on broker 1. 2. Nodes 2 and 3 come, 3 with the disk of another cluster.
    3. Partitions lie on 1 and 2, and a transaction spans them. 4. Node 2 dies: what is on 1 serves.
    5. It is back, with all it had.
    """
    assert nodes.start_log().returncode == 0
    strange = nodes.root / "three" / "log"
    strange.mkdir(parents=True)
    identity = f"version=0\nbroker.id=3\ncluster.id={'e' * 32}\n"
    (strange / "meta.properties").write_text(identity)
    nodes.start_node("two", "127.0.0.2", labels="broker=2,rack=b")
    nodes.start_node("three", "127.0.0.3", labels="broker=3")
    wait_for(lambda: nodes.brokers().get(2) == "alive" and 3 in nodes.brokers(), "the brokers")
    assert "takes no part" in nodes.brokers()[3]
    assert "e" * 32 in nodes.brokers()[3]
    shown = nodes.run("logs", "broker:3", "--level", "error")  # A file of another node.
    assert "does not take part" in shown.stdout
    assert shown.stderr.startswith("broker:3 on 127.0.0.3: ")
    created = nodes.run("topics", "create", "t", "--partitions", "6", "--replication-factor", "1")
    assert (created.returncode, created.stderr) == (0, "")
    write(nodes, 0, 60)
    assert read(nodes, 60) == list(range(60))
    held = Counter(path.name for path in nodes.root.glob("*/log/t-*"))
    assert set(held.values()) == {1}
    assert len(list((nodes.root / "two" / "log").glob("t-*"))) == 3
    nodes.kill_raylet_of("two")
    wait_for(lambda: nodes.brokers().get(2, "").startswith("fenced"), "the news of its death")
    on_one = [int(path.name[2:]) for path in (nodes.root / "head" / "log").glob("t-*")]
    write(nodes, 60, 90, on_one)
    nodes.start_node("two", "127.0.0.2", labels="broker=2,rack=b")
    wait_for(lambda: nodes.status().get("serving") is True, "the log")
    write(nodes, 90, 120)
    assert read(nodes, 120) == list(range(120))
