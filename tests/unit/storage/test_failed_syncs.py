"""Syncs that fail, and a process that starts again on the same running system.

After a failed sync Linux shows the pages that the disk refused as if they had been written, and
takes them for clean: a later sync has nothing to do. Only what is written again can be trusted.
"""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from crash_disk import CrashDisk, DataLoss, NameLoss
from crash_life import DIRECTORY, History, Life, inspect
from partition_logs import offsets_of, read_all

from oncelog.storage.partition_log import LogSettings, PartitionLog

ENDINGS = (OSError, RuntimeError, AssertionError)
"""How a step ends whose replica has gone offline."""


def open_log(disk: CrashDisk, segment_bytes: int = 250) -> PartitionLog:
    return PartitionLog.open(
        filesystem=disk,
        directory=DIRECTORY,
        settings=LogSettings(segment_bytes=segment_bytes),
        now_ms=0,
    )


def fail_sync(disk: CrashDisk, log: PartitionLog) -> None:
    disk.fail("datasync", times=None)
    with pytest.raises(OSError, match="planned"):
        log.sync_point().run()
    disk.heal()


def power_loss(disk: CrashDisk) -> CrashDisk:
    return disk.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(0))


@pytest.mark.parametrize("batches", [1, 5])
def test_batches_that_a_failed_sync_lost_are_durable_after_recovery_and_sync(append, sync, batches):
    """In the segment of the last synced batch, and over several segments."""
    disk = CrashDisk()
    log = open_log(disk)
    append(log)
    sync(log)
    for _ in range(batches):
        append(log)
    fail_sync(disk, log)
    assert open_log(power_loss(disk)).log_end_offset == 1
    disk = disk.after_kill()
    sync(open_log(disk))
    found = open_log(power_loss(disk))
    assert offsets_of(read_all(found)) == list(range(1 + batches))


def test_only_what_was_never_synced_is_written_again(append, sync):
    disk = CrashDisk()
    log = open_log(disk, segment_bytes=10_000)
    for _ in range(3):
        append(log)
    sync(log)
    append(log)
    disk = disk.after_kill()
    open_log(disk, segment_bytes=10_000)
    log_file = disk._file(DIRECTORY / f"{0:020d}.log")
    rewritten = log_file.changes[-1]
    assert (rewritten.position, rewritten.position + len(rewritten.data)) == (300, 400)


def test_indexes_of_a_segment_that_was_sealed_and_not_synced_become_durable(append, sync):
    disk = CrashDisk()
    log = open_log(disk)
    append(log)
    append(log)
    sync(log)
    log.roll([])
    disk = disk.after_kill()
    sync(open_log(disk))
    names = [DIRECTORY / f"{0:020d}{suffix}" for suffix in (".index", ".timeindex")]
    before, after = disk.files(), power_loss(disk).files()
    assert [after[name] for name in names] == [before[name] for name in names]


def test_snapshot_that_no_sync_reached_outlives_the_segments_before_it():
    """The roll is not synced; the next process removes the older segment and loses power."""
    disk, history = CrashDisk(page_bytes=512), History()
    life = Life(disk, history)
    life.start()
    life.data(7, b"known producer")
    life.data(1, b"a" * 3_900)
    life.sync()
    life.replica.log.roll(life.replica.machine.snapshot())
    disk = disk.after_kill()
    life = Life(disk, history)
    life.start()
    life.data(1, b"b")
    life.delete_records(2)
    check_recovery(power_loss(disk), history)


def test_clean_stop_does_not_risk_the_snapshot_that_is_there():
    """It is all that tells of the producers, and the stop is at its offset and fails."""
    disk, history = CrashDisk(page_bytes=512), History()
    life = Life(disk, history)
    life.start()
    life.data(7, b"known producer")
    life.sync()
    life.delete_records(1)
    assert life.replica.log.head.first_base_offset == 1
    disk.fail("datasync", ".snapshot")
    life.stop()
    check_recovery(disk.after_power_loss(DataLoss.NONE, NameLoss.NONE, Random(0)), history)


def test_truncation_finds_the_snapshot_that_was_written_since_the_log_was_opened():
    disk, history = CrashDisk(page_bytes=512), History()
    life = Life(disk, history)
    life.start()
    life.data(7, b"known producer")
    life.data(1, b"a" * 3_900)
    life.data(1, b"b")
    life.sync()
    life.delete_records(2)
    life.data(1, b"c")
    life.truncate(3)
    assert life.replica.log.latest_snapshot()[0] == 2
    inspect(life.replica, history)


def check_recovery(disk: CrashDisk, history: History) -> None:
    found = Life(disk, history.copy())
    found.open()
    inspect(found.replica, history)


def step(life: Life, random: Random) -> Life:
    """One thing that a leader or a follower does; the life that goes on."""
    log = life.replica.log
    match random.choices(range(7), weights=(8, 3, 6, 1, 1, 1, 2))[0]:
        case 0:
            pid = random.randint(1, 3)
            life.data(pid, b"v" * random.randint(1, 1_500), is_transactional=pid == 3)
        case 1:
            life.marker(3, committed=random.random() < 0.5, epoch=0)
        case 2:
            life.sync()
        case 3:
            life.delete_records(random.randint(log.log_start_offset, log.recovery_point))
        case 4:
            if log.recovery_point < log.log_end_offset:
                life.truncate(random.randrange(log.recovery_point, log.log_end_offset))
        case 5:
            life.stop()
            life = Life(life.disk, life.history)
            life.start()
        case _:
            life.disk.fail("datasync", times=1)
    return life


def live(life: Life, random: Random) -> None:
    """Start and work, until the disk fails or it is enough."""
    if random.random() < 0.4:
        life.disk.fail_at(random.randint(1, 100), written=random.random())
    with contextlib.suppress(RuntimeError):
        life.start()
    if life.replica.failure is None:
        with contextlib.suppress(*ENDINGS):
            for _ in range(random.randint(0, 25)):
                life = step(life, random)


@pytest.mark.parametrize("seed", range(100))
def test_random_lives_on_a_failing_disk_lose_nothing_that_was_promised(seed):
    random = Random(seed)
    disk, history = CrashDisk(page_bytes=512), History()
    for _ in range(4):
        for _ in range(random.randint(1, 4)):
            live(Life(disk, history), random)
            disk = disk.after_kill()
        loss = random.choice(list(DataLoss)), random.choice(list(NameLoss))
        disk = disk.after_power_loss(*loss, random)
        check_recovery(disk, history)
        disk = disk.after_kill()
