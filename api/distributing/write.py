"""A distributed write: many tasks, one transaction, so all rows become visible together or none.

The planner begins one *run* per write. Each task attempt enlists as a *member* with its first rows,
writes them, and reports how many were acknowledged. ``commit`` runs once, in the planner, with the
report of one attempt per partition of the rows. It ends the run with these winners. The coordinator
aborts every other member: failed, retried and speculative attempts, and those still writing. Tasks
never commit.

With an application id and a version, repeating a committed version writes nothing: its tasks do not
read their rows.

Nothing here knows more of Spark than its name. Any engine can use it that has rows as Arrow
batches, tasks, and a way to send objects between processes. Each step is passed a function that
connects its own process.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from oncelog.actors.protocol.messages.transaction import RUN_TIMEOUT_MS, Winner
from oncelog.actors.protocol.transaction.commit_versions import version_in, version_token
from oncelog.api.distributing.engine_connection import (
    DEFAULT_ENDPOINT,
    Endpoint,
    EngineConnection,
    right_to_write,
)
from oncelog.api.producing.member import Membership, RunEnd
from oncelog.api.session.rights import needing
from oncelog.storage.exceptions import (
    InvalidRequestError,
    InvalidSettingError,
    OncelogError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import COMMIT_TOKEN_MAX_BYTES, TRANSACTIONAL_ID_MAX_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

Connect: TypeAlias = Callable[[Endpoint], EngineConnection]
"""Connects this process to a cluster, or finds its connection; may raise ``OncelogError``."""

GATHER_BYTES: Final = 8_388_608
"""Rows are gathered up to this size, so that each partition gets few, large batches."""

ENGINES: Final = ("spark", "ray-data")
"""The engines that write versions; the same application id means different ones in each."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write: its topic and its identity.

    With ``topic`` ``None`` each row names its own. ``engine`` is the prefix of the ids of versions,
    and of writes without an id. ``producer`` holds ``ProducerSettings`` other than the defaults.
    """

    engine: str = "write"
    endpoint: Endpoint = DEFAULT_ENDPOINT
    topic: str | None = None
    transactional_id: str | None = None
    txn_app_id: str | None = None
    txn_version: int = 0
    transaction_timeout_ms: int = RUN_TIMEOUT_MS
    compression_type: str = "none"
    producer: Mapping[str, int] = field(default_factory=dict)

    @property
    def producer_settings(self) -> dict[str, Any]:
        """The settings of each task's producer."""
        return {"compression_type": self.compression_type, **self.producer}

    def identity(self, run_id: str) -> tuple[str, bytes]:
        """Return the run's transactional id and its commit token.

        With ``txn_app_id`` the application has a transactional id of its own, and the token names
        the version: a committed version is not written again, whatever ``transactional_id`` is.
        Otherwise ``transactional_id`` is used as it is. Without one each run has a new id and no
        token, so that the coordinator may expire it. A batch of a stream is a version of its query.
        """
        if self.txn_app_id is not None:
            token = version_token(self.txn_app_id, self.txn_version)
            return f"{self.engine}-{self.txn_app_id}", token
        if self.transactional_id is not None:
            return self.transactional_id, run_id.encode()
        return f"{self.engine}-{run_id}", b""

    @property
    def prefixed_id(self) -> str | None:
        """The id of the application's versions in a former oncelog, with this prefix."""
        if self.txn_app_id is None or self.transactional_id is None:
            return None
        prefixed = f"{self.transactional_id}-{self.txn_app_id}"
        return prefixed if len(prefixed.encode()) <= TRANSACTIONAL_ID_MAX_BYTES else None

    def is_remembered(self, token: bytes | None) -> bool:
        """Whether a commit token names a version of the application."""
        version = version_in(token or b"")
        return version is not None and version.app_id == self.txn_app_id

    def is_former_id(self, transactional_id: str) -> bool:
        """Whether a former oncelog may have written the application's versions under this id.

        Such an id had any prefix. Ids of another engine do not count.
        """
        prefix = transactional_id.removesuffix(f"-{self.txn_app_id}")
        return prefix not in ("", transactional_id, self.engine, *ENGINES)

    def check_identity(self) -> None:
        """Reject ids that are too long for the coordinator, with an ``InvalidSettingError``.

        The id of a run, with 32 characters, always fits.
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
                f"the application id {str(self.txn_app_id)[:40]!r}... is too long for a commit "
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

        ``OutdatedVersionError`` for a version below the last committed one: the job was rolled
        back, or runs twice.
        """
        connection = connect(options.endpoint)
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
        """Write the rows of one task attempt; all are acknowledged on return.

        Rows may name their topic and partition; ``UnknownTopicOrPartitionError`` if one does not
        exist. Pass the result to ``commit``. Without rows, or if the version is already committed,
        no member enlists and the result is ``None``.
        """
        if self.membership.is_committed:
            return None
        connection = connect(self.options.endpoint)
        # The planner has checked the option's topic; topics of rows are known only here.
        topics = {self.options.topic}
        chosen = self.options.topic
        rights = needing(
            topic="Write on "
            + ("each topic of the rows" if chosen is None else f"topic {chosen!r}"),
            transactional_id=right_to_write(self.membership.transactional_id),
        )
        # Enlist before the first row, which may take long to compute.
        with rights, connection.member(self.membership, self.options.producer_settings) as member:
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
        """End the run: commit exactly the members in the reports."""
        winners = [winner for winner in reports if winner is not None]
        end = connect(self.options.endpoint).end_run(
            self.membership, committed=True, winners=winners
        )
        if end.was_committed_before:
            self.log_committed_before()
        if not end.visible:
            _logger.warning(
                "transaction %r is committed; some of its partitions do not show it yet — nothing "
                "to do: they will",
                self.membership.transactional_id,
            )
        return end

    def log_committed_before(self) -> None:
        """Warn that this was committed before: its name or version may be wrong."""
        version = version_in(self.membership.token)
        what = f"version {version.version} of {version.app_id!r}" if version else "this"
        _logger.warning(
            "%s was committed before: nothing is written again — give a new version if this is "
            "new data",
            what,
        )

    def abort(self, connect: Connect) -> RunEnd | None:
        """Abort the run; if it is committed, change nothing. Never raises.

        If the abort fails (``None``), the next run, the end of the driver or the transaction
        timeout aborts it.
        """
        try:
            return connect(self.options.endpoint).end_run(self.membership, committed=False)
        except Exception as error:
            _logger.warning(
                "transaction %r could not be aborted now: %s — nothing to do: the end of its "
                "driver, or its timeout, aborts it",
                self.membership.transactional_id,
                error,
            )
            return None


def refuse_missing(connection: EngineConnection, topic: str) -> None:
    """``UnknownTopicOrPartitionError`` for a topic that is known to be missing.

    If nobody knows at present, the tasks find out, and wait.
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
    """Yield consecutive batches as non-empty tables of about ``gather_bytes``.

    Each column is one chunk: it is read more than once, and chunks would be joined each time.
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
    """Yield the rows of each topic, without the column ``topic``; option ``topic`` overrides it.

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
