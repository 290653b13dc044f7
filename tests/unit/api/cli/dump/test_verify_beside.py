"""``oncelog dump --verify``: damage of the files beside the log."""

from __future__ import annotations

import dataclasses
import shutil
import struct

import pytest
from partition_files import (
    ACTIVE,
    FIRST,
    SECOND,
    cut,
    file_of,
    overwrite,
    positions,
    set_recovery_point,
)
from partition_logs import flip

from oncelog.storage.log.producer_snapshot import decode_snapshot, encode_snapshot
from oncelog.storage.log.side_files import encode_log_start


@pytest.mark.parametrize(
    ("suffix", "position", "data", "entry", "reason"),
    [
        (".index", 4, struct.pack(">i", 1_081), 0, "no batch begins at byte 1081"),
        (".index", 0, struct.pack(">i", 28), 0, "offset 28 for the batch at byte 1080"),
        (".index", 8, struct.pack(">i", 3), 8, "offset goes from 29 to 3"),
        (".timeindex", 7, b"\x00", 0, "for the batch that ends with offset 29 and has"),
        (".timeindex", 8, struct.pack(">i", 28), 0, "no batch ends with offset 28"),
        (".timeindex", 12, bytes(8), 12, "timestamp_ms goes from"),
        (".txnindex", 2, struct.pack(">q", 9), 0, "producer_id 9 for the transaction that ends"),
        (".txnindex", 10, struct.pack(">q", 9), 0, "first_offset 9 for the transaction that ends"),
        (".txnindex", 26, struct.pack(">q", 63), 0, "last_stable_offset 63 for the transaction"),
        (".txnindex", 18, struct.pack(">q", 61), 0, "no ABORT marker at offset 61"),
        (".txnindex", 34, b"\x00\x07", 34, "unknown version 7"),
        (".txnindex", 52, struct.pack(">q", 2), 34, "last_offset goes from 62 to 2"),
    ],
)
def test_an_index_entry_that_does_not_fit_is_named(
    flights, verify, suffix, position, data, entry, reason
):
    path = file_of(flights, FIRST, suffix)
    overwrite(path, position, data)
    status, problems, _ = verify(flights)
    assert status == 1
    assert any(
        name == path.name and where == entry and reason in text for name, where, text in problems
    ), problems


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_an_index_with_half_an_entry_is_named(flights, verify, suffix):
    path = file_of(flights, FIRST, suffix)
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\x00\x00\x00")
    problems = verify(flights)[1]
    assert (path.name, whole, "3 bytes of an incomplete entry") in problems


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_index_of_a_synced_segment_is_named(flights, verify, suffix):
    path = file_of(flights, FIRST, suffix)
    path.unlink()
    assert verify(flights)[1] == [(path.name, 0, "it is missing")]


def test_a_time_index_that_ends_early_is_named(flights, verify):
    path = file_of(flights, FIRST, ".timeindex")
    cut(path, 12)
    problems = verify(flights)[1]
    assert [(name, where) for name, where, _ in problems] == [(path.name, 0)]
    assert "no entry for the largest timestamp" in problems[0][2]


def test_an_aborted_transaction_without_an_entry_is_named(flights, verify):
    path = file_of(flights, FIRST, ".txnindex")
    path.write_bytes(path.read_bytes()[34:])
    expected = (path.name, 0, "no entry for the aborted transaction that ends at offset 62")
    assert verify(flights)[1] == [expected]


def test_a_missing_aborted_index_is_named(flights, verify):
    path = file_of(flights, ACTIVE, ".txnindex")
    path.unlink()
    assert {name for name, _, _ in verify(flights)[1]} == {path.name}


def test_an_entry_that_is_not_synced_yet_is_a_note(killed, verify):
    set_recovery_point(killed, ACTIVE)
    file_of(killed, ACTIVE, ".txnindex").unlink()
    status, problems, notes = verify(killed)
    assert (status, problems) == (0, [])
    assert {name for name, _, _ in notes} == {f"{ACTIVE:020d}.txnindex"}


def test_a_snapshot_with_a_wrong_crc_is_named(flights, verify):
    path = file_of(flights, SECOND, ".snapshot")
    flip(path, 20)
    assert verify(flights)[1] == [(path.name, 0, "producer snapshot does not match its CRC")]


def change_snapshot(path, change):
    path.write_bytes(encode_snapshot(change(decode_snapshot(path.read_bytes()))))


def test_a_snapshot_that_is_not_what_the_log_says_is_named(flights, verify):
    path = file_of(flights, SECOND, ".snapshot")
    change_snapshot(path, lambda entries: [dataclasses.replace(entries[0], last_sequence=58)])
    problems = verify(flights)[1]
    reason = "producer 1000: last_sequence 58, the log says 59"
    assert (path.name, 0, reason) in problems
    reason = "producer 3000 with an open transaction is not in it"
    assert (path.name, 0, reason) in problems


