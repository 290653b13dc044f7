from __future__ import annotations

import re
from pathlib import Path

import pytest
from crash_disk import CrashDisk
from partition_logs import flip, log_file, offsets_of, read_all

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.partition import PartitionLog
from oncelog.storage.log.side_files import accept_cut
from oncelog.storage.log_settings import LogSettings
from oncelog.storage.records.batch import parse_header
from oncelog.storage.segments.inspection import TailDefect

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


def lose_sector(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    lost = data[position : position + 512]
    data[position : position + 512] = bytes(len(lost))
    path.write_bytes(data)


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


@pytest.mark.parametrize("position", [190, 290, 108, 117, 250, 211])
def test_bit_flip_beyond_the_recovery_point_is_refused(open_log, append, sync, tmp_path, position):
    """No power loss leaves it, so the checkpoint may be old and the batch acknowledged."""
    log = open_log()
    append(log)
    sync(log)
    append(log)
    append(log)
    flip(log_file(tmp_path), position)
    with pytest.raises(CorruptDataError, match=r"rule R-7\); to lose all .* accept-cut"):
        open_log()
    assert log_file(tmp_path).stat().st_size == 300


def test_torn_batch_beyond_the_recovery_point_is_cut(open_log, append, sync, tmp_path):
    log = open_log()
    append(log)
    sync(log)
    append(log, size_bytes=900)
    append(log)
    lose_sector(log_file(tmp_path), 512)
    log = open_log()
    assert log.log_end_offset == 1
    assert log.cut is not None
    assert log.cut.cut_bytes == 1_000
    assert str(log.cut).startswith("1000 bytes are cut from ")


def test_cut_that_an_operator_accepts_is_made_once_at_the_place_that_was_named(
    open_log, append, sync, tmp_path, filesystem
):
    directory = tmp_path / "flights-0"
    log = open_log()
    for _ in range(4):
        append(log)
    sync(log)
    log.close(None)
    flip(log_file(tmp_path), 290)
    accept_cut(filesystem, directory, 1)
    with pytest.raises(CorruptDataError, match=r"offset 2: .*rule R-3.*accept-cut .* 2$"):
        open_log()
    accept_cut(filesystem, directory, 2)
    log = open_log()
    assert (log.log_end_offset, log.recovery_point) == (2, 2)
    assert log.cut is not None
    assert log.cut.is_accepted
    assert log.cut.cut_bytes == 200
    assert not (directory / "accepted-cut").exists()
    append(log)
    append(log)
    sync(log)
    log.close(None)
    flip(log_file(tmp_path), 290)
    with pytest.raises(CorruptDataError, match="rule R-3"):
        open_log()


def test_accepted_cut_of_records_that_are_missing_lowers_the_promise(
    open_log, append, sync, tmp_path, filesystem
):
    log = open_log()
    append(log)
    append(log)
    sync(log)
    log.close(None)
    path = log_file(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    accept_cut(filesystem, tmp_path / "flights-0", 1)
    log = open_log()
    assert (log.log_end_offset, log.recovery_point, log.high_watermark) == (1, 1, 0)
    log.close(None)
    assert open_log().log_end_offset == 1


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
    path = log_file(tmp_path)
    path.write_bytes(path.read_bytes()[:250])
    assert open_log().log_end_offset == 2


def test_without_checkpoint_a_last_batch_that_is_not_torn_is_refused(open_log, append, tmp_path):
    log = open_log()
    for _ in range(3):
        append(log)
    (tmp_path / "flights-0" / "recovery-checkpoint").unlink()
    flip(log_file(tmp_path), 250)
    with pytest.raises(CorruptDataError, match="rule R-8"):
        open_log()


def test_torn_batch_in_an_unsynced_segment_removes_the_later_ones(open_log, append, tmp_path):
    log = open_log(segment_bytes=250)
    for _ in range(6):
        append(log)
    path = log_file(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:150])
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


def test_damage_before_what_the_disk_does_not_give_back_is_refused_by_file(make_batch):
    """Whether it is a torn tail cannot be told, and nothing is cut."""
    disk, path = CrashDisk(), Path("/data/flights-0")
    log = PartitionLog.open(filesystem=disk, directory=path, settings=LogSettings(), now_ms=0)
    for offset in range(3):
        batch = make_batch(offset, 1, size_bytes=1_000_000)
        log.append(batch, parse_header(batch))
    disk = disk.after_kill()
    file = path / f"{0:020d}.log"
    before = disk.read_whole(file)
    disk.flip_bit(file, 1_000, 3)
    disk.spoil(file, 2_560_000, 2_560_512)
    with pytest.raises(CorruptDataError, match=re.escape(f"{file} cannot be read")):
        PartitionLog.open(filesystem=disk, directory=path, settings=LogSettings(), now_ms=0)
    disk.mend(file)
    assert len(disk.read_whole(file)) == len(before)
