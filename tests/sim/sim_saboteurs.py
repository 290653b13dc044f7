"""Each protection of the protocol, removed: what the simulator must then notice.

A saboteur replaces one small function of the product while its block runs. ``SABOTEURS`` names the
protection, and the changes to a random scenario that soon expose its absence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from msgspec import structs
from sim_stage import NO_KAFKA

from oncelog.actors.controller.access_announcements import AccessAnnouncements
from oncelog.actors.coordination.runtime import CoordinatorRuntime
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.launch.assembly import ReplicaServer
from oncelog.actors.protocol import access
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.messages.access import NO_ACCESS, AccessRequest
from oncelog.actors.protocol.messages.cluster import BecomeLeaderRequest
from oncelog.actors.protocol.messages.transaction import (
    EndTxnReply,
    EndTxnRequest,
)
from oncelog.actors.protocol.partition import partition_machine
from oncelog.actors.protocol.partition import producers as producer_state
from oncelog.actors.protocol.partition.bounds import PartitionBounds
from oncelog.actors.protocol.partition.open_transactions import OpenTransactions
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.protocol.partition.producers import BatchEnrolment, ProducerStates
from oncelog.actors.protocol.tickets import TICKET_BYTES, TicketVerdict
from oncelog.actors.protocol.transaction import producers as transaction_producers
from oncelog.actors.protocol.transaction import runs as transaction_runs
from oncelog.actors.protocol.transaction import transaction_machine, transaction_state
from oncelog.actors.protocol.transaction.end import EndAge
from oncelog.actors.protocol.transaction.transaction_state import (
    AT_REST,
    TransactionMetadata,
    TransactionState,
)
from oncelog.actors.replica import partition_leader
from oncelog.actors.replica.group_sync import GroupSync
from oncelog.actors.replica.opening import ReplicaDirectory
from oncelog.actors.replica.replica import Replica
from oncelog.actors.rpc.door import Door
from oncelog.actors.transactions.completions import MarkerSender
from oncelog.actors.transactions.transaction_coordinator import TransactionCoordinator
from oncelog.api.producing.sender import DeliveryDeadline
from oncelog.api.transacting.enrolment import ProducerEnrolments
from oncelog.api.transacting.producer_transaction import ProducerTransaction
from oncelog.storage.compaction import compactor
from oncelog.storage.compaction.filter import CleanedTransactions, KeyOffsets
from oncelog.storage.disk.sync_point import SyncLedger
from oncelog.storage.errors import ErrorCode
from oncelog.storage.log.partition import AbortedEntries
from oncelog.storage.log.sealed_segments import CompactionView
from oncelog.storage.model import PRODUCER_EPOCH_MAX, TRANSACTION_STATE_TOPIC
from oncelog.storage.records.batch import BatchHeader, Buffer, parse_header
from oncelog.storage.segments.aborted_index import AbortedIndexEntry

Sabotage = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saboteur:
    """One protection less. ``changes`` are made to each scenario that is drawn."""

    name: str
    sabotage: Sabotage
    checker: str = ""
    """Who must speak; "" while that is anybody."""
    changes: dict[str, Any] = field(default_factory=dict)
    runs: int = 30
    """How many it may take; more for what rarely comes to matter."""


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
def preparing(prepared: Callable[..., TransactionMetadata]) -> Iterator[None]:
    """Every decision, of whoever asks for it, is what ``prepared`` makes of it."""
    with ExitStack() as stack:
        for module in (transaction_producers, transaction_runs, transaction_state):
            stack.enter_context(mock.patch.object(module, "prepared", prepared))
        yield


@contextmanager
def _one_epoch_for_all() -> Iterator[None]:
    """Kafka's classic protocol: the transactions of a producer share its epoch."""
    real_prepared, real_age = transaction_state.prepared, transaction_producers.end_age

    def prepared(metadata: TransactionMetadata, **fields: Any) -> TransactionMetadata:
        decided = real_prepared(metadata, **fields)
        return structs.replace(decided, producer_epoch=metadata.producer_epoch)

    def end_age(metadata: TransactionMetadata, **fields: Any) -> EndAge | None:
        age = real_age(metadata, **fields)
        has_ended = metadata.state not in (TransactionState.ONGOING, TransactionState.EMPTY)
        return EndAge.RETRY if age is EndAge.CURRENT and has_ended else age

    with (
        preparing(prepared),
        mock.patch.object(transaction_producers, "end_age", end_age),
        _marker_rules(strict=False, coordinator_epoch=True),
    ):
        yield


