"""How far a log has been compacted: ``cleaner-offset-checkpoint``, in Kafka's text format.

A version, a count, then ``topic partition offset`` lines: one, for the partition whose directory
the file is in. The offset is the first dirty one. The file is written before anything is first
replaced, so it also shows that batches of sealed segments may have gaps between them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oncelog.storage.disk.errors import read_beside
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.exceptions import CorruptDataError

CLEANER_CHECKPOINT_FILE: Final = "cleaner-offset-checkpoint"
_VERSION: Final = "0"


def read_first_dirty_offset(filesystem: FileSystem, directory: Path) -> int | None:
    """The first dirty offset; None if the log was never compacted, 0 if the file is damaged.

    Zero is always safe: compaction merely looks at everything again.
    """
    try:
        data = read_beside(filesystem, directory / CLEANER_CHECKPOINT_FILE)
        version, count, line = data.decode("ascii").splitlines()
        offset = int(line.split()[-1])
    except FileNotFoundError:
        return None
    except (ValueError, IndexError, CorruptDataError):
        return 0
    return max(offset, 0) if (version, count) == (_VERSION, "1") else 0


def lower_first_dirty_offset(filesystem: FileSystem, directory: Path, offset: int) -> None:
    """Mark everything from ``offset`` on dirty: the log is about to be cut there. Durable.

    What is written there later was never compacted.
    """
    stored = read_first_dirty_offset(filesystem, directory)
    if stored is not None and stored > offset:
        write_first_dirty_offset(filesystem, directory, offset)


def write_first_dirty_offset(filesystem: FileSystem, directory: Path, offset: int) -> None:
    """Replace the file; durable on return."""
    topic, _, partition = directory.name.rpartition("-")
    text = f"{_VERSION}\n1\n{topic} {partition} {offset}\n"
    filesystem.write_atomically(directory / CLEANER_CHECKPOINT_FILE, text.encode())
