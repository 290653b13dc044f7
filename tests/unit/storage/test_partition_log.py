from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.fs import RealFileSystem
from oncelog.storage.model import AbortedTransaction
from oncelog.storage.partition_log import LogSettings, PartitionLog
from oncelog.storage.producer_entry import ProducerSnapshotEntry
from oncelog.storage.record_batch import iterate_batches, parse_header
from oncelog.storage.record_codec import encode_records
from oncelog.storage.recovery import TailDefect


def offsets_of(records: bytes) -> list[int]:
    return [header.base_offset for _, header in iterate_batches(records)]


def read_all(log) -> bytes:
    data, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        part = log.fetch(offset, max_bytes=1 << 20, upper_offset=log.log_end_offset)
        data += part.records
        offset = part.next_offset
    return data


def log_file(tmp_path: Path, base_offset: int = 0) -> Path:
    return tmp_path / "flights-0" / f"{base_offset:020d}.log"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


# Append and read


def test_new_log_is_empty_and_clean(open_log):
    log = open_log()
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (0, 0, 0)
    assert log.was_clean
    assert log.segment_count == 1
    assert log.latest_snapshot() == (0, [])


def test_appended_bytes_are_read_back_unchanged(open_log, make_batch):
    log = open_log()
    batch = make_batch(0, 3)
    log.append(batch, parse_header(batch))
    assert log.log_end_offset == 3
    assert log.read(0, max_bytes=1_000, upper_offset=3) == batch


def test_offset_inside_a_batch_reads_that_batch(open_log, append):
    log = open_log()
    append(log, 5)
    append(log, 5)
    assert offsets_of(log.read(7, max_bytes=1_000, upper_offset=10)) == [5]


def test_batch_that_straddles_the_upper_offset_is_left_out(open_log, append):
    log = open_log()
    append(log, 5)
    append(log, 5)
    part = log.fetch(0, max_bytes=1_000, upper_offset=8)
    assert offsets_of(part.records) == [0]
    assert part.next_offset == 5


def test_first_batch_larger_than_max_bytes_is_still_read(open_log, append):
    log = open_log()
    append(log, size_bytes=500)
    append(log, size_bytes=500)
    assert offsets_of(log.read(0, max_bytes=10, upper_offset=2)) == [0]


def test_only_batches_that_fit_whole_are_read(open_log, append):
    log = open_log()
    for _ in range(10):
        append(log, size_bytes=100)
    assert offsets_of(log.read(2, max_bytes=399, upper_offset=10)) == [2, 3, 4]


def test_read_at_the_log_end_is_empty(open_log, append):
    log = open_log()
    append(log)
    part = log.fetch(1, max_bytes=1_000, upper_offset=1)
    assert (part.records, part.next_offset) == (b"", 1)


def test_read_outside_the_log_is_refused(open_log, append):
    log = open_log()
    append(log)
    with pytest.raises(ValueError, match=r"offset 2 is outside \[0, 1\]"):
        log.read(2, max_bytes=1, upper_offset=1)


@pytest.mark.parametrize("size_bytes", [70, 5_000])
def test_every_offset_is_found_through_the_sparse_index(open_log, append, size_bytes):
    log = open_log(index_interval_bytes=1_000)
    for _ in range(120):
        append(log, 2, size_bytes=size_bytes)
    for offset in range(240):
        data = log.read(offset, max_bytes=3 * size_bytes, upper_offset=240)
        first = offset - offset % 2
        assert offsets_of(data) == [base for base in (first, first + 2, first + 4) if base < 240]


def test_every_upper_offset_is_kept_through_the_sparse_index(open_log, append):
    log = open_log(index_interval_bytes=300)
    for _ in range(60):
        append(log, size_bytes=70)
    for upper in range(61):
        data = log.read(0, max_bytes=1 << 20, upper_offset=upper)
        assert offsets_of(data) == list(range(upper))