def _any_ticket() -> Any:
    return mock.patch.object(partition_machine, "check_ticket", return_value=TicketVerdict.VALID)


def _any_plain_ticket() -> Any:
    """Who knows a producer id without transactions can write as its owner."""
    return mock.patch.object(partition_machine, "check_plain_ticket", _valid_if_any)


def _valid_if_any(ticket: bytes, **_: Any) -> TicketVerdict:
    return TicketVerdict.VALID if len(ticket) == TICKET_BYTES else TicketVerdict.INVALID


@contextmanager
def _first_ticket_only() -> Iterator[None]:
    """Once a transaction is open at a leader, its further batches need no ticket."""
    real = PartitionMachine._check_enrolment

    def check_enrolment(self: PartitionMachine, header: BatchHeader, *args: Any) -> Any:
        if self.producers.check_enrolment(header) is BatchEnrolment.OPEN:
            return None
        return real(self, header, *args)

    with mock.patch.object(PartitionMachine, "_check_enrolment", check_enrolment):
        yield


@contextmanager
def _one_space_of_ids() -> Iterator[None]:
    """As it was: a plain batch needs no ticket, and a duplicate is told by its sequence."""
    with (
        mock.patch.object(PartitionMachine, "_check_owner", _refuses_last_epoch),
        mock.patch.object(ProducerStates, "find_duplicate", _by_sequence),
    ):
        yield


@contextmanager
def _duplicates_by_sequence() -> Iterator[None]:
    """A batch that took a sequence passes for the batch that should have it, whatever is in it."""

    def check_owner(self: PartitionMachine, header: BatchHeader, *_: Any) -> Any:
        if self.producers.is_transactional(header.producer_id):
            return partition_machine.AppendVerdict(error=ErrorCode.INVALID_TXN_STATE)
        return _refuses_last_epoch(self, header)

    with (
        mock.patch.object(PartitionMachine, "_check_owner", check_owner),
        mock.patch.object(ProducerStates, "find_duplicate", _by_sequence),
    ):
        yield


def _refuses_last_epoch(_: PartitionMachine, header: BatchHeader, *__: Any) -> Any:
    """Nothing but what would shut an owner out, which hides the rest."""
    if header.producer_epoch == PRODUCER_EPOCH_MAX:
        return partition_machine.AppendVerdict(error=ErrorCode.UNKNOWN_PRODUCER_ID)
    return None


def _by_sequence(self: ProducerStates, header: BatchHeader, _batch: object = None) -> Any:
    entry = self._entries.get(header.producer_id)
    return None if entry is None else entry.duplicate_of(header)


def _any_sequence() -> Any:
    return mock.patch.object(
        producer_state, "_check_sequence", return_value=(ErrorCode.NONE, False)
    )


@contextmanager
def _no_wait_for_sync() -> Iterator[None]:
    real = GroupSync.request

    def request(self: GroupSync, log: Any, size_bytes: int, **how: bool) -> None:
        real(self, log, size_bytes, **how | {"is_awaited": False})

    with mock.patch.object(GroupSync, "request", request):
        yield


def _forgotten_duplicates() -> Any:
    return mock.patch.object(ProducerStates, "find_duplicate", return_value=None)


def _unstable_reads() -> Any:
    bound = property(lambda self: self.high_watermark)
    return mock.patch.object(PartitionBounds, "last_stable_offset", bound)


