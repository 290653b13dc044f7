"""Ray Data to a topic, a Spark stream to the next, ``cluster.process`` to the last: each row once.

Run it with ``python -m oncelog.examples.pipeline``. It starts a cluster, or joins a running one.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import ray

import oncelog
from oncelog import spark_bridge

DATA_DIR = Path("oncelog-data")


def load(topic: str) -> None:
    """Write the numbers below a thousand with Ray Data, in one transaction."""
    numbers = ray.data.range(1_000).map(lambda row: {"value": str(row["id"])})
    oncelog.ray_data.write(numbers, topic, txn_app_id="numbers", txn_version=1)


def choose(cluster: oncelog.Cluster, source: str, sink: str, checkpoint: Path) -> None:
    """Copy the even numbers with a Spark stream."""
    spark = spark_bridge.session(cluster)
    numbers = spark.readStream.format("oncelog").option("startingOffsets", "earliest").load(source)
    query = (
        numbers.where("CAST(CAST(value AS STRING) AS LONG) % 2 = 0")
        .select("value")
        .writeStream.format("oncelog")
        .option("topic", sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark_bridge.stop(spark)


def square(batch: pa.Table) -> pa.Table:
    """Square the numbers: the function of the job's workers."""
    numbers = pc.cast(pc.cast(batch["value"], pa.string()), pa.int64())
    return pa.table({"value": pc.cast(pc.multiply(numbers, numbers), pa.string())})


def main() -> None:
    """Run the three steps and print the sum of the squares, the same for every run."""
    with oncelog.init(data_dir=DATA_DIR) as cluster:
        for topic in ("numbers", "even", "even-squares"):
            cluster.admin().create_topic(topic, partitions=2, exist_ok=True)
        load("numbers")
        choose(cluster, "numbers", "even", Path("even-checkpoint").absolute())
        job = cluster.process(
            source="even", sink="even-squares", function=square, group_id="squares", workers=1
        )
        job.wait(timeout_ms=120_000)
        job.stop()
        squares = oncelog.ray_data.read("even-squares", start_offset="earliest")
        values = [int(row["value"]) for row in squares.iter_rows()]
        print(len(values), "squares, their sum", sum(values))  # noqa: T201


if __name__ == "__main__":
    main()
