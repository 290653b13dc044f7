"""What a worker of ``cluster.process`` is made from, and what it reports."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import TopicPartition

BATCH_FORMATS: Final = ("arrow", "record")


class WorkerState(enum.Enum):
    """A worker's state. The last three are final for its process."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    FENCED = "fenced"
    FAILED = "failed"

    @property
    def is_ended(self) -> bool:
        """Whether the worker has ended."""
        return self in (WorkerState.STOPPED, WorkerState.FENCED, WorkerState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """One worker of a job; travels to its actor, so the function must be picklable.

    ``source`` is read, ``sink`` written. ``commit_interval_ms`` is how long a transaction takes in
    further polls before it commits; 0 commits after every poll. ``records_max`` bounds one poll.
    ``function_timeout_ms`` is how long one call of the function may take before the group gives
    its partitions to others: a failure. ``max_function_failures`` failures in a row, of the
    function or of what it returned, end the worker; so do ``max_worker_deaths`` processes in a row
    that died over the same input, counted for ``job_id``, which each start of the job has anew.
    ``producer_settings`` and ``consumer_settings`` override those of the clients, except for the
    ids, which follow from ``group_id`` and ``worker_index``.
    """

    source: str
    sink: str
    group_id: str
    worker_index: int
    function: Callable[[Any], Any]
    batch_format: str = "arrow"
    commit_interval_ms: int = 100
    records_max: int = 5_000
    function_timeout_ms: int = 1_800_000
    max_function_failures: int = 3
    max_worker_deaths: int = 10
    job_id: str = "job"
    producer_settings: Mapping[str, Any] = field(default_factory=dict)
    consumer_settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse impossible values. ``InvalidSettingError`` names the first bad one."""
        if self.batch_format not in BATCH_FORMATS:
            raise InvalidSettingError(
                f"batch_format={self.batch_format!r} is not allowed",
                advice="give 'arrow' or 'record'",
            )
        if not callable(self.function):
            raise InvalidSettingError(
                f"function={self.function!r} is not allowed", advice="give a callable"
            )
        if not self.group_id:
            raise InvalidSettingError(
                "group_id='' is not allowed", advice="give text of 1 byte or more"
            )
        for name, low in (
            ("commit_interval_ms", 0),
            ("records_max", 1),
            ("function_timeout_ms", 1),
            ("max_function_failures", 1),
            ("max_worker_deaths", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InvalidSettingError(
                    f"{name}={value!r} is not allowed",
                    advice=f"give a whole number of {low} or more",
                )

    @property
    def identity(self) -> str:
        """The worker's transactional id and group instance id, the same after a restart."""
        return identity_of(self.group_id, self.worker_index)


def identity_of(group_id: str, worker_index: int) -> str:
    """The transactional id and group instance id of a worker of a job."""
    return f"{group_id}-{worker_index}"


class WorkerStatus(Reply, frozen=True, kw_only=True):
    """What a worker has done since its process started; ``reason`` says why it ended or waits.

    Records count once their transaction is committed. ``processed`` holds, for each assigned
    partition, the offset before which everything is (exclusive), committed or passed over.
    """

    worker_index: int = -1
    source: str = ""
    sink: str = ""
    process_id: int = -1
    started_ms: int = -1
    state: WorkerState = WorkerState.STARTING
    reason: str = ""
    records_in: int = 0
    records_out: int = 0
    commits: int = 0
    aborts: int = 0
    function_failures: int = 0
    processed: tuple[tuple[TopicPartition, int], ...] = ()


class WorkerStatusRequest(Request[WorkerStatus], frozen=True, kw_only=True):
    """Ask a worker for its status."""

    method = "status"
    reply_type = WorkerStatus


class StopWorkerRequest(Request[WorkerStatus], frozen=True, kw_only=True):
    """Tell a worker to commit what it has begun and to end; answered at once."""

    method = "stop"
    reply_type = WorkerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """Whether a worker's process works; ``detail`` says what it waits for."""

    process_id: int
    is_serving: bool
    detail: str
