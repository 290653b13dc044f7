"""``oncelog dump --verify``: what is sound, and damage of the log itself."""

from __future__ import annotations

import struct

import crc32c
import pytest
import sample_logs
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
from transactional_logs import TransactionalLog

from oncelog.api.cli.data_directory import VERIFY_ATTEMPTS_MAX
from oncelog.storage.disk.file_system import ReadOnlyFileSystem, RealFileSystem
from oncelog.storage.log.partition import LogSettings
from oncelog.storage.records.layout import HEADER_BYTES


@pytest.mark.parametrize(
    "topic", ["flights", "__transaction_state", "__consumer_offsets", "__cluster_metadata"]
)
def test_a_sound_directory_has_neither_problems_nor_notes(samples, verify, topic):
    assert verify(samples / f"{topic}-0", "--deep") == (0, [], [])


def test_a_data_directory_is_verified_as_a_whole(samples, dump):
    assert dump("--verify", samples) == (0, [f"{samples}: 0 problems"])


def test_the_log_of_a_killed_process_is_sound(killed, verify):
    assert verify(killed) == (0, [], [])


def test_a_log_that_is_being_written_is_sound(tmp_path, verify):
    log = sample_logs.open_data_log(tmp_path)
    log.sync()
    log.data([sample_logs.record(9_001)])
    assert verify(log.directory) == (0, [], [])
    log.drop()


def test_a_log_that_lost_its_head_is_sound(flights, verify):
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        file_of(flights, FIRST, suffix).unlink()
    assert verify(flights) == (0, [], [])


def test_a_log_that_lost_its_head_and_the_snapshot_there_is_sound(flights, verify):
    for path in flights.glob(f"{FIRST:020d}.*"):
        path.unlink()
    file_of(flights, SECOND, ".snapshot").unlink()
    assert verify(flights)[1] == []


def test_nothing_is_written(samples, dump, monkeypatch):
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in samples.rglob("*")
        if path.is_file()
    }
    dump("--deep", samples)
    dump("--verify", samples)
    after = {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in samples.rglob("*")
        if path.is_file()
    }
    assert after == before


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_compacted_log_is_sound(tmp_path, verify, is_clean):
    settings = LogSettings(segment_bytes=4_000, index_interval_bytes=200)
    log = TransactionalLog(tmp_path / "flights-0", settings)
    for number in range(60):
        log.now_ms += 100
        log.send([(b"k%d" % (number % 3), b"v" * 50)] * 5, producer_id=1)
        log.send([(b"k%d" % (number % 4), b"v" * 50)] * 5, producer_id=2, is_transactional=True)
        log.end(2, committed=number % 3 == 0)
        if number == 10:
            log.send([(b"once", b"v")], producer_id=3, is_transactional=True)
            log.end(3, committed=False)
    size_bytes = log.log.size_bytes
    log.clean()
    assert log.log.size_bytes < size_bytes // 2
    log.send([(b"k", b"v")], producer_id=2, is_transactional=True)
    log.sync()
    log.log.close(log.machine.snapshot() if is_clean else None)
    assert verify(tmp_path / "flights-0", "--deep") == (0, [], [])


@pytest.mark.parametrize("swaps", [1, 99])
def test_segments_that_are_replaced_while_they_are_looked_at_are_no_problem(
    tmp_path, verify, monkeypatch, swaps
):
    """1. The log of a segment is opened. 2. Compaction replaces it. 3. Its indexes are opened."""
    settings = LogSettings(segment_bytes=4_000, index_interval_bytes=200)
    log = TransactionalLog(tmp_path / "flights-0", settings)
    open_file = ReadOnlyFileSystem.open
    opened = []

    def replacing(filesystem, path, *, create):
        found = open_file(filesystem, path, create=create)
        if path.name == f"{0:020d}.log" and len(opened) < swaps:
            opened.append(path)
            fill()
            log.clean()
        return found

    def fill():
        for number in range(40):
            log.now_ms += 100
            log.send([(b"%d-%d" % (len(opened), number), b"v" * 60)] * 2)
            log.send([(b"k", b"v" * 150)] * 4)
        log.sync()

    fill()
    monkeypatch.setattr(ReadOnlyFileSystem, "open", replacing)
    status, problems, notes = verify(tmp_path / "flights-0")
    assert (status, problems) == (0, [])
    assert len(opened) == min(swaps, VERIFY_ATTEMPTS_MAX)
    assert ("replaced during each of" in str(notes)) is (swaps > 1)
    log.log.close(None)


def test_a_segment_is_no_problem_while_only_its_log_has_not_been_replaced(
    tmp_path, verify, monkeypatch
):
    """Compaction replaces the files beside it, syncs the directory, and replaces the log last."""
    settings = LogSettings(segment_bytes=4_000, index_interval_bytes=200)
    log = TransactionalLog(tmp_path / "flights-0", settings)
    for number in range(40):
        log.now_ms += 100
        log.send([(b"%d" % number, b"v" * 60), (b"k", b"v" * 150)] * 2)
    log.sync()
    rename, seen = RealFileSystem.rename, []

    def renaming(filesystem, source, target):
        if source.name.endswith(".log.swap"):
            seen.append(verify(tmp_path / "flights-0")[:2])
        rename(filesystem, source, target)

    monkeypatch.setattr(RealFileSystem, "rename", renaming)
    log.clean()
    assert seen
    assert seen == [(0, [])] * len(seen)
    log.log.close(None)


