"""Syncs that fail, and a process that starts again on the same running system.

After a failed sync Linux shows the pages that the disk refused as if they had been written, and
takes them for clean: a later sync has nothing to do. Only what is written again can be trusted.
"""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from crash_disk import CrashDisk, CrashHandle, DataLoss, NameLoss
from crash_life import DIRECTORY, NOW_MS, History, Life, inspect
from disk_image import Write
from inside import segments_of
from partition_logs import offsets_of, read_all

from oncelog.storage.errors import ErrorCode
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.segments.frames import SCAN_BYTES

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


def test_only_about_what_was_never_synced_is_written_again(append, sync):
    disk = CrashDisk()
    log = open_log(disk, segment_bytes=10_000_000)
    for _ in range(3):
        append(log, size_bytes=800_000)
    sync(log)
    append(log)
    disk = disk.after_kill()
    open_log(disk, segment_bytes=10_000_000)
    changes = disk.file(DIRECTORY / f"{0:020d}.log").changes
    assert 100 <= sum(len(change.data) for change in changes[1:]) <= SCAN_BYTES + 100


def test_what_is_written_again_is_what_was_found_good(append, sync, monkeypatch):
    """Lost pages count as clean: memory may give them up at any time, and read the disk again."""
    disk = CrashDisk(page_bytes=512)
    log = open_log(disk, segment_bytes=10_000)
    append(log)
    sync(log)
    for _ in range(3):
        append(log, size_bytes=1_000)
    fail_sync(disk, log)
    disk = disk.after_kill()
    read = CrashHandle.read
    reads = []

    def read_and_give_up(handle, position, size):
        data = read(handle, position, size)
        reads.append(position)
        if handle.path.suffix == ".log":
            file = handle.file
            if not any(isinstance(change, Write) for change in file.changes):
                file.content[512:] = bytes(len(file.content) - 512)
        return data

    monkeypatch.setattr(CrashHandle, "read", read_and_give_up)
    sync(open_log(disk, segment_bytes=10_000))
    monkeypatch.undo()
    assert reads
    found = open_log(power_loss(disk), segment_bytes=10_000)
    assert offsets_of(read_all(found)) == [0, 1, 2, 3]


def test_indexes_of_a_segment_that_was_sealed_and_not_synced_become_durable(append, sync):
    disk = CrashDisk()
    log = open_log(disk)
    append(log)
    append(log)
    sync(log)
    log.roll([])
    disk = disk.after_kill()
    log = open_log(disk)
    log.end_restore()
    sync(log)
    names = [DIRECTORY / f"{0:020d}{suffix}" for suffix in (".index", ".timeindex")]
    before, after = disk.files(), power_loss(disk).files()
    assert [after[name] for name in names] == [before[name] for name in names]


def test_time_index_that_no_sync_reached_is_built_anew():
    """Every record is synced, the recovery point is where the segment was sealed."""
    disk, history = CrashDisk(page_bytes=512), History()
    life = Life(disk, history)
    life.start()
    for _ in range(8):
        data(life, 1, b"a" * 900)
    life.sync()
    sealed = segments_of(life.replica.log).active.base_offset
    life.replica.log.roll(life.replica.machine.snapshot())
    path = DIRECTORY / f"{sealed:020d}.timeindex"
    assert len(disk.files()[path]) > 12
    disk.open(path, create=False).truncate(12)
    check_recovery(disk.after_kill(), history)


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
    assert life.replica.log.retention.first_base_offset == 1
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
    """Besides what ``inspect`` looks at, the first record of each time is found."""
    found = Life(disk, history.copy())
    found.open()
    inspect(found.replica, history)
    log = found.replica.log
    batches = [header for header, _ in log.replay(log.log_start_offset)]
    for timestamp_ms in {header.max_timestamp_ms for header in batches}:
        first = next(header for header in batches if header.max_timestamp_ms >= timestamp_ms)
        answer = log.offset_for_timestamp(timestamp_ms, log.log_end_offset)
        assert answer == (first.base_offset, first.max_timestamp_ms)


def data(life: Life, pid: int, value: bytes) -> None:
    """A batch that goes on where the producer is, also if an earlier process knew it."""
    machine = life.replica.machine
    entry = machine.producers.entries.get(pid)
    life.sequences[pid] = 0 if entry is None else entry.last_sequence + 1
    outcome = life.data(
        pid,
        value,
        epoch=0 if entry is None else entry.producer_epoch,
        is_transactional=pid == 3,
        timestamp_ms=NOW_MS + machine.log_end_offset,
    )
    assert outcome.error is ErrorCode.NONE


def step(life: Life, random: Random) -> Life:
    """One thing that a leader or a follower does; the life that goes on."""
    log = life.replica.log
    match random.choices(range(7), weights=(8, 3, 6, 1, 1, 1, 2))[0]:
        case 0:
            data(life, random.randint(1, 3), b"v" * random.randint(1, 1_500))
        case 1:
            entry = life.replica.machine.producers.entries.get(3)
            epoch = 1 if entry is None else entry.producer_epoch + 1
            outcome = life.marker(3, committed=random.random() < 0.5, epoch=epoch)
            assert outcome.error is ErrorCode.NONE
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