def test_a_producer_that_no_batch_has_is_named(flights, verify):
    path = file_of(flights, SECOND, ".snapshot")
    change_snapshot(
        path, lambda entries: [*entries, dataclasses.replace(entries[0], producer_id=7)]
    )
    assert verify(flights)[1] == [(path.name, 0, "producer 7: the log does not know it")]


def test_a_producer_that_a_snapshot_has_forgotten_is_a_note(flights, verify):
    path = file_of(flights, SECOND, ".snapshot")
    change_snapshot(path, lambda entries: entries[1:])
    assert verify(flights) == (0, [], [(path.name, 0, "1 producers of the log are not in it")])


def test_a_snapshot_that_forgot_batches_at_markers_is_as_good(flights, verify):
    """That of an older build."""
    path = file_of(flights, SECOND, ".snapshot")
    ended = [one.batch_epoch for one in decode_snapshot(path.read_bytes())]
    assert max(ended) >= 0
    change_snapshot(
        path, lambda entries: [e if e.batch_epoch < 0 else e.without_batch() for e in entries]
    )
    assert verify(flights) == (0, [], [])


def test_a_batch_of_another_epoch_than_the_log_says_is_named(flights, verify):
    path = file_of(flights, SECOND, ".snapshot")
    change_snapshot(
        path,
        lambda entries: [
            e if e.batch_epoch < 0 else dataclasses.replace(e, producer_epoch=9, batch_epoch=8)
            for e in entries
        ],
    )
    reasons = [reason for _, _, reason in verify(flights)[1]]
    assert any("batch_epoch 8, the log says" in reason for reason in reasons)


def test_a_snapshot_beyond_the_log_end_is_named(flights, verify):
    path = file_of(flights, SECOND, ".snapshot")
    shutil.copy(path, file_of(flights, 800, ".snapshot"))
    expected = (f"{800:020d}.snapshot", 0, "offset 800 is beyond the log end 769")
    assert verify(flights)[1] == [expected]


def test_a_snapshot_within_a_batch_is_named(flights, verify):
    shutil.copy(file_of(flights, SECOND, ".snapshot"), file_of(flights, 5, ".snapshot"))
    expected = (f"{5:020d}.snapshot", 0, "offset 5 lies within the batch at offset 0")
    assert verify(flights)[1] == [expected]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("recovery-checkpoint", b"0\nrecovery_point 1\n", "cannot be read"),
        ("leader-epoch-checkpoint", b"0\n2\n3 0\n", "incomplete"),
        ("leader-epoch-checkpoint", b"0\n1\n4 0\n", "leader epoch 4 at offset 0, the log says 3"),
        ("leader-epoch-checkpoint", b"0\n2\n3 0\n4 770\n", "leader epoch 4 begins beyond"),
        ("log-start-offset", b"0\nlog_start_offset 5\ncrc32c 00000000\n", "its CRC"),
        (".clean_shutdown", b"0\n769 735\n", "cannot be read"),
        (".clean_shutdown", b"0\n769 735 878\n", "active_size_bytes=877"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named(flights, verify, name, data, reason):
    (flights / name).write_bytes(data)
    status, problems, _ = verify(flights)
    assert status == 1
    assert any(file == name and reason in text for file, _, text in problems), problems


@pytest.mark.parametrize("offset", [5, 769])
def test_a_log_start_within_the_log_is_no_problem(flights, verify, offset):
    (flights / "log-start-offset").write_bytes(encode_log_start(offset))
    assert verify(flights) == (0, [], [])


def test_a_log_that_ends_below_its_start_is_named(flights, verify):
    (flights / "log-start-offset").write_bytes(encode_log_start(770))
    expected = "the log ends with offset 769, but 770 were synced"
    assert [text for _, _, text in verify(flights)[1]] == [expected]


def test_a_missing_leader_epoch_checkpoint_is_named(flights, verify):
    (flights / "leader-epoch-checkpoint").unlink()
    assert verify(flights)[1] == [("leader-epoch-checkpoint", 0, "it is missing")]


def test_a_leader_epoch_that_falls_is_named(flights, verify):
    position = positions(flights, SECOND)[1][0]
    overwrite(file_of(flights, SECOND, ".log"), position + 12, struct.pack(">i", 2))
    expected = (f"{SECOND:020d}.log", position, "leader epoch 2 after 3")
    assert verify(flights)[1] == [expected]


def test_of_one_file_only_its_own_problems_are_told(flights, verify):
    flip(file_of(flights, SECOND, ".snapshot"), 20)
    cut(file_of(flights, FIRST, ".timeindex"), 12)
    _, problems, _ = verify(file_of(flights, SECOND, ".snapshot"))
    assert {name for name, _, _ in problems} == {f"{SECOND:020d}.snapshot"}
