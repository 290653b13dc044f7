"""A Spark that Ray did not start: it is told an address, and reads and writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deadlines import DEADLINE_S
from standalone_spark import StandaloneSpark

pytestmark = [pytest.mark.ray, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
ROW_COUNT = 100

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from oncelog import spark_bridge

master, address, checkpoints, *topics = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.executor.memory", "500m")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)


def read(topic):
    reader = spark.read.format("oncelog").options(address=address, subscribe=topic)
    values = reader.load().selectExpr("CAST(value AS STRING)").collect()
    return sorted(int(row[0]) for row in values)


def write_and_copy(topic):
    rows = spark.range(0, ROW_COUNT, 1, 4).selectExpr("CAST(id AS STRING) AS value")
    written = rows.write.format("oncelog").options(address=address, topic=topic)
    written.mode("append").save()
    source = spark.readStream.format("oncelog").options(address=address, subscribe=topic)
    query = source.option("startingOffsets", "earliest").load().select("value").writeStream
    query = query.format("oncelog").options(address=address, topic="copy_of_" + topic)
    query = query.option("checkpointLocation", checkpoints + "/" + topic)
    query.trigger(availableNow=True).start().awaitTermination()
    return [read(topic), read("copy_of_" + topic)]


found = {topics[0]: write_and_copy(topics[0])}
spark_bridge.register(spark)
found[topics[1]] = write_and_copy(topics[1])
print("found", json.dumps(found))
spark.stop()
""".replace("ROW_COUNT", str(ROW_COUNT))


@pytest.mark.slow
def test_a_standalone_cluster_reads_and_writes_given_an_address(cluster, tmp_path):
    """Its executors are children of its worker, whose environment says nothing of Ray.

    1. The source is found by the name of its module, installed as by pip. 2. It is registered.
    """
    topics = ("found", "registered")
    for topic in topics:
        for name in (topic, f"copy_of_{topic}"):
            cluster.admin().create_topic(name, partitions=2)
    installed = tmp_path / "installed"
    installed.mkdir()
    shutil.copy(ROOT / "pyspark_oncelog.py", installed)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS",)
    }
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"}
    environment["PYTHONPATH"] = str(installed)
    spark = StandaloneSpark(tmp_path)
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                PROGRAM,
                spark.master,
                cluster.address,
                str(tmp_path / "points"),
                *topics,
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * DEADLINE_S,
        )
    finally:
        spark.close()
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    found = json.loads(line.removeprefix("found "))
    assert found == {topic: [list(range(ROW_COUNT))] * 2 for topic in topics}