def test_batch_that_does_not_begin_at_the_log_end_is_refused(open_log, make_batch):
    log = open_log()
    batch = make_batch(1)
    with pytest.raises(ValueError, match="does not fit the log end 0"):
        log.append(batch, parse_header(batch))
    assert log.size_bytes == 0


def test_header_that_is_not_that_of_the_bytes_is_refused(open_log, make_batch):
    log = open_log()
    log.append(first := make_batch(0), parse_header(first))
    with pytest.raises(ValueError, match="does not fit the log end 1"):
        log.append(make_batch(0), parse_header(make_batch(1)))


# Rolling


def test_segment_rolls_when_the_batch_would_not_fit(open_log, append):
    log = open_log(segment_bytes=250)
    for _ in range(5):
        append(log, size_bytes=100)
    assert log.segment_count == 3
    assert log.size_bytes == 500
    assert offsets_of(read_all(log)) == [0, 1, 2, 3, 4]


def test_read_stops_at_the_end_of_a_segment(open_log, append):
    log = open_log(segment_bytes=250)
    for _ in range(4):
        append(log, size_bytes=100)
    assert offsets_of(log.read(1, max_bytes=1_000, upper_offset=4)) == [1]


def test_segment_rolls_by_the_age_of_its_first_record(open_log, append):
    log = open_log(segment_ms=1_000)
    append(log, timestamp_ms=5_000)
    assert not log.needs_roll(100, 6_000, 99_000)
    assert log.needs_roll(100, 6_001, 0)


def test_segment_without_timestamps_rolls_by_the_wall_clock(open_log, append):
    log = open_log(segment_ms=1_000)
    append(log, timestamp_ms=-1)
    assert not log.needs_roll(100, -1, 1_000)
    assert log.needs_roll(100, -1, 1_001)


def test_segment_rolls_before_an_offset_that_no_index_entry_can_hold(open_log, append):
    log = open_log()
    append(log)
    assert not log.needs_roll(100, 1_000, 0, last_offset_delta=2**31 - 2)
    assert log.needs_roll(100, 1_000, 0, last_offset_delta=2**31 - 1)


def test_empty_segment_never_rolls(open_log):
    log = open_log(segment_bytes=100)
    assert not log.needs_roll(1_000, 0, 0)
    log.roll([])
    assert log.segment_count == 1


def test_roll_writes_kafkas_files(open_log, append, tmp_path):
    log = open_log(segment_bytes=250, index_interval_bytes=0)
    for _ in range(3):
        append(log, size_bytes=100)
    directory = tmp_path / "flights-0"
    # One index entry: batch 1 ends at offset 1 and begins at byte 100.
    assert (directory / f"{0:020d}.index").read_bytes() == bytes.fromhex("0000000100000064")
    # Both batches have the timestamp 1,000, and the first one had it first.
    assert (directory / f"{0:020d}.timeindex").read_bytes() == bytes.fromhex(
        "00000000000003e800000000"
    )
    assert (directory / f"{2:020d}.snapshot").exists()
    assert (directory / f"{2:020d}.log").exists()


def test_many_sealed_segments_keep_few_files_open(open_log, append, sync):
    log = open_log(segment_bytes=100)
    for _ in range(40):
        append(log, size_bytes=100)
    sync(log)
    assert offsets_of(read_all(log)) == list(range(40))
    opened = [segment for segment in log._segments.from_offset(0) if segment.is_open]
    assert len(opened) <= 9


# Clean close and reopen


def test_reopened_log_equals_the_closed_one(open_log, append):
    log = open_log(segment_bytes=1_000, index_interval_bytes=200)
    for number in range(35):
        append(log, 2, timestamp_ms=1_000 + number)
    before = (read_all(log), log.log_end_offset, log.max_timestamp(), log.segment_count)
    log.close([])
    log = open_log(segment_bytes=1_000, index_interval_bytes=200)
    assert log.was_clean
    assert (read_all(log), log.log_end_offset, log.max_timestamp(), log.segment_count) == before
    assert log.recovery_point == 70


