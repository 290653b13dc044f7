"""Spark's driver, or a part of it, dies in the middle of a write without identity."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncelog.storage.model import TopicPartition

pytestmark = [pytest.mark.ray, pytest.mark.spark]

DRIVER_TIMEOUT_S = 240
SEEN_WITHIN_S = 60
"""The transaction timeout is 15 minutes."""

ROW_COUNT = 40

PROGRAM = """
import os
import signal
import sys
import threading
from pyspark.sql import SparkSession
from oncelog import spark_bridge
from oncelog.spark_bridge import sink, source

address, topic, how = sys.argv[1:]

class DyingWriter(sink.BatchWriter):
    def commit(self, messages):
        os.kill(os.getpid(), signal.SIGKILL)

class DyingSource(source.OncelogDataSource):
    @classmethod
    def name(cls):
        return "dying"

    def writer(self, schema, overwrite):
        return DyingWriter(super().writer(schema, overwrite)._write)

def rows(batches):
    import threading
    import pyarrow as pa

    for batch in batches:
        for identifier in batch["id"].to_pylist():
            yield pa.RecordBatch.from_pydict({"value": [str(identifier).ljust(500_000)]})
    if how == "hang":
        threading.Event().wait()

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.execution.arrow.maxBytesPerBatch", "2000000").getOrCreate()
spark_bridge.register(spark)
frame = spark.range(0, ROW_COUNT, 1, 1).mapInArrow(rows, "value STRING")
spark.dataSource.register(DyingSource)
writing = frame.write.format("dying" if how == "commit" else "oncelog").option("address", address)
try:
    writing.option("topic", topic).mode("append").save()
except Exception:
    if how == "finish":
        raise
    print("failed", flush=True)
    threading.Event().wait()
spark.stop()
""".replace("ROW_COUNT", str(ROW_COUNT))


def driver(cluster, topic, how):
    """A program with a Spark session of its own, which is told nothing but the address."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, cluster.address, topic, how],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def until(condition, limit_s):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s"


def committed(consumer, found):
    """What a reader of committed records has seen by now."""
    found += [record.value.decode().strip() for record in consumer.poll(500)]
    return found


def java_of(process):
    """The process id of the Java that a program with Spark has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (java,) = [
        int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "java\n"
    ]
    return java


def transactional_ids(cluster):
    return {item.transactional_id for item in cluster.admin().list_transactions()}


def state_of(cluster, transactional_id):
    return cluster.admin().describe_transaction(transactional_id).state


@contextmanager
def begun(cluster, topic, how):
    """A program whose rows are in the log of a new topic, and its transactional id.

    At the end it is killed, with its Java.
    """
    cluster.admin().create_topic(topic, partitions=1)
    log = Path(cluster.data_dir) / f"{topic}-0" / f"{0:020}.log"
    before = transactional_ids(cluster)
    process = driver(cluster, topic, how)
    try:
        until(lambda: log.exists() and log.stat().st_size > 0, DRIVER_TIMEOUT_S)
        (transactional_id,) = transactional_ids(cluster) - before
        yield process, transactional_id
    finally:
        process.kill()
        process.wait()


def test_the_rows_of_the_second_run_are_read_soon(cluster):
    """1. Rows of the first run are in the log. 2. Its driver is killed. 3. A second run commits.
    4. A reader of committed records gets the rows once, long before the timeout of the first.
    """
    topic = "left_behind"
    with begun(cluster, topic, "hang") as (_, left):
        pass
    second = driver(cluster, topic, "finish")
    output, _ = second.communicate(timeout=DRIVER_TIMEOUT_S)
    assert second.returncode == 0, output.decode()
    found = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(TopicPartition(topic, 0))
        until(lambda: len(committed(consumer, found)) >= ROW_COUNT, SEEN_WITHIN_S)
    assert sorted(map(int, found)) == list(range(ROW_COUNT))
    assert state_of(cluster, left) == "CompleteAbort"


@pytest.mark.parametrize("what_dies", ["java", "commit"])
def test_readers_are_free_soon_when_only_a_part_of_the_driver_dies(cluster, what_dies):
    """1. Rows are in the log. 2. The driver's Java is killed, or the process that is to commit; the
    rest of the driver lives on. 3. Another record is committed. 4. A reader of committed records
    gets it, and none of the rows, long before the timeout.
    """
    topic = f"dead_{what_dies}"
    how = "commit" if what_dies == "commit" else "hang"
    with begun(cluster, topic, how) as (first, left):
        if what_dies == "java":
            os.kill(java_of(first), signal.SIGKILL)
        else:
            assert b"failed\n" in first.stdout
        with cluster.producer() as producer:
            producer.send(topic, b"another").result(SEEN_WITHIN_S)
        with cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign(TopicPartition(topic, 0))
            until(lambda: committed(consumer, []) == ["another"], SEEN_WITHIN_S)
        assert state_of(cluster, left) == "CompleteAbort"
        assert first.poll() is None
