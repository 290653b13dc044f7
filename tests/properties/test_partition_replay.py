"""Whatever clients and coordinators do: the log alone gives the state, and no rule is broken."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import example, given
from hypothesis import strategies as st
from led_partition import LedPartition, make_header

from oncelog.actors.protocol.partition.producers import ProducerEntry
from oncelog.actors.protocol.tickets import NO_CHAIN
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import AppendOrigin, ProducerSnapshotEntry
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.control import ControlRecord

Log: TypeAlias = list[tuple[BatchHeader, ControlRecord | None]]
PRODUCERS = (1, 2, 3)
HOLLOW_BATCH = bytes(encode_records([(None, b"never stamped like that", 0, ())]))
"""Bytes whose CRC is none of those that the headers here have."""


@dataclass(frozen=True)
class Send:
    """Data. ``skew`` moves the sequence away from the next one, ``lag`` the epoch.

    ``content`` stands for what is in it. ``chain``: how far below the epoch the chain of a client
    began that continues its sequences; ``None`` without a chain.
    """

    producer_id: int
    count: int
    skew: int
    lag: int
    is_transactional: bool
    has_ticket: bool
    is_from_coordinator: bool
    content: int
    chain: int | None = None


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
    chain=st.sampled_from([None, 0, 1, 2, 5]),
)
PLAIN = Send(1, 1, 0, 0, False, True, False, 0)
TRANSACTIONAL = Send(1, 1, 0, 0, True, True, False, 0)
REPEATED = Send(1, 1, -2, 0, True, True, False, 0)
CHAINED = Send(1, 1, 0, 0, True, True, False, 0, chain=1)
MARKS = st.builds(
    Mark,
    producer_id=st.sampled_from(PRODUCERS),
    rise=st.sampled_from([1, 1, 1, 0, -1, 2]),
    committed=st.booleans(),
    coordinator_epoch=st.integers(0, 2),
)
SINGLE = st.one_of(
    SENDS,
    SENDS,
    MARKS,
    st.builds(Replicate, percent=st.integers(0, 100)),
    st.builds(Snapshot),
    st.builds(FailOver),
).map(lambda event: [event])


def transaction(producer_id: int) -> st.SearchStrategy[list[Send | Mark]]:
    """Data and their marker, from a client that may continue its sequences."""
    sends = st.builds(
        Send,
        producer_id=st.just(producer_id),
        count=st.integers(1, 4),
        skew=st.sampled_from([0, 0, 0, 0, -1, 1]),
        lag=st.just(0),
        is_transactional=st.just(True),
        has_ticket=st.just(True),
        is_from_coordinator=st.just(False),
        content=st.integers(0, 1),
        chain=st.sampled_from([None, 1, 2, 5, 5, 5]),
    )
    marker = st.builds(
        Mark,
        producer_id=st.just(producer_id),
        rise=st.just(1),
        committed=st.booleans(),
        coordinator_epoch=st.just(2),
    )
    return st.tuples(st.lists(sends, max_size=3), marker).map(lambda both: [*both[0], both[1]])


EVENTS = st.lists(
    st.one_of(SINGLE, st.sampled_from(PRODUCERS).flatmap(transaction)), min_size=8, max_size=40
).map(lambda stories: list(itertools.chain.from_iterable(stories)))


class Replays(LedPartition):
    """A leader, its snapshots, and how far its log is replicated."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[tuple[int, list[ProducerSnapshotEntry]]] = [(0, [])]
        self.replicated = 0

    def run(self, event: Send | Mark | Replicate | Snapshot | FailOver) -> None:
        stable = self.machine.last_stable_offset
        match event:
            case Send():
                self._send(event)
            case Mark():
                self.mark(
                    event.producer_id,
                    max(0, self._epoch(event.producer_id) + event.rise),
                    committed=event.committed,
                    coordinator_epoch=event.coordinator_epoch,
                    timestamp_ms=len(self.log),
                )
            case Replicate(percent=percent):
                gap = self.machine.log_end_offset - self.machine.high_watermark
                self.machine.advance_high_watermark(
                    self.machine.high_watermark + gap * percent // 100
                )
                self.replicated = max(self.replicated, self.machine.high_watermark)
            case Snapshot():
                self.snapshots.append((self.machine.log_end_offset, self.machine.snapshot()))
            case FailOver():
                self.fail_over(self.replicated)
        assert self.machine.last_stable_offset >= stable

    def _epoch(self, producer_id: int) -> int:
        entry = self.machine.producers.entries.get(producer_id)
        return 0 if entry is None else entry.producer_epoch

    def _send(self, event: Send) -> None:
        producer_epoch = max(0, self._epoch(event.producer_id) - event.lag)
        chain_epoch = NO_CHAIN
        if event.chain is not None and event.is_transactional:
            chain_epoch = max(0, producer_epoch - event.chain)
        following = following_in(self.log, event.producer_id, producer_epoch, chain_epoch)
        header = make_header(
            producer_id=event.producer_id,
            producer_epoch=producer_epoch,
            base_sequence=-1 if event.is_from_coordinator else max(0, following + event.skew),
            count=event.count,
            is_transactional=event.is_transactional,
            leader_epoch=-1,
            timestamp_ms=len(self.log),
            crc=event.content,
        )
        verdict = self.decide(
            header,
            origin=AppendOrigin.COORDINATOR if event.is_from_coordinator else AppendOrigin.CLIENT,
            ticket=self._ticket(header, chain_epoch) if event.has_ticket else None,
            batch=None if event.is_from_coordinator else HOLLOW_BATCH,
        )
        self.write(header, verdict)
        if verdict.duplicate_base_offset is not None:
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
        elif verdict.error is ErrorCode.NONE:
            assert event.has_ticket
            assert header.base_sequence in (-1, following)

    def _ticket(self, header: BatchHeader, chain_epoch: int) -> bytes:
        if not header.is_transactional:
            return self.plain_ticket(header.producer_id)
        return self.ticket(header.producer_id, header.producer_epoch, chain_epoch=chain_epoch)


