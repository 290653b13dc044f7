"""``oncelog.ray_data.write``: a dataset into topics as one transaction over all its tasks.

Ray Data's sink interface as steps of a ``DistributedWrite``. Each attempt of a task is a member.
The winners are the attempts whose reports Ray Data returns, one per task; all others are aborted.
The run is tied to the process that called ``write``: if that dies, the coordinator aborts the run
(ADR 16).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from ray.data import Dataset
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink, WriteResult

from oncelog.actors.protocol.messages.transaction import RUN_TIMEOUT_MS, Winner
from oncelog.api.config import CompressionType
from oncelog.api.distributing.engine_connection import Endpoint
from oncelog.api.distributing.write import DistributedWrite, WriteOptions
from oncelog.ray_data.arguments import PathText, ValueSerializer, WriteArguments
from oncelog.ray_data.columns import RowFormat, check_schema
from oncelog.ray_data.connection import connect
from oncelog.storage.exceptions import InvalidSettingError

if TYPE_CHECKING:
    from ray.data._internal.execution.interfaces import TaskContext

AS_RECORDS: Final = RowFormat()

FORMATTED_ROWS_MAX: Final = 10_000
"""How many rows a task converts at a time: as JSON they are temporarily Python objects."""

TASK_BYTES: Final = 33_554_432
"""The least that Ray Data gives to a task of a write, if there is that much.