def test_log_goes_on_after_reopen(open_log, append):
    log = open_log(segment_bytes=300)
    for _ in range(4):
        append(log)
    log.close([])
    log = open_log(segment_bytes=300)
    for _ in range(4):
        append(log)
    assert offsets_of(read_all(log)) == list(range(8))


def test_log_killed_after_a_clean_open_is_not_clean(open_log, append):
    log = open_log()
    append(log)
    log.close([])
    assert open_log().was_clean
    assert not open_log().was_clean


def test_file_changed_after_a_clean_close_is_recovered(open_log, append, tmp_path, make_batch):
    log = open_log()
    append(log)
    log.close([])
    with log_file(tmp_path).open("ab") as file:
        file.write(make_batch(1))
    log = open_log()
    assert not log.was_clean
    assert log.log_end_offset == 2


def test_snapshot_of_a_clean_close_comes_back(open_log, append):
    log = open_log()
    append(log)
    entry = ProducerSnapshotEntry(producer_id=7, producer_epoch=1, last_sequence=4, last_offset=0)
    log.close([entry])
    assert open_log().latest_snapshot() == (1, [entry])


def test_appends_after_close_are_refused(open_log, append):
    log = open_log()
    log.close([])
    with pytest.raises(OSError, match="closed"):
        append(log)


def test_missing_index_of_a_sealed_segment_is_rebuilt(open_log, append, tmp_path):
    log = open_log(segment_bytes=2_000, index_interval_bytes=200)
    for _ in range(30):
        append(log)
    log.close([])
    (tmp_path / "flights-0" / f"{0:020d}.index").unlink()
    log = open_log(segment_bytes=2_000, index_interval_bytes=200)
    assert offsets_of(log.read(13, max_bytes=200, upper_offset=30)) == [13, 14]


def test_index_that_points_into_a_batch_is_rebuilt(open_log, append, tmp_path):
    log = open_log(segment_bytes=2_000, index_interval_bytes=200)
    for _ in range(30):
        append(log)
    log.close([])
    index = tmp_path / "flights-0" / f"{0:020d}.index"
    # The position of the second entry, in the middle of the file.
    flip(index, 15)
    log = open_log(segment_bytes=2_000, index_interval_bytes=200)
    for offset in range(20):
        assert offsets_of(log.read(offset, max_bytes=100, upper_offset=30)) == [offset]


# Recovery


def test_torn_last_batch_is_cut(open_log, append, sync, tmp_path):
    log = open_log()
    append(log)
    sync(log)
    append(log)
    path = log_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    log = open_log()
    assert not log.was_clean
    assert log.log_end_offset == 1
    assert log.cut is not None
    assert (log.cut.defect, log.cut.position, log.cut.offset, log.cut.cut_bytes) == (
        TailDefect.SHORT_BATCH,
        100,
        1,
        99,
    )
    assert path.stat().st_size == 100


def test_second_recovery_of_a_torn_log_finds_nothing_to_do(open_log, append, sync, tmp_path):
    log = open_log()
    append(log)
    sync(log)
    append(log)
    path = log_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    open_log()
    before = path.read_bytes()
    log = open_log()
    assert log.cut is None
    assert path.read_bytes() == before


def test_whole_unsynced_batches_survive(open_log, append, sync):
    log = open_log()
    append(log)
    sync(log)
    append(log)
    append(log)
    log = open_log()
    assert log.log_end_offset == 3
    assert log.recovery_point == 1
    assert log.cut is None


def test_recovery_point_follows_the_first_sync_after_recovery(open_log, append, sync):
    log = open_log()
    append(log)
    log = open_log()
    assert log.recovery_point == 0
    sync(log)
    assert log.recovery_point == 1
    assert open_log().recovery_point == 1


