"""Each protection of the protocol, taken out: what the simulator must then notice.

A saboteur replaces one small function of the product while its block runs. ``SABOTEURS`` names the
protection, and the changes to a random scenario that make its absence felt soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from msgspec import structs

from oncelog.actors.coordinator_runtime import CoordinatorRuntime
from oncelog.actors.group_sync import GroupSync
from oncelog.actors.protocol import (
    partition,
    producer_state,
    transaction,
    transaction_table,
)
from oncelog.actors.protocol.group import GroupMachine
from oncelog.actors.protocol.group_messages import TxnOffsetCommitRequest
from oncelog.actors.protocol.messages import EndTxnReply, EndTxnRequest
from oncelog.actors.protocol.partition_bounds import PartitionBounds
from oncelog.actors.protocol.producer_state import ProducerStates
from oncelog.actors.protocol.tickets import TicketVerdict
from oncelog.actors.protocol.transaction_end import EndAge
from oncelog.actors.protocol.transaction_state import AT_REST, TransactionMetadata, TransactionState
from oncelog.actors.transaction_coordinator import TransactionCoordinator
from oncelog.api.enrolment import Enrolment
from oncelog.storage import cleaner_round
from oncelog.storage.cleaner_keys import KeyOffsets
from oncelog.storage.cleaner_transactions import CleanedTransactions
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TRANSACTION_STATE_TOPIC
from oncelog.storage.record_batch import BatchHeader

Sabotage = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saboteur:
    """One protection less. ``changes`` are made to each scenario that is drawn."""

    name: str
    sabotage: Sabotage
    changes: dict[str, Any] = field(default_factory=dict)


@contextmanager
def _marker_rules(*, strict: bool, coordinator_epoch: bool) -> Iterator[None]:
    """Markers under fewer rules than there are."""

    def check_marker(
        self: ProducerStates, producer_id: int, producer_epoch: int, coordinator: int
    ) -> ErrorCode:
        entry = self._entries.get(producer_id)
        if entry is None:
            return ErrorCode.NONE
        if producer_epoch < entry.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        is_repeated = producer_epoch == entry.producer_epoch
        if strict and is_repeated and entry.has_open_transaction:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if coordinator_epoch and coordinator < entry.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return ErrorCode.NONE

    with mock.patch.object(ProducerStates, "check_marker", check_marker):
        yield


@contextmanager
def _one_epoch_for_all() -> Iterator[None]:
    """Kafka's classic protocol: the transactions of a producer share its epoch."""
    real_prepared, real_age = transaction_table.prepared, transaction.end_age

    def prepared(metadata: TransactionMetadata, **fields: Any) -> TransactionMetadata:
        decided = real_prepared(metadata, **fields)
        return structs.replace(decided, producer_epoch=metadata.producer_epoch)

    def end_age(metadata: TransactionMetadata, **fields: Any) -> EndAge | None:
        age = real_age(metadata, **fields)
        has_ended = metadata.state not in (TransactionState.ONGOING, TransactionState.EMPTY)
        return EndAge.RETRY if age is EndAge.CURRENT and has_ended else age

    with (
        mock.patch.object(transaction_table, "prepared", prepared),
        mock.patch.object(transaction, "end_age", end_age),
        _marker_rules(strict=False, coordinator_epoch=True),
    ):
        yield


def _any_ticket() -> Any:
    return mock.patch.object(partition, "check_ticket", return_value=TicketVerdict.VALID)


def _any_sequence() -> Any:
    return mock.patch.object(
        producer_state, "_check_sequence", return_value=(ErrorCode.NONE, False)
    )


@contextmanager
def _no_wait_for_sync() -> Iterator[None]:
    real = GroupSync.request

    def request(self: GroupSync, log: Any, size_bytes: int, *, is_awaited: bool) -> None:
        real(self, log, size_bytes, is_awaited=False)

    with mock.patch.object(GroupSync, "request", request):
        yield


def _forgotten_duplicates() -> Any:
    return mock.patch.object(ProducerStates, "find_duplicate", return_value=None)


def _unstable_reads() -> Any:
    bound = property(lambda self: self.high_watermark)
    return mock.patch.object(PartitionBounds, "last_stable_offset", bound)


def _no_aborted_index() -> Any:
    return mock.patch("oncelog.actors.replica_log.index_if_aborted")


@contextmanager
def _claims_without_fence() -> Iterator[None]:
    """A new owner of an id gets the epoch of the old one."""
    real = transaction.raised

    def raised(metadata: TransactionMetadata, **fields: Any) -> TransactionMetadata:
        if metadata.state not in AT_REST:
            return real(metadata, **fields)
        return structs.replace(metadata, last_producer_epoch=fields["last_producer_epoch"])

    with mock.patch.object(transaction, "raised", raised):
        yield


@contextmanager
def _markers_before_their_decision_is_durable() -> Iterator[None]:
    real = CoordinatorRuntime.execute

    async def execute(self: CoordinatorRuntime, key: str, decide: Any, **named: Any) -> Any:
        if self.replica.topic_partition.topic == TRANSACTION_STATE_TOPIC:
            named["is_durable_before_reply"] = False
        return await real(self, key, decide, **named)

    with mock.patch.object(CoordinatorRuntime, "execute", execute):
        yield


@contextmanager
def _positions_of_any_generation() -> Iterator[None]:
    real = GroupMachine.admit_commit

    def admit_commit(self: GroupMachine, request: Any, now_ms: int) -> Any:
        if isinstance(request, TxnOffsetCommitRequest):
            return ErrorCode.NONE, []
        return real(self, request, now_ms)

    with mock.patch.object(GroupMachine, "admit_commit", admit_commit):
        yield


