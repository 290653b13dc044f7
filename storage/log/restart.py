"""Dropping a whole log, which then begins and ends at another offset: crash-safe by one file.

``restart-offset`` is written first, durably: from then on the log is dropped. Then everything but
what says whose files these are is removed, the checkpoint of an empty log written, and
``restart-offset`` removed. The next open does all of that again if a crash left that file, so
that it finds either the old log or the empty one.

The file is ASCII: ``0`` (version), ``restart_offset N`` and ``crc32c X`` (8 hex digits, of both
lines before), a line each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from crc32c import crc32c

from oncelog.storage.disk.errors import read_beside
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.checkpoint import (
    LOCK_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_FILE,
    RecoveryCheckpoint,
)
from oncelog.storage.log.topic_id_file import TOPIC_ID_FILE

RESTART_FILE: Final = "restart-offset"

_KEPT: Final = frozenset({LOCK_FILE, TOPIC_ID_FILE, PARTITION_METADATA_FILE, RESTART_FILE})


def encode_restart(offset: int) -> bytes:
    """The file's bytes."""
    text = f"0\nrestart_offset {offset}\n".encode()
    return b"%bcrc32c %08x\n" % (text, crc32c(text))


def decode_restart(data: bytes) -> int:
    """The offset; CorruptDataError if the bytes are torn or damaged."""
    try:
        _, line, _ = data.decode("ascii").splitlines()
        offset = int(line.split(" ")[1])
    except (ValueError, IndexError) as error:
        raise CorruptDataError("restart offset cannot be read") from error
    if encode_restart(offset) != data:
        raise CorruptDataError("restart offset does not match its CRC")
    return offset


def begin_restart(filesystem: FileSystem, directory: Path, offset: int) -> None:
    """Drop the log, durably: ``finish_restart`` must follow, now or at the next open."""
    filesystem.write_atomically(directory / RESTART_FILE, encode_restart(offset))


def finish_restart(filesystem: FileSystem, directory: Path) -> None:
    """Finish a restart that was begun, durably; nothing if there is none.

    CorruptDataError if the file is damaged: what is left of the log is nobody's any more.
    """
    path = directory / RESTART_FILE
    try:
        offset = decode_restart(read_beside(filesystem, path))
    except FileNotFoundError:
        return
    except CorruptDataError as error:
        raise CorruptDataError(f"{path}: {error}") from error
    for name in filesystem.list_directory(directory):
        if name not in _KEPT:
            filesystem.remove(directory / name)
    # Its sync of the directory also makes the removals durable.
    checkpoint = RecoveryCheckpoint(offset, offset, offset)
    filesystem.write_atomically(directory / RECOVERY_FILE, checkpoint.to_bytes())
    filesystem.remove(path)
    filesystem.sync_directory(directory)
