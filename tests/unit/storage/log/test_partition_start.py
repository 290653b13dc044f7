"""Raising the log start, and cutting a log to where a leader's epoch ends."""

from __future__ import annotations

import errno

import pytest
from partition_logs import flip, log_file, offsets_of, read_all

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.side_files import (
    LOG_START_FILE,
    RECOVERY_FILE,
    RecoveryCheckpoint,
    decode_log_start,
)
from oncelog.storage.model import ProducerSnapshotEntry

ENTRY = ProducerSnapshotEntry(
    producer_id=1,
    producer_epoch=0,
    last_sequence=3,
    last_offset=1,
    offset_delta=0,
    timestamp_ms=5,
    coordinator_epoch=-1,
    current_txn_first_offset=-1,
)


@pytest.fixture
def log(open_log, append, sync):
    """Batches of two records at 0, 2, 4, 6 and 8, in segments of two batches; all durable."""
    log = open_log(segment_bytes=250)
    for _ in range(5):
        append(log, 2)
    sync(log)
    return log


# The log start


def test_below_the_log_start_nothing_is_read(log):
    assert log.advance_log_start(5)
    assert log.log_start_offset == 5
    with pytest.raises(ValueError, match="outside"):
        log.read(4, max_bytes=1_000, upper_offset=10)


def test_a_log_start_inside_a_batch_is_read_from_that_batch_on(log):
    log.advance_log_start(5)
    assert offsets_of(read_all(log)) == [4, 6, 8]


def test_the_log_start_never_goes_back(log):
    log.advance_log_start(5)
    assert not log.advance_log_start(4)
    assert not log.advance_log_start(5)
    assert log.log_start_offset == 5


def test_what_is_not_durable_is_not_given_up(log, append):
    append(log, 2)
    with pytest.raises(ValueError, match="recovery point 10"):
        log.advance_log_start(11)
    assert log.log_start_offset == 0


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_log_start_survives_a_restart(log, open_log, is_clean):
    log.advance_log_start(5)
    if is_clean:
        log.close([])
    log = open_log(segment_bytes=250)
    assert (log.log_start_offset, log.high_watermark) == (5, 5)


def test_the_log_start_is_durable_at_once_and_in_the_checkpoint_with_the_next_sync_point(
    log, sync, filesystem
):
    filesystem.synced.clear()
    log.advance_log_start(5)
    assert filesystem.synced == ["log-start-offset.tmp"]
    sync(log)
    assert filesystem.synced == ["log-start-offset.tmp", "recovery-checkpoint"]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("write_at", "recovery-checkpoint"),
        ("append", "log-start-offset.tmp"),
        ("datasync", "log-start-offset.tmp"),
    ],
)
def test_a_log_start_that_cannot_be_written_takes_the_log_offline(
    log, filesystem, append, call, name
):
    filesystem.fail(call, name)
    with pytest.raises(OSError, match="planned"):
        log.advance_log_start(5)
    with pytest.raises(OSError, match="offline"):
        append(log)


def test_leader_epochs_below_the_log_start_shrink_to_the_one_it_lies_in(open_log, append, sync):
    log = open_log()
    for epoch in (1, 1, 2, 3):
        append(log, leader_epoch=epoch)
    sync(log)
    log.advance_log_start(3)
    assert log.leader_epochs == [(3, 3)]
    assert open_log().leader_epochs == [(3, 3)]


def test_a_snapshot_below_the_log_start_is_used_while_its_segment_is_there(open_log, append, sync):
    log = open_log(segment_bytes=250)
    append(log, 2)
    append(log, 2)
    log.roll([ENTRY])
    append(log, 2)
    append(log, 2)
    sync(log)
    log.advance_log_start(6)
    log = open_log(segment_bytes=250)
    assert log.latest_snapshot() == (4, [ENTRY])


def test_without_a_snapshot_the_replay_begins_with_the_first_segment(open_log, append, sync):
    log = open_log()
    append(log, 10)
    sync(log)
    log.advance_log_start(5)
    log = open_log()
    assert log.latest_snapshot() == (0, [])
    assert [header.base_offset for header, _ in log.replay(0)] == [0]


def test_lookup_by_time_finds_nothing_below_the_log_start(open_log, append, sync):
    log = open_log()
    for number in range(4):
        append(log, timestamp_ms=100 + number)
    sync(log)
    log.advance_log_start(2)
    assert log.offset_for_timestamp(100, 4) == (2, 102)


# The log start and damage


def start_file(tmp_path):
    return tmp_path / "flights-0" / LOG_START_FILE


def harm(tmp_path, name, how):
    path = tmp_path / "flights-0" / name
    if how == "missing":
        path.unlink()
    else:
        flip(path, 8)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("offset", [3, 4, 5, 10])
def test_without_a_checkpoint_the_log_begins_where_it_began(
    log, open_log, tmp_path, offset, how, is_clean
):
    log.advance_log_start(offset)
    log.close([] if is_clean else None)
    harm(tmp_path, RECOVERY_FILE, how)
    log = open_log(segment_bytes=250)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (offset, offset, 10)


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_log_start_that_only_the_checkpoint_has_is_written_again(log, open_log, tmp_path, how):
    """Damaged, or of a build that did not write the file."""
    log.advance_log_start(5)
    log.close([])
    harm(tmp_path, LOG_START_FILE, how)
    assert open_log(segment_bytes=250).log_start_offset == 5
    assert decode_log_start(start_file(tmp_path).read_bytes()) == 5


