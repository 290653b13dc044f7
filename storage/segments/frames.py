"""Going over the batches of one ``.log`` file: by their headers alone, or as frames of bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from oncelog.storage.disk.file_system import FileHandle
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import HEADER_BYTES
from oncelog.storage.segments.inspection import TailDefect, inspect_batch
from oncelog.storage.segments.offset_index import RELATIVE_OFFSET_MAX

WALK_BYTES: Final = 8_192
"""How much a walk reads at once."""

_FIELDS: Final = struct.Struct(">qi11xi8xq")
"""Base offset, batch length, last offset delta and maximum timestamp of a batch header."""

PLACE_BYTES: Final = _FIELDS.size
"""As much of a batch as tells its place."""

LENGTH_FIELD_END: Final = 12
SCAN_BYTES: Final = 1_048_576
"""How much is read at once of a log that is read from one end to the other."""


class BatchPlace(NamedTuple):
    """Where a batch lies: bytes [position, end), offsets [base_offset, last_offset]."""

    position: int
    end: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int


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
    """An open ``.log`` file as far as it belongs to the log."""

    handle: FileHandle
    path: Path
    base_offset: int
    size_bytes: int

    def refuse(self, position: int, reason: str) -> NoReturn:
        """Raise CorruptDataError for what stands at ``position``."""
        raise CorruptDataError(f"{self.path} at byte {position}: {reason}")


def walk_batches(file: LogFile, position: int, head: bytes = b"") -> Iterator[BatchPlace]:
    """The places of all batches from the one at ``position``; reads headers only.

    ``head``: the bytes there, as far as they have been read already. CorruptDataError where
    headers are not those of batches one after the other.
    """
    start, size_bytes, read = position, file.size_bytes, file.handle.read
    expected = 0 if position else file.base_offset
    highest = file.base_offset + RELATIVE_OFFSET_MAX
    chunk, chunk_at = head, position
    while position < size_bytes:
        at = position - chunk_at
        if at + PLACE_BYTES > len(chunk):
            chunk, chunk_at, at = read(position, WALK_BYTES), position, 0
            if len(chunk) < PLACE_BYTES:
                _refuse_walk(file, start, position, TailDefect.SHORT_HEADER)
        base_offset, length, delta, max_timestamp_ms = _FIELDS.unpack_from(chunk, at)
        end = position + LENGTH_FIELD_END + length
        if end - position < HEADER_BYTES or delta < 0 or end > size_bytes:
            _refuse_walk(file, start, position, TailDefect.BAD_HEADER)
        last_offset = base_offset + delta
        if base_offset < expected or last_offset > highest:
            _refuse_walk(file, start, position, TailDefect.WRONG_OFFSET)
        expected = last_offset + 1
        yield BatchPlace(position, end, base_offset, last_offset, max_timestamp_ms)
        position = end


def _refuse_walk(file: LogFile, start: int, position: int, defect: TailDefect) -> NoReturn:
    """A walk from ``start`` went astray by ``position``: name the batch that led it there."""
    expected = file.base_offset
    for at, frame in read_frames(file, start):
        found = inspect_batch(frame, expected, may_skip=True)
        if isinstance(found, TailDefect):
            file.refuse(at, found.value)
        expected = found.next_offset
    file.refuse(position, defect.value)


def begins_with_batch(head: bytes, last_offset: int) -> bool:
    """Whether ``head`` begins a batch that ends with ``last_offset``."""
    if len(head) < PLACE_BYTES:
        return False
    base_offset, _, delta, _ = _FIELDS.unpack_from(head)
    return bool(base_offset + delta == last_offset)


def read_frames(file: LogFile, position: int) -> Iterator[tuple[int, memoryview]]:
    """Position and bytes of each batch from ``position``, unchecked, in large reads.

    The last frame is shorter than its batch claims if the file ends first; one with an
    impossible length is given some bytes. The caller must check each and stop at a bad one.
    The views stay valid. CorruptDataError if the file has become shorter.
    """
    size_bytes = file.size_bytes
    chunk, chunk_at = memoryview(b""), position
    while position < size_bytes:
        rest = size_bytes - position
        at = position - chunk_at
        size = HEADER_BYTES
        if len(chunk) - at >= LENGTH_FIELD_END:
            length = int.from_bytes(chunk[at + 8 : at + LENGTH_FIELD_END], "big", signed=True)
            size = max(HEADER_BYTES, LENGTH_FIELD_END + length)
        # A length beyond the file is damage: its bytes are not worth the memory.
        needed = size if size <= rest else min(rest, HEADER_BYTES)
        if len(chunk) - at < needed:
            wanted = min(rest, max(needed, SCAN_BYTES))
            chunk, chunk_at = memoryview(file.handle.read(position, wanted)), position
            if len(chunk) < wanted:
                file.refuse(position, "the file has become shorter")
            continue
        frame = chunk[at : at + size]
        yield position, frame
        position += len(frame)
