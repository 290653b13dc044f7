"""The loop of one worker of a job with ``mode="queue"``: take, transform, produce, exactly once.

Each round takes records of a queue and handles them in one transaction::

    take → function → begin → send … → acknowledge → commit

* An abortable error aborts; the records are delivered again, here or to another worker.
* After a failure of the function over several records each of them is taken alone, so that one bad
  record spoils no others.
* With a ``dead_letter_topic`` a record that fails ``max_delivery_count`` times goes there. If
  ``max_function_failures`` different records fail in a row, the function is at fault: the worker
  ends as FAILED.
* Without one the worker ends as FAILED after ``max_function_failures`` in a row.
* A worker that is replaced, by transactional id, ends as FENCED.

Blocking code for a thread of its own, as ``ProcessLoop``. Source: KIP-932, KIP-1289.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.api.config import ProducerSettings, QueueSettings
from oncelog.api.processing.function import Output
from oncelog.api.processing.messages import ProcessConfig, WorkerState
from oncelog.api.processing.worker_loop import (
    CLOSE_TIMEOUT_MS,
    POLL_MS,
    RECOVERY_WAIT_S,
    FunctionFailure,
    WorkerLoop,
    text_of,
)
from oncelog.api.producing.producer import Producer
from oncelog.api.queueing.queue import Queue
from oncelog.api.records import QueueRecord
from oncelog.storage.exceptions import OncelogError

TAKEN_MAX: Final = 10_000
"""The most records of one round, whatever ``max_poll_records`` is."""

_log = logging.getLogger(__name__)


class QueueClients(NamedTuple):
    """A worker's own producer and queue, and how to close their connection."""

    producer: Producer
    queue: Queue
    close: Callable[[], None] = lambda: None


class ConnectQueue(Protocol):
    """Makes a worker's clients; called again when they must be replaced."""

    def __call__(
        self, topics: Sequence[str], producer: ProducerSettings, queue: QueueSettings
    ) -> QueueClients:
        """Make clients with these settings. May raise ``OncelogError`` while nothing replies."""
        ...


def queue_worker_settings(config: ProcessConfig) -> tuple[ProducerSettings, QueueSettings]:
    """The settings of a worker's clients; ``InvalidSettingError`` for a bad override."""
    producer = {"linger_ms": 5, "client_id": config.group_id, "tracing": config.tracing} | dict(
        config.producer_settings
    )
    queue = {
        "record_lock_duration_ms": config.function_timeout_ms,
        "tracing": config.tracing,
    } | dict(config.consumer_settings)
    return (
        ProducerSettings.from_options(producer | {"transactional_id": config.identity}),
        QueueSettings.from_options(queue | {"group_id": config.group_id}),
    )


class QueueLoop(WorkerLoop):
    """The loop of a worker that takes from a queue."""

    def __init__(
        self,
        config: ProcessConfig,
        connect: ConnectQueue,
        *,
        stop: threading.Event,
        reports: CallReports = NO_REPORTS,
    ) -> None:
        super().__init__(config, stop, reports)
        self._connect = connect
        self._clients: QueueClients | None = None
        self._alone = 0
        """How many of the next records are taken alone."""
        self._failed: list[tuple[str, int, int]] = []
        """The records that have failed alone since one succeeded."""

    def _round(self) -> None:
        try:
            if self._clients is None:
                self._open()
            self._take_once(self._open_clients())
        except OncelogError as error:
            self._judge(error)
            # A new producer aborts what the last one left open, and a new queue releases.
            self._close_clients()
            self._stop.wait(RECOVERY_WAIT_S)

    def _take_once(self, clients: QueueClients) -> None:
        self.progress.state = WorkerState.RUNNING
        count = 1 if self._alone else min(self._config.max_poll_records, TAKEN_MAX)
        records = clients.queue.take(count, POLL_MS)
        if not records:
            self._alone = 0
            return
        self._alone = max(self._alone - len(records), 0)
        outcome = "abort"
        try:
            with self._span.active(records):
                if self._handle(clients, records):
                    outcome = "commit"
        finally:
            self._span.end(outcome)

    def _handle(self, clients: QueueClients, records: Sequence[QueueRecord]) -> bool:
        """Apply the function and write what it returns; whether that is committed."""
        try:
            output = self._apply(records)
        except FunctionFailure as failure:
            clients.queue.release(records)
            self._record_failure(records, failure.__cause__)
            return False
        return self._write(clients, records, output)

    def _apply(self, records: Sequence[QueueRecord]) -> Output:
        is_table = self._config.batch_format == "arrow"
        try:
            return self._function.apply(_table(records) if is_table else records)
        except BaseException as error:
            # Whatever a user's function raises, even SystemExit: this thread would end unseen.
            raise FunctionFailure from error

    def _write(self, clients: QueueClients, records: Sequence[QueueRecord], output: Output) -> bool:
        """The output and the acknowledgement of its input, in one transaction; if committed."""
        producer, is_held = clients.producer, True
        producer.begin_transaction()
        try:
            output.send(producer)
            is_held = False
            producer.send_acknowledgements_to_transaction(records, clients.queue)
            self._until_known(producer.commit_transaction)
        except (OncelogError, TypeError, ValueError) as error:
            if isinstance(error, OncelogError):
                self._judge(error)
                if not error.abortable:
                    raise
            self.progress.aborts += 1
            self._until_known(producer.abort_transaction)
            if is_held:
                clients.queue.release(records)
            if isinstance(error, OncelogError):
                self._stop.wait(RECOVERY_WAIT_S)
            else:
                self._record_failure(records, error)
            return False
        self._failed.clear()
        progress = self.progress
        progress.reason = ""
        progress.commits += 1
        progress.records_in += len(records)
        progress.records_out += output.record_count
        return True

    # --- failures -----------------------------------------------------------------------------

    def _record_failure(self, records: Sequence[QueueRecord], cause: BaseException | None) -> None:
        reason = text_of(cause)
        self.progress.function_failures += 1
        self.progress.reason = reason
        _log.warning(
            "worker %s: %d records failed: %s — correct the function if they fail each time",
            *(self._config.identity, len(records), reason),
        )
        if len(records) > 1:
            self._alone += len(records)
            return
        (record,) = records
        place = (record.topic, record.partition, record.offset)
        if place not in self._failed or not _has_dead_letters(self._config):
            self._failed.append(place)
        if len(self._failed) >= self._config.max_function_failures:
            self._end(WorkerState.FAILED, f"failed {len(self._failed)} times, last: {reason}")
        self._stop.wait(RECOVERY_WAIT_S)

    # --- clients ------------------------------------------------------------------------------

    def _open(self) -> None:
        """Make new clients, and fence the transaction of earlier ones."""
        self.progress.state = WorkerState.STARTING
        self._clients = self._connect(self._config.sources, *queue_worker_settings(self._config))
        self._clients.producer.init_transactions()

    def _open_clients(self) -> QueueClients:
        assert self._clients is not None
        return self._clients

    def _close_clients(self) -> None:
        clients, self._clients = self._clients, None
        if clients is None:
            return
        self._close(
            (
                lambda: clients.producer.close(CLOSE_TIMEOUT_MS),
                clients.queue.close,
                clients.close,
            )
        )


def _has_dead_letters(config: ProcessConfig) -> bool:
    return config.consumer_settings.get("dead_letter_topic") is not None


def _table(records: Sequence[QueueRecord]) -> Any:
    """Records as a table with the columns of ``Consumer.poll_arrow``."""
    import pyarrow as pa

    from oncelog.api.consuming.record_table import RECORD_SCHEMA

    rows = [
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
        }
        for record in records
    ]
    return pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)
