"""Files and directories in memory that remember which parts are durable.

The tree that a ``crash_disk.CrashDisk`` works on, and what a power loss leaves of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

SECTOR_BYTES = 512
"""A disk overwrites this many aligned bytes wholly or not at all."""


class DataLoss(enum.Enum):
    """What a power loss leaves of the bytes that were not synced."""

    ALL = "every file is as it was at its last sync"
    TAIL = "each file has its first few writes, the last of them torn"
    PAGES = "each page of a file is old or new, in no order; lost ones of the new size are zeros"
    NONE = "every write had reached the disk"


class NameLoss(enum.Enum):
    """What a power loss leaves of names that were made, renamed or removed and not synced."""

    ALL = "every directory is as it was at its last sync"
    SOME = "each change is kept or lost for itself"
    NONE = "every change had reached the disk"


@dataclass(frozen=True, slots=True)
class Write:
    """``data`` at ``position``; a hole before it is filled with zeros."""

    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if self.position > len(content):
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data

    def first(self, part: float, size: int) -> Write:
        """``part`` (0 to 1) of it, in a file of ``size`` bytes: overwriting goes by sectors."""
        end = self.position + int(part * len(self.data))
        if end < min(size, self.position + len(self.data)):
            end -= end % SECTOR_BYTES
        return Write(self.position, self.data[: max(0, end - self.position)])


@dataclass(frozen=True, slots=True)
class Resize:
    """The file ends at ``size``, cut or filled with zeros."""

    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


@dataclass(slots=True, eq=False)
class File:
    """``content`` is what processes see; ``durable`` what was synced; ``changes`` lie between."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    changes: list[Write | Resize] = field(default_factory=list)

    def change(self, change: Write | Resize) -> None:
        change.apply(self.content)
        self.changes.append(change)

    def sync(self) -> None:
        for change in self.changes:
            change.apply(self.durable)
        self.changes.clear()

    def lose_writes(self) -> None:
        """The disk refused the pages, which are taken for clean now; sizes are still to come."""
        size, sizes = len(self.durable), []
        for change in self.changes:
            end = change.size if isinstance(change, Resize) else change.position + len(change.data)
            if isinstance(change, Resize) or end > size:
                sizes.append(Resize(end))
                size = end
        self.changes[:] = sizes

    def clone(self) -> File:
        return File(bytearray(self.content), bytearray(self.durable), list(self.changes))

    def surviving(self, loss: DataLoss, page_bytes: int, random: Random) -> bytearray:
        old = bytearray(self.durable)
        if loss is DataLoss.ALL or not self.changes:
            return old
        if loss is DataLoss.TAIL:
            count = random.randint(0, len(self.changes))
            for change in self.changes[:count]:
                change.apply(old)
            if count < len(self.changes):
                last = self.changes[count]
                if isinstance(last, Write):
                    last.first(random.random(), len(old)).apply(old)
            return old
        new = bytearray(old)
        for change in self.changes:
            change.apply(new)
        if loss is DataLoss.PAGES:
            return _mixed(old, new, page_bytes, random)
        return new


def _mixed(old: bytearray, new: bytearray, page_bytes: int, random: Random) -> bytearray:
    """Each page of the one or the other, in the size of the one or the other."""
    size = len(random.choice((old, new)))
    mixed = bytearray()
    for start in range(0, size, page_bytes):
        page = random.choice((old, new))[start : start + page_bytes]
        mixed += page + bytes(page_bytes - len(page))
    return mixed[:size]


@dataclass(frozen=True, slots=True)
class NameChange:
    """One atomic change of a directory: ``removed`` goes and ``added`` comes."""

    removed: str | None
    added: tuple[str, Node] | None

    def apply(self, entries: dict[str, Node]) -> None:
        if self.removed is not None:
            entries.pop(self.removed, None)
        if self.added is not None:
            entries[self.added[0]] = self.added[1]


@dataclass(slots=True, eq=False)
class Directory:
    """Like ``File``, with names for bytes: those that processes see, and those that are durable."""

    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    changes: list[NameChange] = field(default_factory=list)

    def change(self, removed: str | None, added: tuple[str, Node] | None = None) -> None:
        change = NameChange(removed, added)
        change.apply(self.entries)
        self.changes.append(change)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.changes.clear()

    def surviving(self, loss: NameLoss, random: Random) -> dict[str, Node]:
        if loss is NameLoss.NONE:
            return dict(self.entries)
        kept = dict(self.durable)
        for change in self.changes:
            if loss is NameLoss.SOME and random.random() < 0.5:
                change.apply(kept)
        return kept


Node = File | Directory


def clone_tree(directory: Directory, copies: dict[Node, Node]) -> Directory:
    """A copy of a tree in which what was one file under two names still is."""

    def copy(node: Node) -> Node:
        if node not in copies:
            copies[node] = clone_tree(node, copies) if isinstance(node, Directory) else node.clone()
        return copies[node]

    return Directory(
        {name: copy(node) for name, node in directory.entries.items()},
        {name: copy(node) for name, node in directory.durable.items()},
        [
            NameChange(change.removed, change.added and (change.added[0], copy(change.added[1])))
            for change in directory.changes
        ],
    )


def walk(directory: Directory, path: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file below ``path``, which is that of ``directory``, as processes see it."""
    for name, node in directory.entries.items():
        if isinstance(node, Directory):
            yield from walk(node, path / name)
        else:
            yield path / name, bytes(node.content)
