"""The data source, with writers in whose hooks a process dies if option ``death`` says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from deaths.cells import BEGIN, WRITTEN
from deaths.rows import STRUCK_BATCH
from deaths.strikes import Death
from pyspark import TaskContext

from oncelog.spark_bridge.connection import connect
from oncelog.spark_bridge.errors import one_line_errors
from oncelog.spark_bridge.sink import (
    BATCH_ID,
    BatchWriter,
    StreamTaskReport,
    StreamWriter,
    TaskReport,
    _micro_batch,
)
from oncelog.spark_bridge.source import OncelogDataSource

DEATH: Final = "death"
GATHER_BYTES: Final = 1
"""So that rows are in the log before the last ones are read."""


def _is_first_task() -> bool:
    context = TaskContext.get()
    return context is not None and context.partitionId() == 0


def _watched(death: Death, batches: Iterator[Any]) -> Iterator[Any]:
    """The rows of the first task; with the second batch those of the first are in the log."""
    size_before = death.log_size()
    for number, batch in enumerate(batches):
        if number == 1:
            death.at_rows(size_before)
        yield batch


class DyingBatchWriter(BatchWriter):
    """Strikes in its first task, its commit or its abort."""

    death: Death

    def write(self, iterator: Iterator[Any]) -> TaskReport:
        if not _is_first_task():
            return super().write(iterator)
        self.death.note_task()
        self.death.at(BEGIN)
        self.death.fail_if_asked()
        with one_line_errors():
            rows = _watched(self.death, iterator)
            report = TaskReport(self._write.write(connect, rows, gather_bytes=GATHER_BYTES))
        self.death.at(WRITTEN)
        return report

    def commit(self, messages: list[Any]) -> None:
        self.death.around_commit(lambda: BatchWriter.commit(self, messages))

    def abort(self, messages: list[Any]) -> None:
        self.death.around_abort(lambda: BatchWriter.abort(self, messages))


class DyingStreamWriter(StreamWriter):
    """The same, in one of the micro-batches."""

    death: Death

    def write(self, iterator: Iterator[Any]) -> StreamTaskReport:
        context = TaskContext.get()
        is_struck = context.getLocalProperty(BATCH_ID) == str(STRUCK_BATCH)
        if not (is_struck and _is_first_task()):
            return super().write(iterator)
        self.death.note_task()
        self.death.at(BEGIN)
        self.death.fail_if_asked()
        with one_line_errors():
            rows = _watched(self.death, iterator)
            found = self._write.write(connect, _micro_batch(), rows, gather_bytes=GATHER_BYTES)
        self.death.at(WRITTEN)
        return StreamTaskReport(found)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        def commit() -> None:
            StreamWriter.commit(self, messages, batchId)

        if batchId == STRUCK_BATCH:
            self.death.around_commit(commit)
        else:
            commit()

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        def abort() -> None:
            StreamWriter.abort(self, messages, batchId)

        if batchId == STRUCK_BATCH:
            self.death.around_abort(abort)
        else:
            abort()


class DyingSource(OncelogDataSource):
    """Format ``oncelog``; without option ``death`` it is as ever."""

    def __init__(self, options: Any) -> None:
        self._death = options.get(DEATH)
        super().__init__({name: text for name, text in options.items() if name != DEATH})

    def _with_death(self, writer: Any, kind: type) -> Any:
        if self._death is None:
            return writer
        dying = kind(writer._write)
        dying.death = Death.from_json(self._death)
        return dying

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return self._with_death(super().writer(schema, overwrite), DyingBatchWriter)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return self._with_death(super().streamWriter(schema, overwrite), DyingStreamWriter)
