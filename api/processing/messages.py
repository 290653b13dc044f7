"""The configuration of a worker of ``cluster.process``, and what it reports."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.api.session.login import NOBODY, Login
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import GROUP_ID_MAX_BYTES, TopicPartition
from oncelog.storage.settings import Checked, Text, check, refused, settings_of

BatchFormat = Literal["arrow", "record"]
ProcessMode = Literal["partitions", "queue"]
OnError = Literal["fail", "retry", "skip", "dead_letter"]

CONCURRENCY_MAX: Final = 10_000
"""The most concurrent calls of an ``async`` function in a worker."""

REMOTE_ARGS: Final = (
    "accelerator_type",
    "fallback_strategy",
    "label_selector",
    "memory",
    "num_cpus",
    "num_gpus",
    "resources",
    "runtime_env",
    "scheduling_strategy",
)
"""What ``ray_remote_args`` may have; the others of ``ray.remote`` are the job's to set."""

WORKERS_MAX: Final = 1_000
"""The most workers of one job."""


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
    """One worker of a job; it is sent to its actor, so the function must be picklable.

    ``job_id`` is new with each start of the job; deaths over the same input are counted per job id.
    ``login`` is as whom the worker connects; it reads the password from the file on its own node.
    """

    source: Annotated[
        str | Sequence[str],
        Checked("a topic, or a list of topics, none twice", "text or a list"),
        "The topic that is read, or several.",
    ]
    sink: Annotated[
        str | Sequence[str] | None,
        Checked("a topic, a list of topics, none twice, or None", "text or a list"),
        "The topic that is written. Of several, the function's result says which; `None`: nothing "
        "is written.",
    ]
    group_id: Annotated[
        str,
        Text(GROUP_ID_MAX_BYTES),
        "The job's name, and its consumer group: a later job with the same id continues where this "
        "one ended.",
    ]
    worker_index: int
    function: Annotated[
        Callable[[Any], Any],
        "Maps source records to sink records; it must be picklable.",
    ]
    batch_format: Annotated[
        BatchFormat,
        "What the function gets and returns: Arrow tables, or one record at a time.",
    ] = "arrow"
    commit_interval_ms: Annotated[
        int,
        Meta(ge=0),
        "How long a transaction takes in further polls before it commits; 0 commits after every "
        "poll.",
    ] = 100
    max_poll_records: Annotated[int, Meta(ge=1), "The most records that one poll returns."] = 5_000
    function_timeout_ms: Annotated[
        int,
        Meta(ge=1),
        "How long one call of the function may take. After that the group gives its partitions to "
        "other workers: a failure.",
    ] = 1_800_000
    max_function_failures: Annotated[
        int,
        Meta(ge=1),
        "A worker fails after this many failures in a row of the function, or of its output. With "
        "`skip` and `dead_letter`: how often a record must fail alone to be left out.",
    ] = 3
    max_worker_deaths: Annotated[
        int,
        Meta(ge=1),
        "A worker fails after this many of its processes in a row have died over the same input. "
        "With `skip` and `dead_letter` it looks for the record; as many more leave that out.",
    ] = 10
    job_id: str = "job"
    login: Login = NOBODY
    producer_settings: Annotated[
        Mapping[str, Any],
        Checked("settings of a producer, by name", "settings"),
        "Settings of the workers' producers, except for ids.",
    ] = field(default_factory=dict)
    consumer_settings: Annotated[
        Mapping[str, Any],
        Checked("settings of a consumer, by name", "settings"),
        "Settings of the workers' consumers, or of their queues, except for ids.",
    ] = field(default_factory=dict)
    # Last: a restarting actor unpickles the configuration of an earlier version by position.
    workers: Annotated[
        int, Meta(ge=1, le=WORKERS_MAX), "How many actors share the partitions of the source."
    ] = 2
    mode: Annotated[
        ProcessMode,
        "Whether workers share the partitions of the source, or, in any number, its records as a "
        "queue.",
    ] = "partitions"
    on_error: Annotated[
        OnError,
        "What a failure of the function leads to: the worker fails, tries again without end, or "
        "leaves the record out, with or without a dead letter.",
    ] = "fail"
    dead_letter_topic: Annotated[
        str | None, "The topic of dead letters; only with `on_error` `dead_letter`."
    ] = None
    retry_backoff_ms: Annotated[
        int,
        Meta(ge=1),
        "With `on_error` `retry`: the pause after a first failure; it doubles with each further.",
    ] = 100
    retry_backoff_max_ms: Annotated[
        int, Meta(ge=1), "With `on_error` `retry`: the longest pause between attempts."
    ] = 30_000
    max_concurrency: Annotated[
        int,
        Meta(ge=1, le=CONCURRENCY_MAX),
        "How many records an `async` function may work on at a time, per worker.",
    ] = 100
    ray_remote_args: Annotated[
        Mapping[str, Any],
        Checked("any of " + ", ".join(REMOTE_ARGS), "arguments, by name"),
        "What each worker needs and where it may run, as `ray.remote` takes it; without them a "
        "worker needs `num_cpus=0`.",
    ] = field(default_factory=dict)

    tracing: Annotated[
        bool | None,
        "Make spans of transactions, and carry their context in headers of the output; needs "
        "`oncelog[traces]`. `None`: if a worker's process has set a tracer provider.",
    ] = None

    def __post_init__(self) -> None:
        """Reject values out of range; ``InvalidSettingError`` names the first one."""
        check(self)
        for name in ("source", "sink"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
            topics = _topics(getattr(self, name))
            is_nothing = name == "sink" and value is None
            if len(set(topics)) < len(topics) or not (topics or is_nothing):
                raise refused(name, value, settings_of(ProcessConfig)[name].rule.allowed)
        for name, value in self.ray_remote_args.items():
            if name not in REMOTE_ARGS:
                allowed = settings_of(ProcessConfig)["ray_remote_args"].rule.allowed
                raise refused(f"ray_remote_args[{name!r}]", value, allowed)
        if (self.on_error == "dead_letter") != (self.dead_letter_topic is not None):
            raise InvalidSettingError(
                f"dead_letter_topic={self.dead_letter_topic!r} with on_error={self.on_error!r}",
                advice="give a topic with on_error='dead_letter', and only then",
            )
        if self.mode == "queue" and self.on_error != "fail":
            raise InvalidSettingError(
                f"on_error={self.on_error!r} with mode='queue'",
                advice="give consumer_settings a dead_letter_topic and a max_delivery_count",
            )
        if self.retry_backoff_max_ms < self.retry_backoff_ms:
            raise InvalidSettingError(
                f"retry_backoff_max_ms={self.retry_backoff_max_ms} is below "
                f"retry_backoff_ms={self.retry_backoff_ms}",
                advice="give at least as much",
            )

    def completed(self) -> ProcessConfig:
        """A copy that has all fields: one of an earlier version was unpickled without the last."""
        given = {
            one.name: getattr(self, one.name) for one in fields(self) if hasattr(self, one.name)
        }
        return ProcessConfig(**given)

    @property
    def sources(self) -> tuple[str, ...]:
        """The topics that are read."""
        return _topics(self.source)

    @property
    def sinks(self) -> tuple[str, ...]:
        """The topics that are written."""
        return _topics(self.sink)

    @property
    def leaves_out(self) -> bool:
        """Whether records for which the function fails are left out."""
        return self.on_error in ("skip", "dead_letter")

    @property
    def identity(self) -> str:
        """The worker's transactional id and group instance id, the same after a restart."""
        return identity_of(self.group_id, self.worker_index)


def _topics(value: object) -> tuple[str, ...]:
    """One or several topics as a tuple; empty if they are none."""
    topics = (value,) if isinstance(value, str) else value
    if not isinstance(topics, tuple) or not all(isinstance(one, str) and one for one in topics):
        return ()
    return topics


def identity_of(group_id: str, worker_index: int) -> str:
    """The transactional id and group instance id of a worker of a job."""
    return f"{group_id}-{worker_index}"


class WorkerStatus(Reply, frozen=True, kw_only=True):
    """What a worker has done since its process started; ``reason`` says why it ended or waits.

    Records count once their transaction is committed. ``processed`` holds an offset (exclusive) for
    each assigned partition: everything below it is committed, or was skipped. ``workers`` is how
    many the job has, as was said at ``scaled_ms``.
    """

    worker_index: int = -1
    sources: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    process_id: int = -1
    started_ms: int = -1
    state: WorkerState = WorkerState.STARTING
    reason: str = ""
    records_in: int = 0
    records_out: int = 0
    commits: int = 0
    aborts: int = 0
    function_failures: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    workers: int = 0
    scaled_ms: int = 0
    processed: tuple[tuple[TopicPartition, int], ...] = ()
    mode: ProcessMode = "partitions"


class WorkerStatusRequest(Request[WorkerStatus], frozen=True, kw_only=True):
    """Ask a worker for its status."""

    method = "status"
    reply_type = WorkerStatus


class StopWorkerRequest(Request[WorkerStatus], frozen=True, kw_only=True):
    """Tell a worker to commit its open transaction and to end; the reply comes at once."""

    method = "stop"
    reply_type = WorkerStatus


class ScaleWorkersRequest(Request[WorkerStatus], frozen=True, kw_only=True):
    """Tell a worker how many the job has from now on; of several the latest counts."""

    method = "scale"
    reply_type = WorkerStatus

    workers: int
    scaled_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """Whether a worker's process works; ``detail`` says what it waits for."""

    process_id: int
    is_serving: bool
    detail: str
