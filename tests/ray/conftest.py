"""Topics of a test's own on the real cluster, and ways to kill its processes and to read it."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from deadlines import DEADLINE_S

_numbers = itertools.count()


@pytest.fixture
def topic(cluster: Any) -> str:
    """A new topic of two partitions."""
    name = f"topic-{next(_numbers)}"
    cluster.admin().create_topic(name, partitions=2)
    return name


@pytest.fixture
def kill() -> Callable[[Any], int]:
    """kill -9 the process of an actor by its process id, once it serves."""

    def kill_process_of(handle: Any) -> int:
        import ray

        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                health = ray.get(handle.health.remote(), timeout=10)
            except ray.exceptions.RayActorError:
                continue  # Still coming back from an earlier kill.
            if health.is_serving:
                os.kill(health.process_id, signal.SIGKILL)
                return int(health.process_id)
        raise AssertionError(f"{handle} did not serve within {DEADLINE_S:.0f} s")

    return kill_process_of


@pytest.fixture
def read_all(cluster: Any) -> Callable[..., list[Any]]:
    """Everything a reader of a topic sees from its beginning to its end as of now."""

    def read(topic: str, isolation_level: str = "read_committed") -> list[Any]:
        import oncelog

        partitions = [oncelog.TopicPartition(topic, number) for number in range(2)]
        with cluster.consumer(
            isolation_level=isolation_level, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            records: list[Any] = []
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                records += consumer.poll(timeout_ms=5_000, max_records=10_000)
            return records

    return read
