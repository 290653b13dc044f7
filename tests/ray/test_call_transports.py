"""Calls that Ray carries and calls that connections carry: the same cluster either way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from deadlines import DEADLINE_S
from issued_certificates import Authority

from oncelog.actors.config import RAY, CallTransport

pytestmark = pytest.mark.ray

SLICE = """
import os, signal, subprocess, sys
import oncelog, ray

data_dir, calls, program = sys.argv[1:]
cluster = oncelog.init(data_dir, num_cpus=2, calls=calls)
cluster.admin().create_topic("flights", partitions=1)
leader = cluster.partition("flights", 0)
with cluster.producer(transactional_id="slice") as producer:
    producer.init_transactions()
    for number in range(4):
        with producer.transaction():
            producer.send("flights", b"%d" % number)
        if number == 1:
            os.kill(ray.get(leader.health.remote()).process_id, signal.SIGKILL)
    producer.begin_transaction()
    producer.send("flights", b"never")
    producer.flush()
    producer.abort_transaction()

# Another program learns how to call from the cluster.
reader = [sys.executable, "-c", program, cluster.address]
read = subprocess.run(reader, capture_output=True, text=True, timeout=120)
assert read.returncode == 0, read.stderr
(said,) = [one for one in read.stdout.splitlines() if one.startswith("read: ")]
is_listening = ray.get(leader.listener_address.remote()) is not None
is_counted = ray.get(leader.health.remote()).answered_calls > 0

# Ray carries no calls of users, who are told so, and not that the log did not start.
with open(data_dir + ".password", "w") as file:
    file.write("hers")
try:
    oncelog.connect(cluster.address, user="alice", password_file=file.name)
except oncelog.SaslAuthenticationFailedError as error:
    is_only_ray = "it takes only calls that Ray carries" in str(error)
# Ray writes lines of its own between.
print("slice:", said.removeprefix("read: "), is_listening, is_counted, is_only_ray, flush=True)
cluster.shutdown()
ray.shutdown()
"""

READER = """
import sys
import oncelog

with oncelog.connect(sys.argv[1]) as other:
    with other.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["flights"])
        values = []
        while len(values) < 4:
            values += [record.value for record in consumer.poll(timeout_ms=1_000)]
        consumer.commit()
    loops = other._connections._of_loop.values()
    connections = [one for loop in loops for one in loop._connections.values()]
    secured = [one for one in connections if one.transport.get_extra_info("ssl_object")]
assert len(secured) in (0, len(connections))
values = b" ".join(values).decode()
print("read:", values, bool(connections), bool(secured), flush=True)
"""


def run_slice(data_dir: Path, calls: str, **environment: str) -> str:
    """What the program says of itself."""
    done = subprocess.run(
        [sys.executable, "-c", SLICE, str(data_dir), calls, READER],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * DEADLINE_S,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("slice: ")]
    return said.removeprefix("slice: ")


@pytest.mark.parametrize("calls", get_args(CallTransport))
def test_a_cluster_writes_reads_and_survives_on_either_road(tmp_path: Path, calls: str) -> None:
    is_connected = calls != RAY
    said = f"0 1 2 3 {is_connected} False {is_connected} True {not is_connected}"
    assert run_slice(tmp_path / "data", calls) == said


@pytest.mark.slow
def test_rays_certificates_secure_connections_too(tmp_path: Path) -> None:
    import ray

    authority = Authority(tmp_path, "cluster")
    variables = authority.issue("127.0.0.1", ray.util.get_node_ip_address())
    said = run_slice(tmp_path / "data", "connections", **variables)
    assert said == "0 1 2 3 True True True True False"
