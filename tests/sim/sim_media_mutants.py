"""Protections against what a medium does to files, removed. See ``sim_saboteurs``."""

from __future__ import annotations

from typing import Any
from unittest import mock

from sim_saboteurs import ALONE, Saboteur

from oncelog.storage.exceptions import CorruptDataError, CorruptRecordError
from oncelog.storage.log import loader
from oncelog.storage.log.readable import ReadableLog
from oncelog.storage.segments.aborted_index import TxnIndex
from oncelog.storage.segments.list import LogSlice


def _any_aborted_index() -> Any:
    """The aborted index of a sealed segment is believed as it is found, older or cut."""

    def load_if(self: TxnIndex, expected_crc32c: int) -> bool:
        try:
            self.load()
        except (CorruptDataError, OSError):
            return False
        return True

    return mock.patch.object(TxnIndex, "load_if", load_if)


def _one_log_start() -> Any:
    """Only the recovery checkpoint says where in its first segment the log begins."""
    return mock.patch.object(loader, "read_log_start", return_value=None)


def _silent_damage() -> Any:
    """Readers wait in front of damaged records as if nothing more were there."""
    real = ReadableLog.fetch

    def fetch(self: ReadableLog, offset: int, **bounds: Any) -> LogSlice:
        try:
            return real(self, offset, **bounds)
        except CorruptRecordError:
            return LogSlice(records=b"", next_offset=offset)

    return mock.patch.object(ReadableLog, "fetch", fetch)


HARMED = ALONE | {
    "file_damage": 3.0,
    "writers": 3,
    "readers": 2,
    "operators": 0,
    "pause_ms": 10.0,
    "abort_ratio": 0.5,
    "segment_bytes": 4_096,
    "duration_s": 20.0,
    "peace": 0.0,
}
"""Many sealed segments, and files that are damaged all the time."""

ONE_DISK = {
    "topics": {"t0": 1},
    "file_damage": 6.0,
    "duration_s": 80.0,
    "peace": 0.3,
    "kill": 0.0,
    "pause": 0.0,
    "power_loss": 0.0,
    "disk_refusal": 0.0,
    "disk_error": 0.0,
    "isolate": 0.0,
}
"""One kind of file of one sealed segment is seldom chosen: little else happens, and for long."""

DELETED = {"topics": {"kept-0": 1}, "operators": 6, "file_damage": 6.0, "kill": 0.0}
"""Records of the first segment are deleted, and it stays."""

MEDIA_MUTANTS = (
    Saboteur(
        name="whole aborted index",
        sabotage=_any_aborted_index,
        checker="AbortedReads",
        changes=HARMED | ONE_DISK,
    ),
    Saboteur(
        name="two files with the log start",
        sabotage=_one_log_start,
        checker="ReturnedRecords",
        changes=HARMED | DELETED,
    ),
    Saboteur(
        name="damage is told",
        sabotage=_silent_damage,
        checker="World",
        changes=HARMED | {"abort_ratio": 0.1},
    ),
)
