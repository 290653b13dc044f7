"""An operator's permission to cut a log that recovery refuses: the file ``accepted-cut``.

It names the one offset at which, as the refusal said, the intact part of the log ends. The next
recovery that would refuse at exactly this offset cuts there instead. The file is removed as soon as
the log is open again, so it is never taken for the answer to another refusal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oncelog.storage.disk.file_system import FileSystem

ACCEPTED_CUT_FILE: Final = "accepted-cut"


def accept_cut(filesystem: FileSystem, directory: Path, offset: int) -> None:
    """Let the next recovery of ``directory`` cut at ``offset`` (inclusive). Durable. OSError."""
    if offset < 0:
        raise ValueError(f"offset={offset}: offsets begin at 0")
    filesystem.write_atomically(directory / ACCEPTED_CUT_FILE, f"{offset}\n".encode())


def read_accepted_cut(filesystem: FileSystem, directory: Path) -> int | None:
    """The accepted offset; None if there is none, or the file cannot be read."""
    try:
        return int(filesystem.read_whole(directory / ACCEPTED_CUT_FILE))
    except (FileNotFoundError, ValueError):
        return None