def following_in(log: Log, producer_id: int, producer_epoch: int, chain_epoch: int) -> int:
    """The only sequence that a client may send next, as the log alone tells it."""
    epoch, last = -1, -1
    for header, control in log:
        if control is None and header.producer_id == producer_id:
            if header.producer_epoch != epoch:
                epoch, last = header.producer_epoch, -1
            last = max(last, header.last_sequence)
    is_continued = epoch == producer_epoch or -1 < chain_epoch <= epoch
    return last + 1 if is_continued else 0


def places(entry: ProducerEntry) -> list[tuple[int, int, int]]:
    """The remembered batches without their timestamps, of which a snapshot has one per entry."""
    return [(batch.last_sequence, batch.last_offset, batch.offset_delta) for batch in entry.batches]


def run(events: list[Send | Mark | Replicate | Snapshot | FailOver]) -> Replays:
    world = Replays()
    for event in events:
        world.run(event)
    return world


def test_a_send_with_its_ticket_is_written():
    """Else the properties below would say nothing of transactions."""
    assert len(run([PLAIN]).log) == len(run([TRANSACTIONAL]).log) == 1


def test_a_chain_goes_on_after_a_marker():
    """Likewise of chains."""
    world = run([CHAINED, Mark(1, 1, committed=True, coordinator_epoch=0), CHAINED])
    assert [header.base_sequence for header, _ in world.log] == [0, -1, 1]


@given(EVENTS)
def test_replayed_log_gives_the_live_state(
    events: list[Send | Mark | Replicate | Snapshot | FailOver],
) -> None:
    world = run(events)
    live, replayed = world.machine, world.reload()
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
    replayed = world.reload(*world.snapshots[chosen])
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
    from_start = world.reload(*world.snapshots[chosen], from_start=True)
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
