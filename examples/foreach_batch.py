"""Running totals with ``foreachBatch`` in update mode: each batch is a version, written once.

Run it with ``python -m oncelog.examples.foreach_batch``. It starts a cluster, or joins a running
one.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import oncelog
from oncelog import spark_bridge

DATA_DIR = Path("oncelog-data")


def write(totals: DataFrame, batch_id: int) -> None:
    """Write the totals that a batch has changed; a repeated batch is not written again."""
    writer = totals.write.format("oncelog").option("topic", "totals")
    writer.options(txnAppId="totals", txnVersion=batch_id).mode("append").save()


def count(spark: SparkSession, checkpoint: Path) -> None:
    """Count the records of each key that have arrived since the last run."""
    visits = spark.readStream.format("oncelog").option("startingOffsets", "earliest").load("visits")
    totals = visits.groupBy("key").agg(sf.count("*").cast("string").alias("value"))
    query = (
        totals.writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    """Send ninety visits and print the totals: each run adds thirty to each page."""
    with oncelog.init(data_dir=DATA_DIR) as cluster:
        for topic in ("visits", "totals"):
            cluster.admin().create_topic(topic, partitions=2, exist_ok=True)
        with cluster.producer(transactional_id="visitors") as producer:
            producer.init_transactions()
            with producer.transaction():
                for number in range(90):
                    producer.send("visits", key=b"page-%d" % (number % 3))
        spark = spark_bridge.session(cluster, configs={"spark.sql.shuffle.partitions": "2"})
        count(spark, Path("totals-checkpoint").absolute())
        records = spark.read.format("oncelog").load("totals")
        newest = records.groupBy("key").agg(sf.max_by("value", "offset").alias("total"))
        for page, total in sorted(newest.collect()):
            print(bytes(page).decode(), bytes(total).decode())  # noqa: T201
        spark_bridge.stop(spark)


if __name__ == "__main__":
    main()
