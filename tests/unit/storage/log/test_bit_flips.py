"""One bit of synced data changes on the disk: recovery, replay and every read find it.

Each header bit of several batches is flipped, and one bit of each byte of their records. None of
it may be cut, or given to a reader; the error names the file and the place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash_disk import CrashDisk

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.records.batch import parse_header
from oncelog.storage.records.layout import HEADER_BYTES
from oncelog.storage.segments import segment
from oncelog.storage.segments.inspection import TailDefect, find_damage

DIRECTORY = Path("/data/flights-0")
BATCH_BYTES = 80
SEGMENTS = (0, 40)
"""Base offsets: two segments of four batches of ten records."""

SETTINGS = LogSettings(segment_bytes=4 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)
LEADER_EPOCH = range(12, 16)


def open_log(disk: CrashDisk) -> PartitionLog:
    return PartitionLog.open(filesystem=disk, directory=DIRECTORY, settings=SETTINGS, now_ms=0)


def log_path(base_offset: int) -> Path:
    return DIRECTORY / f"{base_offset:020d}.log"


@pytest.fixture(scope="module")
def written(make_batch) -> Callable[[], tuple[CrashDisk, PartitionLog]]:
    """``written()``: a new log of two segments and two leader epochs, all synced."""

    def write() -> tuple[CrashDisk, PartitionLog]:
        disk = CrashDisk()
        log = open_log(disk)
        for number in range(8):
            batch = make_batch(
                number * 10, 10, size_bytes=BATCH_BYTES, leader_epoch=2 + number // 3
            )
            header = parse_header(batch)
            if log.needs_roll(len(batch), header.max_timestamp_ms, 0):
                log.roll([])
            log.append(batch, header)
        point = log.sync_point()
        point.run()
        log.mark_synced(point)
        return disk, log

    return write


def bits(batches: range = range(4)) -> Iterator[tuple[int, int]]:
    """(byte in the file, bit): all of the headers of these batches, some of their records."""
    for batch in batches:
        for byte in range(BATCH_BYTES):
            for bit in range(8) if byte < HEADER_BYTES else (byte % 8,):
                yield batch * BATCH_BYTES + byte, bit


def places(base_offset: int, position: int) -> str:
    """The batch with the flipped byte or the one after it, where a wrong offset shows."""
    start = position - position % BATCH_BYTES
    path = re.escape(str(log_path(base_offset)))
    return rf"{path} at byte ({start}|{start + BATCH_BYTES})\b"


def read_all(log: PartitionLog, *, max_bytes: int) -> None:
    offset = 0
    while offset < log.log_end_offset:
        found = log.fetch(offset, max_bytes=max_bytes, upper_offset=log.log_end_offset)
        assert found.next_offset > offset
        offset = found.next_offset


def seek_everywhere(log: PartitionLog) -> None:
    """Read one batch at each offset."""
    for offset in range(log.log_end_offset - 1, -1, -1):
        log.fetch(offset, max_bytes=1, upper_offset=log.log_end_offset)


def test_flip_in_synced_data_is_found_by_recovery_and_never_cut(written):
    disk, _ = written()
    for position, bit in bits():
        damaged = disk.after_kill()
        damaged.flip_bit(log_path(40), position, bit)
        before = damaged.files()
        with pytest.raises(CorruptDataError, match=places(40, position)):
            open_log(damaged)
        assert damaged.files() == before
        assert damaged.open_handles == 0


@pytest.mark.slow
@pytest.mark.parametrize("base_offset", SEGMENTS)
def test_flip_while_the_log_was_stopped_is_found_by_the_replay(written, base_offset):
    disk, log = written()
    log.close([])
    for position, bit in bits():
        damaged = disk.after_kill()
        damaged.flip_bit(log_path(base_offset), position, bit)
        before = damaged.files()[log_path(base_offset)]
        with pytest.raises(CorruptDataError, match=places(base_offset, position)):
            list(open_log(damaged).replay(0))
        assert damaged.files()[log_path(base_offset)] == before


@pytest.mark.slow
@pytest.mark.parametrize("base_offset", SEGMENTS)
@pytest.mark.parametrize("from_offset", [5, 25, 35])
def test_replay_from_within_a_segment_misses_no_batch_after_a_flip(
    written, base_offset, from_offset
):
    disk, log = written()
    log.close([])
    first = from_offset // 10
    for position, bit in bits(range(first, 4)):
        damaged = disk.after_kill()
        damaged.flip_bit(log_path(base_offset), position, bit)
        with pytest.raises(CorruptDataError, match=places(base_offset, position)):
            list(open_log(damaged).replay(base_offset + from_offset))


@pytest.mark.parametrize("base_offset", SEGMENTS)
@pytest.mark.parametrize(
    "read",
    [
        lambda log: read_all(log, max_bytes=1 << 20),
        lambda log: read_all(log, max_bytes=1),
        pytest.param(seek_everywhere, marks=pytest.mark.slow),
    ],
    ids=["large", "small", "seek"],
)
def test_flip_under_an_open_log_is_found_by_the_reader(written, base_offset, read):
    disk, _ = written()
    disk = disk.after_kill()
    log = open_log(disk)
    read(log)
    path = log_path(base_offset)
    for position, bit in bits():
        if position % BATCH_BYTES in LEADER_EPOCH:
            # Nothing but the replay knows which epochs there were; a reader uses none of it.
            continue
        disk.flip_bit(path, position, bit)
        with pytest.raises(CorruptDataError, match=places(base_offset, position)):
            read(log)
        disk.flip_bit(path, position, bit)
    read(log)


def test_reader_is_spared_the_check_of_what_this_process_wrote(written, monkeypatch):
    checked: list[int] = []

    def check(data: bytes, *, lowest_offset: int) -> tuple[int, int, TailDefect]:
        checked.append(lowest_offset)
        return find_damage(data, lowest_offset=lowest_offset)

    monkeypatch.setattr(segment, "find_damage", check)
    disk, log = written()
    read_all(log, max_bytes=1 << 20)
    assert checked == []
    read_all(open_log(disk.after_kill()), max_bytes=1 << 20)
    assert checked == [0, 40]


@pytest.mark.parametrize(
    ("change", "defect"),
    [
        (lambda data: data[:-1], TailDefect.SHORT_BATCH),
        (lambda data: data[:100], TailDefect.SHORT_HEADER),
        (lambda data: data[:96] + b"\x01" + data[97:], TailDefect.BAD_HEADER),
        (lambda data: data[:88] + bytes(4) + data[92:], TailDefect.BAD_HEADER),
        (lambda data: data[:-1] + b"\xff", TailDefect.BAD_CRC),
        (lambda data: data[:80] + (9).to_bytes(8, "big") + data[88:], TailDefect.WRONG_OFFSET),
    ],
)
def test_each_damage_of_a_run_of_batches_is_told_apart(make_batch, change, defect):
    good = b"".join(make_batch(number * 10, 10, size_bytes=BATCH_BYTES) for number in range(2))
    assert find_damage(good, lowest_offset=0) == (160, 20, TailDefect.NONE)
    assert find_damage(change(good), lowest_offset=0) == (80, 10, defect)
