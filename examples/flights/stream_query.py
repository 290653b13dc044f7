"""The driver program of the streaming demo: a Spark stream from flights to windows.

Its arguments are the cluster's address, both topics, the checkpoint and the batch size. If it is
killed and restarted, as ``stream_driver`` does, it continues where it was. It prints JSON, one
message per line: its Java process, each batch and, for any line of input, its executor's process.
It ends with its input.
"""

from __future__ import annotations

import datetime
import json
import select
import sys
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

import oncelog
from oncelog import spark_bridge
from oncelog.actors.process.process_table import ProcessTable
from oncelog.examples.flights.stream_windows import FLIGHT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LATENESS_DAYS: Final = 28
"""How late a flight may be: five seconds of the replay. The ends of partitions are read one by one,
so one partition may be ahead of another for a moment."""

CONFIGS: Final = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
POLL_S: Final = 0.1


def windows(flights: DataFrame) -> DataFrame:
    """Flights per airport and day, once the watermark has passed, as records of a topic."""
    scheduled = flights.withColumn("scheduled", sf.timestamp_millis("scheduled"))
    days = (
        scheduled.withWatermark("scheduled", f"{LATENESS_DAYS} days")
        .groupBy("origin", sf.window("scheduled", "1 day").alias("window"))
        .agg(
            sf.count("*").alias("flights"),
            sf.count_if(sf.isnull("arr_delay")).alias("not_arrived"),
            sf.sum(sf.greatest("arr_delay", sf.lit(0))).alias("minutes_late"),
        )
    )
    day = sf.date_format("window.start", "yyyy-MM-dd").alias("day")
    value = sf.struct("origin", day, "flights", "not_arrived", "minutes_late")
    return days.select(sf.col("origin").alias("key"), sf.to_json(value).alias("value"))


def start(
    spark: SparkSession, source: str, sink: str, checkpoint: str, offsets_per_batch: str
) -> StreamingQuery:
    """Start or resume the stream; its checkpoint has what it has read and written."""
    records = (
        spark.readStream.format("oncelog")
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", offsets_per_batch)
        .load()
    )
    flights = records.select(sf.from_json(sf.col("value").cast("string"), FLIGHT).alias("flight"))
    return (
        windows(flights.select("flight.*"))
        .writeStream.format("oncelog")
        .option("topic", sink)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .start()
    )


def executor_process(spark: SparkSession) -> int:
    """The process id of the only executor, as its Python worker sees it."""

    def java(_: int) -> int:
        process = ProcessTable("").ancestor("java")
        assert process is not None
        return process.process_id

    return int(spark.sparkContext.parallelize([0], 1).map(java).first())


def told(progress: Any, source: str) -> dict[str, int]:
    """The part of Spark's progress that the demo uses; times in ms, 0 if there is none."""
    times = progress["eventTime"]
    (read,) = progress["sources"]
    end = read["endOffset"] or {}
    return {
        "batch": progress["batchId"],
        "read": sum(end.get(source, {}).values()),
        "reached_ms": milliseconds(times.get("max")),
        "watermark_ms": milliseconds(times.get("watermark")),
    }


def milliseconds(time: str | None) -> int:
    """Spark's text of a time, in ms since the epoch."""
    if time is None:
        return 0
    return int(datetime.datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp() * 1_000)


def tell(**message: object) -> None:
    """Send a message to the program that started this one."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def serve(spark: SparkSession, query: StreamingQuery, source: str) -> None:
    """Report batches and answer, until the input ends or the query fails."""
    before = None
    while query.isActive:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable:
            if not sys.stdin.readline():
                query.stop()
                return
            tell(executor=executor_process(spark))
        progress = query.lastProgress
        if progress is not None and progress != before:
            before = progress
            tell(**told(json.loads(progress.json), source))
    query.awaitTermination()


def main(address: str, source: str, sink: str, checkpoint: str, offsets_per_batch: str) -> None:
    """Run the stream until the input of this program ends."""
    with oncelog.connect(address) as cluster:
        spark = spark_bridge.session(cluster, memory="1g", app_name="windows", configs=CONFIGS)
        gateway: Any = spark.sparkContext._jvm
        query = start(spark, source, sink, checkpoint, offsets_per_batch)
        tell(java=gateway.java.lang.ProcessHandle.current().pid())
        serve(spark, query, source)
        spark_bridge.stop(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
