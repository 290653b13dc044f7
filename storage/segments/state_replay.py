"""The batches of one segment that producer state is made of, in the order of the log.

A log without producers has next to none, and one of many small batches from a few producers has
few: batches that later ones push out of the state are left out. The kernel selects them; Python
judges what it stops at, and everything where there is no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import crc32c as _crc32c

from oncelog.storage.model import DUPLICATE_WINDOW_BATCHES, NO_LEADER_EPOCH
from oncelog.storage.records import compiled
from oncelog.storage.records.batch import BatchHeader, parse_header
from oncelog.storage.segments.frames import LogFile, read_run, sound_batches
from oncelog.storage.segments.leader_epochs import LeaderEpochPairs, packed_epochs

StateBatch = tuple[BatchHeader, memoryview]


def state_batches(
    file: LogFile,
    position: int,
    *,
    leader_epochs: LeaderEpochPairs,
    is_checked: bool,
    history_end: int,
    settled: range,
) -> Iterator[StateBatch]:
    """Header and bytes of the batches from ``position`` that a partition's state needs.

    Data of producers and control batches, and of each leader epoch the first and the last batch
    of the file. May be left out: plain data of a producer that is not the first seen of it, and
    that ``DUPLICATE_WINDOW_BATCHES`` later batches of the same epoch follow. Below ``history_end``,
    exclusive, only sequences count: control batches may be left out, and transactional data as if
    it were plain. Committed transactions that lie in ``settled`` may be left out as a whole, or all
    of it but the marker: no state is known within, and all is replicated.
    ``is_checked``: all were found good since the log was opened; else CRCs and ``leader_epochs``,
    as far as they are known, are checked, and CorruptDataError names file and position.
    """
    expected, last_epoch = file.base_offset, NO_LEADER_EPOCH
    kernel, packed = compiled.kernel, packed_epochs(leader_epochs)
    while kernel is not None and position < file.size_bytes:
        run = memoryview(read_run(file, position))
        taken = 0
        while taken < len(run):
            size, expected, last_epoch, places = kernel.state_batches(
                run[taken:],
                _crc32c.crc32c,
                is_checked,
                expected,
                packed,
                last_epoch,
                DUPLICATE_WINDOW_BATCHES,
                history_end,
                settled.start,
                settled.stop,
            )
            for place in places:
                header = parse_header(run, taken + place)
                yield header, run[taken + place : taken + place + header.size_bytes]
            if not size:
                break
            taken += size
        if not taken:
            break
        position += taken
    yield from _in_python(file, position, expected, last_epoch, leader_epochs)


def _in_python(
    file: LogFile,
    position: int,
    expected: int,
    last_epoch: int,
    leader_epochs: LeaderEpochPairs,
) -> Iterator[StateBatch]:
    skipped: StateBatch | None = None
    for header, frame in sound_batches(file, position, expected, leader_epochs=leader_epochs):
        if header.has_producer_id or header.is_control or header.leader_epoch > last_epoch:
            last_epoch = max(last_epoch, header.leader_epoch)
            skipped = None
            yield header, frame
        else:
            skipped = header, frame
    if skipped is not None:
        yield skipped
