"""Checkers that observe a running simulation: every batch of every log, every decision.

``LogWatch`` observes the machines: it is told of each batch that one applies, each step of a
high watermark and each record of a transaction log, live and on reload, and compares them with all
it was told before, even by machines now dead. It changes nothing and draws no randomness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from live_states import compared
from sim_checkers import Violation
from sim_history import is_remade
from sim_replica_watch import REPLICA_CHECKERS, ReplicaWatch, beginning, cutting, recording

from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import LeaderElected
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group.group_machine import GroupTable
from oncelog.actors.protocol.group.group_records import GroupKey
from oncelog.actors.protocol.group.group_records import decode_key as decode_group_key
from oncelog.actors.protocol.messages.partition import DeleteRecordsRequest
from oncelog.actors.protocol.partition.bounds import PartitionBounds, Role
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.protocol.transaction.ids import TransactionalIds
from oncelog.actors.protocol.transaction.transaction_records import decode_key, decode_member_key
from oncelog.actors.protocol.transaction.transaction_state import (
    DECIDED,
    LEGAL_PREDECESSORS,
    TransactionMetadata,
    TransactionState,
    txn_markers,
)
from oncelog.actors.replica.partition_leader import PartitionLeader
from oncelog.actors.replica.replica_log import ReplicaLog
from oncelog.actors.transactions.transaction_coordinator import TransactionCoordinator
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_COORDINATOR_EPOCH, TopicPartition
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.control import ControlRecord

WATCHED = frozenset(
    {
        "ChangedDecisions",
        "ContradictingMarkers",
        "CrossedBounds",
        "EarlyCompletions",
        "FallingBounds",
        "FallingEpochs",
        "FallingGenerations",
        "IllegalMoves",
        "LateElections",
        "LostPromises",
        "MarkersBeforeDecision",
        "ReturnedRecords",
        "SharedEpochs",
        "UnequalStates",
        "UnstableEnds",
        "ZombieMarkers",
        *REPLICA_CHECKERS,
    }
)
"""What the watch may find."""

COMPLETED = {
    TransactionState.COMPLETE_COMMIT: TransactionState.PREPARE_COMMIT,
    TransactionState.COMPLETE_ABORT: TransactionState.PREPARE_ABORT,
}


@dataclass(slots=True)
class Promise:
    """What has been shown to readers, and what operators were told."""

    high_watermark: int = 0
    last_stable_offset: int = 0
    log_start_offset: int = 0
    """Everything below is deleted, by an acknowledged ``delete_records``."""

    def rises(self, machine: PartitionBounds) -> None:
        """A leader shows more."""
        self.high_watermark = max(self.high_watermark, machine.high_watermark)
        self.last_stable_offset = max(self.last_stable_offset, machine.last_stable_offset)


@dataclass(slots=True)
class MachineView:
    """What one life of a partition's machine was seen to apply. Kept, so that ids stay unique."""

    machine: PartitionBounds
    epochs: dict[int, int] = field(default_factory=dict)
    coordinator_epochs: dict[int, int] = field(default_factory=dict)
    ongoing: dict[int, int] = field(default_factory=dict)
    """Producer id → first offset of its transaction that waits for its marker."""
    marked: list[tuple[int, int]] = field(default_factory=list)
    """(first offset, marker offset) of transactions whose marker may be lost with the machine."""
    shown: Promise = field(default_factory=Promise)
    """What it has shown in its present leadership."""
    owed: Promise = field(default_factory=Promise)
    """What leaders before it had shown."""
    lead_from: int = 0
    """Where the log ended when it began to lead."""

    def knows(self, header: BatchHeader) -> bool:
        """Whether the snapshot that was loaded tells what is open after this batch, and better."""
        machine = self.machine
        return machine.role is Role.LOADING and header.base_offset < machine._snapshot_offset

    def unstable_from(self, high_watermark: int) -> int | None:
        """Inclusive first offset that nobody may read as committed yet, ``None`` if all may."""
        self.marked = [found for found in self.marked if found[1] >= high_watermark]
        firsts = [*self.ongoing.values(), *(first for first, _ in self.marked)]
        return min(firsts, default=None)


