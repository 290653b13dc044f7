"""A sample of ``bench/spark.py``: all sides with rows of one size, in one Spark session.

``samples/spark.py SIZE ROWS ROUNDS DIRECTORY SIDES PART...``; see ``measuring.findings``.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from clusters.kafka_broker import jars
from figures.spark_parts import BASE, KAFKA, OURS, READ, STREAM, WRITE, name_of
from measuring.findings import take
from oncelog import spark_bridge
from sides.oncelog_side import OncelogSide

HERE: Final = Path(__file__).resolve().parent
CONNECTOR: Final = "spark-kafka-4.2.0"
PARTITIONS: Final = 2
BATCHES: Final = 4
"""Micro-batches of a figure, after one that does not count; each has its share of the rows."""

EMPTY_BATCHES: Final = 20
WAIT_S: Final = 600.0


@contextmanager
def spark_session(directory: Path, *, has_kafka: bool) -> Iterator[Any]:
    """A session with two cores, which knows every format."""
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
        .config("spark.local.dir", str(directory / "spark"))
    )
    if has_kafka:
        connector = jars(CONNECTOR, HERE / "spark_kafka.pom.xml")
        builder = builder.config("spark.driver.extraClassPath", f"{connector}/*")
    spark = builder.getOrCreate()
    from sides.spark_alone import CountingSink, MemorySource

    spark_bridge.register(spark)
    spark.dataSource.register(CountingSink)
    spark.dataSource.register(MemorySource)
    try:
        yield spark
    finally:
        spark.stop()


class Work:
    """What is measured, for rows of one size; ``places`` are the clusters by side."""

    def __init__(
        self, spark: Any, places: Mapping[str, Any], directory: Path, *, size: int, rows: int
    ) -> None:
        self._spark = spark
        self._places = places
        self._directory = directory
        self._size, self._rows = size, rows
        self._count = 0
        self._frame: Any = None

    # --- topics -------------------------------------------------------------------------------

    def _new_name(self, what: str) -> str:
        self._count += 1
        return f"{what}-{self._count}"

    @contextmanager
    def topic(self, side: str) -> Iterator[str]:
        """A new topic of a side, gone afterwards; Spark alone needs none."""
        name, place = self._new_name("bench"), self._places.get(side)
        if place is not None:
            place.create_topic(name, PARTITIONS)
        yield name
        if place is not None:
            place.delete_topic(name)

    def _options(self, side: str) -> dict[str, str]:
        """Where a side is."""
        if side == OURS:
            return {"address": self._places[side].address}
        return {"kafka.bootstrap.servers": self._places[side].address} if side == KAFKA else {}

    def _format_of_sink(self, side: str) -> str:
        return {OURS: "oncelog", KAFKA: "kafka", BASE: "counting"}[side]

    # --- batches ------------------------------------------------------------------------------

    def _rows_to_write(self) -> Any:
        """The rows of a write, made before and held in Java's memory."""
        if self._frame is None:
            frame = self._spark.range(0, self._rows, 1, PARTITIONS)
            value = f"LPAD(CAST(id AS STRING), {self._size}, '0') AS value"
            self._frame = frame.selectExpr(value).cache()
            self._frame.count()
        return self._frame

    def write_s(self, side: str) -> float:
        """Seconds of a batch write, with its commit."""
        self._rows_to_write()
        with self.topic(side) as topic:
            return self.write_to_s(topic, side)

    def write_to_s(self, topic: str, side: str) -> float:
        """The same, to a topic that is there."""
        writer = self._rows_to_write().write.format(self._format_of_sink(side))
        writer = writer.options(topic=topic, **self._options(side)).mode("append")
        started = time.perf_counter()
        writer.save()
        return time.perf_counter() - started

    def read_s(self, topics: Mapping[str, str], side: str) -> float:
        """Seconds to read every column of all rows into Java and leave them there."""
        if side == BASE:
            reader = self._spark.read.format("memory_batches")
            reader = reader.options(rows=self._rows, size=self._size)
        else:
            reader = self._spark.read.format(self._format_of_sink(side))
            reader = reader.options(subscribe=topics[side], **self._options(side))
        started = time.perf_counter()
        reader.load().write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    # --- streams ------------------------------------------------------------------------------

    def stream_write_s(self, side: str) -> float:
        """Seconds for all rows in micro-batches, by the median of these as Spark tells them."""
        source = self._spark.readStream.format("rate-micro-batch")
        rows = source.options(rowsPerBatch=self._rows // BATCHES, numPartitions=PARTITIONS).load()
        value = f"LPAD(CAST(value AS STRING), {self._size}, '0') AS value"
        sink = rows.selectExpr(value).writeStream.format(self._format_of_sink(side))
        with self.topic(side) as topic:
            sink = sink.options(topic=topic, **self._options(side))
            return BATCHES * self._batch_s(sink, BATCHES)

    def fill_for_empty(self, topic: str) -> None:
        """Give a topic an offset for each of many micro-batches."""
        frame = self._spark.range(0, 100 * EMPTY_BATCHES, 1, 1)
        frame = frame.selectExpr("'v' AS value", f"CAST(id % {PARTITIONS} AS INT) AS partition")
        writer = frame.write.format("oncelog").options(topic=topic, **self._options(OURS))
        writer.mode("append").save()

    def empty_s(self, full: str, side: str) -> float:
        """Seconds of a micro-batch whose rows are all filtered away, as Spark tells them.

        Ours takes a few offsets from the topic ``full``; Spark's own makes as many rows itself, and
        its sink does nothing.
        """
        if side == OURS:
            source = self._spark.readStream.format("oncelog").options(**self._options(OURS))
            source = source.options(subscribe=full, startingOffsets="earliest")
            rows = source.option("maxOffsetsPerTrigger", PARTITIONS).load()
            none = rows.where("offset < 0").selectExpr("value")
            sink = none.writeStream.format("oncelog").options(**self._options(OURS))
            sink = sink.option("topic", full)
        else:
            source = self._spark.readStream.format("rate-micro-batch")
            rows = source.options(rowsPerBatch=PARTITIONS, numPartitions=PARTITIONS).load()
            sink = rows.where("value < 0").writeStream.format("noop")
        return self._batch_s(sink, EMPTY_BATCHES)

    def _batch_s(self, sink: Any, wanted: int) -> float:
        """The median of the first micro-batches of a query but for the first one."""
        checkpoint = self._directory / self._new_name("checkpoint")
        query = sink.option("checkpointLocation", str(checkpoint)).start()
        deadline = time.perf_counter() + WAIT_S
        try:
            while len(done := self._durations_ms(query)) <= wanted:
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"{len(done)} micro-batches of {wanted + 1}")
                time.sleep(0.1)
        finally:
            query.stop()
        return statistics.median(done[1 : wanted + 1]) / 1e3

    @staticmethod
    def _durations_ms(query: Any) -> list[float]:
        told = [progress.durationMs for progress in query.recentProgress]
        return [each["triggerExecution"] for each in told if "addBatch" in each]