Each task is a member of the transaction, and their number is limited. Also, a sink with a minimum
size is not fused with the task that makes the rows: a fused task keeps all rows until it ends.
"""


def write(
    dataset: Dataset,
    topic: str | None,
    *,
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    transactional_id: str | None = None,
    transaction_timeout_ms: int = RUN_TIMEOUT_MS,
    compression_type: CompressionType = "none",
    key_field: str | None = None,
    value_serializer: ValueSerializer | None = None,
    address: str | None = None,
    user: str | None = None,
    password_file: PathText | None = None,
    token: PathText | None = None,
    cert: PathText | None = None,
    concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> None:
    """Execute ``dataset`` and write its rows in one transaction: on return all are visible.

    Columns: ``value`` (binary or string) and optionally ``key`` (the same), ``timestamp`` (ms since
    the epoch, or an Arrow timestamp), ``headers`` (``list<struct<key, value>>``), ``partition``
    (integer) and, if the argument ``topic`` is ``None``, ``topic``. Null means absent. Rows of a
    task keep their order within a partition. With ``value_serializer="json"`` the value is the
    whole row as a JSON object, as in ``Dataset.write_kafka``. ``key_field`` names the column with
    the key; bytes are used as they are, other types as text.

    With ``txn_app_id`` and ``txn_version`` a rerun is safe. A committed version is not executed
    again, and a lower one raises ``OutdatedVersionError``. Without them, a write that raised while
    it was ending may be committed even so; ``transactional_id`` is then the id to write under,
    which fences earlier writes.

    The write is aborted after ``transaction_timeout_ms`` without any of its tasks. ``address``,
    ``user``, ``password_file``, ``token`` and ``cert`` are those of ``oncelog.connect``; by default
    this process's Ray cluster, or this machine's, and its environment. Each worker reads the file
    on its node. The other arguments are those of ``Dataset.write_datasink``.
    ``InvalidSettingError`` for an invalid argument or column, ``UnknownTopicOrPartitionError``, and
    errors of tasks leave nothing visible.
    """
    # One thing: mostly arguments, and what they mean.
    arguments = WriteArguments(
        topic=topic,
        txn_app_id=txn_app_id,
        txn_version=txn_version,
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        compression_type=compression_type,
        key_field=key_field,
        value_serializer=value_serializer,
        address=address,
        user=user,
        password_file=password_file,
        token=token,
        cert=cert,
    )
    options, rows = write_options(arguments), row_format(arguments)
    _check_dataset(dataset, topic, rows)
    # It joins the Ray cluster; workers are in it.
    connect(arguments.endpoint)
    planned = DistributedWrite.plan(connect, options)
    if planned.membership.is_committed:
        planned.log_committed_before()
        return
    try:
        dataset.write_datasink(
            OncelogDatasink(planned, rows), concurrency=concurrency, ray_remote_args=ray_remote_args
        )
    except BaseException:
        # Ray Data reports most errors to its sink, but not an interrupt. Repeating does no harm.
        planned.abort(connect)
        raise


def write_options(arguments: WriteArguments) -> WriteOptions:
    """The options of the write; ``InvalidSettingError`` if a name is too long."""
    options = WriteOptions(
        engine="ray-data",
        endpoint=Endpoint(login=arguments.endpoint.login),
        topic=arguments.topic,
        transactional_id=arguments.transactional_id,
        txn_app_id=arguments.txn_app_id,
        txn_version=arguments.txn_version or 0,
        transaction_timeout_ms=arguments.transaction_timeout_ms,
        compression_type=arguments.compression_type,
    )
    options.check_identity()
    return options


def row_format(arguments: WriteArguments) -> RowFormat:
    """How rows become records; ``InvalidSettingError`` if they would name no topic."""
    is_json = arguments.value_serializer is not None
    if is_json and arguments.topic is None:
        raise InvalidSettingError("rows as JSON name no topic", advice="name one")
    return RowFormat(key_field=arguments.key_field, is_json=is_json)


def _check_dataset(dataset: Dataset, topic: str | None, rows: RowFormat) -> None:
    if not isinstance(dataset, Dataset):
        raise InvalidSettingError(
            f"dataset is a {type(dataset).__name__}",
            advice="give a ray.data.Dataset, as of ray.data.from_arrow",
        )
    errors_max = dataset.context.max_errored_blocks
    if errors_max:
        raise InvalidSettingError(
            f"DataContext.max_errored_blocks={errors_max} would commit a write without the rows of "
            "tasks that failed",
            advice="set it to 0",
        )
    # A task's rows would count as written when the task ends. The transaction may abort after
    # that, and the next execution would leave them out.
    if dataset.context.checkpoint_config is not None:
        raise InvalidSettingError(
            "DataContext.checkpoint_config would leave out rows that were aborted",
            advice="set dataset.context.checkpoint_config to None, and give txn_app_id and "
            "txn_version, with which a write that is run again writes all rows or, once "
            "committed, none",
        )
    schema = dataset.schema(fetch_if_missing=False)
    if schema is not None:
        check(schema.base_schema, topic, rows)


def check(schema: Any, topic: str | None, rows: RowFormat) -> None:
    """Check the columns of a Ray Data schema; types of pandas blocks are checked in the tasks."""
    if isinstance(schema, pa.Schema):
        rows.check(schema, topic)
    else:
        rows.check_names(list(schema.names), topic)


class OncelogDatasink(Datasink["Winner | None"]):
    """One write as Ray Data sees it; pickled into its tasks."""

    def __init__(self, planned: DistributedWrite, rows: RowFormat = AS_RECORDS) -> None:
        self._write = planned
        self._rows = rows

    @property
    def min_bytes_per_write(self) -> int:
        """See ``TASK_BYTES``."""
        return TASK_BYTES

    def on_write_start(self, schema: Any | None = None) -> None:
        """Check the columns of the first block, before any task of the write runs."""
        if schema is not None:
            check(schema, self._write.options.topic, self._rows)

    def write(self, blocks: Iterable[Block], ctx: TaskContext) -> Winner | None:  # noqa: ARG002
        """Write the blocks of one task attempt as they come; all are acknowledged on return."""
        return self._write.write(connect, batches(blocks, self._write.options.topic, self._rows))

    def on_write_complete(self, write_result: WriteResult[Winner | None]) -> None:
        """Commit the reported attempts, and abort all others."""
        self._write.commit(connect, write_result.write_returns)

    def on_write_failed(self, error: Exception) -> None:  # noqa: ARG002
        """Abort the run; if it is committed, change nothing. Never raises."""
        self._write.abort(connect)


def batches(
    blocks: Iterable[Block], topic: str | None, rows: RowFormat
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ``blocks``; each block is checked, since their columns may differ."""
    for block in blocks:
        table = BlockAccessor.for_block(block).to_arrow()
        step = FORMATTED_ROWS_MAX if rows.is_json else max(1, table.num_rows)
        for start in range(0, table.num_rows, step):
            records = rows.records(table.slice(start, step))
            check_schema(records.schema, topic)
            yield from records.to_batches()
