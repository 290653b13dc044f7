"""Spark's driver dies in the middle of a write without identity, and the write is run again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oncelog.storage.model import TopicPartition

pytestmark = [pytest.mark.ray, pytest.mark.spark]

DRIVER_TIMEOUT_S = 240
SEEN_WITHIN_S = 60
"""The transaction timeout is 15 minutes."""

ROW_COUNT = 40

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from oncelog import spark_bridge

address, topic, hangs = sys.argv[1], sys.argv[2], sys.argv[3] == "hang"

def rows(batches):
    import threading
    import pyarrow as pa

    for batch in batches:
        for identifier in batch["id"].to_pylist():
            yield pa.RecordBatch.from_pydict({"value": [str(identifier).ljust(500_000)]})
    if hangs:
        threading.Event().wait()

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.execution.arrow.maxBytesPerBatch", "2000000").getOrCreate()
spark_bridge.register(spark)
frame = spark.range(0, ROW_COUNT, 1, 1).mapInArrow(rows, "value STRING")
writing = frame.write.format("oncelog").option("address", address).option("topic", topic)
writing.mode("append").save()
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


def test_the_rows_of_the_second_run_are_read_soon(cluster):
    """1. Rows of the first run are in the log. 2. Its driver is killed. 3. A second run commits.
    4. A reader of committed records gets the rows once, long before the timeout of the first.
    """
    topic = "left_behind"
    cluster.admin().create_topic(topic, partitions=1)
    log = Path(cluster.data_dir) / f"{topic}-0" / f"{0:020}.log"
    first = driver(cluster, topic, "hang")
    try:
        until(lambda: log.exists() and log.stat().st_size > 0, DRIVER_TIMEOUT_S)
        (left,) = cluster.admin().list_transactions(states=("Ongoing",))
    finally:
        first.kill()
        first.wait()
    second = driver(cluster, topic, "finish")
    output, _ = second.communicate(timeout=DRIVER_TIMEOUT_S)
    assert second.returncode == 0, output.decode()
    found = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(TopicPartition(topic, 0))
        until(lambda: len(committed(consumer, found)) >= ROW_COUNT, SEEN_WITHIN_S)
    assert sorted(map(int, found)) == list(range(ROW_COUNT))
    described = cluster.admin().describe_transaction(left.transactional_id)
    assert described.state == "CompleteAbort"
