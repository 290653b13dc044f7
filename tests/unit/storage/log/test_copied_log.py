"""A follower's log: batches as the leader has them, with gaps; and a log dropped to begin anew."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from partition_logs import abort_two, flip, log_file, offsets_of, read_all

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.side_files import (
    LOG_START_FILE,
    OFFSET_GAPS_FILE,
    RESTART_FILE,
    encode_restart,
    read_topic_id,
    write_first_dirty_offset,
    write_topic_id,
)
from oncelog.storage.records.batch import iterate_batches, parse_header
from oncelog.storage.segments.indexes import RELATIVE_OFFSET_MAX

GAPPED = (0, 3, 4, 9, 20, 21, 40, 47)


@pytest.fixture
def copy(make_batch):
    """``copy(log, base_offset, count=1, ...)`` appends the leader's batch as it is."""

    def copy_one(log, base_offset: int, count: int = 1, **fields: int) -> bytes:
        batch = make_batch(base_offset, count, **fields)
        header = parse_header(batch)
        delta = header.last_offset - log.log_end_offset
        if log.needs_roll(len(batch), header.max_timestamp_ms, 0, last_offset_delta=delta):
            log.roll([])
        log.append_as_is(batch, header)
        return bytes(batch)

    return copy_one


def directory_of(tmp_path: Path) -> Path:
    return tmp_path / "flights-0"


# Appending


