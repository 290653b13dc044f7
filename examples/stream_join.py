"""Two topics joined into a third by a Spark stream: each pair once.

Run it with ``python -m oncelog.examples.stream_join``. It starts a cluster, or joins a running one.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import oncelog
from oncelog import spark_bridge

DATA_DIR = Path("oncelog-data")
PAIR = "arrival_of = flight AND arrived BETWEEN departed AND departed + INTERVAL 12 HOURS"


def fill(spark: SparkSession) -> None:
    """Write a thousand departures, a minute apart; nine in ten arrive two hours later."""
    flights = spark.range(1_000).select(
        sf.col("id").alias("flight"),
        sf.timestamp_seconds(1_357_000_000 + 60 * sf.col("id")).alias("departed"),
    )
    arrived = sf.col("departed") + sf.expr("INTERVAL 2 HOURS")
    arrivals = flights.where("flight % 10 > 0").select(
        sf.col("flight").alias("arrival_of"), arrived.alias("arrived")
    )
    for topic, rows in (("departures", flights), ("arrivals", arrivals)):
        values = rows.select(sf.to_json(sf.struct("*")).alias("value"))
        writer = values.write.format("oncelog").option("topic", topic)
        writer.options(txnAppId=topic, txnVersion=1).mode("append").save()  # once, if run again


def read(spark: SparkSession, topic: str, schema: str) -> DataFrame:
    """A topic of JSON as a stream."""
    records = spark.readStream.format("oncelog").option("startingOffsets", "earliest").load(topic)
    values = records.select(sf.from_json(sf.col("value").cast("string"), schema).alias("row"))
    return values.select("row.*")


def join(spark: SparkSession, checkpoint: Path) -> None:
    """Join new records of both topics; a flight is kept as long as its pair may come."""
    departures = read(spark, "departures", "flight LONG, departed TIMESTAMP")
    arrivals = read(spark, "arrivals", "arrival_of LONG, arrived TIMESTAMP")
    pairs = departures.withWatermark("departed", "1 hour").join(
        arrivals.withWatermark("arrived", "1 hour"), sf.expr(PAIR)
    )
    query = (
        pairs.select(sf.to_json(sf.struct("flight", "departed", "arrived")).alias("value"))
        .writeStream.format("oncelog")
        .option("topic", "journeys")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    """Fill two topics, join them, and print the result, the same for every run."""
    with oncelog.init(data_dir=DATA_DIR) as cluster:
        for topic in ("departures", "arrivals", "journeys"):
            cluster.admin().create_topic(topic, partitions=2, exist_ok=True)
        spark = spark_bridge.session(cluster, configs={"spark.sql.shuffle.partitions": "2"})
        fill(spark)
        join(spark, Path("journeys-checkpoint").absolute())
        journeys = spark.read.format("oncelog").load("journeys")
        different = journeys.select("value").distinct().count()
        print(journeys.count(), "journeys,", different, "different ones")  # noqa: T201
        spark_bridge.stop(spark)


if __name__ == "__main__":
    main()
