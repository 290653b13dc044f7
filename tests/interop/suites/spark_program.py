"""A program of Spark's with its own connector to Kafka: ``spark_program.py JARS SERVERS CASE DIR``.

It ends with an error if what it reads is not what was written.
"""

from __future__ import annotations

import os
import sys
from typing import Any

COUNT = 5_000
PARTITIONS = 3


def session(jars: str, directory: str) -> Any:
    """A session that knows the connector."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", f"{directory}/spark")
        .config("spark.driver.extraClassPath", f"{jars}/*")
        .getOrCreate()
    )


class Kafka:
    """Topics, by the connector."""

    def __init__(self, spark: Any, servers: str, directory: str) -> None:
        self.spark, self.servers, self.directory = spark, servers, directory

    def write(self, frame: Any, topic: str) -> None:
        """Write a batch."""
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", self.servers)
        writer.option("topic", topic).option("includeHeaders", "true").save()

    def read(self, **options: Any) -> Any:
        """Read a batch."""
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.servers)
        return reader.options(**options).load()

    def stream(self, source: str, sink: str, **options: Any) -> None:
        """Copy what there is in micro-batches, from where the one before has ended."""
        reader = self.spark.readStream.format("kafka")
        reader = reader.option("kafka.bootstrap.servers", self.servers)
        reader = reader.options(subscribe=source, startingOffsets="earliest", **options)
        writer = reader.load().selectExpr("key", "value").writeStream.format("kafka")
        writer = writer.option("kafka.bootstrap.servers", self.servers).option("topic", sink)
        writer = writer.option("checkpointLocation", f"{self.directory}/checkpoint-{sink}")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(120)
        query.stop()

    def rows(self, first: int, count: int) -> Any:
        """Numbered rows, with keys, headers and times."""
        return self.spark.range(first, first + count, 1, 4).selectExpr(
            "CAST(id AS STRING) AS key",
            "CONCAT('value ', id) AS value",
            "ARRAY(STRUCT('number' AS key, BINARY(STRING(id)) AS value)) AS headers",
        )


def values(frame: Any) -> list[str]:
    """All values, in order."""
    return sorted(row.value.decode() for row in frame.select("value").collect())


def numbered(first: int, count: int) -> list[str]:
    """The values of ``Kafka.rows``."""
    return sorted(f"value {number}" for number in range(first, first + count))


def batch(kafka: Kafka) -> None:
    """Write and read batches, with keys, headers, offsets and times."""
    kafka.write(kafka.rows(0, COUNT), "spark-batch")
    kafka.write(kafka.rows(COUNT, 10), "spark-batch")
    frame = kafka.read(subscribe="spark-batch", includeHeaders="true", minPartitions=5)
    rows = frame.collect()
    assert sorted(row.value.decode() for row in rows) == numbered(0, COUNT + 10)
    for row in rows:
        number = row.key
        assert row.value.decode() == "value " + number.decode()
        assert [(one.key, one.value) for one in row.headers] == [("number", number)]
    middle = sorted(row.timestamp for row in rows)[COUNT // 2]
    since = kafka.read(
        subscribe="spark-batch", startingTimestamp=int(middle.timestamp() * 1_000)
    ).collect()
    offsets = {(row.partition, row.offset) for row in since}
    assert {(row.partition, row.offset) for row in rows if row.timestamp >= middle} <= offsets
    ends = '{"spark-batch": {"0": 5, "1": 0, "2": 7}}'
    starts = '{"spark-batch": {"0": 2, "1": 0, "2": 7}}'
    some = kafka.read(subscribe="spark-batch", startingOffsets=starts, endingOffsets=ends)
    assert [(row.partition, row.offset) for row in some.collect()] == [(0, 2), (0, 3), (0, 4)]
    assert kafka.read(subscribePattern="spark-b.*").count() == COUNT + 10


def stream(kafka: Kafka) -> None:
    """Copy a topic in micro-batches; a query that is started again goes on."""
    kafka.write(kafka.rows(0, COUNT), "spark-stream")
    kafka.stream("spark-stream", "spark-copied", maxOffsetsPerTrigger=COUNT // 4)
    assert values(kafka.read(subscribe="spark-copied")) == numbered(0, COUNT)
    kafka.write(kafka.rows(COUNT, 1_000), "spark-stream")
    kafka.stream("spark-stream", "spark-copied")
    assert values(kafka.read(subscribe="spark-copied")) == numbered(0, COUNT + 1_000)


def transactions(kafka: Kafka) -> None:
    """Of a topic of transactions only what is committed is read, in batches and streams."""
    options = {"kafka.isolation.level": "read_committed"}
    found = values(kafka.read(subscribe="spark-committed", **options))
    assert found == numbered(0, 1_000), len(found)
    kafka.stream("spark-committed", "spark-committed-copied", **options)
    assert values(kafka.read(subscribe="spark-committed-copied")) == numbered(0, 1_000)
    everything = values(kafka.read(subscribe="spark-committed"))
    assert everything == numbered(0, 2_000), len(everything)


def main() -> None:
    """Run the case."""
    jars, servers, case, directory = sys.argv[1:]
    spark = session(jars, directory)
    cases = {"batch": batch, "stream": stream, "transactions": transactions}
    cases[case](Kafka(spark, servers, directory))
    spark.stop()


if __name__ == "__main__":
    main()