@pytest.mark.parametrize("position", [0, 16, 22, 99, 150])
def test_bit_flip_below_the_recovery_point_is_refused(open_log, append, sync, tmp_path, position):
    log = open_log()
    append(log)
    append(log)
    sync(log)
    append(log)
    path = log_file(tmp_path)
    flip(path, position)
    before = path.read_bytes()
    start = position - position % 100
    with pytest.raises(CorruptDataError, match=rf"{path} at byte {start}, offset {start // 100}:"):
        open_log()
    assert path.read_bytes() == before


def test_refused_log_leaves_no_file_open(open_log, append, sync, tmp_path):
    log = open_log()
    append(log)
    sync(log)
    log.close(None)
    flip(log_file(tmp_path), 90)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CorruptDataError):
        open_log()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_bit_flip_in_the_unsynced_part_is_cut(open_log, append, sync, tmp_path):
    log = open_log()
    append(log)
    sync(log)
    append(log)
    append(log)
    flip(log_file(tmp_path), 190)
    log = open_log()
    assert log.log_end_offset == 1
    assert log.cut is not None
    assert log.cut.cut_bytes == 200


def test_synced_records_missing_from_the_end_are_refused(open_log, append, sync, tmp_path):
    log = open_log()
    append(log)
    append(log)
    sync(log)
    path = log_file(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CorruptDataError, match="rule R-2"):
        open_log()


def test_all_segments_missing_though_synced_is_refused(open_log, append, sync, tmp_path):
    log = open_log()
    append(log)
    sync(log)
    log_file(tmp_path).unlink()
    with pytest.raises(CorruptDataError, match="no segment is left"):
        open_log()


def test_without_checkpoint_damage_before_intact_batches_is_refused(open_log, append, tmp_path):
    log = open_log()
    for _ in range(3):
        append(log)
    (tmp_path / "flights-0" / "recovery-checkpoint").unlink()
    flip(log_file(tmp_path), 150)
    with pytest.raises(CorruptDataError, match="rule R-5"):
        open_log()


def test_without_checkpoint_a_torn_last_batch_is_cut(open_log, append, tmp_path):
    log = open_log()
    for _ in range(3):
        append(log)
    (tmp_path / "flights-0" / "recovery-checkpoint").unlink()
    flip(log_file(tmp_path), 250)
    assert open_log().log_end_offset == 2


def test_damage_in_an_unsynced_segment_removes_the_later_ones(open_log, append, tmp_path):
    log = open_log(segment_bytes=250)
    for _ in range(6):
        append(log)
    flip(log_file(tmp_path, 2), 150)
    log = open_log(segment_bytes=250)
    assert log.log_end_offset == 3
    assert log.segment_count == 2
    assert not log_file(tmp_path, 4).exists()
    append(log)
    assert offsets_of(read_all(log)) == [0, 1, 2, 3]


def test_lost_end_of_an_unsynced_segment_removes_the_later_ones(open_log, append, tmp_path):
    log = open_log(segment_bytes=250)
    for _ in range(6):
        append(log)
    path = log_file(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:100])
    log = open_log(segment_bytes=250)
    assert log.log_end_offset == 3
    assert log.cut is not None
    assert log.cut.defect is TailDefect.MISSING_RECORDS
    assert log.cut.cut_bytes == 200


def test_segments_below_the_recovery_point_are_not_read(open_log, append, sync, tmp_path):
    log = open_log(segment_bytes=250)
    for _ in range(5):
        append(log)
    sync(log)
    flip(log_file(tmp_path, 0), 90)
    log = open_log(segment_bytes=250)
    assert log.log_end_offset == 5
    with pytest.raises(CorruptDataError, match="at byte 0: the batch does not match its CRC"):
        list(log.replay(0))


def test_indexes_are_rebuilt_by_recovery(open_log, append, sync):
    log = open_log(index_interval_bytes=300)
    for number in range(50):
        append(log, timestamp_ms=number)
    log = open_log(index_interval_bytes=300)
    assert offsets_of(log.read(31, max_bytes=100, upper_offset=50)) == [31]
    assert log.offset_for_timestamp(17, 50) == (17, 17)


