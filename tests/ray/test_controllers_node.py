"""The controller's node dies, which is not Ray's head: another broker's takes over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import DEADLINE_S, wait_for
from ray_nodes import Nodes, can_unshare

pytestmark = [pytest.mark.ray, pytest.mark.nodes, pytest.mark.slow]

ADDRESSES = {1: "127.0.0.2", 2: "127.0.0.3", 3: "127.0.0.4"}

WRITER = """
import sys, oncelog
cluster = oncelog.connect(sys.argv[1])
with cluster.producer(transactional_id="writer") as producer:
    producer.init_transactions()
    with producer.transaction():
        for number in range(30):
            producer.send(sys.argv[2], b"%d" % number, partition=number % 3)
cluster.close()
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    if not can_unshare():
        pytest.skip("needs the right to give a process mounts of its own")
    found = Nodes(tmp_path)
    try:
        for number in ADDRESSES:
            start_node(found, number)
        yield found
    finally:
        found.close()


def start_node(nodes: Nodes, number: int) -> None:
    nodes.start_node(str(number), ADDRESSES[number], labels=f"broker={number}")


def write(nodes: Nodes, topic: str) -> None:
    """Make a topic of three partitions, and commit a transaction to all of them."""
    created = nodes.run("topics", "create", topic, "--partitions", "3")
    assert (created.returncode, created.stderr) == (0, "")
    command = [sys.executable, "-c", WRITER, nodes.address, topic]
    subprocess.run(command, check=True, timeout=2 * DEADLINE_S, env=nodes.environment)


def read(nodes: Nodes, topic: str) -> list[int]:
    done = nodes.run("consume", topic, "--from-beginning", "--max-records", "30")
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(map(int, done.stdout.split()))


def internal_replicas(nodes: Nodes) -> set[int]:
    """How many disks have each partition of the internal topics."""
    names = [
        path.name for path in nodes.root.glob("*/log/__[ct]*-[01]") if "metadata" not in path.name
    ]
    return {names.count(name) for name in names}


def has_copies(nodes: Nodes) -> bool:
    """Whether every voter is in sync, and every disk has each partition of the internal topics."""
    are_in_sync = sorted(nodes.voters().values()) == ["controller", "in sync", "in sync"]
    return are_in_sync and internal_replicas(nodes) == {3}


def test_another_broker_is_the_controller_when_its_node_has_died_and_two_voters_begin_again(
    nodes: Nodes, tmp_path: Path
) -> None:
    """1. A log on broker 1; three voters. 2. Node 1 dies. 3. Topics are made and led.
    4. Node 1 is back, and votes again. 5. Node 2 or 3, the controller's, dies: all that was written
    is there. 6. Every node dies, Ray's head too. 7. The other two are back, with another head, and
    the log is started: all is there, and topics are made.
    """
    assert nodes.start_log().returncode == 0
    wait_for(lambda: has_copies(nodes), "three voters, and copies of the internal topics")
    assert nodes.voters()[1] == "controller"
    write(nodes, "a")
    wait_for(lambda: nodes.status().get("serving") is True, "the log")
    nodes.kill_raylet_of("1")
    wait_for(lambda: "controller" in (nodes.voters().get(2), nodes.voters().get(3)), "another one")
    assert nodes.voters()[1] == "behind"
    write(nodes, "b")
    assert read(nodes, "a") == read(nodes, "b") == list(range(30))
    start_node(nodes, 1)
    wait_for(lambda: "behind" not in nodes.voters().values(), "the third voter")
    (controller,) = (number for number, state in nodes.voters().items() if state == "controller")
    wait_for(lambda: nodes.status().get("serving") is True, "the log")
    nodes.kill_raylet_of(str(controller))
    wait_for(lambda: nodes.voters().get(controller) == "behind", "the next one")
    write(nodes, "c")
    assert read(nodes, "a") == read(nodes, "b") == read(nodes, "c") == list(range(30))
    nodes.close()
    again = Nodes(tmp_path)
    try:
        for number in ADDRESSES.keys() - {controller}:
            start_node(again, number)
        assert "founded" not in again.start_log().stdout
        wait_for(lambda: "controller" in again.voters().values(), "the controller")
        wait_for(lambda: again.run("topics", "list").returncode == 0, "the log")
        assert read(again, "a") == read(again, "c") == list(range(30))
        write(again, "d")
        assert read(again, "d") == list(range(30))
        assert again.voters()[controller] == "behind"
    finally:
        again.close()
