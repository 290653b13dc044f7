"""Compaction of one log: what goes, what stays and until when. Scenario numbers are Kafka's rules.

Each test writes with ``TransactionalLog``, rolls, and compacts all that is decided.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from inside import segments_of
from transactional_logs import TransactionalLog

from oncelog.storage.compaction.compactor import Cleaner, CompactionSettings
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.partition import LogSettings
from oncelog.storage.records.compression import Codec

RETENTION_MS = 100


@pytest.fixture
def log(tmp_path: Path, filesystem: RealFileSystem) -> TransactionalLog:
    settings = LogSettings(segment_bytes=4_096)
    return TransactionalLog(tmp_path / "flights-0", settings, filesystem)


def compact(log: TransactionalLog, **settings):
    """Seal what there is, put one record after it, and compact."""
    log.roll()
    log.send([(b"tail", b"t")])
    return log.clean(delete_retention_ms=RETENTION_MS, **settings)


def pairs(log: TransactionalLog) -> list[tuple]:
    return [(r.offset, r.key, r.value) for r in log.committed() if r.key != b"tail"]


def test_newest_record_of_each_key_stays_at_its_offset_with_its_time(log):
    log.send([(b"a", b"1"), (b"b", b"1")])
    log.now_ms = 2_000
    log.send([(b"a", b"2"), (b"c", b"1")])
    before = {record.offset: record for record in log.committed()}
    compact(log)
    assert pairs(log) == [(1, b"b", b"1"), (2, b"a", b"2"), (3, b"c", b"1")]
    assert all(before.get(r.offset, r) == r for r in log.committed())


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_compressed_batch_is_compressed_again(log, codec):
    log.send([(b"a", b"1" * 500), (b"b", b"1" * 500), (b"a", b"2" * 500)], codec=codec)
    compact(log)
    assert pairs(log) == [(1, b"b", b"1" * 500), (2, b"a", b"2" * 500)]
    assert log.headers()[0].codec is codec


def test_batch_from_which_nothing_goes_keeps_every_byte(log):
    log.send([(b"a", b"1"), (b"b", b"1")])
    before = log.raw(0)
    log.send([(b"c", b"1")])
    log.send([(b"c", b"2")])
    compact(log)
    assert log.raw(0).startswith(before)


def test_record_without_a_key_stays(log):
    log.send([(None, b"1"), (b"a", b"1")])
    log.send([(None, b"2"), (b"a", b"2")])
    compact(log)
    assert pairs(log) == [(0, None, b"1"), (2, None, b"2"), (3, b"a", b"2")]


def test_nothing_at_or_beyond_the_last_stable_offset_is_touched(log):
    """Scenario 84: an open transaction holds compaction back."""
    log.send([(b"a", b"1")])
    log.send([(b"a", b"2")])
    log.roll()
    log.send([(b"a", b"3")], producer_id=1, is_transactional=True)
    log.send([(b"a", b"4")])
    before = log.raw(2)
    result = compact(log)
    assert result.first_dirty_offset == 2
    assert log.raw(2).startswith(before)
    assert pairs(log) == [(1, b"a", b"2")]


def test_aborted_record_does_not_supersede_a_committed_one(log):
    """Scenario 84: aborted k=2 over committed k=1, so k=1 survives."""
    log.send([(b"k", b"1")])
    log.send([(b"k", b"2")], producer_id=1, is_transactional=True)
    log.end(1, committed=False)
    compact(log)
    assert pairs(log) == [(0, b"k", b"1")]
    # Only the sequence of the producer stays.
    assert [one.record_count for one in log.headers() if one.base_offset == 1] == [0]


def test_aborted_record_does_not_supersede_when_its_marker_comes_after_those_of_later_ones(log):
    """The search for aborted data goes on past the end of what is compacted.

    1. k=2 of producer 1 stands in the sealed segment over k=1.
    2. Producer 2 begins and aborts in the active segment: its entry comes first in the index.
    3. Producer 1 aborts: only the second entry tells that k=2 never was.
    """
    log.send([(b"k", b"1")])
    log.send([(b"k", b"2")], producer_id=1, is_transactional=True)
    log.roll()
    log.send([(b"x", b"1")], producer_id=2, is_transactional=True)
    log.end(2, committed=False)
    log.end(1, committed=False)
    log.send([(b"tail", b"t")])
    assert log.clean().segments_replaced == 1
    assert pairs(log) == [(0, b"k", b"1")]


def test_commit_marker_outlives_its_data_until_the_horizon(log):
    """Scenario 85. A second transaction raises the epoch, so that the first marker may go."""
    log.send([(b"k", b"1")], producer_id=1, is_transactional=True)
    marker = log.end(1, committed=True)
    log.send([(b"k", b"2")], producer_id=1, is_transactional=True)
    log.end(1, committed=True)
    compact(log)
    assert marker in {header.base_offset for header in log.headers()}
    compact(log)
    stamped = next(header for header in log.headers() if header.base_offset == marker)
    assert stamped.has_delete_horizon
    assert stamped.base_timestamp_ms == log.now_ms + RETENTION_MS
    log.now_ms += RETENTION_MS - 1
    compact(log)
    assert marker in {header.base_offset for header in log.headers()}
    log.now_ms += 1
    compact(log)
    assert marker not in {header.base_offset for header in log.headers()}
    assert pairs(log) == [(2, b"k", b"2")]


def test_abort_marker_and_its_index_entry_stay_while_a_batch_of_the_transaction_does(log):
    """Scenario 85: the batch is a live producer's last one, kept empty."""
    log.send([(b"k", b"1")], producer_id=1, is_transactional=True)
    marker = log.end(1, committed=False, raises_epoch=False)
    for _ in range(3):
        log.now_ms += 2 * RETENTION_MS
        compact(log)
        kept = {header.base_offset: header for header in log.headers()}
        assert kept[0].record_count == 0
        assert not kept[marker].has_delete_horizon
        assert [item.first_offset for item in log.log.aborted_transactions(0, marker + 1)] == [0]
        assert log.state(log.replayed()) == log.state(log.machine)