def test_zero_filled_tail_is_cut(open_log, append, tmp_path):
    log = open_log()
    append(log)
    with log_file(tmp_path).open("ab") as file:
        file.write(bytes(4_096))
    log = open_log()
    assert log.log_end_offset == 1
    assert log.cut is not None
    assert log.cut.defect is TailDefect.ZEROS


def test_leftover_of_an_unfinished_file_is_removed(open_log, tmp_path):
    open_log().close([])
    leftover = tmp_path / "flights-0" / "leader-epoch-checkpoint.tmp"
    leftover.write_bytes(b"0")
    open_log()
    assert not leftover.exists()


# Aborted transactions


def abort_two(log) -> None:
    """Transactions A [0, 9] and B [5, 12], both aborted."""
    log.append_aborted(producer_id=1, first_offset=0, last_offset=9, last_stable_offset=5)
    log.append_aborted(producer_id=2, first_offset=5, last_offset=12, last_stable_offset=13)


@pytest.mark.parametrize("segment_bytes", [10_000, 800])
def test_fetch_gets_the_aborted_transactions_that_touch_it(open_log, append, segment_bytes):
    log = open_log(segment_bytes=segment_bytes)
    for _ in range(14):
        append(log)
    abort_two(log)
    first = AbortedTransaction(producer_id=1, first_offset=0)
    second = AbortedTransaction(producer_id=2, first_offset=5)
    assert log.aborted_transactions(0, 3) == (first,)
    assert log.aborted_transactions(6, 13) == (first, second)
    assert log.aborted_transactions(10, 13) == (second,)


def test_aborted_transactions_survive_a_clean_close(open_log, append):
    log = open_log()
    for _ in range(14):
        append(log)
    abort_two(log)
    log.close([])
    assert len(open_log().aborted_transactions(0, 14)) == 2


def test_synced_aborted_transactions_survive_a_crash(open_log, append, sync):
    log = open_log()
    for _ in range(14):
        append(log)
    abort_two(log)
    sync(log)
    assert len(open_log().aborted_transactions(0, 14)) == 2


def test_unsynced_aborted_transactions_are_left_to_the_replay(open_log, append, sync):
    log = open_log()
    for _ in range(11):
        append(log)
    sync(log)
    for _ in range(3):
        append(log)
    abort_two(log)
    log = open_log()
    assert [item.producer_id for item in log.aborted_transactions(0, 14)] == [1]
    assert log.latest_snapshot()[0] <= 11
    abort_two(log)
    assert [item.producer_id for item in log.aborted_transactions(0, 14)] == [1, 2]


def test_damaged_aborted_index_is_refilled_from_the_start_of_its_segment(
    open_log, append, tmp_path
):
    log = open_log(segment_bytes=800)
    for _ in range(14):
        append(log)
    abort_two(log)
    log.close([])
    path = tmp_path / "flights-0" / f"{8:020d}.txnindex"
    path.write_bytes(path.read_bytes()[:-3])
    log = open_log(segment_bytes=800)
    assert log.was_clean
    assert log.latest_snapshot()[0] == 8
    abort_two(log)
    assert len(log.aborted_transactions(0, 14)) == 2
    assert path.stat().st_size == 68


def test_failed_write_of_the_aborted_index_takes_the_log_offline(open_log, append, filesystem):
    log = open_log()
    for _ in range(14):
        append(log)
    filesystem.fail("append", ".txnindex")
    with pytest.raises(OSError, match="planned"):
        abort_two(log)
    filesystem.heal()
    with pytest.raises(OSError, match="offline"):
        append(log)
    log = open_log()
    abort_two(log)
    assert len(log.aborted_transactions(0, 14)) == 2


# Timestamps


