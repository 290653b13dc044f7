from __future__ import annotations

import pytest
from inside import segments_of
from partition_logs import flip, log_file, offsets_of, read_all

from oncelog.storage.model import ProducerSnapshotEntry
from oncelog.storage.records.batch import parse_header

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


def test_append_writes_what_the_leader_assigns_and_leaves_the_batch_alone(open_log, make_batch):
    log = open_log()
    log.append(first := make_batch(0), parse_header(first))
    sent = bytes(make_batch(0, 3, leader_epoch=-1))
    header = parse_header(sent).with_offset(1, 4)
    log.append(sent, header)
    written = log.read(1, max_bytes=1, upper_offset=4)
    assert parse_header(written) == header
    assert written[16:] == sent[16:]
    assert parse_header(sent).base_offset == 0


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
    for _ in range(300):
        append(log, size_bytes=100)
    sync(log)
    assert offsets_of(read_all(log)) == list(range(300))
    opened = [segment for segment in segments_of(log).from_offset(0) if segment.is_open]
    assert len(opened) <= 257


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