class LogWatch(ReplicaWatch):
    """Looks on at one world. ``violations`` are what was found, the first one first."""

    def __init__(self) -> None:
        super().__init__()
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.decisions: dict[tuple[int, int], bool] = {}
        """(producer id, epoch that its markers carry) → whether it was decided to commit."""
        self._marked: set[tuple[TopicPartition, int, int]] = set()
        self._views: dict[int, MachineView] = {}
        self._promises: dict[TopicPartition, dict[int, Promise]] = {}
        """By the leader epoch in which it was shown."""
        self._elections: dict[tuple[str, int], dict[int, tuple[int, str]]] = {}
        """(topic id, partition) → leader epoch → the broker and start that it was given to."""
        self._led: set[tuple[str, int, int]] = set()
        """(topic id, partition, leader epoch) in which a replica has begun to lead."""
        self._loaded: dict[int, list[tuple[TransactionMetadata | None, ...]]] = {}
        """By the id of what a coordinator loads into: what it has read, and not served yet."""

    # --- partitions ---------------------------------------------------------------------------

    def loads(self, machine: PartitionBounds) -> None:
        """A machine begins anew, with the transactions that its snapshot shows as open."""
        self.opens(machine)
        view = self._views[id(machine)] = MachineView(machine)
        for first_offset, producer_id in machine.producers.transactions.ongoing.items():
            view.ongoing[producer_id] = first_offset

    def applies(
        self, machine: PartitionBounds, header: BatchHeader, control: ControlRecord | None
    ) -> None:
        """A batch stands in the log."""
        self.counts["batches"] += 1
        topic_partition = machine.topic_partition
        if is_remade(topic_partition):
            return
        self.batches_of(machine).applies(header)
        if header.producer_id < 0 or (header.is_control and control is None):
            return
        view = self._views.setdefault(id(machine), MachineView(machine))
        known = view.epochs.get(header.producer_id, -1)
        if header.producer_epoch < known:
            self._found(
                "FallingEpochs",
                f"{topic_partition}@{header.base_offset}: producer {header.producer_id} has "
                f"epoch {header.producer_epoch} after {known}",
                topic_partition,
            )
        view.epochs[header.producer_id] = max(known, header.producer_epoch)
        if header.is_transactional and not header.is_control and not view.knows(header):
            view.ongoing.setdefault(header.producer_id, header.base_offset)
        if control is not None and control.committed is not None:
            self._check_marker(view, header, control, is_committed=control.committed)

    def _check_marker(
        self, view: MachineView, header: BatchHeader, control: ControlRecord, *, is_committed: bool
    ) -> None:
        topic_partition = view.machine.topic_partition
        first = None if view.knows(header) else view.ongoing.pop(header.producer_id, None)
        if first is not None:
            view.marked.append((first, header.base_offset))
        where = (
            f"{topic_partition}@{header.base_offset}: {'COMMIT' if is_committed else 'ABORT'} of "
            f"producer {header.producer_id} epoch {header.producer_epoch}"
        )
        self.counts["markers"] += 1
        self._marked.add((topic_partition, header.producer_id, header.producer_epoch))
        verdict = self.decisions.get((header.producer_id, header.producer_epoch))
        if verdict is None:
            self._found("MarkersBeforeDecision", f"{where} was never decided", topic_partition)
        elif verdict is not is_committed:
            self._found("ContradictingMarkers", f"{where} was decided otherwise", topic_partition)
        known = view.coordinator_epochs.get(header.producer_id, NO_COORDINATOR_EPOCH)
        if control.coordinator_epoch < known:
            self._found(
                "ZombieMarkers",
                f"{where} is of coordinator epoch {control.coordinator_epoch} after {known}",
                topic_partition,
            )
        view.coordinator_epochs[header.producer_id] = max(known, control.coordinator_epoch)

    def leads(self, machine: PartitionMachine) -> None:
        """A machine begins to lead; what leaders of earlier epochs have shown must be there.

        One that begins late may have been followed already, and need not have what its successor
        has shown.
        """
        partition = machine.topic_partition.partition
        self._led.add((machine._topic_id, partition, machine.leader_epoch))
        if is_remade(machine.topic_partition):
            return
        view = self._views.setdefault(id(machine), MachineView(machine))
        view.shown, view.lead_from = Promise(), machine.log_end_offset
        view.owed = promise = self._shown_before(machine)
        if machine.log_end_offset < promise.high_watermark:
            self._found(
                "LostPromises",
                f"{machine} leads, and readers were shown {promise.high_watermark}",
                machine.topic_partition,
            )
        if machine.log_start_offset < promise.log_start_offset:
            self._found(
                "ReturnedRecords",
                f"{machine} leads, and deleted is up to {promise.log_start_offset}",
                machine.topic_partition,
            )
        self.has_committed(machine, "ChangedBatches", promise.high_watermark)

    def deletes(self, machine: PartitionBounds, epoch: int, offset: int) -> None:
        """A leader, in that epoch, has answered that all below ``offset`` is deleted."""
        if is_remade(machine.topic_partition):
            return
        promises = self._promises.setdefault(machine.topic_partition, {})
        promise = promises.setdefault(epoch, Promise())
        promise.log_start_offset = max(promise.log_start_offset, offset)
        self.counts["deletions promised"] += 1

    def shows(self, machine: PartitionBounds) -> None:
        """A replica's bounds have moved.

        The first bounds of a new leader may be below those of the last one: it shows no less once
        all that it began with is committed (KIP-207).
        """
        if is_remade(machine.topic_partition):
            return
        if machine.role is Role.FOLLOWER:
            self.follows(machine)
        if machine.role is not Role.LEADER:
            return
        view = self._views.setdefault(id(machine), MachineView(machine))
        promises = self._promises.setdefault(machine.topic_partition, {})
        promise = promises.setdefault(machine.leader_epoch, Promise())
        stable, high = machine.last_stable_offset, machine.high_watermark
        if not stable <= high <= machine.log_end_offset:
            self._found("CrossedBounds", f"{machine}", machine.topic_partition)
        for shown in (view.shown, view.owed) if high >= view.lead_from else (view.shown,):
            if high < shown.high_watermark or stable < shown.last_stable_offset:
                self._found(
                    "FallingBounds",
                    f"{machine}, and readers were shown {shown}",
                    machine.topic_partition,
                )
        self.commits(machine)
        promise.rises(machine)
        view.shown.rises(machine)
        self.is_everywhere(machine, high)
        self.settles(machine)

    def committed_to(self, topic_partition: TopicPartition) -> int:
        """What the leaders of a partition have shown; nothing of one that may be another's."""
        if is_remade(topic_partition):
            return 0
        promises = self._promises.get(topic_partition, {}).values()
        return max((promise.high_watermark for promise in promises), default=0)

    def _shown_before(self, machine: PartitionMachine) -> Promise:
        """What leaders of earlier epochs than that of a leader have shown, all together."""
        promises = self._promises.get(machine.topic_partition, {})
        earlier = [shown for epoch, shown in promises.items() if epoch < machine.leader_epoch]
        return Promise(
            max((promise.high_watermark for promise in earlier), default=0),
            max((promise.last_stable_offset for promise in earlier), default=0),
            max((promise.log_start_offset for promise in earlier), default=0),
        )

    def settles(self, machine: PartitionBounds) -> None:
        """Readers see nothing of a transaction before its marker is synced (I-04, I-10)."""
        view = self._views.get(id(machine))
        if view is None or machine.role is not Role.LEADER:
            return
        unstable = view.unstable_from(machine.high_watermark)
        if unstable is None:
            return
        if machine.last_stable_offset > max(unstable, machine.log_start_offset):
            self._found(
                "UnstableEnds",
                f"{machine} is stable above {unstable}, where a transaction begins whose marker "
                "is not here or not synced",
                machine.topic_partition,
            )

    # --- elections ----------------------------------------------------------------------------

    def elects(self, elected: LeaderElected) -> None:
        """The controller's log gives an epoch to one start of a replica (I-08, I-22).

        Or to a broker, where it elects by itself: that one's start may lead again and again. A
        start that never heard of its election, and of which the controller knows no more, may be
        given another.
        """
        given = self._elections.setdefault((elected.topic_id, elected.partition), {})
        epoch, start = elected.leader_epoch, (elected.leader, elected.incarnation)
        known = given.setdefault(epoch, start)
        where = f"partition {elected.partition} of topic {elected.topic_id}: epoch {epoch}"
        if known != start:
            self._found("SharedEpochs", f"{where} was given twice", elected.topic_id)
        elif elected.incarnation and any(
            given[one] == start and (elected.topic_id, elected.partition, one) in self._led
            for one in given
            if one < epoch
        ):
            self._found(
                "LateElections",
                f"{where} was given to a start that had led before",
                elected.topic_id,
            )

    # --- transactions -------------------------------------------------------------------------

    def logs(
        self,
        ids: TransactionalIds,
        before: TransactionMetadata | None,
        after: TransactionMetadata | None,
    ) -> None:
        """A record of a transaction log, committed, was applied; a tombstone may change nothing.

        What a coordinator loads may not be committed: it counts once that one serves.
        """
        if id(ids) in self._loaded:
            self._loaded[id(ids)].append((before, after))
            return
        self.counts["transaction records"] += 1
        self.counts["begun ahead"] += after is not None and _is_begun_ahead(before, after)
        if after is None or after is before:
            return
        if before is not None:
            self._check_move(before, after)
        if after.state in DECIDED:
            self._decide(after)
        elif before is not None and after.state in COMPLETED and before.state in DECIDED:
            self._check_complete(before)

    @contextmanager
    def loading(self, ids: TransactionalIds, has_loaded: Callable[[], bool]) -> Iterator[None]:
        """A coordinator reads its log; at the end ``has_loaded`` if all of it is committed."""
        self._loaded[id(ids)] = []
        try:
            yield
        finally:
            found = self._loaded.pop(id(ids))
            for before, after in found if has_loaded() else ():
                self.logs(ids, before, after)

    def _check_move(self, before: TransactionMetadata, after: TransactionMetadata) -> None:
        name = after.transactional_id
        if before.state not in LEGAL_PREDECESSORS[after.state]:
            self._found("IllegalMoves", f"{name!r} went from {before.state} to {after.state}", name)
        is_same = after.producer_id == before.producer_id
        if is_same and after.producer_epoch < before.producer_epoch:
            self._found(
                "FallingEpochs",
                f"{name!r}: producer {after.producer_id} went from epoch {before.producer_epoch} "
                f"to {after.producer_epoch}",
                name,
            )

    def _decide(self, prepared: TransactionMetadata) -> None:
        for marker in txn_markers(prepared):
            key = (marker.producer_id, marker.producer_epoch)
            verdict = self.decisions.setdefault(key, marker.committed)
            if verdict is not marker.committed:
                self._found(
                    "ChangedDecisions",
                    f"{prepared.transactional_id!r}: producer {key[0]} epoch {key[1]} was decided "
                    f"twice, to {'commit' if verdict else 'abort'} first",
                    prepared.transactional_id,
                )

    def _check_complete(self, prepared: TransactionMetadata) -> None:
        """COMPLETE comes after every marker (I-15)."""
        for marker in txn_markers(prepared):
            for topic_partition in marker.partitions:
                key = (topic_partition, marker.producer_id, marker.producer_epoch)
                if key not in self._marked:
                    self._found(
                        "EarlyCompletions",
                        f"{prepared.transactional_id!r} is complete without the marker of producer "
                        f"{marker.producer_id} epoch {marker.producer_epoch} in {topic_partition}",
                        prepared.transactional_id,
                        topic_partition,
                    )

    # --- groups -------------------------------------------------------------------------------

    def groups(self, group_id: str, before: int, after: int) -> None:
        """A record of a group was applied; one generation after another, or the same (I-19)."""
        self.counts["group records"] += 1
        if after < before:
            self._found(
                "FallingGenerations", f"{group_id!r} went from {before} to {after}", group_id
            )

    # --- every log ----------------------------------------------------------------------------

    def reads_back(self, difference: str) -> None:
        """What was logged is not what was decided: the state after a reload is another."""
        self._found("UnequalStates", difference)

    def _found(self, checker: str, message: str, *about: object) -> None:
        self.violations.append(Violation(checker, message, tuple(str(item) for item in about)))