@pytest.mark.parametrize("segment_bytes", [250, 10_000])
@pytest.mark.parametrize("index_interval_bytes", [0, 1_000])
def test_batches_with_gaps_are_read_as_they_came(
    open_log, copy, segment_bytes, index_interval_bytes
):
    log = open_log(segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes)
    batches = [copy(log, offset, 1, leader_epoch=offset // 10) for offset in GAPPED]
    assert read_all(log) == b"".join(batches)
    assert log.log_end_offset == 48
    for offset in range(48):
        expected = next(base for base in GAPPED if base >= offset)
        assert offsets_of(log.read(offset, max_bytes=1, upper_offset=48)) == [expected]
        below = [base for base in GAPPED if base < offset]
        assert offsets_of(b"".join(part for part in _read_to(log, offset))) == below
    assert log.leader_epochs == [(0, 0), (2, 20), (4, 40)]


def _read_to(log, upper_offset: int):
    offset = 0
    while part := log.fetch(offset, max_bytes=1 << 20, upper_offset=upper_offset).records:
        yield part
        offset = max(header.next_offset for _, header in iterate_batches(part))


@pytest.mark.parametrize("segment_bytes", [250, 10_000])
@pytest.mark.parametrize("is_synced", [True, False])
@pytest.mark.parametrize("is_clean", [True, False])
def test_batches_with_gaps_survive_a_restart(
    open_log, copy, sync, segment_bytes, is_synced, is_clean
):
    log = open_log(segment_bytes=segment_bytes)
    data = b"".join(copy(log, offset, leader_epoch=offset // 10) for offset in GAPPED)
    if is_synced:
        sync(log)
    log.close([] if is_clean else None)
    log = open_log(segment_bytes=segment_bytes)
    assert (log.was_clean, log.cut) == (is_clean, None)
    assert read_all(log) == data
    assert log.log_end_offset == 48
    assert log.leader_epochs == [(0, 0), (2, 20), (4, 40)]
    copy(log, 60, leader_epoch=6)
    log.close(None)
    assert open_log(segment_bytes=segment_bytes).log_end_offset == 61


def test_a_gap_that_nobody_made_is_damage_as_before(open_log, append, sync, tmp_path):
    log = open_log()
    for _ in range(3):
        append(log)
    sync(log)
    log.close(None)
    path = log_file(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:100] + data[200:])
    with pytest.raises(CorruptDataError, match="recovery point 3"):
        open_log()


def test_only_the_segment_with_a_gap_may_have_more(open_log, copy, sync, tmp_path):
    log = open_log(segment_bytes=250)
    for offset in (0, 2, 3, 4):
        copy(log, offset)
    assert (directory_of(tmp_path) / OFFSET_GAPS_FILE).read_text() == f"0\n{2**31}\n"
    copy(log, 2**31 + 1)
    copy(log, 2**31 + 3)
    ends = (directory_of(tmp_path) / OFFSET_GAPS_FILE).read_text()
    assert ends == f"0\n{5 + 2**31}\n"


def test_a_gap_as_wide_as_a_segment_begins_the_next_one(open_log, copy):
    log = open_log()
    first = copy(log, 0)
    second = copy(log, RELATIVE_OFFSET_MAX + 1)
    assert log.segment_count == 2
    log.close(None)
    log = open_log()
    assert read_all(log) == first + second
    assert offsets_of(log.read(5, max_bytes=1, upper_offset=2**32)) == [RELATIVE_OFFSET_MAX + 1]


@pytest.mark.parametrize("offset", [0, 1, RELATIVE_OFFSET_MAX + 1])
def test_a_batch_that_does_not_fit_is_refused(open_log, copy, make_batch, offset):
    log = open_log()
    copy(log, 0, 2)
    batch = make_batch(offset)
    with pytest.raises(ValueError, match="cannot follow"):
        log.append_as_is(batch, parse_header(batch))
    assert log.log_end_offset == 2


def test_bytes_that_are_not_as_their_header_says_are_refused(open_log, make_batch):
    log = open_log()
    other = parse_header(make_batch(0, leader_epoch=1))
    with pytest.raises(ValueError, match="cannot follow"):
        log.append_as_is(make_batch(0), other)
    assert log.leader_epochs == []


def test_a_leader_still_leaves_no_gap(open_log, make_batch):
    log = open_log()
    batch = make_batch(1)
    with pytest.raises(ValueError, match="does not fit"):
        log.append(batch, parse_header(batch))


def test_an_epoch_that_wrote_nothing_gives_way_to_that_of_a_copied_batch(open_log, copy):
    """1. It led in epoch 5 and wrote nothing. 2. The next leader has more batches of epoch 3."""
    log = open_log()
    copy(log, 0, leader_epoch=3)
    log.assign_leader_epoch(5, 1)
    copy(log, 1, leader_epoch=3)
    copy(log, 4, leader_epoch=6)
    assert log.leader_epochs == [(3, 0), (6, 4)]
    log.close(None)
    assert open_log().leader_epochs == [(3, 0), (6, 4)]


def test_a_batch_of_an_older_epoch_than_the_last_is_refused(open_log, copy):
    log = open_log()
    copy(log, 0, leader_epoch=3)
    with pytest.raises(ValueError, match="leader epoch 2 after one of 3"):
        copy(log, 1, leader_epoch=2)
    assert (log.log_end_offset, log.leader_epochs) == (1, [(3, 0)])


def test_a_cut_within_a_gap_ends_before_it(open_log, copy, sync):
    log = open_log(segment_bytes=250)
    for offset in GAPPED:
        copy(log, offset, leader_epoch=offset // 10)
    sync(log)
    log.truncate_to(30)
    assert (log.log_end_offset, log.recovery_point) == (22, 22)
    assert log.leader_epochs == [(0, 0), (2, 20)]
    copy(log, 23, leader_epoch=2)
    log.close(None)
    assert offsets_of(read_all(open_log(segment_bytes=250))) == [0, 3, 4, 9, 20, 21, 23]


def test_a_damaged_gap_file_allows_gaps(open_log, copy, tmp_path):
    log = open_log()
    data = copy(log, 0) + copy(log, 7)
    log.close(None)
    (directory_of(tmp_path) / OFFSET_GAPS_FILE).write_bytes(b"\xff")
    assert read_all(open_log()) == data


# Restarting


@pytest.fixture
def full(open_log, copy, sync, tmp_path, filesystem):
    """A log of eight batches in four segments, with all files that a log may have."""
    directory_of(tmp_path).mkdir()
    write_topic_id(filesystem, directory_of(tmp_path), "a" * 32)
    log = open_log(segment_bytes=250)
    for offset in GAPPED:
        copy(log, offset, leader_epoch=offset // 10)
    abort_two(log)
    sync(log)
    write_first_dirty_offset(filesystem, directory_of(tmp_path), 9)
    log.high_watermark = 30
    log.advance_log_start(4)
    return log


@pytest.mark.parametrize("offset", [0, 4, 10, 20, 48, 1_000])
@pytest.mark.parametrize("is_clean", [None, True, False])
def test_a_restarted_log_is_empty_and_begins_at_the_offset(
    full, open_log, copy, sync, tmp_path, filesystem, offset, is_clean
):
    log, generation = full, full.generation
    point = log.sync_point()
    log.restart_at(offset)
    if is_clean is None:
        point.run()
        assert not log.mark_synced(point)
    else:
        log.close([] if is_clean else None)
        log = open_log(segment_bytes=250)
    assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
    assert (log.recovery_point, log.high_watermark) == (offset, offset)
    assert (log.segment_count, log.size_bytes) == (1, 0)
    assert log.leader_epochs == []
    assert log.latest_snapshot() == (offset, [])
    assert log.aborted_transactions(offset, 1 << 40) == ()
    assert is_clean is not None or log.generation > generation
    assert read_topic_id(filesystem, directory_of(tmp_path)) == "a" * 32
    data = copy(log, offset + 2, leader_epoch=9) + copy(log, offset + 3, leader_epoch=9)
    assert read_all(log) == data
    sync(log)
    assert log.recovery_point == offset + 4
    log.close(None)
    log = open_log(segment_bytes=250)
    assert read_all(log) == data
    assert (log.log_start_offset, log.leader_epochs) == (offset, [(9, offset + 2)])


def test_nothing_of_the_old_log_is_left(full, open_log, tmp_path):
    assert (directory_of(tmp_path) / LOG_START_FILE).exists()
    full.close(None)
    log = open_log(segment_bytes=250)
    log.restart_at(20)
    log.begin_restore()
    log.end_restore()
    log.close(None)
    names = {path.name for path in directory_of(tmp_path).iterdir()}
    assert names == {
        f"{20:020d}.log",
        "recovery-checkpoint",
        "partition.metadata",
        ".topic_id",
    }


def test_a_restart_leaves_no_file_of_the_old_log_open(full, copy, tmp_path):
    """Neither those that were read nor those that were to be synced."""
    read_all(full)
    for offset in range(50, 60):
        copy(full, offset, leader_epoch=5)
    full.restart_at(20)
    names = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert [name for name in names if tmp_path in name.parents] == [log_file(tmp_path, 20)]


def test_an_index_entry_that_had_no_room_is_owed_no_more(full, filesystem):
    filesystem.fail("append", ".txnindex", errno.ENOSPC)
    full.append_aborted(producer_id=1, first_offset=40, last_offset=47, last_stable_offset=48)
    assert full.indexed_end_offset == 47
    full.restart_at(20)
    assert full.indexed_end_offset == 20


def test_the_checkpoint_of_a_restarted_log_is_durable(full):
    full.restart_at(1_000)
    assert not full.has_old_checkpoint


@pytest.mark.parametrize("offset", [None, 3])
def test_after_a_cut_or_restart_nothing_counts_as_checked_by_the_open(
    open_log, copy, tmp_path, offset
):
    log = open_log()
    for base_offset in range(5):
        copy(log, base_offset)
    log.close(None)
    log = open_log()
    assert len(list(log.replay_state(0))) > 0
    if offset is None:
        log.restart_at(0)
        copy(log, 0)
        copy(log, 1)
    else:
        log.truncate_to(offset)
    flip(log_file(tmp_path), 70)
    with pytest.raises(CorruptDataError, match="CRC"):
        list(log.replay_state(0))


def test_a_failed_restart_is_finished_by_the_next_open(full, open_log, filesystem):
    """Even a full disk: nobody can tell whether the log was dropped."""
    filesystem.fail("sync_directory", "flights-0", errno.ENOSPC)
    with pytest.raises(OSError, match="planned"):
        full.restart_at(20)
    assert full.failure is not None
    filesystem.heal()
    full.close(None)
    log = open_log()
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (20, 20, 0)


def test_a_damaged_restart_file_is_named(full, open_log, tmp_path):
    full.close(None)
    data = bytearray(encode_restart(20))
    data[20] ^= 1
    (directory_of(tmp_path) / RESTART_FILE).write_bytes(data)
    with pytest.raises(CorruptDataError, match=RESTART_FILE):
        open_log()
    assert log_file(tmp_path).exists()


def test_a_log_begins_at_no_negative_offset(full):
    with pytest.raises(ValueError, match="begin at 0"):
        full.restart_at(-1)
    assert full.log_end_offset == 48
