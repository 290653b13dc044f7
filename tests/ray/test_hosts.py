"""`ray up` with the shipped cluster.yaml, on two hosts that this machine plays."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts_cluster import HostsCluster
from network_hosts import Network, missing

pytestmark = pytest.mark.ray


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
    nobody wrote. 3. A program there writes to both, to a copy on each. 4. `ray down`; the head is
    empty.
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
    cluster.down()
    assert not [line for line in cluster.head.processes() if line.startswith("ray::")]