@contextmanager
def watching() -> Iterator[LogWatch]:
    """A ``LogWatch`` over all machines that are made until the block ends. Not to be nested."""
    watch = LogWatch()
    real: list[tuple[type, str, Any]] = [
        (PartitionMachine, "apply", PartitionMachine.apply),
        (PartitionMachine, "become_leader", PartitionMachine.become_leader),
        (PartitionBounds, "load", PartitionBounds.load),
        (PartitionBounds, "advance_high_watermark", PartitionBounds.advance_high_watermark),
        (TransactionalIds, "apply", TransactionalIds.apply),
        (ClusterMachine, "_apply_to_partition", ClusterMachine._apply_to_partition),
        (GroupTable, "apply", GroupTable.apply),
        (ReplicaLog, "__init__", ReplicaLog.__init__),
        (ReplicaLog, "cut", ReplicaLog.cut),
        (PartitionLeader, "delete_records", PartitionLeader.delete_records),
        (TransactionCoordinator, "load", TransactionCoordinator.load),
    ]
    observed = (
        _applying,
        _leading,
        _loading,
        _showing,
        _logging,
        _electing,
        _grouping,
        beginning,
        cutting,
        _deleting,
        _reading,
    )
    for (owner, name, method), observe in zip(real, observed, strict=True):
        setattr(owner, name, observe(watch, method))
    try:
        with compared(watch.reads_back):
            yield watch
    finally:
        for owner, name, method in real:
            setattr(owner, name, method)