def _no_aborted_index() -> Any:
    return mock.patch("oncelog.actors.replica.replica_log.index_if_aborted")


@contextmanager
def _claims_without_fence() -> Iterator[None]:
    """A new owner of an id gets the epoch of the old one."""
    real = transaction_producers.raised

    def raised(metadata: TransactionMetadata, **fields: Any) -> TransactionMetadata:
        if metadata.state not in AT_REST:
            return real(metadata, **fields)
        return structs.replace(metadata, last_producer_epoch=fields["last_producer_epoch"])

    with mock.patch.object(transaction_producers, "raised", raised):
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
def _tickets_without_a_transaction() -> Iterator[None]:
    """A commit that is answered again brings tickets, though what it began has been aborted.

    The producer's own lock is out as well: it takes over what a reply brings, however late.
    """
    real = TransactionCoordinator._enrolled_ahead

    def enrolled_ahead(
        self: TransactionCoordinator, request: EndTxnRequest, reply: EndTxnReply
    ) -> Any:
        metadata = self.machine.ids.metadata(request.transactional_id)
        if metadata is None:
            return ()
        as_if_open = structs.replace(
            metadata,
            state=TransactionState.ONGOING,
            producer_id=reply.producer_id,
            producer_epoch=reply.producer_epoch,
        )
        with mock.patch.object(self.machine.ids, "metadata", return_value=as_if_open):
            return real(self, request, reply)

    with (
        mock.patch.object(TransactionCoordinator, "_enrolled_ahead", enrolled_ahead),
        mock.patch.object(ProducerEnrolments, "_is_fresh", return_value=True),
    ):
        yield


@contextmanager
def _nothing_begun_ahead() -> Iterator[None]:
    """Tickets of a transaction that the coordinator did not begin."""
    with (
        mock.patch.object(transaction_machine, "begun_ahead", lambda complete, _now_ms: complete),
        _tickets_without_a_transaction(),
    ):
        yield


def _no_newest_of_a_key() -> Any:
    """Compaction drops the newest record of a key like those before it."""
    return mock.patch.object(KeyOffsets, "is_latest", return_value=False)


def _aborted_records_supersede() -> Any:
    """Compaction drops a committed record for a newer one that was aborted."""

    class Trusting(CleanedTransactions):
        def observe_data(self, header: BatchHeader) -> bool:
            super().observe_data(header)
            return False

    return mock.patch.object(compactor, "CleanedTransactions", Trusting)


def _refused_sends_forgotten() -> Any:
    """A transaction in which ``send`` raised commits without what was refused."""
    return mock.patch.object(ProducerTransaction, "send_refused")


@contextmanager
def _elections_of_whoever_asks() -> Iterator[None]:
    """The controller elects also a start whose request was overtaken by another election."""
    real = ClusterMachine.decide_become_leader

    def decide_become_leader(self: ClusterMachine, request: BecomeLeaderRequest) -> Any:
        found = self._find(request.topic_partition)
        if found is not None:
            request = structs.replace(request, expected_epoch=found[1].leader_epoch)
        return real(self, request)

    with mock.patch.object(ClusterMachine, "decide_become_leader", decide_become_leader):
        yield


@contextmanager
def _unsynced_markers() -> Iterator[None]:
    """The last stable offset passes a marker as soon as it is written."""
    real = OpenTransactions.complete

    def complete(self: OpenTransactions, **named: Any) -> Any:
        completed = real(self, **named)
        self._unreplicated.clear()
        self._find_first_unstable()
        return completed

    with mock.patch.object(OpenTransactions, "complete", complete):
        yield


@contextmanager
def _lost_markers() -> Iterator[None]:
    """A marker that nobody answered for is taken for written."""
    real = MarkerSender._write

    async def write(self: MarkerSender, *arguments: Any) -> Any:
        answers = await real(self, *arguments)
        unanswered = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION)
        return {
            producer_id: ErrorCode.NONE if error in unanswered else error
            for producer_id, error in answers.items()
        }

    with mock.patch.object(MarkerSender, "_write", write):
        yield


