"""A sample of ``bench/ray_data.py``: a write and a read on a new cluster of one side.

``samples/ray_data.py SIDE ROWS DIRECTORY``; see ``measuring.findings``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import ray

import oncelog
from clusters.servers import CPUS
from measuring.findings import take, tell
from measuring.processes import family
from oncelog import ray_data

PARTITIONS: Final = 6
WARM_UP_ROWS: Final = 20_000
TASK_NAMES: Final = ("ray::Write", "ray::Read", "ray::MapBatches", "ray::IDLE")
WATCH_S: Final = 0.1


def dataset(rows: int) -> Any:
    """Rows of one column, made as they are written."""

    def values(table: pa.Table) -> pa.Table:
        return pa.table(
            {"value": pa.array([f"{number:0100d}" for number in table["id"].to_pylist()])}
        )

    return ray.data.range(rows).map_batches(values, batch_format="pyarrow")


@contextmanager
def oncelog_side(directory: Path) -> Iterator[tuple[Callable[..., None], Callable[..., Any]]]:
    """How to write a dataset to a topic and how to read it; the log is in a Ray of this process."""
    with oncelog.init(directory / "data", num_cpus=CPUS) as cluster:

        def write(rows: Any, topic: str) -> None:
            cluster.admin().create_topic(topic, partitions=PARTITIONS)
            ray_data.write(rows, topic)

        yield write, ray_data.read
        cluster.shutdown()
    ray.shutdown()


@contextmanager
def kafka_side(directory: Path) -> Iterator[tuple[Callable[..., None], Callable[..., Any]]]:
    """The same with a broker beside it."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    from clusters.kafka_broker import KafkaBroker

    broker = KafkaBroker(directory, fsync=False)
    broker.format()
    broker.start()
    servers = f"127.0.0.1:{broker.port}"
    ray.init(address="local", num_cpus=CPUS, log_to_driver=False)
    try:

        def write(rows: Any, topic: str) -> None:
            admin = AdminClient({"bootstrap.servers": servers})
            (made,) = admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values()
            made.result(60)
            rows.write_kafka(topic, servers)

        yield write, lambda topic: ray.data.read_kafka(topic, bootstrap_servers=servers)
    finally:
        ray.shutdown()
        broker.stop()


class Watch:
    """The most memory of its own that a process of a task has, in MB, while it is entered."""

    def __init__(self) -> None:
        self.mb = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(WATCH_S):
            for life in family(os.getpid()):
                self.mb = max(self.mb, _own_mb(Path("/proc") / str(life.process_id)))


def _own_mb(process: Path) -> float:
    try:
        name = (process / "cmdline").read_text(encoding="utf-8", errors="replace")
        lines = (process / "status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    if not name.startswith(TASK_NAMES):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1_000


def per_s(name: str, rows: int, work: Callable[[], int]) -> None:
    """Thousand rows per second, and the memory that it took."""
    watch = Watch()

    def rate() -> float:
        started = time.perf_counter()
        with watch:
            done = work()
        if done != rows:
            raise RuntimeError(f"{done} rows instead of {rows}")
        return rows / (time.perf_counter() - started) / 1e3

    take(name, rate)
    tell(f"{name}-memory", watch.mb)


def main() -> None:
    """Take the figures of one side."""
    side, count, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    with (oncelog_side if side == "oncelog" else kafka_side)(directory) as (write, read):
        write(dataset(WARM_UP_ROWS), "warm")
        read("warm").materialize()

        def written() -> int:
            write(dataset(count), "bench")
            return count

        per_s("write", count, written)
        per_s(
            "read",
            count,
            lambda: sum(b.num_rows for b in read("bench").iter_batches(batch_format="pyarrow")),
        )


if __name__ == "__main__":
    main()
