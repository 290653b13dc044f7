"""What the loops of workers have in common: how they run, report, commit and end."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from oncelog.actors.process.clock import monotonic_s
from oncelog.actors.process.metrics import JOB_FAILURES, JOB_RECORDS, JOB_TRANSACTIONS
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.api.processing.function import Function
from oncelog.api.processing.messages import ProcessConfig, WorkerState
from oncelog.api.session.client_metrics import ClientReport, Reading
from oncelog.api.session.tracing import ProcessSpan, tracing_for
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import ClientClosedError, InvalidSettingError, OncelogError
from oncelog.storage.model import TopicPartition

POLL_MS: Final = 100
"""How long a poll of an idle worker waits, and so how soon it notices a stop."""

RECOVERY_WAIT_S: Final = 0.1
"""The pause after an abort, so that a lasting fault does not become a busy loop."""

CLOSE_TIMEOUT_MS: Final = 5_000

_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.FENCED_INSTANCE_ID})

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class LoopProgress:
    """What a loop reports: written by its thread, read by any other."""

    state: WorkerState = WorkerState.STARTING
    reason: str = ""
    records_in: int = 0
    records_out: int = 0
    commits: int = 0
    aborts: int = 0
    function_failures: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    processed: dict[TopicPartition, int] = field(default_factory=dict)


class FunctionFailure(Exception):
    """The user's function raised the cause."""


class _EndedError(Exception):
    """The loop is over; its progress says why."""


class WorkerLoop(ABC):
    """One worker's loop. ``run`` is called once, in a thread; any thread may read ``progress``."""

    def __init__(
        self, config: ProcessConfig, stop: threading.Event, reports: CallReports = NO_REPORTS
    ) -> None:
        self.progress = LoopProgress()
        self._report = ClientReport(reports, self._readings)
        self._span = ProcessSpan(None, config.group_id)
        """The span of the open transaction."""
        self._config = config
        self._function = Function(config)
        self._stop = stop

    @abstractmethod
    def _round(self) -> None:
        """One poll and its processing; an exception leads to the next one or to the end."""

    def _work(self) -> None:
        """Work until asked to stop."""
        while not self._stop.is_set():
            self._report.report_if_due(monotonic_s())
            self._round()

    def _readings(self) -> Iterator[Reading]:
        """What Prometheus gets of a job, once per round."""
        progress, tags = self.progress, {"group": self._config.group_id}
        yield JOB_RECORDS, progress.records_in, {**tags, "outcome": "in"}
        yield JOB_RECORDS, progress.records_out, {**tags, "outcome": "out"}
        left_out = progress.skipped + progress.dead_lettered
        yield JOB_RECORDS, left_out, {**tags, "outcome": "left_out"}
        yield JOB_TRANSACTIONS, progress.commits, {**tags, "outcome": "committed"}
        yield JOB_TRANSACTIONS, progress.aborts, {**tags, "outcome": "aborted"}
        yield JOB_FAILURES, progress.function_failures, tags

    @abstractmethod
    def _close_clients(self) -> None:
        """Close the clients, if there are any."""

    def run(self) -> None:
        """Work until stopped, fenced or failed; ``progress`` says which. Never raises."""
        try:
            self._begin_tracing()
            self._work()
            self._end(WorkerState.STOPPED, "")
        except _EndedError:
            pass
        except BaseException as error:
            # The thread's last resort: a bug of ours must be visible from outside.
            _log.exception(
                "worker %s ended — this is a bug: report it with this log", self._config.identity
            )
            self.progress.state = WorkerState.FAILED
            self.progress.reason = text_of(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._close_clients()
            self._function.close()
            self._report.stop()

    def _begin_tracing(self) -> None:
        """Here, since the package may be missing where the worker is: the job is to say so."""
        group_id = self._config.group_id
        try:
            self._span = ProcessSpan(tracing_for(self._config.tracing, group_id), group_id)
        except InvalidSettingError as error:
            self._end(WorkerState.FAILED, text_of(error))

    def _until_known(self, end: Callable[[], object]) -> None:
        """Repeat ``end`` until its outcome is known, or the worker is asked to stop."""
        while True:
            try:
                end()
                return
            except OncelogError as error:
                if not error.retriable or self._stop.is_set():
                    raise
                self.progress.reason = str(error)

    def _judge(self, error: OncelogError) -> None:
        """End the loop if the worker is replaced or its clients are closed."""
        _log.warning(
            "worker %s: %s — nothing to do if it goes on by itself: see `oncelog jobs describe`",
            *(self._config.identity, error),
        )
        self.progress.reason = str(error)
        for cause in causes_of(error):
            if cause.code in _FENCED:
                self._end(WorkerState.FENCED, f"another worker {self._config.identity}: {cause}")
            if isinstance(cause, ClientClosedError):
                self._end(WorkerState.STOPPED, str(cause))

    def _end(self, state: WorkerState, reason: str) -> None:
        self.progress.state = state
        self.progress.reason = reason
        raise _EndedError

    def _close(self, closings: Iterable[Callable[[], object]]) -> None:
        """Close one after another, whatever fails."""
        for close in closings:
            try:
                close()
            except OncelogError as error:
                _log.warning(
                    "worker %s: close failed: %s — nothing to do: its session and its transaction "
                    "time out",
                    *(self._config.identity, error),
                )


def causes_of(error: BaseException) -> Iterable[OncelogError]:
    """An error, and those behind it."""
    cause: BaseException | None = error
    while isinstance(cause, OncelogError):
        yield cause
        cause = cause.__cause__


def text_of(error: BaseException | None) -> str:
    """An error as a reason."""
    return f"{type(error).__name__}: {error}"
