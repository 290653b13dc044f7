"""Damage to the closed files of one partition directory, on any ``FileSystem``.

``damage`` picks one file of a kind and does one kind of harm to it; a ``Random`` chooses which file
and where. ``Damage.OLDER`` needs earlier versions of the files: ``contents`` saves them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from crash_disk import CrashDisk

from oncelog.storage.disk.file_system import FileSystem

PAGE_BYTES = 4_096
SECTOR_BYTES = 512
EDGE_BYTES = 34
"""About one entry of an index: what is zeroed of the end of a file."""


class DamagedKind(enum.Enum):
    """Whose bytes are harmed; the value ends the names of such files."""

    LOG = ".log"
    INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TXN_INDEX = ".txnindex"
    SUMMARY = ".summary"
    SNAPSHOT = ".snapshot"
    LEADER_EPOCHS = "leader-epoch-checkpoint"
    RECOVERY = "recovery-checkpoint"
    CLEAN_SHUTDOWN = ".clean_shutdown"
    CLEANER = "cleaner-offset-checkpoint"
    METADATA = "partition.metadata"
    TOPIC_ID = ".topic_id"
    LOG_START = "log-start-offset"

    @property
    def is_of_segment(self) -> bool:
        """Whether each segment has one."""
        return self in SEGMENT_KINDS


SEGMENT_KINDS = frozenset(
    {
        DamagedKind.LOG,
        DamagedKind.INDEX,
        DamagedKind.TIME_INDEX,
        DamagedKind.TXN_INDEX,
        DamagedKind.SUMMARY,
    }
)
SIDE_KINDS = tuple(kind for kind in DamagedKind if kind is not DamagedKind.LOG)
"""All but the records themselves."""


class Damage(enum.Enum):
    """What has become of a file."""

    MISSING = "missing"
    EMPTIED = "emptied"
    ZEROED = "zeroed"
    ZEROED_PAGE = "a page of it zeroed"
    ZEROED_END = "its last bytes zeroed"
    CUT = "cut short"
    FLIPPED = "a bit flipped"
    UNREADABLE = "a sector of it cannot be read"
    OLDER = "as it was earlier"


@dataclass(frozen=True, slots=True)
class Damaged:
    """What was done to which file. ``position``: from which byte on."""

    path: Path
    damage: Damage
    position: int = 0

    def __str__(self) -> str:
        return f"{self.path.name}: {self.damage.value} at byte {self.position}"


def contents(filesystem: FileSystem, directory: Path) -> dict[str, bytes]:
    """Name and bytes of every file in the directory."""
    if isinstance(filesystem, CrashDisk):
        files = filesystem.files()
        return {path.name: data for path, data in files.items() if path.parent == directory}
    names = filesystem.list_directory(directory)
    return {name: filesystem.read_whole(directory / name) for name in names}


def names_of(names: list[str], kind: DamagedKind, *, is_sealed: bool | None = None) -> list[str]:
    """The names of one kind. ``is_sealed``: only of sealed segments, or only of the active one."""
    if not kind.is_of_segment:
        return [name for name in names if name.endswith(kind.value)]
    stems = sorted(name.removesuffix(".log") for name in names if name.endswith(".log"))
    chosen = stems if is_sealed is None else stems[:-1] if is_sealed else stems[-1:]
    return [stem + kind.value for stem in chosen]


def damage(
    filesystem: FileSystem,
    directory: Path,
    kind: DamagedKind,
    how: Damage,
    random: Random,
    *,
    older: Mapping[str, bytes] | None = None,
    is_sealed: bool | None = None,
) -> Damaged | None:
    """Harm one file of ``kind``; None, and nothing is changed, if there is none to be harmed so.

    Nobody may have the directory open. What is done is durable. ``older``: see ``contents``; a
    file that was not there then is removed.
    """
    names = filesystem.list_directory(directory)
    choice = [name for name in names_of(names, kind, is_sealed=is_sealed) if name in names]
    if not choice:
        return None
    path = directory / random.choice(choice)
    before = contents(filesystem, directory)[path.name]
    if how is Damage.MISSING or (how is Damage.OLDER and path.name not in (older or {})):
        filesystem.remove(path)
        filesystem.sync_directory(directory)
        return Damaged(path, how)
    if how is Damage.UNREADABLE:
        return _spoil(filesystem, path, before, random)
    if how is Damage.OLDER:
        position, after = 0, (older or {})[path.name]
    else:
        position, after = _CHANGES[how](before, random)
    if after == before:
        return None
    handle = filesystem.open(path, create=False)
    try:
        handle.truncate(0)
        handle.append((after,))
        handle.datasync()
    finally:
        handle.close()
    return Damaged(path, how, position)


def _spoil(filesystem: FileSystem, path: Path, content: bytes, random: Random) -> Damaged | None:
    """Only on a ``CrashDisk``, and not all of a log: that would be the disk's failure."""
    is_log = path.suffix == DamagedKind.LOG.value
    if len(content) <= is_log * SECTOR_BYTES or not isinstance(filesystem, CrashDisk):
        return None
    position = SECTOR_BYTES * random.randrange(-(-len(content) // SECTOR_BYTES))
    filesystem.spoil(path, position, position + SECTOR_BYTES)
    return Damaged(path, Damage.UNREADABLE, position)


def _zeroed(data: bytes, start: int, end: int) -> tuple[int, bytes]:
    return start, data[:start] + bytes(len(data[start:end])) + data[end:]


def _zero_page(data: bytes, random: Random) -> tuple[int, bytes]:
    start = PAGE_BYTES * random.randrange(max(1, -(-len(data) // PAGE_BYTES)))
    return _zeroed(data, start, start + PAGE_BYTES)


def _cut(data: bytes, random: Random) -> tuple[int, bytes]:
    size = random.randrange(max(1, len(data)))
    return size, data[:size]


def _flip(data: bytes, random: Random) -> tuple[int, bytes]:
    if not data:
        return 0, data
    position, bit = random.randrange(len(data)), random.randrange(8)
    changed = bytes((data[position] ^ 1 << bit,))
    return position, data[:position] + changed + data[position + 1 :]


_CHANGES: dict[Damage, Callable[[bytes, Random], tuple[int, bytes]]] = {
    Damage.EMPTIED: lambda data, random: (0, b""),
    Damage.ZEROED: lambda data, random: _zeroed(data, 0, len(data)),
    Damage.ZEROED_PAGE: _zero_page,
    Damage.ZEROED_END: lambda data, random: _zeroed(
        data, max(0, len(data) - EDGE_BYTES), len(data)
    ),
    Damage.CUT: _cut,
    Damage.FLIPPED: _flip,
}
