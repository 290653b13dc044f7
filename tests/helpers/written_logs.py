"""A log of several segments with transactions of all kinds, and everything visible of a log."""

from __future__ import annotations

from random import Random
from typing import Any

from crash_disk import CrashDisk, DataLoss, NameLoss
from crash_life import DIRECTORY, NOW_MS, History, Life
from file_damage import contents

from oncelog.api.consuming.fetch_buffer import visible_batches
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptRecordError
from oncelog.storage.log.side_files import CLEAN_SHUTDOWN_FILE
from oncelog.storage.records.batch import iterate_batches

CLEAN = DIRECTORY / CLEAN_SHUTDOWN_FILE
PRODUCERS = (1, 2, 3)


def play(life: Life, random: Random, count: int) -> None:
    """Transactions, plain batches and syncs, of which some leave something open."""
    machine = life.replica.machine
    for _ in range(count):
        pid = random.choice((*PRODUCERS, 9))
        entry = machine.producers.entries.get(pid)
        epoch = 0 if entry is None else entry.producer_epoch
        if pid != 9 and random.random() < 0.35:
            life.marker(pid, committed=random.random() < 0.5, epoch=epoch + 1)
        else:
            life.sequences[pid] = 0 if entry is None else entry.last_sequence + 1
            outcome = life.data(
                pid,
                *(b"v" * random.randint(1, 300) for _ in range(random.randint(1, 4))),
                epoch=epoch,
                is_transactional=pid != 9,
                timestamp_ms=NOW_MS + 1_000 * machine.log_end_offset - random.randint(0, 9_000),
            )
            assert outcome.error == 0
        if random.random() < 0.3:
            life.sync()


def written(seed: int, *, is_clean: bool) -> tuple[CrashDisk, dict[str, bytes]]:
    """A disk with several segments, and what its files were half-way.

    The first batch is deleted, and its segment is still there.
    """
    random = Random(seed)
    disk, history = CrashDisk(), History()
    life = Life(disk, history)
    life.start()
    play(life, random, 60)
    life.sync()
    first = life.replica.log.fetch(0, max_bytes=1, upper_offset=life.replica.log.recovery_point)
    assert life.replica.advance_log_start(first.next_offset) is ErrorCode.NONE
    life.stop()
    older = contents(disk, DIRECTORY)
    life = Life(disk, history)
    life.start()
    play(life, random, 60)
    if is_clean:
        life.stop()
    else:
        life.sync()
    return disk.after_power_loss(DataLoss.NONE, NameLoss.NONE, random), older


def started(disk: CrashDisk) -> Life:
    life = Life(disk, History())
    life.start()
    return life


def seen(life: Life) -> dict[str, Any]:
    """What readers get and are told of, and what is known of producers and leader epochs."""
    log, machine = life.replica.log, life.replica.machine
    read, committed, lost = [], [], []
    offset = log.log_start_offset
    while offset < machine.last_stable_offset:
        try:
            found = log.fetch(offset, max_bytes=900, upper_offset=machine.last_stable_offset)
        except CorruptRecordError as error:
            lost.append((error.offset, error.next_offset))
            offset = error.next_offset
            continue
        read += [header.base_offset for _, header in iterate_batches(found.records)]
        visible = visible_batches(
            found.records,
            fetch_offset=offset,
            aborted_transactions=log.aborted_transactions(offset, found.next_offset),
        )
        committed += [batch.header.base_offset for batch in visible.batches]
        offset = found.next_offset
    return {
        "read": read,
        "committed": committed,
        "lost": lost,
        "bounds": (log.log_start_offset, machine.last_stable_offset, machine.log_end_offset),
        "producers": machine.snapshot(),
        "epochs": log.leader_epochs[:-1],
    }
