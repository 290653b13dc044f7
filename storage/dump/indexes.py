"""Index files checked against the batches of their segment, which pass by once and in order.

Each check streams its file beside the log, so neither has to fit in memory. It returns
findings as (position in the index file, reason).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.dump.contents import Row, rows_of
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_TIMESTAMP
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.segments.aborted_index import AbortedIndexEntry

Fault: TypeAlias = tuple[int, str]
"""A position in the index file, and what is wrong there."""


class IndexFile:
    """The rows of one index in order; the first fault of the file itself ends them."""

    def __init__(self, filesystem: FileSystem, path: Path, *rising: str) -> None:
        self.path = path
        self.is_missing = False
        self.row: Row | None = None
        self._rows = rows_of(filesystem, path)
        self._rising = rising
        self._fault: Fault | None = None
        try:
            self.row = next(self._rows, None)
        except FileNotFoundError:
            self.is_missing = True
        except CorruptDataError as error:
            self._stop(0, error)

    def __getitem__(self, field: str) -> Any:
        """A field of the current row."""
        assert self.row is not None
        return self.row[field]

    def advance(self) -> None:
        """Go to the next row; one that does not rise is a fault."""
        before = self.row
        assert before is not None
        try:
            self.row = next(self._rows, None)
        except CorruptDataError as error:
            self._stop(before["position"], error)
            return
        if self.row is not None:
            for field in self._rising:
                if self.row[field] <= before[field]:
                    self._fault = (
                        self.row["position"],
                        f"{field} goes from {before[field]} to {self.row[field]}",
                    )
                    self.row = None
                    return

    def faults(self) -> Iterator[Fault]:
        """What ended the file early, once."""
        if self._fault is not None:
            yield self._fault
            self._fault = None

    @property
    def is_whole(self) -> bool:
        """Whether no fault has been met."""
        return self._fault is None

    def _stop(self, position: int, error: CorruptDataError) -> None:
        """``error`` begins with the path and position, which the finding has anyway."""
        text = str(error).removeprefix(f"{self.path} at byte ")
        number, _, reason = text.partition(": ")
        self.row = None
        self._fault = (int(number), reason) if number.isdecimal() else (position, str(error))


class OffsetIndexCheck:
    """``.index``: each entry names the first byte and the last offset of one batch."""

    def __init__(self, file: IndexFile) -> None:
        self.file = file

    def batch(self, position: int, header: BatchHeader) -> Iterator[Fault]:
        """The batch at ``position`` of the log passes."""
        file = self.file
        while file.row is not None and file["batch_position"] <= position:
            if file["batch_position"] < position:
                yield file["position"], f"no batch begins at byte {file['batch_position']}"
            elif file["offset"] != header.last_offset:
                yield (
                    file["position"],
                    f"offset {file['offset']} for the batch at byte {position}, "
                    f"which ends with offset {header.last_offset}",
                )
            file.advance()

    def skip(self, position: int) -> None:
        """A batch whose header cannot be trusted passes at ``position``."""
        while self.file.row is not None and self.file["batch_position"] <= position:
            self.file.advance()

    def end(self, position: int) -> Iterator[Fault]:
        """The log ends at ``position``."""
        while self.file.row is not None:
            yield (
                self.file["position"],
                f"byte {self.file['batch_position']} is beyond the last batch, "
                f"which ends at {position}",
            )
            self.file.advance()
        yield from self.file.faults()


class TimeIndexCheck:
    """``.timeindex``: each entry is the largest timestamp up to the batch that has it."""

    def __init__(self, file: IndexFile) -> None:
        self.file = file
        self._largest_ms = NO_TIMESTAMP
        self._last_ms = NO_TIMESTAMP

    def batch(self, header: BatchHeader) -> Iterator[Fault]:
        """A batch passes."""
        file = self.file
        self._largest_ms = max(self._largest_ms, header.max_timestamp_ms)
        while file.row is not None and file["offset"] <= header.last_offset:
            position, timestamp_ms = file["position"], file["timestamp_ms"]
            if file["offset"] < header.last_offset:
                yield position, f"no batch ends with offset {file['offset']}"
            elif timestamp_ms != header.max_timestamp_ms:
                yield (
                    position,
                    f"timestamp {timestamp_ms} for the batch that ends with offset "
                    f"{header.last_offset} and has {header.max_timestamp_ms}",
                )
            elif timestamp_ms != self._largest_ms:
                yield position, f"timestamp {timestamp_ms} comes after {self._largest_ms}"
            self._last_ms = timestamp_ms
            file.advance()

    def end(self, *, is_complete: bool) -> Iterator[Fault]:
        """The log ends; in a complete index the last entry is the segment's largest timestamp."""
        file = self.file
        while file.row is not None:
            yield file["position"], f"offset {file['offset']} is beyond the last batch"
            self._last_ms = file["timestamp_ms"]
            file.advance()
        is_short = is_complete and file.is_whole and self._last_ms < self._largest_ms
        yield from file.faults()
        if is_short:
            yield 0, f"no entry for the largest timestamp, {self._largest_ms}"


class TxnIndexCheck:
    """``.txnindex``: an entry for each ABORT marker that closed a transaction, and no other."""

    def __init__(self, file: IndexFile) -> None:
        self.file = file

    def abort(
        self, offset: int, expected: AbortedIndexEntry | None, *, is_exact: bool
    ) -> Iterator[Fault]:
        """The ABORT marker at ``offset`` passes; ``expected`` None: it closed nothing known.

        Unless ``is_exact``, batches of the transaction, or of one open at the same time, may be
        gone from the log: an entry may then say more than the log does, or be gone with them.
        """
        file = self.file
        yield from self._strays(offset, is_exact=is_exact)
        if file.row is None or file["last_offset"] > offset:
            if expected is not None and file.is_whole and is_exact:
                at = file["position"] if file.row is not None else 0
                yield at, f"no entry for the aborted transaction that ends at offset {offset}"
            return
        yield from self._compare(expected, is_exact=is_exact)
        file.advance()

    def end(self, next_offset: int, *, is_exact: bool) -> Iterator[Fault]:
        """The log ends before ``next_offset``; entries from there on are not checked."""
        yield from self._strays(next_offset, is_exact=is_exact)
        yield from self.file.faults()

    def _strays(self, offset: int, *, is_exact: bool) -> Iterator[Fault]:
        """Entries before ``offset`` that no marker claimed."""
        file = self.file
        while file.row is not None and file["last_offset"] < offset:
            if is_exact:
                yield file["position"], f"no ABORT marker at offset {file['last_offset']}"
            file.advance()

    def _compare(self, expected: AbortedIndexEntry | None, *, is_exact: bool) -> Iterator[Fault]:
        file = self.file
        if expected is None:
            if is_exact:
                yield (
                    file["position"],
                    f"the ABORT marker at offset {file['last_offset']} closed no transaction",
                )
            return
        fields = ["producer_id"]
        if is_exact:
            fields += ["first_offset", "last_stable_offset"]
        for field in fields:
            if file[field] != getattr(expected, field):
                yield (
                    file["position"],
                    f"{field} {file[field]} for the transaction that ends at offset "
                    f"{file['last_offset']}, the log says {getattr(expected, field)}",
                )
