"""Two plain nodes without labels, each with a disk of its own; the one that has the data dies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import DEADLINE_S, wait_for
from ray_nodes import Nodes, can_unshare

pytestmark = [pytest.mark.ray, pytest.mark.nodes]

NODE_ADDRESS = "127.0.0.2"
RECORDS = 1_000

FOUNDER = """
import sys
import ray
ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], namespace="oncelog")
import oncelog
cluster = oncelog.init(sys.argv[3])
cluster.admin().create_topic("t", partitions=2)
with cluster.producer() as producer:
    for number in range(int(sys.argv[4])):
        producer.send("t", key=b"%d" % number, value=b"%d" % number)
    producer.flush()
cluster.close()
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    if not can_unshare():
        pytest.skip("needs the right to give a process mounts of its own")
    found = Nodes(tmp_path)
    try:
        found.start_node("node", NODE_ADDRESS)
        yield found
    finally:
        found.close()


def test_a_log_whose_node_is_away_is_unavailable_and_comes_back_whole(nodes: Nodes) -> None:
    """1. A log is founded on one of two plain nodes. 2. That node dies. 3. Nothing of it starts on
    the other node, and nothing is founded there. 4. The node is back, and so is every record.
    """
    data_dir = str(nodes.data / "log")
    subprocess.run(
        [sys.executable, "-c", FOUNDER, nodes.address, NODE_ADDRESS, data_dir, str(RECORDS)],
        check=True,
        timeout=2 * DEADLINE_S,
        env=nodes.environment,
    )
    assert (nodes.root / "node" / "log" / "meta.properties").exists()
    nodes.kill_raylet_of("node")
    wait_for(lambda: "is away" in nodes.run("topics", "list").stderr, "the news of its death")
    refused = nodes.start_log()
    assert refused.returncode == 1
    assert "no node has the data of cluster" in refused.stderr
    assert nodes.run("consume", "t", "--from-beginning", "--timeout-ms", "1000").returncode == 1
    assert list((nodes.root / "head").iterdir()) == []
    nodes.start_node("node", NODE_ADDRESS)
    wait_for(lambda: nodes.run("status").returncode == 0, "the log")
    arguments = ("--from-beginning", "--max-records", str(RECORDS))
    read = nodes.run("consume", "t", *arguments)
    assert (read.returncode, read.stderr) == (0, "")
    assert sorted(map(int, read.stdout.split())) == list(range(RECORDS))
    assert list((nodes.root / "head").iterdir()) == []
