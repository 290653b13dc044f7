from __future__ import annotations

import pytest

from oncelog.storage.disk.sync_point import SyncLedger
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.loader import LogLoader
from oncelog.storage.log.side_files import read_recovery_checkpoint


@pytest.fixture
def load(filesystem, tmp_path):
    def load_log():
        directory = tmp_path / "flights-0"
        ledger = SyncLedger(filesystem, directory)
        return LogLoader(
            filesystem=filesystem,
            directory=directory,
            index_interval_bytes=4_096,
            ledger=ledger,
        ).load()

    return load_log


def test_missing_directory_becomes_an_empty_log(load, tmp_path):
    loaded = load()
    assert loaded.is_new
    assert loaded.was_clean
    assert loaded.recovery_point == 0
    assert (tmp_path / "flights-0" / f"{0:020d}.log").exists()


def test_new_log_has_a_durable_checkpoint_from_the_start(open_log, filesystem, tmp_path):
    open_log()
    checkpoint = read_recovery_checkpoint(filesystem, tmp_path / "flights-0")
    assert checkpoint is not None
    assert checkpoint.recovery_point == 0


def test_high_watermark_of_the_last_checkpoint_comes_back(open_log, append, sync, load):
    log = open_log()
    for _ in range(3):
        append(log)
    log.high_watermark = 2
    sync(log)
    assert load().high_watermark == 2


def test_high_watermark_is_never_beyond_the_log_end(open_log, append, sync, load):
    log = open_log()
    append(log)
    log.high_watermark = 99
    sync(log)
    assert load().high_watermark == 1


def test_log_start_of_the_checkpoint_comes_back(open_log, append, sync, load):
    log = open_log()
    for _ in range(3):
        append(log)
    log.log_start_offset = 2
    sync(log)
    assert load().log_start_offset == 2


def test_without_checkpoint_no_snapshot_and_no_aborted_entry_is_trusted(
    open_log, append, load, tmp_path
):
    log = open_log(segment_bytes=250)
    for _ in range(5):
        append(log)
    log.append_aborted(producer_id=1, first_offset=0, last_offset=2, last_stable_offset=3)
    (tmp_path / "flights-0" / "recovery-checkpoint").unlink()
    loaded = load()
    assert loaded.recovery_point is None
    assert loaded.snapshot_limit == 0
    assert all(len(segment.txn_index) == 0 for segment in loaded.segments)


def test_scan_begins_with_the_segment_that_holds_the_recovery_point(
    open_log, append, sync, load, tmp_path
):
    log = open_log(segment_bytes=250)
    for _ in range(3):
        append(log)
    sync(log)
    for _ in range(4):
        append(log)
    path = tmp_path / "flights-0" / f"{2:020d}.log"
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match=rf"{path} at byte 0, offset 2: .* rule R-3"):
        load()


def test_clean_flag_is_gone_after_a_load(open_log, append, load, tmp_path):
    log = open_log()
    append(log)
    log.close([])
    flag = tmp_path / "flights-0" / ".clean_shutdown"
    assert flag.exists()
    assert load().was_clean
    assert not flag.exists()


def test_files_of_others_are_left_alone(open_log, load, tmp_path):
    open_log().close([])
    stranger = tmp_path / "flights-0" / "notes.log"
    stranger.write_bytes(b"x")
    load()
    assert stranger.exists()
