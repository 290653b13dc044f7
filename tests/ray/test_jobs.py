"""Jobs of ``cluster.process`` on a real cluster: what ends a worker is seen, and jobs are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

import oncelog

pytestmark = pytest.mark.ray

TIMEOUT_S = 240
"""As ``deadlines`` has it, which the workers that import this module for its functions have not."""

START = """
import sys
import oncelog
address, source, group_id = sys.argv[1:]
cluster = oncelog.connect(address)
sink = source + "-sink"
cluster.process(source=source, sink=sink, function=lambda t: t, group_id=group_id, workers=1)
"""


def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
    from oncelog.api.session.cluster_connection import ray_address

    return subprocess.run(
        [sys.executable, "-m", "oncelog.api.cli.main", *arguments, "--address", ray_address()],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


@pytest.fixture
def source(cluster: Any, topic: str) -> str:
    """A topic of ten records, with another for the output of a job."""
    cluster.admin().create_topic(f"{topic}-sink", partitions=2)
    with cluster.producer() as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    return topic


def ends_its_process(table: Any) -> Any:
    os._exit(7)


def asks_to_exit(table: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (asks_to_exit, "SystemExit: 3"),
        (ends_its_process, "2 processes in a row died"),
    ],
)
def test_a_function_that_ends_its_worker_fails_the_job_visibly(
    cluster: Any, source: str, function: Any, reason: str
) -> None:
    job = cluster.process(
        source=source,
        sink=f"{source}-sink",
        function=function,
        group_id=f"bad-{source}",
        workers=1,
        max_worker_deaths=2,
    )
    try:
        with pytest.raises(oncelog.ProcessFailedError, match=reason):
            job.wait(timeout_ms=90_000)
        assert reason in job.status().failures[0]
        described = shell("jobs", "describe", job.group_id)
        assert described.returncode == 1
        assert reason in described.stdout
    finally:
        job.stop()


def test_a_job_outlives_its_driver_and_is_listed_attached_to_and_stopped(
    cluster: Any, source: str
) -> None:
    from oncelog.api.session.cluster_connection import ray_address

    group_id = f"job-{source}"
    command = [sys.executable, "-c", START, ray_address(), source, group_id]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    job = cluster.job(group_id)
    assert job.wait(timeout_ms=60_000).lag == 0
    assert (job.sources, job.sinks) == ((source,), (f"{source}-sink",))
    assert group_id in [found.group_id for found in cluster.jobs()]

    listed = json.loads(shell("jobs", "list", "--json").stdout)
    assert [one["lag"] for one in listed if one["group"] == group_id] == [0]
    described = shell("jobs", "describe", group_id)
    assert (described.returncode, described.stderr) == (0, "")
    stopped = shell("jobs", "stop", group_id)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert group_id not in [found.group_id for found in cluster.jobs()]
    missing = shell("jobs", "describe", group_id)
    assert missing.returncode == 1
    assert "no job with group_id" in missing.stderr