@contextmanager
def _short_search_for_aborted() -> Iterator[None]:
    """Compaction looks for aborted transactions up to the first marker beyond what it reads."""

    def aborted_entries(self: CompactionView, upper_offset: int) -> tuple[AbortedIndexEntry, ...]:
        return tuple(
            entry
            for segment in self._segments.from_offset(self.base_offset)
            for entry in segment.txn_index.entries
            if entry.last_offset < upper_offset
        )

    with mock.patch.object(CompactionView, "aborted_entries", aborted_entries):
        yield


@contextmanager
def _empty_logs() -> Iterator[None]:
    """A replica leads what it finds, be it nothing."""
    with (
        mock.patch.object(ReplicaDirectory, "check_owner"),
        mock.patch.object(ReplicaDirectory, "check_log"),
        mock.patch.object(Replica, "_confirm"),
    ):
        yield


@contextmanager
def _any_records() -> Iterator[None]:
    """A leader looks at the header and the CRC of a batch, and no further."""
    real = partition_leader.check_client_batch

    def check(buffer: Buffer, *, message_max_bytes: int) -> BatchHeader | ErrorCode:
        found = real(buffer, message_max_bytes=message_max_bytes)
        return parse_header(buffer) if found is ErrorCode.INVALID_RECORD else found

    with mock.patch.object(partition_leader, "check_client_batch", check):
        yield


def _no_delivery_deadline() -> Any:
    """Batches are sent again for as long as it takes."""
    return mock.patch.object(DeliveryDeadline, "watch")


def _owed_entries_hold_nothing() -> Any:
    """Readers and syncs pass a marker whose entry in the aborted index is still pending."""
    return mock.patch.object(AbortedEntries, "covered_end", lambda _self, log_end: log_end)


def _refused_syncs_believed_again() -> Any:
    """A sync that had no room is repeated, as if the kernel still had what it gave up."""
    return mock.patch.object(SyncLedger, "fail_in_sync")


def _no_restart_after_a_refusal() -> Any:
    """A replica that is offline for something that passes stays so."""
    return mock.patch.object(ReplicaServer, "restart_later")


def _anybody_is_a_server() -> Any:
    """A program may call what only servers call."""
    return mock.patch.object(access, "refusal", return_value=ErrorCode.NONE)


@contextmanager
def _open_from_the_first_moment() -> Iterator[None]:
    """A process that starts lets everybody in until it knows who may come."""
    real = Door.__init__

    def begin(self: Door, known: Any = NO_ACCESS, *, secret: bytes = b"") -> None:
        real(self, NO_ACCESS, secret=secret)

    with mock.patch.object(Door, "__init__", begin):
        yield


def _enrolments_as_a_whole() -> Any:
    """Who may write to one of the partitions may enrol them all."""
    return mock.patch.dict(access._SPLITS, clear=True)


@contextmanager
def _rules_are_asked_for_once() -> Iterator[None]:
    """A process is told of no change, and does not ask whether it has missed one."""

    async def keep(self: Door, transport: Any, *, timeout_ms: int) -> None:
        while self.version < 0:
            asked = AccessRequest(known_version=self.version)
            reply = await transport.call(CONTROLLER_ACTOR, asked, timeout_ms=timeout_ms)
            self.learn(reply.access or NO_ACCESS)

    with (
        mock.patch.object(Door, "keep", keep),
        mock.patch.object(AccessAnnouncements, "announce", _nothing),
    ):
        yield


async def _nothing(*_: Any) -> None:
    pass


REFUSED = {"disk_refusal": 4.0, "peace": 0.0}
"""A disk that has no room, again and again, and is otherwise sound."""

ALONE = {"copiers": 0, "jobs": 0, "plain_writers": 0, "hijackers": 0, "rogues": 0, "intruders": 0}
ALONE |= {"impostors": 0, "strangers": 0, "remakers": 0, "processors": 0, "queries": 0}
ALONE |= {"commit_readers": 0, "preparers": 0} | NO_KAFKA
"""Nobody but writers and readers: shorter runs."""

