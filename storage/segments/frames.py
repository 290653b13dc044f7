"""Walk the batches of one ``.log`` file: headers only, or with all bytes.

``state_batches`` walks only those that producer state needs. A log without producers has almost
none. One of many small batches from a few producers has few: batches that later ones push out of
the state are left out. The compiled kernel selects them. Python judges what the kernel stops at,
and everything where there is no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import crc32c as _crc32c

from oncelog.storage.disk.file_system import FileHandle
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import DUPLICATE_WINDOW_BATCHES, NO_LEADER_EPOCH
from oncelog.storage.records import compiled
from oncelog.storage.records.batch import BatchHeader, Buffer, claimed_bytes, parse_header
from oncelog.storage.records.layout import HEADER_BYTES, LENGTH_END, MAGIC, MAGIC_AT, PLACE
from oncelog.storage.segments.indexes import RELATIVE_OFFSET_MAX
from oncelog.storage.segments.inspection import TailDefect, inspect_batch
from oncelog.storage.segments.leader_epochs import OFFSET_MAX, LeaderEpochPairs, packed_epochs

WALK_BYTES: Final = 8_192
"""Bytes that a walk by headers reads at once."""

SCAN_BYTES: Final = 1_048_576
"""Bytes read at once when a log is read from end to end."""


class BatchPlace(NamedTuple):
    """Where a batch lies: bytes [position, end), offsets [base_offset, last_offset]."""

    position: int
    end: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int

    @classmethod
    def of(cls, position: int, header: BatchHeader) -> BatchPlace:
        """The place of the batch of ``header`` at ``position``."""
        return cls(
            position,
            position + header.size_bytes,
            header.base_offset,
            header.last_offset,
            header.max_timestamp_ms,
        )


class Gap(NamedTuple):
    """Damage at ``position``: offsets from ``offset`` to ``next_offset`` (exclusive) are lost.

    The next sound batch, if there is one in the segment, begins at ``resume``.
    """

    position: int
    resume: int
    offset: int
    next_offset: int
    reason: str


class LogFile(NamedTuple):
    """The part of an open ``.log`` file that belongs to the log."""

    handle: FileHandle
    path: Path
    base_offset: int
    size_bytes: int

    def refuse(self, position: int, reason: str) -> NoReturn:
        """Raise CorruptDataError for the bytes at ``position``."""
        raise CorruptDataError(f"{self.path} at byte {position}: {reason}")


def walk_batches(file: LogFile, position: int, head: bytes = b"") -> Iterator[BatchPlace]:
    """The places of all batches from the one at ``position``; reads headers only.

    ``head``: the bytes there, as far as they have been read already. CorruptDataError where the
    headers are not those of consecutive batches.
    """
    start, size_bytes, read = position, file.size_bytes, file.handle.read
    expected = 0 if position else file.base_offset
    highest = file.base_offset + RELATIVE_OFFSET_MAX
    chunk, chunk_at = head, position
    while position < size_bytes:
        at = position - chunk_at
        if at + PLACE.size > len(chunk):
            chunk, chunk_at, at = read(position, WALK_BYTES), position, 0
            if len(chunk) < PLACE.size:
                _refuse_walk(file, start, position, TailDefect.SHORT_HEADER)
        base_offset, length, delta, max_timestamp_ms = PLACE.unpack_from(chunk, at)
        end = position + LENGTH_END + length
        if end - position < HEADER_BYTES or delta < 0 or end > size_bytes:
            _refuse_walk(file, start, position, TailDefect.BAD_HEADER)
        last_offset = base_offset + delta
        if base_offset < expected or last_offset > highest:
            _refuse_walk(file, start, position, TailDefect.WRONG_OFFSET)
        expected = last_offset + 1
        yield BatchPlace(position, end, base_offset, last_offset, max_timestamp_ms)
        position = end


def _refuse_walk(file: LogFile, start: int, position: int, defect: TailDefect) -> NoReturn:
    """A walk from ``start`` failed at ``position``: name the batch that led it there."""
    for _ in sound_batches(file, start, file.base_offset):
        pass
    file.refuse(position, defect.value)


def begins_with_batch(head: bytes, last_offset: int) -> bool:
    """Whether ``head`` begins a batch that ends with ``last_offset``."""
    if len(head) < PLACE.size:
        return False
    base_offset, _, delta, _ = PLACE.unpack_from(head)
    return bool(base_offset + delta == last_offset)


def holds_from(data: Buffer, offset: int, next_offset: int) -> bool:
    """Whether ``data`` begins with a batch that can be the first of [``offset``, next_offset)."""
    if len(data) < HEADER_BYTES:
        return False
    base_offset, length, delta, _ = PLACE.unpack_from(data)
    is_batch = data[MAGIC_AT] == MAGIC and length + LENGTH_END >= HEADER_BYTES and delta >= 0
    return bool(is_batch and 0 <= base_offset < next_offset and base_offset + delta >= offset)


def check_batches(
    file: LogFile,
    position: int,
    expected_offset: int,
    *,
    gaps_end: int = OFFSET_MAX,
    leader_epochs: LeaderEpochPairs = (),
) -> Iterator[tuple[int, BatchHeader | TailDefect, memoryview]]:
    """Position, header and bytes of each batch from ``position``, checked by ``inspect_batch``.

    Ends after the first defect, which is yielded in place of the header. Below ``gaps_end``
    (exclusive) compaction may have removed batches. The views stay valid.
    """
    expected, highest = expected_offset, file.base_offset + RELATIVE_OFFSET_MAX

    def judge(bytes_: memoryview) -> BatchHeader | TailDefect:
        nonlocal expected
        found = inspect_batch(
            bytes_, expected, may_skip=expected < gaps_end, leader_epochs=leader_epochs
        )
        if isinstance(found, BatchHeader):
            if found.last_offset > highest:
                return TailDefect.WRONG_OFFSET
            expected = found.next_offset
        return found

    return read_batches(file, position, judge)


def sound_batches(
    file: LogFile,
    position: int,
    expected_offset: int,
    *,
    leader_epochs: LeaderEpochPairs = (),
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Header and bytes of each batch of ``check_batches``; CorruptDataError names a defect."""
    for at, found, frame in check_batches(
        file, position, expected_offset, leader_epochs=leader_epochs
    ):
        if isinstance(found, TailDefect):
            file.refuse(at, found.value)
        yield found, frame


