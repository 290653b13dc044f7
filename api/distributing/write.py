"""A write of many tasks as one transaction: all of its rows become visible together, or none does.

The planner begins one *run* per write. Each task attempt enlists as a *member* with its first
rows, writes them, and reports how many were acknowledged. ``commit`` runs in the planner, once,
with the report of one attempt per partition of the rows: it ends the run with these winners, and
the transaction coordinator aborts every other member, whether a failed, retried or speculative
attempt or one still writing. No task ever commits anything.

With an application and its version a repeated write of a committed version writes nothing: its
tasks leave their rows unread.

Nothing here knows more of Spark than its name: any engine with rows as Arrow batches, tasks, and a
way to send objects between processes can write this way. Each step is given a way to connect its
own process.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from oncelog.actors.protocol.messages.transaction import Winner
from oncelog.actors.protocol.transaction.commit_versions import version_in, version_token
from oncelog.api.distributing.engine_connection import EngineConnection
from oncelog.api.producing.member import TRANSACTION_TIMEOUT_MS, Membership, RunEnd
from oncelog.storage.exceptions import (
    InvalidRequestError,
    InvalidSettingError,
    OncelogError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import COMMIT_TOKEN_MAX_BYTES, TRANSACTIONAL_ID_MAX_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

Connect: TypeAlias = "Callable[[str | None], EngineConnection]"
"""The connection of this process to the cluster at an address; it may raise OncelogError."""

GATHER_BYTES: Final = 8_388_608
"""Rows are gathered up to this size, so that each partition gets few, large batches."""

ENGINES: Final = ("spark", "ray-data")
"""Who writes versions: an application of one is another one than that of the other."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What a write is told: where to, and under which identity.

    ``topic`` ``None``: each row names its own.
    ``engine`` is how the ids begin of versions, and of writes without an id.
    ``producer`` are settings of ``ProducerSettings`` that differ from its defaults.
    """

    engine: str = "write"
    address: str | None = None
    topic: str | None = None
    transactional_id: str | None = None
    txn_app_id: str | None = None
    txn_version: int = 0
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    compression_type: str = "none"
    producer: Mapping[str, int] = field(default_factory=dict)

    @property
    def producer_settings(self) -> dict[str, Any]:
        """What each task's producer is told."""
        return {"compression_type": self.compression_type, **self.producer}

    def identity(self, run_id: str) -> tuple[str, bytes]:
        """The transactional id that a run writes under, and the commit token of what it writes.

        With ``txn_app_id`` the application has its own transactional id, and the token names the
        version: a committed version is not written again, whatever ``transactional_id`` says.
        Otherwise that is used as it is; without one each run has a new id and no token, so that
        the coordinator may expire it. A batch of a stream is a version of its query.
        """
        if self.txn_app_id is not None:
            token = version_token(self.txn_app_id, self.txn_version)
            return f"{self.engine}-{self.txn_app_id}", token
        if self.transactional_id is not None:
            return self.transactional_id, run_id.encode()
        return f"{self.engine}-{run_id}", b""

    @property
    def prefixed_id(self) -> str | None:
        """The id that a former oncelog wrote the application's versions under, with this prefix."""
        if self.txn_app_id is None or self.transactional_id is None:
            return None
        prefixed = f"{self.transactional_id}-{self.txn_app_id}"
        return prefixed if len(prefixed.encode()) <= TRANSACTIONAL_ID_MAX_BYTES else None

    def is_remembered(self, token: bytes | None) -> bool:
        """Whether a commit token names a version of the application."""
        version = version_in(token or b"")
        return version is not None and version.app_id == self.txn_app_id

    def is_former_id(self, transactional_id: str) -> bool:
        """Whether a former oncelog may have written the application's versions under the id.

        That had any prefix; what another engine writes is not meant.
        """
        prefix = transactional_id.removesuffix(f"-{self.txn_app_id}")
        return prefix not in ("", transactional_id, self.engine, *ENGINES)

    def check_identity(self) -> None:
        """Refuse ids that no coordinator takes: ``InvalidSettingError`` names what is too long.

        The id of a run, of 32 characters, fits in any case.
        """
        transactional_id, token = self.identity("0" * 32)
        if len(transactional_id.encode()) > TRANSACTIONAL_ID_MAX_BYTES:
            raise InvalidSettingError(
                f"the transactional id {transactional_id[:40]!r}... has more than "
                f"{TRANSACTIONAL_ID_MAX_BYTES} bytes",
                advice="give a shorter one, or a shorter name of the application",
            )
        if len(token) > COMMIT_TOKEN_MAX_BYTES:
            raise InvalidSettingError(
                f"the application's name {str(self.txn_app_id)[:40]!r}... is too long for a commit "
                "token",
                advice="give a shorter one",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedWrite:
    """One run of a write; pickled into its tasks and back for the commit."""

    options: WriteOptions
    membership: Membership

    @classmethod
    def plan(cls, connect: Connect, options: WriteOptions) -> DistributedWrite:
        """Check what can be checked before any task starts, and begin a run.

        ``OutdatedVersionError`` for a version below the one committed last: the job was
        rolled back, or runs twice.
        """
        connection = connect(options.address)
        if options.topic is not None:
            connection.check_topic(options.topic)
        membership = connection.begin_run(options, connection.plan_run())
        return cls(options=options, membership=membership)

    # --- in the tasks -------------------------------------------------------------------------

    def write(
        self,
        connect: Connect,
        batches: Iterable[pa.RecordBatch],
        *,
        gather_bytes: int = GATHER_BYTES,
    ) -> Winner | None:
        """Write the rows of one task attempt; all of them are acknowledged on return.

        Rows may name their topic and their partition; ``UnknownTopicOrPartitionError`` for one that
        does not exist. Pass the result to ``commit``. Without rows, or when their version is
        already committed, no member takes part and the result is ``None``.
        """
        if self.membership.is_committed:
            return None
        connection = connect(self.options.address)
        # The topic of the option was checked by the planner, those of rows are known only here.
        topics = {self.options.topic}
        # Before the first row, which may take long to compute.
        with connection.member(self.membership, self.options.producer_settings) as member:
            tables = _gathered(batches, gather_bytes)
            first = next(tables, None)
            if first is None or not member.enlist():
                return None
            for table in itertools.chain((first,), tables):
                for topic, rows in rows_by_topic(table, self.options.topic):
                    if topic not in topics:
                        refuse_missing(connection, topic)
                        topics.add(topic)
                    member.send_arrow(topic, rows)
            member.flush()
            return member.winner

    # --- at the end, in the planner -----------------------------------------------------------

    def commit(self, connect: Connect, reports: Iterable[Winner | None]) -> RunEnd:
        """End the run: commit the members in the reports, and nothing else."""
        winners = [winner for winner in reports if winner is not None]
        end = connect(self.options.address).end_run(
            self.membership, committed=True, winners=winners
        )
        if end.was_committed_before:
            self.log_committed_before()
        if not end.visible:
            _logger.warning(
                "transaction %r is committed; some of its partitions do not show it yet",
                self.membership.transactional_id,
            )
        return end

    def log_committed_before(self) -> None:
        """Log that what is to be written is there already: it may be a wrong name or number."""
        version = version_in(self.membership.token)
        what = f"version {version.version} of {version.app_id!r}" if version else "this"
        _logger.warning("%s was committed before: nothing is written again", what)

    def abort(self, connect: Connect) -> RunEnd | None:
        """Abort the run, unless it is committed; then nothing changes. Never raises.

        What cannot be aborted now (``None``) is aborted by the next run, when the driver ends, or
        by the transaction timeout.
        """
        try:
            return connect(self.options.address).end_run(self.membership, committed=False)
        except Exception as error:
            _logger.warning(
                "transaction %r could not be aborted now: %s",
                self.membership.transactional_id,
                error,
            )
            return None


def refuse_missing(connection: EngineConnection, topic: str) -> None:
    """``UnknownTopicOrPartitionError`` for a topic that is known to be missing.

    What nobody can tell now is left to those who send, and wait.
    """
    try:
        connection.check_topic(topic)
    except UnknownTopicOrPartitionError:
        raise
    except OncelogError as error:
        if not error.retriable:
            raise


# --- rows -------------------------------------------------------------------------------------


def _gathered(batches: Iterable[pa.RecordBatch], gather_bytes: int) -> Iterator[pa.Table]:
    """Consecutive batches as tables of about ``gather_bytes``, none of them empty.

    Each column is in one piece: it is looked at more than once, and pieces are joined each time.
    """
    import pyarrow as pa

    gathered: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if gathered and batch.schema != gathered[0].schema:
            yield pa.Table.from_batches(gathered).combine_chunks()
            gathered, size_bytes = [], 0
        if batch.num_rows:
            gathered.append(batch)
            size_bytes += batch.nbytes
        if size_bytes >= gather_bytes:
            yield pa.Table.from_batches(gathered).combine_chunks()
            gathered, size_bytes = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered).combine_chunks()


def rows_by_topic(table: pa.Table, topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each topic, without the column ``topic``; option ``topic`` overrides it.

    Rows keep their order within a topic. ``InvalidRequestError`` for a row without a topic.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = table.rename_columns([name.lower() for name in table.column_names])
    if "topic" not in table.column_names:
        if topic is not None:
            yield topic, table
        return
    rows = table.drop_columns(["topic"])
    if topic is not None:
        yield topic, rows
        return
    topics = table["topic"].cast(pa.string())
    if topics.null_count:
        raise InvalidRequestError("a row has null in column 'topic': each row needs a topic")
    for name in sorted(pc.unique(topics).to_pylist()):
        yield name, rows.filter(pc.equal(topics, name))
