"""The batches of one segment that producer state is made of, in the order of the log.

Of a log without producers that is next to nothing, and of one with many small batches of the
same producers little: what later batches make a state forget is left out. The kernel goes over
the rest; without it every batch is looked at in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import crc32c as _crc32c

from oncelog.storage.model import DUPLICATE_WINDOW_BATCHES, NO_LEADER_EPOCH
from oncelog.storage.records import scan_kernel
from oncelog.storage.records.batch import HEADER_BYTES, BatchHeader, parse_header
from oncelog.storage.segments.frames import LENGTH_FIELD_END, SCAN_BYTES, LogFile, read_frames
from oncelog.storage.segments.inspection import TailDefect, inspect_batch
from oncelog.storage.segments.leader_epochs import LeaderEpochPairs, packed_epochs

StateBatch = tuple[BatchHeader, memoryview]


def state_batches(
    file: LogFile, position: int, *, leader_epochs: LeaderEpochPairs, is_checked: bool
) -> Iterator[StateBatch]:
    """Header and bytes of the batches from ``position`` that a partition's state needs.

    Data of producers and control batches, and of each leader epoch the first and the last batch
    of the file. May be left out: plain data of a producer that is not the first seen of it, and
    that ``DUPLICATE_WINDOW_BATCHES`` later batches of the same epoch follow.
    ``is_checked``: all were found good since the log was opened; else CRCs and ``leader_epochs``,
    as far as they are known, are checked, and CorruptDataError names file and position.
    """
    if scan_kernel.kernel is None:
        return _in_python(file, position, leader_epochs)
    return _by_kernel(file, position, leader_epochs, is_checked)


def _by_kernel(
    file: LogFile, position: int, leader_epochs: LeaderEpochPairs, is_checked: bool
) -> Iterator[StateBatch]:
    packed = packed_epochs(leader_epochs)
    expected, last_epoch, wanted = file.base_offset, NO_LEADER_EPOCH, SCAN_BYTES
    while position < file.size_bytes:
        rest = file.size_bytes - position
        chunk = memoryview(file.handle.read(position, min(wanted, rest)))
        taken = 0
        while taken < len(chunk):
            end, expected, last_epoch, places = scan_kernel.kernel.state_batches(
                chunk[taken:],
                _crc32c.crc32c,
                is_checked,
                expected,
                packed,
                last_epoch,
                DUPLICATE_WINDOW_BATCHES,
            )
            for place in places:
                header = parse_header(chunk, taken + place)
                yield header, chunk[taken + place : taken + place + header.size_bytes]
            taken += end
            if not end:
                break
        position += taken
        longer = None if taken else _size_of_longer(chunk, rest)
        if not taken and longer is None:
            _refuse(file, position, expected, leader_epochs)
        wanted = longer or SCAN_BYTES


def _size_of_longer(chunk: memoryview, rest_bytes: int) -> int | None:
    """The size of the batch of which ``chunk`` has not all; None if that is not why it is bad."""
    if len(chunk) < HEADER_BYTES:
        return None
    size = LENGTH_FIELD_END + int.from_bytes(chunk[8:LENGTH_FIELD_END], "big", signed=True)
    return size if len(chunk) < size <= rest_bytes else None


def _refuse(
    file: LogFile, position: int, expected: int, leader_epochs: LeaderEpochPairs
) -> NoReturn:
    """Say what is wrong with the batch at ``position``."""
    _, frame = next(read_frames(file, position))
    found = inspect_batch(frame, expected, may_skip=True, leader_epochs=leader_epochs)
    defect = found if isinstance(found, TailDefect) else TailDefect.WRONG_OFFSET
    file.refuse(position, defect.value)


def _in_python(
    file: LogFile, position: int, leader_epochs: LeaderEpochPairs
) -> Iterator[StateBatch]:
    expected, last_epoch = file.base_offset, NO_LEADER_EPOCH
    skipped: StateBatch | None = None
    for at, frame in read_frames(file, position):
        found = inspect_batch(frame, expected, may_skip=True, leader_epochs=leader_epochs)
        if isinstance(found, TailDefect):
            file.refuse(at, found.value)
        expected = found.next_offset
        if found.has_producer_id or found.is_control or found.leader_epoch > last_epoch:
            last_epoch = max(last_epoch, found.leader_epoch)
            skipped = None
            yield found, frame
        else:
            skipped = found, frame
    if skipped is not None:
        yield skipped