def take_rounds(
    name: str, sides: list[str], rounds: int, seconds: Callable[[str], float], amount: float
) -> None:
    """Tell ``amount`` per second, or of ``amount`` 0 milliseconds, of each side in each round."""

    def figure(side: str) -> float:
        taken = seconds(side)
        return amount / taken if amount else 1e3 * taken

    for side in sides:
        seconds(side)
    for number in range(rounds):
        for side in sides[:: -1 if number % 2 else 1]:
            take(name, partial(figure, side), side)


def run(work: Work, part: str, sides: list[str], rounds: int, *, size: int, rows: int) -> None:
    """All rounds of one part."""
    name, amount = name_of(part, size), rows / 1e3
    if part == WRITE:
        take_rounds(name, sides, rounds, work.write_s, amount)
    elif part == STREAM:
        take_rounds(name, sides, rounds, work.stream_write_s, amount)
    elif part == READ:
        with ExitStack() as stack:
            topics = {side: stack.enter_context(work.topic(side)) for side in sides}
            for side in [side for side in sides if side != BASE]:
                work.write_to_s(topics[side], side)
            take_rounds(name, sides, rounds, partial(work.read_s, topics), amount)
    else:
        sides = [side for side in sides if side != KAFKA]
        with work.topic(OURS) as full:
            work.fill_for_empty(full)
            take_rounds(name, sides, rounds, partial(work.empty_s, full), 0)


def main() -> None:
    """Take the figures of one size."""
    size, rows, rounds = map(int, sys.argv[1:4])
    directory, sides = Path(sys.argv[4]), sys.argv[5].split(",")
    places: dict[str, Any] = {}
    with ExitStack() as stack:
        places[OURS] = OncelogSide(directory / "oncelog", flush="sync")
        if KAFKA in sides:
            from sides.kafka_side import KafkaSide

            places[KAFKA] = KafkaSide(directory / "kafka", fsync=False)
        for place in places.values():
            stack.callback(place.stop)
            place.start()
        spark = stack.enter_context(spark_session(directory, has_kafka=KAFKA in sides))
        work = Work(spark, places, directory, size=size, rows=rows)
        for part in sys.argv[6:]:
            run(work, part, sides, rounds, size=size, rows=rows)


if __name__ == "__main__":
    main()