def test_offset_for_timestamp_finds_the_record_inside_a_batch(open_log):
    log = open_log()
    for base, times in ((0, (100, 200, 300)), (3, (250, 400))):
        batch = encode_records([(None, b"v", time, ()) for time in times])
        batch[:8] = base.to_bytes(8, "big")
        log.append(batch, parse_header(batch))
    assert log.offset_for_timestamp(50, 5) == (0, 100)
    assert log.offset_for_timestamp(201, 5) == (2, 300)
    assert log.offset_for_timestamp(301, 5) == (4, 400)
    assert log.offset_for_timestamp(401, 5) is None
    assert log.offset_for_timestamp(301, 4) is None
    assert log.max_timestamp() == (4, 400)


def test_offset_for_timestamp_skips_older_segments(open_log, append):
    log = open_log(segment_bytes=250)
    for number in range(10):
        append(log, timestamp_ms=10 * number)
    assert [log.offset_for_timestamp(10 * number - 5, 10) for number in range(10)] == [
        (number, 10 * number) for number in range(10)
    ]


def test_log_without_records_has_no_max_timestamp(open_log):
    assert open_log().max_timestamp() is None


# Snapshots and replay


def test_replay_yields_every_batch_from_the_one_that_holds_the_offset(open_log, append):
    log = open_log(segment_bytes=450)
    for _ in range(10):
        append(log, 2)
    assert [header.base_offset for header, _ in log.replay(5)] == [4, 6, 8, 10, 12, 14, 16, 18]
    assert b"".join(bytes(view) for _, view in log.replay(0)) == read_all(log)


def test_replay_of_batches_larger_than_a_read_is_whole(open_log, append):
    log = open_log()
    for _ in range(3):
        append(log, size_bytes=1_500_000)
    assert [len(view) for _, view in log.replay(1)] == [1_500_000, 1_500_000]


def test_damaged_newest_snapshot_falls_back_to_the_older(open_log, append, tmp_path):
    log = open_log(segment_bytes=250)
    for _ in range(5):
        append(log)
    log.close([])
    flip(tmp_path / "flights-0" / f"{5:020d}.snapshot", 3)
    log = open_log(segment_bytes=250)
    assert log.latest_snapshot() == (4, [])
    assert not (tmp_path / "flights-0" / f"{5:020d}.snapshot").exists()


def test_snapshots_that_belong_to_no_segment_are_removed_but_the_newest(open_log, append, tmp_path):
    for _ in range(3):
        log = open_log()
        append(log)
        log.close([])
    open_log()
    names = [path.name for path in (tmp_path / "flights-0").glob("*.snapshot")]
    assert names == [f"{3:020d}.snapshot"]


# Leader epochs


def test_leader_epochs_survive_a_crash(open_log, append):
    log = open_log()
    log.assign_leader_epoch(3, 0)
    append(log, leader_epoch=3)
    log.assign_leader_epoch(5, 1)
    assert open_log().leader_epochs == [(3, 0), (5, 1)]


def test_same_leader_epoch_keeps_its_first_offset(open_log, append):
    log = open_log()
    log.assign_leader_epoch(3, 0)
    append(log, leader_epoch=3)
    log.assign_leader_epoch(3, 1)
    assert log.leader_epochs == [(3, 0)]


def test_appended_batch_with_a_newer_leader_epoch_is_noted(open_log, append):
    log = open_log()
    append(log, leader_epoch=1)
    append(log, leader_epoch=1)
    append(log, leader_epoch=2)
    assert log.leader_epochs == [(1, 0), (2, 2)]


def test_lost_leader_epochs_are_rebuilt_from_the_batches(open_log, append, tmp_path):
    log = open_log()
    append(log, leader_epoch=1)
    append(log, leader_epoch=2)
    (tmp_path / "flights-0" / "leader-epoch-checkpoint").unlink()
    assert open_log().leader_epochs == [(1, 0), (2, 1)]


def test_leader_epoch_beyond_the_recovered_end_is_dropped(open_log, append, tmp_path):
    log = open_log()
    append(log, leader_epoch=1)
    append(log, leader_epoch=1)
    append(log, leader_epoch=2)
    path = log_file(tmp_path)
    path.write_bytes(path.read_bytes()[:150])
    assert open_log().leader_epochs == [(1, 0)]


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