Method = Callable[..., Any]


def _applying(watch: LogWatch, method: Method) -> Method:
    def apply(self: PartitionMachine, header: BatchHeader, control: ControlRecord | None) -> Any:
        watch.applies(self, header, control)
        result = method(self, header, control)
        watch.settles(self)
        return result

    return apply


def _leading(watch: LogWatch, method: Method) -> Method:
    def become_leader(self: PartitionMachine, *args: Any, **named: Any) -> None:
        method(self, *args, **named)
        watch.leads(self)
        watch.shows(self)

    return become_leader


def _loading(watch: LogWatch, method: Method) -> Method:
    def load(self: PartitionBounds, *args: Any, **named: Any) -> None:
        method(self, *args, **named)
        watch.loads(self)

    return load


def _showing(watch: LogWatch, method: Method) -> Method:
    def advance_high_watermark(self: PartitionBounds, offset: int) -> bool:
        has_moved: bool = method(self, offset)
        watch.shows(self)
        if has_moved and self.role is Role.LEADER:
            watch.is_often_enough(self)
        return has_moved

    return advance_high_watermark


def _deleting(watch: LogWatch, method: Method) -> Method:
    async def delete_records(self: PartitionLeader, request: DeleteRecordsRequest) -> Any:
        epoch, machine = self.replica.leader_epoch, self.replica.machine
        reply = await method(self, request)
        if reply.error is ErrorCode.NONE:
            # Of a later deletion this reply tells as well, which may not be everywhere yet.
            told = request.offset if request.offset >= 0 else reply.log_start_offset
            watch.deletes(machine, epoch, told)
        return reply

    return delete_records


