"""The two steps of the demo that Spark does: write the flights, aggregate the delays."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from oncelog.examples.flights.data import FLIGHT_FIELDS
from oncelog.examples.flights.figures import Figures, collect

DELAY_FIELDS: Final = (
    "id string, carrier string, origin string, weather string, delay_class string, arr_delay int"
)
SPLIT_BYTES: Final = 8_000_000
"""Bytes of CSV per task, so that the write has several tasks and one transaction."""


def load_flights(spark: SparkSession, path: Path, topic: str) -> None:
    """Write every flight of the CSV file to ``topic``, keyed by carrier, in one transaction."""
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(SPLIT_BYTES))
    schema = ", ".join(f"{name} {kind}" for name, kind in FLIGHT_FIELDS.items())
    flights = spark.read.csv(f"file://{path}", schema=schema, header=True, nullValue="NA")
    rows = flights.select(
        sf.col("carrier").cast("binary").alias("key"),
        sf.to_json(sf.struct("*")).cast("binary").alias("value"),
    )
    (
        rows.write.format("oncelog")
        .option("topic", topic)
        .option("transactional.id", "load-2013")
        .mode("append")
        .save()
    )


def read_topic(
    spark: SparkSession, topic: str, isolation_level: str = "read_committed"
) -> DataFrame:
    """All records of ``topic`` that are visible at this isolation level."""
    return (
        spark.read.format("oncelog")
        .option("subscribe", topic)
        .option("isolation.level", isolation_level)
        .load()
    )


def read_delays(spark: SparkSession, topic: str) -> DataFrame:
    """The committed delays in ``topic``, parsed."""
    values = read_topic(spark, topic).select(sf.col("value").cast("string").alias("value"))
    return values.select(sf.from_json("value", DELAY_FIELDS).alias("delay")).select("delay.*")


def count_ids(delays: DataFrame) -> tuple[int, int]:
    """The number of delays, and of distinct flights among them."""
    row = delays.agg(sf.count("*"), sf.count_distinct("id")).first()
    assert row is not None
    return int(row[0]), int(row[1])


def figures_by(delays: DataFrame, column: str) -> Figures:
    """The results per value of ``column``: carrier or origin."""
    grouped = delays.groupBy(column, "delay_class", "weather").agg(
        sf.count("*"), sf.sum("arr_delay")
    )
    return collect(tuple(row) for row in grouped.collect())
