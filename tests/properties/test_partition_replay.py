"""Whatever clients and coordinators do: the log alone gives the state, and no rule is broken."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.protocol.partition.producers import ProducerEntry
from oncelog.actors.protocol.tickets import ClusterKeys, issue_plain_ticket, issue_ticket
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import AppendOrigin, ProducerSnapshotEntry, TopicPartition
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.control import ControlRecord

KEY = b"k" * 32
TOPIC_ID = "topic"
TP = TopicPartition("flights", 0)
PRODUCERS = (1, 2, 3)
HOLLOW_BATCH = bytes(encode_records([(None, b"never stamped like that", 0, ())]))
"""Bytes whose CRC is none of those that the headers here have."""


@dataclass(frozen=True)
class Send:
    """Data. ``skew`` moves the sequence away from the next one, ``lag`` the epoch.

    ``content`` stands for what is in it.
    """

    producer_id: int
    count: int
    skew: int
    lag: int
    is_transactional: bool
    has_ticket: bool
    is_from_coordinator: bool
    content: int


@dataclass(frozen=True)
class Mark:
    """A marker whose epoch lies ``rise`` above the newest known one."""

    producer_id: int
    rise: int
    committed: bool
    coordinator_epoch: int


@dataclass(frozen=True)
class Replicate:
    """The high watermark moves by ``percent`` of the way to the log end."""

    percent: int


@dataclass(frozen=True)
class Snapshot:
    """A segment rolls."""


@dataclass(frozen=True)
class FailOver:
    """The leader dies; the next one has read the log."""


SENDS = st.builds(
    Send,
    producer_id=st.sampled_from(PRODUCERS),
    count=st.integers(1, 4),
    skew=st.sampled_from([0, 0, 0, 0, -1, -2, 1, 2]),
    lag=st.sampled_from([0, 0, 0, 0, 1, -1]),
    is_transactional=st.sampled_from([True, True, False]),
    has_ticket=st.sampled_from([True, True, False]),
    is_from_coordinator=st.sampled_from([False, False, True]),
    content=st.integers(0, 1),
)
PLAIN = Send(1, 1, 0, 0, False, True, False, 0)
TRANSACTIONAL = Send(1, 1, 0, 0, True, True, False, 0)
REPEATED = Send(1, 1, -2, 0, True, True, False, 0)
MARKS = st.builds(
    Mark,
    producer_id=st.sampled_from(PRODUCERS),
    rise=st.sampled_from([1, 1, 1, 0, -1, 2]),
    committed=st.booleans(),
    coordinator_epoch=st.integers(0, 2),
)
EVENTS = st.lists(
    st.one_of(
        SENDS,
        SENDS,
        MARKS,
        st.builds(Replicate, percent=st.integers(0, 100)),
        st.builds(Snapshot),
        st.builds(FailOver),
    ),
    max_size=60,
)


@dataclass
class ReplayWorld:
    """A leader, its log, its snapshots, and what the last stable offset was."""

    machine: PartitionMachine = field(default_factory=lambda: PartitionMachine(TP))
    log: list[tuple[BatchHeader, ControlRecord | None]] = field(default_factory=list)
    snapshots: list[tuple[int, list[ProducerSnapshotEntry]]] = field(
        default_factory=lambda: [(0, [])]
    )
    replicated: int = 0

    def __post_init__(self) -> None:
        self.machine.become_leader(1, TOPIC_ID, ClusterKeys(current=KEY))

    def run(self, event: Send | Mark | Replicate | Snapshot | FailOver) -> None:
        stable = self.machine.last_stable_offset
        match event:
            case Send():
                self._send(event)
            case Mark():
                self._mark(event)
            case Replicate(percent=percent):
                gap = self.machine.log_end_offset - self.machine.high_watermark
                self.machine.advance_high_watermark(
                    self.machine.high_watermark + gap * percent // 100
                )
                self.replicated = max(self.replicated, self.machine.high_watermark)
            case Snapshot():
                self.snapshots.append((self.machine.log_end_offset, self.machine.snapshot()))
            case FailOver():
                machine = self.replay(0)
                machine.advance_high_watermark(self.replicated)
                machine.become_leader(
                    self.machine.leader_epoch + 1, TOPIC_ID, ClusterKeys(current=KEY)
                )
                self.machine = machine
        assert self.machine.last_stable_offset >= stable

    def replay(self, snapshot: int, *, from_start: bool = False) -> PartitionMachine:
        """A machine that began at a snapshot and read the log, or all of it."""
        machine = PartitionMachine(TP)
        machine.load(0, *self.snapshots[snapshot])
        for header, control in self.log:
            if from_start or header.next_offset > machine.replay_from:
                machine.apply(header, control)
        return machine

    def _epoch(self, producer_id: int) -> int:
        entry = self.machine.producers.entries.get(producer_id)
        return 0 if entry is None else entry.producer_epoch

    def _send(self, event: Send) -> None:
        entry = self.machine.producers.entries.get(event.producer_id)
        producer_epoch = max(0, self._epoch(event.producer_id) - event.lag)
        following = 0
        if entry is not None and entry.producer_epoch == producer_epoch:
            following = entry.last_sequence + 1
        sequence = -1 if event.is_from_coordinator else max(0, following + event.skew)
        header = BatchHeader(
            base_offset=0,
            batch_length=49,
            leader_epoch=-1,
            magic=2,
            crc=event.content,
            attributes=0x10 * event.is_transactional,
            last_offset_delta=event.count - 1,
            base_timestamp_ms=0,
            max_timestamp_ms=len(self.log),
            producer_id=event.producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            record_count=event.count,
        )
        verdict = self.machine.decide_append(
            header,
            origin=AppendOrigin.COORDINATOR if event.is_from_coordinator else AppendOrigin.CLIENT,
            transactional_id="id",
            ticket=self._ticket(header) if event.has_ticket else None,
            batch=None if event.is_from_coordinator else HOLLOW_BATCH,
            now_ms=0,
        )
        if verdict.error is ErrorCode.NONE and verdict.duplicate_base_offset is None:
            assert event.has_ticket
            self._append(header, None)
        elif verdict.duplicate_base_offset is not None:
            assert any(
                written.base_offset == verdict.duplicate_base_offset
                and written.producer_id == header.producer_id
                and written.producer_epoch == header.producer_epoch
                and written.base_sequence == header.base_sequence
                and written.record_count == header.record_count
                and written.is_transactional == header.is_transactional
                and written.crc == header.crc
                for written, _ in self.log
            )

    def _mark(self, event: Mark) -> None:
        producer_epoch = max(0, self._epoch(event.producer_id) + event.rise)
        error = self.machine.decide_marker(
            event.producer_id, producer_epoch, event.coordinator_epoch
        )
        if error is not ErrorCode.NONE:
            return
        header = BatchHeader(
            base_offset=0,
            batch_length=66,
            leader_epoch=-1,
            magic=2,
            crc=0,
            attributes=0x30,
            last_offset_delta=0,
            base_timestamp_ms=0,
            max_timestamp_ms=len(self.log),
            producer_id=event.producer_id,
            producer_epoch=producer_epoch,
            base_sequence=-1,
            record_count=1,
        )
        self._append(header, ControlRecord(event.committed, event.coordinator_epoch))

    def _append(self, header: BatchHeader, control: ControlRecord | None) -> None:
        header = header.with_offset(self.machine.log_end_offset, self.machine.leader_epoch)
        self.log.append((header, control))
        self.machine.apply(header, control)

    def _ticket(self, header: BatchHeader) -> bytes:
        if not header.is_transactional:
            return issue_plain_ticket(cluster_key=KEY, producer_id=header.producer_id, issued_ms=0)
        return issue_ticket(
            cluster_key=KEY,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            transactional_id="loader",
            topic_id=TOPIC_ID,
            partition=0,
            issued_ms=0,
            transaction_timeout_ms=60_000,
        )


def places(entry: ProducerEntry) -> list[tuple[int, int, int]]:
    """The remembered batches without their timestamps, of which a snapshot has one per entry."""
    return [(batch.last_sequence, batch.last_offset, batch.offset_delta) for batch in entry.batches]


def run(events: list[Send | Mark | Replicate | Snapshot | FailOver]) -> ReplayWorld:
    world = ReplayWorld()
    for event in events:
        world.run(event)
    return world


@given(EVENTS)
def test_replayed_log_gives_the_live_state(
    events: list[Send | Mark | Replicate | Snapshot | FailOver],
) -> None:
    world = run(events)
    live, replayed = world.machine, world.replay(0)
    replayed.advance_high_watermark(live.high_watermark)
    assert replayed.producers.entries == live.producers.entries
    assert replayed.last_stable_offset == live.last_stable_offset
    assert replayed.log_end_offset == live.log_end_offset


@given(EVENTS, st.data())
def test_any_snapshot_and_the_rest_of_the_log_give_the_live_state(
    events: list[Send | Mark | Replicate | Snapshot | FailOver], data: st.DataObject
) -> None:
    world = run(events)
    live = world.machine
    chosen = data.draw(st.integers(0, len(world.snapshots) - 1))
    replayed = world.replay(chosen)
    replayed.advance_high_watermark(live.high_watermark)
    assert replayed.describe_producers(None) == live.describe_producers(None)
    assert replayed.snapshot() == live.snapshot()
    if live.high_watermark >= world.snapshots[chosen][0]:
        assert replayed.last_stable_offset == live.last_stable_offset
    else:
        assert replayed.last_stable_offset == replayed.log_start_offset
    for producer_id, entry in live.producers.entries.items():
        remembered = places(replayed.producers.entries[producer_id])
        assert remembered == places(entry)[len(entry.batches) - len(remembered) :]
        assert bool(remembered) == bool(entry.batches)
    from_start = world.replay(chosen, from_start=True)
    assert from_start.producers.entries == live.producers.entries


@given(EVENTS)
def test_last_stable_offset_is_the_first_record_whose_verdict_is_not_replicated(
    events: list[Send | Mark | Replicate | Snapshot | FailOver],
) -> None:
    world = run(events)
    high_watermark = world.machine.high_watermark
    open_since: dict[int, int] = {}
    unstable = [high_watermark]
    for header, control in world.log:
        if control is not None:
            first_offset = open_since.pop(header.producer_id, None)
            if first_offset is not None and header.base_offset >= high_watermark:
                unstable.append(first_offset)
        elif header.is_transactional:
            open_since.setdefault(header.producer_id, header.base_offset)
    assert world.machine.last_stable_offset == min([*unstable, *open_since.values()])


@given(EVENTS)
@example([PLAIN, TRANSACTIONAL, REPEATED])
def test_log_holds_each_sequence_once_and_epochs_only_rise(
    events: list[Send | Mark | Replicate | Snapshot | FailOver],
) -> None:
    epochs: dict[int, int] = {}
    sequences: dict[int, int] = {}
    coordinator_epochs: dict[int, int] = {}
    for header, control in run(events).log:
        producer_id = header.producer_id
        assert header.producer_epoch >= epochs.get(producer_id, -1)
        if control is not None:
            assert control.coordinator_epoch >= coordinator_epochs.get(producer_id, -1)
            coordinator_epochs[producer_id] = control.coordinator_epoch
        if header.producer_epoch > epochs.get(producer_id, -1):
            sequences.pop(producer_id, None)
        epochs[producer_id] = header.producer_epoch
        if header.base_sequence >= 0:
            last = sequences.get(producer_id)
            assert last is None or header.base_sequence == last + 1
            sequences[producer_id] = header.last_sequence


@given(EVENTS)
@example([PLAIN, TRANSACTIONAL])
@example([TRANSACTIONAL, PLAIN])
def test_an_id_writes_either_in_transactions_or_outside_them(
    events: list[Send | Mark | Replicate | Snapshot | FailOver],
) -> None:
    """A marker makes its id a transactional producer's, whatever it was."""
    is_plain: dict[int, bool] = {}
    for header, control in run(events).log:
        if control is None:
            assert is_plain.get(header.producer_id, header.is_plain) is header.is_plain
        is_plain[header.producer_id] = header.is_plain
