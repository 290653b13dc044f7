from __future__ import annotations

import pytest
from inside import segments_of
from partition_logs import abort_two, flip, log_file, offsets_of, read_all

from oncelog.storage.exceptions import CorruptRecordError
from oncelog.storage.model import AbortedTransaction
from oncelog.storage.records.batch import parse_header
from oncelog.storage.records.codec import encode_records

# Aborted transactions


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


def test_aborted_transactions_of_a_synced_sealed_segment_survive_a_crash(open_log, append, sync):
    log = open_log(segment_bytes=800)
    for _ in range(13):
        append(log)
    abort_two(log)
    for _ in range(4):
        append(log)
    sync(log)
    log = open_log(segment_bytes=800)
    assert not log.was_clean
    assert len(log.aborted_transactions(0, 17)) == 2


def test_aborted_transactions_of_the_last_segment_are_left_to_the_replay(open_log, append, sync):
    log = open_log(segment_bytes=800)
    for _ in range(14):
        append(log)
    abort_two(log)
    sync(log)
    log = open_log(segment_bytes=800)
    assert log.aborted_transactions(0, 14) == ()
    assert log.latest_snapshot()[0] == 8
    abort_two(log)
    assert [item.producer_id for item in log.aborted_transactions(0, 14)] == [1, 2]


def test_lost_page_of_the_aborted_index_is_no_transaction_of_producer_zero(
    open_log, append, sync, tmp_path
):
    log = open_log()
    for _ in range(10):
        append(log)
    sync(log)
    log.append_aborted(producer_id=1, first_offset=0, last_offset=9, last_stable_offset=5)
    # After a power loss the file has its new size, but its new page is zeros.
    (tmp_path / "flights-0" / f"{0:020d}.txnindex").write_bytes(bytes(34))
    assert open_log().aborted_transactions(0, 10) == ()


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
    open_log().end_restore()
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


# Damage where the index points


def test_reads_beyond_a_damaged_indexed_header_do_not_go_over_all_between(
    open_log, append, tmp_path, monkeypatch
):
    """A header that is not there any more must not cost each later read the whole segment."""
    log = open_log(index_interval_bytes=1_000)
    for _ in range(1_000):
        append(log)
    log.close([])
    log = open_log(index_interval_bytes=1_000)
    _, position = segments_of(log).active.indexes[0].lookup(200)
    with log_file(tmp_path).open("r+b") as file:
        file.seek(position)
        file.write(bytes(61))
    with pytest.raises(CorruptRecordError):
        log.read(segments_of(log).active.indexes[0].lookup(200)[0], max_bytes=1, upper_offset=1_000)
    log.read(900, max_bytes=1, upper_offset=1_000)
    read_bytes = 0
    handle = segments_of(log).active.log
    plain_read = handle.read

    def count(position, size):
        nonlocal read_bytes
        data = plain_read(position, size)
        read_bytes += len(data)
        return data

    monkeypatch.setattr(handle, "read", count)
    assert offsets_of(log.read(990, max_bytes=1, upper_offset=1_000)) == [990]
    assert 0 < read_bytes < 30_000