# --- damage -----------------------------------------------------------------------------------


def test_a_flipped_bit_in_a_batch_is_named(flights, verify):
    position, header = positions(flights, FIRST)[3]
    flip(file_of(flights, FIRST, ".log"), position + HEADER_BYTES + 2)
    status, problems, _ = verify(flights)
    assert status == 1
    assert (f"{FIRST:020d}.log", position, "the batch does not match its CRC") in problems
    assert header.base_offset == 31
    assert len(problems) == 1


def test_several_damaged_batches_are_all_named(flights, verify):
    wanted = [positions(flights, FIRST)[number][0] for number in (2, 5, 9)]
    for position in wanted:
        flip(file_of(flights, FIRST, ".log"), position + HEADER_BYTES)
    assert [position for _, position, _ in verify(flights)[1]] == wanted


def test_bytes_that_are_no_batch_end_the_segment(flights, verify):
    position = positions(flights, FIRST)[4][0]
    overwrite(file_of(flights, FIRST, ".log"), position + 16, b"\x01")
    status, problems, _ = verify(flights)
    assert status == 1
    assert problems[0][:2] == (f"{FIRST:020d}.log", position)
    assert "no batch header of format version 2" in problems[0][2]


def test_a_base_offset_that_is_not_due_is_named(flights, verify):
    # It is outside the CRC.
    position = positions(flights, FIRST)[2][0]
    overwrite(file_of(flights, FIRST, ".log"), position, struct.pack(">q", 77))
    status, problems, _ = verify(flights)
    assert status == 1
    expected = "it begins with offset 77 where 30 is due"
    assert (f"{FIRST:020d}.log", position, expected) in problems


def test_a_missing_segment_is_named(flights, verify):
    file_of(flights, SECOND, ".log").unlink()
    problems = verify(flights)[1]
    expected = f"it begins with offset {ACTIVE} where {SECOND} is due"
    assert (f"{ACTIVE:020d}.log", 0, expected) in problems


def test_an_active_segment_cut_after_a_clean_close_is_named(flights, verify):
    path = file_of(flights, ACTIVE, ".log")
    cut(path, 3)
    last = positions(flights, ACTIVE)[-1]
    status, problems, _ = verify(flights)
    assert status == 1
    place = last[0] + last[1].size_bytes
    assert problems[0][:2] == (path.name, place)
    assert "the file ends inside a batch" in problems[0][2]


def test_a_whole_batch_lost_after_a_clean_close_is_named(flights, verify):
    path = file_of(flights, ACTIVE, ".log")
    cut(path, positions(flights, ACTIVE)[-1][1].size_bytes)
    problems = verify(flights)[1]
    size_bytes = path.stat().st_size
    assert (path.name, size_bytes, "the log ends with offset 768, but 769 were synced") in problems
    assert any(name == ".clean_shutdown" for name, _, _ in problems)


def test_a_torn_tail_of_a_killed_process_is_a_note(killed, verify):
    path = file_of(killed, ACTIVE, ".log")
    set_recovery_point(killed, 768)
    position = positions(killed, ACTIVE)[-1][0]
    cut(path, 3)
    status, problems, notes = verify(killed)
    assert (status, problems) == (0, [])
    assert [(name, where) for name, where, _ in notes] == [(path.name, position)]
    assert "torn tail" in notes[0][2]


def test_a_torn_tail_below_the_recovery_point_is_a_problem(killed, verify):
    cut(file_of(killed, ACTIVE, ".log"), 3)
    status, problems, _ = verify(killed)
    assert status == 1
    assert "the file ends inside a batch" in problems[0][2]


def test_a_torn_tail_without_a_checkpoint_is_a_note(killed, verify):
    (killed / "recovery-checkpoint").unlink()
    cut(file_of(killed, ACTIVE, ".log"), 3)
    status, problems, notes = verify(killed)
    assert (status, problems) == (0, [])
    assert "torn tail" in notes[-1][2]


def test_unsynced_damage_is_a_note_and_ends_the_look(killed, verify):
    set_recovery_point(killed, SECOND)
    position = positions(killed, SECOND)[1][0]
    flip(file_of(killed, SECOND, ".log"), position + HEADER_BYTES)
    status, problems, notes = verify(killed)
    assert (status, problems) == (0, [])
    assert notes[-1][:2] == (f"{SECOND:020d}.log", position)


def test_a_record_that_breaks_its_batch_is_found_by_deep_only(samples, tmp_path, verify):
    log = sample_logs.SampleLog(tmp_path, "flights")
    batch = sample_logs.encode_records([sample_logs.record(1)])
    batch[HEADER_BYTES] = 0x7E
    log.write(resealed(batch))
    log.close()
    assert verify(log.directory)[1] == []
    problems = verify(log.directory, "--deep")[1]
    assert [problem[:2] for problem in problems] == [(f"{0:020d}.log", 0)]


def resealed(batch):
    """The batch with a CRC that fits what was done to it."""
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return batch
