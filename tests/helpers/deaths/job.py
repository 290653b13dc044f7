"""``python -m deaths.job ADDRESS DIRECTORY CELL...``: the program that a user would have written.

It does the cells one by one, in one session. When its driver dies it is started again with the
cells that are left, the one it died in first: what it does then is what its user would do.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from deaths.cells import (
    FOREACH_BATCH,
    MICRO_BATCH,
    RETURNED,
    SAVE,
    STREAMS,
    Cell,
    cell_of,
)
from deaths.dying_source import DEATH, DyingSource
from deaths.rows import (
    BATCH_OFFSETS,
    DONE,
    FIRST,
    PARTITIONS,
    SAVED,
    SECOND,
    SOURCE_TOPIC,
    STRUCK_BATCH,
    WRITE_ROWS,
)
from deaths.strikes import Death

import oncelog
from oncelog import spark_bridge

ATTEMPTS_MAX: Final = 4
LOOK_S: Final = 0.01
CONFIGS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5",
    "spark.sql.shuffle.partitions": "2",
}


class Job:
    """One cell in one session."""

    def __init__(self, spark: Any, directory: Path, cell: Cell) -> None:
        self._spark = spark
        self._cell = cell
        self._home = directory / "cells" / cell.topic
        self.death = Death(
            directory=str(self._home),
            victim=cell.victim,
            step=cell.step,
            log=str(directory / "data" / f"{cell.topic}-0" / f"{0:020}.log"),
            driver_java=spark._jvm.java.lang.ProcessHandle.current().pid(),
            driver_python=os.getpid(),
        )

    def run(self) -> None:
        """Do the cell, from where its files say it is."""
        self._home.mkdir(parents=True, exist_ok=True)
        if self._cell.kind == SAVE:
            self._save_once()
            self._until_it_succeeds(lambda: self._write(self._rows(SECOND)))
        elif self._cell.kind in STREAMS:
            self._until_it_succeeds(self._stream)
        else:
            self._until_it_succeeds(lambda: self._version(1, FIRST))
            self._until_it_succeeds(lambda: self._version(2, SECOND))
        (self._home / DONE).touch()

    # --- batches ----------------------------------------------------------------------------------

    def _save_once(self) -> None:
        """A write that nobody may repeat, for nobody knows how it ended if it did not return."""
        if self.death.has_struck:
            return
        try:
            self._write(self._rows(FIRST), death=self.death.to_json())
        except Exception as error:
            self._tell(error)
        else:
            (self._home / SAVED).touch()
            self._strike_myself()

    def _version(self, version: int, prefix: str) -> None:
        options = {DEATH: self.death.to_json()} if version == 1 else {}
        self._write(self._rows(prefix), txnAppId=self._cell.topic, txnVersion=version, **options)
        if version == 1:
            self._strike_myself()

    def _rows(self, prefix: str) -> Any:
        """Rows of two tasks, each for the partition of its own number."""
        share = WRITE_ROWS // PARTITIONS
        return self._spark.range(0, WRITE_ROWS, 1, PARTITIONS).selectExpr(
            f"CONCAT('{prefix}-', id) AS value", f"CAST(id / {share} AS INT) AS partition"
        )

    def _write(self, frame: Any, **options: Any) -> None:
        writer = frame.write.format("oncelog").option("topic", self._cell.topic)
        writer.options(**{"kafka.linger.ms": 0}, **options).mode("append").save()

    # --- streams ----------------------------------------------------------------------------------

    def _stream(self) -> None:
        reader = self._spark.readStream.format("oncelog").option("subscribe", SOURCE_TOPIC)
        reader = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=BATCH_OFFSETS)
        writer = reader.load().select("value", "partition").writeStream
        checkpoint = self._home / "checkpoint"
        writer = writer.option("checkpointLocation", str(checkpoint))
        if self._cell.kind == FOREACH_BATCH:
            writer = writer.foreachBatch(self._write_batch)
        else:
            writer = writer.format("oncelog").option("topic", self._cell.topic)
            writer = writer.options(**{"kafka.linger.ms": 0, DEATH: self.death.to_json()})
        if self._cell.kind == MICRO_BATCH:
            query = writer.trigger(processingTime="100 milliseconds").start()
        else:
            query = writer.trigger(availableNow=True).start()
        try:
            if self._cell.kind != FOREACH_BATCH and self._cell.step == RETURNED:
                noted = checkpoint / "commits" / str(STRUCK_BATCH)
                while query.isActive and not noted.exists():
                    threading.Event().wait(LOOK_S)
                self._strike_myself()
            if self._cell.kind == MICRO_BATCH:
                query.processAllAvailable()
            else:
                query.awaitTermination()
        finally:
            query.stop()

    def _write_batch(self, frame: Any, batch_id: int) -> None:
        options = {DEATH: self.death.to_json()} if batch_id == STRUCK_BATCH else {}
        self._write(frame, txnAppId=self._cell.topic, txnVersion=batch_id, **options)
        if batch_id == STRUCK_BATCH:
            self._strike_myself()

    # --- either -----------------------------------------------------------------------------------

    def _strike_myself(self) -> None:
        """Strike now that Spark knows of the commit."""
        self.death.at(RETURNED)

    def _until_it_succeeds(self, step: Callable[[], None]) -> None:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                step()
                return
            except Exception as error:
                # Without its driver a program can only be started anew.
                if self._cell.kills_driver or attempt == ATTEMPTS_MAX:
                    raise
                self._tell(error)

    def _tell(self, error: Exception) -> None:
        sys.stdout.write(f"{self._cell.name}: {str(error).strip().splitlines()[:1]}\n")
        sys.stdout.flush()


def main() -> None:
    """Do the cells of the command line."""
    address, directory, *names = sys.argv[1:]
    with oncelog.connect(address) as cluster:
        spark = spark_bridge.session(cluster, executors=2, cores=1, memory="500m", configs=CONFIGS)
        spark.dataSource.register(DyingSource)
        for name in names:
            Job(spark, Path(directory), cell_of(name)).run()
        spark_bridge.stop(spark)


if __name__ == "__main__":
    main()
