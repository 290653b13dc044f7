"""Delivery in commit order against a model, over random logs, replies, restarts and memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from oncelog.api.consuming.commit_order import CommitOrderPartition
from oncelog.api.records import CommitPosition, as_committed
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import patch
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.control import encode_marker

TP = TopicPartition("t", 0)
PRODUCERS = range(1, 4)


@dataclass
class Log:
    """Batches in offset order, and the offsets of records as a reader gets them in commit order."""

    batches: list[tuple[int, bytes]]
    end: int
    order: list[tuple[int, list[int]]]
    """The offset at which something is complete, and the records that are complete then."""

    def read(self, offset: int, count: int) -> bytes:
        following = [data for end, data in self.batches if end > offset]
        return b"".join(following[:count])

    def delivered_from(self, offset: int) -> list[int]:
        """What a reader delivers that begins at ``offset``, as if nothing had been delivered."""
        found = [record for at, records in self.order if at >= offset for record in records]
        return [record for record in found if record >= offset]


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("data"), st.sampled_from(PRODUCERS), st.integers(1, 3)),
        st.tuples(st.sampled_from(["commit", "abort"]), st.sampled_from(PRODUCERS), st.just(1)),
    ),
    min_size=8,
    max_size=30,
)


def made(events: list[tuple[str, int, int]]) -> Log:
    batches: list[tuple[int, bytes]] = []
    order: list[tuple[int, list[int]]] = []
    open_: dict[int, list[int]] = {}
    offset = 0
    for kind, producer_id, count in events:
        offsets = list(range(offset, offset + count))
        if kind in ("commit", "abort"):
            data = encode_marker(
                producer_id=producer_id,
                producer_epoch=0,
                committed=kind == "commit",
                coordinator_epoch=0,
                timestamp_ms=0,
            )
            ended = open_.pop(producer_id, [])
            if kind == "commit":
                order.append((offset, ended))
        else:
            is_plain = kind == "plain"
            data = encode_records(
                [(None, b"%d" % number, 0, ()) for number in offsets],
                **({} if is_plain else {"producer_id": producer_id, "producer_epoch": 0}),
                is_transactional=not is_plain,
            )
            if is_plain:
                # A reader may begin inside a batch: each record is complete where it is.
                order += [(number, [number]) for number in offsets]
            else:
                open_.setdefault(producer_id, []).extend(offsets)
        patch(data, base_offset=offset, leader_epoch=0)
        offset += count
        batches.append((offset, bytes(data)))
    return Log(batches, offset, order)


# Each: replies of so many batches, then a take of a few records, then maybe another reader.
STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.just("receive"), st.integers(1, 6)), max_size=2),
        st.lists(st.tuples(st.sampled_from(["records", "columns"]), st.integers(1, 3)), max_size=2),
        st.lists(st.tuples(st.sampled_from(["restart", "back"]), st.just(0)), max_size=1),
    ).map(lambda lists: list(chain.from_iterable(lists))),
    min_size=4,
    max_size=20,
).map(lambda lists: list(chain.from_iterable(lists)))


def reader(memory: int) -> CommitOrderPartition:
    return CommitOrderPartition(
        TP, buffer_bytes=memory, spill_directory=None, spill_max_bytes=1_000_000
    )


def received(partition: CommitOrderPartition, log: Log, count: int) -> None:
    offset = partition.fetch_offset
    assert offset is not None
    if partition.has_room and offset < log.end:
        partition.receive(log.read(offset, count), None, checks_crc=True)


def taken(partition: CommitOrderPartition, how: str, count: int) -> list[int]:
    if how == "records":
        return [record.offset for record in partition.take_records(count)]
    columns = partition.take_columns(count)
    return [offset for batch in columns for offset in batch.column("offset").to_pylist()]


@given(EVENTS, STEPS, st.integers(0, 5), st.sampled_from([1, 300, 10_000]))
def test_each_reader_goes_on_exactly_where_the_one_before_it_was(events, steps, start, memory):
    log = made(events)
    begin = min(start, log.end)
    partition = reader(memory)
    partition.seek(begin)
    delivered: list[int] = []
    before = (partition.position, 0)
    for step, count in [*steps, *[("receive", 2), ("records", 100)] * 40]:
        if step == "receive":
            received(partition, log, count)
        elif step == "restart":
            stored = as_committed(partition.position)
            partition = reader(memory)
            partition.seek(partition.position_of(stored))
        elif step == "back":
            # As after an aborted transaction: what was delivered since comes again.
            del delivered[before[1] :]
            partition.seek(before[0])
        else:
            before = (partition.position, len(delivered))
            found = taken(partition, step, count)
            delivered += found
            if found and isinstance(before[0], CommitPosition):
                assert not partition.is_at(before[0])
    assert delivered == log.delivered_from(begin)
    assert not partition.has_pieces
    open_bytes = partition.open_bytes + partition.spilled_bytes
    assert partition.position.reading_offset == log.end
    assert bool(open_bytes) == (int(partition.position) < log.end)


@given(EVENTS, st.integers(1, 30))
def test_memory_of_open_transactions_stays_within_its_bound(events, count):
    log = made(events)
    partition = reader(500)
    partition.seek(0)
    while partition.fetch_offset < log.end:
        size_bytes = len(log.read(partition.fetch_offset, count))
        received(partition, log, count)
        assert partition.open_bytes <= max(500, size_bytes)
        partition.take_records(1_000)
