"""A Spark that Ray did not start: it is told an address, and reads and writes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from standalone_spark import StandaloneSpark

from oncelog import UnknownTopicOrPartitionError

pytestmark = [pytest.mark.ray, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
DRIVER_TIMEOUT_S = 300
ROW_COUNT = 100

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from oncelog import spark_bridge

master, address, checkpoint, is_registered = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.executor.memory", "500m")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
if is_registered == "True":
    spark_bridge.register(spark)


def read(topic):
    reader = spark.read.format("oncelog").options(address=address, subscribe=topic)
    values = reader.load().selectExpr("CAST(value AS STRING)").collect()
    return sorted(int(row[0]) for row in values)


rows = spark.range(0, ROW_COUNT, 1, 4).selectExpr("CAST(id AS STRING) AS value")
written = rows.write.format("oncelog").options(address=address, topic="others")
written.mode("append").save()
source = spark.readStream.format("oncelog").options(address=address, subscribe="others")
query = source.option("startingOffsets", "earliest").load().select("value").writeStream
query = query.format("oncelog").options(address=address, topic="copies_of_others")
query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
found = {"written": read("others"), "copied": read("copies_of_others")}
print("found", json.dumps(found))
spark.stop()
""".replace("ROW_COUNT", str(ROW_COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("is_registered", [True, False])
def test_a_standalone_cluster_reads_and_writes_given_an_address(cluster, tmp_path, is_registered):
    """Its executors are children of its worker, whose environment says nothing of Ray.

    Without being registered the source is found by the name of its module, installed as by pip.
    """
    for topic in ("others", "copies_of_others"):
        with contextlib.suppress(UnknownTopicOrPartitionError):
            cluster.admin().delete_topic(topic)
        cluster.admin().create_topic(topic, partitions=2)
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
                str(tmp_path / "point"),
                str(is_registered),
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=DRIVER_TIMEOUT_S,
        )
    finally:
        spark.close()
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    found = json.loads(line.removeprefix("found "))
    assert found == {"written": list(range(ROW_COUNT)), "copied": list(range(ROW_COUNT))}
