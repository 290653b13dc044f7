"""``oncelog.ray_data.read``: topics as a dataset, planned when it is called.

The plan is frozen in the dataset, so each execution reads the same records: call ``read`` again to
see newer ones. Tasks run wherever Ray places them, each on the connection of its process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ray.data import Dataset, read_datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from oncelog.api.distributing.engine_connection import Endpoint, EngineConnection
from oncelog.api.distributing.read import PartitionRange, Selection
from oncelog.api.session.login import NOBODY, Login
from oncelog.ray_data.arguments import LevelText, PathText, ReadArguments
from oncelog.ray_data.columns import read_schema, to_block
from oncelog.ray_data.connection import connect
from oncelog.ray_data.planning import (
    END,
    START,
    Positions,
    plan,
    rows_bytes,
    shares,
    times_ms,
)
from oncelog.storage.model import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data.context import DataContext

TASK_BYTES_MIN: Final = 8_388_608
"""The least of a log that a task reads by default: some nine batches of a table.

Tasks that share a batch both fetch it, and Ray Data asks for up to 200 tasks of a megabyte each.
"""


def read(
    topics: str | Sequence[str],
    *,
    start_offset: Positions = "earliest",
    end_offset: Positions = "latest",
    isolation_level: LevelText = "read_committed",
    include_headers: bool = True,
    address: str | None = None,
    user: str | None = None,
    password_file: PathText | None = None,
    token: PathText | None = None,
    cert: PathText | None = None,
    override_num_blocks: int | None = None,
    concurrency: int | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: float | None = None,
    label_selector: dict[str, str] | None = None,
    resources: dict[str, float] | None = None,
    runtime_env: dict[str, Any] | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> Dataset:
    """Return a dataset of the records of ``topics`` that can be read now, one row each.

    Columns: ``key`` and ``value`` (binary), ``topic``, ``partition``, ``offset``, ``timestamp``
    (ms since the epoch), ``timestamp_type`` (0: the producer's, 1: the log's) and, with
    ``include_headers``, ``headers`` (``list<struct<key, value>>``).

    ``start_offset`` (inclusive) and ``end_offset`` (exclusive) are an offset, a ``datetime`` (UTC
    if it has no zone), "earliest" or "latest", or ``{topic: {partition: one of these}}``.
    Partitions not named there are read from the earliest or to the latest offset. A time means the
    first record at or after it. The latest is the last stable offset for read_committed, the high
    watermark for read_uncommitted; an end beyond it is lowered to it. ``address``, ``user``,
    ``password_file``, ``token`` and ``cert`` are those of ``oncelog.connect``; by default this
    process's Ray cluster, or this machine's, and its environment. Each worker reads the file on its
    node. The other arguments are those of ``ray.data.read_datasource``. ``InvalidSettingError`` for
    an invalid argument, ``UnknownTopicOrPartitionError``, and ``OffsetOutOfRangeError`` for a start
    whose records are deleted or not there yet. A task fails if its records are deleted before it
    reads.
    """
    # One thing: mostly arguments, and what they mean.
    wanted = ReadArguments(
        topics=topics,
        start_offset=start_offset,
        end_offset=end_offset,
        isolation_level=isolation_level,
        include_headers=include_headers,
        address=address,
        user=user,
        password_file=password_file,
        token=token,
        cert=cert,
        override_num_blocks=override_num_blocks,
    )
    endpoint = wanted.endpoint
    planned = plan_read(
        connect(endpoint), wanted.topic_names, start_offset, end_offset, wanted.level
    )
    dataset: Dataset = read_datasource(
        OncelogDatasource(
            planned,
            includes_headers=include_headers,
            task_bytes_min=1 if override_num_blocks else TASK_BYTES_MIN,
            login=endpoint.login,
        ),
        override_num_blocks=override_num_blocks,
        concurrency=concurrency,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        memory=memory,
        label_selector=label_selector,
        resources=resources,
        runtime_env=runtime_env,
        ray_remote_args=ray_remote_args,
    )
    return dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """What to read, and the average log bytes per offset of each partition."""

    ranges: tuple[PartitionRange, ...]
    bytes_per_offset: Mapping[TopicPartition, int]
    isolation_level: IsolationLevel


def plan_read(
    connection: EngineConnection,
    topics: tuple[str, ...],
    start_offset: Positions,
    end_offset: Positions,
    isolation_level: IsolationLevel,
) -> ReadPlan:
    """Ask the cluster for the bounds of the logs, and plan the ranges to read."""
    chosen = Selection(topics=topics).choose(connection.partition_counts())
    starts, ends = START.positions(start_offset, chosen), END.positions(end_offset, chosen)
    ranges = plan(
        starts,
        ends,
        bounds=connection.bounds(chosen, isolation_level),
        start_times=connection.offsets_at(times_ms(starts), isolation_level),
        end_times=connection.offsets_at(times_ms(ends), isolation_level),
    )
    return ReadPlan(
        ranges=tuple(ranges),
        bytes_per_offset=connection.bytes_per_offset([item.topic_partition for item in ranges]),
        isolation_level=isolation_level,
    )


class OncelogDatasource(Datasource):
    """A planned read as Ray Data sees it."""

    def __init__(
        self,
        planned: ReadPlan,
        *,
        includes_headers: bool,
        task_bytes_min: int = TASK_BYTES_MIN,
        login: Login = NOBODY,
    ) -> None:
        """``login`` is as whom the tasks read."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._plan = planned
        # Workers are in the Ray cluster of the log.
        self._endpoint = Endpoint(login=login)
        self._task_bytes_min = task_bytes_min
        self._schema = read_schema(includes_headers=includes_headers)

    def estimate_inmemory_data_size(self) -> int:
        """Estimate the rows' bytes; Ray Data chooses the number of tasks by it."""
        return rows_bytes(self._plan.ranges, self._plan.bytes_per_offset)

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,  # noqa: ARG002
    ) -> list[ReadTask]:
        """At most ``parallelism`` tasks, each large enough; at least one, for the schema."""
        planned = self._plan
        log_bytes = sum(
            item.size * planned.bytes_per_offset[item.topic_partition] for item in planned.ranges
        )
        count_max = max(1, min(parallelism, log_bytes // self._task_bytes_min))
        return [
            ReadTask(
                _reading(self._endpoint, share, planned.isolation_level, self._schema),
                BlockMetadata(
                    # Markers and aborted records have offsets too, so the number is unknown.
                    num_rows=None,
                    size_bytes=rows_bytes(share, planned.bytes_per_offset),
                    input_files=None,
                    exec_stats=None,
                ),
                schema=self._schema,
                per_task_row_limit=per_task_row_limit,
            )
            for share in shares(planned.ranges, planned.bytes_per_offset, count_max) or [()]
        ]


def _reading(
    endpoint: Endpoint,
    share: tuple[PartitionRange, ...],
    isolation_level: IsolationLevel,
    schema: pa.Schema,
) -> Callable[[], Iterator[pa.Table]]:
    def read_share() -> Iterator[pa.Table]:
        return blocks(lambda: connect(endpoint), share, isolation_level, schema)

    return read_share


def blocks(
    connect: Callable[[], EngineConnection],
    share: tuple[PartitionRange, ...],
    isolation_level: IsolationLevel,
    schema: pa.Schema,
) -> Iterator[pa.Table]:
    """Yield the records of a share as blocks, range after range, at least an empty one."""
    yield schema.empty_table()
    for wanted in share:
        for columns in connect().read(wanted, isolation_level):
            yield to_block(columns, wanted.topic_partition, schema)