def read_batches(
    file: LogFile, position: int, judge: Callable[[memoryview], BatchHeader | TailDefect]
) -> Iterator[tuple[int, BatchHeader | TailDefect, memoryview]]:
    """Like ``check_batches``, with ``judge``, which gets a batch's bytes and some that follow."""
    while position < file.size_bytes:
        run = memoryview(read_run(file, position))
        at = 0
        while at < len(run):
            found = judge(run[at:])
            if isinstance(found, TailDefect):
                if at:
                    # The run may only end too early: read on from there.
                    break
                yield position, found, run
                return
            end = at + found.size_bytes
            yield position + at, found, run[at:end]
            at = end
        position += at


def read_run(file: LogFile, position: int) -> bytes:
    """Bytes from ``position`` on: many batches, or the whole of a large one.

    CorruptDataError if the file has become shorter.
    """
    rest = file.size_bytes - position
    wanted = min(rest, SCAN_BYTES)
    run = file.handle.read(position, wanted)
    claimed = claimed_bytes(run) if len(run) >= LENGTH_END else 0
    # A length beyond the file is damage: do not allocate memory for it.
    if wanted < claimed <= rest:
        wanted = claimed
        run = file.handle.read(position, wanted)
    if len(run) < wanted:
        file.refuse(position, "the file has become shorter")
    return run


def state_batches(
    file: LogFile,
    position: int,
    *,
    leader_epochs: LeaderEpochPairs,
    is_checked: bool,
    history_end: int,
    settled: range,
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Header and bytes of the batches from ``position`` that a partition's state needs.

    These are data batches of producers, control batches, the first batch of each leader epoch, and
    the last batch of the file. Some may be left out. A producer's non-transactional batch is
    optional if it is not the first one seen and ``DUPLICATE_WINDOW_BATCHES`` later batches of the
    same epoch follow. Below ``history_end`` (exclusive) only sequences count: control batches are
    optional, and transactional batches by the same rule. A committed transaction that lies in
    ``settled`` is optional, as a whole or all but its marker, where data of a later one is not: no
    state is known in there, and all of it is replicated.

    ``is_checked``: all batches were found good since the log was opened. Otherwise CRCs and the
    known ``leader_epochs`` are checked, and CorruptDataError names file and position.
    """
    expected, last_epoch = file.base_offset, NO_LEADER_EPOCH
    packed = packed_epochs(leader_epochs)
    while position < file.size_bytes:
        run = memoryview(read_run(file, position))
        taken = 0
        while taken < len(run):
            size, expected, last_epoch, places = compiled.kernel.state_batches(
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
    yield from sound_batches(file, position, expected, leader_epochs=leader_epochs)
