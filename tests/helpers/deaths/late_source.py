"""The data source with a task attempt that is late: it writes on after the commit of its copy.

With option ``late`` the first attempt that begins the second task waits after some of its rows,
until its write is committed; so Spark, if it speculates, runs a copy on another host, which wins.
Which attempt begins first is for them to find out: one of a host that has just started can come
after its own copy.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark import TaskContext

from oncelog.actors.process.process_table import ProcessTable
from oncelog.spark_bridge.connection import connect
from oncelog.spark_bridge.sink import (
    BatchWriter,
    StreamTaskReport,
    StreamWriter,
    TaskReport,
    _micro_batch,
)
from oncelog.spark_bridge.source import OncelogDataSource

LATE: Final = "late"
"""A directory for the files below, with ``kill`` behind it if the winner's executor is to die."""
BEGUN: Final = "begun"
WINNER: Final = "winner"
COMMITTED: Final = "committed"
LOSER: Final = "loser"
LATE_TASK: Final = 1
TIMEOUT_S: Final = 120.0


class Lateness:
    """What a late write's processes tell each other, by files."""

    def __init__(self, text: str) -> None:
        directory, _, end = text.partition(" ")
        self._directory = Path(directory)
        self._kills = end == "kill"

    def write(self, rows: Iterator[Any], write: Any) -> Any:
        """``write`` the rows of a task attempt, late if it is the one."""
        context = TaskContext.get()
        if context is None or context.partitionId() != LATE_TASK:
            return write(rows)
        if not self._is_first():
            report = write(rows)
            executor = ProcessTable("").ancestor("java")
            assert executor is not None
            (self._directory / WINNER).write_text(str(executor.process_id))
            return report
        try:
            # Taken at once: Spark closes the loser's source as soon as the winner is done.
            report = write(self._late(list(rows)))
        except TimeoutError:
            self._tell("alone")
            raise
        except Exception as error:
            self._tell(f"refused: {error}")
            raise
        self._tell("accepted")
        return report

    def _is_first(self) -> bool:
        try:
            (self._directory / BEGUN).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _late(self, batches: list[Any]) -> Iterator[Any]:
        first, *others = batches
        yield first
        deadline = time.monotonic() + TIMEOUT_S
        while not (self._directory / COMMITTED).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no copy of this task was committed in {TIMEOUT_S} s")
            threading.Event().wait(0.01)
        yield from others

    def _tell(self, what: str) -> None:
        (self._directory / LOSER).write_text(json.dumps(what))

    def commit(self, commit: Any) -> None:
        """``commit``, before which the winner's executor dies if asked."""
        if self._kills:
            os.kill(int((self._directory / WINNER).read_text()), signal.SIGKILL)
        commit()
        (self._directory / COMMITTED).touch()


class LateBatchWriter(BatchWriter):
    """See ``LateSource``."""

    lateness: Lateness

    def write(self, iterator: Iterator[Any]) -> TaskReport:
        return self.lateness.write(
            iterator,
            lambda rows: TaskReport(self._write.write(connect, rows, gather_bytes=1)),
        )

    def commit(self, messages: list[Any]) -> None:
        self.lateness.commit(lambda: BatchWriter.commit(self, messages))


class LateStreamWriter(StreamWriter):
    """See ``LateSource``."""

    lateness: Lateness

    def write(self, iterator: Iterator[Any]) -> StreamTaskReport:
        def write(rows: Iterator[Any]) -> StreamTaskReport:
            return StreamTaskReport(
                self._write.write(connect, _micro_batch(), rows, gather_bytes=1)
            )

        return self.lateness.write(iterator, write)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self.lateness.commit(lambda: StreamWriter.commit(self, messages, batchId))


class LateSource(OncelogDataSource):
    """Format ``oncelog``; without option ``late`` it is as ever."""

    def __init__(self, options: Any) -> None:
        self._late = options.get(LATE)
        super().__init__({name: text for name, text in options.items() if name != LATE})

    def _with_lateness(self, writer: Any, kind: type) -> Any:
        if self._late is None:
            return writer
        late = kind(writer._write)
        late.lateness = Lateness(self._late)
        return late

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return self._with_lateness(super().writer(schema, overwrite), LateBatchWriter)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return self._with_lateness(super().streamWriter(schema, overwrite), LateStreamWriter)
