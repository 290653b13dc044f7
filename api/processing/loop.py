"""The loop of one worker: consume, transform, produce, exactly once.

Each round polls. The first records open a transaction, and polls within ``commit_interval_ms`` join
it. It ends with the positions of the input::

    poll → begin → function → send … poll → function → send → offsets → commit

* An abortable error aborts; the consumer returns to the committed offsets and the work is redone.
  read_committed consumers never see the first attempt.
* Offsets are committed as the group member that polled the records. If the group has since given
  the partitions to another member, the coordinator rejects them, and with them the output.
* A commit without a reply is retried until its outcome is known, which decides where to resume.
* A failure of the function (or output that cannot be sent) aborts; ``on_error`` says what follows.
  After ``max_function_failures`` in a row the worker ends as FAILED, since the same input would
  fail again. Or it repeats without end, with longer and longer pauses. Or it finds the records that
  fail and leaves them out (``left_out.py``).
* A function that exits or crashes its process would do the same to the next one. After
  ``max_worker_deaths`` in a row without a commit the worker ends as FAILED. If records may be left
  out, each is then processed alone, and one over which as many die again is left out.
* A worker that is replaced, by transactional id or group instance id, ends as FENCED.
* A producer that cannot recover is replaced by a new one, as after a restart of the process.
* A function may run longer than ``max_poll_interval_ms``: it counts as polling, for
  ``function_timeout_ms`` at most. After that, if other members got the input, it has failed.
* Aborted work is redone in transactions of one poll each.

One file: every step depends on the open transaction, and may have to abort it.

Blocking code for a thread of its own; it waits only in the clients and on its stop event.
Source: KIP-447.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from msgspec import structs

from oncelog.actors.interfaces import Clock
from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.api.config import ConsumerSettings, ProducerSettings
from oncelog.api.consuming.consumer import Consumer
from oncelog.api.processing.function import Output
from oncelog.api.processing.left_out import LeftOut, Narrowing, WorkerDeathError, isolate, record_of
from oncelog.api.processing.messages import ProcessConfig, WorkerState
from oncelog.api.processing.worker_loop import (
    CLOSE_TIMEOUT_MS,
    POLL_MS,
    RECOVERY_WAIT_S,
    FunctionFailure,
    WorkerLoop,
    causes_of,
    text_of,
)
from oncelog.api.producing.arguments import Offsets
from oncelog.api.producing.producer import Producer
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

DOUBLINGS_MAX: Final = 32
"""How often a pause is doubled; its limit is reached long before."""

_NO_MEMBER: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
"""Error codes that mean that the group has moved on without this member."""

_BAD_BATCH: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Error codes that the same input or settings would get again: they count as failures."""

