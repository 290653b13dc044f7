"""A disk that counts every call that can fail, and fails one of them, once."""

from __future__ import annotations

import errno
from pathlib import Path

from crash_disk import CrashDisk, Fault

ERRORS = [(errno.EIO, 0.5), (errno.ENOSPC, 0.5), (errno.ENOMEM, 0.0), (errno.EMFILE, 0.0)]
"""One that is final, and three that may pass; with the part of a write that is in the file then."""

_TAKES_DESCRIPTOR = ("open", "create", "sync_directory")
"""Calls that lack of descriptors makes fail."""


class PointedDisk(CrashDisk):
    """Counts reads and opens too, once it ``is_armed``; call ``fails_at`` fails with ``error``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.is_armed = False
        self.fails_at = 0
        self.error: tuple[int, float] = ERRORS[0]

    def _planned(self, call: str, path: Path) -> Fault | None:
        if self.is_armed:
            self.calls.append(f"{call} {path.name}")
            if len(self.calls) == self.fails_at:
                return Fault(call, "", self.error[0], None, self.error[1])
        return super()._planned(call, path)


def errors_of(call: str) -> list[tuple[int, float]]:
    """The ways in which a call can fail."""
    return ERRORS if call.startswith(_TAKES_DESCRIPTOR) else ERRORS[:-1]
