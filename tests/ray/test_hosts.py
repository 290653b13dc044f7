"""`ray up` with the shipped cluster.yaml, on two hosts that this machine plays."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import wait_for
from hosts_cluster import PROGRAMS, HostsCluster
from network_hosts import Network, missing

from oncelog.actors.config import ClusterConfig

pytestmark = pytest.mark.ray

SESSION_S = ClusterConfig().group_share_session_timeout_ms / 1_000
"""A worker that is only silent keeps its records for three quarters of it at least."""


@pytest.fixture
def network() -> Iterator[Network]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    root = Path(tempfile.mkdtemp(prefix="oncelog-hosts-"))  # Short: sockets lie below it.
    try:
        with Network(root) as found:
            yield found
    finally:
        shutil.rmtree(root)


def test_ray_up_makes_a_cluster_whose_hosts_share_a_transaction(network: Network) -> None:
    """1. `ray up`; the log serves when it returns. 2. The other host joins with a number that
    nobody wrote. 3. A program there writes to both, to a copy on each. 4. Workers of a queue
    die on both. 5. `ray down`; the head is empty.
    """
    cluster = HostsCluster(network, workers=1, has_dashboard=False)
    (worker,) = cluster.workers
    cluster.up()
    assert "__transaction_state" in cluster.oncelog("topics", "list", "--internal")
    cluster.wait_until_all_serve()
    assert cluster.number_of(cluster.head) == 1
    assert cluster.number_of(worker) > 1
    cluster.oncelog("topics", "create", "t", "--partitions", "4")
    assert [cluster.partitions_on(host, "t") for host in cluster.hosts()] == [[0, 1, 2, 3]] * 2
    assert {one["leader"] for one in cluster.partitions("t")} == {1, cluster.number_of(worker)}
    worker.run(*cluster.writer(worker, "writer", "t", range(4), 5))
    cluster.wait_until_in_sync("t", 2)
    cluster.wait_until_equal("t")
    assert cluster.check(cluster.head, "t") == 16
    check_deaths_of_workers(cluster, "t", 16)
    cluster.down()
    assert not [line for line in cluster.head.processes() if line.startswith("ray::")]


def check_deaths_of_workers(cluster: HostsCluster, topic: str, count: int) -> None:
    """On either host, another worker has the records long before a session could end.

    One of the two deaths is not on the host of the group's coordinator.
    """
    (other,) = cluster.workers
    places: list[Path] = []
    for host in (other, cluster.head, other):
        place = host.home / f"worker-{len(places)}"
        place.mkdir()
        arguments = ("group", topic, str(count), str(place))
        host.begin(sys.executable, str(PROGRAMS / "queue_worker.py"), *arguments)
        if places:
            wait_for((place / "waits").exists, f"{place.name}, which waits for another's records")
            (places[-1] / "die").touch()
        wait_for((place / "held").exists, f"{place.name} with all records")
        if places:
            inherited_s = time_in(place / "held") - time_in(places[-1] / "dead")
            assert 0 <= inherited_s < SESSION_S / 2, host.name
        places.append(place)
    (places[-1] / "die").touch()


def time_in(file: Path) -> float:
    return float(file.read_text())