def test_index_entry_goes_with_the_last_batch_of_its_transaction(log):
    """An entry without a marker behind it would hide the producer's later data."""
    log.send([(b"k", b"1")], producer_id=1, is_transactional=True)
    log.end(1, committed=False)
    log.send([(b"k", b"2")], producer_id=1, is_transactional=True)
    log.end(1, committed=True)
    for _ in range(3):
        log.now_ms += 2 * RETENTION_MS
        compact(log)
    assert log.log.aborted_transactions(0, 10) == ()
    assert pairs(log) == [(2, b"k", b"2")]
    log.reopen(is_clean=False)
    assert pairs(log) == [(2, b"k", b"2")]


def test_reader_that_saw_aborted_data_still_meets_its_marker(log):
    log.send([(b"k", b"1")])
    log.send([(b"k", b"2")], producer_id=1, is_transactional=True)
    marker = log.end(1, committed=False)
    compact(log)
    compact(log)
    assert marker in {header.base_offset for header in log.headers()}


def test_last_batch_of_a_live_producer_stays_empty_and_keeps_its_sequence(log):
    """Scenario 86: the state after a reload is the state before."""
    log.send([(b"k", b"1"), (b"k", b"2")], producer_id=4)
    log.send([(b"k", b"3")])
    before = log.state(log.machine)
    compact(log)
    empty = log.headers()[0]
    assert (empty.record_count, empty.base_sequence, empty.last_sequence) == (0, 0, 1)
    assert (empty.base_offset, empty.last_offset) == (0, 1)
    assert log.state(log.replayed()) == before
    log.reopen(is_clean=False)
    assert log.state(log.machine) == before


def test_time_of_the_last_batch_stays_in_the_producers_state_when_its_record_goes(log):
    log.send([(b"a", b"1"), (b"k", b"1")], producer_id=4)
    log.send([(b"k", b"2")])
    before = log.state(log.machine)
    compact(log)
    assert log.headers()[0].record_count == 1
    assert log.state(log.replayed()) == before


def test_records_are_found_by_time_where_their_batches_have_shrunk(log):
    log.send([(b"a", b"1"), (b"k", b"1"), (b"k", b"1"), (b"b", b"1")])
    log.now_ms = 5_000
    log.send([(b"gone", b"1")], producer_id=4)
    log.now_ms = 3_000
    log.send([(b"gone", None)])
    log.send([(b"k", b"2")])
    compact(log)
    assert log.log.offset_for_timestamp(1_001, 100) == (3, 1_003)
    assert log.log.offset_for_timestamp(1_004, 100) == (5, 3_000)
    assert log.log.offset_for_timestamp(3_001, 100) is None
    assert log.log.max_timestamp() == (5, 3_000)


def test_empty_batch_goes_when_the_producer_has_written_later(log):
    """Scenario 86, its end."""
    log.send([(b"k", b"1")], producer_id=4)
    log.send([(b"k", b"2")])
    compact(log)
    assert log.headers()[0].record_count == 0
    log.send([(b"other", b"1")], producer_id=4)
    compact(log)
    assert log.headers()[0].base_offset == 1


def test_empty_batch_goes_when_its_producer_is_forgotten(log):
    log.send([(b"k", b"1")], producer_id=4)
    log.send([(b"k", b"2")])
    compact(log)
    log.machine.expire(0)
    log.machine.expire(86_400_000)
    compact(log)
    assert log.headers()[0].base_offset == 1


