"""Up to where a log may lack offsets because it was copied from a compacted one: ``offset-gaps``.

A version and an offset (exclusive), a line each. A follower takes the leader's batches as they are,
also where compaction has removed some between them. The file is written, durably, before the first
batch behind a gap, and then speaks for its whole segment: recovery takes a gap anywhere else for
damage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oncelog.storage.disk.errors import read_beside
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.segments.leader_epochs import OFFSET_MAX

OFFSET_GAPS_FILE: Final = "offset-gaps"
_VERSION: Final = "0"


def read_gaps_end(filesystem: FileSystem, directory: Path) -> int:
    """The offset before which gaps may begin: 0 without the file, the largest if it is damaged.

    Damage shows that there are gaps, and batches are still checked one by one.
    """
    try:
        data = read_beside(filesystem, directory / OFFSET_GAPS_FILE)
        version, offset = data.decode("ascii").splitlines()
        return int(offset) if version == _VERSION and offset.isdecimal() else OFFSET_MAX
    except FileNotFoundError:
        return 0
    except (ValueError, CorruptDataError):
        return OFFSET_MAX


def write_gaps_end(filesystem: FileSystem, directory: Path, offset: int) -> None:
    """Replace the file; durable on return."""
    filesystem.write_atomically(directory / OFFSET_GAPS_FILE, f"{_VERSION}\n{offset}\n".encode())