def _reading(watch: LogWatch, method: Method) -> Method:
    async def load(self: TransactionCoordinator) -> None:
        with watch.loading(self.machine.ids, lambda: self.runtime.is_loaded):
            await method(self)

    return load


def _electing(watch: LogWatch, method: Method) -> Method:
    def apply_to_partition(self: ClusterMachine, record: Any) -> None:
        if isinstance(record, LeaderElected):
            watch.elects(record)
        record_isr(self, record)

    record_isr = recording(watch, method)
    return apply_to_partition


def _grouping(watch: LogWatch, method: Method) -> Method:
    def apply(self: GroupTable, record: LogRecord, **place: int) -> None:
        key = None if record.key is None else decode_group_key(record.key)
        group_id = key.group_id if isinstance(key, GroupKey) else None
        before = self._records.get(group_id) if group_id is not None else None
        method(self, record, **place)
        after = self._records.get(group_id) if group_id is not None else None
        if group_id is not None and before is not None and after is not None:
            watch.groups(group_id, before.generation_id, after.generation_id)

    return apply


def _is_begun_ahead(before: TransactionMetadata | None, after: TransactionMetadata) -> bool:
    is_begun = after.state is TransactionState.ONGOING and bool(after.ahead_partitions)
    return is_begun and before is not None and before.state is TransactionState.COMPLETE_COMMIT


def _id_of(record: LogRecord) -> str | None:
    """The transactional id that a record is about: its own, or that of a member."""
    if record.key is None:
        return None
    member = decode_member_key(record.key)
    return decode_key(record.key) if member is None else member.transactional_id


def _logging(watch: LogWatch, method: Method) -> Method:
    def apply(self: TransactionalIds, record: LogRecord) -> None:
        name = _id_of(record)
        before = self.metadata(name) if name is not None else None
        method(self, record)
        if name is not None:
            watch.logs(self, before, self.metadata(name))

    return apply