def test_a_log_opens_on_a_full_disk_though_its_log_start_cannot_be_written_again(
    log, open_log, tmp_path, filesystem
):
    log.advance_log_start(5)
    log.close([])
    start_file(tmp_path).unlink()
    filesystem.fail("append", "log-start-offset.tmp", errno.ENOSPC)
    assert open_log(segment_bytes=250).log_start_offset == 5
    assert not start_file(tmp_path).exists()


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_log_that_has_lost_where_it_begins_is_refused(log, open_log, tmp_path, how):
    log.advance_log_start(5)
    log.close([])
    harm(tmp_path, RECOVERY_FILE, how)
    flip(start_file(tmp_path), 20)
    with pytest.raises(CorruptDataError, match=str(start_file(tmp_path))):
        open_log(segment_bytes=250)
    start_file(tmp_path).unlink()
    assert open_log(segment_bytes=250).log_start_offset == 0


def test_after_a_power_loss_the_checkpoint_may_be_older_than_the_log_start(log, open_log, tmp_path):
    checkpoint = tmp_path / "flights-0" / RECOVERY_FILE
    log.advance_log_start(5)
    log.close(None)
    checkpoint.write_bytes(RecoveryCheckpoint(2, 0, 2).to_bytes())
    log = open_log(segment_bytes=250)
    assert (log.log_start_offset, log.recovery_point, log.high_watermark) == (5, 5, 5)


def test_a_log_start_that_the_first_segment_has_passed_means_nothing(log, open_log, tmp_path):
    log.advance_log_start(3)
    older = start_file(tmp_path).read_bytes()
    log.advance_log_start(9)
    for files in log.retention.take_below(9):
        files.run()
    log.close([])
    start_file(tmp_path).write_bytes(older)
    harm(tmp_path, RECOVERY_FILE, "damaged")
    assert open_log(segment_bytes=250).log_start_offset == 8


@pytest.mark.parametrize("kept_bytes", [0, 100, 150])
def test_a_log_that_ends_below_its_start_is_refused_without_a_checkpoint(
    open_log, append, sync, tmp_path, kept_bytes
):
    """What is hidden was synced: it is no torn tail."""
    log = open_log()
    for _ in range(3):
        append(log, 2)
    sync(log)
    log.advance_log_start(5)
    log.close(None)
    harm(tmp_path, RECOVERY_FILE, "missing")
    log_file(tmp_path).write_bytes(log_file(tmp_path).read_bytes()[:kept_bytes])
    with pytest.raises(CorruptDataError, match="rule R-"):
        open_log()


# The log start on a full disk


def test_without_room_a_log_start_inside_a_segment_does_not_rise(log, filesystem, append, tmp_path):
    filesystem.fail("append", "log-start-offset.tmp", errno.ENOSPC)
    with pytest.raises(OSError, match="planned"):
        log.advance_log_start(5)
    assert (log.log_start_offset, log.failure) == (0, None)
    filesystem.heal()
    append(log)
    assert log.advance_log_start(5)


def test_without_room_the_log_start_rises_in_a_file_that_is_there(
    log, filesystem, open_log, tmp_path
):
    log.advance_log_start(3)
    filesystem.fail("append", "log-start-offset.tmp", errno.ENOSPC)
    filesystem.synced.clear()
    log.advance_log_start(5)
    assert filesystem.synced == [LOG_START_FILE]
    assert decode_log_start(start_file(tmp_path).read_bytes()) == 5


def test_without_room_whole_segments_are_given_up(log, filesystem, open_log, tmp_path):
    filesystem.fail("append", "log-start-offset.tmp", errno.ENOSPC)
    assert log.advance_log_start(4)
    assert [log.log_start_offset, open_log(segment_bytes=250).log_start_offset] == [4, 4]


def test_a_rise_that_failed_does_not_outlive_a_cut_below_it(log, filesystem, open_log):
    filesystem.fail("write_at", RECOVERY_FILE, errno.ENOSPC)
    with pytest.raises(OSError, match="planned"):
        log.advance_log_start(7)
    filesystem.heal()
    log.truncate_to(6)
    log.close(None)
    log = open_log(segment_bytes=250)
    assert (log.log_start_offset, log.log_end_offset) == (0, 6)


# Truncation


def test_a_cut_through_the_batch_of_the_log_start_is_refused(log):
    log.advance_log_start(5)
    with pytest.raises(ValueError, match="below the log start"):
        log.truncate_to(5)
    assert log.log_end_offset == 10


def test_truncation_between_two_snapshots_leaves_the_older_one(log, open_log, tmp_path):
    log.truncate_to(6)
    assert sorted(int(path.stem) for path in (tmp_path / "flights-0").glob("*.snapshot")) == [4]
    log = open_log(segment_bytes=250)
    assert (log.log_end_offset, log.latest_snapshot()) == (6, (4, []))


def test_damage_below_the_log_start_does_not_keep_the_log_from_opening(log, open_log, tmp_path):
    log.advance_log_start(5)
    log.retention.take_below(5)
    flip(log_file(tmp_path), 70)
    assert open_log(segment_bytes=250).log_start_offset == 5
