"""A full or broken disk under a partition log: nothing promised is lost, nothing is guessed."""

from __future__ import annotations

import contextlib
import errno
import itertools
from random import Random

import pytest
from crash_disk import CrashDisk, DataLoss, NameLoss
from crash_life import DIRECTORY, History, Life, inspect
from partition_logs import offsets_of, read_all
from written_logs import play

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.partition import LogSettings, PartitionLog

STOPPED = (OSError, RuntimeError, AssertionError)
"""How a script ends that the replica under it has left."""


def open_log(disk: CrashDisk, **settings: int) -> PartitionLog:
    return PartitionLog.open(
        filesystem=disk,
        directory=DIRECTORY,
        settings=LogSettings(segment_bytes=250, **settings),
        now_ms=0,
    )


def used_bytes(disk: CrashDisk) -> int:
    return sum(map(len, disk.files().values()))


@pytest.mark.parametrize("room", range(0, 300, 20))
def test_full_disk_refuses_appends_and_rolls_and_goes_on_when_there_is_room(append, sync, room):
    """However little room there is: in the batch, in a roll's snapshot, index or new segment."""
    disk = CrashDisk()
    log = open_log(disk)
    append(log)
    append(log)
    sync(log)
    disk.capacity_bytes = used_bytes(disk) + room
    with contextlib.suppress(OSError):
        while log.log_end_offset < 99:
            append(log)
    written = log.log_end_offset
    assert 2 <= written < 9
    assert log.failure is None
    assert offsets_of(read_all(log)) == list(range(written))
    with pytest.raises(OSError, match="full"):
        append(log, size_bytes=249)
    disk.capacity_bytes = None
    append(log)
    sync(log)
    assert offsets_of(read_all(log)) == list(range(written + 1))
    after = open_log(disk.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(0)))
    assert offsets_of(read_all(after)) == list(range(written + 1))
    assert after.cut is None


def test_full_disk_refuses_a_leader_epoch_and_the_log_stays_usable(append):
    disk = CrashDisk()
    log = open_log(disk)
    append(log)
    disk.capacity_bytes = used_bytes(disk)
    with pytest.raises(OSError, match="full"):
        log.assign_leader_epoch(5, 1)
    assert (log.failure, log.leader_epochs) == (None, [(0, 0)])
    with pytest.raises(OSError, match="full"):
        append(log, leader_epoch=5)
    assert log.log_end_offset == 1
    disk.capacity_bytes = None
    append(log, leader_epoch=5)
    assert log.leader_epochs == [(0, 0), (5, 1)]


def test_log_on_a_full_disk_opens_and_is_read(append, sync):
    disk = CrashDisk()
    log = open_log(disk)
    append(log)
    sync(log)
    disk = disk.after_kill()
    disk.capacity_bytes = used_bytes(disk)
    log = open_log(disk)
    sync(log)
    assert log.failure is None
    assert offsets_of(read_all(log)) == [0]


def test_epoch_is_durable_before_its_first_batch_is_written(append):
    disk = CrashDisk()
    log = open_log(disk)
    disk.fail("append", ".log")
    with pytest.raises(OSError, match="planned"):
        append(log, leader_epoch=3)
    assert open_log(disk.after_kill()).leader_epochs == [(3, 0)]


def test_failed_sync_is_remembered_though_the_next_one_succeeds(append, sync):
    disk = CrashDisk()
    log = open_log(disk)
    append(log)
    sync(log)
    append(log)
    disk.fail("datasync", ".log", times=1)
    with pytest.raises(OSError, match="planned"):
        log.sync_point().run()
    with pytest.raises(OSError, match="offline"):
        sync(log)
    assert log.recovery_point == 1
    lost = disk.after_power_loss(DataLoss.NONE, NameLoss.NONE, Random(0))
    assert offsets_of(read_all(open_log(lost))) == [0]


def test_failed_roll_leaves_no_file_that_a_recovery_would_take_for_the_next_segment(append, sync):
    disk = CrashDisk()
    log = open_log(disk)
    append(log, size_bytes=80)
    append(log, size_bytes=80)
    disk.fail("truncate", f"{2:020d}.log", errno.ENOSPC)
    with pytest.raises(OSError, match="planned"):
        log.roll([])
    append(log, size_bytes=61)
    sync(log)
    assert offsets_of(read_all(open_log(disk.after_kill()))) == [0, 1, 2]


