"""A state rebuilt from the batches that matter is the state rebuilt from all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from crash_disk import CrashDisk
from hypothesis import event, example, given
from hypothesis import strategies as st

from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.storage.compaction.filter import empty_batch
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import parse_header, patch, seal
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.control import decode_control, encode_marker

DIRECTORY = Path("/log")
PARTITION = TopicPartition("t", 0)
# Few producers and long runs of plain data, so that much may be left out.
PRODUCER = st.sampled_from([0, 0, 0, 1, 256])
LEADER_EPOCH_RISE = st.sampled_from([0] * 6 + [1])
STEP = st.tuples(
    st.sampled_from(["plain"] * 8 + ["nobody"] * 3 + ["transactional", "commit", "coordinator"]),
    PRODUCER,
    LEADER_EPOCH_RISE,
    st.integers(1, 8),
)
SAME_SLOT = 233
"""The kernel remembers this producer where it remembers 0."""

TRANSACTION = st.tuples(
    st.sampled_from([0, 0, 0, SAME_SLOT, 1]),
    st.sampled_from(
        ["commit"] * 5 + ["abort"] * 3 + ["again"] * 2 + ["emptied", "coordinator", "plain"]
    ),
    st.integers(0, 2),
    st.sampled_from([0, 0, 0, 1, 3]),
)


def interleaved(transactions):
    """As steps: data of each transaction, and some time later what ends it."""
    placed = []
    for place, (producer_id, ending, data_count, delay) in enumerate(transactions):
        placed += [(place, ("transactional", producer_id, 0, 1))] * data_count
        placed.append((place + delay, (ending, producer_id, 0, 1)))
    return [step for _, step in sorted(placed, key=lambda one: one[0])]


STEPS = st.one_of(
    st.lists(STEP, min_size=1, max_size=25),
    st.lists(TRANSACTION, min_size=10, max_size=30).map(interleaved),
)
SNAPSHOT_AT = st.integers(0, 60)
WATERMARK_AT = st.one_of(SNAPSHOT_AT, st.just(1_000))


def batch_of(kind, producer_id, epoch, number):
    if kind in ("commit", "abort", "again", "emptied"):
        marker = encode_marker(
            producer_id=producer_id,
            producer_epoch=epoch if kind == "again" else epoch + 1,
            committed=kind != "abort",
            coordinator_epoch=0,
            timestamp_ms=number,
        )
        return empty_batch(parse_header(marker)) if kind == "emptied" else marker
    return seal(
        bytes(number % 90),
        codec=Codec.NONE,
        record_count=2,
        base_timestamp_ms=number,
        max_timestamp_ms=number,
        producer_id=-1 if kind == "nobody" else producer_id,
        producer_epoch=-1 if kind == "nobody" else epoch,
        base_sequence=-1 if kind in ("nobody", "coordinator") else 2 * number,
        is_transactional=kind == "transactional",
    )


def open_log(disk):
    return PartitionLog.open(
        filesystem=disk, directory=DIRECTORY, settings=LogSettings(segment_bytes=4_000), now_ms=0
    )


def written(steps):
    """A synced log of the steps, and the states after each batch."""
    disk = CrashDisk()
    log, machine, states = open_log(disk), PartitionMachine(PARTITION), []
    producer_epochs = Counter()
    machine.load(0, 0, [])
    number = 0
    for kind, producer_id, leader_epoch_rise, repeats in steps:
        for _ in range(repeats if kind in ("plain", "nobody") else 1):
            number += 1
            epoch = max(machine.leader_epochs.latest_epoch + leader_epoch_rise, 0)
            batch = batch_of(kind, producer_id, producer_epochs[producer_id], number)
            producer_epochs[producer_id] += kind in ("commit", "abort", "emptied")
            patch(batch, base_offset=log.log_end_offset, leader_epoch=epoch)
            header = parse_header(batch)
            if log.needs_roll(len(batch), header.max_timestamp_ms, 0):
                log.roll([])
            log.append(batch, header)
            machine.apply(header, decode_control(batch, header) if header.is_control else None)
            states.append((log.log_end_offset, machine.snapshot()))
    point = log.sync_point()
    point.run()
    log.mark_synced(point)
    return disk, states


def state_of(log, snapshot_offset, entries, replay, from_offset):
    """All that a machine knows after it has followed these batches, and what has aborted."""
    machine = PartitionMachine(PARTITION)
    # As a replica does: the log tells its epochs, so batches below a snapshot need not.
    machine.load(0, snapshot_offset, entries, leader_epochs=log.leader_epochs)
    count, aborted, stable_offset = 0, [], 0
    for header, batch in replay(
        min(from_offset, machine.replay_from),
        snapshot_offset=snapshot_offset,
        history_end=machine.replay_from,
    ):
        control = decode_control(batch, header) if header.is_control else None
        completed = machine.apply(header, control)
        if completed is not None and completed.is_aborted:
            aborted.append((completed.producer_id, completed.first_offset, completed.last_offset))
            # Where an entry lets a search stop, no later one may have begun before.
            assert stable_offset <= completed.first_offset
            stable_offset = completed.last_stable_offset
        count += 1
    machine.advance_high_watermark(log.high_watermark)
    producers = machine.producers
    transactions = producers.transactions
    return count, (
        list(producers.entries.values()),
        dict(transactions.ongoing),
        sorted(one for one in transactions._unreplicated if one[1] >= log.high_watermark),
        aborted,
        machine.leader_epochs.entries,
        machine.log_end_offset,
        machine.last_stable_offset,
    )


@pytest.mark.parametrize("is_clean", [False, True])
@example(  # open at the snapshot: the first marker after it must be there
    steps=[(kind, 0, 0, 1) for kind in ("commit", "transactional", "commit", "commit", "abort")],
    snapshot_at=1,
    watermark_at=1_000,
    from_start=True,
)
@given(steps=STEPS, snapshot_at=SNAPSHOT_AT, watermark_at=WATERMARK_AT, from_start=st.booleans())
def test_state_from_what_matters_is_the_state_from_all(
    is_clean, steps, snapshot_at, watermark_at, from_start
):
    disk, states = written(steps)
    if is_clean:
        open_log(disk).close([])
    log = open_log(disk.after_kill())
    log.high_watermark = states[min(watermark_at, len(states) - 1)][0]
    snapshot_offset, entries = states[snapshot_at] if snapshot_at < len(states) else (0, [])
    from_offset = 0 if from_start else snapshot_offset
    some, found = state_of(log, snapshot_offset, entries, log.replay_state, from_offset)
    all_, wanted = state_of(
        log, snapshot_offset, entries, lambda begin, **_: log.replay(begin), from_offset
    )
    event("some are left out" if some < all_ else "all are given")
    assert found == wanted


def test_much_is_left_out():
    disk, _ = written([("nobody", 0, 0, 8)] * 10)
    log = open_log(disk.after_kill())
    # Of each segment without producers the first batch, which tells its epoch, and the last.
    assert len(list(log.replay_state(0))) <= 2 * log.segment_count


def test_of_transactions_that_are_committed_and_replicated_few_are_given():
    disk, states = written([("transactional", 0, 0, 1), ("commit", 0, 0, 1)] * 100)
    log = open_log(disk.after_kill())
    log.high_watermark = 0
    assert len(list(log.replay_state(0))) == 200
    log.high_watermark = states[-1][0]
    # The first and the last of each segment.
    assert len(list(log.replay_state(0))) <= 5 * log.segment_count < 50


def test_of_what_was_before_the_snapshot_only_newest_sequences_are_given():
    disk, states = written([("transactional", 0, 0, 1), ("abort", 0, 0, 1)] * 100)
    log = open_log(disk.after_kill())
    log.high_watermark = 0
    end = states[-1][0]
    few = list(log.replay_state(0, snapshot_offset=end, history_end=end))
    # In each segment the first of a producer, the newest of its newest epoch, and the last batch.
    assert len(few) <= 3 * log.segment_count < 50


def test_damage_in_what_was_not_read_by_the_open_is_found():
    disk, _ = written([("nobody", 0, 0, 8)] * 10)
    log = open_log(disk)
    log.close([])
    disk.flip_bit(DIRECTORY / f"{0:020d}.log", 500, 1)
    with pytest.raises(CorruptDataError, match=r"byte .*CRC"):
        list(open_log(disk).replay_state(0))