@contextmanager
def _tickets_without_a_transaction() -> Iterator[None]:
    """A commit that is answered again brings tickets, though what it began has been aborted.

    The producer's own lock is out as well: it takes over what a reply brings, however late.
    """
    real = TransactionCoordinator._enrolled_ahead

    def enrolled_ahead(
        self: TransactionCoordinator, request: EndTxnRequest, reply: EndTxnReply
    ) -> Any:
        metadata = self.machine.metadata(request.transactional_id)
        if metadata is None:
            return ()
        as_if_open = structs.replace(
            metadata,
            state=TransactionState.ONGOING,
            producer_id=reply.producer_id,
            producer_epoch=reply.producer_epoch,
        )
        with mock.patch.object(self.machine, "metadata", return_value=as_if_open):
            return real(self, request, reply)

    with (
        mock.patch.object(TransactionCoordinator, "_enrolled_ahead", enrolled_ahead),
        mock.patch.object(Enrolment, "_is_fresh", return_value=True),
    ):
        yield


@contextmanager
def _nothing_begun_ahead() -> Iterator[None]:
    """Tickets of a transaction that the coordinator did not begin."""
    with (
        mock.patch.object(transaction_table, "begun_ahead", lambda complete, _now_ms: complete),
        _tickets_without_a_transaction(),
    ):
        yield


def _no_newest_of_a_key() -> Any:
    """Compaction drops the newest record of a key like those before it."""
    return mock.patch.object(KeyOffsets, "is_latest", return_value=False)


def _aborted_records_supersede() -> Any:
    """Compaction drops a committed record for a newer one that was aborted."""

    class Trusting(CleanedTransactions):
        def meet_data(self, header: BatchHeader) -> bool:
            super().meet_data(header)
            return False

    return mock.patch.object(cleaner_round, "CleanedTransactions", Trusting)


ALONE = {"copiers": 0, "jobs": 0, "plain_writers": 0, "hijackers": 0, "rogues": 0}
"""Nobody but writers and readers: shorter runs."""

LATE = {"delay": 0.1, "delay_max_ms": 60_000.0, "duplicate": 0.1, "peace": 0.0}
"""Calls that arrive again, and long after their time."""

KEYED = ALONE | {"operators": 1, "writers": 3, "pause_ms": 10.0, "duration_s": 20.0}
"""Records with keys, in a topic that is compacted during the run."""

SABOTEURS = (
    Saboteur(name="epoch rise at each end", sabotage=_one_epoch_for_all, changes=LATE),
    Saboteur(
        name="strict markers",
        sabotage=lambda: _marker_rules(strict=False, coordinator_epoch=True),
        changes=ALONE
        | LATE
        | {"topics": {"t0": 2}, "writers": 3, "duplicate": 0.3, "delay_max_ms": 2_000.0},
    ),
    Saboteur(name="tickets", sabotage=_any_ticket, changes={"rogues": 2}),
    Saboteur(
        name="coordinator epochs",
        sabotage=lambda: _marker_rules(strict=True, coordinator_epoch=False),
        changes=LATE
        | {"kill_at_message": 1.5, "pause_ms": 500.0, "writers": 3}
        | {"topics": {"t0": 3, "t1": 3}, "copiers": 0},
    ),
    Saboteur(name="sequences", sabotage=_any_sequence, changes=LATE | {"plain_writers": 2}),
    Saboteur(
        name="wait for the sync",
        sabotage=_no_wait_for_sync,
        changes=ALONE | {"power_loss": 0.7, "slow_disk": 0.5, "writers": 3, "peace": 0.0},
    ),
    Saboteur(
        name="duplicates remembered",
        sabotage=_forgotten_duplicates,
        changes={"plain_writers": 2, "duplicate": 0.1, "drop_reply": 0.1},
    ),
    Saboteur(name="last stable offset", sabotage=_unstable_reads, changes={"readers": 2}),
    Saboteur(name="aborted index", sabotage=_no_aborted_index, changes={"readers": 2}),
    Saboteur(
        name="durable before markers",
        sabotage=_markers_before_their_decision_is_durable,
        changes=ALONE | {"power_loss": 0.7, "slow_disk": 0.5, "writers": 3, "peace": 0.0},
    ),
    Saboteur(
        name="generations in transactions",
        sabotage=_positions_of_any_generation,
        changes=ALONE
        | {"copiers": 3, "writers": 2, "plain_writers": 2, "pause_ms": 3_000.0}
        | {"topics": {"t0": 2, "copies": 1}, "transaction_timeout_ms": 10_000}
        | {"duration_s": 30.0, "kill": 0.0, "power_loss": 0.0, "crash_at_disk": 0.0},
    ),
    Saboteur(
        name="transactions behind tickets",
        sabotage=_tickets_without_a_transaction,
        changes=ALONE
        | {"topics": {"t0": 1}, "writers": 6, "pause_ms": 5.0, "drop_reply": 0.2}
        | {"request_timeout_ms": 1_500, "transaction_timeout_ms": 1_000},
    ),
    Saboteur(name="transactions begun ahead", sabotage=_nothing_begun_ahead, changes=ALONE),
    Saboteur(name="newest of a key", sabotage=_no_newest_of_a_key, changes=KEYED),
    Saboteur(
        name="keys of committed records only",
        sabotage=_aborted_records_supersede,
        changes=KEYED | {"abort_ratio": 0.5},
    ),
    Saboteur(name="fence of a claim", sabotage=_claims_without_fence, changes={"hijackers": 2}),
)