def test_marker_that_holds_the_epoch_of_a_live_producer_is_never_removed(log):
    log.send([(b"k", b"1")], producer_id=1, is_transactional=True)
    marker = log.end(1, committed=True)
    log.send([(b"k", b"2")])
    for _ in range(4):
        log.now_ms += 2 * RETENTION_MS
        compact(log)
    assert marker in {header.base_offset for header in log.headers()}
    assert log.state(log.replayed())[1].producer_epoch == 1


def test_emptied_control_batch_is_passed_over_by_a_replay(log):
    """Scenario 37: the marker is the last batch of its segment, so its offset stays."""
    log.send([(b"p1", b"v" * 2_500)])
    log.send([(b"k", b"1")], producer_id=1, is_transactional=True)
    marker = log.end(1, committed=True)
    log.roll()
    log.send([(b"p2", b"v" * 2_500)])
    log.send([(b"k", b"2")], producer_id=1, is_transactional=True)
    log.end(1, committed=True)
    for _ in range(3):
        log.now_ms += 2 * RETENTION_MS
        compact(log)
    emptied = next(header for header in log.headers() if header.base_offset == marker)
    assert emptied.is_control
    assert emptied.record_count == 0
    assert log.state(log.replayed()) == log.state(log.machine)


def test_tombstone_stays_until_its_horizon_and_takes_the_value_at_once(log):
    log.send([(b"k", b"1")])
    log.send([(b"k", None), (b"x", b"1")])
    compact(log)
    assert pairs(log) == [(1, b"k", None), (2, b"x", b"1")]
    times = {record.offset: record.timestamp_ms for record in log.committed()}
    assert (times[1], times[2]) == (1_000, 1_001)
    log.now_ms += RETENTION_MS
    compact(log)
    assert pairs(log) == [(2, b"x", b"1")]
    assert log.committed()[0].timestamp_ms == 1_001


def test_dirty_part_with_too_many_keys_takes_several_rounds(log):
    for number in range(20):
        log.send([(b"%d" % (number % 10), b"%d" % number)])
    result = compact(log, keys_max=3)
    assert result.round_count > 3
    assert [value for _, _, value in pairs(log)] == [b"%d" % number for number in range(10, 20)]


def test_small_segments_are_merged_and_the_log_end_stays(log):
    for number in range(40):
        log.send([(b"k", b"v" * 900)])
        log.send([(b"%d" % number, b"v")])
    compact(log)
    end, count = log.log.log_end_offset, log.log.segment_count
    compact(log)
    assert log.log.segment_count < count
    assert log.log.log_end_offset == end + 1
    assert len(pairs(log)) == 41
    assert segments_of(log.log).holding(end).base_offset == log.machine.log_end_offset - 1


def test_compaction_of_a_clean_log_writes_nothing(log):
    log.send([(b"k", b"1")])
    log.send([(b"k", b"2")])
    compact(log)
    again = log.clean()
    assert (again.segments_replaced, again.bytes_after) == (0, again.bytes_before)


def test_dirty_ratio_rises_with_writes_and_falls_with_compaction(log):
    log.sync()
    cleaner = Cleaner(log.log, CompactionSettings(min_dirty_ratio=0.4))
    assert cleaner.dirty_ratio(upper_offset=100, now_ms=0) == 0
    log.send([(b"a", b"1" * 900)])
    log.roll()
    log.sync()
    assert cleaner.dirty_ratio(upper_offset=100, now_ms=0) == 1
    assert cleaner.is_due(upper_offset=100, now_ms=0)
    assert not cleaner.is_due(upper_offset=0, now_ms=0)
    log.clean()
    assert cleaner.dirty_ratio(upper_offset=100, now_ms=0) == 0
    log.send([(b"b", b"1" * 900)])
    log.roll()
    log.sync()
    assert cleaner.dirty_ratio(upper_offset=100, now_ms=0) == pytest.approx(0.5, abs=0.1)


def test_what_is_younger_than_the_minimum_lag_is_left_alone(log):
    log.send([(b"a", b"1")])
    log.send([(b"a", b"2")])
    log.roll()
    log.now_ms += 500
    log.send([(b"a", b"3")])
    compact(log, min_lag_ms=400)
    assert pairs(log) == [(1, b"a", b"2"), (2, b"a", b"3")]


def test_what_is_older_than_the_maximum_lag_makes_the_log_due(log):
    log.send([(b"a", b"1")])
    log.roll()
    log.sync()
    cleaner = Cleaner(log.log, CompactionSettings(min_dirty_ratio=1.0, max_lag_ms=500))
    assert not cleaner.is_due(upper_offset=1, now_ms=1_500)
    assert cleaner.is_due(upper_offset=1, now_ms=1_501)


