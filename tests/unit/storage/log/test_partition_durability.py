from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from partition_logs import abort_two, log_file, offsets_of, read_all

from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.log.partition import LogSettings, PartitionLog

# Durability


def test_recovery_point_rises_only_when_the_point_is_marked(open_log, append):
    log = open_log()
    append(log)
    point = log.sync_point()
    append(log)
    point.run()
    assert log.recovery_point == 0
    log.mark_synced(point)
    assert log.recovery_point == 1


def test_sync_point_syncs_all_files_written_since_the_last(open_log, append, sync, filesystem):
    log = open_log(segment_bytes=150)
    append(log)
    sync(log)
    filesystem.synced.clear()
    append(log)
    log.append_aborted(producer_id=1, first_offset=0, last_offset=1, last_stable_offset=2)
    sync(log)
    assert sorted(filesystem.synced) == [
        f"{0:020d}.index",
        f"{0:020d}.summary",
        f"{0:020d}.timeindex",
        f"{1:020d}.log",
        f"{1:020d}.snapshot",
        f"{1:020d}.txnindex",
    ]
    filesystem.synced.clear()
    sync(log)
    assert filesystem.synced == []


def test_append_during_a_sync_stays_unsynced(open_log, append, filesystem):
    log = open_log()
    append(log)
    point = log.sync_point()
    append(log)
    point.run()
    log.mark_synced(point)
    filesystem.synced.clear()
    log.sync_point().run()
    assert filesystem.synced == [f"{0:020d}.log"]


def test_checkpoint_is_synced_after_many_rounds(open_log, append, sync, filesystem):
    log = open_log()
    for _ in range(257):
        append(log)
        sync(log)
    assert filesystem.synced.count("recovery-checkpoint") == 1


def test_roll_and_close_under_a_waiting_sync_point_do_no_harm(open_log, append):
    log = open_log(segment_bytes=150)
    append(log)
    point = log.sync_point()
    append(log)
    log.close([])
    point.run()
    assert log.failure is not None
    assert open_log(segment_bytes=150).log_end_offset == 2


def test_syncs_in_another_thread_never_disturb_appends_and_rolls(tmp_path, append):
    log = PartitionLog.open(
        filesystem=RealFileSystem(),
        directory=tmp_path / "flights-0",
        settings=LogSettings(segment_bytes=500),
        now_ms=0,
    )
    errors: list[BaseException] = []
    for _ in range(20):
        append(log)
        point = log.sync_point()

        def run(point=point) -> None:
            try:
                point.run()
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        for _ in range(5):
            append(log)
        thread.join()
        log.mark_synced(point)
    assert errors == []
    assert log.recovery_point == 115
    assert offsets_of(read_all(log)) == list(range(120))
    log.close(None)


def test_failed_sync_takes_the_log_offline_for_good(open_log, append, sync, filesystem):
    log = open_log()
    append(log)
    good = log.sync_point()
    filesystem.fail("datasync", ".log")
    with pytest.raises(OSError, match="planned"):
        log.sync_point().run()
    filesystem.heal()
    good.run()
    # The kernel reports a lost page once: the later success must not count.
    with pytest.raises(OSError, match="offline"):
        log.mark_synced(good)
    with pytest.raises(OSError, match="offline"):
        append(log)
    with pytest.raises(OSError, match="offline"):
        log.sync_point()
    assert log.recovery_point == 0
    assert offsets_of(log.read(0, max_bytes=100, upper_offset=1)) == [0]


def test_failed_directory_sync_takes_the_log_offline(open_log, append, filesystem):
    log = open_log(segment_bytes=150)
    append(log)
    append(log)
    filesystem.fail("sync_directory", "flights-0")
    with pytest.raises(OSError, match="planned"):
        log.sync_point().run()
    assert log.failure is not None


def test_failed_write_takes_the_log_offline_and_is_cut_later(open_log, append, sync, filesystem):
    log = open_log()
    append(log)
    sync(log)
    filesystem.fail("append", ".log")
    with pytest.raises(OSError, match="planned"):
        append(log)
    filesystem.heal()
    assert log.log_end_offset == 1
    with pytest.raises(OSError, match="offline"):
        append(log)
    log = open_log()
    assert log.log_end_offset == 1
    assert log.cut is not None


