"""Three nodes with a copy of each partition: one dies, a process stops, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import DEADLINE_S, wait_for
from ray_nodes import Nodes, can_unshare

pytestmark = [pytest.mark.ray, pytest.mark.nodes, pytest.mark.slow]

PARTITIONS = 3
COUNT = 300

WRITER = """
import sys, time, oncelog
cluster = oncelog.connect(sys.argv[1])
longest = 0.0
with cluster.producer(transactional_id="writer", delivery_timeout_ms=60_000) as producer:
    producer.init_transactions()
    for number in range(int(sys.argv[2])):
        begun = time.monotonic()
        with producer.transaction():
            for partition in range(3):
                producer.send("t", b"%d" % (3 * number + partition), partition=partition)
        longest = max(longest, time.monotonic() - begun)
        print(number, flush=True)
print(f"longest {longest:.1f}", flush=True)
cluster.close()
"""

NEAR_READER = """
import sys, time, oncelog
cluster = oncelog.connect(sys.argv[1])
producer = cluster.producer(transactional_id="near", delivery_timeout_ms=60_000)
producer.init_transactions()
consumer = cluster.consumer(client_rack="b", auto_offset_reset="earliest")
consumer.assign(oncelog.TopicPartition("t", 0))

def write(first):
    with producer.transaction():
        for number in range(first, first + 3):
            producer.send("t", b"%d" % number, partition=0)

def read(count):
    values, deadline = [], time.monotonic() + float(sys.argv[2])
    while len(values) < count and time.monotonic() < deadline:
        values += [int(record.value) for record in consumer.poll(200)]
    return values

def tell(values):
    metrics = consumer.metrics()
    names = ("follower_partitions", "follower_fetch_total")
    print("found", values, *(int(metrics[name]) for name in names), flush=True)

while not consumer.metrics()["follower_partitions"]:
    write(0)
    assert read(3) == [0, 1, 2]
before = consumer.metrics()["follower_fetch_total"]
write(3)
values = read(3)
assert consumer.metrics()["follower_fetch_total"] > before
tell(values)
sys.stdin.readline()
write(6)
tell(read(3))
cluster.close()
"""

LEADERS = """
import json, sys, oncelog
cluster = oncelog.connect(sys.argv[1])
topic = cluster.admin().describe_topic("t")
print("found", json.dumps([[one.leader, one.isr] for one in topic.partitions]), flush=True)
cluster.close()
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    if not can_unshare():
        pytest.skip("needs the right to give a process mounts of its own")
    found = Nodes(tmp_path, head_labels="broker=1")
    try:
        assert found.start_log().returncode == 0
        found.start_node("two", "127.0.0.2", labels="broker=2,rack=b")
        found.start_node("three", "127.0.0.3", labels="broker=3,rack=c")
        wait_for(lambda: list(found.brokers().values()) == ["alive"] * 3, "three brokers")
        created = found.run("topics", "create", "t", "--partitions", str(PARTITIONS))
        assert (created.returncode, created.stderr) == (0, "")
        yield found
    finally:
        found.close()


def partitions(nodes: Nodes) -> list[tuple[int, set[int]]]:
    """Leader and in-sync replicas of each partition."""
    command = [sys.executable, "-c", LEADERS, nodes.address]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
        env=nodes.environment,
    )
    # Ray writes news about nodes to the same stream.
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    return [(leader, set(isr)) for leader, isr in json.loads(line.removeprefix("found "))]


def begin_to_write(nodes: Nodes, log: Path) -> subprocess.Popen[bytes]:
    """A program that writes a transaction after the other, once it has committed some."""
    command = [sys.executable, "-c", WRITER, nodes.address, str(COUNT)]
    with log.open("wb") as output:
        begun = subprocess.Popen(command, stdout=output, env=nodes.environment)
    wait_until_written(log, 10)
    return begun


def wait_until_written(log: Path, count: int) -> None:
    wait_for(lambda: log.read_text().count("\n") > count, f"transaction {count}")


def logs(nodes: Nodes, partition: int) -> list[bytes]:
    """The batches of one partition on each disk."""
    return [
        b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))
        for path in nodes.root.glob(f"*/log/t-{partition}")
    ]


def test_transactions_go_on_through_the_death_of_a_node_and_a_process_that_stops(
    nodes: Nodes, tmp_path: Path
) -> None:
    """1. A program commits. 2. Node two dies. 3. It is back, and in sync. 4. The process that leads
    on node three stops. 5. It goes on. 6. All is there once, and equal on all disks.
    """
    assert [leader for leader, _ in partitions(nodes)] == [1, 2, 3]
    log = tmp_path / "writer.log"
    writer = begin_to_write(nodes, log)
    nodes.kill_raylet_of("two")
    wait_until_written(log, 60)
    assert all(leader != 2 for leader, _ in partitions(nodes))
    nodes.start_node("two", "127.0.0.2", labels="broker=2,rack=b")
    in_sync = {1, 2, 3}
    wait_for(lambda: all(isr == in_sync for _, isr in partitions(nodes)), "three replicas in sync")
    stopped = next(
        one["process_id"] for one in nodes.status()["actors"] if one["name"].endswith("@3")
    )
    os.kill(stopped, signal.SIGSTOP)
    try:
        wait_for(lambda: all(leader != 3 for leader, _ in partitions(nodes)), "another leader")
        wait_until_written(log, 200)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert writer.wait(timeout=DEADLINE_S) == 0
    wait_for(lambda: all(isr == in_sync for _, isr in partitions(nodes)), "three replicas in sync")
    done = nodes.run("consume", "t", "--from-beginning", "--max-records", str(3 * COUNT))
    assert sorted(map(int, done.stdout.split())) == list(range(3 * COUNT))
    for partition in range(PARTITIONS):
        first, *others = logs(nodes, partition)
        assert first
        assert others == [first, first]


def test_a_consumer_reads_from_the_replica_in_its_rack_and_goes_on_when_that_is_killed(
    nodes: Nodes,
) -> None:
    """1. Broker 1 leads, and broker 2 is in the consumer's rack. 2. Its node dies."""
    assert partitions(nodes)[0] == (1, {1, 2, 3})
    command = [sys.executable, "-c", NEAR_READER, nodes.address, str(DEADLINE_S)]
    pipe = subprocess.PIPE
    program = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=nodes.environment)
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        found = (line for line in program.stdout if line.startswith("found"))
        near = next(found).split("] ")
        assert near[0] == "found [3, 4, 5"
        follower_partitions, follower_fetches = map(int, near[1].split())
        assert follower_partitions == 1
        assert follower_fetches > 0
        nodes.kill_raylet_of("two")
        print(file=program.stdin, flush=True)
        assert next(found).startswith("found [6, 7, 8]")
        assert program.wait(timeout=DEADLINE_S) == 0
    finally:
        program.kill()
        program.wait()
