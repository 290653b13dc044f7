"""Ray Data's own connector to Kafka, at the gateway of a cluster: in a process of its own.

That joins the Ray that the cluster is in, as a program of its users does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from deadlines import DEADLINE_S
from kafka_clients import KafkaCluster

from oncelog.api.session import cluster_connection

PROGRAM = """
import json, sys
import ray

address, servers, done = sys.argv[1:]
ray.init(address, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
options = json.load(sys.stdin)
if done == "read":
    if "end_offset" in options:
        options["end_offset"] = {
            topic: {int(number): end for number, end in ends.items()}
            for topic, ends in options["end_offset"].items()
        }
    for row in ray.data.read_kafka(bootstrap_servers=servers, **options).iter_rows():
        row["headers"] = dict(row["headers"])
        print(json.dumps(row, default=lambda told: told.decode()))
else:
    rows = ray.data.from_items(options.pop("rows"))
    rows.write_kafka(bootstrap_servers=servers, **options)
"""


def read_with_ray_data(cluster: KafkaCluster, **options: Any) -> list[dict[str, Any]]:
    """The rows of ``ray.data.read_kafka``, with keys, values and headers as text."""
    return [json.loads(line) for line in _run(cluster, "read", options).splitlines()]


def write_with_ray_data(cluster: KafkaCluster, rows: list[Any], **options: Any) -> None:
    """Write rows by ``Dataset.write_kafka``."""
    _run(cluster, "write", {"rows": rows, **options})


def _run(cluster: KafkaCluster, done: str, options: dict[str, Any]) -> str:
    found = cluster_connection.read_discovery(cluster.data_dir)
    assert found is not None
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, found.address, cluster.bootstrap, done],
        input=json.dumps(options),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**cluster.environment, "RAY_AUTH_MODE": "token"},
    )
    assert ended.returncode == 0, ended.stderr[-5_000:]
    return ended.stdout