def test_torn_snapshot_that_was_not_synced_is_removed_by_the_recovery(append):
    disk = CrashDisk()
    log = open_log(disk)
    for _ in range(3):
        append(log)
    name = f"{2:020d}.snapshot"
    disk.open(DIRECTORY / name, create=False).truncate(3)
    disk = disk.after_kill()
    assert open_log(disk).log_end_offset == 3
    assert name not in disk.list_directory(DIRECTORY)


@pytest.mark.parametrize("is_synced", [True, False])
def test_flipped_leader_epoch_is_never_taken_for_a_new_one(append, sync, is_synced):
    disk = CrashDisk()
    log = open_log(disk)
    append(log, leader_epoch=4)
    append(log, leader_epoch=4)
    if is_synced:
        sync(log)
    disk = disk.after_kill()
    disk.flip_bit(DIRECTORY / f"{0:020d}.log", 112, 6)
    with pytest.raises(CorruptDataError, match=r"byte 100, offset 1: .* leader epoch"):
        open_log(disk)


def test_first_segment_that_is_gone_is_missed(append, sync):
    disk = CrashDisk()
    log = open_log(disk)
    for _ in range(5):
        append(log)
    sync(log)
    disk = disk.after_kill()
    disk.remove(DIRECTORY / f"{0:020d}.log")
    with pytest.raises(CorruptDataError, match=r"00002\.log at byte 0, offset 0: .* are gone"):
        open_log(disk)


def appends(life: Life) -> None:
    """Every kind of write that a leader does, over several segments and a clean stop."""
    life.start()
    for number in range(3):
        life.data(1, b"a" * 1_400)
        life.data(2, b"b" * 600, is_transactional=True)
        life.sync()
        life.marker(2, committed=False, epoch=number + 1)
        life.sync()
    life.truncate(7)
    life.delete_records(4)
    life.stop()
    life = Life(life.disk, life.history)
    life.start()
    life.data(1, b"c" * 100)
    life.sync()


@pytest.mark.parametrize(
    ("number", "written"),
    [
        pytest.param(errno.EIO, 0.0, id="EIO before"),
        pytest.param(errno.ENOSPC, 0.6, id="ENOSPC within"),
        pytest.param(errno.EIO, 0.6, id="EIO within", marks=pytest.mark.slow),
        pytest.param(errno.ENOSPC, 0.0, id="ENOSPC before", marks=pytest.mark.slow),
    ],
)
def test_error_at_any_operation_loses_nothing_that_was_promised(number, written):
    for operation in itertools.count(1):
        disk, history = CrashDisk(page_bytes=512), History()
        disk.fail_at(operation, number, written=written)
        with contextlib.suppress(*STOPPED):
            appends(Life(disk, history))
        if len(disk.history) < operation:
            assert operation > 100
            return
        for after in (
            disk.after_kill(),
            disk.after_power_loss(DataLoss.TAIL, NameLoss.SOME, Random(operation)),
        ):
            found = Life(after, history)
            found.open()
            inspect(found.replica, history)


def test_cut_is_told_whatever_the_disk_refuses_after_it():
    """A start is refused once, at each of its operations in turn, and then goes on."""
    life = Life(CrashDisk(), History())
    life.start()
    play(life, Random(5), 40)
    life.sync()
    life.data(-1, b"x" * 1_200)
    torn = life.disk.after_kill()
    (*_, path) = sorted(path for path in torn.files() if path.suffix == ".log")
    handle = torn.open(path, create=False)
    handle.truncate(handle.size - 700)
    told = set()
    for number in itertools.count(1):
        life = Life(torn.after_kill(), History())
        life.disk.fail_at(number, errno.ENOSPC)
        with contextlib.suppress(OSError):
            life.open()
        is_over = len(life.disk.history) < number
        life.disk.heal()
        life.open()
        cut = life.replica.directory.cut
        told.add(None if cut is None else (cut.path, cut.cut_bytes))
        if is_over:
            break
    assert number > 10
    assert told == {(path, 573)}
