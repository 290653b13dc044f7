from __future__ import annotations

import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.side_files import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERY_FILE,
    CleanShutdown,
    RecoveryCheckpoint,
    RecoveryCheckpointFile,
    decode_leader_epochs,
    encode_leader_epochs,
    encode_log_start,
    read_clean_shutdown,
    read_leader_epochs,
    read_log_start,
    read_recovery_checkpoint,
    write_leader_epochs,
    write_log_start,
)
from oncelog.storage.segments.leader_epochs import with_leader_epoch

CHECKPOINT = RecoveryCheckpoint(recovery_point=120, log_start_offset=5, high_watermark=118)


def test_leader_epochs_are_kafkas_text():
    assert encode_leader_epochs([(0, 0), (3, 120)]) == b"0\n2\n0 0\n3 120\n"


def test_leader_epochs_come_back(filesystem, tmp_path):
    write_leader_epochs(filesystem, tmp_path, [(0, 0), (3, 120)])
    assert read_leader_epochs(filesystem, tmp_path) == [(0, 0), (3, 120)]


def test_missing_leader_epochs_are_none_at_all(filesystem, tmp_path):
    assert read_leader_epochs(filesystem, tmp_path) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"1\n0\n", b"0\n2\n0 0\n", b"0\nx\n", b"0\n2\n1 5\n0 9\n", b"0\n2\n1 5\n2 5\n", b"\xff"],
)
def test_impossible_leader_epochs_are_refused(filesystem, tmp_path, data):
    with pytest.raises(CorruptDataError):
        decode_leader_epochs(data)
    (tmp_path / LEADER_EPOCH_FILE).write_bytes(data)
    with pytest.raises(CorruptDataError, match=str(tmp_path)):
        read_leader_epochs(filesystem, tmp_path)


@pytest.mark.parametrize(
    ("epochs", "epoch", "start", "result"),
    [
        ([], 4, 0, [(4, 0)]),
        ([(1, 0)], 2, 10, [(1, 0), (2, 10)]),
        ([(1, 0), (2, 10)], 2, 20, [(1, 0), (2, 10)]),
        ([(1, 0), (2, 10)], 2, 8, [(1, 0), (2, 8)]),
        ([(1, 0), (2, 10)], 3, 10, [(1, 0), (3, 10)]),
        ([(1, 0), (5, 10)], 3, 12, [(1, 0), (3, 12)]),
    ],
)
def test_new_leader_epoch_removes_what_conflicts(epochs, epoch, start, result):
    assert with_leader_epoch(epochs, epoch, start) == result


def test_recovery_checkpoint_is_text_with_a_crc():
    lines = CHECKPOINT.to_bytes().decode().splitlines()
    assert lines[:4] == [
        "0",
        "recovery_point 00000000000000000120",
        "log_start_offset 00000000000000000005",
        "high_watermark 00000000000000000118",
    ]
    assert lines[4].startswith("crc32c ")


def test_every_damaged_byte_of_a_recovery_checkpoint_is_noticed():
    data = CHECKPOINT.to_bytes()
    assert RecoveryCheckpoint.from_bytes(data) == CHECKPOINT
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x01
        with pytest.raises(CorruptDataError):
            RecoveryCheckpoint.from_bytes(bytes(damaged))


def test_missing_or_damaged_recovery_checkpoint_says_nothing(filesystem, tmp_path):
    assert read_recovery_checkpoint(filesystem, tmp_path) is None
    (tmp_path / RECOVERY_FILE).write_bytes(CHECKPOINT.to_bytes()[:-1])
    assert read_recovery_checkpoint(filesystem, tmp_path) is None


def test_recovery_checkpoint_is_first_replaced_and_then_overwritten(filesystem, tmp_path):
    file = RecoveryCheckpointFile(filesystem, tmp_path)
    file.write(RecoveryCheckpoint(recovery_point=1, log_start_offset=0, high_watermark=0))
    assert filesystem.synced == [f"{RECOVERY_FILE}.tmp"]
    inode = (tmp_path / RECOVERY_FILE).stat().st_ino
    file.write(CHECKPOINT)
    assert (tmp_path / RECOVERY_FILE).stat().st_ino == inode
    assert read_recovery_checkpoint(filesystem, tmp_path) == CHECKPOINT
    file.close()


def test_log_start_comes_back_as_text_with_a_crc(filesystem, tmp_path):
    assert read_log_start(filesystem, tmp_path) is None
    write_log_start(filesystem, tmp_path, 120)
    lines = (tmp_path / LOG_START_FILE).read_text().splitlines()
    assert lines[:2] == ["0", "log_start_offset 00000000000000000120"]
    assert lines[2].startswith("crc32c ")
    assert read_log_start(filesystem, tmp_path) == 120


def test_every_damaged_byte_of_a_log_start_is_noticed(filesystem, tmp_path):
    data = encode_log_start(120)
    changed = [data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :] for at in range(len(data))]
    for damaged in (*changed, b"", data[:-1], data + b"\n", b"0\nlog_start_offset\nx\n"):
        (tmp_path / LOG_START_FILE).write_bytes(damaged)
        with pytest.raises(CorruptDataError, match=str(tmp_path / LOG_START_FILE)):
            read_log_start(filesystem, tmp_path)


def test_clean_shutdown_comes_back(filesystem, tmp_path):
    flag = CleanShutdown(log_end_offset=9, active_base_offset=4, active_size_bytes=500)
    (tmp_path / CLEAN_SHUTDOWN_FILE).write_bytes(flag.to_bytes())
    assert read_clean_shutdown(filesystem, tmp_path) == flag


@pytest.mark.parametrize(
    "data", [b"", b"0\n", b"1\n9 4 500\n", b"0\n9 4\n", b"0\nx y z\n", b"\xff"]
)
def test_unreadable_clean_shutdown_does_not_count(filesystem, tmp_path, data):
    assert read_clean_shutdown(filesystem, tmp_path) is None
    (tmp_path / CLEAN_SHUTDOWN_FILE).write_bytes(data)
    assert read_clean_shutdown(filesystem, tmp_path) is None