_BAD_OUTPUT: Final = frozenset(
    {
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)
"""Error codes of output that no log takes; leaving out its input helps."""

_log = logging.getLogger(__name__)


class Clients(NamedTuple):
    """A worker's own producer and consumer, and how to close them and their connection."""

    producer: Producer
    consumer: Consumer
    close: Callable[[], None] = lambda: None


class Connect(Protocol):
    """Makes a worker's clients; called again when they must be replaced."""

    def __call__(self, producer: ProducerSettings, consumer: ConsumerSettings) -> Clients:
        """Make clients with these settings. May raise ``OncelogError`` while nothing replies."""
        ...


@dataclass(slots=True)
class _Transaction:
    """The open transaction: the group member that polled, when it began, and what it holds.

    ``offsets`` (exclusive) is the end of the processed input, noted at the poll that returned it.
    If a rebalance has taken the partitions since, the group rejects the commit.
    """

    group: ConsumerGroupMetadata
    started_ms: int
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    records_in: int = 0
    records_out: int = 0
    left_out: int = 0
    batch: Any = ()
    """The last batch."""
    function_ms: int = 0
    """How long the longest call of the function took."""


class _UnsendableOutput(Exception):
    """Its result is nothing that can be sent, as ``error`` says."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def worker_settings(config: ProcessConfig) -> tuple[ProducerSettings, ConsumerSettings]:
    """The settings of a worker's clients; ``InvalidSettingError`` for a bad override."""
    producer = {"linger_ms": 5, "client_id": config.group_id, "tracing": config.tracing} | dict(
        config.producer_settings
    )
    # Members learn of a rebalance by heartbeat, so their interval is how long one takes.
    consumer = {
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 500,
        "isolation_level": "read_committed",
        "tracing": config.tracing,
    } | dict(config.consumer_settings)
    return (
        ProducerSettings.from_options(producer | {"transactional_id": config.identity}),
        ConsumerSettings.from_options(
            consumer
            | {
                "group_id": config.group_id,
                "group_instance_id": config.identity,
                "enable_auto_commit": False,
            }
        ),
    )


class ProcessLoop(WorkerLoop):
    """The loop of a worker that reads its partitions."""

    def __init__(
        self,
        config: ProcessConfig,
        connect: Connect,
        *,
        clock: Clock,
        stop: threading.Event,
        reports: CallReports = NO_REPORTS,
    ) -> None:
        super().__init__(config, stop, reports)
        self._connect = connect
        self._clock = clock
        self._clients: Clients | None = None
        self._transaction: _Transaction | None = None
        self._first_offsets: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        """The end of the input of the last commits (exclusive)."""
        self._starts: StartPositions | None = None
        self._attempts = AttemptCounter(
            config.job_id, config.max_worker_deaths, config.max_poll_records
        )
        if worker_settings(config)[1].auto_offset_reset == "latest":
            self._starts = StartPositions()
        self._failures_in_a_row = 0
        self._narrowing = Narrowing(config.max_function_failures, config.max_poll_records)
        self._is_repeating = False
        """Whether the input of the open or next transaction was aborted before."""

    def _work(self) -> None:
        super()._work()
        self._attempt(self._finish)

    def _round(self) -> None:
        self._attempt(self._poll_once)

    # --- rounds -------------------------------------------------------------------------------

    def _attempt(self, step: Callable[[], None]) -> None:
        """Run one step; an exception leads to the next round or to the end."""
        try:
            step()
        except FunctionFailure as failure:
            self._record_failure(text_of(failure.__cause__), ends=not self._config.leaves_out)
            self._recover()
        except _UnsendableOutput as failure:
            self._on_unsendable(failure.error)
            self._recover()
        except OncelogError as error:
            self._judge(error)
            if self._transaction is None and error.fatal:
                # There is nothing to abort, and the same client would only raise it again.
                self._close_clients()
            self._recover()

    def _poll_once(self) -> None:
        """One poll and its processing."""
        if self._clients is None:
            self._open()
        clients = self._open_clients()
        batch = self._poll(clients)
        group = clients.consumer.group_metadata()
        read, positions = _first_offsets(batch), clients.consumer.positions()
        if self._starts is not None:
            self._starts.record_poll(read, positions)
        if self._transaction is not None and self._transaction.group != group:
            # The group has rebalanced: the input of the open transaction may be another worker's
            # now. What is still this one's is read again, from the committed offsets.
            self._on_lost_input(self._transaction)
            self._abort(clients)
            self._rewind(clients)
            return
        if group.generation_id < 0:
            # Not yet a member of the group: a later poll joins and starts at the committed offsets.
            return
        self.progress.state = WorkerState.RUNNING
        if repeated := self._repeated(read):
            # The consumer has rejoined within the generation, and started at offsets from before
            # the open transaction.
            self._abort(clients)
            self._rewind(clients)
            for topic_partition in repeated:
                self._ends.pop(topic_partition, None)
            return
        if not (
            # Else they were revoked during the poll, and the records are another worker's.
            read.keys() <= positions.keys()
            and (
                self._starts is None
                or self._starts.commit_starts(
                    clients.consumer, read, positions, partial(self._commit_positions, group)
                )
            )
        ):
            self._abort(clients)
            self._rewind(clients)
            return
        if len(batch):
            offsets = {topic_partition: positions[topic_partition] for topic_partition in read}
            self._process(clients, batch, group, offsets)
        if self._transaction is None:
            self.progress.processed = clients.consumer.positions()
        elif self._commit_due_ms() <= 0:
            self._commit(clients)

    def _repeated(self, read: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Partitions of which a poll has returned offsets that this loop has processed before."""
        processed = self._ends
        if self._transaction is not None:
            processed = processed | self._transaction.offsets
        return [tp for tp, first_offset in read.items() if first_offset < processed.get(tp, 0)]

    def _poll(self, clients: Clients) -> Any:
        """Poll in the format of the function; note where a redo would have to start."""
        wait_ms = POLL_MS if self._transaction is None else min(POLL_MS, self._commit_due_ms())
        config = self._config
        batch: Sized
        is_alone = self._attempts.is_narrowing(clients.consumer.positions())
        records_max = 1 if is_alone else self._narrowing.records_max
        if config.batch_format == "arrow":
            batch = clients.consumer.poll_arrow(wait_ms, records_max)
        else:
            batch = clients.consumer.poll(wait_ms, records_max)
        for topic_partition, offset in _first_offsets(batch).items():
            self._first_offsets.setdefault(topic_partition, offset)
        return batch

    def _commit_due_ms(self) -> int:
        """Milliseconds until the open transaction is due to commit."""
        assert self._transaction is not None
        if self._is_repeating or self._attempts.is_narrowing(self._transaction.offsets):
            # Small transactions: input that was aborted as a whole may succeed in parts.
            return 0
        age_ms = self._clock.now_ms() - self._transaction.started_ms
        return max(0, self._config.commit_interval_ms - age_ms)

    def _process(
        self,
        clients: Clients,
        batch: Any,
        group: ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """Apply the function to one batch and send the result, in the open transaction."""
        commit = partial(self._commit_positions, group)
        first_offsets = _first_offsets(batch)
        leaves_out = self._config.leaves_out
        if leaves_out and self._attempts.must_be_alone(clients.consumer, first_offsets, batch):
            self._abort(clients)
            self._rewind(clients)
            return
        deadly = None
        if reason := self._attempts.record(clients.consumer, first_offsets, commit):
            if not leaves_out:
                self._abort_quietly()
                self._end(WorkerState.FAILED, reason)
            deadly = LeftOut(
                record_of(batch), WorkerDeathError(reason), self._config.max_worker_deaths
            )
        with self._span.active(batch):
            self._apply(clients, batch, group, deadly)
        assert self._transaction is not None
        self._transaction.offsets.update(offsets)

    def _apply(
        self, clients: Clients, batch: Any, group: ConsumerGroupMetadata, deadly: LeftOut | None
    ) -> None:
        """Apply the function in the open transaction, or a new one, unless a record is deadly."""
        if self._transaction is None:
            clients.producer.begin_transaction()
            self._transaction = _Transaction(group=group, started_ms=self._clock.now_ms())
        transaction = self._transaction
        transaction.batch = batch
        outputs, left_out = ([], [deadly]) if deadly else self._outcome(clients, batch)
        try:
            for output in outputs:
                output.send(clients.producer)
        except (TypeError, ValueError) as error:
            raise _UnsendableOutput(error) from error
        transaction.left_out += len(left_out)
        for one in left_out:
            _log.warning(
                "worker %s: left out %s — correct the function or the record; dead_letter_topic "
                "keeps such records",
                *(self._config.identity, one),
            )
            if self._config.dead_letter_topic is not None:
                one.send(clients.producer, self._config.dead_letter_topic, self._config)
        transaction.records_in += len(batch)
        transaction.records_out += sum(output.record_count for output in outputs)

    def _outcome(self, clients: Clients, batch: Any) -> tuple[list[Output], list[LeftOut]]:
        """The output of a batch, and what of the batch is left out."""
        call = partial(self._call, clients)
        if unsendable := self._narrowing.take_unsendable(batch):
            return [], [unsendable]
        if self._config.leaves_out and self._is_repeating:
            # This poll has the transaction for itself, so none grows old over the many calls.
            outputs, left_out = isolate(call, batch, self._config.max_function_failures)
            self.progress.function_failures += sum(one.attempt_count for one in left_out)
            return outputs, left_out
        try:
            return [call(batch)], []
        except BaseException as error:
            # Whatever a user's function raises, abort. That includes SystemExit, or the panic of a
            # native library: otherwise this thread would end unseen.
            raise FunctionFailure from error

    def _call(self, clients: Clients, batch: Any) -> Output:
        """Call the function."""
        transaction = self._transaction
        assert transaction is not None
        began_ms = self._clock.now_ms()
        with clients.consumer.processing(self._config.function_timeout_ms):
            output = self._function.apply(batch)
        took_ms = self._clock.now_ms() - began_ms
        transaction.function_ms = max(transaction.function_ms, took_ms)
        return output

    # --- transactions -------------------------------------------------------------------------

    def _commit(self, clients: Clients) -> None:
        """Commit the output together with the offsets where its input ends."""
        transaction = self._transaction
        assert transaction is not None
        offsets = transaction.offsets
        self._end_transaction(clients, offsets)
        self._first_offsets = {}
        self._ends |= offsets
        self._failures_in_a_row = 0
        self._is_repeating = False
        self._attempts.record_commit(offsets)
        self._narrowing.widen(transaction.batch, clients.consumer.assignment)
        progress = self.progress
        progress.commits += 1
        progress.records_in += transaction.records_in
        progress.records_out += transaction.records_out
        if self._config.on_error == "dead_letter":
            progress.dead_lettered += transaction.left_out
        else:
            progress.skipped += transaction.left_out
        progress.processed = progress.processed | offsets

    def _commit_positions(self, group: ConsumerGroupMetadata, positions: Offsets) -> None:
        """Commit positions of the group, after the open transaction.

        In a transaction, so that a late copy has no effect; a late plain commit would take the
        group back to them.
        """
        clients = self._open_clients()
        if self._transaction is not None:
            unprocessed = self._first_offsets
            self._commit(clients)
            self._first_offsets = unprocessed
        clients.producer.begin_transaction()
        self._transaction = _Transaction(group=group, started_ms=self._clock.now_ms())
        self._end_transaction(clients, positions)

    def _end_transaction(self, clients: Clients, offsets: Offsets) -> None:
        """Commit the open transaction with these offsets."""
        assert self._transaction is not None
        with self._span.active():
            clients.producer.send_offsets_to_transaction(offsets, self._transaction.group)
            self._until_known(clients.producer.commit_transaction)
        self._span.end("commit")
        self._transaction = None
        self.progress.reason = ""

    def _abort(self, clients: Clients) -> None:
        """Abort the open transaction."""
        if self._transaction is None:
            return
        self.progress.aborts += 1
        self._is_repeating = True
        with self._span.active():
            self._until_known(clients.producer.abort_transaction)
        self._span.end("abort")
        self._transaction = None

    def _finish(self) -> None:
        """Commit the open transaction: the worker is stopping."""
        if self._transaction is not None:
            self._commit(self._open_clients())

    # --- recovery -----------------------------------------------------------------------------

    def _recover(self) -> None:
        """After an error, abort and go back to the committed offsets, or start with new clients.

        If the abort fails, ``init_transactions`` of the next producer does it.
        """
        clients = self._clients
        try:
            if clients is not None:
                self._abort(clients)
                self._rewind(clients)
        except OncelogError as error:
            self._judge(error)
            self._close_clients()
        self._stop.wait(self._recovery_wait_s())

    def _recovery_wait_s(self) -> float:
        """How long to wait before the next attempt; doubles with each failure for "retry"."""
        config = self._config
        if config.on_error != "retry" or not self._failures_in_a_row:
            return RECOVERY_WAIT_S
        doubled = config.retry_backoff_ms << min(self._failures_in_a_row - 1, DOUBLINGS_MAX)
        return min(doubled, config.retry_backoff_max_ms) / 1_000

    def _rewind(self, clients: Clients) -> None:
        """Go back to the committed offset of each partition that was read since the last commit.

        Without a committed offset, go to the first record that was read: the reset policy
        "latest" would skip records.
        """
        for topic_partition, first_offset in self._first_offsets.items():
            if topic_partition in clients.consumer.assignment():
                committed = clients.consumer.committed(topic_partition)
                clients.consumer.seek(
                    topic_partition, first_offset if committed is None else committed
                )
        self._first_offsets = {}

    def _judge(self, error: OncelogError) -> None:
        """End the loop if the worker is replaced, or if the same error would come again."""
        super()._judge(error)
        for cause in causes_of(error):
            if cause.code in _NO_MEMBER and self._transaction is not None:
                self._on_lost_input(self._transaction)
                return
            if cause.code in _BAD_OUTPUT and self._transaction is not None:
                self._on_unsendable(cause)
                return
            if cause.code in _BAD_BATCH:
                self._record_failure(str(cause))
                return

    def _on_lost_input(self, transaction: _Transaction) -> None:
        """Another member has the open transaction's input; a slow function counts as a failure.

        It would take as long there as here.
        """
        limit_ms = self._config.function_timeout_ms
        if transaction.function_ms > limit_ms:
            self._record_failure(
                f"one call of the function took {transaction.function_ms} ms, and the group gave "
                f"its input to others after function_timeout_ms={limit_ms}: raise it, or give the "
                "function less with max_poll_records"
            )

    def _on_unsendable(self, error: BaseException) -> None:
        """Output cannot be sent: abort, and look for the record that it comes from."""
        transaction = self._transaction
        if not self._config.leaves_out or transaction is None:
            self._record_failure(text_of(error))
            return
        batch = transaction.batch
        # If the record itself, as a dead letter, is what cannot be sent, nothing else can be tried.
        ends = len(batch) <= 1 and transaction.left_out > 0
        self._record_failure(text_of(error), ends=ends)
        self._narrowing.narrow(batch, error, is_alone=self._is_repeating and len(batch) == 1)

    def _record_failure(self, reason: str, *, ends: bool = True) -> None:
        """Count a failure; with ``ends`` one of too many in a row ends the worker."""
        config = self._config
        self.progress.function_failures += 1
        self._failures_in_a_row += 1
        count = self._failures_in_a_row
        if config.on_error == "retry":
            ends = False
            wait_ms = int(self._recovery_wait_s() * 1_000)
            reason = f"failed {count} times in a row, next attempt in {wait_ms} ms: {reason}"
        self.progress.reason = reason
        _log.warning(
            "worker %s: batch failed: %s — correct the function if it fails each time",
            *(config.identity, reason),
        )
        if ends and count >= config.max_function_failures:
            self._abort_quietly()
            self._end(WorkerState.FAILED, f"failed {count} times, last: {reason}")

    def _abort_quietly(self) -> None:
        """Abort before ending; if that fails, the transaction timeout does it."""
        try:
            if self._clients is not None:
                self._abort(self._clients)
        except OncelogError as error:
            _log.warning(
                "worker %s: abort failed: %s — nothing to do: the timeout of the transaction "
                "aborts it",
                *(self._config.identity, error),
            )

    # --- clients ------------------------------------------------------------------------------

    def _open(self) -> None:
        """Make new clients: fence the transaction of earlier ones, then join the group."""
        self.progress.state = WorkerState.STARTING
        self._clients = self._connect(*worker_settings(self._config))
        try:
            self._clients.producer.init_transactions()
            self._clients.consumer.subscribe(self._config.sources)
        except BaseException:
            # Incomplete clients are of no use to the next round.
            self._close_clients()
            raise

    def _open_clients(self) -> Clients:
        assert self._clients is not None
        return self._clients

    def _close_clients(self) -> None:
        """Close the clients. The static member stays in the group for its successor."""
        clients, self._clients = self._clients, None
        self._span.end("abort")
        self._transaction = None
        self._first_offsets = {}
        if clients is None:
            return
        self._close(
            (
                lambda: clients.producer.close(CLOSE_TIMEOUT_MS),
                clients.consumer.close,
                clients.close,
            )
        )


def _first_offsets(batch: Any) -> dict[TopicPartition, int]:
    """The first offset of each partition in a batch of either format."""
    first: dict[TopicPartition, int] = {}
    if not isinstance(batch, list):
        for part in batch.select(["topic", "partition", "offset"]).to_batches():
            # Each chunk is of one partition, in offset order.
            if part.num_rows:
                topic, number, offset = (column[0].as_py() for column in part.columns)
                first.setdefault(TopicPartition(topic, number), offset)
        return first
    for record in batch:
        first.setdefault(record.topic_partition, record.offset)
    return first


# --- where a worker begins ------------------------------------------------------------------------


class CommittedOffsets(Protocol):
    """The part of a consumer used here."""

    def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset; waits for open transactions."""
        ...


class StartPositions:
    """Where a worker starts in partitions without a committed offset; commits these starts.

    With ``auto_offset_reset="latest"`` a partition starts at the log end at its first look-up. That
    offset would be lost later: after a rebalance, an abort or a crash the look-up would find a
    later end and skip the records in between. So the start is committed before any record is
    processed. Records read while the worker was not a member of its group are not processed; their
    offset is remembered until it can be committed.

    One object serves a worker through all its clients. Offsets are inclusive.
    """

    def __init__(self) -> None:
        self._begun: dict[TopicPartition, int] = {}
        self._committed: set[TopicPartition] = set()

    def record_poll(
        self, first_offsets: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int]
    ) -> None:
        """Record a poll: the first offset of each partition in it, and the positions after it."""
        for partition, offset in (*first_offsets.items(), *positions.items()):
            if partition not in self._committed:
                self._begun.setdefault(partition, offset)

    def commit_starts(
        self,
        consumer: CommittedOffsets,
        first_offsets: Mapping[TopicPartition, int],
        positions: Mapping[TopicPartition, int],
        commit: Callable[[Mapping[TopicPartition, int]], None],
    ) -> bool:
        """Commit the starts of the partitions assigned now, for a member of the group.

        Returns false if the poll started later than the worker did before: it must be repeated from
        the committed offsets. Raises what ``committed`` and ``commit`` raise; then nothing is
        settled.
        """
        begun = {tp: offset for tp, offset in self._begun.items() if tp in positions}
        if not begun:
            return True
        starts = {tp: offset for tp, offset in begun.items() if consumer.committed(tp) is None}
        if starts:
            commit(starts)
        for partition in begun:
            del self._begun[partition]
        self._committed.update(begun)
        current = {**positions, **first_offsets}
        return all(current[partition] <= offset for partition, offset in starts.items())


# --- how often a process has died -----------------------------------------------------------------


_ATTEMPT: Final = "attempt"
_ALONE: Final = "alone"
"""An attempt at the one record that follows the position."""


class CommittedPositions(Protocol):
    """The part of a consumer used here."""

    def committed_with_metadata(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The group's committed position; waits for open transactions."""
        ...


class AttemptCounter:
    """How often a worker's process has died over the same input, stored for its successors.

    A function may end its process: a crash in native code, ``os.abort``, too much memory. Ray
    restarts the worker, which gets the same input. So before a process applies the function to a
    partition for the first time, it commits the group's position again, unmoved. The commit's
    metadata counts the attempts of the job ``job_id``; the next commit of output replaces it.

    Where records may be left out, such a partition is then processed record by record, each in a
    transaction of its own and with attempts of its own. So it is known over which record processes
    die, and that one is left out. After ``records_max`` records the search ends without one; deaths
    are counted from there again.

    It is a transaction too, because a late copy of a plain commit would take the group back to that
    position. It costs one commit per process and assignment, nothing per batch.
    """

    def __init__(self, job_id: str, attempts_max: int, records_max: int) -> None:
        self._job_id = job_id
        self._attempts_max = attempts_max
        self._records_max = records_max
        self._counted: set[TopicPartition] = set()
        self._alone: dict[TopicPartition, int] = {}
        """Partitions that are processed record by record, and for how many more records."""
        self._found: set[TopicPartition] = set()
        """Those whose next record is to be left out."""

    def is_narrowing(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether any of these partitions is to be processed record by record."""
        return bool(self._alone) and not self._alone.keys().isdisjoint(partitions)

    def must_be_alone(
        self, consumer: CommittedPositions, partitions: Iterable[TopicPartition], batch: Sized
    ) -> bool:
        """Whether ``batch`` has several records, and some of a partition to be searched.

        Raises what ``consumer`` raises.
        """
        for partition in partitions:
            if partition not in self._counted and partition not in self._alone:
                found = consumer.committed_with_metadata(partition)
                metadata = "" if found is None else found.metadata
                if (
                    self._count(metadata, _ATTEMPT) >= self._attempts_max
                    or self._count(metadata, _ALONE) > 0
                ):
                    self._alone[partition] = self._records_max
        return len(batch) > 1 and self.is_narrowing(partitions)

    def record(
        self,
        consumer: CommittedPositions,
        first_offsets: Mapping[TopicPartition, int],
        commit: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], None],
    ) -> str:
        """Record an attempt at each partition; return why there must not be another one, or "".

        ``first_offsets`` are those of the input; ``commit`` commits positions durably. Raises what
        both raise; then the attempt does not count.
        """
        marks: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, first_offset in first_offsets.items():
            is_alone = partition in self._alone
            if partition in self._counted and not is_alone:
                continue
            word = _ALONE if is_alone else _ATTEMPT
            position = consumer.committed_with_metadata(partition)
            if position is None:
                position = OffsetAndMetadata(offset=first_offset)
            count = self._count(position.metadata, word)
            if count >= self._attempts_max:
                self._found.add(partition)
                what = "alone on the record of" if is_alone else "on"
                return (
                    f"{count} processes in a row died while the function worked {what} "
                    f"{partition} from offset {position.offset} on"
                )
            metadata = f"{self._job_id} {word} {count + 1}"
            marks[partition] = structs.replace(position, metadata=metadata)
        if marks:
            commit(marks)
            self._counted.update(marks)
        return ""

    def record_commit(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the input of these partitions is committed: a search goes on or is over."""
        for partition in self._alone.keys() & set(partitions):
            self._alone[partition] -= 1
            if partition in self._found or not self._alone[partition]:
                del self._alone[partition]
                self._found.discard(partition)
                # Count the next input anew.
                self._counted.discard(partition)

    def _count(self, metadata: str, word: str) -> int:
        words = metadata.split(" ")
        if len(words) == 3 and words[:2] == [self._job_id, word] and words[2].isdecimal():
            return int(words[2])
        return 0