LATE = {"delay": 0.1, "delay_max_ms": 60_000.0, "duplicate": 0.1, "peace": 0.0}
"""Calls that arrive again, and long after their time."""

KEYED = ALONE | {
    "topics": {"compact-keys": 1},
    "operators": 0,
    "writers": 4,
    "pause_ms": 10.0,
    "duration_s": 15.0,
    "peace": 0.9,
}
"""Records with keys, in a topic that is compacted during the run."""

SABOTEURS = (
    Saboteur(
        name="missing logs",
        checker="LostPromises",
        sabotage=_empty_logs,
        changes=ALONE | {"move": 0.5},
    ),
    Saboteur(
        name="epoch rise at each end",
        checker="ChangedDecisions",
        sabotage=_one_epoch_for_all,
        changes=ALONE | LATE,
    ),
    Saboteur(
        name="strict markers",
        checker="TornWrites",
        sabotage=lambda: _marker_rules(strict=False, coordinator_epoch=True),
        changes=ALONE
        | LATE
        | {"topics": {"t0": 2}, "writers": 3, "duplicate": 0.3, "delay_max_ms": 2_000.0},
    ),
    Saboteur(
        name="tickets",
        checker="PhantomReads",
        sabotage=_any_ticket,
        changes=ALONE | {"rogues": 2},
    ),
    Saboteur(
        name="calls of servers by servers",
        sabotage=_anybody_is_a_server,
        checker="World",
        changes=ALONE | {"impostors": 1, "writers": 2},
    ),
    Saboteur(
        name="doors closed at the start",
        sabotage=_open_from_the_first_moment,
        checker="World",
        changes=ALONE | {"strangers": 2, "kill": 1.0, "peace": 0.0},
    ),
    Saboteur(
        name="requests split by what may be asked",
        sabotage=_enrolments_as_a_whole,
        checker="World",
        changes=ALONE | {"strangers": 2},
    ),
    Saboteur(
        name="rules that are asked for again",
        sabotage=_rules_are_asked_for_once,
        checker="World",
        changes=ALONE | {"strangers": 1},
    ),
    Saboteur(
        name="records that can be decoded",
        sabotage=_any_records,
        checker="UnreadableRecords",
        changes=ALONE | {"rogues": 2, "writers": 2},
    ),
    Saboteur(
        name="tickets of plain production",
        sabotage=_any_plain_ticket,
        checker="PhantomReads",
        changes=ALONE | {"rogues": 2, "plain_writers": 2},
    ),
    Saboteur(
        name="tickets of open transactions",
        sabotage=_first_ticket_only,
        checker="PhantomReads",
        changes=ALONE | {"rogues": 3, "writers": 3},
    ),
    Saboteur(
        name="ids of transactions closed to plain batches",
        sabotage=_one_space_of_ids,
        checker="PhantomReads",
        changes=ALONE | {"rogues": 3, "writers": 3, "pause_ms": 10.0},
    ),
    Saboteur(
        name="content of duplicates",
        sabotage=_duplicates_by_sequence,
        checker="LostRecords",
        changes=ALONE | {"rogues": 3, "plain_writers": 3, "pause_ms": 10.0},
    ),
    Saboteur(
        name="coordinator epochs",
        checker="ZombieMarkers",
        sabotage=lambda: _marker_rules(strict=True, coordinator_epoch=False),
        changes=LATE
        | {"kill_at_message": 1.5, "pause_ms": 500.0, "writers": 3}
        | {"topics": {"t0": 3, "t1": 3}, "copiers": 0},
    ),
    Saboteur(
        name="sequences",
        checker="ProducerOrder",
        sabotage=_any_sequence,
        changes=ALONE | LATE | {"plain_writers": 2},
    ),
    Saboteur(
        name="wait for the sync",
        checker="TooFewCopies",
        sabotage=_no_wait_for_sync,
        changes=ALONE | {"power_loss": 0.7, "slow_disk": 0.5, "writers": 3, "peace": 0.0},
    ),
    Saboteur(
        name="duplicates remembered",
        checker="DuplicateRecords",
        sabotage=_forgotten_duplicates,
        changes=ALONE | {"plain_writers": 2, "duplicate": 0.1, "drop_reply": 0.1},
    ),
    Saboteur(
        name="last stable offset",
        checker="UnstableEnds",
        sabotage=_unstable_reads,
        changes=ALONE | {"readers": 2},
    ),
    Saboteur(
        name="aborted index",
        checker="AbortedReads",
        sabotage=_no_aborted_index,
        changes=ALONE | {"readers": 2},
    ),
    Saboteur(
        name="durable before markers",
        checker="ChangedDecisions",
        sabotage=_markers_before_their_decision_is_durable,
        changes=ALONE | {"power_loss": 0.7, "slow_disk": 0.5, "writers": 3, "peace": 0.0},
    ),
    Saboteur(
        name="transactions behind tickets",
        checker="LostRecords",
        sabotage=_tickets_without_a_transaction,
        changes=ALONE
        | {"topics": {"t0": 1}, "writers": 6, "pause_ms": 2.0, "drop_reply": 0.25}
        | {"request_timeout_ms": 1_500, "transaction_timeout_ms": 1_000},
        runs=60,
    ),
    Saboteur(
        name="transactions begun ahead",
        checker="World",
        sabotage=_nothing_begun_ahead,
        changes=ALONE,
    ),
    Saboteur(
        name="newest of a key", checker="LostRecords", sabotage=_no_newest_of_a_key, changes=KEYED
    ),
    Saboteur(
        name="keys of committed records only",
        checker="VanishedRecords",
        sabotage=_aborted_records_supersede,
        changes=KEYED | {"abort_ratio": 0.5},
    ),
    Saboteur(
        name="elections by compare-and-set",
        sabotage=_elections_of_whoever_asks,
        checker="LateElections",
        changes=ALONE | LATE | {"kill": 1.0, "duplicate": 0.3, "delay_max_ms": 5_000.0},
    ),
    Saboteur(
        name="markers synced before they count",
        sabotage=_unsynced_markers,
        checker="UnstableEnds",
        changes=ALONE,
    ),
    Saboteur(
        name="markers answered for",
        sabotage=_lost_markers,
        checker="EarlyCompletions",
        changes=ALONE | {"kill": 1.0, "drop_request": 0.1},
    ),
    Saboteur(
        name="whole search for aborted data",
        sabotage=_short_search_for_aborted,
        checker="LostRecords",
        changes=KEYED | {"abort_ratio": 0.5},
    ),
    Saboteur(
        name="refused sends",
        sabotage=_refused_sends_forgotten,
        checker="LostRecords",
        changes=ALONE,
    ),
    Saboteur(
        name="fence of a claim",
        checker="ReusedEpochs",
        sabotage=_claims_without_fence,
        changes={"hijackers": 2},
    ),
    Saboteur(
        name="pending entries of the aborted index",
        sabotage=_owed_entries_hold_nothing,
        checker="AbortedReads",
        changes=ALONE | REFUSED | {"disk_refusal": 8.0, "abort_ratio": 0.5, "readers": 2},
    ),
    Saboteur(
        name="syncs that had no room",
        sabotage=_refused_syncs_believed_again,
        checker="LostPromises",
        changes=ALONE | REFUSED | {"disk_refusal": 8.0, "power_loss": 0.7, "writers": 3},
    ),
    Saboteur(
        name="restart after a refusal",
        sabotage=_no_restart_after_a_refusal,
        checker="World",
        changes=ALONE | REFUSED,
    ),
    Saboteur(
        name="deadline of a delivery",
        sabotage=_no_delivery_deadline,
        checker="LateOutcomes",
        changes=ALONE | {"plain_writers": 2, "kill": 1.0},
    ),
)
