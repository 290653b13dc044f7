"""The old end of a log on real files: what goes, what stays, what a restart finds."""

from __future__ import annotations

import pytest
from partition_logs import offsets_of, read_all

from oncelog.storage.log_settings import RetentionPolicy

BY_AGE = RetentionPolicy(time_ms=100)
ALL_OFFSETS = 10**6


@pytest.fixture
def log(open_log, append, sync):
    """Five segments of two batches, at times 0, 10, 20 … 90; all durable."""
    log = open_log(segment_bytes=250)
    for number in range(10):
        append(log, timestamp_ms=10 * number)
    sync(log)
    return log


def names(tmp_path, suffix: str) -> list[int]:
    return sorted(int(path.stem) for path in (tmp_path / "flights-0").glob(f"*{suffix}"))


def retained_from(log, policy, now_ms: int = 0, upper_offset: int = ALL_OFFSETS) -> int:
    return log.retention.retained_from(
        policy,
        log_start_offset=log.log_start_offset,
        upper_offset=upper_offset,
        now_ms=now_ms,
    )


def remove_below(log, offset: int) -> None:
    for files in (log.advance_log_start(offset), log.retention.take_below(offset))[1]:
        files.run()


def test_old_segments_are_given_up_as_whole_segments(log):
    assert retained_from(log, BY_AGE, now_ms=100) == 0
    assert retained_from(log, BY_AGE, now_ms=110) == 0
    assert retained_from(log, BY_AGE, now_ms=111) == 2
    assert retained_from(log, BY_AGE, now_ms=151) == 6


def test_a_log_that_is_all_old_is_given_up_to_its_end(log):
    assert retained_from(log, BY_AGE, now_ms=191) == log.log_end_offset == 10


def test_a_size_limit_counts_the_segments_that_stay(log):
    assert retained_from(log, RetentionPolicy(size_bytes=600)) == 4
    assert retained_from(log, RetentionPolicy(size_bytes=601)) == 2


def test_nothing_from_the_bound_on_is_given_up(log):
    assert retained_from(log, BY_AGE, now_ms=10_000, upper_offset=5) == 4


def test_an_empty_active_segment_is_not_given_up_again(log):
    log.roll([])
    assert retained_from(log, BY_AGE, now_ms=10_000) == 10
    remove_below(log, 10)
    assert log.segment_count == 1
    assert retained_from(log, BY_AGE, now_ms=20_000) == 10 == log.retention.first_base_offset


def test_ages_of_closed_segments_come_from_their_time_indexes(log, open_log):
    log.close([])
    log = open_log(segment_bytes=250)
    assert retained_from(log, BY_AGE, now_ms=151) == 6


def test_removed_segments_take_all_their_files_with_them(log, tmp_path):
    remove_below(log, 5)
    assert names(tmp_path, ".log") == [4, 6, 8]
    assert names(tmp_path, ".index") == [4, 6]
    assert names(tmp_path, ".timeindex") == [4, 6]
    assert names(tmp_path, ".snapshot") == [4, 6, 8]
    assert log.size_bytes == 600


def test_aborted_indexes_go_with_their_segment(open_log, append, sync, tmp_path):
    log = open_log(segment_bytes=250)
    for _ in range(4):
        append(log)
    log.append_aborted(producer_id=1, first_offset=0, last_offset=1, last_stable_offset=2)
    sync(log)
    remove_below(log, 2)
    assert names(tmp_path, ".txnindex") == []
    assert log.aborted_transactions(2, 4) == ()


def test_the_active_segment_is_never_taken(log):
    log.advance_log_start(10)
    assert len(log.retention.take_below(10)) == 5
    assert log.segment_count == 1
    assert log.retention.first_base_offset == 8


def test_what_is_left_is_read_and_appended_to(log, append):
    remove_below(log, 6)
    append(log)
    assert offsets_of(read_all(log)) == [6, 7, 8, 9, 10]


def test_a_restart_after_the_removal_finds_the_rest(log, open_log):
    remove_below(log, 5)
    log = open_log(segment_bytes=250)
    assert (log.log_start_offset, log.log_end_offset, log.segment_count) == (5, 10, 3)


def test_a_restart_before_the_removal_finds_the_old_segments_below_the_log_start(log, open_log):
    log.advance_log_start(5)
    log = open_log(segment_bytes=250)
    assert (log.log_start_offset, log.segment_count) == (5, 5)
    assert retained_from(log, RetentionPolicy()) == 4


def test_files_that_cannot_be_removed_are_found_again(log, open_log, filesystem, tmp_path):
    log.advance_log_start(5)
    first, *_ = log.retention.take_below(5)
    filesystem.fail("sync_directory", "flights-0")
    with pytest.raises(OSError, match="planned"):
        first.run()
    filesystem.heal()
    assert log.failure is None
    log = open_log(segment_bytes=250)
    assert names(tmp_path, ".log") == [2, 4, 6, 8]
    assert retained_from(log, RetentionPolicy()) == 4


def test_a_log_knows_when_its_snapshots_would_all_be_gone(log, append):
    assert not log.retention.needs_snapshot(8)
    assert log.retention.needs_snapshot(9)
    log.write_snapshot([])
    assert log.retention.needs_snapshot(9), "it lies in the active segment"
    append(log)
    assert not log.retention.needs_snapshot(10)


def test_a_removed_segment_that_a_sync_point_still_holds_is_synced_all_the_same(log, append, sync):
    append(log)
    point = log.sync_point()
    remove_below(log, 6)
    point.run()
    log.mark_synced(point)
    assert log.recovery_point == 11
