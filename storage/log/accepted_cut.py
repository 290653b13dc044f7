"""An operator's word that a log which recovery refuses may be cut: the file ``accepted-cut``.

It names the one offset at which the refusal said that the log ends to be good. The next recovery
that would refuse at just this offset cuts there instead. The file is gone as soon as the log is
open again, so that it is never taken for an answer to another question.
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
    """The offset that was accepted; None if there is none, or what is there cannot be read."""
    try:
        return int(filesystem.read_whole(directory / ACCEPTED_CUT_FILE))
    except (FileNotFoundError, ValueError):
        return None
