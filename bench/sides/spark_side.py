"""What Spark does with rows of one size on one side, in a session in a process of its own.

A session of several sides would run them in the same Python processes, where each pays for what the
others have loaded and gains by what they do about it: with oncelog beside it, a sink that only
counts was slower until oncelog kept garbage collections from what it had loaded, and then faster
than alone.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clusters.kafka_broker import jars
from figures.spark_parts import BASE, KAFKA, OURS

POM: Final = Path(__file__).resolve().parent / "spark_kafka.pom.xml"
CONNECTOR: Final = "spark-kafka-4.2.0"
PARTITIONS: Final = 2
BATCHES: Final = 4
"""Micro-batches of a figure, after one that does not count; each has its share of the rows."""

EMPTY_BATCHES: Final = 20
WAIT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Workload:
    """So many rows of so many bytes, on a side whose cluster is at ``address``, ``None`` without.

    ``directory`` is for Spark's own files.
    """

    side: str
    address: str | None
    row_bytes: int
    row_count: int
    directory: Path


class SparkSide:
    """The process of one side: runs the methods of ``Work`` there, and waits for them."""

    def __init__(self, workload: Workload) -> None:
        self._pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_open, initargs=(workload,)
        )

    def call(self, method: Callable[[Work, str], float], topic: str) -> float:
        """Call a method of its ``Work``. RuntimeError with what Spark said."""
        return self._pool.submit(_call, method, topic).result()

    def stop(self) -> None:
        """End its process, and with it the session and its Java."""
        self._pool.shutdown()


_work: Work | None = None
"""Of this process, once it is a side's."""


def _open(workload: Workload) -> None:
    global _work
    _work = Work(workload)


def _call(method: Callable[[Work, str], float], topic: str) -> float:
    assert _work is not None
    try:
        return method(_work, topic)
    except Exception as error:
        # Those of Spark hold objects of Java, which do not leave their process.
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


class Work:
    """The figures of one side, taken in this process."""

    def __init__(self, workload: Workload) -> None:
        workload.directory.mkdir(parents=True)
        self._workload = workload
        self._spark = _session(workload)
        self._options: dict[str, str] = {}
        if workload.address is not None:
            name = "kafka.bootstrap.servers" if workload.side == KAFKA else "address"
            self._options[name] = workload.address
        self._format = {OURS: "oncelog", KAFKA: "kafka", BASE: "counting"}[workload.side]
        self._checkpoints = 0
        self._frame: Any = None

    # --- batches ------------------------------------------------------------------------------

    def write_s(self, topic: str) -> float:
        """Seconds of a batch write, with its commit."""
        writer = self._rows_to_write().write.format(self._format)
        writer = writer.options(topic=topic, **self._options).mode("append")
        started = time.perf_counter()
        writer.save()
        return time.perf_counter() - started

    def _rows_to_write(self) -> Any:
        """The rows of a write, made before and held in Java's memory."""
        if self._frame is None:
            frame = self._spark.range(0, self._workload.row_count, 1, PARTITIONS)
            value = f"LPAD(CAST(id AS STRING), {self._workload.row_bytes}, '0') AS value"
            self._frame = frame.selectExpr(value).cache()
            self._frame.count()
        return self._frame

    def read_s(self, topic: str) -> float:
        """Seconds to read every column of all rows into Java and leave them there."""
        if self._workload.side == BASE:
            reader = self._spark.read.format("memory_batches")
            reader = reader.options(rows=self._workload.row_count, size=self._workload.row_bytes)
        else:
            reader = self._spark.read.format(self._format)
            reader = reader.options(subscribe=topic, **self._options)
        started = time.perf_counter()
        reader.load().write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    # --- streams ------------------------------------------------------------------------------

    def stream_write_s(self, topic: str) -> float:
        """Seconds for all rows in micro-batches, by the median of these as Spark tells them."""
        source = self._spark.readStream.format("rate-micro-batch")
        count = self._workload.row_count // BATCHES
        rows = source.options(rowsPerBatch=count, numPartitions=PARTITIONS).load()
        value = f"LPAD(CAST(value AS STRING), {self._workload.row_bytes}, '0') AS value"
        sink = rows.selectExpr(value).writeStream.format(self._format)
        sink = sink.options(topic=topic, **self._options)
        return BATCHES * self._batch_s(sink, BATCHES)

    def fill_for_empty_s(self, topic: str) -> float:
        """Seconds to give a topic an offset for each of many micro-batches."""
        frame = self._spark.range(0, 100 * EMPTY_BATCHES, 1, 1)
        frame = frame.selectExpr("'v' AS value", f"CAST(id % {PARTITIONS} AS INT) AS partition")
        writer = frame.write.format("oncelog").options(topic=topic, **self._options)
        started = time.perf_counter()
        writer.mode("append").save()
        return time.perf_counter() - started

    def empty_s(self, full: str) -> float:
        """Seconds of a micro-batch whose rows are all filtered away, as Spark tells them.

        Ours takes a few offsets from the topic ``full``; Spark's own makes as many rows itself, and
        its sink does nothing.
        """
        if self._workload.side == OURS:
            source = self._spark.readStream.format("oncelog").options(**self._options)
            source = source.options(subscribe=full, startingOffsets="earliest")
            rows = source.option("maxOffsetsPerTrigger", PARTITIONS).load()
            none = rows.where("offset < 0").selectExpr("value")
            sink = none.writeStream.format("oncelog").options(**self._options)
            sink = sink.option("topic", full)
        else:
            source = self._spark.readStream.format("rate-micro-batch")
            rows = source.options(rowsPerBatch=PARTITIONS, numPartitions=PARTITIONS).load()
            sink = rows.where("value < 0").writeStream.format("noop")
        return self._batch_s(sink, EMPTY_BATCHES)

    def _batch_s(self, sink: Any, wanted: int) -> float:
        """The median of the first micro-batches of a query but for the first one."""
        self._checkpoints += 1
        checkpoint = self._workload.directory / f"checkpoint-{self._checkpoints}"
        query = sink.option("checkpointLocation", str(checkpoint)).start()
        deadline = time.perf_counter() + WAIT_S
        try:
            while len(done := _durations_ms(query)) <= wanted:
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"{len(done)} micro-batches of {wanted + 1}")
                time.sleep(0.1)
        finally:
            query.stop()
        return statistics.median(done[1 : wanted + 1]) / 1e3


def _durations_ms(query: Any) -> list[float]:
    told = [progress.durationMs for progress in query.recentProgress]
    return [each["triggerExecution"] for each in told if "addBatch" in each]


def _session(workload: Workload) -> Any:
    """A session with two cores, which knows the formats of its side."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{PARTITIONS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", PARTITIONS)
        .config("spark.sql.streaming.numRecentProgressUpdates", 1_000)
        .config("spark.local.dir", str(workload.directory / "spark"))
    )
    if workload.side == KAFKA:
        builder = builder.config("spark.driver.extraClassPath", f"{jars(CONNECTOR, POM)}/*")
    spark = builder.getOrCreate()
    if workload.side == OURS:
        from oncelog import spark_bridge

        spark_bridge.register(spark)
    elif workload.side == BASE:
        from sides.spark_alone import CountingSink, MemorySource

        spark.dataSource.register(CountingSink)
        spark.dataSource.register(MemorySource)
    return spark
