"""A reader who asks again at a damaged place costs its leader next to nothing."""

from __future__ import annotations

import struct
from random import Random

import pytest
from crash_disk import CrashDisk, CrashHandle
from crash_life import DIRECTORY
from inside import segments_of

from oncelog.storage.exceptions import CorruptRecordError
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.log.readable import SOUND_PLACES_MAX
from oncelog.storage.records.batch import parse_header
from oncelog.storage.records.codec import encode_records

SETTINGS = LogSettings(segment_bytes=400_000, index_interval_bytes=0)
LOG = DIRECTORY / f"{0:020d}.log"
START, END = 50_000, 350_000
"""The damaged bytes."""


def open_log(disk: CrashDisk) -> PartitionLog:
    return PartitionLog.open(filesystem=disk, directory=DIRECTORY, settings=SETTINGS, now_ms=0)


@pytest.fixture
def disk() -> CrashDisk:
    """A sealed segment of some thousand batches, each with an index entry."""
    disk = CrashDisk()
    log = open_log(disk)
    while log.segment_count < 2:
        batch = encode_records([(b"k", b"v" * 60, 1, ())])
        header = parse_header(batch).with_offset(log.log_end_offset, 1)
        if log.needs_roll(len(batch), 1, 0):
            log.roll([])
        log.append(batch, header)
    log.close([])
    return disk


@pytest.fixture
def read_sizes(monkeypatch) -> list[int]:
    """The bytes asked for in each read of a log from here on."""
    sizes: list[int] = []
    read = CrashHandle.read

    def counted(self: CrashHandle, position: int, size: int) -> bytes:
        sizes.append(size)
        return read(self, position, size)

    monkeypatch.setattr(CrashHandle, "read", counted)
    return sizes


def harm(disk: CrashDisk, data: bytes) -> None:
    handle = disk.open(LOG, create=False)
    handle.write_at(START, data)
    handle.close()


def fetch(log: PartitionLog, offset: int) -> CorruptRecordError:
    with pytest.raises(CorruptRecordError) as caught:
        log.fetch(offset, max_bytes=10_000, upper_offset=log.log_end_offset)
    return caught.value


def test_long_damage_is_searched_once(disk, read_sizes):
    harm(disk, bytes(END - START))
    log = open_log(disk)
    middle = log.log_end_offset // 2
    first = fetch(log, middle)
    read_sizes.clear()
    for offset in (middle, middle + 1):
        again = fetch(log, offset)
        assert (again.offset, again.next_offset) == (offset, first.next_offset)
    assert len(read_sizes) < 20
    read_sizes.clear()
    log.fetch(first.next_offset, max_bytes=10_000, upper_offset=log.log_end_offset)
    assert len(read_sizes) < 20


def test_damage_that_is_mended_is_read_again(disk):
    whole = disk.files()[LOG][START:END]
    harm(disk, bytes(END - START))
    log = open_log(disk)
    middle = log.log_end_offset // 2
    fetch(log, middle)
    harm(disk, whole)
    assert log.fetch(middle, max_bytes=1, upper_offset=log.log_end_offset).records


def test_what_random_bytes_claim_to_be_is_not_read(disk, read_sizes):
    """Of places where a batch should be, each seems to begin one of any length."""
    header = struct.pack(">qiib", 0, 300_000, 0, 2)
    harm(disk, (header + Random(1).randbytes(3)) * ((END - START) // 20))
    log = open_log(disk)
    fetch(log, log.log_end_offset // 2)
    assert sum(read_sizes) < 4 * SETTINGS.segment_bytes


def test_behind_damage_without_an_index_a_place_is_searched_once(disk, read_sizes):
    harm(disk, bytes(100))
    for suffix in (".summary", ".index"):
        disk.remove(LOG.with_suffix(suffix))
    log = open_log(disk)
    late = log.log_end_offset - 500
    found = log.fetch(late, max_bytes=5_000, upper_offset=log.log_end_offset)
    for offset in (late, found.next_offset):
        read_sizes.clear()
        found = log.fetch(offset, max_bytes=5_000, upper_offset=log.log_end_offset)
        assert len(read_sizes) < 20 + 2 * (found.next_offset - offset)
    for offset in range(late - 200, late):
        log.fetch(offset, max_bytes=1, upper_offset=log.log_end_offset)
    assert len(segments_of(log).holding(late).sound_places) == SOUND_PLACES_MAX
