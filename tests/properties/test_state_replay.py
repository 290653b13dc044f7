"""A state rebuilt from the batches that matter is the state rebuilt from all of them."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from crash_disk import CrashDisk
from hypothesis import event, given
from hypothesis import strategies as st

from oncelog.actors.protocol.partition.machine import PartitionMachine
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.model import TopicPartition
from oncelog.storage.records import scan_kernel
from oncelog.storage.records.batch import parse_header, patch, seal
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.control import decode_control, encode_marker

DIRECTORY = Path("/log")
PARTITION = TopicPartition("t", 0)
BACKENDS = [
    pytest.param(
        "kernel", marks=pytest.mark.skipif(scan_kernel.kernel is None, reason="kernel not built")
    ),
    "python",
]
# Few producers and long runs of plain data, so that much may be left out.
STEP = st.tuples(
    st.sampled_from(["plain"] * 8 + ["nobody"] * 3 + ["transactional", "marker", "coordinator"]),
    st.sampled_from([0, 0, 0, 1, 256]),
    st.sampled_from([0] * 6 + [1]),
    st.integers(1, 8),
)
STEPS = st.lists(STEP, min_size=1, max_size=25)
SNAPSHOT_AT = st.integers(0, 60)


def batch_of(kind, producer_id, epoch, number):
    if kind == "marker":
        return encode_marker(
            producer_id=producer_id,
            producer_epoch=epoch + 1,
            committed=bool(number % 2),
            coordinator_epoch=0,
            timestamp_ms=number,
        )
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
    machine.load(0, 0, [])
    number = 0
    for kind, producer_id, leader_epoch_rise, repeats in steps:
        for _ in range(repeats if kind in ("plain", "nobody") else 1):
            number += 1
            epoch = max(machine.leader_epochs.latest_epoch + leader_epoch_rise, 0)
            batch = batch_of(kind, producer_id, 0, number)
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
    """All that a machine knows after it has followed these batches."""
    machine = PartitionMachine(PARTITION)
    # As a replica does: the log tells its epochs, so batches below a snapshot need not.
    machine.load(0, snapshot_offset, entries, leader_epochs=log.leader_epochs)
    count = 0
    for header, batch in replay(min(from_offset, machine.replay_from)):
        machine.apply(header, decode_control(batch, header) if header.is_control else None)
        count += 1
    producers = machine.producers
    return count, (
        list(producers._entries.values()),
        producers.transactions._ongoing,
        producers.transactions._unreplicated,
        machine.leader_epochs,
        machine.log_end_offset,
        machine.last_stable_offset,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_clean", [False, True])
@given(steps=STEPS, snapshot_at=SNAPSHOT_AT, from_start=st.booleans())
def test_state_from_what_matters_is_the_state_from_all(
    backend, is_clean, steps, snapshot_at, from_start
):
    disk, states = written(steps)
    if is_clean:
        open_log(disk).close([])
    kernel = scan_kernel.kernel if backend == "kernel" else None
    with mock.patch.object(scan_kernel, "kernel", kernel):
        log = open_log(disk.after_kill())
        snapshot_offset, entries = states[snapshot_at] if snapshot_at < len(states) else (0, [])
        from_offset = 0 if from_start else snapshot_offset
        some, found = state_of(log, snapshot_offset, entries, log.replay_state, from_offset)
        all_, wanted = state_of(log, snapshot_offset, entries, log.replay, from_offset)
    event("some are left out" if some < all_ else "all are given")
    assert found[0] == wanted[0]
    assert found[1:3] == wanted[1:3]
    assert found[3].entries == wanted[3].entries
    assert found[4:] == wanted[4:]


@pytest.mark.parametrize("backend", BACKENDS)
def test_much_is_left_out(backend):
    disk, _ = written([("nobody", 0, 0, 8)] * 10)
    with mock.patch.object(
        scan_kernel, "kernel", scan_kernel.kernel if backend == "kernel" else None
    ):
        log = open_log(disk.after_kill())
        # Of each segment without producers the first batch, which tells its epoch, and the last.
        assert len(list(log.replay_state(0))) <= 2 * log.segment_count


@pytest.mark.parametrize("backend", BACKENDS)
def test_damage_in_what_was_not_read_by_the_open_is_found(backend):
    disk, _ = written([("nobody", 0, 0, 8)] * 10)
    log = open_log(disk)
    log.close([])
    disk.flip_bit(DIRECTORY / f"{0:020d}.log", 500, 1)
    with (
        mock.patch.object(
            scan_kernel, "kernel", scan_kernel.kernel if backend == "kernel" else None
        ),
        pytest.raises(CorruptDataError, match=r"byte .*CRC"),
    ):
        list(open_log(disk).replay_state(0))
