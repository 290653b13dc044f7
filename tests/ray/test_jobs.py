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
    shown = shell("logs", f"{group_id}-0")
    assert shown.stderr.startswith(f"process:{group_id}-0 on ")
    stopped = shell("jobs", "stop", group_id)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert group_id not in [found.group_id for found in cluster.jobs()]
    missing = shell("jobs", "describe", group_id)
    assert missing.returncode == 1
    assert "no job with group_id" in missing.stderr


async def by_parity(record: Any) -> Any:
    """What is no number fails; the others go to one of two topics."""
    number = int(record.value)
    topic = record.topic.removesuffix("-more")
    return {f"{topic}-sink" if number % 2 else f"{topic}-even": record.value}


def read(cluster: Any, topic: str) -> list[bytes]:
    """The committed values of a topic of two partitions."""
    partitions = [oncelog.TopicPartition(topic, number) for number in range(2)]
    with cluster.consumer(isolation_level="read_committed") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        consumer.seek_to_beginning()
        found = []
        while any(consumer.position(place) < end for place, end in ends.items()):
            found += [record.value for record in consumer.poll(1_000)]
        return found


def test_a_job_of_several_topics_is_scaled_and_sends_dead_letters(
    cluster: Any, source: str
) -> None:
    """Records go on arriving while there are more workers, then fewer, from another handle."""
    admin = cluster.admin()
    for name in (f"{source}-even", f"{source}-dead", f"{source}-more"):
        admin.create_topic(name, partitions=2)
    job = cluster.process(
        source=[source, f"{source}-more"],
        sink=[f"{source}-sink", f"{source}-even"],
        function=by_parity,
        batch_format="record",
        group_id=f"scaled-{source}",
        workers=1,
        on_error="dead_letter",
        dead_letter_topic=f"{source}-dead",
        max_function_failures=2,
    )
    try:
        other = cluster.job(job.group_id)
        sent = [b"%d" % number for number in range(10)]
        with cluster.producer() as producer:
            for workers in (3, 1, 2):
                first = len(sent)
                for number in range(first, first + 200):
                    producer.send((source, f"{source}-more")[number % 2], b"%d" % number)
                    sent.append(b"%d" % number)
                producer.send(source, b"bad %d" % workers)
                assert len(other.scale(workers).workers) == workers
            shown = shell("jobs", "scale", job.group_id, "1")
            assert (shown.returncode, shown.stderr) == (0, "")
        status = job.wait(timeout_ms=120_000)
        assert [worker.worker_index for worker in status.workers] == [0]
        odd = {value for value in sent if int(value) % 2}
        assert sorted(read(cluster, f"{source}-sink")) == sorted(odd)
        assert sorted(read(cluster, f"{source}-even")) == sorted(set(sent) - odd)
        assert sorted(read(cluster, f"{source}-dead")) == [b"bad 1", b"bad 2", b"bad 3"]
    finally:
        job.stop()


def test_a_worker_that_no_node_takes_is_said_in_a_line(cluster: Any, source: str) -> None:
    job = cluster.process(
        source=source,
        sink=None,
        function=lambda table: None,
        group_id=f"large-{source}",
        workers=1,
        ray_remote_args={"num_cpus": 0, "resources": {"no_such_thing": 3}},
    )
    try:
        with pytest.raises(oncelog.RequestTimedOutError, match="needs no_such_thing 3"):
            job.wait(timeout_ms=100)
        (worker,) = job.status().workers
        assert "free in the cluster: CPU" in worker.reason
    finally:
        job.stop(timeout_ms=100)


def test_what_ray_refuses_is_an_error_of_the_setting(cluster: Any, source: str) -> None:
    with pytest.raises(oncelog.InvalidSettingError, match="ray_remote_args"):
        cluster.process(
            source=source,
            sink=None,
            function=lambda table: None,
            group_id=f"refused-{source}",
            ray_remote_args={"num_cpus": -1},
        )
