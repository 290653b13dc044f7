"""Replace adjacent segments by one cleaned segment; a crash leaves the old or the new.

The files of the cleaned segment go through three names, as in Kafka:

| step | files | after a crash |
|---|---|---|
| 1. written and synced | ``.log.cleaned``, indexes ``.cleaned`` | removed: the old segments hold |
| 2. indexes renamed, directory synced | ``.log.cleaned``, indexes ``.swap`` | removed, as before |
| 3. the log renamed, directory synced | all ``.swap`` | steps 4 and 5 are done by the next open |
| 4. indexes in place, old files ``.deleted``, directory synced | ``.log.swap`` | as before |
| 5. the log in place | final names | nothing to do; ``.deleted`` is removed |

``.log.swap`` is the commit: it exists from step 3 to step 5, and an open that finds it finishes. It
covers the offsets from its base to the end of its last batch, so a cleaned segment keeps its last
batch, if only as an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.segments.segment import INDEX_SUFFIXES, LOG_SUFFIX, Segment

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"

_SUFFIXES: Final = (LOG_SUFFIX, *INDEX_SUFFIXES)


def prepare_swap(filesystem: FileSystem, directory: Path, base_offset: int) -> None:
    """Do step 2, in any thread: prepare everything but the commit."""
    for suffix in INDEX_SUFFIXES:
        path = _path(directory, base_offset, suffix)
        filesystem.rename(_with(path, CLEANED_SUFFIX), _with(path, SWAP_SUFFIX))
    filesystem.sync_directory(directory)


def discard_swap(filesystem: FileSystem, directory: Path, base_offset: int) -> None:
    """Give up before the commit: remove the files of steps 1 and 2."""
    for suffix in _SUFFIXES:
        path = _path(directory, base_offset, suffix)
        filesystem.remove(_with(path, CLEANED_SUFFIX))
        filesystem.remove(_with(path, SWAP_SUFFIX))


def commit_swap(filesystem: FileSystem, directory: Path, base_offset: int) -> None:
    """Do step 3; durable on return. After an OSError it is unknown which segments are valid."""
    path = _path(directory, base_offset, LOG_SUFFIX)
    filesystem.rename(_with(path, CLEANED_SUFFIX), _with(path, SWAP_SUFFIX))
    filesystem.sync_directory(directory)


def finish_swap(
    filesystem: FileSystem, directory: Path, base_offset: int, replaced: Iterable[Path]
) -> tuple[Path, ...]:
    """Do steps 4 and 5; the last rename is durable with the next sync of the directory.

    ``replaced`` are the files of the old segments except the first, whose names are reused. Returns
    what is left of them, to be removed at any time.
    """
    deleted = []
    for path in replaced:
        if filesystem.exists(path):
            deleted.append(_with(path, DELETED_SUFFIX))
            filesystem.rename(path, deleted[-1])
    for suffix in INDEX_SUFFIXES:
        path = _path(directory, base_offset, suffix)
        if filesystem.exists(_with(path, SWAP_SUFFIX)):
            filesystem.rename(_with(path, SWAP_SUFFIX), path)
    filesystem.sync_directory(directory)
    path = _path(directory, base_offset, LOG_SUFFIX)
    filesystem.rename(_with(path, SWAP_SUFFIX), path)
    return tuple(deleted)


def complete_swaps(filesystem: FileSystem, directory: Path) -> None:
    """Finish or undo each interrupted replacement in a directory that is being opened.

    Raises ``CorruptDataError`` if a ``.log.swap`` has no whole batches: it was synced.
    """
    names = filesystem.list_directory(directory)
    committed = [name for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if committed:
        # The process may have died before its own sync; the commit must be durable before step 4.
        filesystem.sync_directory(directory)
    for name in committed:
        base_offset = int(name.partition(".")[0])
        next_offset = _end_of(filesystem, directory, base_offset)
        replaced = [
            directory / other
            for other in names
            for stem, _, suffix in (other.partition("."),)
            if f".{suffix}" in _SUFFIXES
            and stem.isdecimal()
            and base_offset < int(stem) < next_offset
        ]
        finish_swap(filesystem, directory, base_offset, replaced)
        filesystem.sync_directory(directory)
    for name in filesystem.list_directory(directory):
        if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)):
            filesystem.remove(directory / name)


def _end_of(filesystem: FileSystem, directory: Path, base_offset: int) -> int:
    """The offset after the last batch of a ``.log.swap`` (exclusive)."""
    segment = Segment(
        filesystem=filesystem,
        directory=directory,
        base_offset=base_offset,
        next_offset=base_offset,
        index_interval_bytes=0,
        state_suffix=SWAP_SUFFIX,
    )
    try:
        segment.attach()
        return max((place.last_offset + 1 for place in segment.walk(0)), default=base_offset)
    finally:
        segment.close()


def _path(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