def test_full_disk_refuses_the_append_and_the_next_one_succeeds(
    open_log, append, filesystem, tmp_path
):
    log = open_log()
    append(log)
    filesystem.fail("append", ".log", errno.ENOSPC)
    with pytest.raises(OSError, match="planned"):
        append(log)
    assert log_file(tmp_path).stat().st_size == 100
    filesystem.heal()
    append(log)
    assert offsets_of(read_all(log)) == [0, 1]


@pytest.mark.parametrize("suffix", [".snapshot", ".index", ".timeindex"])
def test_full_disk_refuses_the_roll_and_the_next_one_succeeds(open_log, append, filesystem, suffix):
    log = open_log(segment_bytes=150)
    append(log)
    filesystem.fail("append", suffix, errno.ENOSPC)
    with pytest.raises(OSError, match="planned"):
        log.roll([])
    assert log.segment_count == 1
    filesystem.heal()
    append(log)
    assert log.segment_count == 2
    log.close([])
    assert offsets_of(read_all(open_log(segment_bytes=150))) == [0, 1]


def test_failed_clean_close_leaves_a_log_that_is_recovered(open_log, append, filesystem):
    log = open_log()
    append(log)
    filesystem.fail("datasync", ".log")
    with pytest.raises(OSError, match="planned"):
        log.close([])
    filesystem.heal()
    log = open_log()
    assert not log.was_clean
    assert log.log_end_offset == 1


def test_close_leaves_no_file_open(open_log, append):
    before = len(list(Path("/proc/self/fd").iterdir()))
    log = open_log(segment_bytes=150)
    for _ in range(12):
        append(log)
    log.append_aborted(producer_id=1, first_offset=0, last_offset=3, last_stable_offset=4)
    log.close([])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# Truncation


def test_truncation_removes_the_batches_that_end_at_or_after_the_offset(open_log, append):
    log = open_log(segment_bytes=1_000)
    for _ in range(30):
        append(log, 2)
    log.truncate_to(25)
    assert log.log_end_offset == 24
    assert offsets_of(read_all(log)) == list(range(0, 24, 2))
    append(log, 2)
    assert offsets_of(log.read(24, max_bytes=100, upper_offset=26)) == [24]


def test_truncated_log_reopens_the_same(open_log, append, sync):
    log = open_log(segment_bytes=500)
    for _ in range(20):
        append(log)
    sync(log)
    log.truncate_to(7)
    log = open_log(segment_bytes=500)
    assert log.log_end_offset == 7
    assert offsets_of(read_all(log)) == list(range(7))


def test_truncation_lowers_the_recovery_point_first(open_log, append, sync):
    log = open_log()
    for _ in range(5):
        append(log)
    sync(log)
    log.truncate_to(2)
    assert log.recovery_point == 2
    assert open_log().log_end_offset == 2


def test_sync_point_from_before_a_truncation_counts_for_nothing(open_log, append):
    log = open_log()
    for _ in range(5):
        append(log)
    point = log.sync_point()
    point.run()
    log.truncate_to(2)
    for _ in range(3):
        append(log)
    log.mark_synced(point)
    assert log.recovery_point == 0


def test_truncation_cuts_aborted_transactions_epochs_and_snapshots(open_log, append):
    log = open_log(segment_bytes=450)
    for number in range(14):
        append(log, leader_epoch=number // 5)
    abort_two(log)
    log.truncate_to(10)
    assert [item.producer_id for item in log.aborted_transactions(0, 10)] == [1]
    assert log.leader_epochs == [(0, 0), (1, 5)]
    assert log.latest_snapshot()[0] <= 10
    assert log.segment_count == 3


@pytest.mark.parametrize("beyond", [0, 5])
def test_truncation_that_cuts_no_batch_forgets_an_epoch_that_never_wrote(open_log, append, beyond):
    """The leader knows nothing of it: kept, it would make the next answer of this log wrong."""
    log = open_log()
    append(log, leader_epoch=3)
    log.assign_leader_epoch(5, 1)
    log.truncate_to(1 + beyond)
    kept = [(3, 0)] if beyond == 0 else [(3, 0), (5, 1)]
    assert log.leader_epochs == kept
    assert open_log().leader_epochs == kept


def test_truncation_beyond_the_end_changes_nothing(open_log, append):
    log = open_log()
    append(log)
    log.truncate_to(1)
    assert log.log_end_offset == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"segment_bytes": 0},
        {"segment_bytes": 2**31},
        {"segment_ms": 0},
        {"index_interval_bytes": -1},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        LogSettings(**settings)