def test_first_dirty_offset_survives_a_restart(log):
    log.send([(b"a", b"1")])
    compact(log)
    log.reopen(is_clean=False)
    assert Cleaner(log.log).first_dirty_offset == 1
    checkpoint = (log.directory / "cleaner-offset-checkpoint").read_text()
    assert checkpoint == "0\n1\nflights 0 1\n"


def test_unsynced_segments_are_not_compacted(log):
    log.send([(b"a", b"1")])
    log.send([(b"a", b"2")])
    log.roll()
    result = Cleaner(log.log).clean(upper_offset=2, now_ms=0, producers=())
    assert result.segments_replaced == 0


def test_compacted_segments_are_recovered_with_their_gaps(log):
    for number in range(30):
        log.send([(b"k", b"v" * 300)])
        log.send([(b"%d" % number, b"v")])
    compact(log)
    expected = pairs(log)
    log.log.close(None)
    (log.directory / "recovery-checkpoint").unlink()
    for index in log.directory.glob("*.*index"):
        if index.suffix != ".txnindex":
            index.unlink()
    log.log = log.open()
    log.machine = log.replayed(with_snapshot=True)
    assert pairs(log) == expected


def test_damaged_batch_stops_compaction_and_changes_nothing(log):
    log.send([(b"k", b"1")])
    log.send([(b"k", b"2")])
    log.roll()
    log.sync()
    path = log.directory / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match=path.name):
        log.clean()
    assert path.read_bytes() == data
    assert not list(log.directory.glob("*.cleaned"))
    assert log.log.failure is None


def test_segments_that_were_cut_off_meanwhile_are_not_replaced(log):
    for _ in range(3):
        log.send([(b"k", b"1")])
        log.roll()
    log.sync()
    cleaner = Cleaner(log.log)
    cleaning = cleaner.begin(upper_offset=3, now_ms=0, producers=())
    steps = cleaning.steps()
    replacement = next(step for step in steps if not isinstance(step, int))
    log.log.truncate_to(1)
    cleaner.install(cleaning, replacement)
    assert list(steps) == []
    assert cleaning.is_stale
    assert log.log.log_end_offset == 1
    assert not [*log.directory.glob("*.cleaned"), *log.directory.glob("*.swap")]


@pytest.mark.parametrize("offset", [3, 5, 8])
def test_what_is_written_after_a_cut_into_compacted_records_is_dirty(log, offset):
    """The cut falls on a kept batch, into the gap before it, or beyond all that is compacted."""
    for _ in range(3):
        log.send([(b"k", b"v" * 500)])
    log.send([(b"k1", b"last of its segment")])
    log.roll()
    log.send([(b"k", b"newest")])
    log.send([(b"k", b"newer")])
    log.send([(b"k2", b"last of its segment")])
    log.roll()
    compact(log)
    assert Cleaner(log.log).first_dirty_offset == 7
    log.log.truncate_to(offset)
    end = log.log.log_end_offset
    assert end <= offset
    log.machine = log.replayed()
    for _ in range(8):
        log.send([(b"k", b"again")])
    assert Cleaner(log.log).first_dirty_offset == min(end, 7)
    log.roll()
    log.sync()
    assert Cleaner(log.log).dirty_ratio(upper_offset=log.log.log_end_offset, now_ms=0) > 0


def test_snapshot_that_shows_a_decided_transaction_as_open_is_removed(log):
    """A replay from it would not meet the marker any more and wait for it for ever."""
    log.send([(b"p1", b"v" * 2_500)])
    log.send([(b"k", b"1")], producer_id=1, is_transactional=True)
    log.roll()
    log.end(1, committed=True)
    log.send([(b"p2", b"v" * 2_500)])
    compact(log)
    assert segments_of(log.log).holding(2).base_offset == 2
    assert not (log.directory / f"{2:020d}.snapshot").exists()


def test_snapshots_stay_with_their_segments_and_go_with_them(log):
    log.send([(b"p1", b"v" * 2_500)])
    log.roll()
    log.send([(b"p2", b"v" * 2_500)])
    log.roll()
    log.send([(b"p3", b"v")])
    compact(log)
    snapshots = {int(path.stem) for path in log.directory.glob("*.snapshot")}
    assert [segments_of(log.log).holding(offset).base_offset for offset in (0, 1, 2, 3)] == [
        0,
        1,
        1,
        3,
    ]
    assert snapshots == {1, 3}


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_dirty_ratio": 1.1},
        {"delete_retention_ms": -1},
        {"keys_max": 0},
        {"min_lag_ms": 2, "max_lag_ms": 1},
    ],
)
def test_impossible_setting_is_refused(wrong):
    with pytest.raises(ValueError, match=r"."):
        CompactionSettings(**wrong)
