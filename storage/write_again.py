"""Writing bytes of a file over themselves, so that the next sync makes them durable for certain.

After a failed sync Linux goes on showing the pages that the disk refused, and takes them for
clean: whoever opens the file later reads them, and a sync that finds nothing to write succeeds.
Unless the machine was restarted, what was never synced with success has to be written again.
"""

from __future__ import annotations

from typing import Final

from oncelog.storage.fs import FileHandle

_CHUNK_BYTES: Final = 1_048_576


def write_again(file: FileHandle, position: int) -> None:
    """Write all bytes of ``file`` from ``position`` on as they are; durable with its next sync.

    Killed at any point, it has changed nothing. OSError: the disk.
    """
    while data := file.read(position, _CHUNK_BYTES):
        file.write_at(position, data)
        position += len(data)
